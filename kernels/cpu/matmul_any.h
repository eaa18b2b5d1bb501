/* Matmuls of operands and results of any type. */
#ifndef KERNELS_CPU_MATMUL_ANY_H
#define KERNELS_CPU_MATMUL_ANY_H

#include "kernels/cpu/cpu.h"

/* c[m,n] = op(left) op(right) (+ c), with op(left) [m,k]; bias is added to each row of c. */
void K(matmul_any)(bool ta, bool tb, struct mat c, struct mat left, struct mat right,
	bool add, struct mat bias);

static inline bool all_fp32(
	struct mat c, struct mat left, struct mat right, struct mat bias)
{
	return c.type == DT_F32 && left.type == DT_F32 && right.type == DT_F32 &&
	       bias.type == DT_F32;
}

#endif
