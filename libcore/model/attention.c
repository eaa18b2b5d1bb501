/*
 * The attention sublayer: Wo attention(q, k, v), with q, k, v = Wq h, Wk h, Wv h. Wq, Wk, Wv are
 * column-parallel (a slice has whole heads), Wo is row-parallel. Keys and values of other chunks are
 * from the ring of parallel/context.c.
 */
#include "model/block.h"

#include <math.h>

/* Column-parallel tensors; gradients of queries, keys, values and the heads' output, and a buffer of
 * the attention kernels. Activations: block.h. */
enum { Q, K, V };
enum { DQ, DK, DV, DOUT, DELTA };

static void tensors(struct model *m, int64_t layer, struct sublayer_tensors *t)
{
	int64_t dim = m->c.dim, q = model_q_width(m);
	int64_t heads = m->c.kv_heads, kv = heads * m->head_dim;
	bool bias = m->bias, qkv = m->qkv_bias,
	     norm_bias = bias && m->arch->norm == NORM_LAYER;
	/* clang-format off */
	const struct tensor_row rows[] = {
		{"attention_norm.weight", dim, 0,   TP_SPLIT_NONE, ROW_NORM,     true,      &t->norm},
		{"attention_norm.bias",   dim, 0,   TP_SPLIT_NONE, ROW_BIAS,     norm_bias, &t->norm_bias},
		{"attention.wq.weight",   q,   dim, TP_SPLIT_ROWS, ROW_WEIGHT,   true,      &t->in[Q], TILE_ATTENTION_IN},
		{"attention.wq.bias",     q,   0,   TP_SPLIT_ROWS, ROW_BIAS,     qkv,       &t->in_bias[Q]},
		{"attention.wk.weight",   kv,  dim, TP_SPLIT_ROWS, ROW_WEIGHT,   true,      &t->in[K], TILE_ATTENTION_IN, heads},
		{"attention.wk.bias",     kv,  0,   TP_SPLIT_ROWS, ROW_BIAS,     qkv,       &t->in_bias[K], TILE_NONE, heads},
		{"attention.wv.weight",   kv,  dim, TP_SPLIT_ROWS, ROW_WEIGHT,   true,      &t->in[V], TILE_ATTENTION_IN, heads},
		{"attention.wv.bias",     kv,  0,   TP_SPLIT_ROWS, ROW_BIAS,     qkv,       &t->in_bias[V], TILE_NONE, heads},
		{"attention.wo.weight",   dim, q,   TP_SPLIT_COLS, ROW_RESIDUAL, true,      &t->out, TILE_ATTENTION_OUT},
		{"attention.wo.bias",     dim, 0,   TP_SPLIT_NONE, ROW_BIAS,     bias,      &t->bias},
	};
	/* clang-format on */
	tensors_add(m, layer, rows, ARRAY_LEN(rows));
}

static void sizes(const struct pass *p, struct mat_size *acts, struct mat_size *grads)
{
	acts[ATT_O] = (struct mat_size){q_width(p), sum_type(p)};
	acts[ATT_Q] = (struct mat_size){q_width(p), act_type(p)};
	acts[ATT_K] = acts[ATT_V] = (struct mat_size){kv_width(p), act_type(p)};
	acts[ATT_MAX] = acts[ATT_SUM] = (struct mat_size){slice_heads(p), DT_F32};
	grads[DQ] = (struct mat_size){q_width(p), sum_type(p)};
	grads[DK] = grads[DV] = (struct mat_size){kv_width(p), sum_type(p)};
	grads[DOUT] = (struct mat_size){q_width(p), act_type(p), .scratch = true};
	grads[DELTA] = (struct mat_size){slice_heads(p), DT_F32, .scratch = true};
}

