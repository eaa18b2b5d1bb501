/* Kernels over the elements of any tensor: casts to other number formats, random initial values,
 * fills, copies and checks. kernels.h explains KERNEL. */
#ifndef KERNELS_TENSORS_H
#define KERNELS_TENSORS_H

#include "kernels/matrix.h"

/* A stream of random numbers: element (row, col) of a kernel's matrix uses number
 * first + row * row_step + col of the key's sequence. row_step 0: the number of columns. */
struct rng_stream {
	struct philox_key key;
	int64_t first, row_step;
};

static inline int64_t row_step(int64_t step, struct mat x)
{
	return step ? step : x.cols;
}

/* Normally distributed numbers with this mean and standard deviation. A number that is more than
 * `max_deviation` standard deviations from the mean is drawn again. normal.h has the algorithm. */
struct normal {
	float mean, std;
	float max_deviation; /* 0: no limit */
	struct rng_stream rng;
};

#endif

#ifdef KERNEL

/* y = cast(x scale), to the nearest number of the format, ties to even; y may be x. bf16 and
 * fp16 overflow to infinity; e4m3 and e5m2 saturate at 448 and 57344, and so does infinity.
 * Subnormal numbers are kept, NaN stays NaN. With DT_F32, y = x scale.
 * x: any; y: fp32, or stored in the format of the cast.
 *
 * A mixed-precision matmul is defined as matrix units compute it: the operands are cast, each
 * with its scale; their products are summed in fp32; the sum is divided by both scales, and cast
 * to the format of the result. */
KERNEL(void, round, struct device *d, struct mat y, struct mat x, enum dtype type,
	float scale)
/* Casts to the 16 bits of bf16 or fp16, and back: widen(narrow(x)) has the bits of round(x, 1). */
KERNEL(void, narrow, struct device *d, uint16_t *y, struct mat x, enum dtype type)
KERNEL(void, widen, struct device *d, struct mat y, const uint16_t *x, enum dtype type)
/* *amax = max(*amax, |x|), or NaN if x or *amax has one. x: any. */
KERNEL(void, amax, struct device *d, float *amax, struct mat x)
/* `round` to an fp8 format with the scale that maps *amax to the format's largest number
 * (float8_scale()). *inverse, for the `scale` of y, becomes 1 / scale. Both are in device memory.
 * Also writes y.transposed unless it is NULL. */
KERNEL(void, round_scaled, struct device *d, struct mat y, float *inverse, struct mat x,
	enum dtype type, const float *amax)
/* Casts fp32 to the bytes of e4m3 with the scale of round_scaled, and back, divided by the scale.
 * round_scaled with the same amax gives the same numbers before and after. */
KERNEL(void, narrow_scaled, struct device *d, uint8_t *y, struct mat x, const float *amax)
KERNEL(void, widen_scaled, struct device *d, struct mat y, const uint8_t *x,
	const float *amax)
/* x = initial weights, fp32. Every device gives the same bits. */
KERNEL(void, normal, struct device *d, struct mat x, const struct normal *normal)
KERNEL(void, zero, struct device *d, struct mat x)		     /* any */
KERNEL(void, copy, struct device *d, struct mat to, struct mat from) /* of one type */
/* Returns the index of the first non-finite element, or -1. x: any. Waits for the device. */
KERNEL(int64_t, find_nonfinite, struct device *d, struct mat x)
/* *sum, in device memory, += the sum over elements (i, j) of a hash of (key, first + i stride + j,
 * bits of the element as fp32). The total is the same however a tensor is sharded. x: any. */
KERNEL(void, hash, struct device *d, uint64_t *sum, struct mat x, uint64_t key,
	int64_t first, int64_t stride)

#endif
