/* Streams and events of the CUDA runtime. An operation completes before the call returns; or,
 * with PT_EMU_LAZY=yes, not before the program waits for it, and streams run independently: a
 * program that does not wait for a result then reads the old value. With PT_EMU_LAZY=first
 * only the first stream that was created is late, and others, if they do not wait for it,
 * overwrite data that it reads later.
 *
 * Operations on a stream that is captured are recorded in a graph, and enqueued when the
 * graph is launched: those of each captured stream in a stream of its own. A stream that waits for
 * an event of the capture is captured too, until the end, before which the first one has to wait for
 * all that it did. An external event is recorded by each launch. Memory that is not pinned is
 * refused.
 *
 * An operation that waits for other processes (nccl.cc) is polled until it is complete. Those behind it
 * wait, and a thread goes on with them, as a GPU does while its program does something else; with
 * PT_EMU_LAZY, some milliseconds later, but where the program waits.
 *
 * PT_EMU_WAITS=yes: prints at the end how often the program waited for an operation that it did not
 * know to be complete. To whom asks for one, it is complete at the OFTENth time at the earliest, so that
 * the number depends on the program alone, not on how fast it or another process is. */
#include "tests/emu/inside.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { STREAM = 0x5712ea, EVENT = 0xe7e27, MAX_STREAMS = 64 };

enum { MAX_CAPTURED = 24 };

/* Of each captured stream, how many operations come before. */
struct past {
	int64_t n[MAX_CAPTURED];
};

/* Returns whether it is complete; if not, it is called again. */
typedef bool poll_fn(void *arg);

struct work {
	struct work *next;
	void (*fn)(void *); /* or poll */
	poll_fn *poll;
	size_t n_bytes;
	/* In a graph: the number of its captured stream, and what comes before, with itself. */
	int branch;
	struct past past;
	alignas(16) char arg[];
};

struct CUgraph_st {
	struct work *first, **last;
};

struct CUgraphExec_st {
	struct CUgraph_st all;
};

struct CUstream_st {
	int magic;
	unsigned flags;
	bool oldest;
	int captured; /* its number in the capture in progress, from 1 on, or 0 */
	struct past past;
	int64_t asked, done, known; /* known: those that the program has found complete */
	struct work *first, **last;
};

/* The capture in progress, if any. */
static struct {
	cudaStream_t stream;
	pthread_t thread;
	cudaStreamCaptureMode mode;
	bool spoiled;
	cudaGraph_t graph;
	cudaStream_t all[MAX_CAPTURED];
	int n;
	int64_t number; /* of this capture */
} capture;
static cudaStreamCaptureMode my_mode = cudaStreamCaptureModeGlobal; /* of the program */

/* A position in a stream: after the operations that were enqueued so far. */
struct place {
	cudaStream_t stream;
	int64_t asked;
};

static struct CUstream_st of_all; /* the NULL stream */
static cudaStream_t streams[MAX_STREAMS];
static int n_streams;
static pthread_mutex_t streams_lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;

static bool lazy(cudaStream_t s)
{
	const char *how = getenv("PT_EMU_LAZY");
	return how && (!strcmp(how, "yes") || (s->oldest && !strcmp(how, "first")));
}

static cudaStream_t real(cudaStream_t s)
{
	return !s || s == cudaStreamLegacy || s == cudaStreamPerThread ? &of_all : s;
}

/* Runs the first operation; false: it waits for another process. */
static bool run_one(cudaStream_t s)
{
	struct work *w = s->first;
	if (w->poll && !w->poll(w->arg))
		return false;
	if (w->fn)
		w->fn(w->arg);
	s->first = w->next;
	if (!s->first)
		s->last = &s->first;
	s->done++;
	free(w);
	return true;
}

/* Runs a stream up to a place, if it can. */
static bool advance(struct place p)
{
	while (p.stream && p.stream->done < p.asked)
		if (!run_one(p.stream))
			return false;
	return true;
}

/* A place that another stream waits for. */
static bool poll_place(void *at)
{
	return advance(*(struct place *)at);
}

static void advance_all(void)
{
	for (int i = 0; i < n_streams; i++)
		advance((struct place){streams[i], streams[i]->asked});
}

static void nap(void)
{
	const struct timespec moment = {0, 20000};
	nanosleep(&moment, NULL);
}

static void run_until(struct place p)
{
	for (;;) {
		pthread_mutex_lock(&streams_lock);
		bool done = advance(p);
		if (!done) /* another process may wait for another stream */
			advance_all();
		pthread_mutex_unlock(&streams_lock);
		if (done)
			return;
		nap();
	}
}

