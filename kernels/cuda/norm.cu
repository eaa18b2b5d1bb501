/* LayerNorm and RMSNorm, forward and backward, and fused with the residual sum before them. */
#include "kernels/cuda/columns.h"
#include "kernels/cuda/cuda_internal.h"
#include "kernels/cuda/residual.h"

/* The registers of its threads hold a row, up to PACKS packs each: thread i of n has packs
 * i, i + n, ... */
enum { N = PER_PACK<float> };

/* WHOLE_: rows and vectors are aligned for packs, and a thread has PACKS or PACKS - 1 packs. */
template <int W, int P, bool WHOLE_ = false> struct width {
	enum { WARPS = W, PACKS = P };
	static constexpr bool WHOLE = WHOLE_;
};

/* Calls fn(width<...>()) with the warps per row and packs per thread for rows of `cols` columns. */
template <typename F> static void call_by_cols(int64_t cols, F fn)
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

/* The maximum number of packs per thread for which one warp has the registers for a row. */
enum { MAX_PACKS = 16 };

/* Calls fn() as call_by_cols(), but with one warp per row for up to 2048 columns. */
template <typename F> static void call_by_cols_of_warp(int64_t cols, F fn)
{
	if (cols > N * 8 * WARP && cols <= N * MAX_PACKS * WARP)
		fn(width<1, MAX_PACKS>());
	else
		call_by_cols(cols, fn);
}

/* call_by_cols_of_warp(), with the same bits but fewer registers and instructions for aligned rows
 * of the usual models: 768, 1024, 1280, 1600 and 2048 columns, or a little fewer. */
template <typename F>
static void call_by_cols_fwd(struct device *d, int64_t cols, bool whole, F fn)
{
	int64_t packs = ceil_div(cols, N * WARP);
	if (cuda_lab_off(d, LAB_NORM_WARP))
		call_by_cols(cols, fn);
	else if (whole && packs == 6)
		fn(width<1, 6, true>());
	else if (whole && packs == 8)
		fn(width<1, 8, true>());
	else if (whole && packs == 10)
		fn(width<1, 10, true>());
	else if (whole && packs == 13)
		fn(width<1, 13, true>());
	else if (whole && packs == MAX_PACKS)
		fn(width<1, MAX_PACKS, true>());
	else
		call_by_cols_of_warp(cols, fn);
}

/* Returns the blocks of aligned rows per multiprocessor. DATA: data registers per thread. */
template <bool WHOLE, int DATA> static constexpr int blocks_of_rows(void)
{
	return !WHOLE || DATA > 80 ? 1 : DATA > 36 ? 2 : 3;
}

/* The first column of pack p of this thread is first_column() + pack_step(p): pointers that include
 * first_column() need no registers per pack. */
template <int WARPS> static __device__ inline int first_column(void)
{
	return index_in_row<WARPS>() * N;
}

template <int WARPS> static __device__ constexpr int pack_step(int p)
{
	return p * WARPS * WARP * N;
}

template <int WARPS> static __device__ inline int pack_column(int p)
{
	return first_column<WARPS>() + pack_step<WARPS>(p);
}

/* Returns the number of elements of a row from pack p of this thread on. */
template <int WARPS, int PACKS, bool WHOLE>
static __device__ inline int elements_left(int cols, int p)
{
	int left = cols - pack_column<WARPS>(p);
	if (!WHOLE)
		return left;
	return p < PACKS - 1 || left > 0 ? N : 0;
}

/* Packs of gamma and beta, or of a bias, with loads in flight together. */
enum { AT_ONCE = 4 };

/* Arguments of a norm, except its rows. */
template <typename T> struct norm_args {
	enum norm_kind kind;
	T *y;
	float *stats;
	const float *gamma, *beta;
	float eps;
	int64_t rows;
	int cols;
	bool whole;  /* rows of all matrices are aligned for packs */
	float *amax; /* amax of y */
};

