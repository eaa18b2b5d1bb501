/*
 * locate: the first tensor in which two runs differ. Both are computed again up to the first step
 * that differs, from the nearest checkpoint that both have, with hashes of all tensors of that step
 * (pt-train --hash-tensors); the lists are compared in the order of computation.
 *
 * Functions that return int return -1 with *e set on an error.
 */
#pragma once

#include "run/run.h"

#include <signal.h>

enum { MAX_REPLAY_STEPS = 8 }; /* whose tensors are hashed at once */

/* ---- replay.c: a run once more --------------------------------------------------- */

/* Signals that end the program wait while there is a folder to be removed. One that comes while a
 * replay runs ends that first. */
struct held_signals {
	sigset_t held, before;
	int came; /* one that ended a replay; 0: none */
};
void replay_hold_signals(struct held_signals *h);
void replay_release_signals(struct held_signals *h); /* (the program may end) */

struct replay {
	const struct run_log *log;
	const char *program; /* a file, or a name to be found in PATH */
	const char
		*launcher;  /* words before the number of ranks; used for several ranks */
	const char *from;   /* checkpoint; NULL: from the start */
	const char *folder; /* an existing one, for the files of the run */
	const char *name;   /* of these files */
	int64_t first, last; /* steps whose tensors are hashed; the run ends after them */
	struct held_signals *signals;
	bool each_step; /* logs a hash of the parameters after each step */
};

/* Appends the config of a replay: of the options of the log, which is not trusted, those that determine
 * results, and those of its data, layout and device; none that writes a file of the log's choice. */
int replay_config(const struct replay *r, struct str *out, struct err *e);
/* Starts the program with this config. It may fail
 * after it has written hashes. */
int replay_run(const struct replay *r, struct tensor_hashes *l, struct err *e);
/* The first step after which the parameters of two replays with each_step differ; -1: none. */
int replay_first_difference(
	const struct replay *a, const struct replay *b, int64_t *step, struct err *e);
void replay_remove(const char *folder); /* with its files */

/* ---- locate.c -------------------------------------------------------------------- */

struct locate_opts {
	const char *program[2]; /* of control and test */
	const char *launcher;
	int64_t show; /* tensors that are listed after the first */
};

/* Appends the first tensors that differ in the second list, in the order of the first one. Returns
 * the number that differ, or that only one list has. */
int64_t locate_in_lists(const struct tensor_hashes *control,
	const struct tensor_hashes *test, int64_t show, struct str *out);
/* Compares two runs, two checkpoints, or two files of hashes. Appends what was found; returns 1 if they
 * differ, 0 if they do not. */
int locate(const char *control, const char *test, const struct locate_opts *o,
	struct str *out, struct err *e);
/* Are both checkpoints? */
bool locate_are_checkpoints(const char *control, const char *test, struct err *e);
