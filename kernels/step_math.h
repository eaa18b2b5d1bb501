/* Arithmetic on single numbers, which gives the same bits on all devices. */
#pragma once

#include "kernels/kernels.h"

/* Returns the result of the step_end kernel, from the rounded sums of losses and of squares, and
 * the n words of the checks. */
EXACT_FN struct step_end step_end_of(double loss, double squares,
	const struct step_terms *t, const uint64_t *word, int n)
{
	struct step_end e;
	e.update = t->update;
	e.loss = (float)(loss / t->count);
	e.too_large = squares == -(double)INFINITY; /* grid_count() */
	e.grad_norm = (float)(sqrt(fabs(squares)) / (double)t->scale);
	e.update.grad_scale = 1;
	if (t->max_norm > 0 && (double)e.grad_norm > t->max_norm)
		e.update.grad_scale = (float)(t->max_norm / ((double)e.grad_norm + 1e-6));
	e.update.grad_scale /= t->scale;
	e.update.off = !isfinite(e.loss) || !isfinite(e.grad_norm);
	for (int i = 0; i < n; i++)
		e.update.off |= word[i] % GRID_PRIME != 0;
	e.step = t->step;
	return e;
}

/* Returns 1 / (Frobenius norm + 1e-7) of a matrix, for Muon, from its sum of squares. */
EXACT_FN float muon_scale(double squares)
{
	return (float)(1 / (sqrt(squares) + 1e-7));
}

/* Returns the scale of a cast to fp8, as torchao computes it: in fp64, because 1 / amax in fp32
 * differs between torchao's backends. `largest`: of the format. NaN propagates. */
EXACT_FN float float8_scale(float largest, float amax)
{
	const double eps = 1e-12;
	double max = (double)amax < eps ? eps : (double)amax;
	return (float)((double)largest / max);
}
