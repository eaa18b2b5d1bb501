/* Memory of gradients, and their leaves, which a rank adds as integers (kernels/grid.h).
 *
 * With contiguous micro-batches, every bucket has its own sum, which is reduced when its last
 * leaf is written, while the backward continues. Round-robin, every micro-batch of a unit is
 * reduced as soon as its leaves are written, so units share memory: blocks alternate between two
 * sets. A rank that has only one leaf in a sum over ranks contributes the leaf itself. */
#include "parallel/check_sums.h"
#include "parallel/store_audit.h"
#include "parallel/store_flip.h"

/* ---- memory ---------------------------------------------------------------------- */

/* Returns true if the ranks of a host add the bucket in shared memory. */
static bool is_shared(const struct store *s, const struct bucket *b)
{
	return b->sums.first->c->shares && b->sums.first->c->size > 1 &&
	       b->sharding->n == 1 && !s->c.microbatches.round_robin &&
	       !s->c.device->discrete;
}

static bool has_contiguous_micros(const struct store *s)
{
	return !s->c.microbatches.round_robin;
}

/* Returns true if the gradient overwrites the leaf: contiguous micro-batches, not sharded. */
static bool replaces_leaf(const struct store *s, const struct bucket *b)
{
	return has_contiguous_micros(s) && b->sharding->n == 1;
}

static bool uses_place(const struct bucket *b, enum reduction_place place)
{
	return reduction_uses(&b->plan[0], place);
}

/* Returns true if the sum in this place is rounded to the gradient in its own memory. */
static bool rounds_in_place(const struct bucket *b, enum reduction_place sum)
{
	const struct reduction_row *r = reduction_find(&b->plan[0], REDUCE_ROUND);
	return r && r->over == OVER_SELF && r->from == sum;
}

static int64_t *arena_int64(struct arena *a, int64_t n)
{
	return (int64_t *)(void *)arena_floats(a, 2 * n);
}

static bool any_sums_int64(const struct bucket *b)
{
	for (int r = 0; r < b->sums.first->c->size; r++)
		if (b->sums.form[0][r] == SUM_INT64)
			return true;
	return false;
}

/* Allocates the int64 sum of a bucket's leaves (at equal offsets in shared memory), and one leaf or
 * the gradient. Several leaves of contiguous micro-batches go to the store's buffer. */
static void allocate_leaves(const struct store *s, struct bucket *b, struct arena *a)
{
	bool has_sum = is_shared(s, b) ? any_sums_int64(b) : uses_place(b, AT_LEAVES);
	bool replaces_sum = rounds_in_place(b, AT_LEAVES);
	b->leaves.sum = has_sum ? arena_int64(a, b->n) : NULL;
	if (uses_place(b, AT_LEAF) || !has_contiguous_micros(s) ||
		(replaces_leaf(s, b) && !replaces_sum))
		b->leaves.memory = arena_floats(a, b->n);
	if (replaces_leaf(s, b))
		b->g = replaces_sum ? (float *)(void *)b->leaves.sum : b->leaves.memory;
}

/* Allocates the host's sum. If results are gathered, it overlaps a part of the sum of leaves. */
static void allocate_host_sum(struct bucket *b, struct arena *a)
{
	const struct sum_group *g = b->sums.first;
	int64_t first, part = sum_piece(&g->plan, g->c->rank, &first);
	bool gathers = reduction_find(&b->plan[0], REDUCE_GATHER);
	if (uses_place(b, AT_HOST))
		b->sums.host_sum = gathers && uses_place(b, AT_LEAVES)
					   ? b->leaves.sum + first
					   : arena_int64(a, part);
}

static void reset_leaves(struct bucket *b)
{
	for (int i = 0; i < b->n_entries; i++) {
		struct entry *e = &b->entry[i];
		e->n_leaves = 0;
		e->checked = false;
		for (int k = 0; k < e->t->experts; k++)
			e->n_expert_leaves[k] = 0;
	}
}

/* Allocates the leaves of all buckets of a unit. */
static void allocate_unit(struct store *s, int unit, struct arena *a)
{
	struct bucket *end = s->impl->bucket + s->impl->n_trained;
	for (struct bucket *b = s->impl->bucket; b < end; b++) {
		if (b->first_unit != unit)
			continue;
		allocate_leaves(s, b, a);
		allocate_host_sum(b, a);
		reset_leaves(b);
	}
}

