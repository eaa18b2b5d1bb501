/* Small runs within a test, and what they compute: to be compared bit by bit. */
#ifndef TESTS_TRACES_H
#define TESTS_TRACES_H

#include "train/step.h"

enum { TRACE_STEPS = 8 };

/* What a run computed; equal runs are equal bytes. */
struct trace {
	float loss[TRACE_STEPS], grad_norm[TRACE_STEPS], scale[TRACE_STEPS];
	uint64_t hash[TRACE_STEPS]; /* of the parameters after the step */
	int64_t skipped;
	double val_loss;
};

/* Options of a run, of lines `key = value`; what is small in all of them is there already. */
struct train_opts trace_options(const char *shard, const char *lines);
/* Collective over c. All steps, and an evaluation. Returns the plan. */
struct plan trace_run(struct comm *c, const struct train_opts *o, struct trace *out);

#endif
