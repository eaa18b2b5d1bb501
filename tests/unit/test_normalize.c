/* token: normalization, and texts that are encoded with it, as Hugging Face's tokenizers does
 * (tests/golden/make_normal.py); in one piece and in small ones. */
#include "base/file.h"
#include "tests/support/support.h"
#include "token/bpe_internal.h"
#include "token/vocab_internal.h"

#include <stdlib.h>
#include <string.h>

enum { MOST = 1 << 20, N_COLUMNS = 5 };

static struct err e;
static struct str golden;
static const char *golden_next;

static int begin(void **state)
{
	(void)state;
	e = (struct err){0};
	str_clear(&golden);
	assert_int_equal(file_read("tests/golden/tokens/normal", MOST, &golden, &e), 0);
	golden_next = golden.s;
	return 0;
}

static void put_hash(uint64_t *hash, uint32_t x)
{
	*hash = *hash * 31 + x + 1;
}

/* ---- all characters ------------------------------------------------------------------ */

static void put(struct str *text, uint32_t c)
{
	uint8_t bytes[4];
	str_add(text, bytes, (size_t)utf8_encode(c, bytes));
}

/* Of the normal form of a character, or of one between marks. */
static void put_normal_hash(
	enum normal_form form, uint32_t c, bool marked, uint64_t *hash)
{
	static struct normalized x;
	static struct str text;
	const uint32_t all[] = {'a', 0x301, c, 0x323, c, 0x301};
	uint32_t code;
	str_clear(&text);
	for (size_t i = 0; i < ARRAY_LEN(all); i++)
		if (marked || i == 2)
			put(&text, all[i]);
	normalized_clear(&x);
	assert_int_equal(normalize(form, text.s, (int64_t)text.len, &x, &e), 0);
	if (is_normalized(normal_table(form), text.s, (int64_t)text.len))
		assert_int_equal(x.changes.n, 0);
	for (size_t at = 0; at < x.text.len;) {
		at += (size_t)utf8_decode(
			x.text.s + at, (int64_t)(x.text.len - at), &code);
		put_hash(hash, code);
	}
}

TEST_AFTER(begin, all_characters)
{
	for (int form = NORMAL_NFC; form < N_NORMAL_FORMS; form++) {
		uint64_t lone = 0, marked = 0;
		for (uint32_t c = 1; c < CODE_POINTS; c++) {
			c = c == 0xd800 ? 0xe000 : c;
			put_normal_hash((enum normal_form)form, c, false, &lone);
			put_normal_hash((enum normal_form)form, c, true, &marked);
		}
		char name[8];
		unsigned long long want[2];
		int n;
		assert_int_equal(sscanf(golden_next, "%7s %llx %llx%n", name, &want[0],
					 &want[1], &n),
			3);
		assert_string_equal(name, normal_forms[form]);
		assert_true(lone == want[0] && marked == want[1]);
		golden_next += n + 1;
	}
}

/* ---- tokens -------------------------------------------------------------------------- */

struct subject {
	struct vocab v;
	struct bpe_rules r;
	struct bpe *b;
	struct encoder *s;
};

/* qwen.json with another normalizer; NULL: as it is. The golden tokens of NFD and NFKD are without the token
 * that is found in normalized text. */
static const char *write_form(const char *normalizer, bool decomposes)
{
	json_t *j = json_load_file("tests/golden/tokens/qwen.json", 0, NULL);
	json_t *added = json_object_get(j, "added_tokens");
	if (decomposes)
		json_array_remove(added, json_array_size(added) - 1);
	if (normalizer)
		json_object_set_new(j, "normalizer", json_loads(normalizer, 0, NULL));
	char *text = json_dumps(j, 0);
	const char *path = test_file("tokenizer.json", text);
	free(text);
	json_decref(j);
	return path;
}

static void subject_open(struct subject *x, const char *normalizer, bool decomposes)
{
	if (bpe_read(&x->v, &x->r, write_form(normalizer, decomposes), NULL, NULL, &e) ||
		!(x->b = bpe_open(&x->v, &x->r, &e)) || !(x->s = encoder_open(x->b, &e)))
		fail_msg("%s", e.msg);
}

static void subject_close(struct subject *x)
{
	encoder_close(x->s);
	bpe_close(x->b);
	vocab_release(&x->v);
	bpe_rules_release(&x->r);
}