/* Allocates this rank's kept sum and its gradient. An offloaded gradient is rounded in a lease. */
static void allocate_shard(const struct store *s, struct bucket *b, struct arena *a)
{
	if (uses_place(b, AT_KEPT))
		b->sums.kept = arena_int64(a, b->sums.piece);
	if (rounds_in_place(b, AT_KEPT))
		b->g = (float *)(void *)b->sums.kept;
	else if (is_offloaded(s, STORE_GRAD))
		b->g = b->leaves.memory;
	else if (!replaces_leaf(s, b))
		b->g = arena_floats(a, b->shard[b->sharding->own].n);
	if (reduction_find(&b->plan[0], REDUCE_SWAP))
		b->sums.other = arena_int64(a, b->sums.piece);
}

/* Allocates the memory that buckets lease in turn for gradients and sums. No unit holds it yet. */
static void allocate_leases(struct store *s, struct arena *a)
{
	for (int i = 0; i < N_PLACES; i++) {
		struct lease *l = &s->impl->lease[i];
		l->unit = -1;
		l->memory = arena_floats(a, l->n);
	}
	s->impl->sums.unit = -1;
	s->impl->sums.memory = arena_floats(a, s->impl->sums.n);
}

/* Returns the lease for a unit's leaves. The first unit (embedding) and the last one (output
 * layer) share a lease: a backward writes the first unit's leaves long after the last unit's are
 * reduced. They do not share it if a weight is tied, since both write leaves of it. */
static int lease_place(const struct store *s, int unit, int turn)
{
	int place = unit_place(s, unit, turn);
	for (int i = 0; i < s->c.n_tensors && place == PLACE_LAST; i++)
		if (s->c.tensors[i].uses > 1)
			return PLACE_LAST;
	return place == PLACE_LAST ? PLACE_FIRST : place;
}

float *grads_free_leaves(const struct store *s, const struct bucket *b)
{
	return has_contiguous_micros(s)
		       ? s->impl->leaves
		       : s->impl->lease[lease_place(s, b->first_unit, 0)].memory;
}

/* Allocates the sums of one unit with offloaded gradients, in memory that all units share. */
static void allocate_sums(const struct store *s, int unit, struct arena *a)
{
	struct store_impl *o = s->impl;
	for (struct bucket *b = o->bucket; b < o->bucket + o->n_trained; b++)
		if (b->first_unit == unit && is_offloaded(s, STORE_GRAD))
			allocate_shard(s, b, a);
}

void grads_assign_sums(struct store *s, int unit)
{
	struct store_impl *o = s->impl;
	struct arena a;
	for (struct bucket *b = o->bucket; b < o->bucket + o->n_trained; b++)
		if (b->first_unit == o->sums.unit)
			reduce_end(b);
	o->sums.unit = unit;
	arena_init_over(&a, "sums", o->sums.memory, (size_t)o->sums.n * sizeof(float));
	allocate_sums(s, unit, &a);
}

/* Sets the size of each lease, a buffer that units use in turn, and of the sums: the largest
 * unit's. */
static void size_leases(struct store *s)
{
	struct store_impl *o = s->impl;
	for (int u = 0; u < n_units(s); u++) {
		struct arena leaves, sums;
		arena_measure(&leaves, "leaves");
		arena_measure(&sums, "sums");
		allocate_unit(s, u, &leaves);
		allocate_sums(s, u, &sums);
		for (int turn = 0; turn < 2; turn++) {
			struct lease *l = &o->lease[lease_place(s, u, turn)];
			l->n = max64(l->n, (int64_t)(leaves.used_bytes / sizeof(float)));
		}
		o->sums.n = max64(o->sums.n, (int64_t)(sums.used_bytes / sizeof(float)));
	}
}

