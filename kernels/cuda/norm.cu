/* LayerNorm and RMSNorm, forward beside backward, and fused with what is before them. */
#include "kernels/cuda/columns.h"
#include "kernels/cuda/residual.h"

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

/* What a norm needs beside its rows. */
template <typename T> struct norm_args {
	enum norm_kind kind;
	T *y;
	float *stats;
	const float *gamma, *beta;
	float eps;
	int64_t rows;
	int cols;
	bool whole;  /* rows of all matrices can be read in packs */
	float *amax; /* of y */
};

/* From a row in registers, with zeros behind it, to what the norm makes of it. */
template <int WARPS, int PACKS, typename T>
static __device__ inline void norm_row(
	float (&v)[PACKS][N], const struct norm_args<T> &n, int64_t row)
{
	float g[N], b[N] = {}, sum = 0, square = 0, mean = 0;
	unsigned most = 0, seen = amax_seen(n.amax);
	T *y = n.y + row * n.cols;
	if (n.kind == NORM_LAYER) {
		for (int p = 0; p < PACKS; p++)
			for (int i = 0; i < N; i++)
				sum += v[p][i];
		mean = row_sum<WARPS>(sum) / (float)n.cols;
	}
	for (int p = 0; p < PACKS; p++) {
		for (int i = 0; i < N; i++) {
			bool here = pack_at<WARPS>(p) + i < n.cols;
			v[p][i] = here ? v[p][i] - mean : 0;
			square += v[p][i] * v[p][i];
		}
	}
	float rstd = 1.0f / sqrtf(row_sum<WARPS>(square) / (float)n.cols + n.eps);
	if (my_part<WARPS>() == 0) {
		n.stats[row] = mean;
		n.stats[n.rows + row] = rstd;
	}
#pragma unroll
	for (int p = 0; p < PACKS; p++) {
		int j = pack_at<WARPS>(p), left = n.cols - j;
		load(g, n.gamma + j, left, n.whole);
		if (n.beta)
			load(b, n.beta + j, left, n.whole);
		for (int i = 0; i < N; i++) {
			v[p][i] = v[p][i] * rstd * g[i];
			v[p][i] = n.beta ? v[p][i] + b[i] : v[p][i];
		}
		store(y + j, v[p], left, n.whole);
		most = amax_bits(v[p], most); /* zeros behind the end */
	}
	raise_amax<WARPS, T>(n.amax, seen, most);
}

template <int WARPS, int PACKS, typename T>
static __global__ void __launch_bounds__(threads_of_rows<WARPS>()) norm_fwd_kernel(
	enum norm_kind kind, T *y, float *stats, const float *x, const float *gamma,
	const float *beta, int64_t rows, int cols, float eps, float *amax, bool whole)
{
	int64_t row = my_row<WARPS>();
	float v[PACKS][N];
	if (row >= rows)
		return;
	x += row * cols;
#pragma unroll
	for (int p = 0; p < PACKS; p++) {
		int j = pack_at<WARPS>(p);
		load(v[p], x + j, cols - j, whole);
	}
	const struct norm_args<T> n = {
		kind, y, stats, gamma, beta, eps, rows, cols, whole, amax
	};
	norm_row<WARPS>(v, n, row);
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
				floats_of(stats), in, g, b, rows, (int)cols, eps,
				amax_on_the_way(d, y), whole);
		});
	});
	amax_apart(d, y);
}

/* ---- with the residual sum before ---------------------------------------------------- */

/* y = x + dropout(sum + bias), and its norm, while the row is in registers. */
template <int WARPS, int PACKS, typename S, typename T>
static __global__ void __launch_bounds__(threads_of_rows<WARPS>()) residual_norm_kernel(
	enum norm_kind kind, T *h, float *stats, float *y, const float *x, const S *sum,
	const float *bias, const float *gamma, const float *beta, int64_t rows, int cols,
	float eps, struct dropout o, bool drops, float *amax, bool whole)
{
	int64_t row = my_row<WARPS>();
	float v[PACKS][N];
	packed<S, N> in[PACKS];
	if (row >= rows)
		return;
	x += row * cols;
	y += row * cols;
	sum += row * cols;
#pragma unroll
	for (int p = 0; p < PACKS; p++) {
		int j = pack_at<WARPS>(p);
		load(v[p], x + j, cols - j, whole);
		in[p] = fetch<N>(sum + j, cols - j, whole);
	}
#pragma unroll
	for (int p = 0; p < PACKS; p++) {
		int j = pack_at<WARPS>(p), left = cols - j;
		if (left <= 0)
			continue;
		residual(v[p], in[p], bias, o, drops, place{row, j}, left, whole);
		store(y + j, v[p], left, whole);
	}
	const struct norm_args<T> n = {
		kind, h, stats, gamma, beta, eps, rows, cols, whole, amax
	};
	norm_row<WARPS>(v, n, row);
}

