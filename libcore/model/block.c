/* A block: forward and backward of its two sublayers. The norm before a sublayer, the all-gather,
 * the sum over slices, dropout and the residual are common to all sublayers; see block.h. */
#include "model/block.h"

/* Returns sublayer i of a layer with its tensors, activations and gradients (NULL if b or g is). */
static struct sublayer_run sublayer_run(const struct pass *p, int64_t layer, int i,
	struct block_acts *b, struct block_grads *g)
{
	return (struct sublayer_run){.fn = model_sublayer(p->m, layer, i),
		.tensors = &p->m->blocks[layer].sub[i],
		.acts = b ? &b->sub[i] : NULL,
		.grads = g ? &g->sub[i] : NULL,
		.layer = layer,
		.index = i};
}

bool keeps_act(const struct pass *p, const struct sublayer_run *sub, int j)
{
	return pass_recomputes(p, sub->layer) <= sub->fn->kept_until[j];
}

int in_linears(const struct pass *p, const struct sublayer_run *sub, struct loc loc,
	const struct mat *m, struct linear l[SUBLAYER_INPUTS])
{
	int n = 0;
	for (; n < SUBLAYER_INPUTS && sub->tensors->in[n]; n++)
		l[n] = (struct linear){
			.y = sub->recomputes && keeps_act(p, sub, IN_RESULT + n)
				     ? no_mat()
				     : mat_at(p, m[n], loc),
			.w = sub->tensors->in[n],
			.bias = sub->tensors->in_bias[n]};
	return n;
}

/* Returns the arguments of the norm of a sublayer's input, for chunk c. */
static struct stream_norm sublayer_norm(
	const struct pass *p, const struct sublayer_run *sub, int c)
{
	return (struct stream_norm){.name = sub->fn->norm,
		.loc = {sub->layer, 0, c},
		.h = chunk_rows(p, sub->acts->h, c),
		.stats = chunk_stats(p, sub->acts->stats, c),
		.weight = sub->tensors->norm,
		.bias = sub->tensors->norm_bias};
}

/* ---- memory ---------------------------------------------------------------------- */

struct sizes {
	struct mat_size acts[SUBLAYER_MATS], grads[SUBLAYER_MATS];
};

static struct sizes sublayer_sizes(const struct pass *p, const struct sublayer *fn)
{
	struct sizes z = {0};
	fn->set_sizes(p, z.acts, z.grads);
	return z;
}

/* Returns a matrix of a sublayer without memory: [slice][chunk][row][cols], unless it has rows of
 * its own. */
static struct mat sublayer_shape(const struct pass *p, const struct mat_size *z)
{
	int64_t rows = z->rows ? z->rows : p->tp.local * p->cp.local * p->rows;
	return mat_typed(NULL, rows, z->cols, z->type);
}

/* Returns a matrix [chunk][row][dim] for this rank's residual stream without memory. */
static struct mat stream_shape(const struct pass *p, enum dtype type)
{
	return mat_typed(NULL, p->cp.local * p->stream_rows, p->m->c.dim, type);
}

/* Allocates a matrix of the same shape and type; an empty one if it has no columns. */
static struct mat alloc_shape(struct arena *a, struct mat shape)
{
	return shape.cols ? mat_alloc(a, shape.rows, shape.cols, shape.type) : no_mat();
}

/* How activations are allocated. The recomputed activations of all blocks share one buffer. */
struct allocation {
	bool is_shared; /* allocates the shared buffers; else the kept activations of a block */
	bool keeps_casts; /* float8: keeps casts instead of what selective recomputation drops */
	enum recompute recompute;
	struct arena *arena;
};

/* Allocates *to if `o` includes it. `until`: the highest recomputation that keeps the matrix. */
static void alloc_act(const struct allocation *o, enum recompute until, struct mat *to,
	struct mat shape)
{
	bool is_kept =
		o->recompute <= until && !(o->keeps_casts && until == RECOMPUTE_NONE);
	if (is_kept != o->is_shared)
		*to = alloc_shape(o->arena, shape);
}

