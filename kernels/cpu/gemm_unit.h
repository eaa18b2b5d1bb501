/* Shared by the units of gemm.h: vectors with a multiply-add that rounds once, for each instruction
 * set, and copies of operands into panels of 32-bit words: fp32 elements or bf16 pairs. */
#pragma once

#include "kernels/cpu/gemm.h"
#include "kernels/cpu/pieces.h"
#include "kernels/dtype_bits.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

/* ---- vectors ----------------------------------------------------------------------- */

#if defined(__AVX512F__)
typedef __m512 vec;
enum { LANES = 16, ROWS = 6, VECTORS = 4 };
#define FMA(x, y, z) _mm512_fmadd_ps(x, y, z)
#define SPREAD(x) _mm512_set1_ps(x)
#elif defined(__FMA__)
typedef __m256 vec;
enum { LANES = 8, ROWS = 6, VECTORS = 2 };
#define FMA(x, y, z) _mm256_fmadd_ps(x, y, z)
#define SPREAD(x) _mm256_set1_ps(x)
#elif defined(__SSE2__)
typedef __m128 vec;
enum { LANES = 4, ROWS = 4, VECTORS = 2 };
#define SPREAD(x) _mm_set1_ps(x)

/* Returns x y + z, rounded to odd: the product is exact in fp64, Knuth's two-sum gives the sum's
 * error. Rounding this to fp32 equals rounding the exact result (Boldo, Melquiond 2008). */
static inline __m128d sum_to_odd(__m128d x, __m128d y, __m128d z)
{
	const __m128i one = _mm_set1_epi64x(1);
	__m128d product = _mm_mul_pd(x, y), sum = _mm_add_pd(product, z);
	__m128d back = _mm_sub_pd(sum, product);
	__m128d error = _mm_add_pd(
		_mm_sub_pd(product, _mm_sub_pd(sum, back)), _mm_sub_pd(z, back));
	__m128d inexact = _mm_or_pd(_mm_cmplt_pd(error, _mm_setzero_pd()),
		_mm_cmpgt_pd(error, _mm_setzero_pd()));
	__m128i bits = _mm_castpd_si128(sum);
	__m128i even = _mm_sub_epi64(_mm_and_si128(bits, one), one);
	__m128i inwards = _mm_srli_epi64(_mm_castpd_si128(_mm_xor_pd(sum, error)), 63);
	__m128i by = _mm_sub_epi64(one, _mm_slli_epi64(inwards, 1)); /* 1 or -1 */
	by = _mm_and_si128(by, _mm_and_si128(even, _mm_castpd_si128(inexact)));
	return _mm_castsi128_pd(_mm_add_epi64(bits, by));
}

static inline vec FMA(vec x, vec y, vec z)
{
	__m128 low = _mm_cvtpd_ps(
		sum_to_odd(_mm_cvtps_pd(x), _mm_cvtps_pd(y), _mm_cvtps_pd(z)));
	__m128 high = _mm_cvtpd_ps(sum_to_odd(_mm_cvtps_pd(_mm_movehl_ps(x, x)),
		_mm_cvtps_pd(_mm_movehl_ps(y, y)), _mm_cvtps_pd(_mm_movehl_ps(z, z))));
	return _mm_movelh_ps(low, high);
}
#else
enum { LANES = 4, ROWS = 4, VECTORS = 2 };
typedef float vec __attribute__((vector_size(16), may_alias));
#define SPREAD(x) ((vec){x, x, x, x})
static inline vec FMA(vec x, vec y, vec z)
{
	for (int i = 0; i < LANES; i++)
		z[i] = fmaf(x[i], y[i], z[i]);
	return z;
}
#endif

enum { COLS = VECTORS * LANES }; /* with ROWS, a tile that fills the registers */

/* Zeroes n sums, a multiple of LANES. By stores, since GCC makes memset() one slow instruction: 3 %
 * of the time of a tile. */
static inline __attribute__((always_inline)) void zero_sums(float *sums, int64_t n)
{
#pragma GCC unroll 64
	for (int64_t i = 0; i < n; i += LANES)
		*(vec *)(sums + i) = SPREAD(0);
}

