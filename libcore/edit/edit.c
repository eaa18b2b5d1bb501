/* Coming to agree: what all workers brought becomes one, and everybody's. */
#include "edit/exchange.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ROOMS = 4 }; /* parameter, anchor, two moments */

/* Floats of one unit, in what this rank has. */
struct segment {
	int64_t at, n;
	int group; /* the unit; 0 where norms are of all */
};

struct edit {
	struct edit_config c;
	struct comm *world, *sync;
	struct store *s;
	struct device *d;
	struct segment *segment;
	int n_segments, n_groups;
	struct detector *detector; /* [groups] of this worker */
	int64_t n_syncs;
	int64_t *outer_steps; /* [groups], of those that somebody brought something for */
	bool plainly;	      /* what is exchanged now becomes its mean, and no more */
	/* of the sync that is under way: [groups], and [groups][workers] */
	double *norm, *all_norms;
	bool *all_out;
	int64_t *all_steps; /* [workers] */
	float *weight;
	double *scale;
	struct exchange exchange;
	float *room[ROOMS]; /* memory for a block of what comes from files */
};

static bool has_anchor(const struct edit *x)
{
	return edit_groups(&x->c) & STORE_BIT(STORE_ANCHOR);
}

unsigned edit_groups(const struct edit_config *c)
{
	unsigned bits = 0;
	if (c->outer != EDIT_OUTER_NONE || c->reducer != EDIT_MEAN)
		bits |= STORE_BIT(STORE_ANCHOR);
	if (c->outer == EDIT_OUTER_ADAMW ||
		(c->outer == EDIT_OUTER_SGD && c->momentum > 0))
		bits |= STORE_BIT(STORE_OUTER_MEAN);
	if (c->outer == EDIT_OUTER_ADAMW)
		bits |= STORE_BIT(STORE_OUTER_SQUARE);
	if (c->wire != EDIT_WIRE_FP32)
		bits |= STORE_BIT(STORE_RESIDUAL);
	return bits;
}

/* ---- opening --------------------------------------------------------------------- */

static int group_of(const struct edit *x, const struct part *p)
{
	return x->c.by_unit ? p->t->unit : 0;
}

/* Parts come in the order of where they lie. What is between them belongs to the one before. */
static void list_segments(struct edit *x)
{
	x->segment = xcalloc((size_t)x->s->n_updated + 1, sizeof(*x->segment));
	for (int64_t i = 0; i < x->s->n_updated; i++) {
		const struct part *p = &x->s->updated[i];
		int group = group_of(x, p);
		struct segment *last = &x->segment[x->n_segments - (x->n_segments > 0)];
		BUG_ON(x->n_segments && p->at < last->at);
		if (x->n_segments && last->group == group)
			continue;
		last->n = p->at - last->at;
		x->segment[x->n_segments++] =
			(struct segment){.at = p->at, .group = group};
	}
	if (x->n_segments) {
		struct segment *last = &x->segment[x->n_segments - 1];
		last->n = store_floats(x->s) - last->at;
		x->segment[0].n += x->segment[0].at;
		x->segment[0].at = 0;
	}
}

static int64_t block_floats(const struct edit *x)
{
	return exchange_most(&x->exchange);
}

static int n_rooms(const struct edit *x)
{
	return x->s->c.offload ? ROOMS : 1; /* at least for gradients */
}

int64_t edit_bytes(const struct edit *x)
{
	return exchange_bytes(&x->exchange) +
	       n_rooms(x) * block_floats(x) * (int64_t)sizeof(float);
}

