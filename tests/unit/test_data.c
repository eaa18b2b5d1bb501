/* data: the order of samples, tokenizers, shards and corpora, the loader on one rank. */
#include "base/file.h"
#include "tests/support/support.h"
#include "prepare/prepare.h"
#include "prepare/shard_writer.h"

#include <glob.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct err e;

static int begin(void **state)
{
	(void)state;
	e = (struct err){0};
	return 0;
}

/* ---- order ----------------------------------------------------------------------- */

/* Every number below n once. */
static void check_permutation(struct philox_key key, int64_t n)
{
	uint8_t *seen = xcalloc((size_t)n, 1);
	for (int64_t i = 0; i < n; i++) {
		int64_t x = order_permute(key, n, i);
		assert_in_range(x, 0, n - 1);
		assert_int_equal(seen[x]++, 0);
	}
	free(seen);
}

TEST_AFTER(begin, permutations)
{
	static const int64_t large[] = {
		255, 256, 257, 1000, 1023, 1024, 1025, 4096, 65537};
	for (uint64_t seed = 0; seed < 4; seed++) {
		struct philox_key key = philox_key(seed, PHILOX_TEST, seed);
		for (int64_t n = 1; n <= 130; n++)
			check_permutation(key, n);
		for (size_t i = 0; i < ARRAY_LEN(large); i++)
			check_permutation(key, large[i]);
	}
	/* where it cannot be listed: inside, and none twice among some */
	int64_t n = ((int64_t)1 << 40) + 12345, some[100];
	for (int64_t i = 0; i < 100; i++) {
		some[i] = order_permute(philox_key(1, PHILOX_TEST, 0), n, n - 1 - i);
		assert_in_range(some[i], 0, n - 1);
		for (int64_t j = 0; j < i; j++)
			assert_true(some[i] != some[j]);
	}
}

/* Over seeds a place gets any number, and neighbours do not stay neighbours. */
TEST_AFTER(begin, permutations_mix)
{
	enum { N = 1000, SEEDS = 400 };
	double first = 0, next = 0;
	for (uint64_t seed = 0; seed < SEEDS; seed++) {
		struct philox_key key = philox_key(seed, PHILOX_TEST, 1);
		int64_t a = order_permute(key, N, 0), b = order_permute(key, N, 1);
		first += (double)a / N;
		next += llabs(a - b) == 1;
	}
	assert_near(first / SEEDS, 0.5, 5 * 0.289 / 20); /* five standard errors */
	assert_true(next < 10);				 /* 0.8 are to be expected */
}

/* The starts of an epoch are a grid of windows, each once; returns its phase. */
static int64_t check_epoch(const struct order *o, int64_t epoch)
{
	int64_t n = o->n_windows, least = INT64_MAX;
	uint8_t *seen = xcalloc((size_t)n, 1);
	for (int64_t i = 0; i < n; i++)
		least = min64(least, order_start(o, epoch * n + i));
	for (int64_t i = 0; i < n; i++) {
		int64_t at = order_start(o, epoch * n + i);
		assert_in_range(at, 0, o->n_tokens - o->context - 1);
		assert_int_equal((at - least) % o->context, 0);
		assert_in_range((at - least) / o->context, 0, n - 1);
		assert_int_equal(seen[(at - least) / o->context]++, 0);
	}
	free(seen);
	return least;
}

TEST_AFTER(begin, epochs_have_each_window_once)
{
	static const int64_t contexts[] = {1, 2, 7, 16};
	for (size_t c = 0; c < ARRAY_LEN(contexts); c++) {
		for (int64_t n = contexts[c] + 1; n < 300; n += 1 + n / 16) {
			for (uint64_t seed = 1; seed < 4; seed++) {
				struct order o;
				assert_int_equal(order_init(&o, SAMPLING_EPOCH, seed, n,
							 contexts[c], 0),
					0);
				assert_true(o.n_windows >= 1);
				/* fewer than fit by one at most: room for the phase */
				assert_true(o.n_windows + 2 > n / contexts[c]);
				for (int64_t epoch = 0; epoch < 4; epoch++)
					assert_in_range(check_epoch(&o, epoch), 0,
						contexts[c] - 1);
			}
		}
	}
}

