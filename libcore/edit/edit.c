/* Coming to agree: what all workers brought becomes one, and everybody's. */
#include "edit/edit.h"

#include "edit/own.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char anchor[] = "anchor", outer_mean[] = "outer_avg",
		  outer_square[] = "outer_avg_sq", residual[] = "residual",
		  pending[] = "pending";

void edit_add_groups(const struct edit_config *c, struct store_groups *g)
{
	struct optim_config outer = outer_config(c);
	int n_state = optimizers[outer.kind]->n_state(&outer);
	if (c->outer != EDIT_OUTER_NONE || c->reducer != EDIT_MEAN)
		store_groups_add(g, anchor, STORE_OUTER);
	if (n_state > 0)
		store_groups_add(g, outer_mean, STORE_OUTER);
	if (n_state > 1)
		store_groups_add(g, outer_square, STORE_OUTER);
	if (c->wire != EDIT_WIRE_FP32)
		store_groups_add(g, residual, STORE_OUTER);
	if (c->delay > 0)
		store_groups_add(g, pending, STORE_OUTER);
}

static struct edit_groups find_groups(const struct store_groups *g)
{
	return (struct edit_groups){.anchor = store_groups_find(g, anchor),
		.outer_mean = store_groups_find(g, outer_mean),
		.outer_square = store_groups_find(g, outer_square),
		.residual = store_groups_find(g, residual)};
}

/* ---- blocks ---------------------------------------------------------------------- */

/* Floats of one group that lie together. */
struct segment {
	int64_t at, end;
	int group, fragment;
};

static int by_fragment(const void *a, const void *b)
{
	const struct segment *x = a, *y = b;
	if (x->fragment != y->fragment)
		return x->fragment < y->fragment ? -1 : 1;
	if (x->group != y->group)
		return x->group < y->group ? -1 : 1;
	return x->at < y->at ? -1 : x->at > y->at;
}

/* Parts come in the order of where they lie. What is between them belongs to the one before. */
static struct segment *list_segments(const struct edit *x, int *n)
{
	struct segment *list = xcalloc((size_t)x->s->n_updated + 1, sizeof(*list));
	*n = 0;
	for (int64_t i = 0; i < x->s->n_updated; i++) {
		const struct part *p = &x->s->updated[i];
		int group = edit_group_of(x, p);
		struct segment *last = &list[*n - (*n > 0)];
		BUG_ON(*n && p->at < last->at);
		if (*n && last->group == group)
			continue;
		last->end = p->at;
		list[(*n)++] = (struct segment){
			.at = p->at, .group = group, .fragment = x->fragment[group]};
	}
	if (*n) {
		list[0].at = 0;
		list[*n - 1].end = store_floats(x->s);
	}
	qsort(list, (size_t)*n, sizeof(*list), by_fragment);
	return list;
}

static void list_blocks(struct edit *x, const struct wire *w)
{
	int n, room = 0;
	struct segment *list = list_segments(x, &n);
	for (int i = 0; i < n; i++)
		for (int64_t at = list[i].at; at < list[i].end;) {
			int64_t len = exchange_cut(w, x->sync, at, list[i].end);
			if (x->n_blocks == room) {
				room = 2 * room + 16;
				x->blocks = xrealloc(
					x->blocks, (size_t)room * sizeof(*x->blocks));
			}
			x->blocks[x->n_blocks++] = (struct block){at, len, list[i].group};
			at += len;
		}
	free(list);
}

int edit_blocks(const struct edit *x, struct chosen c, const struct block **first)
{
	int n = 0;
	*first = x->blocks;
	for (int i = 0; i < x->n_blocks; i++)
		if (edit_is_chosen(x, c, x->blocks[i].group)) {
			*first = n ? *first : &x->blocks[i];
			n++;
		}
	return n;
}

static int64_t block_floats(const struct edit *x)
{
	int64_t most = 0;
	for (int i = 0; i < x->n_blocks; i++)
		most = max64(most, x->blocks[i].n);
	return most;
}

/* ---- opening --------------------------------------------------------------------- */

static void place_memory(struct edit *x, struct arena *a)
{
	int64_t n = block_floats(x);
	exchange_place(&x->exchange, a);
	for (int i = 0; i < EXCHANGE_SLOTS; i++)
		x->there[i] = arena_floats(a, n);
	for (int i = 0; i < EDIT_ROOMS && x->s->c.offload; i++)
		x->room[i] = arena_floats(a, n);
	x->squares = arena_alloc(a, (size_t)x->n_groups * sizeof(*x->squares));
	x->outer = arena_alloc(a, sizeof(*x->outer));
}

