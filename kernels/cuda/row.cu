/* Linear layers of single rows, for decoding: a warp has a row of w and multiplies it with the rows
 * of x. The order of additions depends only on the width. */
#include "kernels/cuda/vector.h"

/* Computes one column of ROWS rows of y = x w^T + bias per warp. */
template <int ROWS>
static __global__ void __launch_bounds__(THREADS)
	linear_row_kernel(float *y, const float *x, const float *w, const float *bias,
		int64_t rows, int64_t in, int64_t out, bool whole)
{
	enum { N = PER_PACK<float> };
	int64_t col = thread_row<1>(), first = (int64_t)blockIdx.y * ROWS;
	float sum[ROWS] = {};
	if (col >= out)
		return;
	x += first * in;
	w += col * in;
#pragma unroll 2
	for (int64_t j = lane_number() * N; j < in; j += WARP * N) {
		float u[N], v[N];
		load(u, w + j, in - j, whole);
#pragma unroll
		for (int r = 0; r < ROWS; r++) {
			int64_t left = first + r < rows ? in - j : 0;
			load(v, x + r * in + j, left, whole);
			for (int i = 0; i < N; i++)
				sum[r] = fmaf(u[i], v[i], sum[r]);
		}
	}
	for (int r = 0; r < ROWS; r++) {
		float total = warp_sum(sum[r]);
		if (lane_number() == 0 && first + r < rows)
			y[(first + r) * out + col] = bias ? total + bias[col] : total;
	}
}

/* Launches y = x w^T + bias with ROWS rows per warp. */
template <int ROWS>
static void linear_rows(
	struct device *d, struct mat y, struct mat x, struct mat w, const float *bias)
{
	enum { N = PER_PACK<float>, MAX_ROWS = ROWS << 15 };
	const float *b = floats_of(w);
	for (int64_t i = 0; i < x.rows; i += MAX_ROWS) {
		int64_t rows = min64(MAX_ROWS, x.rows - i);
		const float *a = floats_of(mat_rows(x, i, rows));
		dim3 grid = grid_of_rows<1>(y.cols);
		grid.y = (unsigned)ceil_div(rows, ROWS);
		launch(d, "linear_row", grid, THREADS, 0, linear_row_kernel<ROWS>,
			floats_of(mat_rows(y, i, rows)), a, b, bias, rows, x.cols, y.cols,
			in_packs(x.cols, N, a, b));
	}
}

/* Computes y = x w^T + bias with bits of a row that do not depend on the number of rows. */
void cuda_linear_row(
	struct device *d, struct mat y, struct mat x, struct mat w, struct mat bias)
{
	const float *b = floats_of(bias);
	BUG_ON(y.rows != x.rows || y.cols != w.rows || x.cols != w.cols);
	if (x.rows == 1)
		linear_rows<1>(d, y, x, w, b);
	else
		linear_rows<8>(d, y, x, w, b);
}
