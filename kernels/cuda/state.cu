/* Updates of parameters and optimizer state; copies and zeros. */
#include "kernels/cuda/cuda_internal.h"
#include "kernels/cuda/vector.h"
#include "kernels/step_math.h"

/* The vectors that one launch updates, limited by the size of its arguments. Vector i has the
 * blocks from first_block[i] on. */
enum { VECTORS = 32 };

struct vectors {
	struct update_part part[VECTORS];
	uint32_t first_block[VECTORS + 1];
	bool whole[VECTORS]; /* aligned for packs */
	int n;
};

/* Optimizers: step() updates an element with parameter p, state m and v, and gradient g. */
struct do_adamw {
	float rate, root, shrink;
	__device__ do_adamw(const struct update &a, const struct update_part &x)
	    : rate(a.lr * x.rate / a.correct1), root(1.0f / sqrtf(a.correct2)),
	      shrink(1.0f - a.lr * x.decay)
	{
	}
	__device__ void step(const struct update &a, const struct update_part &, float &p,
		float &m, float &v, float g) const
	{
		float grad = g * a.grad_scale;
		m = a.beta1 * m + (1.0f - a.beta1) * grad;
		v = a.beta2 * v + (1.0f - a.beta2) * (grad * grad);
		p = p * shrink - rate * (m / (sqrtf(v) * root + a.eps));
	}
};

struct do_sgd {
	float rate;
	__device__ do_sgd(const struct update &a, const struct update_part &x)
	    : rate(a.lr * x.rate)
	{
	}
	__device__ void step(const struct update &a, const struct update_part &x,
		float &p, float &m, float &, float g) const
	{
		float grad = g * a.grad_scale + x.decay * p;
		float step = grad;
		if (x.m) {
			m = a.momentum * m + grad;
			step = a.nesterov ? grad + a.momentum * m : m;
		}
		p -= rate * step;
	}
};

struct do_muon_momentum {
	__device__ do_muon_momentum(const struct update &, const struct update_part &)
	{
	}
	__device__ void step(const struct update &a, const struct update_part &, float &p,
		float &m, float &, float g) const
	{
		float grad = g * a.grad_scale, rest = 1.0f - a.momentum;
		m = a.momentum * m + rest * grad;
		p = a.nesterov ? a.momentum * m + rest * grad : m;
	}
};

struct do_muon_update {
	float rate, shrink;
	__device__ do_muon_update(const struct update &a, const struct update_part &x)
	    : rate(a.lr * x.rate), shrink(1.0f - a.lr * x.decay)
	{
	}
	__device__ void step(const struct update &, const struct update_part &, float &p,
		float &, float &, float g) const
	{
		p = p * shrink - rate * g;
	}
};

/* Updates one pack per thread of the vector to which the block belongs, unless the update is off:
 * stores p, and m, v and the copy if the vector has them. T: the type of the copies. */
template <typename DO, typename T>
static __global__ void update_kernel(const struct vectors all, const struct update *how)
{
	enum { N = PER_PACK<float> };
	const struct update a = *how;
	int at = 0;
	if (a.off)
		return;
	for (int half = VECTORS / 2; half; half /= 2)
		if (at + half < all.n && all.first_block[at + half] <= blockIdx.x)
			at += half;
	const struct update_part &x = all.part[at];
	const DO optimizer(a, x);
	bool whole = all.whole[at];
	int64_t block = blockIdx.x - all.first_block[at];
	int64_t i = (block * THREADS + threadIdx.x) * N, left = x.n - i;
	float pi[N], mi[N] = {}, vi[N] = {}, gi[N];
	if (left <= 0)
		return;
	load(gi, x.g + i, left, whole);
	if (x.m)
		load(mi, x.m + i, left, whole);
	if (x.v)
		load(vi, x.v + i, left, whole);
	load(pi, x.p + i, left, whole);
	for (int j = 0; j < N; j++)
		optimizer.step(a, x, pi[j], mi[j], vi[j], gi[j]);
	if (x.m)
		store(x.m + i, mi, left, whole);
	if (x.v)
		store(x.v + i, vi, left, whole);
	store(x.p + i, pi, left, whole);
	if (x.copy.p)
		store((T *)x.copy.p + i, pi, left, whole);
}

static bool is_aligned(const struct update_part *x)
{
	enum { N = PER_PACK<float> };
	return in_packs(0, N, x->p, x->m, x->v, x->g) &&
	       (uintptr_t)x->copy.p % (N * dtype_bytes(x->copy.type)) == 0;
}