static void open_memory(struct edit *x)
{
	struct arena size;
	arena_measure(&size, "agreeing");
	place_memory(x, &size);
	x->memory = size;
	if (x->sync->planned)
		return;
	device_arena(x->d, &x->memory, "agreeing with other workers", size.peak_bytes);
	place_memory(x, &x->memory);
}

int64_t edit_bytes(const struct edit *x)
{
	return (int64_t)x->memory.peak_bytes;
}

/* Units in turn, so that each fragment has some of all depths. */
static void make_groups(struct edit *x)
{
	x->n_fragments = (int)max64(1, min64(x->c.fragments, x->s->c.n_units));
	x->n_groups = x->c.by_unit ? x->s->c.n_units : x->n_fragments;
	x->fragment = xcalloc((size_t)x->n_groups, sizeof(*x->fragment));
	for (int g = 0; g < x->n_groups; g++)
		x->fragment[g] = g % x->n_fragments;
}

struct edit *edit_open(const struct edit_config *c, struct comm *world, struct comm *sync,
	struct store *s, struct device *d)
{
	struct edit *x = xcalloc(1, sizeof(*x));
	size_t workers = (size_t)sync->size;
	*x = (struct edit){.c = *c, .world = world, .sync = sync, .s = s, .d = d};
	x->group = find_groups(&s->c.groups);
	x->at = c->delay > 0 ? store_groups_find(&s->c.groups, pending) : STORE_PARAM;
	if (c->reducer == EDIT_MEAN) { /* steps count for all, or not at all */
		x->c.weigh = (struct weigh_config){
			.by_steps = c->weigh.by_steps, .steps_ratio = 1};
		x->c.normalize = true;
		x->c.consensus = CONSENSUS_NONE;
		x->c.sparsify = EDIT_DENSE;
	}
	if (x->c.weigh.by_norm && x->c.weigh.temperature <= 0)
		x->c.weigh.temperature = 1;
	make_groups(x);
	size_t groups = (size_t)x->n_groups;
	x->detector = xcalloc(groups, sizeof(*x->detector));
	for (int g = 0; g < x->n_groups; g++)
		detector_open(&x->detector[g], &c->detect);
	x->outer_steps = xcalloc(groups, sizeof(*x->outer_steps));
	x->norm = xcalloc(groups, sizeof(*x->norm));
	x->reduced = xcalloc(groups, sizeof(*x->reduced));
	x->all_norms = xcalloc(groups * workers, sizeof(*x->all_norms));
	x->all_out = xcalloc(groups * workers, sizeof(*x->all_out));
	x->all_steps = xcalloc(workers, sizeof(*x->all_steps));
	x->weight = xcalloc(groups * workers, sizeof(*x->weight));
	x->scale = xcalloc(groups, sizeof(*x->scale));
	x->brought = xcalloc(groups, sizeof(*x->brought));
	x->has_come = xcalloc(groups, sizeof(*x->has_come));
	x->begun = xcalloc((size_t)x->n_fragments, sizeof(*x->begun));
	struct wire wire = wire_make(c, s, d);
	list_blocks(x, &wire);
	exchange_open(&x->exchange, sync, &wire, x->blocks, x->n_blocks);
	open_memory(x);
	return x;
}

void edit_free(struct edit *x)
{
	if (!x)
		return;
	edit_settle(x);
	for (int g = 0; g < x->n_groups; g++)
		detector_close(&x->detector[g]);
	free(x->detector);
	free(x->fragment);
	free(x->blocks);
	free(x->outer_steps);
	free(x->norm);
	free(x->reduced);
	free(x->all_norms);
	free(x->all_out);
	free(x->all_steps);
	free(x->weight);
	free(x->scale);
	free(x->brought);
	free(x->has_come);
	free(x->begun);
	exchange_close(&x->exchange);
	device_arena_release(x->d, &x->memory);
	free(x);
}

/* ---- on their way ---------------------------------------------------------------- */

static float *take_brought(void *with, const struct block *b, int slot)
{
	struct edit *x = with;
	return store_begin(x->s, x->at, b->at, b->n, x->there[slot]);
}

static void give_made(void *with, const struct block *b, float *v, int slot)
{
	struct edit *x = with;
	(void)slot;
	store_end(x->s, x->at, b->at, b->n, v);
}

