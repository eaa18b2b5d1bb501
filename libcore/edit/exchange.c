/* The pieces of a block: to their makers, and back; sends first, see comm_send_begin(). */
#include "edit/exchange.h"

#include <stdlib.h>

enum { EDIT_TAG = 1 << 17 };

/* Of a block of n floats, those that are a worker's to make. */
static int64_t piece(const struct exchange *x, int64_t n, int worker, int64_t *first)
{
	int64_t step = round_up(ceil_div(n, x->sync->size), 16);
	*first = min64(n, step * worker);
	return min64(n, step * (worker + 1)) - *first;
}

static int64_t piece_floats(const struct exchange *x)
{
	return piece(x, x->block, 0, &(int64_t){0});
}

int64_t exchange_bytes(const struct exchange *x)
{
	return (x->sync->size + 1) * piece_floats(x) * (int64_t)sizeof(float);
}

void exchange_open(struct exchange *x, struct comm *sync, struct device *d, int64_t block)
{
	*x = (struct exchange){.sync = sync, .d = d, .block = block};
	if (sync->planned)
		return;
	x->received = xcalloc((size_t)exchange_bytes(x), 1);
	x->made = x->received + sync->size * piece_floats(x);
	x->reqs = xcalloc(2 * (size_t)sync->size, sizeof(*x->reqs));
}

void exchange_close(struct exchange *x)
{
	free(x->received);
	free(x->reqs);
}

static void wait_for_all(struct exchange *x)
{
	for (int i = 0; i < 2 * x->sync->size; i++)
		comm_wait(x->sync, &x->reqs[i]);
}

/* What all brought of this worker's piece, to from[]. */
static void bring_pieces(struct exchange *x, float *v, int64_t n, const float **from)
{
	struct comm *c = x->sync;
	int64_t size = sizeof(float), first, own = piece(x, n, c->rank, &first);
	for (int i = 1; i < c->size; i++) {
		int r = (c->rank + i) % c->size;
		int64_t theirs, len = piece(x, n, r, &theirs);
		if (len)
			comm_send_begin(c, v + theirs, len * size, r, EDIT_TAG,
				&x->reqs[2 * r + 1]);
	}
	for (int r = 0; r < c->size; r++) {
		float *room = x->received + r * piece_floats(x);
		from[r] = r == c->rank ? v + first : room;
		if (r != c->rank && own)
			comm_recv_begin(
				c, room, own * size, r, EDIT_TAG, &x->reqs[2 * r]);
	}
	wait_for_all(x);
}

static void take_back(struct exchange *x, float *v, int64_t n)
{
	struct comm *c = x->sync;
	int64_t size = sizeof(float), first, own = piece(x, n, c->rank, &first);
	for (int i = 1; i < c->size; i++) {
		int r = (c->rank + i) % c->size;
		int64_t theirs, len = piece(x, n, r, &theirs);
		if (own)
			comm_send_begin(c, x->made, own * size, r, EDIT_TAG + 1,
				&x->reqs[2 * r + 1]);
		if (len)
			comm_recv_begin(c, v + theirs, len * size, r, EDIT_TAG + 1,
				&x->reqs[2 * r]);
	}
	x->d->k->copy(x->d, mat(v + first, 1, own), mat(x->made, 1, own));
	wait_for_all(x);
}

void exchange_block(struct exchange *x, float *v, int64_t at, int64_t n,
	exchange_make *make, void *with)
{
	const float **from = xcalloc((size_t)x->sync->size, sizeof(*from));
	int64_t first, own = piece(x, n, x->sync->rank, &first);
	bring_pieces(x, v, n, from);
	make(with, x->made, from, at + first, own);
	take_back(x, v, n);
	free(from);
}

int64_t exchange_sent(const struct exchange *x, int64_t n)
{
	int64_t own = piece(x, n, x->sync->rank, &(int64_t){0});
	return (n - own + (x->sync->size - 1) * own) * (int64_t)sizeof(float);
}
