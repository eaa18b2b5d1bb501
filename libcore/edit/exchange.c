/*
 * Who sends what to whom. The pieces of a block go to a worker each, and what it has made of
 * them comes back. Of sparse rows every worker sends all to all, and all make all of it: those
 * that one would send back are not few.
 * Sends first: see comm_send_begin().
 */
#include "edit/exchange.h"

#include <stdlib.h>

enum { BLOCK = 1 << 20 }; /* floats that are exchanged at a time */
enum { EDIT_TAG = 1 << 17, CACHE_LINE = 64 };

/* ---- blocks and pieces ----------------------------------------------------------- */

/* Memory is for as many pieces as there are workers; a piece is all of a block of sparse rows.*/
int64_t exchange_block(const struct exchange *x, enum edit_wire kind, int64_t at)
{
	int64_t n = kind == EDIT_WIRE_SPARSE ? ceil_div(BLOCK, x->sync->size) : BLOCK;
	return wire_row_end(&x->wire, at + n) - at;
}

int64_t exchange_most(const struct exchange *x)
{
	return min64(x->wire.floats, BLOCK + x->wire.longest);
}

/* Floats that a worker makes. */
struct piece {
	int64_t at, n;
};

static struct piece piece_of(
	const struct exchange *x, enum edit_wire kind, struct piece block, int worker)
{
	int64_t end = block.at + block.n;
	int64_t step = round_up(ceil_div(block.n, x->sync->size), 16);
	if (kind == EDIT_WIRE_SPARSE)
		return block;
	struct piece p = {
		wire_row_end(&x->wire, min64(end, block.at + step * worker)), 0};
	p.n = wire_row_end(&x->wire, min64(end, block.at + step * (worker + 1))) - p.at;
	return p;
}

static struct wire wire_of(const struct exchange *x, enum edit_wire kind)
{
	struct wire w = x->wire;
	w.kind = kind;
	return w;
}

/* ---- memory ---------------------------------------------------------------------- */

static void measure(struct exchange *x, enum edit_wire kind)
{
	struct wire w = wire_of(x, kind);
	for (int64_t at = 0, n; at < w.floats; at += n) {
		n = exchange_block(x, kind, at);
		for (int r = 0; r < x->sync->size; r++) {
			struct piece p = piece_of(x, kind, (struct piece){at, n}, r);
			x->piece_floats = max64(x->piece_floats, p.n);
			if (kind != EDIT_WIRE_FP32)
				x->packed_bytes =
					max64(x->packed_bytes, wire_bytes(&w, p.at, p.n));
		}
	}
}

int64_t exchange_bytes(const struct exchange *x)
{
	return (x->sync->size + 1) * x->piece_floats * (int64_t)sizeof(float) +
	       2 * x->sync->size * x->packed_bytes;
}

void exchange_open(struct exchange *x, struct comm *sync, const struct wire *w)
{
	*x = (struct exchange){.sync = sync, .wire = *w};
	measure(x, EDIT_WIRE_FP32); /* of gradients, in any case */
	if (w->kind != EDIT_WIRE_FP32)
		measure(x, w->kind);
	x->packed_bytes = round_up(x->packed_bytes, CACHE_LINE);
	if (sync->planned)
		return;
	x->received = xcalloc((size_t)exchange_bytes(x), 1);
	x->made = x->received + sync->size * x->piece_floats;
	x->in = (char *)(x->made + x->piece_floats);
	x->out = x->in + sync->size * x->packed_bytes;
	x->reqs = xcalloc(2 * (size_t)sync->size, sizeof(*x->reqs));
}

void exchange_close(struct exchange *x)
{
	free(x->received);
	free(x->reqs);
}

/* ---- a block --------------------------------------------------------------------- */

struct turn {
	struct exchange *x;
	struct wire w;
	struct piece block;
	float *v;
};

static float *floats_of(const struct turn *r, struct piece p)
{
	return r->v + (p.at - r->block.at);
}

static struct piece piece_in(const struct turn *r, int worker)
{
	return piece_of(r->x, r->w.kind, r->block, worker);
}

/* Where what a worker sends of a piece comes: to where it is wanted, or packed. */
static void receive(struct turn *r, int worker, struct piece p, float *wanted, int tag)
{
	struct exchange *x = r->x;
	int64_t n_bytes = wire_bytes(&r->w, p.at, p.n);
	bool plain = r->w.kind == EDIT_WIRE_FP32;
	if (n_bytes)
		comm_recv_begin(x->sync,
			plain ? (void *)wanted : x->in + worker * x->packed_bytes,
			n_bytes, worker, tag, &x->reqs[2 * worker]);
}

