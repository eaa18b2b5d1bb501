/*
 * Normally distributed numbers for initial weights: the Box-Muller transform (1958) of Philox
 * output, with polynomials for logarithm, sine and cosine. It uses only operations that
 * IEEE 754 rounds correctly (addition, multiplication, square root, conversion) and fuses none:
 * every instruction set and every GPU gives the same bits.
 *
 * Numbers are computed in tiles of 256, which vector code stores without shuffles: number i uses
 * word i / 64 % 4 of Philox block i / 256 * 64 + i % 64. Words 0 and 1 of a block give one pair of
 * numbers, words 2 and 3 another.
 */
#pragma once

#include "base/philox.h"

#include <math.h>
#include <string.h>

enum { NORMAL_LANES = 64, NORMAL_TILE = 4 * NORMAL_LANES };

PHILOX_FN float float_of(uint32_t bits)
{
	float x;
	memcpy(&x, &bits, sizeof(x));
	return x;
}

PHILOX_FN uint32_t bits_of(float x)
{
	uint32_t bits;
	memcpy(&bits, &x, sizeof(bits));
	return bits;
}

/* Converts a word to a uniform number in (0, 1]. The smallest is 2^-32, so no normal number is
 * larger than 6.67. */
PHILOX_FN float normal_uniform(uint32_t word)
{
	return ((float)(int32_t)(word >> 1) + 0.5f) * 0x1p-31f;
}

/* Returns sqrt(-2 log u). For the logarithm u = 2^e (1 + f), with 1 + f between sqrt(1/2) and
 * sqrt(2), and log(1 + f) = f - f^2 / 2 + f^3 p(f), where p is a Chebyshev fit. */
PHILOX_FN float normal_radius(float u)
{
	const uint32_t root_half = 0x3f3504f3;
	uint32_t above = bits_of(u) - root_half;
	float e = (float)((int32_t)above >> 23);
	float f = float_of((above & 0x7fffff) + root_half) - 1.0f;
	float p = -7.9027437723934e-2f;
	p = p * f + 1.2622319849228e-1f;
	p = p * f + -1.2998183763652e-1f;
	p = p * f + 1.4214495923948e-1f;
	p = p * f + -1.6641281463106e-1f;
	p = p * f + 2.0001045094161e-1f;
	p = p * f + -2.5000306422570e-1f;
	p = p * f + 3.3333330728191e-1f;
	float square = f * f;
	float small = (f * square) * p + e * -2.12194440e-4f; /* log 2 in two parts */
	float log = (f + (small - 0.5f * square)) + e * 0.693359375f;
	return sqrtf(-2.0f * log);
}

/* Sets *x = r cos(2 pi a) and *y = r sin(2 pi a), where a = angle 2^-32 is split into a multiple
 * of 1/4 and a remainder t in [-1/8, 1/8), for which the polynomials are Chebyshev fits. */
PHILOX_FN void normal_pair(float *x, float *y, uint32_t radius, uint32_t angle)
{
	float r = normal_radius(normal_uniform(radius));
	uint32_t quarter = (angle + 0x20000000u) >> 30;
	float t = (float)(int32_t)(angle - (quarter << 30)) * 0x1p-32f, square = t * t;
	float s = -7.5401612702747e1f;
	s = s * square + 8.1592542871302e1f;
	s = s * square + -4.1341662570548e1f;
	s = s * square + 6.2831852878129f;
	s = s * t;
	float c = 5.9424105981756e1f;
	c = c * square + -8.5448820089651e1f;
	c = c * square + 6.4939369051420e1f;
	c = c * square + -1.9739208789988e1f;
	c = c * square + 1.0f;
	uint32_t odd = quarter & 1;
	uint32_t cos_bits = bits_of(odd ? s : c);
	uint32_t sin_bits = bits_of(odd ? c : s);
	*x = r * float_of(cos_bits ^ ((quarter + 1) & 2) << 30);
	*y = r * float_of(sin_bits ^ (quarter & 2) << 30);
}

/* Returns number i of the key's sequence; each attempt, from 0 on, is another draw. */
PHILOX_FN float normal_number(struct philox_key key, uint64_t i, uint32_t attempt)
{
	uint64_t block = i / NORMAL_TILE * NORMAL_LANES + i % NORMAL_LANES;
	uint32_t word = (uint32_t)(i / NORMAL_LANES % 4);
	struct philox_block b =
		philox(key, (uint32_t)block, (uint32_t)(block >> 32), attempt, 0);
	float x, y;
	normal_pair(&x, &y, b.x[word & 2], b.x[word | 1]);
	return word & 1 ? y : x;
}

/* Returns z, the first draw of number i, or if |z| > max the first later draw that is within the
 * limit. max 0: no limit. */
PHILOX_FN float normal_within(struct philox_key key, uint64_t i, float z, float max)
{
	for (uint32_t attempt = 1; max > 0 && fabsf(z) > max; attempt++)
		z = normal_number(key, i, attempt);
	return z;
}
