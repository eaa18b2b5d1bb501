/*
 * Who sends what to whom. The pieces of a block go to a worker each, and what it has made of
 * them comes back. Of sparse rows every worker sends all to all, and all make all of it: those
 * that one would send back are not few.
 *
 * Blocks go one after the other, each through two turns; while one is on its way back the next
 * is on its way there. Messages of a turn come in the order of the blocks.
 */
#include "edit/exchange_internal.h"

#include "comm/requests.h"

#include <stdlib.h>

enum { BLOCK = 1 << 20 }; /* floats that are exchanged at a time */
enum { CACHE_LINE = 64 };

/* ---- blocks and pieces ----------------------------------------------------------- */

/* Memory is for as many pieces as there are workers; a piece is all of a block of sparse rows.*/
int64_t exchange_cut(
	const struct wire *w, const struct comm *sync, int64_t at, int64_t end)
{
	int64_t n = w->kind == EDIT_WIRE_SPARSE ? ceil_div(BLOCK, sync->size) : BLOCK;
	return min64(end, wire_row_end(w, at + n)) - at;
}

/* Floats that a worker makes. */
struct piece {
	int64_t at, n;
};

static struct piece piece_of(const struct exchange *x, enum edit_wire kind,
	const struct block *block, int worker)
{
	int64_t end = block->at + block->n;
	int64_t step = round_up(ceil_div(block->n, x->sync->size), 16);
	if (kind == EDIT_WIRE_SPARSE)
		return (struct piece){block->at, block->n};
	struct piece p = {
		min64(end, wire_row_end(&x->wire, min64(end, block->at + step * worker))),
		0};
	int64_t next = min64(end, block->at + step * (worker + 1));
	p.n = min64(end, wire_row_end(&x->wire, next)) - p.at;
	return p;
}

static struct wire wire_of(const struct exchange *x, enum edit_wire kind)
{
	struct wire w = x->wire;
	w.kind = kind;
	return w;
}

int64_t exchange_sent(
	const struct exchange *x, enum edit_wire kind, const struct block *b)
{
	struct wire w = wire_of(x, kind);
	struct piece own = piece_of(x, kind, b, x->sync->rank);
	int64_t sent = 0;
	for (int r = 0; r < x->sync->size; r++) {
		struct piece p = piece_of(x, kind, b, r);
		if (r == x->sync->rank)
			continue;
		sent += wire_bytes(&w, p.at, p.n);
		if (kind != EDIT_WIRE_SPARSE)
			sent += wire_bytes(&w, own.at, own.n);
	}
	return sent;
}

/* ---- memory ---------------------------------------------------------------------- */

/* What a block needs while it is under way. */
struct slot {
	enum { SLOT_FREE, SLOT_THERE, SLOT_BACK } turn;
	enum edit_wire kind;
	const struct block *block;
	float *v;
	float *received, *made; /* [workers] pieces; one */
	char *in, *out;		/* [workers] pieces, packed */
	struct comm_requests requests;
	char *host; /* of a discrete device: what is sent, in the program's memory */
};

static void measure(struct exchange *x, enum edit_wire kind, const struct block *b, int n)
{
	struct wire w = wire_of(x, kind);
	for (int i = 0; i < n * x->sync->size; i++) {
		struct piece p =
			piece_of(x, kind, &b[i / x->sync->size], i % x->sync->size);
		x->piece_floats = max64(x->piece_floats, p.n);
		if (kind != EDIT_WIRE_FP32)
			x->packed_bytes =
				max64(x->packed_bytes, wire_bytes(&w, p.at, p.n));
	}
}

void exchange_open(struct exchange *x, struct comm *sync, const struct wire *w,
	const struct block *blocks, int n)
{
	*x = (struct exchange){.sync = sync, .wire = *w};
	measure(x, EDIT_WIRE_FP32, blocks, n); /* of gradients, in any case */
	if (w->kind != EDIT_WIRE_FP32)
		measure(x, w->kind, blocks, n);
	x->piece_floats = round_up(x->piece_floats, 16);
	x->packed_bytes = round_up(x->packed_bytes, CACHE_LINE);
	x->slots = xcalloc(EXCHANGE_SLOTS, sizeof(*x->slots));
	for (int i = 0; i < EXCHANGE_SLOTS; i++)
		x->slots[i].requests.c = sync;
}

void exchange_place(struct exchange *x, struct arena *a)
{
	int64_t workers = x->sync->size;
	for (int i = 0; i < EXCHANGE_SLOTS; i++) {
		struct slot *s = &x->slots[i];
		s->received = arena_floats(a, workers * x->piece_floats);
		s->made = arena_floats(a, x->piece_floats);
		s->in = arena_alloc(a, (size_t)(workers * x->packed_bytes));
		s->out = arena_alloc(a, (size_t)(workers * x->packed_bytes));
	}
}

