/* The feed-forward sublayer with experts (Shazeer et al. 2017): the sum over a token's experts of
 * gate W2 (silu(W1 h) * W3 h), plus an optional shared expert that computes all tokens. The router
 * chooses the experts of each token.
 *
 * A slot is one of the k experts of a row. Slots are sorted by (expert, chunk, row), and each expert
 * computes its rows in one matmul. Law 1 of pt(7): no element depends on the rows beside its own,
 * the slots of a row are added in the order of experts, and the leaf of an expert's weight is the sum
 * over the rows of one micro-batch and chunk, in their order.
 *
 * Ranks may divide the experts (parallel/dispatch.h). Then the rows of all their slots go to the
 * ranks of the experts, where they are sorted by (expert, source, chunk, row), and the results come
 * back. "Here" are the rows of this rank's experts; with one rank they are its own sorted slots.
 * While rows are under way, a rank computes the shared expert, by the calls that one rank makes. */
#include "model/experts.h"

#include <math.h>

#include "model/router.h"

static void add_expert_tensors(struct model *m, int64_t layer, struct sublayer_tensors *t)
{
	const struct model_config *c = &m->c;
	int64_t dim = c->dim, n = c->experts, f = c->expert_dim, s = c->shared_expert_dim;
	bool norm = model_has_norm(m, NORM_OF_INPUT),
	     post = model_has_norm(m, NORM_OF_OUTPUT), gated = c->shared_expert_gate,
	     bias = c->router != ROUTER_SOFTMAX || c->router_bias_rate > 0;
	/* clang-format off */
	const struct tensor_row rows[] = {
		{"ffn_norm.weight",      dim,       0,   TP_SPLIT_NONE, ROW_NORM,     norm,  &t->norm},
		{"router.weight",        n,         dim, TP_SPLIT_NONE, ROW_ROUTER,   true,  &t->router},
		{"router.bias",          n,         0,   TP_SPLIT_NONE, ROW_STATE,    bias,  &t->router_bias},
		{"experts.w13.weight",   2 * n * f, dim, TP_SPLIT_ROWS, ROW_WEIGHT,   true,  &t->w13, .experts = n, .blocks = 2 * n},
		{"experts.w2.weight",    n * dim,   f,   TP_SPLIT_COLS, ROW_RESIDUAL, true,  &t->w2, .experts = n, .blocks = n},
		{"shared.w1.weight",     s,         dim, TP_SPLIT_ROWS, ROW_WEIGHT,   s > 0, &t->in[0]},
		{"shared.w3.weight",     s,         dim, TP_SPLIT_ROWS, ROW_GATE,     s > 0, &t->in[1]},
		{"shared.w2.weight",     dim,       s,   TP_SPLIT_COLS, ROW_RESIDUAL, s > 0, &t->out},
		{"shared_gate.weight",   1,         dim, TP_SPLIT_NONE, ROW_ROUTER,   gated, &t->shared_gate},
		{"ffn_post_norm.weight", dim,       0,   TP_SPLIT_NONE, ROW_NORM,     post,  &t->post_norm},
	};
	/* clang-format on */
	tensors_add(m, layer, rows, ARRAY_LEN(rows));
}

/* ---- shapes ---------------------------------------------------------------------- */

static int64_t all_slots(const struct pass *p)
{
	return all_rows(p) * per_row(p);
}

static int64_t n_groups(const struct pass *p)
{
	return p->m->c.experts * p->cp.local;
}

/* Returns the number of rows here. */
static int64_t rows_here(const struct pass *p)
{
	return divides_experts(p) ? dispatch_rows(&p->experts) : all_slots(p);
}

static bool has_capacity(const struct pass *p)
{
	return p->m->c.expert_capacity > 0;
}

