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

/* Returns true if the layer's matmuls have float8 operands; false for the head (layer -1). */
static bool layer_is_float8(const struct pass *p, int64_t layer)
{
	return p->c.precision == PRECISION_FLOAT8 && layer >= 0 &&
	       p->m->blocks[layer].operand[0]->float8;
}

static bool is_low_precision(const struct pass *p)
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
	if (is_low_precision(p) && x.type == DT_F32)
		p->d->k->round(p->d, x, x, act_type(p), 1);
}

void linear_cast(struct pass *p, struct mat y, struct mat x)
{
	if (is_low_precision(p))
		p->d->k->round(p->d, y, x, act_type(p), 1);
	else
		p->d->k->copy(p->d, y, x);
}

static struct mat alloc_like(struct pass *p, struct mat like, enum dtype type)
{
	return mat_alloc(p->d->scratch, like.rows, like.cols, type);
}

/* The dimension that a matmul sums over: matrix units need 8-bit operands contiguous along it. */
enum sum_over { SUM_COLS, SUM_ROWS };

/* Allocates n scales in device memory. */
static struct mat_scale *alloc_scales(struct arena *a, int64_t n)
{
	return arena_alloc(a, (size_t)n * sizeof(struct mat_scale));
}

/* Returns x in float8, multiplied by a scale that the device computes from amax. `inverse` receives
 * the inverse scale for the matmul. If x keeps a transposed cast, both casts are computed at the
 * first call, which is for SUM_COLS. */
static struct mat cast_scaled(struct pass *p, struct mat x, enum dtype type,
	const float *amax, float *inverse, enum sum_over dim)
{
	struct mat y = mat_typed(NULL, x.rows, x.cols, type);
	y.scale = inverse;
	y.transposed = x.transposed;
	if (dim == SUM_ROWS && x.transposed)
		return y;
	void *cast = arena_alloc(p->d->scratch, (size_t)mat_bytes(y));
	if (dim == SUM_ROWS)
		y.transposed = cast;
	else
		y.p = cast;
	p->d->k->round_scaled(p->d, y, inverse, x, type, amax);
	return y;
}

/* Returns an activation or a gradient as a matmul operand: x itself, or a cast in scratch memory
 * (float8, or of an fp32 sum). The caller has computed x.amax, if it is set. */
static struct mat cast_activation(
	struct pass *p, int64_t layer, struct mat x, enum dtype float8, enum sum_over dim)
{
	if (x.type != act_type(p)) {
		struct mat cast = alloc_like(p, x, act_type(p));
		linear_cast(p, cast, x);
		x = cast;
	}
	if (!layer_is_float8(p, layer))
		return x;
	if (!x.amax) {
		x.amax = &alloc_scales(p->d->scratch, 1)->amax;
		p->d->k->zero(p->d, mat(x.amax, 1, 1));
		p->d->k->amax(p->d, x.amax, x);
	}
	return cast_scaled(p, x, float8, x.amax, &mat_scale_of(x.amax)->scale, dim);
}

/* ---- casts of activations and gradients that are kept ------------------------------- */

bool linear_keeps_casts(const struct pass *p, int64_t layer)
{
	return pass_recomputes(p, layer) == RECOMPUTE_NONE && layer_is_float8(p, layer);
}