TEST_AFTER(begin, epochs_and_seeds_differ)
{
	enum { N = 100, T = 16, EPOCHS = 40 };
	int64_t phases[T] = {0};
	struct order o, other;
	order_init(&o, SAMPLING_EPOCH, 1, (N + 1) * T, T, 0);
	order_init(&other, SAMPLING_EPOCH, 2, (N + 1) * T, T, 0);
	assert_int_equal(o.n_windows, N);
	int same_epoch = 0, same_seed = 0, n_phases = 0;
	for (int64_t epoch = 0; epoch < EPOCHS; epoch++) {
		phases[check_epoch(&o, epoch)]++;
		for (int64_t i = 0; i < N; i++) {
			int64_t at = order_start(&o, epoch * N + i) / T;
			same_epoch += at == order_start(&o, (epoch + 1) * N + i) / T;
			same_seed += at == order_start(&other, epoch * N + i) / T;
		}
	}
	/* by chance: EPOCHS each, give or take a few */
	assert_true(same_epoch < 2 * EPOCHS && same_seed < 2 * EPOCHS);
	for (int i = 0; i < T; i++)
		n_phases += phases[i] > 0;
	assert_true(n_phases > T / 2); /* the grid shifts */
}

TEST_AFTER(begin, random_places)
{
	enum { DRAWS = 4000 };
	static const int64_t tokens[] = {17, 18, 20, 1000};
	for (size_t i = 0; i < ARRAY_LEN(tokens); i++) {
		struct order o, again;
		int64_t last = tokens[i] - 17, hits[2] = {0};
		double mean = 0;
		assert_int_equal(order_init(&o, SAMPLING_RANDOM, 3, tokens[i], 16, 0), 0);
		again = o;
		for (int64_t g = 0; g < DRAWS; g++) {
			int64_t at = order_start(&o, g);
			assert_in_range(at, 0, last);
			assert_int_equal(at, order_start(&again, g));
			mean += (double)at / DRAWS;
			hits[0] += at == 0;
			hits[1] += at == last;
		}
		assert_true(hits[0] && hits[1]); /* both ends are places */
		assert_near(mean, (double)last / 2, 0.03 * (double)last);
	}
}

TEST_AFTER(begin, even_places)
{
	struct order o;
	/* side by side, from the first to the last token */
	assert_int_equal(order_init(&o, SAMPLING_EVEN, 0, 65, 16, 0), 0);
	assert_int_equal(o.n_windows, 4);
	for (int64_t g = 0; g < 4; g++)
		assert_int_equal(order_start(&o, g), 16 * g);
	for (int64_t n = 2; n < 40; n++) {
		order_init(&o, SAMPLING_EVEN, 0, 1000, 16, n);
		assert_int_equal(order_start(&o, 0), 0);
		assert_int_equal(order_start(&o, n - 1), 1000 - 17);
		for (int64_t g = 1; g < n; g++) {
			int64_t step = order_start(&o, g) - order_start(&o, g - 1);
			assert_in_range(step, 983 / (n - 1), 983 / (n - 1) + 1);
		}
	}
	order_init(&o, SAMPLING_EVEN, 0, 1000, 16, 1);
	assert_int_equal(order_start(&o, 0), 0);
	/* each once, however many are wanted */
	for (int64_t n = 984; n > 0 && n <= INT64_MAX / 2; n *= 2) {
		order_init(&o, SAMPLING_EVEN, 0, 1000, 16, n);
		assert_int_equal(o.n_windows, 984);
		for (int64_t g = 0; g < 984; g++)
			assert_int_equal(order_start(&o, g), g);
	}
}

