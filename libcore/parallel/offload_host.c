/* Offloading to the memory of a GPU's host. The memory is pinned, so that the GPU copies in both
 * directions at once while it computes. The host enqueues copies and does not wait for them. */
#include "parallel/offload.h"

struct host {
	struct offload_backend backend;
	struct device *d;
	char *memory;
};

/* Enqueues a copy between the device and pinned host memory. Returns a ticket. */
static uint64_t enqueue_host(struct offload_backend *backend, bool write, void *memory,
	int64_t n_bytes, int64_t pos, uint64_t after)
{
	const struct host *x = (const struct host *)backend;
	size_t n = (size_t)n_bytes;
	char *host = x->memory + pos;
	return write ? device_copy_begin(x->d, true, host, memory, n, after)
		     : device_copy_begin(x->d, false, memory, host, n, after);
}

static void wait_for_host(struct offload_backend *backend, uint64_t ticket)
{
	device_stream_wait(((const struct host *)backend)->d, ticket);
}

/* Copies on the host, after all enqueued copies of the device. */
static void copy_host(struct offload_backend *backend, bool write, void *memory,
	int64_t n_bytes, int64_t pos)
{
	const struct host *x = (const struct host *)backend;
	device_wait(x->d);
	if (write)
		memcpy(x->memory + pos, memory, (size_t)n_bytes);
	else
		memcpy(memory, x->memory + pos, (size_t)n_bytes);
}

static void close_host(struct offload_backend *backend)
{
	struct host *x = (struct host *)backend;
	device_shared_free(x->d, x->memory);
	free(x);
}

char *offload_allocate_pinned(struct device *d, int64_t n_bytes, struct err *e)
{
	char need[NUM_TEXT], left[NUM_TEXT];
	char *memory = device_shared(d, (size_t)n_bytes);
	if (!memory)
		err_set(e, EX_FAILED,
			"--offload: a rank cannot allocate %s of pinned memory; "
			"%s of this host's memory are free%s",
			text_bytes(need, (double)n_bytes),
			text_bytes(left, (double)memory_available()),
			advice_on(ADVICE_PINNED_MEMORY));
	return memory;
}

struct offload_backend *offload_host_open(
	struct device *d, int64_t n_bytes, struct err *e)
{
	char *memory = offload_allocate_pinned(d, n_bytes, e);
	if (!memory)
		return NULL;
	memset(memory, 0, (size_t)n_bytes);
	struct host *x = xcalloc(1, sizeof(*x));
	x->backend = (struct offload_backend){
		enqueue_host, wait_for_host, copy_host, close_host};
	x->d = d;
	x->memory = memory;
	return &x->backend;
}

void offload_backend_close(struct offload_backend *x)
{
	if (x)
		x->close(x);
}
