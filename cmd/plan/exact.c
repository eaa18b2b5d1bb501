/*
 * Memory and time of a layout, planned by the code that trains (plan/plan.h): with all layers, or
 * extrapolated from two models with fewer layers, if each further layer of a stage costs the same.
 */
#include "plan/planner.h"

#include <math.h>

#include "engine/layout.h"

/* The options and the model of a layout that is planned. */
struct subject {
	struct train_opts o;
	struct model m;
};

/* Frees what layout_resolve() allocates. */
static void release_options(const struct request *r, struct train_opts *o)
{
	if (o->model.virtual_degrees != r->o->model.virtual_degrees)
		free((char *)(uintptr_t)o->model.virtual_degrees);
}

/* Opens the model of a layout with this many layers. Returns -1 if pt-train rejects it. */
static int subject_open(const struct request *r, const struct layout *l, int64_t layers,
	struct subject *s, struct err *e)
{
	s->o = *r->o;
	s->o.model.layers = layers;
	s->o.lr_scale_of = (struct strs){0}; /* may match no tensor of fewer layers */
	layout_to_options(l, &s->o);
	bool accepted = !layout_resolve(&s->o, r->ranks, e);
	if (accepted && !options_model_init(&s->o, &s->m, 0, e)) {
		if (!layout_check(&s->o, &s->m, e))
			return 0;
		model_release(&s->m);
	}
	release_options(r, &s->o);
	return -1;
}

static void subject_close(const struct request *r, struct subject *s)
{
	model_release(&s->m);
	release_options(r, &s->o);
}

bool fits_limit(const struct request *r, const struct memory *m)
{
	return !r->limit || m->total <= (double)r->limit;
}

/* Sets *out to the memory of the first rank of a stage. */
static void plan_stage_memory(
	const struct request *r, struct subject *s, int stage, struct memory *out)
{
	struct plan p;
	plan_make_memory(
		&s->o, &s->m, stage * (r->ranks / s->o.resolved.degree[AXIS_PP]), &p);
	*out = (struct memory){.params = (double)p.store.params,
		.grads = (double)(p.store.grads - p.shared_bytes),
		.gathered = (double)p.store.gathered,
		.optimizer = (double)p.store.optimizer,
		.activations = (double)p.micro_bytes,
		.scratch = (double)p.scratch_bytes,
		.host = (double)p.pinned_bytes,
		.total = (double)(s->o.device == DEVICE_CUDA ? plan_on_device(&p)
							     : plan_needed(&s->o, &p))};
	/* offloaded parameters are in a file, or in the memory of a GPU's host */
	const enum offload kind = (enum offload)s->o.offload;
	out->params = offloads_params(kind) ? 0 : out->params;
	out->other = out->total - out->params - out->grads - out->gathered -
		     out->optimizer - out->activations - out->scratch;
}

/* Adds times (*more - *few) to *few, two structs of doubles. */
static void extrapolate(void *few, const void *more, size_t n_bytes, double times)
{
	double *x = few;
	const double *y = more;
	for (size_t i = 0; i < n_bytes / sizeof(double); i++)
		x[i] += times * (y[i] - x[i]);
}

enum { MIN_LAYERS = 4 }; /* per stage */

/* Returns true if all layers cost the same, except dense ones at the begin of the first stage. */
static bool has_uniform_layers(const struct train_opts *o)
{
	const struct model_config *c = &o->model;
	bool mixes = c->experts && (c->moe_every > 1 || (c->moe_not && *c->moe_not) ||
					   c->moe_from >= MIN_LAYERS);
	return !o->freeze.n && !mixes &&
	       !(c->window && (c->window_from || c->window_skip));
}

/* Chooses two smaller models with at least min_layers per stage: one with *few layers, one with
 * *step more. Returns how many more steps the whole model has. If planning the whole model is
 * less work, returns 0 and sets *few to all layers. Blocks alternate between two places in
 * memory, so layers are left out in pairs. */
static int64_t fewer_layers(const struct train_opts *o, const struct layout *l,
	int64_t min_layers, int64_t *few, int64_t *step)
{
	int64_t stages = (int64_t)l->degree[AXIS_PP] * l->stages;
	int64_t layers = o->model.layers;
	min_layers *= stages;
	*step = stages * o->recompute_every * (o->recompute_every % 2 ? 2 : 1);
	*few = min_layers + (layers - min_layers) % *step;
	if (layers >= min_layers && 2 * *few + *step < layers && has_uniform_layers(o))
		return (layers - *few) / *step;
	*few = layers;
	return 0;
}

/* Returns the work of a plan. The costs of pipeline stages, which alternate, and of offloaded
 * gradients, which are summed in small pieces, were measured. */
static double plan_work(const struct request *r, const struct layout *l, int64_t layers)
{
	const int *degree = l->degree;
	double few = fmin((double)l->n_micro, fmax(4, 2.0 * degree[AXIS_PP] * l->stages));
	double shards = (double)degree[AXIS_FSDP] * degree[AXIS_CP];
	struct shape s;
	double work = few * (double)(layers + 4) * (1 + shards * degree[AXIS_DP] / 4) *
		      (degree[AXIS_PP] > 1 ? 3 : 1);
	shape_init(&s, r->m);
	if (offloads_grads((enum offload)l->offload))
		work += 6e-8 * few * (double)layers * s.block / degree[AXIS_TP] / shards;
	return work;
}