/* Sets c[i][v] to the chain of multiply-adds, from 0 on, over terms 0, step, 2 step, ... < n_k. */
static inline __attribute__((always_inline)) void chain(vec c[ROWS][VECTORS],
	const float *left, int64_t row_stride, int64_t k_stride, const float *right,
	int64_t n_k, int64_t step)
{
#pragma GCC unroll 16
	for (int i = 0; i < ROWS; i++)
#pragma GCC unroll 4
		for (int v = 0; v < VECTORS; v++)
			c[i][v] = SPREAD(0);
	for (int64_t k = 0; k < n_k; k += step) {
		vec b[VECTORS];
		for (int v = 0; v < VECTORS; v++)
			b[v] = *(const vec *)(right + k * COLS + v * LANES);
#pragma GCC unroll 16
		for (int i = 0; i < ROWS; i++) {
			vec a = SPREAD(left[i * row_stride + k * k_stride]);
#pragma GCC unroll 4
			for (int v = 0; v < VECTORS; v++)
				c[i][v] = FMA(a, b[v], c[i][v]);
		}
	}
}

/* ---- panels ------------------------------------------------------------------------ */

/* Terms of an fp32 panel, which the result's bits depend on; and the distance of two rows, which
 * keeps them in different sets of the cache. */
enum { FP32_DEPTH = 384, FP32_STRIDE = FP32_DEPTH + 16 };

typedef uint32_t word __attribute__((may_alias));

#if defined(__AVX__)
enum { EDGE = 8 };

/* Sets to[k][i] = x[i][k] for i, k < EDGE; rows are `width` and `stride` words apart. */
static inline void transpose_square(
	word *to, int64_t width, const word *x, int64_t stride)
{
	__m256 a[EDGE], b[EDGE];
	for (int i = 0; i < EDGE; i++)
		a[i] = _mm256_loadu_ps((const void *)(x + i * stride));
	for (int i = 0; i < EDGE; i += 2) {
		b[i] = _mm256_unpacklo_ps(a[i], a[i + 1]);
		b[i + 1] = _mm256_unpackhi_ps(a[i], a[i + 1]);
	}
	for (int i = 0; i < EDGE; i += 4) {
		a[i] = _mm256_shuffle_ps(b[i], b[i + 2], 0x44);
		a[i + 1] = _mm256_shuffle_ps(b[i], b[i + 2], 0xee);
		a[i + 2] = _mm256_shuffle_ps(b[i + 1], b[i + 3], 0x44);
		a[i + 3] = _mm256_shuffle_ps(b[i + 1], b[i + 3], 0xee);
	}
	for (int i = 0; i < EDGE / 2; i++) {
		void *low = to + i * width, *high = to + (i + EDGE / 2) * width;
		_mm256_storeu_ps(low, _mm256_permute2f128_ps(a[i], a[i + 4], 0x20));
		_mm256_storeu_ps(high, _mm256_permute2f128_ps(a[i], a[i + 4], 0x31));
	}
}
#elif defined(__SSE2__)
enum { EDGE = 4 };

/* Sets to[k][i] = x[i][k] for i, k < EDGE; rows are `width` and `stride` words apart. */
static inline void transpose_square(
	word *to, int64_t width, const word *x, int64_t stride)
{
	__m128 a[EDGE];
	for (int i = 0; i < EDGE; i++)
		a[i] = _mm_loadu_ps((const void *)(x + i * stride));
	_MM_TRANSPOSE4_PS(a[0], a[1], a[2], a[3]);
	for (int i = 0; i < EDGE; i++)
		_mm_storeu_ps((void *)(to + i * width), a[i]);
}
#else
enum { EDGE = 1 };

static inline void transpose_square(
	word *to, int64_t width, const word *x, int64_t stride)
{
	*to = *x;
}
#endif

/* Sets to[k][i] = x[i][k] for n x n_k 32-bit words; rows are `width` and `stride` words apart. */
static inline void transpose_words(
	void *to, int64_t width, const void *x, int64_t stride, int64_t n, int64_t n_k)
{
	int64_t whole = n / EDGE * EDGE, whole_k = n_k / EDGE * EDGE;
	word *out = to;
	const word *in = x;
	for (int64_t i = 0; i < whole; i += EDGE)
		for (int64_t k = 0; k < whole_k; k += EDGE)
			transpose_square(
				out + k * width + i, width, in + i * stride + k, stride);
	for (int64_t i = 0; i < n; i++, in += stride, out++)
		for (int64_t k = i < whole ? whole_k : 0; k < n_k; k++)
			out[k * width] = in[k];
}

