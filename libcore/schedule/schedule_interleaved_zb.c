/* Interleaved zero bubble: the interleaved schedule, but a backward computes only the gradient of
 * the input, and rank r computes the weight gradients r places later, as in ZB-H1 (Qi et al.
 * 2023). So no rank keeps more activations than the first rank of the interleaved schedule.
 *
 * With full groups, and F, X and W the times of a stage, the bubble is (P - 1)(F + X - W): V
 * times smaller than in ZB-H1, with V stages per rank. */
#include "schedule/schedule_internal.h"

void schedule_make_interleaved_zb(struct schedule *s, int rank)
{
	schedule_interleave(s, rank, rank);
}