/* The tokens of a text in pieces of so many bytes, and how many of them. */
static int64_t encode(
	struct subject *x, const char *text, int64_t all, int64_t piece, uint32_t *ids)
{
	int64_t n_ids = 0, now = piece, used, n;
	for (int64_t at = 0; at < all; at += used) {
		now = min64(now, all - at);
		used = encoder_encode(x->s, text + at, now, at + now == all, ids + n_ids,
			now * normal_growth(x->r.normalizer), &n, &e);
		assert_true(used >= 0 && (used || at + now < all));
		n_ids += n;
		now = used ? piece : now + piece;
	}
	return n_ids;
}

static uint64_t hash_tokens(struct subject *x, const char *text, int64_t n, int64_t piece)
{
	uint32_t *ids = xcalloc((size_t)n * 11 + 1, sizeof(*ids));
	uint64_t hash = 0;
	for (int64_t i = 0, n_ids = encode(x, text, n, piece, ids); i < n_ids; i++)
		put_hash(&hash, ids[i]);
	free(ids);
	return hash;
}

TEST_AFTER(begin, all_texts)
{
	struct subject x[N_COLUMNS];
	int n_texts = 0;
	for (int i = 0; i < N_COLUMNS; i++) {
		struct str normalizer = {0};
		str_printf(&normalizer, "{\"type\": \"%s\"}", normal_forms[1 + i % 4]);
		subject_open(&x[i], i < 4 ? normalizer.s : NULL, i == 1 || i == 3);
		encoder_allow_special(x[i].s, i == 4);
		str_free(&normalizer);
	}
	for (const char *line = strchr(golden_next, '"'); *line; n_texts++) {
		json_error_t why;
		json_t *j =
			json_loads(line, JSON_DECODE_ANY | JSON_DISABLE_EOF_CHECK, &why);
		const char *text = json_string_value(j);
		char *end = strchr(line, '\t');
		int64_t n = (int64_t)strlen(text);
		for (int i = 0; i < N_COLUMNS; i++) {
			uint64_t want = strtoull(end, &end, 16);
			for (int64_t piece = n; piece; piece /= 2)
				if (hash_tokens(&x[i], text, n, piece) != want)
					fail_msg("text %d, column %d, in pieces of %d",
						n_texts, i, (int)piece);
		}
		line = end + 1;
		json_decref(j);
	}
	assert_true(n_texts > 150);
	for (int i = 0; i < N_COLUMNS; i++)
		subject_close(&x[i]);
}

/* Bytes that are not UTF-8 stay, and marks behind them are those of no character. */
TEST_AFTER(begin, invalid_bytes)
{
	static const char text[] = "e\xcc\x81\xff\xcc\x81\xcc\xa7 e\xcc x\xcc";
	static const char want[] = "\xc3\xa9\xff\xcc\xa7\xcc\x81 e\xcc x\xcc";
	struct normalized x = {0};
	uint32_t ids[2][64];
	struct subject s;
	assert_int_equal(normalize(NORMAL_NFC, text, (int64_t)strlen(text), &x, &e), 0);
	assert_string_equal(x.text.s, want);
	normalized_release(&x);
	subject_open(&s, NULL, false);
	int64_t n = encode(&s, want, (int64_t)strlen(want), 64, ids[0]);
	for (int64_t piece = (int64_t)strlen(text); piece; piece--) {
		assert_int_equal(
			encode(&s, text, (int64_t)strlen(text), piece, ids[1]), n);
		assert_memory_equal(ids[0], ids[1], (size_t)n * sizeof(ids[0][0]));
	}
	subject_close(&s);
}

/* ---- where text changes ---------------------------------------------------------------- */

