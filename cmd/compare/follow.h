/* Follows runs that are training: reads their logs as they grow.
 *
 * The journal of a run's directory, a file, or a directory of event files is read as a whole
 * whenever it has changed. A pipe or standard input is copied to a temporary file, which is read
 * the same way. A log that is one JSON object is rejected through a pipe, since it is valid only at
 * its end. A file that does not exist yet is waited for. Files are polled twice a second, because
 * notifications do not cross network file systems. */
#pragma once

#include "base/base.h"
#include "run/run.h"

enum follow_end {
	FOLLOW_CONTINUES,
	FOLLOW_STOPPED, /* judge() returned true */
	FOLLOW_ENDED,	/* every journal reports its end, every pipe is closed */
	FOLLOW_QUIET,	/* no new row for `patience` seconds */
	FOLLOW_SIGNAL,	/* SIGINT */
};

struct log_options;
struct follow {
	const struct log_options *how; /* as for log_read() */
	/* Called after new rows; returns true to stop. */
	bool (*judge)(void *context, const struct run_log *logs, int n);
	void *context;
	double patience;
};

/* Fills logs[n], which the caller frees. Returns 0 and sets *why, or returns -1 with *e set. */
int follow_runs(struct run_log *logs, const char *const *paths, int n,
	const struct follow *f, enum follow_end *why, struct err *e);
