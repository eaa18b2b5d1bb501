/* Linear layers. */
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/pieces.h"

/* Returns the rows of x, or with `across` its columns, as an operand. An 8-bit matrix may have
 * only its transposed copy. */
static struct operand as_operand(struct mat x, bool across)
{
	if (x.p)
		return (struct operand){x.p, x.cols, across, x.type};
	return (struct operand){x.transposed, x.rows, !across, x.type};
}

/* Computes c = left right (+ c, or + bias), with the scales of a and b; k: terms of a sum. */
static void matmul(struct mat c, struct mat a, struct operand left, struct mat b,
	struct operand right, int64_t k, bool add, struct mat bias)
{
	const struct gemm g = {
		.m = c.rows,
		.n = c.cols,
		.k = k,
		.left = left,
		.right = right,
		.c = c.p,
		.c_stride = c.cols,
		.type = c.type,
		.add = add,
		.alpha = a.scale ? *a.scale * *b.scale : 1,
		.bias = bias,
	};
	K(gemm)(&g);
}

void K(linear_fwd)(
	struct device *d, struct mat y, struct mat x, struct mat w, struct mat bias)
{
	BUG_ON(y.rows != x.rows || y.cols != w.rows || x.cols != w.cols);
	matmul(y, x, as_operand(x, false), w, as_operand(w, false), x.cols, false, bias);
}

void K(linear_bwd_x)(
	struct device *d, struct mat dx, struct mat dy, struct mat w, bool add)
{
	const struct mat none = {0};
	BUG_ON(dx.rows != dy.rows || dx.cols != w.cols || dy.cols != w.rows);
	matmul(dx, dy, as_operand(dy, false), w, as_operand(w, true), w.rows, add, none);
}

void K(linear_bwd_w)(
	struct device *d, struct mat dw, struct mat dy, struct mat x, bool add)
{
	const struct mat none = {0};
	BUG_ON(dw.rows != dy.cols || dw.cols != x.cols || dy.rows != x.rows);
	matmul(dw, dy, as_operand(dy, true), x, as_operand(x, true), x.rows, add, none);
}

void K(linear_gelu_fwd)(struct device *d, struct mat y, struct mat a, struct mat x,
	struct mat w, struct mat bias)
{
	const struct mat none = {0};
	K(linear_fwd)(d, a, x, w, bias);
	K(act_fwd)(d, ACT_GELU_TANH, y, a, none);
}

/* Computes da = gelu'(a) (dy w), and its column sums unless sums.p is NULL. */
void K(linear_gelu_bwd)(struct device *d, struct mat da, struct mat dy, struct mat w,
	struct mat a, struct mat sums)
{
	const struct mat none = {0};
	K(linear_bwd_x)(d, da, dy, w, false);
	K(act_bwd)(d, ACT_GELU_TANH, da, none, da, a, none);
	if (sums.p)
		K(bias_bwd)(d, sums, da);
}

/* Adds the bias to each row of y. */
void K(bias_fwd)(struct device *d, struct mat y, struct mat bias)
{
	BUG_ON(bias.cols != y.cols);
#pragma omp parallel for if (mat_size(y) > PARALLEL_FROM)
	for (int64_t i = 0; i < y.rows; i++) {
		float buf[PIECE], buf_b[PIECE];
		for (int64_t c = 0; c < y.cols; c += PIECE) {
			int64_t n = min64(PIECE, y.cols - c), at = i * y.cols + c;
			float *out = piece_load(y, at, n, buf);
			const float *b = piece_load(bias, c, n, buf_b);
			for (int64_t j = 0; j < n; j++)
				out[j] += b[j];
			piece_store(y, at, n, out);
		}
	}
}

/* Sets db to the sum of the rows of dy, in blocks of 64 rows. */
void K(bias_bwd)(struct device *d, struct mat db, struct mat dy)
{
	enum { COLS = 64, ROWS = 64 };
	BUG_ON(db.cols != dy.cols);
#pragma omp parallel for if (mat_size(dy) > PARALLEL_FROM)
	for (int64_t c = 0; c < dy.cols; c += COLS) {
		int64_t n = min64(COLS, dy.cols - c);
		float total[COLS] = {0}, buf[PIECE];
		for (int64_t r = 0; r < dy.rows; r += ROWS) {
			float part[COLS] = {0};
			for (int64_t i = r; i < min64(r + ROWS, dy.rows); i++) {
				const float *up = piece_load(dy, i * dy.cols + c, n, buf);
				for (int64_t j = 0; j < n; j++)
					part[j] += up[j];
			}
			for (int64_t j = 0; j < n; j++)
				total[j] += part[j];
		}
		memcpy((float *)db.p + c, total, (size_t)n * sizeof(float));
	}
}