static void set_expert_sizes(
	const struct pass *p, struct mat_size *acts, struct mat_size *grads)
{
	const struct model_config *c = &p->m->c;
	int64_t f = c->expert_dim / p->tp.n, slots = p->tp.local * all_slots(p);
	int64_t here = p->tp.local * p->experts.capacity;
	int64_t rows = all_rows(p), k = per_row(p);
	enum dtype act = act_type(p);
	if (has_shared(p)) {
		acts[SY] = (struct mat_size){c->shared_expert_dim / p->tp.n, act};
		acts[SA] = acts[SB] = grads[DSA] = grads[DSB] = acts[SY];
	}
	if (c->shared_expert_gate) {
		grads[GSY] = acts[SY];
		grads[DSHARED] =
			(struct mat_size){1, DT_F32, KEPT, p->cp.local * p->stream_rows};
	}
	acts[AB] = (struct mat_size){2 * f, act, KEPT, here};
	acts[IDS] = acts[PLACES] = acts[SLOTS] = (struct mat_size){k, DT_F32, KEPT, rows};
	acts[GATES] = (struct mat_size){gate_cols(p), DT_F32, KEPT, rows};
	if (has_capacity(p))
		acts[KEPT_GATES] = acts[GATES];
	acts[LSE] = (struct mat_size){1, DT_F32, KEPT, rows};
	acts[OFFSETS] = (struct mat_size){n_groups(p) + 1, DT_F32, KEPT, 1};
	acts[Y] = (struct mat_size){c->dim, act, UNTIL_SUBLAYER_ENDS, slots};
	if (divides_experts(p)) {
		acts[HERE] =
			(struct mat_size){dispatch_ints(&p->experts), DT_F32, KEPT, 1};
		acts[X] = grads[DY] =
			(struct mat_size){c->dim, act, KEPT, p->experts.capacity};
	}
	if (overlaps_shared(p)) {
		acts[SHARED] =
			(struct mat_size){c->dim, slice_type(p), UNTIL_SUBLAYER_ENDS};
		grads[DSX] = (struct mat_size){c->dim, DT_F32, UNTIL_SUBLAYER_ENDS};
	}
	if (!p->c.decode_rows)
		acts[COUNTS] = (struct mat_size){c->experts, DT_F32, UNTIL_SUBLAYER_ENDS,
			p->cp.local * p->c.batch};
	if (router_fraction_sets(p))
		acts[FRACTIONS] = (struct mat_size){
			c->experts, DT_F32, KEPT, router_fraction_sets(p)};
	grads[DAB] = acts[AB];
	grads[GA] = (struct mat_size){f, act, KEPT, here};
	grads[DSCORES] =
		(struct mat_size){c->experts, DT_F32, KEPT, p->cp.local * p->stream_rows};
	grads[DX] = acts[Y];
	grads[DGATES] = (struct mat_size){
		gate_cols(p), DT_F32, UNTIL_INNER_ENDS, p->tp.local * rows};
}

/* Returns the rows of all slots of local slice s. */
static struct mat slots_of(const struct pass *p, struct mat x, int s)
{
	return slice_of(x, s, all_slots(p));
}

/* Returns the rows here of local slice s, of x with memory for as many as there may be. */
static struct mat here_of(const struct pass *p, struct mat x, int s)
{
	return mat_rows(slice_of(x, s, p->experts.capacity), 0, rows_here(p));
}

/* Allocates scratch memory for all rows that may be here, and returns the rows that are. */
static struct mat alloc_here(struct pass *p, int64_t cols, enum dtype type)
{
	struct mat m = mat_alloc(p->d->scratch, p->experts.capacity, cols, type);
	return mat_rows(m, 0, rows_here(p));
}

/* Returns the groups of the rows here: one per expert, source and chunk. */
static struct row_groups row_groups(const struct pass *p, const struct sublayer_run *sub)
{
	return (struct row_groups){
		.offsets = sub->acts->m[divides_experts(p) ? HERE : OFFSETS].p,
		.n = n_groups(p),
		.per_block = p->experts.c->size * p->cp.local};
}

/* Returns row `row` of an array of integers [row][k]. */
static int32_t *slot_ints(const struct pass *p, struct mat x, int64_t row)
{
	return (int32_t *)x.p + row * per_row(p);
}

/* Returns the offsets of the own sorted slots; NULL: no micro-batch. */
static const int32_t *own_offsets(const struct pass *p, const struct sublayer_run *sub)
{
	return p->micro.empty ? NULL : sub->acts->m[OFFSETS].p;
}

