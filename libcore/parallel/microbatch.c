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

/* Returns the number of turns of a rank's unit. */
static int64_t unit_turns(const struct microbatches *mb, int rank)
{
	const int64_t *begin = mb->begin + rank / mb->unit_ranks;
	return begin[1] - begin[0];
}

int64_t microbatches_own(const struct microbatches *mb, int rank)
{
	if (mb->begin)
		return unit_turns(mb, rank);
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

/* ---- by speed -------------------------------------------------------------------- */

int64_t microbatches_units(const struct microbatches *mb)
{
	return mb->ranks / mb->unit_ranks;
}

int64_t microbatches_turns(const struct microbatches *mb)
{
	return mb->n_micro / mb->unit_ranks;
}

int64_t microbatches_max_turns(const struct microbatches *mb)
{
	int64_t units = microbatches_units(mb), turns = microbatches_turns(mb);
	return min64(2 * ceil_div(turns, units), turns - (units - 1));
}

void microbatches_deal_evenly(const struct microbatches *mb, int64_t *begin)
{
	int64_t units = microbatches_units(mb);
	for (int64_t u = 0; u <= units; u++)
		begin[u] = part_begin(microbatches_turns(mb), units, u);
}

void microbatches_deal(const struct microbatches *mb, const int64_t *time, int64_t *begin)
{
	int64_t units = microbatches_units(mb), max = microbatches_max_turns(mb);
	int64_t *count = begin + 1; /* until they are added up */
	for (int64_t u = 0; u < units; u++)
		count[u] = 1;
	for (int64_t left = microbatches_turns(mb) - units; left > 0; left--) {
		int64_t first = -1;
		for (int64_t u = 0; u < units; u++)
			if (count[u] < max &&
				(first < 0 || (count[u] + 1) * time[u] <
						      (count[first] + 1) * time[first]))
				first = u;
		count[first]++;
	}
	begin[0] = 0;
	for (int64_t u = 0; u < units; u++)
		begin[u + 1] += begin[u];
}

int64_t microbatches_span(
	const struct microbatches *mb, const int64_t *time, const int64_t *begin)
{
	int64_t span = 0;
	for (int64_t u = 0; u < microbatches_units(mb); u++)
		span = max64(span, (begin[u + 1] - begin[u]) * time[u]);
	return span;
}