TEST_AFTER(begin, too_few_tokens)
{
	static const enum sampling all[] = {
		SAMPLING_EPOCH, SAMPLING_RANDOM, SAMPLING_EVEN};
	for (size_t i = 0; i < ARRAY_LEN(all); i++) {
		struct order o;
		assert_int_equal(order_init(&o, all[i], 1, 16, 16, 0), -1);
		assert_int_equal(order_init(&o, all[i], 1, 0, 16, 0), -1);
		assert_int_equal(order_init(&o, all[i], 1, 17, 16, 0), 0);
		assert_int_equal(order_start(&o, 0), 0);
		assert_int_equal(order_start(&o, 5 * o.n_windows), 0);
	}
}

/* ---- tokenizers ------------------------------------------------------------------ */

/* Characters of one to four bytes, the first and last of each length among them. */
static const char text[] = "a\nz\x7f ä߿\xc2\x80 \xe0\xa0\x80 日本語 \xef\xbf\xbf "
			   "\xf0\x90\x80\x80 \xf4\x8f\xbf\xbf aä日";
enum { TEXT = sizeof(text) - 1 };

/* The kinds without vocabulary files; test_token.c has the others. */
static const char *const learners[] = {"byte", "char"};

/* Learns from the text in pieces of n bytes. */
static void learn(struct tokenizer *t, const char *kind, int64_t n)
{
	assert_int_equal(tokenizer_init(t, kind, &e), 0);
	for (int64_t at = 0, used; t->kind->learn && at < TEXT; at += used) {
		int64_t size = n;
		do { /* what is not used comes again, with more behind it */
			size = min64(size, TEXT - at);
			used = t->kind->learn(t, text + at, size, at + size == TEXT, &e);
			assert_true(used >= 0);
			size++;
		} while (!used);
	}
	assert_int_equal(t->kind->learn_end(t, &e), 0);
}

/* Encodes it so; returns the number of tokens. */
static int64_t encode(const struct tokenizer *t, int64_t n, int64_t room, uint32_t *out)
{
	int64_t n_tokens = 0;
	for (int64_t at = 0, used; at < TEXT; at += used) {
		int64_t size = n, now;
		do {
			size = min64(size, TEXT - at);
			used = t->kind->encode(t, text + at, size, at + size == TEXT,
				out + n_tokens, room, &now, &e);
			assert_true(used >= 0 && now <= room);
			size++;
		} while (!used);
		n_tokens += now;
	}
	return n_tokens;
}

TEST_AFTER(begin, texts_come_back)
{
	for (size_t k = 0; k < ARRAY_LEN(learners); k++) {
		struct tokenizer whole, t;
		uint32_t *ids, pieces[TEXT];
		const char *kind = learners[k];
		learn(&whole, kind, TEXT);
		int64_t n = tokenizer_encode_all(&whole, text, TEXT, &ids, &e);
		assert_true(n > 0);
		struct str back = {0};
		for (int64_t i = 0; i < n; i++)
			tokenizer_decode(&whole, ids[i], &back);
		assert_int_equal(back.len, TEXT);
		assert_memory_equal(back.s, text, TEXT);
		for (int64_t piece = 1; piece < 12; piece++) {
			learn(&t, kind, piece);
			assert_true(tokenizer_equal(&t, &whole));
			assert_int_equal(encode(&t, piece, 3, pieces), n);
			assert_memory_equal(pieces, ids, (size_t)n * sizeof(*ids));
			tokenizer_free(&t);
		}
		free(ids);
		str_free(&back);
		tokenizer_free(&whole);
	}
	assert_int_equal(e.code, 0);
}

TEST_AFTER(begin, vocabularies)
{
	struct tokenizer t;
	struct str out = {0};
	learn(&t, "byte", TEXT);
	assert_int_equal(t.vocab.n, 256);
	tokenizer_free(&t);
	learn(&t, "char", TEXT);
	/* each character once, in the order of code points */
	assert_int_equal(t.vocab.n, 15);
	for (int64_t i = 0; i < 15; i++)
		tokenizer_decode(&t, i, &out);
	assert_string_equal(out.s,
		"\n az\x7f\xc2\x80ä߿\xe0\xa0\x80日本語\xef\xbf\xbf"
		"\xf0\x90\x80\x80\xf4\x8f\xbf\xbf");
	str_clear(&out);
	tokenizer_decode(&t, -1, &out);
	tokenizer_decode(&t, 15, &out);
	assert_int_equal(out.len, 0);
	str_free(&out);
	tokenizer_free(&t);
	assert_int_equal(tokenizer_init(&t, "wordpiece", &e), -1);
	assert_non_null(strstr(e.msg, "'wordpiece'"));
}

