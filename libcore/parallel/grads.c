/*
 * Gradients: their memory, and leaves, which a rank adds as far as the canonical tree allows.
 *
 * In runs, every bucket has its own buffers, and is reduced when its last leaf is written, while the
 * backward continues. Round-robin, every micro-batch of a unit is reduced as soon as its leaves are
 * written, so units share buffers: blocks alternate between two sets.
 */
#include "parallel/store_internal.h"

#include <stdlib.h>

/* ---- memory ---------------------------------------------------------------------- */

static bool is_shared(const struct store *s, const struct bucket *b)
{
	return b->all.c->shares && b->all.c->size > 1 && s->impl->n_shards == 1 &&
	       !s->c.microbatches.round_robin && !s->c.device->discrete;
}

static void place_buffers(struct bucket *b, struct arena *a)
{
	for (int i = 0; i < b->n_buffers; i++)
		b->buffer[i] = arena_floats(a, b->n);
}

/* The tree of a step round-robin, whose leaves are rounds: of a power of two of micro-batches, or else
 * their micro-batches. */
int rounds_depth(const struct microbatches *mb)
{
	return tree_depth(0,
		microbatches_node(mb) ? ceil_div(mb->n_micro, mb->ranks) : mb->n_micro);
}

/* Round-robin: the shard's sum, and the stack of the rounds of its piece, whose first node is in the
 * place of the sum. All of these may be offloaded. */
static void place_sums(const struct store *s, struct bucket *b, struct arena *a)
{
	int64_t first, piece = sum_piece(&b->last->plan, b->last->c->rank, &first);
	int depth = rounds_depth(&s->c.microbatches);
	bool offloaded = is_offloaded(s, STORE_GRAD);
	b->g = offloaded ? NULL : arena_floats(a, b->shard[s->impl->shard].n);
	for (int u = 0; u < bucket_uses(b); u++) {
		if (!b->round_buffer[u])
			b->round_buffer[u] =
				xcalloc((size_t)depth, sizeof(*b->round_buffer[u]));
		for (int i = 0; i < depth && !offloaded; i++)
			b->round_buffer[u][i] =
				u || i ? arena_floats(a, piece) : b->g + first;
	}
}

static void place_leases(struct store *s, struct arena *a)
{
	for (int i = 0; i < N_PLACES; i++) {
		struct lease *l = &s->impl->lease[i];
		l->unit = -1;
		l->memory = arena_floats(a, l->n);
	}
}

/* The first unit and the last, in which are the embedding and the output layer, have their leaves in
 * one place: in a backward, the first one's are written when the last one's are long reduced. But
 * leaves of a tied weight are written in both. */
static int lease_place(const struct store *s, int unit, int turn)
{
	int place = unit_place(s, unit, turn);
	for (int i = 0; i < s->c.n_tensors && place == PLACE_LAST; i++)
		if (s->c.tensors[i].uses > 1)
			return PLACE_LAST;
	return place == PLACE_LAST ? PLACE_FIRST : place;
}

float *grads_free_lease(const struct store *s, const struct bucket *b)
{
	return s->impl->lease[lease_place(s, b->first_unit, 0)].memory;
}

/* Floats of the results of the first of two sums, but for what the gradient's own memory holds. */
static int64_t replica_floats(const struct store *s, const struct bucket *b)
{
	int n = b->by_use ? 1 : bucket_uses(b);
	if (b->last == b->leaves)
		return 0;
	return (s->c.microbatches.round_robin ? n : n - 1) *
	       round_up(b->shard[s->impl->shard].n, 16);
}

static void place_replica_sums(const struct store *s, struct bucket *b, float *at)
{
	bool in_place = !s->c.microbatches.round_robin;
	int n = b->by_use ? 1 : bucket_uses(b);
	for (int u = 0; u < n; u++) {
		b->replica_sum[u] = in_place && !u ? b->g : at;
		at += in_place && !u ? 0 : round_up(b->shard[s->impl->shard].n, 16);
	}
	if (n == 1)
		b->replica_sum[1] = b->replica_sum[0];
}

/* The largest unit of each place determines its floats. */
static void size_leases(struct store *s)
{
	int64_t *n = xcalloc((size_t)n_units(s), sizeof(*n));
	for (int i = 0; i < s->impl->n_buckets; i++) {
		const struct bucket *b = &s->impl->bucket[i];
		n[b->first_unit] += b->n_buffers * b->n + replica_floats(s, b);
	}
	for (int u = 0; u < n_units(s); u++)
		for (int turn = 0; turn < 2; turn++) {
			struct lease *l = &s->impl->lease[lease_place(s, u, turn)];
			l->n = max64(l->n, n[u]);
		}
	free(n);
}

