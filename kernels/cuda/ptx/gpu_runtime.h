/* The CUDA runtime, for a GPU. */
#ifndef GPU_RUNTIME_H
#define GPU_RUNTIME_H

#include <cuda_runtime.h>

/* Dynamic shared memory of a kernel, as bytes. */
#define SHARED(name) extern __shared__ __align__(128) unsigned char name[]

#endif
