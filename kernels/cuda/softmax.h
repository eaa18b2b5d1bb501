/* The softmax of rows of logits, for xent.cu and the epilogue of the matmul that computes them. */
#pragma once

#include "kernels/cuda/mma.h"

#include "kernels/cuda/matmul.h"

/* Returns e^x. 16-bit logits do not justify the five more instructions of expf. */
template <typename T> static __device__ inline float exp_logit(float x)
{
	return sizeof(T) == 4 ? expf(x) : exp2_fast(x * 1.44269504f);
}

/* Returns e^(x - max), which is 1 if both are -infinity. */
template <typename T> static __device__ inline float relative_exp(float x, float max)
{
	return x == max ? 1.0f : exp_logit<T>(x - max);
}

/* Returns the statistics of a row of a tile. Four neighboring lanes hold the row: lane t of them
 * has columns 8 i + 2 t and 8 i + 2 t + 1 as c[i][2 half] and c[i][2 half + 1]. Columns from `left`
 * on do not count. Each lane adds its columns in ascending order, then lanes add in pairs. */
template <int NT>
static __device__ inline struct softmax_state softmax_of_tile(
	const float (&c)[NT][4], int half, int left)
{
	float largest = -INFINITY, sum = 0;
	left -= 2 * (int)(threadIdx.x % 4);
#pragma unroll
	for (int i = 0; i < NT; i++)
#pragma unroll
		for (int e = 0; e < 2; e++)
			largest = 8 * i + e < left ? fmaxf(largest, c[i][2 * half + e])
						   : largest;
	for (int i = 1; i < 4; i *= 2)
		largest = fmaxf(largest, __shfl_xor_sync(ALL_LANES, largest, i));
	float shift = largest == -INFINITY ? 0 : largest; /* no finite x: all e^x are 0 */
#pragma unroll
	for (int i = 0; i < NT; i++)
#pragma unroll
		for (int e = 0; e < 2; e++) {
			float x = exp_logit<__nv_bfloat16>(c[i][2 * half + e] - shift);
			sum += 8 * i + e < left ? x : 0;
		}
	for (int i = 1; i < 4; i *= 2)
		sum += __shfl_xor_sync(ALL_LANES, sum, i);
	return {largest, sum};
}
