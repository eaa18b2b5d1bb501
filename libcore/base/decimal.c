/* Decimal numbers in the middle of a text: the same doubles as strtod() gives. */
#include "base/base.h"

#include <ctype.h>
#include <math.h>

/* A double holds these, and every integer of so many digits; so their quotient is rounded once. */
static const double tens[] = {1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10,
	1e11, 1e12, 1e13, 1e14, 1e15};
enum { MOST_DIGITS = ARRAY_LEN(tens) - 1, MOST_CHARS = 512 };

static bool is_digit(char c)
{
	return (unsigned)(c - '0') < 10;
}

/* Few digits, with a point or without, and no exponent: most numbers in logs, faster than by strtod().
 * Returns s for others. */
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
	if (!n_digits || n_digits > MOST_DIGITS || (p < end && (*p | 0x20) == 'e'))
		return s;
	double v = (double)n / tens[point ? p - point - 1 : 0];
	*out = *s == '-' ? -v : v;
	return p;
}

/* No x, for numbers here are not hexadecimal. */
static bool in_number(char c)
{
	return (isalnum((unsigned char)c) && (c | 0x20) != 'x') ||
	       (c && strchr("+-.", c));
}

const char *scan_double(const char *s, const char *end, double *out)
{
	char text[MOST_CHARS + 1], *stop;
	size_t n = 0;
	const char *p = scan_short(s, end, out);
	if (p > s)
		return p;
	for (; s + n < end && n < MOST_CHARS && in_number(s[n]); n++)
		text[n] = s[n];
	text[n] = '\0';
	double v = strtod(text, &stop);
	if (stop == text || stop == text + MOST_CHARS)
		return s;
	if (isinf(v) && !isalpha((unsigned char)stop[-1])) /* out of range */
		return s;
	*out = v;
	return s + (stop - text);
}
