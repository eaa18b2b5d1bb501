/*
 * Offloaded gradients (ZeRO-Offload, ZeRO-Infinity). Micro-batches are assigned round-robin, so the
 * gradient of a unit is added to that of the rounds before as soon as its backward is done. The sum of
 * these rounds, int64, of this rank's piece, is read, added to, and written in blocks: one is read while the
 * one before is added and the one before that is written. These sums are behind all regions of the backend;
 * after the last round they are rounded to the region of STORE_GRAD.
 */
#include "parallel/store_internal.h"

#include <stdlib.h>

/* Floats on a cache line, of an int64, and of an element in memory: its sum, and what that is rounded to. */
enum { ALIGN = 16, FLOATS = 2, IN_MEMORY = FLOATS + 1 };

int64_t offload_sums_floats(const struct store *s)
{
	return is_offloaded(s, STORE_GRAD) ? IN_MEMORY * ALIGN : 0;
}

int64_t offload_place_sums(struct store *s, int64_t at)
{
	struct store_impl *o = s->impl;
	int64_t n = 0, first;
	if (!is_offloaded(s, STORE_GRAD))
		return 0;
	o->offload.sums = at;
	for (struct bucket *b = o->bucket; b < o->bucket + o->n_trained; b++) {
		b->offload.sum_at = n;
		n += bucket_keeps(s, b) ? bucket_piece(b, &first) : 0;
	}
	return n * (int64_t)sizeof(int64_t);
}

/* ---- blocks ------------------------------------------------------------------------ */

/* Elements [at, at + n) of this rank's piece, in the memory of a slot. */
struct block {
	struct bucket *b;
	int slot;
	int64_t at, n;
	uint64_t ticket; /* of the read */
};

static int64_t *memory_of(const struct block *x)
{
	return x->b->store->impl->offload.piece[x->slot][STORE_GRAD];
}

static uint64_t enqueue_sum(struct bucket *b, bool write, int64_t *memory, int64_t at,
	int64_t n, uint64_t after)
{
	const struct offload_pieces *w = &b->store->impl->offload;
	int64_t size = sizeof(int64_t);
	return offload_enqueue_bytes(b->store, write, memory,
		w->sums + (b->offload.sum_at + at) * size, n * size, after);
}

static int64_t block_floats(const struct store *s)
{
	return s->impl->offload.floats / IN_MEMORY / ALIGN * ALIGN;
}

/* A read follows the last write from its memory, and the last one to the bucket's sum. */
static void read_block(struct block *x, int64_t at, int64_t end, bool reads)
{
	const struct offload_pieces *w = &x->b->store->impl->offload;
	uint64_t busy = w->busy[x->slot], written = x->b->offload.written;
	x->at = at;
	x->n = min64(block_floats(x->b->store), end - at);
	x->ticket = 0;
	if (x->n > 0 && reads)
		x->ticket = enqueue_sum(x->b, false, memory_of(x), at, x->n,
			busy > written ? busy : written);
}

static void visit_blocks(struct bucket *b, int64_t first, int64_t len, bool reads,
	uint64_t (*visit)(
		struct bucket *b, int64_t *sum, int64_t at, int64_t n, void *with),
	void *with)
{
	struct store *s = b->store;
	struct offload_pieces *w = &s->impl->offload;
	struct block now = {.b = b, .slot = w->slot};
	uint64_t written = b->offload.written;
	read_block(&now, first, first + len, reads);
	while (now.n > 0) {
		struct block next = {.b = b, .slot = (now.slot + 1) % w->n_slots};
		read_block(&next, now.at + now.n, first + len, reads);
		offload_wait(s, now.ticket);
		offload_wait(s, w->busy[now.slot]); /* if nothing was read */
		written = w->busy[now.slot] =
			visit(b, memory_of(&now), now.at, now.n, with);
		now = next;
	}
	w->slot = now.slot;
	b->offload.written = written;
}

/* ---- rounds ------------------------------------------------------------------------ */

struct adding {
	const struct grid_part *parts;
	struct grid_part *cut;
	int n_parts;
	int64_t first;
};

