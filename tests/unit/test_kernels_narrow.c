/*
 * Casts of 16-bit types, and checks of whole tensors. (test_kernels_types.c compares the kernels of layers.)
 * isa: sse2 avx2 avx512
 * device: cpu cuda
 */
#include "tests/support/device.h"
#include "tests/support/kernels_ref.h"

#include <math.h>
#include <string.h>

/* Rows of whole packs of 8 and of 4, and others; rows for a warp, and for a block. */
static const int64_t shapes[][2] = {
	{1, 1}, {3, 7}, {17, 64}, {5, 100}, {33, 131}, {2, 1536}, {2, 2501}, {1, 9000}};
static const enum dtype types[] = {DT_BF16, DT_F16};

static struct mat random16(int64_t rows, int64_t cols, enum dtype type, double scale)
{
	return stored(twin_random(rows, cols, scale).f, type);
}

static struct mat blank16(int64_t rows, int64_t cols, enum dtype type)
{
	return stored(mat_blank(rows, cols), type);
}

typedef void check_shape(struct device *, int64_t rows, int64_t cols, enum dtype);

static void each_shape(struct device *d, check_shape *check)
{
	for (size_t t = 0; t < ARRAY_LEN(types); t++)
		for (size_t i = 0; i < ARRAY_LEN(shapes); i++)
			check(d, shapes[i][0], shapes[i][1], types[t]);
}

/* `round` stores in 16 or 8 bits the number that it computes in fp32. */
static void check_round(struct device *d, int64_t rows, int64_t cols, enum dtype type)
{
	int64_t n = rows * cols;
	struct mat x = random16(rows, cols, type, 30);
	uint16_t *bits = x.p;
	bits[n / 2] = type == DT_BF16 ? 0xff80 : 0xfc00; /* -infinity */
	bits[n / 3] = 0x7fff;				 /* none */
	struct mat in[] = {x, loaded(x)};
	struct mat want = mat_blank(rows, cols), have = mat_blank(rows, cols);
	struct device cpu;
	device_open_cpu(&cpu, 1);
	for (enum dtype to = DT_BF16; to <= DT_E5M2; to++)
		for (int i = 0; i < 2; i++) {
			struct mat y = stored(have, to);
			cpu.k->round(&cpu, want, in[1], to, 0.37f);
			d->k->round(d, have, in[i], to, 0.37f);
			check_bits("round, to fp32", have.p, want.p, n);
			d->k->round(d, y, in[i], to, 0.37f);
			check_bits("round", loaded(y).p, want.p, n);
		}
}

DEVICE_TEST(rounding)
{
	each_shape(d, check_round);
}

/* A gradient in place of dy. */
static void check_in_place(struct device *d, int64_t rows, int64_t cols, enum dtype type)
{
	for (int kind = 0; kind < N_ACT_KINDS; kind++) {
		bool gated = act_is_gated((enum act_kind)kind);
		struct mat none = mat(NULL, 0, 0), a = random16(rows, cols, type, 2);
		struct mat b = gated ? random16(rows, cols, type, 1) : none;
		struct mat db = gated ? blank16(rows, cols, type) : none;
		struct mat dy = random16(rows, cols, type, 1);
		struct mat da = blank16(rows, cols, type);
		d->k->act_bwd(d, kind, da, db, dy, a, b);
		d->k->act_bwd(d, kind, dy, db, dy, a, b);
		assert_memory_equal(dy.p, da.p, (size_t)mat_bytes(da));
	}
}

DEVICE_TEST(act_bwd_in_place)
{
	each_shape(d, check_in_place);
}

/* A cast gives the same numbers without a transposed matrix, with it, and in it alone. */
static void check_transposed(
	struct device *d, int64_t rows, int64_t cols, enum dtype type)
{
	int64_t n = rows * cols, words = (n + 3) / 4;
	struct mat x = random16(rows, cols, type, 30), in[] = {x, loaded(x)};
	for (int i = 0; i < 4; i++) {
		enum dtype to = i / 2 ? DT_E5M2 : DT_E4M3;
		struct mat want = mat_typed(floats(words), rows, cols, to), y = want;
		float *inverse = floats(3), *amax = scalar(amax_of(d, x));
		y.p = floats(words);
		y.transposed = floats(words);
		d->k->round_scaled(d, want, inverse, in[i % 2], to, amax);
		d->k->round_scaled(d, y, inverse + 1, in[i % 2], to, amax);
		assert_memory_equal(y.p, want.p, (size_t)n);
		struct mat alone = y;
		alone.p = NULL;
		alone.transposed = floats(words);
		d->k->round_scaled(d, alone, inverse + 2, in[i % 2], to, amax);
		for (int64_t j = 0; j < n; j++) {
			uint8_t v = ((uint8_t *)want.p)[j];
			int64_t at = j % cols * rows + j / cols;
			assert_int_equal(((uint8_t *)y.transposed)[at], v);
			assert_int_equal(((uint8_t *)alone.transposed)[at], v);
		}
		assert_true(inverse[1] == inverse[0] && inverse[2] == inverse[0]);
	}
}

