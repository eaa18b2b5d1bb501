/*
 * Exact sums: a long fixed-point accumulator (Kulisch; here with 32-bit digits held in
 * 64-bit limbs, so that carries wait). What is added in any order, on any number of
 * ranks, is the same integer.
 */
#include "base/base.h"

#include <math.h>

enum { BIAS = 1088, DIGIT = 32 };

__extension__ typedef __int128 int128;
__extension__ typedef unsigned __int128 uint128;

void exact_add(struct exact *x, double v)
{
	if (!isfinite(v)) {
		x->n_nan += isnan(v) != 0;
		x->n_pos_inf += v == (double)INFINITY;
		x->n_neg_inf += v == -(double)INFINITY;
		return;
	}
	int exponent;
	double fraction = frexp(v, &exponent); /* v = fraction * 2^exponent */
	int64_t mantissa = (int64_t)ldexp(fraction, 53);
	int at = exponent - 53 + BIAS; /* the weight of the mantissa's lowest bit */
	if (at < 0) {		       /* subnormal: the low bits are zero */
		mantissa >>= -at;
		at = 0;
	}
	int128 wide = (int128)mantissa * ((int128)1 << at % DIGIT);
	int limb = at / DIGIT;
	bool negative = wide < 0;
	uint128 u = negative ? -(uint128)wide : (uint128)wide;
	for (int i = 0; i < 3; i++, u >>= DIGIT) {
		int64_t digit = (int64_t)(uint32_t)u;
		x->limb[limb + i] += negative ? -digit : digit;
	}
}

void exact_normalize(struct exact *x)
{
	int64_t carry = 0;
	for (int i = 0; i < EXACT_LIMBS - 1; i++) {
		int64_t v = x->limb[i] + carry;
		int64_t digit = v & 0xffffffff;
		carry = (v - digit) / ((int64_t)1 << DIGIT);
		x->limb[i] = digit;
	}
	x->limb[EXACT_LIMBS - 1] += carry; /* holds the sign */
}

double exact_round(const struct exact *sum)
{
	struct exact x = *sum;
	if (x.n_nan || (x.n_pos_inf && x.n_neg_inf))
		return (double)NAN;
	if (x.n_pos_inf)
		return (double)INFINITY;
	if (x.n_neg_inf)
		return -(double)INFINITY;
	exact_normalize(&x);
	bool negative = x.limb[EXACT_LIMBS - 1] < 0;
	if (negative) {
		for (int i = 0; i < EXACT_LIMBS; i++)
			x.limb[i] = -x.limb[i];
		exact_normalize(&x);
	}
	int top = EXACT_LIMBS - 1;
	while (top >= 0 && x.limb[top] == 0)
		top--;
	if (top < 0)
		return 0;
	/* Three digits hold 65 to 96 significant bits; what is below them can only matter
	 * as a sticky bit, far below the rounding position. */
	uint128 m = 0;
	bool sticky = false;
	for (int i = 0; i < 3; i++)
		m = m << DIGIT | (uint64_t)(top - i >= 0 ? x.limb[top - i] : 0);
	for (int i = top - 3; i >= 0; i--)
		sticky |= x.limb[i] != 0;
	int exponent = (top - 2) * DIGIT - BIAS;
	/* Keep 55 bits: 53, one to round by, one that is sticky. A subnormal result keeps
	 * fewer, so that it is rounded once, here. */
	int bits = 0;
	while (m >> bits)
		bits++;
	int keep = 55;
	if (exponent + bits - 1 < -1022)
		keep = 55 - (-1022 - (exponent + bits - 1));
	if (keep < 2)
		return negative ? -0.0 : 0.0;
	int drop = bits - keep;
	if (drop > 0) {
		sticky |= (m & (((uint128)1 << drop) - 1)) != 0;
		m >>= drop;
	} else {
		m <<= -drop;
	}
	exponent += drop;
	uint64_t low = (uint64_t)m | (sticky ? 1 : 0);
	uint64_t q = low >> 2;
	unsigned rest = (unsigned)(low & 3);
	if (rest > 2 || (rest == 2 && (q & 1)))
		q++;
	double v = ldexp((double)q, exponent + 2);
	return negative ? -v : v;
}
