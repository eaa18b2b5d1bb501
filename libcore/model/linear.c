/*
 * Linear layers in the precision of the run: what is cast, where and to what.
 *
 * bf16 and fp16 are those of torch.autocast: operands of products are rounded, the product
 * is summed in fp32 and rounded. Norms, softmax, the residual stream, sums over slices and
 * micro-batches and the biases after them, master weights and the optimizer stay fp32. The
 * kernels of attention get rounded operands, and keep their probabilities in fp32.
 *
 * float8 is torchao's recipe of tensor-wise, dynamic scales, which torchtitan uses: bf16,
 * but for the linear layers of blocks, where operands of the forward are e4m3, gradients
 * e5m2, each with the scale that its largest number asks for. The head stays bf16, and so
 * do the first and the last block unless asked for.
 *
 * Law 1: a cast is elementwise, and a scale belongs to a whole weight or to the rows of one
 * chunk and slice, whoever computes them.
 */
#include "model/layers.h"

#include <string.h>

const char *const precision_names[] = {"fp32", "bf16", "fp16", "float8", NULL};

void pass_precision(
	struct pass *p, enum precision precision, bool skip_ends, struct arena *run)
{
	p->precision = precision;
	p->float8_skip_ends = skip_ends;
	if (precision == PRECISION_FLOAT8)
		p->weight_amax = arena_floats(run, p->m->n_tensors);
}

/* The format of activations, and of results of products. */
static enum dtype format_of(const struct pass *p)
{
	static const enum dtype formats[] = {DT_F32, DT_BF16, DT_F16, DT_BF16};
	return formats[p->precision];
}

static bool is_float8(const struct pass *p, int64_t layer)
{
	bool end = layer == 0 || layer == p->m->c.layers - 1;
	return p->precision == PRECISION_FLOAT8 && layer >= 0 &&
	       !(end && p->float8_skip_ends);
}

bool linear_rounds(const struct pass *p)
{
	return p->precision != PRECISION_FP32;
}

void linear_round(struct pass *p, struct mat x)
{
	if (linear_rounds(p))
		p->d->k->round(p->d, x, x, format_of(p), 1);
}

/* What goes into a product, and what the result is multiplied by for its sake. */
struct operand {
	struct mat m;
	float inverse;
};

static struct mat blank(struct pass *p, struct mat like)
{
	return mat(arena_floats(p->d->scratch, mat_size(like)), like.rows, like.cols);
}

/* torchao: the scale in fp64, because 1 / amax differs between its backends in fp32. */
static struct operand scaled(struct pass *p, struct mat x, enum dtype type, float amax)
{
	const double eps = 1e-12, largest = type == DT_E4M3 ? 448 : 57344;
	double most = (double)amax < eps ? eps : (double)amax; /* NaN goes on */
	float scale = (float)(largest / most);
	struct operand o = {blank(p, x), 1.0f / scale};
	p->d->k->round(p->d, o.m, x, type, scale);
	return o;
}

/* An activation or a gradient, rounded in place; for float8, to scratch. */
static struct operand activation(
	struct pass *p, int64_t layer, struct mat x, enum dtype float8)
{
	linear_round(p, x);
	if (!is_float8(p, layer))
		return (struct operand){x, 1};
	return scaled(p, x, float8, p->d->k->amax(p->d, x));
}

/* Collective over the ranks that share the slices. The largest number of a whole weight:
 * its bits without a sign are in its order, and NaN is above all. */
static float weight_amax(struct pass *p, const struct tensor *w)
{
	int32_t most = 0;
	for (int s = 0; s < (w->slices > 1 ? p->tp.here : 1); s++) {
		int32_t bits;
		float amax = p->d->k->amax(p->d, param(p, w, s));
		memcpy(&bits, &amax, sizeof(bits));
		most = bits > most ? bits : most;
	}
	comm_run(p->tp.axis, COLL_ALLREDUCE,
		&(struct coll_args){
			.recv = &most, .count = 1, .type = COMM_I32, .op = COMM_MAX});
	float amax;
	memcpy(&amax, &most, sizeof(amax));
	return amax;
}

