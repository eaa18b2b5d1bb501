/*
 * train: a training run, from its options and a checkpoint to its exit code. Behind it are
 * the trainer (trainer.h, step.h, state.h: prepare, build, step, evaluate, save, load) and the
 * run around it (train_internal.h: start, loop, log, checkpoints, run directory, local SGD).
 */
#ifndef TRAIN_H
#define TRAIN_H

#include "comm/mesh.h"
#include "train/options.h"

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
