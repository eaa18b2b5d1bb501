/* Linear layers. */
#include "kernels/cpu/gemm.h"

static struct operand operand(struct mat x, bool across)
{
	return (struct operand){x.p, x.cols, across, x.type};
}

static void matmul(struct mat c, struct operand left, struct operand right, int64_t k,
	const float *const scale[2], bool add, const float *bias)
{
	const struct gemm g = {c.rows, c.cols, k, left, right, c.p, c.cols, c.type, add,
		scale[0] ? *scale[0] * *scale[1] : 1, bias, false};
	K(gemm)(&g);
}

void K(linear_fwd)(
	struct device *d, struct mat y, struct mat x, struct mat w, struct mat bias)
{
	BUG_ON(y.rows != x.rows || y.cols != w.rows || x.cols != w.cols);
	matmul(y, operand(x, false), operand(w, false), x.cols,
		(const float *[]){x.scale, w.scale}, false, bias.p);
}

void K(linear_bwd_x)(
	struct device *d, struct mat dx, struct mat dy, struct mat w, bool add)
{
	BUG_ON(dx.rows != dy.rows || dx.cols != w.cols || dy.cols != w.rows);
	matmul(dx, operand(dy, false), operand(w, true), w.rows,
		(const float *[]){dy.scale, w.scale}, add, NULL);
}

void K(linear_bwd_w)(
	struct device *d, struct mat dw, struct mat dy, struct mat x, bool add)
{
	BUG_ON(dw.rows != dy.cols || dw.cols != x.cols || dy.rows != x.rows);
	matmul(dw, operand(dy, true), operand(x, true), x.rows,
		(const float *[]){dy.scale, x.scale}, add, NULL);
}

void K(linear_gelu_fwd)(struct device *d, struct mat y, struct mat a, struct mat x,
	struct mat w, struct mat bias)
{
	const struct mat none = {0};
	K(linear_fwd)(d, a, x, w, bias);
	K(act_fwd)(d, ACT_GELU_TANH, y, a, none);
}

void K(linear_gelu_bwd)(
	struct device *d, struct mat da, struct mat dy, struct mat w, struct mat a)
{
	const struct mat none = {0};
	K(linear_bwd_x)(d, da, dy, w, false);
	K(act_bwd)(d, ACT_GELU_TANH, da, none, da, a, none);
}

void K(bias_fwd)(struct device *d, struct mat y, struct mat bias)
{
	BUG_ON(bias.cols != y.cols);
	const float *b = bias.p;
#pragma omp parallel for if (mat_size(y) > PARALLEL_FROM)
	for (int64_t i = 0; i < y.rows; i++) {
		float *out = mat_row(y, i);
		for (int64_t j = 0; j < y.cols; j++)
			out[j] += b[j];
	}
}

void K(bias_bwd)(struct device *d, struct mat db, struct mat dy)
{
	enum { COLS = 64, ROWS = 64 };
	BUG_ON(db.cols != dy.cols);
#pragma omp parallel for if (mat_size(dy) > PARALLEL_FROM)
	for (int64_t c = 0; c < dy.cols; c += COLS) {
		int64_t n = min64(COLS, dy.cols - c);
		float total[COLS] = {0};
		for (int64_t r = 0; r < dy.rows; r += ROWS) {
			float part[COLS] = {0};
			for (int64_t i = r; i < min64(r + ROWS, dy.rows); i++)
				for (int64_t j = 0; j < n; j++)
					part[j] += ((
						const float *)dy.p)[i * dy.cols + c + j];
			for (int64_t j = 0; j < n; j++)
				total[j] += part[j];
		}
		memcpy((float *)db.p + c, total, (size_t)n * sizeof(float));
	}
}
