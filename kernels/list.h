/* The list of all kernels (an X-macro): define KERNEL(type, name, parameters...) before including
 * this file, which expands KERNEL for each kernel and then undefines it. */
#include "kernels/grid.h"
#include "kernels/layers.h"
#include "kernels/experts.h"
#include "kernels/optimizer.h"
#include "kernels/tensors.h"
#include "kernels/workers.h"
#undef KERNEL
