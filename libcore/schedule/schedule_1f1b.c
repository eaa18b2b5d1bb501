/* 1F1B (PipeDream-flush, Narayanan et al. 2021): each rank begins with as many forwards as
 * there are ranks after it, then alternates one forward and one backward, and ends with the
 * remaining backwards. So rank r of P keeps the activations of at most P - r micro-batches. */
#include "schedule/schedule_internal.h"

/* Adds a rank's actions for 1F1B: warm-up forwards, then alternating forwards and backwards. */
void schedule_make_1f1b(struct schedule *s, int rank)
{
	int64_t ahead = min64(s->ranks - rank - 1, s->n_micro);
	for (int64_t m = 0; m < ahead; m++)
		schedule_add(s, rank, ACTION_FORWARD, m, rank);
	for (int64_t m = 0; m < s->n_micro; m++) {
		if (m + ahead < s->n_micro)
			schedule_add(s, rank, ACTION_FORWARD, m + ahead, rank);
		schedule_add(s, rank, schedule_backward(s), m, rank);
	}
}
