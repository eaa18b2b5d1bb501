/* The matmul for sm_90a that is on trial, all variants.
 * device: cuda
 */
#include "tests/support/device.h"
#include "tests/support/kernels_ref.h"
#include "tests/support/matmul_hopper.h"

static struct mat rounded(struct twin t)
{
	struct mat m = stored(t.f, DT_BF16), back = loaded(m);
	twin_sync((struct twin){back, t.r});
	return m;
}

/* Compares each variant with float64, and its bits with those of the first. */
static void check(struct device *d, int64_t m, int64_t n, int64_t k, bool bias)
{
	struct twin x = twin_random(m, k, 1), w = twin_random(n, k, 1);
	struct twin b = bias ? twin_random(1, n, 4) : twin_none();
	struct mat x16 = rounded(x), w16 = rounded(w), first = {0};
	double *y = doubles(m * n);
	ref_linear_fwd(y, x.r, w.r, b.r, m, k, n);
	for (const struct matmul_variant *v = matmuls_hopper(d); v->name; v++) {
		struct mat got = stored(mat_blank(m, n), DT_BF16);
		if (!v->run(d, got, x16, w16, b.f))
			continue;
		device_wait(d);
		struct mat back = loaded(got);
		check_close(v->name, back.p, y, m * n, 4e-3);
		if (first.p)
			check_bits(v->name, back.p, first.p, m * n);
		else
			first = back;
	}
	assert_non_null(first.p);
}

static const struct matmul_variant *all(struct device *d)
{
	const struct matmul_variant *v = matmuls_hopper(d);
	struct mat none = {0};
	assert_non_null(v);
	struct mat x = stored(mat_blank(8, 8), DT_BF16),
		   y = stored(mat_blank(8, 8), DT_BF16);
	if (!v->run(d, y, x, x, none))
		skip(); /* another GPU */
	return v;
}

/* Of one tile, and of several; parts of tiles at all edges; fewer stages a tile than the ring has,
 * as many, and more; sums whose last stage has zeros. */
DEVICE_TEST(shapes)
{
	all(d);
	check(d, 1, 8, 8, true);
	check(d, 128, 256, 64, false);
	check(d, 130, 264, 72, true);
	check(d, 127, 504, 256, true);
	check(d, 300, 248, 200, true);
	check(d, 257, 776, 456, true);
}

/* More tiles than blocks, and more columns of tiles than a section has. */
DEVICE_TEST(sections)
{
	all(d);
	check(d, 140, 13 * 256 + 40, 136, true);
	check(d, 900, 520, 320, false);
}

DEVICE_TEST(refused)
{
	const struct matmul_variant *v = all(d);
	const struct mat none = {0};
	struct mat wide = mat_blank(16, 16), x = stored(wide, DT_BF16),
		   y = stored(wide, DT_BF16), bias = stored(mat_blank(1, 16), DT_BF16);
	struct mat odd = mat_typed(x.p, 16, 12, DT_BF16),
		   few = mat_typed(x.p, 12, 16, DT_BF16);
	struct mat shifted = mat_typed((char *)x.p + 8, 4, 16, DT_BF16),
		   part = mat_typed(y.p, 4, 16, DT_BF16);
	assert_true(v->run(d, y, x, x, none));
	assert_false(v->run(d, y, odd, odd, none));
	assert_false(v->run(d, mat_typed(y.p, 16, 12, DT_BF16), x, few, none));
	assert_false(v->run(d, part, shifted, x, none));
	assert_false(v->run(d, wide, x, x, none));
	assert_false(v->run(d, y, x, x, bias));
	device_wait(d);
}

int main(void)
{
	return run_on_device();
}
