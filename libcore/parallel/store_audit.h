/* For the files of the store only: checksums of the leaves of an audited micro-batch. They do
 * nothing unless store.audit is set. */
#pragma once

#include "parallel/store_internal.h"

/* Adds the checksum of a leaf, or of some rows of it, to the word of its tensor. `row`: of the first
 * row of x among the held rows. */
void audit_leaf(struct store *s, const struct bucket *b, const struct entry *e,
	int64_t row, struct mat x);
/* Returns true if leaves are not added, and sums are not reduced. */
static inline bool audit_drops(const struct store *s)
{
	return s->audit && s->audit->drops;
}