/* Ends the program, with a message of one rank of the group: all have found it. */
static void reject_rows(struct pass *p, int64_t layer)
{
	const struct dispatch *x = &p->experts;
	if (x->c->rank)
		comm_barrier(x->c);
	double times = (double)x->most_rows / (double)all_slots(p);
	die(EX_FAILED,
		"layer %lld: the experts of a rank got %lld rows, and have memory for %lld, by "
		"--expert-room %g; give --expert-room %.2f or more, or a smaller --ep, and "
		"continue from the last checkpoint: the results stay the same",
		(long long)layer, (long long)x->most_rows, (long long)x->capacity,
		p->c.expert_room, ceil(100 * times) / 100);
}

/* Returns the gates that multiply the results of experts, [row][gate_cols]. */
static struct mat kept_gates(const struct pass *p, const struct sublayer_run *sub)
{
	return sub->acts->m[has_capacity(p) ? KEPT_GATES : GATES];
}

/* Starts to exchange the numbers of rows with the ranks that divide the experts. */
static void counts_begin(struct pass *p, const struct sublayer_run *sub)
{
	if (divides_experts(p))
		dispatch_counts_begin(&p->experts, own_offsets(p, sub));
}

static void counts_end(struct pass *p, const struct sublayer_run *sub)
{
	struct dispatch *x = &p->experts;
	if (!divides_experts(p))
		return;
	dispatch_counts_end(x, sub->acts->m[HERE].p);
	if (x->most_rows > x->capacity)
		reject_rows(p, sub->layer);
	if (p->micro.train)
		p->fullest_rows = max64(p->fullest_rows, x->most_rows);
}

/* Uses the numbers of rows of this layer and micro-batch, which were exchanged in its forward. */
static void use_counts(struct pass *p, const struct sublayer_run *sub)
{
	if (divides_experts(p))
		dispatch_restore(&p->experts, own_offsets(p, sub), sub->acts->m[HERE].p);
}

/* Returns, in scratch memory, the own sorted rows of x [chunk][row][dim]: one per slot. */
static struct mat own_rows(struct pass *p, const struct sublayer_run *sub, struct mat x)
{
	struct mat own = mat_alloc(p->d->scratch, all_slots(p), x.cols, x.type);
	p->d->k->rows_take(p->d, own, mat_rows(x, 0, all_rows(p)), sub->acts->m[SLOTS].p,
		gate_cols(p));
	return own;
}

/* Starts to send sorted rows of slots to the ranks of their experts, until dispatch_end(). Returns
 * the rows here, in `to`, or with one rank the same rows. */
static struct mat send_rows(struct pass *p, struct mat own, struct mat to)
{
	struct mat here = rows_to_experts_begin(&p->experts, own, to);
	return divides_experts(p) ? mat_rows(here, 0, rows_here(p)) : here;
}

/* Returns the rows of h or of the gradient of y that are here, which the forward or inner backward
 * has sent; with one rank, takes them again. */
static struct mat taken_rows(
	struct pass *p, const struct sublayer_run *sub, struct mat x, struct mat here)
{
	return divides_experts(p) ? mat_rows(here, 0, rows_here(p)) : own_rows(p, sub, x);
}

/* Returns the elements of gates, or gradients of gates, [row][gate_cols] as one column. */
static struct mat gate_column(const struct pass *p, void *gates)
{
	return mat(gates, all_rows(p) * gate_cols(p), 1);
}

/* ---- forward --------------------------------------------------------------------- */

/* Chooses the experts of a chunk's rows. */
static void route(struct pass *p, const struct sublayer_run *sub, struct loc loc)
{
	const struct router how = model_router(p);
	struct mat *m = sub->acts->m;
	int64_t first = loc.chunk * p->rows;
	struct mat gates = mat_rows(m[GATES], first, p->rows);
	int32_t *counts = router_counts(p) ? (int32_t *)m[COUNTS].p +
						     loc.chunk * p->c.batch * how.experts
					   : NULL;
	p->d->k->route_fwd(p->d, slot_ints(p, m[IDS], first), gates,
		(float *)m[LSE].p + first, counts, chunk_rows(p, sub->acts->h, loc.chunk),
		param(p, sub->tensors->router, 0),
		param(p, sub->tensors->router_bias, 0).p,
		param(p, sub->tensors->shared_gate, 0), &how);
	observe(p, "router", EXTENT_CHUNK, loc, gates);
}

/* Computes W1 and W3 of the shared expert, unless that is done later. After the last slice, all
 * rows are there: routes. */