/* The queue of a group, whose buffers are large enough for a sum in which all ranks have leaves. */
static void join_queue(struct store *s, struct sum_group *g, bool messages)
{
	struct store_impl *o = s->impl;
	int k = 0;
	while (k < o->n_queues && o->queue[k].c != g->c)
		k++;
	struct group_queue *q = &o->queue[k];
	q->c = g->c;
	o->n_queues = k == o->n_queues ? k + 1 : o->n_queues;
	g->queue = &q->sums;
	if (g->c->size > 1 && messages)
		q->n = max64(q->n, round_up(sum_buffer_floats(&g->plan, g->nodes), 16));
}

static void make_queues(struct store *s)
{
	struct store_impl *o = s->impl;
	o->queue = xcalloc(2 * (size_t)o->n_buckets, sizeof(*o->queue));
	for (struct bucket *b = o->bucket; b < o->bucket + o->n_buckets; b++) {
		bool shared = b->all.c->planned ? is_shared(s, b) : !!b->shared;
		join_queue(s, b->leaves, !shared);
		join_queue(s, b->last, !shared);
	}
}

static int64_t place_queues(struct store *s, struct arena *a)
{
	size_t before = a->used_bytes;
	for (int i = 0; i < s->impl->n_queues; i++)
		for (int k = 0; k < SUM_BUFFERS; k++)
			s->impl->queue[i].sums.buffer[k] =
				arena_floats(a, s->impl->queue[i].n);
	return (int64_t)(a->used_bytes - before);
}

/* Places the buffers that are not shared with other ranks. */
static void place_private(struct store *s, struct arena *a)
{
	struct store_impl *o = s->impl;
	for (struct bucket *b = o->bucket; b < o->bucket + o->n_buckets; b++) {
		if (s->c.microbatches.round_robin) {
			place_sums(s, b, a);
		} else {
			if (!is_shared(s, b) || !b->shared)
				place_buffers(b, a);
			b->g = o->n_shards > 1 ? arena_floats(a, b->shard[o->shard].n)
					       : b->buffer[0];
			if (b->last != b->leaves)
				place_replica_sums(
					s, b, arena_floats(a, replica_floats(s, b)));
		}
		if (b->tied && b->g)
			b->other = arena_floats(a, b->shard[o->shard].n);
	}
	if (s->c.microbatches.round_robin)
		place_leases(s, a);
	s->bytes.buffers = place_queues(s, a);
}

/* One shared memory for each group; its ranks exchange the offsets of their buffers. */
static void open_shared_group(struct store *s, struct comm *c)
{
	struct store_impl *o = s->impl;
	struct err e = {0};
	int64_t n_bytes = 0, slots = 0;
	for (struct bucket *b = o->bucket; b < o->bucket + o->n_buckets; b++) {
		if (b->all.c == c && is_shared(s, b)) {
			n_bytes += b->n_buffers * b->n * (int64_t)sizeof(float);
			slots++;
		}
	}
	struct comm_shared *m = comm_shared_open(c, n_bytes, (int)slots, &e);
	if (!m && c->rank == 0)
		warn("%s: ranks send messages instead, which takes more memory", e.msg);
	if (!m)
		return;
	o->shared = xrealloc(o->shared, (size_t)(o->n_shared + 1) * sizeof(*o->shared));
	o->shared[o->n_shared++] = m;
	struct arena a;
	arena_over(&a, "gradients", m->data[c->rank], (size_t)n_bytes);
	for (int i = 0, slot = 0; i < o->n_buckets; i++) {
		struct bucket *b = &o->bucket[i];
		if (b->all.c != c || !is_shared(s, b))
			continue;
		b->shared = m;
		b->slot = slot++;
		place_buffers(b, &a);
		int64_t at = b->buffer[0] - (float *)(void *)m->data[c->rank];
		b->from = xcalloc((size_t)c->size, sizeof(*b->from));
		comm_allgather(c, &at, b->from, sizeof(at));
	}
}

static void open_shared(struct store *s)
{
	struct store_impl *o = s->impl;
	for (int i = 0; i < o->n_buckets; i++) {
		struct comm *c = o->bucket[i].all.c;
		bool known = false;
		for (int k = 0; k < i; k++)
			known |= o->bucket[k].all.c == c;
		if (!known && is_shared(s, &o->bucket[i]))
			open_shared_group(s, c);
	}
}

static bool has_tensors_of(const struct store *s, const struct bucket *b, int unit)
{
	for (int i = 0; i < b->n_entries; i++)
		if (unit_of(s, b->entry[i].t, b->entry[i].slice) == unit)
			return true;
	return false;
}

void grads_begin_step(struct store *s)
{
	struct store_impl *o = s->impl;
	for (struct bucket *b = o->bucket; b < o->bucket + o->n_buckets; b++) {
		b->units_left = 0;
		for (int u = b->first_unit; u <= b->last_unit; u++)
			b->units_left += has_tensors_of(s, b, u);
		for (int u = 0; u < 2; u++)
			b->round[u] = b->round_sums[u].n = 0;
	}
	store_drop(s);
}

