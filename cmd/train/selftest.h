/* The self-test of a run: compares its kernel calls on this GPU with a CPU's. */
#pragma once

#include "engine/engine.h"

/* Lists the kernel calls of a rank in a run with these options, for kernels/selftest.h. */
struct kernel_calls;
void selftest_calls(const struct train_opts *o, struct model *m, int rank,
	struct kernel_calls *calls);
/* Compares the kernels of this run with the CPU's, unless an earlier test has passed. Call this
 * before allocating anything on the GPU. Appends the result to `out`. Collective over `all`. */
int selftest_kernels(struct trainer *t, struct comm *all, struct str *out, struct err *e);
/* Tests the kernels of this rank within the run, if the GPU has enough free memory. Returns -1 with
 * *e set if one is wrong. Not collective. */
int selftest_repeat(struct trainer *t, struct err *e);
