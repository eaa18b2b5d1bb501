/*
 * Number formats: bfloat16, IEEE's binary16, and the two of fp8 (Micikevicius et al. 2022),
 * e4m3 without infinity. All that depends on a format is asked of its row in the table.
 *
 * A CPU stores every number as fp32; one of less precision is a float that has only the bits
 * of its format, as `round` makes it. A device that `stores_half` stores it in its own 16 or 8
 * bits: there a kernel widens what it reads, computes in fp32 and rounds what it writes, to
 * nearest, ties to even. Which matrices of a kernel may be narrow is said with it (`any`: each
 * for itself; others are fp32); those that may be have 16 bits, and 8 in matmuls only.
 */
#ifndef KERNELS_DTYPE_H
#define KERNELS_DTYPE_H

#include "base/base.h"

enum dtype { DT_F32, DT_BF16, DT_F16, DT_E4M3, DT_E5M2 };

struct dtype_row {
	const char *name;
	int bits;	    /* of a stored number */
	int fraction_bits;  /* of them */
	float least_normal; /* the smallest number of full precision */
	float largest;	    /* finite number */
	float epsilon;	    /* from 1 to the next number */
	bool saturates; /* rounds what is beyond the largest to that, not to infinity */
};

/* (a constant expression in kernels of CUDA, too) */
#ifdef __cplusplus
static constexpr struct dtype_row dtype_table[] = {
#else
static const struct dtype_row dtype_table[] = {
#endif
	{"fp32", 32, 23, 0x1p-126f, 0x1.fffffep127f, 0x1p-23f, false},
	{"bf16", 16, 7, 0x1p-126f, 0x1.fep127f, 0x1p-7f, false},
	{"fp16", 16, 10, 0x1p-14f, 65504, 0x1p-10f, false},
	{"e4m3", 8, 3, 0x1p-6f, 448, 0x1p-3f, true},
	{"e5m2", 8, 2, 0x1p-14f, 57344, 0x1p-2f, true},
};

static inline int64_t dtype_bytes(enum dtype t)
{
	return dtype_table[t].bits / 8;
}

#endif
