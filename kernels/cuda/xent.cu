/* Softmax cross-entropy over slices of the vocabulary.
 *
 * A block has one row, or a warp has one if rows are short. Each thread has the same packs of a
 * row in all of these kernels, so that the fused kernel has the bits of the separate ones. A
 * multiprocessor works on only two or three rows at a time: a row's second read, backwards from
 * its last packs, hits the caches. */
#include "kernels/cuda/softmax.h"
#include "kernels/cuda/vector.h"

enum { ROW_WARPS = 16, AT_ONCE = 4 }; /* packs that a thread has in flight */

template <typename F> static void by_row_width(int64_t packs, F fn)
{
	if (packs <= 8 * WARP)
		fn(warps<1>());
	else
		fn(warps<ROW_WARPS>());
}

/* A slice of the logits. */
struct slice {
	const int32_t *targets;
	struct xent_terms terms;
	int64_t rows, first, vocab;
	int cols, real; /* columns; columns that are not padding */
	bool whole;	/* rows are aligned for packs */
	const struct softmax_state *tiles = NULL; /* [row][n_tiles]: see joined_tiles() */
	int n_tiles = 0;
};

template <typename T>
static struct slice slice_of(struct mat logits, const int32_t *targets, int64_t first,
	int64_t vocab, struct xent_terms terms)
{
	BUG_ON(logits.cols > INT32_MAX / 2);
	int64_t real = max64(0, min64(logits.cols, vocab - first));
	return {targets, terms, logits.rows, first, vocab, (int)logits.cols, (int)real,
		in_packs(logits.cols, PER_PACK<T>, (const T *)logits.p)};
}

/* Returns the column of the row's target, or -1 if another slice has it. */
static __device__ inline int target_of(const struct slice &s, int64_t row)
{
	int64_t t = s.targets[row] - s.first;
	return t >= 0 && t < s.real ? (int)t : -1;
}

/* Returns the first column of pack i of this thread. */
template <int WARPS, int N> static __device__ inline int column_of(int i)
{
	return (i * WARPS * WARP + my_part<WARPS>()) * N;
}

/* Returns the number of packs of a thread; the last ones may be empty. */
template <int WARPS, int N> static __device__ inline int packs_of(int cols)
{
	return (cols + WARPS * WARP * N - 1) / (WARPS * WARP * N);
}

/* ---- statistics ---------------------------------------------------------------------- */

/* Adds a pack to the online softmax; elements from `left` on do not count. */
template <typename T, int N>
static __device__ inline void add_to_softmax(
	struct softmax_state &s, float (&x)[N], int left)
{
	float most = s.max;
	if (left < N) {
#pragma unroll
		for (int i = 0; i < N; i++)
			x[i] = i < left ? x[i] : -INFINITY;
	}
#pragma unroll
	for (int i = 0; i < N; i++)
		most = fmaxf(most, x[i]);
	s.sum *= share<T>(s.max, most);
	s.max = most;
	float from = most == -INFINITY ? 0 : most; /* no finite x: all e^x are 0 */
#pragma unroll
	for (int i = 0; i < N; i++)
		s.sum += exp_of<T>(x[i] - from);
}

/* Computes the statistics of a row, by all its threads. */
template <int WARPS, typename T>
static __device__ inline struct softmax_state softmax_row(
	const T *row, const struct slice &s)
{
	enum { N = PER_PACK<T> };
	struct softmax_state seen = {-INFINITY, 0};
	for (int i = 0; i < packs_of<WARPS, N>(s.real); i += AT_ONCE) {
		packed<T, N> from[AT_ONCE];
#pragma unroll
		for (int k = 0; k < AT_ONCE; k++) {
			int j = column_of<WARPS, N>(i + k);
			from[k] = fetch<N>(row + j, s.cols - j, s.whole);
		}
#pragma unroll
		for (int k = 0; k < AT_ONCE; k++) {
			int left = s.real - column_of<WARPS, N>(i + k);
			float x[N];
			unpack(x, from[k]);
			if (left > 0)
				add_to_softmax<T>(seen, x, left);
		}
	}
	float most = row_max<WARPS>(seen.max);
	return {most, row_sum<WARPS>(seen.sum * share<T>(seen.max, most))};
}

/* Computes the statistics of tiles of columns: a warp has a tile of 8 rows. The lanes have the
 * columns that they would have in a matmul. */
