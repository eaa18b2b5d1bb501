/* Goodput: the fraction of the time that failures, checkpoints and stragglers leave for
 * training. */
#include "plan/planner.h"

#include <math.h>

#include "base/philox.h"

/* Returns the expected slowdown of a step, which waits for its slowest rank. */
static double step_slowdown(const struct reliability *x, int ranks)
{
	double none = pow(1 - x->probability, ranks);
	return x->slow > 1 ? none + (1 - none) * x->slow : 1;
}

/* Returns the optimal seconds of training between two checkpoints (Daly). */
static double optimal_interval(const struct reliability *x)
{
	double mtbf = 3600 / x->failures, ratio = x->checkpoint / (2 * mtbf);
	if (x->failures <= 0 || x->checkpoint <= 0)
		return INFINITY;
	if (ratio >= 1)
		return mtbf;
	return sqrt(2 * x->checkpoint * mtbf) * (1 + sqrt(ratio) / 3 + ratio / 9) -
	       x->checkpoint;
}

void goodput_compute(
	const struct reliability *x, int ranks, double step, struct goodput *g)
{
	double mtbf = x->failures > 0 ? 3600 / x->failures : INFINITY;
	g->slowdown = step_slowdown(x, ranks);
	g->interval = x->interval > 0 ? x->interval : optimal_interval(x);
	if (g->interval < step)
		g->interval = step;
	g->fraction = 1 / g->slowdown;
	if (isinf(mtbf)) {
		if (!isinf(g->interval))
			g->fraction *= g->interval / (g->interval + x->checkpoint);
		return;
	}
	if (isinf(g->interval)) { /* checkpoints take no time: one after each step */
		g->interval = step;
	}
	double period = (g->interval + x->checkpoint) / mtbf;
	g->fraction *= g->interval / (mtbf * exp(x->restart / mtbf) * expm1(period));
}

/* A stream of random numbers. */
struct random_stream {
	struct philox_key key;
	uint64_t n;
};

/* Draws a number in (0, 1). */
static double draw_uniform(struct random_stream *s)
{
	struct philox_block b =
		philox(s->key, (uint32_t)s->n, (uint32_t)(s->n >> 32), 0, 0);
	s->n++;
	return (b.x[0] + 0.5) / 4294967296.0;
}

/* Draws the time of the first failure after `now`, in seconds. */
static double next_failure(
	const struct reliability *x, struct random_stream *s, double now)
{
	return x->failures > 0 ? now - log(draw_uniform(s)) * 3600 / x->failures
			       : INFINITY;
}

/* Simulates a job step by step. A step is slow if one of its ranks is. A failure loses the work
 * since the last checkpoint, and another failure may occur during the restart. */
void goodput_simulate(const struct reliability *x, int ranks, double step, double hours,
	uint64_t seed, struct goodput *g)
{
	enum { MAX_STEPS = 100000000 };
	struct random_stream s = {.key = {{(uint32_t)seed, PHILOX_STRAGGLE}}};
	double end = fmin(3600 * hours, MAX_STEPS * step), now = 0,
	       failure = next_failure(x, &s, 0);
	double all_fast = pow(1 - x->probability, ranks), saved = 0, since_save = 0,
	       unsaved = 0;
	double elapsed = 0;
	int64_t steps = 0;
	goodput_compute(x, ranks, step, g);
	while (now < end) {
		bool is_slow = x->slow > 1 && draw_uniform(&s) > all_fast;
		double step_seconds = is_slow ? step * x->slow : step;
		bool saves = since_save + step_seconds >= g->interval;
		double cost = step_seconds + (saves ? x->checkpoint : 0);
		steps++;
		elapsed += step_seconds;
		if (now + cost > failure) {
			now = failure + x->restart;
			while ((failure = next_failure(x, &s, failure)) < now &&
				now < end)
				now = failure + x->restart;
			since_save = unsaved = 0;
			continue;
		}
		now += cost;
		since_save += step_seconds;
		unsaved += step;
		if (saves) {
			saved += unsaved;
			since_save = unsaved = 0;
		}
	}
	g->slowdown = steps ? elapsed / ((double)steps * step) : 1;
	g->fraction = (saved + unsaved) / now;
}
