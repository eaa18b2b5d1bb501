/* The search: all layouts by formulas, and those of pt that could be the fastest by the code that trains. */
#include "plan/planner.h"

#include <math.h>

/* A heap of the fastest layouts, the slowest one first. */
struct filter {
	const struct request *r;
	struct shape shape;
	struct practice practice;
	struct bounds bounds; /* of pt */
	struct search *s;
	double peak;
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
		if (child + 1 < n &&
			heap[child + 1].likely_step > heap[child].likely_step)
			child++;
		if (heap[child].likely_step <= heap[i].likely_step)
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
	} else if (c->likely_step < s->best[0].likely_step) {
		s->best[0] = *c;
		sink(s->best, s->n, 0);
	}
}

/* Sets what layouts are ordered by, from the time and the memory. The memories of others than pt are too uncertain to
 * order by. */
static void judge(const struct request *r, struct choice *c)
{
	if (!trainer_has_times(r->trainer))
		return;
	struct band b = time_band(r->trainer, &c->l, r->cluster.links.host_ranks,
		r->o->dtype == PRECISION_FLOAT8);
	c->likely_step = c->times.step * sqrt(b.low * b.high);
	c->tight = r->trainer == BY_PT && r->limit &&
		   c->memory.total * memory_band(BY_PT).high > (double)r->limit;
}

static void consider(void *with, const struct layout *l)
{
	struct filter *f = with;
	struct search *s = f->s;
	struct choice c = {.l = *l};
	if (!trainer_allows(f->r->trainer, f->r->m, l))
		return;
	s->enumerated++;
	if (f->r->trainer == BY_PT) {
		bounds_of(&f->bounds, &c);
	} else {
		estimate_memory(&f->shape, l, &f->practice, &c.memory);
		if (trainer_has_times(f->r->trainer))
			estimate_time(&f->shape, l, &f->r->cluster, &f->practice, f->peak,
				&c.times);
	}
	c.least_bytes = c.memory.total;
	c.least_step = c.times.step;
	if (!s->least.memory.total || c.memory.total < s->least.memory.total)
		s->least = c;
	if (!exact_fits(f->r, &c.memory))
		return;
	s->fitting++;
	judge(f->r, &c);
	keep(f, &c);
}

/* By the middle of the band of the time; those that may not fit are last. */
static int by_middle(const void *a, const void *b)
{
	const struct choice *x = a, *y = b;
	if (x->tight != y->tight)
		return x->tight - y->tight;
	return (x->likely_step > y->likely_step) - (x->likely_step < y->likely_step);
}

/* Orders the layouts of other trainers by the middle of the band of their times; of equal ones, or without times, first
 * comes the one with the fewest kinds of parallelism, then with the least sharding, without recomputation, and with the
 * least memory. */
static int by_likely(const void *a, const void *b)
{
	const struct choice *c[2] = {a, b};
	double cost[2][4];
	for (int i = 0; i < 2; i++) {
		const int *degree = c[i]->l.degree;
		cost[i][0] = c[i]->likely_step;
		cost[i][1] = (degree[AXIS_TP] > 1) + (degree[AXIS_CP] > 1) +
			     (degree[AXIS_PP] > 1);
		cost[i][2] = c[i]->l.zero;
		cost[i][3] = c[i]->l.recompute;
	}
	for (int k = 0; k < 4; k++)
		if (cost[0][k] < cost[1][k] || cost[0][k] > cost[1][k])
			return cost[0][k] < cost[1][k] ? -1 : 1;
	if (c[0]->times.step > 0)
		return (c[0]->times.step > c[1]->times.step) -
		       (c[0]->times.step < c[1]->times.step);
	return (c[0]->memory.total > c[1]->memory.total) -
	       (c[0]->memory.total < c[1]->memory.total);
}

