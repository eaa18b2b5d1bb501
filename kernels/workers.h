/* Kernels of local SGD: weighted sums over workers, and the compression of what workers exchange.
 * kernels.h explains KERNEL. */
#ifndef KERNELS_WORKERS_H
#define KERNELS_WORKERS_H

#include "kernels/tensors.h"

/* How the sign of an element is elected; a weighted sum omits terms with the opposite sign. NONE:
 * no vote; SUM: the sign of the sum of the terms; COUNT: the sign of the majority of terms. */
enum sign_vote { SIGN_VOTE_NONE, SIGN_VOTE_SUM, SIGN_VOTE_COUNT };
#define CONSENSUS_WORDS "none", "sum", "count"

struct combine {
	int workers;
	const float *weight; /* [workers]; 0: the worker's vector is ignored */
	enum sign_vote vote;
	bool normalize; /* divide by the sum of the weights of the terms in the sum */
};

/* Random sparsification: keeps an element with probability `density`, multiplied by `scale`. */
struct keep {
	float density, scale;
	struct rng_stream rng;
	uint32_t worker;
};

#endif

#ifdef KERNEL

/* The weighted sum of the workers' vectors x[i][0..n): terms t = weight x, summed by the canonical
 * tree over workers. A vote omits zeros and terms that do not have the elected sign (+ in a tie).
 * `normalize` divides by the sum of the weights of the remaining terms, or by 1 if that is nearly 0
 * (GTA: generalized task arithmetic, as in TIES, Yadav et al. 2023). */
KERNEL(void, combine, struct device *d, float *out, const float *const *x, int64_t n,
	const struct combine *how)
/* Top-k sparsification: all except the k largest |x| of each row become 0; of equal ones, the first
 * are kept. */
KERNEL(void, keep_largest, struct device *d, struct mat x, int64_t k)
/* A step of the search for the k-th largest |x| of all matrices, 8 bits at a time: for each
 * element, counts[8 bits of |x| from `shift` on] += 1 if the bits of |x| above them equal the
 * bits of `found`. counts[256] is in device memory. */
KERNEL(void, count_sizes, struct device *d, int64_t *counts, struct mat x, uint32_t found,
	int shift)
/* Zeroes the elements with bits of |x| below `least`. */
KERNEL(void, keep_sizes, struct device *d, struct mat x, uint32_t least)
KERNEL(void, keep_random, struct device *d, struct mat x, const struct keep *how)

/* Compression. Rounding is to nearest, ties to even; stochastic rounding is to one of the two
 * neighbors of x, with probabilities that make the mean x.
 *
 * Rounds to bfloat16 stochastically; `round` rounds to nearest, and `narrow` gives the 16 bits. */
KERNEL(void, round_stochastic, struct device *d, struct mat x,
	const struct rng_stream *rng)
/* Each row becomes scale * code, with codes in [-127, 127] and scale = max |x| / 127 in bfloat16,
 * so that scale * code is exact, and quantizing a row again does not change it. A row that is not
 * finite, or too small for a scale, becomes 0. codes and scales may be NULL; rng is NULL for
 * rounding to nearest. */
KERNEL(void, quantize, struct device *d, struct mat x, int8_t *codes, float *scales,
	const struct rng_stream *rng)
KERNEL(void, dequantize, struct device *d, struct mat x, const int8_t *codes,
	const float *scales)
/* Packs k elements of each row in order, with their columns as 32-bit integers if `wide`, else
 * 16-bit ones: the nonzero elements, at most the first k, and zeros to make up k. */
KERNEL(void, topk_pack, struct device *d, float *values, void *columns, bool wide,
	struct mat x, int64_t k)
/* The inverse of topk_pack: all other elements become 0. */
KERNEL(void, topk_scatter, struct device *d, struct mat x, const float *values,
	const void *columns, bool wide, int64_t k)

#endif
