/* The self-test of a run: its kernel calls on this GPU, against a CPU's. */
#pragma once

#include "engine/engine.h"

/* The kernel calls of a rank in a run with these options, for kernels/selftest.h. */
struct kernel_calls;
void selftest_calls(const struct train_opts *o, struct model *m, int rank,
	struct kernel_calls *calls);
/* Collective over `all`, before anything is allocated on the GPU. Compares the kernels of this
 * run with the CPU's, unless they are known to be right. The result is appended to `out`. */
int selftest_kernels(struct trainer *t, struct comm *all, struct str *out, struct err *e);
