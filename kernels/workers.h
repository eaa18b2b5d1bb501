/*
 * Kernels on the vectors of several workers: their differences, weighted sums and updates, and
 * what is sent in fewer bits. A list: kernels.h says how it is read.
 */
#ifndef KERNELS_WORKERS_H
#define KERNELS_WORKERS_H

#include "kernels/tensors.h"

/* How the sign of an element is elected, by which terms of the other sign are left out of a
 * weighted sum: not at all; the sign of the sum of the terms; or that of most of them. */
enum sign_vote { SIGN_VOTE_NONE, SIGN_VOTE_SUM, SIGN_VOTE_COUNT };
#define CONSENSUS_WORDS "none", "sum", "count"

struct combine {
	int workers;
	const float *weight; /* [workers]; with 0 a worker's vector is ignored */
	enum sign_vote vote;
	bool normalize; /* by the sum of the weights of the terms that count */
};

/* Random sparsification: each element is kept with this probability, times `scale`. */
struct keep {
	float density, scale;
	struct rng_stream rng;
	uint32_t worker;
};

#endif

#ifdef KERNEL

/* p = anchor - p */
KERNEL(void, pseudo_grad, struct device *d, float *p, const float *anchor, int64_t n)
/* p = keep p + (1 - keep) a */
KERNEL(void, mix, struct device *d, float *p, const float *a, int64_t n, float keep)
/* The weighted sum of the workers' vectors x[i][0..n): terms t = weight x, summed by the canonical
 * tree over the workers. With a vote, only terms of the elected sign count (+ where the vote is
 * even), and no zeros. Normalised: divided by the weights of the terms that count, or by 1 where
 * their sum is next to nothing (GTA: generalized task arithmetic, as in TIES, Yadav et al. 2023). */
KERNEL(void, combine, struct device *d, float *out, const float *const *x, int64_t n,
	const struct combine *how)
/* All but the k largest of each row become 0; of equals the first stay. */
KERNEL(void, keep_largest, struct device *d, struct mat x, int64_t k)
KERNEL(void, keep_random, struct device *d, struct mat x, const struct keep *how)

/* Compression. Rounding is to nearest, ties to even; stochastic rounding is to one of the two
 * numbers around x, with probabilities that make x the mean.
 *
 * Stochastic rounding to bfloat16; to nearest it is `round`, and the bits are those of `narrow`. */
KERNEL(void, round_stochastic, struct device *d, struct mat x,
	const struct rng_stream *rng)
/* Each row becomes scale * code, with codes in [-127, 127] and scale = max |x| / 127 in bfloat16,
 * so that the product is exact and a row that was quantised before stays as it is. A row that is
 * not finite, or smaller than any scale, becomes 0. codes and scales may be NULL; so may the
 * random numbers, for rounding to nearest. */
KERNEL(void, quantise, struct device *d, struct mat x, int8_t *codes, float *scales,
	const struct rng_stream *rng)
KERNEL(void, dequantise, struct device *d, struct mat x, const int8_t *codes,
	const float *scales)
/* Packs k elements of each row, in their order, with their columns in 32 bits if `wide`, else in
 * 16: those that are not 0, at most k, then zeros as far as there is room. */
KERNEL(void, topk_pack, struct device *d, float *values, void *places, bool wide,
	struct mat x, int64_t k)
/* The inverse: all other elements become 0. */
KERNEL(void, topk_scatter, struct device *d, struct mat x, const float *values,
	const void *places, bool wide, int64_t k)

#endif