struct edit *edit_open(const struct edit_config *c, struct comm *world, struct comm *sync,
	struct store *s, struct device *d)
{
	struct edit *x = xcalloc(1, sizeof(*x));
	size_t workers = (size_t)sync->size;
	*x = (struct edit){.c = *c, .world = world, .sync = sync, .s = s, .d = d};
	if (c->reducer == EDIT_MEAN) { /* steps count for all, or not at all */
		x->c.weigh = (struct weigh_config){
			.by_steps = c->weigh.by_steps, .steps_ratio = 1};
		x->c.normalize = true;
		x->c.consensus = CONSENSUS_NONE;
		x->c.sparsify = EDIT_DENSE;
	}
	if (x->c.weigh.by_norm && x->c.weigh.temperature <= 0)
		x->c.weigh.temperature = 1;
	x->n_groups = c->by_unit ? s->c.n_units : 1;
	list_segments(x);
	size_t groups = (size_t)x->n_groups;
	x->detector = xcalloc(groups, sizeof(*x->detector));
	for (int g = 0; g < x->n_groups; g++)
		detector_open(&x->detector[g], &c->detect);
	x->outer_steps = xcalloc(groups, sizeof(*x->outer_steps));
	x->norm = xcalloc(groups, sizeof(*x->norm));
	x->all_norms = xcalloc(groups * workers, sizeof(*x->all_norms));
	x->all_out = xcalloc(groups * workers, sizeof(*x->all_out));
	x->all_steps = xcalloc(workers, sizeof(*x->all_steps));
	x->weight = xcalloc(groups * workers, sizeof(*x->weight));
	x->scale = xcalloc(groups, sizeof(*x->scale));
	struct wire wire = wire_make(c, s, d);
	exchange_open(&x->exchange, sync, &wire);
	for (int i = 0; i < n_rooms(x) && !sync->planned; i++)
		x->room[i] = xcalloc((size_t)block_floats(x), sizeof(float));
	return x;
}

void edit_free(struct edit *x)
{
	if (!x)
		return;
	for (int g = 0; g < x->n_groups; g++)
		detector_close(&x->detector[g]);
	free(x->detector);
	free(x->segment);
	free(x->outer_steps);
	free(x->norm);
	free(x->all_norms);
	free(x->all_out);
	free(x->all_steps);
	free(x->weight);
	free(x->scale);
	exchange_close(&x->exchange);
	for (int i = 0; i < ROOMS; i++)
		free(x->room[i]);
	free(x);
}

/* ---- blocks ---------------------------------------------------------------------- */

/* Calls fn for runs of one unit in floats [at, at + n). */
typedef void segment_visit(struct edit *x, void *with, int64_t at, int64_t n, int group);

static void each_segment(
	struct edit *x, int64_t at, int64_t n, segment_visit *fn, void *with)
{
	for (int i = 0; i < x->n_segments; i++) {
		const struct segment *s = &x->segment[i];
		int64_t begin = max64(at, s->at), end = min64(at + n, s->at + s->n);
		if (begin < end)
			fn(x, with, begin, end - begin, s->group);
	}
}

struct own_piece {
	float *out;
	const float *const *from; /* [workers] */
	int64_t at;		  /* where it begins */
};

static void make_segment(struct edit *x, void *with, int64_t at, int64_t n, int group)
{
	const struct own_piece *o = with;
	int workers = x->sync->size;
	const float **from = xcalloc((size_t)workers, sizeof(*from));
	const struct combine c = {.workers = workers,
		.weight = x->weight + (int64_t)group * workers,
		.consensus = x->plainly ? CONSENSUS_NONE : x->c.consensus,
		.normalize = x->plainly || x->c.normalize};
	for (int i = 0; i < workers; i++)
		from[i] = o->from[i] + (at - o->at);
	x->d->k->combine(x->d, o->out + (at - o->at), from, n, &c);
	free(from);
}

static void make_piece(
	void *with, float *out, const float *const *from, int64_t at, int64_t n)
{
	struct own_piece o = {out, from, at};
	each_segment(with, at, n, make_segment, &o);
}

/* ---- norms and weights ----------------------------------------------------------- */

struct squares {
	struct edit *x;
	struct exact *sum; /* [groups] */
};