TEST_AFTER(begin, changes)
{
	/* with a token that is found first, behind which a mark has no character */
	static const char text[] =
		"a e\xcc\x81<tool_call>\xcc\x81\xcc\xa7 \xe2\x84\xab.x\xcd\x80";
	static const struct text_change want[] = {
		{12, 15, 12, 14}, {26, 30, 25, 29}, {31, 34, 30, 32}, {35, 38, 33, 36}};
	struct text_changes got = {0};
	struct subject x;
	subject_open(&x, NULL, false);
	assert_int_equal(
		encoder_find_changes(x.s, text, (int64_t)strlen(text), 10, &got, &e), 0);
	assert_int_equal(got.n, ARRAY_LEN(want));
	assert_memory_equal(got.v, want, sizeof(want));
	assert_int_equal(encoder_find_changes(x.s, "ab\xc3\xa9", 4, 38, &got, &e), 0);
	assert_int_equal(got.n, ARRAY_LEN(want));
	assert_int_equal(encoder_find_changes(x.s, "\xe2\x84\xab", 3, 42, &got, &e), 0);
	assert_int_equal(got.v[4].to, 40);
	assert_int_equal(normalized_origin(&got, 11), 11);
	assert_int_equal(normalized_origin(&got, 12), 12);
	assert_int_equal(normalized_origin(&got, 13), -1);
	assert_int_equal(normalized_origin(&got, 14), 15);
	assert_int_equal(normalized_origin(&got, 33), 35);
	free(got.v);
	subject_close(&x);
}

/* Marks without an end take no time of the square of their number, and no memory. */
TEST_AFTER(begin, many_marks)
{
	enum { N = 1 << 21 };
	struct subject x;
	struct str text = {0};
	int64_t n;
	subject_open(&x, NULL, false);
	str_putc(&text, 'x');
	for (int i = 0; i < N - 1; i++)
		str_puts(&text, i % 2 ? "\xcc\xa7" : "\xcc\x8a");
	str_puts(&text, "x");
	assert_int_equal(encoder_encode(x.s, text.s, (int64_t)text.len, true, NULL,
				 (int64_t)text.len, &n, &e),
		text.len);
	text.len--;
	for (int i = 0; i < 4; i++) /* (it need not see the end) */
		str_puts(&text, "\xcc\x8a\xcc\xa7");
	assert_int_equal(encoder_encode(x.s, text.s, (int64_t)text.len, false, NULL,
				 (int64_t)text.len, &n, &e),
		-1);
	assert_non_null(strstr(e.msg, "bytes of marks that combine with one character"));
	str_free(&text);
	subject_close(&x);
}

/* Words end within what a character becomes, and nowhere else. */
TEST_AFTER(begin, no_place_to_cut)
{
	struct subject x;
	struct str text = {0};
	static uint32_t ids[2][4096];
	subject_open(&x, NULL, false);
	for (int i = 0; i < 200; i++)
		str_puts(&text, "\xe0\xa5\x98"); /* U+0958 */
	int64_t all = (int64_t)text.len, n = encode(&x, text.s, all, all, ids[0]);
	assert_int_equal(encode(&x, text.s, all, 50, ids[1]), n);
	assert_memory_equal(ids[0], ids[1], (size_t)n * sizeof(ids[0][0]));
	/* up to the last place before them */
	text.s[0] = 'a', text.s[1] = ' ', text.s[2] = 'b';
	assert_int_equal(
		encoder_encode(x.s, text.s, all, false, ids[0], 4096, &n, &e), 1);
	assert_int_equal(n, 1);
	/* nor need bytes that are not UTF-8 have one before them */
	memset(text.s, 0x80, (size_t)all);
	assert_int_equal(
		find_normal_cut(normal_table(NORMAL_NFC), text.s, all, &e), all - 1);
	str_free(&text);
	subject_close(&x);
}

/* ---- files ------------------------------------------------------------------------------ */

TEST_AFTER(begin, normalizers)
{
#define SEQUENCE(x) "{\"type\": \"Sequence\", \"normalizers\": [" x "]}"
#define FORM(x) "{\"type\": \"" x "\"}"
	static const struct {
		const char *normalizer;
		enum normal_form form;
		const char *said;
	} cases[] = {
		{FORM("NFC"), NORMAL_NFC, NULL},
		{SEQUENCE(""), NORMAL_NONE, NULL},
		{SEQUENCE(FORM("NFD") "," FORM("NFC")), NORMAL_NFC, NULL},
		{SEQUENCE(FORM("NFKD") "," SEQUENCE(FORM("NFC"))), NORMAL_NFKC, NULL},
		{FORM("Lowercase"), 0, "the normalizer 'Lowercase' is not supported"},
		{SEQUENCE(FORM("NFC") "," FORM("Strip")), 0,
			"the normalizer 'Strip' is not supported"},
		{FORM("none"), 0, "the normalizer 'none' is not supported"},
		{FORM("NFD"), NORMAL_NFD, NULL},
	};
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		struct vocab v;
		struct bpe_rules r;
		struct bpe *b = NULL;
		const char *path = write_form(cases[i].normalizer, false);
		bool read = !bpe_read(&v, &r, path, NULL, NULL, &e);
		if (read && !cases[i].said)
			assert_int_equal(r.normalizer, cases[i].form);
		if (read && (b = bpe_open(&v, &r, &e)))
			bpe_close(b);
		assert_true(!b == (cases[i].said != NULL));
		if (cases[i].said && !strstr(e.msg, cases[i].said))
			fail_msg("%s: %s", cases[i].normalizer, e.msg);
		if (read) {
			vocab_release(&v);
			bpe_rules_release(&r);
		}
		e = (struct err){0};
	}
}

