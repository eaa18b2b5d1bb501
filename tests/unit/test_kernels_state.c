/* Kernels on parameters, gradients and optimizer state.
 * isa: sse2 avx2 avx512
 * device: cpu cuda
 */
#include "tests/support/device.h"
#include "tests/support/kernels_ref.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { LARGE = 40000 }; /* enough for threads */

/* ---- AdamW ----------------------------------------------------------------------- */

static void check_adamw(struct device *d, int64_t n, struct update o, float decay)
{
	struct twin p = twin_random(1, n, 1), m = twin_blank(1, n), v = twin_blank(1, n);
	d->k->zero(d, m.f);
	d->k->zero(d, v.f);
	for (int step = 1; step <= 10; step++) {
		struct twin g = twin_random(1, n, 0.1);
		o.correct1 = (float)(1 - pow((double)o.beta1, step));
		o.correct2 = (float)(1 - pow((double)o.beta2, step));
		/* in two parts */
		int64_t k = n / 3;
		float *pf = p.f.p, *mf = m.f.p, *vf = v.f.p, *gf = g.f.p;
		const struct update_part parts[] = {{.p = pf,
							    .m = mf,
							    .v = vf,
							    .g = gf,
							    .n = k,
							    .decay = decay,
							    .rate = 1},
			{.p = pf + k,
				.m = mf + k,
				.v = vf + k,
				.g = gf + k,
				.n = n - k,
				.decay = decay,
				.rate = 1}};
		d->k->adamw(d, parts, ARRAY_LEN(parts), there(&o, sizeof(o)));
		ref_adamw(p.r, m.r, v.r, g.r, n, &o, (double)decay, step);
	}
	twin_check("adamw, m", m, 1e-6);
	twin_check("adamw, v", v, 1e-6);
	twin_check("adamw, p", p, 1e-6);
}

DEVICE_TEST(adamw)
{
	static const float decays[] = {0, 0.1f, 0.5f};
	static const struct update some[] = {
		{.lr = 1e-2f,
			.beta1 = 0.9f,
			.beta2 = 0.999f,
			.eps = 1e-8f,
			.grad_scale = 1},
		{.lr = 1e-2f,
			.beta1 = 0.9f,
			.beta2 = 0.95f,
			.eps = 1e-8f,
			.grad_scale = 1},
		{.lr = 3e-2f,
			.beta1 = 0.8f,
			.beta2 = 0.99f,
			.eps = 1e-2f,
			.grad_scale = 0.037f},
	};
	static const int64_t sizes[] = {5, 15, 16, 1003, LARGE + 7};
	for (size_t i = 0; i < ARRAY_LEN(some); i++)
		for (size_t j = 0; j < ARRAY_LEN(sizes); j++)
			check_adamw(d, sizes[j], some[i], decays[i]);
}

/* ---- the end of a step ------------------------------------------------------------ */

/* The expected result, computed on the host. */
static struct step_end expected(
	const struct exact *loss, const struct exact *squares, const struct step_terms *t)
{
	struct step_end e = {.update = t->update, .step = t->step};
	e.loss = (float)(exact_round(loss) / t->count);
	e.too_large = exact_round(squares) == -(double)INFINITY;
	e.grad_norm = (float)(sqrt(fabs(exact_round(squares))) / (double)t->scale);
	bool clips = t->max_norm > 0 && (double)e.grad_norm > t->max_norm;
	e.update.grad_scale =
		clips ? (float)(t->max_norm / ((double)e.grad_norm + 1e-6)) : 1;
	e.update.grad_scale /= t->scale;
	e.update.off = !(isfinite(e.loss) && isfinite(e.grad_norm));
	return e;
}

static void same_end(const struct step_end *a, const struct step_end *b)
{
	check_bits("loss", &a->loss, &b->loss, 1);
	check_bits("norm", &a->grad_norm, &b->grad_norm, 1);
	check_bits("grad_scale", &a->update.grad_scale, &b->update.grad_scale, 1);
	check_bits("lr", &a->update.lr, &b->update.lr, 1);
	check_bits("correct2", &a->update.correct2, &b->update.correct2, 1);
	assert_int_equal(a->update.off, b->update.off);
	assert_int_equal(a->too_large, b->too_large);
	assert_int_equal(a->step, b->step);
}

