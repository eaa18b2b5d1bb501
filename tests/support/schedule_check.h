/* Checks a schedule, from its actions alone. */
#pragma once

#include "schedule/schedule.h"

/* Checks that every micro-batch has each action once on every stage, in the order of micro-batches;
 * that a backward follows its forward, and the weight gradients the input gradients; and that with
 * blocking receives and buffered sends there is no deadlock. */
int schedule_check(const struct schedule *s, struct err *e);