/* A hundredth more than the least is as good as it. */
static void sort_likely(struct search *s)
{
	const double as_good = 1.01;
	double least = INFINITY;
	for (int64_t i = 0; i < s->n; i++)
		least = fmin(least, s->best[i].likely_step);
	for (int64_t i = 0; i < s->n; i++)
		if (s->best[i].likely_step <= as_good * least)
			s->best[i].likely_step = least;
	qsort(s->best, (size_t)s->n, sizeof(*s->best), by_likely);
}

/* ---- plans ------------------------------------------------------------------------------ */

/* Is there time for a further plan? A few are made although that takes longer. */
static bool has_time(const struct request *r, double work, int64_t found)
{
	enum { MOST_WORK = 45000, FEW = 3, WORK_OF_FEW = 85000 };
	return r->exact >= 0 || work <= (found < FEW ? WORK_OF_FEW : MOST_WORK);
}

static void plan_one(const struct request *r, struct search *s, struct choice *c)
{
	struct err e = {0};
	if (r->exact < 0 ? exact_plan_quickly(r, c, &e) : exact_plan(r, c, &e)) {
		if (!s->refused++)
			s->refusal = e;
		c->dropped = true;
		return;
	}
	s->planned++;
	s->extrapolated += c->planned == BY_FEWER_LAYERS;
	c->dropped = !exact_fits(r, &c->memory);
	judge(r, c);
}

/* Plans the fastest one whole, until it fits and is still the fastest, if it was extrapolated: its neighbours are only
 * for comparison. */
static void plan_first(const struct request *r, struct search *s)
{
	enum { MOST = 8 };
	while (s->n && s->again < MOST && s->best[0].planned == BY_FEWER_LAYERS) {
		struct choice *c = s->best, before = *c;
		struct err e = {0};
		if (exact_plan(r, c, &e) || !exact_fits(r, &c->memory)) {
			s->extrapolated--;
			memmove(c, c + 1, (size_t)--s->n * sizeof(*c));
			continue;
		}
		judge(r, c);
		s->again++;
		s->time_error =
			fmax(s->time_error, fabs(before.times.step / c->times.step - 1));
		s->memory_error = fmax(
			s->memory_error, fabs(before.memory.total / c->memory.total - 1));
		for (; c + 1 < s->best + s->n && by_middle(c, c + 1) > 0; c++)
			swap(c, c + 1);
	}
}

/* Into the `n` smallest of at most `room` numbers, in ascending order. */
static void insert(double *x, int64_t n, int64_t room, double value)
{
	int64_t i = min64(n, room - 1);
	if (n == room && value >= x[i])
		return;
	for (; i > 0 && x[i - 1] > value; i--)
		x[i] = x[i - 1];
	x[i] = value;
}

/* Plans layouts in the order of their bounds until enough of them fit, or all others are bound to be slower than
 * those that are listed. Those that do not fit, or that pt-train refuses, are removed. */
static void plan_all(const struct filter *f)
{
	enum { MOST = 100 };	    /* of a search without --exact */
	const double margin = 1.15; /* by which a bound may be above its plan */
	const struct request *r = f->r;
	struct search *s = f->s;
	int64_t most = r->exact > 0 ? r->exact : r->exact < 0 ? MOST : s->n;
	int64_t found = 0, sure = 0, i; /* sure: not tight */
	double work = 0, *fastest = xcalloc((size_t)r->show, sizeof(*fastest));
	bool skipped = false;
	for (i = 0; i < s->n; i++) {
		struct choice *c = &s->best[i];
		double more = exact_work(r, &c->l, r->exact < 0);
		if (r->exact < 0 && sure >= r->show &&
			c->likely_step >= margin * fastest[r->show - 1])
			break;
		if (found >= most || !has_time(r, work + more, sure)) {
			skipped = true;
			continue;
		}
		plan_one(r, s, c);
		work += c->work;
		found += !c->dropped;
		if (!c->dropped && !c->tight)
			insert(fastest, min64(sure++, r->show), r->show, c->likely_step);
	}
	/* (with --freeze a bound is scaled, and may be above the plan) */
	s->proved = !skipped && !f->r->o->freeze.n && (i < s->n || s->n < f->room);
	free(fastest);
}

