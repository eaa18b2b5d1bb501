/* token: readers of vocabularies, the splitting of words, the encoder against a textbook one. */
#include "base/file.h"
#include "tests/support/support.h"
#include "tests/support/vocabulary.h"
#include "token/bpe_internal.h"
#include "token/tokenizer.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static struct err e;

static int begin(void **state)
{
	(void)state;
	e = (struct err){0};
	return 0;
}

/* ---- the textbook ---------------------------------------------------------------- */

struct ids {
	uint32_t v[4096];
	int64_t n;
};

static bool has_bytes(const struct vocab *v, uint32_t id, const char *p, size_t n)
{
	return v->offset[id + 1] - v->offset[id] == (int64_t)n &&
	       !memcmp(v->bytes + v->offset[id], p, n);
}

static void both_bytes(const struct vocab *v, uint32_t a, uint32_t b, struct str *out)
{
	str_clear(out);
	str_add(out, v->bytes + v->offset[a], (size_t)(v->offset[a + 1] - v->offset[a]));
	str_add(out, v->bytes + v->offset[b], (size_t)(v->offset[b + 1] - v->offset[b]));
}

static uint32_t find_token(const struct vocab *v, int64_t n, const char *p, size_t len)
{
	for (uint32_t id = 0; id < n; id++)
		if (has_bytes(v, id, p, len))
			return id;
	return BPE_NONE;
}

/* The place of a pair in the order of merges; BPE_NONE: it does not merge. */
static uint32_t rank_of(
	const struct vocab *v, const struct bpe_rules *r, uint32_t a, uint32_t b)
{
	for (uint32_t i = 0; i < r->n_merges; i++)
		if (r->merges[2 * i] == a && r->merges[2 * i + 1] == b)
			return i;
	if (r->n_merges)
		return BPE_NONE;
	struct str both = {0};
	both_bytes(v, a, b, &both);
	uint32_t id = find_token(v, r->n_ranked, both.s, both.len);
	str_free(&both);
	return id;
}

/* Merges the first pair in the order of merges, until none is left. */
static void textbook_word(const struct vocab *v, const struct bpe_rules *r,
	const char *word, int64_t n, struct ids *out)
{
	struct ids w = {.n = n};
	struct str both = {0};
	uint32_t whole = find_token(v, v->n, word, (size_t)n);
	for (int64_t i = 0; i < n; i++)
		w.v[i] = find_token(v, v->n, word + i, 1);
	if (whole != BPE_NONE && (r->whole_words || !r->n_merges)) {
		w.v[0] = whole;
		w.n = 1;
	}
	for (;;) {
		uint32_t best = BPE_NONE;
		int64_t at = 0;
		for (int64_t i = 0; i + 1 < w.n; i++) {
			uint32_t rank = rank_of(v, r, w.v[i], w.v[i + 1]);
			if (rank < best)
				best = rank, at = i;
		}
		if (best == BPE_NONE)
			break;
		both_bytes(v, w.v[at], w.v[at + 1], &both);
		w.v[at] = find_token(v, v->n, both.s, both.len);
		w.n--;
		memmove(w.v + at + 1, w.v + at + 2,
			(size_t)(w.n - at - 1) * sizeof(*w.v));
	}
	memcpy(out->v + out->n, w.v, (size_t)w.n * sizeof(*w.v));
	out->n += w.n;
	str_free(&both);
}

/* ---- random vocabularies and texts ----------------------------------------------- */

/* The few bytes that words are made of, so that merges meet. */
static const char letters[] = "abAé 1'\n";

static int64_t draw(uint64_t *seed, int64_t n)
{
	*seed = hash_mix(*seed + 0x9e3779b97f4a7c15u);
	return (int64_t)(*seed % (uint64_t)n);
}