static void add_squares(void *with, const struct part *p)
{
	enum { ROWS = 512 };
	struct squares *s = with;
	double row[ROWS];
	struct exact *sum = &s->sum[group_of(s->x, p)];
	struct mat v = mat(p->state[STORE_PARAM], p->rows, p->cols);
	for (int64_t i = 0; i < p->rows; i += ROWS) {
		int64_t n = min64(ROWS, p->rows - i);
		s->x->d->k->row_sumsq(s->x->d, row, mat_rows(v, i, n));
		for (int64_t j = 0; j < n; j++)
			exact_add(sum, row[j]);
	}
	exact_normalize(sum);
}

/* Collective over the worker: of what is where the parameters were, by group. Returns that
 * of all. */
static double norms_of(struct edit *x, double *norm)
{
	struct squares s = {x, xcalloc((size_t)x->n_groups, sizeof(*s.sum))};
	double all = 0;
	store_walk(x->s, true, STORE_BIT(STORE_PARAM), 0, add_squares, &s);
	comm_sum_i64(x->world, (int64_t *)s.sum, x->n_groups * EXACT_WORDS);
	for (int g = 0; g < x->n_groups; g++) {
		norm[g] = sqrt(exact_round(&s.sum[g]));
		all += norm[g] * norm[g];
	}
	free(s.sum);
	return sqrt(all);
}

/* What a worker says of itself. */
struct word {
	double norm;
	int64_t out, steps;
};

/* Collective over sync. */
static void settle_weights(struct edit *x, int64_t steps)
{
	int workers = x->sync->size;
	struct word *mine = xcalloc((size_t)x->n_groups, sizeof(*mine));
	struct word *all = xcalloc((size_t)(x->n_groups * workers), sizeof(*all));
	for (int g = 0; g < x->n_groups; g++) {
		bool out = !isfinite(x->norm[g]);
		if (x->c.skip_anomaly)
			out = detector_outlier(&x->detector[g], &x->c.detect, x->norm[g]);
		mine[g] = (struct word){x->norm[g], out, steps};
	}
	comm_allgather(x->sync, mine, all, x->n_groups * (int64_t)sizeof(*mine));
	for (int g = 0; g < x->n_groups; g++) {
		for (int w = 0; w < workers; w++) {
			const struct word *of = &all[w * x->n_groups + g];
			x->all_norms[g * workers + w] = of->norm;
			x->all_out[g * workers + w] = of->out;
			x->all_steps[w] = of->steps;
		}
		weigh(&x->c.weigh, workers, x->all_norms + g * workers,
			x->all_out + g * workers, x->all_steps, x->weight + g * workers);
	}
	free(mine);
	free(all);
}

static bool nobody(const struct edit *x, int group)
{
	for (int w = 0; w < x->sync->size; w++)
		if (!x->all_out[group * x->sync->size + w])
			return false;
	return true;
}

/* ---- the pseudo-gradient --------------------------------------------------------- */

static void begin_block(struct edit *x, int64_t at, int64_t n, float *v[N_STORE_GROUPS])
{
	unsigned outer = edit_groups(&x->c) & ~STORE_BIT(STORE_RESIDUAL);
	int room = 0;
	for (int g = 0; g < N_STORE_GROUPS; g++) {
		bool used = g == STORE_PARAM || (outer & STORE_BIT(g));
		v[g] = NULL;
		if (used)
			v[g] = store_begin(
				x->s, (enum store_group)g, at, n, x->room[room++]);
	}
}

/* Where the parameters are: what this worker moved from the anchor. */
static void take_difference(struct edit *x)
{
	int64_t all = store_floats(x->s), n;
	for (int64_t at = 0; at < all; at += n) {
		n = min64(block_floats(x), all - at);
		float *p = store_begin(x->s, STORE_PARAM, at, n, x->room[0]);
		const float *a = store_begin(x->s, STORE_ANCHOR, at, n, x->room[1]);
		x->d->k->pseudo_grad(x->d, p, a, n);
		store_end(x->s, STORE_PARAM, at, n, p);
	}
}

