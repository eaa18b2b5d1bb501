/* The character tokenizer: one token for each Unicode character that occurs in the text, in order of
 * code points (as nanoGPT's shakespeare_char). The text is UTF-8. */
#include "base/utf8.h"
#include "token/tokenizer.h"

#include <string.h>

#define ABSENT UINT32_MAX

static int64_t not_utf8(int64_t at, struct err *e)
{
	err_set(e, EX_DATAERR, "not UTF-8%s", advice_on(ADVICE_NOT_UTF8));
	return TEXT_BAD(at);
}

/* The complement of each character's token, so that memory that nobody has written says ABSENT: few of
 * the pages are ever touched. While learning, 1 for characters that occurred. */
static uint32_t *table_of(struct tokenizer *t)
{
	if (!t->own)
		t->own = xcalloc(CODE_POINTS, sizeof(uint32_t));
	return t->own;
}

static inline uint32_t id_of(const uint32_t *table, uint32_t c)
{
	return ~table[c];
}

/* The number of ASCII bytes at the beginning of text[0..n), the fast path. */
static int64_t ascii_run(const char *text, int64_t n)
{
	const uint64_t high = 0x8080808080808080u;
	uint64_t word;
	int64_t i = 0;
	for (; i + (int64_t)sizeof(word) <= n; i += (int64_t)sizeof(word)) {
		memcpy(&word, text + i, sizeof(word));
		if (word & high)
			break;
	}
	while (i < n && (uint8_t)text[i] < 0x80)
		i++;
	return i;
}

static int64_t learn(struct tokenizer *t, const char *text, int64_t n, bool final,
	int64_t *n_tokens, struct err *e)
{
	uint32_t *seen = table_of(t);
	int64_t i = 0;
	while (i < n) {
		uint32_t c;
		int64_t end = i + ascii_run(text + i, n - i);
		*n_tokens += end - i;
		for (; i < end; i++)
			seen[(uint8_t)text[i]] = 1;
		if (i == n)
			break;
		int len = utf8_decode(text + i, n - i, &c);
		if (len < 0 || (len == 0 && final))
			return not_utf8(i, e);
		if (len == 0)
			break;
		seen[c] = 1;
		i += len;
		++*n_tokens;
	}
	return i;
}

static int learn_end(struct tokenizer *t, struct err *e)
{
	uint32_t *table = table_of(t);
	int64_t n = 0;
	for (uint32_t c = 0; c < CODE_POINTS; c++)
		n += table[c];
	if (!n)
		return err_set(e, EX_DATAERR, "the text is empty");
	struct vocab *v = &t->vocab;
	v->bytes = xmalloc((size_t)n * 4);
	v->offset = xcalloc((size_t)n + 1, sizeof(int64_t));
	for (uint32_t c = 0; c < CODE_POINTS; c++) {
		if (!table[c])
			continue;
		int64_t at = v->offset[v->n];
		table[c] = ~(uint32_t)v->n++;
		v->offset[v->n] = at + utf8_encode(c, v->bytes + at);
	}
	return 0;
}

static int ready(struct tokenizer *t, struct err *e)
{
	const struct vocab *v = &t->vocab;
	uint32_t *table = table_of(t);
	for (int64_t i = 0; i < v->n; i++) {
		uint32_t c;
		int64_t len = v->offset[i + 1] - v->offset[i];
		if (len < 1 || utf8_decode((const char *)v->bytes + v->offset[i], len,
				       &c) != len)
			return err_set(e, EX_DATAERR, "token %lld is not a character",
				(long long)i);
		table[c] = ~(uint32_t)i;
	}
	return 0;
}

/* Encodes ASCII text up to the first character that is not in the vocabulary. Returns the number of
 * characters. */
static int64_t encode_run(
	const uint32_t *table, const char *text, int64_t n, uint32_t *out)
{
	uint32_t all = 0;
	int64_t i;
	for (i = 0; i < n; i++) {
		uint32_t id = id_of(table, (uint8_t)text[i]);
		all |= id;
		if (out)
			out[i] = id;
	}
	if (all == ABSENT)
		for (i = 0; id_of(table, (uint8_t)text[i]) != ABSENT;)
			i++;
	return i;
}

static int64_t encode(const struct tokenizer *t, const char *text, int64_t n, bool final,
	uint32_t *out, int64_t room, int64_t *n_out, struct err *e)
{
	const uint32_t *table = t->own;
	int64_t i = 0, k = 0;
	for (; i < n && k < room; k++) {
		int64_t run = ascii_run(text + i, min64(n - i, room - k));
		run = encode_run(table, text + i, run, out ? out + k : NULL);
		i += run, k += run;
		if (i == n || k == room)
			break;
		uint32_t c;
		int len = utf8_decode(text + i, n - i, &c);
		if (len < 0 || (len == 0 && final))
			return not_utf8(i, e);
		if (len == 0)
			break;
		uint32_t id = id_of(table, c);
		if (id == ABSENT) {
			err_set(e, EX_DATAERR,
				"the vocabulary has no character '%.*s' (U+%04X)", len,
				text + i, c);
			return TEXT_BAD(i);
		}
		if (out)
			out[k] = id;
		i += len;
	}
	*n_out = k;
	return i;
}

const struct tokenizer_kind tokenizer_char = {
	.name = "char",
	.help = "a token a character that occurs in the text (UTF-8)",
	.from_text = true,
	.learn = learn,
	.learn_end = learn_end,
	.ready = ready,
	.encode = encode,
};