/* Normalizes a zero-padded row in registers; stores it and its statistics, and raises n.amax. */
template <int WARPS, bool WHOLE, int PACKS, typename T>
static __device__ inline void norm_row(
	float (&v)[PACKS][N], const struct norm_args<T> &n, int64_t row)
{
	float sum = 0, square = 0, mean = 0;
	unsigned max_bits = 0, old_bits = read_amax(n.amax);
	const bool whole = WHOLE || n.whole;
	T *y = n.y + row * n.cols + first_column<WARPS>();
	const float *gamma = n.gamma + first_column<WARPS>();
	if (n.kind == NORM_LAYER) {
		for (int p = 0; p < PACKS; p++)
			for (int i = 0; i < N; i++)
				sum += v[p][i];
		mean = row_sum<WARPS>(sum) / (float)n.cols;
	}
	for (int p = 0; p < PACKS; p++) {
		for (int i = 0; i < N; i++) {
			bool in_row = i < elements_left<WARPS, PACKS, WHOLE>(n.cols, p);
			v[p][i] = in_row ? v[p][i] - mean : 0;
			square += v[p][i] * v[p][i];
		}
	}
	float rstd = 1.0f / sqrtf(row_sum<WARPS>(square) / (float)n.cols + n.eps);
	if (index_in_row<WARPS>() == 0) {
		n.stats[row] = mean;
		n.stats[n.rows + row] = rstd;
	}
	auto finish = [&](const float *beta) {
#pragma unroll
		for (int first = 0; first < PACKS; first += AT_ONCE) {
			float g[AT_ONCE][N], b[AT_ONCE][N];
#pragma unroll
			for (int p = first; p < first + AT_ONCE && p < PACKS; p++) {
				int j = pack_step<WARPS>(p);
				int left = elements_left<WARPS, PACKS, WHOLE>(n.cols, p);
				load(g[p - first], gamma + j, left, whole);
				if (beta)
					load(b[p - first], beta + j, left, whole);
			}
#pragma unroll
			for (int p = first; p < first + AT_ONCE && p < PACKS; p++) {
				int j = pack_step<WARPS>(p);
				int left = elements_left<WARPS, PACKS, WHOLE>(n.cols, p);
				for (int i = 0; i < N; i++) {
					v[p][i] = v[p][i] * rstd * g[p - first][i];
					v[p][i] = beta ? v[p][i] + b[p - first][i]
						       : v[p][i];
				}
				store(y + j, v[p], left, whole);
				max_bits = amax_bits(
					v[p], max_bits); /* zeros past the end */
			}
		}
	};
	if (WHOLE && !n.beta) /* the slow path is too much code to have it twice */
		finish(NULL);
	else
		finish(n.beta ? n.beta + first_column<WARPS>() : NULL);
	raise_amax<WARPS, T>(n.amax, old_bits, max_bits);
}

/* Normalizes a row per WARPS warps, and stores its mean and rstd. */
template <int WARPS, int PACKS, bool WHOLE, typename T>
static __global__ void __launch_bounds__(threads_of_rows<WARPS>(),
	blocks_of_rows<WHOLE, PACKS * N>()) norm_fwd_kernel(enum norm_kind kind, T *y,
	float *stats, const float *x, const float *gamma, const float *beta, int64_t rows,
	int cols, float eps, float *amax, bool whole)
{
	int64_t row = thread_row<WARPS>();
	float v[PACKS][N];
	if (row >= rows)
		return;
	x += row * cols + first_column<WARPS>();
#pragma unroll
	for (int p = 0; p < PACKS; p++) {
		int j = pack_step<WARPS>(p);
		load(v[p], x + j, elements_left<WARPS, PACKS, WHOLE>(cols, p),
			WHOLE || whole);
	}
	const struct norm_args<T> n = {
		kind, y, stats, gamma, beta, eps, rows, cols, whole, amax
	};
	norm_row<WARPS, WHOLE>(v, n, row);
}

/* Normalizes each row of x into y, and stores mean and rstd in stats; raises y's amax. */
void cuda_norm_fwd(struct device *d, enum norm_kind kind, struct mat y, struct mat stats,
	struct mat x, struct mat gamma, struct mat beta, float eps)
{
	int64_t rows = x.rows, cols = x.cols;
	const float *in = floats_of(x), *g = floats_of(gamma), *b = floats_of(beta);
	BUG_ON(stats.cols != rows || gamma.cols != cols);
	call_by_type(y.type, [&](auto t) {
		using T = decltype(t);
		T *out = (T *)y.p;
		bool whole = in_packs(cols, N, out, in) && in_packs(0, N, g, b);
		call_by_cols_fwd(d, cols, whole, [&](auto w) {
			using W = decltype(w);
			launch(d, "norm_fwd", grid_of_rows<W::WARPS>(rows),
				threads_of_rows<W::WARPS>(), 0,
				norm_fwd_kernel<W::WARPS, W::PACKS, W::WHOLE, T>, kind,
				out, floats_of(stats), in, g, b, rows, (int)cols, eps,
				y.amax, whole);
		});
	});
}