/* Allocates the activations of a block's sublayer f (number i) that `o` includes. */
static void alloc_acts(const struct pass *p, const struct allocation *o,
	const struct sublayer *f, int i, struct sublayer_acts *a)
{
	const struct sizes z = sublayer_sizes(p, f);
	if (i)
		alloc_act(o, RECOMPUTE_SELECTIVE, &a->x, stream_shape(p, DT_F32));
	alloc_act(o, RECOMPUTE_NONE, &a->h,
		mat_typed(NULL, p->cp.local * p->rows, p->m->c.dim, act_type(p)));
	alloc_act(o, RECOMPUTE_SELECTIVE, &a->stats,
		mat(NULL, p->cp.local * 2, p->stream_rows));
	for (int j = 0; j < SUBLAYER_MATS; j++)
		if (z.acts[j].lifetime == KEPT)
			alloc_act(o, f->kept_until[j], &a->m[j],
				sublayer_shape(p, &z.acts[j]));
}

void block_alloc_shared(
	const struct pass *p, struct block_acts b[LAYER_KINDS], struct arena *micro)
{
	const struct allocation o = {.is_shared = true,
		.keeps_casts = p->c.precision == PRECISION_FLOAT8,
		.recompute = pass_recomputes(p, -1),
		.arena = micro};
	b[0] = (struct block_acts){0};
	alloc_acts(
		p, &o, p->m->arch->sublayer[ATTENTION], ATTENTION, &b[0].sub[ATTENTION]);
	for (int kind = 1; kind < LAYER_KINDS; kind++)
		b[kind] = b[0];
	size_t begin = arena_mark(micro), end = begin;
	for (int kind = 0; kind < LAYER_KINDS; kind++) {
		int64_t layer = model_layer_of_kind(p->m, kind);
		if (layer < 0)
			continue;
		arena_reset(micro, begin); /* no layer needs the buffers of two kinds */
		alloc_acts(
			p, &o, model_sublayer(p->m, layer, FFN), FFN, &b[kind].sub[FFN]);
		end = end > arena_mark(micro) ? end : arena_mark(micro);
	}
	arena_reset(micro, end);
}

void block_alloc(const struct pass *p, int64_t layer, struct mat x, struct block_acts *b,
	struct arena *micro)
{
	bool casts = linear_keeps_casts(p, layer);
	const struct allocation o = {.keeps_casts = casts,
		.recompute = pass_recomputes(p, layer),
		.arena = micro};
	*b = p->shared[model_layer_kind(p->m, layer)];
	b->sub[0].x = x;
	if (p->c.residual == DT_F32)
		b->sub[0].x = alloc_shape(micro, stream_shape(p, DT_F32));
	else
		b->x = alloc_shape(micro, stream_shape(p, p->c.residual)).p;
	for (int i = 0; i < SUBLAYERS; i++)
		alloc_acts(p, &o, model_sublayer(p->m, layer, i), i, &b->sub[i]);
	struct mat *const operands[] = {&b->sub[ATTENTION].h,
		&b->sub[ATTENTION].m[INNER_RESULT], &b->sub[FFN].h,
		&b->sub[FFN].m[INNER_RESULT]};
	b->amax =
		linear_alloc_casts(p, layer, operands, ARRAY_LEN(operands), casts, micro);
}

/* Allocates the gradient of a sublayer's output. */
static struct mat alloc_output_grad(const struct pass *p, struct arena *a)
{
	return mat_alloc(a, p->cp.local * p->rows, p->m->c.dim, act_type(p));
}

struct grad_copy grad_copy_alloc(struct pass *p, int64_t lowest)
{
	struct arena *a = p->d->scratch;
	struct grad_copy g = {.lowest = lowest};
	struct mat *const copy[] = {&g.copy};
	if (!norm_writes_copies(p))
		return g;
	g.copy = alloc_output_grad(p, a);
	g.sums = mat_alloc(a, (int64_t)p->cp.local * p->tp.local, p->m->c.dim, DT_F32);
	/* the middle block is float8 if any block is: sets amax and cast for float8 blocks */
	linear_clear_amax(p, linear_alloc_casts(p, p->m->c.layers / 2, copy, 1, true, a));
	return g;
}

