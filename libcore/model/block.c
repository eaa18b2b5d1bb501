/* A block: forward and backward of its two sublayers. The norm before a sublayer, the all-gather,
 * the sum over slices, dropout and the residual are common to all sublayers; see block.h. */
#include "model/block.h"

static struct sub sub_of(const struct pass *p, int64_t layer, int i, struct block_acts *b,
	struct block_grads *g)
{
	return (struct sub){.f = p->m->arch->sublayer[i],
		.t = &p->m->blocks[layer].sub[i],
		.a = b ? &b->sub[i] : NULL,
		.g = g ? &g->sub[i] : NULL,
		.layer = layer,
		.i = i};
}

static bool is_kept(const struct pass *p, const struct sub *x, int j)
{
	return pass_recomputes(p, x->layer) <= x->f->until[j];
}

int sub_linears(const struct pass *p, const struct sub *x, struct at at,
	const struct mat *m, struct linear l[SUBLAYER_INPUTS])
{
	int n = 0;
	for (; n < SUBLAYER_INPUTS && x->t->in[n]; n++)
		l[n] = (struct linear){.y = x->again && is_kept(p, x, ENTER_OUT + n)
						    ? no_mat()
						    : part_of(p, m[n], at),
			.w = x->t->in[n],
			.bias = x->t->in_bias[n]};
	return n;
}

static struct stream_norm norm_of(const struct pass *p, const struct sub *x, int c)
{
	return (struct stream_norm){.what = x->f->norm,
		.at = {x->layer, 0, c},
		.h = chunk_of(p, x->a->h, c),
		.stats = stats_of(p, x->a->stats, c),
		.weight = x->t->norm,
		.bias = x->t->norm_bias};
}

/* ---- memory ---------------------------------------------------------------------- */

struct sizes {
	struct mat_size acts[SUBLAYER_MATS], grads[SUBLAYER_MATS];
};

static struct sizes sizes_of(const struct pass *p, int i)
{
	struct sizes z = {0};
	p->m->arch->sublayer[i]->sizes(p, z.acts, z.grads);
	return z;
}

/* Returns the shape of a matrix of a sublayer, without memory. */
static struct mat size_of(const struct pass *p, const struct mat_size *z)
{
	return mat_typed(NULL, p->tp.local * p->cp.local * p->rows, z->cols, z->type);
}

/* Returns the shape of this rank's residual stream, without memory. */
static struct mat stream_size(const struct pass *p, enum dtype type)
{
	return mat_typed(NULL, p->cp.local * p->stream_rows, p->m->c.dim, type);
}

static struct mat take(struct arena *a, struct mat size)
{
	return size.cols ? mat_alloc(a, size.rows, size.cols, size.type) : no_mat();
}

/* How activations are allocated. The recomputed activations of all blocks share one buffer. */
struct allocation {
	bool shared; /* allocates the shared buffers; else the kept activations of a block */
	bool casts; /* keeps only the casts of activations that selective recomputation drops */
	enum recompute recompute;
	struct arena *arena;
};

/* Allocates a matrix, if `o` includes it. `until`: the highest recomputation that keeps it. */
static void alloc_act(
	const struct allocation *o, enum recompute until, struct mat *to, struct mat size)
{
	bool kept = o->recompute <= until && !(o->casts && until == RECOMPUTE_NONE);
	if (kept != o->shared)
		*to = take(o->arena, size);
}

static void alloc_acts(
	const struct pass *p, const struct allocation *o, int i, struct sublayer_acts *a)
{
	const struct sizes z = sizes_of(p, i);
	const struct sublayer *f = p->m->arch->sublayer[i];
	if (i)
		alloc_act(o, RECOMPUTE_SELECTIVE, &a->x, stream_size(p, DT_F32));
	alloc_act(o, RECOMPUTE_NONE, &a->h,
		mat_typed(NULL, p->cp.local * p->rows, p->m->c.dim, act_type(p)));
	alloc_act(o, RECOMPUTE_SELECTIVE, &a->stats,
		mat(NULL, p->cp.local * 2, p->stream_rows));
	for (int j = 0; j < SUBLAYER_MATS; j++)
		alloc_act(o, f->until[j], &a->m[j], size_of(p, &z.acts[j]));
}

void block_alloc_shared(const struct pass *p, struct block_acts *b, struct arena *micro)
{
	const struct allocation o = {.shared = true,
		.casts = p->c.precision == PRECISION_FLOAT8,
		.recompute = pass_recomputes(p, -1),
		.arena = micro};
	*b = (struct block_acts){0};
	for (int i = 0; i < SUBLAYERS; i++)
		alloc_acts(p, &o, i, &b->sub[i]);
}

