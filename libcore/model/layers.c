/* Small things that several layers share. */
#include "model/layers.h"

void watch(struct pass *p, const char *what, int64_t layer, struct mat x)
{
	if (p->tick)
		p->tick(p->tick_with);
	if (!p->probe || p->probe->found || !x.p)
		return;
	int64_t bad = p->d->k->find_bad(p->d, x);
	if (bad < 0)
		return;
	p->probe->found = true;
	p->probe->index = bad;
	if (layer < 0)
		snprintf(p->probe->where, sizeof(p->probe->where), "%s", what);
	else
		snprintf(p->probe->where, sizeof(p->probe->where), "layers.%lld.%s",
			(long long)layer, what);
}

void range_begin(struct pass *p, int64_t layer)
{
	char name[NUM_TEXT];
	snprintf(name, sizeof(name), "layers.%lld", (long long)layer);
	device_range(p->d, layer == -1 ? "embedding" : layer == -2 ? "head" : name);
}

void range_end(struct pass *p)
{
	device_range_end(p->d);
}

/* ---- tiles ----------------------------------------------------------------------- */

static int tile_of(const struct pass *p, int unit, enum block_tile x, int s)
{
	return s < p->tp.here ? store_tile(p->store, unit, (int)x, p->tp.first + s) : -1;
}

static int tile_at(const struct pass *p, int64_t layer, enum block_tile x, int s)
{
	return tile_of(p, p->m->blocks[layer].wq->unit, x, s);
}

void tile_use(struct pass *p, int64_t layer, enum block_tile x, int s)
{
	int tile = tile_at(p, layer, x, s);
	if (tile >= 0)
		store_use(p->store, tile, tile_at(p, layer, x, s + 1));
}

void tile_done(struct pass *p, int64_t layer, enum block_tile x, int s)
{
	int tile = tile_at(p, layer, x, s);
	if (tile >= 0)
		store_done(p->store, tile, true);
}

void tile_reduce(struct pass *p, int64_t layer, enum block_tile x, int s)
{
	int tile = tile_at(p, layer, x, s);
	if (tile >= 0)
		store_reduce(p->store, tile, p->last);
}

bool table_is_tiled(const struct pass *p, const struct tensor *t)
{
	return tile_of(p, t->unit, TILE_TABLE, 0) >= 0;
}

void table_use(struct pass *p, const struct tensor *t, int s)
{
	int tile = tile_of(p, t->unit, TILE_TABLE, s);
	if (tile >= 0)
		store_use(p->store, tile, tile_of(p, t->unit, TILE_TABLE, s + 1));
}

void table_done(struct pass *p, const struct tensor *t, int s)
{
	int tile = tile_of(p, t->unit, TILE_TABLE, s);
	if (tile >= 0)
		store_done(p->store, tile, true);
}

void table_reduce(struct pass *p, const struct tensor *t, int s, int use)
{
	int tile = tile_of(p, t->unit, TILE_TABLE, s);
	if (tile >= 0)
		store_reduce_use(p->store, tile, use, p->last);
}

/* ---- leaves ---------------------------------------------------------------------- */

/* [chunk][slice here][dim], or nothing */
static struct mat sums_of(const struct pass *p, struct mat sums, int s, int c)
{
	return sums.p ? mat_rows(sums, (int64_t)c * p->tp.here + s, 1) : sums;
}

void piece_bias_bwd(
	struct pass *p, const struct tensor *bias, int c, struct mat dy, struct mat sums)
{
	const struct kernels *k = p->d->k;
	for (int s = 0; bias && s < p->tp.here; s++) {
		int64_t first, n = piece_rows(p, s, &first);
		if (sums.p)
			k->copy(p->d, leaf(p, bias, s, c), sums_of(p, sums, s, c));
		else
			k->bias_bwd(p->d, leaf(p, bias, s, c), mat_rows(dy, first, n));
		leaf_done(p, bias, s, c);
	}
}

void piece_norm_bwd(struct pass *p, const struct tensor *weight,
	const struct tensor *bias, int c, struct mat dy, struct mat x, struct mat stats)
{
	for (int s = 0; s < p->tp.here; s++) {
		int64_t first, n = piece_rows(p, s, &first);
		p->d->k->norm_bwd_w(p->d, p->m->arch->norm, leaf(p, weight, s, c),
			bias ? leaf(p, bias, s, c) : no_mat(), dy, x, stats, first, n);
		leaf_done(p, weight, s, c);
		if (bias)
			leaf_done(p, bias, s, c);
	}
}

/* Without sequence parallelism a rank has all rows, of which the pieces here may be some. */
static bool pieces_are_all(const struct pass *p)
{
	return p->tp.sp || p->tp.axis->size == 1;
}

bool norms_give_copies(const struct pass *p)
{
	bool drops = p->train && p->m->c.dropout > 0;
	return p->d->narrow && act_type(p) != DT_F32 && !drops && !p->plain_kernels &&
	       pieces_are_all(p);
}

