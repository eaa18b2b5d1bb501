/* The attention sublayer: Wo attention(q, k, v), with q, k, v = Wq h, Wk h, Wv h. Wq, Wk, Wv are
 * column-parallel (a slice has whole heads), Wo is row-parallel. Keys and values of remote chunks
 * come from the ring of parallel/context.c. */
#include "model/block.h"

enum { Q, K, V }; /* column-parallel tensors */
/* sublayer_grads.m[]: gradients of queries, keys, values and the heads' output, a buffer of the
 * attention kernels, gradients of normalized queries and keys. Activations: block.h. */
enum { DQ, DK, DV, DOUT, DELTA, DQN, DKN };

/* Adds the tensors of a layer's attention to the model, and points *t at them (NULL: absent). */
static void add_attn_tensors(struct model *m, int64_t layer, struct sublayer_tensors *t)
{
	int64_t dim = m->c.dim, q = model_q_width(m);
	int64_t heads = m->c.kv_heads, kv = heads * m->head_dim;
	bool bias = m->out_bias, qkv = m->qkv_bias, norms = m->c.qk_norm;
	bool norm = model_has_norm(m, NORM_OF_INPUT),
	     norm_bias = norm && m->bias && m->arch->norm == NORM_LAYER,
	     post = model_has_norm(m, NORM_OF_OUTPUT), wide = model_has_wide_qk_norm(m);
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

static void set_attn_sizes(
	const struct pass *p, struct mat_size *acts, struct mat_size *grads)
{
	acts[ATT_O] = (struct mat_size){q_width(p), sum_type(p)};
	acts[ATT_Q] = (struct mat_size){q_width(p), act_type(p)};
	acts[ATT_K] = acts[ATT_V] = (struct mat_size){kv_width(p), act_type(p)};
	acts[ATT_MAX] = acts[ATT_SUM] = (struct mat_size){slice_heads(p), DT_F32};
	grads[DQ] = (struct mat_size){q_width(p), sum_type(p)};
	grads[DK] = grads[DV] = (struct mat_size){kv_width(p), sum_type(p)};
	grads[DOUT] =
		(struct mat_size){q_width(p), act_type(p), .lifetime = UNTIL_INNER_ENDS};
	grads[DELTA] =
		(struct mat_size){slice_heads(p), DT_F32, .lifetime = UNTIL_INNER_ENDS};
	if (!p->m->c.qk_norm)
		return;
	acts[ATT_QN] = acts[ATT_Q];
	acts[ATT_KN] = acts[ATT_K];
	grads[DQN] = grads[DQ];
	grads[DKN] = grads[DK];
	grads[DQ].type = grads[DK].type = act_type(p);
}

/* Returns the gradient of the queries that attention uses: after their norm, if any. */
static struct mat query_grad(const struct sublayer_grads *g)
{
	return g->m[DQN].rows ? g->m[DQN] : g->m[DQ];
}

/* Returns the gradient of the keys that attention uses: after their norm, if any. */
static struct mat key_grad(const struct sublayer_grads *g)
{
	return g->m[DKN].rows ? g->m[DKN] : g->m[DK];
}

/* Returns the shape of attention of a query chunk with the key chunk k_chunk, for one slice. */
static struct attn attn_shape(const struct pass *p, struct loc loc, int k_chunk)
{
	int64_t len;
	struct attn a = {
		.window = model_window(p->m, loc.layer),
		.batch = p->c.batch,
		.heads = slice_heads(p),
		.kv_heads = slice_kv_heads(p),
		.dim = p->m->head_dim,
		.q_rows = p->rows / p->c.batch,
		.k_rows = p->rows / p->c.batch,
		.scale = model_attention_scale(p->m),
		.drop = dropout_at(p, (struct loc){loc.layer, 0, 0}, DROP_PROBS),
		.first_head = (p->tp.first + loc.slice) * slice_heads(p),
		.start = p->in.start ? p->in.start + loc.chunk * p->rows : NULL,
	};
	chunk_runs(&p->cp, p->cp.first + loc.chunk, a.q_first, &len);
	chunk_runs(&p->cp, k_chunk, a.k_first, &len);
	return a;
}

/* Begins the exchange of keys and values between ranks; unless g is NULL, also of gradients. */
static void begin_exchange(struct pass *p, struct ring *ring, struct sublayer_acts *a,
	const struct sublayer_grads *g)
{
	const struct mat none = no_mat();
	const struct ring_kv kv = {.local = {att_k(a), a->m[ATT_V],
					   g ? key_grad(g) : none, g ? g->m[DV] : none},
		.slices = p->tp.local,
		.rows = p->rows,
		.wire = act_type(p)};
	ring_exchange(ring, p->d, &kv);
}

/* Rounds an incomplete sum over chunks to bf16, if the pass rounds between chunks. */
static void round_partial_sum(struct pass *p, const struct ring *r, struct mat sum)
{
	sum.amax = NULL; /* only a complete sum has an amax */
	if (p->c.cp_rounds && !ring_last(r))
		p->d->k->round(p->d, sum, sum, DT_BF16, 1);
}

/* Applies RoPE in place, or its backward if sign is -1, unless the layer has no RoPE. */
static void rotate(struct pass *p, struct mat x, struct loc loc, float sign)
{
	struct mat rope = mat(p->rope, p->m->c.context, p->m->head_dim);
	if (!model_rotates(p->m, loc.layer) || !x.p)
		return;
	p->d->k->rope(p->d, x, p->m->head_dim, rope, chunk_doc_pos(p, loc.chunk), sign);
	if (sign > 0)
		linear_round(p, x);
}

/* Normalizes and rotates queries (i = Q) or keys (K) `from` a matmul; empty: they were kept. */
static void norm_and_rotate(struct pass *p, const struct sublayer_run *sub,
	struct loc loc, int i, struct mat from)
{
	struct mat to = from;
	if (sub->tensors->in_norm[i] && from.p) {
		to = mat_at(p, sub->acts->m[i == Q ? ATT_QN : ATT_KN], loc);
		p->d->k->head_norm_fwd(p->d, to, from,
			param(p, sub->tensors->in_norm[i], 0), (float)p->m->c.norm_eps);
	}
	rotate(p, to, loc, 1);
	observe(p, i == Q ? "attention.wq" : "attention.wk", EXTENT_SLICE, loc, to);
}

/* Computes dy, the gradient of the matmul's result for queries (i = Q) or keys (K). */
static void norm_and_rotate_backward(struct pass *p, const struct sublayer_run *sub,
	struct loc loc, int i, struct mat dy)
{
	const struct tensor *norm = sub->tensors->in_norm[i];
	struct mat dn = norm ? mat_at(p, sub->grads->m[i == Q ? DQN : DKN], loc) : dy;
	rotate(p, dn, loc, -1);
	if (norm)
		p->d->k->head_norm_bwd_x(p->d, dy, dn,
			mat_at(p, sub->acts->m[i == Q ? ATT_Q : ATT_K], loc),
			param(p, norm, 0), (float)p->m->c.norm_eps);
}

/* Computes one slice's weight gradients of the query and key norms, which all slices share. */
static void compute_qk_norm_leaves(
	struct pass *p, const struct sublayer_run *sub, struct loc loc)
{
	for (int i = Q; i <= K && sub->tensors->in_norm[i]; i++) {
		if (sub->tensors->in_norm[i]->frozen)
			continue;
		p->d->k->head_norm_bwd_w(p->d,
			leaf_buffer(p, sub->tensors->in_norm[i], loc),
			mat_at(p, sub->grads->m[i == Q ? DQN : DKN], loc),
			mat_at(p, sub->acts->m[i == Q ? ATT_Q : ATT_K], loc),
			(float)p->m->c.norm_eps);
		leaf_done(p, sub->tensors->in_norm[i], loc, 0);
	}
}

/* Computes Q, K and V of a slice from the gathered input; normalizes and rotates Q and K. */
static void qkv_forward(struct pass *p, const struct sublayer_run *sub, struct loc loc,
	struct slice_gather *h)
{
	struct linear l[SUBLAYER_INPUTS];
	column_parallel_forward(
		p, loc, h, l, in_linears(p, sub, loc, &sub->acts->m[IN_RESULT], l));
	norm_and_rotate(p, sub, loc, Q, l[Q].y);
	norm_and_rotate(p, sub, loc, K, l[K].y);
	observe(p, "attention.wv", EXTENT_SLICE, loc, l[V].y);
}

/* Adds the attention of all local query chunks to the keys that the ring has now. */
static void attend_ring_step(
	struct pass *p, struct loc loc, struct sublayer_acts *a, const struct ring *ring)
{
	for (; loc.chunk < p->cp.local; loc.chunk++) {
		int kc = ring_keys_for(ring, p->cp.first + loc.chunk);
		struct attn shape = attn_shape(p, loc, kc);
		struct mat o = mat_at(p, a->m[ATT_O], loc);
		p->d->k->attn_fwd(p->d, &shape, o, mat_at(p, a->m[ATT_MAX], loc).p,
			mat_at(p, a->m[ATT_SUM], loc).p, mat_at(p, att_q(a), loc),
			ring_at(ring, RING_K, loc.slice, kc),
			ring_at(ring, RING_V, loc.slice, kc), ring_first(ring),
			ring_last(ring));
		round_partial_sum(p, ring, o);
		if (ring_last(ring))
			linear_compute_amax(p, o);
		comm_poll();
	}
}

void attend_all_chunks(struct pass *p, int64_t layer, struct sublayer_acts *a)
{
	struct ring ring = ring_begin(&p->cp);
	begin_exchange(p, &ring, a, NULL);
	while (ring_next(&ring))
		for (int s = 0; s < p->tp.local; s++)
			attend_ring_step(p, (struct loc){layer, s, 0}, a, &ring);
	ring_end(&ring);
}

static void attn_forward(struct pass *p, const struct sublayer_run *sub)
{
	p->ops.attend(p, sub->layer, sub->acts);
	observe_slices(p, "attention", false, sub->layer, sub->acts->m[ATT_O]);
}

static void attn_out_backward(struct pass *p, const struct sublayer_run *sub,
	struct loc loc, struct slice_gather *d)
{
	struct mat dout = mat_at(p, sub->grads->m[DOUT], loc);
	row_parallel_backward(p, loc, dout, d, sub->tensors->out, no_mat(), no_mat());
	observe_gradient(p, "attention", EXTENT_SLICE, loc, dout);
}

/* Adds to the gradients of all local queries and of the keys and values that the ring has now. */
static void attend_ring_step_backward(struct pass *p, struct loc loc,
	struct sublayer_acts *a, struct sublayer_grads *g, struct ring *ring)
{
	int last = p->cp.local - 1, s = loc.slice;
	/* the last query chunk comes first, so that the gradients of its keys are sent early */
	for (loc.chunk = last; loc.chunk >= 0; loc.chunk--) {
		int kc = ring_keys_for(ring, p->cp.first + loc.chunk);
		struct attn shape = attn_shape(p, loc, kc);
		struct mat dq = mat_at(p, query_grad(g), loc);
		struct mat dk = ring_at(ring, RING_DK, s, kc);
		struct mat dv = ring_at(ring, RING_DV, s, kc);
		if (loc.chunk == 0)
			ring_recv_grads(ring, s);
		p->d->k->attn_bwd(p->d, &shape, dq, dk, dv, mat_at(p, g->m[DELTA], loc).p,
			mat_at(p, g->m[DOUT], loc), mat_at(p, a->m[ATT_O], loc),
			mat_at(p, a->m[ATT_MAX], loc).p, mat_at(p, att_q(a), loc),
			ring_at(ring, RING_K, s, kc), ring_at(ring, RING_V, s, kc),
			ring_first(ring));
		round_partial_sum(p, ring, dq);
		round_partial_sum(p, ring, dk);
		round_partial_sum(p, ring, dv);
		if (loc.chunk == last)
			ring_send_grads(ring, s);
		comm_poll();
	}
}

/* Computes the gradients of queries, keys and values from DOUT. */
static void attn_backward(struct pass *p, const struct sublayer_run *sub)
{
	struct ring ring = ring_begin(&p->cp);
	begin_exchange(p, &ring, sub->acts, sub->grads);
	while (ring_next(&ring))
		for (int s = 0; s < p->tp.local; s++)
			attend_ring_step_backward(p, (struct loc){sub->layer, s, 0},
				sub->acts, sub->grads, &ring);
	ring_end(&ring);
}

/* Passes a gradient that may be columns of a larger matrix to the observer, as a copy. A plan
 * includes the copy even without an observer, since it may be set later. */
static void observe_columns(
	struct pass *p, const char *name, struct loc loc, struct mat dx)
{
	struct arena *scratch = p->d->scratch;
	size_t mark = arena_mark(scratch);
	if (dx.stride && (p->observer || arena_is_measuring(scratch))) {
		struct mat copy = mat_alloc(scratch, dx.rows, dx.cols, dx.type);
		if (p->observer)
			p->d->k->copy(p->d, copy, dx);
		dx = copy;
	}
	observe_gradient(p, name, EXTENT_SLICE, loc, dx);
	arena_reset(scratch, mark);
}

/* Undoes the rotation and norm of the gradients of Q and K in place, and pushes the input's
 * gradient of the three matmuls to `sum`. The weights' gradients are computed elsewhere. */
static void qkv_backward(struct pass *p, const struct sublayer_run *sub, struct loc loc,
	struct slice_sum *sum)
{
	struct linear l[SUBLAYER_INPUTS];
	int n = in_linears(p, sub, loc, sub->grads->m, l);
	norm_and_rotate_backward(p, sub, loc, Q, l[Q].y);
	norm_and_rotate_backward(p, sub, loc, K, l[K].y);
	for (int i = 0; i < n; i++)
		linear_compute_amax(p, l[i].y);
	observe_columns(p, "attention.wq", loc, l[Q].y);
	observe_columns(p, "attention.wk", loc, l[K].y);
	observe_columns(p, "attention.wv", loc, l[V].y);
	column_parallel_backward(p, loc, sum, l, n);
}

const struct sublayer attention_heads = {
	.norm = "attention_norm",
	.out = "attention.wo",
	.drop = DROP_ATTENTION,
	.joins_grads = true,
	.kept_until = {[ATT_O] = RECOMPUTE_MATMULS,
		[ATT_Q] = RECOMPUTE_MATMULS,
		[ATT_K] = RECOMPUTE_SELECTIVE,
		[ATT_V] = RECOMPUTE_MATMULS,
		[ATT_MAX] = RECOMPUTE_MATMULS,
		[ATT_SUM] = RECOMPUTE_MATMULS,
		[ATT_QN] = RECOMPUTE_MATMULS,
		[ATT_KN] = RECOMPUTE_SELECTIVE},
	.add_tensors = add_attn_tensors,
	.set_sizes = set_attn_sizes,
	.in_forward = qkv_forward,
	.inner_forward = attn_forward,
	.other_leaves = compute_qk_norm_leaves,
	.out_backward = attn_out_backward,
	.inner_backward = attn_backward,
	.in_backward = qkv_backward,
};
