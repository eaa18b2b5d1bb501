/* Context parallelism: chunks of sequences, and the ring of keys and values. */
#include "parallel/context.h"

void chunk_runs(const struct chunks *c, int chunk, int64_t first[2], int64_t *len)
{
	*len = c->context / (2 * c->n);
	first[0] = chunk * *len;
	first[1] = (2 * c->n - 1 - chunk) * *len;
}

void chunk_positions(const struct chunks *c, int chunk, int32_t *pos)
{
	int64_t first[2], len, rows = c->context / c->n;
	chunk_runs(c, chunk, first, &len);
	if (c->n == 1) /* one run; its length may be odd */
		len = rows;
	for (int64_t i = 0; i < rows; i++)
		pos[i] = (int32_t)(i < len ? first[0] + i : first[1] + i - len);
}

/* ---- the order ------------------------------------------------------------------- */

struct ring ring_begin(const struct chunks *c)
{
	return (struct ring){.c = c, .step = -1};
}

int ring_keys_for(const struct ring *r, int query_chunk)
{
	return (query_chunk - r->step + r->c->n) % r->c->n;
}

/* ---- messages -------------------------------------------------------------------- */

static bool is_distributed(const struct ring *r)
{
	return r->d && r->c->axis->size > 1;
}

static bool has_gradients(const struct ring *r)
{
	return r->kv.local[RING_DK].p;
}

/* Returns the rank `steps` further around the ring. */
static int neighbor(const struct chunks *c, int steps)
{
	return (c->axis->rank + steps + c->axis->size) % c->axis->size;
}

/* Returns the number of buffers for remote chunks: all chunks, or the chunks of a step (as many as
 * there are local chunks) and one that is being received. */
static int remote_buffers(const struct chunks *c, bool gathers)
{
	int remote = c->n - c->local;
	return gathers || remote < c->local + 1 ? remote : c->local + 1;
}

/* Returns a slice in this rank's matrices or a receive buffer. Chunk first - i is the i-th to be
 * received; it reuses the buffer of a chunk that is no longer used. */
struct mat ring_at(const struct ring *r, enum ring_part part, int slice, int key_chunk)
{
	const struct chunks *c = r->c;
	const struct ring_kv *kv = &r->kv;
	int own = key_chunk - c->first;
	if (own >= 0 && own < c->local)
		return mat_rows(
			kv->local[part], (slice * c->local + own) * kv->rows, kv->rows);
	int i = (c->first - key_chunk + c->n) % c->n;
	int place = i % remote_buffers(c, c->gather && part <= RING_V);
	return mat_rows(
		r->remote[part], (place * kv->slices + slice) * kv->rows, kv->rows);
}

/* Returns the chunk that is `steps` before another one around the ring. */
static int chunk_before(const struct ring *r, int chunk, int steps)
{
	return (chunk - steps + r->c->n) % r->c->n;
}

/* Returns a slice of a chunk in the type in which it is sent. */
static struct mat sent_slice(
	const struct ring *r, enum ring_part part, int slice, int chunk)
{
	struct mat x = ring_at(r, part, slice, chunk);
	const struct ring_kv *kv = &r->kv;
	int own = chunk - r->c->first;
	if (part > RING_V || !r->packed[part])
		return x;
	bool local = own >= 0 && own < r->c->local;
	const float *base = local ? kv->local[part].p : r->remote[part].p;
	int64_t pos = (const float *)x.p - base;
	pos += local ? 0 : kv->local[part].rows * x.cols;
	return mat_typed(r->packed[part] + pos, x.rows, x.cols, kv->wire);
}

/* Widens the keys and values of a chunk from the type of the wire to fp32, if they were packed. */
static void widen_chunk(struct ring *r, int chunk)
{
	for (int s = 0; s < r->kv.slices; s++)
		for (enum ring_part part = RING_K; part <= RING_V; part++)
			if (r->packed[part])
				r->d->k->widen(r->d, ring_at(r, part, s, chunk),
					sent_slice(r, part, s, chunk).p, r->kv.wire);
}

/* Widens the received chunks that this step uses first. */
static void widen_received(struct ring *r)
{
	const struct chunks *c = r->c;
	if (!c->gather && r->step <= c->n - c->local)
		widen_chunk(r, chunk_before(r, c->first, r->step));
	for (int chunk = 0; c->gather && r->step == 1 && chunk < c->n; chunk++)
		if (chunk < c->first || chunk >= c->first + c->local)
			widen_chunk(r, chunk);
}

static int ring_tag(enum ring_part part)
{
	return part <= RING_V ? TAG_RING_KEYS : TAG_RING_SUMS;
}

static void send_part(struct ring *r, enum ring_part part, int slice, int chunk, int to,
	struct comm_requests *q)
{
	struct mat x = sent_slice(r, part, slice, chunk);
	comm_send(q, x.p, mat_bytes(x), to, ring_tag(part));
}

static void recv_part(struct ring *r, enum ring_part part, int slice, int chunk, int from,
	struct comm_requests *q)
{
	struct mat x = sent_slice(r, part, slice, chunk);
	comm_recv(q, x.p, mat_bytes(x), from, ring_tag(part));
}

