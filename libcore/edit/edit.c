/* A synchronization: reduces the workers' pseudo-gradients and applies the result. */
#include "edit/edit_internal.h"

#include <math.h>

static const char *const store_group_names[EDIT_STORE_GROUPS] = {[EDIT_ANCHOR] = "anchor",
	[EDIT_OUTER_MEAN] = "outer_avg",
	[EDIT_OUTER_SQUARE] = "outer_avg_sq",
	[EDIT_RESIDUAL] = "residual",
	[EDIT_PENDING] = "pending"};

void edit_add_groups(const struct edit_config *c, struct store_groups *g)
{
	struct optim_config outer = outer_config(c);
	int n_state = optim_n_state(&outer);
	const bool is_needed[EDIT_STORE_GROUPS] = {
		[EDIT_ANCHOR] = c->outer != EDIT_OUTER_NONE || c->reducer != EDIT_MEAN,
		[EDIT_OUTER_MEAN] = n_state > 0,
		[EDIT_OUTER_SQUARE] = n_state > 1,
		[EDIT_RESIDUAL] = c->wire != EDIT_WIRE_FP32,
		[EDIT_PENDING] = c->delay > 0};
	for (int i = 0; i < EDIT_STORE_GROUPS; i++)
		if (is_needed[i])
			store_groups_add(g, store_group_names[i], STORE_OUTER);
}

/* ---- blocks ---------------------------------------------------------------------- */

/* Appends blocks that cover the parts of a group, which are ordered by position. Adjacent parts are
 * cut into blocks together; padding belongs to the preceding part. */
static void add_group_blocks(struct edit *x, const struct wire *w, int group)
{
	const struct part *p = x->s->updated;
	int64_t n = x->s->n_updated;
	for (int64_t i = 0; i < n; i++) {
		if (part_group(x, &p[i]) != group)
			continue;
		int64_t pos = i ? p[i].pos : 0;
		while (i + 1 < n && part_group(x, &p[i + 1]) == group)
			i++;
		int64_t end = i + 1 < n ? p[i + 1].pos : store_floats(x->s);
		while (pos < end) {
			int64_t n_floats = exchange_block_floats(w, x->sync, pos, end);
			size_t n_blocks = (size_t)x->n_blocks + 1;
			x->blocks = xrealloc(x->blocks, n_blocks * sizeof(*x->blocks));
			x->blocks[x->n_blocks++] = (struct block){pos, n_floats, group};
			pos += n_floats;
		}
	}
}

/* Makes x->blocks, ordered by fragment, then by group. */
static void make_blocks(struct edit *x, const struct wire *w)
{
	for (int f = 0; f < x->n_fragments; f++)
		for (int g = f; g < x->n_groups; g += x->n_fragments)
			add_group_blocks(x, w, g);
}

int edit_blocks(const struct edit *x, struct selection sel, const struct block **first)
{
	int n = 0;
	*first = x->blocks;
	for (int i = 0; i < x->n_blocks; i++)
		if (edit_selects(x, sel, x->blocks[i].group)) {
			*first = n ? *first : &x->blocks[i];
			n++;
		}
	return n;
}

/* ---- opening --------------------------------------------------------------------- */

static void allocate_buffer(struct edit *x, int store_group, int64_t n, struct arena *a)
{
	if (store_group >= 0 && store_offloads(x->s, store_group))
		x->buffer[store_group] = arena_floats(a, n);
}

float *edit_block_begin(struct edit *x, int store_group, const struct block *b)
{
	return store_begin(x->s, store_group, b->pos, b->n, x->buffer[store_group]);
}

/* Allocates all buffers of a synchronization in an arena, which may only measure. */
static void allocate_buffers(struct edit *x, struct arena *a)
{
	int64_t n = 0; /* floats of the largest block */
	for (int i = 0; i < x->n_blocks; i++)
		n = max64(n, x->blocks[i].n);
	exchange_allocate(&x->exchange, a);
	for (int i = 0; i < EXCHANGE_SLOTS; i++)
		x->staging[i] = arena_floats(a, n);
	allocate_buffer(x, STORE_PARAM, n, a);
	for (int i = 0; i < EDIT_STORE_GROUPS; i++)
		if (i != EDIT_RESIDUAL) /* visited in pieces */
			allocate_buffer(x, x->store_group[i], n, a);
	x->squares = arena_alloc(a, (size_t)x->n_groups * sizeof(*x->squares));
	x->outer = arena_alloc(a, sizeof(*x->outer));
	if (x->c.sparsify == EDIT_MAGNITUDE_TENSOR)
		x->counts = arena_alloc(
			a, (size_t)x->s->c.n_tensors * EDIT_DIGITS * sizeof(*x->counts));
}

