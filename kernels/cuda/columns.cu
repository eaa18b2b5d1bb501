/* Sums over rows: the gradients of biases and of the weights of norms.
 *
 * A block adds a run of rows, each of its 8 warps every eighth row; a second kernel adds the
 * partial sums, one block per 32 columns. The number of runs depends only on the shape. */
#include "kernels/cuda/columns.h"

enum { MAX_RUNS = 256 };

struct column_runs cuda_column_runs(int64_t rows, int64_t row_elements)
{
	struct column_runs r;
	int64_t max_runs =
		min64(MAX_RUNS, CUDA_WORKSPACE / (row_elements * (int64_t)sizeof(float)));
	BUG_ON(max_runs < 1);
	r.rows = round_up(max64(64, ceil_div(rows, max_runs)), WARPS_PER_BLOCK);
	r.n = ceil_div(rows, r.rows);
	return r;
}

/* Sets part[run] to the sums of dy, followed for a norm by the sums of dy (x - mean) rstd. */
template <bool NORM, int N, typename T>
static __global__ void __launch_bounds__(THREADS) sum_run_kernel(float *part, const T *dy,
	const float *x, const float *mean, const float *rstd, int64_t rows, int64_t cols,
	struct column_runs runs, bool whole)
{
	enum { SUMS = NORM ? 2 : 1, COLS = N * WARP, AT_ONCE = 4 };
	__shared__ float sums[SUMS][WARPS_PER_BLOCK][COLS];
	const int lane = lane_number(), warp = warp_number();
	int64_t first_col = (int64_t)blockIdx.x * COLS, j = first_col + lane * N;
	int64_t first = blockIdx.y * runs.rows, end = min64(first + runs.rows, rows);
	float b[N] = {}, g[N] = {};
	for (int64_t i = first + warp; i < end; i += AT_ONCE * WARPS_PER_BLOCK) {
		packed<T, N> up[AT_ONCE];
		packed<float, N> in[AT_ONCE];
#pragma unroll
		for (int r = 0; r < AT_ONCE; r++) {
			int64_t row = i + r * WARPS_PER_BLOCK;
			int64_t left = row < end ? cols - j : 0;
			up[r] = fetch<N>(dy + row * cols + j, left, whole);
			if (NORM)
				in[r] = fetch<N>(x + row * cols + j, left, whole);
		}
#pragma unroll
		for (int r = 0; r < AT_ONCE; r++) {
			int64_t row = min64(i + r * WARPS_PER_BLOCK, end - 1);
			float u[N], h[N];
			unpack(u, up[r]);
			if (NORM)
				unpack(h, in[r]);
			for (int k = 0; k < N; k++) {
				b[k] += u[k]; /* 0 past the end */
				if (NORM)
					g[k] += u[k] * ((h[k] - mean[row]) * rstd[row]);
			}
		}
	}
	store_warp_sums(sums[0], b);
	if (NORM)
		store_warp_sums(sums[SUMS - 1], g);
	__syncthreads();
	sum_over_warps(part + (int64_t)blockIdx.y * SUMS * cols, sums, first_col, cols);
}

/* Sums each column of dy over runs of rows, in the order of sum_run_kernel<false>, with packs of
 * more rows in flight. WHOLE: rows are aligned for packs. */
enum { SUM_BLOCKS = 4 };
template <bool WHOLE, int N, typename T>
static __global__ void __launch_bounds__(THREADS, SUM_BLOCKS) sum_columns_kernel(
	float *part, const T *dy, int64_t rows, int64_t cols, struct column_runs runs)
{
	enum { COLS = N * WARP, AT_ONCE = WHOLE ? 8 : 4 };
	__shared__ float sums[1][WARPS_PER_BLOCK][COLS];
	int64_t first_col = (int64_t)blockIdx.x * COLS, j = first_col + lane_number() * N;
	int64_t first = blockIdx.y * runs.rows;
	int64_t end = j < cols ? min64(first + runs.rows, rows) : first;
	float b[N] = {};
	for (int64_t i = first + warp_number(); i < end; i += AT_ONCE * WARPS_PER_BLOCK) {
		packed<T, N> up[AT_ONCE] = {};
#pragma unroll
		for (int r = 0; r < AT_ONCE; r++) {
			int64_t row = i + r * WARPS_PER_BLOCK;
			const T *from = dy + row * cols + j;
			if (row < end)
				up[r] = WHOLE ? *(const packed<T, N> *)from
					      : fetch<N>(from, cols - j, false);
		}
#pragma unroll
		for (int r = 0; r < AT_ONCE; r++) {
			float u[N];
			unpack(u, up[r]);
			for (int k = 0; k < N; k++)
				b[k] += u[k]; /* 0 past the end */
		}
	}
	store_warp_sums(sums[0], b);
	__syncthreads();
	sum_over_warps(part + (int64_t)blockIdx.y * cols, sums, first_col, cols);
}