/* Added tokens that are found in normalized text, and whose own is not normal. */
TEST_AFTER(begin, added_in_other_forms)
{
	static const struct {
		const char *content;
		const char *text; /* has it once; NULL: refused */
	} cases[] = {{"\xef\xbd\x9cm\xef\xbd\x9c", "a|m|b"}, /* full-width */
		{"\xef\xbd\x9cm\xef\xbd\x9c", "a\xef\xbd\x9cm|b"},
		{"e\xcc\x81!", "\xc3\xa9!"},
		{"\xef\xbd\x81", NULL} /* a byte of the vocabulary */,
		{"<\xef\xbd\x9ctwice|>", NULL}};
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		json_t *j = json_load_file(write_form(FORM("NFKC"), false), 0, NULL);
		json_t *added = json_object_get(j, "added_tokens");
		const char *const contents[] = {cases[i].content, "<|twice|>"};
		for (int k = 0; k < 2; k++)
			json_array_append_new(added,
				json_pack("{s:i,s:s,s:b,s:b}", "id", 406 + k, "content",
					contents[k], "normalized", 1, "special", 0));
		char *text = json_dumps(j, 0);
		const char *path = test_file("forms.json", text);
		struct subject x;
		uint32_t ids[64];
		bool read = !bpe_read(&x.v, &x.r, path, NULL, NULL, &e);
		free(text);
		json_decref(j);
		assert_int_equal(read, cases[i].text != NULL);
		if (!read) {
			assert_non_null(strstr(
				e.msg, "has the normalized text of another token"));
			e = (struct err){0};
			continue;
		}
		assert_non_null(x.b = bpe_open(&x.v, &x.r, &e));
		x.s = encoder_open(x.b, &e);
		int64_t len = (int64_t)strlen(cases[i].text),
			n = encode(&x, cases[i].text, len, len, ids);
		int found = 0;
		for (int64_t k = 0; k < n; k++)
			found += ids[k] == 406;
		assert_int_equal(found, 1);
		subject_close(&x);
	}
}

/* Merges do not say what a model has beside them. */
TEST_AFTER(begin, model_of_merges)
{
	const struct bpe_model model = {.name = "small",
		.pattern = "qwen2",
		.n_ranked = 257,
		.special = {{"<|end|>", 258}},
		.normalizer = NORMAL_NFC};
	uint32_t code[N_BYTES];
	struct str vocab = {0};
	struct vocab v;
	struct bpe_rules r;
	byte_level_codes(code);
	for (int b = 0; b < N_BYTES; b++) {
		str_puts(&vocab, b ? "\"" : "{\"");
		str_puts(&vocab, b == '"' || b == '\\' ? "\\" : "");
		put(&vocab, code[b]);
		str_printf(&vocab, "\": %d, ", b);
	}
	str_puts(&vocab, "\"ab\": 256}");
	test_file("vocab.json", vocab.s);
	const char *path = test_file("merges.txt", "a b\n");
	assert_int_equal(bpe_read(&v, &r, path, &model, NULL, &e), 0);
	assert_true(v.n == 259 && v.offset[258] == v.offset[257]);
	assert_memory_equal(v.bytes + v.offset[258], "<|end|>", 7);
	assert_true(r.n_added == 1 && r.added[0].id == 258);
	assert_int_equal(r.added[0].flags, BPE_SPECIAL);
	assert_int_equal(r.normalizer, NORMAL_NFC);
	vocab_release(&v);
	bpe_rules_release(&r);
	str_free(&vocab);
}
