/* Checks of a step by integers: each rank computes a word for each check, and the words of all
 * add up to 0, modulo GRID_PRIME, if what is checked is right. They are summed in the all-reduce of
 * the loss and the norm, before the update. If a sum is not 0, nothing is updated: the check's alarm
 * looks for the cause, the step is computed again, and the check gives its verdict. */
#pragma once

#include "engine/engine.h"
#include "engine/step.h"

struct step_check {
	/* Returns true if the options ask for the check; equal on all ranks. */
	bool (*is_on)(const struct trainer *t);
	/* One of two, when the gradients of the step have been summed and the norm is enqueued:
	 * returns this rank's word, or enqueues its computation, to a word below GRID_PRIME in device
	 * memory. */
	uint64_t (*word)(struct trainer *t);
	void (*enqueue_word)(struct trainer *t, uint64_t *word);
	/* Prepares to find the cause, before the step is computed again. Collective. */
	void (*alarm)(struct trainer *t);
	/* Returns CHECKED_SPORADIC or CHECKED_PERSISTENT after the step has been computed again,
	 * and appends what was wrong, and where, to *out (on all ranks). Collective. */
	enum checked (*verdict)(struct trainer *t, struct str *out);
};
extern const struct step_check step_checks[N_STEP_CHECKS];

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
