/* The character tokenizer: one token for each Unicode character that occurs in the text, in order
 * of code points (as in nanoGPT's shakespeare_char). The text is UTF-8. */
#include "base/utf8.h"
#include "token/tokenizer.h"

#define ABSENT UINT32_MAX

static int64_t report_not_utf8(int64_t at, struct err *e)
{
	err_set(e, EX_DATAERR, "not UTF-8%s", advice_on(ADVICE_NOT_UTF8));
	return TEXT_BAD(at);
}

/* Returns the table [code point] of complements of token ids, allocated by the first call. Zero is
 * ABSENT, so that few pages are touched. While learning: 1 for characters that occurred. */
static uint32_t *char_table(struct tokenizer *t)
{
	if (!t->own)
		t->own = xcalloc(CODE_POINTS, sizeof(uint32_t));
	return t->own;
}

static inline uint32_t char_id(const uint32_t *table, uint32_t c)
{
	return ~table[c];
}

/* Reads the first character of text[0..n). Returns its length; 0: incomplete; -1: not UTF-8. */
static inline int next_char(const char *text, int64_t n, uint32_t *c)
{
	*c = (uint8_t)*text;
	return *c < 0x80 ? 1 : utf8_decode(text, n, c);
}

/* Marks the characters of a text for the vocabulary. Returns the bytes used, without an incomplete
 * character unless `final`. */
static int64_t mark_chars(
	struct tokenizer *t, const char *text, int64_t n, bool final, struct err *e)
{
	uint32_t *seen = char_table(t);
	int64_t i = 0;
	for (int len; i < n; i += len) {
		uint32_t c;
		len = next_char(text + i, n - i, &c);
		if (len < 0 || (len == 0 && final))
			return report_not_utf8(i, e);
		if (len == 0)
			break;
		seen[c] = 1;
	}
	return i;
}

/* Makes the vocabulary of all marked characters, in code point order. Fails if there is none. */
static int number_chars(struct tokenizer *t, struct err *e)
{
	uint32_t *table = char_table(t);
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

/* Fills the table from character to token. Fails if a token is not one character. */
static int index_chars(struct tokenizer *t, struct err *e)
{
	const struct vocab *v = &t->vocab;
	uint32_t *table = char_table(t);
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

/* Encodes up to `capacity` characters; only counts if `out` is NULL. Returns the bytes used. */
static int64_t encode_chars(const struct tokenizer *t, const char *text, int64_t n,
	bool final, uint32_t *out, int64_t capacity, int64_t *n_out, struct err *e)
{
	const uint32_t *table = t->own;
	int64_t i = 0, k = 0;
	for (int len; i < n && k < capacity; i += len, k++) {
		uint32_t c;
		len = next_char(text + i, n - i, &c);
		if (len < 0 || (len == 0 && final))
			return report_not_utf8(i, e);
		if (len == 0)
			break;
		uint32_t id = char_id(table, c);
		if (id == ABSENT) {
			err_set(e, EX_DATAERR,
				"the vocabulary has no character '%.*s' (U+%04X)", len,
				text + i, c);
			return TEXT_BAD(i);
		}
		if (out)
			out[k] = id;
	}
	*n_out = k;
	return i;
}

const struct tokenizer_kind tokenizer_char = {
	.name = "char",
	.learn = mark_chars,
	.learn_end = number_chars,
	.ready = index_chars,
	.encode = encode_chars,
};
