/* The reduction of gradients by all ranks of a layout, in one process.
 *
 * Every rank has a real store and its memory. Fakes replace the sums over ranks, the messages of a
 * tied weight, the offload backend and the kernel that adds. A leaf is a hash of the place that it
 * comes from, an int64 sum is a sum of hashes, and a rounded sum is a hash of a sum. So a gradient
 * has the right value only if each of its leaves is added once, and it is rounded once, at the end.
 * The checksums of all contributions and results of a step add up to 0 (check_sums.h).
 *
 * Memory that a sum writes is rubbish until the rank waits for the sum. Memory that it reads must
 * not change until then. */
#pragma once

#include "parallel/store_internal.h"
#include "tests/support/store_layouts.h"

struct reduction_case {
	struct store_layout l;
	int workers; /* of local SGD, whose first of two steps is a warm-up; 0: none */
	int chunks;
	bool has_both_ends; /* the pipeline's first stage and its last one are on one rank */
	bool tiled_uses;    /* with l.tile: the tied weight is tiled, too */
	bool shares;	    /* the ranks of a host share memory */
	/* Changes something of a rank's store before the first step; NULL: nothing. */
	void (*plant)(struct store *s, int rank);
	bool hurries; /* sums are not waited for before other leaves get their memory */
	/* Is called for each bucket; NULL: nothing. */
	void (*see)(const struct bucket *b);
};

/* Returns -1 with *e set if a gradient is wrong, if ranks begin different sums or wait for each
 * other for ever, or if memory is used for two things at once. */
int reduction_check(const struct reduction_case *c, struct err *e);