template <typename S, typename T>
static void residual_norm(struct device *d, struct mat y, struct mat x, struct mat sum,
	struct mat bias, const struct dropout *o, const struct norm *n)
{
	const S *in = (const S *)sum.p;
	T *h = (T *)n->h.p;
	float *out = floats_of(y);
	const float *stream = floats_of(x), *b = floats_of(bias);
	const float *gamma = floats_of(n->gamma), *beta = floats_of(n->beta);
	int64_t rows = y.rows, cols = y.cols;
	struct dropout none = {};
	bool whole = in_packs(out, cols, N) && in_packs(stream, cols, N) &&
		     in_packs(in, cols, N) && in_packs(h, cols, N) && in_packs(b, 0, N) &&
		     in_packs(gamma, 0, N) && in_packs(beta, 0, N);
	by_cols(cols, [&](auto w) {
		using W = decltype(w);
		launch(d, "residual_norm", grid_of_rows<W::WARPS>(rows),
			threads_of_rows<W::WARPS>(), 0,
			residual_norm_kernel<W::WARPS, W::PACKS, S, T>, n->kind, h,
			floats_of(n->stats), out, stream, in, b, gamma, beta, rows,
			(int)cols, n->eps, o ? *o : none, o != NULL,
			amax_on_the_way(d, n->h), whole);
	});
	amax_apart(d, n->h);
}

void cuda_residual_norm(struct device *d, struct mat y, struct mat x, struct mat sum,
	struct mat bias, const struct dropout *o, const struct norm *n)
{
	BUG_ON(x.rows != y.rows || sum.rows != y.rows);
	BUG_ON(x.cols != y.cols || sum.cols != y.cols);
	BUG_ON(n->stats.cols != y.rows || n->gamma.cols != y.cols);
	BUG_ON(sum.type != DT_F32 && sum.type != n->h.type);
	by_type(n->h.type, [&](auto t) {
		using T = decltype(t);
		(sum.type == DT_F32 ? residual_norm<float, T> : residual_norm<T, T>)(d, y,
			x, sum, bias, o, n);
	});
}

/* ---- backward ------------------------------------------------------------------------ */

/*
 * With h = (x - mean) rstd and e = dy gamma:
 * LayerNorm dx = rstd (e - mean(e) - h mean(e h)); RMSNorm has no mean(e).
 */
template <int WARPS, int PACKS, typename T>
static __device__ inline void fetch_row(float (&h)[PACKS][N], packed<T, N> (&up)[PACKS],
	const float *x, const T *dy, int cols, bool whole)
{
#pragma unroll
	for (int p = 0; p < PACKS; p++) {
		int j = pack_at<WARPS>(p);
		load(h[p], x + j, cols - j, whole);
		up[p] = fetch<N>(dy + j, cols - j, whole);
	}
}

/* dx += its part of a row, from x, which becomes h, and dy. e is made twice: registers for it
 * are dearer. */
template <int WARPS, int PACKS, typename T>
static __device__ inline void bwd_x_row(enum norm_kind kind, float *dx,
	float (&h)[PACKS][N], const packed<T, N> (&up)[PACKS], const float *gamma,
	float mean, float rstd, int cols, bool whole)
{
	float g[N], e[N], sum_e = 0, sum_eh = 0, mean_e = 0;
#pragma unroll
	for (int p = 0; p < PACKS; p++) {
		int j = pack_at<WARPS>(p);
		load(g, gamma + j, cols - j, whole);
		unpack(e, up[p]);
		for (int i = 0; i < N; i++) {
			h[p][i] = (h[p][i] - mean) * rstd;
			e[i] *= g[i]; /* 0 behind the end */
			sum_e += e[i];
			sum_eh += e[i] * h[p][i];
		}
	}
	if (kind == NORM_LAYER)
		mean_e = row_sum<WARPS>(sum_e) / (float)cols;
	float mean_eh = row_sum<WARPS>(sum_eh) / (float)cols;
#pragma unroll
	for (int p = 0; p < PACKS; p++) {
		int j = pack_at<WARPS>(p);
		float to[N];
		load(to, dx + j, cols - j, whole);
		load(g, gamma + j, cols - j, whole);
		unpack(e, up[p]);
		for (int i = 0; i < N; i++)
			to[i] += rstd * (e[i] * g[i] - mean_e - h[p][i] * mean_eh);
		store(dx + j, to, cols - j, whole);
	}
}