/* Starts to send chunk `sent` and to receive chunk `received`, keys and values; -1: none. */
static void exchange_keys(struct ring *r, int sent, int to, int received, int from)
{
	for (int s = 0; s < r->kv.slices; s++)
		for (enum ring_part part = RING_K; part <= RING_V; part++) {
			if (received >= 0)
				recv_part(r, part, s, received, from, &r->keys);
			if (sent >= 0)
				send_part(r, part, s, sent, to, &r->keys);
		}
	comm_start(&r->keys);
}

/* Starts an all-gather of the keys and values of all chunks. */
static void gather_keys(struct ring *r)
{
	const struct chunks *c = r->c;
	for (int i = 1; i < c->axis->size; i++) {
		int to = neighbor(c, i), from = neighbor(c, -i);
		for (int own = 0; own < c->local; own++)
			exchange_keys(r, c->first + own, to, from * c->local + own, from);
	}
}

/* Starts the exchange for the next step: a chunk from the previous rank, and one to the next. */
static void begin_step(struct ring *r)
{
	const struct chunks *c = r->c;
	int next = r->step + 1;
	if (!c->gather && next <= c->n - c->local)
		exchange_keys(r, chunk_before(r, c->first + c->local - 1, r->step),
			neighbor(c, 1), chunk_before(r, c->first, next), neighbor(c, -1));
}

bool ring_next(struct ring *r)
{
	r->step++;
	if (is_distributed(r) && r->step > 0) {
		comm_wait(&r->keys);
		if (r->step < r->c->n)
			widen_received(r);
	}
	if (r->step == r->c->n)
		return false;
	if (is_distributed(r))
		begin_step(r);
	return true;
}

/* Returns the messages that a step starts with dK and dV of a slice. */
static struct comm_requests *sum_requests(const struct ring *r, int step, int slice)
{
	return r->sums + (step & 1) * r->kv.slices + slice;
}

void ring_recv_grads(struct ring *r, int slice)
{
	if (!is_distributed(r))
		return;
	struct comm_requests *q = sum_requests(r, r->step, slice);
	comm_wait(sum_requests(r, r->step + 1, slice)); /* the buffer is reused */
	for (enum ring_part part = RING_DK; part <= RING_DV; part++)
		recv_part(r, part, slice, chunk_before(r, r->c->first, r->step + 1),
			neighbor(r->c, -1), q);
	comm_post(q);
}

void ring_send_grads(struct ring *r, int slice)
{
	int last = r->c->first + r->c->local - 1;
	if (!is_distributed(r))
		return;
	struct comm_requests *q = sum_requests(r, r->step, slice);
	for (enum ring_part part = RING_DK; part <= RING_DV; part++)
		send_part(r, part, slice, chunk_before(r, last, r->step),
			neighbor(r->c, 1), q);
	comm_start(q);
}

/* Progresses messages during computation. */
static void poll_ring(void *arg)
{
	struct ring *r = arg;
	comm_test(&r->keys);
	for (int i = 0; has_gradients(r) && i < 2 * r->kv.slices; i++)
		comm_test(&r->sums[i]);
}

void ring_exchange(struct ring *r, struct device *d, const struct ring_kv *kv)
{
	const struct chunks *c = r->c;
	r->d = d;
	r->kv = *kv;
	r->mark = arena_mark(d->scratch);
	if (!is_distributed(r))
		return;
	for (int part = RING_K; part <= (has_gradients(r) ? RING_DV : RING_V); part++) {
		struct mat *remote = &r->remote[part];
		*remote = kv->local[part];
		remote->rows = remote_buffers(c, c->gather && part <= RING_V) *
			       kv->slices * kv->rows;
		remote->p = arena_alloc(d->scratch, (size_t)mat_bytes(*remote));
	}
	for (int part = RING_K; part <= RING_V && kv->wire != kv->local[part].type;
		part++) {
		int64_t n = (kv->local[part].rows + r->remote[part].rows) *
			    kv->local[part].cols;
		r->packed[part] =
			arena_alloc(d->scratch, (size_t)n * sizeof(*r->packed[part]));
		d->k->narrow(d, r->packed[part], kv->local[part], kv->wire);
	}
	r->keys.c = c->axis;
	r->sums = xcalloc((size_t)(2 * kv->slices), sizeof(*r->sums));
	for (int i = 0; i < 2 * kv->slices; i++)
		r->sums[i].c = c->axis;
	comm_background_begin(poll_ring, r);
	if (c->gather)
		gather_keys(r);
}

void ring_end(struct ring *r)
{
	if (is_distributed(r)) {
		for (int i = 0; i < 2 * r->kv.slices; i++) {
			comm_wait(&r->sums[i]);
			comm_requests_release(&r->sums[i]);
		}
		comm_requests_release(&r->keys);
		comm_background_end(poll_ring, r);
	}
	free(r->sums);
	arena_reset(r->d->scratch, r->mark);
}
