/* Offloaded gradients (ZeRO-Offload, ZeRO-Infinity). Micro-batches are assigned round-robin, so
 * the gradient of a unit is added to the sum of earlier rounds as soon as its backward is done.
 * The int64 sum of this rank's piece follows all regions of the backend. In each round its blocks
 * are read, added to and written. In the last round they are rounded and written to the region of
 * STORE_GRAD; a sum to which other ranks still add is read back as a whole and completed. */
#include "parallel/check_sums.h"
#include "parallel/store_flip.h"

/* Floats per cache line, per int64, and per element of a block (its sum and its rounded value). */
enum { ALIGN = 16, SUM_FLOATS = 2, ELEMENT_FLOATS = SUM_FLOATS + 1 };

int64_t offload_sums_floats(const struct store *s)
{
	return is_offloaded(s, STORE_GRAD) ? ELEMENT_FLOATS * ALIGN : 0;
}

int64_t offload_place_sums(struct store *s, int64_t pos)
{
	struct store_impl *o = s->impl;
	int64_t n = 0;
	if (!is_offloaded(s, STORE_GRAD))
		return 0;
	o->offload.sums = pos;
	for (struct bucket *b = o->bucket; b < o->bucket + o->n_trained; b++) {
		b->offload.sum_at = n;
		n += reduction_uses(&b->plan[0], AT_FILE_SUM) ? b->sums.piece : 0;
	}
	return n * (int64_t)sizeof(int64_t);
}

/* Enqueues a read or write of elements [pos, pos + n) of a bucket's sum. Returns a ticket. */
static uint64_t enqueue_sum(struct store *s, struct bucket *b, bool write,
	int64_t *memory, int64_t pos, int64_t n, uint64_t after)
{
	const int64_t size = sizeof(int64_t);
	return offload_enqueue_bytes(s, write, memory,
		s->impl->offload.sums + (b->offload.sum_at + pos) * size, n * size,
		after);
}

/* Adds to elements [pos, pos + n) of the sum, in the next slot, and writes it. Returns a ticket. */
static uint64_t add_block(struct store *s, struct bucket *b,
	const struct reduction_row *r, int64_t pos, int64_t n)
{
	struct offload_pieces *w = &s->impl->offload;
	int64_t *sum = w->piece[w->slot][STORE_GRAD];
	uint64_t *busy = &w->busy[w->slot];
	float *rounded = (float *)(void *)(sum + round_up(n, ALIGN));
	bool rounds = r->finishes && in_last_turn(b), adds = bucket_adds(b, r);
	struct grid_part part = {.leaf = NULL};
	if (r->from == AT_LEAF)
		part.leaf = (float *)bucket_place(b, r->from) + pos;
	else
		part.sum = (int64_t *)bucket_place(b, r->from) + pos;
	if (adds)
		*busy = enqueue_sum(s, b, false, sum, pos, n,
			*busy > b->offload.written ? *busy : b->offload.written);
	offload_wait(s, *busy);
	if (adds)
		flip_kept_sum(s, b, sum, pos, n);
	check_grid_sum(s, b,
		(struct grid_sum){.sum = sum,
			.add = adds,
			.rounded = rounds ? rounded : NULL,
			.parts = &part,
			.n_parts = 1,
			.n = n,
			.levels = b->levels},
		pos);
	*busy = rounds ? offload_enqueue(s, STORE_GRAD, true, rounded,
				 b->pos + r->pos + pos, n, 0)
		       : enqueue_sum(s, b, true, sum, pos, n, 0);
	w->slot = (w->slot + 1) % w->n_slots;
	return *busy;
}

void offload_row_add(struct store *s, struct bucket *b, const struct reduction_row *r)
{
	int64_t block = s->impl->offload.floats / ELEMENT_FLOATS / ALIGN * ALIGN;
	int64_t len = b->sums.piece;
	if (r->from == AT_LEAF || r->from == AT_LEAVES)
		check_row_of_one(s, b, r->from == AT_LEAF);
	for (int64_t pos = 0; pos < len; pos += block)
		b->offload.written = add_block(s, b, r, pos, min64(block, len - pos));
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
				b->pos, n, 0));
}
