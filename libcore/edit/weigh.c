/* What a worker counts. */
#include "edit/edit.h"

#include <math.h>

/* The largest exponent is 0, so that it is no matter how large norms are. */
static double softmax_part(const struct weigh_config *c, double norm, double least)
{
	return c->by_norm ? exp((least - norm) / c->temperature) : 1;
}

void weigh(const struct weigh_config *c, int n, const double *norm, const bool *out,
	const int64_t *steps, float *weight)
{
	double least = INFINITY, parts = 0, all_steps = 0;
	for (int i = 0; i < n; i++)
		least = out[i] ? least : fmin(least, norm[i]);
	for (int i = 0; i < n; i++) {
		parts += out[i] ? 0 : softmax_part(c, norm[i], least);
		all_steps += out[i] ? 0 : (double)steps[i];
	}
	for (int i = 0; i < n; i++) {
		double w = softmax_part(c, norm[i], least);
		if (c->by_norm || c->temperature > 0)
			w /= parts;
		if (c->by_steps && all_steps > 0)
			w = (1 - c->steps_ratio) * w +
			    c->steps_ratio * (double)steps[i] / all_steps;
		weight[i] = out[i] ? 0 : (float)w;
	}
}
