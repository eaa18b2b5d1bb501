/*
 * Offloaded gradients (ZeRO-Offload, ZeRO-Infinity). Micro-batches are assigned round-robin, so
 * the gradient of a unit is added to the sum of earlier rounds as soon as its backward is done.
 * The int64 sum of this rank's piece follows all regions of the backend. In each round its blocks
 * are read, added to and written. In the last round they are rounded and written to the region of
 * STORE_GRAD instead; if other ranks still have to add to the sum, it is read back as a whole and
 * completed in memory.
 */
#include "parallel/store_internal.h"

/* Floats per cache line, per int64, and per element of a block (its sum and its rounded value). */
enum { ALIGN = 16, FLOATS = 2, IN_MEMORY = FLOATS + 1 };

int64_t offload_sums_floats(const struct store *s)
{
	return is_offloaded(s, STORE_GRAD) ? IN_MEMORY * ALIGN : 0;
}

int64_t offload_place_sums(struct store *s, int64_t at)
{
	struct store_impl *o = s->impl;
	int64_t n = 0;
	if (!is_offloaded(s, STORE_GRAD))
		return 0;
	o->offload.sums = at;
	for (struct bucket *b = o->bucket; b < o->bucket + o->n_trained; b++) {
		b->offload.sum_at = n;
		n += reduction_uses(&b->plan[0], AT_FILE_SUM) ? b->sums.piece : 0;
	}
	return n * (int64_t)sizeof(int64_t);
}

static uint64_t enqueue_sum(struct store *s, struct bucket *b, bool write,
	int64_t *memory, int64_t at, int64_t n, uint64_t after)
{
	const int64_t size = sizeof(int64_t);
	return offload_enqueue_bytes(s, write, memory,
		s->impl->offload.sums + (b->offload.sum_at + at) * size, n * size, after);
}

/* Adds to elements [at, at + n) of the piece, in the next slot. Returns the write's ticket. */
static uint64_t add_block(struct store *s, struct bucket *b,
	const struct reduction_row *r, int64_t at, int64_t n)
{
	struct offload_pieces *w = &s->impl->offload;
	struct device *d = s->c.device;
	int64_t *sum = w->piece[w->slot][STORE_GRAD];
	uint64_t *busy = &w->busy[w->slot];
	float *to = (float *)(void *)(sum + round_up(n, ALIGN));
	bool rounds = r->finishes && bucket_is_last(b), adds = bucket_adds(b, r);
	struct grid_part part = {.leaf = NULL};
	if (r->from == AT_LEAF)
		part.leaf = (float *)bucket_place(b, r->from) + at;
	else
		part.sum = (int64_t *)bucket_place(b, r->from) + at;
	if (adds)
		*busy = enqueue_sum(s, b, false, sum, at, n,
			*busy > b->offload.written ? *busy : b->offload.written);
	offload_wait(s, *busy);
	d->k->grid_sum(d,
		&(struct grid_sum){.sum = sum,
			.add = adds,
			.rounded = rounds ? to : NULL,
			.parts = &part,
			.n_parts = 1,
			.n = n,
			.levels = b->levels},
		s->impl->grid);
	*busy = rounds ? offload_enqueue(
				 s, STORE_GRAD, true, to, b->at + r->at + at, n, 0)
		       : enqueue_sum(s, b, true, sum, at, n, 0);
	w->slot = (w->slot + 1) % w->n_slots;
	return *busy;
}

void offload_row_add(struct store *s, struct bucket *b, const struct reduction_row *r)
{
	int64_t block = s->impl->offload.floats / IN_MEMORY / ALIGN * ALIGN;
	int64_t len = b->sums.piece;
	for (int64_t at = 0; at < len; at += block)
		b->offload.written = add_block(s, b, r, at, min64(block, len - at));
}

void offload_row_read(struct store *s, struct bucket *b, const struct reduction_row *r)
{
	offload_wait(s, enqueue_sum(s, b, false, bucket_place(b, r->to), 0, b->sums.piece,
				b->offload.written));
}

void offload_row_write(struct store *s, struct bucket *b, const struct reduction_row *r)
{
	int64_t n = b->shard[b->sharding->own].n;
	offload_wait(s, offload_enqueue(s, STORE_GRAD, true, bucket_place(b, r->from),
				b->at, n, 0));
}
