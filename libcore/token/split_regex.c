/*
 * Patterns without a name: regular expressions, by PCRE2. A match that has looked at the end of the
 * text is not certain while more text may follow (a partial match of PCRE2). What is before the text
 * is not known, so a pattern cannot look behind.
 */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "token/split_internal.h"
#include "token/unicode_internal.h"

#include <pcre2.h>
#include <stdlib.h>
#include <string.h>

enum { MATCH_LIMIT = 10000000, HEAP_LIMIT_KIB = 1 << 18 };

struct split_regex {
	pcre2_code *code;
	pcre2_match_data *match;
	pcre2_match_context *limits;
};

static pcre2_code *compile(const char *regex, struct err *e)
{
	int code;
	size_t at;
	pcre2_code *x = pcre2_compile((PCRE2_SPTR)regex, PCRE2_ZERO_TERMINATED,
		PCRE2_UTF | PCRE2_UCP | PCRE2_MATCH_INVALID_UTF | PCRE2_DOLLAR_ENDONLY |
			PCRE2_NEVER_BACKSLASH_C,
		&code, &at, NULL);
	PCRE2_UCHAR why[200];
	if (x)
		return x;
	pcre2_get_error_message(code, why, sizeof(why));
	err_set(e, EX_DATAERR, "the pattern '%.200s': character %zu: %s", regex, at,
		(const char *)why);
	return NULL;
}

/* ^, \A, \G, \K, \b and lookbehind depend on what is before the match. */
static int check_behind(const pcre2_code *code, const char *regex, struct err *e)
{
	uint32_t behind = 0;
	bool class = false, anchor = false;
	pcre2_pattern_info(code, PCRE2_INFO_MAXLOOKBEHIND, &behind);
	for (const char *p = regex; *p; p++) {
		if (*p == '\\' && p[1]) {
			p++;
			anchor |= !class && strchr("AGK", *p);
			if ((*p == 'p' || *p == 'P') && p[1] == '{')
				p += strcspn(p, "}") - 1;
		} else if (class)
			class = *p != ']';
		else if (*p == '[')
			class = true, p += p[1] == '^', p += p[1] == ']';
		else
			anchor |= *p == '^';
	}
	if (behind || anchor)
		return err_set(e, EX_DATAERR,
			"the pattern '%.200s' looks at the text before a word, which is not "
			"supported",
			regex);
	return 0;
}

struct split_regex *split_regex_open(const char *regex, struct err *e)
{
	struct split_regex *x = xcalloc(1, sizeof(*x));
	struct str ours = {0};
	struct err at = {0};
	unicode_regex(regex, &ours);
	x->code = compile(ours.s, e);
	pcre2_code *same = x->code ? NULL : compile(regex, &at);
	if (at.code) /* (says the place in what was given) */
		*e = at;
	pcre2_code_free(same);
	str_free(&ours);
	if (!x->code || check_behind(x->code, regex, e)) {
		split_regex_close(x);
		return NULL;
	}
	pcre2_jit_compile(x->code, PCRE2_JIT_COMPLETE | PCRE2_JIT_PARTIAL_HARD);
	x->match = pcre2_match_data_create_from_pattern(x->code, NULL);
	x->limits = pcre2_match_context_create(NULL);
	pcre2_set_match_limit(x->limits, MATCH_LIMIT);
	pcre2_set_heap_limit(x->limits, HEAP_LIMIT_KIB);
	return x;
}

void split_regex_close(struct split_regex *x)
{
	if (!x)
		return;
	pcre2_match_context_free(x->limits);
	pcre2_match_data_free(x->match);
	pcre2_code_free(x->code);
	free(x);
}

/* Text up to a character of which only the beginning is there. */
static int64_t whole_characters(const char *text, int64_t n)
{
	uint32_t code;
	for (int64_t i = n - 1; i >= 0 && i >= n - 3; i--)
		if (((uint8_t)text[i] & 0xc0) == 0xc0)
			return utf8_decode(text + i, n - i, &code) ? n : i;
	return n;
}

int split_regex_words(struct split_regex *x, const char *text, int64_t n, bool final,
	uint32_t *ends, int max, struct err *e)
{
	int k = 0;
	if (!final)
		n = whole_characters(text, n);
	/* (each round may find two words) */
	for (size_t at = 0, from = 0; at < (size_t)n && k + 1 < max;) {
		int rc = pcre2_match(x->code, (PCRE2_SPTR)text, (size_t)n, from,
			final ? 0 : PCRE2_PARTIAL_HARD, x->match, x->limits);
		const PCRE2_SIZE *found = pcre2_get_ovector_pointer(x->match);
		size_t begin = found[0], end = found[1];
		if (rc == PCRE2_ERROR_NOMATCH)
			begin = end = (size_t)n;
		else if (rc == PCRE2_ERROR_PARTIAL)
			break;
		else if (rc < 0) {
			PCRE2_UCHAR why[200];
			pcre2_get_error_message(rc, why, sizeof(why));
			return err_set(e, EX_DATAERR,
				"the pattern fails on this text: %s", (const char *)why);
		} else if (end <= begin) { /* an empty match is none */
			from = begin + 1;
			while (from < (size_t)n && ((uint8_t)text[from] & 0xc0) == 0x80)
				from++;
			if (from < (size_t)n)
				continue;
			begin = end = (size_t)n;
		}
		if (begin == (size_t)n && !final)
			break;
		if (begin > at)
			ends[k++] = (uint32_t)begin;
		if (end > begin)
			ends[k++] = (uint32_t)end;
		at = from = end;
	}
	return k;
}