/* 256 bytes, in any order, and merges of what is there already. */
static void random_vocab(
	struct vocab *v, struct bpe_rules *r, uint64_t seed, const char *pattern)
{
	enum { MOST = 64 };
	bool ranked = seed & 1;
	*v = (struct vocab){.n = 256};
	*r = (struct bpe_rules){.end_of_text = BPE_NONE, .whole_words = seed >> 1 & 1};
	v->bytes = xmalloc((size_t)1 << 20);
	v->offset = xmalloc((256 + MOST + 1) * sizeof(int64_t));
	r->merges = xmalloc(2 * MOST * sizeof(uint32_t));
	r->pattern = xstrdup(pattern);
	uint8_t turn = (uint8_t)draw(&seed, 256);
	for (int i = 0; i <= 256; i++)
		v->offset[i] = i;
	for (int i = 0; i < 256; i++)
		v->bytes[i] = (uint8_t)(i * 3 + turn);
	struct str both = {0};
	for (int tries = 0, k = 0; k < MOST && tries < 1000; tries++) {
		uint32_t pair[2];
		for (int i = 0; i < 2; i++) {
			char c = letters[draw(&seed, sizeof(letters) - 1)];
			pair[i] = k && draw(&seed, 2) ? 256 + (uint32_t)draw(&seed, k)
						      : find_token(v, 256, &c, 1);
		}
		both_bytes(v, pair[0], pair[1], &both);
		if (both.len > 12 || find_token(v, v->n, both.s, both.len) != BPE_NONE)
			continue;
		memcpy(v->bytes + v->offset[v->n], both.s, both.len);
		v->offset[v->n + 1] = v->offset[v->n] + (int64_t)both.len;
		v->n++, k++;
		memcpy(r->merges + 2 * r->n_merges++, pair, sizeof(pair));
	}
	str_free(&both);
	if (ranked) {
		r->n_merges = 0;
		r->n_ranked = v->n;
	}
}

/* Characters of all kinds that the patterns distinguish. */
static void random_text(struct str *text, uint64_t *seed)
{
	static const char *const common[] = {"a", "b", "A", "é", " ", "1", "'", "\n",
		"ab", " ab", "Ba", "'s", "'ll", "'VE", "  ", "\r\n", "\t"};
	static const char *const rare[] = {"日", "ʰ", "\u0301", "ǅ", "½", "٣", "\u00a0",
		"\u3000", "\u2028", "😀", "\x7f", "\xc2\x85", "'ſ", "/", "(", "ع", "\x1c"};
	int64_t n = 1 + draw(seed, 1 << draw(seed, 9)), dense = draw(seed, 8);
	str_clear(text);
	for (int64_t i = 0; i < n; i++)
		str_puts(text, draw(seed, 8) < dense
				       ? rare[draw(seed, ARRAY_LEN(rare))]
				       : common[draw(seed, ARRAY_LEN(common))]);
}

/* ---- the encoder ----------------------------------------------------------------- */

/* The tokens of the textbook: words by PCRE2, merges one by one. */
static void textbook(struct splitter *words, const struct vocab *v,
	const struct bpe_rules *r, const struct str *text, struct ids *out)
{
	uint32_t ends[4096];
	int k = split_words(words, text->s, (int64_t)text->len, true, ends, 4096, &e);
	assert_true(k >= 0 && k < 4096);
	out->n = 0;
	for (int i = 0, at = 0; i < k; at = (int)ends[i++])
		textbook_word(v, r, text->s + at, (int64_t)ends[i] - at, out);
}

/* In pieces of n bytes; what is not used comes again with more behind it. */
static void in_pieces(struct encoder *s, const struct str *text, int64_t n, bool special,
	struct ids *out)
{
	int64_t now = n, used, all = (int64_t)text->len;
	out->n = 0;
	for (int64_t at = 0, n_out; at < all; at += used, out->n += n_out) {
		now = min64(now, all - at);
		encoder_allow_special(s, special);
		used = encoder_encode(s, text->s + at, now, at + now == all,
			out->v + out->n, now, &n_out, &e);
		assert_true(used >= 0 && n_out <= now);
		now = used ? n : now + n;
	}
}

static void assert_ids(const struct ids *got, const struct ids *want, const char *what)
{
	if (got->n != want->n ||
		memcmp(got->v, want->v, (size_t)got->n * sizeof(*got->v)))
		fail_msg("%s", what);
}