/* Sums of numbers of all magnitudes, of more and less than 53 bits, of both signs; empty sums. */
DEVICE_TEST(step_end)
{
	static const double odd[] = {
		0, -0.0, 0x1p-1074, 0x1.8p-1073, 1e308, INFINITY, -INFINITY, NAN, 3};
	const struct step_end nothing = {.loss = 0};
	for (int i = 0; i < 80; i++) {
		const struct step_terms terms = {.update = {.lr = 0.1f, .correct2 = 0.3f},
			.count = (double)pick(1, 1 << 20),
			.max_norm = i % 3 ? 1e-3 * (double)pick(1, 9) : 0,
			.scale = i % 2 ? 1 : 65536,
			.step = ((int64_t)1 << 40) + i};
		struct exact *loss = exact_zero(), *squares = exact_zero();
		struct step_end *e = there(&nothing, sizeof(nothing));
		for (int64_t k = pick(0, 40); k > 0; k--) {
			double x = 2 * test_uniform((uint64_t)i, k) - 1;
			int size = (int)pick(-1100, i % 4 ? 20 : 1000);
			exact_add(loss, ldexp(x, size));
			exact_add(squares, ldexp(x * x, size));
		}
		if (i >= 40 && i < 40 + 2 * (int)ARRAY_LEN(odd))
			exact_add(i % 2 ? loss : squares, odd[(i - 40) / 2]);
		struct step_end want = expected(loss, squares, &terms);
		const uint64_t word[] = {0, (uint64_t)GRID_PRIME << 20, 1 + i % 5};
		want.update.off |= i % 4 == 3; /* with the wrong word */
		exact_normalize(loss);	       /* as kernels leave them, or not */
		d->k->step_end(d, e, loss, squares, there(&terms, sizeof(terms)),
			there(word, sizeof(word)), i % 4);
		same_end(e, &want);
	}
}

/* A step with a nonfinite loss or norm changes nothing. */
DEVICE_TEST(adamw_is_off)
{
	const struct update o = {.lr = 0.1f,
		.eps = 1,
		.grad_scale = 1,
		.correct1 = 1,
		.correct2 = 1,
		.off = true};
	struct mat p = twin_random(1, LARGE, 1).f, g = twin_random(1, LARGE, 1).f;
	struct mat all[] = {p, twin_random(1, LARGE, 1).f, twin_random(1, LARGE, 1).f};
	struct mat before[ARRAY_LEN(all)];
	struct mat copy = mat_typed(shorts(LARGE), 1, LARGE, DT_BF16);
	for (size_t i = 0; i < ARRAY_LEN(all); i++)
		d->k->copy(d, before[i] = mat_blank(1, LARGE), all[i]);
	const struct update_part part = {.p = p.p,
		.m = all[1].p,
		.v = all[2].p,
		.g = g.p,
		.copy = copy,
		.n = LARGE,
		.decay = 0.1f,
		.rate = 1};
	d->k->adamw(d, &part, 1, there(&o, sizeof(o)));
	for (size_t i = 0; i < ARRAY_LEN(all); i++)
		check_bits("adamw, off", all[i].p, before[i].p, LARGE);
	for (int64_t i = 0; copy.p && i < LARGE; i++)
		assert_int_equal(((uint16_t *)copy.p)[i], 0);
}

/* ---- sums ------------------------------------------------------------------------ */

DEVICE_TEST(row_squares)
{
	for (int i = 0; i < 10; i++) {
		int64_t rows = pick(1, 60), cols = pick(1, 700);
		struct mat x = mat_blank(rows, cols);
		fill_normal(
			x.p, rows * cols, i < 5 ? 1 : 1e25); /* beyond what float holds */
		for (int64_t r = 0; r < rows; r++) {
			long double want = 0;
			for (int64_t j = 0; j < cols; j++) {
				long double v = ((const float *)x.p)[r * cols + j];
				want += v * v;
			}
			assert_near(sumsq_of(d, mat_rows(x, r, 1)), (double)want,
				1e-14 * (double)want);
		}
	}
}

/* Multiples of 2^-20 below 2^20 sum in an integer. */
DEVICE_TEST(exact_sum)
{
	float *x = floats(LARGE);
	struct exact *sum = exact_zero();
	int64_t want = 0;
	for (int64_t i = 0; i < LARGE; i++) {
		int64_t v = pick(-(1 << 23), 1 << 23);
		x[i] = (float)ldexp((double)v, -(int)(i % 20));
		want += v * ((int64_t)1 << (20 - i % 20));
	}
	d->k->exact_sum(d, sum, x, 1000);
	d->k->exact_sum(d, sum, x + 1000, LARGE - 1000);
	assert_true(exact_round(sum) == ldexp((double)want, -20));
	x[5] = INFINITY;
	d->k->exact_sum(d, sum, x, 10);
	assert_true(exact_round(sum) == (double)INFINITY);
}