static __global__ void __launch_bounds__(THREADS)
	softmax_tiles_kernel(struct softmax_state *to, const __nv_bfloat16 *logits,
		int64_t rows, int cols, int real, int n_tiles)
{
	int64_t warp = thread_number() / WARP;
	int64_t row = warp / n_tiles * 8 + lane_number() / 4;
	int first = (int)(warp % n_tiles) * MATMUL_TILE_N;
	float x[MATMUL_TILE_N / 8][4] = {};
	logits += row * cols;
	for (int i = 0; i < MATMUL_TILE_N / 8; i++)
		for (int e = 0; e < 2; e++) {
			int j = first + 8 * i + 2 * (lane_number() % 4) + e;
			x[i][e] = row < rows && j < real ? widen(logits[j]) : 0;
		}
	struct softmax_state of = softmax_of_tile(x, 0, real - first);
	if (row < rows && lane_number() % 4 == 0)
		to[row * n_tiles + first / MATMUL_TILE_N] = of;
}

void cuda_softmax_tiles(
	struct device *d, struct softmax_state *tiles, struct mat logits, int64_t real)
{
	int n_tiles = (int)ceil_div(logits.cols, MATMUL_TILE_N);
	BUG_ON(logits.type != DT_BF16 || logits.cols > INT32_MAX / 2);
	launch(d, "softmax_tiles",
		grid_of(ceil_div(ceil_div(logits.rows, 8) * n_tiles, WARPS_PER_BLOCK)),
		THREADS, 0, softmax_tiles_kernel, tiles, (const __nv_bfloat16 *)logits.p,
		logits.rows, (int)logits.cols, (int)min64(real, logits.cols), n_tiles);
}

/* Joins the statistics of the tiles of a row, by all its threads. */
template <int WARPS>
static __device__ inline struct softmax_state joined_tiles(
	const struct slice &s, int64_t row)
{
	typedef __nv_bfloat16 T;
	struct softmax_state seen = {-INFINITY, 0};
	for (int i = my_part<WARPS>(); i < s.n_tiles; i += WARPS * WARP) {
		struct softmax_state of = s.tiles[row * s.n_tiles + i];
		float most = fmaxf(seen.max, of.max);
		seen.sum = seen.sum * share<T>(seen.max, most) +
			   of.sum * share<T>(of.max, most);
		seen.max = most;
	}
	float most = row_max<WARPS>(seen.max);
	return {most, row_sum<WARPS>(seen.sum * share<T>(seen.max, most))};
}

/* Returns the statistics of a row: of its tiles, if they have been computed, or of its logits. */
template <int WARPS, typename T>
static __device__ inline struct softmax_state stats_of(
	const T *logits, const struct slice &s, int64_t row)
{
	return s.tiles ? joined_tiles<WARPS>(s, row) : softmax_row<WARPS>(logits, s);
}

/* Computes the sum of the logits of a row, by all its threads. */
template <int WARPS, typename T>
static __device__ inline float sum_row(const T *row, const struct slice &s)
{
	float sum = 0;
	for (int j = my_part<WARPS>(); j < s.real; j += WARPS * WARP)
		sum += widen(row[j]);
	return row_sum<WARPS>(sum);
}

/* Returns a slice's addend of (1 - e) x[t] + e (mean of x); `hit` is x[t], or -infinity. */
static __device__ inline float smoothed(float hit, float sum, const struct slice &s)
{
	float e = s.terms.smoothing, even = e / (float)s.vocab * sum;
	return hit > -INFINITY ? (1 - e) * hit + even : even;
}

template <int WARPS, typename T>
static __global__ void __launch_bounds__(threads_of_rows<WARPS>(), 2)
	xent_stats_kernel(struct xent_stats to, const T *logits, struct slice s)
{
	int64_t row = my_row<WARPS>();
	if (row >= s.rows)
		return;
	logits += row * s.cols;
	if (s.targets[row] < 0) {
		if (my_part<WARPS>() == 0)
			to.max[row] = 0, to.sum[row] = 1, to.target[row] = INFINITY;
		return;
	}
	struct softmax_state seen = stats_of<WARPS>(logits, s, row);
	float even = s.terms.smoothing > 0 ? sum_row<WARPS>(logits, s) : 0;
	if (my_part<WARPS>() == 0) {
		int t = target_of(s, row);
		float hit = t >= 0 ? widen(logits[t]) : -INFINITY;
		to.max[row] = seen.max;
		to.sum[row] = seen.sum;
		to.target[row] = s.terms.smoothing > 0 ? smoothed(hit, even, s) : hit;
	}
}