struct CUevent_st {
	int magic;
	unsigned flags;
	struct place at;
	bool recorded;
	double seconds;
	int64_t capture; /* in which it was recorded last, or 0 */
	struct past past;
	int queries; /* without success, and without an operation that was enqueued since */
	long since;
};

/* ---- counting waits ----------------------------------------------------------------- */

static long n_waits;

static bool counts_waits(void)
{
	const char *say = getenv("PT_EMU_WAITS");
	return say && !strcmp(say, "yes");
}

static bool is_known(struct place p)
{
	return !p.stream || p.stream->known >= p.asked;
}

static void now_known(struct place p)
{
	if (!is_known(p))
		p.stream->known = p.asked;
}

/* Of a wait that follows. */
static void count_wait(struct place p)
{
	emu_nccl_check();
	n_waits += !is_known(p);
	now_known(p);
}

/* Who asks for events again and again, and enqueues nothing, waits, and once. */
static long n_enqueued;

/* May the program be told that it is complete? */
static bool count_query(cudaEvent_t e)
{
	enum { OFTEN = 3 };
	static long counted = -1;
	emu_nccl_check();
	if (e->since != n_enqueued)
		e->queries = 0;
	e->since = n_enqueued;
	if (is_known(e->at) || !counts_waits())
		return true;
	if (++e->queries < OFTEN)
		return false;
	n_waits += counted != n_enqueued;
	counted = n_enqueued;
	return true;
}

static struct say_waits {
	~say_waits()
	{
		if (counts_waits())
			fprintf(stderr, "emulated GPU: %ld waits\n", n_waits);
	}
} say_waits;

/* ---- running operations ------------------------------------------------------------- */

static void run_stream(cudaStream_t s)
{
	run_until((struct place){s, s->asked});
}

/* Runs the streams that the NULL stream waits for; `really`: all streams. */
static void run_all(bool really)
{
	for (int i = 0; i < n_streams; i++)
		if (really || !(streams[i]->flags & cudaStreamNonBlocking))
			run_stream(streams[i]);
}

void emu_wait_all(void)
{
	for (int i = 0; i < n_streams; i++)
		count_wait((struct place){streams[i], streams[i]->asked});
	run_all(true);
}

void emu_wait(cudaStream_t s)
{
	s = real(s);
	count_wait((struct place){s, s->asked});
	if (s == &of_all)
		run_all(false);
	else
		run_stream(s);
}

static struct work *work_make(
	void (*fn)(void *), poll_fn *poll, const void *arg, size_t n_bytes)
{
	struct work *w = (struct work *)malloc(sizeof(*w) + n_bytes);
	w->next = NULL;
	w->fn = fn;
	w->poll = poll;
	w->n_bytes = n_bytes;
	memcpy(w->arg, arg, n_bytes);
	return w;
}

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double last_asked;

static void ask(cudaStream_t s, void (*fn)(void *), poll_fn *poll, const void *arg,
	size_t n_bytes)
{
	struct work *w = work_make(fn, poll, arg, n_bytes);
	n_enqueued++;
	pthread_mutex_lock(&streams_lock);
	*s->last = w;
	s->last = &w->next;
	s->asked++;
	last_asked = now();
	if (!lazy(s))
		advance((struct place){s, s->asked});
	pthread_mutex_unlock(&streams_lock);
}

/* Goes on with operations behind those that have waited for other processes. */
static void *go_on(void *)
{
	const double late = 0.003;
	const char *how = getenv("PT_EMU_LAZY");
	for (;;) {
		bool some = false;
		pthread_mutex_lock(&streams_lock);
		for (int i = 0; i < n_streams && (!how || now() - last_asked > late); i++)
			some |= streams[i]->first && run_one(streams[i]);
		pthread_mutex_unlock(&streams_lock);
		if (!some)
			nap();
	}
	return NULL;
}

static void ask_or_capture(cudaStream_t stream, void (*fn)(void *), poll_fn *poll,
	const void *arg, size_t n_bytes)
{
	cudaStream_t s = real(stream);
	if (capture.stream && s->captured) {
		s->past.n[s->captured - 1]++;
		if (capture.spoiled) {
			emu_gives(cudaErrorStreamCaptureInvalidated);
			return;
		}
		struct work *w = work_make(fn, poll, arg, n_bytes);
		w->branch = s->captured - 1;
		w->past = s->past;
		emu_nccl_in_graph(poll, arg, 1);
		*capture.graph->last = w;
		capture.graph->last = &w->next;
		return;
	}
	if (s == &of_all) {
		run_all(false);
		s->last = &s->first;
	}
	ask(s, fn, poll, arg, n_bytes);
	if (s == &of_all)
		run_stream(s);
}

