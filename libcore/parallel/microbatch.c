/* The assignment of micro-batches to data-parallel ranks. */
#include "parallel/microbatch.h"

/* With cp or tp, a rank has only some leaves of a micro-batch, so in runs it would keep a node of
 * each micro-batch; round-robin it keeps none. With tp this concerns only small tensors, so a few
 * kept nodes are better than many messages. */
struct microbatches microbatches_assign(
	int64_t n_micro, const int degree[N_AXES], int zero, bool offloads_grads)
{
	enum { FEW = 8 };
	struct microbatches mb = {n_micro, degree[AXIS_DP] * degree[AXIS_FSDP], false};
	int64_t rounds = ceil_div(n_micro, mb.ranks);
	mb.round_robin = zero >= 2 || offloads_grads ||
			 (degree[AXIS_CP] > 1 && rounds > 1) ||
			 (degree[AXIS_TP] > 1 && rounds > FEW);
	return mb;
}

int64_t microbatches_count(const struct microbatches *mb, int rank)
{
	if (mb->round_robin)
		return ceil_div(mb->n_micro, mb->ranks);
	return part_begin(mb->n_micro, mb->ranks, rank + 1) -
	       part_begin(mb->n_micro, mb->ranks, rank);
}

int64_t microbatches_index(const struct microbatches *mb, int rank, int64_t i)
{
	if (mb->round_robin)
		return i * mb->ranks + rank;
	return part_begin(mb->n_micro, mb->ranks, rank) + i;
}

int microbatches_rank(const int degree[N_AXES], const int at[N_AXES])
{
	return at[AXIS_DP] * degree[AXIS_FSDP] + at[AXIS_FSDP];
}
