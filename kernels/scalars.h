/* Arithmetic on single numbers, which gives the same bits on all devices. */
#ifndef KERNELS_SCALARS_H
#define KERNELS_SCALARS_H

#include "kernels/kernels.h"

/* From the sums, rounded: of the loss over tokens, and of the gradient's squares. */
EXACT_FN struct step_end step_end_of(
	double loss, double squares, const struct step_terms *t)
{
	struct step_end e;
	e.update = t->update;
	e.loss = (float)(loss / t->tokens);
	e.grad_norm = (float)(sqrt(squares) / (double)t->loss_scale);
	e.update.grad_scale = 1;
	if (t->clip > 0 && (double)e.grad_norm > t->clip)
		e.update.grad_scale = (float)(t->clip / ((double)e.grad_norm + 1e-6));
	e.update.grad_scale /= t->loss_scale;
	e.update.off = !isfinite(e.loss) || !isfinite(e.grad_norm);
	e.step = t->step;
	return e;
}

/* What Muon multiplies a matrix by first, whose squares sum to this. */
EXACT_FN float muon_scale(double squares)
{
	return (float)(1 / (sqrt(squares) + 1e-7));
}

/* torchao: the scale in fp64, because 1 / amax differs between its backends in fp32. NaN goes
 * on. */
EXACT_FN float float8_scale(enum dtype type, float amax)
{
	const double eps = 1e-12, largest = type == DT_E4M3 ? 448 : 57344;
	double most = (double)amax < eps ? eps : (double)amax;
	return (float)(largest / most);
}

#endif