/* Of each row as whole as the model has it in its virtual slices. Vectors stay dense: there is
 * little of them. */
static void sparsify_part(void *with, const struct part *p)
{
	struct edit *x = with;
	float *v = p->state[STORE_PARAM], density = (float)x->c.density;
	if (p->t->ndim == 1)
		return;
	if (x->c.sparsify == EDIT_MAGNITUDE) {
		int64_t k = (int64_t)(x->c.density * (double)p->cols);
		x->d->k->keep_largest(x->d, mat(v, p->rows, p->cols), max64(1, k));
		return;
	}
	struct keep keep = {.density = density,
		.scale = x->c.sparsify == EDIT_RESCALED_RANDOM ? 1 / density : 1,
		.key = wire_key(x->c.seed, p->t, x->n_syncs),
		.worker = (uint32_t)x->sync->rank};
	for (int64_t r = 0; r < p->rows; r++) {
		keep.first = tensor_index(p->t, p->slice, p->row + r);
		x->d->k->keep_random(x->d, v + r * p->cols, p->cols, &keep);
	}
}

/* What the wire cannot carry of this worker's pseudo-gradient and of what is left from the
 * times before is left for the next. Who is left out brings nothing, and keeps what it has. */
static void feed_back(void *with, const struct part *p)
{
	struct edit *x = with;
	const struct kernels *k = x->d->k;
	struct mat v = mat(p->state[STORE_PARAM], p->rows, p->cols);
	struct mat left = mat(p->state[STORE_RESIDUAL], p->rows, p->cols);
	if (p->t->ndim == 1 || x->all_out[group_of(x, p) * x->sync->size + x->sync->rank])
		return;
	k->add(x->d, v, v, left);
	k->copy(x->d, left, v);
	wire_round(&x->exchange.wire, v);
	k->sub(x->d, left, left, v);
}

static void bring(struct edit *x)
{
	const unsigned param = STORE_BIT(STORE_PARAM);
	enum edit_wire kind = x->c.wire;
	if (x->c.sparsify != EDIT_DENSE && x->c.density < 1)
		store_walk(x->s, false, param, param, sparsify_part, x);
	const unsigned both = param | STORE_BIT(STORE_RESIDUAL);
	if (kind != EDIT_WIRE_FP32)
		store_walk(x->s, false, both, both, feed_back, x);
	for (int64_t at = 0, n; at < store_floats(x->s); at += n) {
		n = exchange_block(&x->exchange, kind, at);
		float *v = store_begin(x->s, STORE_PARAM, at, n, x->room[0]);
		exchange_run(&x->exchange, kind, v, at, x->n_syncs, make_piece, x);
		store_end(x->s, STORE_PARAM, at, n, v);
	}
}

/* ---- the outer step -------------------------------------------------------------- */

struct outer_block {
	float *const *v; /* by group of the store */
	int64_t at;
};

static void outer_segment(struct edit *x, void *with, int64_t at, int64_t n, int group)
{
	const struct outer_block *b = with;
	int64_t skip = at - b->at;
	float *a = b->v[STORE_ANCHOR] + skip, *g = b->v[STORE_PARAM] + skip;
	float *m = b->v[STORE_OUTER_MEAN], *v = b->v[STORE_OUTER_SQUARE];
	double steps = (double)(x->outer_steps[group] + 1);
	if (!nobody(x, group) && x->c.outer == EDIT_OUTER_ADAMW) {
		const struct adamw o = {.lr = (float)x->c.lr,
			.beta1 = (float)x->c.beta1,
			.beta2 = (float)x->c.beta2,
			.eps = (float)x->c.eps,
			.decay = (float)x->c.decay,
			.grad_scale = (float)x->scale[group],
			.correct1 = (float)(1 - pow(x->c.beta1, steps)),
			.correct2 = (float)(1 - pow(x->c.beta2, steps))};
		x->d->k->adamw(x->d, a, m + skip, v + skip, g, n, &o);
	} else if (!nobody(x, group)) {
		bool sgd = x->c.outer == EDIT_OUTER_SGD;
		const struct outer_sgd o = {.lr = sgd ? (float)x->c.lr : 1,
			.momentum = sgd ? (float)x->c.momentum : 0,
			.decay = sgd ? (float)x->c.decay : 0,
			.nesterov = x->c.nesterov,
			.grad_scale = (float)x->scale[group]};
		x->d->k->outer_sgd(x->d, a, m ? m + skip : NULL, g, n, &o);
	}
	x->d->k->copy(x->d, mat(g, 1, n), mat(a, 1, n));
}