/* Assigns a queue to a group: the queue of the same ranks, or a new one. */
static void assign_queue(struct store *s, struct sum_group *g)
{
	struct store_impl *o = s->impl;
	g->queue = o->queue;
	while (g->queue < o->queue + o->n_queues && g->queue->c != g->c)
		g->queue++;
	g->queue->c = g->c;
	g->plan.queue = &g->queue->sums;
	o->n_queues = (int)max64(o->n_queues, g->queue - o->queue + 1);
}

/* Raises the size of a queue's buffers to the size that a sum needs. */
static void size_queue(const struct sum_group *g, const enum sum_form *form)
{
	if (g->c->size > 1)
		g->queue->n = max64(
			g->queue->n, round_up(sum_buffer_floats(&g->plan, form), 16));
}

/* Sizes the receive buffers of all groups that sum gradients, except through shared memory. */
static void size_queues(struct store *s)
{
	struct store_impl *o = s->impl;
	for (struct bucket *b = o->bucket; b < o->bucket + o->n_trained; b++) {
		const struct sum_group *g = b->sums.first;
		if (!g->plan.shared && !(g->c->planned && is_shared(s, b)))
			size_queue(g, b->sums.form[0]);
		if (b->sums.last != g)
			size_queue(b->sums.last, NULL);
	}
}

/* Allocates the buffers of all queues. Returns their bytes. */
static int64_t allocate_queues(struct store *s, struct arena *a)
{
	size_t begin = a->used_bytes;
	for (int i = 0; i < s->impl->n_queues; i++)
		for (int k = 0; k < SUM_BUFFERS; k++)
			s->impl->queue[i].sums.buffer[k] =
				arena_floats(a, s->impl->queue[i].n);
	return (int64_t)(a->used_bytes - begin);
}

/* Returns true for a tied weight: the backward begins with its leaves, in the output layer. */
static bool is_written_first(const struct bucket *b)
{
	return b->entry->t->uses > 1;
}

/* Allocates memory that is not shared with other ranks, in the opposite order of a backward. */
static void allocate_private(struct store *s, struct arena *a)
{
	struct store_impl *o = s->impl;
	for (int i = 0; i < 2 * o->n_trained; i++) {
		struct bucket *b = &o->bucket[o->n_trained - 1 - i % o->n_trained];
		if (is_written_first(b) != (i >= o->n_trained))
			continue;
		b->placed = (int64_t)a->used_bytes;
		if (has_contiguous_micros(s) && !b->sums.first->plan.shared)
			allocate_leaves(s, b, a);
		if (has_contiguous_micros(s))
			allocate_host_sum(b, a);
		if (!is_offloaded(s, STORE_GRAD))
			allocate_shard(s, b, a);
	}
	o->placed_bytes = (int64_t)a->used_bytes;
	o->leaves = arena_floats(a, o->n_leaves);
	if (!has_contiguous_micros(s))
		allocate_leases(s, a);
	s->bytes.buffers = allocate_queues(s, a);
}

/* Allocates the buckets that a group of ranks adds in shared memory. */
static void allocate_shared(struct store *s, const struct group_queue *q, struct arena *a)
{
	struct store_impl *o = s->impl;
	const float *begin = (const void *)a->base;
	int slot = 0;
	for (struct bucket *b = o->bucket; b < o->bucket + o->n_trained; b++) {
		if (b->sums.first->queue != q || !is_shared(s, b))
			continue;
		allocate_leaves(s, b, a);
		struct sum_plan *p = &b->sums.first->plan;
		p->shared = q->shared;
		p->slot = slot++;
		p->leaf_at = b->leaves.memory - begin;
		if (b->leaves.sum)
			p->sum_at = (float *)(void *)b->leaves.sum - begin;
	}
}

/* Opens a group's shared memory, if the group sums in it. Warns if that fails: ranks send then. */
static void open_shared(struct store *s, struct group_queue *q)
{
	struct err e = {0};
	struct arena a;
	arena_measure(&a, "gradients");
	allocate_shared(s, q, &a);
	if (!a.used_bytes)
		return;
	q->shared = comm_shared_open(q->c, (int64_t)a.used_bytes, s->impl->n_trained, &e);
	if (!q->shared && q->c->rank == 0)
		warn("%s: ranks send messages instead, which takes more memory", e.msg);
	if (!q->shared)
		return;
	s->impl->shared_bytes += q->shared->n_bytes[q->c->rank];
	arena_init_over(&a, "gradients", q->shared->data[q->c->rank], a.used_bytes);
	allocate_shared(s, q, &a);
}