/* Equals the exact sum of those of the rows, also if rows are cut in two. */
DEVICE_TEST(exact_sumsq)
{
	static const int64_t shapes[][2] = {
		{1, 1}, {3, 700}, {513, 40}, {2000, 8}, {1, LARGE}};
	for (size_t i = 0; i < ARRAY_LEN(shapes); i++) {
		int64_t rows = shapes[i][0], cols = shapes[i][1], half = rows / 2;
		struct mat x = twin_random(rows, cols, i % 2 ? 1 : 1e-12).f;
		struct exact *sum = exact_zero(), *parts = exact_zero(), want = {0};
		for (int64_t r = 0; r < rows; r++)
			exact_add(&want, sumsq_of(d, mat_rows(x, r, 1)));
		const struct mat halves[] = {
			mat_rows(x, half, rows - half), mat_rows(x, 0, half)};
		d->k->exact_sumsq(d, sum, &x, 1);
		d->k->exact_sumsq(d, parts, halves, 2);
		assert_true(exact_round(sum) == exact_round(&want));
		exact_normalize(&want);
		assert_memory_equal(parts, sum, sizeof(*sum));
		assert_memory_equal(sum, &want, sizeof(want));
	}
}

/* Adds neighbours, then pairs of neighbours, and so on. */
static double butterfly(const double *x, int n)
{
	return n == 1 ? *x : butterfly(x, n / 2) + butterfly(x + n / 2, n / 2);
}

/* Five bits in reverse: warp_sum() first adds lanes that differ in the highest. */
static int reversed(int i)
{
	return (i & 1) << 4 | (i & 2) << 2 | (i & 4) | (i & 8) >> 2 | i >> 4;
}

/* The sum of squares of a row as `warps` warps of a GPU add it. */
static double squares_of_warps(const float *x, int64_t cols, int warps)
{
	double lane[32 * 32][4] = {{0}}, warp[32], sums[32] = {0};
	for (int64_t j = 0; j < cols; j++)
		lane[j / 4 % (32 * warps)][j % 4] += (double)x[j] * (double)x[j];
	for (int w = 0; w < warps; w++) {
		for (int i = 0; i < 32; i++) {
			const double *l = lane[32 * w + i];
			warp[reversed(i)] = (l[0] + l[1]) + (l[2] + l[3]);
		}
		sums[reversed(w)] = butterfly(warp, 32);
	}
	return butterfly(sums, 32);
}

/* A GPU adds a row in an order that depends on the number of columns only. */
DEVICE_TEST(exact_sumsq_order)
{
	static const int64_t widths[] = {
		1, 31, 768, 1024, 1025, 1600, 2044, 2048, 2049, 3072, 6404, 65536, 65540};
	if (!test_on_cuda())
		skip();
	for (size_t i = 0; i < ARRAY_LEN(widths); i++) {
		enum { ROWS = 41 };
		int64_t cols = widths[i], rows = cols > 8000 ? 2 : ROWS;
		int warps = cols <= 1024 ? 1 : cols <= 65536 ? 8 : 32;
		struct mat x = twin_random(rows, cols, 1).f,
			   apart = mat_blank(1, cols + 1);
		struct exact *sum = exact_zero(), want = {0};
		for (int64_t r = 0; r < rows; r++) {
			const float *row = (const float *)x.p + r * cols;
			float *unaligned = (float *)apart.p + 1;
			double v = squares_of_warps(row, cols, warps);
			memcpy(unaligned, row, (size_t)cols * sizeof(*row));
			assert_true(sumsq_of(d, mat(unaligned, 1, cols)) == v);
			exact_add(&want, v);
		}
		d->k->exact_sumsq(d, sum, &x, 1);
		exact_normalize(&want);
		assert_memory_equal(sum, &want, sizeof(want));
	}
}

