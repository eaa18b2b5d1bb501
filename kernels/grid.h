/* Exact sums of gradients. A leaf, the gradient of one micro-batch, is rounded once, ties to
 * even, to a multiple of 2^-exponent; sums are int64 counts of such multiples. Integers add to
 * the same bits in any order, even where they wrap, so the order, the ranks and the library do
 * not matter. kernels.h explains KERNEL. */
#ifndef KERNELS_GRID_H
#define KERNELS_GRID_H

#include "base/philox.h"
#include "kernels/matrix.h"

/* In device memory, so that a graph can be launched again with another exponent. */
struct grid {
	int64_t exponent; /* GRID_MIN_EXPONENT to GRID_MAX_EXPONENT: 2^exponent is a float */
	/* Elements of leaves counted as 0: too large; NaN or infinite. */
	uint64_t beyond, not_finite;
	uint64_t check;	  /* the word of a step's checksums (grid_check) */
	uint64_t ignored; /* the word of checksums that another rank counts */
};

enum { GRID_EXPONENT = 50, GRID_MIN_EXPONENT = -126, GRID_MAX_EXPONENT = 127 };

/* Exactly one of the two is not NULL; [n]. */
struct grid_part {
	const void *leaf; /* elements, in grid_sum.leaf_type */
	const int64_t *sum;
};

/* A checksum of the sums x_0, x_1, ... of a call: the sum of w_i x_i, modulo a prime. Element i of
 * a bucket's vector has the weight w_i = u[i % GRID_BLOCK] v[i / GRID_BLOCK], with random u and v.
 * The sums are exact, so checksums add: the checksums of all contributions to a sum add up to the
 * checksum of the sum, over any ranks and in any order. An error in one bit always changes the
 * checksum; other errors do, except for about one in 10^8. */
enum { GRID_BLOCK = 4096 };
/* 2^31 - 99. Up to four flipped bits of an element never change it by a multiple of this prime.
 * With 2^31 - 1, two bits at a distance of 31 may. */
#define GRID_PRIME 0x7fffff9du
struct grid_check {
	const uint32_t
		*u; /* [GRID_BLOCK], device memory, 1 to 2^27 - 1: grid_weights() */
	struct philox_key key; /* the key of the random numbers v */
	uint32_t bucket;
	int64_t first; /* index of x_0 in the bucket */
	/* Device memory: a number congruent to the checksum modulo GRID_PRIME, below 2^31 for each
	 * 2^10 elements, is added to it. */
	uint64_t *word;
	bool subtract; /* subtracted instead */
};

/* Sets the weights u that belong to a seed. */
static inline void grid_weights(uint64_t seed, uint32_t u[GRID_BLOCK])
{
	struct philox_key key = philox_key(seed, PHILOX_CHECK, 0);
	for (uint32_t i = 0; i < GRID_BLOCK; i++)
		u[i] = 1 + philox(key, i, 0, 0, 0).x[0] % ((1u << 27) - 1);
}

/* Returns the key of the weights v that belong to a seed. */
static inline struct philox_key grid_check_key(uint64_t seed)
{
	return philox_key(seed, PHILOX_CHECK, 1);
}

/* Returns the weight v of a block, 1 to GRID_PRIME - 1. */
PHILOX_FN uint32_t grid_block_weight(const struct grid_check *c, int64_t block)
{
	struct philox_block b =
		philox(c->key, c->bucket, (uint32_t)block, (uint32_t)(block >> 32), 0);
	return 1 + b.x[0] % (GRID_PRIME - 1);
}

/* A part of a vector of 32-bit words, as fp32 elements are stored: its checksum is the sum of
 * w_i x_i modulo GRID_PRIME, with the weights of struct grid_check. A flipped bit always changes
 * it. */
struct word_part {
	const void *p; /* [n] 32-bit words, device memory */
	int64_t n;
	int64_t first;	 /* index in the vector of the part's first word */
	uint32_t vector; /* number of the vector, for its weights v */
	int sum;	 /* which of the sums the checksum is added to */
};

