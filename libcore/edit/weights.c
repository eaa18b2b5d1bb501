/* The weights of workers in a synchronization. */
#include "edit/edit.h"

#include <math.h>

/* Returns a softmax term. The largest exponent is 0, so that not all terms underflow. */
static double softmax_part(const struct weights_config *c, double norm, double smallest)
{
	return c->by_norm ? exp((smallest - norm) / c->temperature) : 1;
}

void worker_weights(const struct weights_config *c, int n, const struct worker_report *r,
	float *weight)
{
	double smallest = INFINITY, parts = 0, all_steps = 0;
	for (int i = 0; i < n; i++)
		smallest = r[i].excluded ? smallest : fmin(smallest, r[i].norm);
	for (int i = 0; i < n; i++) {
		parts += r[i].excluded ? 0 : softmax_part(c, r[i].norm, smallest);
		all_steps += r[i].excluded ? 0 : (double)r[i].steps;
	}
	for (int i = 0; i < n; i++) {
		double w = softmax_part(c, r[i].norm, smallest);
		if (c->by_norm || c->temperature > 0)
			w /= parts;
		if (c->by_steps && all_steps > 0)
			w = (1 - c->steps_ratio) * w +
			    c->steps_ratio * (double)r[i].steps / all_steps;
		weight[i] = r[i].excluded ? 0 : (float)w;
	}
}