/* Returns true if a rank may have a turn without a micro-batch, with contiguous micro-batches. */
static bool has_empty_turns(const struct store *s)
{
	const struct microbatches *m = &s->c.microbatches;
	return m->lockstep && m->n_micro % m->ranks;
}

/* Returns the offset of a bucket's leaves, after leaves that may be written at the same time. */
static int64_t leaves_offset(const struct store *s, const struct bucket *b)
{
	int64_t offset = 0;
	for (const struct bucket *x = s->impl->bucket; x < b; x++)
		if (x->last_unit >= b->first_unit && x->first_unit <= b->last_unit &&
			(x->leaves.adds || has_empty_turns(s)))
			offset = max64(offset, x->leaves.pos + x->n);
	return offset;
}

/* Assigns a queue to each sum, and contiguous leaves to the store's buffer. */
static void assign_sums(struct store *s)
{
	struct store_impl *o = s->impl;
	o->queue = xcalloc(2 * (size_t)o->n_trained, sizeof(*o->queue));
	for (struct bucket *b = o->bucket; b < o->bucket + o->n_trained; b++) {
		assign_queue(s, b->sums.first);
		assign_queue(s, b->sums.last);
		if (!has_contiguous_micros(s) || (!b->leaves.adds && !has_empty_turns(s)))
			continue;
		b->leaves.pos = leaves_offset(s, b);
		o->n_leaves = max64(o->n_leaves, b->leaves.pos + b->n);
	}
}

int64_t store_gradients_offset(const struct store *s, const int64_t *live, int64_t all)
{
	const struct store_impl *o = s->impl;
	int64_t offset = max64(0, all - o->placed_bytes);
	for (const struct bucket *b = o->bucket; b < o->bucket + o->n_trained; b++) {
		if (is_shared(s, b))
			return all;
		offset = max64(offset,
			(is_written_first(b) ? all : live[b->last_unit]) - b->placed);
	}
	return offset;
}

void grads_open(struct store *s, bool measuring)
{
	struct store_impl *o = s->impl;
	struct arena size;
	assign_sums(s);
	for (int i = 0; i < o->n_queues && !measuring; i++)
		open_shared(s, &o->queue[i]);
	size_queues(s);
	if (s->c.microbatches.round_robin)
		size_leases(s);
	arena_measure(&size, "gradients");
	allocate_private(s, &size);
	s->bytes.grads = o->shared_bytes + (int64_t)size.peak_bytes - s->bytes.buffers;
	if (measuring) {
		o->grad_memory = size;
	} else {
		if (s->c.gradient_memory)
			arena_init_over(&o->grad_memory, "gradients",
				s->c.gradient_memory, size.peak_bytes);
		else
			device_arena_init(s->c.device, &o->grad_memory, "gradients",
				size.peak_bytes);
		allocate_private(s, &o->grad_memory);
	}
	store_discard_leaves(s);
}

void grads_close(struct store *s)
{
	for (int i = 0; i < s->impl->n_queues; i++)
		comm_shared_close(s->impl->queue[i].shared);
	free(s->impl->queue);
	if (!s->c.gradient_memory)
		device_arena_release(s->c.device, &s->impl->grad_memory);
}

/* ---- leaves ---------------------------------------------------------------------- */

void grads_assign_lease(struct store *s, int unit)
{
	struct store_impl *o = s->impl;
	for (int i = 0; i < N_PLACES; i++)
		if (o->lease[i].unit == unit && o->lease[i].open)
			return;
	int *turn = unit < s->c.n_units ? &o->turn : &o->tile_turn;
	struct lease *l = &o->lease[lease_place(s, unit, *turn)];
	if (lease_place(s, unit, 0) != lease_place(s, unit, 1))
		*turn = !*turn;
	/* the sums of this unit in the last round, and of the unit that used the lease before */
	for (struct bucket *b = o->bucket; b < o->bucket + o->n_trained; b++)
		if (b->first_unit == unit || b->first_unit == l->unit)
			reduce_end(b);
	BUG_ON(l->open);
	l->unit = unit;
	l->open = true;
	struct arena a;
	arena_init_over(&a, "leaves", l->memory, (size_t)l->n * sizeof(float));
	allocate_unit(s, unit, &a);
}

