/* Splitting of ASCII text, 64 bytes at a time. Each class of characters is a bit mask with one bit
 * per byte. Bit operations on the masks find where words begin, from the classes of each byte and
 * its neighbors. A block begins where a word begins, so blocks are independent. What a
 * block cannot decide (other characters, runs of white space with a line break inside) is left to
 * split_word(); with split_word() alone, encoding takes 1.5 to 3.7 times as long. (AVX-512 is not
 * faster. Without vectors this is as slow as split_word(), which other processors use alone.) */
#include "token/split_internal.h"

#ifdef __x86_64__
#include <immintrin.h>

enum { BLOCK = SPLIT_BLOCK };

/* Bit i: text byte i belongs to this class. */
struct masks {
	uint64_t letter, upper, number, white, space, newline, quote, slash, wide;
};

/* Returns a mask of the bytes of x with values [first, first + n). */
static inline __m128i bytes_in_range(__m128i x, int first, int n)
{
	__m128i from_0 = _mm_sub_epi8(x, _mm_set1_epi8((char)first));
	return _mm_cmpeq_epi8(_mm_min_epu8(from_0, _mm_set1_epi8((char)(n - 1))), from_0);
}

static inline uint64_t bits_of(__m128i x)
{
	return (uint64_t)(uint32_t)_mm_movemask_epi8(x);
}

static inline __m128i bytes_equal(__m128i x, int byte)
{
	return _mm_cmpeq_epi8(x, _mm_set1_epi8((char)byte));
}

/* Sets the masks of the 64 bytes at text. */
static inline void classify(const char *text, struct masks *m)
{
	*m = (struct masks){0};
	for (int i = 0; i < BLOCK; i += 16) {
		__m128i x = _mm_loadu_si128((const __m128i *)(const void *)(text + i));
		__m128i lower = _mm_or_si128(x, _mm_set1_epi8(0x20));
		__m128i space = bytes_equal(x, ' ');
		__m128i newline =
			_mm_or_si128(bytes_equal(x, '\n'), bytes_equal(x, '\r'));
		m->letter |= bits_of(bytes_in_range(lower, 'a', 26)) << i;
		m->upper |= bits_of(bytes_in_range(x, 'A', 26)) << i;
		m->number |= bits_of(bytes_in_range(x, '0', 10)) << i;
		m->white |= bits_of(_mm_or_si128(space, bytes_in_range(x, '\t', 5))) << i;
		m->space |= bits_of(space) << i;
		m->newline |= bits_of(newline) << i;
		m->quote |= bits_of(bytes_equal(x, '\'')) << i;
		m->slash |= bits_of(bytes_equal(x, '/')) << i;
		m->wide |= bits_of(x) << i;
	}
}

/* Returns a mask of the bits below i. */
static inline uint64_t mask_below(int i)
{
	return i >= 64 ? ~UINT64_C(0) : (UINT64_C(1) << i) - 1;
}

/* Returns the index of the lowest bit that is set; 64: none. */
static inline int first_bit(uint64_t bits)
{
	return bits ? __builtin_ctzll(bits) : 64;
}

/* Returns the runs of bits in `of` whose first bits are in `begins`. */
static inline uint64_t runs_from(uint64_t begins, uint64_t of)
{
	return (of ^ (of + begins)) & of;
}

/* Returns the length of the suffix, such as 's, that begins with the quote p[0]; 0: none. */
static inline int suffix_length(const char *p, bool folded)
{
	char fold = folded ? 0x20 : 0; /* (the caller ensures that p[1] is a letter) */
	char c = p[1] | fold, d = p[2] | fold;
	if (c == 's' || c == 't' || c == 'm' || c == 'd')
		return 2;
	return (c == 'l' && d == 'l') || ((c == 'v' || c == 'r') && d == 'e') ? 3 : 0;
}

/* Ends words after the suffixes at `quotes`, before letters. Bits from *known on may be wrong. */
static inline uint64_t cut_suffixes(const char *text, uint64_t begins, uint64_t quotes,
	const struct split_rule *r, int *known)
{
	bool joined = r->suffix == SUFFIX_JOINED;
	for (int i, end = -1; quotes; quotes &= quotes - 1) {
		i = __builtin_ctzll(quotes);
		if (joined && i == end) /* a word has one suffix */
			continue;
		if (i + 3 >= *known) {
			*known = i < *known ? i + !joined : *known;
			break;
		}
		int n = suffix_length(text + i, r->suffix != SUFFIX_SMALL);
		if (!n)
			continue;
		begins &= ~(mask_below(n - 1) << (i + 1));
		end = i + n;
		begins |= UINT64_C(1) << end;
		if (joined)
			begins &= ~(UINT64_C(1) << i);
	}
	return begins;
}