static void experts_in_forward(struct pass *p, const struct sublayer_run *sub,
	struct loc loc, struct slice_gather *h)
{
	struct linear l[SUBLAYER_INPUTS] = {0};
	int n = in_linears(p, sub, loc, &sub->acts->m[SA], l);
	if (!overlaps_shared(p))
		column_parallel_forward(p, loc, h, l, n);
	if (loc.slice < p->tp.local - 1 || sub->recomputes)
		return;
	slice_gather_end(h);
	route(p, sub, loc);
}

/* Computes W2 of slice s. */
static void w2_forward(struct pass *p, const struct sublayer_run *sub, int s)
{
	const struct row_groups groups = row_groups(p, sub);
	struct mat ab = here_of(p, sub->acts->m[AB], s);
	struct mat own = slots_of(p, sub->acts->m[Y], s);
	size_t mark = arena_mark(p->d->scratch);
	struct mat a = alloc_here(p, ab.cols / 2, ab.type);
	struct mat y = divides_experts(p) ? alloc_here(p, own.cols, own.type) : own;
	p->d->k->expert_act_fwd(p->d, p->m->act, a, ab);
	p->d->k->groups_fwd(p->d, y, a, linear_param(p, sub->tensors->w2, s), &groups);
	rows_back_begin(&p->experts, y, own);
	shared_w2_forward(p, sub, s);
	dispatch_end(&p->experts);
	arena_reset(p->d->scratch, mark);
}

/* Computes W1 and W3, and in the forward W2, from x, the rows here. */
static void slices_forward(struct pass *p, const struct sublayer_run *sub, struct mat x)
{
	const struct row_groups groups = row_groups(p, sub);
	for (int s = 0; s < p->tp.local; s++) {
		size_t mark = arena_mark(p->d->scratch);
		p->d->k->groups_fwd(p->d, here_of(p, sub->acts->m[AB], s), x,
			linear_param(p, sub->tensors->w13, s), &groups);
		if (!sub->recomputes)
			w2_forward(p, sub, s);
		arena_reset(p->d->scratch, mark);
		comm_poll();
	}
}

/* Sorts the slots of the rows by their experts, and drops slots beyond the capacity. */
static void sort_slots(struct pass *p, const struct sublayer_run *sub)
{
	const struct router how = model_router(p);
	struct mat *m = sub->acts->m;
	if (router_counts(p))
		router_count(p, sub->layer, m[COUNTS], m[FRACTIONS]);
	p->d->k->sort_slots(p->d, m[PLACES].p, m[SLOTS].p, m[OFFSETS].p, m[IDS].p,
		all_rows(p), p->rows, gate_cols(p), &how);
	if (has_capacity(p))
		router_drop(p, m[KEPT_GATES], m[GATES], m[SLOTS].p, m[OFFSETS].p);
}

static void experts_inner_forward(struct pass *p, const struct sublayer_run *sub)
{
	bool has_x = sub->recomputes && (!divides_experts(p) || keeps_act(p, sub, X));
	bool has_ab = sub->recomputes && keeps_act(p, sub, AB);
	size_t mark = arena_mark(p->d->scratch);
	if (has_x && has_ab) {
		shared_forward(p, sub);
		return;
	}
	if (!sub->recomputes) {
		sort_slots(p, sub);
		counts_begin(p, sub);
	}
	struct mat own = own_rows(p, sub, sub->acts->h);
	if (sub->recomputes)
		use_counts(p, sub);
	else
		counts_end(p, sub);
	struct mat x = send_rows(p, own, sub->acts->m[X]);
	shared_forward(p, sub);
	dispatch_end(&p->experts);
	if (!has_ab)
		slices_forward(p, sub, x);
	arena_reset(p->d->scratch, mark);
}

/* Adds the results of a chunk's slots, times their gates, to the shared expert's result. */
static void experts_out_forward(struct pass *p, const struct sublayer_run *sub,
	struct loc loc, struct slice_sum *sum)
{
	const struct mat *m = sub->acts->m;
	struct mat to = slice_sum_slot(sum), shared = no_mat();
	int64_t first = loc.chunk * p->rows;
	if (overlaps_shared(p)) {
		shared = mat_at(p, m[SHARED], loc);
	} else if (has_shared(p)) {
		const struct linear l = {.y = to, .w = sub->tensors->out};
		linear_forward(p, loc, &l, mat_at(p, m[SY], loc));
		shared = to;
	}
	p->d->k->slots_combine(p->d, to, slots_of(p, m[Y], loc.slice),
		slot_ints(p, m[PLACES], first), per_row(p),
		mat_rows(kept_gates(p, sub), first, p->rows), shared);
	linear_round(p, to);
	slice_sum_push(sum);
}

