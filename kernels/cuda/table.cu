/* The table of the device's kernels. */
#include "kernels/cuda/cuda_internal.h"

#define KERNEL(type, name, ...) cuda_##name,
const struct kernels cuda_kernels = {
	"cuda",
#include "kernels/list.h"
};
