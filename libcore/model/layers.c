/* Functions shared by all layers: parameters by tile, norms, dropout, the residual stream. */
#include "model/linear.h"

void show_result(struct pass *p, struct result r)
{
	if (!r.x.p || p->micro.empty)
		return;
	if (r.extent == OF_STREAM)
		r.first_row += p->first_row;
	p->observer->see(p->observer->with, &r);
}

void show_leaf(
	struct pass *p, const struct tensor *t, struct at at, int use, struct mat x)
{
	show_result(p, (struct result){.name = t->name,
			       .gradient = true,
			       .extent = OF_TENSOR,
			       .at = at,
			       .x = x,
			       .tensor = t,
			       .slice = tensor_slice(t, p->tp.first + at.slice),
			       .use = use});
}

void show_parts(
	struct pass *p, const char *name, bool gradient, int64_t layer, struct mat x)
{
	struct at at = {.layer = layer};
	for (; p->observer && at.slice < p->tp.local; at.slice++)
		for (at.chunk = 0; at.chunk < p->cp.local; at.chunk++)
			show_result(p, (struct result){.name = name,
					       .gradient = gradient,
					       .extent = OF_SLICE,
					       .at = at,
					       .x = part_of(p, x, at)});
}

/* ---- parameters and their gradients ------------------------------------------------ */

/* Returns the store's unit for a slice of a tile; -1: the tensor is not tiled. */
static int tile_of(const struct pass *p, const struct tensor *t, int s)
{
	return t->tile && s < p->tp.local
		       ? store_tile(p->store, t->unit, t->tile, p->tp.first + s)
		       : -1;
}

bool param_is_tiled(const struct pass *p, const struct tensor *t)
{
	return tile_of(p, t, 0) >= 0;
}

void param_use(struct pass *p, const struct tensor *t, int s)
{
	int tile = tile_of(p, t, s);
	if (tile >= 0)
		store_use(p->store, tile, tile_of(p, t, s + 1));
}

void param_done(struct pass *p, const struct tensor *t, int s)
{
	int tile = tile_of(p, t, s);
	if (tile >= 0)
		store_done(p->store, tile, true);
}

void param_reduce(struct pass *p, const struct tensor *t, int s, int use)
{
	int tile = tile_of(p, t, s);
	if (tile >= 0)
		store_reduce(p->store, tile, use);
}

/* Returns a row of sums [chunk][local slice][dim], which may be empty. */
static struct mat sums_of(const struct pass *p, struct mat sums, struct at at)
{
	return sums.p ? mat_rows(sums, (int64_t)at.chunk * p->tp.local + at.slice, 1)
		      : sums;
}

void bias_leaves(struct pass *p, struct at at, const struct tensor *bias, struct mat dy,
	struct mat sums)
{
	const struct kernels *k = p->d->k;
	if (!bias || bias->frozen)
		return;
	for (at.slice = 0; at.slice < p->tp.local; at.slice++) {
		int64_t first, n = piece_rows(p, at.slice, &first);
		struct mat db = leaf(p, bias, at);
		if (sums.p)
			k->copy(p->d, db, sums_of(p, sums, at));
		else
			k->bias_bwd(p->d, db, mat_rows(dy, first, n));
		leaf_done(p, bias, at, 0);
	}
}

/* ---- norms ------------------------------------------------------------------------ */

/* Returns true if the pieces of the local slices cover this rank's rows. Without sequence
 * parallelism a rank has the rows of all slices. */
static bool pieces_are_all(const struct pass *p)
{
	return p->tp.sp || p->tp.axis->size == 1;
}

bool norm_writes_copies(const struct pass *p)
{
	bool drops = p->micro.train && p->m->c.dropout > 0;
	return act_type(p) != DT_F32 && !drops && !p->c.plain_kernels &&
	       pieces_are_all(p);
}

/* Returns the leaf of a norm's weight or bias; if frozen, scratch memory for the kernel. */
static struct mat norm_leaf(struct pass *p, const struct tensor *t, struct at at)
{
	if (!t)
		return no_mat();
	return t->frozen ? mat_take(p->d->scratch, t->rows, t->cols, DT_F32)
			 : leaf(p, t, at);
}

static void norm_leaf_done(struct pass *p, const struct tensor *t, struct at at)
{
	if (t && !t->frozen)
		leaf_done(p, t, at, 0);
}

static bool is_frozen(const struct stream_norm *n)
{
	return n->weight->frozen && (!n->bias || n->bias->frozen);
}

/* Computes the gradients of weight and bias; with g->dx, the same kernel computes x's gradient. */
static void leaves_of_norm(
	struct pass *p, const struct stream_norm *n, const struct norm_grad *g)
{
	const struct kernels *k = p->d->k;
	enum norm_kind kind = p->m->arch->norm;
	struct at at = n->at;
	if (!g->dx.p && is_frozen(n))
		return;
	for (at.slice = 0; at.slice < p->tp.local; at.slice++) {
		size_t mark = arena_mark(p->d->scratch);
		int64_t first, rows = piece_rows(p, at.slice, &first);
		const struct norm_grads to = {.dx = g->dx,
			.dgamma = norm_leaf(p, n->weight, at),
			.dbeta = norm_leaf(p, n->bias, at),
			.copy = g->copy,
			.sums = g->copy_bias ? sums_of(p, g->sums, at) : no_mat()};
		if (g->dx.p)
			k->norm_bwd(p->d, kind, &to, g->dy, g->x, n->stats,
				param(p, n->weight, 0), first, rows);
		else
			k->norm_bwd_w(p->d, kind, to.dgamma, to.dbeta, g->dy, g->x,
				n->stats, first, rows);
		norm_leaf_done(p, n->weight, at);
		norm_leaf_done(p, n->bias, at);
		arena_reset(p->d->scratch, mark);
	}
}