static uint64_t add_block(
	struct bucket *b, int64_t *sum, int64_t at, int64_t n, void *with)
{
	const struct adding *x = with;
	struct device *d = b->store->c.device;
	for (int i = 0; i < x->n_parts; i++) {
		const struct grid_part *p = &x->parts[i];
		int64_t skip = at - x->first;
		x->cut[i] =
			(struct grid_part){p->leaf ? (const float *)p->leaf + skip : NULL,
				p->sum ? p->sum + skip : NULL};
	}
	d->k->grid_sum(d,
		&(struct grid_sum){.sum = sum,
			.add = b->sums.adds,
			.parts = x->cut,
			.n_parts = x->n_parts,
			.n = n,
			.levels = b->levels},
		b->store->impl->grid);
	return enqueue_sum(b, true, sum, at, n, 0);
}

void offload_add(void *with, const struct grid_part *parts, int n_parts, int64_t first,
	int64_t len)
{
	struct bucket *b = with;
	struct store *s = b->store;
	int64_t piece;
	bucket_piece(b, &piece);
	if (!bucket_keeps(s, b)) { /* the only leaf */
		if (n_parts)
			b->offload.written = offload_enqueue(s, STORE_GRAD, true,
				(float *)parts->leaf, b->at + piece + first, len, 0);
		offload_wait(s, b->offload.written);
		return;
	}
	struct adding x = {
		parts, xcalloc((size_t)n_parts + 1, sizeof(*x.cut)), n_parts, first};
	visit_blocks(b, first, len, b->sums.adds, add_block, &x);
	free(x.cut);
}

/* ---- after the last round ------------------------------------------------------------ */

static uint64_t round_block(
	struct bucket *b, int64_t *sum, int64_t at, int64_t n, void *with)
{
	struct store *s = b->store;
	struct device *d = s->c.device;
	int64_t piece;
	float *to = (float *)(void *)(sum + block_floats(s));
	(void)with;
	bucket_piece(b, &piece);
	d->k->grid_sum(d,
		&(struct grid_sum){.rounded = to,
			.parts = &(struct grid_part){.sum = sum},
			.n_parts = 1,
			.n = n,
			.levels = b->levels},
		s->impl->grid);
	return offload_enqueue(s, STORE_GRAD, true, to, b->at + piece + at, n, 0);
}

/* The ranks that have to do with a bucket's sum work on it in the memory of leaves. */
static void finish_in_memory(struct store *s, struct bucket *b)
{
	int64_t first, len = bucket_piece(b, &first), n = b->shard[s->impl->shard].n;
	float *memory = grads_free_lease(s, b);
	b->sums.kept = (int64_t *)(void *)memory;
	b->sums.other = b->sums.kept + round_up(len, ALIGN);
	b->g = (float *)(void *)(b->sums.other + (b->tied ? round_up(len, ALIGN) : 0));
	if (bucket_keeps(s, b))
		offload_wait(s,
			enqueue_sum(b, false, b->sums.kept, 0, len, b->offload.written));
	else
		offload_wait(s, offload_enqueue(s, STORE_GRAD, false, b->g + first,
					b->at + first, len, b->offload.written));
	reduce_finish(s, b);
	reduce_end(b);
	if (bucket_is_gathered(b))
		reduce_gather(s, b);
	reduce_end(b);
	offload_wait(s, offload_enqueue(s, STORE_GRAD, true, b->g, b->at, n, 0));
	b->g = NULL;
	b->sums.kept = b->sums.other = NULL;
}

/* Also of other workers, whose sums are added in a warm-up. */
static bool is_alone(const struct store *s, const struct bucket *b)
{
	return !b->tied && s->c.workers <= 1 && bucket_is_alone(b);
}

int64_t offload_finish_floats(const struct store *s, const struct bucket *b)
{
	int64_t first, len = round_up(bucket_piece(b, &first), ALIGN);
	if (!is_offloaded(s, STORE_GRAD) || is_alone(s, b))
		return 0;
	return FLOATS * len * (b->tied ? 2 : 1) +
	       round_up(b->shard[s->impl->shard].n, ALIGN);
}

void offload_finish_grads(struct store *s)
{
	struct store_impl *o = s->impl;
	struct bucket *end = o->bucket + o->n_trained;
	for (struct bucket *b = o->bucket; b < end; b++) {
		int64_t first, len = bucket_piece(b, &first);
		if (!is_alone(s, b))
			finish_in_memory(s, b);
		else if (bucket_keeps(s, b))
			visit_blocks(b, 0, len, true, round_block, NULL);
	}
	for (int slot = 0; slot < o->offload.n_slots; slot++)
		offload_wait(s, o->offload.busy[slot]);
}
