/*
 * The sums of gradients over ranks: of a bucket at once, or round by round.
 *
 * The owner of a piece adds what all ranks contribute. If that is not the end, because other rounds, the
 * other use of a tied weight, or replicas are to come, it keeps the sum of its piece as int64. At the
 * end all is rounded, once. A gradient that is one leaf in all stays as it is.
 *
 * Where a second sum follows (bucket.h), it begins when the first one is complete: with hybrid sharding
 * (HSDP) that over the replicas of each shard, after the last one over the shards; or that over hosts, each
 * time, after that within a host.
 */
#include "parallel/store_internal.h"

/* What each rank has of the current turn's leaves. */
static const enum sum_form *forms_now(const struct bucket *b)
{
	return b->sums.form[b->turns.last_round];
}

static void *place_of(const struct bucket *b, enum reduction_place place)
{
	void *const at[N_AT] = {[AT_LEAF] = b->leaves.memory,
		[AT_LEAVES] = b->leaves.sum,
		[AT_HOST] = b->sums.of_host,
		[AT_KEPT] = b->sums.kept,
		[AT_GRADIENT] = b->g};
	return at[place];
}

/* The plan's next row must be this one. NULL: any place. */
static const struct reduction_row *expect_row(struct store *s, struct bucket *b,
	enum reduction_what what, enum reduction_over over, const void *from,
	const void *to)
{
	const struct reduction *p = &b->plan[s->add_workers != NULL];
	while (b->row < b->end && p->row[b->row].when == LAST_TURN &&
		b->turns.now != b->turns.n - 1)
		b->row++;
	const struct reduction_row *r = &p->row[b->row];
	BUG_ON(b->row++ >= b->end);
	BUG_ON(r->what != what || r->over != over);
	BUG_ON(from && place_of(b, r->from) != from);
	BUG_ON(to &&
		(char *)place_of(b, r->to) + r->at * (r->to == AT_GRADIENT ? 4 : 8) !=
			to);
	return r;
}

static void rows_are_done(struct store *s, struct bucket *b, int next, bool is_turn)
{
	const struct reduction *p = &b->plan[s->add_workers != NULL];
	while (b->row < b->end && p->row[b->row].when == LAST_TURN &&
		b->turns.now != b->turns.n - 1)
		b->row++;
	BUG_ON(b->row != b->end);
	b->row = next;
	b->end = is_turn ? p->n_turn_rows : p->n_rows;
}

static enum reduction_over over_of(const struct bucket *b, const struct sum_group *g)
{
	return g == &b->all ? OVER_ALL : g == &b->sums.within ? OVER_WITHIN : OVER_ACROSS;
}

/* The leaves that were written must be those that all ranks expect. */
static void check_leaves(const struct bucket *b)
{
	enum sum_form form = forms_now(b)[b->sums.first->c->rank];
	for (int i = 0; i < b->n_entries; i++)
		BUG_ON(b->entry[i].n_leaves != (form ? b->leaves.most : 0));
}

/* Where the ranks of a group write what is rounded. */
static float *result_of(const struct bucket *b, const struct sum_group *g)
{
	bool part = g != b->sums.first && b->sums.gathered;
	return b->g + (part ? b->sums.gathered_at : 0);
}

/* A sum becomes floats in its own memory, of which they need the first half: all but the first ones are
 * read from behind the place that they are written to. `room`: memory for the first ones. */
static void round_in_place(
	struct store *s, const struct bucket *b, int64_t *sum, int64_t n_all, float *room)
{
	enum { FIRST = 1 << 16 };
	struct device *d = s->c.device;
	float *to = (float *)(void *)sum;
	for (int64_t at = 0, n; at < n_all; at += n) {
		n = min64(at ? at : FIRST, n_all - at);
		d->k->grid_sum(d,
			&(struct grid_sum){.rounded = at ? to + at : room,
				.parts = &(struct grid_part){.sum = sum + at},
				.n_parts = 1,
				.n = n,
				.levels = b->levels},
			s->impl->grid);
		if (!at)
			d->k->copy(d, mat(to, 1, n), mat(room, 1, n));
	}
}