void emu_ask(cudaStream_t s, void (*fn)(void *), const void *arg, size_t n_bytes)
{
	ask_or_capture(s, fn, NULL, arg, n_bytes);
}

void emu_ask_others(cudaStream_t s, bool (*poll)(void *), const void *arg, size_t n_bytes)
{
	static bool begun;
	pthread_t thread;
	if (!begun && pthread_create(&thread, NULL, go_on, NULL))
		emu_stop("no thread for the emulated GPU");
	begun = true;
	ask_or_capture(s, NULL, poll, arg, n_bytes);
}

static double seconds_on; /* emulated time on top of the clock */

void emu_clock_on(double seconds)
{
	seconds_on += seconds;
}

static void record(void *event)
{
	cudaEvent_t e = *(cudaEvent_t *)event;
	e->seconds = now() + seconds_on;
}

/* The event is after the stream's last operation. */
static void recorded(cudaEvent_t e, cudaStream_t s)
{
	e->recorded = true;
	e->capture = 0;
	e->at = (struct place){real(s), real(s)->asked};
}

/* ---- graphs ------------------------------------------------------------------------- */

static cudaError_t spoil_by(cudaError_t rc)
{
	capture.spoiled = true;
	return emu_gives(rc);
}

static cudaError_t spoil(void)
{
	return spoil_by(cudaErrorStreamCaptureUnsupported);
}

static bool is_captured(cudaStream_t s)
{
	return capture.stream && real(s)->captured;
}

cudaError_t emu_not_captured(cudaStream_t s)
{
	return is_captured(s) ? spoil() : cudaSuccess;
}

static void join_capture(cudaStream_t s)
{
	s->captured = ++capture.n;
	s->past = (struct past){};
	capture.all[capture.n - 1] = s;
}

/* Ends it, and tells whether the first stream comes after all others. */
static bool leave_capture(void)
{
	bool all = true;
	for (int i = 0; i < capture.n; i++) {
		cudaStream_t s = capture.all[i];
		all &= capture.stream->past.n[i] == s->past.n[i];
		s->captured = 0;
	}
	capture.stream = NULL;
	capture.n = 0;
	return all;
}

cudaError_t emu_safe(void)
{
	if (!capture.stream || my_mode == cudaStreamCaptureModeRelaxed)
		return cudaSuccess;
	bool mine = pthread_equal(capture.thread, pthread_self());
	bool refused = mine ? capture.mode != cudaStreamCaptureModeRelaxed
			    : capture.mode == cudaStreamCaptureModeGlobal &&
				       my_mode == cudaStreamCaptureModeGlobal;
	return refused ? spoil() : cudaSuccess;
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode *mode)
{
	cudaStreamCaptureMode before = my_mode;
	my_mode = *mode;
	*mode = before;
	return emu_gives(cudaSuccess);
}

static void graph_clear(struct CUgraph_st *g)
{
	for (struct work *w = g->first, *next; w; w = next) {
		next = w->next;
		emu_nccl_in_graph(w->poll, w->arg, -1);
		free(w);
	}
	g->first = NULL;
	g->last = &g->first;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t s, cudaStreamCaptureMode mode)
{
	if (real(s) == &of_all || s->magic != STREAM || capture.stream)
		return emu_gives(cudaErrorStreamCaptureUnsupported);
	capture.stream = s;
	capture.thread = pthread_self();
	capture.mode = mode;
	capture.spoiled = false;
	capture.number++;
	join_capture(s);
	capture.graph = (cudaGraph_t)calloc(1, sizeof(*capture.graph));
	graph_clear(capture.graph);
	return emu_gives(cudaSuccess);
}

cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *graph)
{
	*graph = NULL;
	if (s != capture.stream || !pthread_equal(capture.thread, pthread_self()))
		return emu_gives(cudaErrorStreamCaptureUnmatched);
	bool joined = leave_capture();
	if (capture.spoiled || !joined) {
		cudaGraphDestroy(capture.graph);
		return emu_gives(joined ? cudaErrorStreamCaptureInvalidated
					: cudaErrorStreamCaptureUnjoined);
	}
	*graph = capture.graph;
	return emu_gives(cudaSuccess);
}

cudaError_t cudaGraphDestroy(cudaGraph_t g)
{
	graph_clear(g);
	free(g);
	return cudaSuccess;
}