/* Measures the buffers of a synchronization and, except in plans, allocates device memory. */
static void allocate_memory(struct edit *x)
{
	struct arena size;
	arena_measure(&size, "synchronization");
	allocate_buffers(x, &size);
	x->memory = size;
	if (x->sync->planned)
		return;
	device_arena_init(
		x->d, &x->memory, "synchronization of workers", size.peak_bytes);
	allocate_buffers(x, &x->memory);
}

int64_t edit_bytes(const struct edit *x)
{
	return (int64_t)x->memory.peak_bytes;
}

/* Creates the groups of ranks that hold each unit. Collective over the worker. */
static void make_holder_groups(struct edit *x)
{
	const struct store_config *s = &x->s->c;
	const unsigned axes = AXIS_BIT(AXIS_DP) | AXIS_BIT(AXIS_FSDP) |
			      AXIS_BIT(AXIS_CP) | AXIS_BIT(AXIS_TP);
	if (!x->c.by_unit || s->mesh->degree[AXIS_PP] == 1)
		return;
	struct comm *stage = mesh_group(s->mesh, (struct mesh_part){.axes = axes}),
		    *ends = stage;
	if (!s->has_both_ends)
		ends = mesh_group(
			s->mesh, (struct mesh_part){.axes = axes | AXIS_BIT(AXIS_PP),
					 .pp_ends = true});
	x->holders = xcalloc((size_t)x->n_groups, sizeof(struct comm *));
	for (int i = 0; i < s->n_tensors; i++) {
		const struct tensor *t = &s->tensors[i];
		x->tied |= t->uses > 1;
		if (t->local && x->holders[t->unit] != ends)
			x->holders[t->unit] = t->uses > 1 ? ends : stage;
	}
}

/* Makes the groups. Units are dealt round-robin, so that a fragment has units of all depths. */
static void make_groups(struct edit *x)
{
	x->n_fragments = (int)max64(1, min64(x->c.fragments, x->s->c.n_units));
	x->n_groups = x->c.by_unit ? x->s->c.n_units : x->n_fragments;
	x->group = xcalloc((size_t)x->n_groups, sizeof(*x->group));
	x->in_flight = xcalloc((size_t)x->n_fragments, sizeof(*x->in_flight));
	for (int i = 0; i < x->n_groups; i++) {
		struct edit_group *g = &x->group[i];
		g->fragment = i % x->n_fragments;
		g->report = xcalloc((size_t)x->sync->size, sizeof(*g->report));
		g->weight = xcalloc((size_t)x->sync->size, sizeof(*g->weight));
		detector_init(&g->detector, &x->c.detect);
	}
}

struct edit *edit_new(const struct edit_config *c, struct comm *world, struct comm *sync,
	struct store *s, struct device *d)
{
	struct edit *x = xcalloc(1, sizeof(*x));
	*x = (struct edit){.c = *c, .world = world, .sync = sync, .s = s, .d = d};
	for (int i = 0; i < EDIT_STORE_GROUPS; i++)
		x->store_group[i] = store_groups_find(&s->c.groups, store_group_names[i]);
	x->grad_group = c->delay > 0 ? x->store_group[EDIT_PENDING] : STORE_PARAM;
	if (c->reducer == EDIT_MEAN) { /* weights by steps only, or equal weights */
		x->c.weights = (struct weights_config){
			.by_steps = c->weights.by_steps, .steps_ratio = 1};
		x->c.normalize = true;
		x->c.consensus = SIGN_VOTE_NONE;
		x->c.sparsify = EDIT_DENSE;
	}
	if (x->c.weights.by_norm && x->c.weights.temperature <= 0)
		x->c.weights.temperature = 1;
	make_groups(x);
	make_holder_groups(x);
	struct wire wire = wire_make(c, s, d);
	make_blocks(x, &wire);
	exchange_init(&x->exchange, sync, &wire, x->blocks, x->n_blocks);
	allocate_memory(x);
	return x;
}

void edit_free(struct edit *x)
{
	if (!x)
		return;
	edit_wait(x);
	for (int i = 0; i < x->n_groups; i++) {
		detector_release(&x->group[i].detector);
		free(x->group[i].report);
		free(x->group[i].weight);
	}
	free(x->group);
	free(x->in_flight);
	free(x->holders);
	free(x->blocks);
	exchange_release(&x->exchange);
	device_arena_release(x->d, &x->memory);
	free(x);
}

