/*
 * The attention half of a block: x2 = x + Wo attention(norm(x)). Wq, Wk, Wv are
 * column-parallel (a slice has whole heads), Wo is row-parallel.
 */
#include "model/layers.h"

#include <math.h>

static struct attn shape_of(
	const struct pass *p, int64_t layer, int slice, int q_chunk, int k_chunk)
{
	int64_t len;
	struct attn a = {
		.batch = p->batch,
		.heads = heads_here(p),
		.kv_heads = kv_heads_here(p),
		.dim = p->m->head_dim,
		.q_rows = p->rows / p->batch,
		.k_rows = p->rows / p->batch,
		.scale = 1.0f / sqrtf((float)p->m->head_dim),
		.drop = dropout_at(p, layer, DROP_PROBS, 0),
		.first_head = (p->tp.first + slice) * heads_here(p),
	};
	chunk_runs(&p->cp, q_chunk, a.q_first, &len);
	chunk_runs(&p->cp, k_chunk, a.k_first, &len);
	return a;
}

/* max, sum: [slice][chunk][batch, heads, rows of a sequence] */
static float *state_of(const struct pass *p, struct mat x, int s, int c)
{
	return (float *)x.p + (s * p->cp.here + c) * p->rows * heads_here(p);
}

static struct mat rope_table(const struct pass *p)
{
	return mat(p->rope, p->m->c.context, p->m->head_dim);
}

static void project(struct pass *p, const struct block_tensors *t, int64_t layer,
	struct block_acts *a, struct slice_gather *h, int s, int c)
{
	const struct kernels *k = p->d->k;
	struct mat q = part_of(p, a->q, s, c);
	struct mat key = part_of(p, a->k, s, c);
	struct mat v = part_of(p, a->v, s, c);
	const struct linear l[] = {{.y = q, .w = t->wq, .bias = t->bq},
		{.y = key, .w = t->wk, .bias = t->bk},
		{.y = v, .w = t->wv, .bias = t->bv}};
	linear_enter(p, layer, h, l, ARRAY_LEN(l), s);
	if (p->rope) {
		k->rope(p->d, q, p->m->head_dim, rope_table(p), pos_of(p, c), 1);
		k->rope(p->d, key, p->m->head_dim, rope_table(p), pos_of(p, c), 1);
		linear_round(p, q);
		linear_round(p, key);
	}
}

/* Keys and values, and with g their gradients, come from the ranks that have them. */
static void carry(struct pass *p, struct ring *ring, struct block_acts *a,
	const struct block_grads *g)
{
	const struct mat none = no_mat();
	const struct ring_load load = {
		.home = {a->k, a->v, g ? g->dk : none, g ? g->dv : none},
		.slices = p->tp.here,
		.rows = p->rows};
	ring_carry(ring, p->d, &load);
}

/* What a chunk was added to, if another one will be. */
static void round_between(struct pass *p, const struct ring *r, struct mat sum)
{
	sum.amax = NULL; /* it is not complete */
	if (p->cp_rounds && !ring_last(r))
		p->d->k->round(p->d, sum, sum, DT_BF16, 1);
}

static void attend(struct pass *p, int64_t layer, struct block_acts *a,
	const struct ring *ring, int s)
{
	for (int c = 0; c < p->cp.here; c++) {
		int kc = ring_keys_for(ring, p->cp.first + c);
		struct attn shape = shape_of(p, layer, s, p->cp.first + c, kc);
		struct mat o = part_of(p, a->o, s, c);
		p->d->k->attn_fwd(p->d, &shape, o, state_of(p, a->max, s, c),
			state_of(p, a->sum, s, c), part_of(p, a->q, s, c),
			ring_at(ring, RING_K, s, kc), ring_at(ring, RING_V, s, kc),
			ring_first(ring), ring_last(ring));
		round_between(p, ring, o);
		if (ring_last(ring))
			linear_amax(p, o);
		watch(p, "attention", layer, no_mat());
	}
}

/* x2 = x + the product of what the heads say, of one chunk, and its norm */
static void output_forward(struct pass *p, const struct block_tensors *t, int64_t layer,
	struct block_acts *a, int c)
{
	size_t mark = arena_mark(p->d->scratch);
	struct mat x2 = stream_of(p, a->x2, c), said = sum_room(p, x2);
	const struct stream_norm then = ffn_norm(p, layer, a);
	struct slice_sum sum;
	slice_sum_begin(&sum, &p->tp, p->d, said, p->rows);
	for (int s = 0; s < p->tp.here; s++) {
		struct mat o = part_of(p, a->o, s, c);
		watch(p, "attention", layer, o);
		tile_use(p, layer, TILE_OUT, s);
		linear_leave(p, layer, &sum, o, t->wo, s);
		tile_done(p, layer, TILE_OUT, s);
	}
	slice_sum_end(&sum);
	join_residual(p, layer, DROP_ATTENTION, c, t->bo, x2, said, stream_of(p, a->x, c),
		&then);
	arena_reset(p->d->scratch, mark);
	watch(p, "attention.wo", layer, x2);
}