/* Moves the graph's operations to *exec, since no program instantiates a graph twice. */
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t g, unsigned long long)
{
	*exec = (cudaGraphExec_t)calloc(1, sizeof(**exec));
	(*exec)->all = *g;
	g->first = NULL;
	return emu_gives(cudaSuccess);
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
	emu_wait_all();
	graph_clear(&exec->all);
	free(exec);
	return cudaSuccess;
}

/* A launch: the stream of each branch, of which the first is that of the launch, and where in it each
 * operation ends. */
struct places {
	struct place *at;
	int64_t n;
};

struct launch {
	cudaStream_t stream[MAX_CAPTURED];
	struct places done[MAX_CAPTURED];
};

static void wait_for_place(cudaStream_t s, struct place p)
{
	ask_or_capture(s, NULL, poll_place, &p, sizeof(p));
}

/* The stream of another branch, which begins after what was enqueued before the launch. */
static cudaStream_t branch_stream(int branch, struct place begin)
{
	static cudaStream_t hidden[MAX_CAPTURED];
	if (!hidden[branch])
		cudaStreamCreateWithFlags(&hidden[branch], cudaStreamNonBlocking);
	wait_for_place(hidden[branch], begin);
	return hidden[branch];
}

static void launch_one(struct launch *l, const struct work *w, struct place begin)
{
	if (!l->stream[w->branch])
		l->stream[w->branch] = branch_stream(w->branch, begin);
	cudaStream_t s = l->stream[w->branch];
	for (int b = 0; b < MAX_CAPTURED; b++)
		if (b != w->branch && w->past.n[b])
			wait_for_place(s, l->done[b].at[w->past.n[b] - 1]);
	ask_or_capture(s, w->fn, w->poll, w->arg, w->n_bytes);
	if (w->fn == record)
		recorded(*(cudaEvent_t *)w->arg, s);
	struct places *d = &l->done[w->branch];
	d->at = (struct place *)realloc(d->at, (size_t)(d->n + 1) * sizeof(*d->at));
	d->at[d->n++] = (struct place){s, s->asked};
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t s)
{
	struct launch l = {};
	l.stream[0] = real(s);
	if (emu_not_captured(s))
		return cudaPeekAtLastError();
	struct place begin = {real(s), real(s)->asked};
	for (struct work *w = exec->all.first; w; w = w->next)
		launch_one(&l, w, begin);
	for (int b = 0; b < MAX_CAPTURED; b++) {
		if (b && l.done[b].n)
			wait_for_place(s, l.done[b].at[l.done[b].n - 1]);
		free(l.done[b].at);
	}
	return emu_gives(cudaSuccess);
}

/* ---- streams ------------------------------------------------------------------------ */

static cudaError_t check_stream(cudaStream_t s)
{
	s = real(s);
	return emu_gives(s == &of_all || s->magic == STREAM
				 ? cudaSuccess
				 : cudaErrorInvalidResourceHandle);
}

static cudaError_t check_event(cudaEvent_t e)
{
	return emu_gives(
		e && e->magic == EVENT ? cudaSuccess : cudaErrorInvalidResourceHandle);
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *s, unsigned flags, int)
{
	if (n_streams == MAX_STREAMS)
		return emu_gives(cudaErrorMemoryAllocation);
	*s = (cudaStream_t)calloc(1, sizeof(**s));
	(*s)->magic = STREAM;
	(*s)->flags = flags;
	(*s)->oldest = !n_streams;
	(*s)->last = &(*s)->first;
	streams[n_streams++] = *s;
	return emu_gives(cudaSuccess);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned flags)
{
	return cudaStreamCreateWithPriority(s, flags, 0);
}

cudaError_t cudaStreamCreate(cudaStream_t *s)
{
	return cudaStreamCreateWithPriority(s, 0, 0);
}

/* The struct stays allocated: events may refer to it. */
cudaError_t cudaStreamDestroy(cudaStream_t s)
{
	if (real(s) == &of_all || check_stream(s))
		return emu_gives(cudaErrorInvalidResourceHandle);
	run_stream(s);
	s->magic = 0;
	for (int i = 0; i < n_streams; i++)
		if (streams[i] == s)
			streams[i--] = streams[--n_streams];
	return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t s)
{
	if (emu_not_captured(s) || emu_safe() || check_stream(s))
		return cudaPeekAtLastError();
	emu_wait(s);
	return emu_gives(cudaSuccess);
}

cudaError_t cudaDeviceSynchronize(void)
{
	if (emu_safe())
		return cudaPeekAtLastError();
	emu_wait_all();
	return emu_gives(cudaSuccess);
}

/* A later cudaGetLastError() returns it too. */
static cudaError_t not_ready(void)
{
	return emu_gives(cudaErrorNotReady);
}

