/*
 * The feed-forward half of a block: x_next = x2 + W2 act(W1 norm(x2)), for SwiGLU
 * W2 (silu(W1 h) * W3 h). W1 and W3 are column-parallel, W2 is row-parallel.
 */
#include "model/layers.h"

static void activate(
	struct pass *p, const struct block_tensors *t, struct block_acts *a, int s, int c)
{
	int64_t width = ffn_width(p);
	p->d->k->act_fwd(p->d, p->m->act, part_of(p, a->y, s, c, width),
		part_of(p, a->a, s, c, width),
		t->w3 ? part_of(p, a->b, s, c, width) : no_mat());
}

static void hidden(struct pass *p, const struct block_tensors *t, int64_t layer,
	struct block_acts *a, struct mat h, int s, int c)
{
	const struct kernels *k = p->d->k;
	struct mat u = part_of(p, a->a, s, c, ffn_width(p));
	struct mat gate = t->w3 ? part_of(p, a->b, s, c, ffn_width(p)) : no_mat();
	k->linear_fwd(p->d, u, h, param(p, t->w1, s), param(p, t->b1, s));
	watch(p, "feed_forward.w1", layer, u);
	if (t->w3) {
		k->linear_fwd(p->d, gate, h, param(p, t->w3, s), param(p, t->b3, s));
		watch(p, "feed_forward.w3", layer, gate);
	}
	activate(p, t, a, s, c);
}

static struct mat norm2(struct pass *p, int64_t layer, struct block_acts *a, int c)
{
	const struct block_tensors *t = &p->m->blocks[layer];
	return norm_gather(p, "ffn_norm", layer, a->h2, a->stats2, stream_of(p, a->x2, c),
		t->norm2, t->norm2_bias, c);
}

void ffn_again(struct pass *p, int64_t layer, struct block_acts *a)
{
	for (int c = 0; c < p->cp.here; c++) {
		norm2(p, layer, a, c);
		for (int s = 0; s < p->tp.here; s++)
			activate(p, &p->m->blocks[layer], a, s, c);
	}
}

void ffn_forward(struct pass *p, int64_t layer, struct block_acts *a, float *x_next)
{
	const struct kernels *k = p->d->k;
	const struct block_tensors *t = &p->m->blocks[layer];
	for (int c = 0; c < p->cp.here; c++) {
		struct mat x2 = stream_of(p, a->x2, c), next = stream_of(p, x_next, c);
		struct mat h = norm2(p, layer, a, c);
		struct slice_sum sum;
		slice_sum_begin(&sum, &p->tp, p->d, next, p->rows);
		for (int s = 0; s < p->tp.here; s++) {
			hidden(p, t, layer, a, h, s, c);
			k->linear_fwd(p->d, slice_sum_slot(&sum),
				part_of(p, a->y, s, c, ffn_width(p)), param(p, t->w2, s),
				no_mat());
			slice_sum_push(&sum);
		}
		slice_sum_end(&sum);
		if (t->b2)
			k->bias_fwd(p->d, next, param(p, t->b2, 0));
		drop(p, layer, DROP_FFN, c, next);
		k->add(p->d, next, x2, next);
		watch(p, "feed_forward.w2", layer, next);
	}
}

/* Slice s: from d, the gradient of the sum, to its part of dh. */
static void hidden_backward(struct pass *p, const struct block_tensors *t, int64_t layer,
	struct block_acts *a, int s, int c, struct mat d, struct mat du, struct mat dgate,
	struct mat dh)
{
	const struct kernels *k = p->d->k;
	struct mat h = chunk_of(p, a->h2, c, p->m->c.dim);
	struct mat y = part_of(p, a->y, s, c, ffn_width(p));
	k->linear_bwd_x(p->d, du, d, param(p, t->w2, s), false);
	k->linear_bwd_w(p->d, leaf(p, t->w2, s, c), d, y, false);
	leaf_done(p, t->w2, s, c);
	k->act_bwd(p->d, p->m->act, du, dgate, du, part_of(p, a->a, s, c, ffn_width(p)),
		t->w3 ? part_of(p, a->b, s, c, ffn_width(p)) : no_mat());
	watch(p, "feed_forward.w2, backward", layer, du);
	k->linear_bwd_x(p->d, dh, du, param(p, t->w1, s), false);
	k->linear_bwd_w(p->d, leaf(p, t->w1, s, c), du, h, false);
	leaf_done(p, t->w1, s, c);
	slice_bias_bwd(p, t->b1, s, c, du);
	if (!t->w3)
		return;
	k->linear_bwd_x(p->d, dh, dgate, param(p, t->w3, s), true);
	k->linear_bwd_w(p->d, leaf(p, t->w3, s, c), dgate, h, false);
	leaf_done(p, t->w3, s, c);
	slice_bias_bwd(p, t->b3, s, c, dgate);
}

void ffn_backward(struct pass *p, int64_t layer, struct block_acts *a, float *dx)
{
	const struct kernels *k = p->d->k;
	const struct block_tensors *t = &p->m->blocks[layer];
	struct arena *scratch = p->d->scratch;
	size_t mark = arena_mark(scratch);
	int64_t dim = p->m->c.dim, ffn = ffn_width(p);
	struct mat du = mat(arena_floats(scratch, p->rows * ffn), p->rows, ffn);
	struct mat dgate = t->w3 ? mat(arena_floats(scratch, p->rows * ffn), p->rows, ffn)
				 : no_mat();
	struct mat all = mat(arena_floats(scratch, p->rows * dim), p->rows, dim);
	struct mat dh = mat(arena_floats(scratch, p->rows_here * dim), p->rows_here, dim);
	for (int c = 0; c < p->cp.here; c++) {
		struct mat dxc = stream_of(p, dx, c), x2 = stream_of(p, a->x2, c);
		struct mat d = dxc, stats = stats_of(p, a->stats2, c);
		if (p->m->c.dropout > 0) { /* dx flows on past the block: mask a copy */
			d = here_of(p, all);
			k->copy(p->d, d, dxc);
			drop(p, layer, DROP_FFN, c, d);
		}
		piece_bias_bwd(p, t->b2, c, d);
		d = slice_gather(&p->tp, p->d, d, all);
		struct slice_sum sum;
		slice_sum_begin(&sum, &p->tp, p->d, dh, p->rows);
		for (int s = 0; s < p->tp.here; s++) {
			hidden_backward(
				p, t, layer, a, s, c, d, du, dgate, slice_sum_slot(&sum));
			slice_sum_push(&sum);
		}
		slice_sum_end(&sum);
		piece_norm_bwd(p, t->norm2, t->norm2_bias, c, dh, x2, stats);
		k->norm_bwd_x(p->d, p->m->arch->norm, dxc, dh, x2, stats,
			param(p, t->norm2, 0));
		watch(p, "ffn_norm, backward", layer, dxc);
	}
	arena_reset(scratch, mark);
}