/* Allocates the gradients of the results of in_forward() as columns of one matrix. */
static void alloc_joined_grads(const struct pass *p, const struct sublayer_run *sub,
	const struct sizes *z, struct arena *a)
{
	struct mat all = sublayer_shape(p, &z->grads[0]);
	int64_t col = 0;
	for (int j = 1; j < SUBLAYER_INPUTS && sub->tensors->in[j]; j++)
		all.cols += z->grads[j].cols;
	all = alloc_shape(a, all);
	for (int j = 0; j < SUBLAYER_INPUTS && sub->tensors->in[j]; j++) {
		sub->grads->m[j] = mat_cols(all, col, z->grads[j].cols);
		col += z->grads[j].cols;
	}
}

/* Returns true if one matmul computes the gradient of the sublayer's input. */
static bool needs_one_matmul(const struct sublayer_run *sub)
{
	return !sub->fn->sums_input_grads &&
	       (!sub->tensors->in[1] || sub->grads->m[0].stride);
}

/* Allocates a sublayer's gradients, except scratch. `copy`: g->d, if a norm wrote it; or empty. */
static void alloc_grads(const struct pass *p, const struct sublayer_run *sub,
	struct mat copy, struct arena *a)
{
	const struct sizes z = sublayer_sizes(p, sub->fn);
	struct sublayer_grads *g = sub->grads;
	struct mat *operands[SUBLAYER_MATS + 1];
	int n = 0;
	*g = (struct sublayer_grads){
		.d = copy.p ? linear_drop_unused_cast(p, sub->layer, copy)
			    : alloc_output_grad(p, a)};
	if (sub->fn->joins_grads && linear_can_join(p, sub->layer))
		alloc_joined_grads(p, sub, &z, a);
	for (int j = 0; j < SUBLAYER_MATS; j++) {
		if (z.grads[j].lifetime != KEPT || !z.grads[j].cols || g->m[j].p)
			continue;
		g->m[j] = alloc_shape(a, sublayer_shape(p, &z.grads[j]));
		if (j < SUBLAYER_INPUTS) /* other gradients are not matmul operands */
			operands[n++] = &g->m[j];
	}
	if (sub->fn->sums_grad && sub->fn->sums_grad(p, sub))
		g->sums = mat_alloc(a, p->cp.local, g->m[0].cols, DT_F32);
	/* the sum of several matmuls is fp32 */
	g->dh = alloc_shape(
		a, stream_shape(p, needs_one_matmul(sub) ? slice_type(p) : DT_F32));
	if (!copy.p)
		operands[n++] = &g->d;
	g->amax = linear_alloc_casts(p, sub->layer, operands, n, true, a);
}

/* Allocates the matrices m of a sublayer that have this lifetime, in scratch memory. */
static void alloc_scratch(struct pass *p, const struct mat_size z[SUBLAYER_MATS],
	enum lifetime lifetime, struct mat m[SUBLAYER_MATS])
{
	for (int j = 0; j < SUBLAYER_MATS; j++)
		if (z[j].lifetime == lifetime)
			m[j] = alloc_shape(p->d->scratch, sublayer_shape(p, &z[j]));
}

void block_alloc_grads(
	const struct pass *p, int64_t layer, struct block_grads *g, struct arena *a)
{
	for (int i = 0; i < SUBLAYERS; i++) {
		const struct sublayer_run sub = sublayer_run(p, layer, i, NULL, g);
		alloc_grads(p, &sub, no_mat(), a);
	}
}

/* ---- forward --------------------------------------------------------------------- */

