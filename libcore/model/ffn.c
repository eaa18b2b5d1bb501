/*
 * The feed-forward sublayer: W2 act(W1 h), with SwiGLU W2 (silu(W1 h) * W3 h). W1 and W3 are
 * column-parallel, W2 is row-parallel.
 */
#include "model/block.h"
#include "model/linear.h"

/* Tensors; activations, y = act(a, b); gradients of a and b. */
enum { W1, B1, W3, B3, W2 };
enum { Y = INNER_OUT, A, B };
enum { DA, DB };

static bool is_gated(const struct model *m)
{
	return m->act == ACT_SWIGLU;
}

static void tensors(struct model *m, int64_t layer, struct sublayer_tensors *t)
{
	int64_t dim = m->c.dim, ffn = m->c.ffn_dim;
	bool bias = m->bias, gated = is_gated(m);
	bool norm_bias = bias && m->arch->norm == NORM_LAYER;
	/* clang-format off */
	const struct tensor_row rows[] = {
		{"ffn_norm.weight",        dim, 0,   TP_SPLIT_NONE, ROW_NORM,     true,          &t->norm},
		{"ffn_norm.bias",          dim, 0,   TP_SPLIT_NONE, ROW_BIAS,     norm_bias,     &t->norm_bias},
		{"feed_forward.w1.weight", ffn, dim, TP_SPLIT_ROWS, ROW_WEIGHT,   true,          &t->w[W1], TILE_FFN_IN},
		{"feed_forward.w1.bias",   ffn, 0,   TP_SPLIT_ROWS, ROW_BIAS,     bias,          &t->w[B1]},
		{"feed_forward.w3.weight", ffn, dim, TP_SPLIT_ROWS, ROW_GATE,     gated,         &t->w[W3], TILE_FFN_IN},
		{"feed_forward.w3.bias",   ffn, 0,   TP_SPLIT_ROWS, ROW_BIAS,     gated && bias, &t->w[B3]},
		{"feed_forward.w2.weight", dim, ffn, TP_SPLIT_COLS, ROW_RESIDUAL, true,          &t->w[W2], TILE_FFN_OUT},
		{"feed_forward.w2.bias",   dim, 0,   TP_SPLIT_NONE, ROW_BIAS,     bias,          &t->bias},
	};
	/* clang-format on */
	tensors_add(m, layer, rows, ARRAY_LEN(rows));
}

static struct tensor *const *weights_of(const struct pass *p, int64_t layer)
{
	return p->m->blocks[layer].sub[FFN].w;
}

static void rooms(const struct pass *p, struct room *acts, struct room *grads)
{
	int64_t width = p->m->c.ffn_dim / p->tp.n;
	acts[Y] = acts[A] = grads[DA] = (struct room){width, act_type(p)};
	if (is_gated(p->m))
		acts[B] = grads[DB] = acts[A];
}

/* Does the backward of W2 multiply by the derivative of the activation function? It does not depend
 * on recomputation. */
static bool fuses_slope(const struct pass *p, int64_t layer)
{
	return p->m->act == ACT_GELU_TANH && linear_fuses(p, layer);
}

/* Does the matmul with W1 compute the activation function? */
static bool fuses_gelu(const struct pass *p, int64_t layer)
{
	return fuses_slope(p, layer) && !p->c.plain_kernels &&
	       p->recompute != RECOMPUTE_SELECTIVE;
}

/* The column-parallel matmuls: W1 with m[0], and with SwiGLU W3 with m[1]. Returns their number. */
static int enter_linears(
	const struct pass *p, struct at at, const struct mat m[2], struct linear l[2])
{
	struct tensor *const *t = weights_of(p, at.layer);
	l[0] = (struct linear){.y = part_of(p, m[0], at), .w = t[W1], .bias = t[B1]};
	l[1] = (struct linear){.y = part_of(p, m[1], at), .w = t[W3], .bias = t[B3]};
	return is_gated(p->m) ? 2 : 1;
}