static void make_one(void *with, const struct block *b, float *out,
	const float *const *from, int64_t n)
{
	struct edit *x = with;
	const struct combine c = {.workers = x->sync->size,
		.weight = x->weight + (int64_t)b->group * x->sync->size,
		.consensus = x->c.consensus,
		.normalize = x->c.normalize};
	x->d->k->combine(x->d, out, from, n, &c);
}

void edit_settle(struct edit *x)
{
	if (x->flight.x)
		flight_wait(&x->flight, x->flight.n);
	x->flight.x = NULL;
}

static void send(struct edit *x, struct chosen c)
{
	edit_settle(x);
	x->flight = (struct flight){.x = &x->exchange,
		.kind = x->c.wire,
		.sync = x->n_syncs,
		.take = take_brought,
		.give = give_made,
		.make = make_one,
		.with = x};
	x->flight.n = edit_blocks(x, c, &x->flight.blocks);
	flight_begin(&x->flight);
}

/* ---- a synchronisation ----------------------------------------------------------- */

void edit_anchor(struct edit *x)
{
	for (int i = 0; i < x->n_blocks && edit_has_anchor(x); i++) {
		const struct block *b = &x->blocks[i];
		float *p = store_begin(x->s, STORE_PARAM, b->at, b->n, x->room[0]);
		float *a = store_begin(x->s, x->group.anchor, b->at, b->n, x->room[1]);
		x->d->k->copy(x->d, mat(a, 1, b->n), mat(p, 1, b->n));
		store_end(x->s, x->group.anchor, b->at, b->n, a);
	}
}

int edit_fragments(const struct edit *x)
{
	return x->n_fragments;
}

int edit_due(const struct edit *x, int64_t apart)
{
	int64_t interval = x->c.interval;
	for (int64_t f = 0; f < x->n_fragments && apart > 0; f++)
		if (apart % interval == (f + 1) * interval / x->n_fragments % interval)
			return (int)f;
	return -1;
}

bool edit_is_begun(const struct edit *x, int fragment)
{
	return x->begun[fragment];
}

static void weigh_plainly(struct edit *x, struct chosen c, int64_t steps)
{
	for (int i = 0; i < x->n_groups * x->sync->size; i++)
		if (edit_is_chosen(x, c, i / x->sync->size)) {
			x->weight[i] = 1;
			x->all_out[i] = false;
		}
	if (x->c.weigh.by_steps)
		brought_weigh(x, c, steps);
}

void edit_begin(struct edit *x, int fragment, int64_t steps, struct edit_result *r)
{
	struct chosen c = {fragment, -1};
	int workers = x->sync->size, n = 0;
	*r = (struct edit_result){.norm = (double)NAN, .reduced = (double)NAN, .clip = 1};
	BUG_ON(x->begun[fragment]);
	edit_settle(x);
	if (edit_has_anchor(x)) {
		brought_take(x, c);
		brought_square(x, c);
		r->norm = brought_norms(x, c, x->norm);
		brought_weigh(x, c, steps);
		brought_round(x, c);
	} else {
		weigh_plainly(x, c, steps);
	}
	for (int g = 0; g < x->n_groups; g++) {
		if (!edit_is_chosen(x, c, g))
			continue;
		x->has_come[g] = false;
		x->brought[g] = false;
		for (int w = 0; w < workers; w++)
			x->brought[g] |= !x->all_out[g * workers + w];
		r->weight += (double)x->weight[g * workers + x->sync->rank];
		r->anomalies += x->all_out[g * workers + x->sync->rank];
		r->all_left_out += !x->brought[g];
		n++;
	}
	r->weight /= n;
	x->begun[fragment] = true;
	send(x, c);
	x->n_syncs++;
}

/* Chosen groups get their new parameters: their blocks have come. */
static void land(struct edit *x, struct chosen c)
{
	const struct block *b;
	if (edit_has_anchor(x)) {
		outer_clip(x, c);
		outer_step(x, c);
	}
	for (int n = edit_blocks(x, c, &b); n > 0; n--, b++)
		store_copy(x->s, b->at, b->n);
	for (int g = 0; g < x->n_groups; g++)
		x->has_come[g] |= edit_is_chosen(x, c, g);
}

void edit_arrive(struct edit *x, int unit)
{
	struct chosen c = {0, unit};
	const struct block *b;
	int n = edit_blocks(x, c, &b);
	if (!x->begun[0] || x->has_come[unit])
		return;
	if (x->flight.x)
		flight_wait(&x->flight, n ? (int)(b - x->flight.blocks) + n : 0);
	land(x, c);
}