/* Where the parameters are: the pseudo-gradient; then the new anchor. */
static void take_outer_step(struct edit *x)
{
	int64_t all = store_floats(x->s), n;
	for (int64_t at = 0; at < all; at += n) {
		float *v[N_STORE_GROUPS];
		n = min64(block_floats(x), all - at);
		begin_block(x, at, n, v);
		struct outer_block b = {v, at};
		each_segment(x, at, n, outer_segment, &b);
		for (int g = 0; g < N_STORE_GROUPS; g++)
			if (v[g])
				store_end(x->s, (enum store_group)g, at, n, v[g]);
	}
	for (int g = 0; g < x->n_groups; g++)
		x->outer_steps[g] += !nobody(x, g);
}

/* ---- all of it ------------------------------------------------------------------- */

static void clip_groups(struct edit *x, struct edit_result *r)
{
	double *norm = xcalloc((size_t)x->n_groups, sizeof(*norm));
	r->reduced = norms_of(x, norm);
	r->clip = 1;
	for (int g = 0; g < x->n_groups; g++) {
		x->scale[g] = 1;
		if (x->c.clip > 0)
			x->scale[g] = fmin(1, x->c.clip / (norm[g] + 1e-6));
		r->clip = fmin(r->clip, x->scale[g]);
	}
	free(norm);
}

static void all_alike(struct edit *x)
{
	for (int i = 0; i < x->n_groups * x->sync->size; i++) {
		x->weight[i] = 1;
		x->all_out[i] = false;
	}
}

static void average(struct edit *x, int64_t steps)
{
	bool *nobody_out = xcalloc((size_t)x->sync->size, sizeof(*nobody_out));
	all_alike(x);
	if (x->c.weigh.by_steps) {
		comm_allgather(x->sync, &steps, x->all_steps, sizeof(steps));
		for (int g = 0; g < x->n_groups; g++)
			weigh(&x->c.weigh, x->sync->size, x->all_norms, nobody_out,
				x->all_steps, x->weight + g * x->sync->size);
	}
	bring(x);
	free(nobody_out);
}

void edit_anchor(struct edit *x)
{
	int64_t all = store_floats(x->s), n;
	for (int64_t at = 0; at < all && has_anchor(x); at += n) {
		n = min64(block_floats(x), all - at);
		float *p = store_begin(x->s, STORE_PARAM, at, n, x->room[0]);
		float *a = store_begin(x->s, STORE_ANCHOR, at, n, x->room[1]);
		x->d->k->copy(x->d, mat(a, 1, n), mat(p, 1, n));
		store_end(x->s, STORE_ANCHOR, at, n, a);
	}
}

void edit_sync(struct edit *x, int64_t steps, struct edit_result *r)
{
	int workers = x->sync->size;
	*r = (struct edit_result){.norm = (double)NAN, .reduced = (double)NAN, .clip = 1};
	if (!has_anchor(x)) {
		average(x, steps);
	} else {
		take_difference(x);
		r->norm = norms_of(x, x->norm);
		settle_weights(x, steps);
		bring(x);
		clip_groups(x, r);
		take_outer_step(x);
	}
	for (int g = 0; g < x->n_groups; g++) {
		r->weight += (double)x->weight[g * workers + x->sync->rank] / x->n_groups;
		r->anomalies += x->all_out[g * workers + x->sync->rank];
		r->all_left_out += nobody(x, g);
	}
	x->n_syncs++;
	store_updated(x->s);
}

