/* Features of sm_90: TMA copies of tiles to shared memory by one thread, mbarriers that count
 * bytes, and matmuls of a warpgroup (128 threads) with operands in shared memory (PTX ISA:
 * "mbarrier", "cp.async.bulk.tensor", "wgmma.mma_async"). They need sm_90a: kernels test `if
 * constexpr (HOPPER)`.
 *
 * A tile in shared memory consists of panels with 64 16-bit elements per row, in the 128-byte
 * swizzle of TMA and wgmma, the same as piece<64>() in attn_tiles.h. A panel begins at a
 * multiple of 1024 bytes. */
#pragma once

#include "kernels/cuda/cuda.h"

#include <cuda.h>

#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || defined(PT_EMULATED)
static constexpr bool HOPPER = true;
#else
static constexpr bool HOPPER = false;
#endif

enum { WARPGROUP = 128, PANEL = 64, PANEL_ALIGN = 1024 };

#include <gpu_hopper.h>

/* Returns a descriptor (PTX ISA: "Matrix descriptor", "Strides", "Canonical layouts") of 16
 * columns of the rows of a panel from `at` on. Groups of 8 rows are 1024 bytes apart; the other
 * stride is not used. */
static __device__ inline uint64_t columns_of(const void *at)
{
	return (uint64_t)1 << 62 | (uint64_t)(8 * 128 >> 4) << 32 | 1 << 16 |
	       (shared_address(at) & 0x3ffff) >> 4;
}

/* Returns a descriptor of 16 rows of a tile with all columns of b: panels are `panel` bytes apart,
 * the two groups of 8 rows 1024. */
static __device__ inline uint64_t rows_of(const void *at, int panel)
{
	return (uint64_t)1 << 62 | (uint64_t)(8 * 128 >> 4) << 32 |
	       (uint64_t)(panel >> 4) << 16 | (shared_address(at) & 0x3ffff) >> 4;
}

/* Returns the descriptor moved by `bytes`. No address of shared memory overflows its field, so
 * the upper half is constant, which the compiler can use. */
static __device__ inline uint64_t further(uint64_t descriptor, int bytes)
{
	return descriptor >> 32 << 32 | ((uint32_t)descriptor + (uint32_t)(bytes >> 4));
}

/* Returns the descriptor of columns [16 k, 16 k + 16) of a tile of `rows` rows; first: the
 * descriptor of its first columns. */
static __device__ inline uint64_t columns_further(uint64_t first, int rows, int k)
{
	return further(first, (k / 4 * rows * PANEL + k % 4 * 16) * 2);
}

/* Computes c = a b^T, for 64 rows of a tile and the 8 NT rows of another: D / 16 instructions.
 * Tiles have D / 64 panels, of a_rows and b_rows rows. */
template <int D, typename T, int NT>
static __device__ inline void wgmma_rows(
	float (&c)[NT][4], const T *a, int a_rows, const T *b, int b_rows)
{
	uint64_t x = columns_of(a), y = columns_of(b);
#pragma unroll
	for (int k = 0; k < D / 16; k++)
		wgmma<false>(c, columns_further(x, a_rows, k),
			columns_further(y, b_rows, k), k > 0, T());
}

/* Computes c = a b^T, with a in registers. */
template <int D, typename T, int NT>
static __device__ inline void wgmma_held_rows(
	float (&c)[NT][4], const uint32_t (&a)[D / 16][4], const T *b, int b_rows)
{
	uint64_t y = columns_of(b);
#pragma unroll
	for (int k = 0; k < D / 16; k++)
		wgmma<false>(c, a[k], columns_further(y, b_rows, k), k > 0, T());
}

/* Computes c += p b, with p in registers; b has as many rows as p has columns. */
template <typename T, int NT, int K>
static __device__ inline void wgmma_held(
	float (&c)[NT][4], const uint32_t (&p)[K][4], const T *b)
{
	constexpr int GROUP = 16 * PANEL * 2; /* bytes of 16 rows */
	uint64_t y = rows_of(b, K * GROUP);
#pragma unroll
	for (int k = 0; k < K; k++)
		wgmma<true>(c, p[k], further(y, k * GROUP), true, T());
}
