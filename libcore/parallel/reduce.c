/* Executes the plans of reductions (reduction.h). A row begins when the previous row is complete.
 * The host waits for it before the next turn, before the memory is reused for other leaves or
 * sums, and at the end of the step. A chained row is enqueued at once, after the previous row. */
#include "parallel/check_sums.h"
#include "parallel/store_audit.h"
#include "parallel/store_flip.h"

/* ---- rows ------------------------------------------------------------------------ */

/* Returns each rank's contribution to the current turn. */
static const enum sum_form *turn_contributions(const struct bucket *b)
{
	return b->sums.form[b->turns.last_round];
}

/* Aborts unless this rank wrote as many leaves as all ranks expect. */
static void check_leaves(const struct bucket *b)
{
	int64_t n = b->turns.last_round ? b->leaves.last : b->leaves.per_turn;
	for (int i = 0; i < b->n_entries && !b->all.c->planned; i++)
		BUG_ON(b->entry[i].n_leaves != n);
}

static const struct sum_group *row_group(
	const struct bucket *b, const struct reduction_row *r)
{
	return r->over == OVER_ALL	? &b->all
	       : r->over == OVER_WITHIN ? &b->sums.within
					: &b->sums.across;
}

/* Begins a row's sum, after the sum in progress, if any. */
static void begin_sum(struct store *s, struct bucket *b, const struct reduction_row *r,
	struct sum_call call)
{
	void *result = bucket_place(b, r->to);
	call.plan = &row_group(b, r)->plan;
	call.grid = s->impl->grid;
	call.check = check_of_sum(s, b, row_group(b, r));
	call.after = b->sums.now;
	if (r->to == AT_GRADIENT) {
		call.result = (float *)result + r->pos;
	} else {
		call.kept = result;
		call.add = bucket_adds(b, r);
	}
	if (call.own && (r->from == AT_KEPT || r->from == AT_HOST))
		check_sent_again(s, b, row_group(b, r), &call);
	if (call.own)
		flip_message(s, b, &call);
	b->sums.now = sum_begin(&call);
}

/* Begins a sum over ranks of leaves or of kept sums. */
static void run_sum(struct store *s, struct bucket *b, const struct reduction_row *r)
{
	bool sums_leaves = r->from == AT_LEAF || r->from == AT_LEAVES;
	if (sums_leaves)
		check_leaves(b);
	if (r->from == AT_LEAVES)
		flip_leaves_sum(s, b);
	else if (r->from == AT_KEPT)
		flip_kept_sum(s, b, b->sums.kept, 0, b->sums.piece);
	begin_sum(s, b, r,
		(struct sum_call){.own = bucket_place(b, r->from),
			.form = sums_leaves ? turn_contributions(b) : NULL});
}

/* Rounds a sum in its own memory. The floats take the first half of that memory, so each block is
 * written before the place that it is read from; the first block goes through other memory. */
static void round_in_place(struct store *s, const struct bucket *b, int64_t *sum)
{
	enum { FIRST = 1 << 16 };
	struct device *d = s->c.device;
	float *rounded = (float *)(void *)sum, *first_block = grads_free_leaves(s, b);
	int64_t n_all = b->sums.piece;
	for (int64_t pos = 0, n; pos < n_all; pos += n) {
		n = min64(pos ? pos : FIRST, n_all - pos);
		check_grid_sum(s, b,
			(struct grid_sum){.rounded = pos ? rounded + pos : first_block,
				.parts = &(struct grid_part){.sum = sum + pos},
				.n_parts = 1,
				.n = n,
				.levels = b->levels},
			pos);
		if (!pos)
			d->k->copy(d, mat(rounded, 1, n), mat(first_block, 1, n));
	}
}

/* Executes a row for a bucket: rounds its sum in place, or starts to sum it over ranks. */
static void run_round(struct store *s, struct bucket *b, const struct reduction_row *r)
{
	int64_t *from = bucket_place(b, r->from);
	if (r->from == AT_LEAVES) {
		check_leaves(b);
		flip_leaves_sum(s, b);
		check_row_of_one(s, b, false);
	} else {
		flip_kept_sum(s, b, from, 0, b->sums.piece);
	}
	if (r->over == OVER_SELF)
		round_in_place(s, b, from);
	else
		begin_sum(s, b, r, (struct sum_call){.kept = from, .add = true});
}

/* Begins an all-gather of pieces that are rounded already. */
static void run_gather(struct store *s, struct bucket *b, const struct reduction_row *r)
{
	begin_sum(s, b, r, (struct sum_call){.own = NULL});
}

/* The two ranks at the ends of a pipeline. */
static const struct mesh_part stage_pair = {.axes = AXIS_BIT(AXIS_PP), .pp_ends = true};

/* Returns the rank, in the world, at the other end of this rank's pipeline. */
static int other_stage(const struct store *s)
{
	scoped_ptr int *ranks = NULL;
	mesh_members(s->c.mesh, stage_pair, &ranks);
	return ranks[ranks[0] == s->c.mesh->world->rank];
}

/* Adds the sum of a tied weight's piece from the rank at the other end of the pipeline. */
static void run_swap(struct store *s, struct bucket *b, const struct reduction_row *r)
{
	int64_t *sum = bucket_place(b, r->to);
	struct device *d = s->c.device;
	struct comm *pair = mesh_group(s->c.mesh, stage_pair);
	int64_t n_bytes = b->sums.piece * (int64_t)sizeof(int64_t);
	struct comm_requests q = {.c = pair};
	comm_send(&q, sum, n_bytes, !pair->rank, TAG_TIED);
	comm_recv(&q, b->sums.other, n_bytes, !pair->rank, TAG_TIED);
	comm_start(&q);
	comm_wait(&q);
	comm_requests_release(&q);
	check_tied(s, b, pair, sum, b->sums.other, other_stage(s));
	d->k->grid_sum(d,
		&(struct grid_sum){.sum = sum,
			.add = true,
			.parts = &(struct grid_part){.sum = b->sums.other},
			.n_parts = 1,
			.n = b->sums.piece,
			.levels = b->levels},
		s->impl->grid);
}

