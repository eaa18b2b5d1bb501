/* Shards: what is wrong in one is said; of what is taken, every token can be read. */
#include "tests/fuzz/hostile.h"
#include "data/offsets.h"
#include "prepare/prepare.h"

#include <stdlib.h>
#include <string.h>

static const char *const objects[] = {"/", "/train", "/val", "/tokenizer",
	"/tokenizer/offsets", "/tokenizer/bytes", "/xxh3/train", "/xxh3/val", "/xxh3",
	"/documents_train", "/documents_val", "/counted_train", "/counted_val", NULL};

static void make(struct hostile *t)
{
	static const char text[] =
		"{\"prompt\": \"gr\303\266\303\237er, \", \"completion\": "
		"\"\346\227\245\346\234\254.\"}\n"
		"{\"prompt\": \"In the beginning God created \", \"completion\": "
		"\"the heaven and the earth.\"}\n";
	char out[4200];
	struct strs inputs = {0};
	struct prepared made;
	struct err e;
	snprintf(out, sizeof(out), "%s", fuzz_path("seed.h5"));
	strs_add(&inputs, fuzz_file("text", text, strlen(text)));
	struct prepare p = {.tokenizer = {.name = "char"},
		.format = FORMAT_JSONL,
		.record = RECORD_PROMPT,
		.val_fraction = 0.3,
		.out = out,
		.overwrite = true};
	FUZZ_ON(prepare_run(&p, &inputs, &made, &e));
	hostile_init(t, out, objects, shard_fields);
	strs_free(&made.files);
	strs_free(&inputs);
}

static void use(struct corpus *c, int64_t from, int64_t stride)
{
	const struct tokenizer *t = corpus_tokenizer(c);
	struct str text = {0};
	struct err e = {0};
	for (int s = 0; s < N_SPLITS; s++) {
		int64_t n = corpus_tokens(c, (enum split)s);
		int32_t id;
		FUZZ_ON(n < 0);
		for (int64_t i = n ? from % n : 0; i < n && text.len < 1 << 16;
			i += stride) {
			if (corpus_read(c, (enum split)s, i, 1, &id, &e))
				break;
			FUZZ_ON(id < 0 || id >= t->vocab.n);
			tokenizer_decode(t, id, &text);
		}
	}
	uint32_t *ids;
	int64_t n = tokenizer_encode_all(t, text.s, (int64_t)text.len, &ids, &e);
	if (n >= 0)
		free(ids);
	str_free(&text);
}

/* Marks change nothing but the marks, wherever a window begins, and the first token has one. */
static void use_documents(const struct strs *files, int64_t from)
{
	enum { WINDOW = 16 };
	int32_t ids[WINDOW], marked[WINDOW];
	struct err e = {0};
	struct corpus *c;
	if (corpus_open(&c, files, CORPUS_SOME | CORPUS_DOCUMENTS, &e))
		return;
	for (int s = 0; s < N_SPLITS; s++) {
		int64_t n = corpus_tokens(c, (enum split)s);
		for (int64_t at = 0; at < n && at < 1 << 12; at += 1 + from) {
			int64_t here = min64(WINDOW, n - at);
			if (corpus_read(c, (enum split)s, at, here, ids, &e))
				break;
			memcpy(marked, ids, sizeof(ids));
			corpus_mark(c, (enum split)s, at, here, marked);
			for (int64_t i = 0; i < here; i++)
				FUZZ_ON((marked[i] & ~TOKEN_FLAGS) != ids[i]);
			FUZZ_ON(!at && marked[0] >= 0);
		}
	}
	corpus_hash(c);
	corpus_close(c);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	static struct hostile good;
	struct bytes b = {data, n};
	struct err e = {0};
	struct corpus *c;
	if (!good.image.len)
		make(&good);
	const char *path = hostile_make(&good, &b);
	int rc = corpus_open_file(&c, path, &e);
	FUZZ_ON((rc != 0) != (e.code != 0));
	if (rc)
		return 0;
	use(c, n % 97, 1 + n % 5);
	corpus_hash(c);
	bool verified = !corpus_verify(c, &e);
	struct str text = {0};
	for (const struct h5_field *f = shard_fields; f->name; f++)
		h5_field_append(&text, f, corpus_info(c, 0));
	str_free(&text);
	corpus_close(c);
	/* what is verified can be decoded to its end, were it a corpus of its own */
	struct strs files = {0};
	strs_add(&files, path);
	use_documents(&files, (int64_t)(n % 23));
	if (verified && !corpus_open(&c, &files, true, &e)) {
		FUZZ_ON(corpus_verify(c, &e));
		corpus_close(c);
	}
	strs_free(&files);
	return 0;
}
