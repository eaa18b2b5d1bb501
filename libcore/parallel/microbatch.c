/* Which micro-batches a data-parallel rank computes. */
#include "parallel/microbatch.h"

/* A rank with only some of a micro-batch's leaves cannot add micro-batches up by itself: it
 * would keep a node of each. By turns it keeps none. Of tensor parallelism that is true of
 * small tensors only, so a few nodes are better than many messages. */
struct microbatches microbatches_assign(
	int64_t n_micro, const int degree[N_AXES], int zero)
{
	enum { FEW = 8 };
	struct microbatches d = {n_micro, degree[AXIS_DP] * degree[AXIS_FSDP], false};
	int64_t rounds = ceil_div(n_micro, d.ranks);
	d.by_turns = zero >= 2 || (degree[AXIS_CP] > 1 && rounds > 1) ||
		     (degree[AXIS_TP] > 1 && rounds > FEW);
	return d;
}

int64_t microbatches_count(const struct microbatches *d, int rank)
{
	if (d->by_turns)
		return ceil_div(d->n_micro, d->ranks);
	return part_begin(d->n_micro, d->ranks, rank + 1) -
	       part_begin(d->n_micro, d->ranks, rank);
}

int64_t microbatches_index(const struct microbatches *d, int rank, int64_t i)
{
	if (d->by_turns)
		return i * d->ranks + rank;
	return part_begin(d->n_micro, d->ranks, rank) + i;
}

int microbatches_rank(const int degree[N_AXES], const int at[N_AXES])
{
	return at[AXIS_DP] * degree[AXIS_FSDP] + at[AXIS_FSDP];
}
