/* Goodput: the fraction of the time that failures, checkpoints and stragglers leave for
 * training. */
#include "plan/planner.h"

#include <math.h>

#include "base/philox.h"

/* Returns the expected slowdown of a step, which waits for its slowest rank. */
static double slowdown(const struct reliability *x, int ranks)
{
	double none = pow(1 - x->probability, ranks);
	return x->slow > 1 ? none + (1 - none) * x->slow : 1;
}

/* Returns the optimal seconds of training between two checkpoints (Daly). */
static double best_interval(const struct reliability *x)
{
	double between = 3600 / x->failures, ratio = x->checkpoint / (2 * between);
	if (x->failures <= 0 || x->checkpoint <= 0)
		return INFINITY;
	if (ratio >= 1)
		return between;
	return sqrt(2 * x->checkpoint * between) * (1 + sqrt(ratio) / 3 + ratio / 9) -
	       x->checkpoint;
}

/* Daly's equation for the time of a job, per second of work. */
void goodput_expect(
	const struct reliability *x, int ranks, double step, struct goodput *g)
{
	double between = x->failures > 0 ? 3600 / x->failures : INFINITY;
	g->slowdown = slowdown(x, ranks);
	g->interval = x->interval > 0 ? x->interval : best_interval(x);
	if (g->interval < step)
		g->interval = step;
	g->fraction = 1 / g->slowdown;
	if (isinf(between)) {
		if (!isinf(g->interval))
			g->fraction *= g->interval / (g->interval + x->checkpoint);
		return;
	}
	if (isinf(g->interval)) { /* checkpoints cost nothing: one after each step */
		g->interval = step;
	}
	double period = (g->interval + x->checkpoint) / between;
	g->fraction *=
		g->interval / (between * exp(x->restart / between) * expm1(period));
}

/* ---- the timeline ------------------------------------------------------------------------- */

struct stream {
	struct philox_key key;
	uint64_t n;
};

/* Draws a number in (0, 1). */
static double uniform(struct stream *s)
{
	struct philox_block b =
		philox(s->key, (uint32_t)s->n, (uint32_t)(s->n >> 32), 0, 0);
	s->n++;
	return (b.x[0] + 0.5) / 4294967296.0;
}

static double next_failure(const struct reliability *x, struct stream *s, double now)
{
	return x->failures > 0 ? now - log(uniform(s)) * 3600 / x->failures : INFINITY;
}

/* Simulates a job step by step. A step is slow if one of its ranks is. A failure loses the work
 * since the last checkpoint, and another failure may occur during the restart. */
void goodput_simulate(const struct reliability *x, int ranks, double step, double hours,
	uint64_t seed, struct goodput *g)
{
	enum { MAX_STEPS = 100000000 };
	struct stream s = {.key = {{(uint32_t)seed, PHILOX_STRAGGLE}}};
	double end = fmin(3600 * hours, MAX_STEPS * step), now = 0,
	       failure = next_failure(x, &s, 0);
	double none = pow(1 - x->probability, ranks), saved = 0, since = 0, busy = 0;
	double elapsed = 0;
	int64_t steps = 0;
	goodput_expect(x, ranks, step, g);
	while (now < end) {
		bool slow = x->slow > 1 && uniform(&s) > none;
		double takes = slow ? step * x->slow : step;
		bool save = since + takes >= g->interval;
		double cost = takes + (save ? x->checkpoint : 0);
		steps++;
		elapsed += takes;
		if (now + cost > failure) {
			now = failure + x->restart;
			while ((failure = next_failure(x, &s, failure)) < now &&
				now < end)
				now = failure + x->restart;
			since = busy = 0;
			continue;
		}
		now += cost;
		since += takes;
		busy += step;
		if (save) {
			saved += busy;
			since = busy = 0;
		}
	}
	g->slowdown = steps ? elapsed / ((double)steps * step) : 1;
	g->fraction = (saved + busy) / now;
}
