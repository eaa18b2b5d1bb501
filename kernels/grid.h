/* Exact sums of gradients. A leaf, the gradient of one micro-batch, is rounded once, ties to
 * even, to a multiple of 2^-exponent; sums are int64 counts of such multiples. Integers add to
 * the same bits in any order, even where they wrap, so the order, the ranks and the library do
 * not matter. kernels.h explains KERNEL. */
#ifndef KERNELS_GRID_H
#define KERNELS_GRID_H

#include "kernels/matrix.h"

/* In device memory, so that a graph can be launched again with another exponent. */
struct grid {
	int64_t exponent; /* GRID_MIN_EXPONENT to GRID_MAX_EXPONENT: 2^exponent is a float */
	/* Elements of leaves counted as 0: too large; NaN or infinite. */
	uint64_t beyond, not_finite;
};

enum { GRID_EXPONENT = 50, GRID_MIN_EXPONENT = -126, GRID_MAX_EXPONENT = 127 };

/* Exactly one of the two is not NULL; [n]. */
struct grid_part {
	const void *leaf; /* elements, in grid_sum.leaf_type */
	const int64_t *sum;
};

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
};

enum { GRID_PARTS = 440 }; /* fit into the arguments of a CUDA 11 launch: 4 KiB */

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

/* sum = (add ? sum : 0) + the parts. rounded = the sum as floats: rounded to the nearest double,
 * then to the nearest float; never -0. */
KERNEL(void, grid_sum, struct device *d, const struct grid_sum *s, struct grid *grid)
/* Adds the counters to a sum of squares, so that the norm is not finite: `beyond` as negative
 * infinities, unlike the square of an infinite gradient; `not_finite` as NaN. x is in device
 * memory. */
KERNEL(void, grid_count, struct device *d, struct exact *x, const struct grid *grid)

#endif