/* Gathers the norm, computed unless `has_norm`; `with_matmuls`: also multiplies by `in`. */
static void norm_in_forward(
	struct pass *p, const struct sublayer_run *sub, bool has_norm, bool with_matmuls)
{
	for (int c = 0; c < p->cp.local; c++) {
		const struct stream_norm norm = sublayer_norm(p, sub, c);
		struct slice_gather h;
		if (!has_norm)
			norm_forward(p, &norm, stream_chunk(p, sub->acts->x, c));
		size_t mark = arena_mark(p->d->scratch);
		norm_gather_begin(p, &h, &norm);
		for (int s = 0; s < p->tp.local && with_matmuls; s++)
			sub->fn->in_forward(p, sub, (struct loc){sub->layer, s, c}, &h);
		slice_gather_end(&h);
		arena_reset(p->d->scratch, mark);
	}
}

/* Computes the output y and, unless `next` is NULL, the norm of the next sublayer. */
static void out_forward(struct pass *p, const struct sublayer_run *sub, struct mat y,
	const struct sublayer_run *next)
{
	for (int c = 0; c < p->cp.local; c++) {
		size_t mark = arena_mark(p->d->scratch);
		struct mat yc = stream_chunk(p, y, c);
		const struct residual r = {yc, sum_buffer(p, yc),
			stream_chunk(p, sub->acts->x, c), sub->tensors->bias,
			sub->fn->drop};
		struct stream_norm norm;
		struct slice_sum sum;
		slice_sum_begin(&sum, &p->tp, p->d, r.sum, p->rows, act_type(p));
		struct loc loc = {sub->layer, 0, c};
		for (; loc.slice < p->tp.local; loc.slice++)
			if (sub->fn->out_forward)
				sub->fn->out_forward(p, sub, loc, &sum);
			else
				row_parallel_forward(p, loc, &sum,
					mat_at(p, sub->acts->m[INNER_RESULT], loc),
					sub->tensors->out);
		slice_sum_end(&sum);
		if (next)
			norm = sublayer_norm(p, next, c);
		add_residual(p, loc, &r, next ? &norm : NULL);
		arena_reset(p->d->scratch, mark);
		loc.slice = 0;
		observe(p, sub->fn->out, EXTENT_STREAM, loc, yc);
	}
}

static void inner_forward(struct pass *p, const struct sublayer_run *sub)
{
	if (!sub->recomputes || !keeps_act(p, sub, INNER_RESULT))
		sub->fn->inner_forward(p, sub);
}

/* Computes both sublayers; `recomputes`: only activations that were not kept. y: output or NULL. */
static void compute_sublayers(struct pass *p, int64_t layer, struct block_acts *b,
	const struct mat *y, bool recomputes)
{
	struct sublayer_run attention = sublayer_run(p, layer, ATTENTION, b, NULL);
	struct sublayer_run ffn = sublayer_run(p, layer, FFN, b, NULL);
	attention.recomputes = ffn.recomputes = recomputes;
	norm_in_forward(p, &attention, false, true);
	inner_forward(p, &attention);
	out_forward(p, &attention, ffn.acts->x, &ffn);
	size_t mark = arena_mark(p->d->scratch);
	if (y)
		alloc_scratch(p, sublayer_sizes(p, ffn.fn).acts, UNTIL_SUBLAYER_ENDS,
			ffn.acts->m);
	norm_in_forward(p, &ffn, true, true);
	inner_forward(p, &ffn);
	if (y)
		out_forward(p, &ffn, *y, NULL);
	arena_reset(p->d->scratch, mark);
}

void block_restore_input(struct pass *p, struct block_acts *b, bool rounds)
{
	struct mat x = b->sub[0].x;
	if (b->x && rounds)
		p->d->k->narrow(p->d, b->x, x, p->c.residual);
	if (b->x)
		p->d->k->widen(p->d, x, b->x, p->c.residual);
}

void block_forward(
	struct pass *p, int64_t layer, struct block_acts *b, const struct mat *y)
{
	compute_sublayers(p, layer, b, y, false);
}

