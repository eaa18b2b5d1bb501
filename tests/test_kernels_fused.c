/*
 * Fused kernels give the bits of the kernels that they are fused of.
 * isa: sse2 avx2 avx512
 * device: cpu cuda
 */
#include "device.h"

#include <math.h>

/* y = x + dropout(sum + bias), a kernel at a time. */
static void plain_residual(struct device *d, struct mat y, struct mat x, struct mat sum,
	struct mat bias, const struct dropout *o)
{
	d->k->copy(d, y, sum);
	if (bias.p)
		d->k->bias_fwd(d, y, bias);
	if (o)
		d->k->dropout(d, y, y, o);
	d->k->add(d, y, x, y);
}

static void check_residual(
	struct device *d, int64_t rows, int64_t cols, bool with_bias, double p)
{
	int32_t *pos = ints(rows);
	for (int64_t i = 0; i < rows; i++)
		pos[i] = (int32_t)(3 * i % 17);
	struct dropout drop = {.key = {{3, 4}},
		.p = (float)p,
		.step = 5,
		.first_sample = 6,
		.pos = pos,
		.seq_rows = 7,
		.first_col = pick(0, 9)};
	const struct dropout *o = p > 0 ? &drop : NULL;
	struct twin x = twin_random(rows, cols, 1), sum = twin_random(rows, cols, 1);
	struct twin bias = with_bias ? twin_random(1, cols, 1) : twin_none();
	struct mat want = mat_blank(rows, cols), y = mat_blank(rows, cols);
	plain_residual(d, want, x.f, sum.f, bias.f, o);
	d->k->residual(d, y, x.f, sum.f, bias.f, o);
	check_bits("residual", y.p, want.p, rows * cols);
	for (int64_t i = 0; i < rows * cols; i++) { /* none of the parts is left out */
		double s = sum.r[i] + (with_bias ? bias.r[i % cols] : 0);
		double have = (double)((float *)y.p)[i] - x.r[i];
		bool kept = fabs(have - s / (1 - p)) < 1e-5;
		assert_true(kept || (p > 0 && have == 0));
	}
	d->k->residual(d, sum.f, x.f, sum.f, bias.f, o); /* in place */
	check_bits("residual, in place", sum.f.p, want.p, rows * cols);
}

static void residual(void **state)
{
	static const int64_t shapes[][2] = {
		{1, 1}, {3, 5}, {16, 64}, {33, 67}, {301, 211}};
	for (size_t i = 0; i < ARRAY_LEN(shapes); i++)
		for (int how = 0; how < 4; how++)
			check_residual(*state, shapes[i][0], shapes[i][1], how & 1,
				how & 2 ? 0.3 : 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		on_device(residual),
	};
	return run_on_device(tests);
}
