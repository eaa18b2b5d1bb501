/* A block is divided into one piece per worker. In the reduce-scatter, every worker sends each
 * piece to its worker, which reduces it; in the all-gather, the reduced pieces are sent to all
 * workers. Sparse rows are sent whole to all workers, which all reduce them. The reduce-scatter of
 * a block overlaps the all-gather of the previous block. Blocks keep their order in a phase. */
#include "edit/exchange_internal.h"

#include "comm/requests.h"

/* Maximum floats of a block; bytes and floats of a cache line. */
enum { BLOCK = 1 << 20, CACHE_LINE = 64, LINE_FLOATS = 16 };

/* ---- blocks and pieces ----------------------------------------------------------- */

/* Makes blocks smaller with sparse rows, since the buffers then hold a whole block per worker. */
int64_t exchange_block_floats(
	const struct wire *w, const struct comm *sync, int64_t pos, int64_t end)
{
	int64_t n = w->kind == EDIT_WIRE_SPARSE ? ceil_div(BLOCK, sync->size) : BLOCK;
	return min64(end, wire_row_end(w, pos + n)) - pos;
}

/* Floats [pos, pos + n) of a block, which one worker reduces. */
struct piece {
	int64_t pos, n;
};

/* Returns the piece that a worker reduces; sparse rows: the whole block. */
static struct piece find_piece(const struct exchange *x, const struct wire *w,
	const struct block *block, int worker)
{
	int64_t end = block->pos + block->n;
	int64_t piece_len = round_up(ceil_div(block->n, x->sync->size), LINE_FLOATS);
	if (w->kind == EDIT_WIRE_SPARSE)
		return (struct piece){block->pos, block->n};
	int64_t begin = block->pos + piece_len * worker, piece_end = begin + piece_len;
	struct piece p = {.pos = min64(end, wire_row_end(w, min64(end, begin)))};
	p.n = min64(end, wire_row_end(w, min64(end, piece_end))) - p.pos;
	return p;
}

static struct wire make_wire(const struct exchange *x, enum edit_wire kind)
{
	struct wire w = x->wire;
	w.kind = kind;
	return w;
}

int64_t exchange_bytes_sent(
	const struct exchange *x, enum edit_wire kind, const struct block *b)
{
	struct wire w = make_wire(x, kind);
	struct piece own = find_piece(x, &w, b, x->sync->rank);
	int64_t sent = 0;
	for (int r = 0; r < x->sync->size; r++) {
		struct piece p = find_piece(x, &w, b, r);
		if (r == x->sync->rank)
			continue;
		sent += wire_bytes(&w, p.pos, p.n);
		if (kind != EDIT_WIRE_SPARSE)
			sent += wire_bytes(&w, own.pos, own.n);
	}
	return sent;
}

/* ---- memory ---------------------------------------------------------------------- */

/* The buffers and requests of a block in flight. */
struct slot {
	struct exchange *x;
	enum { SLOT_FREE, SLOT_REDUCE, SLOT_GATHER } phase;
	struct wire wire; /* format of the bytes in flight */
	const struct block *block;
	float *v;
	float *received, *result; /* [workers] pieces; one piece */
	char *in, *out;		  /* [workers] pieces, packed */
	struct comm_requests requests;
	char *host; /* discrete device: staging buffer for sends */
};

/* Raises the sizes of the largest piece to the pieces of n blocks. */
static void measure_pieces(
	struct exchange *x, enum edit_wire kind, const struct block *b, int n)
{
	struct wire w = make_wire(x, kind);
	for (int i = 0; i < n * x->sync->size; i++) {
		struct piece p =
			find_piece(x, &w, &b[i / x->sync->size], i % x->sync->size);
		x->piece_floats = max64(x->piece_floats, p.n);
		if (kind != EDIT_WIRE_FP32)
			x->packed_bytes =
				max64(x->packed_bytes, wire_bytes(&w, p.pos, p.n));
	}
}

