/* The byte tokenizer: token i is byte i. */
#include "token/tokenizer.h"

/* Makes the vocabulary of 256 tokens: token i is byte i. */
static int make_byte_vocab(struct tokenizer *t, struct err *e)
{
	(void)e;
	t->vocab.n = N_BYTES;
	t->vocab.bytes = xmalloc(N_BYTES);
	t->vocab.offset = xmalloc((N_BYTES + 1) * sizeof(int64_t));
	for (int i = 0; i <= N_BYTES; i++)
		t->vocab.offset[i] = i;
	for (int i = 0; i < N_BYTES; i++)
		t->vocab.bytes[i] = (uint8_t)i;
	return 0;
}

static int check_byte_vocab(struct tokenizer *t, struct err *e)
{
	const struct vocab *v = &t->vocab;
	if (v->n != N_BYTES)
		return err_set(e, EX_DATAERR,
			"a byte vocabulary must have 256 tokens, not %lld",
			(long long)v->n);
	for (int i = 0; i < N_BYTES; i++)
		if (v->offset[i] != i || v->offset[i + 1] != i + 1 || v->bytes[i] != i)
			return err_set(e, EX_DATAERR,
				"token %d of the byte vocabulary is not the byte of that number",
				i);
	return 0;
}

/* Copies up to `capacity` bytes as tokens, or counts if `out` is NULL. Returns bytes used. */
static int64_t encode_bytes(const struct tokenizer *t, const char *text, int64_t n,
	bool final, uint32_t *out, int64_t capacity, int64_t *n_out, struct err *e)
{
	(void)t, (void) final, (void)e;
	n = min64(n, capacity);
	for (int64_t i = 0; out && i < n; i++)
		out[i] = (uint8_t)text[i];
	*n_out = n;
	return n;
}

const struct tokenizer_kind tokenizer_byte = {
	.name = "byte",
	.learn_end = make_byte_vocab,
	.ready = check_byte_vocab,
	.encode = encode_bytes,
};
