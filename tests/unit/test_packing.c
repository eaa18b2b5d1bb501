/* Packing of documents: reading where they begin, marking the tokens that begin one, and the model,
 * in which a document neither sees the others nor knows its position in the window. */
#include "data/offsets.h"
#include "prepare/prepare.h"
#include "tests/support/support.h"
#include "plan/fit.h"
#include "engine/state.h"
#include "engine/step.h"

#include <stdlib.h>
#include <string.h>

static struct err e;

static int begin(void **state)
{
	(void)state;
	e = (struct err){0};
	return 0;
}

/* ---- reading --------------------------------------------------------------------- */

/* Reads a file with this dataset, of a split with 10 tokens. */
static int read_list(struct offsets *d, enum h5_type type, const void *values, int64_t n)
{
	const char *path = test_path("list.h5");
	struct h5 *h;
	assert_int_equal(h5_create(&h, path, &e), 0);
	assert_int_equal(h5_put(h, document_paths[0], type, 1, &n, values, &e), 0);
	assert_int_equal(h5_close(h, &e), 0);
	assert_int_equal(h5_open(&h, path, &e), 0);
	int rc = documents_read(d, h, path, SPLIT_TRAIN, 10, &e);
	return h5_end(h, rc, &e);
}

TEST_AFTER(begin, lists_are_read)
{
	static const int64_t good[] = {0, 1, 5, 9};
	int32_t tokens[10];
	struct offsets d;
	assert_int_equal(read_list(&d, H5_I64, good, 4), 0);
	for (int64_t at = 0; at < 10; at++) {
		for (int64_t n = 0; at + n <= 10; n++) {
			for (int i = 0; i < 10; i++)
				tokens[i] = i;
			documents_mark(&d, at, n, tokens);
			for (int64_t i = 0; i < 10; i++) {
				int64_t t = at + i;
				bool begins =
					i < n && (t == 0 || t == 1 || t == 5 || t == 9);
				assert_int_equal(
					tokens[i], i | (begins ? DOCUMENT_BEGINS : 0));
			}
		}
	}
	offsets_release(&d);
	assert_int_equal(read_list(&d, H5_I64, NULL, 0), 0);
	documents_mark(&d, 0, 10, tokens);
	offsets_release(&d);
}

TEST_AFTER(begin, lists_that_lie)
{
	static const int64_t bad[][3] = {
		{-1, 2, 3}, {0, 2, 2}, {0, 3, 2}, {0, 5, 10}, {INT64_MIN, 0, INT64_MAX}};
	static const int64_t many[11] = {0};
	static const float numbers[3] = {0, 1, 2};
	struct offsets d;
	struct h5 *h;
	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		assert_int_equal(read_list(&d, H5_I64, bad[i], 3), -1);
		assert_int_equal(e.code, EX_DATAERR);
		offsets_release(&d);
		e = (struct err){0};
	}
	assert_int_equal(read_list(&d, H5_I64, many, 11), -1); /* more than tokens */
	e = (struct err){0};
	assert_int_equal(read_list(&d, H5_F32, numbers, 3), -1);
	e = (struct err){0};
	assert_int_equal(h5_open(&h, test_path("list.h5"), &e), 0);
	assert_int_equal(documents_read(&d, h, "list.h5", SPLIT_VAL, 10, &e), -1);
	assert_non_null(strstr(e.msg, "list.h5: has no /documents_val"));
	assert_int_equal(e.code, EX_DATAERR);
	e = (struct err){0};
	assert_int_equal(h5_close(h, &e), 0);
}

/* ---- marking --------------------------------------------------------------------- */

enum { N_TEXT = 6000 };

static struct corpus *open_text(
	int64_t shard_bytes, struct prepared *made, struct strs *some)
{
	struct strs inputs = {0};
	struct str text = {0};
	struct corpus *c;
	char name[32];
	for (int64_t i = 0; i < N_TEXT; i++)
		str_putc(&text, "abcdefg\n"[(int)(8 * test_uniform(3, i))]);
	strs_add(&inputs, test_file("lines", text.s));
	snprintf(name, sizeof(name), "lines-%lld", (long long)shard_bytes);
	struct prepare p = {.tokenizer = {.name = "byte"},
		.separator = "\n",
		.val_fraction = 0.1,
		.shard_bytes = shard_bytes,
		.overwrite = true,
		.out = test_path(name)};
	assert_int_equal(prepare_run(&p, &inputs, made, &e), 0);
	if (some)
		strs_add(some, made->files.v[1]);
	assert_int_equal(corpus_open(&c, some ? some : &made->files,
				 CORPUS_DOCUMENTS | (some ? CORPUS_SOME : 0), &e),
		0);
	strs_free(&inputs);
	str_free(&text);
	return c;
}

