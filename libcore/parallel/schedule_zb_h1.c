/*
 * ZB-H1 (Qi et al. 2023): 1F1B, but a backward is only the gradient of the input, for which
 * the rank before is waiting; nobody waits for the weights' gradients, which come later, in
 * what were bubbles. Rank r is r micro-batches behind with them: then every rank keeps as many
 * micro-batches as the first one does, which is what 1F1B keeps at most.
 *
 * With F, X and W the times of the three, the bubble is (P - 1)(F + X - W) where 1F1B's is
 * (P - 1)(F + X + W), from P micro-batches on.
 */
#include "parallel/schedule_internal.h"

void schedule_make_zb_h1(struct schedule *s, int rank)
{
	int64_t ahead = min64(s->ranks - rank - 1, s->n_micro), behind = rank;
	for (int64_t m = 0; m < ahead; m++)
		schedule_add(s, rank, ACTION_FORWARD, m, rank);
	for (int64_t m = 0; m < s->n_micro; m++) {
		if (m + ahead < s->n_micro)
			schedule_add(s, rank, ACTION_FORWARD, m + ahead, rank);
		schedule_add(s, rank, ACTION_BACKWARD_X, m, rank);
		if (m >= behind)
			schedule_add(s, rank, ACTION_BACKWARD_W, m - behind, rank);
	}
	for (int64_t m = max64(s->n_micro - behind, 0); m < s->n_micro; m++)
		schedule_add(s, rank, ACTION_BACKWARD_W, m, rank);
}
