/* token: regular expressions split a text of all characters as Hugging Face's tokenizers does
 * (tests/golden/make_unicode.py), whatever version of Unicode PCRE2 knows. */
#include "base/file.h"
#include "tests/support/support.h"
#include "token/vocab_internal.h"

#include <stdlib.h>
#include <string.h>

enum { MOST = 1 << 20 };

static struct err e;
static struct str text;
static uint32_t number[4 * MOST]; /* of the character that ends before a byte */

static void put(uint32_t c, uint32_t *n)
{
	uint8_t bytes[4];
	str_add(&text, bytes, (size_t)utf8_encode(c, bytes));
	number[text.len] = ++*n;
}

static int make_text(void **state)
{
	(void)state;
	uint32_t n = 0;
	for (uint32_t c = 1; c < 0xe0200; c++) {
		c = c == 0xd800 ? 0xe000 : c == 0x32400 ? 0xe0000 : c;
		put(c, &n);
		if (c % 3 == 0)
			put('a', &n);
		if (c % 7 == 0)
			put(' ', &n);
	}
	return 0;
}

static void check(const char *regex, long long n_words, uint64_t squares)
{
	static uint32_t ends[MOST];
	struct str own = {0};
	uint64_t sum = 0;
	assert_int_equal(regex_of_oniguruma(regex, &own, &e), 0);
	struct splitter *s = splitter_open(own.s, &e);
	if (!s)
		fail_msg("%s: %s", own.s, e.msg);
	int n = split_words(s, text.s, (int64_t)text.len, true, ends, MOST, &e);
	for (int i = 0; i < n; i++)
		sum += (uint64_t)number[ends[i]] * number[ends[i]];
	if (n != n_words || sum != squares)
		fail_msg("%s: %d words, and not %lld, or at other places", regex, n,
			n_words);
	splitter_close(s);
	str_free(&own);
}

TEST_AFTER(make_text, all_characters)
{
	struct str lines = {0};
	char *line, *next;
	assert_int_equal(file_read("tests/golden/tokens/unicode", MOST, &lines, &e), 0);
	for (next = lines.s; *(line = next);) {
		char *end = strchr(line, '\t');
		*end++ = '\0';
		long long n = strtoll(end, &end, 10);
		check(line, n, strtoull(end, &next, 10));
		next++;
	}
	str_free(&lines);
}