/* One vocabulary, some texts. */
static void check_vocab(uint64_t seed, int n_texts)
{
	static struct ids want, got;
	struct vocab v;
	struct bpe_rules r;
	struct str text = {0}, regex = {0};
	const struct split_pattern *p =
		&split_patterns[draw(&seed, 6)]; /* (test_data has their number) */
	random_vocab(&v, &r, seed, p->name);
	str_printf(&regex, "(?:%s)", p->regex); /* an unknown name of it */
	struct splitter *words = splitter_open(regex.s, &e);
	struct bpe *b = bpe_open(&v, &r, &e);
	assert_non_null(b);
	assert_non_null(words);
	struct encoder *s = encoder_open(b, &e);
	for (int i = 0; i < n_texts; i++) {
		random_text(&text, &seed);
		textbook(words, &v, &r, &text, &want);
		in_pieces(s, &text, (int64_t)text.len, false, &got);
		assert_ids(&got, &want, text.s);
		in_pieces(s, &text, 1 + draw(&seed, 100), false, &got);
		assert_ids(&got, &want, text.s);
		int64_t n;
		encoder_encode(s, text.s, (int64_t)text.len, true, NULL,
			(int64_t)text.len, &n, &e);
		assert_int_equal(n, want.n);
	}
	encoder_close(s);
	bpe_close(b);
	splitter_close(words);
	vocab_release(&v);
	bpe_rules_release(&r);
	str_free(&text);
	str_free(&regex);
}

/* TOKEN_TEXTS=10000000: so many random texts. */
TEST_AFTER(begin, equals_the_textbook)
{
	enum { TEXTS = 50 };
	const char *wanted = getenv("TOKEN_TEXTS");
	int64_t n = wanted ? atoll(wanted) : 6000;
	for (int64_t i = 0; i < n / TEXTS; i++)
		check_vocab((uint64_t)i, TEXTS);
}

/* A word that is long enough for the heap. */
TEST_AFTER(begin, long_words)
{
	static struct ids want, got;
	struct vocab v;
	struct bpe_rules r;
	struct str word = {0};
	for (uint64_t seed = 0; seed < 40; seed++) {
		uint64_t s = seed;
		random_vocab(&v, &r, seed, "gpt2");
		str_clear(&word);
		while (word.len < 200 + seed * 5)
			str_puts(&word, &"a\0b\0A\0é"[2 * draw(&s, 1 + seed % 4)]);
		want.n = 0;
		textbook_word(&v, &r, word.s, (int64_t)word.len, &want);
		struct bpe *b = bpe_open(&v, &r, &e);
		struct known_words *k = known_words_open(b);
		got.n = known_word(k, word.s, (int64_t)word.len, got.v);
		assert_ids(&got, &want, word.s);
		known_words_close(k);
		bpe_close(b);
		vocab_release(&v);
		bpe_rules_release(&r);
	}
	str_free(&word);
}

/* Any bytes come back; those that are not UTF-8 do not disturb the words around them. */
TEST_AFTER(begin, any_bytes_come_back)
{
	static struct ids ids;
	for (const struct split_pattern *p = split_patterns; p->name; p++) {
		struct vocab v;
		struct bpe_rules r;
		uint64_t seed = 7;
		random_vocab(&v, &r, 4, p->name);
		struct bpe *b = bpe_open(&v, &r, &e);
		struct encoder *s = encoder_open(b, &e);
		for (int i = 0; i < 300; i++) {
			struct str text = {0}, back = {0};
			for (int64_t n = draw(&seed, 100); n >= 0; n--)
				str_putc(&text,
					(char)(draw(&seed, 2) ? draw(&seed, 256) : 0xe0));
			in_pieces(s, &text, 1 + draw(&seed, 60), false, &ids);
			for (int64_t k = 0; k < ids.n; k++)
				str_add(&back, v.bytes + v.offset[ids.v[k]],
					(size_t)(v.offset[ids.v[k] + 1] -
						 v.offset[ids.v[k]]));
			assert_int_equal(back.len, text.len);
			assert_memory_equal(back.s, text.s, text.len);
			str_free(&text);
			str_free(&back);
		}
		encoder_close(s);
		bpe_close(b);
		vocab_release(&v);
		bpe_rules_release(&r);
	}
}

