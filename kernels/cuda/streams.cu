/* Streams: the device's own, one for copies in each direction, since a GPU can copy in and out at
 * the same time, and streams for libraries. Streams wait for each other by events, without
 * blocking the host.
 *
 * In a capture the other streams fork from the device's own and join it at the end, so that their
 * work becomes branches of the graph. A graph cannot wait for events that were recorded before
 * the capture, and its events cannot be waited for elsewhere. So it begins, and is launched,
 * after all work that was enqueued before, and ends after all its branches. */
#include "kernels/cuda/cuda_internal.h"

#include <time.h>

/* A ticket is MAX_STREAMS * mark + stream. An event is reused after MARKS_KEPT marks of its stream:
 * waiting for an old mark may then wait for a later one. */
enum { MARKS_KEPT = 8192, MAX_STREAMS = 64 };
/* The device's own stream, and the streams for copies. */
enum { STREAM_MAIN, STREAM_IN, STREAM_OUT };

static const char *const copy_names[] = {"", "copy_in", "copy_out"};

struct stream {
	cudaStream_t stream;
	cudaEvent_t done[MARKS_KEPT]; /* mark i at i % MARKS_KEPT; created at first use */
	uint64_t n;
	/* Marks up to `joined` precede what is enqueued in the device's own stream now; marks up to
	 * `captured` are not waited for, since a capture has ended. */
	uint64_t joined, captured;
	void *workspace;
};

struct streams {
	struct stream *all[MAX_STREAMS]; /* NULL: not opened yet */
	int n, current;
};

struct cuda_launch cuda_copy_of(
	const char *name, void *to, const void *from, size_t n_bytes)
{
	return {name, 0, 0, 0, 3,
		{cuda_arg_of(to), cuda_arg_of(from), cuda_arg_of(n_bytes)}};
}

static struct streams *get_streams(struct device *d)
{
	return cuda_of(d)->streams;
}

/* Creates a stream, of the highest priority if `urgent`. */
static struct stream *new_stream(struct device *d, bool urgent)
{
	struct stream *s = (struct stream *)xcalloc(1, sizeof(*s));
	int least, greatest;
	cuda_check(d, cudaDeviceGetStreamPriorityRange(&least, &greatest), "a stream");
	cuda_check(d,
		cudaStreamCreateWithPriority(
			&s->stream, cudaStreamNonBlocking, urgent ? greatest : least),
		"a stream");
	return s;
}

void cuda_streams_open(struct device *d)
{
	struct cuda_device *c = cuda_of(d);
	c->streams = (struct streams *)xcalloc(1, sizeof(*c->streams));
	c->streams->all[STREAM_MAIN] = new_stream(d, false);
	c->streams->n = STREAM_OUT + 1;
}

/* Returns a stream by number; creates a stream for copies at its first use. */
static struct stream *get_stream(struct device *d, int number)
{
	struct streams *x = get_streams(d);
	BUG_ON(number < 0 || number >= x->n);
	if (!x->all[number]) /* streams for copies, at their first use */
		x->all[number] = new_stream(d, false);
	return x->all[number];
}

int cuda_stream_open(struct device *d, bool urgent)
{
	struct streams *x = get_streams(d);
	BUG_ON(x->n == MAX_STREAMS);
	x->all[x->n] = new_stream(d, urgent);
	return x->n++;
}

/* Destroys all streams, their events and their workspaces, and frees the table. */
void cuda_streams_free(struct device *d)
{
	struct streams *x = get_streams(d);
	for (int i = 0; i < x->n; i++) {
		if (!x->all[i])
			continue;
		for (cudaEvent_t e : x->all[i]->done)
			if (e)
				cudaEventDestroy(e);
		if (x->all[i]->workspace)
			cudaFree(x->all[i]->workspace);
		cudaStreamDestroy(x->all[i]->stream);
		free(x->all[i]);
	}
	free(x);
	cuda_of(d)->streams = NULL;
}

cudaStream_t cuda_stream(struct device *d)
{
	struct streams *x = get_streams(d);
	return x->all[x->current]->stream;
}

void *cuda_stream_handle(struct device *d, int number)
{
	return get_stream(d, number)->stream;
}

int cuda_stream_current(struct device *d)
{
	return get_streams(d)->current;
}

/* Makes a stream the current one; returns the number of the previous one. */
int cuda_stream_use(struct device *d, int number)
{
	struct streams *x = get_streams(d);
	int before = x->current;
	get_stream(d, number);
	x->current = number;
	return before;
}

void *cuda_workspace(struct device *d, size_t n_bytes)
{
	struct streams *x = get_streams(d);
	struct stream *s = x->all[x->current];
	BUG_ON(n_bytes > CUDA_WORKSPACE);
	if (x->current == STREAM_MAIN)
		return cuda_of(d)->workspace;
	BUG_ON(n_bytes > SIDE_WORKSPACE);
	if (!s->workspace)
		s->workspace = cuda_alloc_or_die(d, SIDE_WORKSPACE, "kernels");
	return s->workspace;
}

/* Blocks the host until an event, and calls d->poll, if any, meanwhile: polling detects a wait that
 * would never end, such as for a dead rank. */
void cuda_await(struct device *d, cudaEvent_t event, const char *what)
{
	enum { SPINS = 256 };
	const struct timespec nap = {.tv_sec = 0, .tv_nsec = 20000};
	cudaError_t rc;
	if (!d->poll) {
		cuda_check(d, cudaEventSynchronize(event), what);
		return;
	}
	for (int i = 0; (rc = cudaEventQuery(event)) == cudaErrorNotReady; i++) {
		cudaGetLastError(); /* clears it: this is not an error */
		d->poll(true);
		if (i > SPINS)
			nanosleep(&nap, NULL);
	}
	d->poll(false);
	cuda_check(d, rc, what);
}

