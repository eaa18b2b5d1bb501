/* Decimal numbers in text, fast: the same doubles as strtod() gives. */
#include "base/base.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* Powers of ten that a double holds exactly. */
static const double exact_tens[] = {1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9,
	1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};

/* mantissa * 10^exponent */
struct decimal {
	uint64_t mantissa;
	int64_t exponent;
	int64_t n_digits; /* significant ones; with more than 19 the mantissa has overflowed */
};

static bool is_digit(const char *s, const char *end)
{
	return s < end && (unsigned)(*s - '0') < 10;
}

static inline const char *scan_digits(const char *s, const char *end, struct decimal *d)
{
	uint64_t m = d->mantissa;
	while (!d->n_digits && s < end && *s == '0')
		s++;
	const char *begin = s;
	for (; is_digit(s, end); s++)
		m = 10 * m + (uint64_t)(*s - '0');
	d->mantissa = m;
	d->n_digits += s - begin;
	return s;
}

/* "e-5" or nothing */
static const char *scan_exponent(const char *s, const char *end, struct decimal *d)
{
	const char *p = s;
	int64_t v = 0;
	if (p == end || (*p | 0x20) != 'e')
		return s;
	p++;
	bool minus = p < end && *p == '-';
	p += p < end && (*p == '-' || *p == '+');
	if (!is_digit(p, end))
		return s;
	for (; is_digit(p, end); p++)
		v = min64(10 * v + (*p - '0'), 1 << 20);
	d->exponent += minus ? -v : v;
	return p;
}

/* Digits and an exponent from s; returns s if there is no digit. */
static const char *scan_decimal(const char *s, const char *end, struct decimal *d)
{
	const char *p = scan_digits(s, end, d);
	int64_t n = p - s;
	if (p < end && *p == '.') {
		const char *fraction = p + 1;
		p = scan_digits(fraction, end, d);
		d->exponent = -(p - fraction);
		n += p - fraction;
	}
	return n ? scan_exponent(p, end, d) : s;
}

/* "nan", "inf", "infinity", in any case */
static const char *scan_name(const char *s, const char *end, double *out)
{
	static const char *const names[] = {"nan", "infinity", "inf"};
	for (size_t i = 0; i < ARRAY_LEN(names); i++) {
		size_t n = strlen(names[i]);
		if ((size_t)(end - s) < n || strncasecmp(s, names[i], n) != 0)
			continue;
		*out = i ? (double)INFINITY : (double)NAN;
		return s + n;
	}
	return s;
}

/* What strtod() makes of [s, end); -1 if that is out of range or too long. */
static int by_library(const char *s, const char *end, double *out)
{
	char text[512];
	size_t n = (size_t)(end - s);
	if (n >= sizeof(text))
		return -1;
	memcpy(text, s, n);
	text[n] = '\0';
	return parse_double(text, out);
}

const char *scan_double(const char *s, const char *end, double *out)
{
	struct decimal d = {0};
	double v;
	const char *digits = s + (s < end && (*s == '-' || *s == '+'));
	const char *p = scan_decimal(digits, end, &d);
	if (p == digits) {
		p = scan_name(digits, end, &v);
		if (p == digits)
			return s;
	} else if (d.n_digits <= 19 && d.mantissa <= UINT64_C(1) << 53 &&
		   d.exponent >= -22 && d.exponent <= 22) {
		/* Both are exact, so that the result is rounded once. */
		v = (double)d.mantissa;
		v = d.exponent < 0 ? v / exact_tens[-d.exponent]
				   : v * exact_tens[d.exponent];
	} else if (by_library(digits, p, &v)) {
		return s;
	}
	*out = *s == '-' ? -v : v;
	return p;
}
