/* token: what tokenizer.json says beside the vocabulary. tests/golden/check_tokenizer_json.py compares more
 * of it with Hugging Face's library. */
#include "tests/support/support.h"
#include "token/split_internal.h"
#include "token/vocab_internal.h"

#include <stdlib.h>
#include <string.h>

static struct err e;

static int begin(void **state)
{
	(void)state;
	e = (struct err){0};
	return 0;
}

/* ---- regular expressions ----------------------------------------------------------- */

/* The words that Oniguruma finds, with | between them. */
TEST_AFTER(begin, rewritten_expressions)
{
	static const struct {
		const char *regex, *text, *words;
	} cases[] = {
		{"\\p{N}{1,3}+", "a1234567b", "a|1234567|b"},
		{"\\p{N}{1,3}", "a1234567b", "a|123|456|7|b"},
		{"(?:ab){,2}", "ababab", "abab|ab"},
		{" ?[^(\\s|[.,!])]+", "ab.c,d (x y) z)", "ab|.|c|,|d| (|x| y|)| z|)"},
		{"[a[-]c]+", "a-bc", "a-|b|c"},
		{"[\\[\\]^a]+", "[]^ab", "[]^a|b"},
		{"x$|y", "x\nxy y", "x|\nx|y| |y"},
		{"\\h+", "xyz09 af", "xyz|09| |af"},
		{"\\v", "a\x0b\nb", "a|\x0b|\nb"},
		{"\\s+", "a\xe1\xa0\x8e\x62\xc2\x85\x63\xe2\x80\xa8\x64\x1c",
			"a\xe1\xa0\x8e\x62|\xc2\x85|c|\xe2\x80\xa8|d\x1c"},
		{"\\w+", "\xc3\xa9_a-b\xcc\x81", "\xc3\xa9_a|-|b\xcc\x81"},
		{"[\\w]+|\\W", "a_ .", "a_| |."},
		{"\\d", "1\xd9\xa3", "1|\xd9\xa3"},
		{"[\r\n]", "a\nb", "a|\n|b"},
		{"\\p{Han}+|\\p{^L}", "\xe4\xbd\xa0\xe3\x80\x81\x61 b",
			"\xe4\xbd\xa0|\xe3\x80\x81|a| |b"},
		{"(?i:ab)+?(?=c)|(?>x|xy)", "aBABcxy", "aBAB|c|x|y"},
	};
	uint32_t ends[32];
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		struct str regex = {0}, words = {0};
		const char *text = cases[i].text;
		int n = -1;
		if (regex_of_oniguruma(cases[i].regex, &regex, &e))
			fail_msg("%s: %s", cases[i].regex, e.msg);
		struct splitter *s = splitter_open(regex.s, &e);
		if (s)
			n = split_words(
				s, text, (int64_t)strlen(text), true, ends, 32, &e);
		for (int k = 0; k < n; k++) {
			uint32_t at = k ? ends[k - 1] : 0;
			str_puts(&words, k ? "|" : "");
			str_add(&words, text + at, ends[k] - at);
		}
		if (n < 0 || strcmp(words.s, cases[i].words) != 0)
			fail_msg("%s (%s): %s %s", cases[i].regex, regex.s, words.s,
				e.msg);
		splitter_close(s);
		str_free(&regex);
		str_free(&words);
	}
}

TEST_AFTER(begin, refused_expressions)
{
	static const struct {
		const char *regex, *said;
	} cases[] = {
		{"[a&&b]", "&& in a class is not supported"},
		{"[[:none:]]", "an unknown [:name:] in a class"},
		{"[a[^b]]", "[^ or [] in a class"},
		{"[]a]", "] as the first character of a class"},
		{"[a", "a class without ]"},
		{"[\\S]", "\\S, \\W or \\H in a class"},
		{"(?m:a.b)", "this kind of (? group"},
		{"(?#x)", "this kind of (? group"},
		{"(?", "this kind of (? group"},
		{"a(?i)b|c", "(?i) that is not at the beginning"},
		{"a{x}", "{ that is not an interval"},
		{"\\Qa", "\\Q is not supported"},
		{"(a)\\1", "\\1 is not supported"},
		{"\\pL", "\\p without {"},
		{"a\\", "\\ is not supported"},
	};
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		struct str regex = {0};
		e = (struct err){0};
		assert_int_equal(regex_of_oniguruma(cases[i].regex, &regex, &e), -1);
		if (e.code != EX_DATAERR || !strstr(e.msg, cases[i].said))
			fail_msg("%s: %s", cases[i].regex, e.msg);
		str_free(&regex);
	}
}