void norm_leaves(struct pass *p, const struct stream_norm *n, struct mat dy, struct mat x)
{
	leaves_of_norm(p, n, &(struct norm_grad){.dy = dy, .x = x});
}

void norm_backward(struct pass *p, const struct stream_norm *n, const struct norm_grad *g,
	bool leaves)
{
	struct norm_grad all = *g;
	if (g->copy.p)
		all.copy = local_rows(p, chunk_of(p, g->copy, n->at.chunk));
	linear_amax_begin(p, mat(all.copy.amax, 1, 1));
	if (leaves && pieces_are_all(p) && !p->c.plain_kernels) {
		leaves_of_norm(p, n, &all);
	} else {
		if (leaves)
			norm_leaves(p, n, g->dy, g->x);
		p->d->k->norm_bwd_x(p->d, p->m->arch->norm, g->dx, g->dy, g->x, n->stats,
			param(p, n->weight, 0));
	}
	show_gradient(p, n->what, OF_STREAM, n->at, g->dx);
}

static struct norm norm_of(const struct pass *p, const struct stream_norm *n)
{
	return (struct norm){.kind = p->m->arch->norm,
		.h = local_rows(p, n->h),
		.stats = n->stats,
		.gamma = param(p, n->weight, 0),
		.beta = param(p, n->bias, 0),
		.eps = (float)p->m->c.norm_eps};
}

void norm_forward(struct pass *p, const struct stream_norm *n, struct mat x)
{
	struct norm o = norm_of(p, n);
	p->d->k->norm_fwd(p->d, o.kind, o.h, o.stats, x, o.gamma, o.beta, o.eps);
}

void norm_gather(struct pass *p, struct slice_gather *g, const struct stream_norm *n)
{
	struct mat here = local_rows(p, n->h);
	show(p, n->what, OF_STREAM, n->at, here);
	linear_round(p, here);
	slice_gather_begin(g, &p->tp, p->d, here, n->h, act_type(p));
}

/* ---- dropout and the residual stream ------------------------------------------------ */

struct dropout dropout_at(const struct pass *p, struct at at, enum drop_site site)
{
	return (struct dropout){
		.key = philox_key(p->c.seed, PHILOX_DROPOUT,
			(uint64_t)(at.layer + 1) * 4 + (uint64_t)site),
		.p = p->micro.train ? (float)p->m->c.dropout : 0,
		.step = &p->step->number,
		.first_sample = p->micro.first_sample,
		.pos = pos_of(p, at.chunk) + p->first_row,
		.seq_rows = p->rows / p->c.batch,
		.first_row = p->first_row,
	};
}

void drop(struct pass *p, struct at at, enum drop_site site, struct mat x)
{
	struct dropout o = dropout_at(p, at, site);
	if (o.p > 0)
		p->d->k->dropout(p->d, x, x, &o);
}

struct mat sum_buffer(struct pass *p, struct mat y)
{
	enum dtype type = slice_type(p);
	return type == DT_F32 ? y : mat_take(p->d->scratch, y.rows, y.cols, type);
}

static void plain_residual(struct pass *p, struct at at, const struct residual *r)
{
	const struct kernels *k = p->d->k;
	if (r->sum.type != DT_F32) { /* y is not the sum's buffer: y = sum */
		k->zero(p->d, r->y);
		k->add(p->d, r->y, r->y, r->sum);
	}
	if (r->bias)
		k->bias_fwd(p->d, r->y, param(p, r->bias, 0));
	drop(p, at, r->drop, r->y);
	k->add(p->d, r->y, r->x, r->y);
}

void add_residual(struct pass *p, struct at at, const struct residual *r,
	const struct stream_norm *next)
{
	const struct kernels *k = p->d->k;
	struct dropout o = dropout_at(p, at, r->drop);
	const struct dropout *drops = o.p > 0 ? &o : NULL;
	struct mat bias = param(p, r->bias, 0);
	if (p->c.plain_kernels) {
		plain_residual(p, at, r);
		if (next)
			norm_forward(p, next, r->y);
	} else if (next) {
		struct norm n = norm_of(p, next);
		k->residual_norm(p->d, r->y, r->x, r->sum, bias, drops, &n);
	} else {
		k->residual(p->d, r->y, r->x, r->sum, bias, drops);
	}
}

void residual_gather(struct pass *p, struct slice_gather *g, struct at at,
	enum drop_site site, struct mat d, struct mat dx, bool copied)
{
	struct mat all = chunk_of(p, d, at.chunk), here = local_rows(p, all);
	struct dropout o = dropout_at(p, at, site);
	if (o.p > 0) {
		p->d->k->dropout(p->d, here, dx, &o);
		linear_round(p, here);
		linear_amax(p, here);
	} else if (!copied) {
		linear_cast(p, here, dx);
	}
	slice_gather_begin(g, &p->tp, p->d, here, all, act_type(p));
}