/* Returns the bytes at which words of the pattern gpt2 begin. Bits from *known on may be wrong. */
static inline uint64_t begins_gpt2(
	const struct split_rule *r, const char *text, const struct masks *m, int *known)
{
	uint64_t other = ~(m->letter | m->number | m->white);
	uint64_t same = (m->letter & m->letter << 1) | (m->number & m->number << 1) |
			(other & other << 1);
	uint64_t words = ~m->white & ~same & ~(m->space << 1);
	/* white space: the first byte, and the last, which joins the next word if it is a space */
	uint64_t white = m->white & (~(m->white << 1) | ~(m->white >> 1));
	*known = first_bit(m->wide) - 1; /* (white space could follow the last byte) */
	uint64_t quotes = m->quote & (words | 1) & m->letter >> 1;
	return cut_suffixes(text, words | white, quotes, r, known);
}

/* Returns the bytes at which the groups of digits after the first begin in long numbers. */
static inline uint64_t digit_groups(uint64_t begins, uint64_t number, int digits)
{
	uint64_t all = 0;
	if (digits == 1)
		return number;
	uint64_t longer = number & number << 1 & number << 2 & number << 3;
	for (begins &= number; begins & longer >> 3;) {
		begins = (begins & longer >> 3) << 3;
		all |= begins;
	}
	return all;
}

/* Returns where words of the other patterns begin. Bits from *known on may be wrong. */
static inline uint64_t begins_any(
	const struct split_rule *r, const char *text, const struct masks *m, int *known)
{
	uint64_t other = ~(m->letter | m->number | m->white);
	uint64_t marks = other & ~(other << 1) & ~(m->space << 1);
	/* line breaks after other characters belong to them */
	uint64_t trailing = runs_from(other << 1 & m->newline, m->newline);
	uint64_t white = m->white & ~trailing, blank = white & ~m->newline;
	*known = first_bit(m->wide) - 1;
	/* not decided: white space before a line break, or of unknown length */
	uint64_t open = blank & (m->newline >> 1 | UINT64_C(1) << 63);
	if (m->wide)
		open |= blank & m->wide >> 1;
	if (open) {
		/* (it begins after the last byte before it that is not white space) */
		int at = first_bit(open);
		uint64_t before = ~white & mask_below(at);
		int run = before ? 64 - __builtin_clzll(before) : 0;
		*known = run + 1 < *known ? run + 1 : *known;
	}
	if (r->trailing[2] == '/') {
		int slash = first_bit(trailing << 1 & m->slash);
		*known = slash < *known ? slash : *known;
	}
	uint64_t letters = m->letter & ~(m->letter << 1) & ~(blank << 1) & ~(marks << 1);
	if (r->letters == LETTERS_CASED)
		letters |= m->upper & (m->letter & ~m->upper) << 1;
	uint64_t numbers = m->number & ~(m->number << 1);
	numbers |= digit_groups(numbers, m->number, r->digits);
	uint64_t begins = letters | numbers | marks | (white & ~(white << 1)) |
			  (blank & (~(blank << 1) | ~(m->white >> 1)));
	if (r->suffix == SUFFIX_NONE)
		return begins;
	uint64_t quotes = m->quote & marks & m->letter >> 1;
	if (r->suffix == SUFFIX_JOINED)
		quotes &= m->letter << 1;
	return cut_suffixes(text, begins, quotes, r, known);
}

int split_ascii(const struct split_rule *r, const char *text, int64_t at, int64_t n,
	uint32_t *ends, int max)
{
	bool gpt2 = r->letters == LETTERS_SPACE;
	int k = 0;
	if (at + BLOCK > n || (uint8_t)text[at] >= 0x80)
		return 0;
	while (k + BLOCK <= max && at + BLOCK <= n) {
		struct masks m;
		int known;
		classify(text + at, &m);
		uint64_t begins = gpt2 ? begins_gpt2(r, text + at, &m, &known)
				       : begins_any(r, text + at, &m, &known);
		if (known < 2)
			break;
		begins &= mask_below(known) & ~UINT64_C(1);
		if (!begins)
			break;
		int64_t base = at;
		for (; begins; begins &= begins - 1)
			ends[k++] = (uint32_t)(base + __builtin_ctzll(begins));
		at = ends[k - 1];
	}
	return k;
}

#else

int split_ascii(const struct split_rule *r, const char *text, int64_t at, int64_t n,
	uint32_t *ends, int max)
{
	(void)r, (void)text, (void)at, (void)n, (void)ends, (void)max;
	return 0;
}

#endif