/* Scatters a line of n words: ROWS to each of the panels, which are `panel` words apart. Missing
 * words of the last panel become 0. */
static inline __attribute__((always_inline)) void scatter_line(
	void *panels, int64_t panel, const void *words, int64_t n)
{
	word *to = panels;
	const word *line = words;
	for (; n >= ROWS; n -= ROWS, line += ROWS, to += panel)
		memcpy(to, line,
			ROWS * sizeof(*to)); /* a few vectors: ROWS is a constant */
	for (int64_t i = 0; n > 0 && i < ROWS; i++)
		to[i] = i < n ? line[i] : 0;
}

/* Prefetches elements [at, at + n) of a line: the lines of a transposed matrix are too far apart
 * for the processor's prefetcher. */
static inline void prefetch_line(
	const struct operand *x, int64_t line, int64_t at, int64_t n)
{
	enum { CACHE_LINE = 64 };
	int64_t size = dtype_bytes(x->type);
	const char *p = (const char *)x->p + (line * x->stride + at) * size;
	for (int64_t i = 0; i < n * size; i += CACHE_LINE)
		__builtin_prefetch(p + i);
}

/* Returns elements [at, at + n) of a line of a matrix in fp32: in place, or widened into `buf`. */
static inline const float *line_fp32(
	const struct operand *x, int64_t line, int64_t at, int64_t n, float *buf)
{
	int64_t first = (line * x->stride + at) * dtype_bytes(x->type);
	const void *from = (const char *)x->p + first;
	if (x->type == DT_F32)
		return from;
	if (x->type == DT_BF16) { /* without a call, for runs of few elements */
		for (int64_t i = 0; i < n; i++)
			buf[i] = widen_bits(((const uint16_t *)from)[i], DT_BF16);
	} else {
		K(widen_run)(buf, from, x->type, n);
	}
	return buf;
}

/* Returns elements of a line in bf16, which represents all numbers of the 8-bit formats. */
static inline const uint16_t *line_bf16(
	const struct operand *x, int64_t line, int64_t at, int64_t n, uint16_t *buf)
{
	const uint16_t *h = (const uint16_t *)x->p + line * x->stride + at;
	const uint8_t *b = (const uint8_t *)x->p + line * x->stride + at;
	if (x->type == DT_BF16)
		return h;
	if (x->type == DT_E4M3)
		for (int64_t i = 0; i < n; i++)
			buf[i] = (uint16_t)(bits_of(widen_bits(b[i], DT_E4M3)) >> 16);
	else
		for (int64_t i = 0; i < n; i++)
			buf[i] = (uint16_t)(bits_of(widen_bits(b[i], DT_E5M2)) >> 16);
	return buf;
}

/* ---- bf16 -------------------------------------------------------------------------- */

enum { GROUP = 32 }; /* terms; gemm_bf16.c explains it */

/* Between begin and end, subnormal numbers are 0 in vector code, and so when sums are finished. */
void K(flush_begin)(void);
void K(flush_end)(void);

#if defined(__AVX512F__)
/* Returns a mask of the first n of up to 32 elements. */
static inline uint32_t first_mask(int64_t n)
{
	return n >= 32 ? ~0u : n > 0 ? (1u << n) - 1 : 0;
}

/* Stores the pairs (low[i], high[i]) for i < 32, in order. */
static inline void all_pairs(word *to, const uint16_t *low, const uint16_t *high)
{
	__m512i l = _mm512_loadu_si512(low), h = _mm512_loadu_si512(high);
	/* pairs 0 to 3 and 4 to 7 of each eight */
	__m512i low4 = _mm512_unpacklo_epi16(l, h), high4 = _mm512_unpackhi_epi16(l, h);
	const __m512i first = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11);
	const __m512i second = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
	_mm512_storeu_si512(to, _mm512_permutex2var_epi64(low4, first, high4));
	_mm512_storeu_si512(to + 16, _mm512_permutex2var_epi64(low4, second, high4));
}

/* Returns 16 pairs (low[i], high[i]); the pairs from the n-th on are 0. */
static inline __m512i pairs_of(const uint16_t *low, const uint16_t *high, int64_t n)
{
	__mmask16 m = (__mmask16)first_mask(n);
	__m512i l = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(m, low));
	__m512i h = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(m, high));
	return _mm512_or_si512(l, _mm512_slli_epi32(h, 16));
}
#endif
