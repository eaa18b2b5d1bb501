/* Values of options: setting and comparing them from text, and the options that they need. */
#include "options/options_internal.h"

#include <ctype.h>
#include <math.h>

/* ---- from text ------------------------------------------------------------------- */

/* Writes a bound to buf, in plain digits if it is a whole number of at most 15 digits. */
static const char *bound_text(char buf[static NUM_TEXT], double v)
{
	if (v != floor(v) || fabs(v) >= 1e15)
		return text_double(buf, v);
	snprintf(buf, NUM_TEXT, "%.0f", v);
	return buf;
}

/* Fails if a value is outside of the option's bounds. */
static int check_range(const struct opt *t, double v, const char *text, struct err *e)
{
	bool bounded = t->min != 0 || t->max != 0;
	if (!bounded || (v >= t->min && v <= t->max))
		return 0;
	char lo[NUM_TEXT], hi[NUM_TEXT];
	if (t->max >= 1e18 && v < t->min)
		return err_set(
			e, EX_USAGE, "%s is less than %s", text, bound_text(lo, t->min));
	return err_set(e, EX_USAGE, "%s is not between %s and %s", text,
		bound_text(lo, t->min), bound_text(hi, t->max));
}

/* Sets *v from yes, true, on or 1; no, false, off or 0. */
static int set_flag(const char *text, bool *v, struct err *e)
{
	static const char *const yes[] = {"yes", "true", "on", "1"};
	static const char *const no[] = {"no", "false", "off", "0"};
	for (size_t i = 0; i < ARRAY_LEN(yes); i++) {
		if (!strcmp(text, yes[i]) || !strcmp(text, no[i])) {
			*v = !strcmp(text, yes[i]);
			return 0;
		}
	}
	return err_set(e, EX_USAGE, "'%s' is neither yes nor no", text);
}

char *did_you_mean(char buf[static DID_YOU_MEAN], const char *name,
	const char *const *names, int64_t n)
{
	const char *near = nearest(name, names, n);
	buf[0] = '\0';
	if (near)
		snprintf(buf, DID_YOU_MEAN, "; did you mean '%s'?", near);
	return buf;
}

int err_none_of(struct err *e, const char *what, const char *name,
	const char *const *names, int64_t n)
{
	char hint[DID_YOU_MEAN];
	scoped_str list = {0};
	for (int64_t i = 0; i < n; i++)
		str_printf(&list, "%s%s", i ? ", " : "", names[i]);
	err_set(e, EX_USAGE, "%s%s'%s' is none of %s%s", what ? what : "",
		what ? ": " : "", name, list.s, did_you_mean(hint, name, names, n));
	return -1;
}

/* Sets an enum from its word, and explains words that other programs have. */
static int set_enum(const struct opt *t, const char *text, int *v, struct err *e)
{
	int n = 0;
	for (; t->values[n]; n++) {
		if (!strcmp(t->values[n], text)) {
			*v = n;
			return 0;
		}
	}
	size_t len = strlen(text);
	if (t->unsupported && !strncmp(t->unsupported, text, len) &&
		t->unsupported[len] == ':')
		return err_set(e, EX_USAGE, "'%s' is not supported;%s", text,
			t->unsupported + len + 1);
	return err_none_of(e, NULL, text, t->values, n);
}

int opt_set(const struct opt *t, void *v, const char *text, struct err *e)
{
	int64_t n;
	double d;
	switch (t->type) {
	case OPT_FLAG:
		return set_flag(text, v, e);
	case OPT_INT:
	case OPT_SIZE:
		if (t->type == OPT_INT ? parse_int(text, &n) : parse_size(text, &n))
			return err_set(e, EX_USAGE, "'%s' is not a %s", text,
				t->type == OPT_INT
					? "whole number"
					: "size (a number, then K, M, G or T)");
		if (check_range(t, (double)n, text, e))
			return -1;
		*(int64_t *)v = n;
		return 0;
	case OPT_DOUBLE:
		if (parse_double(text, &d) || d != d)
			return err_set(e, EX_USAGE, "'%s' is not a number", text);
		if (!isfinite(d))
			return err_set(e, EX_USAGE, "%s is not finite", text);
		if (check_range(t, d, text, e))
			return -1;
		*(double *)v = d;
		return 0;
	case OPT_ENUM:
		return set_enum(t, text, v, e);
	case OPT_STR:
		free(*(char **)v);
		*(const char **)v = *text ? xstrdup(text) : NULL;
		return 0;
	case OPT_LIST:
		strs_add(v, text);
		return 0;
	default:
		bug(__FILE__, __LINE__, t->name);
	}
}