/* What a checksum adds to a word: factor times the checksum, and `differs` if the checksum is
 * not congruent to an earlier one. Both are below GRID_PRIME. */
struct checksum_term {
	uint64_t factor, differs;
};

/* Returns lower + 2^32 upper modulo GRID_PRIME, in a form below 2^48. */
PHILOX_FN uint64_t grid_fold(uint64_t lower, int64_t upper)
{
	const uint64_t r = ((uint64_t)1 << 32) % GRID_PRIME; /* 198 */
	uint64_t positive = (uint64_t)upper + ((uint64_t)GRID_PRIME << 32);
	uint64_t a = (lower & UINT32_MAX) + r * (lower >> 32);
	uint64_t b = (positive & UINT32_MAX) + r * (positive >> 32);
	return a + r * b;
}

/* Returns what a sum adds to a word, below 2 GRID_PRIME. */
PHILOX_FN uint64_t checksum_term_of(
	const struct checksum_term *x, uint64_t sum, uint64_t earlier)
{
	uint64_t now = sum % GRID_PRIME;
	return x->factor * now % GRID_PRIME +
	       (now != earlier % GRID_PRIME ? x->differs : 0);
}

/* `rounded` may be a leaf in fp32; otherwise no two vectors overlap. With more than GRID_PARTS
 * parts, `sum` is required. An element x of a leaf is too large if |x| > 2^(62 - levels -
 * exponent), so that 2^levels leaves add without overflow. */
struct grid_sum {
	int64_t *sum;		       /* [n]; NULL: not kept */
	bool add;		       /* to the old values of sum[] */
	float *rounded;		       /* [n]; NULL: not wanted */
	const struct grid_part *parts; /* in host memory */
	int n_parts;
	enum dtype leaf_type; /* any */
	int64_t n;
	int levels; /* log2 of the leaves per element in a step, over all ranks: 0 to 62 */
	const struct grid_check
		*check; /* how to hash the sums, in host memory; NULL: not */
};

enum { GRID_PARTS = 440 }; /* fit into the arguments of a CUDA 11 launch: 4 KiB */

/* What a call reads and writes besides its parts. */
enum { GRID_ADD = 1, GRID_KEPT = 2, GRID_ROUNDED = 4, GRID_CHECKED = 8 };

static inline int grid_writes(const struct grid_sum *s)
{
	return (s->add ? GRID_ADD : 0) | (s->sum ? GRID_KEPT : 0) |
	       (s->rounded ? GRID_ROUNDED : 0) | (s->check ? GRID_CHECKED : 0);
}

static inline int grid_leaves(const struct grid_sum *s)
{
	int n = 0;
	for (int i = 0; i < s->n_parts; i++)
		n += s->parts[i].leaf != NULL;
	return n;
}

#endif

#ifdef KERNEL

/* sum = (add ? sum : 0) + the parts. rounded = the sum as floats: rounded to the nearest double,
 * then to the nearest float; never -0. Counts bad elements if it keeps or rounds the sum. */
KERNEL(void, grid_sum, struct device *d, const struct grid_sum *s, struct grid *grid)
/* Adds the counters to a sum of squares, so that the norm is not finite: `beyond` as negative
 * infinities, unlike the square of an infinite gradient; `not_finite` as NaN. Reduces the word of
 * checksums modulo GRID_PRIME. x is in device memory. */
KERNEL(void, grid_count, struct device *d, struct exact *x, struct grid *grid)
/* Adds the checksums of n_parts parts to sums, as numbers that are congruent to them and below 2^31
 * for each part and each 2^10 words. u: [GRID_BLOCK], grid_weights(). All in device memory, except
 * the list of parts. */
KERNEL(void, word_sums, struct device *d, uint64_t *sum, const struct word_part *parts,
	int n_parts, const uint32_t *u, struct philox_key key)
/* *word, below GRID_PRIME, = the sum of n terms for the sums sum[i]. All in device memory. */
KERNEL(void, checksum_word, struct device *d, uint64_t *word, const uint64_t *sum,
	const uint64_t *earlier, const struct checksum_term *terms, int64_t n)

#endif
