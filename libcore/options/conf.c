/* Config files: `key = value`, one per line. */
#include "options/options.h"

#include <ctype.h>

static bool is_valid_key(const char *s, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		bool ok = islower((unsigned char)s[i]) || isdigit((unsigned char)s[i]) ||
			  s[i] == '-' || s[i] == '_' || s[i] == '.';
		if (!ok)
			return false;
	}
	return n > 0;
}

/* Checks a heading, which a comment may follow. */
static int check_heading(const char *p, const char *end, struct err *e)
{
	const char *close = memchr(p, ']', (size_t)(end - p));
	for (p = close ? close + 1 : p; p < end && isspace((unsigned char)*p); p++)
		;
	if (close && (p == end || *p == '#'))
		return 0;
	return err_set(e, EX_DATAERR, "expected a heading, [words in brackets]");
}

/* Sets the error about a line without a valid key. p[n]: the text before '='; n: 0 without '='. */
static int set_key_error(const char *p, size_t n, struct err *e)
{
	char lower[64];
	size_t i = 0;
	for (; i < n && i < sizeof(lower) - 1; i++)
		lower[i] = (char)tolower((unsigned char)p[i]);
	lower[i] = '\0';
	if (n == i && is_valid_key(lower, n))
		return err_set(e, EX_DATAERR, "keys are in lowercase; write '%s'", lower);
	return err_set(e, EX_DATAERR, "expected `key = value`%s",
		*p == '{' ? ", not JSON; a model's config.json is for --model-config"
			  : "");
}

/* Reads a quoted value; p is after the opening quote. Returns -1 if the quotes do not close. */
static int read_quoted(const char *p, const char *end, struct str *out)
{
	for (; p < end && *p != '"'; p++) {
		char c = *p;
		if (c == '\\' && p + 1 < end) {
			c = *++p;
			c = c == 'n' ? '\n' : c == 't' ? '\t' : c;
		}
		str_putc(out, c);
	}
	if (p == end)
		return -1;
	for (p++; p < end && isspace((unsigned char)*p); p++)
		;
	return p == end || *p == '#' ? 0 : -1;
}

/* Reads a value without quotes, up to a comment. */
static void read_unquoted(const char *p, const char *end, struct str *out)
{
	const char *stop = p;
	while (stop < end &&
		!(*stop == '#' && (stop == p || isspace((unsigned char)stop[-1]))))
		stop++;
	while (stop > p && isspace((unsigned char)stop[-1]))
		stop--;
	str_add(out, p, (size_t)(stop - p));
}

/* Parses a line, and calls set() if it has a key. */
static int parse_line(const char *p, const char *end, struct str *value,
	int (*set)(void *, const char *, const char *, struct err *), void *to,
	struct err *e)
{
	while (p < end && isspace((unsigned char)*p))
		p++;
	if (p == end || *p == '#')
		return 0;
	if (*p == '[')
		return check_heading(p, end, e);
	const char *equals = memchr(p, '=', (size_t)(end - p));
	const char *key_end = equals;
	while (key_end && key_end > p && isspace((unsigned char)key_end[-1]))
		key_end--;
	if (!equals || !is_valid_key(p, (size_t)(key_end - p)))
		return set_key_error(p, equals ? (size_t)(key_end - p) : 0, e);
	char key[64];
	size_t n = (size_t)(key_end - p);
	if (n >= sizeof(key))
		return err_set(e, EX_DATAERR, "the key exceeds 63 characters: %zu", n);
	memcpy(key, p, n);
	key[n] = '\0';
	for (p = equals + 1; p < end && isspace((unsigned char)*p); p++)
		;
	str_clear(value);
	str_add(value, "", 0);
	if (p < end && *p == '"') {
		if (read_quoted(p + 1, end, value))
			return err_set(e, EX_DATAERR, "%s: missing closing quote", key);
	} else {
		read_unquoted(p, end, value);
	}
	if (memchr(value->s, '\0', value->len))
		return err_set(e, EX_DATAERR, "%s: the value has a NUL byte", key);
	return set(to, key, value->s, e);
}

int conf_parse(const char *text, size_t len, const char *name,
	int (*set)(void *to, const char *key, const char *value, struct err *e), void *to,
	struct err *e)
{
	scoped_str value = {0};
	int64_t line = 0;
	int rc = 0;
	bool has_bom = len >= 3 && !memcmp(text, "\xef\xbb\xbf", 3);
	for (const char *p = text + (has_bom ? 3 : 0), *stop = text + len;
		p < stop && !rc;) {
		const char *end = memchr(p, '\n', (size_t)(stop - p));
		end = end ? end : stop;
		line++;
		rc = parse_line(p, end, &value, set, to, e);
		if (rc)
			err_prefix(e, "%s:%lld: ", name, (long long)line);
		p = end < stop ? end + 1 : stop;
	}
	return rc;
}

/* Adds a key and its value to a list of pairs. Appends further values of a key, after a space. */
static int add_pair(void *to, const char *key, const char *value, struct err *e)
{
	struct strs *pairs = to;
	(void)e;
	for (int64_t i = 0; i < pairs->n; i += 2)
		if (!strcmp(pairs->v[i], key)) {
			struct str all = {0};
			str_printf(&all, "%s %s", pairs->v[i + 1], value);
			free(pairs->v[i + 1]);
			pairs->v[i + 1] = all.s;
			return 0;
		}
	strs_add(to, key);
	strs_add(to, value);
	return 0;
}

/* Returns the value of a key, or NULL. */
static const char *find_value(const struct strs *pairs, const char *key)
{
	for (int64_t i = pairs->n - 2; i >= 0; i -= 2)
		if (!strcmp(pairs->v[i], key))
			return pairs->v[i + 1];
	return NULL;
}

int conf_diff(const struct conf_text *a, const struct conf_text *b, const char *head,
	const char *mid, const char *sep, struct str *out, struct err *e)
{
	scoped_strs x = {0}, y = {0};
	int rc = conf_parse(a->text->s, a->text->len, a->name, add_pair, &x, e) ||
		 conf_parse(b->text->s, b->text->len, b->name, add_pair, &y, e);
	for (int64_t i = 0; i < x.n && !rc; i += 2) {
		const char *other = find_value(&y, x.v[i]);
		if (!other || strcmp(other, x.v[i + 1]))
			str_printf(out, "%s%s%s %s%s%s\n", head, x.v[i], mid, x.v[i + 1],
				sep, other ? other : "-");
	}
	for (int64_t i = 0; i < y.n && !rc; i += 2)
		if (!find_value(&x, y.v[i]))
			str_printf(out, "%s%s%s -%s%s\n", head, y.v[i], mid, sep,
				y.v[i + 1]);
	return rc;
}

void conf_print(struct str *out, const char *key, const char *value)
{
	bool needs_quotes = !*value || *value == '"' || isspace((unsigned char)*value) ||
			    isspace((unsigned char)value[strlen(value) - 1]) ||
			    strpbrk(value, "#\n\t");
	str_printf(out, "%s = %s", key, needs_quotes ? "\"" : value);
	if (needs_quotes) {
		for (const char *p = value; *p; p++) {
			const char *escape = *p == '\n'	  ? "\\n"
					     : *p == '\t' ? "\\t"
					     : *p == '"'  ? "\\\""
					     : *p == '\\' ? "\\\\"
							  : NULL;
			if (escape)
				str_puts(out, escape);
			else
				str_putc(out, *p);
		}
		str_putc(out, '"');
	}
	str_putc(out, '\n');
}
