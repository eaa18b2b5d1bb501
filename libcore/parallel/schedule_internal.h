/* For schedule*.c only: making schedules, and visiting their actions. */
#ifndef PARALLEL_SCHEDULE_INTERNAL_H
#define PARALLEL_SCHEDULE_INTERNAL_H

#include "parallel/schedule.h"

#define SCHEDULE_MAKER(kind, name, make, ...) void make(struct schedule *s, int rank);
SCHEDULE_LIST(SCHEDULE_MAKER)
#undef SCHEDULE_MAKER

/* Appends an action to what the rank does; there is room for all that there can be. */
void schedule_add(
	struct schedule *s, int rank, enum action_kind kind, int64_t micro, int stage);
/* How the kind of schedule begins a backward: all of it, or the input's part. */
enum action_kind schedule_backward(const struct schedule *s);

/* Goes through the actions of all ranks in an order in which they can happen. */
struct schedule_iter {
	const struct schedule *s;
	int64_t *at;   /* the next action of each rank */
	int64_t *done; /* micro-batches of [kind][stage] */
};

/* In the schedule every kind of action has the micro-batches of a stage in their order. */
void schedule_iter_begin(struct schedule_iter *w, const struct schedule *s);
/* An action whose inputs are there; then it counts as done. False: there is none. */
bool schedule_iter_next(struct schedule_iter *w, int *rank, int64_t *i);
void schedule_iter_end(struct schedule_iter *w);

#endif