/* ---- backward -------------------------------------------------------------------- */

/* Computes the gradient of the shared expert's y, unless that is done later. After the last slice,
 * all rows are gathered. */
static void experts_out_backward(struct pass *p, const struct sublayer_run *sub,
	struct loc loc, struct slice_gather *d)
{
	if (has_shared(p) && !overlaps_shared(p))
		shared_w2_backward(p, sub, loc, d);
	if (loc.slice == p->tp.local - 1)
		slice_gather_end(d);
}

/* Starts to send the gates of the slots. Returns, in scratch memory, the gates of the rows here. */
static struct mat send_gates(struct pass *p, const struct sublayer_run *sub)
{
	const struct mat *m = sub->acts->m;
	struct mat own = mat_alloc(p->d->scratch, all_slots(p), 1, DT_F32);
	p->d->k->rows_take(
		p->d, own, gate_column(p, kept_gates(p, sub).p), m[SLOTS].p, 1);
	return send_rows(p, own, alloc_here(p, 1, DT_F32));
}

/* Computes dab and ga of slice s from the gradient z of a, where ranks divide the experts. Sends
 * the gradients of the rows here and of their gates back. */
static void divided_slice_backward(struct pass *p, const struct sublayer_run *sub,
	struct mat z, struct mat gates, int s)
{
	const struct kernels *k = p->d->k;
	const struct row_groups groups = row_groups(p, sub);
	const struct mat *m = sub->acts->m, *g = sub->grads->m;
	struct mat dab = here_of(p, g[DAB], s), own_dx = slots_of(p, g[DX], s);
	struct mat dx = alloc_here(p, own_dx.cols, own_dx.type);
	struct mat dgates = alloc_here(p, 1, DT_F32);
	struct mat own_dgates = mat_alloc(p->d->scratch, all_slots(p), 1, DT_F32);
	k->expert_act_bwd(p->d, p->m->act, dab, z, dgates.p, z, here_of(p, m[AB], s),
		gates.p, NULL, 1);
	k->groups_bwd_x(p->d, dx, dab, linear_param(p, sub->tensors->w13, s), &groups);
	rows_back_begin(&p->experts, dx, own_dx);
	rows_back_begin(&p->experts, dgates, own_dgates);
	shared_x_backward_early(p, sub, s);
	dispatch_end(&p->experts);
	k->rows_put(p->d, gate_column(p, slice_of(g[DGATES], s, all_rows(p)).p),
		own_dgates, m[SLOTS].p);
}

/* Computes the gradients of slice s's gates, activations and input from dy, the rows here. */
static void slice_backward(struct pass *p, const struct sublayer_run *sub, struct mat dy,
	struct mat gates, int s)
{
	const struct kernels *k = p->d->k;
	const struct row_groups groups = row_groups(p, sub);
	const struct mat *m = sub->acts->m, *g = sub->grads->m;
	struct mat dab = here_of(p, g[DAB], s), ga = here_of(p, g[GA], s);
	size_t mark = arena_mark(p->d->scratch);
	k->groups_bwd_x(p->d, ga, dy, linear_param(p, sub->tensors->w2, s), &groups);
	if (divides_experts(p)) {
		divided_slice_backward(p, sub, ga, gates, s);
	} else {
		k->expert_act_bwd(p->d, p->m->act, dab, ga,
			slice_of(g[DGATES], s, all_rows(p)).p, ga, here_of(p, m[AB], s),
			kept_gates(p, sub).p, m[SLOTS].p, 1);
		k->groups_bwd_x(p->d, slots_of(p, g[DX], s), dab,
			linear_param(p, sub->tensors->w13, s), &groups);
	}
	arena_reset(p->d->scratch, mark);
	comm_poll();
}