/* Returns where a leaf is written. In a turn without a micro-batch (lockstep), layers may write
 * leaves that nobody adds: in the common buffer, since the rank's only leaf may be complete. */
static float *leaf_address(
	const struct store *s, const struct bucket *b, const struct entry *e)
{
	bool in_common_buffer =
		has_contiguous_micros(s) &&
		(b->leaves.adds ||
			(has_empty_turns(s) && e->n_leaves == b->leaves.per_turn));
	return (in_common_buffer ? s->impl->leaves + b->leaves.pos : b->leaves.memory) +
	       e->pos;
}

/* Returns the buffer for a leaf. Round-robin: assigns memory to the unit's leaves first. */
static struct mat leaf_memory(struct store *s, const struct tensor *t, int slice)
{
	if (!has_contiguous_micros(s))
		grads_assign_lease(s, unit_of(s, t, slice));
	return mat(leaf_address(s, bucket_of(s, t, slice), entry_of(s, t, slice)),
		t->held_rows, t->cols);
}

/* Zeroes the gap after an entry's only leaf, since the sum over ranks adds the gap too. */
static void zero_gap(
	struct store *s, const struct bucket *b, const struct entry *e, float *leaf)
{
	struct device *d = s->c.device;
	int64_t n = e->rows * e->cols;
	int64_t end = e + 1 < b->entry + b->n_entries ? e[1].pos : b->n;
	int64_t gap = end - e->pos - n;
	if (gap && !b->leaves.adds)
		d->k->zero(d, mat(leaf + n, 1, gap));
}

struct mat store_leaf(struct store *s, const struct tensor *t, int slice)
{
	struct mat leaf = leaf_memory(s, t, slice);
	zero_gap(s, bucket_of(s, t, slice), entry_of(s, t, slice), leaf.p);
	return leaf;
}

/* Adds a leaf to elements [pos, ...) of this rank's sum; `add` false: overwrites them. The `last`
 * leaf of a turn also adds the checksum of the elements to this rank's word. */
static void add_to_sum(
	struct store *s, struct bucket *b, int64_t pos, struct mat x, bool add, bool last)
{
	struct device *d = s->c.device;
	const struct grid_check check = check_of_contribution(s, b, pos);
	d->k->grid_sum(d,
		&(struct grid_sum){.sum = b->leaves.sum + pos,
			.add = add,
			.parts = &(struct grid_part){.leaf = x.p},
			.n_parts = 1,
			.leaf_type = x.type,
			.n = mat_size(x),
			.levels = b->levels,
			.check = last && check.u ? &check : NULL},
		s->impl->grid);
}

/* Counts a written leaf; with several leaves per turn, adds it to this rank's sum. */
static void record_leaf(struct store *s, struct bucket *b, struct entry *e, struct mat x)
{
	bool sums = b->leaves.adds;
	struct mat leaf = sums ? x : mat(leaf_address(s, b, e), x.rows, x.cols);
	BUG_ON(++e->n_leaves > b->leaves.per_turn || e->n_expert_leaves);
	flip_leaf(s, e, leaf);
	audit_leaf(s, b, e, 0, leaf);
	e->checked = sums && e->n_leaves == b->leaves.per_turn && !audit_drops(s);
	if (sums && !audit_drops(s))
		add_to_sum(s, b, e->pos, x, e->n_leaves > 1, e->checked);
}

void store_leaf_done(struct store *s, const struct tensor *t, int slice)
{
	struct bucket *b = bucket_of(s, t, slice);
	struct entry *e = entry_of(s, t, slice);
	record_leaf(s, b, e, mat(leaf_address(s, b, e), t->held_rows, t->cols));
}

void store_add_leaf(struct store *s, const struct tensor *t, int slice, struct mat x)
{
	struct device *d = s->c.device;
	struct bucket *b = bucket_of(s, t, slice);
	struct mat leaf = store_leaf(s, t, slice);
	if (!b->leaves.adds)
		d->k->round(d, leaf, x, DT_F32, 1);
	record_leaf(s, b, entry_of(s, t, slice), x);
}

