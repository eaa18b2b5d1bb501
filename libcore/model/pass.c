/* A forward and a backward through the whole model. */
#include "model/layers.h"

#include <math.h>
#include <stdlib.h>

/* ---- rotary positions ------------------------------------------------------------ */

/* Llama 3.1's scaling: long wavelengths are stretched, short ones kept, between them a
 * smooth passage. */
static double llama3_scale(const struct model_config *c, double frequency)
{
	const double two_pi = 6.283185307179586;
	double wavelength = two_pi / frequency, original = (double)c->rope_original;
	if (wavelength < original / c->rope_high)
		return frequency;
	if (wavelength > original / c->rope_low)
		return frequency / c->rope_factor;
	double smooth =
		(original / wavelength - c->rope_low) / (c->rope_high - c->rope_low);
	return (1 - smooth) * frequency / c->rope_factor + smooth * frequency;
}

/* rope[t] = cosines, then sines, of t * theta^(-2j / head_dim). */
static void fill_rope(const struct model *m, float *rope)
{
	int64_t half = m->head_dim / 2;
	for (int64_t j = 0; j < half; j++) {
		double f = pow(m->c.rope_theta, -2.0 * (double)j / (double)m->head_dim);
		if (m->c.rope_scaling == ROPE_LINEAR)
			f /= m->c.rope_factor;
		else if (m->c.rope_scaling == ROPE_LLAMA3)
			f = llama3_scale(&m->c, f);
		for (int64_t t = 0; t < m->c.context; t++) {
			rope[t * m->head_dim + j] = (float)cos((double)t * f);
			rope[t * m->head_dim + half + j] = (float)sin((double)t * f);
		}
	}
}

float *model_rope(const struct model *m, struct device *d, struct arena *run)
{
	int64_t n = m->c.context * m->head_dim;
	if (!m->arch->rope)
		return NULL;
	float *rope = arena_floats(run, n);
	if (arena_measuring(run))
		return rope;
	float *made = xcalloc((size_t)n, sizeof(*made));
	fill_rope(m, made);
	device_put(d, rope, made, (size_t)n * sizeof(*made));
	free(made);
	return rope;
}

/* ---- setting up ------------------------------------------------------------------ */

/* The slices and chunks that this rank plays: those of all, dealt to the ranks of an axis. */
static void play(struct pass *p, const struct pass_config *c)
{
	const struct mesh *mesh = c->mesh;
	const struct model *m = p->m;
	BUG_ON(m->tp % mesh->degree[AXIS_TP] || m->cp % mesh->degree[AXIS_CP]);
	int slices = m->tp / mesh->degree[AXIS_TP];
	int chunks = m->cp / mesh->degree[AXIS_CP];
	p->tp = (struct slices){.axis = mesh->axis[AXIS_TP],
		.n = m->tp,
		.first = mesh->at[AXIS_TP] * slices,
		.here = slices,
		.sp = c->sp,
		.async = c->async_tp};
	p->cp = (struct chunks){.axis = mesh->axis[AXIS_CP],
		.n = m->cp,
		.first = mesh->at[AXIS_CP] * chunks,
		.here = chunks,
		.context = m->c.context,
		.gather = c->gather_kv};
}

void pass_init(struct pass *p, struct model *m, struct device *d, struct store *store,
	const struct pass_config *c, struct arena *run)
{
	*p = (struct pass){.m = m,
		.d = d,
		.store = store,
		.batch = c->batch,
		.counted = c->batch,
		.seed = c->seed};
	play(p, c);
	int64_t seq_rows = m->c.context / m->cp;
	p->rows = p->batch * seq_rows;
	p->rows_here = slice_rows(&p->tp, p->rows, &p->first_row);
	size_t ids = (size_t)(p->rows * p->cp.here) * sizeof(int32_t);
	p->pos = arena_alloc(run, ids);
	p->tokens = arena_alloc(run, ids);
	p->targets = arena_alloc(run, ids);
	p->loss = arena_alloc(run, sizeof(*p->loss));
	p->step = arena_alloc(run, sizeof(*p->step));
	p->rope = model_rope(m, d, run);
	if (arena_measuring(run))
		return;
	p->host_pos = xmalloc(ids);
	p->host_ids = xmalloc(2 * ids);
	for (int i = 0; i < p->cp.here; i++)
		for (int64_t b = 0; b < p->batch; b++)
			chunk_positions(&p->cp, p->cp.first + i,
				p->host_pos + i * p->rows + b * seq_rows);
	device_put(d, p->pos, p->host_pos, ids);
	pass_loss_begin(p);
}

