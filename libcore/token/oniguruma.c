/* Regular expressions of tokenizer.json. Hugging Face's library reads them with Oniguruma, in the
 * syntax of Ruby; we read them with PCRE2. Syntax with another meaning in PCRE2 is rewritten if
 * models use it (DeepSeek's patterns have \s, BLOOM's a class in a class), and else rejected. */
#include "token/vocab_internal.h"

#include <ctype.h>

enum { MAX_GROUPS = 64 };

struct rewriting {
	const char *regex, *p;
	struct str *out;
	size_t atom; /* where the last character, class or group begins in *out */
	size_t group[MAX_GROUPS];
	int n_groups;
};

static int reject_syntax(const struct rewriting *w, const char *what, struct err *e)
{
	return err_set(e, EX_DATAERR, "the pattern '%.200s': %s is not supported",
		w->regex, what);
}

static void append_literal(struct str *out, char c)
{
	if (c == '\n' || c == '\r')
		str_puts(out, c == '\n' ? "\\n" : "\\r"); /* (a pattern is one line) */
	else
		str_putc(out, c);
}

#define WORD "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}"
/* Outside classes, \w also has superscripts and fractions of Latin-1. */
#define WORD_ALONE WORD "\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}"

/* The PCRE2 equivalents of escape sequences. */
static const struct {
	char letter;
	const char *alone, *in_class; /* NULL: not supported */
} escapes[] = {
	/* (the libraries disagree on characters such as U+180E) */
	{'s', "[\\t-\\r\\x{85}\\p{Z}]", "\\t-\\r\\x{85}\\p{Z}"},
	{'S', "[^\\t-\\r\\x{85}\\p{Z}]", NULL},
	{'w', "[" WORD_ALONE "]", WORD},
	{'W', "[^" WORD_ALONE "]", NULL},
	{'h', "[0-9A-Fa-f]", "0-9A-Fa-f"},
	{'H', "[^0-9A-Fa-f]", NULL},
	{'v', "\\x0b", "\\x0b"},
	{'d', "\\p{Nd}", "\\p{Nd}"},
	{'D', "\\P{Nd}", "\\P{Nd}"},
};

/* Returns true if "NAME}" is a derived property of Unicode, not a script or category. */
static bool is_derived_property(const char *name)
{
	static const char *const all[] = {
		"Alphabetic}", "Lowercase}", "Uppercase}", "Any}"};
	for (size_t i = 0; i < ARRAY_LEN(all); i++)
		if (!strncmp(name, all[i], strlen(all[i])))
			return true;
	return false;
}

/* Rewrites \p{...}, with w->p at the p. Adds sc: to scripts, which excludes their extensions. */
static int rewrite_property(struct rewriting *w, struct err *e)
{
	const char *end = w->p[1] == '{' ? strchr(w->p, '}') : NULL;
	if (!end)
		return reject_syntax(w, "\\p without {", e);
	str_putc(w->out, '\\');
	str_add(w->out, w->p, 2);
	const char *name = w->p + 2;
	if (*name == '^')
		str_putc(w->out, *name++);
	if (end - name > 2 && !memchr(name, ':', (size_t)(end - name)) &&
		!memchr(name, '=', (size_t)(end - name)) && !is_derived_property(name))
		str_puts(w->out, "sc:");
	str_add(w->out, name, (size_t)(end + 1 - name));
	w->p = end + 1;
	return 0;
}

/* Rewrites an escape sequence, with w->p after the backslash. */
static int rewrite_escape(struct rewriting *w, bool in_class, struct err *e)
{
	char c = *w->p;
	if (c == 'p' || c == 'P')
		return rewrite_property(w, e);
	for (size_t i = 0; i < ARRAY_LEN(escapes); i++) {
		if (escapes[i].letter != c)
			continue;
		const char *text = in_class ? escapes[i].in_class : escapes[i].alone;
		if (!text)
			return reject_syntax(w, "\\S, \\W or \\H in a class", e);
		str_puts(w->out, text);
		w->p++;
		return 0;
	}
	char sequence[] = {'\\', c, '\0'};
	bool letter = isalpha((unsigned char)c);
	if (!c || isdigit((unsigned char)c) || (letter && !strchr("nrtfxzbBAGZ", c)) ||
		(in_class && letter && !strchr("nrtfx", c)))
		return reject_syntax(w, sequence, e);
	if (c != '\n' && c != '\r')
		str_putc(w->out, '\\');
	append_literal(w->out, c);
	w->p++;
	return 0;
}

/* Rewrites [:alpha:] and the like within a class, with w->p at the bracket. */
static int rewrite_named_class(struct rewriting *w, struct err *e)
{
	static const struct {
		const char *name, *text;
	} names[] = {{"alpha", "\\p{Alphabetic}"}, {"alnum", "\\p{Alphabetic}\\p{Nd}"},
		{"digit", "\\p{Nd}"}, {"lower", "\\p{Lowercase}"},
		{"upper", "\\p{Uppercase}"}, {"punct", "\\p{P}\\p{S}"},
		{"space", "\\t-\\r\\x{85}\\p{Z}"}, {"word", WORD},
		{"xdigit", "0-9A-Fa-f"}};
	for (size_t i = 0; i < ARRAY_LEN(names); i++) {
		size_t n = strlen(names[i].name);
		if (strncmp(w->p + 2, names[i].name, n) || strncmp(w->p + 2 + n, ":]", 2))
			continue;
		str_puts(w->out, names[i].text);
		w->p += n + 4;
		return 0;
	}
	return reject_syntax(w, "an unknown [:name:] in a class", e);
}