/* ---- whole files ------------------------------------------------------------------- */

/* A file with the 256 bytes, some more tokens from 256 on, and these parts. */
static const char *write_json(const char *vocab, const char *merges, const char *parts)
{
	struct str text = {0};
	uint32_t n_others = 256;
	str_puts(&text, "{\"model\": {\"vocab\": {");
	for (uint32_t b = 0; b < 256; b++) {
		uint8_t c[4];
		bool printable = (b > 32 && b < 127) || (b > 160 && b != 173);
		int n = utf8_encode(printable ? b : n_others++, c);
		str_puts(&text, b == '"' || b == '\\' ? "\"\\" : "\"");
		str_add(&text, c, (size_t)n);
		str_printf(&text, "\": %u%s", b, b < 255 ? ", " : "");
	}
	str_printf(&text, "%s}, \"merges\": [%s]}, %s}", vocab, merges, parts);
	const char *path = test_file("tokenizer.json", text.s);
	str_free(&text);
	return path;
}

/* The tokens of a text, in pieces of n bytes. */
static void tokens_of(struct encoder *s, const char *text, int64_t piece, struct str *out)
{
	int64_t all = (int64_t)strlen(text), now = piece, used;
	uint32_t *ids = xcalloc((size_t)all + 1, sizeof(*ids));
	str_clear(out);
	for (int64_t at = 0; at < all; at += used) {
		int64_t n;
		now = min64(now, all - at);
		used = encoder_encode(
			s, text + at, now, at + now == all, ids, now, &n, &e);
		assert_true(used >= 0);
		for (int64_t i = 0; i < n; i++)
			str_printf(out, "%s%u", out->len ? " " : "", ids[i]);
		now = used ? piece : now + piece;
	}
	free(ids);
}

static void check_tokens(
	const char *path, bool special, const char *text, const char *want)
{
	struct vocab v;
	struct bpe_rules r;
	struct str got = {0};
	if (bpe_read(&v, &r, path, NULL, NULL, &e))
		fail_msg("%s", e.msg);
	struct bpe *b = bpe_open(&v, &r, &e);
	if (!b)
		fail_msg("%s", e.msg);
	struct encoder *s = encoder_open(b, &e);
	encoder_allow_special(s, special);
	for (int64_t piece = (int64_t)strlen(text); piece > 0; piece--) {
		tokens_of(s, text, piece, &got);
		assert_string_equal(got.s, want);
	}
	encoder_close(s);
	bpe_close(b);
	vocab_free(&v);
	bpe_rules_free(&r);
	str_free(&got);
}

#define LEVEL "{\"type\": \"ByteLevel\"}"
#define BYTES "{\"type\": \"ByteLevel\", \"use_regex\": false}"
#define SPLIT(regex)                                                     \
	"{\"type\": \"Split\", \"pattern\": {\"Regex\": \"" regex "\"}," \
	" \"behavior\": \"Isolated\", \"invert\": false}"
#define LIST(parts) \
	"\"pre_tokenizer\": {\"type\": \"Sequence\", \"pretokenizers\": [" parts "]}"

/* Each pattern splits what the one before has found. */
TEST_AFTER(begin, several_patterns)
{
	static const char vocab[] =
		", \"aa\": 256, \"11\": 257, \"!!\": 258, \"a1\": 259";
	static const char merges[] = "\"a a\", \"1 1\", \"! !\", \"a 1\"";
	static const char text[] = "aa11!!aa 1";
	/* gpt2: aa 11 !! aa " 1" */
	check_tokens(write_json(vocab, merges, LIST(LEVEL)), false, text,
		"256 257 258 256 32 49");
	check_tokens(
		write_json(vocab, merges,
			LIST("{\"type\": \"Digits\", \"individual_digits\": true}, " LEVEL)),
		false, text, "256 49 49 258 256 32 49");
	check_tokens(
		write_json(vocab, merges, LIST("{\"type\": \"Punctuation\"}, " LEVEL)),
		false, text, "256 257 33 33 256 32 49");
	check_tokens(
		write_json(vocab, merges, LIST(SPLIT("a") ", " SPLIT("..$") ", " BYTES)),
		false, text, "97 97 257 258 97 97 32 49");
	check_tokens(write_json(vocab, merges, LIST(SPLIT(".1") ", " BYTES)), false,
		"aa1!!a1", "97 259 258 259");
	check_tokens(
		write_json(vocab, merges,
			LIST("{\"type\": \"Split\", \"pattern\": {\"String\": \"a1\"}, "
			     "\"behavior\": \"Isolated\"}, " BYTES)),
		false, "aa1", "97 259");
}

