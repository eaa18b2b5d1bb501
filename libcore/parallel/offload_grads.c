/*
 * Offloaded gradients (ZeRO-Offload, ZeRO-Infinity). Micro-batches are assigned round-robin, so the
 * gradient of a unit is added to those of the rounds before as soon as its backward is done. The
 * nodes of these rounds, each of the size of this rank's piece, are read, added to, and written in
 * blocks: one is read while the one before is added and the one before that is written.
 *
 * The first node of a bucket is in the place of its sum, in the region of STORE_GRAD; the others are
 * behind all regions.
 */
#include "parallel/store_internal.h"

#include <stdlib.h>

enum { ALIGN = 16 }; /* floats on a cache line */

/* ---- nodes in the backend ---------------------------------------------------------- */

static int64_t piece_of(const struct bucket *b, int64_t *first)
{
	return sum_piece(&b->last->plan, b->last->c->rank, first);
}

int64_t offload_nodes_floats(const struct store *s)
{
	return is_offloaded(s, STORE_GRAD) ? 2 * rounds_depth(&s->c.microbatches) * ALIGN
					   : 0;
}

int64_t offload_place_nodes(struct store *s, int64_t at)
{
	struct store_impl *o = s->impl;
	int64_t n = 0, first;
	if (!is_offloaded(s, STORE_GRAD))
		return 0;
	o->offload.nodes = at;
	for (struct bucket *b = o->bucket; b < o->bucket + o->n_buckets; b++) {
		int nodes = bucket_uses(b) * rounds_depth(&s->c.microbatches);
		b->nodes_at = n;
		n += (nodes - 1) * piece_of(b, &first);
	}
	return n * (int64_t)sizeof(float);
}

/* Of float `at` of the i-th node of a use. */
static int64_t node_offset(const struct bucket *b, int use, int i, int64_t at)
{
	const struct offload_pieces *w = &b->store->impl->offload;
	int number = (use ? use * rounds_depth(&b->store->c.microbatches) : 0) + i;
	int64_t first, piece = piece_of(b, &first), size = sizeof(float);
	if (!number)
		return w->begin[STORE_GRAD] + (b->at + first + at) * size;
	return w->nodes + (b->nodes_at + (number - 1) * piece + at) * size;
}

/* ---- blocks ------------------------------------------------------------------------ */

/* A block of floats of the nodes, in a piece. */
struct block {
	struct bucket *b;
	const struct node_range *range; /* [2] */
	int64_t stride;			/* floats from a node to the next one */
	int slot;
	int64_t at, n;
	uint64_t ticket; /* of the last read */
};

static float *memory_of(const struct block *x, int use, int i)
{
	const struct offload_pieces *w = &x->b->store->impl->offload;
	int before = use ? x->range[0].top - x->range[0].low : 0;
	return (float *)w->piece[x->slot][STORE_GRAD] +
	       (before + i - x->range[use].low) * x->stride;
}

/* Returns the ticket of the last request, 0: there was none. */
static uint64_t enqueue_block(const struct block *x, bool write, uint64_t after)
{
	uint64_t last = 0;
	for (int u = 0; u < bucket_uses(x->b); u++) {
		int end = write ? x->range[u].writes : x->range[u].reads;
		for (int i = x->range[u].low; i < end; i++) {
			uint64_t ticket = offload_enqueue_bytes(x->b->store, write,
				memory_of(x, u, i), node_offset(x->b, u, i, x->at),
				x->n * (int64_t)sizeof(float), after);
			last = ticket ? ticket : last;
		}
	}
	return last;
}

/* A read follows the last write from its piece, and the last one to the bucket's nodes. */
static void read_block(struct block *x, int slot, int64_t at, int64_t end)
{
	const struct offload_pieces *w = &x->b->store->impl->offload;
	uint64_t busy = w->busy[slot], written = x->b->nodes_written;
	x->slot = slot;
	x->at = at;
	x->n = min64(x->stride, end - at);
	if (x->n > 0)
		x->ticket = enqueue_block(x, false, busy > written ? busy : written);
}

static void use_block(const struct block *x, node_visit *fn, void *with)
{
	struct store *s = x->b->store;
	offload_wait(s, x->ticket);
	offload_wait(s, s->impl->offload.busy[x->slot]); /* if nothing was read */
	for (int u = 0; u < bucket_uses(x->b); u++)
		for (int i = x->range[u].low; i < x->range[u].top; i++)
			x->b->round_buffer[u][i] = memory_of(x, u, i);
	x->b->round_first = x->at;
	fn(x->b, x->at, x->n, with);
}