void grads_open(struct store *s, bool measuring)
{
	struct store_impl *o = s->impl;
	struct arena size;
	int64_t whole = 0;
	for (int i = 0; i < o->n_buckets; i++) {
		struct bucket *b = &o->bucket[i];
		bucket_set_nodes(s, b, b->by_use ? 0 : -1, 0);
		b->buffer = xcalloc((size_t)b->n_buffers, sizeof(*b->buffer));
	}
	if (!measuring)
		open_shared(s);
	make_queues(s);
	if (s->c.microbatches.round_robin)
		size_leases(s);
	arena_measure(&size, "gradients");
	place_private(s, &size);
	for (int i = 0; i < o->n_shared; i++)
		whole += o->shared[i]->n_bytes[o->shared[i]->c->rank];
	whole += (int64_t)size.peak_bytes;
	s->bytes.grads = whole - s->bytes.buffers;
	if (measuring) {
		o->grad_memory = size;
	} else {
		device_arena(s->c.device, &o->grad_memory, "gradients", size.peak_bytes);
		place_private(s, &o->grad_memory);
	}
	reduce_open(s);
	grads_begin_step(s);
}

void grads_close(struct store *s)
{
	reduce_close(s);
	for (int i = 0; i < s->impl->n_shared; i++)
		comm_shared_close(s->impl->shared[i]);
	for (int i = 0; i < s->impl->n_buckets; i++)
		free(s->impl->bucket[i].from);
	free(s->impl->shared);
	free(s->impl->queue);
	device_arena_release(s->c.device, &s->impl->grad_memory);
}

/* ---- leaves ---------------------------------------------------------------------- */

static void empty_stacks(struct bucket *b)
{
	for (int i = 0; i < b->n_entries; i++)
		for (int u = 0; u < 2; u++)
			b->entry[i].stack[u].n = 0;
}

void grads_take_lease(struct store *s, int unit)
{
	struct store_impl *o = s->impl;
	for (int i = 0; i < N_PLACES; i++)
		if (o->lease[i].unit == unit && o->lease[i].open)
			return;
	int *turn = unit < s->c.n_units ? &o->turn : &o->tile_turn;
	struct lease *l = &o->lease[lease_place(s, unit, *turn)];
	if (lease_place(s, unit, 0) != lease_place(s, unit, 1))
		*turn = !*turn;
	/* of this unit in the last round, and of the unit before */
	for (struct bucket *b = o->bucket; b < o->bucket + o->n_buckets; b++)
		if (bucket_has_unit(b, unit) ||
			(l->unit >= 0 && bucket_has_unit(b, l->unit)))
			reduce_end(s, b);
	BUG_ON(l->open);
	l->unit = unit;
	l->open = true;
	float *at = l->memory;
	for (struct bucket *b = o->bucket; b < o->bucket + o->n_buckets; b++) {
		if (!bucket_has_unit(b, unit))
			continue;
		for (int k = 0; k < b->n_buffers; k++, at += b->n)
			b->buffer[k] = at;
		if (b->last != b->leaves)
			place_replica_sums(s, b, at);
		at += replica_floats(s, b);
		empty_stacks(b);
	}
}

static int use_here(const struct bucket *b, const struct leaf *at)
{
	return b->tied ? 0 : at->use;
}

static struct mat leaf_at(const struct bucket *b, const struct entry *e, int use, int i)
{
	BUG_ON(i >= b->depth);
	int first = b->by_use ? 0 : use * b->depth;
	return mat(b->buffer[first + i] + e->at, e->t->rows, e->t->cols);
}

struct mat store_leaf(
	struct store *s, const struct tensor *t, int slice, const struct leaf *at)
{
	struct bucket *b = bucket_of(s, t, slice);
	struct entry *e = entry_of(s, t, slice);
	if (s->c.microbatches.round_robin)
		grads_take_lease(s, unit_of(s, t, slice));
	int use = use_here(b, at);
	return leaf_at(b, e, use, e->stack[use].n);
}

void store_leaf_done(
	struct store *s, const struct tensor *t, int slice, const struct leaf *at)
{
	struct bucket *b = bucket_of(s, t, slice);
	struct entry *e = entry_of(s, t, slice);
	int use = use_here(b, at);
	const int64_t where[N_LEAF_AXES] = {use, at->micro, at->chunk, at->user};
	if (at->micro >= s->c.microbatches.n_micro)
		return;
	int merges = leaf_push_node(&e->stack[use], &b->shape, bucket_top(s, b),
		(struct tree_node){0, leaf_index(&b->shape, where)});
	for (int top = e->stack[use].n + merges - 1; merges > 0; merges--, top--) {
		struct mat left = leaf_at(b, e, use, top - 1);
		s->c.device->k->add(s->c.device, left, left, leaf_at(b, e, use, top));
	}
}

void store_drop(struct store *s)
{
	for (int i = 0; i < s->impl->n_buckets; i++)
		empty_stacks(&s->impl->bucket[i]);
	for (int i = 0; i < N_PLACES; i++)
		s->impl->lease[i].open = false;
}
