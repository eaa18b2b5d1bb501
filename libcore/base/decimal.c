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

/* Powers of five below 2^64. */
static const uint64_t fives[] = {1, 5, 25, 125, 625, 3125, 15625, 78125, 390625, 1953125,
	9765625, 48828125, 244140625, 1220703125, 6103515625, 30517578125, 152587890625,
	762939453125, 3814697265625, 19073486328125, 95367431640625, 476837158203125,
	2384185791015625, 11920928955078125, 59604644775390625, 298023223876953125,
	1490116119384765625, 7450580596923828125};

enum { MOST_FIVES = ARRAY_LEN(fives) - 1, MOST_DIGITS = 19 };

/* mantissa * 10^exponent */
struct decimal {
	uint64_t mantissa;
	int64_t exponent;
	int64_t n_digits; /* significant ones; with more than MOST_DIGITS the mantissa has
			     overflowed */
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

/* ---- numbers of at most 19 digits with a small exponent ---------------------------- */

static double power_of_two(int exponent)
{
	uint64_t bits = (uint64_t)(1023 + exponent) << 52;
	double v;
	memcpy(&v, &bits, sizeof(v));
	return v;
}

/* (n, and a fraction if `rest`) * 2^exponent, rounded once, to nearest, ties to even. The result is
 * no subnormal number. */
static double round_once(uint64_t n, bool rest, int exponent)
{
	enum { CUT = 11 }; /* of 64 bits, 53 remain */
	const uint64_t half = UINT64_C(1) << (CUT - 1);
	int shift = __builtin_clzll(n);
	n <<= shift;
	uint64_t cut = n & (2 * half - 1);
	n >>= CUT;
	n += cut > half || (cut == half && (rest || n & 1));
	return (double)n * power_of_two(exponent - shift + CUT);
}

__extension__ typedef unsigned __int128 uint128;

/* m * 10^k */
static double times_tens(uint64_t m, int k)
{
	uint128 p = (uint128)m * fives[k];
	uint64_t high = (uint64_t)(p >> 64);
	if (!high)
		return round_once((uint64_t)p, false, k);
	int shift = __builtin_clzll(high);
	p <<= shift;
	return round_once((uint64_t)(p >> 64), (uint64_t)p != 0, 64 - shift + k);
}

/* m / 10^k: the quotient has at least 63 bits, and the remainder tells which way a tie falls. */
static double over_tens(uint64_t m, int k)
{
	int up = __builtin_clzll(m), down = __builtin_clzll(fives[k]);
	uint64_t divisor = fives[k] << down;
	uint128 dividend = (uint128)(m << up) << 63;
	return round_once((uint64_t)(dividend / divisor), dividend % divisor != 0,
		down - up - 63 - k);
}

static double of_decimal(const struct decimal *d)
{
	int k = (int)d->exponent;
	if (!d->mantissa)
		return 0;
	if (d->mantissa > UINT64_C(1) << 53 || k < -22 || k > 22)
		return k < 0 ? over_tens(d->mantissa, -k) : times_tens(d->mantissa, k);
	/* Both are exact, so that the result is rounded once. */
	double v = (double)d->mantissa;
	return k < 0 ? v / exact_tens[-k] : v * exact_tens[k];
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
	} else if (d.n_digits <= MOST_DIGITS && d.exponent >= -MOST_FIVES &&
		   d.exponent <= MOST_FIVES) {
		v = of_decimal(&d);
	} else if (by_library(digits, p, &v)) {
		return s;
	}
	*out = *s == '-' ? -v : v;
	return p;
}
