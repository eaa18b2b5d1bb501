/*
 * The self-test: the kernels that a run will ask of a GPU, at their shapes, held to those of the
 * CPU on random numbers.
 *
 * Which these are is not written down anywhere: the planning device notes what the code that trains
 * asks of it, so that no kernel can be forgotten. Only what the run asks outside of its steps (an
 * exchange between workers, a sample) is noted by whoever knows of it.
 */
#ifndef KERNELS_SELFTEST_H
#define KERNELS_SELFTEST_H

#include "kernels/kernels.h"

enum kernel_id {
#define KERNEL(type, name, ...) KERNEL_##name,
#include "kernels/list.h"
	N_KERNELS
};

/* What of a call decides which code runs, and for how much: pointers say only whether there is
 * something. m is in the order of kernels.h, and n, too: kinds, flags, counts. */
struct kernel_call {
	enum kernel_id kernel;
	struct mat m[9];
	int64_t n[4];
	float p; /* of dropout; 0: none */
	struct attn attn;
};

/* Different calls. */
struct kernel_calls {
	struct kernel_call *calls;
	struct str *texts;
	int64_t n;
};

void kernel_note(struct kernel_calls *, const struct kernel_call *);
void kernel_calls_text(const struct kernel_calls *, struct str *out);
void kernel_calls_remove(struct kernel_calls *, int64_t i);
void kernel_calls_free(struct kernel_calls *);
/* The planning device notes its calls from here on. */
void device_plan_notes(struct device *d, struct kernel_calls *);

/* Is OpenBLAS here, which the CPU's matmuls need? Who trains on GPUs may do without. */
bool selftest_has_blas(void);

struct selftest {
	int64_t n_calls;
	double seconds, cpu_seconds; /* in all, and of it the CPU's kernels */
	const char *closest;	     /* the kernel with the largest error, */
	double worst;		     /* as a part of what is allowed */
};

/* 0, or what is wrong: kernel, shapes, element. The GPU has the memory for it that the largest call
 * needs, until this returns. `threads`: of the CPU. */
int selftest_run(struct device *d, int threads, const struct kernel_calls *,
	struct selftest *, struct err *e);

#endif