/* ---- forward --------------------------------------------------------------------- */

static void enter(
	struct pass *p, struct at at, struct sublayer_acts *a, struct slice_gather *h)
{
	struct linear l[2];
	int n = enter_linears(p, at, &a->m[A], l);
	if (fuses_gelu(p, at.layer))
		l[0].gelu = part_of(p, a->m[Y], at);
	linear_enter(p, at, h, l, n);
	check_finite(p, "feed_forward.w1", at.layer, l[0].y);
	check_finite(p, "feed_forward.w3", at.layer, l[1].y);
}

static void inner(struct pass *p, int64_t layer, struct sublayer_acts *a)
{
	struct at at = {.layer = layer};
	if (fuses_gelu(p, layer))
		return;
	for (at.chunk = 0; at.chunk < p->cp.local; at.chunk++)
		for (at.slice = 0; at.slice < p->tp.local; at.slice++)
			p->d->k->act_fwd(p->d, p->m->act, part_of(p, a->m[Y], at),
				part_of(p, a->m[A], at), part_of(p, a->m[B], at));
}

static void leave(
	struct pass *p, struct at at, struct sublayer_acts *a, struct slice_sum *sum)
{
	linear_leave(p, at, sum, part_of(p, a->m[Y], at), weights_of(p, at.layer)[W2]);
}

/* ---- backward -------------------------------------------------------------------- */

/* The gradient of y is stored in da until inner_backward(). */
static void leave_backward(struct pass *p, struct at at, struct sublayer_acts *a,
	struct sublayer_grads *g, struct slice_gather *d)
{
	struct mat dy = part_of(p, g->m[DA], at);
	struct mat slope = fuses_slope(p, at.layer) ? part_of(p, a->m[A], at) : no_mat();
	linear_leave_backward(p, at, dy, d, weights_of(p, at.layer)[W2], slope);
	check_gradient(p, "feed_forward.w2", at.layer, dy);
}

static void inner_backward(
	struct pass *p, int64_t layer, struct sublayer_acts *a, struct sublayer_grads *g)
{
	struct at at = {.layer = layer};
	if (fuses_slope(p, layer))
		return;
	for (at.chunk = 0; at.chunk < p->cp.local; at.chunk++)
		for (at.slice = 0; at.slice < p->tp.local; at.slice++) {
			struct mat da = part_of(p, g->m[DA], at);
			p->d->k->act_bwd(p->d, p->m->act, da, part_of(p, g->m[DB], at),
				da, part_of(p, a->m[A], at), part_of(p, a->m[B], at));
		}
}

static void enter_backward(
	struct pass *p, struct at at, struct sublayer_grads *g, struct slice_sum *sum)
{
	struct linear l[2];
	int n = enter_linears(p, at, &g->m[DA], l);
	linear_enter_backward(p, at, sum, l, n);
}

static void weights(
	struct pass *p, struct at at, struct sublayer_acts *a, struct sublayer_grads *g)
{
	struct linear l[2];
	const struct linear out = {
		.y = chunk_of(p, g->d, at.chunk), .w = weights_of(p, at.layer)[W2]};
	int n = enter_linears(p, at, &g->m[DA], l);
	linear_weights(p, at, part_of(p, a->m[Y], at), &out, 1);
	linear_weights(p, at, chunk_of(p, a->h, at.chunk), l, n);
}

const struct sublayer ffn_dense = {
	.norm = "ffn_norm",
	.out = "feed_forward.w2",
	.drop = DROP_FFN,
	.cheap_inner = true,
	.tensors = tensors,
	.rooms = rooms,
	.enter = enter,
	.inner = inner,
	.leave = leave,
	.leave_backward = leave_backward,
	.inner_backward = inner_backward,
	.enter_backward = enter_backward,
	.weights = weights,
};