/* Tokens that are found in text are found in pieces of it, too, the longest at the first place. */
TEST_AFTER(begin, added_tokens_in_pieces)
{
	static const char text[] =
		"<tool>b<tool>a<tool<tool> <|endoftext|><|endoftex|><tool>";
	static struct ids want, got;
	struct vocab v;
	struct bpe_rules r;
	struct str s = {0};
	assert_int_equal(
		bpe_read(&v, &r, "tests/golden/tokens/tokenizer.json", NULL, NULL, &e),
		0);
	struct bpe *b = bpe_open(&v, &r, &e);
	struct encoder *x = encoder_open(b, &e);
	str_puts(&s, text);
	for (int special = 0; special < 2; special++) {
		in_pieces(x, &s, (int64_t)s.len, special, &want);
		int64_t n_added = 0;
		for (int64_t i = 0; i < want.n; i++)
			n_added += want.v[i] >= r.added[0].id;
		assert_int_equal(n_added, 4 + special);
		assert_int_equal(want.v[0], v.n - 1); /* <tool>b, not <tool> */
		for (int64_t n = 1; n < 20; n++) {
			in_pieces(x, &s, n, special, &got);
			assert_ids(&got, &want, text);
		}
	}
	str_free(&s);
	encoder_close(x);
	bpe_close(b);
	vocab_release(&v);
	bpe_rules_release(&r);
}

/* Words by PCRE2 are the same in pieces. */
TEST_AFTER(begin, regex_in_pieces)
{
	enum { MOST = 4096 };
	static uint32_t want[MOST], ends[MOST];
	struct str text = {0};
	for (uint64_t seed = 1; seed < 400; seed++) {
		uint64_t s = seed;
		struct str regex = {0};
		str_printf(&regex, "(?:%s)", split_patterns[seed % 6].regex);
		struct splitter *x = splitter_open(regex.s, &e);
		random_text(&text, &s);
		int n = split_words(x, text.s, (int64_t)text.len, true, want, MOST, &e);
		int found = 0;
		int64_t piece = 1 + draw(&s, 40), now = piece, all = (int64_t)text.len;
		for (int64_t at = 0; at < all;) {
			now = min64(now, all - at);
			int k = split_words(
				x, text.s + at, now, at + now == all, ends, MOST, &e);
			for (int i = 0; i < k; i++)
				assert_int_equal(at + ends[i], want[found++]);
			at += k ? ends[k - 1] : 0;
			now = k ? piece : now + piece;
		}
		assert_int_equal(found, n);
		splitter_close(x);
		str_free(&regex);
	}
	str_free(&text);
}

/* ---- golden files ---------------------------------------------------------------- */

static const char *golden(const char *name)
{
	static char path[256];
	snprintf(path, sizeof(path), "tests/golden/tokens/%s", name);
	return path;
}

/* Prints ids as the golden files have them: 16 per line, counted from first. */
static void put_ids(struct str *out, const uint32_t *ids, int64_t n, uint32_t first)
{
	for (int64_t i = 0; i < n; i++)
		str_printf(out, "%u%c", ids[i] - first,
			i % 16 == 15 || i == n - 1 ? '\n' : ' ');
}

static void check_golden(
	const char *vocab, const char *pattern, const char *tokens, bool special)
{
	struct str text = {0}, want = {0}, got = {0};
	struct tokenizer t;
	struct tokenizer_source from = {"bpe", vocab, pattern, special};
	uint32_t *ids;
	assert_int_equal(file_read(golden("text"), 1 << 20, &text, &e), 0);
	assert_int_equal(file_read(golden(tokens), 1 << 20, &want, &e), 0);
	assert_int_equal(tokenizer_make(&t, &from, &e), 0);
	int64_t n = tokenizer_encode_all(&t, text.s, (int64_t)text.len, &ids, &e);
	put_ids(&got, ids, n, 0);
	assert_string_equal(got.s, want.s);
	str_clear(&got);
	for (int64_t i = 0; i < n; i++)
		tokenizer_decode(&t, ids[i], &got);
	assert_string_equal(got.s, text.s);
	tokenizer_release(&t);
	free(ids);
	str_free(&text);
	str_free(&want);
	str_free(&got);
}

