/* train: a run around the engine, from its options to its exit code. The other headers:
 *   local_sgd.h       workers that synchronize, in the loop and in checkpoints
 *   faults.h          injected delays and corrupt data
 *   notify.h          notifications between ranks, for which no rank waits
 *   selftest.h        checks a GPU's kernels against a CPU's
 *   train_internal.h  start, loop, log, checkpoints, run directory; for this directory only */
#pragma once

#include "ckpt/ckpt.h"
#include "comm/mesh.h"
#include "engine/options.h"

struct vault_found;

/* A checkpoint that a run begins from, and the options that come with it. */
struct job_base {
	char *resume;	 /* NULL: none */
	bool start_over; /* --resume auto found no checkpoint */
	int lock; /* rank 0's file descriptor of the locked journal, plus 1; 0: none */
	/* The state in the vault that the run resumes from; NULL: `resume` is a file. */
	struct vault_found *vault;
	uint64_t vault_run;	 /* number of the run in its vault; 0: it has none yet */
	int64_t workers;	 /* number of workers of the checkpoint's run */
	struct str options;	 /* from the checkpoint, as a config text */
	ckpt_opener *open_model; /* opens --init-from; set by the caller */
};

/* Finds the checkpoint of --resume with all its options, or of --init-from with its model options.
 * The caller sets b->open_model, which also opens models of other programs. Collective. */
int job_find_base(const struct train_opts *o, struct comm *world, struct job_base *b,
	struct err *e);
/* Trains, evaluates or plans; returns the exit code. `began`: start of the program, by
 * clock_seconds(). Collective. */
int job_run(struct train_opts *o, const struct job_base *base, struct comm *world,
	const char *command, double began);
