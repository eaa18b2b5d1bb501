/* run_facts: what Hugging Face's Trainer writes next to its checkpoints about a step:
 * trainer_state.json, training_args.bin, config.json, and the rate in the optimizer's file. */
#pragma once

#include "base/base.h"

struct run_facts {
	/* As logged; "": unknown. */
	char loss[NUM_TEXT], grad_norm[NUM_TEXT];
	double lr, clip;      /* < 0: unknown */
	int precision;	      /* enum run_precision; -1: unknown */
	bool fp16;	      /* its 16 bits are fp16, which rounds less than bf16 */
	int64_t accumulation; /* micro-batches per rank; 0: unknown */
};

/* Reads the facts of the step between two checkpoints. Missing and unreadable files leave
 * facts unknown; unreadable ones cause a warning. */
void run_facts_read(struct run_facts *x, const char *before, const char *after);