/* One call with many matrices, of all widths and some empty, equals one call for each. */
DEVICE_TEST(exact_sumsq_many)
{
	enum { MANY = 150 };
	struct mat m[MANY];
	struct exact *at_once = exact_zero(), *one_by_one = exact_zero();
	for (int i = 0; i < MANY; i++) {
		int64_t cols = i % 50 == 7 ? LARGE : i % 3 ? pick(1, 300) : 1032;
		int64_t rows = i % 11 == 3 ? 0 : pick(1, i % 3 ? 40 : 3);
		m[i] = twin_random(i % 50 == 7 ? 1 : rows, cols, 1).f;
		d->k->exact_sumsq(d, one_by_one, &m[i], 1);
	}
	d->k->exact_sumsq(d, at_once, m, MANY);
	assert_memory_equal(at_once, one_by_one, sizeof(*at_once));
	assert_true(exact_round(at_once) > 0);
	d->k->exact_sumsq(d, at_once, m, 0);
	assert_memory_equal(at_once, one_by_one, sizeof(*at_once));
}

/* ---- the device's memory --------------------------------------------------------- */

/* `get` returns the bytes of `put`, whose source may be overwritten; in one copy and in many, at any
 * alignment. */
DEVICE_TEST(memory)
{
	enum { N = 5 << 20 };
	char *there = device_alloc(d, N);
	unsigned char *here = xmalloc(N), *back = xmalloc(N);
	assert_non_null(there);
	device_get(d, back, there, N);
	for (int64_t i = 0; i < N; i++)
		assert_int_equal(back[i], 0);
	for (int64_t i = 0; i < N; i++)
		here[i] = (unsigned char)(i * 31 % 251);
	device_put(d, there, here, 1000);
	for (int64_t i = 1000; i < N; i += 999999)
		device_put(d, there + i, here + i, (size_t)min64(999999, N - i));
	memset(here, 0, N);
	device_wait(d);
	device_get(d, back, there, N);
	for (int64_t i = 0; i < N; i++)
		assert_int_equal(back[i], i * 31 % 251);
	memset(here, 1, N);
	device_put(d, there, here, N); /* and in the order of kernels */
	d->k->zero(d, mat(there, 1, N / 8));
	device_get(d, back + 1, there + N / 2 - 3, 7);
	assert_memory_equal(back + 1, "\0\0\0\1\1\1\1", 7);
	device_put(d, there, here, 0);
	device_get(d, here, there, 0);
	device_free(d, there, N);
	device_free(d, NULL, 0);
	free(here);
	free(back);
}

/* device_get_end() gives the contents at the time of device_get_begin(). */
DEVICE_TEST(got_later)
{
	float got[MAX_GET_BYTES / sizeof(float)];
	struct mat x = twin_random(1, ARRAY_LEN(got), 1).f, y = mat_blank(1, x.cols);
	d->k->copy(d, y, x);
	device_get_begin(d, got, x.p, sizeof(got));
	d->k->zero(d, x);
	device_get_end(d);
	check_bits("got", got, y.p, x.cols);
	device_get_begin(d, got + 1, x.p, sizeof(*got));
	device_get_end(d);
	assert_true(got[1] == 0 && got[2] == ((float *)y.p)[2]);
}

/* ---- zero, copy, find_nonfinite -------------------------------------------------------- */

DEVICE_TEST(zero_and_copy)
{
	static const int64_t cols[] = {1, 17, 1 << 14, (1 << 14) + 1, LARGE};
	for (size_t i = 0; i < ARRAY_LEN(cols); i++) {
		struct mat x = twin_random(3, cols[i], 1).f, y = mat_blank(3, cols[i]);
		d->k->copy(d, y, x);
		check_bits("copy", y.p, x.p, mat_size(x));
		d->k->zero(d, y);
		for (int64_t j = 0; j < mat_size(y); j++)
			assert_true(((float *)y.p)[j] == 0);
	}
}

DEVICE_TEST(find_nonfinite)
{
	static const float bad[] = {NAN, -NAN, INFINITY, -INFINITY};
	static const int64_t at[] = {0, 1, 16, 77, LARGE - 1};
	struct mat x = twin_random(1, LARGE, 1).f;
	float *p = x.p;
	p[3] = 3.4e38f;
	assert_int_equal(d->k->find_nonfinite(d, x), -1);
	for (size_t i = ARRAY_LEN(at); i-- > 0;) { /* the first of ever more */
		p[at[i]] = bad[i % ARRAY_LEN(bad)];
		assert_int_equal(d->k->find_nonfinite(d, x), at[i]);
	}
	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		p[0] = bad[i];
		assert_int_equal(d->k->find_nonfinite(d, x), 0);
	}
}

/* ---- hash ------------------------------------------------------------------------ */

