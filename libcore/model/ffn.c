/*
 * The feed-forward half of a block: x_next = x2 + W2 act(W1 norm(x2)), for SwiGLU
 * W2 (silu(W1 h) * W3 h). W1 and W3 are column-parallel, W2 is row-parallel.
 */
#include "model/layers.h"

static void hidden(struct pass *p, const struct block_tensors *t, int64_t layer,
	struct block_acts *a, int s, int c)
{
	const struct kernels *k = p->d->k;
	struct mat h = chunk_of(p, a->h2, c, p->m->c.dim);
	struct mat u = part_of(p, a->a, s, c, ffn_width(p));
	struct mat gate = t->w3 ? part_of(p, a->b, s, c, ffn_width(p)) : no_mat();
	linear_forward(p, layer, u, h, t->w1, t->b1, s);
	watch(p, "feed_forward.w1", layer, u);
	if (t->w3) {
		linear_forward(p, layer, gate, h, t->w3, t->b3, s);
		watch(p, "feed_forward.w3", layer, gate);
	}
	k->act_fwd(p->d, p->m->act, part_of(p, a->y, s, c, ffn_width(p)), u, gate);
}

void ffn_forward(struct pass *p, int64_t layer, struct block_acts *a, float *x_next)
{
	const struct kernels *k = p->d->k;
	const struct block_tensors *t = &p->m->blocks[layer];
	int64_t dim = p->m->c.dim;
	for (int c = 0; c < p->cp.here; c++) {
		struct mat x2 = chunk_of(p, a->x2, c, dim),
			   next = chunk_of(p, x_next, c, dim);
		k->norm_fwd(p->d, p->m->arch->norm, chunk_of(p, a->h2, c, dim),
			mat(a->stats2 + c * 2 * p->rows, 2, p->rows), x2,
			param(p, t->norm2, 0), param(p, t->norm2_bias, 0),
			(float)p->m->c.norm_eps);
		watch(p, "ffn_norm", layer, chunk_of(p, a->h2, c, dim));
		struct slice_sum sum;
		slice_sum_begin(&sum, &p->tp, p->d, next);
		for (int s = 0; s < p->tp.here; s++) {
			hidden(p, t, layer, a, s, c);
			linear_forward(p, layer, slice_sum_slot(&sum),
				part_of(p, a->y, s, c, ffn_width(p)), t->w2, NULL, s);
			slice_sum_push(&sum);
		}
		slice_sum_end(&sum);
		join_residual(p, layer, DROP_FFN, c, t->b2, next, x2);
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
	linear_backward_x(p, layer, du, d, t->w2, s, false);
	linear_backward_w(p, layer, t->w2, s, d, y, false);
	linear_leaf_done(p, t->w2, s);
	k->act_bwd(p->d, p->m->act, du, dgate, du, part_of(p, a->a, s, c, ffn_width(p)),
		t->w3 ? part_of(p, a->b, s, c, ffn_width(p)) : no_mat());
	watch(p, "feed_forward.w2, backward", layer, du);
	linear_backward_x(p, layer, dh, du, t->w1, s, false);
	linear_backward_w(p, layer, t->w1, s, du, h, false);
	linear_leaf_done(p, t->w1, s);
	slice_bias_bwd(p, t->b1, s, du);
	if (!t->w3)
		return;
	linear_backward_x(p, layer, dh, dgate, t->w3, s, true);
	linear_backward_w(p, layer, t->w3, s, dgate, h, false);
	linear_leaf_done(p, t->w3, s);
	slice_bias_bwd(p, t->b3, s, dgate);
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
	struct mat dh = mat(arena_floats(scratch, p->rows * dim), p->rows, dim);
	bool masked = p->m->c.dropout > 0 || linear_rounds(p);
	struct mat copy = masked ? mat(arena_floats(scratch, p->rows * dim), p->rows, dim)
				 : no_mat();
	for (int c = 0; c < p->cp.here; c++) {
		struct mat dxc = chunk_of(p, dx, c, dim);
		struct mat d = branch_gradient(p, layer, DROP_FFN, c, dxc, copy);
		piece_bias_bwd(p, t->b2, d);
		struct slice_sum sum;
		slice_sum_begin(&sum, &p->tp, p->d, dh);
		for (int s = 0; s < p->tp.here; s++) {
			hidden_backward(
				p, t, layer, a, s, c, d, du, dgate, slice_sum_slot(&sum));
			slice_sum_push(&sum);
		}
		slice_sum_end(&sum);
		struct mat x2 = chunk_of(p, a->x2, c, dim);
		struct mat stats = mat(a->stats2 + c * 2 * p->rows, 2, p->rows);
		piece_norm_bwd(p, t->norm2, t->norm2_bias, dh, x2, stats);
		k->norm_bwd_x(p->d, p->m->arch->norm, dxc, dh, x2, stats,
			param(p, t->norm2, 0));
		watch(p, "ffn_norm, backward", layer, dxc);
	}
	arena_reset(scratch, mark);
}