/* Found in a forward, once for all slices; the backward has the same weights. */
static float known_amax(struct pass *p, const struct tensor *w, int s, bool forward)
{
	float *amax = &p->weight_amax[w - p->m->tensors];
	if (arena_measuring(p->d->scratch)) /* a plan has no numbers */
		return 1;
	if (forward && s == 0)
		*amax = weight_amax(p, w);
	return *amax;
}

/* The master weight is left as it is. */
static struct operand weight(
	struct pass *p, int64_t layer, const struct tensor *w, int s, bool forward)
{
	struct mat m = param(p, w, s);
	if (is_float8(p, layer))
		return scaled(p, m, DT_E4M3, known_amax(p, w, s, forward));
	struct operand o = {blank(p, m), 1};
	p->d->k->round(p->d, o.m, m, format_of(p), 1);
	return o;
}

static struct mat rounded_bias(struct pass *p, const struct tensor *bias, int s)
{
	if (!bias)
		return no_mat();
	struct mat b = param(p, bias, s), r = blank(p, b);
	p->d->k->round(p->d, r, b, format_of(p), 1);
	return r;
}

void linear_forward(struct pass *p, int64_t layer, struct mat y, struct mat x,
	const struct tensor *w, const struct tensor *bias, int s)
{
	const struct kernels *k = p->d->k;
	if (!linear_rounds(p)) {
		k->linear_fwd(p->d, y, x, param(p, w, s), param(p, bias, s));
		return;
	}
	size_t mark = arena_mark(p->d->scratch);
	bool float8 = is_float8(p, layer);
	struct operand a = activation(p, layer, x, DT_E4M3);
	struct operand b = weight(p, layer, w, s, true);
	struct mat r = rounded_bias(p, bias, s);
	k->linear_fwd(p->d, y, a.m, b.m, float8 ? no_mat() : r);
	k->round(p->d, y, y, format_of(p), a.inverse * b.inverse);
	if (float8 && bias) { /* as torchao: a sum of two numbers of bf16 */
		k->bias_fwd(p->d, y, r);
		linear_round(p, y);
	}
	arena_reset(p->d->scratch, mark);
}

void linear_backward_x(struct pass *p, int64_t layer, struct mat dx, struct mat dy,
	const struct tensor *w, int s, bool add)
{
	const struct kernels *k = p->d->k;
	if (!linear_rounds(p)) {
		k->linear_bwd_x(p->d, dx, dy, param(p, w, s), add);
		return;
	}
	size_t mark = arena_mark(p->d->scratch);
	struct operand a = activation(p, layer, dy, DT_E5M2);
	struct operand b = weight(p, layer, w, s, false);
	struct mat out = add ? blank(p, dx) : dx;
	k->linear_bwd_x(p->d, out, a.m, b.m, false);
	k->round(p->d, out, out, format_of(p), a.inverse * b.inverse);
	if (add)
		k->add(p->d, dx, dx, out);
	arena_reset(p->d->scratch, mark);
}

void linear_backward_w(struct pass *p, int64_t layer, const struct tensor *w, int s,
	struct mat dy, struct mat x, bool add)
{
	const struct kernels *k = p->d->k;
	struct mat dw = leaf(p, w, s);
	if (!linear_rounds(p)) {
		k->linear_bwd_w(p->d, dw, dy, x, add);
		return;
	}
	size_t mark = arena_mark(p->d->scratch);
	struct operand a = activation(p, layer, dy, DT_E5M2);
	struct operand b = activation(p, layer, x, DT_E4M3);
	k->linear_bwd_w(p->d, dw, a.m, b.m, add);
	if (is_float8(p, layer)) {
		BUG_ON(add); /* products with other scales are no one sum */
		k->round(p->d, dw, dw, DT_F32, a.inverse * b.inverse);
	}
	arena_reset(p->d->scratch, mark);
}

void linear_leaf_done(struct pass *p, const struct tensor *w, int s)
{
	linear_round(p, leaf(p, w, s));
	leaf_done(p, w, s);
}