void exchange_close(struct exchange *x)
{
	for (int i = 0; i < EXCHANGE_SLOTS; i++) {
		comm_requests_free(&x->slots[i].requests);
		free(x->slots[i].host);
	}
	free(x->slots);
}

/* ---- a block --------------------------------------------------------------------- */

static float *floats_of(const struct slot *s, struct piece p)
{
	return s->v + (p.at - s->block->at);
}

static struct piece piece_in(const struct exchange *x, const struct slot *s, int worker)
{
	return piece_of(x, s->kind, s->block, worker);
}

/* Receives a piece of a worker: where it is wanted, or packed. */
static void receive_piece(struct exchange *x, struct slot *s, int worker, struct piece p,
	float *wanted, int tag)
{
	struct wire w = wire_of(x, s->kind);
	bool plain = s->kind == EDIT_WIRE_FP32;
	comm_recv(&s->requests, plain ? (void *)wanted : s->in + worker * x->packed_bytes,
		wire_bytes(&w, p.at, p.n), worker, tag);
}

static void unpack(
	struct exchange *x, struct slot *s, int worker, struct piece p, float *wanted)
{
	struct wire w = wire_of(x, s->kind);
	if (s->kind != EDIT_WIRE_FP32)
		wire_unpack(&w, wanted, s->in + worker * x->packed_bytes, p.at, p.n);
}

static void send_piece(struct exchange *x, struct slot *s, int worker, struct piece p,
	const void *bytes, int tag)
{
	struct wire w = wire_of(x, s->kind);
	comm_send(&s->requests, bytes, wire_bytes(&w, p.at, p.n), worker, tag);
}

/* Bytes from p on, without [skip, end), in the program's memory: of a discrete device they
 * are got once, for all that they are sent to. */
static const char *bring(struct exchange *x, struct slot *s, const void *p,
	int64_t n_bytes, int64_t skip, int64_t end)
{
	struct device *d = x->wire.d;
	const char *bytes = p;
	if (!d->discrete || x->sync->size == 1)
		return bytes;
	s->host = xrealloc(s->host, (size_t)n_bytes + 1);
	device_get(d, s->host, bytes, (size_t)skip);
	device_get(d, s->host + end, bytes + end, (size_t)(n_bytes - end));
	return s->host;
}

/* In the bytes for all workers, where those for one begin, and the ones before end. That of
 * sparse rows is the same for all. */
static int64_t bytes_for(const struct exchange *x, const struct slot *s, int worker)
{
	if (s->kind == EDIT_WIRE_SPARSE)
		return 0;
	if (s->kind != EDIT_WIRE_FP32)
		return worker * x->packed_bytes;
	return (piece_in(x, s, worker).at - s->block->at) * (int64_t)sizeof(float);
}

/* What is sent to the others, of the block as it was brought. */
static const char *pack(struct exchange *x, struct slot *s)
{
	struct wire w = wire_of(x, s->kind);
	int workers = x->sync->size, mine = x->sync->rank;
	bool plain = s->kind == EDIT_WIRE_FP32, once = s->kind == EDIT_WIRE_SPARSE;
	for (int i = 1; i < workers && !plain && (i == 1 || !once); i++) {
		int to = (mine + i) % workers;
		struct piece p = piece_in(x, s, to);
		wire_pack(&w, s->out + bytes_for(x, s, to), floats_of(s, p), p.at, p.n);
	}
	int64_t n_bytes = once ? wire_bytes(&w, s->block->at, s->block->n)
			       : bytes_for(x, s, workers);
	return bring(x, s, plain ? (char *)s->v : s->out, n_bytes, bytes_for(x, s, mine),
		bytes_for(x, s, mine + 1));
}

/* Of the others' pieces it goes there, and what all bring of this worker's comes here: in this
 * order, see comm_send(). */
static void begin_there(struct exchange *x, struct slot *s)
{
	struct comm *c = x->sync;
	struct piece own = piece_in(x, s, c->rank);
	const char *packed = pack(x, s);
	for (int i = 1; i < c->size; i++) {
		int to = (c->rank + i) % c->size;
		send_piece(x, s, to, piece_in(x, s, to), packed + bytes_for(x, s, to),
			COMM_TAG(EDIT, 0));
	}
	for (int i = 1; i < c->size; i++) {
		int from = (c->rank + c->size - i) % c->size;
		receive_piece(x, s, from, own, s->received + from * x->piece_floats,
			COMM_TAG(EDIT, 0));
	}
	comm_start(&s->requests);
	s->turn = SLOT_THERE;
}