/* Computes y = x + dropout(sum + bias), and the norm of y, with the row in registers. */
template <int WARPS, int PACKS, bool WHOLE, typename S, typename T>
static __global__ void __launch_bounds__(threads_of_rows<WARPS>(),
	blocks_of_rows<WHOLE, PACKS *(N + PER_PACK<float> * (int)sizeof(S) / 4)>())
	residual_norm_kernel(enum norm_kind kind, T *h, float *stats, float *y,
		const float *x, const S *sum, const float *bias, const float *gamma,
		const float *beta, int64_t rows, int cols, float eps, struct dropout o,
		bool drops, float *amax, bool whole)
{
	int64_t row = thread_row<WARPS>();
	float v[PACKS][N];
	packed<S, N> in[PACKS];
	if (row >= rows)
		return;
	x += row * cols + first_column<WARPS>();
	y += row * cols + first_column<WARPS>();
	sum += row * cols + first_column<WARPS>();
#pragma unroll
	for (int p = 0; p < PACKS; p++) {
		int j = pack_step<WARPS>(p),
		    left = elements_left<WARPS, PACKS, WHOLE>(cols, p);
		load(v[p], x + j, left, WHOLE || whole);
		in[p] = fetch<N>(sum + j, left, WHOLE || whole);
	}
	auto add = [&](const float *b) {
#pragma unroll
		for (int first = 0; first < PACKS; first += AT_ONCE) {
#pragma unroll
			for (int p = first; p < first + AT_ONCE && p < PACKS; p++) {
				int j = WHOLE ? pack_step<WARPS>(p)
					      : pack_column<WARPS>(p);
				int left = elements_left<WARPS, PACKS, WHOLE>(cols, p);
				if (WHOLE || left > 0)
					add_residual(v[p], in[p], b, o, !WHOLE && drops,
						vector_place{row, j}, left,
						WHOLE || whole);
			}
#pragma unroll
			for (int p = first; p < first + AT_ONCE && p < PACKS; p++) {
				int j = pack_step<WARPS>(p);
				store(y + j, v[p],
					elements_left<WARPS, PACKS, WHOLE>(cols, p),
					WHOLE || whole);
			}
		}
	};
	if (WHOLE && bias)
		add(bias + first_column<WARPS>());
	else
		add(WHOLE ? NULL : bias);
	const struct norm_args<T> n = {
		kind, h, stats, gamma, beta, eps, rows, cols, whole, amax
	};
	norm_row<WARPS, WHOLE>(v, n, row);
}

/* Launches the fused kernel for a sum of type S and a norm of type T. */
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
	bool whole =
		in_packs(cols, N, out, stream, in, h) && in_packs(0, N, b, gamma, beta);
	call_by_cols_fwd(d, cols, whole && !o, [&](auto w) { /* WHOLE: without dropout */
		using W = decltype(w);
		launch(d, "residual_norm", grid_of_rows<W::WARPS>(rows),
			threads_of_rows<W::WARPS>(), 0,
			residual_norm_kernel<W::WARPS, W::PACKS, W::WHOLE, S, T>, n->kind,
			h, floats_of(n->stats), out, stream, in, b, gamma, beta, rows,
			(int)cols, n->eps, o ? *o : none, o != NULL, n->h.amax, whole);
	});
}