DEVICE_TEST(transposed)
{
	each_shape(d, check_transposed);
	check_transposed(d, 256, 192, DT_BF16); /* whole tiles */
	check_transposed(d, 144, 80, DT_BF16);
}

static void check_whole(struct device *d, int64_t rows, int64_t cols, enum dtype type)
{
	int64_t n = rows * cols, at = pick(0, n - 1);
	struct mat x = random16(rows, cols, type, 1), y = blank16(rows, cols, type);
	uint16_t *bits = x.p;
	struct mat wide = loaded(x);
	float most = 0;
	for (int64_t i = 0; i < n; i++)
		most = fmaxf(most, fabsf(((float *)wide.p)[i]));
	assert_true(amax_of(d, x) == most);
	assert_int_equal(d->k->find_nonfinite(d, x), -1);
	d->k->copy(d, y, x);
	assert_memory_equal(y.p, x.p, (size_t)mat_bytes(x));
	bits[n - 1] = 0x7fff;
	bits[at] = type == DT_BF16 ? 0x7f80 : 0x7c00;
	assert_int_equal(d->k->find_nonfinite(d, x), at);
	assert_true(at == n - 1 || isnan(amax_of(d, x)));
	d->k->zero(d, mat_rows(x, rows / 2, rows - rows / 2));
	for (int64_t i = rows / 2 * cols; i < n; i++)
		assert_int_equal(bits[i], 0);
	for (int64_t i = 0; i < rows / 2 * cols; i++)
		assert_true(bits[i] == ((uint16_t *)y.p)[i] || i == at);
}

DEVICE_TEST(of_a_whole_tensor)
{
	each_shape(d, check_whole);
}

/* A sum that overflows fp16 is infinity, and find_nonfinite finds it. */
DEVICE_TEST(overflow)
{
	struct mat y = random16(3, 40, DT_F16, 1), b = twin_random(1, 40, 1).f;
	((float *)b.p)[17] = 70000;
	d->k->bias_fwd(d, y, b);
	assert_int_equal(d->k->find_nonfinite(d, y), 17);
	assert_true(amax_of(d, y) == INFINITY);
}

/* A copy at an address that is no multiple of 4. */
static struct mat moved(struct mat x)
{
	struct mat to = x;
	to.p = shorts(mat_size(x) + 1) + 1;
	memcpy(to.p, x.p, (size_t)mat_bytes(x));
	return to;
}

/* Numbers get the same bits at any address: in whole packs, and one by one. */
static void check_anywhere(struct device *d, enum dtype type, int64_t heads, int64_t dim)
{
	enum { ROWS = 37, POSITIONS = 50 };
	struct mat x = random16(ROWS, heads * dim, type, 1), far = moved(x);
	struct mat table = twin_random(POSITIONS, dim, 1).f;
	int32_t *pos = ints(ROWS);
	for (int64_t i = 0; i < ROWS; i++)
		pos[i] = (int32_t)pick(0, POSITIONS - 1);
	assert_true((uintptr_t)x.p % 16 == 0 && (uintptr_t)far.p % 4 == 2);
	d->k->rope(d, x, dim, table, pos, -1);
	d->k->rope(d, far, dim, table, pos, -1);
	assert_memory_equal(x.p, far.p, (size_t)mat_bytes(x));
}

