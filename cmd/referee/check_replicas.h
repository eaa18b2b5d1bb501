/* check_replicas: compares the copies of parameters and optimizer state on all ranks, and what each
 * rank used in its last update, in every step (--check-replicas); and detects changes of state at
 * rest, between an update and the next one (--check-memory). Wrong copies are replaced. */
#pragma once

#include "engine/engine.h"
#include "engine/step.h"

/* Prepares the checks, if they are on. Collective over the worker. */
void replicas_open(struct trainer *t);
void replicas_close(struct trainer *t);
/* Remembers what is to be compared with the state before the next update. Call it after a step. */
void replicas_after_step(struct trainer *t);

/* The row STEP_CHECK_REPLICAS of step_checks[] (checks.h). The alarm finds which copies are wrong,
 * and replaces them; if that is impossible, it sets t->state_is_wrong. It sets t->wrong_step. */
bool replicas_are_checked(const struct trainer *t);
void replicas_write_step(struct trainer *t);
void replicas_enqueue_word(struct trainer *t, uint64_t *word);
void replicas_heal(struct trainer *t);
enum checked replicas_verdict(struct trainer *t, struct str *out);

/* Collective. Checks the state between two steps, and replaces wrong copies. Appends what was wrong
 * to *out. Returns CHECKED_RIGHT if the checks are off. */
enum checked replicas_check_now(struct trainer *t, struct str *out);

/* Returns true if state of a rank was wrong and has been replaced since the last step; equal on all
 * ranks. */
bool replicas_were_replaced(const struct trainer *t);
/* Returns true if a rank may have computed with such state; equal on all ranks. */
bool replicas_used_replaced(const struct trainer *t, int rank);

/* Collective. Before a trial: does the same as the alarm, also if the checks are off, unless the
 * alarm has done so in this step. Appends what was found to *out. */
void replicas_heal_in_trial(struct trainer *t, struct str *out);
