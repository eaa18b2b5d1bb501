/* For the files of the store only: bits that --inject-flip flips. All do nothing without a flip
 * that is due. */
#pragma once

#include "parallel/store_internal.h"

/* Flips a bit of a leaf before it is added. */
void flip_leaf(struct store *s, const struct entry *e, struct mat x);
/* Flips a bit of elements [pos, pos + n) of this rank's piece of a sum, which are at `sum`. */
void flip_kept_sum(
	struct store *s, struct bucket *b, int64_t *sum, int64_t pos, int64_t n);
/* Flips a bit of the sum of this rank's leaves. */
void flip_leaves_sum(struct store *s, struct bucket *b);
/* Flips a bit of this rank's contribution that another rank receives. */
void flip_message(struct store *s, struct bucket *b, const struct sum_call *call);