struct mat linear_alloc_casts(const struct pass *p, int64_t layer, struct mat *const x[],
	int n, bool keep, struct arena *a)
{
	int64_t count = 0;
	if (!layer_is_float8(p, layer))
		return no_mat();
	for (int i = 0; i < n; i++)
		count += x[i]->type == act_type(p) ? x[i]->rows / p->rows : 0;
	struct mat_scale *next = alloc_scales(a, count);
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

void linear_compute_amax(struct pass *p, struct mat x)
{
	if (x.amax)
		p->d->k->amax(p->d, x.amax, x);
}

void linear_clear_amax(struct pass *p, struct mat amax)
{
	if (amax.p)
		p->d->k->zero(p->d, amax);
}

struct mat linear_drop_unused_cast(const struct pass *p, int64_t layer, struct mat x)
{
	if (!layer_is_float8(p, layer)) {
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
void linear_alloc_weight_casts(struct pass *p, struct arena *run)
{
	if (p->c.precision != PRECISION_FLOAT8)
		return;
	const struct store_config *c = &p->store->c;
	p->float8.scale = alloc_scales(run, p->m->n_tensors);
	if (c->zero < 3 && !offloads_params(c->offload))
		p->float8.transposed =
			arena_alloc(run, (size_t)transposed_bytes(p, p->m->n_tensors));
}

/* Returns the E4M3 cast of matrix m, scaled by its amax; fills the kept transposed cast. */
static struct mat float8_weight(struct pass *p, struct loc loc, const struct tensor *w,
	struct mat m, enum sum_over dim)
{
	int64_t number = w - p->m->tensors;
	int slice = tensor_slice(w, p->tp.first + loc.slice) - w->first;
	if (p->float8.transposed)
		m.transposed = p->float8.transposed + transposed_bytes(p, number) +
			       slice * mat_size(m);
	return cast_scaled(p, m, DT_E4M3, store_amax(p->store, w),
		&p->float8.scale[number].scale, dim);
}

/* Returns a parameter from the store: its low-precision copy, if any, or the master weight. */
static struct mat stored_param(struct pass *p, const struct tensor *t, int s)
{
	struct mat copy = no_mat();
	if (is_low_precision(p))
		copy = store_operand(p->store, t, tensor_slice(t, p->tp.first + s));
	return copy.p ? copy : param(p, t, s);
}

/* Returns x, or its cast to the type of activations, in the scratch arena. */
static struct mat cast_to_act_type(struct pass *p, struct mat x)
{
	if (x.type == act_type(p))
		return x;
	struct mat y = alloc_like(p, x, act_type(p));
	linear_cast(p, y, x);
	return y;
}

struct mat linear_param(struct pass *p, const struct tensor *t, int s)
{
	return t ? cast_to_act_type(p, stored_param(p, t, s)) : no_mat();
}

static struct mat cast_weight(
	struct pass *p, struct loc loc, const struct tensor *w, enum sum_over dim)
{
	if (layer_is_float8(p, loc.layer))
		return float8_weight(p, loc, w, param(p, w, loc.slice), dim);
	return linear_param(p, w, loc.slice);
}

/* ---- several outputs as one -------------------------------------------------------- */

bool linear_can_join(const struct pass *p, int64_t layer)
{
	return p->cp.n == 1 && !layer_is_float8(p, layer);
}

/* Returns true if l's y begins a matrix that also holds the outputs of the next matmuls. */
static bool is_joined(const struct linear *l)
{
	return l->y.stride;
}

/* Returns the whole matrix of joined outputs, which begins with the columns of y. */
static struct mat joined_matrix(struct mat y)
{
	return mat_typed(y.p, y.rows, y.stride, y.type);
}

/* Returns n weights stacked by rows: in the store if they are adjacent there, else a copy. */
static struct mat stacked_weights(
	struct pass *p, struct loc loc, const struct linear *l, int n)
{
	struct mat all = stored_param(p, l->w, loc.slice);
	bool adjacent = true;
	for (int i = 1; i < n; i++) {
		struct mat w = stored_param(p, l[i].w, loc.slice);
		adjacent &= (char *)w.p == (char *)all.p + mat_bytes(all);
		all.rows += w.rows;
	}
	if (adjacent)
		return cast_to_act_type(p, all);
	all = alloc_like(p, all, act_type(p));
	for (int64_t i = 0, row = 0; i < n; i++) {
		struct mat w = stored_param(p, l[i].w, loc.slice);
		struct mat to = mat_rows(all, row, w.rows);
		if (w.type == all.type)
			p->d->k->copy(p->d, to, w);
		else
			linear_cast(p, to, w);
		row += w.rows;
	}
	return all;
}

static void matmul_forward(
	struct pass *p, struct mat y, struct mat x, struct mat w, struct mat bias)
{
	p->ops.linear(p->d, y, x, w, bias);
	linear_round(p, y);
}

/* Computes dx = dy w, or adds it to dx. In 16 bits, the result is rounded before it is added. */
static void matmul_backward_x(
	struct pass *p, struct mat dx, struct mat dy, struct mat w, bool add)
{
	const struct kernels *k = p->d->k;
	if (!is_low_precision(p)) {
		k->linear_bwd_x(p->d, dx, dy, w, add);
		return;
	}
	size_t mark = arena_mark(p->d->scratch);
	struct mat out = add ? alloc_like(p, dx, act_type(p)) : dx;
	k->linear_bwd_x(p->d, out, dy, w, false);
	linear_round(p, out);
	if (add)
		k->add(p->d, dx, dx, out);
	arena_reset(p->d->scratch, mark);
}

void linear_forward(struct pass *p, struct loc loc, const struct linear *l, struct mat x)
{
	size_t mark = arena_mark(p->d->scratch);
	struct mat a = cast_activation(p, loc.layer, x, DT_E4M3, SUM_COLS);
	struct mat b = cast_weight(p, loc, l->w, SUM_COLS);
	matmul_forward(p, l->y, a, b, linear_param(p, l->bias, loc.slice));
	arena_reset(p->d->scratch, mark);
	comm_poll();
}

void linear_loss(struct pass *p, const struct linear *l, struct mat x, float *loss,
	const int32_t *targets, struct xent_terms terms)
{
	const struct loc head = {-1, 0, 0};
	size_t mark = arena_mark(p->d->scratch);
	struct mat a = cast_activation(p, head.layer, x, DT_E4M3, SUM_COLS);
	struct mat b = cast_weight(p, head, l->w, SUM_COLS);
	p->d->k->linear_xent(p->d, loss, l->y, a, b, targets, p->m->c.vocab, terms,
		&p->step->loss_scale);
	arena_reset(p->d->scratch, mark);
	comm_poll();
}

/* Computes dx of n linears with adjacent outputs by one matmul with their stacked weights. */
static void backward_joined(
	struct pass *p, struct loc loc, struct mat dx, const struct linear *l, int n)
{
	size_t mark = arena_mark(p->d->scratch);
	matmul_backward_x(
		p, dx, joined_matrix(l->y), stacked_weights(p, loc, l, n), false);
	arena_reset(p->d->scratch, mark);
	comm_poll();
}

/* Adds in the kernel if dx is fp32. In 16 bits, rounds each result before it is added. */
void linear_backward_x(
	struct pass *p, struct loc loc, struct mat dx, const struct linear *l, int n)
{
	bool accumulates = n > 1 && dx.type == DT_F32;
	if (is_joined(l)) {
		backward_joined(p, loc, dx, l, n);
		return;
	}
	for (int i = 0; i < n; i++) {
		size_t mark = arena_mark(p->d->scratch);
		struct mat dy = cast_activation(p, loc.layer, l[i].y, DT_E5M2, SUM_COLS);
		struct mat w = cast_weight(p, loc, l[i].w, SUM_ROWS);
		if (accumulates)
			p->d->k->linear_bwd_x(p->d, dx, dy, w, i > 0);
		else
			matmul_backward_x(p, dx, dy, w, i > 0);
		arena_reset(p->d->scratch, mark);
		comm_poll();
	}
}

void linear_backward_w(struct pass *p, int64_t layer, struct mat dw, struct mat dy,
	struct mat x, bool add)
{
	size_t mark = arena_mark(p->d->scratch);
	if (is_low_precision(p)) {
		dy = cast_activation(p, layer, dy, DT_E5M2, SUM_ROWS);
		x = cast_activation(p, layer, x, DT_E4M3, SUM_ROWS);
	}
	BUG_ON(add && dy.scale); /* results with different scales cannot be accumulated */
	p->d->k->linear_bwd_w(p->d, dw, dy, x, add);
	arena_reset(p->d->scratch, mark);
	comm_poll();
}

bool linear_can_fuse(const struct pass *p, int64_t layer)
{
	return is_low_precision(p) && !layer_is_float8(p, layer);
}

bool linear_can_sum(const struct pass *p)
{
	return p->tp.n == 1 && !p->c.plain_kernels;
}

/* ---- matmuls piece by piece -------------------------------------------------------- */

/* Returns a gathered matrix as a matmul operand. Its rows are rounded already. Waits for all rows
 * only with float8, because the scale depends on them. */
static struct mat cast_gathered(
	struct pass *p, int64_t layer, struct slice_gather *x, enum dtype float8)
{
	if (!layer_is_float8(p, layer))
		return x->all;
	slice_gather_end(x);
	if (x->s->sp && x->s->axis->size > 1) /* over the rows of all ranks */
		linear_compute_amax(p, x->all);
	return cast_activation(p, layer, x->all, float8, SUM_COLS);
}

/* Waits for the rows of turn i. Sets *first to the first row, and returns the number of rows. */
static int64_t gather_wait_turn(
	struct pass *p, struct slice_gather *x, int i, int64_t *first)
{
	int piece = slice_turn(&p->tp, i);
	slice_gather_wait(x, piece);
	return slice_piece(&p->tp, p->rows, piece, first);
}

void column_parallel_forward(struct pass *p, struct loc loc, struct slice_gather *x,
	const struct linear *l, int n)
{
	struct mat w[SUBLAYER_INPUTS], bias[SUBLAYER_INPUTS];
	size_t mark = arena_mark(p->d->scratch);
	bool has_work = false;
	BUG_ON(n > SUBLAYER_INPUTS);
	for (int i = 0; i < n; i++)
		has_work |= l[i].y.p != NULL;
	if (!has_work)
		return;
	param_use(p, l->w, loc.slice);
	struct mat all = cast_gathered(p, loc.layer, x, DT_E4M3);
	for (int i = 0; i < n; i++) {
		if (!l[i].y.p)
			continue;
		w[i] = cast_weight(p, loc, l[i].w, SUM_COLS);
		bias[i] = linear_param(p, l[i].bias, loc.slice);
	}
	for (int turn = 0; turn < p->tp.n; turn++) {
		int64_t first, rows = gather_wait_turn(p, x, turn, &first);
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
				matmul_forward(p, y, piece, w[i], bias[i]);
		}
		comm_poll();
	}
	param_done(p, l->w, loc.slice);
	arena_reset(p->d->scratch, mark);
}

void column_parallel_backward(struct pass *p, struct loc loc, struct slice_sum *sum,
	const struct linear *l, int n)
{
	param_use(p, l->w, loc.slice);
	linear_backward_x(p, loc, slice_sum_slot(sum), l, n);
	param_done(p, l->w, loc.slice);
	slice_sum_push(sum);
}

void row_parallel_forward(struct pass *p, struct loc loc, struct slice_sum *sum,
	struct mat x, const struct tensor *w)
{
	size_t mark = arena_mark(p->d->scratch);
	param_use(p, w, loc.slice);
	struct mat all = cast_activation(p, loc.layer, x, DT_E4M3, SUM_COLS);
	struct mat b = cast_weight(p, loc, w, SUM_COLS);
	for (int turn = 0; turn < p->tp.n; turn++) {
		slice_sum_turn(sum, turn);
		if (sum->n)
			matmul_forward(p, slice_sum_slot(sum),
				mat_rows(all, sum->first, sum->n), b, no_mat());
		slice_sum_push(sum);
		comm_poll();
	}
	param_done(p, w, loc.slice);
	arena_reset(p->d->scratch, mark);
}

void row_parallel_backward(struct pass *p, struct loc loc, struct mat dx,
	struct slice_gather *dy, const struct tensor *w, struct mat gelu_input,
	struct mat sums)
{
	size_t mark = arena_mark(p->d->scratch);
	param_use(p, w, loc.slice);
	struct mat all = cast_gathered(p, loc.layer, dy, DT_E5M2);
	struct mat b = cast_weight(p, loc, w, SUM_ROWS);
	for (int turn = 0; turn < p->tp.n; turn++) {
		int64_t first, n = gather_wait_turn(p, dy, turn, &first);
		struct mat rows = mat_rows(all, first, n), to = mat_rows(dx, first, n);
		if (n && gelu_input.p)
			p->d->k->linear_gelu_bwd(
				p->d, to, rows, b, mat_rows(gelu_input, first, n), sums);
		else if (n)
			matmul_backward_x(p, to, rows, b, false);
		comm_poll();
	}
	param_done(p, w, loc.slice);
	arena_reset(p->d->scratch, mark);
}

/* Returns the type in which a matmul writes a leaf: fp32 with float8, because not every matmul
 * multiplies by the scales before it rounds. */
static enum dtype leaf_type(const struct pass *p, int64_t layer)
{
	return layer_is_float8(p, layer) ? DT_F32 : act_type(p);
}

/* Computes a weight's leaf or, if `joined` is set, copies it from joined leaves, from `row` on. */
static void compute_weight_leaf(struct pass *p, struct loc loc, struct mat x,
	const struct linear *l, struct mat joined, int64_t row)
{
	const struct tensor *w = l->w;
	size_t mark = arena_mark(p->d->scratch);
	if (w->frozen)
		return;
	if (joined.p) {
		add_leaf(p, w, loc, mat_rows(joined, row, w->rows));
	} else if (leaf_type(p, loc.layer) == DT_F32) {
		struct mat dw = leaf_buffer(p, w, loc);
		linear_backward_w(p, loc.layer, dw, l->y, x, false);
		linear_round(p, dw);
		leaf_done(p, w, loc, 0);
	} else {
		struct mat dw = mat_alloc(p->d->scratch, w->rows, w->cols, act_type(p));
		linear_backward_w(p, loc.layer, dw, l->y, x, false);
		add_leaf(p, w, loc, dw);
	}
	arena_reset(p->d->scratch, mark);
}

/* Sets the leaf of a bias, unless frozen: from `joined` at `row`, l->sums, or sums of l->y. */
static void compute_bias_leaf(struct pass *p, struct loc loc, const struct linear *l,
	struct mat joined, int64_t row)
{
	if (l->bias->frozen)
		return;
	struct mat db = leaf_buffer(p, l->bias, loc);
	if (joined.p)
		p->d->k->copy(p->d, db, mat_rows(joined, row, db.cols));
	else if (l->sums.p)
		p->d->k->copy(p->d, db, l->sums);
	else
		p->d->k->bias_bwd(p->d, db, l->y);
	leaf_done(p, l->bias, loc, 0);
}

/* Returns true if any of n weights, or of n `biases`, is trained. */
static bool any_is_trained(const struct linear *l, int n, bool biases)
{
	for (int i = 0; i < n; i++) {
		const struct tensor *t = biases ? l[i].bias : l[i].w;
		if (t && !t->frozen)
			return true;
	}
	return false;
}

void linear_weight_leaves(
	struct pass *p, struct loc loc, struct mat x, const struct linear *l, int n)
{
	size_t mark = arena_mark(p->d->scratch);
	struct mat dw = no_mat(), db = no_mat();
	if (is_joined(l)) {
		struct mat dy = joined_matrix(l->y);
		if (any_is_trained(l, n, false)) {
			dw = mat_alloc(p->d->scratch, dy.cols, x.cols, act_type(p));
			linear_backward_w(p, loc.layer, dw, dy, x, false);
		}
		if (any_is_trained(l, n, true)) {
			db = mat_alloc(p->d->scratch, dy.cols, 1, DT_F32);
			p->d->k->bias_bwd(p->d, mat(db.p, 1, dy.cols), dy);
		}
	}
	int64_t row = 0;
	for (int i = 0; i < n; row += l[i++].y.cols) {
		compute_weight_leaf(p, loc, x, &l[i], dw, row);
		if (l[i].bias)
			compute_bias_leaf(p, loc, &l[i], db, row);
	}
	param_reduce(p, l->w, loc.slice, 0);
	arena_reset(p->d->scratch, mark);
}