/* Recomputes the activations that were not kept. The gradient of the input alone does not need the
 * results of norms and activation functions, which selective recomputation drops. */
static void recompute(
	struct pass *p, int64_t layer, struct block_acts *b, bool for_weights)
{
	enum recompute how = pass_recomputes(p, layer);
	const struct observer *observer = p->observer;
	p->observer = NULL; /* the forward has passed these results */
	if (how > RECOMPUTE_SELECTIVE)
		compute_sublayers(p, layer, b, NULL, true);
	for (int i = 0; how == RECOMPUTE_SELECTIVE && i < SUBLAYERS; i++) {
		struct sublayer_run sub = sublayer_run(p, layer, i, b, NULL);
		if (!for_weights && !sub.fn->input_grad_needs_norm)
			continue;
		sub.recomputes = true;
		norm_in_forward(p, &sub, false, false);
		inner_forward(p, &sub);
	}
	p->observer = observer;
}

/* ---- backward -------------------------------------------------------------------- */

/* Allocates the gradients that a sublayer's backward needs until it ends. */
static void alloc_until_end(struct pass *p, const struct sublayer_run *sub)
{
	alloc_scratch(
		p, sublayer_sizes(p, sub->fn).grads, UNTIL_SUBLAYER_ENDS, sub->grads->m);
}

/* Computes the gradients of in_forward()'s results from dx, the sublayer's output gradient. */
static void out_inner_backward(
	struct pass *p, const struct sublayer_run *sub, struct mat dx, bool is_copied)
{
	size_t mark = arena_mark(p->d->scratch);
	linear_clear_amax(p, sub->grads->amax);
	alloc_scratch(
		p, sublayer_sizes(p, sub->fn).grads, UNTIL_INNER_ENDS, sub->grads->m);
	for (int c = 0; c < p->cp.local; c++) {
		size_t before = arena_mark(p->d->scratch);
		struct slice_gather d;
		output_grad_gather_begin(p, &d, (struct loc){sub->layer, 0, c},
			sub->fn->drop, sub->grads->d, stream_chunk(p, dx, c), is_copied);
		for (int s = 0; s < p->tp.local; s++)
			sub->fn->out_backward(p, sub, (struct loc){sub->layer, s, c}, &d);
		slice_gather_end(&d);
		arena_reset(p->d->scratch, before);
	}
	sub->fn->inner_backward(p, sub);
	arena_reset(p->d->scratch, mark);
}

/* Computes a chunk's weight gradients, except the norm's. `sums`: of the output gradient's rows. */
static void compute_leaves(
	struct pass *p, const struct sublayer_run *sub, int c, struct mat sums)
{
	struct loc loc = {sub->layer, 0, c};
	struct mat out_input = sub->fn->out_input ? sub->fn->out_input(p, sub)
						  : sub->acts->m[INNER_RESULT];
	bias_leaves(p, loc, sub->tensors->bias,
		local_rows(p, chunk_rows(p, sub->grads->d, c)), sums);
	for (; loc.slice < p->tp.local; loc.slice++) {
		if (sub->fn->other_leaves)
			sub->fn->other_leaves(p, sub, loc);
		if (!sub->tensors->out)
			continue;
		const struct linear out = {
			.y = chunk_rows(p, sub->grads->d, c), .w = sub->tensors->out};
		struct linear in[SUBLAYER_INPUTS];
		int n = in_linears(p, sub, loc, sub->grads->m, in);
		if (sub->grads->sums.p)
			in[0].sums = mat_rows(sub->grads->sums, c, 1);
		linear_weight_leaves(p, loc, mat_at(p, out_input, loc), &out, 1);
		linear_weight_leaves(p, loc, chunk_rows(p, sub->acts->h, c), in, n);
	}
}

