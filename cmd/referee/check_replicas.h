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
 * and replaces them; if that is impossible, it sets t->state_is_wrong. */
bool replicas_are_checked(const struct trainer *t);
uint64_t replicas_word(struct trainer *t);
void replicas_heal(struct trainer *t);
enum checked replicas_verdict(struct trainer *t, struct str *out);

/* Collective. Checks the state between two steps, and replaces wrong copies. Appends what was wrong
 * to *out. Returns CHECKED_RIGHT if the checks are off. */
enum checked replicas_check_now(struct trainer *t, struct str *out);

/* Returns true if all copies of the state have the same bits, also if the checks are off. Appends
 * the ranks with a copy that differs from the copy of the first rank. Collective. */
bool replicas_agree(struct trainer *t, struct str *differing);
