/* ZB-H1 (Qi et al. 2023): 1F1B, but a backward computes only the gradient of the input, which
 * the previous rank waits for. The weight gradients, which no rank waits for, are computed later,
 * in bubbles: on rank r, r micro-batches later. So every rank keeps the activations of as many
 * micro-batches as the first rank, the maximum in 1F1B.
 *
 * With F, X and W the times of a forward, an input gradient and a weight gradient, and at least P
 * micro-batches, the bubble is (P - 1)(F + X - W); in 1F1B it is (P - 1)(F + X + W). */
#include "schedule/schedule_internal.h"

/* Adds a rank's actions for ZB-H1: 1F1B with weight backwards `rank` micro-batches later. */
void schedule_make_zb_h1(struct schedule *s, int rank)
{
	int64_t ahead = min64(s->ranks - rank - 1, s->n_micro), delay = rank;
	for (int64_t m = 0; m < ahead; m++)
		schedule_add(s, rank, ACTION_FORWARD, m, rank);
	for (int64_t m = 0; m < s->n_micro; m++) {
		if (m + ahead < s->n_micro)
			schedule_add(s, rank, ACTION_FORWARD, m + ahead, rank);
		schedule_add(s, rank, ACTION_BACKWARD_X, m, rank);
		if (m >= delay)
			schedule_add(s, rank, ACTION_BACKWARD_W, m - delay, rank);
	}
	for (int64_t m = max64(s->n_micro - delay, 0); m < s->n_micro; m++)
		schedule_add(s, rank, ACTION_BACKWARD_W, m, rank);
}
