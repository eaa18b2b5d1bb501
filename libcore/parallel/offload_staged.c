/* Offloading from a GPU to a file, through buffers in pinned host memory. A write is copied out
 * to a buffer and then written to the file; a read is read into a buffer and then copied in. A
 * thread accesses the file, and the GPU copies asynchronously. The host begins the second half of
 * a transfer when it needs the result, the buffer, or the same bytes of the file. */
#include "parallel/offload.h"

/* One buffer per request that the file queues, so that its queue is never full; bytes. */
enum { BUFFERS = OFFLOAD_QUEUE, PAGE = 4096, MAX_BYTES = 8 << 20 };

/* The part of a request that is in a buffer. */
struct transfer {
	enum { FREE, READING, COPYING_IN, COPYING_OUT, WRITING } state;
	uint64_t number;  /* counts transfers, from 1 */
	uint64_t request; /* ticket of the request */
	uint64_t ticket; /* ticket of the half in progress, from the file or the device */
	char *memory;	 /* device memory */
	int64_t pos, n_bytes;
	bool after; /* copied in after all copies out so far */
};

struct staged {
	struct offload_backend backend;
	struct device *d;
	struct offload_backend *file;
	char *memory; /* [BUFFERS][buffer_bytes] */
	int64_t buffer_bytes;
	struct transfer transfer[BUFFERS]; /* number i at i % BUFFERS */
	uint64_t n, n_requests;		   /* transfers and requests so far */
	uint64_t copied_in, copied_out;	   /* the tickets of the last copies */
};

static char *buffer_address(const struct staged *x, const struct transfer *t)
{
	return x->memory + (t - x->transfer) * x->buffer_bytes;
}

/* ---- the two halves of a transfer -------------------------------------------------- */

static void wait_for_current_half(struct staged *x, const struct transfer *t)
{
	if (t->state == READING || t->state == WRITING)
		x->file->wait(x->file, t->ticket);
	else
		device_host_wait(x->d, t->ticket);
}

/* Completes the half in progress, and begins the next one, if any. Waiting for the file polls
 * messages; that may call this backend, which may have advanced the same transfer. */
static void advance_transfer(struct staged *x, struct transfer *t)
{
	const struct transfer before = *t;
	wait_for_current_half(x, t);
	if (t->number != before.number || t->state != before.state)
		return;
	if (t->state == READING) {
		t->state = COPYING_IN;
		t->ticket = x->copied_in =
			device_copy_begin(x->d, false, t->memory, buffer_address(x, t),
				(size_t)t->n_bytes, t->after ? x->copied_out : 0);
	} else if (t->state == COPYING_OUT) {
		t->state = WRITING;
		t->ticket = x->file->enqueue(
			x->file, true, buffer_address(x, t), t->n_bytes, t->pos, 0);
	} else {
		t->state = FREE;
	}
}

/* Submits pending writes of these bytes to the file, which executes requests in order. */
static void submit_writes(struct staged *x, int64_t pos, int64_t n_bytes)
{
	for (uint64_t i = x->n + 1; i <= x->n + BUFFERS; i++) { /* the oldest one first */
		struct transfer *t = &x->transfer[i % BUFFERS];
		while (t->state == COPYING_OUT && t->pos < pos + n_bytes &&
			pos < t->pos + t->n_bytes)
			advance_transfer(x, t);
	}
}

/* Returns the next transfer, after it completes the earlier transfer in its buffer. */
static struct transfer *claim_transfer(struct staged *x)
{
	uint64_t number = ++x->n;
	struct transfer *t = &x->transfer[number % BUFFERS];
	while (t->state != FREE)
		advance_transfer(x, t);
	t->number = number;
	return t;
}

/* ---- requests ---------------------------------------------------------------------- */

/* Enqueues a request. A ticket is 2 x number + write. */
static uint64_t enqueue_staged(struct offload_backend *backend, bool write, void *memory,
	int64_t n_bytes, int64_t pos, uint64_t after)
{
	struct staged *x = (struct staged *)backend;
	uint64_t ticket = 2 * ++x->n_requests + write;
	submit_writes(x, pos, n_bytes);
	for (int64_t i = 0; i < n_bytes; i += x->buffer_bytes) {
		struct transfer *t = claim_transfer(x);
		t->request = ticket;
		t->memory = (char *)memory + i;
		t->pos = pos + i;
		t->n_bytes = min64(x->buffer_bytes, n_bytes - i);
		t->after = after != 0;
		t->state = write ? COPYING_OUT : READING;
		if (write)
			t->ticket = x->copied_out = device_copy_begin(x->d, true,
				buffer_address(x, t), t->memory, (size_t)t->n_bytes,
				after ? x->copied_in : 0);
		else
			t->ticket = x->file->enqueue(x->file, false, buffer_address(x, t),
				t->n_bytes, t->pos, 0);
	}
	return ticket;
}

/* Blocks until the file's reads for requests up to this ticket are complete. The device's stream
 * then waits for their copies, or for the writes if the ticket is a write. */
static void wait_for_staged(struct offload_backend *backend, uint64_t ticket)
{
	struct staged *x = (struct staged *)backend;
	for (uint64_t i = x->n + 1; i <= x->n + BUFFERS; i++) {
		struct transfer *t = &x->transfer[i % BUFFERS];
		while (t->state == READING && t->request <= ticket)
			advance_transfer(x, t);
	}
	device_stream_wait(x->d, ticket % 2 ? x->copied_out : x->copied_in);
}

/* Copies between host memory and the file, and waits. First submits pending writes there. */
static void copy_staged(struct offload_backend *backend, bool write, void *memory,
	int64_t n_bytes, int64_t pos)
{
	struct staged *x = (struct staged *)backend;
	submit_writes(x, pos, n_bytes);
	x->file->copy(x->file, write, memory, n_bytes, pos);
}

/* Completes all transfers, closes the file's backend and frees the buffers. */
static void close_staged(struct offload_backend *backend)
{
	struct staged *x = (struct staged *)backend;
	for (int i = 0; i < BUFFERS; i++)
		while (x->transfer[i].state != FREE)
			advance_transfer(x, &x->transfer[i]);
	offload_backend_close(x->file);
	device_shared_free(x->d, x->memory);
	free(x);
}

/* ---- opening ----------------------------------------------------------------------- */

static int64_t buffer_bytes(int64_t n_bytes)
{
	int64_t part = round_up(ceil_div(n_bytes, BUFFERS), PAGE);
	return max64(PAGE, min64(part, MAX_BYTES));
}

int64_t offload_staging_bytes(int64_t n_bytes)
{
	return BUFFERS * buffer_bytes(n_bytes);
}

struct offload_backend *offload_staged_open(
	struct device *d, const char *directory, int64_t n_bytes, struct err *e)
{
	char *memory = offload_allocate_pinned(d, offload_staging_bytes(n_bytes), e);
	struct offload_backend *file =
		memory ? offload_file_open(directory, n_bytes, e) : NULL;
	if (!file && memory)
		device_shared_free(d, memory);
	if (!file)
		return NULL;
	struct staged *x = xcalloc(1, sizeof(*x));
	x->backend = (struct offload_backend){
		enqueue_staged, wait_for_staged, copy_staged, close_staged};
	x->d = d;
	x->file = file;
	x->memory = memory;
	x->buffer_bytes = buffer_bytes(n_bytes);
	return &x->backend;
}
