/*
 * job: a run around the engine, from its options and a checkpoint to its exit code: start, loop, log,
 * checkpoints, run directory (job_internal.h), local SGD (local_sgd.h), self-test (selftest.h).
 */
#ifndef JOB_H
#define JOB_H

#include "comm/mesh.h"
#include "engine/options.h"

/* A checkpoint that a run begins from, and the options that come with it. */
struct train_base {
	char *resume; /* NULL: none */
	bool start_over;
	int lock;	 /* as in the options */
	int64_t workers; /* of the checkpoint */
	struct str options;
};

/* Collective. Finds the checkpoint of --resume, with all its options, or of --init-from, with those
 * of the model. */
int train_find_base(const struct train_opts *o, struct comm *world, struct train_base *b,
	struct err *e);
/* Collective. Trains, evaluates or plans, and returns the exit code. `began`: when the program
 * did, by clock_seconds(). */
int train_run(
	struct train_opts *o, struct comm *world, const char *command, double began);

#endif