/* ---- leaves of experts ------------------------------------------------------------- */

/* Returns the first of an expert's rows among the held rows of a slice. */
static int64_t held_row(const struct tensor *t, int64_t expert)
{
	int64_t row = expert * t->expert_rows - t->held_first;
	BUG_ON(row < 0 || row >= t->held_rows);
	return row;
}

struct mat store_leaf_block(
	struct store *s, const struct tensor *t, int slice, int expert)
{
	return mat_rows(leaf_memory(s, t, slice), held_row(t, expert), t->expert_rows);
}

/* Counts the written rows of an expert; with several leaves per turn, adds them to the sum. */
static void record_block(
	struct store *s, const struct tensor *t, int slice, int expert, struct mat x)
{
	struct bucket *b = bucket_of(s, t, slice);
	struct entry *e = entry_of(s, t, slice);
	int64_t n = ++e->n_expert_leaves[expert], row = held_row(t, expert);
	bool sums = b->leaves.adds;
	struct mat leaf = sums ? x : store_leaf_block(s, t, slice, expert);
	flip_leaf(s, e, leaf);
	audit_leaf(s, b, e, row, leaf);
	BUG_ON(n > b->leaves.per_turn && !b->all.c->planned);
	if (sums && !audit_drops(s))
		add_to_sum(s, b, e->pos + row * e->cols, x, n > 1, false);
}

void store_leaf_block_done(struct store *s, const struct tensor *t, int slice, int expert)
{
	record_block(s, t, slice, expert, store_leaf_block(s, t, slice, expert));
}

void store_add_leaf_block(
	struct store *s, const struct tensor *t, int slice, int expert, struct mat x)
{
	struct device *d = s->c.device;
	struct mat rows = store_leaf_block(s, t, slice, expert);
	if (!bucket_of(s, t, slice)->leaves.adds)
		d->k->round(d, rows, x, DT_F32, 1);
	record_block(s, t, slice, expert, x);
}

void store_leaves_written(struct store *s, const struct tensor *t, int slice, int64_t n)
{
	struct bucket *b = bucket_of(s, t, slice);
	struct entry *e = entry_of(s, t, slice);
	e->n_leaves += n; /* (a plan counts leaves of empty turns, too) */
	BUG_ON(e->n_leaves > b->leaves.per_turn && !b->all.c->planned);
}

/* Zeroes a stack's leaf, or this rank's sum, for the experts that no leaf of the turn has. */
static void zero_idle_experts(struct store *s, const struct bucket *b, struct entry *e)
{
	struct device *d = s->c.device;
	const struct tensor *t = e->t;
	int64_t block = t->expert_rows * e->cols, n = e->rows / t->expert_rows;
	const int64_t *n_leaves = e->n_expert_leaves + t->held_first / t->expert_rows;
	bool sums = b->leaves.adds;
	float *to = sums ? (float *)(void *)(b->leaves.sum + e->pos)
			 : b->leaves.memory + e->pos;
	int64_t width = sums ? SUM_INT64 : SUM_LEAF;
	if (!sums)
		zero_gap(s, b, e, to);
	for (int64_t first = 0, end; first < n; first = end + 1) {
		for (end = first; end < n && !n_leaves[end];)
			end++;
		if (end > first)
			d->k->zero(d, mat(to + first * width * block, 1,
					      (end - first) * width * block));
	}
}

void grads_zero_idle_experts(struct store *s, struct bucket *b)
{
	for (int i = 0; i < b->n_entries; i++)
		if (b->entry[i].t->experts && b->entry[i].n_leaves)
			zero_idle_experts(s, b, &b->entry[i]);
}

void store_discard_leaves(struct store *s)
{
	for (int i = 0; i < s->impl->n_trained; i++) {
		struct bucket *b = &s->impl->bucket[i];
		reset_leaves(b);
		memset(b->turns.done, 0, sizeof(b->turns.done));
		b->row = b->end = 0;
	}
	for (int i = 0; i < N_PLACES; i++)
		s->impl->lease[i].open = false;
}