void pass_close(struct pass *p)
{
	free(p->host_pos);
	free(p->host_ids);
	p->host_pos = p->host_ids = NULL;
}

void pass_step_begin(struct pass *p, const struct pass_step *step)
{
	device_put(p->d, p->step, step, sizeof(*step));
}

void pass_loss_begin(struct pass *p)
{
	p->d->k->zero(p->d, mat(p->loss, 1, EXACT_FLOATS));
}

struct exact pass_loss(struct pass *p)
{
	struct exact loss = {0};
	device_get(p->d, &loss, p->loss, sizeof(loss));
	return loss;
}

void pass_load(struct pass *p, const int32_t *windows)
{
	int64_t seq_rows = p->rows / p->batch, window = p->m->c.context + 1;
	int64_t n = p->cp.here * p->rows;
	size_t n_bytes = (size_t)n * sizeof(*p->tokens);
	int32_t *tokens = p->host_ids, *targets = tokens + n;
	for (int64_t i = 0; i < n; i++) {
		const int32_t *from = windows + i % p->rows / seq_rows * window;
		tokens[i] = from[p->host_pos[i]];
		targets[i] = from[p->host_pos[i] + 1];
	}
	device_put(p->d, p->tokens, tokens, n_bytes);
	device_put(p->d, p->targets, targets, n_bytes);
}

/* ---- activations ----------------------------------------------------------------- */

const char *const recompute_names[] = {"none", "selective", "full", "auto", NULL};

/* What a block keeps, or with `shared` what it does not: matrices, and until which degree of
 * recomputation each is kept. The residual stream here may be a part of the rows. */
static void block_alloc(const struct pass *p, int64_t layer, struct block_acts *b,
	bool shared, struct arena *micro)
{
	const struct block_acts *again = &p->again;
	int64_t rows = p->cp.here * p->rows, parts = p->tp.here * rows;
	int64_t stream = p->cp.here * p->rows_here, dim = p->m->c.dim;
	int64_t ffn = ffn_width(p), q = q_width(p), kv = kv_width(p);
	int64_t gate = p->m->act == ACT_SWIGLU ? ffn : 0;
	enum dtype act = act_type(p), sum = sum_type(p);
	const struct {
		struct mat *at, again;
		enum recompute until;
		int64_t rows, cols;
		enum dtype type;
	} rooms[] = {
		{&b->x, again->x, RECOMPUTE_FULL, stream, dim, DT_F32},
		{&b->h1, again->h1, RECOMPUTE_NONE, rows, dim, act},
		{&b->stats1, again->stats1, RECOMPUTE_SELECTIVE, p->cp.here * 2,
			p->rows_here, DT_F32},
		{&b->q, again->q, RECOMPUTE_SELECTIVE, parts, q, act},
		{&b->k, again->k, RECOMPUTE_SELECTIVE, parts, kv, act},
		{&b->v, again->v, RECOMPUTE_SELECTIVE, parts, kv, act},
		{&b->o, again->o, RECOMPUTE_SELECTIVE, parts, q, sum},
		{&b->max, again->max, RECOMPUTE_SELECTIVE, parts, heads_here(p), DT_F32},
		{&b->sum, again->sum, RECOMPUTE_SELECTIVE, parts, heads_here(p), DT_F32},
		{&b->x2, again->x2, RECOMPUTE_SELECTIVE, stream, dim, DT_F32},
		{&b->h2, again->h2, RECOMPUTE_NONE, rows, dim, act},
		{&b->stats2, again->stats2, RECOMPUTE_SELECTIVE, p->cp.here * 2,
			p->rows_here, DT_F32},
		{&b->a, again->a, RECOMPUTE_SELECTIVE, parts, ffn, act},
		{&b->b, again->b, RECOMPUTE_SELECTIVE, parts, gate, act},
		{&b->y, again->y, RECOMPUTE_NONE, parts, ffn, act},
	};
	bool casts = shared ? p->precision == PRECISION_FLOAT8 && p->d->narrow
			    : linear_keeps_casts(p, layer);
	for (size_t i = 0; i < ARRAY_LEN(rooms); i++) {
		bool cast = casts && rooms[i].until == RECOMPUTE_NONE;
		bool kept = p->recompute <= rooms[i].until && !cast;
		*rooms[i].at = kept == shared  ? rooms[i].again
			       : rooms[i].cols ? mat_take(micro, rooms[i].rows,
							 rooms[i].cols, rooms[i].type)
					       : no_mat();
	}
	struct mat *const taken[] = {&b->h1, &b->o, &b->h2, &b->y}; /* by products */
	b->amax = linear_cast_room(
		p, layer, taken, ARRAY_LEN(taken), linear_keeps_casts(p, layer), micro);
}