/* Computes y = x + dropout(sum + bias), then the norm of y and its statistics, in one kernel. */
void cuda_residual_norm(struct device *d, struct mat y, struct mat x, struct mat sum,
	struct mat bias, const struct dropout *o, const struct norm *n)
{
	BUG_ON(x.rows != y.rows || sum.rows != y.rows);
	BUG_ON(x.cols != y.cols || sum.cols != y.cols);
	BUG_ON(n->stats.cols != y.rows || n->gamma.cols != y.cols);
	BUG_ON(sum.type != DT_F32 && sum.type != n->h.type);
	call_by_type(n->h.type, [&](auto t) {
		using T = decltype(t);
		(sum.type == DT_F32 ? residual_norm<float, T> : residual_norm<T, T>)(d, y,
			x, sum, bias, o, n);
	});
}

/* Loads a row of x into h, and a row of dy. */
template <int WARPS, int PACKS, typename T>
static __device__ inline void fetch_row(float (&h)[PACKS][N], packed<T, N> (&up)[PACKS],
	const float *x, const T *dy, int cols, bool whole)
{
#pragma unroll
	for (int p = 0; p < PACKS; p++) {
		int j = pack_column<WARPS>(p);
		load(h[p], x + j, cols - j, whole);
		up[p] = fetch<N>(dy + j, cols - j, whole);
	}
}

/* Adds the gradient to a row of dx, from dy and h, which holds x and becomes h; then calls
 * use_pack(j, pack) for each pack. With h = (x - mean) rstd and e = dy gamma, LayerNorm dx = rstd
 * (e - mean(e) - h mean(e h)); RMSNorm has no mean(e). Computes e twice, to save registers. */
template <int WARPS, int PACKS, typename T, typename F>
static __device__ inline void bwd_x_row(enum norm_kind kind, float *dx,
	float (&h)[PACKS][N], const packed<T, N> (&up)[PACKS], const float *gamma,
	float mean, float rstd, int cols, bool whole, F use_pack)
{
	float g[N], e[N], sum_e = 0, sum_eh = 0, mean_e = 0;
#pragma unroll
	for (int p = 0; p < PACKS; p++) {
		int j = pack_column<WARPS>(p);
		load(g, gamma + j, cols - j, whole);
		unpack(e, up[p]);
		for (int i = 0; i < N; i++) {
			h[p][i] = (h[p][i] - mean) * rstd;
			e[i] *= g[i]; /* 0 past the end */
			sum_e += e[i];
			sum_eh += e[i] * h[p][i];
		}
	}
	if (kind == NORM_LAYER)
		mean_e = row_sum<WARPS>(sum_e) / (float)cols;
	float mean_eh = row_sum<WARPS>(sum_eh) / (float)cols;
#pragma unroll
	for (int p = 0; p < PACKS; p++) {
		int j = pack_column<WARPS>(p);
		float to[N];
		load(to, dx + j, cols - j, whole);
		load(g, gamma + j, cols - j, whole);
		unpack(e, up[p]);
		for (int i = 0; i < N; i++)
			to[i] += rstd * (e[i] * g[i] - mean_e - h[p][i] * mean_eh);
		store(dx + j, to, cols - j, whole);
		use_pack(j, to);
	}
}

/* Adds the gradient of x to dx, a row per WARPS warps. */
template <int WARPS, int PACKS, typename T>
static __global__ void __launch_bounds__(threads_of_rows<WARPS>()) norm_bwd_x_kernel(
	enum norm_kind kind, float *dx, const T *dy, const float *x, const float *mean,
	const float *rstd, const float *gamma, int64_t rows, int cols, bool whole)
{
	int64_t row = thread_row<WARPS>();
	packed<T, N> up[PACKS];
	float h[PACKS][N];
	if (row >= rows)
		return;
	fetch_row<WARPS>(h, up, x + row * cols, dy + row * cols, cols, whole);
	bwd_x_row<WARPS>(kind, dx + row * cols, h, up, gamma, mean[row], rstd[row], cols,
		whole, [](int, const float(&)[N]) {});
}

