/* The table of the device. */
#include "kernels/cuda/own.h"

#define KERNEL_ENTRY(name) cuda_##name,
const struct kernels cuda_kernels = {"cuda", KERNELS(KERNEL_ENTRY)};
