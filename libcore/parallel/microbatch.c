/* The assignment of micro-batches to data-parallel ranks. */
#include "parallel/microbatch.h"

struct microbatches microbatches_assign(
	int64_t n_micro, const int degree[N_AXES], int zero, bool offloads_grads)
{
	return (struct microbatches){.n_micro = n_micro,
		.ranks = degree[AXIS_DP] * degree[AXIS_FSDP],
		.round_robin = zero >= 2 || offloads_grads,
		.unit_ranks = zero >= 2 ? degree[AXIS_FSDP] : 1};
}

int64_t microbatches_own(const struct microbatches *mb, int rank)
{
	int unit = mb->begin ? rank / mb->unit_ranks : 0;
	if (mb->begin)
		return mb->begin[unit + 1] - mb->begin[unit];
	if (mb->round_robin)
		return ceil_div(max64(0, mb->n_micro - rank), mb->ranks);
	return part_begin(mb->n_micro, mb->ranks, rank + 1) -
	       part_begin(mb->n_micro, mb->ranks, rank);
}

int64_t microbatches_count(const struct microbatches *mb, int rank)
{
	if (!mb->begin && (mb->round_robin || mb->lockstep))
		return ceil_div(mb->n_micro, mb->ranks);
	return microbatches_own(mb, rank);
}

int64_t microbatches_index(const struct microbatches *mb, int rank, int64_t i)
{
	if (mb->round_robin && !mb->begin)
		return i * mb->ranks + rank;
	if (i >= microbatches_own(mb, rank))
		return mb->n_micro;
	if (mb->begin)
		return (mb->begin[rank / mb->unit_ranks] + i) * mb->unit_ranks +
		       rank % mb->unit_ranks;
	return part_begin(mb->n_micro, mb->ranks, rank) + i;
}

int microbatches_rank(const int degree[N_AXES], const int coord[N_AXES])
{
	return coord[AXIS_DP] * degree[AXIS_FSDP] + coord[AXIS_FSDP];
}
