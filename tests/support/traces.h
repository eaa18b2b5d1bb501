/* Small runs within a test, and traces of them, which tests compare bit by bit. */
#pragma once

#include "engine/step.h"
#include "plan/plan.h"

enum { TRACE_STEPS = 8 };

/* The results of a run; equal runs have equal bytes. */
struct trace {
	float loss[TRACE_STEPS], grad_norm[TRACE_STEPS], scale[TRACE_STEPS];
	uint64_t hash[TRACE_STEPS]; /* of the parameters after the step */
	int64_t skipped;
	double val_loss;
};

/* The options of a run: lines `key = value`, which override defaults for a small model. */
struct train_opts trace_options(const char *shard, const char *lines);
/* Collective over c. Runs all steps and an evaluation. Returns the plan. */
struct plan trace_run(struct comm *c, const struct train_opts *o, struct trace *out);
