/* A synchronisation: reduces the workers' pseudo-gradients and applies the result on all of them. */
#include "edit/edit.h"

#include "edit/edit_internal.h"

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

/* Neighbouring floats of one group. */
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

/* Parts are in the order of their positions. Padding belongs to the part before it. */
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

int edit_blocks(const struct edit *x, struct selection c, const struct block **first)
{
	int n = 0;
	*first = x->blocks;
	for (int i = 0; i < x->n_blocks; i++)
		if (edit_selects(x, c, x->blocks[i].group)) {
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
		x->staging[i] = arena_floats(a, n);
	for (int i = 0; i < EDIT_BUFFERS && x->s->c.offload; i++)
		x->buffer[i] = arena_floats(a, n);
	x->squares = arena_alloc(a, (size_t)x->n_groups * sizeof(*x->squares));
	x->outer = arena_alloc(a, sizeof(*x->outer));
}

static void open_memory(struct edit *x)
{
	struct arena size;
	arena_measure(&size, "synchronisation");
	place_memory(x, &size);
	x->memory = size;
	if (x->sync->planned)
		return;
	device_arena(x->d, &x->memory, "synchronisation of workers", size.peak_bytes);
	place_memory(x, &x->memory);
}

int64_t edit_bytes(const struct edit *x)
{
	return (int64_t)x->memory.peak_bytes;
}

/* Round-robin, so that each fragment has units of all depths (strided, as in the paper). */
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
	x->grad_group =
		c->delay > 0 ? store_groups_find(&s->c.groups, pending) : STORE_PARAM;
	if (c->reducer == EDIT_MEAN) { /* weights by steps only, or equal ones */
		x->c.weights = (struct weights_config){
			.by_steps = c->weights.by_steps, .steps_ratio = 1};
		x->c.normalize = true;
		x->c.consensus = SIGN_VOTE_NONE;
		x->c.sparsify = EDIT_DENSE;
	}
	if (x->c.weights.by_norm && x->c.weights.temperature <= 0)
		x->c.weights.temperature = 1;
	make_groups(x);
	size_t groups = (size_t)x->n_groups;
	x->detector = xcalloc(groups, sizeof(*x->detector));
	for (int g = 0; g < x->n_groups; g++)
		detector_open(&x->detector[g], &c->detect);
	x->outer_steps = xcalloc(groups, sizeof(*x->outer_steps));
	x->norm = xcalloc(groups, sizeof(*x->norm));
	x->reduced = xcalloc(groups, sizeof(*x->reduced));
	x->all_norms = xcalloc(groups * workers, sizeof(*x->all_norms));
	x->all_excluded = xcalloc(groups * workers, sizeof(*x->all_excluded));
	x->all_steps = xcalloc(workers, sizeof(*x->all_steps));
	x->weight = xcalloc(groups * workers, sizeof(*x->weight));
	x->scale = xcalloc(groups, sizeof(*x->scale));
	x->contributed = xcalloc(groups, sizeof(*x->contributed));
	x->arrived = xcalloc(groups, sizeof(*x->arrived));
	x->in_flight = xcalloc((size_t)x->n_fragments, sizeof(*x->in_flight));
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
	edit_wait(x);
	for (int g = 0; g < x->n_groups; g++)
		detector_close(&x->detector[g]);
	free(x->detector);
	free(x->fragment);
	free(x->blocks);
	free(x->outer_steps);
	free(x->norm);
	free(x->reduced);
	free(x->all_norms);
	free(x->all_excluded);
	free(x->all_steps);
	free(x->weight);
	free(x->scale);
	free(x->contributed);
	free(x->arrived);
	free(x->in_flight);
	exchange_close(&x->exchange);
	device_arena_release(x->d, &x->memory);
	free(x);
}

/* ---- the exchange ---------------------------------------------------------------- */

static float *read_block(void *with, const struct block *b, int slot)
{
	struct edit *x = with;
	return store_begin(x->s, x->grad_group, b->at, b->n, x->staging[slot]);
}

static void write_block(void *with, const struct block *b, float *v, int slot)
{
	struct edit *x = with;
	(void)slot;
	store_end(x->s, x->grad_group, b->at, b->n, v);
}

