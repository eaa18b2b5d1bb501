/* GELU's tanh form and its derivative, for pointwise.cu and the epilogues of matmuls. */
#pragma once

#include "kernels/cuda/mma.h"

static __device__ inline float sigmoid(float x)
{
	return 1.0f / (1.0f + expf(-x));
}

/* Returns 2u. GELU (Hendrycks, Gimpel 2016) in its tanh form is x sigmoid(2u), because
 * (1 + tanh u) / 2 = sigmoid(2u). */
static __device__ inline float gelu_tanh_u2(float x)
{
	return 1.5957691216057308f * (x + 0.044715f * (x * x * x));
}

/* Returns 1 / (1 + 2^x), for 16-bit results, by the hardware's approximate 2^x and 1 / x. */
static __device__ inline float logistic2(float x)
{
	return rcp_fast(1.0f + exp2_fast(x));
}

/* Returns the exponent p for GELU's tanh form: logistic2(p) is sigmoid(gelu_tanh_u2(x)). */
static __device__ inline float gelu_tanh_power(float x)
{
	return x * fmaf(-0.10294324f, x * x, -2.3022082f);
}

/* Returns GELU's tanh form of a; FAST: by approximate instructions. */
template <bool FAST> static __device__ inline float gelu_tanh(float a, float)
{
	if constexpr (FAST)
		return a * logistic2(gelu_tanh_power(a));
	else
		return a * sigmoid(gelu_tanh_u2(a));
}

/* Returns the derivative of GELU's tanh form at a; FAST: by approximate instructions. */
template <bool FAST> static __device__ inline float gelu_tanh_slope(float a, float &)
{
	if constexpr (FAST) {
		float s = logistic2(gelu_tanh_power(a));
		float du2 = fmaf(0.21406445f, a * a, 1.5957691f);
		return fmaf(a * (s * (1.0f - s)), du2, s);
	} else {
		float s = sigmoid(gelu_tanh_u2(a));
		float du2 = 1.5957691216057308f * (1.0f + 0.134145f * (a * a));
		return s + a * (s * (1.0f - s)) * du2;
	}
}
