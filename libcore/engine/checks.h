/* Checks of a step by integers: each rank computes a word for each check, and the words of all
 * add up to 0, modulo GRID_PRIME, if what is checked is right. They are summed in the all-reduce
 * of the loss and the norm, before the update. If a sum is not 0, nothing is updated: the check's
 * alarm looks for the cause, the step is computed again, and the check gives its verdict. */
#pragma once

#include "engine/engine.h"
#include "engine/step.h"

struct check_row {
	/* Returns true if the options ask for the check; equal on all ranks. */
	bool (*is_on)(const struct trainer *t);
	/* One of two, when the gradients of the step have been summed and the norm is enqueued:
	 * returns this rank's word, or enqueues its computation, to a word below GRID_PRIME in
	 * device memory. */
	uint64_t (*word)(struct trainer *t);
	void (*enqueue_word)(struct trainer *t, uint64_t *word);
	/* Prepares to find the cause, before the step is computed again. Collective. */
	void (*alarm)(struct trainer *t);
	/* Optional: finds the cause if the check fails after the step has been computed again.
	 * Collective. */
	void (*alarm_again)(struct trainer *t);
	/* Returns CHECKED_SPORADIC or CHECKED_PERSISTENT after the step has been computed again,
	 * and appends what was wrong, and where, to *out (on all ranks). Collective. */
	enum checked (*verdict)(struct trainer *t, struct str *out);
	/* Optional, called also if the check is off, and collective: when the memory of the trainer
	 * is allocated; before it is freed; before and after the work of a step is enqueued; after
	 * the update. */
	void (*open)(struct trainer *t);
	void (*close)(struct trainer *t);
	/* Optional: before each attempt to compute a step. Returns true if the step must be
	 * computed without a CUDA graph; equal on all ranks. */
	bool (*plan_step)(struct trainer *t);
	void (*begin_step)(struct trainer *t);
	void (*end_step)(struct trainer *t);
	void (*after_step)(struct trainer *t);
	bool reads_again; /* after an alarm, samples are read again */
};

/* Call the functions of all rows of t->checks. */
void checks_prepare(struct trainer *t);
void checks_release(struct trainer *t);
bool checks_plan_step(struct trainer *t); /* true if a row returned true */
void checks_begin_step(struct trainer *t);
void checks_end_step(struct trainer *t);
void checks_after_step(struct trainer *t);
/* Returns true if the samples must be read again after these sums. */
bool checks_read_again(const struct trainer *t, const uint64_t word[N_STEP_CHECKS]);

/* Returns true if a check is on; equal on all ranks. */
bool checks_are_on(const struct trainer *t);
/* If a check is on, sets the words of this rank in t->end; 0 for a check that is off. */
void checks_enqueue(struct trainer *t);
/* Returns true if a word, summed over all ranks, is not 0 modulo GRID_PRIME. */
bool checks_alarmed(const uint64_t word[N_STEP_CHECKS]);
/* Calls the alarms of these sums. Collective. */
void checks_begin_again(struct trainer *t, const uint64_t word[N_STEP_CHECKS]);
/* Gets the verdicts on these sums, of the step before it was computed again: sets r->checked to the
 * worst one, and r->found. Collective. */
void checks_end_again(
	struct trainer *t, const uint64_t word[N_STEP_CHECKS], struct step_result *r);
