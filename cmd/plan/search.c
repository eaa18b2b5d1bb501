/* The search: estimates all layouts by formulas, and plans pt's layouts that could be the
 * fastest. */
#include "plan/planner.h"

#include <math.h>

/* Keeps the fastest layouts in s->best, a heap with the slowest one first. */
struct filter {
	const struct request *r;
	struct shape shape;
	struct practice practice;
	struct bounds bounds; /* for pt */
	struct search *s;
	double peak;
	int64_t capacity;
};

static void swap_choices(struct choice *a, struct choice *b)
{
	struct choice c = *a;
	*a = *b;
	*b = c;
}

/* Restores the heap below entry i, with the slowest layout first. */
static void sift_down(struct choice *heap, int64_t n, int64_t i)
{
	for (int64_t child; (child = 2 * i + 1) < n; i = child) {
		if (child + 1 < n &&
			heap[child + 1].likely_step > heap[child].likely_step)
			child++;
		if (heap[child].likely_step <= heap[i].likely_step)
			return;
		swap_choices(&heap[child], &heap[i]);
	}
}

/* Keeps a layout if it is among the f->capacity fastest. */
static void keep_if_fast(struct filter *f, const struct choice *c)
{
	struct search *s = f->s;
	if (s->n < f->capacity) {
		s->best[s->n++] = *c;
		for (int64_t i = s->n / 2; s->n == f->capacity && i-- > 0;)
			sift_down(s->best, s->n, i);
	} else if (c->likely_step < s->best[0].likely_step) {
		s->best[0] = *c;
		sift_down(s->best, s->n, 0);
	}
}

/* Sets the sort keys of a layout from its time, and for pt from its memory. The memory of other
 * trainers is too uncertain. */
static void set_sort_keys(const struct request *r, struct choice *c)
{
	if (!trainer_has_times(r->trainer))
		return;
	struct band b = time_band(r->trainer, &c->l, r->cluster.links.host_ranks,
		r->o->dtype == PRECISION_FLOAT8);
	c->likely_step = c->times.step * sqrt(b.low * b.high);
	c->tight = r->trainer == BY_PT && r->limit &&
		   c->memory.total * memory_band(BY_PT).high > (double)r->limit;
}

/* Estimates a layout, counts it, and keeps it if it fits and is among the fastest. */
static void consider_layout(void *filter, const struct layout *l)
{
	struct filter *f = filter;
	struct search *s = f->s;
	struct choice c = {.l = *l};
	if (!trainer_allows(f->r->trainer, f->r->m, l))
		return;
	s->enumerated++;
	if (f->r->trainer == BY_PT) {
		bounds_compute(&f->bounds, &c);
	} else {
		estimate_memory(&f->shape, l, &f->practice, &c.memory);
		if (trainer_has_times(f->r->trainer))
			estimate_time(&f->shape, l, &f->r->cluster, &f->practice, f->peak,
				&c.times);
	}
	c.bound_bytes = c.memory.total;
	c.bound_step = c.times.step;
	if (!s->least.memory.total || c.memory.total < s->least.memory.total)
		s->least = c;
	if (!fits_limit(f->r, &c.memory))
		return;
	s->fitting++;
	set_sort_keys(f->r, &c);
	keep_if_fast(f, &c);
}

/* Orders by the middle of the band of the time; layouts that may not fit come last. */
static int compare_likely(const void *a, const void *b)
{
	const struct choice *x = a, *y = b;
	if (x->tight != y->tight)
		return x->tight - y->tight;
	return (x->likely_step > y->likely_step) - (x->likely_step < y->likely_step);
}

/* Orders layouts of other trainers by the middle of the band of their time. Ties, and layouts
 * without times, go by the fewest kinds of parallelism, the least sharding, no recomputation, and
 * the time or the memory. */
static int compare_other_trainers(const void *a, const void *b)
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