/* Records an event at the end of a stream; returns its ticket. */
static uint64_t mark_stream(struct device *d, int number, const char *what)
{
	struct stream *s = get_stream(d, number);
	cudaEvent_t *e = &s->done[++s->n % MARKS_KEPT];
	if (!*e)
		*e = cuda_create_event(d);
	cuda_check(d, cudaEventRecord(*e, s->stream), what);
	return s->n * MAX_STREAMS + (uint64_t)number;
}

uint64_t cuda_stream_mark(struct device *d)
{
	BUG_ON(!cuda_graph_idle(d) && !cuda_graph_capturing(d));
	return mark_stream(d, get_streams(d)->current, "mark");
}

/* Returns the event of a mark; NULL: no mark, or the mark of a capture. */
static cudaEvent_t get_mark_event(struct device *d, uint64_t ticket)
{
	const struct stream *s = get_stream(d, (int)(ticket % MAX_STREAMS));
	uint64_t number = ticket / MAX_STREAMS;
	BUG_ON(number > s->n);
	return number > s->captured ? s->done[number % MARKS_KEPT] : NULL;
}

/* Returns true if stream `number` is already ordered after the mark: the device's own stream after
 * joining, and in a capture all others, which fork from it. */
static bool is_joined(struct device *d, uint64_t ticket, int number)
{
	const struct stream *s = get_stream(d, (int)(ticket % MAX_STREAMS));
	return ticket / MAX_STREAMS <= s->joined &&
	       (number == STREAM_MAIN || cuda_graph_capturing(d));
}

/* Makes later work of stream `number` wait for a mark, unless it is ordered after it already. */
static void wait_in_stream(struct device *d, int number, uint64_t ticket)
{
	cudaEvent_t done = ticket ? get_mark_event(d, ticket) : NULL;
	if (done && ticket % MAX_STREAMS != (uint64_t)number &&
		!is_joined(d, ticket, number))
		cuda_check(d, cudaStreamWaitEvent(get_stream(d, number)->stream, done, 0),
			"wait");
}

void cuda_stream_wait(struct device *d, uint64_t ticket)
{
	BUG_ON(!cuda_graph_idle(d) && !cuda_graph_capturing(d));
	wait_in_stream(d, get_streams(d)->current, ticket);
}

/* Returns true if the work before the mark is complete; false while capturing. */
bool cuda_stream_reached(struct device *d, uint64_t ticket)
{
	if (cuda_graph_capturing(d)) /* queries are not allowed */
		return false;
	cudaEvent_t done = ticket ? get_mark_event(d, ticket) : NULL;
	cudaError_t rc = done ? cudaEventQuery(done) : cudaSuccess;
	if (rc == cudaErrorNotReady)
		cudaGetLastError();
	else
		cuda_check(d, rc, "query");
	return rc == cudaSuccess;
}

/* Blocks the host until the mark is reached; for a capture's mark, until all work is complete. */
void cuda_host_wait(struct device *d, uint64_t ticket)
{
	cudaEvent_t done = ticket ? get_mark_event(d, ticket) : NULL;
	if (done)
		cuda_await(d, done, "wait");
	else if (ticket)
		cuda_wait(d);
}

void cuda_streams_forget(struct device *d)
{
	struct streams *x = get_streams(d);
	for (int i = 0; i < x->n; i++)
		if (x->all[i])
			x->all[i]->captured = x->all[i]->n;
}

cudaError_t cuda_streams_join(struct device *d)
{
	struct streams *x = get_streams(d);
	cudaError_t rc = cudaSuccess;
	for (int i = 0; i < x->n; i++) {
		struct stream *s = x->all[i];
		if (!s)
			continue;
		if (s->n > s->joined && i != STREAM_MAIN && rc == cudaSuccess)
			rc = cudaStreamWaitEvent(x->all[STREAM_MAIN]->stream,
				s->done[s->n % MARKS_KEPT], 0);
		s->joined = s->n;
	}
	return rc;
}

void cuda_streams_wait(struct device *d)
{
	struct streams *x = get_streams(d);
	for (int i = 0; i < x->n; i++)
		if (x->all[i])
			cuda_host_wait(d, mark_stream(d, i, "wait"));
}

/* Enqueues a copy, after the current stream's work and mark `after`; returns its ticket. */
uint64_t cuda_copy_begin(struct device *d, bool out, void *to, const void *from,
	size_t n_bytes, uint64_t after)
{
	int number = out ? STREAM_OUT : STREAM_IN;
	BUG_ON(!cuda_graph_idle(d) && !cuda_graph_capturing(d));
	if (!n_bytes)
		return 0;
	cudaStream_t stream = get_stream(d, number)->stream;
	struct cuda_launch l = cuda_copy_of(copy_names[number], to, from, n_bytes);
	wait_in_stream(d, number, cuda_stream_mark(d));
	wait_in_stream(d, number, after);
	cuda_before_in(d, &l, stream);
	cuda_check(d,
		cudaMemcpyAsync(to, from, n_bytes,
			out ? cudaMemcpyDeviceToHost : cudaMemcpyHostToDevice, stream),
		l.name);
	cuda_after_in(d, l.name, stream);
	return mark_stream(d, number, l.name);
}