/* ---- the exchange ---------------------------------------------------------------- */

static float *read_block(void *arg, const struct block *b, int slot)
{
	struct edit *x = arg;
	return store_begin(x->s, x->grad_group, b->pos, b->n, x->staging[slot]);
}

static void write_block(void *arg, const struct block *b, float *v, int slot)
{
	struct edit *x = arg;
	(void)slot;
	store_end(x->s, x->grad_group, b->pos, b->n, v);
}

/* Sets out[n] to the weighted combination of all workers' elements, from[worker][n]. */
static void reduce_piece(
	void *arg, const struct block *b, float *out, const float *const *from, int64_t n)
{
	struct edit *x = arg;
	const struct combine c = {.workers = x->sync->size,
		.weight = x->group[b->group].weight,
		.vote = x->c.consensus,
		.normalize = x->c.normalize};
	x->d->k->combine(x->d, out, from, n, &c);
}

void edit_wait(struct edit *x)
{
	if (x->flight.x)
		flight_wait(&x->flight, x->flight.n);
	x->flight.x = NULL;
}

/* Waits for the flight before, then starts to reduce the blocks of the selection. */
static void start_flight(struct edit *x, struct selection sel)
{
	edit_wait(x);
	x->flight = (struct flight){.x = &x->exchange,
		.kind = x->c.wire,
		.sync = x->n_syncs,
		.read = read_block,
		.write = write_block,
		.reduce = reduce_piece,
		.with = x};
	x->flight.n = edit_blocks(x, sel, &x->flight.blocks);
	flight_begin(&x->flight);
}

/* ---- a synchronization ----------------------------------------------------------- */

void edit_anchor(struct edit *x)
{
	for (int i = 0; i < x->n_blocks && edit_has_anchor(x); i++) {
		const struct block *b = &x->blocks[i];
		int anchor = x->store_group[EDIT_ANCHOR];
		float *p = edit_block_begin(x, STORE_PARAM, b);
		float *a = edit_block_begin(x, anchor, b);
		x->d->k->copy(x->d, mat(a, 1, b->n), mat(p, 1, b->n));
		store_end(x->s, anchor, b->pos, b->n, a);
	}
}

int edit_due(const struct edit *x, int64_t local_steps)
{
	int64_t interval = x->c.interval;
	for (int64_t f = 0; f < x->n_fragments && local_steps > 0; f++)
		if (local_steps % interval ==
			(f + 1) * interval / x->n_fragments % interval)
			return (int)f;
	return -1;
}

bool edit_in_flight(const struct edit *x, int fragment)
{
	return x->in_flight[fragment];
}

void edit_begin(struct edit *x, int fragment, int64_t steps, struct edit_result *r)
{
	struct selection sel = {fragment, -1};
	int n = 0;
	*r = (struct edit_result){.norm = (double)NAN, .reduced = (double)NAN, .clip = 1};
	BUG_ON(x->in_flight[fragment]);
	edit_wait(x);
	if (edit_has_anchor(x)) {
		pseudo_grad_compute(x, sel);
		pseudo_grad_squares(x, sel);
		r->norm = pseudo_grad_norms(x, sel);
	}
	pseudo_grad_weights(x, sel, steps);
	if (edit_has_anchor(x))
		pseudo_grad_compress(x, sel);
	for (int i = 0; i < x->n_groups; i++) {
		struct edit_group *g = &x->group[i];
		if (!edit_selects(x, sel, i))
			continue;
		g->arrived = false;
		r->weight += (double)g->weight[x->sync->rank];
		r->anomalies += g->excluded;
		r->all_left_out += !g->contributed;
		r->readmitted += g->lockouts > EDIT_LOCKOUTS;
		n++;
	}
	r->weight /= n;
	x->in_flight[fragment] = true;
	start_flight(x, sel);
	x->n_syncs++;
}

/* Updates the parameters of the selected groups, after their reduced blocks have arrived. */
static void update_groups(struct edit *x, struct selection sel)
{
	const struct block *b;
	if (edit_has_anchor(x)) {
		outer_clip(x, sel);
		outer_step(x, sel);
	}
	for (int n = edit_blocks(x, sel, &b); n > 0; n--, b++)
		store_refresh_copies(x->s, b->pos, b->n);
	for (int g = 0; g < x->n_groups; g++)
		x->group[g].arrived |= edit_selects(x, sel, g);
}

