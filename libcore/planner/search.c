/* The search: all layouts by estimate, then the best ones by the code that trains. */
#include "planner/planner.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "train/layout.h"

/* An estimate may be this much above the limit: the plan itself decides. */
#define TOLERANCE 1.8

/* A heap of the fastest layouts, the slowest one first. */
struct filter {
	const struct request *r;
	struct shape shape;
	struct practice practice;
	struct search *s;
	double peak, limit; /* bytes; 0: none */
	int64_t room;
};

/* ---- estimates ------------------------------------------------------------------------- */

static void swap(struct choice *a, struct choice *b)
{
	struct choice c = *a;
	*a = *b;
	*b = c;
}

static void sink(struct choice *heap, int64_t n, int64_t i)
{
	for (int64_t child; (child = 2 * i + 1) < n; i = child) {
		if (child + 1 < n && heap[child + 1].times.step > heap[child].times.step)
			child++;
		if (heap[child].times.step <= heap[i].times.step)
			return;
		swap(&heap[child], &heap[i]);
	}
}

static void keep(struct filter *f, const struct choice *c)
{
	struct search *s = f->s;
	if (s->n < f->room) {
		s->best[s->n++] = *c;
		for (int64_t i = s->n / 2; s->n == f->room && i-- > 0;)
			sink(s->best, s->n, i);
	} else if (c->times.step < s->best[0].times.step) {
		s->best[0] = *c;
		sink(s->best, s->n, 0);
	}
}

/* Of a GPU: what is offloaded is in the memory of its host. */
static void offload(const struct train_opts *o, struct memory *m)
{
	const enum offload kind = (enum offload)o->offload;
	if (kind == OFFLOAD_NONE)
		return;
	m->optimizer = 0;
	m->grads = offloads_grads(kind) ? 0 : m->grads;
	m->params = offloads_params(kind) ? 0 : m->params;
	m->total = m->params + m->grads + m->gathered + m->optimizer + m->activations +
		   m->scratch + m->other;
}

static void consider(void *with, const struct layout *l)
{
	struct filter *f = with;
	struct search *s = f->s;
	struct choice c = {.l = *l};
	estimate_memory(&f->shape, l, &f->practice, &c.memory);
	offload(f->r->o, &c.memory);
	estimate_time(&f->shape, l, &f->r->cluster, &f->practice, f->peak, &c.times);
	c.estimated_bytes = c.memory.total;
	c.estimated_step = c.times.step;
	if (!s->least.memory.total || c.memory.total < s->least.memory.total)
		s->least = c;
	s->fitting += !f->r->limit || c.memory.total <= (double)f->r->limit;
	if (!f->limit || c.memory.total <= f->limit)
		keep(f, &c);
}

static int by_step(const void *a, const void *b)
{
	const struct choice *x = a, *y = b;
	return (x->times.step > y->times.step) - (x->times.step < y->times.step);
}

/* ---- plans ------------------------------------------------------------------------------ */

/* The options of pt-train that make a run of this layout; false: pt-train refuses it, see *e. */
static bool choice_options(const struct request *r, const struct layout *l,
	struct train_opts *o, struct err *e)
{
	*o = *r->o;
	for (int a = 0; a < N_AXES; a++)
		o->axis[a] = l->degree[a];
	o->micro_batch = l->micro_batch;
	o->zero = l->zero;
	o->reshard = l->reshard ? RESHARD_YES : RESHARD_NO;
	o->pp_schedule = l->schedule;
	o->pp_stages = l->stages;
	o->recompute = l->recompute;
	return !layout_resolve(o, r->ranks, e);
}

static void add_memory(const struct train_opts *o, const struct plan *p, struct memory *m)
{
	const double total = (double)(o->device == DEVICE_CUDA ? plan_on_device(p)
							       : plan_needed(o, p));
	if (total <= m->total)
		return;
	*m = (struct memory){.params = (double)p->store.params,
		.grads = (double)p->store.grads,
		.gathered = (double)p->store.gathered,
		.optimizer = (double)p->store.optimizer,
		.activations = (double)p->micro_bytes,
		.scratch = (double)p->scratch_bytes,
		.total = total};
	m->other = total - m->params - m->grads - m->gathered - m->optimizer -
		   m->activations - m->scratch;
}

