/* Which steps are audited, and which rank computes which micro-batch again (audit_plan.h). */
#include "referee/audit_plan.h"

#include <math.h>

#include "base/philox.h"

/* Time of an audit besides the micro-batch: hashing, and reading its samples. */
static const double overhead = 0.02;

double audit_cost(int64_t turns, int stages)
{
	/* a pipeline computes one micro-batch in `stages` slots, and n in n + stages - 1 */
	return (1 + overhead) * stages / (double)(turns + stages - 1);
}

int64_t audit_interval(double share, int64_t turns, int stages)
{
	const double longest = 1e15;
	double every = ceil(audit_cost(turns, stages) / share * (1 - 1e-12));
	return share < 1 ? (int64_t)fmin(fmax(every, 1), longest) : 1;
}

/* Returns two random numbers, from 0 to 1, of a step or of an interval of steps. */
static struct philox_block draw(
	const struct audit_config *c, int64_t number, uint32_t what)
{
	return philox(philox_key(c->seed, PHILOX_AUDIT, (uint64_t)number), what, 0, 0, 0);
}

static bool is_drawn(const struct audit_config *c, int64_t step)
{
	struct philox_block b = draw(c, (step - 1) / c->every, 1);
	double random = philox_uniform64(b.x[0], b.x[1]);
	return (step - 1) % c->every == (int64_t)(random * (double)c->every);
}

/* Returns the number of shifts from `first` to `last` that are multiples of `unit`. */
static int count_multiples(int unit, int first, int last)
{
	return last < first ? 0 : last / unit - (first - 1) / unit;
}

int audit_shift(const struct audit_config *c, double random)
{
	int n_ranks = c->data_ranks, first = c->far > 1 ? c->far : 1;
	int unit = c->unit < n_ranks ? c->unit : 1;
	if (!count_multiples(unit, first, n_ranks - first))
		first = 1; /* no shift is far for all ranks */
	int n = count_multiples(unit, first, n_ranks - first);
	return n ? ((first + unit - 1) / unit + (int)(random * n)) * unit : 0;
}

struct audit_plan audit_plan(const struct audit_config *c, int64_t step, bool always)
{
	struct philox_block b = draw(c, step, 0);
	return (struct audit_plan){.audited = always || is_drawn(c, step),
		.shift = audit_shift(c, philox_uniform64(b.x[0], b.x[1])),
		.turn = (int64_t)(philox_uniform64(b.x[2], b.x[3]) * (double)c->turns)};
}