void pass_recompute(struct pass *p, enum recompute how, struct arena *micro)
{
	struct block_acts shared = {0};
	BUG_ON(how == RECOMPUTE_AUTO);
	p->recompute = how;
	p->again = shared;
	block_alloc(p, -1, &shared, true, micro);
	p->again = shared;
}

void acts_alloc(
	const struct pass *p, const struct stage *st, struct acts *a, struct arena *micro)
{
	int64_t n = st->end - st->first, rows = p->cp.here * p->rows_here;
	BUG_ON(n < 1);
	a->block = xcalloc((size_t)n, sizeof(*a->block));
	for (int64_t i = 0; i < n; i++)
		block_alloc(p, st->first + i, &a->block[i], false, micro);
	a->x_in = a->block[0].x;
	a->x = mat_take(micro, rows, p->m->c.dim, DT_F32);
	a->dx = mat_take(micro, rows, p->m->c.dim, DT_F32);
}

/* The gradient of what a half of a block adds. */
static struct mat added_grad(
	const struct pass *p, int64_t layer, const struct block_grads *g, struct arena *a)
{
	if (g->copy.p)
		return linear_cast_of(p, layer, g->copy);
	return mat_take(a, p->cp.here * p->rows, p->m->c.dim, act_type(p));
}

/* What all blocks of a backward share of it, in scratch. */
static struct block_grads shared_grads(struct pass *p)
{
	struct arena *a = p->d->scratch;
	struct block_grads g = {0};
	struct mat *const copy[] = {&g.copy};
	if (!norms_give_copies(p))
		return g;
	g.copy = mat_take(a, p->cp.here * p->rows, p->m->c.dim, act_type(p));
	g.sums = mat_take(a, (int64_t)p->cp.here * p->tp.here, p->m->c.dim, DT_F32);
	/* if any block is of float8, then one in the middle */
	linear_amax_begin(p, linear_cast_room(p, p->m->c.layers / 2, copy, 1, true, a));
	return g;
}

static void attention_grads(
	const struct pass *p, int64_t layer, struct block_grads *g, struct arena *a)
{
	int64_t rows = p->cp.here * p->rows, parts = p->tp.here * rows;
	g->d1 = added_grad(p, layer, g, a);
	g->dq = mat_take(a, parts, q_width(p), sum_type(p));
	g->dk = mat_take(a, parts, kv_width(p), sum_type(p));
	g->dv = mat_take(a, parts, kv_width(p), sum_type(p));
	g->dh1 = mat_take(a, p->cp.here * p->rows_here, p->m->c.dim, DT_F32);
	struct mat *const taken[] = {&g->dq, &g->dk, &g->dv, &g->d1};
	int n = (int)ARRAY_LEN(taken) - (g->copy.p != NULL);
	g->amax1 = linear_cast_room(p, layer, taken, n, true, a);
}