/* Adds what the ranks of a group have, after the sum in progress, if any. */
static void begin_sum(
	struct store *s, struct bucket *b, const struct sum_group *g, void *own)
{
	struct bucket_sums *x = &b->sums;
	struct sum_call call = {
		.plan = &g->plan, .grid = s->impl->grid, .after = x->now, .own = own};
	if (g == x->first)
		call.form = forms_now(b);
	if (g == x->first && x->by_host) {
		call.kept = x->of_host;
	} else if (x->keeps && (g == x->first || x->by_host)) {
		call.kept = x->kept;
		call.add = b->turns.now > 0 && !is_offloaded(s, STORE_GRAD);
	} else {
		call.result = result_of(b, g);
	}
	const struct reduction_row *r = expect_row(s, b, REDUCE_SUM, over_of(b, g), own,
		call.kept ? (void *)call.kept : call.result);
	BUG_ON(r->chained != (x->now != NULL));
	BUG_ON(call.add !=
		(r->add == REDUCE_ADD || (r->add == REDUCE_LATER && b->turns.now > 0)));
	x->now = sum_begin(&call);
}

/* Sums the leaves that the ranks have. */
static void begin_first(struct store *s, struct bucket *b)
{
	bool lone = b->all.c->size == 1, several = b->leaves.most > 1;
	bool in_place = lone && several && !b->sums.keeps;
	if (!b->all.c->planned)
		check_leaves(b);
	if (lone && is_offloaded(s, STORE_GRAD))
		offload_add(s, b);
	else if (in_place && !s->c.microbatches.round_robin) { /* else it is in a lease */
		expect_row(s, b, REDUCE_SUM, OVER_ALL, b->leaves.sum, b->leaves.sum);
		round_in_place(s, b, b->leaves.sum, b->n, s->impl->leaves);
	} else
		begin_sum(s, b, b->sums.first,
			several ? (void *)b->leaves.sum : b->leaves.memory);
}

/* What the first sum gives, which may be in progress. */
static void begin_second(struct store *s, struct bucket *b)
{
	begin_sum(s, b, b->sums.last, b->sums.by_host ? b->sums.of_host : b->sums.kept);
}

/* What was kept is rounded, or is rounded already (NULL), and sent to the ranks that receive it. */
static void round_and_gather(
	struct store *s, struct bucket *b, const struct sum_group *g, int64_t *kept)
{
	expect_row(s, b, kept ? REDUCE_ROUND : REDUCE_GATHER, over_of(b, g), kept,
		result_of(b, g));
	b->sums.now = sum_begin(&(struct sum_call){.plan = &g->plan,
		.grid = s->impl->grid,
		.kept = kept,
		.add = true,
		.result = result_of(b, g)});
}

static void end_sum(struct bucket *b)
{
	if (b->sums.now)
		sum_end(b->sums.now);
	b->sums.now = NULL;
}

void reduce_end(struct bucket *b)
{
	bool offloads = b->sums.now && is_offloaded(b->store, STORE_GRAD);
	end_sum(b);
	if (offloads)
		offload_add(b->store, b);
}

/* Hybrid: can the second sum follow at once? */
static bool is_followed(const struct store *s, const struct bucket *b)
{
	return bucket_is_hybrid(b) && !b->tied && !s->add_workers &&
	       !is_offloaded(s, STORE_GRAD);
}

/* Counts a call of store_reduce(). Returns whether it completes a turn. */
static bool completes_turn(struct bucket *b, int use)
{
	if (use == 1 && !b->by_use && !b->tied) /* with use 0 */
		return false;
	return ++b->turns.done[use] % b->turns.calls == 0;
}

static void reduce_bucket(struct store *s, struct bucket *b, int use)
{
	struct bucket_turns *t = &b->turns;
	if (!completes_turn(b, use))
		return;
	reduce_end(b);
	rows_are_done(s, b, 0, true);
	t->now = (t->done[0] + t->done[1]) / t->calls - 1;
	t->last_round = t->done[use] * (b->by_use ? 2 : 1) == t->n * t->calls;
	BUG_ON(t->now >= t->n);
	begin_first(s, b);
	if (b->sums.by_host || (t->now == t->n - 1 && is_followed(s, b)))
		begin_second(s, b);
}

