/*
 * Kernels on the GPU and on the CPU: those of tensors, optimizers and local SGD, most of which have the same
 * bits on every device. (The others are compared in test_kernels_types.c.)
 * device: cuda
 */
#include "tests/support/trials.h"

#include <math.h>
#include <string.h>

static const int64_t shapes[][2] = {
	{1, 1}, {3, 7}, {31, 64}, {7, 1003}, {70, 516}, {2, 33001}, {2, 70002}};
enum { SHAPES = ARRAY_LEN(shapes) };

/* The device under test and the CPU, with the same numbers on both, different at each call. */
struct two {
	struct device *d[2];
	struct mat m[2];
};

static struct two two_of(struct device *d)
{
	static struct device cpu;
	struct two t = {.d = {d, &cpu}};
	if (!t.d[0]->discrete)
		skip();
	if (!cpu.k)
		device_open_cpu(&cpu, 1);
	return t;
}

static void fill(struct two *t, int64_t rows, int64_t cols)
{
	t->m[0] = twin_random(rows, cols, 1).f;
	t->m[1] = mat_blank(rows, cols);
	memcpy(t->m[1].p, t->m[0].p, (size_t)mat_bytes(t->m[0]));
}

/* ---- exact sums ----------------------------------------------------------------------- */

/* Numbers of all magnitudes, NaN and infinity. */
DEVICE_TEST(exact_sum)
{
	struct two t = two_of(d);
	for (int bad = 0; bad < 2; bad++)
		for (size_t s = 0; s < SHAPES; s++) {
			struct exact *x[2];
			int64_t n = shapes[s][0] * shapes[s][1];
			fill(&t, 1, n);
			for (int i = 0; i < 2; i++) {
				float *v = t.m[i].p;
				for (int64_t j = 0; j < n; j++)
					v[j] = ldexpf(v[j], (int)(j * 37 % 270) - 150);
				if (bad)
					v[n / 2] = s % 3 ? -INFINITY : NAN;
				x[i] = exact_zero();
				exact_add(x[i], -1e300);
				exact_normalize(x[i]);
				t.d[i]->k->exact_sum(t.d[i], x[i], v, n);
				t.d[i]->k->exact_sum(t.d[i], x[i], v, n / 3);
			}
			assert_memory_equal(x[0], x[1], sizeof(*x[0]));
		}
}

/* Sums of squares of whole numbers are exact in any order. */
DEVICE_TEST(exact_sumsq)
{
	struct two t = two_of(d);
	for (size_t s = 0; s < SHAPES; s++) {
		int64_t rows = shapes[s][0], cols = shapes[s][1];
		struct exact *x[2];
		fill(&t, rows, cols);
		for (int i = 0; i < 2; i++) {
			for (int64_t j = 0; j < rows * cols; j++) {
				float *v = (float *)t.m[i].p + j;
				*v = ldexpf(roundf(*v * 100), (int)(j / cols % 90) - 45);
			}
			x[i] = exact_zero();
			t.d[i]->k->exact_sumsq(t.d[i], x[i], &t.m[i], 1);
		}
		assert_memory_equal(x[0], x[1], sizeof(*x[0]));
	}
}

/* ---- all others ------------------------------------------------------------------------- */

DEVICE_TEST(every_kernel)
{
	struct two t = two_of(d);
	for (size_t s = 0; s < SHAPES; s++) {
		const struct kernel_calls *calls =
			calls_of_tensors(shapes[s][0], shapes[s][1]);
		for (int64_t i = 0; i < calls->n; i++)
			check_call(calls->calls[i], t.d[1],
				tolerances[calls->calls[i].kernel]);
	}
}

int main(void)
{
	return run_on_device();
}