void block_alloc(const struct pass *p, int64_t layer, struct mat x, struct block_acts *b,
	struct arena *micro)
{
	bool casts = linear_keeps_casts(p, layer);
	const struct allocation o = {
		.casts = casts, .recompute = pass_recomputes(p, layer), .arena = micro};
	*b = p->shared;
	b->sub[0].x = x;
	if (p->c.residual == DT_F32)
		b->sub[0].x = take(micro, stream_size(p, DT_F32));
	else
		b->x = take(micro, stream_size(p, p->c.residual)).p;
	for (int i = 0; i < SUBLAYERS; i++)
		alloc_acts(p, &o, i, &b->sub[i]);
	struct mat *const operands[] = {&b->sub[ATTENTION].h,
		&b->sub[ATTENTION].m[INNER_OUT], &b->sub[FFN].h,
		&b->sub[FFN].m[INNER_OUT]};
	b->amax =
		linear_alloc_casts(p, layer, operands, ARRAY_LEN(operands), casts, micro);
}

/* Allocates the gradient of a sublayer's output. */
static struct mat take_output_grad(const struct pass *p, struct arena *a)
{
	return mat_alloc(a, p->cp.local * p->rows, p->m->c.dim, act_type(p));
}

struct grad_copy block_copy(struct pass *p, int64_t lowest)
{
	struct arena *a = p->d->scratch;
	struct grad_copy g = {.lowest = lowest};
	struct mat *const copy[] = {&g.copy};
	if (!norm_writes_copies(p))
		return g;
	g.copy = take_output_grad(p, a);
	g.sums = mat_alloc(a, (int64_t)p->cp.local * p->tp.local, p->m->c.dim, DT_F32);
	/* (if any block is float8, the middle one is) */
	linear_amax_begin(p, linear_alloc_casts(p, p->m->c.layers / 2, copy, 1, true, a));
	return g;
}

/* Allocates the gradients of the outputs of enter() as columns of one matrix. */
static void take_joined(
	const struct pass *p, const struct sub *x, const struct sizes *z, struct arena *a)
{
	struct mat all = size_of(p, &z->grads[0]);
	int64_t at = 0;
	for (int j = 1; j < SUBLAYER_INPUTS && x->t->in[j]; j++)
		all.cols += z->grads[j].cols;
	all = take(a, all);
	for (int j = 0; j < SUBLAYER_INPUTS && x->t->in[j]; j++) {
		x->g->m[j] = mat_cols(all, at, z->grads[j].cols);
		at += z->grads[j].cols;
	}
}

/* Returns true if one matmul computes the gradient of the sublayer's input. */
static bool is_one_matmul(const struct sub *x)
{
	return !x->t->in[1] || x->g->m[0].stride;
}

/* Allocates the gradients that a sublayer keeps. `copy`: from a norm, replaces g->d. */
static void alloc_grads(
	const struct pass *p, const struct sub *x, struct mat copy, struct arena *a)
{
	const struct sizes z = sizes_of(p, x->i);
	struct sublayer_grads *g = x->g;
	struct mat *operands[SUBLAYER_MATS + 1];
	int n = 0;
	*g = (struct sublayer_grads){
		.d = copy.p ? linear_cast_of(p, x->layer, copy) : take_output_grad(p, a)};
	if (x->f->joins && linear_joins(p, x->layer))
		take_joined(p, x, &z, a);
	for (int j = 0; j < SUBLAYER_MATS; j++) {
		if (z.grads[j].scratch || !z.grads[j].cols || g->m[j].p)
			continue;
		g->m[j] = take(a, size_of(p, &z.grads[j]));
		if (j < SUBLAYER_INPUTS) /* the other ones are not matmul operands */
			operands[n++] = &g->m[j];
	}
	if (x->f->sums && x->f->sums(p, x))
		g->sums = mat_alloc(a, p->cp.local, g->m[0].cols, DT_F32);
	/* the sum of several matmuls is fp32 */
	g->dh = take(a, stream_size(p, is_one_matmul(x) ? slice_type(p) : DT_F32));
	if (!copy.p)
		operands[n++] = &g->d;
	g->amax = linear_alloc_casts(p, x->layer, operands, n, true, a);
}

static void alloc_scratch(struct pass *p, int i, struct sublayer_grads *g)
{
	const struct sizes z = sizes_of(p, i);
	for (int j = 0; j < SUBLAYER_MATS; j++)
		if (z.grads[j].scratch)
			g->m[j] = take(p->d->scratch, size_of(p, &z.grads[j]));
}