void store_reduce(struct store *s, int unit, int use)
{
	struct store_impl *o = s->impl;
	if (s->c.microbatches.round_robin) /* also a rank without leaves in this round */
		grads_take_lease(s, unit);
	if (is_offloaded(s, STORE_GRAD))
		grads_take_sums(s, unit);
	for (struct bucket *b = o->bucket; b < o->bucket + o->n_trained; b++)
		if (b->first_unit == unit) /* the last one of the backward */
			reduce_bucket(s, b, use);
	for (int i = 0; i < N_PLACES; i++)
		if (o->lease[i].unit == unit)
			o->lease[i].open = false;
}

/* ---- the end of a step ----------------------------------------------------------- */

/* Adds what the rank at the other end of the pipeline has of the piece of a tied weight. */
static void add_other(struct store *s, struct bucket *b)
{
	struct device *d = s->c.device;
	struct comm *pair = mesh_group(s->c.mesh,
		(struct mesh_part){.axes = AXIS_BIT(AXIS_PP), .pp_ends = true});
	int64_t n_bytes = b->sums.piece * (int64_t)sizeof(int64_t);
	struct comm_requests r = {.c = pair};
	expect_row(s, b, REDUCE_SWAP, OVER_STAGES, b->sums.kept, b->sums.kept);
	comm_send(&r, b->sums.kept, n_bytes, !pair->rank, TAG_TIED);
	comm_recv(&r, b->sums.other, n_bytes, !pair->rank, TAG_TIED);
	comm_start(&r);
	comm_wait(&r);
	comm_requests_free(&r);
	d->k->grid_sum(d,
		&(struct grid_sum){.sum = b->sums.kept,
			.add = true,
			.parts = &(struct grid_part){.sum = b->sums.other},
			.n_parts = 1,
			.n = b->sums.piece,
			.levels = b->levels},
		s->impl->grid);
}

static void begin_finish(struct store *s, struct bucket *b)
{
	int64_t n = b->sums.piece;
	if (b->tied)
		add_other(s, b);
	if (s->add_workers) {
		expect_row(s, b, REDUCE_ADD_WORKERS, OVER_WORKERS, b->sums.kept,
			b->sums.kept);
		s->add_workers(s->add_workers_with, b->sums.kept, n);
	}
	if (bucket_rounds_kept(s, b)) {
		expect_row(s, b, REDUCE_ROUND, OVER_SELF, b->sums.kept, b->g);
		round_in_place(s, b, b->sums.kept, n, grads_free_lease(s, b));
	} else if (bucket_is_hybrid(b))
		begin_second(s, b);
	else
		round_and_gather(s, b, b->sums.last, b->sums.kept);
}

/* By host, if nothing is sharded, the rounded parts are gathered within hosts. */
static void gather(struct store *s, struct bucket *b)
{
	end_sum(b);
	if (b->sums.gathered)
		round_and_gather(s, b, b->sums.first, NULL);
}

static void finish_offloaded(struct store *s)
{
	struct store_impl *o = s->impl;
	for (struct bucket *b = o->bucket; b < o->bucket + o->n_trained; b++) {
		if (!offload_load(s, b))
			continue;
		const struct reduction *p = &b->plan[s->add_workers != NULL];
		BUG_ON(p->row[b->row++].what != REDUCE_FILE_READ);
		begin_finish(s, b);
		gather(s, b);
		end_sum(b);
		BUG_ON(p->row[b->row++].what != REDUCE_FILE_WRITE);
		offload_store(s, b);
	}
}

static void finish_grads(struct store *s)
{
	struct store_impl *o = s->impl;
	struct bucket *end = o->bucket + o->n_trained;
	for (struct bucket *b = o->bucket; b < end; b++)
		if (b->sums.keeps && !is_followed(s, b))
			begin_finish(s, b);
	for (struct bucket *b = o->bucket; b < end; b++)
		gather(s, b);
	for (struct bucket *b = o->bucket; b < end; b++)
		end_sum(b);
}

void store_step_end(struct store *s)
{
	struct store_impl *o = s->impl;
	for (struct bucket *b = o->bucket; b < o->bucket + o->n_trained; b++)
		reduce_end(b);
	for (struct bucket *b = o->bucket; b < o->bucket + o->n_trained; b++)
		rows_are_done(s, b, b->plan[s->add_workers != NULL].n_turn_rows, false);
	if (is_offloaded(s, STORE_GRAD))
		finish_offloaded(s);
	else
		finish_grads(s);
	for (struct bucket *b = o->bucket; b < o->bucket + o->n_trained; b++)
		rows_are_done(s, b, 0, true);
	store_drop(s);
}