/* Those that were planned, and fit. */
static void plan_best(const struct filter *f)
{
	struct search *s = f->s;
	int64_t n = 0;
	plan_all(f);
	for (int64_t i = 0; i < s->n; i++)
		if (s->best[i].planned != BY_FORMULAS && !s->best[i].dropped)
			s->best[n++] = s->best[i];
	s->n = n;
	qsort(s->best, (size_t)n, sizeof(*s->best), by_middle);
	plan_first(f->r, s);
}

/* Values of --tile and --offload. */
struct resort {
	int tile[5], offload[3];
	int n_tiles, n_offloads;
};

/* What is tried if nothing fits: layers in pieces, and the optimizer's state or all state in the memory of a GPU's
 * host, or in files. A setting that was given is not changed; and a CPU offloads to a folder, which must be given. */
static struct resort last_resort(const struct request *r)
{
	struct resort x = {
		{0, 2, 4, 8, 16}, {OFFLOAD_NONE, OFFLOAD_OPTIMIZER, OFFLOAD_ALL}, 5, 3};
	if (r->o->tile)
		x.tile[0] = (int)r->o->tile;
	if (r->o->tile)
		x.n_tiles = 1;
	if (r->o->offload)
		x.offload[0] = r->o->offload;
	if (r->o->offload || r->o->device == DEVICE_CPU)
		x.n_offloads = 1;
	return x;
}

static void search_space(struct filter *f, const struct resort *x)
{
	const struct request *r = f->r;
	struct search *s = f->s;
	const struct space space = {.m = r->m,
		.only = &r->only,
		.ranks = r->ranks,
		.host_ranks = r->ranks / r->hosts,
		.batch = r->o->batch,
		.tile = x->tile,
		.offload = x->offload,
		.n_tiles = x->n_tiles,
		.n_offloads = x->n_offloads};
	s->n = 0;
	candidates(&space, consider, f);
	if (r->trainer != BY_PT) {
		sort_likely(s);
		return;
	}
	qsort(s->best, (size_t)s->n, sizeof(*s->best), by_middle);
	plan_best(f);
}

static struct filter filter_of(const struct request *r, struct search *s)
{
	struct filter f = {.r = r, .s = s};
	f.room = r->exact ? max64(r->show, r->exact) + (1 << 15) : 1 << 20;
	f.bounds.r = r;
	if (r->trainer != BY_PT)
		practice_of(r->trainer, r->o, &f.practice);
	f.peak = cluster_peak(&r->cluster, options_gemm_dtype(r->o),
		r->o->numerics == NUMERICS_EXACT,
		(int)min64(r->ranks, r->cluster.links.host_ranks));
	shape_of(&f.shape, r->m);
	return f;
}

int search_run(const struct request *r, struct search *s, struct err *e)
{
	double began = clock_seconds();
	struct filter f = filter_of(r, s);
	const struct resort usual = {
		{(int)r->o->tile}, {r->o->offload}, .n_tiles = 1, .n_offloads = 1};
	*s = (struct search){.n = 0};
	s->best = xcalloc((size_t)f.room, sizeof(*s->best));
	search_space(&f, &usual);
	bool found = s->enumerated;
	const struct resort last = last_resort(r);
	if (found && !s->n && r->trainer == BY_PT)
		search_space(&f, &last);
	bounds_free(&f.bounds);
	s->seconds = clock_seconds() - began;
	if (!found)
		return err_set(e, EX_USAGE,
			"no layout: %d ranks cannot divide a batch of %lld sequences%s%s",
			r->ranks, (long long)r->o->batch,
			r->trainer == BY_PT ? "" : " as the trainer does",
			r->only.n ? " as --only says" : "");
	return 0;
}

void search_free(struct search *s)
{
	free(s->best);
	*s = (struct search){.n = 0};
}