static void check_act_anywhere(struct device *d, enum dtype type, int64_t n)
{
	for (int kind = 0; kind < N_ACT_KINDS; kind++) {
		struct mat a = random16(1, n, type, 2), b = random16(1, n, type, 1);
		struct mat dy = random16(1, n, type, 1), y = blank16(1, n, type);
		struct mat da = blank16(1, n, type), db = blank16(1, n, type);
		struct mat far_y = moved(y), far_a = moved(da), far_b = moved(db);
		size_t n_bytes = (size_t)mat_bytes(y);
		((uint16_t *)a.p)[n / 3] = ((uint16_t *)dy.p)[n / 3] =
			type == DT_BF16 ? 0x4120 : 0x4900; /* 10, the largest */
		y.amax = scalar(0), da.amax = scalar(0), db.amax = scalar(0);
		d->k->act_fwd(d, kind, y, a, b);
		d->k->act_fwd(d, kind, far_y, moved(a), b);
		assert_memory_equal(y.p, far_y.p, n_bytes);
		d->k->act_bwd(d, kind, da, db, dy, a, b);
		d->k->act_bwd(d, kind, far_a, far_b, moved(dy), a, b);
		assert_memory_equal(da.p, far_a.p, n_bytes);
		assert_memory_equal(db.p, far_b.p, n_bytes);
		assert_true(*y.amax == amax_of(d, y) && *da.amax == amax_of(d, da));
		assert_true(
			!act_is_gated((enum act_kind)kind) || *db.amax == amax_of(d, db));
	}
}

DEVICE_TEST(anywhere)
{
	static const int64_t sizes[] = {8, 4096, 2 * 4096 + 8, 4095};
	for (size_t i = 0; i < ARRAY_LEN(sizes) * ARRAY_LEN(types); i++)
		check_act_anywhere(d, types[i % 2], sizes[i / 2]);
	static const int64_t of[][2] = {{1, 16}, {3, 64}, {8, 64}, {2, 128}, {5, 48}};
	for (size_t i = 0; i < ARRAY_LEN(of) * ARRAY_LEN(types); i++)
		check_anywhere(d, types[i % 2], of[i / 2][0], of[i / 2][1]);
}

/* The distance between the numbers of this type around x. */
static double ulp(double x, enum dtype type)
{
	int digits = type == DT_BF16 ? 8 : 11, least = type == DT_BF16 ? -126 : -14;
	return ldexp(1, (x == 0 ? least : (int)fmax(ilogb(x), least)) - digits + 1);
}

/* The float64 result, correctly rounded, but for the fraction `more` of a distance, and `wide`. */
static void check_rounded(const char *what, struct mat y, const double *want,
	enum dtype type, double more, double wide)
{
	const float *have = loaded(y).p;
	const double most = type == DT_BF16 ? 0x1.FEp127 : 65504;
	for (int64_t i = 0; i < mat_size(y); i++) {
		double to = fmax(-most, fmin(most, want[i]));
		double error = fabs((double)have[i] - to);
		if (!(error <= (0.5 + more) * ulp(to, type) + wide))
			fail_msg("%s, number %d: %g instead of %g", what, (int)i,
				(double)have[i], to);
	}
}

/* Of all 16-bit numbers up to 2^60 that are finite: a GPU computes with approximate
 * instructions, which the results must not show. Slopes pass through zero near -0.75. */
DEVICE_TEST(all_numbers)
{
	enum { N = 65536 };
	if (!d->discrete)
		skip(); /* a CPU's erf has an absolute error */
	for (size_t i = 0; i < 3 * ARRAY_LEN(types); i++) {
		enum dtype type = types[i % 2];
		enum act_kind kind = (enum act_kind)(i / 2);
		double more = type == DT_BF16 ? 0.03 : 0.12;
		struct mat one = mat_blank(1, N), a = blank16(1, N, type), b;
		struct mat y = blank16(1, N, type), db = blank16(1, N, type);
		double *x = doubles(N), *gate = doubles(N), *want = doubles(N);
		for (int j = 0; j < N; j++)
			((uint16_t *)a.p)[j] = (uint16_t)j;
		const float *all = loaded(a).p;
		for (int j = 0; j < N; j++) {
			float v = all[j];
			v = fabsf(v) <= 0x1p60F ? v : 0; /* of NaN too */
			((float *)one.p)[j] = 1;
			x[j] = (double)v, gate[j] = 1;
		}
		b = stored(one, type);
		for (int j = 0; j < N; j++)
			((uint16_t *)a.p)[j] = x[j] == 0 ? 0 : (uint16_t)j;
		d->k->act_fwd(d, kind, y, a, b);
		ref_act_fwd(kind, want, x, gate, N);
		check_rounded("act_fwd", y, want, type, more, 1e-15);
		memset(want, 0, N * sizeof(*want));
		d->k->act_bwd(d, kind, y, db, b, a, b);
		ref_act_bwd(kind, want, doubles(N), gate, x, gate, N);
		check_rounded("act_bwd", y, want, type, more, 5e-7);
	}
}

int main(void)
{
	return run_on_device();
}
