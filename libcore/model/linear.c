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

#include <stdlib.h>
#include <string.h>

const char *const precision_names[] = {"fp32", "bf16", "fp16", "float8", NULL};

void pass_precision(struct pass *p, enum precision precision, bool skip_ends)
{
	p->precision = precision;
	p->float8_skip_ends = skip_ends;
	if (precision == PRECISION_FLOAT8)
		p->weight_amax =
			xcalloc((size_t)p->m->n_tensors, sizeof(*p->weight_amax));
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

static bool rounds(const struct pass *p)
{
	return p->precision != PRECISION_FP32;
}

enum dtype act_type(const struct pass *p)
{
	return p->d->narrow ? format_of(p) : DT_F32;
}

enum dtype sum_type(const struct pass *p)
{
	return p->cp.n > 1 ? DT_F32 : act_type(p);
}

void linear_round(struct pass *p, struct mat x)
{
	if (rounds(p) && x.type == DT_F32)
		p->d->k->round(p->d, x, x, format_of(p), 1);
}

void linear_cast(struct pass *p, struct mat y, struct mat x)
{
	if (rounds(p))
		p->d->k->round(p->d, y, x, format_of(p), 1);
	else
		p->d->k->copy(p->d, y, x);
}

/* What goes into a product, and what the result is multiplied by for its sake. */
struct operand {
	struct mat m;
	float inverse;
};

static struct mat blank(struct pass *p, struct mat like, enum dtype type)
{
	return mat_take(
		p->d->scratch, like.rows, like.cols, p->d->narrow ? type : DT_F32);
}

/* torchao: the scale in fp64, because 1 / amax differs between its backends in fp32. */
static struct operand scaled(struct pass *p, struct mat x, enum dtype type, float amax)
{
	const double eps = 1e-12, largest = type == DT_E4M3 ? 448 : 57344;
	double most = (double)amax < eps ? eps : (double)amax; /* NaN goes on */
	float scale = (float)(largest / most);
	struct operand o = {blank(p, x, type), 1.0f / scale};
	p->d->k->round(p->d, o.m, x, type, scale);
	return o;
}

/* An activation or a gradient, rounded in place; to scratch for float8, and where it is fp32
 * as a sum that is to be stored narrow. */
static struct operand activation(
	struct pass *p, int64_t layer, struct mat x, enum dtype float8)
{
	if (x.type == act_type(p)) {
		linear_round(p, x);
	} else {
		struct mat cast = blank(p, x, format_of(p));
		linear_cast(p, cast, x);
		x = cast;
	}
	if (!is_float8(p, layer))
		return (struct operand){x, 1};
	return scaled(p, x, float8, p->d->k->amax(p->d, x));
}

/* The largest number of this rank's slices of a weight, by its bits: without a sign they
 * are in the order of the numbers, and NaN is above all. */
static int32_t amax_here(struct pass *p, const struct tensor *w)
{
	int32_t most = 0;
	for (int i = w->first; i < w->first + w->here; i++) {
		int32_t bits;
		float amax = p->d->k->amax(p->d, store_param(p->store, w, i));
		memcpy(&bits, &amax, sizeof(bits));
		most = bits > most ? bits : most;
	}
	return most;
}

/* Of whole weights, all of the block at once. What the backward will be asked for, and a
 * forward that is done again, is kept. */
void linear_begin(struct pass *p, int64_t layer)
{
	const struct block_tensors *t = &p->m->blocks[layer];
	const struct tensor *w[] = {t->wq, t->wk, t->wv, t->wo, t->w1, t->w2, t->w3};
	int n = t->w3 ? ARRAY_LEN(w) : ARRAY_LEN(w) - 1;
	int32_t most[ARRAY_LEN(w)];
	if (!is_float8(p, layer))
		return;
	for (int i = 0; i < n; i++)
		most[i] = amax_here(p, w[i]);
	comm_run(p->tp.axis, COLL_ALLREDUCE,
		&(struct coll_args){
			.recv = most, .count = n, .type = COMM_I32, .op = COMM_MAX});
	if (arena_measuring(p->d->scratch)) /* a plan has no numbers */
		return;
	for (int i = 0; i < n; i++)
		memcpy(&p->weight_amax[w[i] - p->m->tensors], &most[i], sizeof(most[i]));
}

static float amax_of(const struct pass *p, const struct tensor *w)
{
	return arena_measuring(p->d->scratch) ? 1 : p->weight_amax[w - p->m->tensors];
}

/* A parameter as products take it: the store may have it so. */
static struct mat cast_param(
	struct pass *p, const struct tensor *t, int s, struct mat master)
{
	struct mat copy = no_mat();
	if (p->d->narrow)
		copy = store_operand(p->store, t, tensor_slice(t, p->tp.first + s));
	if (copy.p)
		return copy;
	copy = blank(p, master, format_of(p));
	linear_cast(p, copy, master);
	return copy;
}

/* The master weight is left as it is. */
static struct operand weight(struct pass *p, int64_t layer, const struct tensor *w, int s)
{
	struct mat m = param(p, w, s);
	if (!rounds(p))
		return (struct operand){m, 1};
	if (is_float8(p, layer))
		return scaled(p, m, DT_E4M3, amax_of(p, w));
	return (struct operand){cast_param(p, w, s, m), 1};
}

static struct mat rounded_bias(struct pass *p, const struct tensor *bias, int s)
{
	if (!bias || !rounds(p))
		return param(p, bias, s);
	return cast_param(p, bias, s, param(p, bias, s));
}

/* ---- products of rows, whose operands are rounded --------------------------------- */

/* Where the result of a product goes: one that is stored narrow and has yet to be multiplied
 * by what its operands were divided by is rounded once, after that. */
static struct mat result_room(struct pass *p, struct mat y, float scale)
{
	return y.type == DT_F32 || scale == 1 ? y : blank(p, y, DT_F32);
}

static void round_result(struct pass *p, struct mat y, struct mat product, float scale)
{
	if (rounds(p) && (product.type == DT_F32 || scale != 1))
		p->d->k->round(p->d, y, product, format_of(p), scale);
}

static void forward_rows(struct pass *p, int64_t layer, struct mat y, struct operand x,
	struct operand w, struct mat bias)
{
	const struct kernels *k = p->d->k;
	bool float8 = is_float8(p, layer);
	float scale = x.inverse * w.inverse;
	size_t mark = arena_mark(p->d->scratch);
	struct mat product = result_room(p, y, scale);
	k->linear_fwd(p->d, product, x.m, w.m, float8 ? no_mat() : bias);
	round_result(p, y, product, scale);
	arena_reset(p->d->scratch, mark);
	if (float8 && bias.p) { /* as torchao: a sum of two numbers of bf16 */
		k->bias_fwd(p->d, y, bias);
		linear_round(p, y);
	}
}

static void backward_rows(
	struct pass *p, struct mat dx, struct operand dy, struct operand w, bool add)
{
	const struct kernels *k = p->d->k;
	if (!rounds(p)) {
		k->linear_bwd_x(p->d, dx, dy.m, w.m, add);
		return;
	}
	float scale = dy.inverse * w.inverse;
	size_t mark = arena_mark(p->d->scratch);
	struct mat out = add ? blank(p, dx, format_of(p)) : dx;
	struct mat product = result_room(p, out, scale);
	k->linear_bwd_x(p->d, product, dy.m, w.m, false);
	round_result(p, out, product, scale);
	if (add)
		k->add(p->d, dx, dx, out);
	arena_reset(p->d->scratch, mark);
}

/* ---- whole products -------------------------------------------------------------- */

void linear_forward(struct pass *p, int64_t layer, struct mat y, struct mat x,
	const struct tensor *w, const struct tensor *bias, int s)
{
	size_t mark = arena_mark(p->d->scratch);
	struct operand a = activation(p, layer, x, DT_E4M3);
	struct operand b = weight(p, layer, w, s);
	forward_rows(p, layer, y, a, b, rounded_bias(p, bias, s));
	arena_reset(p->d->scratch, mark);
}

bool linear_gives_gelu(const struct pass *p, int64_t layer)
{
	return p->d->narrow && rounds(p) && !is_float8(p, layer) && !p->plain_kernels &&
	       p->m->act == ACT_GELU_TANH && p->recompute != RECOMPUTE_SELECTIVE;
}

/* ---- piece by piece --------------------------------------------------------------- */

static struct operand operand_rows(struct operand x, int64_t first, int64_t n)
{
	return (struct operand){mat_rows(x.m, first, n), x.inverse};
}

/* What was rounded before it was gathered. The scale of float8 is that of all rows, so it
 * waits for them. */
static struct operand gathered(
	struct pass *p, int64_t layer, struct slice_gather *x, enum dtype float8)
{
	if (!is_float8(p, layer))
		return (struct operand){x->all, 1};
	slice_gather_end(x);
	return activation(p, layer, x->all, float8);
}

/* The rows of turn i, when they have come. */
static int64_t turn_rows(struct pass *p, struct slice_gather *x, int i, int64_t *first)
{
	int piece = slice_turn(&p->tp, i);
	slice_gather_wait(x, piece);
	return slice_piece(&p->tp, p->rows, piece, first);
}

void linear_enter(struct pass *p, int64_t layer, struct slice_gather *x,
	const struct linear *l, int n, int s)
{
	struct operand w[LINEAR_MOST];
	struct mat bias[LINEAR_MOST];
	size_t mark = arena_mark(p->d->scratch);
	struct operand all = gathered(p, layer, x, DT_E4M3);
	BUG_ON(n > LINEAR_MOST);
	for (int i = 0; i < n; i++) {
		w[i] = weight(p, layer, l[i].w, s);
		bias[i] = rounded_bias(p, l[i].bias, s);
	}
	for (int turn = 0; turn < p->tp.n; turn++) {
		int64_t first, rows = turn_rows(p, x, turn, &first);
		struct operand piece = operand_rows(all, first, rows);
		for (int i = 0; i < n && rows; i++) {
			struct mat y = mat_rows(l[i].y, first, rows);
			if (l[i].gelu.p)
				p->d->k->linear_gelu_fwd(p->d,
					mat_rows(l[i].gelu, first, rows), y, piece.m,
					w[i].m, bias[i]);
			else
				forward_rows(p, layer, y, piece, w[i], bias[i]);
		}
		watch(p, NULL, layer, no_mat());
	}
	arena_reset(p->d->scratch, mark);
}

/* Where numbers are stored narrow, products are added to what is there in fp32, where they are
 * made; else each is rounded first. */
void linear_backward_x(struct pass *p, int64_t layer, struct mat dx,
	const struct linear *l, int n, int s)
{
	bool within = p->d->narrow && n > 1 && dx.type == DT_F32 && !is_float8(p, layer);
	for (int i = 0; i < n; i++) {
		size_t mark = arena_mark(p->d->scratch);
		struct operand dy = activation(p, layer, l[i].y, DT_E5M2);
		struct operand w = weight(p, layer, l[i].w, s);
		if (within)
			p->d->k->linear_bwd_x(p->d, dx, dy.m, w.m, i > 0);
		else
			backward_rows(p, dx, dy, w, i > 0);
		arena_reset(p->d->scratch, mark);
	}
}

void linear_leave(struct pass *p, int64_t layer, struct slice_sum *sum, struct mat x,
	const struct tensor *w, int s)
{
	size_t mark = arena_mark(p->d->scratch);
	struct operand all = activation(p, layer, x, DT_E4M3);
	struct operand b = weight(p, layer, w, s);
	for (int turn = 0; turn < p->tp.n; turn++) {
		slice_sum_turn(sum, turn);
		if (sum->n)
			forward_rows(p, layer, slice_sum_slot(sum),
				operand_rows(all, sum->first, sum->n), b, no_mat());
		slice_sum_push(sum);
		watch(p, NULL, layer, no_mat());
	}
	arena_reset(p->d->scratch, mark);
}

void linear_leave_backward(struct pass *p, int64_t layer, struct mat dx,
	struct slice_gather *dy, const struct tensor *w, int s, struct mat gelu_of)
{
	size_t mark = arena_mark(p->d->scratch);
	struct operand all = gathered(p, layer, dy, DT_E5M2);
	struct operand b = weight(p, layer, w, s);
	for (int turn = 0; turn < p->tp.n; turn++) {
		int64_t first, n = turn_rows(p, dy, turn, &first);
		struct operand rows = operand_rows(all, first, n);
		struct mat to = mat_rows(dx, first, n);
		if (n && gelu_of.p)
			p->d->k->linear_gelu_bwd(
				p->d, to, rows.m, b.m, mat_rows(gelu_of, first, n));
		else if (n)
			backward_rows(p, to, rows, b, false);
		watch(p, NULL, layer, no_mat());
	}
	arena_reset(p->d->scratch, mark);
}

/* ---- gradients of weights ---------------------------------------------------------- */

void linear_backward_w(struct pass *p, int64_t layer, struct mat dw, struct mat dy,
	struct mat x, bool add)
{
	const struct kernels *k = p->d->k;
	if (!rounds(p)) {
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
