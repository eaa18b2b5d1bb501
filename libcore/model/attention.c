/* The attention sublayer: Wo attention(q, k, v), with q, k, v = Wq h, Wk h, Wv h. Wq, Wk, Wv are
 * column-parallel (a slice has whole heads), Wo is row-parallel. Keys and values of remote chunks
 * come from the ring of parallel/context.c. */
#include "model/block.h"

enum { Q, K, V }; /* column-parallel tensors */
/* Gradients of queries, keys, values and the heads' output, a buffer of the attention kernels, and
 * gradients of normalized queries and keys. Activations: block.h. */
enum { DQ, DK, DV, DOUT, DELTA, DQN, DKN };

static void add_attn_tensors(struct model *m, int64_t layer, struct sublayer_tensors *t)
{
	int64_t dim = m->c.dim, q = model_q_width(m);
	int64_t heads = m->c.kv_heads, kv = heads * m->head_dim;
	bool bias = m->out_bias, qkv = m->qkv_bias, norms = m->c.qk_norm;
	bool norm = model_has_norm(m, NORM_OF_INPUT),
	     norm_bias = norm && m->bias && m->arch->norm == NORM_LAYER,
	     post = model_has_norm(m, NORM_OF_OUTPUT), wide = m->arch->wide_qk_norm;
	int64_t q_norm = wide ? q : m->head_dim, k_norm = wide ? kv : m->head_dim;
	/* clang-format off */
	const struct tensor_row rows[] = {
		{"attention_norm.weight", dim, 0,   TP_SPLIT_NONE, ROW_NORM,     norm,      &t->norm},
		{"attention_norm.bias",   dim, 0,   TP_SPLIT_NONE, ROW_BIAS,     norm_bias, &t->norm_bias},
		{"attention.wq.weight",   q,   dim, TP_SPLIT_ROWS, ROW_WEIGHT,   true,      &t->in[Q], TILE_ATTENTION_IN},
		{"attention.wq.bias",     q,   0,   TP_SPLIT_ROWS, ROW_BIAS,     qkv,       &t->in_bias[Q]},
		{"attention.wk.weight",   kv,  dim, TP_SPLIT_ROWS, ROW_WEIGHT,   true,      &t->in[K], TILE_ATTENTION_IN, heads},
		{"attention.wk.bias",     kv,  0,   TP_SPLIT_ROWS, ROW_BIAS,     qkv,       &t->in_bias[K], TILE_NONE, heads},
		{"attention.wv.weight",   kv,  dim, TP_SPLIT_ROWS, ROW_WEIGHT,   true,      &t->in[V], TILE_ATTENTION_IN, heads},
		{"attention.wv.bias",     kv,  0,   TP_SPLIT_ROWS, ROW_BIAS,     qkv,       &t->in_bias[V], TILE_NONE, heads},
		{"attention.q_norm.weight", q_norm, 0, TP_SPLIT_NONE, ROW_NORM,  norms,     &t->in_norm[Q]},
		{"attention.k_norm.weight", k_norm, 0, TP_SPLIT_NONE, ROW_NORM,  norms,     &t->in_norm[K]},
		{"attention.wo.weight",   dim, q,   TP_SPLIT_COLS, ROW_RESIDUAL, true,      &t->out, TILE_ATTENTION_OUT},
		{"attention.wo.bias",     dim, 0,   TP_SPLIT_NONE, ROW_BIAS,     bias,      &t->bias},
		{"attention_post_norm.weight", dim, 0, TP_SPLIT_NONE, ROW_NORM, post,      &t->post_norm},
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
	if (!p->m->c.qk_norm)
		return;
	acts[ATT_QN] = acts[ATT_Q];
	acts[ATT_KN] = acts[ATT_K];
	grads[DQN] = grads[DQ];
	grads[DKN] = grads[DK];
	grads[DQ].type = grads[DK].type = act_type(p);
}

/* Return the gradients of the queries and keys that attention uses: after their norms, if any. */
static struct mat grad_q(const struct sublayer_grads *g)
{
	return g->m[DQN].rows ? g->m[DQN] : g->m[DQ];
}

static struct mat grad_k(const struct sublayer_grads *g)
{
	return g->m[DKN].rows ? g->m[DKN] : g->m[DK];
}

static struct attn attn_shape(const struct pass *p, struct at at, int k_chunk)
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
		.scale = model_attention_scale(p->m),
		.drop = dropout_at(p, (struct at){at.layer, 0, 0}, DROP_PROBS),
		.first_head = (p->tp.first + at.slice) * slice_heads(p),
		.start = p->in.start ? p->in.start + at.chunk * p->rows : NULL,
	};
	chunk_runs(&p->cp, p->cp.first + at.chunk, a.q_first, &len);
	chunk_runs(&p->cp, k_chunk, a.k_first, &len);
	return a;
}