template <int WARPS, int PACKS, typename T>
static __global__ void __launch_bounds__(threads_of_rows<WARPS>()) norm_bwd_x_kernel(
	enum norm_kind kind, float *dx, const T *dy, const float *x, const float *mean,
	const float *rstd, const float *gamma, int64_t rows, int cols, bool whole)
{
	int64_t row = my_row<WARPS>();
	packed<T, N> up[PACKS];
	float h[PACKS][N];
	if (row >= rows)
		return;
	fetch_row<WARPS>(h, up, x + row * cols, dy + row * cols, cols, whole);
	bwd_x_row<WARPS>(
		kind, dx + row * cols, h, up, gamma, mean[row], rstd[row], cols, whole);
}

/* Packs of a row that a warp has registers for beside those of the sums of norm_bwd. */
enum { MOST_PACKS_F32 = 8, MOST_PACKS_BETA = 13, MOST_PACKS = 16 };

/* What norm_bwd gives to one warp has the order of one warp here, too. */
template <typename T, typename F> static void by_cols_bwd(int64_t cols, F fn)
{
	constexpr int most = sizeof(T) == 4 ? MOST_PACKS_F32 : MOST_PACKS;
	if (cols > N * MOST_PACKS_F32 * WARP && cols <= N * most * WARP)
		fn(width<1, most>());
	else
		by_cols(cols, fn);
}

/* Of rows [first, first + rows). */
static void bwd_x_rows(struct device *d, enum norm_kind kind, struct mat dx,
	struct mat dy, struct mat x, struct mat stats, struct mat gamma, int64_t first,
	int64_t rows)
{
	int64_t cols = x.cols;
	float *out = floats_of(mat_rows(dx, first, rows));
	const float *in = floats_of(mat_rows(x, first, rows)), *g = floats_of(gamma);
	const float *mean = floats_of(stats) + first, *rstd = mean + x.rows;
	by_type(dy.type, [&](auto t) {
		using T = decltype(t);
		const T *up = (const T *)mat_rows(dy, first, rows).p;
		bool whole = in_packs(out, cols, N) && in_packs(up, cols, N) &&
			     in_packs(in, cols, N) && in_packs(g, 0, N);
		by_cols_bwd<T>(cols, [&](auto w) {
			using W = decltype(w);
			launch(d, "norm_bwd_x", grid_of_rows<W::WARPS>(rows),
				threads_of_rows<W::WARPS>(), 0,
				norm_bwd_x_kernel<W::WARPS, W::PACKS, T>, kind, out, up,
				in, mean, rstd, g, rows, (int)cols, whole);
		});
	});
}

void cuda_norm_bwd_x(struct device *d, enum norm_kind kind, struct mat dx, struct mat dy,
	struct mat x, struct mat stats, struct mat gamma)
{
	bwd_x_rows(d, kind, dx, dy, x, stats, gamma, 0, x.rows);
}

/* ---- with the gradients of the weights ----------------------------------------------- */

/*
 * A block has a run of rows, as in norm_bwd_w, and its warps every eighth of them: what a warp
 * has in registers for dx, it adds to its sums too. So the sums are those of norm_bwd_w. Where it
 * goes, two blocks share a multiprocessor, and one loads while the other computes. BETA: there is
 * a gradient of beta, which needs a quarter of the registers of a row.
 */
