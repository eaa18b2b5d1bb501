/* The self-test: compares the kernels that a run will call on a GPU, at the shapes of the run, with
 * the CPU's on random numbers.
 *
 * The planning device records the kernel calls while the training code runs on it, so no call of
 * a step can be forgotten. Calls outside of steps (synchronization of workers, generating
 * samples) are recorded by the code that makes them. No call is collective. */
#pragma once

#include "kernels/kernels.h"

enum kernel_id {
#define KERNEL(type, name, ...) KERNEL_##name,
#include "kernels/list.h"
	N_KERNELS
};

/* The properties of a call that determine which code runs and how much work it does. Matrices m and
 * integers n (kinds, flags, counts) are in the order of the kernel's parameters; pointers are only
 * tested for NULL. */
struct kernel_call {
	enum kernel_id kernel;
	struct mat m[9];
	int64_t n[4];
	float p; /* dropout probability; 0: none */
	struct attn attn;
};

/* A set of calls, without duplicates. */
struct kernel_calls {
	struct kernel_call *calls;
	struct str *texts;
	int64_t n;
};

void kernel_calls_add(struct kernel_calls *, const struct kernel_call *);
void kernel_calls_text(const struct kernel_calls *, struct str *out);
void kernel_calls_remove(struct kernel_calls *, int64_t i);
void kernel_calls_release(struct kernel_calls *);
/* Makes a planning device record its calls in a set from now on. */
void device_plan_record(struct device *d, struct kernel_calls *);

struct selftest {
	int64_t n_calls;
	double seconds, cpu_seconds; /* in total, and in the CPU's kernels */
	const char *closest;	     /* the kernel with the largest error / tolerance */
	double worst;		     /* error / tolerance of that kernel */
};

enum { SELFTEST_STAGED = 1 << 22 }; /* elements that are copied and compared at a time */

/* What the self-test of some calls needs. Trials are small enough that a run, however large its
 * model, waits for less than a second. */
struct selftest_work {
	size_t gpu_bytes, cpu_bytes;
	double numbers; /* elements that the CPU generates or compares */
	double flops;	/* flops of the CPU's matmuls and attention */
};
void selftest_measure(const struct kernel_calls *, struct selftest_work *);

/* Runs the trials of all calls; -1 with *e set (kernel, shapes, element) if a kernel is wrong.
 * Allocates the GPU memory that the largest call needs, and frees it. `threads`: of the CPU. */
int selftest_run(struct device *d, int threads, const struct kernel_calls *,
	struct selftest *, struct err *e);
