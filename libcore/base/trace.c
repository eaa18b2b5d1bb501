/* A timeline of this rank. */
#include "base/trace.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_EVENTS = 1 << 20, MOST_OPEN = 32 };

/* A span (lane is empty), or an operation. */
struct event {
	double begin, end; /* end < begin: in progress */
	int64_t n_bytes;
	char name[48], lane[16];
};

bool trace_on;
double (*trace_clock)(void) = clock_seconds;
static struct {
	struct event *event;
	int64_t n, room;
	int64_t dropped;
	int64_t open[MOST_OPEN]; /* the spans in progress; -1: dropped */
	int n_open;
	double start;
} trace;

void trace_start(void)
{
	trace_clear();
	trace.start = trace_clock();
	trace_on = true;
}

static double now(void)
{
	return trace_clock() - trace.start;
}

void trace_stop(void)
{
	double end = now();
	for (int64_t i = 0; i < trace.n; i++)
		if (trace.event[i].end < trace.event[i].begin)
			trace.event[i].end = end;
	trace_on = false;
}

void trace_clear(void)
{
	free(trace.event);
	memset(&trace, 0, sizeof(trace));
	trace_on = false;
}

/* -1: there are too many. */
static int64_t add(const char *lane, const char *name, int64_t number, int64_t n_bytes)
{
	if (trace.n == MOST_EVENTS) {
		trace.dropped++;
		return -1;
	}
	if (trace.n == trace.room) {
		trace.room = trace.room ? 2 * trace.room : 1024;
		trace.event =
			xrealloc(trace.event, (size_t)trace.room * sizeof(*trace.event));
	}
	struct event *e = &trace.event[trace.n];
	*e = (struct event){.end = -1, .n_bytes = n_bytes};
	if (number >= 0)
		snprintf(e->name, sizeof(e->name), "%s %lld", name, (long long)number);
	else
		snprintf(e->name, sizeof(e->name), "%s", name);
	snprintf(e->lane, sizeof(e->lane), "%s", lane);
	e->begin = now();
	return trace.n++;
}

void trace_span(const char *name, int64_t number)
{
	BUG_ON(trace.n_open == MOST_OPEN);
	trace.open[trace.n_open++] = add("", name, number, -1);
}

void trace_span_end(void)
{
	if (!trace.n_open) /* it began before the recording */
		return;
	int64_t i = trace.open[--trace.n_open];
	if (i >= 0)
		trace.event[i].end = now();
}

uint64_t trace_operation(const char *lane, const char *name, int64_t n_bytes)
{
	return (uint64_t)(add(lane, name, -1, n_bytes) + 2);
}

void trace_operation_ended(uint64_t number)
{
	if (number > 1 && (int64_t)number - 2 < trace.n)
		trace.event[number - 2].end = now();
}

void trace_operation_at(
	const char *lane, const char *name, int64_t n_bytes, double begin, double end)
{
	int64_t i = add(lane, name, -1, n_bytes);
	if (i < 0)
		return;
	trace.event[i].begin = begin - trace.start;
	trace.event[i].end = end - trace.start;
}

/* ---- as JSON ----------------------------------------------------------------------- */

/* No name has a character that JSON would escape. */
static void print_name(struct str *out, const char *what, int rank, const char *name)
{
	str_printf(out,
		"{\"ph\":\"M\",\"name\":\"%s\",\"pid\":%d,\"tid\":0,"
		"\"args\":{\"name\":\"%s\"}},\n",
		what, rank, name);
}

/* Times are in microseconds. */
static void print_span(struct str *out, int rank, const struct event *e)
{
	str_printf(out,
		"{\"ph\":\"X\",\"name\":\"%s\",\"pid\":%d,\"tid\":0,\"ts\":%.3f,"
		"\"dur\":%.3f},\n",
		e->name, rank, 1e6 * e->begin, 1e6 * (e->end - e->begin));
}

/* Asynchronous events, since operations overlap. Their numbers are those of a rank; Perfetto has a
 * track for each name. */
static void print_operation(struct str *out, int rank, const struct event *e, int64_t id)
{
	for (int end = 0; end < 2; end++) {
		str_printf(out,
			"{\"ph\":\"%c\",\"cat\":\"%s\",\"name\":\"%s: %s\","
			"\"id2\":{\"local\":\"0x%llx\"},\"pid\":%d,\"tid\":0,"
			"\"ts\":%.3f",
			end ? 'e' : 'b', e->lane, e->lane, e->name, (long long)id, rank,
			1e6 * (end ? e->end : e->begin));
		if (!end && e->n_bytes >= 0)
			str_printf(
				out, ",\"args\":{\"bytes\":%lld}", (long long)e->n_bytes);
		str_printf(out, "},\n");
	}
}

void trace_print(struct str *out, int rank, const char *name)
{
	print_name(out, "process_name", rank, name);
	print_name(out, "thread_name", rank, "computation");
	for (int64_t i = 0; i < trace.n; i++) {
		const struct event *e = &trace.event[i];
		if (e->lane[0])
			print_operation(out, rank, e, i);
		else
			print_span(out, rank, e);
	}
	if (trace.dropped)
		warn("--trace: %lld events of rank %d are not in the file",
			(long long)trace.dropped, rank);
}
