/*
 * Interleaved zero bubble: the interleaved schedule, but a backward computes only the gradient of the
 * input, and rank r computes the weight gradients r places later, as in ZB-H1 (Qi et al. 2023). So every
 * rank keeps at most as many activations as the first rank of the interleaved schedule.
 *
 * With F, X and W the times of a stage and full groups, the bubble is (P - 1)(F + X - W): with V stages per
 * rank, V times less than that of ZB-H1.
 */
#include "parallel/schedule_internal.h"

void schedule_make_interleaved_zb(struct schedule *s, int rank)
{
	schedule_interleave(s, rank, rank);
}
