/*
 * Executes the plans of reductions (reduction.h). A row begins when the previous row is complete.
 * The host waits for it before the next turn, before the memory is reused for other leaves or
 * sums, and at the end of the step. A chained row is enqueued at once and starts after the
 * previous row by itself.
 */
#include "parallel/store_internal.h"

/* ---- rows ------------------------------------------------------------------------ */

/* Returns each rank's contribution to the current turn. */
static const enum sum_form *forms_now(const struct bucket *b)
{
	return b->sums.form[b->turns.last_round];
}

/* Aborts unless this rank wrote as many leaves as all ranks expect. */
static void check_leaves(const struct bucket *b)
{
	enum sum_form form = forms_now(b)[b->sums.first->c->rank];
	for (int i = 0; i < b->n_entries && !b->all.c->planned; i++)
		BUG_ON(b->entry[i].n_leaves != (form ? b->leaves.per_turn : 0));
}

static const struct sum_plan *plan_over(
	const struct bucket *b, const struct reduction_row *r)
{
	return r->over == OVER_ALL	? &b->all.plan
	       : r->over == OVER_WITHIN ? &b->sums.within.plan
					: &b->sums.across.plan;
}

/* Begins a row's sum, after the sum in progress, if any. */
static void begin_sum(struct store *s, struct bucket *b, const struct reduction_row *r,
	struct sum_call call)
{
	void *to = bucket_place(b, r->to);
	call.plan = plan_over(b, r);
	call.grid = s->impl->grid;
	call.after = b->sums.now;
	if (r->to == AT_GRADIENT) {
		call.result = (float *)to + r->at;
	} else {
		call.kept = to;
		call.add = bucket_adds(b, r);
	}
	b->sums.now = sum_begin(&call);
}

static void row_sum(struct store *s, struct bucket *b, const struct reduction_row *r)
{
	bool sums_leaves = r->from == AT_LEAF || r->from == AT_LEAVES;
	if (sums_leaves)
		check_leaves(b);
	begin_sum(s, b, r,
		(struct sum_call){.own = bucket_place(b, r->from),
			.form = sums_leaves ? forms_now(b) : NULL});
}

/* Rounds a sum in its own memory. The floats take its first half, so each block is written before
 * the place that it is read from, except the first block, which goes through other memory. */
static void round_in_place(struct store *s, const struct bucket *b, int64_t *sum)
{
	enum { FIRST = 1 << 16 };
	struct device *d = s->c.device;
	float *to = (float *)(void *)sum, *first_block = grads_free_leaves(s, b);
	int64_t n_all = b->sums.piece;
	for (int64_t at = 0, n; at < n_all; at += n) {
		n = min64(at ? at : FIRST, n_all - at);
		d->k->grid_sum(d,
			&(struct grid_sum){.rounded = at ? to + at : first_block,
				.parts = &(struct grid_part){.sum = sum + at},
				.n_parts = 1,
				.n = n,
				.levels = b->levels},
			s->impl->grid);
		if (!at)
			d->k->copy(d, mat(to, 1, n), mat(first_block, 1, n));
	}
}

static void row_round(struct store *s, struct bucket *b, const struct reduction_row *r)
{
	int64_t *from = bucket_place(b, r->from);
	if (r->from == AT_LEAVES)
		check_leaves(b);
	if (r->over == OVER_SELF)
		round_in_place(s, b, from);
	else
		begin_sum(s, b, r, (struct sum_call){.kept = from, .add = true});
}

static void row_gather(struct store *s, struct bucket *b, const struct reduction_row *r)
{
	begin_sum(s, b, r, (struct sum_call){.own = NULL});
}

/* Adds the sum of a tied weight's piece from the rank at the other end of the pipeline. */
static void row_swap(struct store *s, struct bucket *b, const struct reduction_row *r)
{
	int64_t *sum = bucket_place(b, r->to);
	struct device *d = s->c.device;
	struct comm *pair = mesh_group(s->c.mesh,
		(struct mesh_part){.axes = AXIS_BIT(AXIS_PP), .pp_ends = true});
	int64_t n_bytes = b->sums.piece * (int64_t)sizeof(int64_t);
	struct comm_requests q = {.c = pair};
	comm_send(&q, sum, n_bytes, !pair->rank, TAG_TIED);
	comm_recv(&q, b->sums.other, n_bytes, !pair->rank, TAG_TIED);
	comm_start(&q);
	comm_wait(&q);
	comm_requests_free(&q);
	d->k->grid_sum(d,
		&(struct grid_sum){.sum = sum,
			.add = true,
			.parts = &(struct grid_part){.sum = b->sums.other},
			.n_parts = 1,
			.n = b->sums.piece,
			.levels = b->levels},
		s->impl->grid);
}

