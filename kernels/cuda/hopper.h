/*
 * What sm_90 has of its own: copies of whole tiles to shared memory by one thread, barriers
 * there that count bytes, and matmuls of warpgroups, 128 threads, with operands in shared
 * memory (PTX ISA: "mbarrier", "cp.async.bulk.tensor", "wgmma.mma_async"). All of it is for
 * sm_90a only: kernels ask `if constexpr (HOPPER)`.
 *
 * A tile in shared memory is of panels, of 64 numbers of 16 bits a row: 128 bytes, 16 at a
 * time permuted by the number of the row in 8, as the copies do it and the matmuls undo it.
 * That is piece<64>() of attn_tiles.h. A panel begins at a multiple of 1024 bytes.
 */
#ifndef KERNELS_CUDA_HOPPER_H
#define KERNELS_CUDA_HOPPER_H

#include "kernels/cuda/cuda.h"

#include <cuda.h>

#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || defined(PT_EMULATED)
static constexpr bool HOPPER = true;
#else
static constexpr bool HOPPER = false;
#endif

enum { WARPGROUP = 128, PANEL = 64, PANEL_ALIGN = 1024 };

#include <gpu_hopper.h>

/* ---- descriptors ---------------------------------------------------------------------- */

/* A descriptor (PTX ISA: "Matrix descriptor", "Strides", "Canonical layouts"): 16 columns of the
 * rows of a panel, the first of which is at `at`. Groups of 8 rows are 1024 bytes apart; how far
 * it is in the other direction is not asked. */
static __device__ inline uint64_t columns_of(const void *at)
{
	return (uint64_t)1 << 62 | (uint64_t)(8 * 128 >> 4) << 32 | 1 << 16 |
	       (shared_address(at) & 0x3ffff) >> 4;
}

/* 16 rows of a tile, of as many columns as b has: panels are `panel` bytes apart, the two groups
 * of 8 rows 1024. */
static __device__ inline uint64_t rows_of(const void *at, int panel)
{
	return (uint64_t)1 << 62 | (uint64_t)(8 * 128 >> 4) << 32 |
	       (uint64_t)(panel >> 4) << 16 | (shared_address(at) & 0x3ffff) >> 4;
}

/* The same, `bytes` further on: shared memory ends before its addresses need more bits than a
 * descriptor has. The upper half stays as it is, which the compiler then knows. */
static __device__ inline uint64_t further(uint64_t descriptor, int bytes)
{
	return descriptor >> 32 << 32 | ((uint32_t)descriptor + (uint32_t)(bytes >> 4));
}

/* Columns 16 k to 16 k + 15 of a tile of `rows` rows, from where its first ones are. */
static __device__ inline uint64_t columns_further(uint64_t first, int rows, int k)
{
	return further(first, (k / 4 * rows * PANEL + k % 4 * 16) * 2);
}

/* c = a b^T, of 64 rows of a tile and the 8 NT rows of another: D / 16 matmuls. Tiles have D / 64
 * panels of a_rows and b_rows rows. */
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

/* The same, a in registers. */
template <int D, typename T, int NT>
static __device__ inline void wgmma_held_rows(
	float (&c)[NT][4], const uint32_t (&a)[D / 16][4], const T *b, int b_rows)
{
	uint64_t y = columns_of(b);
#pragma unroll
	for (int k = 0; k < D / 16; k++)
		wgmma<false>(c, a[k], columns_further(y, b_rows, k), k > 0, T());
}

/* c += p b, with p in registers, and as many rows of b as p has columns. */
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

#endif
