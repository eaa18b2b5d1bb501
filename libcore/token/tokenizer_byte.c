/* The byte tokenizer: token i is byte i. */
#include "token/tokenizer.h"

static int learn_end(struct tokenizer *t, struct err *e)
{
	(void)e;
	t->vocab.n = 256;
	t->vocab.bytes = xmalloc(256);
	t->vocab.offset = xmalloc(257 * sizeof(int64_t));
	for (int i = 0; i <= 256; i++)
		t->vocab.offset[i] = i;
	for (int i = 0; i < 256; i++)
		t->vocab.bytes[i] = (uint8_t)i;
	return 0;
}

static int ready(struct tokenizer *t, struct err *e)
{
	const struct vocab *v = &t->vocab;
	if (v->n != 256)
		return err_set(e, EX_DATAERR, "a byte vocabulary of %lld tokens, not 256",
			(long long)v->n);
	for (int i = 0; i < 256; i++)
		if (v->offset[i] != i || v->offset[i + 1] != i + 1 || v->bytes[i] != i)
			return err_set(e, EX_DATAERR,
				"a byte vocabulary whose token %d is not that byte", i);
	return 0;
}

static int64_t encode(const struct tokenizer *t, const char *text, int64_t n, bool final,
	uint32_t *out, int64_t capacity, int64_t *n_out, struct err *e)
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
	.learn_end = learn_end,
	.ready = ready,
	.encode = encode,
};
