/* Functions of options.c, option_value.c, help.c, gen.c, complete.c and preset.c. */
#pragma once

#include "options/options.h"

/* Returns the option or heading after `at` (NULL: the first), common ones last; NULL at the end. */
const struct opt *opt_next(const struct program *p, const struct opt *at);
/* Returns true if `name` is the option's name or its earlier name. */
bool opt_has_name(const struct opt *t, const char *name);
/* Sets the value at v from a text, or appends the text to a list. The error quotes the text, but
 * the caller must add the name of the option, as the user wrote it. */
int opt_set(const struct opt *t, void *v, const char *text, struct err *e);
/* Returns true if the value at v equals the text's; NULL: zero, no, unset, or the first word. */
bool opt_equals(const struct opt *t, const void *v, const char *text);
/* Records whether and from where an option was given, if the program has .given. */
void opt_note_given(const struct program *p, void *o, const struct opt *t, bool given,
	const char *from);
/* Returns true for a flag that is on by default; help shows its `--no-x`, too. */
bool opt_is_on_by_default(const struct opt *t);
/* Sets *out to the form of the value in help: "N", or "a|b|c" for an enum. */
void opt_help_value(const struct opt *t, struct str *out);
/* Sets *out to the default in help: empty for flags, \\n for a line break. */
void opt_help_default(const struct opt *t, struct str *out);
/* Appends the values of --generate. */
void opt_add_kinds(const struct program *p, struct strs *out);
/* Writes the completions of the last of words[n], the words after the program's name; n = 0: of
 * an empty first word. */
void opt_complete(const struct program *p, int n, char *const *words, FILE *f);
/* Lists the presets in alphabetical order, and their directory. */
void preset_names(struct str *dir, struct strs *names);
/* Reads the text and the path of a preset. An error about a name suggests the nearest preset. */
int preset_read(const char *name, size_t max_bytes, struct str *path, struct str *text,
	struct err *e);
void opt_print_help(const struct program *p);
void opt_print_version(const struct program *p);