double planning_work(
	const struct request *r, const struct layout *l, bool allow_fewer_layers)
{
	int64_t few, step;
	bool is_extrapolated =
		allow_fewer_layers && fewer_layers(r->o, l, MIN_LAYERS, &few, &step);
	return plan_work(r, l, is_extrapolated ? 2 * few + step : r->m->c.layers);
}

/* Returns the seconds of the n micro-batches of a step, and sets *update to the seconds after
 * them. */
static double micro_batches_seconds(
	const struct request *r, struct subject *s, int64_t n, double *update)
{
	struct step_time t;
	s->o.batch = n * s->o.micro_batch;
	predict_step_time(&s->o, &s->m, &r->cluster, &t);
	*update = t.rest;
	return t.step - t.rest;
}

/* Returns the planned cost of a model on rank 0. has_several: in steps of several micro-batches. */
static struct part_cost measure_part(
	const struct request *r, struct subject *s, bool has_several)
{
	struct plan p;
	double rest, two_seconds;
	plan_make_memory(&s->o, &s->m, 0, &p);
	struct part_cost c = {.values = (double)(p.store.params - p.store.copies),
		.copies = (double)p.store.copies,
		.optimizer = (double)p.store.optimizer,
		.activations = (double)p.micro_bytes,
		.scratch = (double)p.scratch_bytes};
	if (has_several) {
		two_seconds = micro_batches_seconds(r, s, 2, &c.update);
		c.micro = micro_batches_seconds(r, s, 3, &rest) - two_seconds;
		c.once = two_seconds - 2 * c.micro;
	} else {
		c.micro = micro_batches_seconds(r, s, 1, &c.update);
	}
	return c;
}

/* Gives each rank an equal share of the cores of its host, if ranks share them. */
static void share_cores(const struct request *r, struct cluster *c)
{
	int here = r->ranks / r->hosts;
	double share = cluster_compute_fraction(c, here);
	if (!c->cores)
		return;
	c->flops = share * cluster_peak(c, DT_F32, false, here);
	c->memory *= share;
	c->cores = 0;
}

/* Separates the costs of a model with `few` layers and a model with `step` more layers into the
 * costs of a block and of all else. */
static void split_costs(
	const struct part_cost cost[2], double few, double step, struct shared_part *out)
{
	const double *few_cost = (const double *)&cost[0],
		     *more_cost = (const double *)&cost[1];
	double *block = (double *)&out->block, *ends = (double *)&out->ends;
	for (size_t i = 0; i < sizeof(*cost) / sizeof(double); i++) {
		block[i] = (more_cost[i] - few_cost[i]) / step;
		ends[i] = few_cost[i] - few * block[i];
	}
}

/* Gives all layers of a model this kind. */
static void set_layer_kind(struct model_config *c, int kind)
{
	c->experts = kind ? c->experts : 0;
	c->moe_from = 0;
	c->moe_every = 1;
	c->moe_not = NULL;
}

/* Computes the costs of a block of a kind and of all else. Returns -1 if pt-train rejects them. */
static int measure_kind(const struct request *r, const struct layout *l, int kind,
	struct shared_part *out)
{
	struct train_opts o = *r->o;
	struct request q = *r;
	struct layout rank_layout = {
		.degree = {1, 1, 1, l->degree[AXIS_CP], l->degree[AXIS_TP]},
		.reshard = RESHARD_YES,
		.schedule = SCHEDULE_1F1B,
		.stages = 1,
		.micro_batch = l->micro_batch,
		.recompute = l->recompute,
		.n_micro = 1};
	/* the first and the last layer are not in float8 */
	int64_t few = o.dtype == PRECISION_FLOAT8 ? 3 : 1;
	int64_t step = o.recompute_every <= r->m->c.layers ? o.recompute_every : 1;
	struct part_cost cost[2];
	struct subject s;
	struct err e = {0};
	o.batch = rank_layout.micro_batch;
	o.freeze = (struct strs){0}; /* bounds_compute() accounts for it */
	o.model.window_from = o.model.window_skip = 0;
	set_layer_kind(&o.model, kind);
	q.o = &o;
	q.ranks = mesh_ranks(rank_layout.degree);
	share_cores(r, &q.cluster);
	for (int i = 0; i < 2; i++) {
		if (subject_open(&q, &rank_layout, few + i * step, &s, &e))
			return -1;
		cost[i] = measure_part(&q, &s, l->n_micro > 1);
		subject_close(&q, &s);
	}
	split_costs(cost, (double)few, (double)step, out);
	return 0;
}

int measure_shared_costs(
	const struct request *r, const struct layout *l, struct shared_part *out)
{
	double *sum = (double *)out;
	*out = (struct shared_part){.block = {.values = 0}};
	for (int kind = 0; kind < LAYER_KINDS; kind++) {
		struct shared_part part;
		double n = (double)model_layers_of_kind(r->m, kind);
		const double *cost = (const double *)&part;
		if (n <= 0)
			continue;
		if (measure_kind(r, l, kind, &part))
			return -1;
		for (size_t i = 0; i < sizeof(part) / sizeof(double); i++)
			sum[i] += n / (double)r->m->c.layers * cost[i];
	}
	return 0;
}

