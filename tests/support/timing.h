/* Shared by programs that time kernels of a device. Matrices have random numbers, since GPUs
 * multiply zeros faster. */
#pragma once

#include "tests/support/support.h"
#include "kernels/kernels.h"

struct timing {
	struct device d;
	struct arena memory, scratch;
	float *some;	 /* normal random numbers in host memory */
	struct mat wide; /* the same in device memory */
	bool tiny; /* small shapes and few calls: tests the program, not the speed */
};

/* The first command line arguments are DEVICE [tiny]. Allocates memory for matrices: `bytes`, or
 * tiny_bytes with `tiny`. */
void timing_open(
	struct timing *t, int argc, char **argv, size_t bytes, size_t tiny_bytes);
void timing_close(struct timing *t);

/* The type of activations: bf16, or the CPU's fp32. */
enum dtype timing_type(const struct timing *t);
/* A matrix from t->memory. */
struct mat timing_mat(struct timing *t, int64_t rows, int64_t cols, enum dtype type);
int32_t *timing_ints(struct timing *t, int64_t n, int64_t below);

/* Seconds a call: the median over rounds of many calls, with the device idle between rounds. */
double timing_of(struct timing *t, void (*call)(struct device *, void *), void *what);
