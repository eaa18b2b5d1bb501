/*
 * Gradients: a rank adds its leaves as far as the canonical tree allows, then they are reduced over
 * the ranks.
 *
 * In runs, every bucket has its own buffers, and is reduced when its last leaf is written, while the
 * backward continues. Round-robin, every micro-batch of a unit is reduced as soon as its leaves are
 * written, so units share buffers: blocks alternate between two sets.
 */
#include "parallel/store_internal.h"

#include <stdlib.h>
#include <string.h>

/* ---- nodes ----------------------------------------------------------------------- */

static int n_uses(const struct bucket *b)
{
	return (int)b->shape.n[LEAF_USE];
}

/* Sets the nodes that each member contributes in a round: of one use if the uses are reduced
 * separately, else of all (-1). */
static void set_nodes(struct store *s, struct bucket *b, int use, int64_t round)
{
	for (int r = 0; r < b->c->size; r++) {
		struct sum_nodes *nodes = &b->nodes[r];
		int depth[2] = {0}, n = 0;
		nodes->n = 0;
		for (int u = 0; u < n_uses(b); u++) {
			struct tree_stack stack = {.n = 0};
			if (use >= 0 && u != use)
				continue;
			depth[u] = bucket_push(s, b, r, u, round, &stack);
			nodes->node = xrealloc(nodes->node,
				(size_t)(n + stack.n + 1) * sizeof(*nodes->node));
			nodes->buffer = xrealloc(nodes->buffer,
				(size_t)(n + stack.n + 1) * sizeof(*nodes->buffer));
			for (int i = 0; i < stack.n; i++, n++) {
				nodes->node[n] = stack.node[i];
				nodes->buffer[n] = u * depth[0] + i;
			}
		}
		nodes->n = n;
		if (r == b->c->rank && !round && use != 1) {
			b->depth = depth[0] > 1 ? depth[0] : 1;
			b->n_buffers = b->depth * (b->by_use ? 1 : n_uses(b));
		}
	}
}

/* ---- memory ---------------------------------------------------------------------- */

static bool is_shared(const struct store *s, const struct bucket *b)
{
	return b->c->shares && b->c->size > 1 && s->impl->n_shards == 1 &&
	       !s->c.microbatches.round_robin && !s->c.device->discrete;
}

static void place_buffers(struct bucket *b, struct arena *a)
{
	for (int i = 0; i < b->n_buffers; i++)
		b->buffer[i] = arena_floats(a, b->n);
}

/* Round-robin: the shard's sum, and its stack of micro-batches. */
static void place_sums(const struct store *s, struct bucket *b, struct arena *a)
{
	int64_t first, piece = sum_piece(&b->plan, b->c->rank, &first);
	int depth = tree_depth(0, s->c.microbatches.n_micro);
	b->g = arena_floats(a, b->shard[s->impl->shard].n);
	for (int u = 0; u < n_uses(b); u++) {
		if (!b->micro_buffer[u])
			b->micro_buffer[u] =
				xcalloc((size_t)depth, sizeof(*b->micro_buffer[u]));
		for (int i = 0; i < depth; i++)
			b->micro_buffer[u][i] = arena_floats(a, piece);
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

/* The largest unit of each place determines its floats. */
static void size_leases(struct store *s)
{
	int64_t *n = xcalloc((size_t)n_units(s), sizeof(*n));
	const struct bucket *end = s->impl->bucket + s->impl->n_buckets;
	for (const struct bucket *b = s->impl->bucket; b < end; b++)
		n[b->first_unit] += b->n_buffers * b->n + b->n_scratch;
	for (int u = 0; u < n_units(s); u++)
		for (int turn = 0; turn < 2; turn++) {
			struct lease *l = &s->impl->lease[unit_place(s, u, turn)];
			l->n = max64(l->n, n[u]);
		}
	free(n);
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
			b->scratch = b->shared || (b->c->planned && is_shared(s, b))
					     ? b->buffer[0] /* not used */
					     : arena_floats(a, b->n_scratch);
		}
		if (b->tied)
			b->other = arena_floats(a, b->shard[o->shard].n);
	}
	if (s->c.microbatches.round_robin)
		place_leases(s, a);
}

