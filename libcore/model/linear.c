/* Linear layers in the precision of the run: which matrices are cast, and to which format.
 *
 * bf16 and fp16 follow torch.autocast: matmul operands are rounded, the result is accumulated in
 * fp32 and rounded. Norms, softmax, the residual stream (except the inputs of blocks, see
 * pass_config.residual), sums over slices and micro-batches and the biases after them, master
 * weights and the optimizer stay fp32. Attention kernels get rounded operands, and keep their
 * probabilities in fp32.
 *
 * float8 is torchao's recipe with dynamic tensor-wise scales, which torchtitan uses: bf16, except
 * that in the linear layers of blocks the operands of the forward are e4m3 and gradients e5m2,
 * each with a scale from its amax. The head stays bf16, and so may the first and the last block
 * (see model_set_float8()).
 *
 * Law 1 of pt(7): a cast is elementwise, and a scale belongs to a whole weight or to the rows of
 * one chunk and slice, on every layout. */
#include "model/linear.h"

const char *const precision_names[] = {"fp32", "bf16", "fp16", "float8", NULL};

enum dtype act_type(const struct pass *p)
{
	static const enum dtype formats[] = {DT_F32, DT_BF16, DT_F16, DT_BF16};
	return formats[p->c.precision];
}

static bool is_float8(const struct pass *p, int64_t layer)
{
	return p->c.precision == PRECISION_FLOAT8 && layer >= 0 &&
	       p->m->blocks[layer].operand[0]->float8;
}

static bool rounds(const struct pass *p)
{
	return p->c.precision != PRECISION_FP32;
}

enum dtype sum_type(const struct pass *p)
{
	return p->cp.n > 1 ? DT_F32 : act_type(p);
}

enum dtype slice_type(const struct pass *p)
{
	return p->tp.n == 1 ? act_type(p) : DT_F32;
}

void linear_round(struct pass *p, struct mat x)
{
	if (rounds(p) && x.type == DT_F32)
		p->d->k->round(p->d, x, x, act_type(p), 1);
}

void linear_cast(struct pass *p, struct mat y, struct mat x)
{
	if (rounds(p))
		p->d->k->round(p->d, y, x, act_type(p), 1);
	else
		p->d->k->copy(p->d, y, x);
}

static struct mat take_like(struct pass *p, struct mat like, enum dtype type)
{
	return mat_alloc(p->d->scratch, like.rows, like.cols, type);
}

/* The dimension that a matmul sums over: matrix units need 8-bit operands contiguous along it. */
enum sum_over { SUM_COLS, SUM_ROWS };

/* Allocates n scales in device memory. All scales of operands are allocated here. */
static struct mat_scale *take_scales(struct arena *a, int64_t n)
{
	return arena_alloc(a, (size_t)n * sizeof(struct mat_scale));
}

/* Returns the float8 operand: x times a scale from its amax, which the device computes. `inverse`
 * receives the inverse, which the matmul applies. If x keeps a transposed cast, both casts are
 * computed at the first request, which is for SUM_COLS. */
static struct mat cast_scaled(struct pass *p, struct mat x, enum dtype type,
	const float *amax, float *inverse, enum sum_over over)
{
	struct mat y = mat_typed(NULL, x.rows, x.cols, type);
	y.scale = inverse;
	y.transposed = x.transposed;
	if (over == SUM_ROWS && x.transposed)
		return y;
	void *cast = arena_alloc(p->d->scratch, (size_t)mat_bytes(y));
	if (over == SUM_ROWS)
		y.transposed = cast;
	else
		y.p = cast;
	p->d->k->round_scaled(p->d, y, inverse, x, type, amax);
	return y;
}

/* Returns the operand for an activation or a gradient: x itself, or a cast in scratch memory
 * (float8, or an fp32 sum). x.amax, if set, has been computed. */
static struct mat cast_activation(struct pass *p, int64_t layer, struct mat x,
	enum dtype float8, enum sum_over over)
{
	if (x.type != act_type(p)) {
		struct mat cast = take_like(p, x, act_type(p));
		linear_cast(p, cast, x);
		x = cast;
	}
	if (!is_float8(p, layer))
		return x;
	if (!x.amax) {
		x.amax = &take_scales(p->d->scratch, 1)->amax;
		p->d->k->zero(p->d, mat(x.amax, 1, 1));
		p->d->k->amax(p->d, x.amax, x);
	}
	return cast_scaled(p, x, float8, x.amax, &mat_scale_of(x.amax)->scale, over);
}