/* Gradients of floats [at, at + n), to a block or from it. */
static void move_gradients(struct edit *x, int64_t at, int64_t n, bool back)
{
	for (int64_t i = 0; i < x->s->n_updated; i++) {
		const struct part *p = &x->s->updated[i];
		int64_t begin = max64(at, p->at);
		int64_t len = min64(at + n, p->at + p->rows * p->cols) - begin;
		if (len <= 0)
			continue;
		struct mat g = mat(p->g + (begin - p->at), 1, len);
		struct mat b = mat(x->room[0] + (begin - at), 1, len);
		x->d->k->copy(x->d, back ? g : b, back ? b : g);
	}
}

void edit_mean_gradient(struct edit *x)
{
	all_alike(x);
	x->plainly = true;
	for (int64_t at = 0, n; at < store_floats(x->s); at += n) {
		n = exchange_block(&x->exchange, EDIT_WIRE_FP32, at);
		move_gradients(x, at, n, false);
		exchange_run(
			&x->exchange, EDIT_WIRE_FP32, x->room[0], at, 0, make_piece, x);
		move_gradients(x, at, n, true);
	}
	x->plainly = false;
}

bool edit_any(struct edit *x, bool mine)
{
	return comm_max_i64(x->sync, mine);
}

int64_t edit_sent(const struct edit *x)
{
	int64_t sent = 0;
	int others = x->sync->size - 1;
	for (int64_t at = 0; at < store_floats(x->s);
		at += exchange_block(&x->exchange, x->c.wire, at))
		sent += exchange_sent(&x->exchange, x->c.wire, at);
	if (has_anchor(x))
		sent += others * x->n_groups * (int64_t)sizeof(struct word);
	else if (x->c.weigh.by_steps)
		sent += others * (int64_t)sizeof(int64_t);
	return sent;
}

int64_t edit_syncs(const struct edit *x)
{
	return x->n_syncs;
}

/* ---- for checkpoints ------------------------------------------------------------- */

enum { PER_GROUP = 4 };

int64_t edit_state_size(const struct edit *x)
{
	return 1 + x->n_groups * (PER_GROUP + x->c.detect.warmup);
}

void edit_state_get(const struct edit *x, double *out)
{
	int64_t window = x->c.detect.warmup;
	*out++ = (double)x->n_syncs;
	for (int g = 0; g < x->n_groups; g++, out += PER_GROUP + window) {
		const struct detector *d = &x->detector[g];
		out[0] = (double)x->outer_steps[g];
		out[1] = d->mean;
		out[2] = d->m2;
		out[3] = (double)d->count;
		memcpy(out + PER_GROUP, d->z, (size_t)window * sizeof(*out));
	}
}

static bool is_count(double x)
{
	return x >= 0 && x < 0x1p53 && x == floor(x);
}

int edit_state_put(struct edit *x, const double *in, struct err *e)
{
	int64_t window = x->c.detect.warmup;
	bool good = is_count(in[0]);
	for (int64_t i = 0; i < edit_state_size(x); i++)
		good &= isfinite(in[i]);
	x->n_syncs = good ? (int64_t)*in : 0;
	in++;
	for (int g = 0; g < x->n_groups && good; g++, in += PER_GROUP + window) {
		struct detector *d = &x->detector[g];
		good = is_count(in[0]) && is_count(in[3]) && in[2] >= 0;
		if (!good)
			break;
		x->outer_steps[g] = (int64_t)in[0];
		d->mean = in[1];
		d->m2 = in[2];
		d->count = (int64_t)in[3];
		memcpy(d->z, in + PER_GROUP, (size_t)window * sizeof(*in));
	}
	return good ? 0 : err_set(e, EX_DATAERR, "numbers of a worker that cannot be");
}