/* Sets result blockIdx.y to the sum of part[n][gridDim.y][cols] over n. */
static __global__ void __launch_bounds__(WARP *WARP) join_runs_kernel(float *first,
	float *second, float *third, const float *part, int64_t n, int64_t cols)
{
	enum { AT_ONCE = MAX_RUNS / WARP };
	__shared__ float sums[WARP][WARP];
	const int lane = lane_number(), warp = warp_number();
	const int64_t col = (int64_t)blockIdx.x * WARP + lane, stride = gridDim.y * cols;
	float *out = blockIdx.y == 0 ? first : blockIdx.y == 1 ? second : third;
	float total = 0;
	if (!out)
		return;
	part += blockIdx.y * cols;
	for (int64_t i = warp; i < n; i += AT_ONCE * WARP) {
		float v[AT_ONCE] = {};
#pragma unroll
		for (int k = 0; k < AT_ONCE; k++)
			if (i + k * WARP < n && col < cols)
				v[k] = part[(i + k * WARP) * stride + col];
#pragma unroll
		for (int k = 0; k < AT_ONCE; k++)
			total += v[k];
	}
	sums[warp][lane] = total;
	__syncthreads();
	if (warp > 0 || col >= cols)
		return;
	for (int w = 1; w < WARP; w++)
		total += sums[w][lane];
	out[col] = total;
}

void cuda_join_runs(struct device *d, const char *name, int64_t cols,
	const struct column_sums *to, const float *part, int64_t n)
{
	dim3 grid = grid_of(ceil_div(cols, WARP));
	grid.y = (unsigned)to->n;
	launch(d, name, grid, WARP * WARP, 0, join_runs_kernel, to->out[0], to->out[1],
		to->out[2], part, n, cols);
}

/* Sets to->out[0] to the sum of dy over its rows and, with NORM, to->out[1] to the sum of dy (x -
 * mean) rstd, through partial sums in the workspace. */
template <bool NORM>
static void launch_sum_rows(struct device *d, const char *name,
	const struct column_sums *to, struct mat dy, const float *x, const float *mean,
	const float *rstd)
{
	int64_t rows = dy.rows, cols = dy.cols;
	struct column_runs runs = cuda_column_runs(rows, to->n * cols);
	float *part = (float *)cuda_workspace(
		d, (size_t)(runs.n * to->n * cols) * sizeof(float));
	call_by_type(dy.type, [&](auto t) {
		using T = decltype(t);
		enum { N = NORM ? PER_PACK<float> : PER_PACK<T> };
		const T *up = (const T *)dy.p;
		dim3 grid = grid_of(ceil_div(cols, N * WARP));
		grid.y = (unsigned)runs.n;
		bool whole = in_packs(cols, N, up, x);
		if (NORM || cuda_lab_off(d, LAB_BIAS))
			launch(d, name, grid, THREADS, 0, sum_run_kernel<NORM, N, T>,
				part, up, x, mean, rstd, rows, cols, runs, whole);
		else
			launch(d, name, grid, THREADS, 0,
				whole ? sum_columns_kernel<true, N, T>
				      : sum_columns_kernel<false, N, T>,
				part, up, rows, cols, runs);
	});
	cuda_join_runs(d, name, cols, to, part, runs.n);
}

void cuda_bias_bwd(struct device *d, struct mat db, struct mat dy)
{
	const struct column_sums to = {{floats_of(db)}, 1};
	BUG_ON(db.cols != dy.cols);
	launch_sum_rows<false>(d, "bias_bwd", &to, dy, NULL, NULL, NULL);
}

/* Sets dgamma, and dbeta unless NULL, to sums over rows [first, first + rows). */
void cuda_norm_bwd_w(struct device *d, enum norm_kind, struct mat dgamma,
	struct mat dbeta, struct mat dy, struct mat x, struct mat stats, int64_t first,
	int64_t rows)
{
	const float *in = floats_of(mat_rows(x, first, rows));
	const float *mean = floats_of(stats) + first, *rstd = mean + x.rows;
	const struct column_sums to = {{floats_of(dbeta), floats_of(dgamma)}, 2};
	launch_sum_rows<true>(
		d, "norm_bwd_w", &to, mat_rows(dy, first, rows), in, mean, rstd);
}
