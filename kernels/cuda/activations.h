/* The activation functions of acts.h and their derivatives, as types. */
#pragma once

#include "kernels/cuda/gelu.h"

static __device__ inline float normal_cdf(float x)
{
	return 0.5f + 0.5f * erff(0.70710678118654752f * x);
}

/* Returns the normal distribution's upper tail above x >= 0: bell = e^(-x^2 / 2) times a
 * polynomial in t = 1 / (1 + 0.29 x), as Hastings (1955) approximates erf. Its coefficients
 * minimize the largest error: 1.5e-7, or 5e-5 of the result where that is less. */
static __device__ inline float normal_above(float x, float &bell)
{
	bell = exp2_fast(-0.72134752f * (x * x));
	float t = rcp_fast(fmaf(0.29f, x, 1.0f));
	float p = fmaf(-0.087502753f, t, 0.28034298f);
	p = fmaf(p, t, -0.087177948f);
	p = fmaf(p, t, 0.17577195f);
	p = fmaf(p, t, 0.10180122f);
	p = fmaf(p, t, 0.11676452f);
	return bell * (p * t);
}

/* Each activation function has name() and name_slope(); FAST: by approximate instructions. The
 * slope is the derivative by a; if the function is gated, b becomes the derivative by b. */
template <bool FAST> static __device__ inline float gelu(float a, float)
{
	if constexpr (FAST) {
		float bell, size = fabsf(a), above = normal_above(size, bell);
		return fmaf(-size, above, fmaxf(a, 0));
	} else
		return a * normal_cdf(a);
}

template <bool FAST> static __device__ inline float gelu_slope(float a, float &)
{
	if constexpr (FAST) {
		float bell, above = normal_above(fabsf(a), bell);
		float cdf = a > 0 ? 1.0f - above : above;
		return fmaf(0.39894228f * a, bell, cdf);
	} else {
		float density = 0.39894228040143268f * expf(-0.5f * (a * a));
		return normal_cdf(a) + a * density;
	}
}

template <bool FAST> static __device__ inline float swiglu(float a, float b)
{
	if constexpr (FAST)
		return a * logistic2(-1.442695f * a) * b;
	else
		return a * sigmoid(a) * b;
}

template <bool FAST> static __device__ inline float swiglu_slope(float a, float &b)
{
	if constexpr (FAST) {
		float s = logistic2(-1.442695f * a);
		float slope = b * fmaf(a, s * (1.0f - s), s);
		b = a * s;
		return slope;
	} else {
		float s = sigmoid(a), slope = b * (s + a * (s * (1.0f - s)));
		b = a * s;
		return slope;
	}
}

template <bool FAST> static __device__ inline float geglu_tanh(float a, float b)
{
	return gelu_tanh<FAST>(a, b) * b;
}

template <bool FAST> static __device__ inline float geglu_tanh_slope(float a, float &b)
{
	float slope = gelu_tanh_slope<FAST>(a, b) * b;
	b = gelu_tanh<FAST>(a, b);
	return slope;
}

/* Rows of acts.h, as types. */
template <enum act_kind KIND> struct activation;
#define ACT(id, name, how, ...)                                         \
	template <> struct activation<ACT_##id> {                       \
		static constexpr enum act_kind kind = ACT_##id;         \
		static constexpr bool gated = IS_##how;                 \
		template <bool FAST>                                    \
		static __device__ inline float fwd(float a, float b)    \
		{                                                       \
			return name<FAST>(a, b);                        \
		}                                                       \
		template <bool FAST>                                    \
		static __device__ inline float slope(float a, float &b) \
		{                                                       \
			return name##_slope<FAST>(a, b);                \
		}                                                       \
	};
#include "kernels/acts.h"

template <typename F> static void call_by_kind(enum act_kind kind, F fn)
{
	switch (kind) {
#define ACT(id, ...)   \
	case ACT_##id: \
		return fn(activation<ACT_##id>());
#include "kernels/acts.h"
	}
}

/* Calls fn(fast) with std::true_type for approximate instructions, precise enough for 16 bits. */
template <typename T, typename F> static void call_by_speed(struct device *d, F fn)
{
	if constexpr (sizeof(T) == 2)
		if (!cuda_lab_off(d, LAB_ACT))
			return fn(std::true_type());
	fn(std::false_type());
}