/* Returns the copies to write for the preceding sublayer; empty if it is on another stage. */
static struct norm_grad preceding_grad_copy(const struct pass *p,
	const struct sublayer_run *sub, const struct grad_copy *copy)
{
	int64_t layer = sub->index == ATTENTION ? sub->layer - 1 : sub->layer;
	if (!copy || !copy->copy.p || layer < copy->lowest)
		return (struct norm_grad){0};
	return (struct norm_grad){.copy = linear_drop_unused_cast(p, layer, copy->copy),
		.sums = copy->sums,
		.copy_bias = p->m->blocks[layer].sub[!sub->index].bias};
}

/* Adds to dx, the gradient of the residual stream, from the gradients of in_forward()'s results. */
static void in_norm_backward(struct pass *p, const struct sublayer_run *sub,
	struct mat dx, bool with_leaves, struct grad_copy *copy)
{
	struct norm_grad g = preceding_grad_copy(p, sub, copy);
	struct mat sums = copy && copy->is_valid ? copy->sums : no_mat();
	for (int c = 0; c < p->cp.local; c++) {
		const struct stream_norm norm = sublayer_norm(p, sub, c);
		struct mat dh = stream_chunk(p, sub->grads->dh, c);
		struct slice_sum sum;
		slice_sum_begin(&sum, &p->tp, p->d, dh, p->rows,
			needs_one_matmul(sub) ? act_type(p) : dh.type);
		for (int s = 0; s < p->tp.local; s++)
			sub->fn->in_backward(
				p, sub, (struct loc){sub->layer, s, c}, &sum);
		slice_sum_send(&sum);
		if (with_leaves)
			compute_leaves(p, sub, c, sums);
		slice_sum_end(&sum);
		if (sub->fn->join_backward)
			sub->fn->join_backward(
				p, sub, (struct loc){sub->layer, 0, c}, dh);
		g.dx = stream_chunk(p, dx, c);
		g.dy = dh;
		g.x = stream_chunk(p, sub->acts->x, c);
		norm_backward(p, &norm, &g, with_leaves);
	}
	if (copy)
		copy->is_valid = g.copy.p != NULL;
}

void block_backward(struct pass *p, int64_t layer, struct block_acts *b, struct mat dx,
	struct grad_copy *copy)
{
	size_t mark = arena_mark(p->d->scratch);
	struct block_grads g;
	block_restore_input(p, b, false);
	recompute(p, layer, b, true);
	for (int i = SUBLAYERS - 1; i >= 0; i--) {
		const struct sublayer_run sub = sublayer_run(p, layer, i, b, &g);
		alloc_grads(p, &sub, copy->copy, p->d->scratch);
		alloc_until_end(p, &sub);
		out_inner_backward(p, &sub, dx, copy->is_valid);
		in_norm_backward(p, &sub, dx, true, copy);
		arena_reset(p->d->scratch, mark);
	}
}

void block_backward_x(struct pass *p, int64_t layer, struct block_acts *b,
	struct block_grads *g, struct mat dx)
{
	block_restore_input(p, b, false);
	recompute(p, layer, b, false);
	for (int i = SUBLAYERS - 1; i >= 0; i--) {
		const struct sublayer_run sub = sublayer_run(p, layer, i, b, g);
		size_t mark = arena_mark(p->d->scratch);
		alloc_until_end(p, &sub);
		out_inner_backward(p, &sub, dx, false);
		in_norm_backward(p, &sub, dx, false, NULL);
		arena_reset(p->d->scratch, mark);
	}
}

void block_backward_w(
	struct pass *p, int64_t layer, struct block_acts *b, struct block_grads *g)
{
	block_restore_input(p, b, false);
	recompute(p, layer, b, true);
	for (int i = SUBLAYERS - 1; i >= 0; i--) {
		const struct sublayer_run sub = sublayer_run(p, layer, i, b, g);
		for (int c = 0; c < p->cp.local; c++) {
			const struct stream_norm norm = sublayer_norm(p, &sub, c);
			compute_leaves(p, &sub, c, no_mat());
			norm_backward_weights(p, &norm, stream_chunk(p, sub.grads->dh, c),
				stream_chunk(p, sub.acts->x, c));
		}
	}
}