bool opt_equals(const struct opt *t, const void *v, const char *text)
{
	int64_t n = 0;
	double d = 0;
	const char *current;
	text = text ? text : "";
	switch (t->type) {
	case OPT_FLAG:
		return *(const bool *)v == !strcmp(text, "yes");
	case OPT_INT:
	case OPT_SIZE:
		(t->type == OPT_INT ? parse_int : parse_size)(text, &n);
		return *(const int64_t *)v == n;
	case OPT_DOUBLE:
		parse_double(text, &d);
		return *(const double *)v == d;
	case OPT_ENUM:
		current = t->values[*(const int *)v];
		return !strcmp(current, *text ? text : t->values[0]);
	case OPT_STR:
		current = *(const char *const *)v;
		return !strcmp(current ? current : "", text);
	case OPT_LIST:
		return !((const struct strs *)v)->n;
	default:
		return true;
	}
}

void opts_free(const struct program *p, void *o)
{
	for (const struct opt *t = p->opts; t->type != OPT_END; t++) {
		char *v = (char *)o + t->offset;
		if (t->type == OPT_STR)
			free(*(char **)v);
		else if (t->type == OPT_LIST)
			strs_free((struct strs *)v);
	}
}

/* ---- options that were given ------------------------------------------------------ */

/* Returns the program's struct opt_given in *o, and sets *i to the index of an option in it. */
static struct opt_given *find_given(
	const struct program *p, const void *o, const struct opt *t, size_t *i)
{
	struct opt_given *g = (struct opt_given *)((char *)o + p->given);
	*i = (size_t)(t - p->opts);
	BUG_ON(*i >= ARRAY_LEN(g->row));
	return g;
}

static bool is_given(const struct program *p, const void *o, const struct opt *t)
{
	size_t i;
	return find_given(p, o, t, &i)->row[i];
}

void opt_note_given(const struct program *p, void *o, const struct opt *t, bool given,
	const char *from)
{
	size_t i;
	if (!p->given)
		return;
	struct opt_given *g = find_given(p, o, t, &i);
	g->row[i] = given;
	g->from[i] = given ? from : NULL;
}

/* Returns the option with this name, which the program must have. */
static const struct opt *find_own_option(const struct program *p, const char *name)
{
	for (const struct opt *t = p->opts; t->type != OPT_END; t++)
		if (t->type != OPT_GROUP && !strcmp(t->name, name))
			return t;
	bug(__FILE__, __LINE__, name);
}

bool opt_has_name(const struct opt *t, const char *name)
{
	return !strcmp(t->name, name) || (t->was && !strcmp(t->was, name));
}

unsigned opts_flags(const struct program *p, const char *name)
{
	for (const struct opt *t = p->opts; t->type != OPT_END; t++)
		if (t->type != OPT_GROUP && opt_has_name(t, name))
			return t->flags;
	return 0;
}

bool opts_given(const struct program *p, const void *o, const char *name)
{
	return is_given(p, o, find_own_option(p, name));
}

void opts_reset(const struct program *p, void *o, const char *prefix)
{
	struct err e;
	for (const struct opt *t = p->opts; t->type != OPT_END; t++) {
		char *v = (char *)o + t->offset;
		if (t->type == OPT_GROUP || strncmp(t->name, prefix, strlen(prefix)))
			continue;
		if (t->type == OPT_LIST)
			strs_free((struct strs *)v);
		else
			BUG_ON(opt_set(t, v, t->def ? t->def : "", &e));
		opt_note_given(p, o, t, false, NULL);
	}
}

