/*
 * Kernels over the elements of any tensor: casts to other number formats, random initial values,
 * fills, copies and checks. A list: kernels.h says how it is read.
 */
#ifndef KERNELS_TENSORS_H
#define KERNELS_TENSORS_H

#include "kernels/matrix.h"

/* A stream of random numbers: element (row, col) of a kernel's matrix takes number
 * first + row * row_step + col of the key's. A step of 0: the matrix's own, its columns. */
struct rng_stream {
	struct philox_key key;
	int64_t first, row_step;
};

static inline int64_t row_step(int64_t step, struct mat x)
{
	return step ? step : x.cols;
}

/* Normally distributed numbers with this mean and standard deviation. A number that is more than
 * `most` deviations from the mean is drawn again. The algorithm is kernels/normal.h. */
struct normal {
	float mean, std;
	float most; /* 0: any */
	struct rng_stream rng;
};

#endif

#ifdef KERNEL

/*
 * y = cast(x scale), to the nearest number of the format, ties to even; y may be x. Beyond
 * the largest number bf16 and fp16 give infinity; e4m3 and e5m2 saturate, at 448 and
 * 57344, infinity too. Subnormal numbers are kept, NaN stays NaN. With DT_F32 a product.
 * x: any; y: fp32, or stored as the format that it is cast to.
 *
 * A matmul of less precision is what matrix units do: operands cast, each with its scale;
 * the matmul of what the casts gave, summed in fp32; the sum times the inverse of both, and
 * that cast to the format of the result.
 */
KERNEL(void, round, struct device *d, struct mat y, struct mat x, enum dtype type,
	float scale)
/* The same for bf16 and fp16, as the 16 bits of the format, and back: y = widen(narrow(x)) has
 * the bits of round(x, 1). */
KERNEL(void, narrow, struct device *d, uint16_t *y, struct mat x, enum dtype type)
KERNEL(void, widen, struct device *d, struct mat y, const uint16_t *x, enum dtype type)
/* *most becomes the largest of it and |x|, or NaN when there is one. x: any. */
KERNEL(void, amax, struct device *d, float *most, struct mat x)
/* `round` to one of fp8 with the scale that numbers up to *amax ask for, so that the largest is
 * the format's. *inverse, for the `scale` of y, becomes 1 over it. Both are the device's. Where
 * y.transposed is not NULL, it gets the same numbers; only a device that stores 8 bits has it. */
KERNEL(void, round_scaled, struct device *d, struct mat y, float *inverse, struct mat x,
	enum dtype type, const float *amax)
/* x = initial weights, fp32. Every device makes the same bits. */
KERNEL(void, normal, struct device *d, struct mat x, const struct normal *normal)
KERNEL(void, zero, struct device *d, struct mat x)		     /* any */
KERNEL(void, copy, struct device *d, struct mat to, struct mat from) /* of one type */
/* Index of the first element that is not finite, or -1. x: any. Waits for the device. */
KERNEL(int64_t, find_nonfinite, struct device *d, struct mat x)
/* To *sum, in the device's memory, is added the sum over elements (i, j) of a hash of (key,
 * first + i stride + j, bits): equal for any division of a tensor into parts. */
KERNEL(void, hash, struct device *d, uint64_t *sum, struct mat x, uint64_t key,
	int64_t first, int64_t stride)

#endif
