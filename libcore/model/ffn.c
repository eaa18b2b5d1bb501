/* The feed-forward sublayer: W2 act(W1 h), or with SwiGLU W2 (silu(W1 h) * W3 h). W1 and W3 are
 * column-parallel, W2 is row-parallel. */
#include "model/block.h"

enum {
	Y = INNER_RESULT,
	A = IN_RESULT,
	B
};		 /* y = act(a, b): a and b are the results of W1 and W3 */
enum { DA, DB }; /* gradients of a and b */

static bool is_gated(const struct model *m)
{
	return act_is_gated(m->act);
}

/* Adds the tensors of a layer's FFN to the model, and points *t at them (NULL: absent). */
static void add_ffn_tensors(struct model *m, int64_t layer, struct sublayer_tensors *t)
{
	int64_t dim = m->c.dim, ffn = m->c.ffn_dim;
	bool bias = m->bias, gated = is_gated(m);
	bool norm = model_has_norm(m, NORM_OF_INPUT),
	     norm_bias = norm && bias && m->arch->norm == NORM_LAYER,
	     post = model_has_norm(m, NORM_OF_OUTPUT);
	/* clang-format off */
	const struct tensor_row rows[] = {
		{"ffn_norm.weight",        dim, 0,   TP_SPLIT_NONE, ROW_NORM,     norm,          &t->norm},
		{"ffn_norm.bias",          dim, 0,   TP_SPLIT_NONE, ROW_BIAS,     norm_bias,     &t->norm_bias},
		{"feed_forward.w1.weight", ffn, dim, TP_SPLIT_ROWS, ROW_WEIGHT,   true,          &t->in[0], TILE_FFN_IN},
		{"feed_forward.w1.bias",   ffn, 0,   TP_SPLIT_ROWS, ROW_BIAS,     bias,          &t->in_bias[0]},
		{"feed_forward.w3.weight", ffn, dim, TP_SPLIT_ROWS, ROW_GATE,     gated,         &t->in[1], TILE_FFN_IN},
		{"feed_forward.w3.bias",   ffn, 0,   TP_SPLIT_ROWS, ROW_BIAS,     gated && bias, &t->in_bias[1]},
		{"feed_forward.w2.weight", dim, ffn, TP_SPLIT_COLS, ROW_RESIDUAL, true,          &t->out, TILE_FFN_OUT},
		{"feed_forward.w2.bias",   dim, 0,   TP_SPLIT_NONE, ROW_BIAS,     bias,          &t->bias},
		{"ffn_post_norm.weight",   dim, 0,   TP_SPLIT_NONE, ROW_NORM,     post,          &t->post_norm},
	};
	/* clang-format on */
	tensors_add(m, layer, rows, ARRAY_LEN(rows));
}

static void set_ffn_sizes(
	const struct pass *p, struct mat_size *acts, struct mat_size *grads)
{
	int64_t width = p->m->c.ffn_dim / p->tp.n;
	acts[Y] = acts[A] = grads[DA] = (struct mat_size){width, act_type(p)};
	if (is_gated(p->m))
		acts[B] = grads[DB] = acts[A];
}

/* Returns true if the backward of W2 also multiplies by GELU's derivative. */
static bool fuses_gelu_slope(const struct pass *p, int64_t layer)
{
	return p->m->act == ACT_GELU_TANH && linear_can_fuse(p, layer);
}

/* Returns true if the matmul with W1 also computes GELU. It cannot if GELU alone is recomputed. */
static bool fuses_gelu(const struct pass *p, int64_t layer)
{
	enum recompute recompute = pass_recomputes(p, layer);
	bool skips_matmul =
		recompute == RECOMPUTE_SELECTIVE || recompute == RECOMPUTE_MATMULS;
	return fuses_gelu_slope(p, layer) && !p->c.plain_kernels && !skips_matmul;
}

/* Returns true if the backward of W2 also adds the rows of its result, for the bias of W1. */
static bool ffn_sums_grad(const struct pass *p, const struct sublayer_run *sub)
{
	const struct tensor *bias = sub->tensors->in_bias[0];
	return bias && !bias->frozen && linear_can_sum(p) &&
	       fuses_gelu_slope(p, sub->layer);
}

