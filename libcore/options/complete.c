/*
 * --complete: completions of the last word of a command line, for shells. Each candidate is a line,
 * with a tab and its help, if any. A last line `:files SUFFIX` adds files, `:folders` directories.
 */
#include "options/options_internal.h"

#include <ctype.h>

struct completion {
	const struct program *p;
	const char *word; /* the word to complete: candidates begin with it */
	FILE *f;
};

/* Prints the candidate PREFIX NAME SUFFIX, and its help, if it begins with the word. */
static void offer_candidate(const struct completion *c, const char *prefix,
	const char *name, const char *suffix, const char *help)
{
	scoped_ptr char *text = text_printf("%s%s%s", prefix, name, suffix);
	if (!strncmp(text, c->word, strlen(c->word)))
		fprintf(c->f, "%s%s%s\n", text, help ? "\t" : "", help ? help : "");
}

static void offer_files(const struct completion *c, const char *files)
{
	if (files && !strcmp(files, "/"))
		fputs(":folders\n", c->f);
	else if (files)
		fprintf(c->f, ":files %s\n", files);
}

/* ---- values ---------------------------------------------------------------------- */

static void offer_words(
	const struct completion *c, const char *prefix, const char *const *words)
{
	for (; words && *words; words++)
		offer_candidate(c, prefix, *words, "", NULL);
}

/* Offers the words that a help text explains at the start of a sentence: `auto: from the ...`. */
static void offer_explained(
	const struct completion *c, const char *prefix, const char *help)
{
	bool at_sentence_start = true;
	char name[64];
	for (const char *p = help; *p; p++) {
		size_t n = strcspn(p, ": ");
		bool is_word = n > 1 && p[n] == ':' && p[n + 1] == ' ';
		for (size_t i = 0; i < n && is_word; i++)
			is_word = islower((unsigned char)p[i]);
		if (at_sentence_start && is_word) {
			snprintf(name, sizeof(name), "%.*s", (int)n, p);
			offer_candidate(c, prefix, name, "", NULL);
		}
		p += n;
		at_sentence_start = n && *p && strchr(".;", p[-1]);
		if (!*p)
			return;
	}
}

/* Offers an enum's names, yes and no for a flag, and the words that the help of a text explains. */
static void offer_values(
	const struct completion *c, const struct opt *t, const char *prefix)
{
	static const char *const yes_no[] = {"yes", "no", NULL};
	scoped_strs names = {0};
	scoped_str dir = {0};
	if (!strcmp(t->name, "preset"))
		preset_names(&dir, &names);
	else if (t->type == OPT_ENUM || t->type == OPT_FLAG)
		offer_words(c, prefix, t->type == OPT_ENUM ? t->values : yes_no);
	else if (t->type == OPT_STR && c->p->offer)
		c->p->offer(t->name, &names);
	if (t->type == OPT_STR && !names.n)
		offer_explained(c, prefix, t->help);
	if (t->type == OPT_ACTION && !strcmp(t->name, "generate"))
		opt_add_kinds(c->p, &names);
	for (int64_t i = 0; i < names.n; i++)
		offer_candidate(c, prefix, names.v[i], "", NULL);
	offer_files(c, t->files);
}

/* ---- names ----------------------------------------------------------------------- */

/* Prints all options, with --no-X for flags that are on by default, as completions. */
static void offer_options(const struct completion *c)
{
	for (const struct opt *t = NULL; (t = opt_next(c->p, t));) {
		if (t->type == OPT_GROUP)
			continue;
		offer_candidate(c, "--", t->name, "", t->help);
		if (opt_is_on_by_default(t))
			offer_candidate(c, "--no-", t->name, "", t->help);
	}
}

/* Returns true for an option that can be written key=value. */
static bool is_key(const struct opt *t)
{
	return t->type != OPT_GROUP && t->type != OPT_ACTION;
}

/* Offers words, files and keys; keys only after a first letter, since they are many. */
static void offer_operands(const struct completion *c, bool is_first)
{
	const char *const *words = c->p->words ? c->p->words() : NULL;
	if (is_first || !c->p->operands)
		offer_words(c, "", words);
	for (const struct opt *t = c->p->opts; c->p->settings && t->type != OPT_END; t++)
		if (*c->word && is_key(t))
			offer_candidate(c, "", t->name, "=", t->help);
	if (!words || !is_first)
		offer_files(c, c->p->operands);
}

/* ---- the place of the word ------------------------------------------------------- */

/* Returns the option of -x, --name or a key, up to its '='; NULL: none. */
static const struct opt *find_option(const struct program *p, const char *word)
{
	char name[64];
	size_t dashes = strspn(word, "-");
	snprintf(name, sizeof(name), "%.*s", (int)strcspn(word + dashes, "="),
		word + dashes);
	for (const struct opt *t = NULL; (t = opt_next(p, t));) {
		bool found = dashes == 1 ? name[0] && t->letter == name[0] && !name[1]
					 : opt_has_name(t, name);
		if (t->type != OPT_GROUP && found &&
			(dashes || (p->settings && is_key(t))))
			return t;
	}
	return NULL;
}

static bool takes_separate_value(const struct opt *t)
{
	return t->type == OPT_ENUM || (t->type != OPT_FLAG && t->arg);
}

void opt_complete(const struct program *p, int n, char *const *words, FILE *f)
{
	const char *word = n ? words[n - 1] : "";
	const char *previous = n > 1 ? words[n - 2] : "";
	const char *equals = strchr(word, '=');
	const struct completion c = {p, word, f};
	const struct opt *t = NULL;
	bool is_first_operand = true;
	for (int i = 0; i < n - 1; i++)
		is_first_operand = is_first_operand && words[i][0] == '-';
	if (previous[0] == '-' && !strchr(previous, '='))
		t = find_option(p, previous);
	if (t && takes_separate_value(t)) {
		offer_values(&c, t, "");
	} else if (equals && (t = find_option(p, word))) {
		scoped_ptr char *prefix =
			text_printf("%.*s", (int)(equals + 1 - word), word);
		offer_values(&c, t, prefix);
	} else if (word[0] == '-') {
		offer_options(&c);
	} else {
		offer_operands(&c, is_first_operand);
	}
}
