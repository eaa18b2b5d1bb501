/* A step on the planning device, for libcore/plan only. */
#pragma once

#include "engine/engine.h"

/* Opens a trainer that only plans, for a rank and a step of n_micro micro-batches. *m becomes the
 * rank's part of the model. */
void plan_open(struct trainer *t, const struct train_opts *o, struct model *m, int rank,
	int64_t n_micro);
void plan_close(struct trainer *t);
/* Runs a step of a trainer with a pipeline. */
void plan_run_step(struct trainer *t);
/* Returns the micro-batches of a step, or if many, about per_rank per data-parallel rank. */
int64_t plan_few_micro_batches(const struct train_opts *o, int64_t per_rank);

/* Prints the time and the exposed communication of a step on the cluster of the options, and writes
 * the timeline of --trace (predict.c). */
int predict_print(
	const struct train_opts *o, struct model *m, struct str *out, struct err *e);