static void run_add_workers(
	struct store *s, struct bucket *b, const struct reduction_row *r)
{
	s->add_workers(s->add_workers_with, bucket_place(b, r->to), b->sums.piece);
}

static void (*const run_row[N_REDUCE])(
	struct store *, struct bucket *, const struct reduction_row *) = {
	[REDUCE_SUM] = run_sum,
	[REDUCE_ROUND] = run_round,
	[REDUCE_GATHER] = run_gather,
	[REDUCE_SWAP] = run_swap,
	[REDUCE_ADD_WORKERS] = run_add_workers,
	[REDUCE_FILE_ADD] = offload_row_add,
	[REDUCE_FILE_READ] = offload_row_read,
	[REDUCE_FILE_WRITE] = offload_row_write,
};

/* ---- the order of rows ----------------------------------------------------------- */

static const struct reduction *current_plan(const struct store *s, const struct bucket *b)
{
	return &b->plan[s->add_workers != NULL];
}

/* Advances b->row past rows that are not due. Returns the row there; NULL: none is left. */
static const struct reduction_row *next_row(const struct store *s, struct bucket *b)
{
	const struct reduction_row *row = current_plan(s, b)->row;
	while (b->row < b->end && row[b->row].when == LAST_TURN && !in_last_turn(b))
		b->row++;
	return b->row < b->end ? &row[b->row] : NULL;
}

static void end_sum(struct bucket *b)
{
	if (b->sums.now)
		sum_end(b->sums.now);
	b->sums.now = NULL;
}

/* Returns true if a chained row may begin before the sum that it reads is complete. */
static bool chains_rows(const struct store *s)
{
	return !s->flips && !s->impl->checks.word;
}

/* Executes due rows: all, or if not `wait`, until a sum is in progress. Returns true if one is. */
static bool run_due_rows(struct store *s, struct bucket *b, bool wait)
{
	for (;;) {
		const struct reduction_row *r = next_row(s, b);
		if (b->sums.now && !(r && r->chained && chains_rows(s))) {
			if (!wait)
				return true;
			end_sum(b);
			continue;
		}
		if (!r)
			return false;
		run_row[r->what](s, b, r);
		b->row++;
	}
}

void reduce_end(struct bucket *b)
{
	run_due_rows(b->store, b, true);
}

/* Counts a call of store_reduce(). Returns true if the call completes a turn. */
static bool count_call(struct bucket *b, int use)
{
	if (use == 1 && !b->by_use && !b->tied) /* reduced together with use 0 */
		return false;
	return ++b->turns.done[use] % b->turns.calls == 0;
}

/* Counts a call of store_reduce(), and begins the reduction of a turn that is complete. */
static void reduce_bucket(struct store *s, struct bucket *b, int use)
{
	struct bucket_turns *t = &b->turns;
	if (!count_call(b, use))
		return;
	reduce_end(b);
	t->now = (t->done[0] + t->done[1]) / t->calls - 1;
	t->last_round = t->done[use] * (b->by_use ? 2 : 1) == t->n * t->calls;
	BUG_ON(t->now >= t->n);
	if (t->now > 0 && b->sums.kept && !is_offloaded(s, STORE_GRAD))
		flip_kept_sum(s, b, b->sums.kept, 0, b->sums.piece);
	grads_zero_idle_experts(s, b);
	check_contribution(s, b);
	b->row = 0;
	b->end = current_plan(s, b)->n_turn_rows;
	run_due_rows(s, b, false);
}

/* Ends the use of the memory for a unit's leaves. */
static void close_leases(struct store *s, int unit)
{
	for (int i = 0; i < N_PLACES; i++)
		if (s->impl->lease[i].unit == unit)
			s->impl->lease[i].open = false;
}

void store_reduce(struct store *s, int unit, int use)
{
	struct store_impl *o = s->impl;
	if (audit_drops(s)) {
		close_leases(s, unit);
		return;
	}
	/* even for a rank without leaves in this round */
	if (s->c.microbatches.round_robin)
		grads_assign_lease(s, unit);
	if (is_offloaded(s, STORE_GRAD))
		grads_assign_sums(s, unit);
	for (struct bucket *b = o->bucket; b < o->bucket + o->n_trained; b++)
		if (b->first_unit == unit) /* the last unit in the backward */
			reduce_bucket(s, b, use);
	close_leases(s, unit);
}

/* Executes the remaining rows of all buckets, with one sum per bucket in progress at once. */
static void run_all_rows(struct bucket *first, struct bucket *end)
{
	for (bool in_progress = true; in_progress;) {
		in_progress = false;
		for (struct bucket *b = first; b < end; b++) {
			end_sum(b);
			in_progress |= run_due_rows(b->store, b, false);
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
			grads_assign_sums(s, b->first_unit);
		}
		b->row = current_plan(s, b)->n_turn_rows;
		b->end = current_plan(s, b)->n_rows;
		if (offloaded) /* the next bucket uses the same memory */
			reduce_end(b);
	}
	run_all_rows(first, end);
	store_discard_leaves(s);
	store_flip(s, FLIP_ROUNDED);
}
