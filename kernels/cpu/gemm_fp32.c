/* The unit of fp32, and of fp16, which is widened.
 *
 * An element is a sum of chains of fused multiply-adds. Each chain begins with 0 and has at most
 * FP32_DEPTH consecutive terms; the chains are added in order. The vectors hold columns of the
 * result, so the order does not depend on their width. */
#include "kernels/cpu/gemm_unit.h"

enum { PANEL = ROWS * FP32_STRIDE };

/* Packs [n_k][ROWS] elements per panel from a matrix with a line per term, which is read once. */
static void pack_left_across(float *to, const struct operand *x, int64_t i, int64_t count,
	int64_t k, int64_t n_k)
{
	enum { AHEAD = 8 };
	float buf[GEMM_TASK_ROWS];
	for (int64_t n = 0; n < n_k; n++) {
		if (n + AHEAD < n_k)
			prefetch_line(x, k + n + AHEAD, i, count);
		scatter_line(
			to + n * ROWS, PANEL, line_fp32(x, k + n, i, count, buf), count);
	}
}

/* Packs [ROWS][FP32_STRIDE] elements per panel, or with x->across [n_k][ROWS]. */
static void pack_left(void *to, const struct operand *x, int64_t i, int64_t count,
	int64_t k, int64_t n_k)
{
	float *row = to;
	if (x->across) {
		pack_left_across(to, x, i, count, k, n_k);
		return;
	}
	for (int64_t r = 0; r < round_up(count, ROWS); r++, row += FP32_STRIDE) {
		const float *from = row;
		if (r < count)
			from = line_fp32(x, i + r, k, n_k, row);
		else
			memset(row, 0, (size_t)n_k * sizeof(float));
		if (from != row)
			memcpy(row, from, (size_t)n_k * sizeof(float));
	}
}

/* Packs [n_k][COLS] elements from a matrix with a line per term. */
static void pack_right_across(float *to, const struct operand *x, int64_t j,
	int64_t count, int64_t k, int64_t n_k)
{
	for (; n_k-- > 0; k++, to += COLS) {
		const float *from = line_fp32(x, k, j, count, to);
		/* For a constant size, memcpy() is a few vector instructions. */
		if (from != to && count == COLS)
			memcpy(to, from, COLS * sizeof(float));
		else if (from != to)
			memcpy(to, from, (size_t)count * sizeof(float));
		for (int64_t i = count; i < COLS; i++)
			to[i] = 0;
	}
}

/* Packs [n_k][COLS] elements. */
static void pack_right(void *to, const struct operand *x, int64_t j, int64_t count,
	int64_t k, int64_t n_k)
{
	enum { NEAR = 64 }; /* terms at a time, which stay in the L1 cache */
	float lines[COLS * NEAR];
	if (x->across) {
		pack_right_across(to, x, j, count, k, n_k);
		return;
	}
	if (count < COLS)
		memset(to, 0, (size_t)(n_k * COLS) * sizeof(float));
	for (int64_t at = 0; at < n_k; at += NEAR) {
		int64_t n = min64(NEAR, n_k - at);
		const float *first = line_fp32(x, j, k + at, n, lines);
		int64_t stride = first == lines ? NEAR : x->stride;
		for (int64_t i = 1; i < count && first == lines; i++)
			line_fp32(x, j + i, k + at, n, lines + i * NEAR);
		transpose_words((float *)to + at * COLS, COLS, first, stride, count, n);
	}
}

/* Sets a tile of sums to (first ? 0 : sums) + the chains over n_k terms. */
static inline __attribute__((always_inline)) void multiply_panels(float *sums,
	const float *left, int64_t row_stride, int64_t k_stride, const float *right,
	int64_t n_k, bool first)
{
	vec c[ROWS][VECTORS];
	chain(c, left, row_stride, k_stride, right, n_k, 1);
#pragma GCC unroll 16
	for (int i = 0; i < ROWS; i++)
#pragma GCC unroll 4
		for (int v = 0; v < VECTORS; v++) {
			vec *to = (vec *)(sums + i * COLS + v * LANES);
			if (!first)
				c[i][v] += *to;
			*to = c[i][v];
		}
}

static void multiply_fp32(float *sums, const void *left, int64_t row_bytes,
	const void *right, int64_t n_k, bool across, bool first)
{
	int64_t row_stride = row_bytes / (int64_t)sizeof(float);
	if (across)
		multiply_panels(sums, left, 1, ROWS, right, n_k, first);
	else
		multiply_panels(sums, left, row_stride, 1, right, n_k, first);
}

const struct gemm_unit K(gemm_fp32) = {.name = "fp32",
	.rows = ROWS,
	.cols = COLS,
	.depth = FP32_DEPTH,
	.row_bytes = FP32_STRIDE * sizeof(float),
	.col_bytes = FP32_DEPTH * sizeof(float),
	.term_bytes = sizeof(float),
	.pack_left = pack_left,
	.pack_right = pack_right,
	.multiply = multiply_fp32,
	.in_place = true};