static void unpack(struct turn *r, int worker, struct piece p, float *wanted)
{
	if (r->w.kind != EDIT_WIRE_FP32)
		wire_unpack(
			&r->w, wanted, r->x->in + worker * r->x->packed_bytes, p.at, p.n);
}

static void send(struct turn *r, int worker, struct piece p, const void *bytes, int tag)
{
	int64_t n_bytes = wire_bytes(&r->w, p.at, p.n);
	if (n_bytes)
		comm_send_begin(r->x->sync, bytes, n_bytes, worker, tag,
			&r->x->reqs[2 * worker + 1]);
}

static void wait_for_all(struct exchange *x)
{
	for (int i = 0; i < 2 * x->sync->size; i++)
		comm_wait(x->sync, &x->reqs[i]);
}

/* What is sent to a worker. That of sparse rows is the same for all. */
static const void *packed_for(struct turn *r, int worker, bool first)
{
	struct exchange *x = r->x;
	struct piece p = piece_in(r, worker);
	bool once = r->w.kind == EDIT_WIRE_SPARSE;
	char *out = x->out + (once ? 0 : worker) * x->packed_bytes;
	if (r->w.kind == EDIT_WIRE_FP32)
		return floats_of(r, p);
	if (first || !once)
		wire_pack(&r->w, out, floats_of(r, p), p.at, p.n);
	return out;
}

/* What all brought of this worker's piece, to from[]. */
static void bring_pieces(struct turn *r, const float **from)
{
	struct exchange *x = r->x;
	struct comm *c = x->sync;
	struct piece own = piece_in(r, c->rank);
	for (int i = 1; i < c->size; i++) {
		int to = (c->rank + i) % c->size;
		send(r, to, piece_in(r, to), packed_for(r, to, i == 1), EDIT_TAG);
	}
	for (int i = 0; i < c->size; i++) {
		float *room = x->received + i * x->piece_floats;
		from[i] = i == c->rank ? floats_of(r, own) : room;
		if (i != c->rank)
			receive(r, i, own, room, EDIT_TAG);
	}
	wait_for_all(x);
	for (int i = 0; i < c->size; i++)
		if (i != c->rank)
			unpack(r, i, own, x->received + i * x->piece_floats);
}

/* What was made of them, to all: who has made it goes on from what the others get. */
static void take_back(struct turn *r, int64_t sync)
{
	struct exchange *x = r->x;
	struct comm *c = x->sync;
	struct piece own = piece_in(r, c->rank);
	const void *made = x->made;
	if (r->w.kind != EDIT_WIRE_FP32) {
		wire_pack_random(&r->w, x->out, x->made, own.at, own.n, sync);
		made = x->out;
	}
	for (int i = 1; i < c->size; i++) {
		int to = (c->rank + i) % c->size;
		struct piece theirs = piece_in(r, to);
		send(r, to, own, made, EDIT_TAG + 1);
		receive(r, to, theirs, floats_of(r, theirs), EDIT_TAG + 1);
	}
	wait_for_all(x);
	for (int i = 0; i < c->size; i++)
		if (i != c->rank)
			unpack(r, i, piece_in(r, i), floats_of(r, piece_in(r, i)));
}

void exchange_run(struct exchange *x, enum edit_wire kind, float *v, int64_t at,
	int64_t sync, exchange_make *make, void *with)
{
	struct turn r = {x, wire_of(x, kind), {at, exchange_block(x, kind, at)}, v};
	struct piece own = piece_in(&r, x->sync->rank);
	const float **from = xcalloc((size_t)x->sync->size, sizeof(*from));
	struct device *d = x->wire.d;
	bring_pieces(&r, from);
	make(with, x->made, from, own.at, own.n);
	if (kind != EDIT_WIRE_SPARSE)
		take_back(&r, sync);
	d->k->copy(d, mat(floats_of(&r, own), 1, own.n), mat(x->made, 1, own.n));
	free(from);
}

int64_t exchange_sent(const struct exchange *x, enum edit_wire kind, int64_t at)
{
	struct wire w = wire_of(x, kind);
	struct piece block = {at, exchange_block(x, kind, at)};
	struct piece own = piece_of(x, kind, block, x->sync->rank);
	int64_t sent = 0;
	for (int r = 0; r < x->sync->size; r++) {
		struct piece p = piece_of(x, kind, block, r);
		if (r == x->sync->rank)
			continue;
		sent += wire_bytes(&w, p.at, p.n);
		if (kind != EDIT_WIRE_SPARSE)
			sent += wire_bytes(&w, own.at, own.n);
	}
	return sent;
}
