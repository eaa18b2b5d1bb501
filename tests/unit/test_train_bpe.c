/* token: training of byte-pair encoding, against the textbook algorithm. */
#include "base/file.h"
#include "tests/support/support.h"
#include "vocab/vocab.h"

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

/* ---- the textbook: all pairs are counted again for each merge --------------------- */

enum { MOST_WORDS = 4000, MOST_TOKENS = 400, MOST_IN_WORD = 40 };

struct naive_word {
	uint32_t t[MOST_IN_WORD];
	int n;
	int64_t count;
};

static struct {
	struct naive_word words[MOST_WORDS];
	int n_words;
	int64_t count[MOST_TOKENS][MOST_TOKENS];
	int n_tokens;
} naive;

/* GPT-2's order of bytes: its characters '!' to '~', U+00A1 to U+00AC, U+00AE to U+00FF, then the rest. */
static uint32_t token_of(uint8_t byte)
{
	uint32_t n = 0;
	for (int pass = 0; pass < 2; pass++)
		for (int b = 0; b < 256; b++) {
			bool first = (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) ||
				     b >= 0xae;
			if (first != (pass == 0))
				continue;
			if (b == byte)
				return n;
			n++;
		}
	return n;
}

static void naive_begin(const struct train_words *w)
{
	uint32_t token[256];
	naive.n_words = 0;
	naive.n_tokens = 256;
	for (int b = 0; b < 256; b++)
		token[b] = token_of((uint8_t)b);
	for (int64_t i = 0; i < w->n_slots; i++) {
		const struct train_word *x = &w->slots[i];
		if (!x->count)
			continue;
		assert_true(naive.n_words < MOST_WORDS);
		assert_true(x->n_bytes <= MOST_IN_WORD);
		struct naive_word *to = &naive.words[naive.n_words++];
		to->n = (int)x->n_bytes;
		to->count = x->count;
		for (int k = 0; k < to->n; k++)
			to->t[k] = token[(uint8_t)w->bytes[x->at + (size_t)k]];
	}
}

/* The next merge; false: no pair occurs `least` times. */
static bool naive_merge(int64_t least, uint32_t *left, uint32_t *right)
{
	memset(naive.count, 0, sizeof(naive.count));
	for (int i = 0; i < naive.n_words; i++)
		for (int k = 0; k + 1 < naive.words[i].n; k++)
			naive.count[naive.words[i].t[k]][naive.words[i].t[k + 1]] +=
				naive.words[i].count;
	int64_t most = 0;
	for (int a = 0; a < naive.n_tokens; a++)
		for (int b = 0; b < naive.n_tokens; b++)
			if (naive.count[a][b] > most) {
				most = naive.count[a][b];
				*left = (uint32_t)a, *right = (uint32_t)b;
			}
	if (most < least)
		return false;
	for (int i = 0; i < naive.n_words; i++) {
		struct naive_word *w = &naive.words[i];
		int n = 0;
		for (int k = 0; k < w->n; k++) {
			bool both =
				k + 1 < w->n && w->t[k] == *left && w->t[k + 1] == *right;
			w->t[n++] = both ? (uint32_t)naive.n_tokens : w->t[k];
			k += both;
		}
		w->n = n;
	}
	naive.n_tokens++;
	return true;
}

/* ---- comparisons ------------------------------------------------------------------ */

/* Trains on a text, and compares every merge. */
static void check_merges(const char *text, size_t n, int64_t vocab, int64_t least)
{
	struct train_words w;
	struct vocab v;
	struct bpe_rules r;
	const struct train_config c = {
		.vocab = vocab, .min_count = least, .pattern = "gpt2"};
	assert_int_equal(train_words_open(&w, "gpt2", &e), 0);
	assert_int_equal(train_words_add(&w, text, (int64_t)n, &e), 0);
	assert_int_equal(train_bpe(&w, &c, &v, &r, &e), 0);
	naive_begin(&w);
	for (int64_t i = 0;; i++) {
		uint32_t left = 0, right = 0;
		bool more = 256 + i < vocab && naive_merge(least, &left, &right);
		if (!more) {
			assert_int_equal(i, r.n_merges);
			break;
		}
		assert_true(i < r.n_merges);
		assert_int_equal(left, r.merges[2 * i]);
		assert_int_equal(right, r.merges[2 * i + 1]);
	}
	assert_int_equal(v.n, 256 + r.n_merges);
	vocab_release(&v);
	bpe_rules_release(&r);
	train_words_close(&w);
}

