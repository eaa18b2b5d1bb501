/* Checks a schedule, from its actions alone. */
#ifndef TESTS_SCHEDULE_CHECK_H
#define TESTS_SCHEDULE_CHECK_H

#include "parallel/schedule.h"

/* Checks that every micro-batch has each action once on every stage, in the order of micro-batches;
 * that a backward follows its forward, and the weight gradients the input gradients; and that with
 * blocking receives and buffered sends there is no deadlock. */
int schedule_check(const struct schedule *s, struct err *e);

#endif