TEST_AFTER(begin, tokenizers_are_sent)
{
	for (size_t k = 0; k < ARRAY_LEN(learners); k++) {
		struct tokenizer t, packed, filed;
		struct str bytes = {0};
		uint32_t a[TEXT], b[TEXT];
		struct h5 *f;
		learn(&t, learners[k], TEXT);
		tokenizer_pack(&t, &bytes);
		assert_int_equal(tokenizer_unpack(&packed, &bytes, &e), 0);
		assert_true(tokenizer_equal(&t, &packed));
		assert_int_equal(h5_create(&f, test_path("t.h5"), &e), 0);
		assert_int_equal(tokenizer_write(&t, f, &e), 0);
		assert_int_equal(tokenizer_read(&filed, f, &e), 0);
		assert_int_equal(h5_close(f, &e), 0);
		assert_true(tokenizer_equal(&t, &filed));
		int64_t n = encode(&packed, TEXT, TEXT, a);
		assert_int_equal(encode(&filed, TEXT, TEXT, b), n);
		assert_memory_equal(a, b, (size_t)n * sizeof(*a));
		str_free(&bytes);
		tokenizer_free(&t);
		tokenizer_free(&packed);
		tokenizer_free(&filed);
	}
}

TEST_AFTER(begin, no_utf8)
{
	static const struct {
		const char *text;
		int64_t at;
	} bad[] = {
		{"ab\x80", 2},		 /* goes on without a beginning */
		{"\xc3(", 0},		 /* does not go on */
		{"a\xe6\x97", 1},	 /* ends too early */
		{"\xc0\xaf", 0},	 /* not the shortest form */
		{"\xe0\x9f\xbf", 0},	 /* nor here */
		{"\xf0\x8f\xbf\xbf", 0}, /* nor here */
		{"x\xed\xa0\x80", 1},	 /* a surrogate */
		{"\xf4\x90\x80\x80", 0}, /* above 10FFFF */
		{"\xff", 0},
	};
	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		struct tokenizer t, known;
		int64_t n = (int64_t)strlen(bad[i].text), n_tokens = 0;
		uint32_t *ids;
		begin(NULL);
		assert_int_equal(tokenizer_init(&t, "char", &e), 0);
		assert_int_equal(
			t.kind->learn(&t, bad[i].text, n, true, &e), TEXT_BAD(bad[i].at));
		assert_non_null(strstr(e.msg, "not UTF-8"));
		learn(&known, "char", TEXT);
		assert_int_equal(tokenizer_encode_all(&known, "b", 1, &ids, &e), -1);
		assert_non_null(strstr(e.msg, "no character 'b' (U+0062)"));
		assert_int_equal(known.kind->encode(&known, bad[i].text + bad[i].at,
					 n - bad[i].at, true, NULL, n, &n_tokens, &e),
			TEXT_BAD(0));
		tokenizer_free(&t);
		tokenizer_free(&known);
	}
}

/* ---- shards ---------------------------------------------------------------------- */

static struct prepared prepare(
	const char *name, const char *tokenizer, int64_t shard_bytes, const char *input)
{
	struct strs inputs = {0};
	struct prepared made;
	strs_add(&inputs, input);
	struct prepare p = {.tokenizer = {.name = tokenizer},
		.val_fraction = 0.1,
		.shard_bytes = shard_bytes,
		.out = test_path(name),
		.overwrite = true};
	assert_int_equal(prepare_run(&p, &inputs, &made, &e), 0);
	strs_free(&inputs);
	return made;
}

/* Some text of n characters; a tenth of them take two bytes. */
static const char *make_text(const char *name, int64_t n)
{
	struct str s = {0};
	for (int64_t i = 0; i < n; i++) {
		double u = test_uniform(4, i);
		if (u < 0.1)
			str_puts(&s, "é");
		else
			str_putc(&s, "the old man\n"[(int)(u * 12)]);
	}
	const char *path = test_file(name, s.s);
	str_free(&s);
	return path;
}