/* One shared memory for each group; its ranks exchange the offsets of their buffers. */
static void open_shared_group(struct store *s, struct comm *c)
{
	struct store_impl *o = s->impl;
	struct err e = {0};
	int64_t n_bytes = 0, slots = 0;
	for (struct bucket *b = o->bucket; b < o->bucket + o->n_buckets; b++) {
		if (b->c == c && is_shared(s, b)) {
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
		if (b->c != c || !is_shared(s, b))
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
		struct comm *c = o->bucket[i].c;
		bool known = false;
		for (int k = 0; k < i; k++)
			known |= o->bucket[k].c == c;
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

static void begin_step(struct store *s)
{
	struct store_impl *o = s->impl;
	for (struct bucket *b = o->bucket; b < o->bucket + o->n_buckets; b++) {
		b->units_left = 0;
		for (int u = b->first_unit; u <= b->last_unit; u++)
			b->units_left += has_tensors_of(s, b, u);
		for (int u = 0; u < 2; u++)
			b->round[u] = b->micro_sums[u].n = 0;
	}
	store_drop(s);
}

void grads_open(struct store *s, bool measuring)
{
	struct store_impl *o = s->impl;
	struct arena size;
	int64_t scratch = 0, whole = 0;
	for (struct bucket *b = o->bucket; b < o->bucket + o->n_buckets; b++) {
		set_nodes(s, b, b->by_use ? 0 : -1, 0);
		b->buffer = xcalloc((size_t)b->n_buffers, sizeof(*b->buffer));
		if (b->c->size > 1)
			b->n_scratch = round_up(sum_scratch(&b->plan, b->nodes), 16);
		if (!is_shared(s, b))
			scratch += b->n_scratch;
	}
	if (!measuring)
		open_shared(s);
	if (s->c.microbatches.round_robin)
		size_leases(s);
	arena_measure(&size, "gradients");
	place_private(s, &size);
	for (int i = 0; i < o->n_shared; i++)
		whole += o->shared[i]->n_bytes[o->shared[i]->c->rank];
	whole += (int64_t)size.peak_bytes;
	s->bytes.buffers =
		s->c.microbatches.round_robin ? 0 : scratch * (int64_t)sizeof(float);
	s->bytes.grads = whole - s->bytes.buffers;
	if (measuring) {
		o->grad_memory = size;
	} else {
		device_arena(s->c.device, &o->grad_memory, "gradients", size.peak_bytes);
		place_private(s, &o->grad_memory);
	}
	begin_step(s);
}

void grads_close(struct store *s)
{
	for (int i = 0; i < s->impl->n_shared; i++)
		comm_shared_close(s->impl->shared[i]);
	for (int i = 0; i < s->impl->n_buckets; i++)
		free(s->impl->bucket[i].from);
	free(s->impl->shared);
	device_arena_release(s->c.device, &s->impl->grad_memory);
}

/* ---- leaves ---------------------------------------------------------------------- */

static void end_sum(struct bucket *b)
{
	if (b->sum)
		tree_sum_end(b->sum);
	b->sum = NULL;
	free(b->micro_nodes);
	b->micro_nodes = NULL;
}

static bool has_leaves_of(const struct bucket *b, int unit)
{
	return b->first_unit <= unit && unit <= b->last_unit;
}

static void empty_stacks(struct bucket *b)
{
	for (int i = 0; i < b->n_entries; i++)
		for (int u = 0; u < 2; u++)
			b->entry[i].stack[u].n = 0;
}

/* Round-robin: takes memory for the unit's leaves, after the sums of the unit that used it before. */
static void take_lease(struct store *s, int unit)
{
	struct store_impl *o = s->impl;
	for (int i = 0; i < N_PLACES; i++)
		if (o->lease[i].unit == unit && o->lease[i].open)
			return;
	int *turn = unit < s->c.n_units ? &o->turn : &o->tile_turn;
	struct lease *l = &o->lease[unit_place(s, unit, *turn)];
	if (unit_place(s, unit, 0) != unit_place(s, unit, 1))
		*turn = !*turn;
	/* of this unit in the last round, and of the unit before */
	for (struct bucket *b = o->bucket; b < o->bucket + o->n_buckets; b++)
		if (has_leaves_of(b, unit) || (l->unit >= 0 && has_leaves_of(b, l->unit)))
			end_sum(b);
	BUG_ON(l->open);
	l->unit = unit;
	l->open = true;
	float *at = l->memory;
	for (struct bucket *b = o->bucket; b < o->bucket + o->n_buckets; b++) {
		if (!has_leaves_of(b, unit))
			continue;
		for (int k = 0; k < b->n_buffers; k++, at += b->n)
			b->buffer[k] = at;
		b->scratch = at;
		at += b->n_scratch;
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
		take_lease(s, unit_of(s, t, slice));
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

/* ---- sums ------------------------------------------------------------------------ */

/* The leaves that were written must be those that all ranks expect. */
static void check_nodes(const struct bucket *b)
{
	const struct sum_nodes *mine = &b->nodes[b->c->rank];
	for (int i = 0; i < b->n_entries; i++) {
		int n = 0;
		for (int u = 0; u < n_uses(b); u++)
			n += b->entry[i].stack[u].n;
		BUG_ON(n != mine->n);
	}
}

/* Round-robin: pushes the sum of each micro-batch on the stack of its use, a block of floats at a time. */
static void push_sums(void *with, const struct tree_part *parts, int n_parts)
{
	struct bucket *b = with;
	struct tree_stack before[2] = {b->micro_sums[0], b->micro_sums[1]};
	struct device *d = b->plan.d;
	int level = leaf_micro_level(&b->shape), top = b->plan.levels - (n_uses(b) > 1);
	struct tree_part *block = xcalloc((size_t)n_parts + 1, sizeof(*block));
	int64_t first, len = sum_piece(&b->plan, b->c->rank, &first);
	for (int64_t from = 0; from < len; from += d->sum_block) {
		int64_t n = min64(d->sum_block, len - from);
		int next = 0;
		tree_cut(parts, n_parts, from, n, block);
		memcpy(b->micro_sums, before, sizeof(before));
		while (next < n_parts) {
			const struct tree_node *leaf = &parts[next].node;
			struct tree_node micro = {
				level, (leaf->index << leaf->level) >> level};
			int use = (int)(micro.index >> (top - level));
			float **buffer = b->micro_buffer[use];
			struct tree_stack *stack = &b->micro_sums[use];
			struct mat sum = tree_add(
				d, block, n_parts, &next, micro, (struct mat){0});
			d->k->copy(d, mat(buffer[stack->n] + from, 1, n), sum);
			int merges = leaf_push_node(stack, &b->shape, top, micro);
			for (int i = stack->n + merges - 1; merges > 0; merges--, i--) {
				struct mat left = mat(buffer[i - 1] + from, 1, n);
				d->k->add(d, left, left, mat(buffer[i] + from, 1, n));
			}
		}
	}
	free(block);
}

static void begin_sum(struct store *s, struct bucket *b)
{
	bool round_robin = s->c.microbatches.round_robin;
	end_sum(b);
	if (!b->c->planned)
		check_nodes(b);
	const struct sum_call call = {.plan = &b->plan,
		.nodes = b->nodes,
		.buffer = b->buffer,
		.take = round_robin ? push_sums : NULL,
		.with = b,
		.result = b->g,
		.scratch = b->scratch,
		.shared = b->shared,
		.from = b->from,
		.slot = b->slot};
	b->sum = tree_sum_begin(&call);
}

void store_reduce(struct store *s, int unit, int use, bool last)
{
	struct store_impl *o = s->impl;
	if (s->c.microbatches.round_robin) /* also a rank without leaves in this round */
		take_lease(s, unit);
	for (struct bucket *b = o->bucket; b < o->bucket + o->n_buckets; b++) {
		if (!has_leaves_of(b, unit))
			continue;
		bool deferred = use == 1 && !b->by_use && !b->tied; /* for use 0 */
		if (deferred)
			continue;
		if (s->c.microbatches.round_robin) {
			set_nodes(s, b, b->by_use ? use : -1,
				b->round[b->by_use ? use : 0]++);
			begin_sum(s, b);
		} else if (last && --b->units_left == 0) {
			begin_sum(s, b);
		}
	}
	for (int i = 0; i < N_PLACES; i++)
		if (o->lease[i].unit == unit)
			o->lease[i].open = false;
}

/* Round-robin: the sum over micro-batches; all ranks of a shard receive it. */
static void finish_micro_sums(struct bucket *b)
{
	for (int r = 0; r < b->c->size; r++)
		b->nodes[r].n = 0;
	int64_t first, len = sum_piece(&b->plan, b->c->rank, &first);
	int n = 0;
	b->micro_nodes = xcalloc((size_t)(b->micro_sums[0].n + b->micro_sums[1].n + 1),
		sizeof(*b->micro_nodes));
	for (int u = 0; u < 2; u++)
		for (int i = 0; i < b->micro_sums[u].n; i++)
			b->micro_nodes[n++] = (struct tree_part){b->micro_sums[u].node[i],
				mat(b->micro_buffer[u][i], 1, len)};
	const struct sum_call call = {.plan = &b->plan,
		.nodes = b->nodes,
		.buffer = b->buffer,
		.extra = b->micro_nodes,
		.n_extra = n,
		.result = b->g,
		.scratch = b->scratch};
	b->sum = tree_sum_begin(&call);
}

/* Adds the sum of a tied weight's other use: use 0 is on the first stage, use 1 on the last. */
static void add_other_use(struct store *s, struct bucket *b)
{
	struct comm *pair = mesh_group(s->c.mesh,
		(struct mesh_part){.axes = AXIS_BIT(AXIS_PP), .pp_ends = true});
	int64_t n = b->shard[s->impl->shard].n, n_bytes = n * (int64_t)sizeof(float);
	struct comm_requests r = {.c = pair};
	comm_send(&r, b->g, n_bytes, !pair->rank, TAG_TIED);
	comm_recv(&r, b->other, n_bytes, !pair->rank, TAG_TIED);
	comm_start(&r);
	comm_wait(&r);
	comm_requests_free(&r);
	s->c.device->k->add(
		s->c.device, mat(b->g, 1, n), mat(b->g, 1, n), mat(b->other, 1, n));
}

void store_step_end(struct store *s)
{
	struct store_impl *o = s->impl;
	struct bucket *end = o->bucket + o->n_buckets;
	for (struct bucket *b = o->bucket; b < end; b++)
		end_sum(b);
	for (struct bucket *b = o->bucket; b < end && s->c.microbatches.round_robin; b++)
		finish_micro_sums(b);
	for (struct bucket *b = o->bucket; b < end; b++) {
		end_sum(b);
		if (b->tied)
			add_other_use(s, b);
	}
	begin_step(s);
}
