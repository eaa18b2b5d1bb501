/* Tokens that count as targets: reading and writing of their spans. */
#include "data/offsets.h"
#include "prepare/prepare.h"
#include "prepare/shard_writer.h"
#include "tests/support/support.h"

#include <stdlib.h>
#include <string.h>

static struct err e;

static int begin(void **state)
{
	(void)state;
	e = (struct err){0};
	return 0;
}

/* Reads a file with this dataset, of a split with 10 tokens. */
static int read_spans(struct offsets *o, const int64_t *values, int64_t n)
{
	const char *path = test_path("spans.h5");
	bool counted;
	struct h5 *h;
	assert_int_equal(h5_create(&h, path, &e), 0);
	assert_int_equal(h5_put(h, counted_paths[0], H5_I64, 1, &n, values, &e), 0);
	assert_int_equal(h5_close(h, &e), 0);
	assert_int_equal(h5_open(&h, path, &e), 0);
	int rc = counted_read(o, &counted, h, path, SPLIT_TRAIN, 10, &e);
	assert_true(counted);
	return h5_end(h, rc, &e);
}

TEST_AFTER(begin, spans_are_read)
{
	static const int64_t good[] = {0, 1, 4, 7, 9, 10};
	static const char counts[] = "1000111001";
	int32_t tokens[10];
	struct offsets o;
	assert_int_equal(read_spans(&o, good, 6), 0);
	for (int64_t at = 0; at < 10; at++)
		for (int64_t n = 0; at + n <= 10; n++) {
			for (int i = 0; i < 10; i++)
				tokens[i] = i;
			counted_mark(&o, at, n, tokens);
			for (int64_t i = 0; i < 10; i++)
				assert_int_equal(tokens[i], i < n && counts[at + i] == '0'
								    ? i | TOKEN_CONTEXT
								    : i);
		}
	offsets_release(&o);
	assert_int_equal(read_spans(&o, NULL, 0), 0);
	tokens[3] = 3;
	counted_mark(&o, 3, 1, tokens + 3);
	assert_int_equal(tokens[3], 3 | TOKEN_CONTEXT);
	offsets_release(&o);
}

TEST_AFTER(begin, spans_that_lie)
{
	static const struct {
		int64_t n, at[4];
	} bad[] = {{2, {-1, 2}}, {2, {3, 3}}, {4, {0, 5, 4, 8}}, {2, {0, 11}}, {1, {4}},
		{3, {0, 1, 2}}, {2, {INT64_MIN, INT64_MAX}}};
	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		struct offsets o;
		assert_int_equal(read_spans(&o, bad[i].at, bad[i].n), -1);
		assert_int_equal(e.code, EX_DATAERR);
		offsets_release(&o);
		e = (struct err){0};
	}
}

enum { N_TOKENS = 300, N_VAL = 40 };

/* Does token i of a split count? Runs of some length, and neighbours that are alike. */
static bool counts(enum split s, int64_t i)
{
	return test_uniform(17 + s, i / 3) < 0.4;
}

/* Puts pieces of tokens that count or not; `said`: and says so. */
static void write_split(struct shard_writer *w, enum split s, int64_t n, bool said)
{
	static const uint32_t ids[8] = {1, 2, 3, 4, 5, 6, 7, 8};
	for (int64_t i = 0, end; i < n; i = end) {
		for (end = i + 1;
			end < n && end < i + 8 && counts(s, end) == counts(s, i);)
			end++;
		if (said)
			shard_writer_set_counted(w, s, counts(s, i));
		assert_int_equal(shard_writer_append(w, s, ids, end - i, &e), 0);
	}
}

static struct corpus *write_corpus(
	struct strs *files, int64_t shard_bytes, int64_t window, bool said)
{
	struct tokenizer t;
	struct prepared made = {0};
	struct corpus *c;
	char name[64];
	snprintf(name, sizeof(name), "counted-%lld-%lld-%d", (long long)shard_bytes,
		(long long)window, said);
	assert_int_equal(tokenizer_init(&t, "byte", &e), 0);
	assert_int_equal(t.kind->learn_end(&t, &e), 0);
	struct prepare p = {.tokenizer = {.name = "byte"},
		.shard_bytes = shard_bytes,
		.overwrite = true,
		.out = test_path(name)};
	struct shard_info info = {
		.split = "tail", .total = {N_TOKENS, N_VAL}, .window_tokens = window};
	struct shard_writer *w = shard_writer_open(&p, &t, &info, &e);
	write_split(w, SPLIT_TRAIN, N_TOKENS, said);
	write_split(w, SPLIT_VAL, N_VAL, said);
	assert_int_equal(shard_writer_finish(w, &made, &e), 0);
	shard_writer_close(w);
	tokenizer_release(&t);
	for (int64_t i = 0; i < made.files.n; i++)
		strs_add(files, made.files.v[i]);
	strs_free(&made.files);
	assert_int_equal(corpus_open(&c, files, 0, &e), 0);
	return c;
}