void edit_complete_unit(struct edit *x, int unit)
{
	struct selection sel = {0, unit};
	const struct block *b;
	int n = edit_blocks(x, sel, &b);
	if (!x->in_flight[0] || x->group[unit].arrived)
		return;
	if (x->flight.x)
		flight_wait(&x->flight, n ? (int)(b - x->flight.blocks) + n : 0);
	update_groups(x, sel);
	store_forget_unit(x->s, unit);
}

void edit_complete_tied(struct edit *x)
{
	if (x->tied)
		edit_complete_unit(x, 0);
}

bool edit_completes_by_unit(const struct edit *x)
{
	const struct store_config *s = &x->s->c;
	const int *degree = s->mesh->degree;
	bool sharded = degree[AXIS_FSDP] * degree[AXIS_CP] > 1;
	return x->c.by_unit && x->n_fragments == 1 && x->grad_group == STORE_PARAM &&
	       x->sync->size > 1 && !s->offload && !s->tile &&
	       (!sharded || s->zero == 0 || s->zero == 3) &&
	       s->microbatches.n_micro >= s->microbatches.ranks && comm_overlaps();
}

/* Sets the results that are known after the update: norm and clipping factor. */
static void set_result(struct edit *x, struct selection sel, struct edit_result *r)
{
	double sum_squares = 0;
	r->clip = 1;
	r->reduced = (double)NAN;
	if (!edit_has_anchor(x))
		return;
	outer_norms(x, sel);
	for (int g = 0; g < x->n_groups; g++) {
		if (!edit_selects(x, sel, g))
			continue;
		sum_squares += x->group[g].norm * x->group[g].norm;
		r->clip = fmin(r->clip, x->group[g].scale);
	}
	r->reduced = sqrt(sum_squares);
}

void edit_end(struct edit *x, int fragment, struct edit_result *r)
{
	struct selection sel = {fragment, -1};
	bool any_arrived = false;
	BUG_ON(!x->in_flight[fragment]);
	for (int g = 0; g < x->n_groups; g++)
		any_arrived |= edit_selects(x, sel, g) && x->group[g].arrived;
	edit_wait(x);
	if (!any_arrived)
		update_groups(x, sel);
	for (int g = 0; g < x->n_groups && any_arrived; g++)
		if (edit_selects(x, sel, g) && !x->group[g].arrived)
			update_groups(x, (struct selection){fragment, g});
	set_result(x, sel, r);
	x->in_flight[fragment] = false;
	if (any_arrived)
		store_forget(x->s);
	else /* update_groups() does not copy offloaded parameters */
		store_updated(x->s, !offloads_params(x->s->c.offload));
}

void edit_sync(struct edit *x, int64_t steps, struct edit_result *r)
{
	struct edit_result one;
	*r = (struct edit_result){.norm = (double)NAN, .reduced = (double)NAN, .clip = 1};
	for (int f = 0; f < x->n_fragments; f++)
		if (x->in_flight[f])
			edit_end(x, f, &one);
	x->blocking = true;
	for (int f = 0; f < x->n_fragments; f++) {
		edit_begin(x, f, steps, &one);
		edit_end(x, f, &one);
		r->norm = f ? hypot(r->norm, one.norm) : one.norm;
		r->reduced = f ? hypot(r->reduced, one.reduced) : one.reduced;
		r->weight += one.weight / x->n_fragments;
		r->anomalies += one.anomalies;
		r->all_left_out += one.all_left_out;
		r->readmitted += one.readmitted;
		r->clip = fmin(r->clip, one.clip);
	}
	x->blocking = false;
}

/* ---- during the warm-up ---------------------------------------------------------- */

static void divide_by_workers(void *arg, const struct part *p)
{
	struct edit *x = arg;
	struct mat g = mat(p->g, p->rows, p->cols);
	x->d->k->axpby(x->d, g, 1.0f / (float)x->sync->size, g, 0);
}

void edit_mean_gradient(struct edit *x)
{
	const unsigned grad_bit = STORE_BIT(STORE_GRAD);
	store_for_each_part(x->s, false, grad_bit, grad_bit, divide_by_workers, x);
}

/* ---- counts ---------------------------------------------------------------------- */

int64_t edit_sent(const struct edit *x)
{
	int64_t sent = (x->sync->size - 1) * x->n_groups * pseudo_grad_report_bytes(x);
	for (int i = 0; i < x->n_blocks; i++)
		sent += exchange_bytes_sent(&x->exchange, x->c.wire, &x->blocks[i]);
	return sent;
}

int64_t edit_syncs(const struct edit *x)
{
	return x->n_syncs;
}
