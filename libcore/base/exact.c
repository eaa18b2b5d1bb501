/* Exact sums: adding a double. */
#include "base/base.h"

#include <math.h>

__extension__ typedef __int128 int128;
__extension__ typedef unsigned __int128 uint128;

/* Adds v as three digits with its sign to consecutive limbs, without carries. */
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
	int bit = exponent - 53 + EXACT_BIAS; /* position of mantissa's bit 0 */
	if (bit < 0) {			      /* subnormal: the low bits are zero */
		mantissa >>= -bit;
		bit = 0;
	}
	int128 shifted = (int128)mantissa * ((int128)1 << bit % EXACT_DIGIT);
	int limb = bit / EXACT_DIGIT;
	bool negative = shifted < 0;
	uint128 magnitude = negative ? -(uint128)shifted : (uint128)shifted;
	for (int i = 0; i < 3; i++, magnitude >>= EXACT_DIGIT) {
		int64_t digit = (int64_t)(uint32_t)magnitude;
		x->limb[limb + i] += negative ? -digit : digit;
	}
}

double exact_round(const struct exact *sum)
{
	struct exact x = *sum;
	return exact_finish(&x);
}