TEST_AFTER(begin, what_is_written_is_read)
{
	static const int64_t sizes[] = {0, 14, 200};
	int32_t tokens[N_TOKENS];
	for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
		struct strs files = {0};
		struct corpus *c = write_corpus(&files, sizes[i], 0, true);
		assert_true(corpus_has_spans(c));
		assert_int_equal(corpus_info(c, 0)->version, 3);
		for (int s = 0; s < N_SPLITS; s++) {
			int64_t n = corpus_tokens(c, (enum split)s);
			memset(tokens, 0, sizeof(tokens));
			corpus_mark(c, (enum split)s, 0, n, tokens);
			for (int64_t t = 0; t < n; t++)
				assert_int_equal(tokens[t] == TOKEN_CONTEXT,
					!counts((enum split)s, t));
		}
		corpus_close(c);
		strs_free(&files);
	}
}

/* Plain shards stay as they were; in one corpus with others, all of their tokens count. */
TEST_AFTER(begin, plain_shards)
{
	int32_t tokens[2 * N_TOKENS] = {0};
	struct strs files = {0};
	struct corpus *c = write_corpus(&files, 0, 0, false);
	assert_false(corpus_has_spans(c));
	assert_int_equal(corpus_info(c, 0)->version, 2);
	corpus_mark(c, SPLIT_TRAIN, 0, N_TOKENS, tokens);
	for (int64_t t = 0; t < N_TOKENS; t++)
		assert_int_equal(tokens[t], 0);
	uint64_t plain = corpus_hash(c);
	corpus_close(c);
	struct strs weighted = {0};
	c = write_corpus(&weighted, 0, 0, true);
	assert_true(corpus_hash(c) != plain);
	corpus_close(c);
	c = write_corpus(&files, 0, 0, true);
	assert_true(corpus_has_spans(c));
	corpus_mark(c, SPLIT_TRAIN, 0, 2 * N_TOKENS, tokens);
	for (int64_t t = 0; t < 2 * N_TOKENS; t++)
		assert_int_equal(tokens[t] != 0,
			t >= N_TOKENS && !counts(SPLIT_TRAIN, t - N_TOKENS));
	corpus_close(c);
	strs_free(&files);
	strs_free(&weighted);
}

/* Window k begins at token k 13, also in the second of two corpora, whatever their files. */
TEST_AFTER(begin, windows_of_the_grid)
{
	enum { WINDOW = 13, MORE = N_TOKENS - 1 };
	_Static_assert(MORE % WINDOW == 0, "whole windows");
	struct strs files = {0};
	corpus_close(write_corpus(&files, 64, WINDOW, true));
	struct corpus *c = write_corpus(&files, 0, WINDOW, true);
	assert_int_equal(corpus_window(c), WINDOW);
	assert_int_equal(corpus_tokens(c, SPLIT_TRAIN), 2 * MORE + 1);
	int32_t tokens[2 * MORE + 1];
	assert_int_equal(corpus_read(c, SPLIT_TRAIN, 0, 2 * MORE + 1, tokens, &e), 0);
	corpus_mark(c, SPLIT_TRAIN, 0, 2 * MORE + 1, tokens);
	assert_memory_equal(tokens, tokens + MORE, MORE * sizeof(*tokens));
	for (enum sampling s = SAMPLING_EPOCH; s <= SAMPLING_EVEN; s++) {
		struct order o;
		bool seen[2 * MORE / WINDOW] = {false};
		assert_int_equal(order_init(&o, s, 5, 2 * MORE + 1, WINDOW, 17), 0);
		order_on_grid(&o);
		int64_t n = s == SAMPLING_EVEN ? 17 : 2 * MORE / WINDOW;
		for (int64_t g = 0; g < n; g++) {
			int64_t at = order_start(&o, g);
			assert_true(at >= 0 && at % WINDOW == 0 && at < 2 * MORE);
			assert_true(s == SAMPLING_RANDOM || !seen[at / WINDOW]);
			seen[at / WINDOW] = true;
		}
	}
	corpus_close(c);
	strs_free(&files);
}

/* Not a multiple of the window and one more. */
TEST_AFTER(begin, windows_that_lie)
{
	struct strs files = {0};
	struct corpus *c;
	corpus_close(write_corpus(&files, 0, 13, false));
	struct h5 *h;
	assert_int_equal(h5_open_as(&h, files.v[0], files.v[0], H5_ADD, &e), 0);
	const struct h5_field field[] = {{"window_tokens", H5_I64, 0, true, ""}, {0}};
	for (int64_t n = 12; n < 15; n++) {
		assert_int_equal(h5_fields_write(h, "/", field, &n, &e), 0);
		assert_int_equal(h5_finish(h, 0, &e), 0);
		assert_int_equal(corpus_open(&c, &files, 0, &e), n == 13 ? 0 : -1);
		assert_int_equal(e.code, n == 13 ? 0 : EX_DATAERR);
		if (n == 13)
			corpus_close(c);
		e = (struct err){0};
		assert_int_equal(h5_open_as(&h, files.v[0], files.v[0], H5_ADD, &e), 0);
	}
	assert_int_equal(h5_close(h, &e), 0);
	strs_free(&files);
}
