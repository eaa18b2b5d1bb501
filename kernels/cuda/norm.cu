/* LayerNorm and RMSNorm, forward beside backward. */
#include "kernels/cuda/vector.h"

/* A row is in the registers of its threads: each has up to PACKS packs of it, those whose
 * number is its own plus a multiple of how many threads there are. */
enum { N = PER_PACK<float> };

template <int W, int P> struct width {
	enum { WARPS = W, PACKS = P };
};

template <typename F> static void by_cols(int64_t cols, F fn)
{
	BUG_ON(cols > N * 8 * 32 * WARP);
	if (cols <= N * 2 * WARP)
		fn(width<1, 2>());
	else if (cols <= N * 8 * WARP)
		fn(width<1, 8>());
	else if (cols <= N * 4 * 8 * WARP)
		fn(width<8, 4>());
	else if (cols <= N * 8 * 8 * WARP)
		fn(width<8, 8>());
	else if (cols <= N * 8 * 16 * WARP)
		fn(width<16, 8>());
	else
		fn(width<32, 8>());
}

/* Where pack p of this thread begins. */
template <int WARPS> static __device__ inline int pack_at(int p)
{
	return (p * WARPS * WARP + my_part<WARPS>()) * N;
}

template <int WARPS, int PACKS, typename T>
static __global__ void __launch_bounds__(threads_of_rows<WARPS>()) norm_fwd_kernel(
	enum norm_kind kind, T *y, float *stats, const float *x, const float *gamma,
	const float *beta, int64_t rows, int cols, float eps, bool whole)
{
	int64_t row = my_row<WARPS>();
	float v[PACKS][N], g[N], b[N] = {}, sum = 0, square = 0, mean = 0;
	if (row >= rows)
		return;
	x += row * cols;
	y += row * cols;
#pragma unroll
	for (int p = 0; p < PACKS; p++) {
		int j = pack_at<WARPS>(p);
		load(v[p], x + j, cols - j, whole);
	}
	if (kind == NORM_LAYER) {
		for (int p = 0; p < PACKS; p++)
			for (int i = 0; i < N; i++)
				sum += v[p][i];
		mean = row_sum<WARPS>(sum) / (float)cols;
	}
	for (int p = 0; p < PACKS; p++) {
		for (int i = 0; i < N; i++) {
			bool here = pack_at<WARPS>(p) + i < cols;
			v[p][i] = here ? v[p][i] - mean : 0;
			square += v[p][i] * v[p][i];
		}
	}
	float rstd = 1.0f / sqrtf(row_sum<WARPS>(square) / (float)cols + eps);
	if (my_part<WARPS>() == 0) {
		stats[row] = mean;
		stats[rows + row] = rstd;
	}
#pragma unroll
	for (int p = 0; p < PACKS; p++) {
		int j = pack_at<WARPS>(p);
		load(g, gamma + j, cols - j, whole);
		if (beta)
			load(b, beta + j, cols - j, whole);
		for (int i = 0; i < N; i++) {
			v[p][i] = v[p][i] * rstd * g[i];
			v[p][i] = beta ? v[p][i] + b[i] : v[p][i];
		}
		store(y + j, v[p], cols - j, whole);
	}
}

void cuda_norm_fwd(struct device *d, enum norm_kind kind, struct mat y, struct mat stats,
	struct mat x, struct mat gamma, struct mat beta, float eps)
{
	int64_t rows = x.rows, cols = x.cols;
	const float *in = floats_of(x), *g = floats_of(gamma), *b = floats_of(beta);
	BUG_ON(stats.cols != rows || gamma.cols != cols);
	by_type(y.type, [&](auto t) {
		using T = decltype(t);
		T *out = (T *)y.p;
		bool whole = in_packs(out, cols, N) && in_packs(in, cols, N) &&
			     in_packs(g, 0, N) && in_packs(b, 0, N);
		by_cols(cols, [&](auto w) {
			using W = decltype(w);
			launch(d, "norm_fwd", grid_of_rows<W::WARPS>(rows),
				threads_of_rows<W::WARPS>(), 0,
				norm_fwd_kernel<W::WARPS, W::PACKS, T>, kind, out,
				floats_of(stats), in, g, b, rows, (int)cols, eps, whole);
		});
	});
}

/*
 * With h = (x - mean) rstd and e = dy gamma:
 * LayerNorm dx = rstd (e - mean(e) - h mean(e h)); RMSNorm has no mean(e).
 */
template <int WARPS, int PACKS, typename T>
static __global__ void __launch_bounds__(threads_of_rows<WARPS>()) norm_bwd_x_kernel(
	enum norm_kind kind, float *dx, const T *dy, const float *x, const float *stats,
	const float *gamma, int64_t rows, int cols, bool whole)
{
	int64_t row = my_row<WARPS>();
	packed<T, N> up[PACKS];
	float h[PACKS][N], e[PACKS][N], sum_e = 0, sum_eh = 0, mean_e = 0;
	if (row >= rows)
		return;
	const float mean = stats[row], rstd = stats[rows + row];
	x += row * cols;
	dy += row * cols;
	dx += row * cols;
#pragma unroll
	for (int p = 0; p < PACKS; p++) {
		int j = pack_at<WARPS>(p);
		load(h[p], x + j, cols - j, whole);
		up[p] = fetch<N>(dy + j, cols - j, whole);
	}
#pragma unroll
	for (int p = 0; p < PACKS; p++) {
		int j = pack_at<WARPS>(p);
		float g[N];
		load(g, gamma + j, cols - j, whole);
		unpack(e[p], up[p]);
		for (int i = 0; i < N; i++) {
			h[p][i] = (h[p][i] - mean) * rstd;
			e[p][i] *= g[i]; /* 0 behind the end */
			sum_e += e[p][i];
			sum_eh += e[p][i] * h[p][i];
		}
	}
	if (kind == NORM_LAYER)
		mean_e = row_sum<WARPS>(sum_e) / (float)cols;
	float mean_eh = row_sum<WARPS>(sum_eh) / (float)cols;
	for (int p = 0; p < PACKS; p++)
		for (int i = 0; i < N; i++)
			e[p][i] = rstd * (e[p][i] - mean_e - h[p][i] * mean_eh);
#pragma unroll
	for (int p = 0; p < PACKS; p++) {
		int j = pack_at<WARPS>(p);
		load(h[p], dx + j, cols - j, whole);
	}
#pragma unroll
	for (int p = 0; p < PACKS; p++) {
		int j = pack_at<WARPS>(p);
		for (int i = 0; i < N; i++)
			h[p][i] += e[p][i];
		store(dx + j, h[p], cols - j, whole);
	}
}

void cuda_norm_bwd_x(struct device *d, enum norm_kind kind, struct mat dx, struct mat dy,
	struct mat x, struct mat stats, struct mat gamma)
{
	int64_t rows = x.rows, cols = x.cols;
	float *out = floats_of(dx);
	const float *in = floats_of(x), *g = floats_of(gamma);
	by_type(dy.type, [&](auto t) {
		using T = decltype(t);
		const T *up = (const T *)dy.p;
		bool whole = in_packs(out, cols, N) && in_packs(up, cols, N) &&
			     in_packs(in, cols, N) && in_packs(g, 0, N);
		by_cols(cols, [&](auto w) {
			using W = decltype(w);
			launch(d, "norm_bwd_x", grid_of_rows<W::WARPS>(rows),
				threads_of_rows<W::WARPS>(), 0,
				norm_bwd_x_kernel<W::WARPS, W::PACKS, T>, kind, out, up,
				in, floats_of(stats), g, rows, (int)cols, whole);
		});
	});
}
