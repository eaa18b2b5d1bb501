/* Shared by the CPU kernels. Each file of kernels is compiled once for every instruction
 * set (ISA is sse2, avx2 or avx512); K(name) is the name of that copy.
 *
 * Kernels give the same bits on every x86-64: reductions use v16, sixteen lanes on every
 * instruction set; the compiler does not contract a*b+c to an FMA; matmuls have one order of sums
 * (gemm.h). */
#pragma once

#include "kernels/kernels.h"
#include "kernels/normal.h"

/* Most kernels do not use their device. */
#pragma GCC diagnostic ignored "-Wunused-parameter"

#include <math.h>

#ifndef ISA
#define ISA sse2
#endif
#define K_PASTE(isa, name) cpu_##isa##_##name
#define K_EXPAND(isa, name) K_PASTE(isa, name)
#define K(name) K_EXPAND(ISA, name)

#define KERNEL(type, name, ...) kern_##name K(name);
#include "kernels/list.h"

extern const struct kernels cpu_sse2_kernels, cpu_avx2_kernels, cpu_avx512_kernels;

/* The number of elements below which a parallel region costs more time than it saves. */
enum { PARALLEL_FROM = 1 << 14 };

/* Returns a row of a matrix; NULL if m.p is NULL. */
static inline float *mat_row(struct mat m, int64_t row)
{
	return m.p ? (float *)m.p + row * m.cols : NULL;
}

/* ---- isa.c ----------------------------------------------------------------------- */

enum isa { ISA_SSE2, ISA_AVX2, ISA_AVX512, ISA_AVX512_BF16, ISA_AMX_BF16 };
/* Returns the instruction set of $PT_ISA, or by default the widest that this processor has; ends
 * the program if $PT_ISA is unknown or not supported. */
enum isa cpu_isa(void);
/* Makes cpu_isa() the selected instruction set, and returns it. */
enum isa cpu_isa_use(void);
/* Returns the selected instruction set; the first call selects it. */
enum isa cpu_isa_in_use(void);

/* ---- vectors --------------------------------------------------------------------- */

typedef float v16 __attribute__((vector_size(64), aligned(4), may_alias));
typedef int32_t v16i __attribute__((vector_size(64), aligned(4), may_alias));
typedef double v8d __attribute__((vector_size(64), aligned(8), may_alias));

static inline v16 v16_load(const float *p)
{
	return *(const v16 *)p;
}

static inline void v16_store(float *p, v16 v)
{
	*(v16 *)p = v;
}

/* Loads the last n < 16 elements, padded with zeros. */
static inline v16 v16_load_tail(const float *p, int64_t n)
{
	v16 v = {0};
	memcpy(&v, p, (size_t)n * sizeof(float));
	return v;
}

typedef float v8 __attribute__((vector_size(32)));
typedef float v4 __attribute__((vector_size(16)));

/* Returns the sum of the lanes: adds the halves of v, then the halves of the result, and so on. */
static inline float v16_sum(v16 v)
{
	v8 a = __builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7) +
	       __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15);
	v4 b = __builtin_shufflevector(a, a, 0, 1, 2, 3) +
	       __builtin_shufflevector(a, a, 4, 5, 6, 7);
	b += __builtin_shufflevector(b, b, 2, 3, 0, 1);
	return b[0] + b[1];
}

/* Returns the larger element of each lane; b where either is NaN. */
static inline v16 v16_max(v16 a, v16 b)
{
	v16i keep = a > b;
	return (v16)(((v16i)a & keep) | ((v16i)b & ~keep));
}

/* Returns the sum of x[i] y[i] in an order that depends only on n: four vectors of sums. */
static inline float dot(const float *x, const float *y, int64_t n)
{
	v16 a0 = {0}, a1 = {0}, a2 = {0}, a3 = {0};
	int64_t i = 0;
	for (; i + 64 <= n; i += 64) {
		a0 += v16_load(x + i) * v16_load(y + i);
		a1 += v16_load(x + i + 16) * v16_load(y + i + 16);
		a2 += v16_load(x + i + 32) * v16_load(y + i + 32);
		a3 += v16_load(x + i + 48) * v16_load(y + i + 48);
	}
	for (; i + 16 <= n; i += 16)
		a0 += v16_load(x + i) * v16_load(y + i);
	if (i < n)
		a1 += v16_load_tail(x + i, n - i) * v16_load_tail(y + i, n - i);
	return v16_sum((a0 + a1) + (a2 + a3));
}

/* Returns the sum of x[i] in an order that depends only on n: two vectors of sums. */
static inline float sum_of(const float *x, int64_t n)
{
	v16 a0 = {0}, a1 = {0};
	int64_t i = 0;
	for (; i + 32 <= n; i += 32) {
		a0 += v16_load(x + i);
		a1 += v16_load(x + i + 16);
	}
	for (; i + 16 <= n; i += 16)
		a0 += v16_load(x + i);
	if (i < n)
		a1 += v16_load_tail(x + i, n - i);
	return v16_sum(a0 + a1);
}

