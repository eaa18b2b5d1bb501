/* The units of bf16, and of the 8-bit formats, which are widened to bf16.
 *
 * The order of sums is defined by the AMX instruction TDPBF16PS (Intel's manual of instruction
 * extensions). In each GROUP of 32 terms, the terms with even indices form one chain of fused
 * multiply-adds that begins with 0, the terms with odd indices another; the sum of the two chains
 * is added to the sum of the previous groups. Subnormal numbers are 0 in operands and results.
 *
 * AVX-512's VDPBF16PS adds the products of two pairs to one element, one after the other, the odd
 * pair first. So operands are packed such that one instruction has two terms of the same chain.
 * Processors with neither compute the chains in fp32. The bits are the same, which test_gemm.c
 * checks for the units that the processor has. The unit for AMX itself is in gemm_amx.c. */
#include "kernels/cpu/gemm_unit.h"

#include <stdatomic.h>

enum { QUAD = 4, DEPTH = 768 };

static int64_t round_to_group(int64_t n_k)
{
	return round_up(n_k, GROUP);
}

#if defined(__x86_64__)
static _Thread_local unsigned caller_csr; /* SSE control register of the caller */

/* Saves this thread's SSE control register, and makes subnormal operands and results 0. */
void K(flush_begin)(void)
{
	enum { DENORMALS_ARE_ZERO = 0x40, FLUSH_TO_ZERO = 0x8000 };
	caller_csr = _mm_getcsr();
	_mm_setcsr(caller_csr | DENORMALS_ARE_ZERO | FLUSH_TO_ZERO);
}

void K(flush_end)(void)
{
	_mm_setcsr(caller_csr);
}
#else
void K(flush_begin)(void)
{
}

void K(flush_end)(void)
{
}
#endif

/* ---- fp32 -------------------------------------------------------------------------- */

/* Packs a left panel of the fp32 unit, padded with zeros to a whole group. */
static void pack_left_padded(void *to, const struct operand *x, int64_t i, int64_t count,
	int64_t k, int64_t n_k)
{
	size_t n_padding = (size_t)(round_to_group(n_k) - n_k) * sizeof(float);
	float *row = to;
	K(gemm_fp32).pack_left(to, x, i, count, k, n_k);
	for (int64_t r = 0; n_padding && r < round_up(count, ROWS);
		r++, row += FP32_STRIDE) {
		if (!x->across)
			memset(row + n_k, 0, n_padding);
		else if (r % ROWS == 0)
			memset(row + n_k * ROWS, 0, n_padding * ROWS);
	}
}

/* Packs a right panel of the fp32 unit, padded with zeros to a whole group. */
static void pack_right_padded(void *to, const struct operand *x, int64_t j, int64_t count,
	int64_t k, int64_t n_k)
{
	size_t n_padding = (size_t)(round_to_group(n_k) - n_k) * sizeof(float);
	K(gemm_fp32).pack_right(to, x, j, count, k, n_k);
	memset((float *)to + n_k * COLS, 0, n_padding * COLS);
}

/* Adds to the sums, group by group, the chain of the even terms plus the chain of the odd terms. */
static inline __attribute__((always_inline)) void multiply_chains(float *sums,
	const float *left, int64_t row_stride, int64_t k_stride, const float *right,
	int64_t n_k)
{
	for (int64_t k = 0; k < n_k; k += GROUP) {
		const float *a = left + k * k_stride, *b = right + k * COLS;
		vec even[ROWS][VECTORS], odd[ROWS][VECTORS], spilled[ROWS][VECTORS];
		chain(even, a, row_stride, k_stride, b, GROUP, 2);
		memcpy(spilled, even, sizeof(spilled)); /* frees the registers */
		chain(odd, a + k_stride, row_stride, k_stride, b + COLS, GROUP, 2);
#pragma GCC unroll 16
		for (int i = 0; i < ROWS; i++)
#pragma GCC unroll 4
			for (int v = 0; v < VECTORS; v++)
				*(vec *)(sums + i * COLS + v * LANES) +=
					spilled[i][v] + odd[i][v];
	}
}

