/* A timeline of this rank (--trace), in Chrome's trace event format, which Perfetto opens: spans
 * of the main thread, which nest, and operations that overlap with them, such as messages. A call
 * costs a test of a flag while nothing is recorded. Only the main thread may call these
 * functions. No call is collective.
 *
 * With a GPU, a span has two pairs of times: on the host, which only enqueues work, and on the
 * GPU, between two stamps. */
#pragma once

#include "base/base.h"

extern bool trace_on;
/* The clock of all events: clock_seconds(), or a simulation's clock. */
extern double (*trace_clock)(void);

/* Functions for GPU stamps: take() enqueues one, read() returns the seconds when the GPU passed. */
struct trace_stamps {
	uint64_t (*take)(void *ctx);
	double (*read)(void *ctx, uint64_t stamp);
	void *ctx; /* first argument of both */
};
/* Sets the functions for GPU stamps; NULL: there are none. */
void trace_use_stamps(const struct trace_stamps *s);
/* Enqueues a stamp in the current stream; 0: nothing is recorded, or there are no stamps. */
uint64_t trace_stamp(void);

/* Begins to record; the times of all events are relative to this call. */
void trace_start(void);
/* Ends recording, and all spans and operations in progress. The GPU must have passed all stamps. */
void trace_stop(void);

/* Begins and ends a span while events are recorded; called by trace_begin() and trace_end(). */
void trace_span_begin(const char *name, int64_t number);
void trace_span_end(void);
/* Begins an operation of a group of ranks. Returns its ID, not 0. n_bytes < 0: unknown. */
uint64_t trace_operation_begin(const char *lane, const char *name, int64_t n_bytes);
void trace_operation_end(uint64_t id);
/* Sets the stamps between which the operation runs on the GPU. */
void trace_operation_stamps(uint64_t id, uint64_t begin, uint64_t end);
/* Records an operation that has ended; begin, end: times of trace_clock(). */
void trace_operation_record(
	const char *lane, const char *name, int64_t n_bytes, double begin, double end);

/* Begins a span of the main thread: "name", or "name N" if number >= 0. */
static inline void trace_begin(const char *name, int64_t number)
{
	if (trace_on)
		trace_span_begin(name, number);
}

static inline void trace_end(void)
{
	if (trace_on)
		trace_span_end();
}

/* Appends the events of process `rank` with this name: one per line, each followed by a comma. */
void trace_print(struct str *out, int rank, const char *name);
/* Frees all events. */
void trace_clear(void);