/* Returns the type of the copies; parts of shards have none. */
static enum dtype copy_type(const struct update_part *x, int n_parts)
{
	enum dtype type = DT_F32;
	for (int i = 0; i < n_parts; i++)
		type = x[i].copy.p ? x[i].copy.type : type;
	return type;
}

/* Updates n_parts vectors by the optimizer DO, up to VECTORS per launch. */
template <typename DO>
static void launch_updates(struct device *d, const char *name,
	const struct update_part *x, int n_parts, const struct update *o)
{
	enum { PER_BLOCK = THREADS * PER_PACK<float> };
	const enum dtype type = copy_type(x, n_parts);
	for (int done = 0; done < n_parts;) {
		struct vectors all = {};
		for (; done < n_parts && all.n < VECTORS; done++, all.n++) {
			const struct update_part *from = &x[done];
			int i = all.n;
			BUG_ON(from->copy.p && from->copy.type != type);
			all.part[i] = *from;
			all.whole[i] = is_aligned(from);
			all.first_block[i + 1] = all.first_block[i] +
						 (uint32_t)ceil_div(from->n, PER_BLOCK);
		}
		call_by_type(type, [&](auto t) {
			typedef decltype(t) T;
			launch(d, name, grid_of(all.first_block[all.n]), THREADS, 0,
				update_kernel<DO, T>, all, o);
		});
	}
}

#define UPDATE(name)                                                                 \
	void cuda_##name(struct device *d, const struct update_part *x, int n_parts, \
		const struct update *o)                                              \
	{                                                                            \
		launch_updates<do_##name>(d, #name, x, n_parts, o);                  \
	}
UPDATE(adamw)
UPDATE(sgd)
UPDATE(muon_momentum)
UPDATE(muon_update)

/* ---- Muon (Jordan 2024): a matrix and its slices ------------------------------------- */

/* Returns the index in the matrix of element i of the slices. */
static __device__ inline int64_t sliced_index(const struct sliced &s, int64_t i)
{
	int64_t width = s.cols / s.slices, row = i / width % s.rows;
	int64_t col = i / width / s.rows * width + i % width;
	return s.rows > s.cols ? col * s.rows + row : row * s.cols + col;
}

/* Writes the slices, scaled by the norm from the sum of squares, to the matrix x. */
template <typename T>
static __global__ void muon_normalize_kernel(
	T *x, const float *slices, struct sliced s, const struct exact *squares)
{
	__shared__ float scale;
	if (threadIdx.x == 0) {
		struct exact sum = *squares;
		scale = muon_scale(exact_finish(&sum));
	}
	__syncthreads();
	int64_t n = s.rows * s.cols, stride = (int64_t)gridDim.x * blockDim.x;
	for (int64_t i = thread_number(); i < n; i += stride)
		x[sliced_index(s, i)] = narrow<T>(slices[i] * scale);
}

void cuda_muon_normalize(struct device *d, struct mat x, const float *slices,
	const struct sliced *s, const struct exact *squares)
{
	call_by_type(x.type, [&](auto type) {
		typedef decltype(type) T;
		launch(d, "muon_normalize", grid_in_strides(mat_size(x), 1), THREADS, 0,
			muon_normalize_kernel<T>, (T *)x.p, slices, *s, squares);
	});
}

template <typename T>
static __global__ void muon_unpack_kernel(float *slices, const T *x, struct sliced s)
{
	int64_t n = s.rows * s.cols, stride = (int64_t)gridDim.x * blockDim.x;
	for (int64_t i = thread_number(); i < n; i += stride)
		slices[i] = widen(x[sliced_index(s, i)]);
}

void cuda_muon_unpack(
	struct device *d, float *slices, struct mat x, const struct sliced *s)
{
	call_by_type(x.type, [&](auto type) {
		typedef decltype(type) T;
		launch(d, "muon_unpack", grid_in_strides(mat_size(x), 1), THREADS, 0,
			muon_unpack_kernel<T>, slices, (const T *)x.p, *s);
	});
}

/* Computes a pack of y = a x + b y. */
template <typename T>
static __global__ void axpby_kernel(
	T *y, float a, const T *x, float b, int64_t n, bool whole)
{
	enum { N = PER_PACK<T> };
	int64_t i = thread_number() * N, left = n - i;
	float u[N], v[N];
	if (left <= 0)
		return;
	load(u, x + i, left, whole);
	load(v, y + i, left, whole);
	for (int j = 0; j < N; j++)
		v[j] = a * u[j] + b * v[j];
	store(y + i, v, left, whole);
}

