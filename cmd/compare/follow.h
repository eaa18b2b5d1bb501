/*
 * Following runs that are training: their logs are read as they grow.
 *
 * The journal of a run's directory, a file, a directory of event files are read as a whole whenever they have
 * changed; so are the bytes of a pipe or of standard input, which are copied to a temporary file. Formats of
 * one JSON object are refused through a pipe, because all but its end is none. A file that does not exist yet
 * is waited for. Files are looked at twice a second, because notifications do not cross network file systems.
 */
#pragma once

#include "base/base.h"
#include "run/run.h"

enum follow_end {
	FOLLOW_GOES_ON,
	FOLLOW_STOPPED, /* by judge() */
	FOLLOW_ENDED,	/* every run: its journal says so, or the pipe is closed */
	FOLLOW_QUIET,	/* no new row for `patience` seconds */
	FOLLOW_SIGNAL,	/* SIGINT */
};

struct log_how;
struct follow {
	const struct log_how *how; /* as for log_read() */
	/* Called after new rows; true: stop. */
	bool (*judge)(void *to, const struct run_log *logs, int n);
	void *to;
	double patience;
};

/* Fills logs[n], which the caller frees. 0 and *why, or -1 with *e set. */
int follow_runs(struct run_log *logs, const char *const *paths, int n,
	const struct follow *f, enum follow_end *why, struct err *e);
