/* Splits text by the named patterns, one word at a time. */
#include "token/split_internal.h"

enum { CLASS_END = N_CHAR_CLASSES }; /* past the end of the text */

/* Returns the class of the character at text byte i, and sets *len to its length. */
static int char_class_at(struct split_text *t, int64_t i, int *len)
{
	uint32_t code;
	*len = 1;
	if (i >= t->n) {
		t->at_end = true;
		return CLASS_END;
	}
	if ((uint8_t)t->p[i] < 0x80)
		return t->classes[(uint8_t)t->p[i]];
	int n = utf8_decode(t->p + i, t->n - i, &code);
	t->at_end |= n == 0;
	if (n <= 0)
		return CHAR_OTHER;
	*len = n;
	return t->classes[code];
}

/* Sets of classes. */
#define SET(c) (1u << (c))
#define UPPERS (SET(CHAR_UPPER) | SET(CHAR_LETTER) | SET(CHAR_MARK))
#define LOWERS (SET(CHAR_LOWER) | SET(CHAR_LETTER) | SET(CHAR_MARK))
#define LETTERS (SET(CHAR_UPPER) | SET(CHAR_LOWER) | SET(CHAR_LETTER))
#define OTHERS (SET(CHAR_OTHER) | SET(CHAR_MARK))

static bool in_set(unsigned set, int class)
{
	return set >> class & 1;
}

/* Returns the end of the characters of a set of classes that begin at text byte i. */
static int64_t run_end(struct split_text *t, int64_t i, unsigned set)
{
	int len;
	while (in_set(set, char_class_at(t, i, &len)))
		i += len;
	return i;
}

static bool is_newline(const struct split_text *t, int64_t i)
{
	return t->p[i] == '\n' || t->p[i] == '\r';
}

/* Returns the letter at i (`folded`: lower case), and sets *len; t->at_end if text may follow. */
static int suffix_letter(struct split_text *t, int64_t i, bool folded, int *len)
{
	*len = 1;
	if (i >= t->n) {
		t->at_end = true;
		return 0;
	}
	uint8_t c = (uint8_t)t->p[i];
	if (folded && c == 0xc5) {
		*len = 2;
		t->at_end |= i + 1 >= t->n;
		return i + 1 < t->n && (uint8_t)t->p[i + 1] == 0xbf ? 's' : 0;
	}
	return folded && c >= 'A' && c <= 'Z' ? c + 'a' - 'A' : c;
}

/* Returns the end of the suffix, such as 's, that begins at i; i: none. */
static int64_t suffix_end(struct split_text *t, int64_t i, bool folded)
{
	static const char first[] = "stmdlvr";
	int len, len2;
	if (i >= t->n)
		t->at_end = true;
	if (i >= t->n || t->p[i] != '\'')
		return i;
	int c = suffix_letter(t, i + 1, folded, &len);
	const char *found = c ? strchr(first, c) : NULL;
	if (!found)
		return i;
	if (found - first < 4)
		return i + 1 + len;
	int d = suffix_letter(t, i + 2, folded, &len2);
	return d == (c == 'l' ? 'l' : 'e') ? i + 3 : i;
}

/* Matches `[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+` at i. Returns its end; -1:
 * no match. The first part backtracks if the second matches nothing after it. */
static int64_t lower_word_end(struct split_text *t, int64_t i)
{
	int64_t both = -1; /* the end of the last character that is in both sets */
	int len, c;
	for (; in_set(UPPERS, c = char_class_at(t, i, &len)); i += len)
		if (in_set(LOWERS, c))
			both = i + len;
	int64_t end = run_end(t, i, LOWERS);
	return end > i ? end : both;
}

/* Matches `[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+`. (After small_end(), no small letter follows.) */
static int64_t upper_word_end(struct split_text *t, int64_t i)
{
	int64_t end = run_end(t, i, UPPERS);
	return end > i ? end : -1;
}

/* Returns the end of a word by the patterns with letter case; -1: no match. */
static int64_t cased_word_end(struct split_text *t, int64_t at, int64_t after_prefix)
{
	int64_t end = -1;
	if (after_prefix > at)
		end = lower_word_end(t, after_prefix);
	if (end < 0)
		end = lower_word_end(t, at);
	if (end < 0 && after_prefix > at)
		end = upper_word_end(t, after_prefix);
	return end < 0 ? upper_word_end(t, at) : end;
}

/* Returns the end of a word of letters, perhaps after one other character; -1: no match. */
static int64_t letter_word_end(
	const struct split_rule *r, struct split_text *t, int64_t at, int class, int len)
{
	bool prefix = !in_set(LETTERS | SET(CHAR_NUMBER), class) && !is_newline(t, at);
	int64_t begin = prefix ? at + len : at, end;
	if (r->letters == LETTERS_CASED) {
		end = cased_word_end(t, at, begin);
		return end >= 0 && r->suffix == SUFFIX_JOINED ? suffix_end(t, end, true)
							      : end;
	}
	end = run_end(t, begin, LETTERS);
	return end > begin ? end : -1;
}

/* Matches `\s*[\r\n]+` if the rule has it, else `\s+(?!\S)` or `\s+`. Returns its end. */
static int64_t space_end(const struct split_rule *r, struct split_text *t, int64_t at)
{
	int64_t i = at, last = at, newline = -1;
	int len;
	for (; char_class_at(t, i, &len) == CHAR_SPACE; i += len) {
		last = i;
		if (is_newline(t, i))
			newline = i + 1;
	}
	if (i == t->n && (r->rest || newline < 0 || !r->newlines))
		return i;
	if (r->newlines && newline >= 0)
		return newline;
	return last > at ? last : i; /* the last character may begin the next word */
}

/* Returns the end of a word of digits that begins at i: at most r->digits of them, or all. */
static int64_t digit_word_end(const struct split_rule *r, struct split_text *t, int64_t i)
{
	int len;
	if (!r->digits)
		return run_end(t, i, SET(CHAR_NUMBER));
	for (int k = 0; k < r->digits && char_class_at(t, i, &len) == CHAR_NUMBER; k++)
		i += len;
	return i;
}

/* Returns the end of a word of punctuation, with trailing characters of the rule. */
static int64_t other_word_end(const struct split_rule *r, struct split_text *t, int64_t i)
{
	i = run_end(t, i, OTHERS);
	while (*r->trailing && i < t->n && t->p[i] && strchr(r->trailing, t->p[i]))
		i++;
	t->at_end |= i == t->n;
	return i;
}

int64_t split_word(const struct split_rule *r, struct split_text *t, int64_t at)
{
	int len, len2;
	if (r->suffix == SUFFIX_SMALL || r->suffix == SUFFIX_FOLDED) {
		int64_t end = suffix_end(t, at, r->suffix == SUFFIX_FOLDED);
		if (end > at)
			return end;
	}
	int class = char_class_at(t, at, &len);
	if (r->letters != LETTERS_SPACE) {
		int64_t end = letter_word_end(r, t, at, class, len);
		if (end >= 0)
			return end;
	}
	bool space = t->p[at] == ' ';
	int64_t begin = at + space;
	int next = space ? char_class_at(t, begin, &len2) : class;
	if (r->letters == LETTERS_SPACE && in_set(LETTERS, next))
		return run_end(t, begin, LETTERS);
	if (next == CHAR_NUMBER && (!space || !r->digits))
		return digit_word_end(r, t, begin);
	if (in_set(OTHERS, next))
		return other_word_end(r, t, begin);
	return space_end(r, t, at);
}