/* A token begins a document if it is the first of all, or follows the end of a line. */
static void check_marks(const struct corpus *c, const int32_t *marked, int64_t n)
{
	const struct tokenizer *t = corpus_tokenizer(c);
	struct str before = {0};
	for (int64_t i = 0; i < n; i++) {
		bool begins = !i || before.s[before.len - 1] == '\n';
		assert_int_equal(!!(marked[i] & DOCUMENT_BEGINS), begins);
		str_clear(&before);
		tokenizer_decode(t, marked[i] & ~DOCUMENT_BEGINS, &before);
	}
	str_free(&before);
}

TEST_AFTER(begin, tokens_that_begin_documents)
{
	static const int64_t sizes[] = {0, 500, 4000};
	static int32_t tokens[N_TEXT];
	for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
		struct prepared made;
		struct corpus *c = open_text(sizes[i], &made, NULL);
		int64_t n = corpus_tokens(c, SPLIT_TRAIN);
		assert_int_equal(corpus_read(c, SPLIT_TRAIN, 0, n, tokens, &e), 0);
		corpus_mark(c, SPLIT_TRAIN, 0, n, tokens);
		check_marks(c, tokens, n);
		for (int64_t at = 0; at + 40 < n; at += 37) { /* across files */
			int32_t some[40];
			assert_int_equal(
				corpus_read(c, SPLIT_TRAIN, at, 40, some, &e), 0);
			corpus_mark(c, SPLIT_TRAIN, at, 40, some);
			assert_memory_equal(some, tokens + at, sizeof(some));
		}
		corpus_close(c);
		strs_free(&made.files);
	}
}

/* A file without the one before it begins a document, and other documents are other data. */
TEST_AFTER(begin, files_alone)
{
	struct prepared made;
	struct strs some = {0};
	int32_t token;
	struct corpus *c = open_text(500, &made, &some), *plain;
	assert_int_equal(corpus_read(c, SPLIT_TRAIN, 0, 1, &token, &e), 0);
	corpus_mark(c, SPLIT_TRAIN, 0, 1, &token);
	assert_true(token & DOCUMENT_BEGINS);
	assert_int_equal(corpus_open(&plain, &some, CORPUS_SOME, &e), 0);
	assert_true(corpus_hash(c) != corpus_hash(plain));
	corpus_close(plain);
	corpus_close(c);
	strs_free(&some);
	strs_free(&made.files);
}

/* Where the second of two corpora begins, a document does, in whichever of its files that is. */
TEST_AFTER(begin, corpora_do_not_continue_each_other)
{
	static int32_t tokens[2 * N_TEXT];
	struct prepared one, other;
	struct corpus *c;
	corpus_close(open_text(0, &one, NULL));
	corpus_close(open_text(500, &other, NULL));
	int64_t n = N_TEXT / 10;
	for (int64_t i = 0; i < other.files.n; i++)
		strs_add(&one.files, other.files.v[i]);
	assert_int_equal(corpus_open(&c, &one.files, CORPUS_DOCUMENTS, &e), 0);
	assert_int_equal(corpus_tokens(c, SPLIT_VAL), 2 * n);
	assert_int_equal(corpus_read(c, SPLIT_VAL, 0, 2 * n, tokens, &e), 0);
	corpus_mark(c, SPLIT_VAL, 0, 2 * n, tokens);
	assert_memory_equal(tokens, tokens + n, (size_t)n * sizeof(*tokens));
	assert_true(tokens[n] & DOCUMENT_BEGINS);
	corpus_close(c);
	strs_free(&one.files);
	strs_free(&other.files);
}

/* ---- the model ------------------------------------------------------------------- */

enum { CONTEXT = 32, BATCH = 2, ROWS = BATCH * CONTEXT, WINDOWS = BATCH * (CONTEXT + 1) };

/* What two steps computed. */
struct seen {
	float loss[ROWS], mean, norm;
	uint64_t hash;
};