void norm_backward(struct pass *p, const struct norm_backward *n, int c)
{
	const struct kernels *k = p->d->k;
	struct mat gamma = param(p, n->weight, 0), copy = n->copy;
	if (p->plain_kernels || !pieces_are_all(p)) {
		piece_norm_bwd(p, n->weight, n->bias, c, n->dy, n->x, n->stats);
		k->norm_bwd_x(
			p->d, p->m->arch->norm, n->dx, n->dy, n->x, n->stats, gamma);
		return;
	}
	if (copy.p)
		copy = here_of(p, chunk_of(p, copy, c));
	linear_amax_begin(p, mat(copy.amax, 1, 2));
	for (int s = 0; s < p->tp.here; s++) {
		int64_t first, rows = piece_rows(p, s, &first);
		const struct norm_grads to = {
			.dx = n->dx,
			.dgamma = leaf(p, n->weight, s, c),
			.dbeta = n->bias ? leaf(p, n->bias, s, c) : no_mat(),
			.copy = copy,
			.sums = n->copy_bias ? sums_of(p, n->sums, s, c) : no_mat(),
		};
		k->norm_bwd(p->d, p->m->arch->norm, &to, n->dy, n->x, n->stats, gamma,
			first, rows);
		leaf_done(p, n->weight, s, c);
		if (n->bias)
			leaf_done(p, n->bias, s, c);
	}
}

void slice_weight_bwd(struct pass *p, int64_t layer, const struct tensor *w,
	const struct tensor *bias, int s, int c, struct mat dy, struct mat x)
{
	struct mat dw = leaf(p, w, s, c);
	linear_backward_w(p, layer, dw, dy, x, false);
	linear_round(p, dw);
	leaf_done(p, w, s, c);
	if (!bias)
		return;
	p->d->k->bias_bwd(p->d, leaf(p, bias, s, c), dy);
	leaf_done(p, bias, s, c);
}

static struct norm norm_of(const struct pass *p, const struct stream_norm *n, int c)
{
	return (struct norm){.kind = p->m->arch->norm,
		.h = here_of(p, chunk_of(p, n->h, c)),
		.stats = stats_of(n->stats, c),
		.gamma = param(p, n->weight, 0),
		.beta = param(p, n->bias, 0),
		.eps = (float)p->m->c.norm_eps};
}

void norm_forward(struct pass *p, const struct stream_norm *n, struct mat x, int c)
{
	struct norm o = norm_of(p, n, c);
	p->d->k->norm_fwd(p->d, o.kind, o.h, o.stats, x, o.gamma, o.beta, o.eps);
}

void norm_gather(
	struct pass *p, struct slice_gather *g, const struct stream_norm *n, int c)
{
	struct mat all = chunk_of(p, n->h, c), here = here_of(p, all);
	watch(p, n->what, n->layer, here);
	linear_round(p, here);
	slice_gather_begin(g, &p->tp, p->d, here, all);
}

void added_gather(struct pass *p, struct slice_gather *g, int64_t layer,
	enum drop_site site, struct mat d, struct mat dx, int c, bool made)
{
	struct mat all = chunk_of(p, d, c), here = here_of(p, all);
	struct dropout o = dropout_at(p, layer, site, c);
	struct mat from = stream_of(p, dx, c);
	if (o.p > 0) {
		p->d->k->dropout(p->d, here, from, &o);
		linear_round(p, here);
		linear_amax(p, here);
	} else if (!made) {
		linear_cast(p, here, from);
	}
	slice_gather_begin(g, &p->tp, p->d, here, all);
}

struct dropout dropout_at(const struct pass *p, int64_t layer, enum drop_site site, int c)
{
	return (struct dropout){
		.key = philox_key(p->seed, PHILOX_DROPOUT,
			(uint64_t)(layer + 1) * 4 + (uint64_t)site),
		.p = p->train ? (float)p->m->c.dropout : 0,
		.step = &p->step->number,
		.first_sample = p->first_sample,
		.pos = pos_of(p, c) + p->first_row,
		.seq_rows = p->rows / p->batch,
		.first_row = p->first_row,
	};
}

void drop(struct pass *p, int64_t layer, enum drop_site site, int c, struct mat x)
{
	if (!p->train || p->m->c.dropout <= 0)
		return;
	struct dropout o = dropout_at(p, layer, site, c);
	p->d->k->dropout(p->d, x, x, &o);
}

enum dtype slice_type(const struct pass *p)
{
	return p->tp.n == 1 ? act_type(p) : DT_F32;
}

struct mat sum_room(struct pass *p, struct mat to)
{
	enum dtype type = slice_type(p);
	return type == DT_F32 ? to : mat_take(p->d->scratch, to.rows, to.cols, type);
}

static void plain_residual(struct pass *p, int64_t layer, enum drop_site site, int c,
	const struct tensor *bias, struct mat y, struct mat sum, struct mat x)
{
	const struct kernels *k = p->d->k;
	if (sum.type != DT_F32) { /* which has room for y, and no bits for it */
		k->zero(p->d, y);
		k->add(p->d, y, y, sum);
	}
	if (bias)
		k->bias_fwd(p->d, y, param(p, bias, 0));
	drop(p, layer, site, c, y);
	k->add(p->d, y, x, y);
}

void join_residual(struct pass *p, int64_t layer, enum drop_site site, int c,
	const struct tensor *bias, struct mat y, struct mat sum, struct mat x,
	const struct stream_norm *then)
{
	const struct kernels *k = p->d->k;
	struct dropout o = dropout_at(p, layer, site, c);
	const struct dropout *drops = o.p > 0 ? &o : NULL;
	if (p->plain_kernels) {
		plain_residual(p, layer, site, c, bias, y, sum, x);
		if (then)
			norm_forward(p, then, y, c);
	} else if (then) {
		struct norm n = norm_of(p, then, c);
		k->residual_norm(p->d, y, x, sum, param(p, bias, 0), drops, &n);
	} else {
		k->residual(p->d, y, x, sum, param(p, bias, 0), drops);
	}
}