/* ---- casts of activations and gradients that are kept ------------------------------- */

bool linear_keeps_casts(const struct pass *p, int64_t layer)
{
	return pass_recomputes(p, layer) == RECOMPUTE_NONE && is_float8(p, layer);
}

struct mat linear_alloc_casts(const struct pass *p, int64_t layer, struct mat *const x[],
	int n, bool keep, struct arena *a)
{
	int64_t count = 0;
	if (!is_float8(p, layer))
		return no_mat();
	for (int i = 0; i < n; i++)
		count += x[i]->type == act_type(p) ? x[i]->rows / p->rows : 0;
	struct mat_scale *next = take_scales(a, count);
	const int64_t floats = (int64_t)(sizeof(*next) / sizeof(float));
	struct mat all_amax = mat(next, count, floats);
	for (int i = 0; i < n; i++) {
		if (!x[i]->rows || x[i]->type != act_type(p))
			continue;
		x[i]->amax = &next->amax;
		if (keep)
			x[i]->transposed = arena_alloc(a, (size_t)mat_size(*x[i]));
		next += x[i]->rows / p->rows;
	}
	return all_amax;
}

void linear_amax(struct pass *p, struct mat x)
{
	if (x.amax)
		p->d->k->amax(p->d, x.amax, x);
}

void linear_amax_begin(struct pass *p, struct mat amax)
{
	if (amax.p)
		p->d->k->zero(p->d, amax);
}

struct mat linear_cast_of(const struct pass *p, int64_t layer, struct mat x)
{
	if (!is_float8(p, layer)) {
		x.amax = NULL;
		x.transposed = NULL;
	}
	return x;
}

/* Returns the bytes of the transposed casts of the first n tensors. */
static int64_t transposed_bytes(const struct pass *p, int64_t n)
{
	int64_t bytes = 0;
	for (const struct tensor *t = p->m->tensors; t < p->m->tensors + n; t++)
		bytes += t->float8 ? t->local * t->rows * t->cols : 0;
	return bytes;
}

/* The backward needs transposed casts of weights. The forward computes them together with its own
 * casts, unless parameters are gathered for each use: then casts are recomputed, not kept. */
void linear_alloc(struct pass *p, struct arena *run)
{
	if (p->c.precision != PRECISION_FLOAT8)
		return;
	const struct store_config *c = &p->store->c;
	p->float8.scale = take_scales(run, p->m->n_tensors);
	if (c->zero < 3 && !offloads_params(c->offload))
		p->float8.transposed =
			arena_alloc(run, (size_t)transposed_bytes(p, p->m->n_tensors));
}

static struct mat float8_weight(struct pass *p, struct at at, const struct tensor *w,
	struct mat m, enum sum_over over)
{
	int64_t number = w - p->m->tensors;
	int slice = tensor_slice(w, p->tp.first + at.slice) - w->first;
	if (p->float8.transposed)
		m.transposed = p->float8.transposed + transposed_bytes(p, number) +
			       slice * mat_size(m);
	return cast_scaled(p, m, DT_E4M3, store_amax(p->store, w),
		&p->float8.scale[number].scale, over);
}

/* Returns a parameter from the store: in the format of operands, or the master weight. */
static struct mat stored_param(struct pass *p, const struct tensor *t, int s)
{
	struct mat copy = no_mat();
	if (rounds(p))
		copy = store_operand(p->store, t, tensor_slice(t, p->tp.first + s));
	return copy.p ? copy : param(p, t, s);
}

static struct mat cast_stored(struct pass *p, struct mat x)
{
	if (x.type == act_type(p))
		return x;
	struct mat y = take_like(p, x, act_type(p));
	linear_cast(p, y, x);
	return y;
}

/* Returns a parameter (or nothing) in the format of operands. Does not change the master weight. */
static struct mat cast_param(struct pass *p, const struct tensor *t, int s)
{
	return t ? cast_stored(p, stored_param(p, t, s)) : no_mat();
}

static struct mat cast_weight(
	struct pass *p, struct at at, const struct tensor *w, enum sum_over over)
{
	if (is_float8(p, at.layer))
		return float8_weight(p, at, w, param(p, w, at.slice), over);
	return cast_param(p, w, at.slice);
}

/* ---- several outputs as one -------------------------------------------------------- */

bool linear_joins(const struct pass *p, int64_t layer)
{
	return p->cp.n == 1 && !is_float8(p, layer);
}

