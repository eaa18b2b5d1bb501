/* Local SGD (EDiT): sums of pseudo-gradients over workers, and their sparsification. */
#include "kernels/cuda/vector.h"

static __device__ inline float sign_of(float x)
{
	return (float)((x > 0) - (x < 0));
}

/* x[workers], weight[workers]. */
struct worker_vectors {
	const float *const *x;
	const float *weight;
	int workers;
};

/* Returns weight x. A vector with weight 0 counts as 0, even its NaN and infinity. */
static __device__ inline float weighted_term(
	const struct worker_vectors b, int worker, int64_t i)
{
	float w = b.weight[worker];
	return w != 0 ? __fmul_rn(w, b.x[worker][i]) : 0;
}

/* Sets out[i] to the weighted sum of the workers' x[i], in tree order, with the elected sign. */
static __global__ void combine_kernel(float *out, const struct worker_vectors b,
	int64_t n, enum sign_vote vote, bool normalize)
{
	const float tiny = 1e-8f;
	int64_t i = thread_number();
	struct tree votes, terms, weights;
	float sign = 0;
	if (i >= n)
		return;
	for (int k = 0; k < b.workers && vote != SIGN_VOTE_NONE; k++) {
		float t = weighted_term(b, k, i);
		tree_add(votes, k, vote == SIGN_VOTE_COUNT ? sign_of(t) : t);
	}
	if (vote != SIGN_VOTE_NONE)
		sign = tree_sum(votes, b.workers) >= 0 ? 1.0f : -1.0f;
	for (int k = 0; k < b.workers; k++) {
		float w = b.weight[k], t = weighted_term(b, k, i);
		bool is_counted =
			w != 0 && (vote == SIGN_VOTE_NONE || sign_of(t) == sign);
		tree_add(terms, k, is_counted ? t : 0);
		tree_add(weights, k, is_counted ? w : 0);
	}
	float total = tree_sum(terms, b.workers), share = tree_sum(weights, b.workers);
	out[i] = normalize ? total / (fabsf(share) < tiny ? 1 : share) : total;
}

/* Sets out to the weighted sum of the workers' vectors, with a sign vote and normalizing if set. */
void cuda_combine(struct device *d, float *out, const float *const *x, int64_t n,
	const struct combine *c)
{
	size_t x_bytes = (size_t)c->workers * sizeof(*x);
	size_t weight_bytes = (size_t)c->workers * sizeof(*c->weight);
	BUG_ON(c->workers >= TREE_LEAVES);
	char *buf = (char *)cuda_workspace(d, x_bytes + weight_bytes);
	cuda_put(d, buf, x, x_bytes);
	cuda_put(d, buf + x_bytes, c->weight, weight_bytes);
	struct worker_vectors b = {
		(const float *const *)buf, (const float *)(buf + x_bytes), c->workers};
	launch(d, "combine", grid_of_packs(1, n, 1), THREADS, 0, combine_kernel, out, b,
		n, c->vote, c->normalize);
}

/* Keeps an element with probability keep.density, times keep.scale; zeroes the other elements. */
static __global__ void keep_random_kernel(
	float *x, int64_t rows, int64_t cols, struct keep keep)
{
	int64_t i = thread_number();
	struct vector_place place = pack_place(i, cols, 1);
	if (place.row >= rows)
		return;
	uint64_t at =
		(uint64_t)(keep.rng.first + place.row * keep.rng.row_step + place.col);
	struct philox_block r =
		philox(keep.rng.key, (uint32_t)at, (uint32_t)(at >> 32), keep.worker, 0);
	x[i] = philox_uniform(r.x[0]) < keep.density ? x[i] * keep.scale : 0;
}

void cuda_keep_random(struct device *d, struct mat x, const struct keep *o)
{
	struct keep keep = *o;
	keep.rng.row_step = row_step(o->rng.row_step, x);
	launch(d, "keep_random", grid_of_packs(x.rows, x.cols, 1), THREADS, 0,
		keep_random_kernel, floats_of(x), x.rows, x.cols, keep);
}
