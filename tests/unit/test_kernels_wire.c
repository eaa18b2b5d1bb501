/* Compression kernels.
 * isa: sse2 avx2 avx512
 * device: cpu cuda
 */
#include "tests/support/device.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { LARGE = 40000, MOST = 127 };

static struct mat copy_of(struct device *d, struct mat x)
{
	struct mat y = mat_blank(x.rows, x.cols);
	d->k->copy(d, y, x);
	return y;
}

static float *row_of(struct mat x, int64_t r)
{
	return (float *)x.p + r * x.cols;
}

/* ---- stochastic rounding --------------------------------------------------------- */

typedef void rounding(struct device *, struct mat x, const struct rng_stream *);

static void quantize_random(struct device *d, struct mat x, const struct rng_stream *c)
{
	d->k->quantize(d, x, NULL, NULL, c);
}

/* All numbers are x, except one that determines the scale: each is rounded to one of two neighbours,
 * and the mean is x, within 5 standard deviations. */
static void check_mean(struct device *d, rounding *round, float x, float largest)
{
	const struct rng_stream c = {{{5, 6}}, 1000, 0};
	struct mat m = mat_blank(1, LARGE);
	float *v = m.p, low = INFINITY, high = -INFINITY;
	double sum = 0;
	v[0] = largest;
	for (int64_t i = 1; i < LARGE; i++)
		v[i] = x;
	round(d, m, &c);
	for (int64_t i = 1; i < LARGE; i++) {
		low = fminf(low, v[i]);
		high = fmaxf(high, v[i]);
		sum += (double)v[i];
	}
	assert_true(low <= x && x <= high);
	for (int64_t i = 1; i < LARGE; i++)
		assert_true(v[i] == low || v[i] == high);
	double step = (double)high - (double)low, mean = sum / (LARGE - 1);
	double part = step > 0 ? ((double)x - (double)low) / step : 0;
	assert_true(fabs(mean - (double)x) <=
		    5 * step * sqrt(part * (1 - part) / LARGE) + 1e-7 * fabs((double)x));
}

/* The result does not depend on the sharding; numbers that need no rounding do not change. */
static void check_parts(struct device *d, rounding *round, int64_t rows, int64_t cols)
{
	for (int64_t step = 0; step < 2 * cols; step += cols + 13) { /* from row to row */
		struct mat x = twin_random(rows, cols, 1).f, y = copy_of(d, x);
		struct rng_stream c = {{{5, 6}}, 77, step};
		round(d, x, &c);
		for (int64_t r = 0; r < rows; r++) {
			c.first = 77 + r * (step ? step : cols);
			round(d, mat_rows(y, r, 1), &c);
		}
		check_bits("parts", x.p, y.p, rows * cols);
	}
}

DEVICE_TEST(round_stochastic)
{
	static const float some[] = {1.001f, -3.14159f, 1e-30f, -1e20f, 1.0f + 0x1p-8f};
	for (size_t i = 0; i < ARRAY_LEN(some); i++)
		check_mean(d, d->k->round_stochastic, some[i], 1);
	check_parts(d, d->k->round_stochastic, 31, 1003);
	struct mat x = twin_random(7, LARGE, 1).f, y = copy_of(d, x);
	d->k->round_stochastic(d, x, &(struct rng_stream){{{1, 2}}, 0, 0});
	for (int64_t i = 0; i < mat_size(x); i++)
		assert_true(fabsf(((float *)x.p)[i] - ((float *)y.p)[i]) <
			    fabsf(((float *)y.p)[i]) * 0x1p-7f);
	d->k->copy(d, y, x);
	d->k->round(d, y, y, DT_BF16, 1);
	check_bits("is bfloat16", y.p, x.p, mat_size(x));
	d->k->round_stochastic(d, x, &(struct rng_stream){{{1, 2}}, 9, 0});
	check_bits("stays", y.p, x.p, mat_size(x));
}

/* ---- int8 ------------------------------------------------------------------------ */

DEVICE_TEST(quantize)
{
	for (int i = 0; i < 60; i++) {
		int64_t rows = pick(1, 40), cols = pick(1, 1500);
		const struct rng_stream c = {{{3, (uint32_t)i}}, 0, 0};
		bool random = i % 2;
		struct mat was = twin_random(rows, cols, i % 3 ? 1 : 1e-20).f;
		*row_of(was, 0) = -0.0f;
		struct mat x = copy_of(d, was), y = mat_blank(rows, cols);
		int8_t *codes = (int8_t *)floats(rows * cols);
		float *scales = floats(rows);
		d->k->quantize(d, x, codes, scales, random ? &c : NULL);
		for (int64_t r = 0; r < rows; r++) {
			float most = 0, *a = row_of(was, r), *b = row_of(x, r);
			for (int64_t j = 0; j < cols; j++)
				most = fmaxf(most, fabsf(a[j]));
			double least = (double)most / MOST;
			assert_true(fabs((double)scales[r] - least) <=
				    least * (random ? 0x1p-7 : 0x1p-8));
			assert_true(!random || (double)scales[r] >= least * (1 - 1e-7));
			double off = (double)scales[r] * (random ? 1 : 0.5) * (1 + 1e-5);
			for (int64_t j = 0; j < cols; j++)
				assert_true(fabs((double)a[j] - (double)b[j]) <= off);
			for (int64_t j = 0; j < cols; j++)
				assert_true(codes[r * cols + j] >= -MOST);
		}
		d->k->dequantize(d, y, codes, scales);
		check_bits("dequantized", x.p, y.p, rows * cols);
	}
}

