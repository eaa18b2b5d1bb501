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
static float *state_of(const struct pass *p, float *x, int s, int c)
{
	return x + (s * p->cp.here + c) * p->rows * heads_here(p);
}

static struct mat rope_table(const struct pass *p)
{
	return mat(p->rope, p->m->c.context, p->m->head_dim);
}

static void project(struct pass *p, const struct block_tensors *t, int64_t layer,
	struct block_acts *a, int s, int c)
{
	struct mat h = chunk_of(p, a->h1, c, p->m->c.dim);
	struct mat q = part_of(p, a->q, s, c, q_width(p));
	struct mat key = part_of(p, a->k, s, c, kv_width(p));
	struct mat v = part_of(p, a->v, s, c, kv_width(p));
	linear_forward(p, layer, q, h, t->wq, t->bq, s);
	linear_forward(p, layer, key, h, t->wk, t->bk, s);
	linear_forward(p, layer, v, h, t->wv, t->bv, s);
	if (p->rope) {
		const struct kernels *k = p->d->k;
		k->rope(p->d, q, p->m->head_dim, rope_table(p), pos_of(p, c), 1);
		k->rope(p->d, key, p->m->head_dim, rope_table(p), pos_of(p, c), 1);
		linear_round(p, q);
		linear_round(p, key);
	}
}

static void attend(struct pass *p, int64_t layer, struct block_acts *a, int s)
{
	struct ring ring = ring_begin(&p->cp);
	while (ring_next(&ring)) {
		for (int c = 0; c < p->cp.here; c++) {
			int kc = ring_keys_for(&ring, p->cp.first + c);
			struct attn shape = shape_of(p, layer, s, p->cp.first + c, kc);
			p->d->k->attn_fwd(p->d, &shape,
				part_of(p, a->o, s, c, q_width(p)),
				state_of(p, a->max, s, c), state_of(p, a->sum, s, c),
				part_of(p, a->q, s, c, q_width(p)),
				part_of(p, a->k, s, kc, kv_width(p)),
				part_of(p, a->v, s, kc, kv_width(p)), ring_first(&ring),
				ring_last(&ring));
		}
		watch(p, "attention", layer, no_mat());
	}
}

void attention_forward(struct pass *p, int64_t layer, struct block_acts *a)
{
	const struct kernels *k = p->d->k;
	const struct block_tensors *t = &p->m->blocks[layer];
	int64_t dim = p->m->c.dim;
	for (int c = 0; c < p->cp.here; c++) {
		k->norm_fwd(p->d, p->m->arch->norm, chunk_of(p, a->h1, c, dim),
			mat(a->stats1 + c * 2 * p->rows, 2, p->rows),
			chunk_of(p, a->x, c, dim), param(p, t->norm1, 0),
			param(p, t->norm1_bias, 0), (float)p->m->c.norm_eps);
		watch(p, "attention_norm", layer, chunk_of(p, a->h1, c, dim));
		for (int s = 0; s < p->tp.here; s++) {
			project(p, t, layer, a, s, c);
			watch(p, "attention.wq", layer,
				part_of(p, a->q, s, c, q_width(p)));
			watch(p, "attention.wk", layer,
				part_of(p, a->k, s, c, kv_width(p)));
			watch(p, "attention.wv", layer,
				part_of(p, a->v, s, c, kv_width(p)));
		}
	}
	for (int s = 0; s < p->tp.here; s++)
		attend(p, layer, a, s);
	for (int c = 0; c < p->cp.here; c++) {
		struct mat x2 = chunk_of(p, a->x2, c, dim);
		struct slice_sum sum;
		slice_sum_begin(&sum, &p->tp, p->d, x2);
		for (int s = 0; s < p->tp.here; s++) {
			struct mat o = part_of(p, a->o, s, c, q_width(p));
			watch(p, "attention", layer, o);
			linear_forward(p, layer, slice_sum_slot(&sum), o, t->wo, NULL, s);
			slice_sum_push(&sum);
		}
		slice_sum_end(&sum);
		join_residual(p, layer, DROP_ATTENTION, c, t->bo, x2,
			chunk_of(p, a->x, c, dim));
		watch(p, "attention.wo", layer, x2);
	}
}

/* ---- backward -------------------------------------------------------------------- */

struct grads {
	float *dout, *dq, *dk, *dv; /* as o, q, k, v */
	float *delta;		    /* as max */
	struct mat dh;		    /* of one chunk */
};

static void output_backward(struct pass *p, const struct block_tensors *t, int64_t layer,
	struct block_acts *a, struct grads *g, float *dx, int c)
{
	struct mat d = branch_gradient(
		p, layer, DROP_ATTENTION, c, chunk_of(p, dx, c, p->m->c.dim), g->dh);
	piece_bias_bwd(p, t->bo, d);
	for (int s = 0; s < p->tp.here; s++) {
		struct mat dout = part_of(p, g->dout, s, c, q_width(p));
		linear_backward_x(p, layer, dout, d, t->wo, s, false);
		linear_backward_w(
			p, layer, t->wo, s, d, part_of(p, a->o, s, c, q_width(p)), false);
		linear_leaf_done(p, t->wo, s);
		watch(p, "attention.wo, backward", layer, dout);
	}
}