static struct attn shape_of(const struct pass *p, struct at at, int k_chunk)
{
	int64_t len;
	struct attn a = {
		.window = model_window(p->m, at.layer),
		.batch = p->c.batch,
		.heads = slice_heads(p),
		.kv_heads = slice_kv_heads(p),
		.dim = p->m->head_dim,
		.q_rows = p->rows / p->c.batch,
		.k_rows = p->rows / p->c.batch,
		.scale = 1.0f / sqrtf((float)p->m->head_dim),
		.drop = dropout_at(p, (struct at){at.layer, 0, 0}, DROP_PROBS),
		.first_head = (p->tp.first + at.slice) * slice_heads(p),
		.start = p->in.start ? p->in.start + at.chunk * p->rows : NULL,
	};
	chunk_runs(&p->cp, p->cp.first + at.chunk, a.q_first, &len);
	chunk_runs(&p->cp, k_chunk, a.k_first, &len);
	return a;
}

/* Begins the exchange of keys and values, and with g of their gradients, between ranks. */
static void begin_exchange(struct pass *p, struct ring *ring, struct sublayer_acts *a,
	const struct sublayer_grads *g)
{
	const struct mat none = no_mat();
	const struct ring_kv kv = {.local = {a->m[ATT_K], a->m[ATT_V],
					   g ? g->m[DK] : none, g ? g->m[DV] : none},
		.slices = p->tp.local,
		.rows = p->rows,
		.wire = act_type(p)};
	ring_exchange(ring, p->d, &kv);
}

/* Rounds a sum over chunks, unless it is complete. */
static void round_between(struct pass *p, const struct ring *r, struct mat sum)
{
	sum.amax = NULL; /* it is not complete */
	if (p->c.cp_rounds && !ring_last(r))
		p->d->k->round(p->d, sum, sum, DT_BF16, 1);
}

/* Rotary positions, in place; sign -1: their backward. */
static void rotate(struct pass *p, struct mat x, int c, float sign)
{
	struct mat rope = mat(p->rope, p->m->c.context, p->m->head_dim);
	if (!p->rope || !x.p)
		return;
	p->d->k->rope(p->d, x, p->m->head_dim, rope, doc_pos_of(p, c), sign);
	if (sign > 0)
		linear_round(p, x);
}

/* ---- forward --------------------------------------------------------------------- */

static void enter(
	struct pass *p, const struct sub *x, struct at at, struct slice_gather *h)
{
	struct linear l[SUBLAYER_INPUTS];
	linear_enter(p, at, h, l, sub_linears(p, x, at, &x->a->m[ENTER_OUT], l));
	rotate(p, l[Q].y, at.chunk, 1);
	rotate(p, l[K].y, at.chunk, 1);
	show(p, "attention.wq", OF_SLICE, at, l[Q].y);
	show(p, "attention.wk", OF_SLICE, at, l[K].y);
	show(p, "attention.wv", OF_SLICE, at, l[V].y);
}

static void attend(
	struct pass *p, struct at at, struct sublayer_acts *a, const struct ring *ring)
{
	for (; at.chunk < p->cp.local; at.chunk++) {
		int kc = ring_keys_for(ring, p->cp.first + at.chunk);
		struct attn shape = shape_of(p, at, kc);
		struct mat o = part_of(p, a->m[ATT_O], at);
		p->d->k->attn_fwd(p->d, &shape, o, part_of(p, a->m[ATT_MAX], at).p,
			part_of(p, a->m[ATT_SUM], at).p, part_of(p, a->m[ATT_Q], at),
			ring_at(ring, RING_K, at.slice, kc),
			ring_at(ring, RING_V, at.slice, kc), ring_first(ring),
			ring_last(ring));
		round_between(p, ring, o);
		if (ring_last(ring))
			linear_amax(p, o);
		comm_poll();
	}
}

void attend_chunks(struct pass *p, int64_t layer, struct sublayer_acts *a)
{
	struct ring ring = ring_begin(&p->cp);
	begin_exchange(p, &ring, a, NULL);
	while (ring_next(&ring))
		for (int s = 0; s < p->tp.local; s++)
			attend(p, (struct at){layer, s, 0}, a, &ring);
	ring_end(&ring);
}

static void inner(struct pass *p, const struct sub *x)
{
	p->ops.attend(p, x->layer, x->a);
	show_parts(p, "attention", false, x->layer, x->a->m[ATT_O]);
}

/* ---- backward -------------------------------------------------------------------- */

