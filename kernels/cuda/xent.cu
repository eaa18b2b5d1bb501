/* Softmax cross-entropy over slices of the vocabulary.
 *
 * A block has one row, or a warp has one if rows are short. Each thread has the same packs of a
 * row in all of these kernels, so that the fused kernel has the bits of the separate ones. A
 * multiprocessor works on only two or three rows at a time: a row's second read, backwards from
 * its last packs, hits the caches. */
#include "kernels/cuda/mma.h"
#include "kernels/cuda/vector.h"

enum { ROW_WARPS = 16, AT_ONCE = 4 }; /* packs that a thread has in flight */

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

/* Returns e^x. 16-bit logits do not justify the five more instructions of expf. */
template <typename T> static __device__ inline float exp_logit(float x)
{
	return sizeof(T) == 4 ? expf(x) : exp2_fast(x * 1.44269504f);
}

/* The online softmax: the largest x so far, and the sum of e^(x - largest). NaN does not
 * change the maximum, but makes the sum NaN. */
struct softmax_state {
	float max, sum;
};

/* Returns e^(x - max), which is 1 if both are -infinity. */
template <typename T> static __device__ inline float relative_exp(float x, float max)
{
	return x == max ? 1.0f : exp_logit<T>(x - max);
}

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
	struct softmax_state state = softmax_row<WARPS>(logits, s);
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

void cuda_xent_stats(struct device *d, struct xent_stats to, struct mat logits,
	const int32_t *targets, int64_t first, int64_t vocab, struct xent_terms terms)
{
	by_type(logits.type, [&](auto t) {
		using T = decltype(t);
		const T *x = (const T *)logits.p;
		struct slice s = make_slice<T>(logits, targets, first, vocab, terms);
		call_by_row_width(ceil_div(s.cols, PER_PACK<T>), [&](auto w) {
			using W = decltype(w);
			launch(d, "xent_stats", grid_of_rows<W::WARPS>(s.rows),
				threads_of_rows<W::WARPS>(), 0,
				xent_stats_kernel<W::WARPS, T>, to, x, s);
		});
	});
}

/* Returns a slice's part of the sum of e^(x - top); log_sum(): the logarithm of the whole sum. */
static __device__ inline float slice_sum(float sum, float max, float top)
{
	return sum * expf(max - top);
}

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

/* Computes the gradient of a row, by all its threads, from its end backwards. The thread of the
 * target also writes the loss. */
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

void cuda_xent_bwd(struct device *d, struct mat logits, const float *lse,
	const int32_t *targets, int64_t first, int64_t vocab, struct xent_terms terms,
	const float *scale)
{
	by_type(logits.type, [&](auto t) {
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
	struct softmax_state state = softmax_row<WARPS>(logits, s);
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

void cuda_xent_fused(struct device *d, float *loss, struct mat logits,
	const int32_t *targets, int64_t vocab, struct xent_terms terms,
	const float *scale)
{
	if (terms.smoothing > 0) {
		xent_unfused(d, loss, logits, targets, vocab, terms, scale);
		return;
	}
	by_type(logits.type, [&](auto t) {
		using T = decltype(t);
		T *x = (T *)logits.p;
		struct slice s = make_slice<T>(logits, targets, 0, vocab, terms);
		call_by_row_width(ceil_div(s.cols, PER_PACK<T>), [&](auto w) {
			using W = decltype(w);
			launch(d, "xent_fused", grid_of_rows<W::WARPS>(s.rows),
				threads_of_rows<W::WARPS>(), 0,
				xent_fused_kernel<W::WARPS, T>, loss, x, s, scale);
		});
	});
}
