/* Shared by options.c, option_value.c, help.c, gen.c, complete.c and preset.c only. */
#pragma once

#include "options/options.h"

/* The program's options, then the common ones, headings included; NULL begins. */
const struct opt *opt_next(const struct program *p, const struct opt *at);
/* By its name, or its earlier one. */
bool opt_is_called(const struct opt *t, const char *name);
/* Sets the value at v from a text; a list gets one more. */
int opt_set(const struct opt *t, void *v, const char *text, struct err *e);
/* Is the value at v the one that the text sets? NULL: is it zero, no, unset, or the first word? */
bool opt_equals(const struct opt *t, const void *v, const char *text);
/* For opts_given() and opts_blame(), where the program has it. */
void opt_note_given(const struct program *p, void *o, const struct opt *t, bool given,
	const char *from);
/* A flag that is on by default, which is worth showing as `--no-x`, too. */
bool opt_is_on(const struct opt *t);
/* How the option's value is written in help: "N", or "a|b|c" for an enum. */
void opt_arg(const struct opt *t, struct str *out);
/* The default for people: nothing for flags and empty ones, \\n for a line break. */
void opt_default(const struct opt *t, struct str *out);
/* Appends the values of --generate. */
void opt_kinds(const struct program *p, struct strs *out);
/* Writes what may stand for the last of words[n], which follow the program's name; 0: for the first. */
void opt_complete(const struct program *p, int n, char *const *words, FILE *f);
/* The presets there are, in alphabetical order, and the folder. */
void preset_names(struct str *folder, struct strs *names);
/* The text of a preset, and where it was; a name that does not exist suggests the nearest. */
int preset_read(const char *name, size_t max_bytes, struct str *path, struct str *text,
	struct err *e);
void opt_print_help(const struct program *p);
void opt_print_version(const struct program *p);
