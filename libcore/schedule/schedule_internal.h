/* For schedule*.c only: makes schedules and visits their actions. */
#pragma once

#include "schedule/schedule.h"

#define SCHEDULE_MAKER(kind, name, make, ...) void make(struct schedule *s, int rank);
SCHEDULE_LIST(SCHEDULE_MAKER)
#undef SCHEDULE_MAKER

/* Appends an action of the rank. */
void schedule_add(
	struct schedule *s, int rank, enum action_kind kind, int64_t micro, int stage);
/* Returns ACTION_BACKWARD, or ACTION_BACKWARD_X if the kind of schedule splits the backward. */
enum action_kind schedule_backward(const struct schedule *s);
/* Appends a rank's actions of an interleaved schedule, weight gradients `delay` places later. */
void schedule_interleave(struct schedule *s, int rank, int64_t delay);

/* Iterates over the actions of all ranks in an order in which they can be executed. */
struct schedule_iter {
	const struct schedule *s;
	int64_t *next; /* [ranks]: the next action */
	int64_t *done; /* [kind][stage]: micro-batches done */
};

/* Begins an iteration. Each kind of action of a stage must have ascending micro-batches. */
void schedule_iter_begin(struct schedule_iter *w, const struct schedule *s);
/* Finds the next action that can run, and counts it as done; false: all are done, or a deadlock. */
bool schedule_iter_next(struct schedule_iter *w, int *rank, int64_t *i);
void schedule_iter_end(struct schedule_iter *w);
