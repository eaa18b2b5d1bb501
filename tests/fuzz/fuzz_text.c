/* Text, as pt-prepare takes it: in pieces as in one, and as a shard that decodes to it. */
#include "tests/fuzz/fuzz.h"
#include "prepare/prepare.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Learns the text, cut into pieces of `piece` bytes at most. */
static int learn(struct tokenizer *t, const char *text, int64_t n, int64_t piece,
	int64_t *bad, struct err *e)
{
	for (int64_t at = 0, room = piece; t->kind->learn && at < n;) {
		int64_t here = min64(room, n - at);
		int64_t used = t->kind->learn(t, text + at, here, at + here == n, e);
		if (used < 0) {
			*bad = at + TEXT_BAD(used);
			return -1;
		}
		FUZZ_ON(used > here || (!used && here >= 4));
		room = used ? piece : room + 1; /* half a character comes again */
		at += used;
	}
	return 0;
}

static int64_t encode(const struct tokenizer *t, const char *text, int64_t n,
	int64_t piece, int64_t room, uint32_t *ids)
{
	int64_t n_ids = 0;
	struct err e;
	for (int64_t at = 0, size = piece; at < n;) {
		int64_t here = min64(size, n - at), got;
		int64_t used = t->kind->encode(
			t, text + at, here, at + here == n, ids + n_ids, room, &got, &e);
		FUZZ_ON(used < 0 || used > here || got > room || got > used);
		size = used ? piece : size + 1;
		at += used, n_ids += got;
	}
	return n_ids;
}

static void in_pieces(const char *kind, const char *text, int64_t n, int64_t piece)
{
	struct tokenizer a, b;
	struct err e = {0}, f = {0};
	int64_t bad_a = -1, bad_b = -1;
	FUZZ_ON(tokenizer_init(&a, kind, &e) || tokenizer_init(&b, kind, &e));
	int rc = learn(&a, text, n, n, &bad_a, &e);
	FUZZ_ON(learn(&b, text, n, piece, &bad_b, &f) != rc || bad_a != bad_b ||
		!rc != !e.code);
	if (!rc && n) {
		FUZZ_ON(a.kind->learn_end(&a, &e));
		uint32_t *ids = xcalloc((size_t)n + 1, sizeof(*ids)), *all;
		struct str back = {0};
		int64_t whole = tokenizer_encode_all(&a, text, n, &all, &e);
		FUZZ_ON(whole <= 0);
		FUZZ_ON(encode(&a, text, n, piece, 1 + piece % 3, ids) != whole);
		FUZZ_ON(memcmp(ids, all, (size_t)whole * sizeof(*ids)));
		for (int64_t i = 0; i < whole; i++)
			tokenizer_decode(&a, ids[i], &back);
		FUZZ_ON((int64_t)back.len != n || memcmp(back.s, text, (size_t)n));
		str_free(&back);
		free(ids);
		free(all);
	}
	tokenizer_release(&a);
	tokenizer_release(&b);
}

/* Of what is not split by document, training and validation text make the text again. */
static void decodes_back(const struct strs *files, const char *text, size_t n)
{
	char *back = NULL;
	size_t n_back = 0;
	struct err e = {0};
	FILE *f = open_memstream(&back, &n_back);
	for (int s = 0; s < N_SPLITS; s++)
		FUZZ_ON(prepare_decode(files, (enum split)s, f, &e));
	fclose(f);
	FUZZ_ON(n_back != n || memcmp(back, text, n));
	free(back);
}

static void as_shards(
	struct prepare *p, const char *path, const char *text, size_t n, struct err *e)
{
	struct strs inputs = {0};
	struct prepared made;
	strs_add(&inputs, path);
	if (!prepare_run(p, &inputs, &made, e)) {
		if (p->split_by == SPLIT_BY_TAIL)
			decodes_back(&made.files, text, n);
		for (int64_t i = 0; i < made.files.n; i++)
			unlink(made.files.v[i]);
	}
	strs_free(&made.files);
	strs_free(&inputs);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	struct bytes b = {data, n};
	struct err e = {0};
	uint8_t how = take_byte(&b);
	const char *kind = how & 1 ? "byte" : "char";
	if (how < 0xf8) {
		in_pieces(kind, (const char *)b.p, (int64_t)b.n, 1 + (how >> 1) % 17);
		return 0;
	}
	char out[4200];
	snprintf(out, sizeof(out), "%s", fuzz_path("text.h5"));
	char *separator = take_text(&b, 4);
	how = take_byte(&b);
	kind = how & 1 ? "byte" : "char";
	struct prepare p = {.tokenizer = {.name = kind},
		.separator = *separator ? separator : NULL,
		.split_by = how & 2 ? SPLIT_BY_DOCUMENT : SPLIT_BY_TAIL,
		.val_fraction = how & 4 ? 0.3 : 0,
		.seed = how,
		.shard_bytes = how & 8 ? 16 : 0,
		.out = out,
		.overwrite = true};
	if (b.n < 200) /* many files are slow */
		as_shards(&p, fuzz_file("text", b.p, b.n), (const char *)b.p, b.n, &e);
	free(separator);
	return 0;
}