static bool is_joined(const struct linear *l)
{
	return l->y.stride;
}

/* Returns the whole matrix that begins with the columns of y. */
static struct mat joined(struct mat y)
{
	return mat_typed(y.p, y.rows, y.stride, y.type);
}

/* Returns n weights stacked by rows: in the store if they are adjacent there, else a copy. */
static struct mat stacked_weights(
	struct pass *p, struct at at, const struct linear *l, int n)
{
	struct mat all = stored_param(p, l->w, at.slice);
	bool adjacent = true;
	for (int i = 1; i < n; i++) {
		struct mat w = stored_param(p, l[i].w, at.slice);
		adjacent &= (char *)w.p == (char *)all.p + mat_bytes(all);
		all.rows += w.rows;
	}
	if (adjacent)
		return cast_stored(p, all);
	all = take_like(p, all, act_type(p));
	for (int64_t i = 0, row = 0; i < n; i++) {
		struct mat w = stored_param(p, l[i].w, at.slice);
		struct mat to = mat_rows(all, row, w.rows);
		if (w.type == all.type)
			p->d->k->copy(p->d, to, w);
		else
			linear_cast(p, to, w);
		row += w.rows;
	}
	return all;
}

/* ---- matmuls of rounded operands --------------------------------------------------- */

static void forward_rows(
	struct pass *p, struct mat y, struct mat x, struct mat w, struct mat bias)
{
	p->ops.linear(p->d, y, x, w, bias);
	linear_round(p, y);
}

static void backward_rows(
	struct pass *p, struct mat dx, struct mat dy, struct mat w, bool add)
{
	const struct kernels *k = p->d->k;
	if (!rounds(p)) {
		k->linear_bwd_x(p->d, dx, dy, w, add);
		return;
	}
	size_t mark = arena_mark(p->d->scratch);
	struct mat out = add ? take_like(p, dx, act_type(p)) : dx;
	k->linear_bwd_x(p->d, out, dy, w, false);
	linear_round(p, out);
	if (add)
		k->add(p->d, dx, dx, out);
	arena_reset(p->d->scratch, mark);
}

/* ---- matmuls of all rows --------------------------------------------------------- */

void linear_forward(struct pass *p, struct at at, const struct linear *l, struct mat x)
{
	size_t mark = arena_mark(p->d->scratch);
	struct mat a = cast_activation(p, at.layer, x, DT_E4M3, SUM_COLS);
	struct mat b = cast_weight(p, at, l->w, SUM_COLS);
	forward_rows(p, l->y, a, b, cast_param(p, l->bias, at.slice));
	arena_reset(p->d->scratch, mark);
	comm_poll();
}

void linear_loss(struct pass *p, const struct linear *l, struct mat x, float *loss,
	const int32_t *targets, struct xent_terms terms)
{
	const struct at head = {-1, 0, 0};
	size_t mark = arena_mark(p->d->scratch);
	struct mat a = cast_activation(p, head.layer, x, DT_E4M3, SUM_COLS);
	struct mat b = cast_weight(p, head, l->w, SUM_COLS);
	p->d->k->linear_xent(p->d, loss, l->y, a, b, targets, p->m->c.vocab, terms,
		&p->step->loss_scale);
	arena_reset(p->d->scratch, mark);
	comm_poll();
}

static void backward_joined(
	struct pass *p, struct at at, struct mat dx, const struct linear *l, int n)
{
	size_t mark = arena_mark(p->d->scratch);
	backward_rows(p, dx, joined(l->y), stacked_weights(p, at, l, n), false);
	arena_reset(p->d->scratch, mark);
	comm_poll();
}

/* Accumulates in the kernel if dx is fp32; in 16 bits, rounds each result before it is added. */
void linear_backward_x(
	struct pass *p, struct at at, struct mat dx, const struct linear *l, int n)
{
	bool accumulates = n > 1 && dx.type == DT_F32;
	if (is_joined(l)) {
		backward_joined(p, at, dx, l, n);
		return;
	}
	for (int i = 0; i < n; i++) {
		size_t mark = arena_mark(p->d->scratch);
		struct mat dy = cast_activation(p, at.layer, l[i].y, DT_E5M2, SUM_COLS);
		struct mat w = cast_weight(p, at, l[i].w, SUM_ROWS);
		if (accumulates)
			p->d->k->linear_bwd_x(p->d, dx, dy, w, i > 0);
		else
			backward_rows(p, dx, dy, w, i > 0);
		arena_reset(p->d->scratch, mark);
		comm_poll();
	}
}