void exchange_init(struct exchange *x, struct comm *sync, const struct wire *w,
	const struct block *blocks, int n)
{
	*x = (struct exchange){.sync = sync, .wire = *w};
	/* gradients in the warm-up are always fp32 */
	measure_pieces(x, EDIT_WIRE_FP32, blocks, n);
	if (w->kind != EDIT_WIRE_FP32)
		measure_pieces(x, w->kind, blocks, n);
	x->piece_floats = round_up(x->piece_floats, LINE_FLOATS);
	x->packed_bytes = round_up(x->packed_bytes, CACHE_LINE);
	x->slots = xcalloc(EXCHANGE_SLOTS, sizeof(*x->slots));
	for (int i = 0; i < EXCHANGE_SLOTS; i++) {
		x->slots[i].x = x;
		x->slots[i].requests.c = sync;
	}
}

void exchange_allocate(struct exchange *x, struct arena *a)
{
	int64_t workers = x->sync->size;
	for (int i = 0; i < EXCHANGE_SLOTS; i++) {
		struct slot *s = &x->slots[i];
		s->received = arena_floats(a, workers * x->piece_floats);
		s->result = arena_floats(a, x->piece_floats);
		s->in = arena_alloc(a, (size_t)(workers * x->packed_bytes));
		s->out = arena_alloc(a, (size_t)(workers * x->packed_bytes));
	}
}

void exchange_release(struct exchange *x)
{
	for (int i = 0; i < EXCHANGE_SLOTS; i++) {
		comm_requests_release(&x->slots[i].requests);
		free(x->slots[i].host);
	}
	free(x->slots);
}

/* ---- a block --------------------------------------------------------------------- */

static float *piece_data(const struct slot *s, struct piece p)
{
	return s->v + (p.pos - s->block->pos);
}

static struct piece worker_piece(const struct slot *s, int worker)
{
	return find_piece(s->x, &s->wire, s->block, worker);
}

/* Receives a piece from a worker: fp32 directly to `out`, other formats packed. */
static void receive_piece(struct slot *s, int worker, struct piece p, float *out, int tag)
{
	bool is_fp32 = s->wire.kind == EDIT_WIRE_FP32;
	comm_recv(&s->requests,
		is_fp32 ? (void *)out : s->in + worker * s->x->packed_bytes,
		wire_bytes(&s->wire, p.pos, p.n), worker, tag);
}

static void decode_piece(struct slot *s, int worker, struct piece p, float *out)
{
	if (s->wire.kind != EDIT_WIRE_FP32)
		wire_unpack(
			&s->wire, out, s->in + worker * s->x->packed_bytes, p.pos, p.n);
}

static void send_piece(
	struct slot *s, int worker, struct piece p, const void *bytes, int tag)
{
	comm_send(&s->requests, bytes, wire_bytes(&s->wire, p.pos, p.n), worker, tag);
}

/* Returns memory that can be sent, with the bytes at p except [skip, end). For MPI, bytes of a
 * discrete device are copied to host memory once, for all receivers. */
static const char *make_sendable(
	struct slot *s, const void *p, int64_t n_bytes, int64_t skip, int64_t end)
{
	struct device *d = s->wire.d;
	const char *bytes = p;
	if (!d->discrete || s->x->sync->size == 1 || comm_has_stream(s->x->sync))
		return bytes;
	s->host = xrealloc(s->host, (size_t)n_bytes + 1);
	device_get(d, s->host, bytes, (size_t)skip);
	device_get(d, s->host + end, bytes + end, (size_t)(n_bytes - end));
	return s->host;
}

/* Returns the offset of a worker's bytes in the packed block; sparse rows: 0 for all. */
static int64_t packed_offset(const struct slot *s, int worker)
{
	if (s->wire.kind == EDIT_WIRE_SPARSE)
		return 0;
	if (s->wire.kind != EDIT_WIRE_FP32)
		return worker * s->x->packed_bytes;
	return (worker_piece(s, worker).pos - s->block->pos) * (int64_t)sizeof(float);
}

