/* The feed-forward sublayer: W2 act(W1 h), or with SwiGLU W2 (silu(W1 h) * W3 h). W1 and W3 are
 * column-parallel, W2 is row-parallel. */
#include "model/block.h"

enum {
	Y = INNER_OUT,
	A = ENTER_OUT,
	B
};		 /* y = act(a, b): a and b are the results of W1 and W3 */
enum { DA, DB }; /* gradients of a and b */

static bool is_gated(const struct model *m)
{
	return act_is_gated(m->act);
}

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

static void sizes(const struct pass *p, struct mat_size *acts, struct mat_size *grads)
{
	int64_t width = p->m->c.ffn_dim / p->tp.n;
	acts[Y] = acts[A] = grads[DA] = (struct mat_size){width, act_type(p)};
	if (is_gated(p->m))
		acts[B] = grads[DB] = acts[A];
}

/* Returns true if the backward of W2 multiplies by the derivative, recomputed or not. */
static bool fuses_slope(const struct pass *p, int64_t layer)
{
	return p->m->act == ACT_GELU_TANH && linear_fuses(p, layer);
}

/* Returns true if the matmul with W1 computes the activation function. It does not if the
 * function is recomputed without the matmul. */
static bool fuses_gelu(const struct pass *p, int64_t layer)
{
	enum recompute how = pass_recomputes(p, layer);
	bool alone = how == RECOMPUTE_SELECTIVE || how == RECOMPUTE_MATMULS;
	return fuses_slope(p, layer) && !p->c.plain_kernels && !alone;
}

/* Returns true if the backward of W2 also adds the rows of its result, for the bias of W1. */
static bool sums_slope(const struct pass *p, const struct sub *x)
{
	const struct tensor *bias = x->t->in_bias[0];
	return bias && !bias->frozen && linear_sums_slope(p) && fuses_slope(p, x->layer);
}

/* ---- forward --------------------------------------------------------------------- */

static void enter(
	struct pass *p, const struct sub *x, struct at at, struct slice_gather *h)
{
	struct linear l[SUBLAYER_INPUTS] = {0};
	int n = sub_linears(p, x, at, &x->a->m[A], l);
	if (fuses_gelu(p, at.layer))
		l[0].gelu = part_of(p, x->a->m[Y], at);
	linear_enter(p, at, h, l, n);
	show(p, "feed_forward.w1", EXTENT_SLICE, at, l[0].y);
	show(p, "feed_forward.w3", EXTENT_SLICE, at, l[1].y);
}

static void inner(struct pass *p, const struct sub *x)
{
	struct at at = {.layer = x->layer};
	const struct mat *m = x->a->m;
	for (; !fuses_gelu(p, x->layer) && at.chunk < p->cp.local; at.chunk++)
		for (at.slice = 0; at.slice < p->tp.local; at.slice++)
			p->d->k->act_fwd(p->d, p->m->act, part_of(p, m[Y], at),
				part_of(p, m[A], at), part_of(p, m[B], at));
	show_parts(p, "feed_forward", false, x->layer, m[Y]);
}

/* ---- backward -------------------------------------------------------------------- */

/* The gradient of y is stored in da until inner_backward(). */
static void leave_backward(
	struct pass *p, const struct sub *x, struct at at, struct slice_gather *d)
{
	struct mat dy = part_of(p, x->g->m[DA], at);
	struct mat a = part_of(p, x->a->m[A], at);
	bool fuses = fuses_slope(p, at.layer);
	struct mat sums = x->g->sums;
	if (sums.p)
		sums = mat_rows(sums, at.chunk, 1);
	linear_leave_backward(p, at, dy, d, x->t->out, fuses ? a : no_mat(), sums);
	show_gradient(p, "feed_forward", EXTENT_SLICE, at, dy);
}

static void inner_backward(struct pass *p, const struct sub *x)
{
	struct at at = {.layer = x->layer};
	const struct mat *m = x->a->m;
	if (fuses_slope(p, x->layer))
		return;
	for (at.chunk = 0; at.chunk < p->cp.local; at.chunk++)
		for (at.slice = 0; at.slice < p->tp.local; at.slice++) {
			struct mat da = part_of(p, x->g->m[DA], at);
			struct mat db = part_of(p, x->g->m[DB], at);
			p->d->k->act_bwd(p->d, p->m->act, da, db, da,
				part_of(p, m[A], at), part_of(p, m[B], at));
		}
}

static void enter_backward(
	struct pass *p, const struct sub *x, struct at at, struct slice_sum *sum)
{
	struct linear l[SUBLAYER_INPUTS] = {0};
	int n = sub_linears(p, x, at, x->g->m, l);
	show_gradient(p, "feed_forward.w1", EXTENT_SLICE, at, l[0].y);
	show_gradient(p, "feed_forward.w3", EXTENT_SLICE, at, l[1].y);
	linear_enter_backward(p, at, sum, l, n);
}

const struct sublayer ffn_dense = {
	.norm = "ffn_norm",
	.out = "feed_forward.w2",
	.drop = DROP_FFN,
	.until = {[Y] = RECOMPUTE_NONE,
		[A] = RECOMPUTE_MATMULS,
		[B] = RECOMPUTE_SELECTIVE},
	.tensors = add_ffn_tensors,
	.sizes = sizes,
	.sums = sums_slope,
	.enter = enter,
	.inner = inner,
	.leave_backward = leave_backward,
	.inner_backward = inner_backward,
	.enter_backward = enter_backward,
};