/* Begins the exchange of keys and values (with g: and their gradients) between ranks. */
static void begin_exchange(struct pass *p, struct ring *ring, struct sublayer_acts *a,
	const struct sublayer_grads *g)
{
	const struct mat none = no_mat();
	const struct ring_kv kv = {.local = {att_k(a), a->m[ATT_V], g ? grad_k(g) : none,
					   g ? g->m[DV] : none},
		.slices = p->tp.local,
		.rows = p->rows,
		.wire = act_type(p)};
	ring_exchange(ring, p->d, &kv);
}

/* Rounds a sum over chunks, unless it is complete. */
static void round_between(struct pass *p, const struct ring *r, struct mat sum)
{
	sum.amax = NULL; /* of a partial sum */
	if (p->c.cp_rounds && !ring_last(r))
		p->d->k->round(p->d, sum, sum, DT_BF16, 1);
}

/* Applies rotary positions, in place; sign -1: their backward. */
static void rotate(struct pass *p, struct mat x, struct at at, float sign)
{
	struct mat rope = mat(p->rope, p->m->c.context, p->m->head_dim);
	if (!model_rotates(p->m, at.layer) || !x.p)
		return;
	p->d->k->rope(p->d, x, p->m->head_dim, rope, doc_pos_of(p, at.chunk), sign);
	if (sign > 0)
		linear_round(p, x);
}

/* Normalizes and rotates queries or keys from the matmul. `from` is empty if they were kept. */
static void norm_and_rotate(
	struct pass *p, const struct sub *x, struct at at, int i, struct mat from)
{
	struct mat to = from;
	if (x->t->in_norm[i] && from.p) {
		to = part_of(p, x->a->m[i == Q ? ATT_QN : ATT_KN], at);
		p->d->k->head_norm_fwd(p->d, to, from, param(p, x->t->in_norm[i], 0),
			(float)p->m->c.norm_eps);
	}
	rotate(p, to, at, 1);
	show(p, i == Q ? "attention.wq" : "attention.wk", EXTENT_SLICE, at, to);
}

/* Computes the gradient dy of the matmul's result. `dy` may be columns of a larger matrix. */
static void norm_and_rotate_backward(
	struct pass *p, const struct sub *x, struct at at, int i, struct mat dy)
{
	const struct tensor *norm = x->t->in_norm[i];
	struct mat dn = norm ? part_of(p, x->g->m[i == Q ? DQN : DKN], at) : dy;
	rotate(p, dn, at, -1);
	if (norm)
		p->d->k->head_norm_bwd_x(p->d, dy, dn,
			part_of(p, x->a->m[i == Q ? ATT_Q : ATT_K], at),
			param(p, norm, 0), (float)p->m->c.norm_eps);
}

/* Computes leaves of the query and key norms, which all slices use, each for its heads. */
static void leaves(struct pass *p, const struct sub *x, struct at at)
{
	for (int i = Q; i <= K && x->t->in_norm[i]; i++) {
		if (x->t->in_norm[i]->frozen)
			continue;
		p->d->k->head_norm_bwd_w(p->d, leaf(p, x->t->in_norm[i], at),
			part_of(p, x->g->m[i == Q ? DQN : DKN], at),
			part_of(p, x->a->m[i == Q ? ATT_Q : ATT_K], at),
			(float)p->m->c.norm_eps);
		leaf_done(p, x->t->in_norm[i], at, 0);
	}
}

