/* What is done to parameters and optimizer state, and to memory. */
#include "kernels/cuda/vector.h"
#include "kernels/scalars.h"

/* What one launch updates: as many vectors as its arguments have room for. Block b is one of
 * those from first_block[i] on, of vector i. */
enum { VECTORS = 32 };

struct vectors {
	struct adamw_part part[VECTORS];
	uint32_t first_block[VECTORS + 1];
	bool whole[VECTORS]; /* in packs */
	int n;
};

/* T: of the copies. */
template <typename T>
static __global__ void adamw_kernel(const struct vectors all, const struct adamw *how)
{
	enum { N = PER_PACK<float> };
	const struct adamw a = *how;
	float rate = a.lr / a.correct1, root = 1.0f / sqrtf(a.correct2);
	int at = 0;
	if (a.off)
		return;
	for (int half = VECTORS / 2; half; half /= 2)
		if (at + half < all.n && all.first_block[at + half] <= blockIdx.x)
			at += half;
	const struct adamw_part &x = all.part[at];
	float shrink = 1.0f - a.lr * x.decay;
	bool whole = all.whole[at];
	int64_t block = blockIdx.x - all.first_block[at];
	int64_t i = (block * THREADS + threadIdx.x) * N, left = x.n - i;
	float pi[N], mi[N], vi[N], gi[N];
	if (left <= 0)
		return;
	load(gi, x.g + i, left, whole);
	load(mi, x.m + i, left, whole);
	load(vi, x.v + i, left, whole);
	load(pi, x.p + i, left, whole);
	for (int j = 0; j < N; j++) {
		float grad = gi[j] * a.grad_scale;
		mi[j] = a.beta1 * mi[j] + (1.0f - a.beta1) * grad;
		vi[j] = a.beta2 * vi[j] + (1.0f - a.beta2) * (grad * grad);
		pi[j] = pi[j] * shrink - rate * (mi[j] / (sqrtf(vi[j]) * root + a.eps));
	}
	store(x.m + i, mi, left, whole);
	store(x.v + i, vi, left, whole);
	store(x.p + i, pi, left, whole);
	if (x.copy.p)
		store((T *)x.copy.p + i, pi, left, whole);
}

static bool is_whole(const struct adamw_part *x)
{
	enum { N = PER_PACK<float> };
	return in_packs(x->p, 0, N) && in_packs(x->m, 0, N) && in_packs(x->v, 0, N) &&
	       in_packs(x->g, 0, N) &&
	       (uintptr_t)x->copy.p % (N * dtype_bytes(x->copy.type)) == 0;
}

void cuda_adamw(
	struct device *d, const struct adamw_part *x, int n_parts, const struct adamw *o)
{
	enum { A_BLOCK = THREADS * PER_PACK<float> };
	for (int done = 0; done < n_parts;) {
		struct vectors all = {};
		for (; done < n_parts && all.n < VECTORS; done++, all.n++) {
			const struct adamw_part *from = &x[done];
			int i = all.n;
			BUG_ON(from->copy.type != x->copy.type);
			all.part[i] = *from;
			all.whole[i] = is_whole(from);
			all.first_block[i + 1] =
				all.first_block[i] + (uint32_t)ceil_div(from->n, A_BLOCK);
		}
		by_type(x->copy.type, [&](auto type) {
			typedef decltype(type) T;
			launch(d, "adamw", grid_of(all.first_block[all.n]), THREADS, 0,
				adamw_kernel<T>, all, o);
		});
	}
}

/* A warp for each sum: its lanes fetch it, and one of them has 68 limbs to carry. */
static __global__ void step_end_kernel(struct step_end *to, const struct exact *loss,
	const struct exact *squares, const struct step_terms *terms)
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
		*to = step_end_of(rounded[0], rounded[1], terms);
}

void cuda_step_end(struct device *d, struct step_end *to, const struct exact *loss,
	const struct exact *squares, const struct step_terms *terms)
{
	launch(d, "step_end", 1, 2 * WARP, 0, step_end_kernel, to, loss, squares, terms);
}

/* ---- memory ------------------------------------------------------------------------- */

/* Words of any kind. Without `from`: zeros. */
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

template <typename T>
static void copy_words(
	struct device *d, const char *name, void *to, const void *from, int64_t n)
{
	enum { N = PER_PACK<T> };
	bool whole = in_packs((T *)to, 0, N) && in_packs((const T *)from, 0, N);
	launch(d, name, grid_of_packs(1, n, N), THREADS, 0, copy_kernel<T>, (T *)to,
		(const T *)from, n, whole);
}

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

void cuda_copy(struct device *d, struct mat to, struct mat from)
{
	BUG_ON(mat_size(to) != mat_size(from) || to.type != from.type);
	copy_bytes(d, "copy", to.p, from.p, mat_bytes(to));
}