bool edit_arrives_by_unit(const struct edit *x)
{
	const struct store_config *s = &x->s->c;
	const int *degree = s->mesh->degree;
	bool shared_out = degree[AXIS_FSDP] * degree[AXIS_CP] > 1;
	return x->c.by_unit && x->n_fragments == 1 && x->at == STORE_PARAM &&
	       x->sync->size > 1 && degree[AXIS_PP] == 1 && !s->offload && !s->tile &&
	       (!shared_out || s->zero == 0 || s->zero == 3) &&
	       s->deal.n_micro >= s->deal.ranks && comm_overlaps();
}

static void sum_up(struct edit *x, int fragment, struct edit_result *r)
{
	double all = 0;
	r->clip = 1;
	if (edit_has_anchor(x))
		outer_norms(x, (struct chosen){fragment, -1});
	for (int g = 0; g < x->n_groups && edit_has_anchor(x); g++) {
		if (x->fragment[g] != fragment)
			continue;
		all += x->reduced[g] * x->reduced[g];
		r->clip = fmin(r->clip, x->scale[g]);
	}
	r->reduced = edit_has_anchor(x) ? sqrt(all) : (double)NAN;
}

void edit_end(struct edit *x, int fragment, struct edit_result *r)
{
	bool some = false;
	BUG_ON(!x->begun[fragment]);
	for (int g = 0; g < x->n_groups; g++)
		some |= x->fragment[g] == fragment && x->has_come[g];
	edit_settle(x);
	if (!some)
		land(x, (struct chosen){fragment, -1});
	for (int g = 0; g < x->n_groups && some; g++) /* those that nobody has used */
		if (x->fragment[g] == fragment && !x->has_come[g])
			land(x, (struct chosen){fragment, g});
	sum_up(x, fragment, r);
	x->begun[fragment] = false;
	if (!some)
		store_updated(x->s, true);
}

void edit_sync(struct edit *x, int64_t steps, struct edit_result *r)
{
	struct edit_result one;
	*r = (struct edit_result){.norm = (double)NAN, .reduced = (double)NAN, .clip = 1};
	for (int f = 0; f < x->n_fragments; f++)
		if (x->begun[f])
			edit_end(x, f, &one);
	x->at_once = true;
	for (int f = 0; f < x->n_fragments; f++) {
		edit_begin(x, f, steps, &one);
		edit_end(x, f, &one);
		r->norm = f ? hypot(r->norm, one.norm) : one.norm;
		r->reduced = f ? hypot(r->reduced, one.reduced) : one.reduced;
		r->weight += one.weight / x->n_fragments;
		r->anomalies += one.anomalies;
		r->all_left_out += one.all_left_out;
		r->clip = fmin(r->clip, one.clip);
	}
	x->at_once = false;
}

/* ---- until they part ------------------------------------------------------------- */

/* Gradients of a block, to the floats of it or from them. */
static void move_gradients(struct edit *x, const struct block *b, float *v, bool back)
{
	for (int64_t i = 0; i < x->s->n_updated; i++) {
		const struct part *p = &x->s->updated[i];
		int64_t begin = max64(b->at, p->at);
		int64_t len = min64(b->at + b->n, p->at + p->rows * p->cols) - begin;
		if (len <= 0)
			continue;
		struct mat g = mat(p->g + (begin - p->at), 1, len);
		struct mat there = mat(v + (begin - b->at), 1, len);
		x->d->k->copy(x->d, back ? g : there, back ? there : g);
	}
}

static float *take_gradient(void *with, const struct block *b, int slot)
{
	struct edit *x = with;
	move_gradients(x, b, x->there[slot], false);
	return x->there[slot];
}

static void give_gradient(void *with, const struct block *b, float *v, int slot)
{
	(void)slot;
	move_gradients(with, b, v, true);
}

static void make_mean(void *with, const struct block *b, float *out,
	const float *const *from, int64_t n)
{
	struct edit *x = with;
	int workers = x->sync->size;
	float *alike = xcalloc((size_t)workers, sizeof(*alike));
	(void)b;
	for (int w = 0; w < workers; w++)
		alike[w] = 1;
	const struct combine c = {.workers = workers, .weight = alike, .normalize = true};
	x->d->k->combine(x->d, out, from, n, &c);
	free(alike);
}

void edit_mean_gradient(struct edit *x)
{
	struct flight f = {.x = &x->exchange,
		.kind = EDIT_WIRE_FP32,
		.blocks = x->blocks,
		.n = x->n_blocks,
		.take = take_gradient,
		.give = give_gradient,
		.make = make_mean,
		.with = x};
	flight_begin(&f);
	flight_wait(&f, f.n);
}

