/* How long the start of a run takes, from the beginning of the program to the first step. */
#ifndef TRAIN_START_TIMES_H
#define TRAIN_START_TIMES_H

#include "base/base.h"

enum start_phase {
	START_PROGRAM, /* options, MPI, and everything without a phase */
	START_DATA,
	START_DEVICE,
	START_PLAN,
	START_SELF_TEST,
	START_MEMORY, /* allocation */
	START_WEIGHTS,
	START_FILES,	  /* reading a checkpoint, making the run directory */
	START_ALGORITHMS, /* of a GPU's GEMMs */
	START_PHASES
};

struct start_times {
	double began, last; /* as clock_seconds() */
	double seconds[START_PHASES];
};

/* The time since the end of the last phase was spent in this one. */
void start_times_add(struct start_times *s, enum start_phase phase);
void start_times_print(const struct start_times *s, struct str *out);

#endif