static void ffn_grads(
	const struct pass *p, int64_t layer, struct block_grads *g, struct arena *a)
{
	int64_t rows = p->cp.here * p->rows, parts = p->tp.here * rows;
	bool gated = p->m->act == ACT_SWIGLU;
	g->d2 = added_grad(p, layer, g, a);
	g->da = mat_take(a, parts, ffn_width(p), act_type(p));
	g->db = gated ? mat_take(a, parts, ffn_width(p), act_type(p)) : no_mat();
	/* of SwiGLU it is a sum of two products */
	g->dh2 = mat_take(a, p->cp.here * p->rows_here, p->m->c.dim,
		gated ? DT_F32 : slice_type(p));
	struct mat *const taken[] = {&g->da, &g->db, &g->d2};
	int n = (int)ARRAY_LEN(taken) - (g->copy.p != NULL);
	g->amax2 = linear_cast_room(p, layer, taken, n, true, a);
}

struct block_grads *grads_alloc(
	const struct pass *p, const struct stage *st, struct arena *micro)
{
	int64_t n = st->end - st->first;
	struct block_grads *g = xcalloc((size_t)n, sizeof(*g));
	for (int64_t i = 0; i < n; i++) {
		attention_grads(p, st->first + i, &g[i], micro);
		ffn_grads(p, st->first + i, &g[i], micro);
	}
	return g;
}

void acts_free(struct acts *a)
{
	free(a->block);
	*a = (struct acts){0};
}

/* ---- the passes ------------------------------------------------------------------ */

static int unit_of(int64_t layer)
{
	return 1 + (int)layer;
}

static int head_unit(const struct pass *p)
{
	return p->m->n_units - 1;
}

int stage_first_unit(const struct stage *st, bool backward)
{
	if (backward)
		return unit_of(st->end - 1);
	return st->embeds ? 0 : unit_of(st->first);
}

/* Tiles are used and summed within a layer, so a rank without a micro-batch goes through it
 * with the others, on what is left of the one before; its leaves are nobody's. */
static bool has_work(const struct pass *p)
{
	return !p->empty || p->store->c.tile;
}

static void forward_blocks(struct pass *p, const struct stage *st, struct acts *a)
{
	for (int64_t l = st->first; l < st->end; l++) {
		struct block_acts *b = &a->block[l - st->first];
		bool more = l + 1 < st->end;
		store_use(p->store, unit_of(l),
			more	    ? unit_of(l + 1)
			: st->heads ? head_unit(p)
				    : p->then);
		range_begin(p, l);
		if (has_work(p)) {
			linear_begin(p, l);
			linear_amax_begin(p, b->amax);
			attention_forward(p, l, b);
			ffn_forward(p, l, b, more ? b[1].x : a->x);
		}
		range_end(p);
		store_done(p->store, unit_of(l), false);
	}
}

/* The leaves of the head are pushed in the forward, so they are summed then. A tied table's
 * are not complete before the embedding's backward, where that is of the same stage. */
static void forward_head(struct pass *p, const struct stage *st, struct acts *a)
{
	bool tied = p->m->tie && !table_is_tiled(p, p->m->output);
	store_use(p->store, head_unit(p), tied ? 0 : p->then);
	if (tied)
		store_use(p->store, 0, p->then);
	range_begin(p, -2);
	if (has_work(p))
		head(p, a->x, a->dx);
	range_end(p);
	if (tied)
		store_done(p->store, 0, false);
	store_done(p->store, head_unit(p), false);
	if (!p->train)
		return;
	store_reduce(p->store, head_unit(p), p->last);
	if (tied && !st->embeds)
		store_reduce(p->store, 0, p->last);
}

