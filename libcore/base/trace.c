/* A timeline of this rank. */
#include "base/trace.h"

enum { MAX_EVENTS = 1 << 20, MAX_OPEN = 32 };

/* A span (lane is empty), or an operation. */
struct event {
	double begin, end; /* end < begin: in progress */
	uint64_t stamp[2]; /* GPU stamps at the begin and the end; 0: none */
	double gpu[2];	   /* times of the stamps, in seconds */
	int64_t n_bytes;
	char name[48], lane[16];
};

bool trace_on;
double (*trace_clock)(void) = clock_seconds;
static struct {
	struct event *event;
	int64_t n, dropped;
	int64_t open[MAX_OPEN]; /* indices of the spans in progress; -1: dropped */
	int n_open;
	double start;
} trace;
static struct trace_stamps stamps;

void trace_use_stamps(const struct trace_stamps *s)
{
	stamps = s ? *s : (struct trace_stamps){.take = NULL};
}

uint64_t trace_stamp(void)
{
	return trace_on && stamps.take ? stamps.take(stamps.ctx) : 0;
}

void trace_start(void)
{
	trace_clear();
	trace.start = trace_clock();
	trace_on = true;
}

static double trace_now(void)
{
	return trace_clock() - trace.start;
}

static bool has_stamps(const struct event *e)
{
	return stamps.read && e->stamp[0] && e->stamp[1];
}

void trace_stop(void)
{
	double end = trace_now();
	for (int64_t i = 0; i < trace.n; i++) {
		struct event *e = &trace.event[i];
		if (e->end < e->begin)
			e->end = end;
		for (int k = 0; k < 2 && has_stamps(e); k++)
			e->gpu[k] = stamps.read(stamps.ctx, e->stamp[k]) - trace.start;
	}
	trace_on = false;
}

void trace_clear(void)
{
	free(trace.event);
	memset(&trace, 0, sizeof(trace));
	trace_on = false;
}

/* Adds an event that begins now, and returns its index; -1: there are too many events. */
static int64_t add_event(
	const char *lane, const char *name, int64_t number, int64_t n_bytes)
{
	if (trace.n == MAX_EVENTS) {
		trace.dropped++;
		return -1;
	}
	trace.event = xgrow(trace.event, trace.n, sizeof(*trace.event));
	struct event *e = &trace.event[trace.n];
	*e = (struct event){.end = -1, .n_bytes = n_bytes};
	if (number >= 0)
		snprintf(e->name, sizeof(e->name), "%s %lld", name, (long long)number);
	else
		snprintf(e->name, sizeof(e->name), "%s", name);
	snprintf(e->lane, sizeof(e->lane), "%s", lane);
	e->begin = trace_now();
	return trace.n++;
}

void trace_span_begin(const char *name, int64_t number)
{
	BUG_ON(trace.n_open == MAX_OPEN);
	int64_t i = add_event("", name, number, -1);
	trace.open[trace.n_open++] = i;
	if (i >= 0)
		trace.event[i].stamp[0] = trace_stamp();
}

void trace_span_end(void)
{
	if (!trace.n_open) /* it began before the recording */
		return;
	int64_t i = trace.open[--trace.n_open];
	if (i < 0)
		return;
	trace.event[i].end = trace_now();
	trace.event[i].stamp[1] = trace_stamp();
}

/* Begins an operation. Returns its index plus 2, or 1 if the event was dropped. */
uint64_t trace_operation_begin(const char *lane, const char *name, int64_t n_bytes)
{
	return (uint64_t)(add_event(lane, name, -1, n_bytes) + 2);
}

void trace_operation_end(uint64_t id)
{
	if (id > 1 && (int64_t)id - 2 < trace.n)
		trace.event[id - 2].end = trace_now();
}

void trace_operation_stamps(uint64_t id, uint64_t begin, uint64_t end)
{
	if (id < 2 || (int64_t)id - 2 >= trace.n)
		return;
	trace.event[id - 2].stamp[0] = begin;
	trace.event[id - 2].stamp[1] = end;
}

void trace_operation_record(
	const char *lane, const char *name, int64_t n_bytes, double begin, double end)
{
	int64_t i = add_event(lane, name, -1, n_bytes);
	if (i < 0)
		return;
	trace.event[i].begin = begin - trace.start;
	trace.event[i].end = end - trace.start;
}

/* ---- as JSON ----------------------------------------------------------------------- */

/* Names a process or thread. (Names have no characters that JSON would escape.) */
static void print_label(
	struct str *out, const char *key, int rank, int thread, const char *name)
{
	str_printf(out,
		"{\"ph\":\"M\",\"name\":\"%s\",\"pid\":%d,\"tid\":%d,"
		"\"args\":{\"name\":\"%s\"}},\n",
		key, rank, thread, name);
}

enum { THREAD_HOST, THREAD_GPU };

/* Appends a span as a JSON event; begin and end are in seconds, and microseconds in the file. */
static void print_span(
	struct str *out, int rank, int thread, const char *name, double begin, double end)
{
	str_printf(out,
		"{\"ph\":\"X\",\"name\":\"%s\",\"pid\":%d,\"tid\":%d,\"ts\":%.3f,"
		"\"dur\":%.3f},\n",
		name, rank, thread, 1e6 * begin, 1e6 * (end - begin));
}

/* Appends asynchronous JSON events, since operations overlap. Ids are unique per rank. */
static void print_operation(struct str *out, int rank, const struct event *e, int64_t id)
{
	bool has_gpu_times = has_stamps(e);
	for (int end = 0; end < 2; end++) {
		str_printf(out,
			"{\"ph\":\"%c\",\"cat\":\"%s\",\"name\":\"%s: %s\","
			"\"id2\":{\"local\":\"0x%llx\"},\"pid\":%d,\"tid\":0,"
			"\"ts\":%.3f",
			end ? 'e' : 'b', e->lane, e->lane, e->name, (long long)id, rank,
			1e6 * (has_gpu_times ? e->gpu[end]
				      : end  ? e->end
					     : e->begin));
		if (!end && e->n_bytes >= 0)
			str_printf(
				out, ",\"args\":{\"bytes\":%lld}", (long long)e->n_bytes);
		str_printf(out, "},\n");
	}
}

void trace_print(struct str *out, int rank, const char *name)
{
	bool gpu = stamps.take != NULL;
	print_label(out, "process_name", rank, THREAD_HOST, name);
	print_label(out, "thread_name", rank, THREAD_HOST, gpu ? "host" : "computation");
	if (gpu)
		print_label(out, "thread_name", rank, THREAD_GPU, "GPU");
	for (int64_t i = 0; i < trace.n; i++) {
		const struct event *e = &trace.event[i];
		if (e->lane[0])
			print_operation(out, rank, e, i);
		else
			print_span(out, rank, THREAD_HOST, e->name, e->begin, e->end);
		if (!e->lane[0] && has_stamps(e))
			print_span(out, rank, THREAD_GPU, e->name, e->gpu[0], e->gpu[1]);
	}
	if (trace.dropped)
		warn("--trace: dropped %lld events of rank %d: a rank records at most %d; trace fewer steps",
			(long long)trace.dropped, rank, MAX_EVENTS);
}