/* Returns the axis of a group by its first name, fsdp for "fsdp*cp"; -1: none. */
static int axis_of_group(const char *group)
{
	for (int a = 0; a < N_AXES; a++)
		if (!strncmp(group, axis_names[a], strlen(axis_names[a])))
			return a;
	return -1;
}

/* Sets *o to the predicted times of a step, in seconds, from the plan of *s. */
static void predict_times(const struct request *r, struct subject *s, struct times *o)
{
	struct step_time t;
	predict_step_time(&s->o, &s->m, &r->cluster, &t);
	*o = (struct times){.computation = t.computation,
		.exposed = t.exposed,
		.bubble = t.bubble,
		.rest = t.rest,
		.copies = t.copies,
		.step = t.step};
	for (int i = 0; i < t.n_rows; i++) {
		int a = axis_of_group(t.row[i].group);
		if (a >= 0)
			o->axis[a] += t.row[i].alone;
	}
}

/* A model, or two smaller models for an extrapolation. */
struct model_pair {
	struct subject few, more;
	int64_t times; /* factor of the difference of both models that is added; 0: only `few` */
	int64_t layers; /* layers of both models */
};

static void model_pair_close(const struct request *r, struct model_pair *p)
{
	subject_close(r, &p->few);
	if (p->times)
		subject_close(r, &p->more);
}

/* Opens one or two models with at least min_layers per stage; 0: the whole model. */
static int model_pair_open(const struct request *r, const struct layout *l,
	int64_t min_layers, struct model_pair *p, struct err *e)
{
	int64_t few = r->m->c.layers, step;
	p->times = min_layers ? fewer_layers(r->o, l, min_layers, &few, &step) : 0;
	p->layers = p->times ? 2 * few + step : few;
	if (subject_open(r, l, few, &p->few, e))
		return -1;
	if (!p->times || !subject_open(r, l, few + step, &p->more, e))
		return 0;
	subject_close(r, &p->few);
	return -1;
}

/* Sets *out to the memory of the stage with the largest total, or of the first above the limit. */
static void plan_pair_memory(
	const struct request *r, struct model_pair *p, struct memory *out)
{
	*out = (struct memory){.total = 0};
	for (int i = 0; i < p->few.o.resolved.degree[AXIS_PP] && fits_limit(r, out);
		i++) {
		struct memory m, more;
		plan_stage_memory(r, &p->few, i, &m);
		if (p->times) {
			plan_stage_memory(r, &p->more, i, &more);
			extrapolate(&m, &more, sizeof(m), (double)p->times);
		}
		if (m.total > out->total)
			*out = m;
	}
}

/* Predicts the times. Returns false if they cannot be extrapolated because the model with more
 * layers waits less: the waits of the
 * first and the last layers are hidden only by more layers than these. */
static bool plan_pair_times(
	const struct request *r, struct model_pair *p, struct times *out)
{
	const double slack = 0.002;
	bool settled = true;
	struct times more;
	predict_times(r, &p->few, out);
	if (p->times) {
		predict_times(r, &p->more, &more);
		settled = out->exposed - more.exposed <= slack * (more.step - out->step);
		extrapolate(out, &more, sizeof(more), (double)p->times);
	}
	out->bubble = fmax(out->bubble, 0);
	out->exposed = fmax(out->exposed, 0);
	double copy_wait = fmax(0, out->copies - out->step);
	out->exposed += copy_wait;
	out->step += copy_wait;
	return settled;
}

/* Plans c->l with at least min_layers per stage. Returns 1 if more layers are needed. */
static int plan_layers(
	const struct request *r, struct choice *c, int64_t min_layers, struct err *e)
{
	struct model_pair p;
	if (model_pair_open(r, &c->l, min_layers, &p, e))
		return -1;
	plan_pair_memory(r, &p, &c->memory);
	int rc = fits_limit(r, &c->memory) && !plan_pair_times(r, &p, &c->times);
	c->planned = p.times ? BY_FEWER_LAYERS : BY_WHOLE_PLAN;
	c->work += plan_work(r, &c->l, p.layers);
	model_pair_close(r, &p);
	return rc;
}

int exact_plan(const struct request *r, struct choice *c, struct err *e)
{
	return plan_layers(r, c, 0, e);
}

int plan_quickly(const struct request *r, struct choice *c, struct err *e)
{
	int rc = 1;
	for (int64_t min_layers = MIN_LAYERS; rc > 0; min_layers *= 2)
		rc = plan_layers(r, c, min_layers, e);
	return rc;
}

int plan_memory(const struct request *r, const struct layout *l, struct memory *out,
	struct err *e)
{
	struct model_pair p;
	if (model_pair_open(r, l, 0, &p, e))
		return -1;
	plan_pair_memory(r, &p, out);
	model_pair_close(r, &p);
	return 0;
}