static void norm1(struct pass *p, struct slice_gather *h, int64_t layer,
	struct block_acts *a, int c)
{
	const struct block_tensors *t = &p->m->blocks[layer];
	const struct stream_norm n = {
		"attention_norm", layer, a->h1, a->stats1, t->norm1, t->norm1_bias};
	norm_forward(p, &n, stream_of(p, a->x, c), c);
	norm_gather(p, h, &n, c);
}

void attention_again(struct pass *p, int64_t layer, struct block_acts *a)
{
	for (int c = 0; c < p->cp.here; c++) {
		struct slice_gather h;
		norm1(p, &h, layer, a, c);
		slice_gather_end(&h);
	}
}

void attention_forward(struct pass *p, int64_t layer, struct block_acts *a)
{
	const struct block_tensors *t = &p->m->blocks[layer];
	for (int c = 0; c < p->cp.here; c++) {
		struct slice_gather h;
		norm1(p, &h, layer, a, c);
		for (int s = 0; s < p->tp.here; s++) {
			tile_use(p, layer, TILE_QKV, s);
			project(p, t, layer, a, &h, s, c);
			tile_done(p, layer, TILE_QKV, s);
			watch(p, "attention.wq", layer, part_of(p, a->q, s, c));
			watch(p, "attention.wk", layer, part_of(p, a->k, s, c));
			watch(p, "attention.wv", layer, part_of(p, a->v, s, c));
		}
		slice_gather_end(&h);
	}
	struct ring ring = ring_begin(&p->cp);
	carry(p, &ring, a, NULL);
	while (ring_next(&ring))
		for (int s = 0; s < p->tp.here; s++)
			attend(p, layer, a, &ring, s);
	ring_end(&ring);
	for (int c = 0; c < p->cp.here; c++)
		output_forward(p, t, layer, a, c);
}

/* ---- backward -------------------------------------------------------------------- */

/* Of the heads' output, and what the kernels of attention keep: temporary. */
struct heads_grads {
	struct mat dout;  /* as q */
	struct mat delta; /* as max */
};

static void attend_backward(struct pass *p, int64_t layer, struct block_acts *a,
	struct block_grads *g, struct heads_grads *h, struct ring *ring, int s)
{
	/* The last chunk of queries is the first, for its keys go on to the next rank. */
	for (int c = p->cp.here - 1; c >= 0; c--) {
		int kc = ring_keys_for(ring, p->cp.first + c);
		struct attn shape = shape_of(p, layer, s, p->cp.first + c, kc);
		struct mat dq = part_of(p, g->dq, s, c);
		struct mat dk = ring_at(ring, RING_DK, s, kc);
		struct mat dv = ring_at(ring, RING_DV, s, kc);
		if (c == 0)
			ring_came(ring, s);
		p->d->k->attn_bwd(p->d, &shape, dq, dk, dv, state_of(p, h->delta, s, c),
			part_of(p, h->dout, s, c), part_of(p, a->o, s, c),
			state_of(p, a->max, s, c), part_of(p, a->q, s, c),
			ring_at(ring, RING_K, s, kc), ring_at(ring, RING_V, s, kc),
			ring_first(ring));
		round_between(p, ring, dq);
		round_between(p, ring, dk);
		round_between(p, ring, dv);
		if (c == p->cp.here - 1)
			ring_goes(ring, s);
		watch(p, "attention, backward", layer, no_mat());
	}
}

/* From the gradient of the sum to those of queries, keys and values. */
static void heads_backward(struct pass *p, const struct block_tensors *t, int64_t layer,
	struct block_acts *a, struct block_grads *g, struct mat dx)
{
	size_t mark = arena_mark(p->d->scratch);
	int64_t parts = (int64_t)p->tp.here * p->cp.here * p->rows;
	struct heads_grads h = {
		.dout = mat_take(p->d->scratch, parts, q_width(p), act_type(p)),
		.delta = mat_take(p->d->scratch, parts, heads_here(p), DT_F32),
	};
	for (int c = 0; c < p->cp.here; c++) {
		struct slice_gather d;
		added_gather(p, &d, layer, DROP_ATTENTION, g->d1, dx, c, g->copy.p);
		for (int s = 0; s < p->tp.here; s++) {
			struct mat dout = part_of(p, h.dout, s, c);
			tile_use(p, layer, TILE_OUT, s);
			linear_leave_backward(p, layer, dout, &d, t->wo, s, no_mat());
			tile_done(p, layer, TILE_OUT, s);
			watch(p, "attention.wo, backward", layer, dout);
		}
		slice_gather_end(&d);
	}
	struct ring ring = ring_begin(&p->cp);
	carry(p, &ring, a, g);
	while (ring_next(&ring))
		for (int s = 0; s < p->tp.here; s++)
			attend_backward(p, layer, a, g, &h, &ring, s);
	ring_end(&ring);
	arena_reset(p->d->scratch, mark);
}