static void leave_backward(
	struct pass *p, const struct sub *x, struct at at, struct slice_gather *d)
{
	struct mat dout = part_of(p, x->g->m[DOUT], at);
	linear_leave_backward(p, at, dout, d, x->t->out, no_mat());
	show_gradient(p, "attention", OF_SLICE, at, dout);
}

static void attend_backward(struct pass *p, struct at at, struct sublayer_acts *a,
	struct sublayer_grads *g, struct ring *ring)
{
	int last = p->cp.local - 1, s = at.slice;
	/* The last query chunk comes first, so that its keys' gradients are sent on early. */
	for (at.chunk = last; at.chunk >= 0; at.chunk--) {
		int kc = ring_keys_for(ring, p->cp.first + at.chunk);
		struct attn shape = shape_of(p, at, kc);
		struct mat dq = part_of(p, g->m[DQ], at);
		struct mat dk = ring_at(ring, RING_DK, s, kc);
		struct mat dv = ring_at(ring, RING_DV, s, kc);
		if (at.chunk == 0)
			ring_recv_grads(ring, s);
		p->d->k->attn_bwd(p->d, &shape, dq, dk, dv, part_of(p, g->m[DELTA], at).p,
			part_of(p, g->m[DOUT], at), part_of(p, a->m[ATT_O], at),
			part_of(p, a->m[ATT_MAX], at).p, part_of(p, a->m[ATT_Q], at),
			ring_at(ring, RING_K, s, kc), ring_at(ring, RING_V, s, kc),
			ring_first(ring));
		round_between(p, ring, dq);
		round_between(p, ring, dk);
		round_between(p, ring, dv);
		if (at.chunk == last)
			ring_send_grads(ring, s);
		comm_poll();
	}
}

/* From DOUT to DQ, DK and DV. */
static void inner_backward(struct pass *p, const struct sub *x)
{
	struct ring ring = ring_begin(&p->cp);
	begin_exchange(p, &ring, x->a, x->g);
	while (ring_next(&ring))
		for (int s = 0; s < p->tp.local; s++)
			attend_backward(
				p, (struct at){x->layer, s, 0}, x->a, x->g, &ring);
	ring_end(&ring);
}

/* Shows a gradient that may be columns of another matrix, in a copy. Its memory is planned without an
 * observer, too, since one may come later. */
static void show_columns(struct pass *p, const char *name, struct at at, struct mat dx)
{
	struct arena *scratch = p->d->scratch;
	size_t mark = arena_mark(scratch);
	if (dx.stride && (p->observer || arena_measuring(scratch))) {
		struct mat copy = mat_take(scratch, dx.rows, dx.cols, dx.type);
		if (p->observer)
			p->d->k->copy(p->d, copy, dx);
		dx = copy;
	}
	show_gradient(p, name, OF_SLICE, at, dx);
	arena_reset(scratch, mark);
}

static void enter_backward(
	struct pass *p, const struct sub *x, struct at at, struct slice_sum *sum)
{
	struct linear l[SUBLAYER_INPUTS];
	int n = sub_linears(p, x, at, x->g->m, l);
	rotate(p, l[Q].y, at.chunk, -1);
	rotate(p, l[K].y, at.chunk, -1);
	for (int i = 0; i < n; i++)
		linear_amax(p, l[i].y);
	show_columns(p, "attention.wq", at, l[Q].y);
	show_columns(p, "attention.wk", at, l[K].y);
	show_columns(p, "attention.wv", at, l[V].y);
	linear_enter_backward(p, at, sum, l, n);
}

const struct sublayer attention_heads = {
	.norm = "attention_norm",
	.out = "attention.wo",
	.drop = DROP_ATTENTION,
	.joins = true,
	.until = {[ATT_O] = RECOMPUTE_MATMULS,
		[ATT_Q] = RECOMPUTE_MATMULS,
		[ATT_K] = RECOMPUTE_SELECTIVE,
		[ATT_V] = RECOMPUTE_MATMULS,
		[ATT_MAX] = RECOMPUTE_MATMULS,
		[ATT_SUM] = RECOMPUTE_MATMULS},
	.tensors = tensors,
	.sizes = sizes,
	.enter = enter,
	.inner = inner,
	.leave_backward = leave_backward,
	.inner_backward = inner_backward,
	.enter_backward = enter_backward,
};
