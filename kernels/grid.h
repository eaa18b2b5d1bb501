/*
 * Exact sums of gradients. A leaf, the gradient of one micro-batch, is rounded once, ties to even, to
 * a multiple of 2^-exponent; sums are int64 numbers of such multiples. Integers add in any order to the
 * same bits, even where they wrap, so the order, the ranks and the library do not matter. kernels.h
 * explains KERNEL.
 */
#ifndef KERNELS_GRID_H
#define KERNELS_GRID_H

#include "kernels/matrix.h"

/* In device memory, so that a graph can be launched again with another exponent, which must be one of
 * GRID_LEAST to GRID_MOST: 2^exponent is a float. The counters are of leaves that count as 0, since
 * they are too large, or NaN or infinite. */
struct grid {
	int64_t exponent;
	uint64_t beyond, not_finite;
};

enum { GRID_EXPONENT = 50, GRID_LEAST = -126, GRID_MOST = 127 };

/* Exactly one is not NULL; [n]. */
struct grid_part {
	const void *leaf; /* of grid_sum.leaf_type */
	const int64_t *sum;
};

/* `rounded` may be a leaf in fp32; otherwise no two vectors overlap. More than GRID_PARTS parts need a sum. A leaf
 * x is too large if |x| > 2^(62 - levels - exponent): so 2^levels leaves add without overflow. */
struct grid_sum {
	int64_t *sum;		       /* [n]; NULL: not kept */
	bool add;		       /* to what it holds */
	float *rounded;		       /* [n]; NULL: not wanted */
	const struct grid_part *parts; /* in host memory */
	int n_parts;
	enum dtype leaf_type; /* any */
	int64_t n;
	int levels; /* log2 of the leaves that an element has in a step, on all ranks: 0 to 62 */
};

/* (A launch of CUDA 11 has 4 KiB of arguments.) */
enum { GRID_PARTS = 440 };

/* What a call reads and writes besides its parts. */
enum { GRID_ADD = 1, GRID_KEPT = 2, GRID_ROUNDED = 4 };

static inline int grid_writes(const struct grid_sum *s)
{
	return (s->add ? GRID_ADD : 0) | (s->sum ? GRID_KEPT : 0) |
	       (s->rounded ? GRID_ROUNDED : 0);
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

/* sum = (add ? sum : 0) + the parts; and the same as floats: to the nearest double, then to the nearest
 * float, -0 never. */
KERNEL(void, grid_sum, struct device *d, const struct grid_sum *s, struct grid *grid)
/* Adds what was counted to a sum of squares, so that the norm is not finite: leaves that are too large as
 * infinities, others as NaN. x is in device memory. */
KERNEL(void, grid_count, struct device *d, struct exact *x, const struct grid *grid)

#endif