/* The axis of a group by the last name in it: "fsdp*cp" is fsdp's. */
static int axis_of(const char *group)
{
	for (int a = 0; a < N_AXES; a++)
		if (!strncmp(group, axis_names[a], strlen(axis_names[a])))
			return a;
	return -1;
}

static void add_times(const struct step_time *t, struct times *o)
{
	*o = (struct times){.computation = t->computation,
		.exposed = t->exposed,
		.bubble = t->bubble > 0 ? t->bubble : 0,
		.rest = t->rest,
		.step = t->step};
	for (int i = 0; i < t->n_rows; i++) {
		int a = axis_of(t->row[i].group);
		if (a >= 0)
			o->axis[a] += t->row[i].alone;
	}
}

/* Frees what layout_resolve() allocates. */
static void close_options(const struct request *r, struct train_opts *o)
{
	if (o->model.virtual_degrees != r->o->model.virtual_degrees)
		free((char *)(uintptr_t)o->model.virtual_degrees);
}

static int open_model(const struct request *r, const struct layout *l,
	struct train_opts *o, struct model *m, struct err *e)
{
	bool accepted = choice_options(r, l, o, e);
	if (accepted && !model_init(m, &o->model, 0, e)) {
		if (!layout_check(o, m, e))
			return 0;
		model_free(m);
	}
	close_options(r, o);
	return -1;
}

static void close_model(const struct request *r, struct train_opts *o, struct model *m)
{
	model_free(m);
	close_options(r, o);
}

static bool fits(const struct request *r, const struct memory *m)
{
	return !r->limit || m->total <= (double)r->limit;
}

/* Of the first rank of each stage, until one needs more than there is. */
static void plan_stages(const struct request *r, const struct train_opts *o,
	struct model *m, struct memory *out)
{
	int pp = o->degree[AXIS_PP];
	*out = (struct memory){.total = 0};
	for (int stage = 0; stage < pp && fits(r, out); stage++) {
		struct plan p;
		plan_make_memory(o, m, stage * (r->ranks / pp), &p);
		add_memory(o, &p, out);
	}
}

int search_memory(const struct request *r, const struct layout *l, struct memory *out,
	struct err *e)
{
	struct train_opts o;
	struct model m;
	if (open_model(r, l, &o, &m, e))
		return -1;
	plan_stages(r, &o, &m, out);
	close_model(r, &o, &m);
	return 0;
}

static int plan_exactly(const struct request *r, struct choice *c, struct err *e)
{
	struct train_opts o;
	struct model m;
	struct step_time t;
	if (open_model(r, &c->l, &o, &m, e))
		return -1;
	plan_stages(r, &o, &m, &c->memory);
	if (fits(r, &c->memory)) {
		predict_step_time(&o, &m, &r->cluster, &t);
		add_times(&t, &c->times);
	}
	c->exact = true;
	close_model(r, &o, &m);
	return 0;
}

static bool is_accepted(const struct request *r, const struct layout *l)
{
	struct train_opts o;
	struct model m;
	struct err e = {0};
	if (open_model(r, l, &o, &m, &e))
		return false;
	close_model(r, &o, &m);
	return true;
}

/* The work of an exact plan: passes through blocks, whose messages go to all shards. */
static double plan_work(const struct request *r, const struct layout *l)
{
	double few = fmin((double)l->n_micro,
		fmax(4, 2.0 * l->degree[AXIS_PP] * (double)l->stages));
	double shards = l->degree[AXIS_DP] * l->degree[AXIS_FSDP] * l->degree[AXIS_CP];
	return few * (double)r->m->c.layers * (1 + shards / 4);
}

/* Is there time for a further plan? Of layouts that are too large by the estimate, only a part of it is
 * spent; and a few are planned although that takes longer. */