/* Adds the gradient of x to rows [first, first + rows) of dx. */
static void bwd_x_rows(struct device *d, enum norm_kind kind, struct mat dx,
	struct mat dy, struct mat x, struct mat stats, struct mat gamma, int64_t first,
	int64_t rows)
{
	int64_t cols = x.cols;
	float *out = floats_of(mat_rows(dx, first, rows));
	const float *in = floats_of(mat_rows(x, first, rows)), *g = floats_of(gamma);
	const float *mean = floats_of(stats) + first, *rstd = mean + x.rows;
	call_by_type(dy.type, [&](auto t) {
		using T = decltype(t);
		const T *up = (const T *)mat_rows(dy, first, rows).p;
		bool whole = in_packs(cols, N, out, up, in) && in_packs(0, N, g);
		call_by_cols_of_warp(cols, [&](auto w) {
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

/* Adds a pack x to sums. */
static __device__ inline void add_pack(float *sums, const float (&x)[N])
{
	pack<float, N> *at = (pack<float, N> *)sums, v = *at;
#pragma unroll
	for (int i = 0; i < N; i++)
		v.x[i] += x[i];
	*at = v;
}

/* Sets part[block][n_sums][cols] to the sums over warps of sums[n_sums][WARPS_PER_BLOCK][COLS]. */
template <int COLS>
static __device__ inline void join_warps(
	float *part, const float *sums, int n_sums, int cols)
{
	part += (int64_t)blockIdx.x * n_sums * cols;
	for (int at = (int)threadIdx.x; at < n_sums * COLS; at += THREADS) {
		int sum_index = at / COLS, col = at % COLS;
		float total = 0;
		for (int w = 0; w < WARPS_PER_BLOCK; w++)
			total += sums[(sum_index * WARPS_PER_BLOCK + w) * COLS + col];
		if (col < cols)
			part[sum_index * cols + col] = total;
	}
}

/* Returns the number of elements that a row of whole packs has in a pack: all or none. */
static __device__ inline int whole_pack_size(int left)
{
	return left > 0 ? N : 0;
}

/* Replaces x and y by their warp_sum(), interleaved. */
static __device__ inline void warp_sums(float &x, float &y)
{
	for (int i = WARP / 2; i; i /= 2) {
		x += __shfl_xor_sync(ALL_LANES, x, i);
		y += __shfl_xor_sync(ALL_LANES, y, i);
	}
}

/* Adds the gradient of x to a row `to` of dx in registers; h holds x and becomes (x - mean) rstd.
 * gamma is in shared memory. */
template <int PACKS, typename T>
static __device__ inline void bwd_x_in_registers(enum norm_kind kind,
	float (&to)[PACKS][N], float (&h)[PACKS][N], const packed<T, N> (&up)[PACKS],
	const float *gamma, float mean, float rstd, int cols)
{
	float e[N], sum_e = 0, sum_eh = 0;
#pragma unroll
	for (int p = 0; p < PACKS; p++) {
		const pack<float, N> g =
			*(const pack<float, N> *)(gamma + pack_column<1>(p));
		unpack(e, up[p]);
		for (int i = 0; i < N; i++) {
			h[p][i] = (h[p][i] - mean) * rstd;
			e[i] *= g.x[i]; /* 0 past the end */
			sum_e += e[i];
			sum_eh += e[i] * h[p][i];
		}
	}
	warp_sums(sum_e, sum_eh);
	float mean_e = kind == NORM_LAYER ? sum_e / (float)cols : 0;
	float mean_eh = sum_eh / (float)cols;
#pragma unroll
	for (int p = 0; p < PACKS; p++) {
		const pack<float, N> g =
			*(const pack<float, N> *)(gamma + pack_column<1>(p));
		unpack(e, up[p]);
		for (int i = 0; i < N; i++)
			to[p][i] += rstd * (e[i] * g.x[i] - mean_e - h[p][i] * mean_eh);
	}
}

/* Computes dx and all sums. A block has a run of rows, as in norm_bwd_w, each of its warps every
 * eighth row; a warp also adds the values that it has in registers for dx to its sums. So the sums
 * have the bits of norm_bwd_w, and the sums of the copy have the bits of bias_bwd. They are in
 * shared memory, which moves 6 KB for a sum and a row of 768, while device memory moves 12 KB at a
 * twentieth of the speed; with sums in registers only one block fits a multiprocessor.
 * part[run][n_sums][cols]: gamma, beta if BETA, and the copy if n_sums has one more. */
template <int PACKS, bool BETA, typename T, typename C>
static __global__ void __launch_bounds__(THREADS, PACKS <= 6 ? 2 : 1) norm_bwd_kernel(
	enum norm_kind kind, float *dx, C *copy, float *part, const T *dy, const float *x,
	const float *mean, const float *rstd, const float *gamma, int64_t rows, int cols,
	struct column_runs runs, int n_sums, float *amax, bool whole)
{
	enum { COLS = PACKS * N * WARP, OF_ALL_WARPS = WARPS_PER_BLOCK * COLS };
	enum { OF_BETA = 1, OF_COPY = BETA ? 2 : 1 };
	SHARED(memory);
	float *sums = (float *)memory; /* [n_sums][WARPS_PER_BLOCK][COLS] */
	float *own = sums + warp_number() * COLS;
	int64_t first = blockIdx.x * runs.rows, end = min64(first + runs.rows, rows);
	unsigned max_bits = 0;
	for (int i = (int)threadIdx.x; i < n_sums * OF_ALL_WARPS; i += THREADS)
		sums[i] = 0;
	__syncthreads();
	for (int64_t row = first + warp_number(); row < end; row += WARPS_PER_BLOCK) {
		packed<T, N> up[PACKS];
		float h[PACKS][N];
		fetch_row<1>(h, up, x + row * cols, dy + row * cols, cols, whole);
		bwd_x_row<1>(kind, dx + row * cols, h, up, gamma, mean[row], rstd[row],
			cols, whole, [&](int j, const float(&to)[N]) {
				float v[N];
				if (!copy)
					return;
				store(copy + row * cols + j, to, cols - j, whole);
				for (int i = 0; i < N; i++)
					v[i] = j + i < cols ? widen(narrow<C>(to[i])) : 0;
				max_bits = amax_bits(v, max_bits);
				if (n_sums > OF_COPY)
					add_pack(own + OF_COPY * OF_ALL_WARPS + j, v);
			});
#pragma unroll
		for (int p = 0; p < PACKS; p++) {
			float u[N];
			unpack(u, up[p]);
			if (BETA)
				add_pack(own + OF_BETA * OF_ALL_WARPS + pack_column<1>(p),
					u);
			for (int i = 0; i < N; i++)
				u[i] *= h[p][i]; /* 0 past the end */
			add_pack(own + pack_column<1>(p), u);
		}
	}
	raise_amax<1, C>(amax, 0, max_bits);
	__syncthreads();
	join_warps<COLS>(part, sums, n_sums, cols);
}

/* norm_bwd_kernel for aligned rows, with the same bits: all loads of a row are in flight at once,
 * so a row waits for device memory once. The kernel above waits for each pack of dx after the
 * stores of the previous pack. gamma is read from shared memory. */
template <int PACKS, bool BETA, typename T, typename C>
static __global__ void __launch_bounds__(THREADS, PACKS <= 6 ? 2 : 1)
	norm_bwd_loads_kernel(enum norm_kind kind, float *dx, C *copy, float *part,
		const T *dy, const float *x, const float *mean, const float *rstd,
		const float *gamma, int64_t rows, int cols, struct column_runs runs,
		int n_sums, float *amax)
{
	enum { COLS = PACKS * N * WARP, OF_ALL_WARPS = WARPS_PER_BLOCK * COLS };
	enum { OF_BETA = 1, OF_COPY = BETA ? 2 : 1 };
	SHARED(memory);
	float *sums = (float *)memory;		     /* [n_sums][WARPS_PER_BLOCK][COLS] */
	float *scale = sums + n_sums * OF_ALL_WARPS; /* [COLS]: gamma, and zeros */
	float *own = sums + warp_number() * COLS;
	int64_t first = blockIdx.x * runs.rows, end = min64(first + runs.rows, rows);
	unsigned max_bits = 0;
	for (int s = 0; s < n_sums; s++)
		for (int p = 0; p < PACKS; p++)
			*(pack<float, N> *)(own + s * OF_ALL_WARPS +
					    pack_column<1>(p)) = {};
	for (int i = (int)threadIdx.x; i < COLS; i += THREADS)
		scale[i] = i < cols ? gamma[i] : 0;
	__syncthreads();
	for (int64_t row = first + warp_number(); row < end; row += WARPS_PER_BLOCK) {
		packed<T, N> up[PACKS];
		float h[PACKS][N], to[PACKS][N], m = mean[row], r = rstd[row];
		const int64_t at = row * cols + first_column<1>();
		const float *from = x + at;
		const T *back = dy + at;
		float *out = dx + at;
#pragma unroll
		for (int p = 0; p < PACKS; p++) {
			int j = pack_step<1>(p),
			    left = whole_pack_size(cols - pack_column<1>(p));
			load(h[p], from + j, left, true);
			up[p] = fetch<N>(back + j, left, true);
			load(to[p], out + j, left, true);
		}
		bwd_x_in_registers(kind, to, h, up, scale, m, r, cols);
#pragma unroll
		for (int p = 0; p < PACKS; p++) {
			int j = pack_step<1>(p),
			    left = whole_pack_size(cols - pack_column<1>(p));
			store(out + j, to[p], left, true);
		}
#pragma unroll
		for (int p = 0; p < PACKS; p++) {
			float u[N];
			unpack(u, up[p]);
			if (BETA)
				add_pack(own + OF_BETA * OF_ALL_WARPS + pack_column<1>(p),
					u);
			for (int i = 0; i < N; i++)
				u[i] *= h[p][i]; /* 0 past the end */
			add_pack(own + pack_column<1>(p), u);
		}
		if (!copy)
			continue;
#pragma unroll
		for (int p = 0; p < PACKS; p++) {
			int j = pack_step<1>(p),
			    left = whole_pack_size(cols - pack_column<1>(p));
			store(copy + at + j, to[p], left, true);
			for (int i = 0; i < N; i++)
				to[p][i] = widen(narrow<C>(to[p][i]));
		}
		if (n_sums > OF_COPY)
#pragma unroll
			for (int p = 0; p < PACKS; p++)
				add_pack(own + OF_COPY * OF_ALL_WARPS + pack_column<1>(p),
					to[p]); /* anything past the end */
		if (amax)
#pragma unroll
			for (int p = 0; p < PACKS; p++)
				if (pack_column<1>(p) < cols)
					max_bits = amax_bits(to[p], max_bits);
	}
	raise_amax<1, C>(amax, 0, max_bits);
	__syncthreads();
	join_warps<COLS>(part, sums, n_sums, cols);
}

template <int P, bool B> struct row_sums {
	enum { PACKS = P, ROW_BYTES = P * N * WARP * (int)sizeof(float) };
	enum { SUM_BYTES = WARPS_PER_BLOCK * ROW_BYTES };
	static constexpr bool BETA = B;
};

/* Calls fn(row_sums<...>()) for rows of `packs` packs per lane of a warp. */
template <bool BETA, typename F> static void call_by_packs(int64_t packs, F fn)
{
	if (packs <= 2)
		fn(row_sums<2, BETA>());
	else if (packs <= 6)
		fn(row_sums<6, BETA>());
	else if (packs <= 8)
		fn(row_sums<8, BETA>());
	else
		fn(row_sums<(BETA ? 13 : MAX_PACKS), BETA>());
}

struct norm_bwd {
	enum norm_kind kind;
	struct mat dy, x, stats, gamma;
	int64_t first, rows;
};

/* Launches the fused kernel. Returns false, with nothing done, if rows exceed shared memory. */
template <typename W, typename T, typename C>
static bool norm_bwd_rows(
	struct device *d, const struct norm_bwd *n, const struct norm_grads *to)
{
	struct column_sums sums = {{floats_of(to->dgamma)}, 1};
	const int64_t cols = n->x.cols, rows = n->rows;
	const struct column_runs runs = cuda_column_runs(rows, 2 * cols);
	if (W::BETA)
		sums.out[sums.n++] = floats_of(to->dbeta);
	if (to->copy.p && to->sums.p)
		sums.out[sums.n++] = floats_of(to->sums);
	const size_t shared_bytes = (size_t)sums.n * W::SUM_BYTES;
	if (cols > W::PACKS * N * WARP || shared_bytes > cuda_of(d)->max_shared_bytes)
		return false;
	const bool loads = shared_bytes + W::ROW_BYTES <= cuda_of(d)->max_shared_bytes;
	float *part = (float *)cuda_workspace(
		d, (size_t)(runs.n * sums.n * cols) * sizeof(float));
	float *out = floats_of(mat_rows(to->dx, n->first, rows));
	C *copy = to->copy.p ? (C *)mat_rows(to->copy, n->first, rows).p : NULL;
	const T *up = (const T *)mat_rows(n->dy, n->first, rows).p;
	const float *in = floats_of(mat_rows(n->x, n->first, rows));
	const float *mean = floats_of(n->stats) + n->first, *rstd = mean + n->x.rows;
	const float *gamma = floats_of(n->gamma);
	bool whole = in_packs(cols, N, out, copy, up, in) && in_packs(0, N, gamma);
	float *amax = copy ? to->copy.amax : NULL;
	if (whole && loads && !cuda_lab_off(d, LAB_NORM_LOADS))
		launch(d, "norm_bwd", grid_of(runs.n), THREADS,
			shared_bytes + W::ROW_BYTES,
			norm_bwd_loads_kernel<W::PACKS, W::BETA, T, C>, n->kind, out,
			copy, part, up, in, mean, rstd, gamma, rows, (int)cols, runs,
			sums.n, amax);
	else
		launch(d, "norm_bwd", grid_of(runs.n), THREADS, shared_bytes,
			norm_bwd_kernel<W::PACKS, W::BETA, T, C>, n->kind, out, copy,
			part, up, in, mean, rstd, gamma, rows, (int)cols, runs, sums.n,
			amax, whole);
	cuda_join_runs(d, "norm_bwd", cols, &sums, part, runs.n);
	return true;
}

/* Runs the fused kernel for dy of type T and a copy of type C; false: rows are too long for it. */
template <typename T, typename C>
static bool norm_bwd_typed(
	struct device *d, const struct norm_bwd *n, const struct norm_grads *to)
{
	int64_t packs = ceil_div(n->x.cols, N * WARP);
	bool done = false;
	auto rows = [&](auto w) { done = norm_bwd_rows<decltype(w), T, C>(d, n, to); };
	if (to->dbeta.p)
		call_by_packs<true>(packs, rows);
	else
		call_by_packs<false>(packs, rows);
	return done;
}

/* Computes all requested results in one kernel; false: nothing done, rows too long. The copy has a
 * 16-bit type, the type of dy unless dy is fp32. */
static bool norm_bwd_fused(
	struct device *d, const struct norm_bwd *n, const struct norm_grads *to)
{
	if (n->dy.type == DT_BF16)
		return norm_bwd_typed<__nv_bfloat16, __nv_bfloat16>(d, n, to);
	if (n->dy.type == DT_F16)
		return norm_bwd_typed<__half, __half>(d, n, to);
	if (to->copy.p && to->copy.type == DT_F16)
		return norm_bwd_typed<float, __half>(d, n, to);
	return norm_bwd_typed<float, __nv_bfloat16>(d, n, to);
}

static bool can_fuse_copy(struct mat copy, struct mat dy)
{
	return copy.p && dtype_bytes(copy.type) == 2 &&
	       (dy.type == DT_F32 || dy.type == copy.type);
}

/* Adds to dx; sets dgamma, dbeta, the rounded copy of dx and the copy's column sums, if wanted. */
void cuda_norm_bwd(struct device *d, enum norm_kind kind, const struct norm_grads *to,
	struct mat dy, struct mat x, struct mat stats, struct mat gamma, int64_t first,
	int64_t rows)
{
	const struct norm_bwd n = {kind, dy, x, stats, gamma, first, rows};
	struct norm_grads plain = *to;
	struct mat copy = mat_rows(to->copy, first, rows);
	copy.amax = to->copy.amax;
	if (can_fuse_copy(to->copy, dy) && norm_bwd_fused(d, &n, to))
		return;
	plain.copy.p = NULL;
	if (!norm_bwd_fused(d, &n, &plain)) {
		bwd_x_rows(d, kind, to->dx, dy, x, stats, gamma, first, rows);
		cuda_norm_bwd_w(
			d, kind, to->dgamma, to->dbeta, dy, x, stats, first, rows);
	}
	if (!to->copy.p)
		return;
	cuda_round(d, copy, mat_rows(to->dx, first, rows), copy.type, 1);
	if (to->sums.p)
		cuda_bias_bwd(d, to->sums, copy);
}