/* Returns the maximum. Ignores NaN, except as the last element; e^(x - max) propagates it. */
static inline float max_of(const float *x, int64_t n)
{
	v16 m = {0};
	m -= INFINITY;
	int64_t i = 0;
	for (; i + 16 <= n; i += 16)
		m = v16_max(m, v16_load(x + i));
	float best = -INFINITY;
	for (int l = 0; l < 16; l++)
		best = best > m[l] ? best : m[l];
	for (; i < n; i++)
		best = best > x[i] ? best : x[i];
	return best;
}

/* ---- elementary functions -----------------------------------------------------------
 * Branch-free, so that the compiler vectorizes loops over them. Coefficients: Chebyshev fits
 * for these intervals. NaN propagates. Maximum errors over all floats, against float64: exp_f
 * 0.96 ULP, sigmoid_f 2.5, normal_cdf_f 5.2; tests/unit/test_kernels_cpu.c tests a sample. */

/* Returns the bits of |x|, which compare as |x| does; the bits of NaN are the largest. */
static inline int32_t size_bits(float x)
{
	return (int32_t)(bits_of(x) & 0x7fffffffu);
}

/* Returns the maximum of size_bits(x[i]). */
static inline int32_t max_size_bits(const float *x, int64_t n)
{
	int32_t max = 0;
	for (int64_t i = 0; i < n; i++) {
		int32_t size = size_bits(x[i]);
		max = size > max ? size : max;
	}
	return max;
}

/* Returns e^x; 0 below -87.33 (where floats become subnormal), infinity above 88.37. */
static inline float exp_f(float x)
{
	const float magic = 0x1.8p23f; /* adding it rounds to an integer */
	float t = x * 1.44269504088896341f + magic;
	float n = t - magic;
	float r = x - n * 0.693359375f;
	r = r - n * -2.12194440e-4f;
	float q = 1.9890980869750327e-4f;
	q = q * r + 1.3933641031986701e-3f;
	q = q * r + 8.333310934448869e-3f;
	q = q * r + 4.166646500604005e-2f;
	q = q * r + 1.6666666681614256e-1f;
	q = q * r + 5.0000000134577273e-1f;
	float e = q * (r * r) + r + 1.0f;
	uint32_t exponent = bits_of(t) - bits_of(magic) + 127;
	e = e * float_of(exponent << 23);
	e = x < -87.33f ? 0.0f : e;
	return x > 88.37f ? INFINITY : e;
}

/* Returns 1 / (1 + e^-x). */
static inline float sigmoid_f(float x)
{
	return 1.0f / (1.0f + exp_f(-x));
}

/* Returns the normal distribution function, erfc(-x / sqrt 2) / 2, as e^(-x^2 / 2) times a
 * polynomial in 1 / (|x| + 1.65). The exponential would magnify the rounding error of x^2,
 * so that error is computed too (Dekker's product). 0 below -13.2. */
static inline float normal_cdf_f(float x)
{
	float a = x < 0 ? -x : x;
	a = a > 14.0f ? 14.0f : a;
	float r = 1.0f / (a + 1.65f), u = r - 0.35f;
	float p = 32.222812070477019f;
	p = p * u + -12.009594929086106f;
	p = p * u + -6.6017549356536977f;
	p = p * u + 6.8533381019080117f;
	p = p * u + -2.4834485969713386f;
	p = p * u + -7.519630620601631e-1f;
	p = p * u + 1.6278320896476645f;
	p = p * u + -7.2114630177909427e-1f;
	p = p * u + -5.1187246759638385e-1f;
	p = p * u + 7.4885519791249905e-1f;
	p = p * u + 6.7309191023023344e-1f;
	float square = a * a;
	float high = float_of(bits_of(a) & ~0xfffu), low = a - high;
	float rest = ((high * high - square) + 2.0f * high * low) + low * low;
	float e = exp_f(-0.5f * square);
	float tail = (e - e * (0.5f * rest)) * (p * r);
	return x < 0 ? tail : 1.0f - tail;
}

enum { RANDOM_BLOCKS = 16, RANDOM_WORDS = 4 * RANDOM_BLOCKS };

/* Computes the words of Philox blocks c0, ..., c0 + RANDOM_BLOCKS - 1, in vector code. */
static inline void random_words(uint32_t *to, struct philox_key key, uint32_t c0,
	uint32_t c1, uint32_t c2, uint32_t c3)
{
	struct philox_block r[RANDOM_BLOCKS];
#pragma omp simd
	for (int i = 0; i < RANDOM_BLOCKS; i++)
		r[i] = philox(key, c0 + (uint32_t)i, c1, c2, c3);
	memcpy(to, r, sizeof(r));
}
