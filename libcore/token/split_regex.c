/* Splits text by regular expressions of PCRE2. A match that has examined the end of the text is
 * uncertain while more text may follow (a partial match of PCRE2). Lookbehind is rejected.
 *
 * An untrusted pattern must terminate on any text. PCRE2's match limit restarts at each byte where
 * a match may begin, and ignores how many bytes a step examines. So a match is first searched for
 * in a short piece of the text, with a low limit. If the limit is exceeded, a match is tried at a
 * single place with automatic callouts, which count the steps. The limit on counted steps grows
 * with the bytes of words found. The steps of the searches are estimated by such tries. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "token/split_internal.h"
#include "token/unicode_internal.h"

#include <pcre2.h>

enum { HEAP_LIMIT_KIB = 1 << 16, JIT_STACK = 1 << 20, MAX_PATTERN = 1 << 13 };
/* Searches: bytes of a piece, maximum steps at each byte, words per try that estimates steps. */
enum { PIECE = 512, STEPS = 64, WORDS_PER_TRY = 64 };
/* Allowed steps: constant, per byte of words found, and per byte of the text that is tried. */
enum { ALL_STEPS = 20000000, STEPS_PER_BYTE = 300, STEPS_PER_OPEN_BYTE = 16 };
enum { BYTES_PER_STEP = 16 }; /* bytes passed at once that count as a step */

struct split_regex {
	pcre2_code *search, *counted; /* `counted`: anchored, with callouts */
	pcre2_match_data *match;
	pcre2_match_context *limits;
	pcre2_jit_stack *stack;
	int64_t steps, allowed,
		n_bytes;      /* steps taken and allowed; bytes of words found */
	size_t last_position; /* position at the last callout */
	int64_t n_words, n_tries;
	char *regex; /* in messages */
};

/* Compiles a pattern. Returns NULL with *e set if it is invalid. */
static pcre2_code *compile_pattern(const char *regex, uint32_t options, struct err *e)
{
	int code;
	size_t at;
	pcre2_code *x = pcre2_compile((PCRE2_SPTR)regex, PCRE2_ZERO_TERMINATED,
		PCRE2_UTF | PCRE2_UCP | PCRE2_MATCH_INVALID_UTF | PCRE2_DOLLAR_ENDONLY |
			PCRE2_NEVER_BACKSLASH_C | options,
		&code, &at, NULL);
	PCRE2_UCHAR why[200];
	if (x)
		return x;
	pcre2_get_error_message(code, why, sizeof(why));
	err_set(e, EX_DATAERR, "the pattern '%.200s': character %zu: %s", regex, at,
		(const char *)why);
	return NULL;
}

/* Rejects ^, \A, \G, \K, \b and lookbehind, which depend on the text before the match. */
static int check_lookbehind(const pcre2_code *code, const char *regex, struct err *e)
{
	uint32_t lookbehind = 0;
	bool class = false, anchor = false;
	pcre2_pattern_info(code, PCRE2_INFO_MAXLOOKBEHIND, &lookbehind);
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
	if (lookbehind || anchor)
		return err_set(e, EX_DATAERR,
			"the pattern '%.200s' looks at the text before a word, which is not "
			"supported",
			regex);
	return 0;
}

/* Counts a step of a match (a callout), and ends the match after more steps than allowed. */
static int count_step(pcre2_callout_block *b, void *regex)
{
	struct split_regex *x = regex;
	size_t from = b->current_position < x->last_position ? b->current_position
							     : x->last_position;
	x->steps += 1 + (int64_t)(b->current_position + x->last_position - 2 * from) /
				BYTES_PER_STEP;
	x->last_position = b->current_position;
	return x->steps <= x->allowed ? 0 : PCRE2_ERROR_CALLOUT;
}

