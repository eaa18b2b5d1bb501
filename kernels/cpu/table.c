/* The kernel table of one instruction set. */
#include "kernels/cpu/cpu.h"

#define STRING(x) #x
#define NAME(isa) "cpu " STRING(isa)
#define KERNEL(type, name, ...) .name = K(name),
const struct kernels K(kernels) = {
	.name = NAME(ISA),
#include "kernels/list.h"
};