/* Of the ranks a tekken.json, in which three special tokens are before them. */
TEST_AFTER(begin, tekken)
{
	struct str ranks = {0}, json = {0}, want = {0};
	long long n = 0;
	assert_int_equal(file_read(vocabulary_ranks(), 1 << 20, &ranks, &e), 0);
	for (char *line = strtok(ranks.s, "\n"); line; line = strtok(NULL, "\n"), n++)
		str_printf(&json,
			"%s{\"rank\": %lld, \"token_str\": \"\\u0000\", \"token_bytes\": \"%.*s\"}",
			n ? "," : "", n, (int)strcspn(line, " "), line);
	/* (one more than the model has) */
	str_printf(&json, ",{\"rank\": %lld}], \"config\": {\"pattern\": \"", n);
	for (const char *p = split_pattern_find("tekken")->regex; *p; p++)
		str_printf(&json, *p == '\\' ? "\\\\" : "%c", *p);
	str_printf(&json,
		"\", \"default_vocab_size\": %lld, \"default_num_special_tokens\": 3}}",
		n + 3);
	struct str text = {0};
	str_printf(&text,
		"{\"special_tokens\": [{\"rank\": 0, \"token_str\": \"<unk>\"}, {\"rank\": 1, \"token_str\": \"zq\"}, {\"rank\": 2, \"token_str\": \"</s>\"}], \"vocab\": [%s",
		json.s);
	struct vocab v;
	struct bpe_rules r;
	const char *path = test_file("tekken.json", text.s);
	assert_int_equal(bpe_read(&v, &r, path, NULL, NULL, &e), 0);
	assert_string_equal(r.pattern, "tekken");
	assert_int_equal(r.end_of_text, 2); /* </s> */
	struct bpe *b = bpe_open(&v, &r, &e);
	struct encoder *s = encoder_open(b, &e);
	str_clear(&text);
	assert_int_equal(file_read(golden("text"), 1 << 20, &text, &e), 0);
	assert_int_equal(file_read(golden("tekken.tokens"), 1 << 20, &want, &e), 0);
	uint32_t *ids = xcalloc(text.len, sizeof(*ids));
	int64_t n_ids = 0;
	encoder_encode(
		s, text.s, (int64_t)text.len, true, ids, (int64_t)text.len, &n_ids, &e);
	str_clear(&json);
	put_ids(&json, ids, n_ids, 3);
	assert_string_equal(json.s, want.s);
	/* no merge makes a special token */
	encoder_encode(s, "zq", 2, true, ids, 2, &n_ids, &e);
	assert_int_equal(n_ids, 2);
	encoder_close(s);
	bpe_close(b);
	vocab_release(&v);
	bpe_rules_release(&r);
	free(ids);
	str_free(&text);
	str_free(&ranks);
	str_free(&json);
	str_free(&want);
}

/* Character 0 in the text of an added token. */
TEST_AFTER(begin, token_with_nul)
{
	struct vocab v;
	struct bpe_rules r;
	const char *path = test_file("tokenizer.json",
		"{\"added_tokens\": [{\"id\": 3, \"content\": \"a\\u0000b\"}], "
		"\"pre_tokenizer\": {\"type\": \"ByteLevel\"}, \"model\": {\"vocab\": {\"a\": 0, "
		"\"b\": 1, \"ab\": 2, \"a\\u0000b\": 3}, \"merges\": [\"a b\"]}}");
	if (bpe_read(&v, &r, path, NULL, NULL, &e))
		fail_msg("%s", e.msg);
	assert_int_equal(v.offset[4] - v.offset[3], 3);
	assert_memory_equal(v.bytes + v.offset[3], "a\0b", 3);
	vocab_release(&v);
	bpe_rules_release(&r);
}