void block_alloc_grads(
	const struct pass *p, int64_t layer, struct block_grads *g, struct arena *a)
{
	for (int i = 0; i < SUBLAYERS; i++) {
		const struct sub x = sub_of(p, layer, i, NULL, g);
		alloc_grads(p, &x, no_mat(), a);
	}
}

/* ---- forward --------------------------------------------------------------------- */

/* Computes the norm, unless `normed` already, and with `matmuls` the column-parallel matmuls. */
static void enter(struct pass *p, const struct sub *x, bool normed, bool matmuls)
{
	for (int c = 0; c < p->cp.local; c++) {
		const struct stream_norm norm = norm_of(p, x, c);
		struct slice_gather h;
		if (!normed)
			norm_forward(p, &norm, stream_of(p, x->a->x, c));
		size_t mark = arena_mark(p->d->scratch);
		norm_gather(p, &h, &norm);
		for (int s = 0; s < p->tp.local && matmuls; s++)
			x->f->enter(p, x, (struct at){x->layer, s, c}, &h);
		slice_gather_end(&h);
		arena_reset(p->d->scratch, mark);
	}
}

/* Computes y, and the norm of sublayer `next` unless it is NULL. */
static void leave(
	struct pass *p, const struct sub *x, struct mat y, const struct sub *next)
{
	for (int c = 0; c < p->cp.local; c++) {
		size_t mark = arena_mark(p->d->scratch);
		struct mat yc = stream_of(p, y, c);
		const struct residual r = {yc, sum_buffer(p, yc),
			stream_of(p, x->a->x, c), x->t->bias, x->f->drop};
		struct stream_norm norm;
		struct slice_sum sum;
		slice_sum_begin(&sum, &p->tp, p->d, r.sum, p->rows, act_type(p));
		struct at at = {x->layer, 0, c};
		for (; at.slice < p->tp.local; at.slice++)
			linear_leave(p, at, &sum, part_of(p, x->a->m[INNER_OUT], at),
				x->t->out);
		slice_sum_end(&sum);
		if (next)
			norm = norm_of(p, next, c);
		add_residual(p, at, &r, next ? &norm : NULL);
		arena_reset(p->d->scratch, mark);
		at.slice = 0;
		show(p, x->f->out, EXTENT_STREAM, at, yc);
	}
}

static void inner(struct pass *p, const struct sub *x)
{
	if (!x->again || !is_kept(p, x, INNER_OUT))
		x->f->inner(p, x);
}

/* Computes both sublayers; `again`: only activations that were not kept. */
static void compute_sublayers(struct pass *p, int64_t layer, struct block_acts *b,
	const struct mat *y, bool again)
{
	struct sub attention = sub_of(p, layer, ATTENTION, b, NULL);
	struct sub ffn = sub_of(p, layer, FFN, b, NULL);
	attention.again = ffn.again = again;
	enter(p, &attention, false, true);
	inner(p, &attention);
	leave(p, &attention, ffn.a->x, &ffn);
	enter(p, &ffn, true, true);
	inner(p, &ffn);
	if (y)
		leave(p, &ffn, *y, NULL);
}

void block_input(struct pass *p, struct block_acts *b, bool narrow)
{
	struct mat x = b->sub[0].x;
	if (b->x && narrow)
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
	for (int i = 0; how == RECOMPUTE_SELECTIVE && for_weights && i < SUBLAYERS; i++) {
		struct sub x = sub_of(p, layer, i, b, NULL);
		x.again = true;
		enter(p, &x, false, false);
		inner(p, &x);
	}
	p->observer = observer;
}

/* ---- backward -------------------------------------------------------------------- */

/* Computes the gradients of the results of enter() from dx, the sublayer's output gradient. */
static void inner_backward(
	struct pass *p, const struct sub *x, struct mat dx, bool copied)
{
	size_t mark = arena_mark(p->d->scratch);
	linear_amax_begin(p, x->g->amax);
	alloc_scratch(p, x->i, x->g);
	for (int c = 0; c < p->cp.local; c++) {
		size_t before = arena_mark(p->d->scratch);
		struct slice_gather d;
		residual_gather(p, &d, (struct at){x->layer, 0, c}, x->f->drop, x->g->d,
			stream_of(p, dx, c), copied);
		for (int s = 0; s < p->tp.local; s++)
			x->f->leave_backward(p, x, (struct at){x->layer, s, c}, &d);
		slice_gather_end(&d);
		arena_reset(p->d->scratch, before);
	}
	x->f->inner_backward(p, x);
	arena_reset(p->d->scratch, mark);
}