/* Texts of few letters, where equal counts and repeated letters are frequent. */
TEST_AFTER(begin, as_the_textbook)
{
	char text[6000];
	for (uint32_t seed = 0; seed < 60; seed++) {
		struct philox_key key = philox_key(seed, PHILOX_TEST, 0x627065);
		uint32_t letters = 1 + seed % 9, spaces = 3 + seed % 17;
		size_t n = 100 + seed * 80;
		for (size_t i = 0; i < n; i++) {
			struct philox_block b = philox(key, (uint32_t)i, 0, 0, 0);
			text[i] = b.x[0] % spaces ? (char)('a' + b.x[1] % letters) : ' ';
			if (i % MOST_IN_WORD == MOST_IN_WORD - 2)
				text[i] = ' ';
		}
		check_merges(text, n, 256 + 8 + seed * 2, 1 + seed % 3);
	}
}

/* Any bytes: not UTF-8, and runs of white space. */
TEST_AFTER(begin, of_any_bytes)
{
	char text[3000];
	for (uint32_t seed = 0; seed < 10; seed++) {
		struct philox_key key = philox_key(seed, PHILOX_TEST, 0x616e79);
		for (size_t i = 0; i < sizeof(text); i++) {
			struct philox_block b = philox(key, (uint32_t)i, 0, 0, 0);
			text[i] = (char)(b.x[0] % 3 ? b.x[1] % 12 * 21 : b.x[1]);
			if (i % 32 == 30)
				text[i] = 'a', text[++i] = ' ';
		}
		check_merges(text, sizeof(text), 330, 1);
	}
}

/* Texts that are cut give the words of the whole. */
TEST_AFTER(begin, cuts_change_no_word)
{
	static const char *const parts[] = {"word ", "Word\n", "\n", "  ", "12 ",
		"don't ", "\xe4\xbd\xa0\xe5\xa5\xbd", "\xff", "x = y;\n\t", "http://a/b",
		"\r\n", "\xc2\xa0", "caf\xc3\xa9 "};
	for (uint32_t seed = 0; seed < 200; seed++) {
		struct philox_key key = philox_key(seed, PHILOX_TEST, 0x637574);
		struct str text = {0};
		struct train_words whole, pieces;
		for (uint32_t i = 0; i < 600; i++)
			str_puts(&text,
				parts[philox(key, i, 0, 0, 0).x[0] % ARRAY_LEN(parts)]);
		const char *pattern = split_patterns[seed % 6].name;
		assert_int_equal(train_words_open(&whole, pattern, &e), 0);
		assert_int_equal(train_words_open(&pieces, pattern, &e), 0);
		assert_int_equal(
			train_words_add(&whole, text.s, (int64_t)text.len, &e), 0);
		for (int64_t at = 0, n; at < (int64_t)text.len; at += n) {
			n = min64(400, (int64_t)text.len - at);
			if (at + n < (int64_t)text.len)
				n = split_cut(text.s + at, n);
			assert_true(n > 0);
			assert_int_equal(train_words_add(&pieces, text.s + at, n, &e), 0);
		}
		/* as many of them, and adding them again changes no number of words */
		assert_int_equal(whole.n, pieces.n);
		train_words_merge(&whole, &pieces);
		assert_int_equal(whole.n, pieces.n);
		for (int64_t i = 0; i < whole.n_slots; i++)
			assert_int_equal(whole.slots[i].count % 2, 0);
		train_words_close(&whole);
		train_words_close(&pieces);
		str_free(&text);
	}
}