struct split_regex *split_regex_open(const char *regex, struct err *e)
{
	if (strlen(regex) > MAX_PATTERN) {
		err_set(e, EX_DATAERR, "the pattern '%.40s...' is longer than %d bytes",
			regex, MAX_PATTERN);
		return NULL;
	}
	struct split_regex *x = xcalloc(1, sizeof(*x));
	scoped_str rewritten = {0};
	struct err original_error = {0};
	x->regex = xstrdup(regex);
	unicode_regex(regex, &rewritten);
	x->search = compile_pattern(rewritten.s, 0, e);
	x->counted = x->search ? compile_pattern(rewritten.s,
					 PCRE2_ANCHORED | PCRE2_AUTO_CALLOUT, e)
			       : NULL;
	pcre2_code *original =
		x->search ? NULL : compile_pattern(regex, 0, &original_error);
	if (original_error.code) /* (its message has offsets in the original pattern) */
		*e = original_error;
	pcre2_code_free(original);
	if (!x->search || check_lookbehind(x->search, regex, e)) {
		split_regex_close(x);
		return NULL;
	}
	pcre2_jit_compile(x->search, PCRE2_JIT_COMPLETE | PCRE2_JIT_PARTIAL_HARD);
	pcre2_jit_compile(x->counted, PCRE2_JIT_COMPLETE | PCRE2_JIT_PARTIAL_HARD);
	x->match = pcre2_match_data_create_from_pattern(x->search, NULL);
	x->limits = pcre2_match_context_create(NULL);
	x->stack = pcre2_jit_stack_create(1 << 15, JIT_STACK, NULL);
	pcre2_set_callout(x->limits, count_step, x);
	pcre2_jit_stack_assign(x->limits, NULL, x->stack);
	pcre2_set_heap_limit(x->limits, HEAP_LIMIT_KIB);
	return x;
}

void split_regex_close(struct split_regex *x)
{
	if (!x)
		return;
	pcre2_jit_stack_free(x->stack);
	pcre2_match_context_free(x->limits);
	pcre2_match_data_free(x->match);
	pcre2_code_free(x->search);
	pcre2_code_free(x->counted);
	free(x->regex);
	free(x);
}

/* Returns the length of text[0..n) without an incomplete last character. */
static int64_t whole_characters(const char *text, int64_t n)
{
	uint32_t code;
	for (int64_t i = n - 1; i >= 0 && i >= n - 3; i--)
		if (((uint8_t)text[i] & 0xc0) == 0xc0)
			return utf8_decode(text + i, n - i, &code) ? n : i;
	return n;
}

struct subject {
	const char *p;
	int64_t n;
	bool final; /* no text follows */
};

/* Runs the pattern on up to *size bytes from `from` on. Sets *size to the number of bytes, and
 * *begin and *end to the match; of a partial match only *begin. */
static int run_pattern(struct split_regex *x, const pcre2_code *code,
	const struct subject *t, int64_t from, int64_t *size, uint32_t options,
	int64_t *begin, int64_t *end)
{
	bool all = *size >= t->n - from;
	*size = all ? t->n - from : whole_characters(t->p + from, *size);
	int rc = pcre2_match(code, (PCRE2_SPTR)t->p + from, (size_t)*size, 0,
		options | (all && t->final ? 0 : PCRE2_PARTIAL_HARD), x->match,
		x->limits);
	const PCRE2_SIZE *found = pcre2_get_ovector_pointer(x->match);
	bool some = rc >= 0 || rc == PCRE2_ERROR_PARTIAL;
	*begin = from + (some ? (int64_t)found[0] : 0);
	*end = from + (some ? (int64_t)found[1] : 0);
	return rc;
}

/* Sets the error that matching takes too many steps. Returns PCRE2_ERROR_CALLOUT. */
static int reject_hard_pattern(const struct split_regex *x, struct err *e)
{
	err_set(e, EX_DATAERR,
		"the pattern '%.60s' takes too many steps on this text: it tries the same "
		"characters "
		"repeatedly, as (a|aa)+ and \\p{L}+\\p{L}+\\d do",
		x->regex);
	return PCRE2_ERROR_CALLOUT;
}

