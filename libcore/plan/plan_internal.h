/* Shared by the files of the plan only: a step on the planning device. */
#pragma once

#include "engine/engine.h"

/* A trainer that only plans: of rank `rank`, whose step has n_micro micro-batches. *m becomes this
 * rank's part of the model. */
void plan_open(struct trainer *t, const struct train_opts *o, struct model *m, int rank,
	int64_t n_micro);
void plan_close(struct trainer *t);
/* A step of a trainer whose pipeline is built. */
void plan_run_step(struct trainer *t);
/* The micro-batches of a step, but at most about `of_rank` of each data-parallel rank. */
int64_t plan_few_micro_batches(const struct train_opts *o, int64_t of_rank);

/* predict.c: prints the time of a step on the cluster of the options, and what of its communication
 * is exposed. Writes the timeline of --trace, if it is given; -1 with *e set if it cannot. */
int predict_print(
	const struct train_opts *o, struct model *m, struct str *out, struct err *e);
