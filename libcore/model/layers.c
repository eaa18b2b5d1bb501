/* Functions shared by all layers: parameters by tile, norms, dropout, the residual stream. */
#include "model/linear.h"

void observe_result(struct pass *p, struct result r)
{
	if (!r.x.p || (p->micro.empty && r.extent != EXTENT_LEAF))
		return;
	if (r.extent == EXTENT_STREAM)
		r.first_row += p->first_row;
	p->observer->see(p->observer->with, &r);
}

void observe_leaf(
	struct pass *p, const struct tensor *t, struct loc loc, int use, struct mat x)
{
	observe_result(p, (struct result){.name = t->name,
				  .gradient = true,
				  .extent = EXTENT_LEAF,
				  .at = loc,
				  .x = x,
				  .tensor = t,
				  .slice = tensor_slice(t, p->tp.first + loc.slice),
				  .use = use,
				  .micro = p->micro.number,
				  .chunk = p->cp.first + loc.chunk});
}

void observe_slices(
	struct pass *p, const char *name, bool gradient, int64_t layer, struct mat x)
{
	struct loc loc = {.layer = layer};
	for (; p->observer && loc.slice < p->tp.local; loc.slice++)
		for (loc.chunk = 0; loc.chunk < p->cp.local; loc.chunk++)
			observe_result(p, (struct result){.name = name,
						  .gradient = gradient,
						  .extent = EXTENT_SLICE,
						  .at = loc,
						  .x = mat_at(p, x, loc)});
}

/* Returns the store's unit for local slice s of t's tile; -1: t is not tiled, or no such slice. */
static int tile_unit(const struct pass *p, const struct tensor *t, int s)
{
	return t->tile && s < p->tp.local
		       ? store_tile_unit(p->store, t->unit, t->tile, p->tp.first + s)
		       : -1;
}

bool param_is_tiled(const struct pass *p, const struct tensor *t)
{
	return tile_unit(p, t, 0) >= 0;
}

void param_use(struct pass *p, const struct tensor *t, int s)
{
	int tile = tile_unit(p, t, s);
	if (tile >= 0)
		store_use(p->store, tile, tile_unit(p, t, s + 1));
}

void param_done(struct pass *p, const struct tensor *t, int s)
{
	int tile = tile_unit(p, t, s);
	if (tile >= 0)
		store_done(p->store, tile, true);
}

void param_reduce(struct pass *p, const struct tensor *t, int s, int use)
{
	int tile = tile_unit(p, t, s);
	if (tile >= 0)
		store_reduce(p->store, tile, use);
}

/* Returns the row at loc of sums [chunk][local slice][dim], which may be empty. */
static struct mat bias_sums_row(const struct pass *p, struct mat sums, struct loc loc)
{
	return sums.p ? mat_rows(sums, (int64_t)loc.chunk * p->tp.local + loc.slice, 1)
		      : sums;
}

void bias_leaves(struct pass *p, struct loc loc, const struct tensor *bias, struct mat dy,
	struct mat sums)
{
	const struct kernels *k = p->d->k;
	if (!bias || bias->frozen)
		return;
	for (loc.slice = 0; loc.slice < p->tp.local; loc.slice++) {
		int64_t first, n = piece_rows(p, loc.slice, &first);
		struct mat db = leaf_buffer(p, bias, loc);
		if (sums.p)
			k->copy(p->d, db, bias_sums_row(p, sums, loc));
		else
			k->bias_bwd(p->d, db, mat_rows(dy, first, n));
		leaf_done(p, bias, loc, 0);
	}
}

/* Returns true if the pieces of the local slices cover this rank's rows. Without sequence
 * parallelism a rank has the rows of all slices. */
static bool slices_cover_rows(const struct pass *p)
{
	return p->tp.sp || p->tp.axis->size == 1;
}

bool norm_writes_copies(const struct pass *p)
{
	bool drops = p->micro.train && p->m->c.dropout > 0;
	return act_type(p) != DT_F32 && !drops && !p->c.plain_kernels &&
	       slices_cover_rows(p);
}

/* Returns the leaf of a norm's weight or bias; if frozen, scratch memory for the kernel. */
static struct mat norm_leaf(struct pass *p, const struct tensor *t, struct loc loc)
{
	if (!t)
		return no_mat();
	return t->frozen ? mat_alloc(p->d->scratch, t->rows, t->cols, DT_F32)
			 : leaf_buffer(p, t, loc);
}

static void norm_leaf_done(struct pass *p, const struct tensor *t, struct loc loc)
{
	if (t && !t->frozen)
		leaf_done(p, t, loc, 0);
}

static bool norm_is_frozen(const struct stream_norm *n)
{
	return n->weight->frozen && (!n->bias || n->bias->frozen);
}

/* Computes the gradients of weight and bias; if g->dx is set, the same kernel adds to g->dx. */
static void norm_backward_pieces(
	struct pass *p, const struct stream_norm *n, const struct norm_grad *g)
{
	const struct kernels *k = p->d->k;
	enum norm_kind kind = p->m->arch->norm;
	struct loc loc = n->loc;
	if (!g->dx.p && norm_is_frozen(n))
		return;
	for (loc.slice = 0; loc.slice < p->tp.local; loc.slice++) {
		size_t mark = arena_mark(p->d->scratch);
		int64_t first, rows = piece_rows(p, loc.slice, &first);
		const struct norm_grads to = {.dx = g->dx,
			.dgamma = norm_leaf(p, n->weight, loc),
			.dbeta = norm_leaf(p, n->bias, loc),
			.copy = g->copy,
			.sums = g->copy_bias ? bias_sums_row(p, g->sums, loc) : no_mat()};
		if (g->dx.p)
			k->norm_bwd(p->d, kind, &to, g->dy, g->x, n->stats,
				param(p, n->weight, 0), first, rows);
		else
			k->norm_bwd_w(p->d, kind, to.dgamma, to.dbeta, g->dy, g->x,
				n->stats, first, rows);
		norm_leaf_done(p, n->weight, loc);
		norm_leaf_done(p, n->bias, loc);
		arena_reset(p->d->scratch, mark);
	}
}