/* Sets a tile of sums to (first ? 0 : sums) + left right, by chains in fp32. */
static void multiply_fp32(float *sums, const void *left, int64_t row_bytes,
	const void *right, int64_t n_k, bool across, bool first)
{
	if (first)
		zero_sums(sums, ROWS * COLS);
	if (across)
		multiply_chains(sums, left, 1, ROWS, right, round_to_group(n_k));
	else
		multiply_chains(sums, left, row_bytes / (int64_t)sizeof(float), 1, right,
			round_to_group(n_k));
}

static const struct gemm_unit by_fp32 = {.name = "fp32",
	.rows = ROWS,
	.cols = COLS,
	.depth = FP32_DEPTH,
	.row_bytes = FP32_STRIDE * sizeof(float),
	.col_bytes = FP32_DEPTH * sizeof(float),
	.pack_left = pack_left_padded,
	.pack_right = pack_right_padded,
	.multiply = multiply_fp32,
	.begin = K(flush_begin),
	.end = K(flush_end)};

/* ---- AVX-512 BF16 ------------------------------------------------------------------ */

#if defined(__AVX512F__)
enum {
	BF_ROWS = ROWS,
	BF_VECTORS = 2,
	BF_COLS = 16 * BF_VECTORS,
	BF_STRIDE = DEPTH + 32
};

/* Turns each four terms 0 1 2 3 into the pairs (2, 0) and (3, 1). x has n terms; the terms up to a
 * whole group are 0. */
static void pair_line(uint16_t *to, const uint16_t *x, int64_t n)
{
	const __m512i order =
		_mm512_set4_epi32(0x0b0a0f0e, 0x09080d0c, 0x03020706, 0x01000504);
	for (int64_t i = 0; i < round_to_group(n); i += GROUP) {
		__m512i v = _mm512_maskz_loadu_epi16(first_mask(n - i), x + i);
		_mm512_storeu_si512(to + i, _mm512_shuffle_epi8(v, order));
	}
}

/* Sets to[i] to the pair (low[i], high[i]), in whole vectors; 0 from the n-th on. */
static inline void zip_pairs(
	uint32_t *to, const uint16_t *low, const uint16_t *high, int64_t n)
{
	int64_t i = 0;
	for (; i + 32 <= n; i += 32)
		all_pairs(to + i, low + i, high + i);
	for (; i < n; i += 16)
		_mm512_storeu_si512(to + i, pairs_of(low + i, high + i, n - i));
}

/* Elements [i, i + count) of the lines of a QUAD of terms; 0 for terms from n_k on. */
struct quad {
	const uint16_t *line[QUAD];
	uint16_t buf[QUAD][GEMM_TASK_ROWS];
};

/* Sets the lines of a quad, converted to bf16 in q->buf if they are 8-bit; zeros from n_k on. */
static __attribute__((noinline)) void widen_quad(struct quad *q, const struct operand *x,
	int64_t i, int64_t count, int64_t k, int64_t n_k)
{
	static const uint16_t zero[GEMM_TASK_ROWS];
	for (int l = 0; l < QUAD; l++)
		q->line[l] = l < n_k ? line_bf16(x, k + l, i, count, q->buf[l]) : zero;
}

/* Gets the four lines of a quad as bf16 and loads later lines into the cache. */
static inline void load_quad(struct quad *q, const struct operand *x, int64_t i,
	int64_t count, int64_t k, int64_t n_k)
{
	enum { AHEAD = 16 };
	for (int64_t l = AHEAD; l < min64(AHEAD + QUAD, n_k); l++)
		prefetch_line(x, k + l, i, count);
	if (x->type != DT_BF16 || n_k < QUAD) {
		widen_quad(q, x, i, count, k, n_k);
		return;
	}
	for (int l = 0; l < QUAD; l++)
		q->line[l] = (const uint16_t *)x->p + (k + l) * x->stride + i;
}

/* Packs [n_k / 2][BF_ROWS] pairs per panel from a matrix with a line per term. Lines are read
 * once, for all panels. */
static void pack_left_across(word *to, const struct operand *x, int64_t i, int64_t count,
	int64_t k, int64_t n_k)
{
	enum { PANEL = BF_ROWS * BF_STRIDE / 2, PAIRS = GEMM_TASK_ROWS + 15 };
	struct quad q;
	word pairs[PAIRS];
	for (int64_t n = 0; n < round_to_group(n_k); n += QUAD, to += 2 * BF_ROWS) {
		load_quad(&q, x, i, count, k + n, n_k - n);
		zip_pairs(pairs, q.line[2], q.line[0], count);
		scatter_line(to, PANEL, pairs, count);
		zip_pairs(pairs, q.line[3], q.line[1], count);
		scatter_line(to + BF_ROWS, PANEL, pairs, count);
	}
}