bool edit_any(struct edit *x, bool mine)
{
	return comm_max_i64(x->sync, mine);
}

/* ---- what is said of it ---------------------------------------------------------- */

int64_t edit_sent(const struct edit *x)
{
	int64_t sent = (x->sync->size - 1) * x->n_groups * brought_words(x);
	for (int i = 0; i < x->n_blocks; i++)
		sent += exchange_sent(&x->exchange, x->c.wire, &x->blocks[i]);
	return sent;
}

int64_t edit_syncs(const struct edit *x)
{
	return x->n_syncs;
}

/* ---- for checkpoints ------------------------------------------------------------- */

enum { HEAD = 4, PER_GROUP = 6 };

int64_t edit_state_size(const struct edit *x)
{
	return HEAD + x->n_groups * (PER_GROUP + x->c.detect.warmup);
}

void edit_state_get(const struct edit *x, double *out)
{
	int64_t window = x->c.detect.warmup;
	out[0] = (double)x->n_syncs;
	out[1] = (double)x->c.interval;
	out[2] = x->n_fragments;
	out[3] = (double)x->c.delay;
	out += HEAD;
	for (int g = 0; g < x->n_groups; g++, out += PER_GROUP + window) {
		const struct detector *d = &x->detector[g];
		bool begun = x->begun[x->fragment[g]];
		out[0] = (double)x->outer_steps[g];
		out[1] = d->mean;
		out[2] = d->m2;
		out[3] = (double)d->count;
		/* of what is pending, which has come: is it of anybody, and of this worker? */
		out[4] = begun ? 1 + !x->brought[g] : 0;
		out[5] = begun && x->all_out[g * x->sync->size + x->sync->rank];
		memcpy(out + PER_GROUP, d->z, (size_t)window * sizeof(*out));
	}
}

static bool is_count(double x)
{
	return x >= 0 && x < 0x1p53 && x == floor(x);
}

/* Would the fragment be under way after so many steps apart? */
static bool may_be_pending(const struct edit *x, int fragment, int64_t apart)
{
	for (int64_t i = 0; i < x->c.delay; i++)
		if (edit_due(x, apart - i) == fragment)
			return true;
	return false;
}

static int put_pending(struct edit *x, const double *head, const double *first,
	int64_t apart, struct err *e)
{
	int64_t step = PER_GROUP + x->c.detect.warmup;
	bool any = false, same = head[1] == (double)x->c.interval &&
				 head[2] == x->n_fragments &&
				 head[3] == (double)x->c.delay;
	for (int g = 0; g < x->n_groups; g++)
		any |= first[g * step + 4] > 0;
	if (any && !same)
		return err_set(e, EX_USAGE,
			"a fragment is under way: it goes on with edit-sync-interval %g, "
			"edit-fragments %g and edit-sync-delay %g only",
			head[1], head[2], head[3]);
	for (int g = 0; g < x->n_groups && any; g++) {
		const double *in = first + g * step;
		int f = x->fragment[g];
		x->begun[f] = may_be_pending(x, f, apart);
		if (x->begun[f] != (in[4] > 0))
			return err_set(e, EX_DATAERR,
				"fragment %d cannot be under way, or has to be", f);
		x->brought[g] = in[4] < 2;
		x->all_out[g * x->sync->size + x->sync->rank] = in[5] > 0;
	}
	return 0;
}

int edit_state_put(struct edit *x, const double *in, int64_t apart, struct err *e)
{
	int64_t window = x->c.detect.warmup;
	const double *head = in;
	bool good = is_count(in[0]);
	for (int64_t i = 0; i < edit_state_size(x); i++)
		good &= isfinite(in[i]);
	x->n_syncs = good ? (int64_t)*in : 0;
	in += HEAD;
	for (int g = 0; g < x->n_groups && good; g++, in += PER_GROUP + window) {
		struct detector *d = &x->detector[g];
		good = is_count(in[0]) && is_count(in[3]) && in[2] >= 0 &&
		       is_count(in[4]) && in[4] <= 2 && is_count(in[5]) && in[5] <= 1;
		if (!good)
			break;
		x->outer_steps[g] = (int64_t)in[0];
		d->mean = in[1];
		d->m2 = in[2];
		d->count = (int64_t)in[3];
		memcpy(d->z, in + PER_GROUP, (size_t)window * sizeof(*in));
	}
	if (!good)
		return err_set(e, EX_DATAERR, "numbers of a worker that cannot be");
	return put_pending(x, head, head + HEAD, apart, e);
}