/* Sums the gradients of a chunk's gates over slices, and computes the gradient of the scores. */
static void router_backward(struct pass *p, const struct sublayer_run *sub, int c)
{
	const struct router how = model_router(p);
	struct router_losses added;
	const struct mat *m = sub->acts->m;
	int64_t rows = p->stream_rows, first = c * p->rows + p->first_row;
	size_t mark = arena_mark(p->d->scratch);
	struct mat dgates = mat_alloc(p->d->scratch, rows, gate_cols(p), DT_F32);
	struct slice_sum sum;
	slice_sum_begin(&sum, &p->tp, p->d, dgates, p->rows, DT_F32);
	for (int s = 0; s < p->tp.local; s++) {
		struct mat all = slice_of(sub->grads->m[DGATES], s, all_rows(p));
		p->d->k->copy(
			p->d, slice_sum_slot(&sum), mat_rows(all, c * p->rows, p->rows));
		slice_sum_push(&sum);
	}
	slice_sum_end(&sum);
	if (has_capacity(p))
		p->d->k->slots_mask(p->d, dgates, mat_rows(m[KEPT_GATES], first, rows),
			mat_rows(m[GATES], first, rows));
	const struct router_losses *losses =
		router_losses(p, sub->layer, m[FRACTIONS], &added);
	p->d->k->route_bwd(p->d, stream_chunk(p, sub->grads->m[DSCORES], c),
		stream_chunk(p, sub->grads->m[DSHARED], c).p, dgates,
		slot_ints(p, m[IDS], first), mat_rows(m[GATES], first, rows),
		(float *)m[LSE].p + first, mat_rows(sub->acts->h, first, rows),
		param(p, sub->tensors->router, 0), &how, losses);
	router_add_losses(p, losses);
	arena_reset(p->d->scratch, mark);
}

static void experts_inner_backward(struct pass *p, const struct sublayer_run *sub)
{
	size_t mark = arena_mark(p->d->scratch);
	use_counts(p, sub);
	struct mat own = own_rows(p, sub, sub->grads->d);
	struct mat dy = send_rows(p, own, sub->grads->m[DY]);
	struct mat gates = divides_experts(p) ? send_gates(p, sub) : no_mat();
	shared_backward(p, sub);
	dispatch_end(&p->experts);
	for (int s = 0; s < p->tp.local; s++)
		slice_backward(p, sub, dy, gates, s);
	for (int c = 0; c < p->cp.local; c++)
		router_backward(p, sub, c);
	arena_reset(p->d->scratch, mark);
}

/* Adds the gradients of a chunk's slots to the gradient of the shared expert's input. */
static void experts_in_backward(struct pass *p, const struct sublayer_run *sub,
	struct loc loc, struct slice_sum *sum)
{
	struct mat to = slice_sum_slot(sum), shared = no_mat();
	int64_t first = loc.chunk * p->rows;
	if (overlaps_shared(p)) {
		shared = mat_at(p, sub->grads->m[DSX], loc);
	} else if (has_shared(p)) {
		shared_x_backward(p, sub, loc, to);
		shared = to;
	}
	p->d->k->slots_combine(p->d, to, slots_of(p, sub->grads->m[DX], loc.slice),
		slot_ints(p, sub->acts->m[PLACES], first), per_row(p), no_mat(), shared);
	slice_sum_push(sum);
}

static void experts_join_backward(
	struct pass *p, const struct sublayer_run *sub, struct loc loc, struct mat dh)
{
	struct mat dscores = stream_chunk(p, sub->grads->m[DSCORES], loc.chunk);
	p->d->k->route_bwd_x(p->d, dh, dscores, param(p, sub->tensors->router, 0));
	if (sub->tensors->shared_gate)
		p->d->k->route_bwd_x(p->d, dh,
			stream_chunk(p, sub->grads->m[DSHARED], loc.chunk),
			param(p, sub->tensors->shared_gate, 0));
	observe_gradient(p, "router", EXTENT_STREAM, loc, dscores);
}

/* ---- gradients of weights -------------------------------------------------------- */

/* Computes the leaf of t over the rows of a slice's piece; dscores: gradient of t h. */
static void score_leaf(struct pass *p, const struct sublayer_run *sub, struct loc loc,
	const struct tensor *t, struct mat dscores)
{
	int64_t first, n = piece_rows(p, loc.slice, &first);
	if (!t || t->frozen)
		return;
	p->d->k->route_bwd_w(p->d, leaf_buffer(p, t, loc),
		mat_rows(stream_chunk(p, dscores, loc.chunk), first, n),
		mat_rows(sub->acts->h, loc.chunk * p->rows + p->first_row + first, n));
	leaf_done(p, t, loc, 0);
}