void norm_backward_weights(
	struct pass *p, const struct stream_norm *n, struct mat dy, struct mat x)
{
	norm_backward_pieces(p, n, &(struct norm_grad){.dy = dy, .x = x});
}

void norm_backward(struct pass *p, const struct stream_norm *n, const struct norm_grad *g,
	bool with_weights)
{
	struct norm_grad all = *g;
	if (g->copy.p)
		all.copy = local_rows(p, chunk_rows(p, g->copy, n->loc.chunk));
	linear_clear_amax(p, mat(all.copy.amax, 1, 1));
	if (with_weights && slices_cover_rows(p) && !p->c.plain_kernels) {
		norm_backward_pieces(p, n, &all);
	} else {
		if (with_weights)
			norm_backward_weights(p, n, g->dy, g->x);
		p->d->k->norm_bwd_x(p->d, p->m->arch->norm, g->dx, g->dy, g->x, n->stats,
			param(p, n->weight, 0));
	}
	observe_gradient(p, n->name, EXTENT_STREAM, n->loc, g->dx);
}

/* Returns the arguments of a norm kernel, for this rank's rows. */
static struct norm norm_args(const struct pass *p, const struct stream_norm *n)
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
	struct norm o = norm_args(p, n);
	p->d->k->norm_fwd(p->d, o.kind, o.h, o.stats, x, o.gamma, o.beta, o.eps);
}

void norm_gather_begin(
	struct pass *p, struct slice_gather *g, const struct stream_norm *n)
{
	struct mat local = local_rows(p, n->h);
	observe(p, n->name, EXTENT_STREAM, n->loc, local);
	linear_round(p, local);
	slice_gather_begin(g, &p->tp, p->d, local, n->h, act_type(p));
}

struct dropout dropout_at(const struct pass *p, struct loc loc, enum drop_site site)
{
	return (struct dropout){
		.key = philox_key(p->c.seed, PHILOX_DROPOUT,
			(uint64_t)(loc.layer + 1) * 4 + (uint64_t)site),
		.p = p->micro.train ? (float)p->m->c.dropout : 0,
		.step = &p->step->number,
		.first_sample = p->micro.first_sample,
		.pos = chunk_pos(p, loc.chunk) + p->first_row,
		.seq_rows = p->rows / p->c.batch,
		.first_row = p->first_row,
	};
}

void apply_dropout(struct pass *p, struct loc loc, enum drop_site site, struct mat x)
{
	struct dropout o = dropout_at(p, loc, site);
	if (o.p > 0)
		p->d->k->dropout(p->d, x, x, &o);
}

struct mat sum_buffer(struct pass *p, struct mat y)
{
	enum dtype type = slice_type(p);
	return type == DT_F32 ? y : mat_alloc(p->d->scratch, y.rows, y.cols, type);
}

/* Computes y as add_residual() does, with one kernel per operation. */
static void add_residual_unfused(struct pass *p, struct loc loc, const struct residual *r)
{
	const struct kernels *k = p->d->k;
	if (r->sum.type != DT_F32) { /* y is not the sum's buffer: y = sum */
		k->zero(p->d, r->y);
		k->add(p->d, r->y, r->y, r->sum);
	}
	if (r->bias)
		k->bias_fwd(p->d, r->y, param(p, r->bias, 0));
	apply_dropout(p, loc, r->drop, r->y);
	k->add(p->d, r->y, r->x, r->y);
}

void add_residual(struct pass *p, struct loc loc, const struct residual *r,
	const struct stream_norm *next)
{
	const struct kernels *k = p->d->k;
	struct dropout o = dropout_at(p, loc, r->drop);
	const struct dropout *drops = o.p > 0 ? &o : NULL;
	struct mat bias = param(p, r->bias, 0);
	if (p->c.plain_kernels) {
		add_residual_unfused(p, loc, r);
		if (next)
			norm_forward(p, next, r->y);
	} else if (next) {
		struct norm n = norm_args(p, next);
		k->residual_norm(p->d, r->y, r->x, r->sum, bias, drops, &n);
	} else {
		k->residual(p->d, r->y, r->x, r->sum, bias, drops);
	}
}

void output_grad_gather_begin(struct pass *p, struct slice_gather *g, struct loc loc,
	enum drop_site site, struct mat d, struct mat dx, bool is_copied)
{
	struct mat all = chunk_rows(p, d, loc.chunk), local = local_rows(p, all);
	struct dropout o = dropout_at(p, loc, site);
	if (o.p > 0) {
		p->d->k->dropout(p->d, local, dx, &o);
		linear_round(p, local);
		linear_compute_amax(p, local);
	} else if (!is_copied) {
		linear_cast(p, local, dx);
	}
	slice_gather_begin(g, &p->tp, p->d, local, all, act_type(p));
}