/* Returns true if a message names --NAME, or "NAME (5)" as messages about models do. */
static bool names_option(const char *message, const char *name)
{
	size_t n = strlen(name);
	for (const char *at = message; (at = strstr(at, name)); at++) {
		bool has_dashes = at - message >= 2 && at[-1] == '-' && at[-2] == '-';
		bool begins_word = at == message || at[-1] == ' ';
		if (has_dashes && at[n] != '-' && !isalnum((unsigned char)at[n]))
			return true;
		if (begins_word && !strncmp(at + n, " (", 2))
			return true;
	}
	return false;
}

void opts_add_origins(const struct program *p, const void *o, struct err *e)
{
	scoped_str why = {0};
	for (const struct opt *t = p->opts; t->type != OPT_END; t++) {
		size_t i;
		if (e->code != EX_USAGE || t->type == OPT_GROUP ||
			!names_option(e->msg, t->name))
			continue;
		const char *from = find_given(p, o, t, &i)->from[i];
		if (from)
			str_printf(&why, "%s--%s is from %s", why.len ? ", " : "",
				t->name, from);
	}
	size_t n = strlen(e->msg);
	if (why.len)
		snprintf(e->msg + n, sizeof(e->msg) - n, " (%s)", why.s);
}

/* ---- options that need other options ------------------------------------------------ */

/* Returns true if `needs` is met: "--a", "--a or --b", "--a sgd or adamw". */
static bool is_need_met(const struct program *p, const void *o, const char *needs)
{
	scoped_ptr char *copy = xstrdup(needs);
	const struct opt *t = NULL;
	bool met = false;
	for (char *at = copy, *next; at && !met; at = next) {
		next = strstr(at, " or ");
		if (next) {
			*next = '\0';
			next += strlen(" or ");
		}
		char *value = at;
		if (!strncmp(at, "--", 2)) {
			value = strchr(at, ' ');
			if (value)
				*value++ = '\0';
			t = find_own_option(p, at + 2);
		}
		const void *v = (const char *)o + t->offset;
		met = value ? opt_equals(t, v, value) : !opt_equals(t, v, NULL);
	}
	return met;
}

int opts_check_needs(const struct program *p, const void *o, struct err *e)
{
	for (const struct opt *t = p->opts; t->type != OPT_END; t++) {
		const void *v = (const char *)o + t->offset;
		if (!t->needs || !is_given(p, o, t))
			continue;
		bool is_off = opt_equals(t, v, NULL) && opt_equals(t, v, t->def);
		if (!is_off && !is_need_met(p, o, t->needs))
			return err_set(e, EX_USAGE, "--%s needs %s", t->name, t->needs);
	}
	return 0;
}

/* ---- options without effect --------------------------------------------------------- */

/* Appends the given options of a list, except defaults: "--a and --b". Returns their number. */
static int list_given(
	const struct program *p, const void *o, const char *names, struct str *out)
{
	char *copy = xstrdup(names), *rest = copy, *name, *last = NULL;
	int n = 0;
	while ((name = strsep(&rest, " "))) {
		const struct opt *t = find_own_option(p, name);
		if (!is_given(p, o, t) ||
			opt_equals(t, (const char *)o + t->offset, t->def))
			continue;
		if (last)
			str_printf(out, "%s--%s", n > 1 ? ", " : "", last);
		last = name;
		n++;
	}
	if (last)
		str_printf(out, "%s--%s", n > 1 ? " and " : "", last);
	free(copy);
	return n;
}

void opts_note_idle(
	const struct program *p, const void *o, const struct opt_idle *rows, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		scoped_str text = {0};
		int given = rows[i].idle ? list_given(p, o, rows[i].options, &text) : 0;
		if (given)
			info("note: %s ha%s no effect: %s", text.s,
				given > 1 ? "ve" : "s", rows[i].why);
	}
}