static struct corpus *open_corpus(const struct strs *files)
{
	struct corpus *c = NULL;
	assert_int_equal(corpus_open(&c, files, false, &e), 0);
	return c;
}

TEST_AFTER(begin, many_shards_are_one)
{
	enum { N = 10007 };
	static int32_t one[N], many[N];
	static const int64_t sizes[] = {4000, 4001, 18013, 18014, 20014, 50000};
	const char *input = make_text("text", N);
	struct prepared whole = prepare("one", "char", 0, input);
	struct corpus *a = open_corpus(&whole.files);
	int64_t tokens[] = {corpus_tokens(a, SPLIT_TRAIN), corpus_tokens(a, SPLIT_VAL)};
	assert_int_equal(tokens[0] + tokens[1], N);
	assert_int_equal(tokens[1], N / 10 + 1); /* nanoGPT's rounding */
	for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
		struct prepared parts = prepare("many", "char", sizes[i], input);
		assert_int_equal(parts.files.n, ceil_div(2 * N, sizes[i] / 2 * 2));
		struct corpus *b = open_corpus(&parts.files);
		for (int s = 0; s < N_SPLITS; s++) {
			enum split split = (enum split)s;
			assert_int_equal(corpus_tokens(b, split), tokens[s]);
			assert_int_equal(corpus_read(a, split, 0, tokens[s], one, &e), 0);
			assert_int_equal(
				corpus_read(b, split, 0, tokens[s], many, &e), 0);
			assert_memory_equal(one, many, (size_t)tokens[s] * sizeof(*one));
			for (int64_t at = 0; at + 100 < tokens[s]; at += 83) {
				corpus_read(b, split, at, 100, many, &e);
				assert_memory_equal(many, one + at, 100 * sizeof(*one));
			}
		}
		corpus_close(b);
		strs_free(&parts.files);
	}
	corpus_close(a);
	strs_free(&whole.files);
	assert_int_equal(e.code, 0);
}

/* A file that says that it is one of more files than there can be. */
TEST_AFTER(begin, too_many_shards)
{
	static const struct h5_field count[] = {{"count", H5_I64, 0, false, NULL}, {0}};
	static const int64_t most = INT64_MAX;
	struct corpus *c;
	struct h5 *h;
	struct prepared p = prepare("alone", "char", 0, make_text("text", 100));
	assert_int_equal(h5_reopen(&h, p.files.v[0], &e), 0);
	assert_int_equal(h5_fields_write(h, "/", count, &most, &e), 0);
	assert_int_equal(h5_finish(h, 0, &e), 0);
	strs_add(&p.files, p.files.v[0]);
	assert_int_equal(corpus_open(&c, &p.files, false, &e), -1);
	assert_int_equal(e.code, EX_DATAERR);
	assert_non_null(strstr(e.msg, "other files are missing"));
	strs_free(&p.files);
}

TEST_AFTER(begin, shards_in_any_order)
{
	enum { N = 3000 };
	static int32_t one[N], other[N];
	struct strs turned = {0};
	struct prepared p = prepare("turn", "byte", 1000, make_text("text", N));
	assert_true(p.files.n > 5);
	for (int64_t i = p.files.n - 1; i >= 0; i--)
		strs_add(&turned, p.files.v[i]);
	struct corpus *a = open_corpus(&p.files), *b = open_corpus(&turned);
	int64_t n = min64(N, corpus_tokens(a, SPLIT_TRAIN));
	assert_int_equal(corpus_read(a, SPLIT_TRAIN, 0, n, one, &e), 0);
	assert_int_equal(corpus_read(b, SPLIT_TRAIN, 0, n, other, &e), 0);
	assert_memory_equal(one, other, (size_t)n * sizeof(*one));
	assert_true(corpus_hash(a) == corpus_hash(b));
	corpus_close(a);
	corpus_close(b);
	/* one that is missing, one that is twice there, another corpus' vocabulary */
	struct corpus *c = NULL;
	turned.n--;
	assert_int_equal(corpus_open(&c, &turned, false, &e), -1);
	assert_non_null(strstr(e.msg, "other files are missing"));
	struct prepared q = prepare("chars", "char", 0, make_text("text", N));
	strs_add(&p.files, q.files.v[0]);
	assert_int_equal(corpus_open(&c, &p.files, false, &e), -1);
	assert_non_null(strstr(e.msg, "its tokenizer differs from the tokenizer of"));
	assert_null(c);
}