template <int PACKS, bool BETA, typename T>
static __global__ void __launch_bounds__(THREADS, sizeof(T) == 2 && PACKS <= 6 ? 2 : 1)
	norm_bwd_kernel(enum norm_kind kind, float *dx, float *part, const T *dy,
		const float *x, const float *mean, const float *rstd, const float *gamma,
		int64_t rows, int cols, struct runs runs, bool whole)
{
	enum { SUMS = BETA ? 2 : 1 };
	__shared__ float sums[SUMS][WARPS_A_BLOCK][N * WARP];
	int64_t first = blockIdx.x * runs.rows, end = min64(first + runs.rows, rows);
	float b[BETA ? PACKS : 1][N] = {}, g[PACKS][N] = {};
	for (int64_t row = first + warp_number(); row < end; row += WARPS_A_BLOCK) {
		packed<T, N> up[PACKS];
		float h[PACKS][N];
		fetch_row<1>(h, up, x + row * cols, dy + row * cols, cols, whole);
		bwd_x_row<1>(kind, dx + row * cols, h, up, gamma, mean[row], rstd[row],
			cols, whole);
#pragma unroll
		for (int p = 0; p < PACKS; p++) {
			for (int i = 0; i < N; i++) {
				float u = number_of(up[p], i);
				if (BETA)
					b[p][i] += u;
				g[p][i] += u * h[p][i]; /* 0 behind the end */
			}
		}
	}
	part += (int64_t)blockIdx.x * 2 * cols + (BETA ? 0 : cols);
#pragma unroll
	for (int p = 0; p < PACKS; p++) {
		__syncthreads(); /* those of the last pack are read */
		if (BETA)
			keep_sums(sums[0], b[p]);
		keep_sums(sums[SUMS - 1], g[p]);
		__syncthreads();
		add_warps(part, sums, p * N * WARP, cols);
	}
}

static int64_t most_packs(struct device *d, enum dtype type, bool beta)
{
	if (type == DT_F32 || cuda_lab_off(d, LAB_NORM))
		return MOST_PACKS_F32;
	return beta ? MOST_PACKS_BETA : MOST_PACKS;
}

template <int P, bool B> struct row_sums {
	enum { PACKS = P };
	static constexpr bool BETA = B;
};

template <typename T, bool BETA, typename F> static void by_packs(int64_t packs, F fn)
{
	constexpr int of_sums = BETA ? MOST_PACKS_BETA : MOST_PACKS;
	constexpr int most = sizeof(T) == 4 ? (int)MOST_PACKS_F32 : of_sums;
	if (packs <= 2)
		fn(row_sums<2, BETA>());
	else if (packs <= 6)
		fn(row_sums<6, BETA>());
	else if (packs <= 8)
		fn(row_sums<8, BETA>());
	else
		fn(row_sums<most, BETA>());
}

template <typename T, typename F> static void by_packs(int64_t packs, bool beta, F fn)
{
	if (beta)
		by_packs<T, true>(packs, fn);
	else
		by_packs<T, false>(packs, fn);
}

void cuda_norm_bwd(struct device *d, enum norm_kind kind, struct mat dx,
	struct mat dgamma, struct mat dbeta, struct mat dy, struct mat x,
	struct mat stats, struct mat gamma, int64_t first, int64_t rows)
{
	int64_t cols = x.cols, packs = ceil_div(cols, N * WARP);
	struct runs runs = cuda_runs_of(rows, 2 * cols);
	float *part = (float *)cuda_room(d, (size_t)(runs.n * 2 * cols) * sizeof(float));
	float *out = floats_of(mat_rows(dx, first, rows));
	const float *in = floats_of(mat_rows(x, first, rows)), *g = floats_of(gamma);
	const float *mean = floats_of(stats) + first, *rstd = mean + x.rows;
	if (packs > most_packs(d, dy.type, dbeta.p)) {
		bwd_x_rows(d, kind, dx, dy, x, stats, gamma, first, rows);
		cuda_norm_bwd_w(d, kind, dgamma, dbeta, dy, x, stats, first, rows);
		return;
	}
	by_type(dy.type, [&](auto t) {
		using T = decltype(t);
		const T *up = (const T *)mat_rows(dy, first, rows).p;
		bool whole = in_packs(out, cols, N) && in_packs(up, cols, N) &&
			     in_packs(in, cols, N) && in_packs(g, 0, N);
		by_packs<T>(packs, dbeta.p, [&](auto w) {
			using W = decltype(w);
			launch(d, "norm_bwd", grid_of(runs.n), THREADS, 0,
				norm_bwd_kernel<W::PACKS, W::BETA, T>, kind, out, part,
				up, in, mean, rstd, g, rows, (int)cols, runs, whole);
		});
	});
	cuda_join_norm(d, "norm_bwd", dgamma, dbeta, part, runs);
}
