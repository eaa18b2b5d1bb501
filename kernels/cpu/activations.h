/* The activation functions of acts.h, their derivatives, and loops over pieces of vectors. */
#pragma once

#include "kernels/cpu/cpu.h"

/* Returns 2u. GELU (Hendrycks, Gimpel 2016) in its tanh form is x sigmoid(2u), because (1 + tanh
 * u) / 2 = sigmoid(2u). */
static inline float gelu_tanh_u2(float x)
{
	return 1.5957691216057308f * (x + 0.044715f * (x * x * x));
}

static inline float gelu_tanh(float x)
{
	return x * sigmoid_f(gelu_tanh_u2(x));
}

static inline float gelu_tanh_slope(float x)
{
	float s = sigmoid_f(gelu_tanh_u2(x));
	float du2 = 1.5957691216057308f * (1.0f + 0.134145f * (x * x));
	return s + x * (s * (1.0f - s)) * du2;
}

static inline float gelu(float x)
{
	return x * normal_cdf_f(x);
}

static inline float gelu_slope(float x)
{
	float density = 0.39894228040143268f * exp_f(-0.5f * (x * x));
	return normal_cdf_f(x) + x * density;
}

static inline float swiglu(float x, float gate)
{
	return x * sigmoid_f(x) * gate;
}

/* Slopes of gated functions return the gradient of x and set *dgate. up: the gradient of y. */
static inline float swiglu_slope(float x, float gate, float up, float *dgate)
{
	float s = sigmoid_f(x);
	*dgate = up * (x * s);
	return up * gate * (s + x * (s * (1.0f - s)));
}

static inline float geglu_tanh(float x, float gate)
{
	return gelu_tanh(x) * gate;
}

/* The derivative of y = gelu_tanh(x) gate: returns dx, the gradient of x, and sets *dgate. */
static inline float geglu_tanh_slope(float x, float gate, float dy, float *dgate)
{
	*dgate = dy * gelu_tanh(x);
	return dy * gate * gelu_tanh_slope(x);
}

#define PLAIN_FWD(f) f(a[j])
#define GATED_FWD(f) f(a[j], b[j])
#define PLAIN_BWD(f) dy[j] * f##_slope(a[j])
#define GATED_BWD(f) f##_slope(a[j], b[j], dy[j], &db[j])

static inline void act_fwd_piece(
	enum act_kind kind, float *y, const float *a, const float *b, int64_t n)
{
	switch (kind) {
#define ACT(id, name, kind, ...)                 \
	case ACT_##id:                           \
		for (int64_t j = 0; j < n; j++)  \
			y[j] = kind##_FWD(name); \
		break;
#include "kernels/acts.h"
	}
}

static inline void act_bwd_piece(enum act_kind kind, float *da, float *db,
	const float *dy, const float *a, const float *b, int64_t n)
{
	switch (kind) {
#define ACT(id, name, kind, ...)                  \
	case ACT_##id:                            \
		for (int64_t j = 0; j < n; j++)   \
			da[j] = kind##_BWD(name); \
		break;
#include "kernels/acts.h"
	}
}