/* PT_LAB_ON=matmul-xent: the order of sums that a matmul can compute. Returns memory for the
 * statistics of the tiles of *rows rows, which becomes the number of rows that fit; otherwise NULL.
 * Callers have their own memory in the first half of the workspace. */
static struct softmax_state *tiles_for(struct device *d, struct mat logits, int64_t *rows)
{
	enum { HALF = CUDA_WORKSPACE / 2 };
	int64_t n = ceil_div(logits.cols, MATMUL_TILE_N) *
		    (int64_t)sizeof(struct softmax_state);
	if (logits.type != DT_BF16 || !n || !cuda_lab_on(d, LAB_MATMUL_XENT))
		return NULL;
	*rows = min64(*rows, HALF / n);
	BUG_ON(HALF < n);
	return (struct softmax_state *)((char *)cuda_workspace(d, CUDA_WORKSPACE) + HALF);
}

static void add_tiles(struct slice *s, const struct softmax_state *tiles)
{
	s->tiles = tiles;
	s->n_tiles = (int)ceil_div(s->cols, MATMUL_TILE_N);
}

static void stats_with(struct device *d, struct xent_stats to, struct mat logits,
	const int32_t *targets, int64_t first, int64_t vocab, struct xent_terms terms,
	const struct softmax_state *tiles)
{
	by_type(logits.type, [&](auto t) {
		using T = decltype(t);
		const T *x = (const T *)logits.p;
		struct slice s = slice_of<T>(logits, targets, first, vocab, terms);
		add_tiles(&s, tiles);
		by_row_width(ceil_div(s.cols, PER_PACK<T>), [&](auto w) {
			using W = decltype(w);
			launch(d, "xent_stats", grid_of_rows<W::WARPS>(s.rows),
				threads_of_rows<W::WARPS>(), 0,
				xent_stats_kernel<W::WARPS, T>, to, x, s);
		});
	});
}

void cuda_xent_stats(struct device *d, struct xent_stats to, struct mat logits,
	const int32_t *targets, int64_t first, int64_t vocab, struct xent_terms terms)
{
	int64_t rows = logits.rows, real = max64(0, vocab - first);
	struct softmax_state *tiles = tiles_for(d, logits, &rows);
	for (int64_t i = 0; i < logits.rows; i += rows) {
		struct mat part = mat_rows(logits, i, min64(rows, logits.rows - i));
		if (tiles)
			cuda_softmax_tiles(d, tiles, part, real);
		stats_with(d, {to.max + i, to.sum + i, to.target + i}, part, targets + i,
			first, vocab, terms, tiles);
	}
}

/* Returns a slice's part of the sum of e^(x - top); log_sum(): the logarithm of the whole sum. */
static __device__ inline float joined(float sum, float max, float top)
{
	return sum * expf(max - top);
}

static __device__ inline float log_sum(float top, float sum)
{
	return top + logf(sum);
}

/* Returns the loss of a row. hit: the target's logit, or with smoothing the sum of the addends. */
static __device__ inline float loss_of(float lse, float hit, struct xent_terms terms)
{
	float loss = lse - hit;
	return terms.z > 0 ? loss + terms.z * lse * lse : loss;
}

static __global__ void xent_join_kernel(float *lse, float *loss, struct xent_stats of,
	int n_slices, int64_t rows, struct xent_terms terms)
{
	int64_t i = thread_number();
	float top = -INFINITY, hit = -INFINITY;
	struct tree tree, hits;
	if (i >= rows)
		return;
	for (int s = 0; s < n_slices; s++) {
		top = fmaxf(top, of.max[s * rows + i]);
		hit = fmaxf(hit, of.target[s * rows + i]);
	}
	for (int s = 0; s < n_slices; s++) {
		tree_add(
			tree, s, joined(of.sum[s * rows + i], of.max[s * rows + i], top));
		tree_add(hits, s, of.target[s * rows + i]);
	}
	bool weightless = hit - top == INFINITY;
	if (terms.smoothing > 0)
		hit = tree_sum(hits, n_slices);
	lse[i] = log_sum(top, tree_sum(tree, n_slices));
	loss[i] = weightless ? 0 : loss_of(lse[i], hit, terms);
}

void cuda_xent_join(struct device *d, float *lse, float *loss, struct xent_stats of,
	int64_t n_slices, int64_t rows, struct xent_terms terms)
{
	BUG_ON(n_slices >= TREE_LEAVES);
	launch(d, "xent_join", grid_of_packs(1, rows, 1), THREADS, 0, xent_join_kernel,
		lse, loss, of, (int)n_slices, rows, terms);
}

