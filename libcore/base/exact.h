/* Exact sums (Kulisch): a sum of doubles as one long fixed-point integer. Limb i counts multiples
 * of 2^(32 i - 1088), so every finite double fits in three limbs. A limb has 64 bits for a digit
 * of 32 bits, so carries can wait, and two sums add limb by limb (an MPI_SUM over int64): any
 * order and any number of ranks give the same integer. NaN and infinities are counted separately.
 * Both backends compile this header. */
#pragma once

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

#ifdef __CUDACC__
#define EXACT_FN static __host__ __device__ inline
#else
#define EXACT_FN static inline
#endif

enum {
	EXACT_LIMBS = 68,
	EXACT_WORDS = EXACT_LIMBS + 3,
	EXACT_FLOATS = 2 * EXACT_WORDS, /* floats of the same size in bytes */
	EXACT_DIGIT = 32,
	EXACT_BIAS = 1088
};

struct exact {
	int64_t limb[EXACT_LIMBS];
	int64_t n_nan, n_pos_inf, n_neg_inf;
};

/* Propagates carries, so that 2^30 more additions or sums over ranks cannot overflow. */
EXACT_FN void exact_normalize(struct exact *x)
{
	int64_t carry = 0;
	for (int i = 0; i < EXACT_LIMBS - 1; i++) {
		int64_t v = x->limb[i] + carry;
		int64_t digit = v & 0xffffffff;
		carry = (v - digit) / ((int64_t)1 << EXACT_DIGIT);
		x->limb[i] = digit;
	}
	x->limb[EXACT_LIMBS - 1] += carry; /* holds the sign */
}

/* Returns m x 2^exponent as a double, rounded once, ties to even. m is not 0 and has up to 96
 * bits. has_lower_bits: the exact value has nonzero bits below bit 0 of m. */
__extension__ typedef unsigned __int128 exact_bits;
EXACT_FN double exact_double(exact_bits m, bool has_lower_bits, int exponent)
{
	/* Keep 55 bits: 53, a rounding bit and a sticky bit. A subnormal result keeps fewer,
	 * so that it is rounded only once, here. */
	int bits = 0;
	while (m >> bits)
		bits++;
	int kept_bits = 55;
	if (exponent + bits - 1 < -1022)
		kept_bits = 55 - (-1022 - (exponent + bits - 1));
	if (kept_bits < 2)
		return 0;
	int dropped_bits = bits - kept_bits;
	if (dropped_bits > 0) {
		has_lower_bits |= (m & (((exact_bits)1 << dropped_bits) - 1)) != 0;
		m >>= dropped_bits;
	} else {
		m <<= -dropped_bits;
	}
	uint64_t low = (uint64_t)m | (has_lower_bits ? 1 : 0);
	uint64_t q = low >> 2;
	unsigned round_bits = (unsigned)(low & 3);
	if (round_bits > 2 || (round_bits == 2 && (q & 1)))
		q++;
	return ldexp((double)q, exponent + dropped_bits + 2);
}

/* Returns the sum, rounded once to the nearest double, ties to even. Destroys x. */
EXACT_FN double exact_finish(struct exact *x)
{
	if (x->n_nan || (x->n_pos_inf && x->n_neg_inf))
		return (double)NAN;
	if (x->n_pos_inf)
		return (double)INFINITY;
	if (x->n_neg_inf)
		return -(double)INFINITY;
	exact_normalize(x);
	bool negative = x->limb[EXACT_LIMBS - 1] < 0;
	if (negative) {
		for (int i = 0; i < EXACT_LIMBS; i++)
			x->limb[i] = -x->limb[i];
		exact_normalize(x);
	}
	int top = EXACT_LIMBS - 1;
	while (top >= 0 && x->limb[top] == 0)
		top--;
	if (top < 0)
		return 0;
	/* Three digits hold 65 to 96 significant bits. Lower digits matter only in whether
	 * they are all zero. */
	exact_bits m = 0;
	bool has_lower_bits = false;
	for (int i = 0; i < 3; i++)
		m = m << EXACT_DIGIT | (uint64_t)(top - i >= 0 ? x->limb[top - i] : 0);
	for (int i = top - 3; i >= 0; i--)
		has_lower_bits |= x->limb[i] != 0;
	double v = exact_double(m, has_lower_bits, (top - 2) * EXACT_DIGIT - EXACT_BIAS);
	return negative ? -v : v;
}