/* Computes y = a x + b y. */
void cuda_axpby(struct device *d, struct mat y, float a, struct mat x, float b)
{
	BUG_ON(x.type != y.type);
	call_by_type(y.type, [&](auto type) {
		typedef decltype(type) T;
		enum { N = PER_PACK<T> };
		T *to = (T *)y.p;
		const T *from = (const T *)x.p;
		launch(d, "axpby", grid_of_packs(1, mat_size(y), N), THREADS, 0,
			axpby_kernel<T>, to, a, from, b, mat_size(y),
			in_packs(0, N, to, from));
	});
}

/* Computes the step's end: one warp per sum loads it, and one lane carries its 68 limbs. */
static __global__ void step_end_kernel(struct step_end *to, const struct exact *loss,
	const struct exact *squares, const struct step_terms *terms, const uint64_t *word,
	int n_words)
{
	__shared__ struct exact sum[2];
	__shared__ double rounded[2];
	int which = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP;
	const int64_t *from = (const int64_t *)(which ? squares : loss);
	for (int i = lane; i < EXACT_WORDS; i += WARP)
		((int64_t *)&sum[which])[i] = from[i];
	__syncthreads();
	if (lane == 0)
		rounded[which] = exact_finish(&sum[which]);
	__syncthreads();
	if (threadIdx.x == 0)
		*to = step_end_of(rounded[0], rounded[1], terms, word, n_words);
}

void cuda_step_end(struct device *d, struct step_end *to, const struct exact *loss,
	const struct exact *squares, const struct step_terms *terms, const uint64_t *word,
	int n_words)
{
	launch(d, "step_end", 1, 2 * WARP, 0, step_end_kernel, to, loss, squares, terms,
		word, n_words);
}

/* Copies words; `from` NULL: stores zeros. */
template <typename T>
static __global__ void copy_kernel(T *to, const T *from, int64_t n, bool whole)
{
	enum { N = PER_PACK<T> };
	int64_t i = thread_number() * N, left = n - i;
	pack<T, N> v = {};
	if (left <= 0)
		return;
	if (from && whole && left >= N)
		v = *(const pack<T, N> *)(from + i);
	else if (from)
		for (int j = 0; j < N; j++)
			v.x[j] = j < left ? from[i + j] : (T)0;
	store_bits(to + i, v, left, whole);
}

/* Copies n words of type T; `from` NULL: stores zeros. */
template <typename T>
static void copy_words(
	struct device *d, const char *name, void *to, const void *from, int64_t n)
{
	enum { N = PER_PACK<T> };
	bool whole = in_packs(0, N, (T *)to, (const T *)from);
	launch(d, name, grid_of_packs(1, n, N), THREADS, 0, copy_kernel<T>, (T *)to,
		(const T *)from, n, whole);
}

/* Copies n_bytes bytes in the largest words that the addresses allow; `from` NULL: stores zeros. */
static void copy_bytes(
	struct device *d, const char *name, void *to, const void *from, int64_t n_bytes)
{
	uintptr_t all = (uintptr_t)to | (uintptr_t)from | (uintptr_t)n_bytes;
	if (all % 4 == 0)
		copy_words<uint32_t>(d, name, to, from, n_bytes / 4);
	else if (all % 2 == 0)
		copy_words<uint16_t>(d, name, to, from, n_bytes / 2);
	else
		copy_words<uint8_t>(d, name, to, from, n_bytes);
}

void cuda_zero(struct device *d, struct mat x)
{
	copy_bytes(d, "zero", x.p, NULL, mat_bytes(x));
}

/* Copies a matrix; its rows, and the target's, may be ranges of columns of wider matrices. */
static void copy_columns(struct device *d, struct mat to, struct mat from)
{
	size_t size = (size_t)dtype_bytes(to.type), width = (size_t)to.cols * size;
	struct cuda_launch l = cuda_copy_of("copy", to.p, from.p, (size_t)mat_bytes(to));
	BUG_ON(to.rows != from.rows);
	cuda_before_launch(d, &l);
	cuda_check(d,
		cudaMemcpy2DAsync(to.p, (size_t)mat_stride(to) * size, from.p,
			(size_t)mat_stride(from) * size, width, (size_t)to.rows,
			cudaMemcpyDefault, cuda_stream(d)),
		"copy");
	cuda_after_launch(d, "copy");
}

void cuda_copy(struct device *d, struct mat to, struct mat from)
{
	BUG_ON(mat_size(to) != mat_size(from) || to.type != from.type);
	if (to.stride || from.stride)
		copy_columns(d, to, from);
	else
		copy_bytes(d, "copy", to.p, from.p, mat_bytes(to));
}