/* The losses of the first step, by row. */
static void see(void *with, const struct result *r)
{
	struct seen *s = with;
	if (strcmp(r->name, "loss") || s->norm != 0)
		return;
	memcpy(s->loss + r->first_row, r->x.p, (size_t)mat_size(r->x) * sizeof(float));
}

static struct seen train(const char *options, const int32_t *windows)
{
	struct train_opts o;
	struct trainer t;
	struct step_result r;
	struct seen s = {0};
	struct str text = {0};
	const struct observer observer = {.see = see, .with = &s};
	struct dataset no_data = {.tokens = {CONTEXT + 1, 0}, .readers = 1};
	str_printf(&text,
		"context=%d\nbatch=%d\nmicro-batch=%d\nlayers=2\nheads=4\ndim=32\n"
		"vocab=40\nwarmup=1\nlr=0.01\nthreads=1\ndevice=cpu\n%s",
		CONTEXT, BATCH, BATCH, options);
	if (opts_from_text(&train_program, &o, text.s, false, &e) ||
		options_check(&o, &e) ||
		trainer_open(&t, &o, comm_self("alone"), &no_data, NULL, &e))
		die_err(&e);
	t.pass.observer = &observer;
	for (int i = 0; i < 2; i++) {
		step_run_on(&t, windows, NULL, &r);
		s.mean = r.loss;
		s.norm = r.grad_norm;
	}
	s.hash = store_hash(t.store);
	struct comm *alone = t.world;
	trainer_close(&t);
	comm_free(alone);
	str_free(&text);
	return s;
}

static void make_windows(int32_t windows[WINDOWS])
{
	for (int i = 0; i < WINDOWS; i++)
		windows[i] = (int32_t)(40 * test_uniform(9, i));
}

static const char *const models[] = {
	"arch=gpt2\n", "arch=llama\nkv-heads=2\n", "arch=gpt2\nvirtual=tp=2,cp=2\n"};

/* If every window is one document, the bits are those of a stream. */
TEST_AFTER(begin, one_document_is_a_stream)
{
	static const char *const more[] = {"dropout=0.1\n", "dtype=bf16\n"};
	int32_t windows[WINDOWS];
	char options[200];
	make_windows(windows);
	for (size_t i = 0; i < ARRAY_LEN(models) * ARRAY_LEN(more); i++) {
		snprintf(options, sizeof(options), "%s%spacking=stream\n",
			models[i / ARRAY_LEN(more)], more[i % ARRAY_LEN(more)]);
		struct seen a = train(options, windows);
		snprintf(options, sizeof(options), "%s%spacking=documents\n",
			models[i / ARRAY_LEN(more)], more[i % ARRAY_LEN(more)]);
		struct seen b = train(options, windows);
		assert_memory_equal(&a, &b, sizeof(a));
		assert_true(a.norm > 0 && a.hash);
	}
}

/* The losses of a document do not depend, in any bit, on the documents before it in the window, and
 * but for rounding not on where in the window it is. */
TEST_AFTER(begin, documents_are_alone)
{
	enum { AT = 13, LEN = 11 };
	int32_t one[WINDOWS], other[WINDOWS], first[WINDOWS];
	char options[200];
	make_windows(one);
	make_windows(first);
	for (int i = 0; i <= LEN; i++)
		first[i] = one[AT + i];
	one[AT] |= DOCUMENT_BEGINS;
	one[AT + LEN] |= DOCUMENT_BEGINS;
	memcpy(other, one, sizeof(one));
	for (int i = 0; i < AT; i++)
		other[i] = (other[i] + 1 + i) % 40;
	for (size_t i = 0; i < 2; i++) {
		snprintf(options, sizeof(options), "%spacking=documents\n", models[i]);
		struct seen a = train(options, one), b = train(options, other),
			    c = train(options, first);
		assert_memory_equal(
			a.loss + AT, b.loss + AT, (size_t)(CONTEXT - AT) * sizeof(float));
		assert_true(a.mean != b.mean);
		for (int t = 0; t < LEN; t++)
			assert_near((double)a.loss[AT + t], (double)c.loss[t], 1e-5);
		snprintf(options, sizeof(options), "%spacking=stream\n", models[i]);
		for (int t = 0; t < WINDOWS; t++)
			one[t] &= ~DOCUMENT_BEGINS;
		c = train(options, one);
		assert_true(c.loss[AT + 1] != a.loss[AT + 1]);
		one[AT] |= DOCUMENT_BEGINS;
		one[AT + LEN] |= DOCUMENT_BEGINS;
	}
}