/* Encodes the pieces of the other workers. Returns memory from which they can be sent. */
static const char *encode_pieces(struct slot *s)
{
	int workers = s->x->sync->size, own_rank = s->x->sync->rank;
	bool is_fp32 = s->wire.kind == EDIT_WIRE_FP32;
	bool is_sparse = s->wire.kind == EDIT_WIRE_SPARSE;
	for (int i = 1; i < workers && !is_fp32 && (i == 1 || !is_sparse); i++) {
		int to = (own_rank + i) % workers;
		struct piece p = worker_piece(s, to);
		wire_pack(&s->wire, s->out + packed_offset(s, to), piece_data(s, p),
			p.pos, p.n);
	}
	int64_t n_bytes = is_sparse ? wire_bytes(&s->wire, s->block->pos, s->block->n)
				    : packed_offset(s, workers);
	return make_sendable(s, is_fp32 ? (char *)s->v : s->out, n_bytes,
		packed_offset(s, own_rank), packed_offset(s, own_rank + 1));
}

/* Starts a reduce-scatter: sends the other workers their pieces, and receives this worker's
 * piece from all. Sends are added first: see comm_send(). */
static void begin_reduce_scatter(struct slot *s)
{
	struct comm *c = s->x->sync;
	struct piece own = worker_piece(s, c->rank);
	const char *packed = encode_pieces(s);
	for (int i = 1; i < c->size; i++) {
		int to = (c->rank + i) % c->size;
		send_piece(s, to, worker_piece(s, to), packed + packed_offset(s, to),
			COMM_TAG(EDIT, 0));
	}
	for (int i = 1; i < c->size; i++) {
		int from = (c->rank + c->size - i) % c->size;
		receive_piece(s, from, own, s->received + from * s->x->piece_floats,
			COMM_TAG(EDIT, 0));
	}
	comm_start(&s->requests);
	s->phase = SLOT_REDUCE;
}

/* Decodes all workers' contributions to this worker's piece and reduces them. */
static void reduce_piece(struct flight *f, struct slot *s)
{
	struct exchange *x = f->x;
	int workers = x->sync->size, own_rank = x->sync->rank;
	struct piece own = worker_piece(s, own_rank);
	scoped_ptr const float **from = xcalloc((size_t)workers, sizeof(*from));
	for (int i = 0; i < workers; i++) {
		float *buffer = s->received + i * x->piece_floats;
		from[i] = i == own_rank ? piece_data(s, own) : buffer;
		if (i != own_rank)
			decode_piece(s, i, own, buffer);
	}
	f->reduce(f->with, s->block, s->result, from, own.n);
}

/* Reduces this worker's piece, rounds it, and starts to exchange the pieces. Sparse: every worker
 * has reduced the whole block, so nothing is sent. */
static void begin_all_gather(struct flight *f, struct slot *s)
{
	struct exchange *x = f->x;
	struct comm *c = x->sync;
	struct piece own = worker_piece(s, c->rank);
	const void *result = s->result;
	reduce_piece(f, s);
	s->phase = SLOT_GATHER;
	if (s->wire.kind == EDIT_WIRE_SPARSE)
		return;
	if (s->wire.kind != EDIT_WIRE_FP32) {
		wire_pack_random(&s->wire, s->out, s->result, own.pos, own.n, f->sync);
		result = s->out;
	}
	result = make_sendable(s, result, wire_bytes(&s->wire, own.pos, own.n), 0, 0);
	for (int i = 1; i < c->size; i++) {
		int to = (c->rank + i) % c->size,
		    from = (c->rank + c->size - i) % c->size;
		struct piece piece = worker_piece(s, from);
		send_piece(s, to, own, result, COMM_TAG(EDIT, 1));
		receive_piece(s, from, piece, piece_data(s, piece), COMM_TAG(EDIT, 1));
	}
	comm_start(&s->requests);
}

/* Decodes the pieces of the other workers, copies the own piece into place, and frees the slot. */
static void end_all_gather(struct flight *f, struct slot *s)
{
	struct exchange *x = f->x;
	struct device *d = x->wire.d;
	struct piece own = worker_piece(s, x->sync->rank);
	for (int i = 0; i < x->sync->size && s->wire.kind != EDIT_WIRE_SPARSE; i++)
		if (i != x->sync->rank)
			decode_piece(s, i, worker_piece(s, i),
				piece_data(s, worker_piece(s, i)));
	d->k->copy(d, mat(piece_data(s, own), 1, own.n), mat(s->result, 1, own.n));
	s->phase = SLOT_FREE;
}

