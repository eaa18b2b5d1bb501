/* Softmax cross-entropy over slices of the vocabulary.
 *
 * A block has one row, or a warp has one if rows are short. Each thread has the same packs of a
 * row in all of these kernels, so that the fused kernel has the bits of the separate ones. A
 * multiprocessor works on only two or three rows at a time: a row's second read, backwards from
 * its last packs, hits the caches. */
#include "kernels/cuda/softmax.h"
#include "kernels/cuda/vector.h"

enum { ROW_WARPS = 16, AT_ONCE = 4 }; /* packs that a thread has in flight */

/* Calls fn(warps<...>()) with the warps for rows of `packs` packs. */
template <typename F> static void call_by_row_width(int64_t packs, F fn)
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
	int cols, n_real; /* columns; columns that are not padding */
	bool whole;	  /* rows are aligned for packs */
	const struct softmax_state *tiles = NULL; /* [row][n_tiles]: see join_tiles() */
	int n_tiles = 0;
};

template <typename T>
static struct slice make_slice(struct mat logits, const int32_t *targets, int64_t first,
	int64_t vocab, struct xent_terms terms)
{
	BUG_ON(logits.cols > INT32_MAX / 2);
	int64_t n_real = max64(0, min64(logits.cols, vocab - first));
	return {targets, terms, logits.rows, first, vocab, (int)logits.cols, (int)n_real,
		in_packs(logits.cols, PER_PACK<T>, (const T *)logits.p)};
}

/* Returns the column of the row's target, or -1 if another slice has it. */
static __device__ inline int target_column(const struct slice &s, int64_t row)
{
	int64_t t = s.targets[row] - s.first;
	return t >= 0 && t < s.n_real ? (int)t : -1;
}

/* Returns the first column of pack i of this thread. */
template <int WARPS, int N> static __device__ inline int pack_column(int i)
{
	return (i * WARPS * WARP + index_in_row<WARPS>()) * N;
}

/* Returns the number of packs of a thread; the last ones may be empty. */
template <int WARPS, int N> static __device__ inline int packs_per_thread(int cols)
{
	return (cols + WARPS * WARP * N - 1) / (WARPS * WARP * N);
}

/* ---- statistics ---------------------------------------------------------------------- */

/* Adds a pack to the online softmax; elements from `left` on do not count. */
template <typename T, int N>
static __device__ inline void add_to_softmax(
	struct softmax_state &s, float (&x)[N], int left)
{
	float new_max = s.max;
	if (left < N) {
#pragma unroll
		for (int i = 0; i < N; i++)
			x[i] = i < left ? x[i] : -INFINITY;
	}
#pragma unroll
	for (int i = 0; i < N; i++)
		new_max = fmaxf(new_max, x[i]);
	s.sum *= relative_exp<T>(s.max, new_max);
	s.max = new_max;
	float from = new_max == -INFINITY ? 0 : new_max; /* no finite x: all e^x are 0 */
#pragma unroll
	for (int i = 0; i < N; i++)
		s.sum += exp_logit<T>(x[i] - from);
}

