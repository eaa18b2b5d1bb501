/*
 * The feed-forward half of a block: x_next = x2 + W2 act(W1 norm(x2)), for SwiGLU
 * W2 (silu(W1 h) * W3 h). W1 and W3 are column-parallel, W2 is row-parallel.
 */
#include "model/layers.h"

static void activate(struct pass *p, struct block_acts *a, int s, int c)
{
	p->d->k->act_fwd(p->d, p->m->act, part_of(p, a->y, s, c), part_of(p, a->a, s, c),
		part_of(p, a->b, s, c));
}

/* The products before the activation, and that. */
static void hidden(struct pass *p, const struct block_tensors *t, int64_t layer,
	struct block_acts *a, struct slice_gather *h, int s, int c)
{
	struct mat u = part_of(p, a->a, s, c);
	struct mat gate = part_of(p, a->b, s, c); /* nothing but for SwiGLU */
	bool gelu = linear_gives_gelu(p, layer);
	struct linear l[] = {{.y = u, .w = t->w1, .bias = t->b1},
		{.y = gate, .w = t->w3, .bias = t->b3}};
	if (gelu)
		l[0].gelu = part_of(p, a->y, s, c);
	linear_enter(p, layer, h, l, t->w3 ? 2 : 1, s);
	watch(p, "feed_forward.w1", layer, u);
	watch(p, "feed_forward.w3", layer, gate);
	if (!gelu)
		activate(p, a, s, c);
}

struct stream_norm ffn_norm(
	const struct pass *p, int64_t layer, const struct block_acts *a)
{
	const struct block_tensors *t = &p->m->blocks[layer];
	return (struct stream_norm){
		"ffn_norm", layer, a->h2, a->stats2, t->norm2, t->norm2_bias};
}

void ffn_forward(struct pass *p, int64_t layer, struct block_acts *a, struct mat x_next)
{
	const struct block_tensors *t = &p->m->blocks[layer];
	const struct stream_norm norm = ffn_norm(p, layer, a);
	for (int c = 0; c < p->cp.here; c++) {
		size_t mark = arena_mark(p->d->scratch);
		struct mat x2 = stream_of(p, a->x2, c), next = stream_of(p, x_next, c);
		struct mat said = sum_room(p, next);
		struct slice_gather h;
		norm_gather(p, &h, &norm, c);
		struct slice_sum sum;
		slice_sum_begin(&sum, &p->tp, p->d, said, p->rows);
		for (int s = 0; s < p->tp.here; s++) {
			tile_use(p, layer, TILE_FFN, s);
			hidden(p, t, layer, a, &h, s, c);
			linear_leave(p, layer, &sum, part_of(p, a->y, s, c), t->w2, s);
			tile_done(p, layer, TILE_FFN, s);
		}
		slice_gather_end(&h);
		slice_sum_end(&sum);
		join_residual(p, layer, DROP_FFN, c, t->b2, next, said, x2, NULL);
		arena_reset(p->d->scratch, mark);
		watch(p, "feed_forward.w2", layer, next);
	}
}

void ffn_again(struct pass *p, int64_t layer, struct block_acts *a, bool products)
{
	const struct block_tensors *t = &p->m->blocks[layer];
	const struct stream_norm norm = ffn_norm(p, layer, a);
	for (int c = 0; c < p->cp.here; c++) {
		struct slice_gather h;
		if (!products)
			norm_forward(p, &norm, stream_of(p, a->x2, c), c);
		norm_gather(p, &h, &norm, c);
		for (int s = 0; s < p->tp.here; s++) {
			if (products) {
				tile_use(p, layer, TILE_FFN, s);
				hidden(p, t, layer, a, &h, s, c);
				tile_done(p, layer, TILE_FFN, s);
			} else {
				activate(p, a, s, c);
			}
		}
		slice_gather_end(&h);
	}
}

/* ---- backward -------------------------------------------------------------------- */