/* ---- a flight -------------------------------------------------------------------- */

static struct slot *block_slot(const struct flight *f, int block)
{
	return &f->x->slots[block % EXCHANGE_SLOTS];
}

/* Starts the reduce-scatter of the next block. Returns false if no slot or no block is left. */
static bool begin_next_block(struct flight *f)
{
	if (f->n_begun == f->n || f->n_begun == f->n_done + EXCHANGE_SLOTS)
		return false;
	struct slot *s = block_slot(f, f->n_begun);
	const struct block *b = &f->blocks[f->n_begun];
	s->wire = make_wire(f->x, f->kind);
	s->block = b;
	s->v = f->read(f->with, b, f->n_begun % EXCHANGE_SLOTS);
	f->n_begun++;
	begin_reduce_scatter(s);
	return true;
}

/* Starts the all-gather of the next block if its reduce-scatter is complete, else returns false. */
static bool gather_next_block(struct flight *f)
{
	for (int i = f->n_done; i < f->n_begun; i++) {
		struct slot *s = block_slot(f, i);
		if (s->phase == SLOT_GATHER)
			continue;
		if (!comm_test(&s->requests))
			return false;
		begin_all_gather(f, s);
		return true;
	}
	return false;
}

/* Stores the oldest block if its all-gather is complete, else returns false. */
static bool end_next_block(struct flight *f)
{
	struct slot *s = block_slot(f, f->n_done);
	if (f->n_done == f->n_begun || s->phase != SLOT_GATHER ||
		!comm_test(&s->requests))
		return false;
	end_all_gather(f, s);
	f->write(f->with, s->block, s->v, f->n_done % EXCHANGE_SLOTS);
	if (f->tickets)
		f->tickets[f->n_done] = device_stream_mark(f->x->wire.d);
	f->n_done++;
	return true;
}

/* Makes progress without waiting. Does nothing if a kernel that polls calls it again. */
static void make_progress(void *arg)
{
	struct flight *f = arg;
	if (f->busy)
		return;
	f->busy = true;
	while (begin_next_block(f) || gather_next_block(f) || end_next_block(f))
		;
	f->busy = false;
}

static void end_flight(struct flight *f)
{
	f->ended = true;
	free(f->tickets);
	f->tickets = NULL;
}

/* Enqueues the messages and reductions of all blocks in the stream of the group. */
static void enqueue_all_blocks(struct flight *f)
{
	struct comm *c = f->x->sync;
	int previous_stream = comm_stream_begin(c);
	f->tickets = xcalloc((size_t)f->n, sizeof(*f->tickets));
	make_progress(f);
	BUG_ON(f->n_done < f->n);
	comm_stream_end(c, previous_stream);
}

void flight_begin(struct flight *f)
{
	f->n_begun = f->n_done = 0;
	f->busy = false;
	f->tickets = NULL;
	f->ended = f->n == 0;
	if (f->ended)
		return;
	if (comm_has_stream(f->x->sync)) {
		enqueue_all_blocks(f);
	} else {
		comm_background_begin(make_progress, f);
		make_progress(f);
	}
	if (!comm_overlaps())
		flight_wait(f, f->n);
}

/* The first n blocks of a flight. */
struct awaited {
	struct flight *f;
	int n;
};

static bool blocks_done(void *arg)
{
	struct awaited *a = arg;
	make_progress(a->f);
	return a->f->n_done >= a->n;
}

void flight_wait(struct flight *f, int n)
{
	struct awaited a = {f, n};
	const struct comm_what what = {
		.name = "pieces of the workers", .seq = f->x->sync->seq};
	if (f->ended)
		return;
	if (f->tickets) {
		if (n > 0)
			comm_stream_wait(f->x->sync, f->tickets[n - 1]);
		if (n == f->n)
			end_flight(f);
		return;
	}
	comm_wait_for(f->x->sync, blocks_done, &a, &what);
	f->ended = f->n_done == f->n;
	if (f->ended)
		comm_background_end(make_progress, f);
}