/* Quantized numbers and their codes do not change if they are quantized again. */
DEVICE_TEST(quantize_again)
{
	for (int i = 0; i < 20; i++) {
		int64_t rows = pick(1, 200), cols = pick(1, 300), n = rows * cols;
		struct mat x = twin_random(rows, cols, 1).f;
		int8_t *once = (int8_t *)floats(n), *twice = (int8_t *)floats(n);
		float *scale = floats(rows), *scale_too = floats(rows);
		d->k->quantize(d, x, once, scale, NULL);
		struct mat y = copy_of(d, x);
		d->k->quantize(d, y, twice, scale_too, NULL);
		check_bits("numbers", x.p, y.p, n);
		check_bits("scales", scale, scale_too, rows);
		assert_memory_equal(once, twice, (size_t)n);
	}
}

DEVICE_TEST(quantize_in_the_mean)
{
	static const float some[] = {0.001f, -0.7f, 0.999f, -1, 0, 0.12345f};
	for (size_t i = 0; i < ARRAY_LEN(some); i++) {
		check_mean(d, quantize_random, some[i], 1);
		check_mean(d, quantize_random, some[i] * 1e-25f, 1e-25f);
	}
	check_parts(d, quantize_random, 31, 1003);
}

DEVICE_TEST(quantize_what_is_none)
{
	static const float some[] = {NAN, INFINITY, -INFINITY, 1e-40f, 0, -0.0f};
	int8_t *codes = (int8_t *)floats(2);
	float *scale = floats(1), rest[8] = {0};
	for (size_t i = 0; i < 2 * ARRAY_LEN(some); i++) {
		const float numbers[8] = {0, some[i / 2], 1e-41f};
		float *x = floats(8);
		const struct rng_stream c = {{{1, 2}}, 0, 0};
		memcpy(x, numbers, sizeof(numbers));
		d->k->quantize(d, mat(x, 1, 8), codes, scale, i % 2 ? &c : NULL);
		assert_true(*scale == 0);
		assert_memory_equal(x, rest, sizeof(rest));
		assert_memory_equal(codes, rest, 8);
	}
}

/* ---- top-k ----------------------------------------------------------------------- */

DEVICE_TEST(picked)
{
	for (int i = 0; i < 60; i++) {
		bool wide = i % 2;
		int64_t rows = pick(1, 40), cols = pick(1, i < 4 ? 70000 : 1500);
		int64_t k = pick(1, cols), n = rows * k;
		struct mat x = twin_random(rows, cols, 1).f, y = mat_blank(rows, cols);
		float *values = floats(n + 1), *places = floats(n + 1);
		if (cols > 1 << 16)
			wide = true;
		for (int64_t e = 0; e < rows * cols && i % 3; e++)
			((float *)x.p)[e] *= (float)(e % 3); /* fewer than k */
		d->k->keep_largest(d, x, k);
		values[n] = places[n] = 42;
		d->k->topk_pack(d, values, places, wide, x, k);
		assert_true(values[n] == 42 && places[n] == 42);
		d->k->topk_scatter(d, y, values, places, wide, k);
		check_bits("strewn", x.p, y.p, rows * cols);
	}
}

/* Of more than k nonzero elements the first k are packed. */
DEVICE_TEST(picked_of_more)
{
	static const float numbers[] = {1, 0, 2, 3, 4, 5, 0, 0, -0.0f, 0, 0, 7};
	static const float want[] = {1, 0, 2, 3, 0, 0, 0, 0, -0.0f, 0, 0, 7};
	struct mat x = mat_blank(2, 6), y = mat_blank(2, 6);
	float *values = floats(7);
	uint16_t *places = shorts(7);
	memcpy(x.p, numbers, sizeof(numbers));
	values[6] = 42;
	places[6] = 42;
	d->k->topk_pack(d, values, places, false, x, 3);
	assert_true(values[6] == 42 && places[6] == 42);
	d->k->topk_scatter(d, y, values, places, false, 3);
	check_bits("the first", y.p, want, 12);
}

int main(void)
{
	return run_on_device();
}