/* From there to the gradient of the normed stream, of one chunk: its parts. */
static void project_backward(struct pass *p, const struct block_tensors *t, int64_t layer,
	struct block_grads *g, struct slice_sum *sum, int c)
{
	const struct kernels *k = p->d->k;
	for (int s = 0; s < p->tp.here; s++) {
		struct mat dq = part_of(p, g->dq, s, c);
		struct mat dk = part_of(p, g->dk, s, c);
		struct mat dv = part_of(p, g->dv, s, c);
		if (p->rope) {
			k->rope(p->d, dq, p->m->head_dim, rope_table(p), pos_of(p, c),
				-1);
			k->rope(p->d, dk, p->m->head_dim, rope_table(p), pos_of(p, c),
				-1);
		}
		linear_amax(p, dq);
		linear_amax(p, dk);
		linear_amax(p, dv);
		struct mat dh = slice_sum_slot(sum);
		tile_use(p, layer, TILE_QKV, s);
		const struct linear l[] = {{.y = dq, .w = t->wq}, {.y = dk, .w = t->wk},
			{.y = dv, .w = t->wv}};
		linear_backward_x(p, layer, dh, l, ARRAY_LEN(l), s);
		tile_done(p, layer, TILE_QKV, s);
		slice_sum_push(sum);
	}
}

/* Leaves of what is multiplied, of one chunk. */
static void product_leaves(
	struct pass *p, int64_t layer, struct block_acts *a, struct block_grads *g, int c)
{
	const struct block_tensors *t = &p->m->blocks[layer];
	struct mat d = chunk_of(p, g->d1, c);
	struct mat h = chunk_of(p, a->h1, c);
	piece_bias_bwd(p, t->bo, c, here_of(p, d), g->sums);
	for (int s = 0; s < p->tp.here; s++) {
		slice_weight_bwd(p, layer, t->wo, NULL, s, c, d, part_of(p, a->o, s, c));
		tile_reduce(p, layer, TILE_OUT, s);
		slice_weight_bwd(
			p, layer, t->wq, t->bq, s, c, part_of(p, g->dq, s, c), h);
		slice_weight_bwd(
			p, layer, t->wk, t->bk, s, c, part_of(p, g->dk, s, c), h);
		slice_weight_bwd(
			p, layer, t->wv, t->bv, s, c, part_of(p, g->dv, s, c), h);
		tile_reduce(p, layer, TILE_QKV, s);
		watch(p, "attention, weights", layer, no_mat());
	}
}

void attention_backward_x(struct pass *p, int64_t layer, struct block_acts *a,
	struct block_grads *g, struct mat dx, bool weights)
{
	const struct block_tensors *t = &p->m->blocks[layer];
	linear_amax_begin(p, g->amax1);
	heads_backward(p, t, layer, a, g, dx);
	for (int c = 0; c < p->cp.here; c++) {
		struct mat dxc = stream_of(p, dx, c), dh = stream_of(p, g->dh1, c);
		struct slice_sum sum;
		slice_sum_begin(&sum, &p->tp, p->d, dh, p->rows);
		project_backward(p, t, layer, g, &sum, c);
		slice_sum_send(&sum);
		if (weights)
			product_leaves(p, layer, a, g, c);
		slice_sum_end(&sum);
		bool below = g->copy.p && !g->is_first;
		const struct norm_backward n = {.weight = t->norm1,
			.bias = t->norm1_bias,
			.dx = dxc,
			.dy = dh,
			.x = stream_of(p, a->x, c),
			.stats = stats_of(a->stats1, c),
			.copy = below ? linear_cast_of(p, layer - 1, g->copy) : no_mat(),
			.sums = g->sums,
			.copy_bias = below ? t[-1].b2 : NULL};
		if (weights)
			norm_backward(p, &n, c);
		else
			p->d->k->norm_bwd_x(p->d, p->m->arch->norm, dxc, dh, n.x, n.stats,
				param(p, t->norm1, 0));
		watch(p, "attention_norm, backward", layer, dxc);
	}
}

void attention_backward_w(
	struct pass *p, int64_t layer, struct block_acts *a, struct block_grads *g)
{
	const struct block_tensors *t = &p->m->blocks[layer];
	for (int c = 0; c < p->cp.here; c++) {
		product_leaves(p, layer, a, g, c);
		piece_norm_bwd(p, t->norm1, t->norm1_bias, c, stream_of(p, g->dh1, c),
			stream_of(p, a->x, c), stats_of(a->stats1, c));
	}
}