static void visit_blocks(struct bucket *b, const struct node_range range[static 2],
	int64_t first, int64_t len, node_visit *fn, void *with)
{
	struct offload_pieces *w = &b->store->impl->offload;
	int64_t nodes = range[0].top - range[0].low + range[1].top - range[1].low;
	uint64_t written = 0;
	if (!nodes || !len)
		return;
	struct block now = {
		.b = b, .range = range, .stride = w->floats / nodes / ALIGN * ALIGN};
	read_block(&now, w->slot, first, first + len);
	while (now.n > 0) {
		struct block next = now;
		w->slot = (w->slot + 1) % w->n_slots;
		read_block(&next, w->slot, now.at + now.n, first + len);
		use_block(&now, fn, with);
		written = enqueue_block(&now, true, 0);
		w->busy[now.slot] = written;
		now = next;
	}
	b->nodes_written = written;
}

void nodes_visit(struct bucket *b, const struct node_range range[static 2], int64_t first,
	int64_t len, node_visit *fn, void *with)
{
	if (is_offloaded(b->store, STORE_GRAD))
		visit_blocks(b, range, first, len, fn, with);
	else
		fn(b, first, len, with);
}

/* ---- after the last round ------------------------------------------------------------ */

/* The sum of all nodes, in the place of the first one. */
static void add_nodes(struct bucket *b, int64_t at, int64_t n, void *with)
{
	struct device *d = b->store->c.device;
	struct tree_part *parts = with;
	struct mat to = mat(b->round_buffer[0][0], 1, n);
	int n_parts = 0, next = 0;
	BUG_ON(at != b->round_first);
	for (int u = 0; u < bucket_uses(b); u++)
		for (int i = 0; i < b->round_sums[u].n; i++)
			parts[n_parts++] = (struct tree_part){b->round_sums[u].node[i],
				mat(b->round_buffer[u][i], 1, n)};
	struct mat sum = tree_add(
		d, parts, n_parts, &next, (struct tree_node){b->all.plan.levels, 0}, to);
	BUG_ON(next != n_parts);
	if (sum.p != to.p)
		d->k->copy(d, to, sum);
}

static void add_rounds(struct bucket *b)
{
	int n[2] = {b->round_sums[0].n, b->round_sums[1].n};
	int64_t first, len = piece_of(b, &first);
	const struct node_range all[2] = {
		{0, n[0], n[0] > 1 ? n[0] : 1, 1}, {0, n[1], n[1], 0}};
	if (n[0] == 1 && !n[1]) /* it is in its place */
		return;
	struct tree_part *parts = xcalloc((size_t)(n[0] + n[1]) + 1, sizeof(*parts));
	nodes_visit(b, all, 0, len, add_nodes, parts);
	free(parts);
}

/* The replicas of a shard send each other their pieces, from and to the memory of leaves. */
static void share_pieces(struct bucket *b)
{
	struct store *s = b->store;
	struct sum_group *g = b->last;
	int64_t first, len = piece_of(b, &first), n = b->shard[s->impl->shard].n;
	float *sum = grads_free_lease(s, b);
	if (g->plan.sharers[g->plan.wants[g->c->rank]] == 1)
		return;
	for (int r = 0; r < g->c->size; r++)
		g->nodes[r].n = 0;
	offload_wait(s, offload_enqueue(s, STORE_GRAD, false, sum + first, b->at + first,
				len, b->nodes_written));
	const struct tree_part mine = {{b->all.plan.levels, 0}, mat(sum + first, 1, len)};
	const struct sum_call call = {.plan = &g->plan,
		.nodes = g->nodes,
		.buffer = b->buffer,
		.extra = &mine,
		.n_extra = 1,
		.result = sum,
		.queue = g->queue};
	tree_sum_end(tree_sum_begin(&call));
	offload_wait(s, offload_enqueue(s, STORE_GRAD, true, sum, b->at, first, 0));
	offload_wait(s, offload_enqueue(s, STORE_GRAD, true, sum + first + len,
				b->at + first + len, n - first - len, 0));
}

static void add_other_use(struct bucket *b)
{
	struct store *s = b->store;
	const struct offload_pieces *w = &s->impl->offload;
	float *mine = w->piece[0][STORE_GRAD], *other = w->piece[1][STORE_GRAD];
	int64_t end = b->at + b->shard[s->impl->shard].n;
	for (int64_t at = b->at, n; at < end; at += n) {
		n = min64(w->floats, end - at);
		offload_wait(s, offload_enqueue(s, STORE_GRAD, false, mine, at, n, 0));
		reduce_add_other(s, mine, other, n);
		offload_wait(s, offload_enqueue(s, STORE_GRAD, true, mine, at, n, 0));
	}
}

void offload_finish_grads(struct store *s)
{
	struct store_impl *o = s->impl;
	struct bucket *end = o->bucket + o->n_buckets;
	for (struct bucket *b = o->bucket; b < end; b++) {
		add_rounds(b);
		share_pieces(b);
	}
	for (int slot = 0; slot < o->offload.n_slots; slot++)
		offload_wait(s, o->offload.busy[slot]);
	for (struct bucket *b = o->bucket; b < end; b++)
		if (b->tied)
			add_other_use(b);
}