static bool has_time(const struct request *r, double work, bool small, int64_t found)
{
	enum { MOST_WORK = 60000, FEW = 3, WORK_OF_FEW = 85000 }; /* 30,000: 1 s */
	if (r->exact >= 0)
		return true;
	if (!found && small)
		return true;
	return work <= (!small ? MOST_WORK / 4 : found < FEW ? WORK_OF_FEW : MOST_WORK);
}

static void plan_one(const struct request *r, struct search *s, struct choice *c)
{
	struct err e = {0};
	if (plan_exactly(r, c, &e)) {
		if (!s->refused++)
			s->refusal = e;
		c->dropped = true;
		return;
	}
	s->planned++;
	c->dropped = !fits(r, &c->memory);
}

/* Exact ones first, and those that are dropped last. */
static int by_kind(const void *a, const void *b)
{
	const struct choice *x = a, *y = b;
	if (x->dropped != y->dropped)
		return x->dropped - y->dropped;
	return x->exact != y->exact ? y->exact - x->exact : by_step(a, b);
}

/* Plans layouts in the order of their estimated times until enough of them fit. Those that do not, or
 * that pt-train refuses, are removed; of the others, those that fit by the estimate follow. */
static void plan_best(const struct request *r, struct search *s)
{
	enum { MOST = 100 }; /* of a search without --exact */
	int64_t most = r->exact > 0 ? r->exact : r->exact < 0 ? MOST : s->n, found = 0;
	double work = 0;
	for (int64_t i = 0; i < s->n; i++) {
		struct choice *c = &s->best[i];
		bool small = fits(r, &c->memory);
		double more = plan_work(r, &c->l);
		c->dropped = !small;
		if (found >= most || !has_time(r, work + more, small, found))
			continue;
		plan_one(r, s, c);
		found += !c->dropped;
		work += more;
	}
	qsort(s->best, (size_t)s->n, sizeof(*s->best), by_kind);
	int64_t n = found;
	for (int64_t i = found; i < s->n && !s->best[i].dropped; i++)
		if (r->exact >= 0 || n < r->show) {
			if (is_accepted(r, &s->best[i].l))
				s->best[n++] = s->best[i];
		}
	s->n = n;
}

void practice_of(const struct train_opts *o, struct practice *p)
{
	bool gpu = o->device == DEVICE_CUDA;
	*p = practice_pt;
	p->fixed_bytes = gpu ? DEVICE_WORK_BYTES + 30e6 : 0;
	p->gather_bytes = gpu ? (double)dtype_bytes(options_gemm_dtype(o)) : 4;
}

int search_run(const struct request *r, struct search *s, struct err *e)
{
	double began = clock_seconds();
	const struct space space = {.m = r->m,
		.ranks = r->ranks,
		.host_ranks = r->ranks / r->hosts,
		.batch = r->o->batch};
	struct filter f = {.r = r, .s = s};
	enum dtype type = options_gemm_dtype(r->o);
	*s = (struct search){.n = 0};
	f.room = r->exact ? max64(r->show, r->exact) + (1 << 15) : 1 << 20;
	f.limit = r->exact && r->o->offload == OFFLOAD_NONE ? TOLERANCE * (double)r->limit
							    : 0;
	practice_of(r->o, &f.practice);
	f.peak = cluster_peak(&r->cluster, type, r->o->numerics == NUMERICS_EXACT,
		(int)min64(r->ranks, r->cluster.links.host_ranks));
	shape_of(&f.shape, r->m);
	s->best = xcalloc((size_t)f.room, sizeof(*s->best));
	s->enumerated = candidates(&space, consider, &f);
	qsort(s->best, (size_t)s->n, sizeof(*s->best), by_step);
	plan_best(r, s);
	s->seconds = clock_seconds() - began;
	if (!s->enumerated)
		return err_set(e, EX_USAGE,
			"no layout: %d ranks cannot divide a batch of %lld sequences",
			r->ranks, (long long)r->o->batch);
	return 0;
}

void search_free(struct search *s)
{
	free(s->best);
	*s = (struct search){.n = 0};
}