void linear_backward_w(struct pass *p, int64_t layer, struct mat dw, struct mat dy,
	struct mat x, bool add)
{
	size_t mark = arena_mark(p->d->scratch);
	if (rounds(p)) {
		dy = cast_activation(p, layer, dy, DT_E5M2, SUM_ROWS);
		x = cast_activation(p, layer, x, DT_E4M3, SUM_ROWS);
	}
	BUG_ON(add && dy.scale); /* results with different scales cannot be accumulated */
	p->d->k->linear_bwd_w(p->d, dw, dy, x, add);
	arena_reset(p->d->scratch, mark);
	comm_poll();
}

bool linear_fuses(const struct pass *p, int64_t layer)
{
	return rounds(p) && !is_float8(p, layer);
}

bool linear_sums_slope(const struct pass *p)
{
	return p->tp.n == 1 && !p->c.plain_kernels;
}

/* ---- matmuls piece by piece -------------------------------------------------------- */

/* Returns the gathered operand; its rows were rounded before. A float8 scale depends on all rows,
 * so float8 waits for the gather. */
static struct mat cast_gathered(
	struct pass *p, int64_t layer, struct slice_gather *x, enum dtype float8)
{
	if (!is_float8(p, layer))
		return x->all;
	slice_gather_end(x);
	if (x->s->sp && x->s->axis->size > 1) /* over the rows of all ranks */
		linear_amax(p, x->all);
	return cast_activation(p, layer, x->all, float8, SUM_COLS);
}

/* Waits for the rows of turn i. Returns their number; *first is the first one. */
static int64_t wait_turn(struct pass *p, struct slice_gather *x, int i, int64_t *first)
{
	int piece = slice_turn(&p->tp, i);
	slice_gather_wait(x, piece);
	return slice_piece(&p->tp, p->rows, piece, first);
}

void linear_enter(struct pass *p, struct at at, struct slice_gather *x,
	const struct linear *l, int n)
{
	struct mat w[SUBLAYER_INPUTS], bias[SUBLAYER_INPUTS];
	size_t mark = arena_mark(p->d->scratch);
	bool some = false;
	BUG_ON(n > SUBLAYER_INPUTS);
	for (int i = 0; i < n; i++)
		some |= l[i].y.p != NULL;
	if (!some)
		return;
	param_use(p, l->w, at.slice);
	struct mat all = cast_gathered(p, at.layer, x, DT_E4M3);
	for (int i = 0; i < n; i++) {
		if (!l[i].y.p)
			continue;
		w[i] = cast_weight(p, at, l[i].w, SUM_COLS);
		bias[i] = cast_param(p, l[i].bias, at.slice);
	}
	for (int turn = 0; turn < p->tp.n; turn++) {
		int64_t first, rows = wait_turn(p, x, turn, &first);
		struct mat piece = mat_rows(all, first, rows);
		for (int i = 0; i < n && rows; i++) {
			if (!l[i].y.p)
				continue;
			struct mat y = mat_rows(l[i].y, first, rows);
			if (l[i].gelu.p)
				p->d->k->linear_gelu_fwd(p->d,
					mat_rows(l[i].gelu, first, rows), y, piece, w[i],
					bias[i]);
			else
				forward_rows(p, y, piece, w[i], bias[i]);
		}
		comm_poll();
	}
	param_done(p, l->w, at.slice);
	arena_reset(p->d->scratch, mark);
}

void linear_enter_backward(struct pass *p, struct at at, struct slice_sum *sum,
	const struct linear *l, int n)
{
	param_use(p, l->w, at.slice);
	linear_backward_x(p, at, slice_sum_slot(sum), l, n);
	param_done(p, l->w, at.slice);
	slice_sum_push(sum);
}

void linear_leave(struct pass *p, struct at at, struct slice_sum *sum, struct mat x,
	const struct tensor *w)
{
	size_t mark = arena_mark(p->d->scratch);
	param_use(p, w, at.slice);
	struct mat all = cast_activation(p, at.layer, x, DT_E4M3, SUM_COLS);
	struct mat b = cast_weight(p, at, w, SUM_COLS);
	for (int turn = 0; turn < p->tp.n; turn++) {
		slice_sum_turn(sum, turn);
		if (sum->n)
			forward_rows(p, slice_sum_slot(sum),
				mat_rows(all, sum->first, sum->n), b, no_mat());
		slice_sum_push(sum);
		comm_poll();
	}
	param_done(p, w, at.slice);
	arena_reset(p->d->scratch, mark);
}

