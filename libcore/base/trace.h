/*
 * A timeline of this rank (--trace), in the trace event format of Chrome, which Perfetto opens: spans of
 * the main thread, which nest, and operations that overlap with them, such as messages. Calls cost a
 * test of a flag while nothing is recorded. Only the main thread calls these functions; none is
 * collective.
 *
 * With a GPU, spans have two times: those of the host, which only enqueues, and those of the work that it
 * has enqueued, between two stamps.
 */
#pragma once

#include "base/base.h"

extern bool trace_on;
/* The clock of all events; other than clock_seconds() it may be that of a simulation. */
extern double (*trace_clock)(void);

/* Stamps of a GPU: take() enqueues one, and read() returns the time at which the GPU has passed it. */
struct trace_stamps {
	uint64_t (*take)(void *with);
	double (*read)(void *with, uint64_t stamp);
	void *with;
};
/* NULL: none. */
void trace_use_stamps(const struct trace_stamps *s);
/* In the current stream; 0: nothing is recorded, or there are no stamps. */
uint64_t trace_stamp(void);

/* Begins to record; the time of all events is relative to this call. */
void trace_start(void);
/* Ends recording. Spans and operations that are in progress end now. The GPU must have passed all stamps. */
void trace_stop(void);

void trace_span(const char *name, int64_t number);
void trace_span_end(void);
/* Returns a number, never 0. `lane`: a group of operations. `n_bytes` < 0: not known. */
uint64_t trace_operation(const char *lane, const char *name, int64_t n_bytes);
void trace_operation_ended(uint64_t number);
/* The operation is on the GPU, between these stamps. */
void trace_operation_stamps(uint64_t number, uint64_t begin, uint64_t end);
/* One that is complete, and its times by the clock. */
void trace_operation_at(
	const char *lane, const char *name, int64_t n_bytes, double begin, double end);

/* A span of the main thread: "name", or "name N" if number >= 0. */
static inline void trace_begin(const char *name, int64_t number)
{
	if (trace_on)
		trace_span(name, number);
}

static inline void trace_end(void)
{
	if (trace_on)
		trace_span_end();
}

/* Appends what was recorded, one event on a line, each followed by a comma: as process number `rank`
 * with this name. */
void trace_print(struct str *out, int rank, const char *name);
/* Frees what was recorded. */
void trace_clear(void);
