/* shares: how many micro-batches each unit gets, for --deal speed. A unit is the ranks that wait
 * for each other within a step; microbatch.h has the tables. No call is collective. */
#pragma once

#include "parallel/microbatch.h"

/* Returns the number of units. */
int64_t shares_units(const struct microbatches *mb);
/* Returns the turns of all units together. The ranks of a unit have full turns only, so n_micro
 * must be a multiple of unit_ranks. */
int64_t shares_turns(const struct microbatches *mb);
/* Returns the maximum number of turns of a unit, twice its even share: memory is bounded. */
int64_t shares_max_turns(const struct microbatches *mb);
/* Sets begin[units + 1] to even shares. */
void shares_evenly(const struct microbatches *mb, int64_t *begin);
/* Sets begin[units + 1] by speed: every unit has one turn, and each further turn goes to the unit
 * that would complete it first. time[units]: time per micro-batch, in any unit. */
void shares_by_speed(const struct microbatches *mb, const int64_t *time, int64_t *begin);
/* Returns the time of a step with this table: of the unit that takes longest. */
int64_t shares_span(
	const struct microbatches *mb, const int64_t *time, const int64_t *begin);