TEST_AFTER(begin, decoding_gives_the_text)
{
	static const char *const kinds[] = {"byte", "char"};
	const char *input = make_text("text", 20000);
	for (size_t k = 0; k < ARRAY_LEN(kinds); k++) {
		struct prepared p = prepare("decode", kinds[k], 7000, input);
		struct str want = {0}, got = {0};
		FILE *f = fopen(test_path("out"), "w");
		assert_int_equal(prepare_decode(&p.files, SPLIT_TRAIN, f, &e), 0);
		assert_int_equal(prepare_decode(&p.files, SPLIT_VAL, f, &e), 0);
		fclose(f);
		assert_int_equal(file_read(input, SIZE_MAX, &want, &e), 0);
		assert_int_equal(file_read(test_path("out"), SIZE_MAX, &got, &e), 0);
		assert_int_equal(got.len, want.len);
		assert_memory_equal(got.s, want.s, want.len);
		str_free(&want);
		str_free(&got);
	}
}

/* A character must not be lost where prepare cuts the text: it reads 256 KiB at once. */
TEST_AFTER(begin, characters_across_pieces)
{
	enum { PIECE = 1 << 18 };
	struct str s = {0};
	for (int i = 0; i < PIECE - 1; i++)
		str_putc(&s, i % 64 ? 'x' : '\n');
	str_puts(&s, "日本 and so on");
	struct prepared p = prepare("long", "char", 0, test_file("long.txt", s.s));
	assert_int_equal(p.info.total[0] + p.info.total[1], PIECE - 1 + 12);
	struct corpus *c = open_corpus(&p.files);
	int32_t ids[12];
	struct str end = {0};
	corpus_read(c, SPLIT_VAL, p.info.total[SPLIT_VAL] - 12, 12, ids, &e);
	for (int i = 0; i < 12; i++)
		tokenizer_decode(corpus_tokenizer(c), ids[i], &end);
	assert_string_equal(end.s, "日本 and so on");
	corpus_close(c);
	str_free(&s);
	str_free(&end);
}

TEST_AFTER(begin, damaged_tokens_are_found)
{
	static int32_t ids[4000];
	struct h5_blocks b;
	struct corpus *c;
	struct h5 *h;
	struct prepared p = prepare("bad", "byte", 0, make_text("text", 4000));
	assert_int_equal(h5_open(&h, p.files.v[0], &e), 0);
	assert_int_equal(h5_blocks_open(h, "/train", &b, &e), 0);
	assert_int_equal(h5_close(h, &e), 0);
	FILE *f = fopen(p.files.v[0], "r+");
	fseek(f, (long)b.offset + 2 * 1234, SEEK_SET);
	fputc('~', f);
	fclose(f);
	c = open_corpus(&p.files); /* lazily: blocks are checked when they are touched */
	assert_int_equal(corpus_read(c, SPLIT_VAL, 0, 100, ids, &e), 0);
	assert_int_equal(corpus_read(c, SPLIT_TRAIN, 0, 10, ids, &e), -1);
	assert_int_equal(e.code, EX_DATAERR);
	assert_non_null(strstr(e.msg, p.files.v[0]));
	corpus_close(c);
	h5_blocks_free(&b);
}

/* Files of this test with the pattern. */
static size_t n_files(const char *pattern)
{
	glob_t found;
	glob(test_path(pattern), 0, NULL, &found);
	size_t n = found.gl_pathc;
	globfree(&found);
	return n;
}

