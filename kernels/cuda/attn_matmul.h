/* The matmuls of attention: tensor cores for 16-bit types, fmaf for fp32. */
#pragma once

#include "kernels/cuda/attn_tiles.h"

static __device__ inline int lane_id(void)
{
	return threadIdx.x % WARP;
}

/* Computes matmul() for 16-bit types, by tensor cores. */
template <int D, typename T, int MT, int NT>
static __device__ inline void matmul_16(
	float (&c)[MT][NT][4], const T *a, int row, const T *b)
{
	int lane = lane_id();
#pragma unroll
	for (int k = 0; k < D / 16; k++) {
		uint32_t x[MT][4], y[4];
#pragma unroll
		for (int m = 0; m < MT; m++)
			ldmatrix(x[m],
				piece<D>(a, row + 16 * m + lane % 16, 2 * k + lane / 16));
#pragma unroll
		for (int n = 0; n < NT; n += 2) {
			ldmatrix(y, piece<D>(b, 8 * n + lane / 16 * 8 + lane % 8,
					    2 * k + lane / 8 % 2));
#pragma unroll
			for (int m = 0; m < MT; m++) {
				mma(c[m][n], x[m], y, T());
				mma(c[m][n + 1], x[m], y + 2, T());
			}
		}
	}
}

/* Returns sum + a . b, by four fused multiply-adds. */
static __device__ inline float dot4(float sum, float4 a, float4 b)
{
	sum = fmaf(a.x, b.x, sum);
	sum = fmaf(a.y, b.y, sum);
	sum = fmaf(a.z, b.z, sum);
	return fmaf(a.w, b.w, sum);
}

/* Computes matmul() for fp32, by fused multiply-adds. */
template <int D, int MT, int NT>
static __device__ inline void matmul_32(
	float (&c)[MT][NT][4], const float *a, int row, const float *b)
{
	int g = lane_id() / 4, t = lane_id() % 4;
#pragma unroll 2
	for (int k = 0; k < D / 4; k++) {
#pragma unroll
		for (int m = 0; m < MT; m++) {
			float4 x0 = *(const float4 *)piece<D>(a, row + 16 * m + g, k);
			float4 x1 = *(const float4 *)piece<D>(a, row + 16 * m + g + 8, k);
#pragma unroll
			for (int n = 0; n < NT; n++) {
				float4 y0 =
					*(const float4 *)piece<D>(b, 8 * n + 2 * t, k);
				float4 y1 = *(const float4 *)piece<D>(
					b, 8 * n + 2 * t + 1, k);
				c[m][n][0] = dot4(c[m][n][0], x0, y0);
				c[m][n][1] = dot4(c[m][n][1], x0, y1);
				c[m][n][2] = dot4(c[m][n][2], x1, y0);
				c[m][n][3] = dot4(c[m][n][3], x1, y1);
			}
		}
	}
}

/* c[16 MT, 8 NT] += rows [row, row + 16 MT) of a times the rows of b, transposed. */
template <int D, typename T, int MT, int NT>
static __device__ inline void matmul(
	float (&c)[MT][NT][4], const T *a, int row, const T *b)
{
	if constexpr (sizeof(T) == 4)
		matmul_32<D>(c, a, row, b);
	else
		matmul_16<D>(c, a, row, b);
}

static __device__ inline __nv_bfloat162 both_of(float low, float high, __nv_bfloat16)
{
	return __floats2bfloat162_rn(low, high);
}

static __device__ inline __half2 both_of(float low, float high, __half)
{
	return __floats2half2_rn(low, high);
}

/* Rounds two floats to T, in one instruction wherever the compiler moves it; returns their bits. */
template <typename T> static __device__ inline uint32_t both(float low, float high)
{
	auto p = both_of(low, high, T());
	uint32_t bits;
	memcpy(&bits, &p, sizeof(bits));
	return bits;
}

/* Computes matmul_held() for 16-bit types, by tensor cores. */
template <int D, typename T, int MT, int NT>
static __device__ inline void matmul_held_16(
	float (&c)[MT][D / 8][4], const float (&p)[MT][NT][4], const T *b)
{
	int lane = lane_id();
#pragma unroll
	for (int k = 0; k < NT / 2; k++) {
		uint32_t x[MT][4], y[4];
#pragma unroll
		for (int m = 0; m < MT; m++) {
			const float *left = p[m][2 * k], *right = p[m][2 * k + 1];
			x[m][0] = both<T>(left[0], left[1]);
			x[m][1] = both<T>(left[2], left[3]);
			x[m][2] = both<T>(right[0], right[1]);
			x[m][3] = both<T>(right[2], right[3]);
		}
#pragma unroll
		for (int n = 0; n < D / 8; n += 2) {
			ldmatrix_transposed(
				y, piece<D>(b, 16 * k + lane % 16, n + lane / 16));
#pragma unroll
			for (int m = 0; m < MT; m++) {
				mma(c[m][n], x[m], y, T());
				mma(c[m][n + 1], x[m], y + 2, T());
			}
		}
	}
}

/* c += the rank-2 product of two columns of x, {(g, 0), (g, 1), (g + 8, 0), (g + 8, 1)}, and
 * two rows y0 and y1. */
static __device__ inline void rank_two(float c[4], const float x[4], float2 y0, float2 y1)
{
	c[0] = fmaf(x[1], y1.x, fmaf(x[0], y0.x, c[0]));
	c[1] = fmaf(x[1], y1.y, fmaf(x[0], y0.y, c[1]));
	c[2] = fmaf(x[3], y1.x, fmaf(x[2], y0.x, c[2]));
	c[3] = fmaf(x[3], y1.y, fmaf(x[2], y0.y, c[3]));
}

/* Computes matmul_held() for fp32: lanes get the elements of p from each other. */
template <int D, int MT, int NT>
static __device__ inline void matmul_held_32(
	float (&c)[MT][D / 8][4], const float (&p)[MT][NT][4], const float *b)
{
	int lane = lane_id(), t = lane % 4;
#pragma unroll
	for (int k = 0; k < NT; k++) {
#pragma unroll 1 /* otherwise early loads use up the registers */
		for (int i = 0; i < 4; i++) {
			const int row = 8 * k + 2 * i;
			float x[MT][4];
#pragma unroll
			for (int m = 0; m < MT; m++)
#pragma unroll
				for (int e = 0; e < 4; e++)
					x[m][e] = __shfl_sync(
						ALL_LANES, p[m][k][e], (lane & ~3) | i);
#pragma unroll
			for (int n = 0; n < D / 8; n++) {
				int at = 2 * n + t / 2, e = 2 * t % 4;
				float2 y0 = *(const float2 *)(piece<D>(b, row, at) + e);
				float2 y1 =
					*(const float2 *)(piece<D>(b, row + 1, at) + e);
#pragma unroll
				for (int m = 0; m < MT; m++)
					rank_two(c[m][n], x[m], y0, y1);
			}
		}
	}
}

/* c[16 MT, D] += p[16 MT, 8 NT], rounded to T, times the rows of b. */
template <int D, typename T, int MT, int NT>
static __device__ inline void matmul_held(
	float (&c)[MT][D / 8][4], const float (&p)[MT][NT][4], const T *b)
{
	if constexpr (sizeof(T) == 4)
		matmul_held_32<D>(c, p, b);
	else
		matmul_held_16<D>(c, p, b);
}