void linear_leave_backward(struct pass *p, struct at at, struct mat dx,
	struct slice_gather *dy, const struct tensor *w, struct mat gelu_of,
	struct mat sums)
{
	size_t mark = arena_mark(p->d->scratch);
	param_use(p, w, at.slice);
	struct mat all = cast_gathered(p, at.layer, dy, DT_E5M2);
	struct mat b = cast_weight(p, at, w, SUM_ROWS);
	for (int turn = 0; turn < p->tp.n; turn++) {
		int64_t first, n = wait_turn(p, dy, turn, &first);
		struct mat rows = mat_rows(all, first, n), to = mat_rows(dx, first, n);
		if (n && gelu_of.p)
			p->d->k->linear_gelu_bwd(
				p->d, to, rows, b, mat_rows(gelu_of, first, n), sums);
		else if (n)
			backward_rows(p, to, rows, b, false);
		comm_poll();
	}
	param_done(p, w, at.slice);
	arena_reset(p->d->scratch, mark);
}

/* Returns the type in which the matmul writes a leaf. With float8 it is fp32, because not every
 * matmul multiplies by the scales before it rounds. */
static enum dtype leaf_type(const struct pass *p, int64_t layer)
{
	return is_float8(p, layer) ? DT_F32 : act_type(p);
}

/* Computes a weight's leaf; `all`: joined leaves that have it from row `at_col` on, or empty. */
static void weight_leaf(struct pass *p, struct at at, struct mat x,
	const struct linear *l, struct mat all, int64_t at_col)
{
	const struct tensor *w = l->w;
	size_t mark = arena_mark(p->d->scratch);
	if (w->frozen)
		return;
	if (all.p) {
		add_leaf(p, w, at, mat_rows(all, at_col, w->rows));
	} else if (leaf_type(p, at.layer) == DT_F32) {
		struct mat dw = leaf(p, w, at);
		linear_backward_w(p, at.layer, dw, l->y, x, false);
		linear_round(p, dw);
		leaf_done(p, w, at, 0);
	} else {
		struct mat dw = mat_alloc(p->d->scratch, w->rows, w->cols, act_type(p));
		linear_backward_w(p, at.layer, dw, l->y, x, false);
		add_leaf(p, w, at, dw);
	}
	arena_reset(p->d->scratch, mark);
}

static void bias_leaf(struct pass *p, struct at at, const struct linear *l,
	struct mat all, int64_t at_col)
{
	if (l->bias->frozen)
		return;
	struct mat db = leaf(p, l->bias, at);
	if (all.p)
		p->d->k->copy(p->d, db, mat_rows(all, at_col, db.cols));
	else if (l->sums.p)
		p->d->k->copy(p->d, db, l->sums);
	else
		p->d->k->bias_bwd(p->d, db, l->y);
	leaf_done(p, l->bias, at, 0);
}

/* Returns true if any of the weights, or of the biases, is trained. */
static bool some_train(const struct linear *l, int n, bool bias)
{
	for (int i = 0; i < n; i++) {
		const struct tensor *t = bias ? l[i].bias : l[i].w;
		if (t && !t->frozen)
			return true;
	}
	return false;
}

void linear_weights(
	struct pass *p, struct at at, struct mat x, const struct linear *l, int n)
{
	size_t mark = arena_mark(p->d->scratch);
	struct mat dw = no_mat(), db = no_mat();
	if (is_joined(l)) {
		struct mat dy = joined(l->y);
		if (some_train(l, n, false)) {
			dw = mat_alloc(p->d->scratch, dy.cols, x.cols, act_type(p));
			linear_backward_w(p, at.layer, dw, dy, x, false);
		}
		if (some_train(l, n, true)) {
			db = mat_alloc(p->d->scratch, dy.cols, 1, DT_F32);
			p->d->k->bias_bwd(p->d, mat(db.p, 1, dy.cols), dy);
		}
	}
	int64_t at_col = 0;
	for (int i = 0; i < n; at_col += l[i++].y.cols) {
		weight_leaf(p, at, x, &l[i], dw, at_col);
		if (l[i].bias)
			bias_leaf(p, at, &l[i], db, at_col);
	}
	param_reduce(p, l->w, at.slice, 0);
	arena_reset(p->d->scratch, mark);
}