/* Runs one operation: polling makes progress. */
static bool one_step(struct place p)
{
	pthread_mutex_lock(&streams_lock);
	bool done = !p.stream || p.stream->done >= p.asked;
	if (!done && !run_one(p.stream))
		advance_all();
	pthread_mutex_unlock(&streams_lock);
	return done;
}

cudaError_t cudaStreamQuery(cudaStream_t s)
{
	if (emu_not_captured(s) || emu_safe() || check_stream(s))
		return cudaPeekAtLastError();
	s = real(s);
	return one_step((struct place){s, s->asked}) ? emu_gives(cudaSuccess)
						     : not_ready();
}

cudaError_t cudaLaunchHostFunc(cudaStream_t s, cudaHostFn_t fn, void *arg)
{
	struct call {
		cudaHostFn_t fn;
		void *arg;
	} call = {fn, arg};
	if (check_stream(s))
		return cudaPeekAtLastError();
	emu_ask(
		s, [](void *c) { ((struct call *)c)->fn(((struct call *)c)->arg); },
		&call, sizeof(call));
	return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
	*least = 0;
	*greatest = -5;
	return emu_gives(cudaSuccess);
}

/* ---- events ------------------------------------------------------------------------- */

/* An event that a capture recorded is not one that was enqueued. */
static cudaError_t of_capture(cudaEvent_t e)
{
	return e->capture ? emu_gives(cudaErrorCapturedEvent) : cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned flags)
{
	*e = (cudaEvent_t)calloc(1, sizeof(**e));
	(*e)->magic = EVENT;
	(*e)->flags = flags;
	return emu_gives(cudaSuccess);
}

cudaError_t cudaEventCreate(cudaEvent_t *e)
{
	return cudaEventCreateWithFlags(e, 0);
}

cudaError_t cudaEventDestroy(cudaEvent_t e)
{
	if (check_event(e))
		return cudaPeekAtLastError();
	run_until(e->at);
	e->magic = 0;
	free(e);
	return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s)
{
	if (check_stream(s) || check_event(e))
		return cudaPeekAtLastError();
	if (is_captured(s)) {
		e->capture = capture.number;
		e->past = real(s)->past;
		return emu_gives(cudaSuccess);
	}
	emu_ask(s, record, &e, sizeof(e));
	recorded(e, s);
	return cudaSuccess;
}

/* External: in a capture only; each launch of the graph records the event. */
cudaError_t cudaEventRecordWithFlags(cudaEvent_t e, cudaStream_t s, unsigned flags)
{
	if (!(flags & cudaEventRecordExternal))
		return cudaEventRecord(e, s);
	if (check_stream(s) || check_event(e))
		return cudaPeekAtLastError();
	if (!is_captured(s))
		return emu_gives(cudaErrorIllegalState);
	emu_ask(s, record, &e, sizeof(e));
	return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t e)
{
	if (emu_safe() || check_event(e) || of_capture(e))
		return cudaPeekAtLastError();
	count_wait(e->at);
	run_until(e->at);
	return emu_gives(cudaSuccess);
}

cudaError_t cudaEventQuery(cudaEvent_t e)
{
	if (emu_safe() || check_event(e) || of_capture(e))
		return cudaPeekAtLastError();
	bool may = count_query(e);
	if (!one_step(e->at) || !may)
		return not_ready();
	now_known(e->at);
	return emu_gives(cudaSuccess);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned)
{
	if (check_stream(s) || check_event(e))
		return cudaPeekAtLastError();
	if (capture.stream && e->capture == capture.number) {
		cudaStream_t to = real(s);
		if (!to->captured && capture.n == MAX_CAPTURED)
			return spoil();
		if (!to->captured)
			join_capture(to);
		for (int i = 0; i < MAX_CAPTURED; i++)
			if (to->past.n[i] < e->past.n[i])
				to->past.n[i] = e->past.n[i];
		return emu_gives(cudaSuccess);
	}
	if (is_captured(s))
		return spoil_by(cudaErrorStreamCaptureIsolation);
	if (of_capture(e))
		return cudaPeekAtLastError();
	wait_for_place(s, e->at);
	return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to)
{
	if (check_event(from) || check_event(to))
		return cudaPeekAtLastError();
	if (!from->recorded || !to->recorded ||
		((from->flags | to->flags) & cudaEventDisableTiming))
		return emu_gives(cudaErrorInvalidResourceHandle);
	if (from->at.stream->done < from->at.asked || to->at.stream->done < to->at.asked)
		return emu_gives(cudaErrorNotReady);
	*ms = (float)(1e3 * (to->seconds - from->seconds));
	return cudaSuccess;
}
