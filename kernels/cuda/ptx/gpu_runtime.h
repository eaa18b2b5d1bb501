/* The CUDA runtime, for a GPU. */
#pragma once

#include <cuda_runtime.h>

/* Dynamic shared memory of a kernel, as bytes. */
#define SHARED(name) extern __shared__ __align__(128) unsigned char name[]
