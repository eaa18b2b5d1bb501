/* The arithmetic of a step's end, for all devices. */
#ifndef KERNELS_STEP_END_H
#define KERNELS_STEP_END_H

#include "kernels/kernels.h"

/* From the sums, rounded: of the loss over tokens, and of the gradient's squares. */
EXACT_FN struct step_end step_end_of(
	double loss, double squares, const struct step_terms *t)
{
	struct step_end e;
	e.adamw = t->adamw;
	e.loss = (float)(loss / t->tokens);
	e.grad_norm = (float)(sqrt(squares) / (double)t->loss_scale);
	e.adamw.grad_scale = 1;
	if (t->clip > 0 && (double)e.grad_norm > t->clip)
		e.adamw.grad_scale = (float)(t->clip / ((double)e.grad_norm + 1e-6));
	e.adamw.grad_scale /= t->loss_scale;
	e.adamw.off = !isfinite(e.loss) || !isfinite(e.grad_norm);
	e.step = t->step;
	return e;
}

#endif