void model_forward(struct pass *p, const struct stage *st, struct acts *a)
{
	if (st->embeds) {
		store_use(p->store, 0, unit_of(st->first));
		if (has_work(p))
			embed_forward(p, a->x_in);
		store_done(p->store, 0, false);
	}
	forward_blocks(p, st, a);
	if (st->heads)
		forward_head(p, st, a);
}

/* What was not kept of a block's forward. For the gradient of the input alone, the results of
 * norms and activations are not needed. */
static void block_again(
	struct pass *p, int64_t layer, struct block_acts *b, bool for_weights)
{
	if (p->recompute == RECOMPUTE_FULL) {
		attention_forward(p, layer, b);
		ffn_again(p, layer, b, true);
	} else if (p->recompute == RECOMPUTE_SELECTIVE && for_weights) {
		attention_again(p, layer, b);
		ffn_again(p, layer, b, false);
	}
}

static void block_backward(struct pass *p, int64_t layer, struct block_acts *b,
	struct block_grads g, struct mat dx)
{
	size_t mark = arena_mark(p->d->scratch);
	block_again(p, layer, b, true);
	ffn_grads(p, layer, &g, p->d->scratch);
	ffn_backward_x(p, layer, b, &g, dx, true);
	arena_reset(p->d->scratch, mark);
	attention_grads(p, layer, &g, p->d->scratch);
	attention_backward_x(p, layer, b, &g, dx, true);
	arena_reset(p->d->scratch, mark);
}

static void embedding_weights(struct pass *p, const struct stage *st, struct acts *a)
{
	if (!st->embeds)
		return;
	if (has_work(p))
		embed_backward(p, a->dx);
	store_reduce(p->store, 0, p->last);
}

static int before(const struct pass *p, const struct stage *st, int64_t layer)
{
	return layer > st->first ? unit_of(layer - 1) : p->then;
}

void model_backward(struct pass *p, const struct stage *st, struct acts *a)
{
	size_t mark = arena_mark(p->d->scratch);
	struct block_grads g = shared_grads(p);
	for (int64_t l = st->end - 1; l >= st->first; l--) {
		store_use(p->store, unit_of(l), before(p, st, l));
		range_begin(p, l);
		g.is_first = l == st->first;
		g.is_last = l == st->end - 1;
		if (has_work(p))
			block_backward(p, l, &a->block[l - st->first], g, a->dx);
		range_end(p);
		store_done(p->store, unit_of(l), true);
		store_reduce(p->store, unit_of(l), p->last);
	}
	arena_reset(p->d->scratch, mark);
	embedding_weights(p, st, a);
}

void model_backward_x(
	struct pass *p, const struct stage *st, struct acts *a, struct block_grads *g)
{
	for (int64_t l = st->end - 1; l >= st->first; l--) {
		struct block_acts *b = &a->block[l - st->first];
		store_use(p->store, unit_of(l), before(p, st, l));
		if (has_work(p)) {
			block_again(p, l, b, false);
			ffn_backward_x(p, l, b, &g[l - st->first], a->dx, false);
			attention_backward_x(p, l, b, &g[l - st->first], a->dx, false);
		}
		store_done(p->store, unit_of(l), true);
	}
}

/* Parameters are needed only to make activations again. */
void model_backward_w(
	struct pass *p, const struct stage *st, struct acts *a, struct block_grads *g)
{
	bool again = p->recompute != RECOMPUTE_NONE;
	for (int64_t l = st->end - 1; l >= st->first; l--) {
		struct block_acts *b = &a->block[l - st->first];
		if (again)
			store_use(p->store, unit_of(l), before(p, st, l));
		if (has_work(p)) {
			block_again(p, l, b, true);
			ffn_backward_w(p, l, b, &g[l - st->first]);
			attention_backward_w(p, l, b, &g[l - st->first]);
		}
		if (again)
			store_done(p->store, unit_of(l), true);
		store_reduce(p->store, unit_of(l), p->last);
	}
	embedding_weights(p, st, a);
}
