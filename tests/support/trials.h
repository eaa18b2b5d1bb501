/*
 * The trials of the self-test as unit tests: one call of a kernel, on the device under test and on a
 * reference, which is another device. A call is written as in kernels/selftest.h.
 */
#pragma once

#include "kernels/selftest_trial.h"
#include "tests/support/device.h"

/* Kernels in float64 (kernels_ref.h); those that it has not are the CPU's. */
struct device *reference_64(void);

/* A matrix of a call. */
struct mat shape(int64_t rows, int64_t cols, enum dtype);
/* ... of which the kernel keeps the amax; and one with a scale. */
struct mat with_amax(struct mat);
struct mat with_scale(struct mat);
/* ... of fp8 with the transposed matrix too, or with that only. */
struct mat with_transposed(struct mat, bool only);

/* Fails when the kernel's results differ from the reference's by more than that. The memory of the
 * reference must be the host's, too. */
void check_call(struct kernel_call, struct device *reference, struct tolerance);
extern const struct tolerance same_bits;

/* Calls of each kernel with matrices of about this shape: of layers and of experts, in this type where a kernel
 * takes any; of matmuls; of all others; of attention, of its own shapes. They last until the next call of the
 * function. */
const struct kernel_calls *calls_of_layers(int64_t rows, int64_t cols, enum dtype);
const struct kernel_calls *calls_of_experts(int64_t rows, int64_t cols, enum dtype);
const struct kernel_calls *calls_of_matmuls(int64_t rows, int64_t cols);
const struct kernel_calls *calls_of_tensors(int64_t rows, int64_t cols);
const struct kernel_calls *calls_of_attention(void);