/* Tries a match at `from`, and counts its steps. Sets *e if it returns PCRE2_ERROR_CALLOUT. */
static int match_counted(struct split_regex *x, const struct subject *t, int64_t from,
	int64_t *end, struct err *e)
{
	int64_t size = PIECE, begin;
	uint32_t options = 0;
	for (;;) {
		x->last_position = 0;
		x->allowed = ALL_STEPS + x->n_bytes * STEPS_PER_BYTE +
			     min64(size, t->n - from) * STEPS_PER_OPEN_BYTE;
		pcre2_set_match_limit(x->limits, UINT32_MAX);
		int rc = run_pattern(x, x->counted, t, from, &size, options, &begin, end);
		x->steps += 1 + size / BYTES_PER_STEP;
		if (rc == PCRE2_ERROR_CALLOUT)
			return reject_hard_pattern(x, e);
		if (rc == PCRE2_ERROR_JIT_STACKLIMIT && !options)
			options = PCRE2_NO_JIT;
		else if (rc == PCRE2_ERROR_PARTIAL && from + size < t->n)
			size = 2 * max64(size, PIECE);
		else
			return rc;
	}
}

/* Adds an estimate to x->steps, from one try: the steps of a search that `passed` bytes [from, from
 * + n), or else the steps of the last n searches, which each matched where they began. */
static int estimate_search_steps(struct split_regex *x, const struct subject *t,
	int64_t from, int64_t n, bool passed, struct err *e)
{
	int64_t before = x->steps, end, at = from;
	if (passed)
		at += (int64_t)(hash_bytes(&x->n_tries, sizeof(x->n_tries), 0) %
				(uint64_t)n);
	x->n_tries++;
	if (match_counted(x, t, at, &end, e) == PCRE2_ERROR_CALLOUT)
		return -1;
	x->steps += (n - 1) * (x->steps - before);
	return 0;
}

/* Sets *begin and *end to the next match from `from` on. Returns PCRE2's code; CALLOUT: *e is set.
 */
static int find_match(struct split_regex *x, const struct subject *t, int64_t from,
	int64_t *begin, int64_t *end, struct err *e)
{
	while (from < t->n) {
		int64_t size = PIECE;
		pcre2_set_match_limit(x->limits, STEPS);
		int rc = run_pattern(x, x->search, t, from, &size, 0, begin, end);
		int64_t passed = rc == PCRE2_ERROR_NOMATCH ? size : *begin - from;
		if (passed ? estimate_search_steps(x, t, from, passed, true, e)
			   : !(++x->n_words % WORDS_PER_TRY) &&
					estimate_search_steps(
						x, t, from, WORDS_PER_TRY, false, e))
			return PCRE2_ERROR_CALLOUT;
		x->n_bytes += passed;
		from += passed;
		if (rc >= 0)
			return rc;
		if (rc == PCRE2_ERROR_NOMATCH)
			continue;
		*begin = from;
		rc = match_counted(x, t, from, end, e);
		if (rc != PCRE2_ERROR_NOMATCH)
			return rc;
		for (from++; from < t->n && ((uint8_t)t->p[from] & 0xc0) == 0x80;)
			from++;
	}
	return PCRE2_ERROR_NOMATCH;
}

int split_regex_words(struct split_regex *x, const char *text, int64_t n, bool final,
	uint32_t *ends, int max, struct err *e)
{
	const struct subject t = {text, final ? n : whole_characters(text, n), final};
	int k = 0;
	/* (each round may find two words) */
	for (int64_t at = 0, from = 0, begin, end; at < t.n && k + 1 < max;) {
		int rc = find_match(x, &t, from, &begin, &end, e);
		if (rc == PCRE2_ERROR_CALLOUT)
			return -1;
		if (rc == PCRE2_ERROR_NOMATCH)
			begin = end = t.n;
		else if (rc == PCRE2_ERROR_PARTIAL)
			break;
		else if (rc < 0) {
			PCRE2_UCHAR why[200];
			pcre2_get_error_message(rc, why, sizeof(why));
			return err_set(e, EX_DATAERR,
				"the pattern '%.60s' fails on this text: %s", x->regex,
				(const char *)why);
		} else if (end <= begin) { /* an empty match is ignored */
			from = begin + 1;
			while (from < t.n && ((uint8_t)text[from] & 0xc0) == 0x80)
				from++;
			if (from < t.n)
				continue;
			begin = end = t.n;
		}
		if (begin == t.n && !final)
			break;
		if (begin > at)
			ends[k++] = (uint32_t)begin;
		if (end > begin)
			ends[k++] = (uint32_t)end;
		x->n_bytes += end - begin;
		at = from = end;
	}
	return k;
}
