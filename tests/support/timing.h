/*
 * How long a kernel takes: what programs that time kernels of a device share. Matrices are
 * of random numbers, since a GPU that multiplies zeros is quicker than one that computes.
 */
#ifndef TESTS_TIMING_H
#define TESTS_TIMING_H

#include "tests/support/support.h"
#include "kernels/kernels.h"

struct timing {
	struct device d;
	struct arena memory, scratch;
	float *some;	 /* random numbers, normal, of the program */
	struct mat wide; /* the same, of the device */
	bool tiny;	 /* small shapes and few calls: whether it works, not how fast */
};

/* Arguments are DEVICE [tiny] and what else the program wants: at least `bytes` of memory for
 * matrices on a GPU, fewer if tiny. */
void timing_open(
	struct timing *t, int argc, char **argv, size_t bytes, size_t tiny_bytes);
void timing_close(struct timing *t);

/* What the numbers of activations are stored as: bf16, or the CPU's floats. */
enum dtype timing_type(const struct timing *t);
/* Matrices of t->memory. */
struct mat timing_mat(struct timing *t, int64_t rows, int64_t cols, enum dtype type);
int32_t *timing_ints(struct timing *t, int64_t n, int64_t below);

/* Seconds a call: the median of rounds of many calls, the device idle before and after. */
double timing_of(struct timing *t, void (*call)(struct device *, void *), void *what);

#endif
