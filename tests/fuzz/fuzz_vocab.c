/* Vocabularies in a file: of any kind, with any offsets and bytes. Those that are taken
 * encode and decode without harm. */
#include "tests/fuzz/fuzz.h"
#include "token/tokenizer.h"

#include <stdlib.h>
#include <string.h>

struct attrs {
	char *kind;
	int64_t n;
};

/* As the input says; most offsets are those of a vocabulary. */
static int write_vocab(struct h5 *h, struct bytes *b, struct err *e)
{
	enum { MOST = 300 };
	static const char *const kinds[] = {"byte", "char", "bpe", "gpt-2"};
	int64_t offsets[MOST], at = 0;
	uint8_t how = take_byte(b);
	struct attrs a = {how & 16 ? take_text(b, 80) : xstrdup(kinds[how & 3]), 0};
	int64_t n = how & 32 ? 257 : take_byte(b) % 40;
	for (int64_t i = 0; i < n; i++) {
		uint8_t step = how & 32 ? 1 : take_byte(b);
		offsets[i] = step < 0xf0 ? at : take_number(b);
		at += step & 3;
	}
	a.n = how & 64 ? take_number(b) : n - 1;
	int64_t n_bytes = min64((int64_t)b->n, how & 128 ? MOST : at);
	int rc = h5_fields_write(h, "/tokenizer", tokenizer_fields, &a, e) ||
		 h5_put(h, "/tokenizer/offsets", H5_I64, 1, &n, offsets, e) ||
		 h5_put(h, "/tokenizer/bytes", H5_U8, 1, &n_bytes, b->p, e);
	b->p += n_bytes, b->n -= (size_t)n_bytes;
	free(a.kind);
	return rc;
}

static void use(const struct tokenizer *t, struct bytes *b)
{
	struct str text = {0}, packed = {0};
	struct tokenizer again = {0};
	struct err e = {0};
	uint32_t *ids;
	int64_t n = tokenizer_encode_all(t, (const char *)b->p, (int64_t)b->n, &ids, &e);
	for (int64_t i = 0; i < n; i++) {
		FUZZ_ON(ids[i] >= t->vocab.n);
		tokenizer_decode(t, ids[i], &text);
	}
	if (n >= 0) {
		FUZZ_ON(text.len != b->n || (b->n && memcmp(text.s, b->p, b->n)));
		free(ids);
	}
	for (int64_t i = -1; i <= t->vocab.n; i++)
		tokenizer_decode(t, i, &text);
	tokenizer_pack(t, &packed);
	FUZZ_ON(tokenizer_unpack(&again, &packed, &e) || !tokenizer_equal(t, &again));
	tokenizer_release(&again);
	str_free(&packed);
	str_free(&text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	struct bytes b = {data, n};
	struct tokenizer t = {0};
	struct err e = {0};
	struct h5 *h;
	const char *path = fuzz_path("vocab.h5");
	FUZZ_ON(h5_create(&h, path, &e));
	int rc = h5_end(h, write_vocab(h, &b, &e), &e);
	if (rc)
		return -1; /* a kind that is no text */
	FUZZ_ON(h5_reopen(&h, path, &e));
	rc = tokenizer_read(&t, h, &e);
	FUZZ_ON((rc != 0) != (e.code != 0));
	if (!rc)
		use(&t, &b);
	tokenizer_release(&t);
	h5_close(h, &e);
	return 0;
}
