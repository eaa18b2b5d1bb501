/* The epilogues of the matmuls for sm_90a: the bits of separate kernels.
 * device: cuda
 */
#include "tests/support/device.h"
#include "tests/support/kernels_ref.h"
#include "tests/support/matmul_hopper.h"

static const struct mat none;

static const struct matmul_epilogues *epilogues(struct device *d)
{
	const struct matmul_epilogues *e = matmul_epilogues(d);
	struct mat x = stored(mat_blank(8, 8), DT_BF16),
		   y = stored(mat_blank(8, 8), DT_BF16);
	assert_non_null(e);
	if (!e->run(d, "test", MATMUL_FWD, &(struct matmul_call){.y = y, .x = x, .w = x}))
		skip(); /* another GPU */
	return e;
}

static struct mat normal(int64_t rows, int64_t cols, double scale, enum dtype type)
{
	return stored(twin_random(rows, cols, scale).f, type);
}

static struct mat blank(int64_t rows, int64_t cols, enum dtype type)
{
	return stored(mat_blank(rows, cols), type);
}

static void check_same(const char *what, struct mat x, struct mat y)
{
	struct mat a = loaded(x), b = loaded(y);
	check_bits(what, a.p, b.p, mat_size(x));
}

static void run(struct device *d, enum matmul_kind kind, struct matmul_call c)
{
	assert_true(matmul_epilogues(d)->run(d, "test", kind, &c));
	device_wait(d);
}

static struct mat transposed(struct mat w)
{
	struct mat t = mat_blank(w.cols, w.rows), f = loaded(w);
	float *to = t.p, *from = f.p;
	for (int64_t i = 0; i < w.rows; i++)
		for (int64_t j = 0; j < w.cols; j++)
			to[j * w.rows + i] = from[i * w.cols + j];
	return stored(t, DT_BF16);
}

/* Tiles whose rows, columns and sums end in all ways: one tile and less; fewer stages than the ring
 * has, as many, and more; more tiles than blocks; more columns of tiles than a section has. */
static const int64_t shapes[][3] = {{1, 8, 8}, {128, 256, 64}, {130, 264, 72},
	{127, 504, 256}, {300, 248, 200}, {257, 776, 456}, {140, 13 * 256 + 40, 136},
	{900, 520, 320}};

struct operands {
	int64_t m, n, k;
	struct mat x, w, back; /* w[n][k], back[k][n] */
	struct mat product;    /* round(x w^T) */
};

static struct operands operands(struct device *d, const int64_t shape[3])
{
	struct operands o = {shape[0], shape[1], shape[2], .product = none};
	double scale = 1 / sqrt((double)o.k);
	o.x = normal(o.m, o.k, 1, DT_BF16);
	o.w = normal(o.n, o.k, scale, DT_BF16);
	o.back = transposed(o.w);
	o.product = blank(o.m, o.n, DT_BF16);
	run(d, MATMUL_FWD, (struct matmul_call){.y = o.product, .x = o.x, .w = o.w});
	return o;
}

/* The residual stream, with a bias and without; also in place. */
static void check_residual(struct device *d, const struct operands *o, bool bias)
{
	struct mat stream = twin_random(o->m, o->n, 1).f, y[2];
	struct mat b = bias ? twin_random(1, o->n, 1).f : none;
	((float *)stream.p)[0] = -0.0f;
	for (int i = 0; i < 2; i++)
		y[i] = mat_blank(o->m, o->n);
	d->k->residual(d, y[0], stream, o->product, b, NULL);
	const struct matmul_call c = {
		.y = y[1], .x = o->x, .w = o->w, .bias = b, .aux = stream};
	run(d, MATMUL_RESIDUAL, c);
	check_same("residual", y[1], y[0]);
	struct matmul_call in_place = c;
	in_place.y = stream;
	run(d, MATMUL_RESIDUAL, in_place);
	check_same("residual in place", stream, y[0]);
}

DEVICE_TEST(residual)
{
	epilogues(d);
	for (size_t i = 0; i < ARRAY_LEN(shapes); i++) {
		struct operands o = operands(d, shapes[i]);
		check_residual(d, &o, false);
		check_residual(d, &o, true);
	}
}

static void check_gelu(struct device *d, const struct operands *o, struct mat bias)
{
	struct mat a[2], y[2];
	for (int i = 0; i < 2; i++) {
		a[i] = blank(o->m, o->n, DT_BF16);
		y[i] = blank(o->m, o->n, DT_BF16);
	}
	run(d, MATMUL_FWD,
		(struct matmul_call){.y = a[0], .x = o->x, .w = o->w, .bias = bias});
	d->k->act_fwd(d, ACT_GELU_TANH, y[0], a[0], none);
	run(d, MATMUL_GELU,
		(struct matmul_call){
			.y = y[1], .x = o->x, .w = o->w, .bias = bias, .aux = a[1]});
	check_same("gelu, its argument", a[1], a[0]);
	check_same("gelu", y[1], y[0]);
}

DEVICE_TEST(gelu)
{
	epilogues(d);
	for (size_t i = 0; i < ARRAY_LEN(shapes); i++) {
		struct operands o = operands(d, shapes[i]);
		check_gelu(d, &o, none);
		check_gelu(d, &o, twin_random(1, o.n, 1).f);
		check_gelu(d, &o, normal(1, o.n, 1, DT_BF16));
	}
}