static void reduce_piece(void *with, const struct block *b, float *out,
	const float *const *from, int64_t n)
{
	struct edit *x = with;
	const struct combine c = {.workers = x->sync->size,
		.weight = x->weight + (int64_t)b->group * x->sync->size,
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

static void start_flight(struct edit *x, struct selection c)
{
	edit_wait(x);
	x->flight = (struct flight){.x = &x->exchange,
		.kind = x->c.wire,
		.sync = x->n_syncs,
		.read = read_block,
		.write = write_block,
		.reduce = reduce_piece,
		.with = x};
	x->flight.n = edit_blocks(x, c, &x->flight.blocks);
	flight_begin(&x->flight);
}

/* ---- a synchronisation ----------------------------------------------------------- */

void edit_anchor(struct edit *x)
{
	for (int i = 0; i < x->n_blocks && edit_has_anchor(x); i++) {
		const struct block *b = &x->blocks[i];
		float *p = store_begin(x->s, STORE_PARAM, b->at, b->n, x->buffer[0]);
		float *a = store_begin(x->s, x->group.anchor, b->at, b->n, x->buffer[1]);
		x->d->k->copy(x->d, mat(a, 1, b->n), mat(p, 1, b->n));
		store_end(x->s, x->group.anchor, b->at, b->n, a);
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

static void equal_weights(struct edit *x, struct selection c, int64_t steps)
{
	for (int i = 0; i < x->n_groups * x->sync->size; i++)
		if (edit_selects(x, c, i / x->sync->size)) {
			x->weight[i] = 1;
			x->all_excluded[i] = false;
		}
	if (x->c.weights.by_steps)
		pseudo_grad_weights(x, c, steps);
}

void edit_begin(struct edit *x, int fragment, int64_t steps, struct edit_result *r)
{
	struct selection c = {fragment, -1};
	int workers = x->sync->size, n = 0;
	*r = (struct edit_result){.norm = (double)NAN, .reduced = (double)NAN, .clip = 1};
	BUG_ON(x->in_flight[fragment]);
	edit_wait(x);
	if (edit_has_anchor(x)) {
		pseudo_grad_compute(x, c);
		pseudo_grad_squares(x, c);
		r->norm = pseudo_grad_norms(x, c, x->norm);
		pseudo_grad_weights(x, c, steps);
		pseudo_grad_compress(x, c);
	} else {
		equal_weights(x, c, steps);
	}
	for (int g = 0; g < x->n_groups; g++) {
		if (!edit_selects(x, c, g))
			continue;
		x->arrived[g] = false;
		x->contributed[g] = false;
		for (int w = 0; w < workers; w++)
			x->contributed[g] |= !x->all_excluded[g * workers + w];
		r->weight += (double)x->weight[g * workers + x->sync->rank];
		r->anomalies += x->all_excluded[g * workers + x->sync->rank];
		r->all_left_out += !x->contributed[g];
		n++;
	}
	r->weight /= n;
	x->in_flight[fragment] = true;
	start_flight(x, c);
	x->n_syncs++;
}

/* The reduced blocks of the selected groups have arrived: updates their parameters. */
static void update_groups(struct edit *x, struct selection c)
{
	const struct block *b;
	if (edit_has_anchor(x)) {
		outer_clip(x, c);
		outer_step(x, c);
	}
	for (int n = edit_blocks(x, c, &b); n > 0; n--, b++)
		store_copy(x->s, b->at, b->n);
	for (int g = 0; g < x->n_groups; g++)
		x->arrived[g] |= edit_selects(x, c, g);
}

void edit_complete_unit(struct edit *x, int unit)
{
	struct selection c = {0, unit};
	const struct block *b;
	int n = edit_blocks(x, c, &b);
	if (!x->in_flight[0] || x->arrived[unit])
		return;
	if (x->flight.x)
		flight_wait(&x->flight, n ? (int)(b - x->flight.blocks) + n : 0);
	update_groups(x, c);
}

bool edit_completes_by_unit(const struct edit *x)
{
	const struct store_config *s = &x->s->c;
	const int *degree = s->mesh->degree;
	bool sharded = degree[AXIS_FSDP] * degree[AXIS_CP] > 1;
	return x->c.by_unit && x->n_fragments == 1 && x->grad_group == STORE_PARAM &&
	       x->sync->size > 1 && degree[AXIS_PP] == 1 && !s->offload && !s->tile &&
	       (!sharded || s->zero == 0 || s->zero == 3) &&
	       s->microbatches.n_micro >= s->microbatches.ranks && comm_overlaps();
}

static void finish_result(struct edit *x, int fragment, struct edit_result *r)
{
	double all = 0;
	r->clip = 1;
	if (edit_has_anchor(x))
		outer_norms(x, (struct selection){fragment, -1});
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
	BUG_ON(!x->in_flight[fragment]);
	for (int g = 0; g < x->n_groups; g++)
		some |= x->fragment[g] == fragment && x->arrived[g];
	edit_wait(x);
	if (!some)
		update_groups(x, (struct selection){fragment, -1});
	for (int g = 0; g < x->n_groups && some;
		g++) /* groups that have not been completed */
		if (x->fragment[g] == fragment && !x->arrived[g])
			update_groups(x, (struct selection){fragment, g});
	finish_result(x, fragment, r);
	x->in_flight[fragment] = false;
	if (!some)
		store_updated(x->s, true);
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
		r->clip = fmin(r->clip, one.clip);
	}
	x->blocking = false;
}

/* ---- during the warm-up ---------------------------------------------------------- */

/* Copies the gradients of a block to its floats v, or back. */
static void copy_gradients(struct edit *x, const struct block *b, float *v, bool back)
{
	for (int64_t i = 0; i < x->s->n_updated; i++) {
		const struct part *p = &x->s->updated[i];
		int64_t begin = max64(b->at, p->at);
		int64_t len = min64(b->at + b->n, p->at + p->rows * p->cols) - begin;
		if (len <= 0)
			continue;
		struct mat g = mat(p->g + (begin - p->at), 1, len);
		struct mat block = mat(v + (begin - b->at), 1, len);
		x->d->k->copy(x->d, back ? g : block, back ? block : g);
	}
}

static float *read_gradients(void *with, const struct block *b, int slot)
{
	struct edit *x = with;
	copy_gradients(x, b, x->staging[slot], false);
	return x->staging[slot];
}

static void write_gradients(void *with, const struct block *b, float *v, int slot)
{
	(void)slot;
	copy_gradients(with, b, v, true);
}

static void average_piece(void *with, const struct block *b, float *out,
	const float *const *from, int64_t n)
{
	struct edit *x = with;
	int workers = x->sync->size;
	float *equal = xcalloc((size_t)workers, sizeof(*equal));
	(void)b;
	for (int w = 0; w < workers; w++)
		equal[w] = 1;
	const struct combine c = {.workers = workers, .weight = equal, .normalize = true};
	x->d->k->combine(x->d, out, from, n, &c);
	free(equal);
}

void edit_mean_gradient(struct edit *x)
{
	struct flight f = {.x = &x->exchange,
		.kind = EDIT_WIRE_FP32,
		.blocks = x->blocks,
		.n = x->n_blocks,
		.read = read_gradients,
		.write = write_gradients,
		.reduce = average_piece,
		.with = x};
	flight_begin(&f);
	flight_wait(&f, f.n);
}

bool edit_any_worker(struct edit *x, bool mine)
{
	return comm_max_i64(x->sync, mine);
}

/* ---- counts ---------------------------------------------------------------------- */

int64_t edit_sent(const struct edit *x)
{
	int64_t sent = (x->sync->size - 1) * x->n_groups * pseudo_grad_report_bytes(x);
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
		bool begun = x->in_flight[x->fragment[g]];
		out[0] = (double)x->outer_steps[g];
		out[1] = d->mean;
		out[2] = d->m2;
		out[3] = (double)d->count;
		/* of the one in flight: whether any worker contributes, and this one */
		out[4] = begun ? 1 + !x->contributed[g] : 0;
		out[5] = begun && x->all_excluded[g * x->sync->size + x->sync->rank];
		memcpy(out + PER_GROUP, d->z, (size_t)window * sizeof(*out));
	}
}

static bool is_count(double x)
{
	return x >= 0 && x < 0x1p53 && x == floor(x);
}

/* Is the fragment between begin and end after so many local steps? */
static bool should_be_in_flight(const struct edit *x, int fragment, int64_t local_steps)
{
	for (int64_t i = 0; i < x->c.delay; i++)
		if (edit_due(x, local_steps - i) == fragment)
			return true;
	return false;
}

static int restore_in_flight(struct edit *x, const double *head, const double *first,
	int64_t local_steps, struct err *e)
{
	int64_t step = PER_GROUP + x->c.detect.warmup;
	bool any = false, same = head[1] == (double)x->c.interval &&
				 head[2] == x->n_fragments &&
				 head[3] == (double)x->c.delay;
	for (int g = 0; g < x->n_groups; g++)
		any |= first[g * step + 4] > 0;
	if (any && !same)
		return err_set(e, EX_USAGE,
			"a fragment is in flight: resume with --edit-sync-interval %g, "
			"--edit-fragments %g and --edit-sync-delay %g",
			head[1], head[2], head[3]);
	for (int g = 0; g < x->n_groups && any; g++) {
		const double *in = first + g * step;
		int f = x->fragment[g];
		x->in_flight[f] = should_be_in_flight(x, f, local_steps);
		if (x->in_flight[f] != (in[4] > 0))
			return err_set(e, EX_DATAERR,
				"the state of fragment %d (in flight or not) does not "
				"match "
				"the step",
				f);
		x->contributed[g] = in[4] < 2;
		x->all_excluded[g * x->sync->size + x->sync->rank] = in[5] > 0;
	}
	return 0;
}

int edit_state_put(struct edit *x, const double *in, int64_t local_steps, struct err *e)
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
		return err_set(
			e, EX_DATAERR, "the state of local SGD has invalid numbers");
	return restore_in_flight(x, head, head + HEAD, local_steps, e);
}