/* Computes the statistics of a row, by all its threads. */
template <int WARPS, typename T>
static __device__ inline struct softmax_state softmax_row(
	const T *row, const struct slice &s)
{
	enum { N = PER_PACK<T> };
	struct softmax_state state = {-INFINITY, 0};
	for (int i = 0; i < packs_per_thread<WARPS, N>(s.n_real); i += AT_ONCE) {
		packed<T, N> from[AT_ONCE];
#pragma unroll
		for (int k = 0; k < AT_ONCE; k++) {
			int j = pack_column<WARPS, N>(i + k);
			from[k] = fetch<N>(row + j, s.cols - j, s.whole);
		}
#pragma unroll
		for (int k = 0; k < AT_ONCE; k++) {
			int left = s.n_real - pack_column<WARPS, N>(i + k);
			float x[N];
			unpack(x, from[k]);
			if (left > 0)
				add_to_softmax<T>(state, x, left);
		}
	}
	float new_max = row_max<WARPS>(state.max);
	return {new_max, row_sum<WARPS>(state.sum * relative_exp<T>(state.max, new_max))};
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
	struct softmax_state state = softmax_of_tile(x, 0, real - first);
	if (row < rows && lane_number() % 4 == 0)
		to[row * n_tiles + first / MATMUL_TILE_N] = state;
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
static __device__ inline struct softmax_state join_tiles(
	const struct slice &s, int64_t row)
{
	typedef __nv_bfloat16 T;
	struct softmax_state state = {-INFINITY, 0};
	for (int i = index_in_row<WARPS>(); i < s.n_tiles; i += WARPS * WARP) {
		struct softmax_state tile = s.tiles[row * s.n_tiles + i];
		float new_max = fmaxf(state.max, tile.max);
		state.sum = state.sum * relative_exp<T>(state.max, new_max) +
			    tile.sum * relative_exp<T>(tile.max, new_max);
		state.max = new_max;
	}
	float new_max = row_max<WARPS>(state.max);
	return {new_max, row_sum<WARPS>(state.sum * relative_exp<T>(state.max, new_max))};
}

/* Returns the statistics of a row, from its tiles if these are computed, else from its logits. */
template <int WARPS, typename T>
static __device__ inline struct softmax_state row_statistics(
	const T *logits, const struct slice &s, int64_t row)
{
	return s.tiles ? join_tiles<WARPS>(s, row) : softmax_row<WARPS>(logits, s);
}

/* Computes the sum of the logits of a row, by all its threads. */
template <int WARPS, typename T>
static __device__ inline float sum_row(const T *row, const struct slice &s)
{
	float sum = 0;
	for (int j = index_in_row<WARPS>(); j < s.n_real; j += WARPS * WARP)
		sum += widen(row[j]);
	return row_sum<WARPS>(sum);
}

/* Returns a slice's addend of (1 - e) x[t] + e (mean of x). target_logit: x[t], or -infinity. */
static __device__ inline float smoothed(
	float target_logit, float sum, const struct slice &s)
{
	float e = s.terms.smoothing, even = e / (float)s.vocab * sum;
	return target_logit > -INFINITY ? (1 - e) * target_logit + even : even;
}

/* Stores the maximum, sum and target logit of a row; a target < 0 has no weight. */
template <int WARPS, typename T>
static __global__ void __launch_bounds__(threads_of_rows<WARPS>(), 2)
	xent_stats_kernel(struct xent_stats to, const T *logits, struct slice s)
{
	int64_t row = thread_row<WARPS>();
	if (row >= s.rows)
		return;
	logits += row * s.cols;
	if (s.targets[row] < 0) {
		if (index_in_row<WARPS>() == 0)
			to.max[row] = 0, to.sum[row] = 1, to.target[row] = INFINITY;
		return;
	}
	struct softmax_state state = row_statistics<WARPS>(logits, s, row);
	float even = s.terms.smoothing > 0 ? sum_row<WARPS>(logits, s) : 0;
	if (index_in_row<WARPS>() == 0) {
		int t = target_column(s, row);
		float target_logit = t >= 0 ? widen(logits[t]) : -INFINITY;
		to.max[row] = state.max;
		to.sum[row] = state.sum;
		to.target[row] = s.terms.smoothing > 0 ? smoothed(target_logit, even, s)
						       : target_logit;
	}
}

/* PT_LAB_ON=matmul-xent: the order of sums that a matmul can compute. Returns memory for the
 * statistics of the tiles of *rows rows, which becomes the number of rows that fit; otherwise NULL.
 * Callers have their own memory in the first half of the workspace. */
static struct softmax_state *alloc_tiles(
	struct device *d, struct mat logits, int64_t *rows)
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

/* Makes kernels read the statistics of tiles instead of the logits; NULL: the logits. */
static void use_tiles(struct slice *s, const struct softmax_state *tiles)
{
	s->tiles = tiles;
	s->n_tiles = (int)ceil_div(s->cols, MATMUL_TILE_N);
}

/* Launches xent_stats_kernel(); tiles: the statistics of the tiles of columns, or NULL. */
static void launch_stats(struct device *d, struct xent_stats to, struct mat logits,
	const int32_t *targets, int64_t first, int64_t vocab, struct xent_terms terms,
	const struct softmax_state *tiles)
{
	call_by_type(logits.type, [&](auto t) {
		using T = decltype(t);
		const T *x = (const T *)logits.p;
		struct slice s = make_slice<T>(logits, targets, first, vocab, terms);
		use_tiles(&s, tiles);
		call_by_row_width(ceil_div(s.cols, PER_PACK<T>), [&](auto w) {
			using W = decltype(w);
			launch(d, "xent_stats", grid_of_rows<W::WARPS>(s.rows),
				threads_of_rows<W::WARPS>(), 0,
				xent_stats_kernel<W::WARPS, T>, to, x, s);
		});
	});
}

/* Sets the max, sum and target of rows for this slice of the vocabulary; targets < 0: no weight. */
void cuda_xent_stats(struct device *d, struct xent_stats to, struct mat logits,
	const int32_t *targets, int64_t first, int64_t vocab, struct xent_terms terms)
{
	int64_t rows = logits.rows, real = max64(0, vocab - first);
	struct softmax_state *tiles = alloc_tiles(d, logits, &rows);
	for (int64_t i = 0; i < logits.rows; i += rows) {
		struct mat part = mat_rows(logits, i, min64(rows, logits.rows - i));
		if (tiles)
			cuda_softmax_tiles(d, tiles, part, real);
		launch_stats(d, {to.max + i, to.sum + i, to.target + i}, part,
			targets + i, first, vocab, terms, tiles);
	}
}

/* Returns a slice's addend of the sum of e^(x - top): its sum of e^(x - max), scaled. */
static __device__ inline float slice_sum(float sum, float max, float top)
{
	return sum * expf(max - top);
}

/* Returns the log-sum-exp of a row from its largest logit and its sum of e^(x - top). */
static __device__ inline float log_sum(float top, float sum)
{
	return top + logf(sum);
}

/* Returns the loss of a row. With smoothing, target_logit is the sum of the addends. */
static __device__ inline float loss_of(
	float lse, float target_logit, struct xent_terms terms)
{
	float loss = lse - target_logit;
	return terms.z > 0 ? loss + terms.z * lse * lse : loss;
}

/* Combines the statistics of all slices into the log-sum-exp and the loss of a row per thread. */
static __global__ void xent_join_kernel(float *lse, float *loss, struct xent_stats stats,
	int n_slices, int64_t rows, struct xent_terms terms)
{
	int64_t i = thread_number();
	float top = -INFINITY, target_logit = -INFINITY;
	struct tree tree, hits;
	if (i >= rows)
		return;
	for (int s = 0; s < n_slices; s++) {
		top = fmaxf(top, stats.max[s * rows + i]);
		target_logit = fmaxf(target_logit, stats.target[s * rows + i]);
	}
	for (int s = 0; s < n_slices; s++) {
		tree_add(tree, s,
			slice_sum(stats.sum[s * rows + i], stats.max[s * rows + i], top));
		tree_add(hits, s, stats.target[s * rows + i]);
	}
	bool weightless = target_logit - top == INFINITY;
	if (terms.smoothing > 0)
		target_logit = tree_sum(hits, n_slices);
	lse[i] = log_sum(top, tree_sum(tree, n_slices));
	loss[i] = weightless ? 0 : loss_of(lse[i], target_logit, terms);
}

void cuda_xent_join(struct device *d, float *lse, float *loss, struct xent_stats stats,
	int64_t n_slices, int64_t rows, struct xent_terms terms)
{
	BUG_ON(n_slices >= TREE_LEAVES);
	launch(d, "xent_join", grid_of_packs(1, rows, 1), THREADS, 0, xent_join_kernel,
		lse, loss, stats, (int)n_slices, rows, terms);
}

/* A row's gradient is all * softmax - even, minus `one` in the target's column. */
struct shares {
	float all, even, one;
};

/* Returns the factors of a row's gradient. */
static __device__ inline struct shares make_shares(
	const struct slice &s, float lse, float scale)
{
	float e = s.terms.smoothing;
	float all = s.terms.z > 0 ? scale * (1 + 2 * s.terms.z * lse) : scale;
	return {all, scale * e / (float)s.vocab, scale * (1 - e)};
}

/* Computes the gradient of a pack with `left` columns that are not padding; `target` may be one
 * of its columns. */
template <typename T, int N>
static __device__ inline void pack_gradient(
	float (&x)[N], float lse, const struct shares &f, int target, int left)
{
#pragma unroll
	for (int i = 0; i < N; i++)
		x[i] = f.all * exp_logit<T>(x[i] - lse) - f.even;
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

/* Overwrites a row of logits with its gradient, by all its threads, from its end backwards. The
 * thread of the target also stores *loss, unless it is NULL. */
template <int WARPS, typename T>
static __device__ inline void row_gradient(
	T *row, float *loss, const struct slice &s, float lse, int target, float scale)
{
	enum { N = PER_PACK<T> };
	const struct shares f = make_shares(s, lse, scale);
	int last = (packs_per_thread<WARPS, N>(s.cols) - 1) / AT_ONCE * AT_ONCE;
	for (int i = last; i >= 0; i -= AT_ONCE) {
		packed<T, N> from[AT_ONCE];
#pragma unroll
		for (int k = AT_ONCE - 1; k >= 0; k--) {
			int j = pack_column<WARPS, N>(i + k);
			from[k] = fetch<N>(row + j, s.cols - j, s.whole);
		}
#pragma unroll
		for (int k = AT_ONCE - 1; k >= 0; k--) {
			int j = pack_column<WARPS, N>(i + k);
			float x[N];
			if (j >= s.cols)
				continue;
			unpack(x, from[k]);
			if (loss && target >= j && target < j + N)
				*loss = loss_of(lse, widen(row[target]), s.terms);
			pack_gradient<T>(x, lse, f, target - j, s.n_real - j);
			store(row + j, x, s.cols - j, s.whole);
		}
	}
}

/* Zeroes the gradient of a row without weight. */
template <int WARPS, typename T>
static __device__ inline void zero_row(T *row, const struct slice &s)
{
	enum { N = PER_PACK<T> };
	const float zero[N] = {};
	for (int i = 0; i < packs_per_thread<WARPS, N>(s.cols); i++) {
		int j = pack_column<WARPS, N>(i);
		if (j < s.cols)
			store(row + j, zero, s.cols - j, s.whole);
	}
}

/* Overwrites a row of logits with its gradient; a row without weight becomes 0. */
template <int WARPS, typename T>
static __global__ void __launch_bounds__(threads_of_rows<WARPS>(), 2)
	xent_bwd_kernel(T *logits, const float *lse, struct slice s, const float *scale)
{
	int64_t row = thread_row<WARPS>();
	float *none = NULL;
	if (row < s.rows && s.targets[row] < 0)
		zero_row<WARPS>(logits + row * s.cols, s);
	else if (row < s.rows)
		row_gradient<WARPS>(logits + row * s.cols, none, s, lse[row],
			target_column(s, row), *scale);
}

/* Overwrites the logits with their gradient; padding columns and rows without weight become 0. */
void cuda_xent_bwd(struct device *d, struct mat logits, const float *lse,
	const int32_t *targets, int64_t first, int64_t vocab, struct xent_terms terms,
	const float *scale)
{
	call_by_type(logits.type, [&](auto t) {
		using T = decltype(t);
		T *x = (T *)logits.p;
		struct slice s = make_slice<T>(logits, targets, first, vocab, terms);
		call_by_row_width(ceil_div(s.cols, PER_PACK<T>), [&](auto w) {
			using W = decltype(w);
			launch(d, "xent_bwd", grid_of_rows<W::WARPS>(s.rows),
				threads_of_rows<W::WARPS>(), 0,
				xent_bwd_kernel<W::WARPS, T>, x, lse, s, scale);
		});
	});
}

/* Stores the loss of a row, and overwrites its logits with their gradient. */
template <int WARPS, typename T>
static __global__ void __launch_bounds__(threads_of_rows<WARPS>(), 2)
	xent_fused_kernel(float *loss, T *logits, struct slice s, const float *scale)
{
	int64_t row = thread_row<WARPS>();
	if (row >= s.rows)
		return;
	logits += row * s.cols;
	if (s.targets[row] < 0) {
		if (index_in_row<WARPS>() == 0)
			loss[row] = 0;
		zero_row<WARPS>(logits, s);
		return;
	}
	struct softmax_state state = row_statistics<WARPS>(logits, s, row);
	int target = target_column(s, row);
	float lse = log_sum(state.max, slice_sum(state.sum, state.max, state.max));
	if (target < 0 && index_in_row<WARPS>() == 0)
		loss[row] = lse - -INFINITY;
	row_gradient<WARPS>(logits, loss + row, s, lse, target, *scale);
}

/* Runs the separate kernels, which compute the sum of the logits that smoothing needs. */
static void xent_unfused(struct device *d, float *loss, struct mat logits,
	const int32_t *targets, int64_t vocab, struct xent_terms terms,
	const float *scale)
{
	int64_t n = logits.rows;
	float *buf = (float *)cuda_workspace(d, (size_t)(4 * n) * sizeof(float));
	float *lse = buf + 3 * n;
	const struct xent_stats stats = {buf, buf + n, buf + 2 * n};
	cuda_xent_stats(d, stats, logits, targets, 0, vocab, terms);
	cuda_xent_join(d, lse, loss, stats, 1, n, terms);
	cuda_xent_bwd(d, logits, lse, targets, 0, vocab, terms, scale);
}

/* Launches xent_fused_kernel(); tiles: the statistics of the tiles of columns, or NULL. */
static void launch_fused(struct device *d, float *loss, struct mat logits,
	const int32_t *targets, int64_t vocab, struct xent_terms terms,
	const float *scale, const struct softmax_state *tiles)
{
	call_by_type(logits.type, [&](auto t) {
		using T = decltype(t);
		T *x = (T *)logits.p;
		struct slice s = make_slice<T>(logits, targets, 0, vocab, terms);
		use_tiles(&s, tiles);
		call_by_row_width(ceil_div(s.cols, PER_PACK<T>), [&](auto w) {
			using W = decltype(w);
			launch(d, "xent_fused", grid_of_rows<W::WARPS>(s.rows),
				threads_of_rows<W::WARPS>(), 0,
				xent_fused_kernel<W::WARPS, T>, loss, x, s, scale);
		});
	});
}

/* Sets the loss of each row, and overwrites the logits with their gradient. */
void cuda_xent_fused(struct device *d, float *loss, struct mat logits,
	const int32_t *targets, int64_t vocab, struct xent_terms terms,
	const float *scale)
{
	int64_t rows = logits.rows;
	if (terms.smoothing > 0) {
		xent_unfused(d, loss, logits, targets, vocab, terms, scale);
		return;
	}
	struct softmax_state *tiles = alloc_tiles(d, logits, &rows);
	for (int64_t i = 0; i < logits.rows; i += rows) {
		struct mat part = mat_rows(logits, i, min64(rows, logits.rows - i));
		if (tiles)
			cuda_softmax_tiles(d, tiles, part, vocab);
		launch_fused(d, loss + i, part, targets + i, vocab, terms, scale, tiles);
	}
}

/* Computes linear_xent by the matmul of matmul.h, which also computes the softmax statistics.
 * Returns false, with nothing done, if that is not enabled or not supported. */
static bool fuse_linear_xent(struct device *d, float *loss, struct mat logits,
	struct mat x, struct mat w, const int32_t *targets, int64_t vocab,
	struct xent_terms terms, const float *scale)
{
	const struct mat none = mat(NULL, 0, 0);
	int64_t rows = logits.rows;
	struct softmax_state *tiles = alloc_tiles(d, logits, &rows);
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
		launch_fused(d, loss + i, part, targets + i, vocab, terms, scale, tiles);
	}
	return true;
}

void cuda_linear_xent(struct device *d, float *loss, struct mat logits, struct mat x,
	struct mat w, const int32_t *targets, int64_t vocab, struct xent_terms terms,
	const float *scale)
{
	if (fuse_linear_xent(d, loss, logits, x, w, targets, vocab, terms, scale))
		return;
	cuda_linear_fwd(d, logits, x, w, mat(NULL, 0, 0));
	cuda_xent_fused(d, loss, logits, targets, vocab, terms, scale);
}