/* The matmul of the backward has the bits of the forward with the transposed weight. */
static void check_dgelu(struct device *d, const struct operands *o, bool sums)
{
	struct mat a = normal(o->m, o->n, 2, DT_BF16), y = blank(o->m, o->n, DT_BF16);
	struct mat da[2], db[2];
	for (int i = 0; i < 2; i++) {
		da[i] = blank(o->m, o->n, DT_BF16);
		db[i] = mat_blank(1, o->n);
	}
	run(d, MATMUL_BWD, (struct matmul_call){.y = y, .x = o->x, .w = o->back});
	check_same("backward", y, o->product);
	d->k->act_bwd(d, ACT_GELU_TANH, da[0], none, y, a, none);
	struct matmul_call c = {.y = da[1], .x = o->x, .w = o->back, .aux = a};
	if (sums)
		c.sums = db[1];
	run(d, sums ? MATMUL_DGELU_SUMS : MATMUL_DGELU, c);
	check_same("gelu's derivative", da[1], da[0]);
	if (!sums)
		return;
	d->k->bias_bwd(d, db[0], da[0]);
	check_same("sums of columns", db[1], db[0]);
}

DEVICE_TEST(dgelu)
{
	epilogues(d);
	for (size_t i = 0; i < ARRAY_LEN(shapes); i++) {
		struct operands o = operands(d, shapes[i]);
		check_dgelu(d, &o, false);
	}
}

DEVICE_TEST(sums)
{
	epilogues(d);
	for (size_t i = 0; i < ARRAY_LEN(shapes); i++) {
		struct operands o = operands(d, shapes[i]);
		check_dgelu(d, &o, true);
	}
}

/* Runs of 128 rows: an even number of them, an odd one, with a last one of few rows; and of 80, which
 * are not supported. */
DEVICE_TEST(long_sums)
{
	static const int64_t rows[] = {32768, 32768 - 128 - 37, 32768 - 90};
	const struct matmul_epilogues *e = epilogues(d);
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct operands o = operands(d, (const int64_t[]){rows[i], 16, 8});
		check_dgelu(d, &o, true);
	}
	struct mat x = blank(20000, 8, DT_BF16), y = blank(20000, 8, DT_BF16);
	const struct matmul_call c = {.y = y,
		.x = x,
		.w = blank(8, 8, DT_BF16),
		.aux = y,
		.sums = mat_blank(1, 8)};
	assert_false(e->run(d, "test", MATMUL_DGELU_SUMS, &c));
	device_wait(d);
}

static void check_tiles(
	struct device *d, const struct operands *o, int64_t real, float special)
{
	int64_t n = o->m * ceil_div(o->n, MATMUL_TILE_N);
	struct mat y = blank(o->m, o->n, DT_BF16), tiles[2], x = loaded(o->x);
	((float *)x.p)[(o->m - 1) * o->k] = special; /* the last row */
	x = stored(x, DT_BF16);
	for (int i = 0; i < 2; i++)
		tiles[i] = mat_blank(n, 2);
	run(d, MATMUL_XENT,
		(struct matmul_call){
			.y = y, .x = x, .w = o->w, .tiles = tiles[1].p, .real = real});
	if (special == 0.5f) {
		struct mat all = blank(o->m, o->n, DT_BF16);
		run(d, MATMUL_FWD, (struct matmul_call){.y = all, .x = x, .w = o->w});
		check_same("logits", y, all);
	}
	matmul_epilogues(d)->softmax_tiles(d, tiles[0].p, y, real);
	device_wait(d);
	check_same("statistics of tiles", tiles[1], tiles[0]);
}

/* Compares one state with a sum in float64. */
static void check_statistics(struct device *d)
{
	struct operands o = operands(d, (const int64_t[]){20, 520, 40});
	struct mat tiles = mat_blank(20 * 3, 2), y = loaded(o.product);
	const int64_t row = 17, real = 515;
	matmul_epilogues(d)->softmax_tiles(d, tiles.p, o.product, real);
	device_wait(d);
	for (int64_t i = 0; i < 3; i++) {
		const float *x = (const float *)y.p + row * o.n,
			    *of = (const float *)tiles.p + 2 * (row * 3 + i);
		double max = -INFINITY, sum = 0;
		int64_t end = min64(real, 256 * (i + 1));
		for (int64_t j = 256 * i; j < end; j++)
			max = fmax(max, x[j]);
		for (int64_t j = 256 * i; j < end; j++)
			sum += exp(x[j] - max);
		assert_true((double)of[0] == max);
		assert_true(fabs((double)of[1] - sum) < 1e-5 * sum);
	}
}

DEVICE_TEST(statistics)
{
	epilogues(d);
	check_statistics(d);
	for (size_t i = 0; i < ARRAY_LEN(shapes); i++) {
		struct operands o = operands(d, shapes[i]);
		check_tiles(d, &o, o.n, 0.5f);
		check_tiles(d, &o, max64(1, o.n - 301), 0.5f);
		check_tiles(d, &o, o.n - 3, INFINITY);
	}
}

int main(void)
{
	return run_on_device();
}
