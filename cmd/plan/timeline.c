/* A step of all ranks with stragglers. Pipelines that gather parameters or sum gradients in each
 * micro-batch wait for each other, so a stage is as slow as its slowest rank in any of them. Other
 * pipelines wait only at the end of the step. */
#include "plan/planner.h"

#include "base/philox.h"
#include "parallel/parallel.h"

/* The pipelines [first, first + n), which wait for each other. */
struct pipeline_group {
	int64_t first, n;
};

/* Returns true if a rank of a pipeline's stage is a straggler. */
static bool has_straggler(
	const struct choice *c, const struct straggling *x, int64_t pipeline, int stage)
{
	const struct philox_key key = {{(uint32_t)x->seed, PHILOX_STRAGGLE}};
	int inner = c->l.degree[AXIS_TP] * c->l.degree[AXIS_CP];
	for (int k = 0; k < inner; k++) {
		struct philox_block b =
			philox(key, (uint32_t)pipeline, (uint32_t)stage, (uint32_t)k, 1);
		if ((b.x[0] + 0.5) / 4294967296.0 < x->job->probability)
			return true;
	}
	return false;
}

/* Sets the cost of a third of a micro-batch for each stage. Returns true if a stage is slow. */
static bool draw_costs(const struct choice *c, const struct straggling *x,
	struct pipeline_group g, double *cost)
{
	const struct layout *l = &c->l;
	int pp = l->degree[AXIS_PP];
	double stage = (c->times.computation + c->times.exposed - c->times.rest) /
		       ((double)l->n_micro * l->stages);
	bool has_slow = false;
	for (int i = 0; i < pp; i++) {
		bool is_slow = false;
		for (int64_t k = 0; k < g.n && !is_slow; k++)
			is_slow = has_straggler(c, x, g.first + k, i);
		has_slow |= is_slow;
		for (int v = 0; v < l->stages; v++)
			cost[schedule_rank_stage((enum schedule_kind)l->schedule, pp, i,
				v)] = stage * (is_slow ? x->job->slow : 1) / 3;
	}
	return has_slow;
}

/* Returns the seconds of a step. cost: [2][stages]: of a third of a micro-batch, and scratch. */
static double simulate_step(const struct schedule *s, double *cost, struct timeline *t)
{
	int n = schedule_stages(s);
	double *twice = cost + n;
	for (int i = 0; i < n; i++)
		twice[i] = cost[i];
	const struct schedule_costs costs = {cost, cost, twice, .transfer = 0};
	schedule_time(s, &costs, t);
	return t->total;
}

/* Opens the schedule, and returns an array for the costs of its stages. */
static double *schedule_and_costs(const struct choice *c, struct schedule *s)
{
	enum { MAX_MICRO = 64 }; /* micro-batches that are drawn */
	const struct layout *l = &c->l;
	size_t stages = (size_t)l->degree[AXIS_PP] * (size_t)l->stages;
	struct err e = {0};
	if (schedule_open(s, (enum schedule_kind)l->schedule, l->degree[AXIS_PP],
		    l->stages, min64(l->n_micro, MAX_MICRO), &e))
		die_err(&e);
	return xcalloc(2 * stages, sizeof(double));
}

void straggled_step(
	const struct choice *c, const struct straggling *x, struct straggled *out)
{
	const struct layout *l = &c->l;
	struct schedule s;
	struct timeline t;
	scoped_ptr double *cost = schedule_and_costs(c, &s);
	int64_t n_pipelines = (int64_t)l->degree[AXIS_DP] * l->degree[AXIS_FSDP];
	struct pipeline_group g = {0, x->together ? n_pipelines : 1};
	const struct reliability calm = {.slow = 1};
	draw_costs(c, &(struct straggling){.job = &calm}, g, cost);
	double calm_step = simulate_step(&s, cost, &t);
	timeline_free(&t);
	*out = (struct straggled){
		.pipelines = n_pipelines, .without = calm_step, .step = calm_step};
	for (; g.first < n_pipelines; g.first += g.n) {
		if (!draw_costs(c, x, g, cost))
			continue;
		out->slow++;
		double step = simulate_step(&s, cost, &t);
		timeline_free(&t);
		if (step > out->step) {
			out->step = step;
			out->slowest = g.first;
		}
	}
	schedule_free(&s);
}

void print_straggled_step(const struct request *r, const struct choice *c,
	const struct straggling *x, int width, struct str *out)
{
	struct straggled found;
	struct schedule s;
	struct timeline t;
	straggled_step(c, x, &found);
	scoped_ptr double *cost = schedule_and_costs(c, &s);
	struct pipeline_group g = {found.slowest, x->together ? found.pipelines : 1};
	draw_costs(c, x, g, cost);
	simulate_step(&s, cost, &t);
	str_printf(out, "# a step of %d ranks in %lld pipelines", r->ranks,
		(long long)found.pipelines);
	if (x->together)
		str_printf(out,
			" that wait for each other in each micro-batch, %s stragglers",
			found.slow ? "with" : "without");
	else
		str_printf(out, ", %lld with stragglers", (long long)found.slow);
	str_printf(out,
		"; %lld micro-batches take %.4f s, and %.4f s without stragglers; pipeline "
		"%lld:\n",
		(long long)s.n_micro, found.step, found.without,
		(long long)found.slowest);
	schedule_draw(&s, &t, width, out);
	timeline_free(&t);
	schedule_free(&s);
}