/* Rewrites [...], with w->p at the bracket. A class within a class adds its characters. */
static int rewrite_class(struct rewriting *w, struct err *e)
{
	int depth = 1;
	bool after_class = false; /* after an inner class, where a - is literal */
	str_putc(w->out, *w->p++);
	if (*w->p == '^')
		str_putc(w->out, *w->p++);
	if (*w->p == ']')
		return reject_syntax(w, "] as the first character of a class", e);
	while (depth) {
		char c = *w->p;
		if (!c)
			return reject_syntax(w, "a class without ]", e);
		if (c == '&' && w->p[1] == '&')
			return reject_syntax(w, "&& in a class", e);
		if (c == '[' && w->p[1] == ':') {
			if (rewrite_named_class(w, e))
				return -1;
			after_class = true;
			continue;
		}
		if (c == '[' && (w->p[1] == '^' || w->p[1] == ']'))
			return reject_syntax(w, "[^ or [] in a class", e);
		if (c == '\\') {
			w->p++;
			if (rewrite_escape(w, true, e))
				return -1;
			after_class = false;
			continue;
		}
		w->p++;
		if (c == '[' || c == ']') {
			depth += c == '[' ? 1 : -1;
			after_class = true;
			continue;
		}
		if (c == '-' && (after_class || *w->p == '[' || *w->p == ']'))
			str_putc(w->out, '\\');
		append_literal(w->out, c);
		after_class = false;
	}
	str_putc(w->out, ']');
	return 0;
}

/* Copies the beginning of a group, such as ( or (?:. */
static int rewrite_group_start(struct rewriting *w, struct err *e)
{
	if (w->n_groups == MAX_GROUPS)
		return reject_syntax(w, "nesting of more than 64 groups", e);
	w->group[w->n_groups++] = w->out->len;
	str_putc(w->out, *w->p++);
	if (*w->p != '?')
		return 0;
	size_t n = 1 + strspn(w->p + 1, "i-");
	if (n > 1 && w->p[n] == ')' && w->p - 1 != w->regex)
		return reject_syntax(w, "(?i) that is not at the beginning", e);
	if (!w->p[n] || !strchr(n > 1 ? ":)" : ":=!><", w->p[n]))
		return reject_syntax(w, "this kind of (? group", e);
	str_add(w->out, w->p, n);
	w->p += n;
	if (*w->p != ')')
		str_putc(w->out, *w->p++);
	return 0;
}

static void insert_text(struct str *out, size_t at, const char *text)
{
	scoped_str rest = {0};
	str_puts(&rest, out->s + at);
	out->len = at;
	str_puts(out, text);
	str_puts(out, rest.s);
}

/* Rewrites {n,m}, with w->p at the brace; {,m} becomes {0,m}. A + after it repeats it (not possessive
 * as in PCRE2), and so does a ? after {n}. */
static int rewrite_interval(struct rewriting *w, struct err *e)
{
	const char *p = w->p + 1;
	size_t low = strspn(p, "0123456789"), comma = p[low] == ',';
	size_t high = comma ? strspn(p + low + 1, "0123456789") : 0;
	const char *end = p + low + comma + high;
	if (*end != '}' || low + high == 0)
		return reject_syntax(w, "{ that is not an interval", e);
	str_puts(w->out, low ? "{" : "{0");
	str_add(w->out, p, (size_t)(end + 1 - p));
	w->p = end + 1;
	if (*w->p != '+' && (*w->p != '?' || comma))
		return 0;
	insert_text(w->out, w->atom, "(?:");
	str_putc(w->out, ')');
	return 0;
}

/* Rewrites the next element of an Oniguruma pattern for PCRE2, appends it and advances w->p. */
static int rewrite_next(struct rewriting *w, struct err *e)
{
	char c = *w->p;
	size_t begin = w->out->len;
	if (c == '{')
		return rewrite_interval(w, e);
	if (c == '*' || c == '+' || c == '?') {
		str_putc(w->out, *w->p++);
		return 0;
	}
	w->atom = begin;
	if (c == '[')
		return rewrite_class(w, e);
	if (c == '(')
		return rewrite_group_start(w, e);
	w->p++;
	if (c == ')' && w->n_groups)
		w->atom = w->group[--w->n_groups];
	if (c == '$') { /* matches at the end of each line */
		str_puts(w->out, "(?![^\\n])");
		return 0;
	}
	if (c == '\\')
		return rewrite_escape(w, false, e);
	append_literal(w->out, c);
	while (((uint8_t)*w->p & 0xc0) == 0x80)
		str_putc(w->out, *w->p++);
	return 0;
}

int regex_of_oniguruma(const char *regex, struct str *out, struct err *e)
{
	struct rewriting w = {.regex = regex, .p = regex, .out = out};
	str_puts(out, "");
	while (*w.p)
		if (rewrite_next(&w, e))
			return -1;
	return 0;
}