/* ---- the gradient -------------------------------------------------------------------- */

/* A row's gradient is all * softmax - even, minus `one` in the target's column. */
struct shares {
	float all, even, one;
};

static __device__ inline struct shares shares_of(
	const struct slice &s, float lse, float scale)
{
	float e = s.terms.smoothing;
	float all = s.terms.z > 0 ? scale * (1 + 2 * s.terms.z * lse) : scale;
	return {all, scale * e / (float)s.vocab, scale * (1 - e)};
}

/* Computes the gradient of a pack with `left` columns that are not padding; `target` may be one
 * of its columns. */
template <typename T, int N>
static __device__ inline void gradient(
	float (&x)[N], float lse, const struct shares &f, int target, int left)
{
#pragma unroll
	for (int i = 0; i < N; i++)
		x[i] = f.all * exp_of<T>(x[i] - lse) - f.even;
	if (target >= 0 && target < N) {
#pragma unroll
		for (int i = 0; i < N; i++)
			x[i] = i == target ? x[i] - f.one : x[i];
	}
	if (left < N) {
#pragma unroll
		for (int i = 0; i < N; i++)
			x[i] = i < left ? x[i] : 0;
	}
}

/* Computes the gradient of a row, by all its threads, from its end backwards. The thread of the
 * target also writes the loss. */
template <int WARPS, typename T>
static __device__ inline void row_gradient(
	T *row, float *loss, const struct slice &s, float lse, int target, float scale)
{
	enum { N = PER_PACK<T> };
	const struct shares f = shares_of(s, lse, scale);
	int last = (packs_of<WARPS, N>(s.cols) - 1) / AT_ONCE * AT_ONCE;
	for (int i = last; i >= 0; i -= AT_ONCE) {
		packed<T, N> from[AT_ONCE];
#pragma unroll
		for (int k = AT_ONCE - 1; k >= 0; k--) {
			int j = column_of<WARPS, N>(i + k);
			from[k] = fetch<N>(row + j, s.cols - j, s.whole);
		}
#pragma unroll
		for (int k = AT_ONCE - 1; k >= 0; k--) {
			int j = column_of<WARPS, N>(i + k);
			float x[N];
			if (j >= s.cols)
				continue;
			unpack(x, from[k]);
			if (loss && target >= j && target < j + N)
				*loss = loss_of(lse, widen(row[target]), s.terms);
			gradient<T>(x, lse, f, target - j, s.real - j);
			store(row + j, x, s.cols - j, s.whole);
		}
	}
}

/* Zeroes the gradient of a row without weight. */
template <int WARPS, typename T>
static __device__ inline void row_zero(T *row, const struct slice &s)
{
	enum { N = PER_PACK<T> };
	const float zero[N] = {};
	for (int i = 0; i < packs_of<WARPS, N>(s.cols); i++) {
		int j = column_of<WARPS, N>(i);
		if (j < s.cols)
			store(row + j, zero, s.cols - j, s.whole);
	}
}

template <int WARPS, typename T>
static __global__ void __launch_bounds__(threads_of_rows<WARPS>(), 2)
	xent_bwd_kernel(T *logits, const float *lse, struct slice s, const float *scale)
{
	int64_t row = my_row<WARPS>();
	float *none = NULL;
	if (row < s.rows && s.targets[row] < 0)
		row_zero<WARPS>(logits + row * s.cols, s);
	else if (row < s.rows)
		row_gradient<WARPS>(logits + row * s.cols, none, s, lse[row],
			target_of(s, row), *scale);
}

void cuda_xent_bwd(struct device *d, struct mat logits, const float *lse,
	const int32_t *targets, int64_t first, int64_t vocab, struct xent_terms terms,
	const float *scale)
{
	by_type(logits.type, [&](auto t) {
		using T = decltype(t);
		T *x = (T *)logits.p;
		struct slice s = slice_of<T>(logits, targets, first, vocab, terms);
		by_row_width(ceil_div(s.cols, PER_PACK<T>), [&](auto w) {
			using W = decltype(w);
			launch(d, "xent_bwd", grid_of_rows<W::WARPS>(s.rows),
				threads_of_rows<W::WARPS>(), 0,
				xent_bwd_kernel<W::WARPS, T>, x, lse, s, scale);
		});
	});
}