/* Packs `count` rows from the i-th on as pairs of terms, BF_ROWS rows to a panel, padded with 0. */
static void pack_left_pairs(void *to, const struct operand *x, int64_t i, int64_t count,
	int64_t k, int64_t n_k)
{
	uint16_t *row = to, line[DEPTH];
	if (x->across) {
		pack_left_across(to, x, i, count, k, n_k);
		return;
	}
	for (int64_t r = 0; r < round_up(count, BF_ROWS); r++, row += BF_STRIDE) {
		if (r < count)
			pair_line(row, line_bf16(x, i + r, k, n_k, line), n_k);
		else
			memset(row, 0, (size_t)round_to_group(n_k) * sizeof(*row));
	}
}

/* Packs [n_k / 2][BF_COLS] pairs from a matrix with a line per term. */
static void pack_right_across(word *to, const struct operand *x, int64_t j, int64_t count,
	int64_t k, int64_t n_k)
{
	struct quad q;
	if (count < BF_COLS)
		memset(to, 0, (size_t)(round_to_group(n_k) / 2 * BF_COLS) * sizeof(*to));
	for (int64_t n = 0; n < round_to_group(n_k); n += QUAD, to += 2 * BF_COLS) {
		load_quad(&q, x, j, count, k + n, n_k - n);
		zip_pairs(to, q.line[2], q.line[0], count);
		zip_pairs(to + BF_COLS, q.line[3], q.line[1], count);
	}
}

/* Packs [n_k / 2][BF_COLS] pairs of terms from `count` columns, NEAR terms at a time. */
static void pack_right_pairs(void *to, const struct operand *x, int64_t j, int64_t count,
	int64_t k, int64_t n_k)
{
	enum { NEAR = 128 };
	uint16_t lines[BF_COLS * NEAR] __attribute__((aligned(64)));
	uint16_t line[NEAR];
	if (x->across) {
		pack_right_across(to, x, j, count, k, n_k);
		return;
	}
	if (count < BF_COLS)
		memset(lines, 0, sizeof(lines));
	for (int64_t at = 0; at < round_to_group(n_k); at += NEAR) {
		int64_t n = min64(NEAR, n_k - at);
		for (int64_t i = 0; i < count; i++)
			pair_line(lines + i * NEAR, line_bf16(x, j + i, k + at, n, line),
				n);
		transpose_words((uint32_t *)to + at / 2 * BF_COLS, BF_COLS, lines,
			NEAR / 2, BF_COLS, round_to_group(n) / 2);
	}
}

/* Adds left right to sums; strides are in pairs. */
static inline __attribute__((always_inline, target("avx512bf16"))) void multiply_pairs(
	float *sums, const uint32_t *left, int64_t row_stride, int64_t pair_stride,
	const uint32_t *right, int64_t n_k)
{
	for (int64_t k = 0; k < n_k; k += GROUP) {
		__m512 c[2][BF_ROWS]
			[BF_VECTORS]; /* sums of the even and of the odd terms */
#pragma GCC unroll 4
		for (int odd = 0; odd < 2; odd++)
#pragma GCC unroll 8
			for (int i = 0; i < BF_ROWS; i++)
#pragma GCC unroll 4
				for (int v = 0; v < BF_VECTORS; v++)
					c[odd][i][v] = _mm512_setzero_ps();
		for (int64_t q = 0; q < GROUP / 2; q += 2) {
			const uint32_t *a = left + q * pair_stride;
			const uint32_t *b = right + q * BF_COLS;
#pragma GCC unroll 4
			for (int odd = 0; odd < 2; odd++) {
				__m512bh y[BF_VECTORS];
#pragma GCC unroll 4
				for (int v = 0; v < BF_VECTORS; v++)
					y[v] = (__m512bh)_mm512_load_si512(
						b + odd * BF_COLS + v * 16);
#pragma GCC unroll 8
				for (int i = 0; i < BF_ROWS; i++) {
					__m512bh x = (__m512bh)_mm512_set1_epi32(
						(int)a[i * row_stride +
							odd * pair_stride]);
#pragma GCC unroll 4
					for (int v = 0; v < BF_VECTORS; v++)
						c[odd][i][v] = _mm512_dpbf16_ps(
							c[odd][i][v], x, y[v]);
				}
			}
		}
#pragma GCC unroll 8
		for (int i = 0; i < BF_ROWS; i++)
#pragma GCC unroll 4
			for (int v = 0; v < BF_VECTORS; v++)
				*(__m512 *)(sums + i * BF_COLS + v * 16) +=
					c[0][i][v] + c[1][i][v];
		left += GROUP / 2 * pair_stride;
		right += GROUP / 2 * BF_COLS;
	}
}

