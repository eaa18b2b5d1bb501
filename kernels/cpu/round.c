/* Casts to lower-precision formats, and amax for scaled ones. */
#include "kernels/cpu/cpu.h"
#include "kernels/dtype_bits.h"
#include "kernels/step_math.h"

/* One loop for each format, so that the format is a constant in it. */
static void round_run(float *y, const float *x, int64_t n, enum dtype type, float scale)
{
	switch (type) {
	case DT_F32:
		for (int64_t i = 0; i < n; i++)
			y[i] = x[i] * scale;
		break;
	case DT_BF16:
		for (int64_t i = 0; i < n; i++)
			y[i] = round_bf16(x[i] * scale);
		break;
	case DT_F16:
		for (int64_t i = 0; i < n; i++)
			y[i] = round_to(x[i] * scale, dtype_table[DT_F16]);
		break;
	case DT_E4M3:
		for (int64_t i = 0; i < n; i++)
			y[i] = round_to(x[i] * scale, dtype_table[DT_E4M3]);
		break;
	case DT_E5M2:
		for (int64_t i = 0; i < n; i++)
			y[i] = round_to(x[i] * scale, dtype_table[DT_E5M2]);
		break;
	}
}

void K(round)(struct device *d, struct mat y, struct mat x, enum dtype type, float scale)
{
	int64_t n = mat_size(y);
	BUG_ON(n != mat_size(x));
#pragma omp parallel for if (n > PARALLEL_FROM)
	for (int64_t i = 0; i < n; i += PARALLEL_FROM)
		round_run((float *)y.p + i, (const float *)x.p + i,
			min64(PARALLEL_FROM, n - i), type, scale);
	if (y.amax)
		K(amax)(d, y.amax, y);
}

void K(round_scaled)(struct device *d, struct mat y, float *inverse, struct mat x,
	enum dtype type, const float *amax)
{
	float scale = float8_scale(dtype_table[type].largest, *amax);
	BUG_ON(y.transposed);
	K(round)(d, y, x, type, scale);
	*inverse = 1.0f / scale;
}

void K(narrow)(struct device *d, uint16_t *y, struct mat x, enum dtype type)
{
	const float *p = x.p;
	int64_t n = mat_size(x);
	BUG_ON(type != DT_BF16 && type != DT_F16);
	if (type == DT_BF16) {
#pragma omp parallel for simd if (n > PARALLEL_FROM)
		for (int64_t i = 0; i < n; i++)
			y[i] = (uint16_t)narrow_bits(p[i], DT_BF16);
	} else {
#pragma omp parallel for simd if (n > PARALLEL_FROM)
		for (int64_t i = 0; i < n; i++)
			y[i] = (uint16_t)narrow_bits(p[i], DT_F16);
	}
}

void K(widen)(struct device *d, struct mat y, const uint16_t *x, enum dtype type)
{
	float *p = y.p;
	int64_t n = mat_size(y);
	BUG_ON(type != DT_BF16 && type != DT_F16);
	if (type == DT_BF16) {
#pragma omp parallel for simd if (n > PARALLEL_FROM)
		for (int64_t i = 0; i < n; i++)
			p[i] = widen_bits(x[i], DT_BF16);
	} else {
#pragma omp parallel for simd if (n > PARALLEL_FROM)
		for (int64_t i = 0; i < n; i++)
			p[i] = widen_bits(x[i], DT_F16);
	}
}

void K(narrow_scaled)(struct device *d, uint8_t *y, struct mat x, const float *amax)
{
	const float *p = x.p;
	const float scale = float8_scale(dtype_table[DT_E4M3].largest, *amax);
	int64_t n = mat_size(x);
#pragma omp parallel for simd if (n > PARALLEL_FROM)
	for (int64_t i = 0; i < n; i++)
		y[i] = (uint8_t)narrow_bits(p[i] * scale, DT_E4M3);
}

void K(widen_scaled)(struct device *d, struct mat y, const uint8_t *x, const float *amax)
{
	float *p = y.p;
	const float inverse = 1.0f / float8_scale(dtype_table[DT_E4M3].largest, *amax);
	int64_t n = mat_size(y);
#pragma omp parallel for simd if (n > PARALLEL_FROM)
	for (int64_t i = 0; i < n; i++)
		p[i] = widen_bits(x[i], DT_E4M3) * inverse;
}

void K(amax)(struct device *d, float *to, struct mat x)
{
	const float *p = x.p;
	int64_t n = mat_size(x);
	int32_t max = (int32_t)bits_of(*to);
#pragma omp parallel for simd reduction(max : max) if (n > PARALLEL_FROM)
	for (int64_t i = 0; i < n; i++) {
		int32_t size = size_bits(p[i]);
		max = size > max ? size : max;
	}
	*to = float_of((uint32_t)max);
}
