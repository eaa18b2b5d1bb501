/* The instructions of kernels/cuda/mma.h, for a CPU: the last lane of a warp to arrive does
 * the work. */
#ifndef GPU_MMA_H
#define GPU_MMA_H

#include "tests/emu/emu.h"

struct emu_product {
	float *c;
	const uint32_t *a, *b;
};
EMU_INSIDE emu_op emu_op_mma_bf16, emu_op_mma_f16;

struct emu_rows {
	uint32_t *r;
	const void *row;
};
EMU_INSIDE emu_op emu_op_ldmatrix, emu_op_ldmatrix_transposed;

static inline void mma(
	float c[4], const uint32_t a[4], const uint32_t b[2], __nv_bfloat16, EMU_WHERE)
{
	struct emu_product p = {c, a, b};
	emu_warp(emu_op_mma_bf16, &p, "mma", file, line);
}

static inline void mma(
	float c[4], const uint32_t a[4], const uint32_t b[2], __half, EMU_WHERE)
{
	struct emu_product p = {c, a, b};
	emu_warp(emu_op_mma_f16, &p, "mma", file, line);
}

static inline void ldmatrix(uint32_t r[4], const void *row, EMU_WHERE)
{
	struct emu_rows m = {r, row};
	emu_warp(emu_op_ldmatrix, &m, "ldmatrix", file, line);
}

static inline void ldmatrix_transposed(uint32_t r[4], const void *row, EMU_WHERE)
{
	struct emu_rows m = {r, row};
	emu_warp(emu_op_ldmatrix_transposed, &m, "ldmatrix_transposed", file, line);
}

static inline void copy_async(void *to, const void *from, bool there)
{
	emu_copy(to, from, there);
}

static inline void copy_commit(void)
{
	emu_copy_commit();
}

template <int N> static inline void copy_wait(void)
{
	emu_copy_wait(N);
}

static inline float exp2_fast(float x)
{
	float y = exp2f(x);
	return y < 0x1p-126f ? 0 : y;
}

static inline float rcp_fast(float x)
{
	float y = 1 / (fabsf(x) < 0x1p-126f ? copysignf(0, x) : x);
	return fabsf(y) < 0x1p-126f ? copysignf(0, y) : y;
}

static inline void store_16(void *to, uint4 x)
{
	*(uint4 *)to = x;
}

#endif