/* Sorts the layouts of other trainers. All within 1 % of the fastest count as equally fast. */
static void sort_other_trainers(struct search *s)
{
	const double tie = 1.01;
	double fastest = INFINITY;
	for (int64_t i = 0; i < s->n; i++)
		fastest = fmin(fastest, s->best[i].likely_step);
	for (int64_t i = 0; i < s->n; i++)
		if (s->best[i].likely_step <= tie * fastest)
			s->best[i].likely_step = fastest;
	qsort(s->best, (size_t)s->n, sizeof(*s->best), compare_other_trainers);
}

/* Returns true if there is time for another plan. The first few plans may take longer. */
static bool has_time(const struct request *r, double work, int64_t found)
{
	enum { MAX_WORK = 45000, FEW = 3, MAX_WORK_OF_FEW = 85000 };
	return r->exact >= 0 || work <= (found < FEW ? MAX_WORK_OF_FEW : MAX_WORK);
}

/* Plans a layout. Sets c->dropped if it does not fit or pt-train rejects it. */
static void plan_choice(const struct request *r, struct search *s, struct choice *c)
{
	struct err e = {0};
	if (r->exact < 0 ? plan_quickly(r, c, &e) : exact_plan(r, c, &e)) {
		if (!s->rejected++)
			s->rejection = e;
		c->dropped = true;
		return;
	}
	s->planned++;
	s->extrapolated += c->planned == BY_FEWER_LAYERS;
	c->dropped = !fits_limit(r, &c->memory);
	set_sort_keys(r, c);
}

/* Plans the fastest layout with all layers if it was extrapolated, until the fastest layout is
 * planned so and fits. Removes layouts that do not fit. */
static void replan_fastest(const struct request *r, struct search *s)
{
	enum { MAX_REPLANNED = 8 };
	while (s->n && s->replanned < MAX_REPLANNED &&
		s->best[0].planned == BY_FEWER_LAYERS) {
		struct choice *c = s->best, before = *c;
		struct err e = {0};
		if (exact_plan(r, c, &e) || !fits_limit(r, &c->memory)) {
			s->extrapolated--;
			memmove(c, c + 1, (size_t)--s->n * sizeof(*c));
			continue;
		}
		set_sort_keys(r, c);
		s->replanned++;
		s->time_error =
			fmax(s->time_error, fabs(before.times.step / c->times.step - 1));
		s->memory_error = fmax(
			s->memory_error, fabs(before.memory.total / c->memory.total - 1));
		for (; c + 1 < s->best + s->n && compare_likely(c, c + 1) > 0; c++)
			swap_choices(c, c + 1);
	}
}

/* Inserts a value into the `n` smallest of at most `capacity` values, in ascending order. */
static void insert_sorted(double *x, int64_t n, int64_t capacity, double value)
{
	int64_t i = min64(n, capacity - 1);
	if (n == capacity && value >= x[i])
		return;
	for (; i > 0 && x[i - 1] > value; i--)
		x[i] = x[i - 1];
	x[i] = value;
}

/* Plans layouts in the order of their bounds until enough of them fit, or all other layouts are
 * bound to be slower than the listed ones. */
static void plan_in_order(const struct filter *f)
{
	enum { MAX_FOUND = 100 };   /* without --exact */
	const double margin = 1.15; /* maximum ratio of a bound to its plan */
	const struct request *r = f->r;
	struct search *s = f->s;
	int64_t limit = r->exact > 0 ? r->exact : r->exact < 0 ? MAX_FOUND : s->n;
	int64_t n_found = 0, n_sure = 0, i; /* layouts that fit; of these, not tight */
	double work = 0, *fastest = xcalloc((size_t)r->show, sizeof(*fastest));
	bool skipped = false;
	for (i = 0; i < s->n; i++) {
		struct choice *c = &s->best[i];
		double next_work = planning_work(r, &c->l, r->exact < 0);
		if (r->exact < 0 && n_sure >= r->show &&
			c->likely_step >= margin * fastest[r->show - 1])
			break;
		if (n_found >= limit || !has_time(r, work + next_work, n_sure)) {
			skipped = true;
			continue;
		}
		plan_choice(r, s, c);
		work += c->work;
		n_found += !c->dropped;
		if (!c->dropped && !c->tight)
			insert_sorted(fastest, min64(n_sure++, r->show), r->show,
				c->likely_step);
	}
	/* with --freeze a bound is scaled, and with two kinds of layers it is a mean: both may
	 * exceed the plan */
	bool is_bound = !r->o->freeze.n && (!model_layers_of_kind(r->m, 0) ||
						   !model_layers_of_kind(r->m, 1));
	s->proved = !skipped && is_bound && (i < s->n || s->n < f->capacity);
	free(fastest);
}