TEST_AFTER(begin, long_words_are_cut)
{
	struct train_words w;
	char *text = xmalloc(3 * TRAIN_MAX_WORD + 5);
	memset(text, 'a', 3 * TRAIN_MAX_WORD + 5);
	assert_int_equal(train_words_open(&w, "gpt2", &e), 0);
	assert_int_equal(train_words_add(&w, text, 3 * TRAIN_MAX_WORD + 5, &e), 0);
	assert_int_equal(w.n, 2);
	assert_int_equal(w.n_bytes, TRAIN_MAX_WORD + 5);
	train_words_close(&w);
	free(text);
}

/* What was trained is read from each file, and encodes alike. */
TEST_AFTER(begin, files_are_read_back)
{
	static const char text[] =
		"the theme of them: \"then\" \\ there, the \"then\" of \\ them\n";
	static const char *const names[] = {
		"tokenizer.json", "merges.txt", "vocab.tiktoken"};
	struct train_words w;
	struct vocab v, u;
	struct bpe_rules r, s;
	struct strs files = {0};
	char folder[] = "/tmp/pt-train-XXXXXX", path[64];
	const struct train_config c = {.vocab = 290,
		.min_count = 2,
		.pattern = "cl100k",
		.end_of_text = "<|endoftext|>"};
	assert_non_null(mkdtemp(folder));
	assert_int_equal(train_words_open(&w, c.pattern, &e), 0);
	assert_int_equal(train_words_add(&w, text, sizeof(text) - 1, &e), 0);
	assert_int_equal(train_bpe(&w, &c, &v, &r, &e), 0);
	assert_true(r.n_merges > 4);
	assert_int_equal(r.end_of_text, 256 + r.n_merges);
	assert_int_equal(train_write(folder, false, &v, &r, &files, &e), 0);
	assert_int_equal(train_write(folder, false, &v, &r, &files, &e), -1);
	assert_int_equal(train_write(folder, true, &v, &r, &files, &e), 0);
	for (size_t i = 0; i < ARRAY_LEN(names); i++) {
		snprintf(path, sizeof(path), "%s/%s", folder, names[i]);
		assert_int_equal(
			bpe_read(&u, &s, path, NULL, i ? c.pattern : NULL, &e), 0);
		assert_string_equal(s.pattern, "cl100k");
		bool ranks = i == 2; /* which have no special tokens */
		assert_int_equal(u.n, v.n - ranks);
		assert_memory_equal(u.bytes, v.bytes, (size_t)u.offset[u.n]);
		assert_int_equal(s.n_merges, ranks ? 0 : r.n_merges);
		if (!ranks) {
			assert_memory_equal(s.merges, r.merges,
				(size_t)r.n_merges * 2 * sizeof(*r.merges));
			assert_int_equal(s.end_of_text, r.end_of_text);
		}
		vocab_release(&u);
		bpe_rules_release(&s);
	}
	for (int64_t i = 0; i < files.n; i++)
		unlink(files.v[i]);
	assert_int_equal(rmdir(folder), 0);
	strs_free(&files);
	vocab_release(&v);
	bpe_rules_release(&r);
	train_words_close(&w);
}

TEST_AFTER(begin, refused)
{
	struct train_words w;
	struct vocab v;
	struct bpe_rules r;
	struct train_config c = {.vocab = 255, .min_count = 1, .pattern = "gpt2"};
	assert_int_equal(train_words_open(&w, "(", &e), -1);
	e = (struct err){0};
	assert_int_equal(train_words_open(&w, "gpt2", &e), 0);
	assert_int_equal(train_bpe(&w, &c, &v, &r, &e), -1);
	assert_int_equal(e.code, EX_USAGE);
	/* no words: the bytes */
	c.vocab = 300;
	assert_int_equal(train_bpe(&w, &c, &v, &r, &e), 0);
	assert_int_equal(v.n, 256);
	vocab_release(&v);
	bpe_rules_release(&r);
	train_words_close(&w);
}
