/* Decimal numbers in the middle of a text: the same doubles as from strtod(). */
#include "base/base.h"

#include <ctype.h>
#include <math.h>

/* Exact doubles, like integers of up to MAX_DIGITS digits, so their quotient is rounded once. */
static const double tens[] = {1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10,
	1e11, 1e12, 1e13, 1e14, 1e15};
enum { MAX_DIGITS = ARRAY_LEN(tens) - 1, MAX_CHARS = 512 };

static bool is_digit(char c)
{
	return (unsigned)(c - '0') < 10;
}

/* Parses a number of few digits, with or without a point, without exponent: most numbers in logs,
 * faster than strtod(). Returns s for other numbers. */
static const char *scan_short(const char *s, const char *end, double *out)
{
	const char *digits = s + (s < end && (*s == '-' || *s == '+'));
	const char *p = digits, *point = NULL;
	uint64_t n = 0;
	for (; p < end && (is_digit(*p) || (*p == '.' && !point)); p++) {
		if (*p == '.')
			point = p;
		else
			n = 10 * n + (uint64_t)(*p - '0');
	}
	int64_t n_digits = p - digits - (point != NULL);
	if (!n_digits || n_digits > MAX_DIGITS || (p < end && (*p | 0x20) == 'e'))
		return s;
	double v = (double)n / tens[point ? p - point - 1 : 0];
	*out = *s == '-' ? -v : v;
	return p;
}

/* Returns true for characters of numbers; not x, since numbers are not hexadecimal. */
static bool is_in_number(char c)
{
	return (isalnum((unsigned char)c) && (c | 0x20) != 'x') ||
	       (c && strchr("+-.", c));
}

const char *scan_double(const char *s, const char *end, double *out)
{
	char text[MAX_CHARS + 1], *stop;
	size_t n = 0;
	const char *p = scan_short(s, end, out);
	if (p > s)
		return p;
	for (; s + n < end && n < MAX_CHARS && is_in_number(s[n]); n++)
		text[n] = s[n];
	text[n] = '\0';
	double v = strtod(text, &stop);
	if (stop == text || stop == text + MAX_CHARS)
		return s;
	if (isinf(v) && !isalpha((unsigned char)stop[-1])) /* out of range */
		return s;
	*out = v;
	return s + (stop - text);
}