DEVICE_TEST(hash_is_additive)
{
	static const int64_t cuts[] = {0, 1, 2, 19, 1000, 20011, LARGE - 1, LARGE};
	const int64_t first = (int64_t)1 << 40;
	const float *x = twin_random(1, LARGE, 1).f.p;
	uint64_t whole = kernel_hash(d, x, LARGE, 42, first), parts = 0;
	for (size_t i = 0; i + 1 < ARRAY_LEN(cuts); i++)
		parts += kernel_hash(
			d, x + cuts[i], cuts[i + 1] - cuts[i], 42, first + cuts[i]);
	assert_true(whole == parts);
	assert_true(kernel_hash(d, x, 0, 42, first) == 0);
}

/* The columns of a matrix in three slices, one call for each. */
DEVICE_TEST(hash_of_columns)
{
	enum { ROWS = 211, COLS = 101 };
	static const int64_t cuts[] = {0, 1, 43, COLS};
	const int64_t first = (int64_t)1 << 40;
	struct mat x = twin_random(ROWS, COLS, 1).f;
	uint64_t sum, *word = device_alloc(d, sizeof(*word));
	for (size_t i = 0; i + 1 < ARRAY_LEN(cuts); i++) {
		struct mat part = mat_blank(ROWS, cuts[i + 1] - cuts[i]);
		for (int64_t r = 0; r < ROWS; r++)
			memcpy((float *)part.p + r * part.cols,
				(const float *)x.p + r * COLS + cuts[i],
				(size_t)part.cols * sizeof(float));
		d->k->hash(d, word, part, 42, first + cuts[i], COLS);
	}
	device_get(d, &sum, word, sizeof(sum));
	device_free(d, word, sizeof(*word));
	assert_true(sum == kernel_hash(d, x.p, mat_size(x), 42, first));
}

/* Elements of 16 bits have the hash of the same numbers in fp32, from an odd element on too. */
DEVICE_TEST(hash_of_16_bits)
{
	enum { ROWS = 37, COLS = 113 };
	static const enum dtype types[] = {DT_BF16, DT_F16};
	for (size_t i = 0; i < ARRAY_LEN(types); i++)
		for (int first = 0; first < 2; first++) {
			struct mat x = stored(twin_random(ROWS, COLS, 1).f, types[i]);
			const int64_t n = mat_size(x) - first;
			const float *wide = (const float *)loaded(x).p + first;
			uint64_t sum, *word = device_alloc(d, sizeof(*word));
			x = mat_typed((uint16_t *)x.p + first, 1, n, types[i]);
			d->k->hash(d, word, x, 42, 7, n);
			device_get(d, &sum, word, sizeof(sum));
			device_free(d, word, sizeof(*word));
			assert_true(sum == kernel_hash(d, wide, n, 42, 7));
		}
}

/* One bit of an element, its index, the first index, the key: each changes the hash. */
DEVICE_TEST(hash_is_sensitive)
{
	enum { N = 1000 };
	float *x = twin_random(1, N, 1).f.p;
	uint64_t before = kernel_hash(d, x, N, 1, 0);
	for (int64_t i = 0; i < N; i += 113) {
		for (int bit = 0; bit < 32; bit++) {
			uint32_t bits, kept;
			memcpy(&kept, x + i, sizeof(kept));
			bits = kept ^ (uint32_t)1 << bit;
			memcpy(x + i, &bits, sizeof(bits));
			assert_true(kernel_hash(d, x, N, 1, 0) != before);
			memcpy(x + i, &kept, sizeof(kept));
		}
		float swap = x[i];
		x[i] = x[(i + 1) % N];
		x[(i + 1) % N] = swap;
		assert_true(kernel_hash(d, x, N, 1, 0) != before);
		x[(i + 1) % N] = x[i];
		x[i] = swap;
	}
	assert_true(kernel_hash(d, x, N, 1, 0) == before);
	assert_true(kernel_hash(d, x, N, 1, 1) != before);
	assert_true(kernel_hash(d, x, N, 2, 0) != before);
	x[7] = 0;
	before = kernel_hash(d, x, N, 1, 0);
	x[7] = -0.0f;
	assert_true(kernel_hash(d, x, N, 1, 0) != before);
}

/* Hashes are kept in files and compared between devices: they must not change. */
DEVICE_TEST(hash_is_known)
{
	float *x = floats(4);
	for (int i = 0; i < 4; i++)
		x[i] = (float)i - 1.5f;
	assert_true(kernel_hash(d, x, 4, 3, 5) == 0x85565ea729ae943u);
}

int main(void)
{
	return run_on_device();
}
