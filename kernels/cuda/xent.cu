/* Softmax cross-entropy over slices of the vocabulary. */
#include "kernels/cuda/vector.h"

/* The largest and the sum of e^(x - largest), of what was seen so far. NaN passes by the
 * maximum, and stays in the sum. */
struct seen {
	float max, sum;
};

/* e^(x - max), where both may be -infinity: what has no share in the sum. */
static __device__ inline float share(float x, float max)
{
	return x == max ? 1.0f : expf(x - max);
}

template <int N>
static __device__ inline void see(struct seen &s, const float (&x)[N], int64_t left)
{
	float most = s.max;
#pragma unroll
	for (int i = 0; i < N; i++)
		most = i < left ? fmaxf(most, x[i]) : most;
	s.sum *= share(s.max, most);
	s.max = most;
#pragma unroll
	for (int i = 0; i < N; i++)
		s.sum += i < left && x[i] != -INFINITY ? expf(x[i] - most) : 0;
}

template <int WARPS, typename T>
static __global__ void __launch_bounds__(threads_of_rows<WARPS>()) xent_stats_kernel(
	float *max, float *sum, float *target, const T *logits, const int32_t *targets,
	int64_t rows, int64_t cols, int64_t first, int64_t real, bool whole)
{
	enum { N = PER_PACK<T>, STEP = WARPS * WARP * N, AT_ONCE = 4 };
	int64_t row = my_row<WARPS>();
	struct seen s = {-INFINITY, 0};
	if (row >= rows)
		return;
	logits += row * cols;
	for (int64_t j = my_part<WARPS>() * N; j < real; j += AT_ONCE * STEP) {
		packed<T, N> from[AT_ONCE];
#pragma unroll
		for (int k = 0; k < AT_ONCE; k++)
			from[k] = fetch<N>(
				logits + j + k * STEP, cols - j - k * STEP, whole);
#pragma unroll
		for (int k = 0; k < AT_ONCE; k++) {
			float x[N];
			unpack(x, from[k]);
			see(s, x, real - j - k * STEP);
		}
	}
	float most = row_max<WARPS>(s.max);
	float total = row_sum<WARPS>(s.sum * share(s.max, most));
	if (my_part<WARPS>() == 0) {
		int64_t t = targets[row] - first;
		max[row] = most;
		sum[row] = total;
		target[row] = t >= 0 && t < real ? widen(logits[t]) : -INFINITY;
	}
}

void cuda_xent_stats(struct device *d, float *max, float *sum, float *target,
	struct mat logits, const int32_t *targets, int64_t first, int64_t vocab)
{
	int64_t rows = logits.rows, cols = logits.cols;
	int64_t real = max64(0, min64(cols, vocab - first));
	by_type(logits.type, [&](auto t) {
		using T = decltype(t);
		enum { N = PER_PACK<T> };
		const T *x = (const T *)logits.p;
		by_width(ceil_div(cols, N), [&](auto w) {
			using W = decltype(w);
			launch(d, "xent_stats", grid_of_rows<W::WARPS>(rows),
				threads_of_rows<W::WARPS>(), 0,
				xent_stats_kernel<W::WARPS, T>, max, sum, target, x,
				targets, rows, cols, first, real, in_packs(x, cols, N));
		});
	});
}

static __global__ void xent_join_kernel(float *lse, float *loss, const float *max,
	const float *sum, const float *target, int n_slices, int64_t rows)
{
	int64_t i = thread_number();
	float top = -INFINITY, hit = -INFINITY;
	struct tree tree;
	if (i >= rows)
		return;
	for (int s = 0; s < n_slices; s++) {
		top = fmaxf(top, max[s * rows + i]);
		hit = fmaxf(hit, target[s * rows + i]);
	}
	for (int s = 0; s < n_slices; s++)
		tree_add(tree, s, sum[s * rows + i] * expf(max[s * rows + i] - top));
	lse[i] = top + logf(tree_sum(tree, n_slices));
	loss[i] = lse[i] - hit;
}

void cuda_xent_join(struct device *d, float *lse, float *loss, const float *max,
	const float *sum, const float *target, int64_t n_slices, int64_t rows)
{
	BUG_ON(n_slices >= TREE_LEAVES);
	launch(d, "xent_join", grid_of_packs(1, rows, 1), THREADS, 0, xent_join_kernel,
		lse, loss, max, sum, target, (int)n_slices, rows);
}

template <typename T>
static __global__ void xent_bwd_kernel(T *logits, const float *lse,
	const int32_t *targets, int64_t rows, int64_t cols, int64_t first, int64_t real,
	const float *scale_at, bool whole)
{
	enum { N = PER_PACK<T> };
	const float scale = *scale_at;
	struct place at = place_of(thread_number(), cols, N);
	int64_t left = cols - at.col;
	float x[N];
	if (at.row >= rows)
		return;
	logits += at.row * cols + at.col;
	int64_t t = targets[at.row] - first - at.col;
	float sum = lse[at.row];
	load(x, logits, left, whole);
	for (int j = 0; j < N; j++) {
		float g = scale * expf(x[j] - sum);
		g = j == t ? g - scale : g;
		x[j] = at.col + j < real ? g : 0;
	}
	store(logits, x, left, whole);
}

void cuda_xent_bwd(struct device *d, struct mat logits, const float *lse,
	const int32_t *targets, int64_t first, int64_t vocab, const float *scale)
{
	int64_t rows = logits.rows, cols = logits.cols;
	int64_t real = max64(0, min64(cols, vocab - first));
	by_type(logits.type, [&](auto t) {
		using T = decltype(t);
		enum { N = PER_PACK<T> };
		T *x = (T *)logits.p;
		launch(d, "xent_bwd", grid_of_packs(rows, cols, N), THREADS, 0,
			xent_bwd_kernel<T>, x, lse, targets, rows, cols, first, real,
			scale, in_packs(x, cols, N));
	});
}