/* Sets host[n_groups + 1] to the first row here of each group, without waiting for a device: on a
 * GPU that has all experts, and in a plan, as if every group had a row. */
static void get_offsets(
	struct pass *p, const struct sublayer_run *sub, int32_t *host, int64_t n)
{
	size_t n_bytes = (size_t)(n + 1) * sizeof(*host);
	for (int64_t i = 0; i <= n; i++)
		host[i] = (int32_t)i;
	if (divides_experts(p) && !p->experts.c->planned)
		memcpy(host, p->experts.here, n_bytes);
	else if (!p->d->discrete)
		device_get(p->d, host, row_groups(p, sub).offsets, n_bytes);
}

/* The leaves of a chunk that are computed at once: the gradients of the experts that have rows. */
struct expert_leaves {
	struct group_leaf *list; /* [experts] */
	int *expert;		 /* [experts]: the expert of each leaf */
	int n, source;		 /* source: the rank that has the rows' micro-batch */
	int32_t *offsets;	 /* [groups + 1] */
};

/* Passes a leaf of an expert to the observer, with the micro-batch and the chunk of its source. */
static void observe_expert_leaf(struct pass *p, const struct tensor *t, struct loc loc,
	const struct expert_leaves *leaves, int i)
{
	const struct mesh *mesh = p->c.mesh;
	int cp = mesh->degree[AXIS_CP], n = p->experts.c->size;
	int own =
		microbatches_rank(mesh->degree, mesh->coord) * cp + mesh->coord[AXIS_CP];
	int source = own - own % n + leaves->source;
	observe_result(p, (struct result){.name = t->name,
				  .gradient = true,
				  .extent = EXTENT_LEAF,
				  .at = loc,
				  .first_row = leaves->expert[i] * t->expert_rows,
				  .x = leaves->list[i].dw,
				  .tensor = t,
				  .slice = tensor_slice(t, p->tp.first + loc.slice),
				  .micro = microbatches_index(&p->store->c.microbatches,
					  source / cp, p->micro.turn),
				  .chunk = source % cp * p->cp.local + loc.chunk});
}

/* Sets the experts here that have rows in a chunk of a source, without memory for their leaves. */
static void find_experts(
	const struct pass *p, struct expert_leaves *x, int source, int chunk)
{
	int first, n = dispatch_experts_here(&p->experts, &first);
	x->n = 0;
	for (int e = 0; e < n; e++) {
		int group = (e * p->experts.c->size + source) * p->cp.local + chunk;
		if (x->offsets[group] == x->offsets[group + 1])
			continue;
		x->list[x->n] = (struct group_leaf){.group = group};
		x->expert[x->n++] = first + e;
	}
}

/* Returns true if a source has a micro-batch, and so a leaf of each chunk. */
static bool has_leaves(const struct pass *p, int source)
{
	return divides_experts(p) ? dispatch_has_rows(&p->experts, source)
				  : !p->micro.empty;
}

/* Computes the leaf of a slice of W13 or W2 in a chunk: dy^T x over the rows of each expert. */
static void experts_leaf(struct pass *p, const struct sublayer_run *sub,
	const struct tensor *t, struct loc loc, struct mat dy, struct mat x,
	const struct expert_leaves *leaves)
{
	const struct row_groups groups = row_groups(p, sub);
	int slice = tensor_slice(t, p->tp.first + loc.slice);
	bool wide = act_type(p) == DT_F32;
	if (t->frozen)
		return;
	size_t mark = arena_mark(p->d->scratch);
	for (int i = 0; i < leaves->n; i++)
		leaves->list[i].dw =
			wide ? store_leaf_block(p->store, t, slice, leaves->expert[i])
			     : mat_alloc(p->d->scratch, t->expert_rows, t->cols,
				       act_type(p));
	p->d->k->groups_bwd_w(p->d, leaves->list, leaves->n, dy, x, &groups);
	for (int i = 0; p->observer && i < leaves->n; i++)
		observe_expert_leaf(p, t, loc, leaves, i);
	for (int i = 0; i < leaves->n; i++)
		if (wide)
			store_leaf_block_done(p->store, t, slice, leaves->expert[i]);
		else
			store_add_leaf_block(p->store, t, slice, leaves->expert[i],
				leaves->list[i].dw);
	store_leaves_written(p->store, t, slice, 1);
	arena_reset(p->d->scratch, mark);
	comm_poll();
}