TEST_AFTER(begin, others_tokens)
{
	for (const struct split_pattern *p = split_patterns; p->name; p++) {
		char name[32];
		snprintf(name, sizeof(name), "%s.tokens", p->name);
		check_golden(vocabulary_ranks(), p->name, name, false);
		if (strcmp(p->name, "cl100k"))
			check_golden(vocabulary_merges(), p->name, name, false);
	}
	check_golden("tests/golden/tokens/tokenizer.json", NULL, "added.tokens", false);
	check_golden("tests/golden/tokens/tokenizer.json", NULL, "special.tokens", true);
}

/* From a shard or another rank, a tokenizer encodes as the first one. */
TEST_AFTER(begin, tokenizers_are_kept)
{
	const char *const files[] = {"tests/golden/tokens/tokenizer.json",
		vocabulary_merges(), vocabulary_ranks()};
	static const char text[] = "It's the first day<tool>b <|endoftext|>";
	for (size_t k = 0; k < ARRAY_LEN(files); k++) {
		struct tokenizer t, packed, filed;
		struct tokenizer_source from = {
			"bpe", files[k], k ? "gpt2" : NULL, false};
		struct str bytes = {0};
		struct h5 *f;
		uint32_t *ids[3];
		int64_t n[3];
		assert_int_equal(tokenizer_make(&t, &from, &e), 0);
		tokenizer_pack(&t, &bytes);
		assert_int_equal(tokenizer_unpack(&packed, &bytes, &e), 0);
		assert_int_equal(h5_create(&f, test_path("t.h5"), &e), 0);
		assert_int_equal(tokenizer_write(&t, f, &e), 0);
		assert_int_equal(tokenizer_read(&filed, f, &e), 0);
		assert_int_equal(h5_close(f, &e), 0);
		const struct tokenizer *all[] = {&t, &packed, &filed};
		for (int i = 0; i < 3; i++) {
			assert_true(tokenizer_equal(&t, all[i]));
			assert_int_equal(tokenizer_end_of_text(all[i]),
				k < 2 ? t.vocab.n - (k ? 1 : 3) : -1);
			n[i] = tokenizer_encode_all(
				all[i], text, sizeof(text) - 1, &ids[i], &e);
			assert_int_equal(n[i], n[0]);
			assert_memory_equal(ids[i], ids[0], (size_t)n[0] * sizeof(**ids));
		}
		for (int i = 0; i < 3; i++)
			free(ids[i]);
		tokenizer_release(&t);
		tokenizer_release(&packed);
		tokenizer_release(&filed);
		str_free(&bytes);
	}
}

/* ---- files that are wrong -------------------------------------------------------- */

/* Reads a file, or a folder when `beside` is the vocabulary of merges. said NULL: it is taken, but cannot
 * encode a byte that it lacks. */
static void refused(
	const char *name, const char *text, const char *beside, const char *said)
{
	struct vocab v;
	struct bpe_rules r;
	e = (struct err){0};
	const char *path = test_file(name, text);
	if (beside)
		test_file("vocab.json", beside);
	int rc = bpe_read(&v, &r, path, NULL, "gpt2", &e);
	struct bpe *b = rc ? NULL : bpe_open(&v, &r, &e);
	if (!said) {
		int64_t n;
		assert_non_null(b);
		struct encoder *s = encoder_open(b, &e);
		assert_int_equal(encoder_encode(s, "ab", 2, true, NULL, 2, &n, &e), 2);
		assert_int_equal(encoder_encode(s, "abc", 3, true, NULL, 3, &n, &e), -1);
		encoder_close(s);
		bpe_close(b);
		b = NULL;
		said = "no token for the byte 0x63";
	}
	if (b || e.code != EX_DATAERR || !strstr(e.msg, said))
		fail_msg("%s: not '%s' but '%s'", text, said, e.msg);
	if (!rc) {
		vocab_release(&v);
		bpe_rules_release(&r);
	}
}

