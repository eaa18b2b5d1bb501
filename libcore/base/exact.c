/* Exact sums: adding a double. */
#include "base/base.h"

#include <math.h>

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
	int at = exponent - 53 + EXACT_BIAS; /* the weight of the mantissa's lowest bit */
	if (at < 0) {			     /* subnormal: the low bits are zero */
		mantissa >>= -at;
		at = 0;
	}
	int128 wide = (int128)mantissa * ((int128)1 << at % EXACT_DIGIT);
	int limb = at / EXACT_DIGIT;
	bool negative = wide < 0;
	uint128 u = negative ? -(uint128)wide : (uint128)wide;
	for (int i = 0; i < 3; i++, u >>= EXACT_DIGIT) {
		int64_t digit = (int64_t)(uint32_t)u;
		x->limb[limb + i] += negative ? -digit : digit;
	}
}

double exact_round(const struct exact *sum)
{
	struct exact x = *sum;
	return exact_finish(&x);
}