/* Keeps the layouts that were planned and fit, sorted by time. */
static void plan_and_sort(const struct filter *f)
{
	struct search *s = f->s;
	int64_t n = 0;
	plan_in_order(f);
	for (int64_t i = 0; i < s->n; i++)
		if (s->best[i].planned != BY_FORMULAS && !s->best[i].dropped)
			s->best[n++] = s->best[i];
	s->n = n;
	qsort(s->best, (size_t)n, sizeof(*s->best), compare_likely);
	replan_fastest(f->r, s);
}

/* Values of --tile and --offload to try. */
struct settings_to_try {
	int tile[5], offload[3];
	int n_tiles, n_offloads;
};

/* Returns the tiles and offloads to try if nothing fits: layers in pieces, and optimizer state or
 * all state in the memory of a GPU's host. A given setting is not changed. A CPU offloads to a
 * directory, which must be given. */
static struct settings_to_try fallback_settings(const struct request *r)
{
	struct settings_to_try x = {
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

/* Enumerates all layouts with these tiles and offloads, and sorts the best ones into s->best. */
static void search_space(struct filter *f, const struct settings_to_try *x)
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
	visit_layouts(&space, consider_layout, f);
	if (r->trainer != BY_PT) {
		sort_other_trainers(s);
		return;
	}
	qsort(s->best, (size_t)s->n, sizeof(*s->best), compare_likely);
	plan_and_sort(f);
}

/* Returns a filter with no layouts yet; it borrows r and s. */
static struct filter make_filter(const struct request *r, struct search *s)
{
	struct filter f = {.r = r, .s = s};
	f.capacity = r->exact ? max64(r->show, r->exact) + (1 << 15) : 1 << 20;
	bounds_init(&f.bounds, r);
	if (r->trainer != BY_PT)
		practice_init(r->trainer, r->o, &f.practice);
	f.peak = cluster_peak(&r->cluster, options_gemm_dtype(r->o),
		r->o->numerics == NUMERICS_EXACT,
		(int)min64(r->ranks, r->cluster.links.host_ranks));
	shape_init(&f.shape, r->m);
	return f;
}

int search_run(const struct request *r, struct search *s, struct err *e)
{
	double begin = clock_seconds();
	struct filter f = make_filter(r, s);
	const struct settings_to_try usual = {
		{(int)r->o->tile}, {r->o->offload}, .n_tiles = 1, .n_offloads = 1};
	*s = (struct search){.n = 0};
	s->best = xcalloc((size_t)f.capacity, sizeof(*s->best));
	search_space(&f, &usual);
	bool has_layouts = s->enumerated;
	const struct settings_to_try fallback = fallback_settings(r);
	if (has_layouts && !s->n && r->trainer == BY_PT)
		search_space(&f, &fallback);
	bounds_release(&f.bounds);
	s->seconds = clock_seconds() - begin;
	if (!has_layouts)
		return err_set(e, EX_USAGE,
			"no layout found: %d ranks cannot divide a batch of %lld sequences%s%s",
			r->ranks, (long long)r->o->batch,
			r->trainer == BY_PT ? "" : " by the rules of this trainer",
			r->only.n ? " within the settings of --only" : "");
	return 0;
}

void search_release(struct search *s)
{
	free(s->best);
	*s = (struct search){.n = 0};
}
