/* Copies that overlap with kernels: a stream for each direction, since a GPU can copy in and out at
 * the same time. Streams wait for each other by events, without blocking the host.
 *
 * In a capture these streams fork from the captured one and join it at its end, so that a graph has
 * the copies as branches. It may not wait for events that were recorded before it, nor may others wait
 * for its events: so it begins, and is launched, after all copies that were enqueued before, and ends
 * after its own. */
#include "kernels/cuda/cuda_internal.h"

#include <stdlib.h>

/* A ticket is 2 number + out. An event is reused after COPIES_KEPT copies: waiting for an old
 * copy may then wait for a later one of the same direction. */
enum { COPIES_KEPT = 32 };

static const char *const names[] = {"copy_in", "copy_out"};

struct copy_stream {
	cudaStream_t stream;
	cudaEvent_t done[COPIES_KEPT]; /* copy i at i % COPIES_KEPT */
	uint64_t n;
	/* What is enqueued in the device's stream now comes after these copies. */
	uint64_t joined;
};

struct copy_streams {
	struct copy_stream way[2]; /* in, out */
	cudaEvent_t asked;	   /* kernels that were enqueued before a copy */
};

struct cuda_launch cuda_copy_of(
	const char *name, void *to, const void *from, size_t n_bytes)
{
	return {name, 0, 0, 0, 3,
		{cuda_arg_of(to), cuda_arg_of(from), cuda_arg_of(n_bytes)}};
}

static struct copy_streams *copy_streams_of(struct device *d)
{
	struct cuda_device *c = cuda_of(d);
	if (c->copy_streams)
		return c->copy_streams;
	c->copy_streams = (struct copy_streams *)xcalloc(1, sizeof(*c->copy_streams));
	c->copy_streams->asked = cuda_event(d);
	for (struct copy_stream &w : c->copy_streams->way) {
		cuda_check(d, cudaStreamCreateWithFlags(&w.stream, cudaStreamNonBlocking),
			"a stream");
		for (cudaEvent_t &e : w.done)
			e = cuda_event(d);
	}
	return c->copy_streams;
}

void cuda_copies_free(struct device *d)
{
	struct copy_streams *all = cuda_of(d)->copy_streams;
	if (!all)
		return;
	for (struct copy_stream &w : all->way) {
		for (cudaEvent_t e : w.done)
			cudaEventDestroy(e);
		cudaStreamDestroy(w.stream);
	}
	cudaEventDestroy(all->asked);
	free(all);
	cuda_of(d)->copy_streams = NULL;
}

/* The event of a copy; NULL: none, or joined. */
static cudaEvent_t done_of(struct device *d, uint64_t ticket)
{
	const struct copy_stream *w = &copy_streams_of(d)->way[ticket % 2];
	BUG_ON(ticket / 2 > w->n);
	return ticket / 2 > w->joined ? w->done[ticket / 2 % COPIES_KEPT] : NULL;
}

static void wait_for(struct device *d, cudaStream_t stream, uint64_t ticket)
{
	cudaEvent_t done = ticket ? done_of(d, ticket) : NULL;
	if (done)
		cuda_check(d, cudaStreamWaitEvent(stream, done, 0), names[ticket % 2]);
}

cudaError_t cuda_copies_join(struct device *d)
{
	struct copy_streams *all = cuda_of(d)->copy_streams;
	cudaError_t rc = cudaSuccess;
	for (uint64_t out = 0; all && out < 2; out++) {
		struct copy_stream *w = &all->way[out];
		cudaEvent_t done = done_of(d, 2 * w->n + out);
		if (done && rc == cudaSuccess)
			rc = cudaStreamWaitEvent(cuda_stream(d), done, 0);
		w->joined = w->n;
	}
	return rc;
}

uint64_t cuda_copy_begin(struct device *d, bool out, void *to, const void *from,
	size_t n_bytes, uint64_t after)
{
	struct copy_streams *all = copy_streams_of(d);
	struct copy_stream *w = &all->way[out];
	BUG_ON(!cuda_graph_idle(d) && !cuda_graph_capturing(d));
	if (!n_bytes)
		return 0;
	struct cuda_launch l = cuda_copy_of(names[out], to, from, n_bytes);
	cuda_check(d, cudaEventRecord(all->asked, cuda_stream(d)), l.name);
	cuda_check(d, cudaStreamWaitEvent(w->stream, all->asked, 0), l.name);
	wait_for(d, w->stream, after);
	cuda_before_in(d, &l, w->stream);
	cuda_check(d,
		cudaMemcpyAsync(to, from, n_bytes,
			out ? cudaMemcpyDeviceToHost : cudaMemcpyHostToDevice, w->stream),
		l.name);
	cuda_after_in(d, l.name, w->stream);
	w->n++;
	cuda_check(d, cudaEventRecord(w->done[w->n % COPIES_KEPT], w->stream), l.name);
	return 2 * w->n + out;
}

void cuda_copy_end(struct device *d, uint64_t ticket)
{
	BUG_ON(!cuda_graph_idle(d) && !cuda_graph_capturing(d));
	wait_for(d, cuda_stream(d), ticket);
}

void cuda_copy_wait(struct device *d, uint64_t ticket)
{
	cudaEvent_t done = ticket ? done_of(d, ticket) : NULL;
	if (done)
		cuda_check(d, cudaEventSynchronize(done), names[ticket % 2]);
	else if (ticket)
		cuda_wait(d);
}

void cuda_copies_wait(struct device *d)
{
	struct copy_streams *all = cuda_of(d)->copy_streams;
	if (!all)
		return;
	for (const struct copy_stream &w : all->way)
		cuda_check(d, cudaStreamSynchronize(w.stream), "copies");
}
