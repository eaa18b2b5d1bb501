/* Mixture of experts: not on a GPU yet. */
#include "kernels/cuda/cuda.h"

#define KERNEL(type, name, ...)                                    \
	type cuda_##name(__VA_ARGS__)                              \
	{                                                          \
		BUG_ON("kernels of experts are not on a GPU yet"); \
	}
#include "kernels/experts.h"