TEST_AFTER(begin, bad_rank_files)
{
	refused("r", "YQ== 0\nYg== 2\n", NULL,
		"line 2: the rank of the token is 2, not 1");
	refused("r", "YQ== 0\nYg== 0\n", NULL,
		"line 2: the rank of the token is 0, not 1");
	refused("r", "YQ== 0\nYQ== 1\n", NULL, "tokens 0 and 1 have the same bytes");
	refused("r", "YQ== 0\nY 1\n", NULL, "line 2: the token is not base64");
	refused("r", "YQ== 0\nYR== 1\n", NULL, "line 2: the token is not base64");
	refused("r", "YQ== 0\n 1\n", NULL, "line 2: the token is not base64");
	refused("r", "YQ== 0\nYg== 1x\n", NULL, "line 2: '1x' is not a rank");
	refused("r", "YQ== 0\nYg==\n", NULL, "line 2: the line is not a base64 token");
	refused("r", "YQ== 0\nYg== 99999999999999999999\n", NULL,
		"is not a base64 token");
	refused("r", "YQ== 0\nYg== 1\n", NULL, NULL);
}

TEST_AFTER(begin, bad_merges)
{
	static const char vocab[] = "{\"a\": 0, \"b\": 1, \"ab\": 2}";
	refused("merges.txt", "#version: 0.2\na b\nab b\n", vocab,
		"line 3: the merged token 'abb' is not in the vocabulary");
	refused("merges.txt", "a c\n", vocab, "line 1: 'c' is not in the vocabulary");
	refused("merges.txt", "a b\nab\n", vocab, "line 2: a merge must be two tokens");
	refused("merges.txt", "a b\na b c\n", vocab,
		"line 2: a merge must be two tokens");
	refused("merges.txt", "#version: 0.2\n", vocab, "has no merges");
	refused("merges.txt", "a b\n", "{\"a\": 0, \"b\": 1, \"ab\": 3}",
		"no token has the id 2");
	refused("merges.txt", "a b\n", "{\"a\": 0, \"b\": 1, \"ab\": 1}",
		"two tokens have the id 1");
	refused("merges.txt", "a b\n", "{\"a\": 0, \"b\": 1,\n\"a\": 2}",
		"line 2: duplicate");
	refused("merges.txt", "a b\n", "{\"a\": 0, \"b\": -1}",
		"token 'b' has no valid id");
	refused("merges.txt", "a b\n", "{\"a\": 0, \"b\": \"1\"}", "'b' has no valid id");
	refused("merges.txt", "a b\n", "{\"a\": 0, \"日\": 1}",
		"GPT-2's characters for bytes");
	refused("merges.txt", "a b\n", "[]", "is not a JSON object");
	refused("merges.txt", "a b\n", "{\"a\": 0,", "vocab.json: line 1");
	refused("merges.txt", "a b\n", vocab, NULL);
}

/* A tokenizer.json with these parts. */
static void refused_json(
	const char *head, const char *pre, const char *model, const char *said)
{
	struct str text = {0};
	str_printf(&text,
		"{%s \"pre_tokenizer\": {%s}, \"model\": {\"vocab\": {\"a\": 0, \"b\": 1, "
		"\"ab\": 2}, %s}}",
		head, pre, model);
	refused("tokenizer.json", text.s, NULL, said);
	str_free(&text);
}