/* Each pattern takes time for each byte of a text, so their number has a limit. */
TEST_AFTER(begin, too_many_patterns)
{
#define SPLIT_2 SPLIT("a") ", " SPLIT("b") ", "
	struct vocab v;
	struct bpe_rules r;
	check_tokens(write_json(", \"ab\": 256", "\"a b\"",
			     LIST(SPLIT_2 SPLIT_2 SPLIT_2 SPLIT_2 BYTES)),
		false, "ab", "97 98");
	const char *path = write_json(", \"ab\": 256", "\"a b\"",
		LIST(SPLIT_2 SPLIT_2 SPLIT_2 SPLIT_2 SPLIT("a") ", " BYTES));
	assert_int_equal(bpe_read(&v, &r, path, NULL, NULL, &e), 0);
	assert_null(bpe_open(&v, &r, &e));
	assert_int_equal(e.code, EX_DATAERR);
	assert_non_null(strstr(e.msg, "more than 8 patterns"));
	vocab_free(&v);
	bpe_rules_free(&r);
}

/* Tokens that are not normalized are found first, in all of the text. */
TEST_AFTER(begin, orders_of_added_tokens)
{
	static const char added[] =
		"\"added_tokens\": ["
		"{\"id\": 256, \"content\": \"ab\", \"normalized\": true},"
		"{\"id\": 257, \"content\": \"bc\", \"normalized\": false},"
		"{\"id\": 258, \"content\": \"abcd\", \"normalized\": true},"
		"{\"id\": 260, \"content\": \"<s>\", \"special\": true, \"lstrip\": true}],"
		"\"pre_tokenizer\": " LEVEL;
	static const char vocab[] = ", \"ab\": 256";
	struct vocab v;
	struct bpe_rules r;
	const char *path = write_json(vocab, "\"a b\"", added);
	check_tokens(path, false, "abcdab<s>", "97 257 100 256 60 115 62");
	/* a token that takes white space beside it cannot be found */
	assert_int_equal(bpe_read(&v, &r, path, NULL, NULL, &e), 0);
	assert_int_equal(v.n, 261);
	assert_int_equal(bpe_check_special(&v, &r, &e), -1);
	assert_non_null(strstr(e.msg, "'<s>' has lstrip, rstrip or single_word"));
	vocab_free(&v);
	bpe_rules_free(&r);
}

/* The expression of a model is known by its text. */
TEST_AFTER(begin, models_by_expression)
{
	struct vocab v;
	struct bpe_rules r;
	struct str parts = {0};
	json_t *regex = json_string(split_pattern_find("llama3")->regex);
	char *quoted = json_dumps(regex, JSON_ENCODE_ANY);
	str_printf(&parts,
		"\"pre_tokenizer\": {\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": "
		"\"Split\", \"pattern\": {\"Regex\": %s}, \"behavior\": \"Removed\", "
		"\"invert\": true}, " BYTES "]}",
		quoted);
	const char *path = write_json(", \"ab\": 256", "\"a b\"", parts.s);
	assert_int_equal(bpe_read(&v, &r, path, bpe_model_find("llama3"), NULL, &e), 0);
	assert_string_equal(r.pattern, "llama3");
	vocab_free(&v);
	bpe_rules_free(&r);
	assert_int_equal(bpe_read(&v, &r, path, bpe_model_find("o200k"), NULL, &e), -1);
	assert_non_null(
		strstr(e.msg, "not a vocabulary of o200k: its pattern is 'llama3'"));
	free(quoted);
	json_decref(regex);
	str_free(&parts);
}