/* ---- forward --------------------------------------------------------------------- */

static void enter(
	struct pass *p, const struct sub *x, struct at at, struct slice_gather *h)
{
	struct linear l[SUBLAYER_INPUTS];
	linear_enter(p, at, h, l, sub_linears(p, x, at, &x->a->m[ENTER_OUT], l));
	norm_and_rotate(p, x, at, Q, l[Q].y);
	norm_and_rotate(p, x, at, K, l[K].y);
	show(p, "attention.wv", EXTENT_SLICE, at, l[V].y);
}

static void attend(
	struct pass *p, struct at at, struct sublayer_acts *a, const struct ring *ring)
{
	for (; at.chunk < p->cp.local; at.chunk++) {
		int kc = ring_keys_for(ring, p->cp.first + at.chunk);
		struct attn shape = attn_shape(p, at, kc);
		struct mat o = part_of(p, a->m[ATT_O], at);
		p->d->k->attn_fwd(p->d, &shape, o, part_of(p, a->m[ATT_MAX], at).p,
			part_of(p, a->m[ATT_SUM], at).p, part_of(p, att_q(a), at),
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
	linear_leave_backward(p, at, dout, d, x->t->out, no_mat(), no_mat());
	show_gradient(p, "attention", EXTENT_SLICE, at, dout);
}

static void attend_backward(struct pass *p, struct at at, struct sublayer_acts *a,
	struct sublayer_grads *g, struct ring *ring)
{
	int last = p->cp.local - 1, s = at.slice;
	/* the last query chunk comes first, so that the gradients of its keys are sent early */
	for (at.chunk = last; at.chunk >= 0; at.chunk--) {
		int kc = ring_keys_for(ring, p->cp.first + at.chunk);
		struct attn shape = attn_shape(p, at, kc);
		struct mat dq = part_of(p, grad_q(g), at);
		struct mat dk = ring_at(ring, RING_DK, s, kc);
		struct mat dv = ring_at(ring, RING_DV, s, kc);
		if (at.chunk == 0)
			ring_recv_grads(ring, s);
		p->d->k->attn_bwd(p->d, &shape, dq, dk, dv, part_of(p, g->m[DELTA], at).p,
			part_of(p, g->m[DOUT], at), part_of(p, a->m[ATT_O], at),
			part_of(p, a->m[ATT_MAX], at).p, part_of(p, att_q(a), at),
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

/* Computes the gradients of queries, keys and values from DOUT. */
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

/* Passes a gradient that may be columns of a larger matrix to the observer, as a copy. A plan
 * includes the copy even without an observer, since it may be set later. */
static void show_columns(struct pass *p, const char *name, struct at at, struct mat dx)
{
	struct arena *scratch = p->d->scratch;
	size_t mark = arena_mark(scratch);
	if (dx.stride && (p->observer || arena_measuring(scratch))) {
		struct mat copy = mat_alloc(scratch, dx.rows, dx.cols, dx.type);
		if (p->observer)
			p->d->k->copy(p->d, copy, dx);
		dx = copy;
	}
	show_gradient(p, name, EXTENT_SLICE, at, dx);
	arena_reset(scratch, mark);
}

static void enter_backward(
	struct pass *p, const struct sub *x, struct at at, struct slice_sum *sum)
{
	struct linear l[SUBLAYER_INPUTS];
	int n = sub_linears(p, x, at, x->g->m, l);
	norm_and_rotate_backward(p, x, at, Q, l[Q].y);
	norm_and_rotate_backward(p, x, at, K, l[K].y);
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
		[ATT_SUM] = RECOMPUTE_MATMULS,
		[ATT_QN] = RECOMPUTE_MATMULS,
		[ATT_KN] = RECOMPUTE_SELECTIVE},
	.tensors = add_attn_tensors,
	.sizes = sizes,
	.enter = enter,
	.inner = inner,
	.leaves = leaves,
	.leave_backward = leave_backward,
	.inner_backward = inner_backward,
	.enter_backward = enter_backward,
};