/* Shards have their names only when all tokens came. */
TEST_AFTER(begin, unfinished_shards_leave_nothing)
{
	struct tokenizer t;
	learn(&t, "byte", TEXT);
	struct prepare p = {.tokenizer = {.name = "byte"},
		.shard_bytes = 100,
		.out = test_path("half")};
	struct shard_info info = {.split = "tail", .total = {120, 10}};
	static const uint32_t ids[60] = {1, 2, 3};
	struct shard_writer *w = shard_writer_open(&p, &t, &info, &e);
	assert_non_null(w);
	assert_int_equal(n_files("half-00000.h5.????????????????.tmp"), 1);
	assert_int_equal(shard_writer_put(w, SPLIT_TRAIN, ids, 60, &e), 0);
	shard_writer_close(w);
	assert_int_equal(n_files("half*"), 0);
	tokenizer_free(&t);
}

/* What somebody else's program makes: words, by a tokenizer that is not one of ours. */
static struct prepared make_foreign(const char *kind, const uint32_t *ids, int64_t n)
{
	static const struct tokenizer_kind none;
	static char words[] = "thecat sat";
	static int64_t offsets[] = {0, 3, 6, 7, 10, 10};
	struct tokenizer_kind k = none;
	struct prepared made = {0};
	k.name = kind;
	struct tokenizer t = {&k, {5, (uint8_t *)words, offsets}, NULL};
	struct prepare p = {.out = test_path("foreign.h5"), .overwrite = true};
	struct shard_info info = {.split = "tail", .total = {n, 0}};
	struct shard_writer *w = shard_writer_open(&p, &t, &info, &e);
	assert_non_null(w);
	assert_int_equal(shard_writer_put(w, SPLIT_TRAIN, ids, n, &e), 0);
	assert_int_equal(shard_writer_finish(w, &made, &e), 0);
	shard_writer_close(w);
	return made;
}

TEST_AFTER(begin, unknown_tokenizers_decode)
{
	static const uint32_t ids[] = {0, 2, 1, 4, 2, 3};
	struct tokenizer sent;
	struct str packed = {0}, said = {0};
	uint32_t *none;
	struct prepared p = make_foreign("wordpiece", ids, 6);
	struct corpus *c = open_corpus(&p.files);
	const struct tokenizer *t = corpus_tokenizer(c);
	assert_string_equal(t->kind->name, "wordpiece");
	assert_int_equal(corpus_verify(c, &e), 0);
	FILE *f = fopen(test_path("said"), "w");
	assert_int_equal(prepare_decode(&p.files, SPLIT_TRAIN, f, &e), 0);
	fclose(f);
	assert_int_equal(file_read(test_path("said"), 100, &said, &e), 0);
	assert_string_equal(said.s, "the cat sat");
	/* other ranks and checkpoints have it too */
	tokenizer_pack(t, &packed);
	assert_int_equal(tokenizer_unpack(&sent, &packed, &e), 0);
	assert_true(tokenizer_equal(&sent, t));
	assert_int_equal(tokenizer_encode_all(&sent, "the", 3, &none, &e), -1);
	assert_int_equal(e.code, EX_DATAERR);
	assert_non_null(strstr(e.msg, "cannot encode with tokenizer 'wordpiece'"));
	tokenizer_free(&sent);
	corpus_close(c);
	str_free(&packed);
	str_free(&said);
	/* a kind is printed: it must be a name */
	struct corpus *bad;
	p = make_foreign("a\nb", ids, 6);
	assert_int_equal(corpus_open(&bad, &p.files, false, &e), -1);
	assert_non_null(
		strstr(e.msg, "foreign.h5: the tokenizer's kind has an invalid name"));
	/* a token beyond the vocabulary is found, though its checksum is right */
	static const uint32_t beyond[] = {0, 5};
	p = make_foreign("wordpiece", beyond, 2);
	c = open_corpus(&p.files);
	assert_int_equal(corpus_verify(c, &e), -1);
	assert_non_null(strstr(e.msg, "/train: token 1 is 5, but the vocabulary has 5"));
	corpus_close(c);
}

