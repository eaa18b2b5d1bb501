/* Casts to lower-precision formats, and amax for scaled ones. Rounding is branch-free integer code,
 * so that the compiler vectorises it; its bits are those of hardware conversions. */
#include "kernels/cpu/cpu.h"
#include "kernels/step_math.h"

#define SIGN_BIT 0x80000000u
#define INFINITE 0x7f800000u

static inline uint32_t select_bits(bool which, uint32_t a, uint32_t b)
{
	uint32_t mask = 0u - (uint32_t)which;
	return (a & mask) | (b & ~mask);
}

/* To nearest, ties to even. The bits of a float compare as its magnitude, so adding half of
 * the last kept bit carries correctly into the exponent. Below the smallest normal number the
 * spacing is constant: adding a number with that spacing (`magic`) rounds to it. */
static inline float round_to(float x, const struct dtype_row f)
{
	const int drop = 23 - f.fraction_bits;
	const uint32_t half = (1u << (drop - 1)) - 1, keep = ~((1u << drop) - 1);
	const float magic = f.min_normal * (float)(1 << drop);
	uint32_t u = bits_of(x), sign = u & SIGN_BIT, a = u ^ sign;
	bool nan = a > INFINITE;
	uint32_t quiet = (a | 0x400000u) & keep;
	uint32_t largest = bits_of(f.largest);
	if (f.saturates)
		a = a > largest ? largest : a;
	uint32_t r = (a + half + (a >> drop & 1)) & keep;
	if (!f.saturates)
		r = select_bits(r > largest, INFINITE, r);
	float size = float_of(a);
	uint32_t small = bits_of((size + magic) - magic);
	r = select_bits(a < bits_of(f.min_normal), small, r);
	return float_of(select_bits(nan, quiet, r) | sign);
}

/* bfloat16 has fp32's exponents, so subnormal numbers need no special case. */
static inline float round_bf16(float x)
{
	uint32_t u = bits_of(x);
	uint32_t r = (u + 0x7fffu + (u >> 16 & 1)) & 0xffff0000u;
	bool nan = (u & ~SIGN_BIT) > INFINITE;
	return float_of(select_bits(nan, (u | 0x400000u) & 0xffff0000u, r));
}

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

/* The difference of the exponent biases of fp32 and binary16; twice that for infinity and NaN. */
enum { BIAS = (127 - 15) << 23 };

/* The bits of a float that is already rounded to fp16: a subnormal number is a multiple of 2^-24. */
static inline uint16_t bits_f16(float x)
{
	uint32_t u = bits_of(x), a = u & ~SIGN_BIT;
	uint32_t normal = (a - (uint32_t)BIAS) >> 13;
	uint32_t beyond = (a >> 13 & 0x3ff) | 0x7c00;
	bool small = a < bits_of(dtype_table[DT_F16].min_normal);
	uint32_t steps = (uint32_t)(int32_t)(small ? float_of(a) * 0x1p24f : 0);
	uint32_t r = select_bits(a >= INFINITE, beyond, normal);
	return (uint16_t)(select_bits(small, steps, r) | (u >> 16 & 0x8000));
}

static inline float float_f16(uint16_t h)
{
	uint32_t a = h & 0x7fffu, sign = (h & 0x8000u) << 16;
	uint32_t r = (a << 13) + (uint32_t)BIAS + (a >= 0x7c00 ? (uint32_t)BIAS : 0);
	uint32_t small = bits_of((float)(int32_t)a * 0x1p-24f);
	return float_of(select_bits(a < 0x400, small, r) | sign);
}

void K(narrow)(struct device *d, uint16_t *y, struct mat x, enum dtype type)
{
	const float *p = x.p;
	int64_t n = mat_size(x);
	BUG_ON(type != DT_BF16 && type != DT_F16);
	if (type == DT_BF16) {
#pragma omp parallel for simd if (n > PARALLEL_FROM)
		for (int64_t i = 0; i < n; i++)
			y[i] = (uint16_t)(bits_of(round_bf16(p[i])) >> 16);
	} else {
#pragma omp parallel for simd if (n > PARALLEL_FROM)
		for (int64_t i = 0; i < n; i++)
			y[i] = bits_f16(round_to(p[i], dtype_table[DT_F16]));
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
			p[i] = float_of((uint32_t)x[i] << 16);
	} else {
#pragma omp parallel for simd if (n > PARALLEL_FROM)
		for (int64_t i = 0; i < n; i++)
			p[i] = float_f16(x[i]);
	}
}

/* The difference of the exponent biases of fp32 and e4m3. */
enum { BIAS_E4M3 = (127 - 7) << 23 };

/* The bits of a float that is already rounded to e4m3, whose NaN has all bits set; a subnormal number
 * is a multiple of 2^-9. */
static inline uint8_t bits_e4m3(float x)
{
	uint32_t u = bits_of(x), a = u & ~SIGN_BIT;
	bool small = a < bits_of(dtype_table[DT_E4M3].min_normal);
	uint32_t steps = (uint32_t)(int32_t)(small ? float_of(a) * 0x1p9f : 0);
	uint32_t r = select_bits(a > INFINITE, 0x7f, (a - (uint32_t)BIAS_E4M3) >> 20);
	return (uint8_t)(select_bits(small, steps, r) | (u >> 24 & 0x80));
}

static inline float float_e4m3(uint8_t b)
{
	uint32_t a = b & 0x7fu, sign = (b & 0x80u) << 24;
	uint32_t r = select_bits(a == 0x7f, 0x7fc00000u, (a << 20) + (uint32_t)BIAS_E4M3);
	uint32_t small = bits_of((float)(int32_t)a * 0x1p-9f);
	return float_of(select_bits(a < 8, small, r) | sign);
}

void K(narrow_scaled)(struct device *d, uint8_t *y, struct mat x, const float *amax)
{
	const float *p = x.p;
	const float scale = float8_scale(dtype_table[DT_E4M3].largest, *amax);
	int64_t n = mat_size(x);
#pragma omp parallel for simd if (n > PARALLEL_FROM)
	for (int64_t i = 0; i < n; i++)
		y[i] = bits_e4m3(round_to(p[i] * scale, dtype_table[DT_E4M3]));
}

void K(widen_scaled)(struct device *d, struct mat y, const uint8_t *x, const float *amax)
{
	float *p = y.p;
	const float inverse = 1.0f / float8_scale(dtype_table[DT_E4M3].largest, *amax);
	int64_t n = mat_size(y);
#pragma omp parallel for simd if (n > PARALLEL_FROM)
	for (int64_t i = 0; i < n; i++)
		p[i] = float_e4m3(x[i]) * inverse;
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
