/* locate: finds the first tensor that differs between two runs. Both are computed again up to the
 * first step that differs, from the nearest checkpoint that both have, with hashes of all tensors
 * of that step (pt-train --hash-tensors). The lists are compared in the order of computation.
 *
 * Functions that return int return -1 with *e set on an error. */
#pragma once

#include "run/run.h"

#include <signal.h>

enum { MAX_REPLAY_STEPS = 8 }; /* hashed in one replay */

/* ---- replay.c: computes a run again ---------------------------------------------- */

/* Signals that end the program are held back while there is a temporary directory to remove. A
 * signal during a replay first ends the replay. */
struct held_signals {
	sigset_t held, old_mask; /* signals held back; mask before */
	int received;		 /* the signal that ended a replay; 0: none */
};
/* Blocks SIGCHLD and the signals that end the program, except ignored ones, until
 * replay_release_signals(). Sets *h. */
void replay_hold_signals(struct held_signals *h);
/* Delivers signals that were held back, which may end the program. */
void replay_release_signals(struct held_signals *h);

struct replay {
	const struct run_log *log;
	const char *program;   /* a file, or a name in PATH */
	const char *launcher;  /* words before the number of ranks, if several */
	const char *from;      /* checkpoint; NULL: from the start */
	const char *directory; /* an existing one, for the files of the run */
	const char *name;      /* common name of the files, without a suffix */
	int64_t first, last; /* steps whose tensors are hashed; the run ends after them */
	struct held_signals *signals;
};

/* Appends the config of a replay. The log is not trusted: only options are kept that determine
 * results, data, layout or device, and none that would write a file of the log's choice. */
int replay_append_config(const struct replay *r, struct str *out, struct err *e);
/* Computes the run again and reads the hashes, also if the program fails after writing them. */
int replay_run(const struct replay *r, struct tensor_hashes *l, struct err *e);
/* Sets *step to the first step after which the parameters of two replays differ; -1: none. */
int replay_find_difference(
	const struct replay *a, const struct replay *b, int64_t *step, struct err *e);
/* Removes the directory of replays with its files. A failure is a warning. */
void replay_remove_files(const char *directory);

/* ---- locate.c -------------------------------------------------------------------- */

struct locate_opts {
	const char *program[2]; /* for the control and the test */
	const char *launcher;
	int64_t show; /* number of tensors to list after the first one */
};

/* Appends the first tensors that differ, in the order of the control's list. Returns the number of
 * tensors that differ or that only one list has. */
int64_t locate_in_lists(const struct tensor_hashes *control,
	const struct tensor_hashes *test, int64_t show, struct str *out);
/* Compares two runs, two checkpoints, or two files of hashes, and appends the differences. Returns
 * 1 if there are any, else 0. */
int locate(const char *control, const char *test, const struct locate_opts *o,
	struct str *out, struct err *e);
/* Returns true if both paths are checkpoints; sets *e if one cannot be read. */
bool locate_are_checkpoints(const char *control, const char *test, struct err *e);
