/*
 * run_facts: what Hugging Face's Trainer has written beside its checkpoints about the step: trainer_state.json,
 * training_args.bin, config.json, and the learning rate in the optimizer's file.
 */
#pragma once

#include "base/base.h"

struct run_facts {
	/* As in the log of the step; "": not known. */
	char loss[NUM_TEXT], grad_norm[NUM_TEXT];
	double lr, clip; /* below 0: not known */
	int precision;	 /* enum run_precision; -1: not known */
	bool fp16;	 /* its 16 bits are fp16, whose rounding is less than bf16's */
	int64_t accumulation; /* micro-batches of a rank; 0: not known */
};

/* Reads the facts of the step between two checkpoints. Files that are missing leave them unknown; one that cannot be
 * read does, too, with a warning. */
void run_facts_read(struct run_facts *x, const char *before, const char *after);