/* Slice s: from d, the gradient of the sum, to its part of dh. */
static void hidden_backward(struct pass *p, const struct block_tensors *t, int64_t layer,
	struct block_acts *a, struct block_grads *g, int s, int c, struct slice_gather *d,
	struct mat dh)
{
	struct mat du = part_of(p, g->da, s, c);
	struct mat dgate = part_of(p, g->db, s, c);
	struct mat u = part_of(p, a->a, s, c);
	bool slope = linear_gives_slope(p, layer);
	linear_leave_backward(p, layer, du, d, t->w2, s, slope ? u : no_mat());
	if (!slope)
		p->d->k->act_bwd(
			p->d, p->m->act, du, dgate, du, u, part_of(p, a->b, s, c));
	watch(p, "feed_forward.w2, backward", layer, du);
	const struct linear l[] = {{.y = du, .w = t->w1}, {.y = dgate, .w = t->w3}};
	linear_backward_x(p, layer, dh, l, t->w3 ? 2 : 1, s);
}

/* Leaves of what is multiplied, of one chunk. */
static void product_leaves(
	struct pass *p, int64_t layer, struct block_acts *a, struct block_grads *g, int c)
{
	const struct block_tensors *t = &p->m->blocks[layer];
	struct mat d = chunk_of(p, g->d2, c);
	struct mat h = chunk_of(p, a->h2, c);
	piece_bias_bwd(p, t->b2, c, here_of(p, d), g->is_last ? no_mat() : g->sums);
	for (int s = 0; s < p->tp.here; s++) {
		slice_weight_bwd(p, layer, t->w2, NULL, s, c, d, part_of(p, a->y, s, c));
		slice_weight_bwd(
			p, layer, t->w1, t->b1, s, c, part_of(p, g->da, s, c), h);
		if (t->w3)
			slice_weight_bwd(
				p, layer, t->w3, t->b3, s, c, part_of(p, g->db, s, c), h);
		tile_reduce(p, layer, TILE_FFN, s);
		watch(p, "feed_forward, weights", layer, no_mat());
	}
}

void ffn_backward_x(struct pass *p, int64_t layer, struct block_acts *a,
	struct block_grads *g, struct mat dx, bool weights)
{
	const struct block_tensors *t = &p->m->blocks[layer];
	linear_amax_begin(p, g->amax2);
	for (int c = 0; c < p->cp.here; c++) {
		struct mat dxc = stream_of(p, dx, c), dh = stream_of(p, g->dh2, c);
		struct slice_gather d;
		struct slice_sum sum;
		added_gather(
			p, &d, layer, DROP_FFN, g->d2, dx, c, g->copy.p && !g->is_last);
		slice_sum_begin(&sum, &p->tp, p->d, dh, p->rows);
		for (int s = 0; s < p->tp.here; s++) {
			tile_use(p, layer, TILE_FFN, s);
			hidden_backward(
				p, t, layer, a, g, s, c, &d, slice_sum_slot(&sum));
			tile_done(p, layer, TILE_FFN, s);
			slice_sum_push(&sum);
		}
		slice_gather_end(&d);
		slice_sum_send(&sum);
		if (weights)
			product_leaves(p, layer, a, g, c);
		slice_sum_end(&sum);
		const struct norm_backward n = {.weight = t->norm2,
			.bias = t->norm2_bias,
			.dx = dxc,
			.dy = dh,
			.x = stream_of(p, a->x2, c),
			.stats = stats_of(a->stats2, c),
			.copy = linear_cast_of(p, layer, g->copy),
			.sums = g->sums,
			.copy_bias = t->bo};
		if (weights)
			norm_backward(p, &n, c);
		else
			p->d->k->norm_bwd_x(p->d, p->m->arch->norm, dxc, dh, n.x, n.stats,
				param(p, t->norm2, 0));
		watch(p, "ffn_norm, backward", layer, dxc);
	}
}

void ffn_backward_w(
	struct pass *p, int64_t layer, struct block_acts *a, struct block_grads *g)
{
	const struct block_tensors *t = &p->m->blocks[layer];
	for (int c = 0; c < p->cp.here; c++) {
		product_leaves(p, layer, a, g, c);
		piece_norm_bwd(p, t->norm2, t->norm2_bias, c, stream_of(p, g->dh2, c),
			stream_of(p, a->x2, c), stats_of(a->stats2, c));
	}
}