/* Computes the leaves of all slices from a chunk of a source. x, dy: rows here. */
static void chunk_leaves(struct pass *p, const struct sublayer_run *sub, int c,
	struct mat x, struct mat dy, const struct expert_leaves *leaves)
{
	const struct mat *g = sub->grads->m;
	struct loc loc = {.layer = sub->layer, .chunk = c};
	for (; loc.slice < p->tp.local; loc.slice++) {
		experts_leaf(p, sub, sub->tensors->w13, loc,
			here_of(p, g[DAB], loc.slice), x, leaves);
		experts_leaf(p, sub, sub->tensors->w2, loc, dy,
			here_of(p, g[GA], loc.slice), leaves);
	}
}

/* Computes the leaves of all sources, slices and chunks: their rows are next to each other. */
static void all_experts_leaves(struct pass *p, const struct sublayer_run *sub)
{
	size_t n = (size_t)p->m->c.experts;
	scoped_ptr struct group_leaf *list = xcalloc(n, sizeof(*list));
	scoped_ptr int *expert = xcalloc(n, sizeof(*expert));
	scoped_ptr int32_t *offsets = xcalloc((size_t)n_groups(p) + 1, sizeof(*offsets));
	struct expert_leaves leaves = {list, expert, 0, 0, offsets};
	size_t mark = arena_mark(p->d->scratch);
	use_counts(p, sub);
	struct mat x = taken_rows(p, sub, sub->acts->h, sub->acts->m[X]);
	struct mat dy = taken_rows(p, sub, sub->grads->d, sub->grads->m[DY]);
	get_offsets(p, sub, offsets, n_groups(p));
	for (int source = 0; source < p->experts.c->size; source++)
		for (int c = 0; c < p->cp.local && has_leaves(p, source); c++) {
			leaves.source = source;
			find_experts(p, &leaves, source, c);
			chunk_leaves(p, sub, c, x, dy, &leaves);
		}
	arena_reset(p->d->scratch, mark);
}

static void experts_other_leaves(
	struct pass *p, const struct sublayer_run *sub, struct loc loc)
{
	score_leaf(p, sub, loc, sub->tensors->router, sub->grads->m[DSCORES]);
	score_leaf(p, sub, loc, sub->tensors->shared_gate, sub->grads->m[DSHARED]);
	if (!loc.chunk && !loc.slice)
		all_experts_leaves(p, sub);
}

const struct sublayer ffn_experts = {
	.norm = "ffn_norm",
	.out = "experts",
	.drop = DROP_FFN,
	.sums_input_grads = true,
	.input_grad_needs_norm = true,
	.kept_until = {[SY] = RECOMPUTE_NONE,
		[SA] = RECOMPUTE_MATMULS,
		[SB] = RECOMPUTE_SELECTIVE,
		[AB] = RECOMPUTE_SELECTIVE,
		[IDS] = RECOMPUTE_FULL,
		[GATES] = RECOMPUTE_FULL,
		[LSE] = RECOMPUTE_FULL,
		[PLACES] = RECOMPUTE_FULL,
		[SLOTS] = RECOMPUTE_FULL,
		[OFFSETS] = RECOMPUTE_FULL,
		[FRACTIONS] = RECOMPUTE_FULL,
		[HERE] = RECOMPUTE_FULL,
		[X] = RECOMPUTE_NONE,
		[KEPT_GATES] = RECOMPUTE_FULL},
	.add_tensors = add_expert_tensors,
	.set_sizes = set_expert_sizes,
	.in_forward = experts_in_forward,
	.inner_forward = experts_inner_forward,
	.out_forward = experts_out_forward,
	.out_input = shared_out_input,
	.other_leaves = experts_other_leaves,
	.out_backward = experts_out_backward,
	.inner_backward = experts_inner_backward,
	.in_backward = experts_in_backward,
	.join_backward = experts_join_backward,
};
