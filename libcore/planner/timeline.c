/* A step of all ranks with stragglers: every pipeline by itself, as if they waited for each other only
 * at its end. (With --zero 3 they also wait in each gather.) */
#include "planner/planner.h"

#include <stdlib.h>

#include "base/philox.h"
#include "parallel/schedule.h"

/* The costs of the stages of one pipeline, a stage being as slow as its slowest rank. */
static bool draw_costs(const struct choice *c, const struct reliability *job,
	uint64_t seed, int64_t pipeline, double *cost)
{
	const struct layout *l = &c->l;
	struct philox_key key = {{(uint32_t)seed, PHILOX_STRAGGLE}};
	int pp = l->degree[AXIS_PP], inner = l->degree[AXIS_TP] * l->degree[AXIS_CP];
	double stage = (c->times.computation + c->times.exposed - c->times.rest) /
		       ((double)l->n_micro * (double)l->stages);
	bool any = false;
	for (int i = 0; i < pp; i++) {
		bool slow = false;
		for (int k = 0; k < inner; k++) {
			struct philox_block b = philox(
				key, (uint32_t)pipeline, (uint32_t)i, (uint32_t)k, 1);
			slow |= (b.x[0] + 0.5) / 4294967296.0 < job->probability;
		}
		any |= slow;
		for (int v = 0; v < l->stages; v++)
			cost[i + v * pp] = stage * (slow ? job->slow : 1) / 3;
	}
	return any;
}

static double step_of(
	const struct schedule *s, const double *cost, double *twice, struct timeline *t)
{
	for (int i = 0; i < schedule_stages(s); i++)
		twice[i] = cost[i];
	const struct schedule_costs costs = {cost, cost, twice, .transfer = 0};
	schedule_time(s, &costs, t);
	return t->total;
}

/* Of the pipelines with stragglers, and of one without. */
void timeline_print(const struct request *r, const struct choice *c,
	const struct reliability *job, uint64_t seed, int width, struct str *out)
{
	enum { MOST = 64 }; /* micro-batches that are drawn */
	const struct layout *l = &c->l;
	int64_t pipelines = l->degree[AXIS_DP] * l->degree[AXIS_FSDP], worst = 0,
		slow = 0;
	int64_t n = min64(l->n_micro, MOST);
	size_t stages = (size_t)(l->degree[AXIS_PP] * l->stages);
	double *cost = xcalloc(2 * stages, sizeof(*cost)), longest = 0, none = 0;
	struct reliability calm = {.slow = 1};
	struct schedule s;
	struct timeline t;
	struct err e = {0};
	if (schedule_open(&s, (enum schedule_kind)l->schedule, l->degree[AXIS_PP],
		    (int)l->stages, n, &e))
		die_err(&e);
	draw_costs(c, &calm, seed, 0, cost);
	none = longest = step_of(&s, cost, cost + stages, &t);
	timeline_free(&t);
	for (int64_t i = 0; i < pipelines; i++) {
		if (!draw_costs(c, job, seed, i, cost))
			continue;
		slow++;
		double step = step_of(&s, cost, cost + stages, &t);
		worst = step > longest ? i : worst;
		longest = step > longest ? step : longest;
		timeline_free(&t);
	}
	draw_costs(c, slow ? job : &calm, seed, worst, cost);
	step_of(&s, cost, cost + stages, &t);
	str_printf(out,
		"# a step of %d ranks: %lld pipelines, %lld of them with stragglers; %lld "
		"micro-batches take %.4f s, and %.4f s without stragglers; pipeline %lld:\n",
		r->ranks, (long long)pipelines, (long long)slow, (long long)n, longest,
		none, (long long)worst);
	schedule_draw(&s, &t, width, out);
	timeline_free(&t);
	schedule_free(&s);
	free(cost);
}
