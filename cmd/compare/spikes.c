/* Finds spikes of a loss. */
#include "compare/judge_internal.h"

#include <math.h>

/* Returns true if so many values of a window are as large as `value` that it is not a spike: at
 * most 1 / (1 + SPIKE_SIGMAS^2) of them can lie SPIKE_SIGMAS deviations above the mean, by
 * Cantelli's inequality. This avoids the sums for most rows. */
static bool is_common_value(const double *window, double value)
{
	enum { MAX_AS_LARGE = SPIKE_WINDOW / (1 + SPIKE_SIGMAS * SPIKE_SIGMAS) };
	int n = 0;
	for (int i = SPIKE_WINDOW - 1; i >= 0 && n <= MAX_AS_LARGE; i--)
		n += window[i] >= value;
	return n > MAX_AS_LARGE;
}

/* Returns true if a row has a spike; then sets *s, except its run and step. The sums over a window
 * are computed anew for each row, since running sums would drift. */
static bool detect_spike(const double *x, int64_t row, struct spike *s)
{
	if (row < SPIKE_WINDOW || is_common_value(x + row - SPIKE_WINDOW, x[row]))
		return false;
	const double *window = x + row - SPIKE_WINDOW;
	double n = SPIKE_WINDOW;
	s->value = x[row];
	s->mean = mean_of(window, SPIKE_WINDOW);
	s->sd = sqrt(variance_of(window, SPIKE_WINDOW) * (n - 1) / n);
	return s->sd > 1e-10 && s->value > s->mean + SPIKE_SIGMAS * s->sd;
}

void record_spikes(const struct judging *j, struct verdict_result *r)
{
	const struct curves *c = &j->all;
	for (int s = 0; s < 2; s++)
		for (int i = 0; i < j->n_runs[s]; i++)
			for (int64_t row = 0; row < c->n; row++) {
				struct spike spike = {.at = c->at[row], .run = i};
				if (!detect_spike(curve_of(c, s, i), row, &spike))
					continue;
				if (s == CONTROL)
					r->n_control_spikes++;
				else if (r->n_spikes++ < MAX_SPIKES)
					r->spike[r->n_spikes - 1] = spike;
			}
}