/* Computes the leaves of one chunk, except the norm's. */
static void weight_leaves(struct pass *p, const struct sub *x, int c, struct mat sums)
{
	struct at at = {x->layer, 0, c};
	bias_leaves(p, at, x->t->bias, local_rows(p, chunk_of(p, x->g->d, c)), sums);
	for (; at.slice < p->tp.local; at.slice++) {
		if (x->f->leaves)
			x->f->leaves(p, x, at);
		const struct linear out = {.y = chunk_of(p, x->g->d, c), .w = x->t->out};
		struct linear in[SUBLAYER_INPUTS];
		int n = sub_linears(p, x, at, x->g->m, in);
		if (x->g->sums.p)
			in[0].sums = mat_rows(x->g->sums, c, 1);
		linear_weights(p, at, part_of(p, x->a->m[INNER_OUT], at), &out, 1);
		linear_weights(p, at, chunk_of(p, x->a->h, c), in, n);
	}
}

/* Returns the outputs of a norm's backward for the preceding sublayer, if it is on this stage. */
static struct norm_grad copy_for_preceding(
	const struct pass *p, const struct sub *x, const struct grad_copy *copy)
{
	int64_t layer = x->i == ATTENTION ? x->layer - 1 : x->layer;
	if (!copy || !copy->copy.p || layer < copy->lowest)
		return (struct norm_grad){0};
	return (struct norm_grad){.copy = linear_cast_of(p, layer, copy->copy),
		.sums = copy->sums,
		.copy_bias = p->m->blocks[layer].sub[!x->i].bias};
}

/* Adds to dx, the gradient of the residual stream, from the gradients of the results of enter(). */
static void enter_backward(struct pass *p, const struct sub *x, struct mat dx,
	bool leaves, struct grad_copy *copy)
{
	struct norm_grad g = copy_for_preceding(p, x, copy);
	struct mat sums = copy && copy->valid ? copy->sums : no_mat();
	for (int c = 0; c < p->cp.local; c++) {
		const struct stream_norm norm = norm_of(p, x, c);
		struct mat dh = stream_of(p, x->g->dh, c);
		struct slice_sum sum;
		slice_sum_begin(&sum, &p->tp, p->d, dh, p->rows,
			is_one_matmul(x) ? act_type(p) : dh.type);
		for (int s = 0; s < p->tp.local; s++)
			x->f->enter_backward(p, x, (struct at){x->layer, s, c}, &sum);
		slice_sum_send(&sum);
		if (leaves)
			weight_leaves(p, x, c, sums);
		slice_sum_end(&sum);
		g.dx = stream_of(p, dx, c);
		g.dy = dh;
		g.x = stream_of(p, x->a->x, c);
		norm_backward(p, &norm, &g, leaves);
	}
	if (copy)
		copy->valid = g.copy.p != NULL;
}

void block_backward(struct pass *p, int64_t layer, struct block_acts *b, struct mat dx,
	struct grad_copy *copy)
{
	size_t mark = arena_mark(p->d->scratch);
	struct block_grads g;
	block_input(p, b, false);
	recompute(p, layer, b, true);
	for (int i = SUBLAYERS - 1; i >= 0; i--) {
		const struct sub x = sub_of(p, layer, i, b, &g);
		alloc_grads(p, &x, copy->copy, p->d->scratch);
		inner_backward(p, &x, dx, copy->valid);
		enter_backward(p, &x, dx, true, copy);
		arena_reset(p->d->scratch, mark);
	}
}

void block_backward_x(struct pass *p, int64_t layer, struct block_acts *b,
	struct block_grads *g, struct mat dx)
{
	block_input(p, b, false);
	recompute(p, layer, b, false);
	for (int i = SUBLAYERS - 1; i >= 0; i--) {
		const struct sub x = sub_of(p, layer, i, b, g);
		inner_backward(p, &x, dx, false);
		enter_backward(p, &x, dx, false, NULL);
	}
}

void block_backward_w(
	struct pass *p, int64_t layer, struct block_acts *b, struct block_grads *g)
{
	block_input(p, b, false);
	recompute(p, layer, b, true);
	for (int i = SUBLAYERS - 1; i >= 0; i--) {
		const struct sub x = sub_of(p, layer, i, b, g);
		for (int c = 0; c < p->cp.local; c++) {
			const struct stream_norm norm = norm_of(p, &x, c);
			weight_leaves(p, &x, c, no_mat());
			norm_leaves(p, &norm, stream_of(p, x.g->dh, c),
				stream_of(p, x.a->x, c));
		}
	}
}
