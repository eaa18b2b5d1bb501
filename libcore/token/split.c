/* Splitting of text into words: the table of patterns, and the choice of an implementation. */
#include "token/split_internal.h"

#include <ctype.h>

/* As OpenAI and Hugging Face write them. */
#define SUFFIX_I "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define O200K_UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define O200K_LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define PREFIX "[^\\r\\n\\p{L}\\p{N}]?"
#define SPACES "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

const struct split_pattern split_patterns[] = {
	{"gpt2",
		"'(?:[sdmt]|ll|ve|re)| ?\\p{L}++| ?\\p{N}++| ?[^\\s\\p{L}\\p{N}]++|"
		"\\s++$|\\s+(?!\\S)|\\s",
		{"'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|"
		 "\\s+(?!\\S)|\\s+",
			"'s|'t|'re|'ve|'m|'ll|'d| ?[\\p{L}]+| ?[\\p{N}]+| "
			"?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+",
			"'(?:[sdmt]|ll|ve|re)| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|"
			"\\s+(?!\\S)|\\s+"}},
	{"cl100k",
		"'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}++|\\p{N}{1,3}+| "
		"?[^\\s\\p{L}\\p{N}]++[\\r\\n]*+|\\s++$|\\s*[\\r\\n]|\\s+(?!\\S)|\\s",
		{"'(?i:[sdmt]|ll|ve|re)|(?>[^\\r\\n\\p{L}\\p{N}]?)\\p{L}++|(?>\\p{N}{1,3})| "
		 "?[^\\s\\p{L}\\p{N}]++[\\r\\n]*+|\\s++\\z|\\s*[\\r\\n]|\\s+(?!\\S)|\\s"}},
	{"llama3",
		SUFFIX_I "|" PREFIX
			 "\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*" SPACES,
		{0}},
	{"qwen2",
		SUFFIX_I "|" PREFIX
			 "\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*" SPACES,
		{0}},
	{"o200k",
		PREFIX O200K_UPPER "*" O200K_LOWER "+" SUFFIX_I "?|" PREFIX O200K_UPPER
				   "+" O200K_LOWER "*" SUFFIX_I
				   "?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*" SPACES,
		{0}},
	{"tekken",
		PREFIX O200K_UPPER "*" O200K_LOWER "+|" PREFIX O200K_UPPER "+" O200K_LOWER
				   "*|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*" SPACES,
		{0}},
	{0},
};

/* The rules of the named patterns, in the order of split_patterns[]. */
static const struct split_rule pattern_rules[] = {
	{LETTERS_SPACE, SUFFIX_SMALL, 0, "", false, false},
	{LETTERS_ANY, SUFFIX_FOLDED, 3, "\r\n", true, true},
	{LETTERS_ANY, SUFFIX_FOLDED, 3, "\r\n", true, false},
	{LETTERS_ANY, SUFFIX_FOLDED, 1, "\r\n", true, false},
	{LETTERS_CASED, SUFFIX_JOINED, 3, "\r\n/", true, false},
	{LETTERS_CASED, SUFFIX_NONE, 1, "\r\n/", true, false},
};
_Static_assert(ARRAY_LEN(pattern_rules) + 1 == ARRAY_LEN(split_patterns),
	"one rule per pattern");

const struct split_pattern *split_pattern_find(const char *what)
{
	for (const struct split_pattern *p = split_patterns; p->name; p++) {
		if (!strcmp(what, p->name) || !strcmp(what, p->regex))
			return p;
		for (int i = 0; p->same[i]; i++)
			if (!strcmp(what, p->same[i]))
				return p;
	}
	return NULL;
}

struct splitter {
	const struct split_rule *rule; /* rule of a named pattern; else NULL */
	struct split_regex *regex;     /* regex of a regular expression; else NULL */
};

struct splitter *splitter_open(const char *pattern, struct err *e)
{
	if (strchr(pattern, '\n')) {
		err_set(e, EX_DATAERR, "the pattern has a line break; write it as \\n");
		return NULL;
	}
	struct splitter *s = xcalloc(1, sizeof(*s));
	const struct split_pattern *p = split_pattern_find(pattern);
	if (p)
		s->rule = &pattern_rules[p - split_patterns];
	else
		s->regex = split_regex_open(pattern, e);
	if (s->rule || s->regex)
		return s;
	splitter_close(s);
	return NULL;
}

void splitter_close(struct splitter *s)
{
	if (s)
		split_regex_close(s->regex);
	free(s);
}

int split_words(struct splitter *s, const char *text, int64_t n, bool final,
	uint32_t *ends, int max, struct err *e)
{
	struct split_text t = {.p = text, .n = n, .classes = char_classes()};
	int64_t at = 0;
	int k = 0;
	BUG_ON(n > INT32_MAX);
	if (s->regex)
		return split_regex_words(s->regex, text, n, final, ends, max, e);
	while (k < max && at < n) {
		k += split_ascii(s->rule, text, at, n, ends + k, max - k);
		at = k ? ends[k - 1] : 0;
		if (k == max || at == n)
			break;
		if (k && k + SPLIT_BLOCK > max) /* the next call can use split_ascii() */
			break;
		at = split_word(s->rule, &t, at);
		if (t.at_end && !final)
			break;
		ends[k++] = (uint32_t)at;
	}
	return k;
}

int64_t split_cut(const char *text, int64_t n)
{
	for (int64_t i = n - 1; i > 1; i--)
		if (text[i] == ' ' ? isalpha((unsigned char)text[i - 1])
				   : text[i - 1] == '\n' &&
					     isalpha((unsigned char)text[i]) &&
					     text[i - 2] > ' ' && text[i - 2] < 127)
			return i;
	return 0;
}