static void make(struct flight *f, struct slot *s)
{
	struct exchange *x = f->x;
	int workers = x->sync->size, mine = x->sync->rank;
	struct piece own = piece_in(x, s, mine);
	const float **from = xcalloc((size_t)workers, sizeof(*from));
	for (int i = 0; i < workers; i++) {
		float *room = s->received + i * x->piece_floats;
		from[i] = i == mine ? floats_of(s, own) : room;
		if (i != mine)
			unpack(x, s, i, own, room);
	}
	f->reduce(f->with, s->block, s->made, from, own.n);
	free(from);
}

/* What was made of them, to all: who has made it goes on from what the others get. */
static void begin_back(struct flight *f, struct slot *s)
{
	struct exchange *x = f->x;
	struct comm *c = x->sync;
	struct piece own = piece_in(x, s, c->rank);
	struct wire w = wire_of(x, s->kind);
	const void *made = s->made;
	make(f, s);
	s->turn = SLOT_BACK;
	if (s->kind == EDIT_WIRE_SPARSE)
		return;
	if (s->kind != EDIT_WIRE_FP32) {
		wire_pack_random(&w, s->out, s->made, own.at, own.n, f->sync);
		made = s->out;
	}
	made = bring(x, s, made, wire_bytes(&w, own.at, own.n), 0, 0);
	for (int i = 1; i < c->size; i++) {
		int to = (c->rank + i) % c->size,
		    from = (c->rank + c->size - i) % c->size;
		struct piece theirs = piece_in(x, s, from);
		send_piece(x, s, to, own, made, COMM_TAG(EDIT, 1));
		receive_piece(
			x, s, from, theirs, floats_of(s, theirs), COMM_TAG(EDIT, 1));
	}
	comm_start(&s->requests);
}

static void end_back(struct flight *f, struct slot *s)
{
	struct exchange *x = f->x;
	struct device *d = x->wire.d;
	struct piece own = piece_in(x, s, x->sync->rank);
	for (int i = 0; i < x->sync->size && s->kind != EDIT_WIRE_SPARSE; i++)
		if (i != x->sync->rank)
			unpack(x, s, i, piece_in(x, s, i),
				floats_of(s, piece_in(x, s, i)));
	d->k->copy(d, mat(floats_of(s, own), 1, own.n), mat(s->made, 1, own.n));
	s->turn = SLOT_FREE;
}

/* ---- a flight -------------------------------------------------------------------- */

static struct slot *slot_of(const struct flight *f, int block)
{
	return &f->x->slots[block % EXCHANGE_SLOTS];
}

static bool begin_next(struct flight *f)
{
	if (f->begun == f->n || f->begun == f->came + EXCHANGE_SLOTS)
		return false;
	struct slot *s = slot_of(f, f->begun);
	const struct block *b = &f->blocks[f->begun];
	s->kind = f->kind;
	s->block = b;
	s->v = f->read(f->with, b, f->begun % EXCHANGE_SLOTS);
	f->begun++;
	begin_there(f->x, s);
	return true;
}

/* The first that is on its way there turns back when it has come, and no other before it. */
static bool turn_next(struct flight *f)
{
	for (int i = f->came; i < f->begun; i++) {
		struct slot *s = slot_of(f, i);
		if (s->turn == SLOT_BACK)
			continue;
		if (!comm_test(&s->requests))
			return false;
		begin_back(f, s);
		return true;
	}
	return false;
}

static bool end_next(struct flight *f)
{
	struct slot *s = slot_of(f, f->came);
	if (f->came == f->begun || s->turn != SLOT_BACK || !comm_test(&s->requests))
		return false;
	end_back(f, s);
	f->write(f->with, s->block, s->v, f->came % EXCHANGE_SLOTS);
	f->came++;
	return true;
}

/* As far as it goes without waiting. What is computed here polls, too. */
static void go_on(void *with)
{
	struct flight *f = with;
	if (f->busy)
		return;
	f->busy = true;
	while (begin_next(f) || turn_next(f) || end_next(f))
		;
	f->busy = false;
}

void flight_begin(struct flight *f)
{
	f->begun = f->came = 0;
	f->busy = false;
	f->over = f->n == 0;
	if (f->over)
		return;
	comm_background(go_on, f);
	go_on(f);
	if (!comm_overlaps())
		flight_wait(f, f->n);
}

struct awaited {
	struct flight *f;
	int n;
};

static bool have_come(void *with)
{
	struct awaited *a = with;
	go_on(a->f);
	return a->f->came >= a->n;
}

void flight_wait(struct flight *f, int n)
{
	struct awaited a = {f, n};
	const struct comm_what what = {
		.name = "pieces of the workers", .seq = f->x->sync->seq};
	if (f->over)
		return;
	comm_wait_for(f->x->sync, have_come, &a, &what);
	f->over = f->came == f->n;
	if (f->over)
		comm_background_end(go_on, f);
}
