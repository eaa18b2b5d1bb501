/* Makes properties independent of PCRE2's version of Unicode. If our table has a property, the
 * characters that PCRE2 lacks are added to the class as ranges. If PCRE2 has characters that our
 * table lacks, the whole property is written as ranges, which is slow. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "token/unicode_internal.h"

#include <pcre2.h>
#include <pthread.h>

static bool is_surrogate(uint32_t c) /* (valid text has none) */
{
	return c >= 0xd800 && c < 0xe000;
}

/* Sets has[code] for the characters that match `item`, \p{...}, in this PCRE2; none if unknown. */
static void find_pcre2_members(const char *item, bool has[CODE_POINTS])
{
	scoped_str text = {0};
	uint8_t bytes[4];
	int code;
	size_t at = 0;
	for (uint32_t c = 0; c < CODE_POINTS; c++)
		if (!is_surrogate(c))
			str_add(&text, bytes, (size_t)utf8_encode(c, bytes));
	scoped_ptr char *regex = text_printf("%s+", item);
	pcre2_code *x = pcre2_compile((PCRE2_SPTR)regex, PCRE2_ZERO_TERMINATED,
		PCRE2_UTF | PCRE2_UCP, &code, &at, NULL);
	pcre2_match_data *m = pcre2_match_data_create(1, NULL);
	const size_t *found = pcre2_get_ovector_pointer(m);
	if (x)
		pcre2_jit_compile(x, PCRE2_JIT_COMPLETE);
	for (at = 0; x && pcre2_match(x, (PCRE2_SPTR)text.s, text.len, at,
				  PCRE2_NO_UTF_CHECK, m, NULL) > 0;
		at = found[1])
		for (size_t i = found[0]; i < found[1];) {
			uint32_t c = 0;
			i += (size_t)utf8_decode(text.s + i, (int64_t)(text.len - i), &c);
			has[c] = true;
		}
	pcre2_match_data_free(m);
	pcre2_code_free(x);
}

/* Appends the characters in set `in` but not in set `out_of`, as ranges of a class. */
static void append_ranges(const bool *in, const bool *out_of, struct str *out)
{
	for (uint32_t c = 0, n; c < CODE_POINTS; c += n + 1) {
		for (n = 0; c + n < CODE_POINTS && in[c + n] && !out_of[c + n];)
			n++;
		if (n)
			str_printf(
				out, n > 1 ? "\\x{%x}-\\x{%x}" : "\\x{%x}", c, c + n - 1);
	}
}

/* Appends \p{text}, or \P{text} if `opposite`, as part of a class; slow. */
static void write_property(const char *text, bool opposite, struct str *out)
{
	enum { OURS, THEIRS, NONE, N_SETS };
	bool(*has)[CODE_POINTS] = xcalloc(N_SETS, sizeof(*has)), pcre2_has_more = false;
	const char *script = strpbrk(text, ":=");
	bool known = unicode_property(script ? script + 1 : text, has[OURS]);
	scoped_ptr char *item = text_printf("\\p{%s}", text);
	if (known)
		find_pcre2_members(item, has[THEIRS]);
	for (uint32_t c = 0; known && c < CODE_POINTS; c++) {
		/* (without sc: PCRE2 includes characters that scripts share) */
		has[OURS][c] |= !script && text[1] && text[2] && has[THEIRS][c];
		has[OURS][c] = has[OURS][c] != opposite && !is_surrogate(c);
		has[THEIRS][c] = has[THEIRS][c] != opposite;
		pcre2_has_more |= has[THEIRS][c] && !has[OURS][c] && !is_surrogate(c);
	}
	item[1] = opposite ? 'P' : 'p';
	if (!pcre2_has_more)
		str_puts(out, item);
	if (known)
		append_ranges(has[OURS], has[pcre2_has_more ? NONE : THEIRS], out);
	free(has);
}

/* Appends \p{text} as write_property() does, from a cache for all patterns and threads. */
static void append_property(const char *text, bool opposite, struct str *out)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	static struct strs known; /* names, each followed by its text */
	scoped_str made = {0};
	int64_t i = 0;
	scoped_ptr char *key = text_printf("%d%s", opposite, text);
	pthread_mutex_lock(&lock);
	while (i < known.n && strcmp(known.v[i], key) != 0)
		i += 2;
	if (i == known.n) {
		write_property(text, opposite, &made);
		strs_add(&known, key);
		strs_add(&known, made.s);
	}
	str_puts(out, known.v[i + 1]);
	pthread_mutex_unlock(&lock);
}

/* Appends the escape sequence at p, after its backslash, rewritten. Returns its end. */
static const char *rewrite_escape(const char *p, bool in_class, struct str *out)
{
	int brace = *p && p[1] == '{';
	const char *end = brace ? strchr(p, '}') : *p && p[1] ? p + 1 : NULL;
	bool property = (*p == 'p' || *p == 'P') && end;
	bool word = *p == 'w' || (*p == 'W' && !in_class);
	if (!property && !word && *p != 'd' && *p != 'D') {
		str_putc(out, '\\');
		str_add(out, p, *p != 0);
		return p + (*p != 0);
	}
	scoped_str name = {0};
	str_puts(&name, "");
	bool opposite = *p == 'P' || *p == 'D' || *p == 'W';
	if (property)
		str_add(&name, p + 1 + brace, (size_t)(end - p - 2 * brace));
	else
		str_puts(&name, word ? "L" : "Nd");
	bool caret = *name.s == '^';
	if (!in_class)
		str_puts(out, opposite != caret ? "[^" : "[");
	append_property(name.s + caret, in_class && opposite != caret, out);
	if (word) {
		append_property("N", false, out);
		str_putc(out, '_');
	}
	if (!in_class)
		str_putc(out, ']');
	return property ? end + 1 : p + 1;
}

void unicode_regex(const char *regex, struct str *out)
{
	bool in_class = false;
	str_puts(out, "");
	for (const char *p = regex; *p;) {
		size_t n = 1;
		const char *posix =
			in_class && p[0] == '[' && p[1] == ':' ? strstr(p, ":]") : NULL;
		const char *quoted = !strncmp(p, "\\Q", 2) ? strstr(p, "\\E") : NULL;
		if (quoted)
			n = (size_t)(quoted + 2 - p);
		else if (*p == '\\') {
			p = rewrite_escape(p + 1, in_class, out);
			continue;
		} else if (posix)
			n = (size_t)(posix + 2 - p);
		else if (in_class)
			in_class = *p != ']';
		else if (*p == '[') {
			in_class = true;
			n += p[1] == '^';
			n += p[n] == ']';
		}
		str_add(out, p, n);
		p += n;
	}
}
