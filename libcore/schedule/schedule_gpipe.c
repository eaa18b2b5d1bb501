/* GPipe (Huang et al. 2019): all forwards, then all backwards. With several stages per rank, a rank
 * computes all micro-batches on one stage before it computes the next stage (Lamy-Poirier 2023). */
#include "schedule/schedule_internal.h"

/* Adds the actions of a rank for GPipe: all forwards, then all backwards. */
void schedule_make_gpipe(struct schedule *s, int rank)
{
	int last = schedule_stages(s) - s->ranks + rank;
	for (int stage = rank; stage <= last; stage += s->ranks)
		for (int64_t m = 0; m < s->n_micro; m++)
			schedule_add(s, rank, ACTION_FORWARD, m, stage);
	for (int stage = last; stage >= rank; stage -= s->ranks)
		for (int64_t m = 0; m < s->n_micro; m++)
			schedule_add(s, rank, schedule_backward(s), m, stage);
}