/* Computes the input matmuls of the FFN, for one slice; also GELU, if it is fused. */
static void ffn_in_forward(struct pass *p, const struct sublayer_run *sub, struct loc loc,
	struct slice_gather *h)
{
	struct linear l[SUBLAYER_INPUTS] = {0};
	int n = in_linears(p, sub, loc, &sub->acts->m[A], l);
	if (fuses_gelu(p, loc.layer))
		l[0].gelu = mat_at(p, sub->acts->m[Y], loc);
	column_parallel_forward(p, loc, h, l, n);
	observe(p, "feed_forward.w1", EXTENT_SLICE, loc, l[0].y);
	observe(p, "feed_forward.w3", EXTENT_SLICE, loc, l[1].y);
}

/* Applies the activation function to all slices, unless the matmul did (fused GELU). */
static void ffn_act_forward(struct pass *p, const struct sublayer_run *sub)
{
	struct loc loc = {.layer = sub->layer};
	const struct mat *m = sub->acts->m;
	for (; !fuses_gelu(p, sub->layer) && loc.chunk < p->cp.local; loc.chunk++)
		for (loc.slice = 0; loc.slice < p->tp.local; loc.slice++)
			p->d->k->act_fwd(p->d, p->m->act, mat_at(p, m[Y], loc),
				mat_at(p, m[A], loc), mat_at(p, m[B], loc));
	observe_slices(p, "feed_forward", false, sub->layer, m[Y]);
}

/* Stores the gradient of y in da, where ffn_act_backward() replaces it. */
static void ffn_out_backward(struct pass *p, const struct sublayer_run *sub,
	struct loc loc, struct slice_gather *d)
{
	struct mat dy = mat_at(p, sub->grads->m[DA], loc);
	struct mat a = mat_at(p, sub->acts->m[A], loc);
	struct mat sums = sub->grads->sums;
	if (sums.p)
		sums = mat_rows(sums, loc.chunk, 1);
	row_parallel_backward(p, loc, dy, d, sub->tensors->out,
		fuses_gelu_slope(p, loc.layer) ? a : no_mat(), sums);
	observe_gradient(p, "feed_forward", EXTENT_SLICE, loc, dy);
}

/* Turns the output's gradient DA into the gradients of A and B in place, unless the matmul did. */
static void ffn_act_backward(struct pass *p, const struct sublayer_run *sub)
{
	struct loc loc = {.layer = sub->layer};
	const struct mat *m = sub->acts->m;
	if (fuses_gelu_slope(p, sub->layer))
		return;
	for (loc.chunk = 0; loc.chunk < p->cp.local; loc.chunk++)
		for (loc.slice = 0; loc.slice < p->tp.local; loc.slice++) {
			struct mat da = mat_at(p, sub->grads->m[DA], loc);
			struct mat db = mat_at(p, sub->grads->m[DB], loc);
			p->d->k->act_bwd(p->d, p->m->act, da, db, da,
				mat_at(p, m[A], loc), mat_at(p, m[B], loc));
		}
}

/* Pushes the gradient of the FFN's input, computed from the gradients of A and B, to `sum`. The
 * weights' gradients are computed elsewhere. */
static void ffn_in_backward(struct pass *p, const struct sublayer_run *sub,
	struct loc loc, struct slice_sum *sum)
{
	struct linear l[SUBLAYER_INPUTS] = {0};
	int n = in_linears(p, sub, loc, sub->grads->m, l);
	observe_gradient(p, "feed_forward.w1", EXTENT_SLICE, loc, l[0].y);
	observe_gradient(p, "feed_forward.w3", EXTENT_SLICE, loc, l[1].y);
	column_parallel_backward(p, loc, sum, l, n);
}

const struct sublayer ffn_dense = {
	.norm = "ffn_norm",
	.out = "feed_forward.w2",
	.drop = DROP_FFN,
	.kept_until = {[Y] = RECOMPUTE_NONE,
		[A] = RECOMPUTE_MATMULS,
		[B] = RECOMPUTE_SELECTIVE},
	.add_tensors = add_ffn_tensors,
	.set_sizes = set_ffn_sizes,
	.sums_grad = ffn_sums_grad,
	.in_forward = ffn_in_forward,
	.inner_forward = ffn_act_forward,
	.out_backward = ffn_out_backward,
	.inner_backward = ffn_act_backward,
	.in_backward = ffn_in_backward,
};