TEST_AFTER(begin, bad_tokenizer_json)
{
	static const char bytes[] = "\"type\": \"ByteLevel\"";
	static const char merges[] = "\"merges\": [\"a b\"]";
	refused("tokenizer.json", "{}", NULL, "has no model");
	refused("tokenizer.json", "{\"model\": {\"type\": \"Unigram\"}}", NULL,
		"'Unigram'");
	refused_json("\"normalizer\": {\"type\": \"Lowercase\"},", bytes, merges,
		"the normalizer 'Lowercase' is not supported");
	refused_json(
		"", "\"type\": \"Whitespace\"", merges, "pre-tokenizer 'Whitespace'");
	refused_json("", "\"type\": \"ByteLevel\", \"add_prefix_space\": true", merges,
		"'add_prefix_space' is not supported");
	refused_json("", "\"type\": \"ByteLevel\", \"use_regex\": false", merges,
		"'ByteLevel without a pattern'");
	refused_json("", "\"type\": \"Sequence\", \"pretokenizers\": []", merges,
		"without ByteLevel");
	refused_json(
		"", bytes, "\"byte_fallback\": true, \"merges\": []", "byte_fallback");
	refused_json("", bytes, "\"merges\": [[\"a\"]]",
		"merge 1: a merge must be two tokens");
	refused_json("", bytes, "\"merges\": [[\"a\", \"b\", \"a\"]]",
		"a merge must be two tokens");
	refused_json("", bytes, "\"merges\": [\"a b\", [\"b\", \"a\"]]",
		"merge 2: the merged token 'ba' is not in");
	refused_json("", bytes, "\"merges\": [3]", "merge 1: a merge must be two tokens");
	refused_json("", bytes, "\"merges\": []", "has no merges");
	refused_json(
		"\"added_tokens\": [{\"id\": 3, \"content\": \"x\", \"lstrip\": true}],",
		bytes, merges, "'x': lstrip, rstrip or single_word of an added token");
	refused_json("\"added_tokens\": [{\"id\": 2, \"content\": \"x\"}],", bytes,
		merges, "two tokens have the id 2");
	refused_json("\"added_tokens\": [{\"id\": 3, \"content\": \"ab\"}],", bytes,
		merges, "'ab' has another id in the model's vocabulary");
	/* an id that no token has, behind those of the model */
	refused_json("\"added_tokens\": [{\"id\": 9, \"content\": \"x\"}],", bytes,
		merges, NULL);
	refused_json("\"added_tokens\": [{\"id\": 3}],", bytes, merges, "has no content");
}

/* ---- patterns -------------------------------------------------------------------- */

TEST_AFTER(begin, bad_patterns)
{
	static const struct {
		const char *regex, *said;
	} bad[] = {
		{"(", "character 1: missing closing parenthesis"},
		{"(?<=a)b", "looks at the text before a word"},
		{"\\bx", "looks at the text before a word"},
		{"^x", "looks at the text before a word"},
		{"a\\K", "looks at the text before a word"},
		{"[\\]^]|^x", "looks at the text before a word"},
		{"a\nb", "has a line break"},
	};
	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		e = (struct err){0};
		assert_null(splitter_open(bad[i].regex, &e));
		assert_int_equal(e.code, EX_DATAERR);
		assert_non_null(strstr(e.msg, bad[i].said));
	}
}

/* What a pattern does not match is a word, too, and so is a byte that is not UTF-8. */
TEST_AFTER(begin, between_matches)
{
	static const char text[] = "ab--cd\xff"
				   "e\xc3";
	uint32_t ends[16];
	struct splitter *s = splitter_open("[\\]^]|\\p{^L}", &e);
	assert_non_null(s);
	splitter_close(s);
	s = splitter_open("[a-z]+", &e);
	assert_int_equal(split_words(s, text, sizeof(text) - 1, true, ends, 16, &e), 6);
	static const uint32_t want[] = {2, 4, 6, 7, 8, 9};
	assert_memory_equal(ends, want, sizeof(want));
	/* if more text follows, the last match may be longer, or none */
	assert_int_equal(split_words(s, "ab--cd", 6, false, ends, 16, &e), 1);
	splitter_close(s);
}

/* The names in BPE_MODELS are the rows of the table, and each has a pattern. */
TEST_AFTER(begin, models)
{
#define NAME(name) #name,
	static const char *const names[] = {BPE_MODELS(NAME)};
	for (size_t i = 0; i < ARRAY_LEN(names); i++) {
		const struct bpe_model *m = bpe_model_find(names[i]);
		assert_ptr_equal(m, &bpe_models[i]);
		assert_non_null(split_pattern_find(m->pattern));
	}
}
