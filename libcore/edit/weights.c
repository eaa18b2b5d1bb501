/* The weights of workers in a synchronisation. */
#include "edit/edit.h"

#include <math.h>

/* The largest exponent is 0, so that large norms do not underflow all of them. */
static double softmax_part(const struct weights_config *c, double norm, double smallest)
{
	return c->by_norm ? exp((smallest - norm) / c->temperature) : 1;
}

void worker_weights(const struct weights_config *c, int n, const double *norm,
	const bool *excluded, const int64_t *steps, float *weight)
{
	double smallest = INFINITY, parts = 0, all_steps = 0;
	for (int i = 0; i < n; i++)
		smallest = excluded[i] ? smallest : fmin(smallest, norm[i]);
	for (int i = 0; i < n; i++) {
		parts += excluded[i] ? 0 : softmax_part(c, norm[i], smallest);
		all_steps += excluded[i] ? 0 : (double)steps[i];
	}
	for (int i = 0; i < n; i++) {
		double w = softmax_part(c, norm[i], smallest);
		if (c->by_norm || c->temperature > 0)
			w /= parts;
		if (c->by_steps && all_steps > 0)
			w = (1 - c->steps_ratio) * w +
			    c->steps_ratio * (double)steps[i] / all_steps;
		weight[i] = excluded[i] ? 0 : (float)w;
	}
}
