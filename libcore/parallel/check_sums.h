/* For the files of the store only: checksums of the sums of gradients (--check-sums). The checksums
 * of all contributions to the sums of a step add up to the checksum of the results. Each rank has a
 * word: its contributions minus its results. A sum went wrong unless the words of all ranks add up
 * to 0, modulo GRID_PRIME.
 *
 * To locate a wrong sum, a step has words for each bucket, too: what each rank computed minus what
 * the others received of it; what was computed for each rank minus what it received, by the library
 * that transfers it; and what each rank received minus what it rounded. */
#pragma once

#include "parallel/store_internal.h"

/* Allocates the weights from `run`. */
void checks_open(struct store *s, struct arena *run, bool measuring);
void checks_close(struct store *s);
/* Returns how to add the checksum of this rank's contribution to its word, for the elements from
 * `first` on; u NULL: the sums of the bucket are not checked. */
struct grid_check check_of_contribution(
	const struct store *s, const struct bucket *b, int64_t first);
/* Adds the checksum of this rank's contribution to its word, except of entries that are checked,
 * and zeroes the gaps of its vector. */
void check_contribution(struct store *s, struct bucket *b);
/* Executes a call with one part; if it rounds, adds the checksum of the results to this rank's
 * word. `pos`: of the elements in this rank's piece. */
void check_grid_sum(
	struct store *s, const struct bucket *b, struct grid_sum g, int64_t pos);
/* Returns how sum_begin() checks a sum of a group. */
struct sum_check check_of_sum(
	struct store *s, const struct bucket *b, const struct sum_group *g);
/* While a wrong sum is located: counts the leaves of a bucket of this rank alone as received. */
void check_row_of_one(struct store *s, struct bucket *b, bool leaf);
/* While a wrong sum is located: counts a kept sum that is contributed to another sum. */
void check_sent_again(struct store *s, struct bucket *b, const struct sum_group *g,
	const struct sum_call *call);
/* While a wrong sum is located: counts the sums that two stages exchange. `other`: rank of the
 * world. */
void check_tied(struct store *s, struct bucket *b, const struct comm *pair,
	const int64_t *sent, const int64_t *received, int other);