/* A kind that this program knows must be what it knows. */
TEST_AFTER(begin, vocabularies_that_lie)
{
	static const uint32_t ids[] = {0, 1};
	struct tokenizer t;
	struct corpus *c;
	learn(&t, "byte", TEXT);
	for (int i = 0; i < 2; i++) {
		struct str packed = {0};
		struct tokenizer lie;
		t.vocab.bytes[65] = (uint8_t)(65 + i);
		tokenizer_pack(&t, &packed);
		assert_int_equal(tokenizer_unpack(&lie, &packed, &e), -i);
		tokenizer_free(&lie);
		str_free(&packed);
	}
	assert_non_null(strstr(e.msg, "token 65 of the byte vocabulary is not the byte"));
	tokenizer_free(&t);
	struct prepared p = make_foreign("byte", ids, 2);
	assert_int_equal(corpus_open(&c, &p.files, false, &e), -1);
	assert_int_equal(e.code, EX_DATAERR);
	assert_non_null(strstr(e.msg, "must have 256 tokens, not 5"));
	p = make_foreign("char", ids, 2);
	assert_int_equal(corpus_open(&c, &p.files, false, &e), -1);
	assert_non_null(strstr(e.msg, "token 0 is not a character"));
}

/* ---- the loader ------------------------------------------------------------------ */

TEST_AFTER(begin, readers)
{
	for (int size = 1; size < 12; size++) {
		for (int n = 1; n <= size; n++) {
			int n_readers = 0, most = 0, fewest = size, served = 0;
			for (int r = 0; r < size; r++) {
				int reader = loader_reader(r, size, n);
				assert_in_range(reader, 0, r);
				assert_int_equal(loader_reader(reader, size, n), reader);
				served = reader == r ? 1 : served + 1;
				n_readers += reader == r;
				most = served > most ? served : most;
				if (r == size - 1 ||
					loader_reader(r + 1, size, n) == r + 1)
					fewest = served < fewest ? served : fewest;
			}
			assert_int_equal(n_readers, n);
			assert_true(most - fewest <= 1);
		}
	}
}

TEST_AFTER(begin, windows_are_those_of_the_order)
{
	enum { T = 16, N = 9 };
	int32_t want[T + 1];
	struct prepared p = prepare("load", "char", 3000, make_text("text", 6000));
	struct corpus *c = open_corpus(&p.files);
	struct comm *alone = comm_self("dp");
	struct loader_config config = {
		.comm = alone, .corpus = c, .readers = 1, .context = T};
	struct loader *l = loader_open(&config);
	struct order order[2];
	struct fetch *f[2];
	for (int s = 0; s < N_SPLITS; s++)
		order_init(&order[s], s ? SAMPLING_EVEN : SAMPLING_EPOCH, 5,
			corpus_tokens(c, (enum split)s), T, 0);
	for (int64_t first = 0; first < 900; first += 150) {
		/* blocks of three, each five after the one before */
		struct sample_run run = {.block = 3, .stride = 5, .blocks = N / 3};
		/* two under way at once, of both splits */
		for (int s = 0; s < N_SPLITS; s++) {
			run.first = first % 4 + (s ? 0 : first);
			f[s] = loader_begin(l, (enum split)s, &order[s], &run);
		}
		for (int s = N_SPLITS - 1; s >= 0; s--) {
			const int32_t *got = loader_end(l, f[s]);
			for (int64_t i = 0; i < N; i++) {
				int64_t g =
					(s ? 0 : first) + first % 4 + i / 3 * 5 + i % 3;
				int64_t at = order_start(&order[s], g);
				corpus_read(c, (enum split)s, at, T + 1, want, &e);
				assert_memory_equal(
					got + i * (T + 1), want, sizeof(want));
			}
			fetch_free(f[s]);
		}
	}
	f[0] = loader_begin(l, SPLIT_TRAIN, &order[0], &(struct sample_run){.first = 3});
	loader_end(l, f[0]);
	fetch_free(f[0]);
	loader_close(l);
	comm_free(alone);
	corpus_close(c);
	assert_int_equal(e.code, 0);
}
