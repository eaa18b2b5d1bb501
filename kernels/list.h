/* The list of all kernels. Who includes it defines KERNEL(type, name, parameters...), which is
 * called for each, and is undefined at the end. */
#include "kernels/layers.h"
#include "kernels/optimizer.h"
#include "kernels/tensors.h"
#include "kernels/workers.h"
#undef KERNEL
