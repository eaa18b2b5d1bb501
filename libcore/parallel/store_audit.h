/* Checksums of the leaves of a micro-batch that two ranks compute (--referee). */
#pragma once

#include "parallel/store_internal.h"

/* The caller sets store.audit while the micro-batch is computed. */
struct store_audit {
	bool drops;	   /* leaves are not added, and store_reduce() sums nothing */
	const uint32_t *u; /* device memory, weights: see struct grid_check */
	struct philox_key key;
	uint64_t *word; /* [n_tensors], device memory: grid_check.word of each tensor */
};

/* For the files of the store only: adds the checksum of a leaf, or of some rows of it, to the
 * word of its tensor, if an audit is in progress. `row`: the first row of x among the held rows. */
void audit_leaf(struct store *s, const struct bucket *b, const struct entry *e,
	int64_t row, struct mat x);
/* Returns true if leaves are not added, and sums are not reduced. */
static inline bool audit_drops(const struct store *s)
{
	return s->audit && s->audit->drops;
}