/* Sets a tile of sums to (first ? 0 : sums) + left right, by VDPBF16PS. */
__attribute__((target("avx512bf16"))) static void multiply_bf16(float *sums,
	const void *left, int64_t row_bytes, const void *right, int64_t n_k, bool across,
	bool first)
{
	if (first)
		zero_sums(sums, BF_ROWS * BF_COLS);
	if (across)
		multiply_pairs(sums, left, 1, BF_ROWS, right, round_to_group(n_k));
	else
		multiply_pairs(sums, left, row_bytes / (int64_t)sizeof(word), 1, right,
			round_to_group(n_k));
}

static const struct gemm_unit by_pairs = {.name = "avx512_bf16",
	.rows = BF_ROWS,
	.cols = BF_COLS,
	.depth = DEPTH,
	.row_bytes = BF_STRIDE * sizeof(uint16_t),
	.col_bytes = DEPTH * sizeof(uint16_t),
	.pack_left = pack_left_pairs,
	.pack_right = pack_right_pairs,
	.multiply = multiply_bf16,
	.begin = K(flush_begin),
	.end = K(flush_end)};
#endif

/* ---- choosing a unit --------------------------------------------------------------- */

#if defined(__AVX512F__)
/* Returns true if the unit adds in the order of Intel's manual, with the bits of the fp32 unit. */
static bool adds_in_order(const struct gemm_unit *u)
{
	enum { M = 19, N = 33, K = 80 }; /* more than one tile each */
	uint16_t left[M * K], right[N * K];
	float sums[2][M * N];
	const struct gemm_unit *const by[] = {u, &by_fp32};
	uint32_t x = 1;
	/* Below 2, so that no sum overflows or is NaN, which has many bit patterns. Some elements
	 * of the first row are subnormal. */
	for (int i = 0; i < M * K; i++)
		left[i] = (uint16_t)((x = x * 1664525 + 1013904223) >> 16 &
				     (i < K ? 0x80ff : 0xbfff));
	for (int i = 0; i < N * K; i++)
		right[i] = (uint16_t)((x = x * 1664525 + 1013904223) >> 16 & 0xbfff);
	for (int i = 0; i < 2; i++) {
		const struct gemm g = {.m = M,
			.n = N,
			.k = K,
			.left = {left, K, false, DT_BF16},
			.right = {right, K, false, DT_BF16},
			.c = sums[i],
			.c_stride = N,
			.alpha = 1,
			.serial = true};
		K(gemm_by)(&g, by[i]);
	}
	return !memcmp(sums[0], sums[1], sizeof(sums[0]));
}

/* Returns adds_in_order() of the unit, and stores it in *state, so that later calls need not test
 * again. Several threads may test at the same time. */
static bool is_usable(const struct gemm_unit *u, atomic_int *state)
{
	enum { UNKNOWN, RIGHT, WRONG };
	int known = atomic_load_explicit(state, memory_order_relaxed);
	if (known == UNKNOWN) {
		known = adds_in_order(u) ? RIGHT : WRONG;
		atomic_store(state, known);
	}
	return known == RIGHT;
}
#endif

/* Returns the unit for bf16: the fp32 unit, slower, if the processor has another order of sums. */
const struct gemm_unit *K(gemm_bf16)(enum isa isa)
{
#if defined(__AVX512F__)
	static atomic_int amx, pairs;
	if (isa >= ISA_AMX_BF16 && is_usable(&K(gemm_amx), &amx))
		return &K(gemm_amx);
	if (isa >= ISA_AVX512_BF16 && is_usable(&by_pairs, &pairs))
		return &by_pairs;
#endif
	return &by_fp32;
}