template <int WARPS, typename T>
static __global__ void __launch_bounds__(threads_of_rows<WARPS>(), 2)
	xent_fused_kernel(float *loss, T *logits, struct slice s, const float *scale)
{
	int64_t row = my_row<WARPS>();
	if (row >= s.rows)
		return;
	logits += row * s.cols;
	if (s.targets[row] < 0) {
		if (my_part<WARPS>() == 0)
			loss[row] = 0;
		row_zero<WARPS>(logits, s);
		return;
	}
	struct softmax_state seen = stats_of<WARPS>(logits, s, row);
	int target = target_of(s, row);
	float lse = log_sum(seen.max, joined(seen.sum, seen.max, seen.max));
	if (target < 0 && my_part<WARPS>() == 0)
		loss[row] = lse - -INFINITY;
	row_gradient<WARPS>(logits, loss + row, s, lse, target, *scale);
}

/* Smoothing needs the sum of the logits, which the separate kernels compute. */
static void xent_unfused(struct device *d, float *loss, struct mat logits,
	const int32_t *targets, int64_t vocab, struct xent_terms terms,
	const float *scale)
{
	int64_t n = logits.rows;
	float *stats = (float *)cuda_workspace(d, (size_t)(4 * n) * sizeof(float));
	float *lse = stats + 3 * n;
	const struct xent_stats of = {stats, stats + n, stats + 2 * n};
	cuda_xent_stats(d, of, logits, targets, 0, vocab, terms);
	cuda_xent_join(d, lse, loss, of, 1, n, terms);
	cuda_xent_bwd(d, logits, lse, targets, 0, vocab, terms, scale);
}

static void fused_with(struct device *d, float *loss, struct mat logits,
	const int32_t *targets, int64_t vocab, struct xent_terms terms,
	const float *scale, const struct softmax_state *tiles)
{
	by_type(logits.type, [&](auto t) {
		using T = decltype(t);
		T *x = (T *)logits.p;
		struct slice s = slice_of<T>(logits, targets, 0, vocab, terms);
		add_tiles(&s, tiles);
		by_row_width(ceil_div(s.cols, PER_PACK<T>), [&](auto w) {
			using W = decltype(w);
			launch(d, "xent_fused", grid_of_rows<W::WARPS>(s.rows),
				threads_of_rows<W::WARPS>(), 0,
				xent_fused_kernel<W::WARPS, T>, loss, x, s, scale);
		});
	});
}

void cuda_xent_fused(struct device *d, float *loss, struct mat logits,
	const int32_t *targets, int64_t vocab, struct xent_terms terms,
	const float *scale)
{
	int64_t rows = logits.rows;
	if (terms.smoothing > 0) {
		xent_unfused(d, loss, logits, targets, vocab, terms, scale);
		return;
	}
	struct softmax_state *tiles = tiles_for(d, logits, &rows);
	for (int64_t i = 0; i < logits.rows; i += rows) {
		struct mat part = mat_rows(logits, i, min64(rows, logits.rows - i));
		if (tiles)
			cuda_softmax_tiles(d, tiles, part, vocab);
		fused_with(d, loss + i, part, targets + i, vocab, terms, scale, tiles);
	}
}

/* The matmul computes the statistics. Returns false, with nothing done, if it cannot. */
static bool own_linear_xent(struct device *d, float *loss, struct mat logits,
	struct mat x, struct mat w, const int32_t *targets, int64_t vocab,
	struct xent_terms terms, const float *scale)
{
	const struct mat none = mat(NULL, 0, 0);
	int64_t rows = logits.rows;
	struct softmax_state *tiles = tiles_for(d, logits, &rows);
	if (!tiles || terms.smoothing > 0 || !cuda_lab_on(d, LAB_MATMUL))
		return false;
	for (int64_t i = 0; i < logits.rows; i += rows) {
		int64_t n = min64(rows, logits.rows - i);
		struct mat part = mat_rows(logits, i, n);
		const struct matmul_call call = {
			part, mat_rows(x, i, n), w, none, none, none, tiles, vocab};
		if (!cuda_matmul_hopper(d, "linear_xent", MATMUL_XENT, &call)) {
			BUG_ON(i);
			return false;
		}
		fused_with(d, loss + i, part, targets + i, vocab, terms, scale, tiles);
	}
	return true;
}

void cuda_linear_xent(struct device *d, float *loss, struct mat logits, struct mat x,
	struct mat w, const int32_t *targets, int64_t vocab, struct xent_terms terms,
	const float *scale)
{
	if (own_linear_xent(d, loss, logits, x, w, targets, vocab, terms, scale))
		return;
	cuda_linear_fwd(d, logits, x, w, mat(NULL, 0, 0));
	cuda_xent_fused(d, loss, logits, targets, vocab, terms, scale);
}
