/* The weights of workers in a synchronization. */
#include "edit/edit.h"

#include <math.h>

/* Returns the softmax term of a norm. The largest exponent is 0: not all terms underflow. */
static double softmax_term(const struct weights_config *c, double norm, double smallest)
{
	return c->by_norm ? exp((smallest - norm) / c->temperature) : 1;
}

void worker_weights(const struct weights_config *c, int n, const struct worker_report *r,
	float *weight)
{
	double smallest = INFINITY, sum_terms = 0, total_steps = 0;
	for (int i = 0; i < n; i++)
		smallest = r[i].excluded ? smallest : fmin(smallest, r[i].norm);
	for (int i = 0; i < n; i++) {
		sum_terms += r[i].excluded ? 0 : softmax_term(c, r[i].norm, smallest);
		total_steps += r[i].excluded ? 0 : (double)r[i].steps;
	}
	for (int i = 0; i < n; i++) {
		double w = softmax_term(c, r[i].norm, smallest);
		if (c->by_norm || c->temperature > 0)
			w /= sum_terms;
		if (c->by_steps && total_steps > 0)
			w = (1 - c->steps_ratio) * w +
			    c->steps_ratio * (double)r[i].steps / total_steps;
		weight[i] = r[i].excluded ? 0 : (float)w;
	}
}