static void attend_backward(
	struct pass *p, int64_t layer, struct block_acts *a, struct grads *g, int s)
{
	struct ring ring = ring_begin(&p->cp);
	while (ring_next(&ring)) {
		for (int c = 0; c < p->cp.here; c++) {
			int kc = ring_keys_for(&ring, p->cp.first + c);
			struct attn shape = shape_of(p, layer, s, p->cp.first + c, kc);
			p->d->k->attn_bwd(p->d, &shape,
				part_of(p, g->dq, s, c, q_width(p)),
				part_of(p, g->dk, s, kc, kv_width(p)),
				part_of(p, g->dv, s, kc, kv_width(p)),
				state_of(p, g->delta, s, c),
				part_of(p, g->dout, s, c, q_width(p)),
				part_of(p, a->o, s, c, q_width(p)),
				state_of(p, a->max, s, c),
				part_of(p, a->q, s, c, q_width(p)),
				part_of(p, a->k, s, kc, kv_width(p)),
				part_of(p, a->v, s, kc, kv_width(p)), ring_first(&ring));
		}
		watch(p, "attention, backward", layer, no_mat());
	}
}

/* dh (+)= d w, and the leaves of w and its bias */
static void input_backward(struct pass *p, int64_t layer, const struct tensor *w,
	const struct tensor *bias, int s, struct mat dh, struct mat d, struct mat h,
	bool add)
{
	linear_backward_x(p, layer, dh, d, w, s, add);
	linear_backward_w(p, layer, w, s, d, h, false);
	linear_leaf_done(p, w, s);
	slice_bias_bwd(p, bias, s, d);
}

static void project_backward(struct pass *p, const struct block_tensors *t, int64_t layer,
	struct block_acts *a, struct grads *g, int c)
{
	const struct kernels *k = p->d->k;
	struct mat h = chunk_of(p, a->h1, c, p->m->c.dim);
	struct slice_sum sum;
	slice_sum_begin(&sum, &p->tp, p->d, g->dh);
	for (int s = 0; s < p->tp.here; s++) {
		struct mat dq = part_of(p, g->dq, s, c, q_width(p));
		struct mat dk = part_of(p, g->dk, s, c, kv_width(p));
		struct mat dv = part_of(p, g->dv, s, c, kv_width(p));
		if (p->rope) {
			k->rope(p->d, dq, p->m->head_dim, rope_table(p), pos_of(p, c),
				-1);
			k->rope(p->d, dk, p->m->head_dim, rope_table(p), pos_of(p, c),
				-1);
		}
		struct mat dh = slice_sum_slot(&sum);
		input_backward(p, layer, t->wq, t->bq, s, dh, dq, h, false);
		input_backward(p, layer, t->wk, t->bk, s, dh, dk, h, true);
		input_backward(p, layer, t->wv, t->bv, s, dh, dv, h, true);
		slice_sum_push(&sum);
	}
	slice_sum_end(&sum);
}

void attention_backward(struct pass *p, int64_t layer, struct block_acts *a, float *dx)
{
	const struct kernels *k = p->d->k;
	const struct block_tensors *t = &p->m->blocks[layer];
	struct arena *scratch = p->d->scratch;
	size_t mark = arena_mark(scratch);
	int64_t parts = (int64_t)p->tp.here * p->cp.here * p->rows, dim = p->m->c.dim;
	struct grads g = {
		.dout = arena_floats(scratch, parts * q_width(p)),
		.dq = arena_floats(scratch, parts * q_width(p)),
		.dk = arena_floats(scratch, parts * kv_width(p)),
		.dv = arena_floats(scratch, parts * kv_width(p)),
		.delta = arena_floats(scratch, parts * heads_here(p)),
		.dh = mat(arena_floats(scratch, p->rows * dim), p->rows, dim),
	};
	for (int c = 0; c < p->cp.here; c++)
		output_backward(p, t, layer, a, &g, dx, c);
	k->zero(p->d, mat(g.dq, parts, q_width(p)));
	k->zero(p->d, mat(g.dk, parts, kv_width(p)));
	k->zero(p->d, mat(g.dv, parts, kv_width(p)));
	for (int s = 0; s < p->tp.here; s++)
		attend_backward(p, layer, a, &g, s);
	for (int c = 0; c < p->cp.here; c++) {
		project_backward(p, t, layer, a, &g, c);
		struct mat x = chunk_of(p, a->x, c, dim);
		struct mat stats = mat(a->stats1 + c * 2 * p->rows, 2, p->rows);
		piece_norm_bwd(p, t->norm1, t->norm1_bias, g.dh, x, stats);
		k->norm_bwd_x(p->d, p->m->arch->norm, chunk_of(p, dx, c, dim), g.dh, x,
			stats, param(p, t->norm1, 0));
		watch(p, "attention_norm, backward", layer, chunk_of(p, dx, c, dim));
	}
	arena_reset(scratch, mark);
}
