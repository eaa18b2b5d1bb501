/* Number formats: bfloat16, IEEE 754 binary16, and the two fp8 formats of Micikevicius et al.
 * 2022, e4m3 without infinity. The table has the properties of each format.
 *
 * A number is stored in the bits of its format. Kernels widen their inputs, compute in fp32, and
 * round their outputs to nearest, ties to even. In a kernel's comment, "any" marks matrices that
 * may have a 16-bit type, each independently; all others are fp32. 8-bit types: matmuls only. */
#pragma once

#include "base/base.h"

enum dtype { DT_F32, DT_BF16, DT_F16, DT_E4M3, DT_E5M2 };
enum { N_DTYPES = DT_E5M2 + 1 };

struct dtype_row {
	const char *name;
	int bits;	   /* bits of a stored number */
	int fraction_bits; /* stored bits of the significand */
	float min_normal;  /* the smallest normal number */
	float largest;	   /* finite number */
	float epsilon;	   /* from 1 to the next number */
	bool saturates;	   /* overflow rounds to the largest number, not to infinity */
};

/* A constant expression in CUDA kernels too. */
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
