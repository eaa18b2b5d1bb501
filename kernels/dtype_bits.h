/* Rounding of one number to the formats of dtype.h, and their bits, on a CPU: branch-free integer
 * code, so that the compiler vectorizes loops. Hardware conversions give the same bits. */
#pragma once

#include "kernels/dtype.h"
#include "kernels/normal.h"

#define SIGN_BIT 0x80000000u
#define INFINITE 0x7f800000u

static inline uint32_t select_bits(bool condition, uint32_t a, uint32_t b)
{
	uint32_t mask = 0u - (uint32_t)condition;
	return (a & mask) | (b & ~mask);
}

/* Rounds to nearest, ties to even. The bits of a float compare as its magnitude, so adding half of
 * the last kept bit carries correctly into the exponent. Below the smallest normal number the
 * spacing is constant: adding a number with that spacing (`magic`) rounds to it. */
static inline float round_to(float x, const struct dtype_row f)
{
	const int drop = 23 - f.fraction_bits;
	const uint32_t half = (1u << (drop - 1)) - 1, keep = ~((1u << drop) - 1);
	const float magic = f.min_normal * (float)(1 << drop);
	uint32_t u = bits_of(x), sign = u & SIGN_BIT, a = u ^ sign;
	bool nan = a > INFINITE;
	uint32_t quiet = (a | 0x400000u) & keep;
	uint32_t largest = bits_of(f.largest);
	if (f.saturates)
		a = a > largest ? largest : a;
	uint32_t r = (a + half + (a >> drop & 1)) & keep;
	if (!f.saturates)
		r = select_bits(r > largest, INFINITE, r);
	float size = float_of(a);
	uint32_t small = bits_of((size + magic) - magic);
	r = select_bits(a < bits_of(f.min_normal), small, r);
	return float_of(select_bits(nan, quiet, r) | sign);
}

/* Rounds to bf16, which has fp32's exponents, so subnormal numbers need no special case. */
static inline float round_bf16(float x)
{
	uint32_t u = bits_of(x);
	uint32_t r = (u + 0x7fffu + (u >> 16 & 1)) & 0xffff0000u;
	bool nan = (u & ~SIGN_BIT) > INFINITE;
	return float_of(select_bits(nan, (u | 0x400000u) & 0xffff0000u, r));
}

/* Returns the difference of the exponent biases, shifted to the place of fp32's exponent. */
static inline uint32_t dtype_rebias(const struct dtype_row f)
{
	return bits_of(f.min_normal) - (1u << 23);
}

/* Returns the bits of infinity without the sign, or of the NaN of e4m3, which has no infinity.
 * Larger bits are NaN. */
static inline uint32_t dtype_beyond(enum dtype t, const struct dtype_row f)
{
	return t == DT_E4M3 ? 0x7f : (1u << (f.bits - 1)) - (1u << f.fraction_bits);
}

/* Returns the number with these bits. Subnormal numbers are multiples of the smallest. */
static inline float widen_bits(uint32_t u, enum dtype t)
{
	const struct dtype_row f = dtype_table[t];
	const int drop = 23 - f.fraction_bits;
	if (t == DT_BF16)
		return float_of(u << 16);
	uint32_t sign = u >> (f.bits - 1), a = u & ((1u << (f.bits - 1)) - 1);
	uint32_t nan = t == DT_E4M3 ? 0x7fc00000u : a << drop | INFINITE;
	uint32_t steps = bits_of((float)(int32_t)a * (f.min_normal * f.epsilon));
	uint32_t r = (a << drop) + dtype_rebias(f);
	r = select_bits(a >= dtype_beyond(t, f), nan, r);
	r = select_bits(a < 1u << f.fraction_bits, steps, r);
	return float_of(r | sign << 31);
}

/* Returns the bits of a number, rounded to a 16-bit or 8-bit format. */
static inline uint32_t narrow_bits(float x, enum dtype t)
{
	const struct dtype_row f = dtype_table[t];
	const int drop = 23 - f.fraction_bits;
	const uint32_t fraction = (1u << f.fraction_bits) - 1;
	if (t == DT_BF16)
		return bits_of(round_bf16(x)) >> 16;
	uint32_t u = bits_of(round_to(x, f)), sign = u >> 31, a = u & ~SIGN_BIT;
	bool small = a < bits_of(f.min_normal);
	float steps = small ? float_of(a) * (1 / (f.min_normal * f.epsilon)) : 0;
	uint32_t beyond = dtype_beyond(t, f) | (a >> drop & fraction);
	uint32_t r = select_bits(a >= INFINITE, beyond, (a - dtype_rebias(f)) >> drop);
	r = select_bits(small, (uint32_t)(int32_t)steps, r);
	return r | sign << (f.bits - 1);
}