static void row_add_workers(
	struct store *s, struct bucket *b, const struct reduction_row *r)
{
	s->add_workers(s->add_workers_with, bucket_place(b, r->to), b->sums.piece);
}

static void (*const row_functions[N_REDUCE])(
	struct store *, struct bucket *, const struct reduction_row *) = {
	[REDUCE_SUM] = row_sum,
	[REDUCE_ROUND] = row_round,
	[REDUCE_GATHER] = row_gather,
	[REDUCE_SWAP] = row_swap,
	[REDUCE_ADD_WORKERS] = row_add_workers,
	[REDUCE_FILE_ADD] = offload_row_add,
	[REDUCE_FILE_READ] = offload_row_read,
	[REDUCE_FILE_WRITE] = offload_row_write,
};

/* ---- the order of rows ----------------------------------------------------------- */

static const struct reduction *plan_now(const struct store *s, const struct bucket *b)
{
	return &b->plan[s->add_workers != NULL];
}

/* Returns the next row that is due, or NULL. */
static const struct reduction_row *next_row(const struct store *s, struct bucket *b)
{
	const struct reduction_row *row = plan_now(s, b)->row;
	while (b->row < b->end && row[b->row].when == LAST_TURN && !bucket_is_last(b))
		b->row++;
	return b->row < b->end ? &row[b->row] : NULL;
}

static void end_sum(struct bucket *b)
{
	if (b->sums.now)
		sum_end(b->sums.now);
	b->sums.now = NULL;
}

/* Executes the rows that are due: with `wait` all of them, else until a sum is in progress.
 * Returns true if a sum is in progress. */
static bool advance(struct store *s, struct bucket *b, bool wait)
{
	for (;;) {
		const struct reduction_row *r = next_row(s, b);
		if (b->sums.now && !(r && r->chained)) {
			if (!wait)
				return true;
			end_sum(b);
			continue;
		}
		if (!r)
			return false;
		row_functions[r->what](s, b, r);
		b->row++;
	}
}

void reduce_end(struct bucket *b)
{
	advance(b->store, b, true);
}

/* Counts a call of store_reduce(). Returns true if it completes a turn. */
static bool completes_turn(struct bucket *b, int use)
{
	if (use == 1 && !b->by_use && !b->tied) /* reduced together with use 0 */
		return false;
	return ++b->turns.done[use] % b->turns.calls == 0;
}

static void reduce_bucket(struct store *s, struct bucket *b, int use)
{
	struct bucket_turns *t = &b->turns;
	if (!completes_turn(b, use))
		return;
	reduce_end(b);
	t->now = (t->done[0] + t->done[1]) / t->calls - 1;
	t->last_round = t->done[use] * (b->by_use ? 2 : 1) == t->n * t->calls;
	BUG_ON(t->now >= t->n);
	b->row = 0;
	b->end = plan_now(s, b)->n_turn_rows;
	advance(s, b, false);
}

void store_reduce(struct store *s, int unit, int use)
{
	struct store_impl *o = s->impl;
	if (s->c.microbatches
			.round_robin) /* even for a rank without leaves in this round */
		grads_take_lease(s, unit);
	if (is_offloaded(s, STORE_GRAD))
		grads_take_sums(s, unit);
	for (struct bucket *b = o->bucket; b < o->bucket + o->n_trained; b++)
		if (b->first_unit == unit) /* the last unit in the backward */
			reduce_bucket(s, b, use);
	for (int i = 0; i < N_PLACES; i++)
		if (o->lease[i].unit == unit)
			o->lease[i].open = false;
}

/* Executes the rows of all buckets, with one sum per bucket in progress at once. */
static void finish_together(struct bucket *first, struct bucket *end)
{
	for (bool more = true; more;) {
		more = false;
		for (struct bucket *b = first; b < end; b++) {
			end_sum(b);
			more |= advance(b->store, b, false);
		}
	}
}

void store_step_end(struct store *s)
{
	struct bucket *first = s->impl->bucket, *end = first + s->impl->n_trained;
	for (struct bucket *b = first; b < end; b++)
		reduce_end(b);
	for (struct bucket *b = first; b < end; b++) {
		bool offloaded = is_offloaded(s, STORE_GRAD);
		if (offloaded) {
			offload_wait(s, b->offload.written);
			grads_take_sums(s, b->first_unit);
		}
		b->row = plan_now(s, b)->n_turn_rows;
		b->end = plan_now(s, b)->n_rows;
		if (offloaded) /* the next bucket uses the same memory */
			reduce_end(b);
	}
	finish_together(first, end);
	store_drop(s);
}
