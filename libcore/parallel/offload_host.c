/*
 * The host's memory as a place for what does not fit into a GPU's. It is pinned, so that the GPU
 * copies by itself, both ways at once, while it computes; the program asks for copies and waits
 * for none.
 */
#include "parallel/store_internal.h"

#include <stdlib.h>
#include <string.h>

struct host {
	struct offload_backend how;
	struct device *d;
	char *memory;
};

static uint64_t ask_host(struct offload_backend *backend, bool write, void *memory, int64_t n_bytes,
	int64_t at, uint64_t after)
{
	const struct host *x = (const struct host *)backend;
	size_t n = (size_t)n_bytes;
	char *here = x->memory + at;
	return write ? device_copy_begin(x->d, true, here, memory, n, after)
		     : device_copy_begin(x->d, false, memory, here, n, after);
}

static void wait_for_host(struct offload_backend *backend, uint64_t ticket)
{
	device_copy_end(((const struct host *)backend)->d, ticket);
}

/* It is the program's memory as well. */
static void move_host(
	struct offload_backend *backend, bool write, void *memory, int64_t n_bytes, int64_t at)
{
	const struct host *x = (const struct host *)backend;
	device_wait(x->d);
	if (write)
		memcpy(x->memory + at, memory, (size_t)n_bytes);
	else
		memcpy(memory, x->memory + at, (size_t)n_bytes);
}

static void close_host(struct offload_backend *backend)
{
	struct host *x = (struct host *)backend;
	device_shared_free(x->d, x->memory);
	free(x);
}

struct offload_backend *offload_host_open(struct device *d, int64_t n_bytes, struct err *e)
{
	char need[NUM_TEXT], left[NUM_TEXT];
	char *memory = device_shared(d, (size_t)n_bytes);
	if (!memory) {
		err_set(e, EX_FAILED,
			"offload: a rank cannot have the %s of pinned memory that it "
			"needs; %s of this host's memory are free%s",
			text_bytes(need, (double)n_bytes),
			text_bytes(left, (double)memory_available()),
			advice_on(ADVICE_PINNED_MEMORY));
		return NULL;
	}
	memset(memory, 0, (size_t)n_bytes);
	struct host *x = xcalloc(1, sizeof(*x));
	x->how = (struct offload_backend){ask_host, wait_for_host, move_host, close_host};
	x->d = d;
	x->memory = memory;
	return &x->how;
}

void offload_backend_close(struct offload_backend *x)
{
	if (x)
		x->close(x);
}
