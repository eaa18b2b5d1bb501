/*
 * Kernels on 16-bit types: the inputs are rounded, the reference
 * computes from them in float64, and the results must be the reference's, rounded.
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

static struct device *cpu(void)
{
	static struct device d;
	if (!d.k)
		device_cpu(&d, 1);
	return &d;
}

/* ---- 16-bit matrices -------------------------------------------------------------- */

static struct mat blank16(int64_t rows, int64_t cols, enum dtype type)
{
	return mat_typed(floats((rows * cols + 1) / 2), rows, cols, type);
}

static struct mat widened(struct mat m)
{
	struct mat x = mat_blank(m.rows, m.cols);
	cpu()->k->widen(cpu(), x, m.p, m.type);
	return x;
}

/* The same random numbers, in 16 bits for the kernel. */
static struct twin random16(int64_t rows, int64_t cols, enum dtype type, double scale)
{
	struct twin t = twin_random(rows, cols, scale);
	struct mat m = blank16(rows, cols, type);
	cpu()->k->narrow(cpu(), m.p, t.f, type);
	t.f = widened(m);
	twin_sync(t);
	t.f = m;
	return t;
}

/* fp32, or a 16-bit type. */
static struct twin random_any(int64_t rows, int64_t cols, enum dtype type)
{
	return type == DT_F32 ? twin_random(rows, cols, 1)
			      : random16(rows, cols, type, 1);
}

static struct twin twin16(int64_t rows, int64_t cols, enum dtype type)
{
	return (struct twin){blank16(rows, cols, type), doubles(rows * cols)};
}

/* Within half a ULP of the format around the reference, plus fp32's errors. */
static void check16(const char *what, struct twin t)
{
	bool bf16 = t.f.type == DT_BF16;
	const double half = bf16 ? 0x1p-8 : 0x1p-11, least = bf16 ? 0 : 0x1p-25;
	int64_t n = mat_size(t.f);
	struct mat wide = widened(t.f);
	const float *x = wide.p;
	double sum = 0;
	for (int64_t i = 0; i < n; i++)
		sum += t.r[i] * t.r[i];
	double rms = sqrt(sum / (double)n);
	for (int64_t i = 0; i < n; i++) {
		double error = fabs((double)x[i] - t.r[i]);
		double most = half * fabs(t.r[i]) + least + 1e-5 * (fabs(t.r[i]) + rms);
		if (!(error <= most))
			fail_msg("%s: element %d of %d x %d is %.9g, not %.9g", what,
				(int)i, (int)t.f.rows, (int)t.f.cols, (double)x[i],
				t.r[i]);
	}
}

typedef void check_shape(struct device *, int64_t rows, int64_t cols, enum dtype);

static void each_shape(void **state, check_shape *check)
{
	struct device *d = *state;
	for (size_t t = 0; t < ARRAY_LEN(types); t++)
		for (size_t i = 0; i < ARRAY_LEN(shapes); i++)
			check(d, shapes[i][0], shapes[i][1], types[t]);
}

/* Sets the amax of y, which the kernel must raise to the largest number of its result. */
static void amax_begin(struct twin *y)
{
	y->f.amax = scalar(0);
}

static void amax_end(struct device *d, const char *what, struct twin y)
{
	float most = amax_of(d, y.f);
	if (*y.f.amax != most)
		fail_msg("%s: the largest number is %g, and %g was kept", what,
			(double)most, (double)*y.f.amax);
}

/* ---- sums --------------------------------------------------------------------------- */

static void check_bias(struct device *d, int64_t rows, int64_t cols, enum dtype type)
{
	struct twin y = random16(rows, cols, type, 1), b = twin_random(1, cols, 1);
	struct twin db = twin_blank(1, cols);
	d->k->bias_bwd(d, db.f, y.f);
	ref_bias_bwd(db.r, y.r, rows, cols);
	twin_check("bias_bwd", db, 2e-6);
	d->k->bias_fwd(d, y.f, b.f);
	for (int64_t i = 0; i < rows * cols; i++)
		y.r[i] += b.r[i % cols];
	check16("bias_fwd", y);
}

static void bias(void **state)
{
	each_shape(state, check_bias);
}

/* More rows than one partial sum has, and more columns than one block. */
static void bias_of_many_rows(void **state)
{
	struct device *d = *state;
	check_bias(d, 1003, 264, DT_BF16);
	check_bias(d, 17000, 3, DT_F16);
}

static void check_add(struct device *d, int64_t rows, int64_t cols, enum dtype type)
{
	struct twin a = twin_random(rows, cols, 1), b = random16(rows, cols, type, 1);
	for (int64_t i = 0; i < rows * cols; i++)
		a.r[i] += b.r[i];
	d->k->add(d, a.f, a.f, b.f);
	twin_check("add", a, 1e-7);
}

static void add(void **state)
{
	each_shape(state, check_add);
}

/* ---- layers ------------------------------------------------------------------------- */

static void check_norm(struct device *d, int64_t rows, int64_t cols, enum dtype type)
{
	const float eps = 1e-5f;
	for (int kind = 0; kind < 2; kind++) {
		struct twin x = twin_random(rows, cols, 1), y = twin16(rows, cols, type);
		struct twin dy = random16(rows, cols, type, 1);
		struct twin dx = twin_random(rows, cols, 1);
		struct twin gamma = twin_random(1, cols, 1),
			    beta = twin_random(1, cols, 1);
		struct twin dgamma = twin_blank(1, cols), dbeta = twin_blank(1, cols);
		struct mat stats = mat_blank(2, rows);
		amax_begin(&y);
		d->k->norm_fwd(d, kind, y.f, stats, x.f, gamma.f, beta.f, eps);
		ref_norm_fwd(kind, y.r, x.r, gamma.r, beta.r, rows, cols, (double)eps);
		check16("norm_fwd", y);
		amax_end(d, "norm_fwd", y);
		if (cols == 1)
			continue; /* y is +-1, or 0, and what x does next to nothing */
		d->k->norm_bwd_x(d, kind, dx.f, dy.f, x.f, stats, gamma.f);
		d->k->norm_bwd_w(d, kind, dgamma.f, dbeta.f, dy.f, x.f, stats, 0, rows);
		ref_norm_bwd(kind, dx.r, dgamma.r, dbeta.r, dy.r, x.r, gamma.r, rows,
			cols, (double)eps);
		twin_check("norm_bwd_x", dx, 5e-6);
		twin_check("norm_bwd_w, gamma", dgamma, 5e-6);
		twin_check("norm_bwd_w, beta", dbeta, 2e-6);
	}
}

static void norm(void **state)
{
	each_shape(state, check_norm);
}

static void check_act(struct device *d, int64_t rows, int64_t cols, enum dtype type)
{
	for (int kind = 0; kind < 3; kind++) {
		bool gated = kind == ACT_SWIGLU;
		int64_t n = rows * cols;
		struct twin a = random16(rows, cols, type, 2),
			    y = twin16(rows, cols, type);
		struct twin b = gated ? random16(rows, cols, type, 1) : twin_none();
		struct twin dy = random16(rows, cols, type, 1);
		struct twin da = twin16(rows, cols, type);
		struct twin db = gated ? twin16(rows, cols, type) : twin_none();
		amax_begin(&y);
		amax_begin(&da);
		amax_begin(&db);
		d->k->act_fwd(d, kind, y.f, a.f, b.f);
		ref_act_fwd(kind, y.r, a.r, b.r, n);
		check16("act_fwd", y);
		d->k->act_bwd(d, kind, da.f, db.f, dy.f, a.f, b.f);
		ref_act_bwd(kind, da.r, db.r, dy.r, a.r, b.r, n);
		check16("act_bwd", da);
		if (gated)
			check16("act_bwd, b", db);
		amax_end(d, "act_fwd", y);
		amax_end(d, "act_bwd", da);
		if (gated)
			amax_end(d, "act_bwd, b", db);
		d->k->act_bwd(d, kind, dy.f, db.f, dy.f, a.f, b.f);
		assert_memory_equal(dy.f.p, da.f.p, (size_t)mat_bytes(da.f));
	}
}

static void act(void **state)
{
	each_shape(state, check_act);
}

static void rope(void **state)
{
	enum { POSITIONS = 50 };
	static const int64_t dims[] = {2, 8, 30, 64, 128};
	struct device *d = *state;
	for (size_t i = 0; i < 2 * ARRAY_LEN(dims); i++) {
		int64_t dim = dims[i / 2], rows = pick(1, 90), cols = dim * pick(1, 5);
		struct twin x = random16(rows, cols, types[i % 2], 1);
		struct twin table = twin_random(POSITIONS, dim, 1);
		int32_t *pos = ints(rows);
		for (int64_t r = 0; r < rows; r++)
			pos[r] = (int32_t)pick(0, POSITIONS - 1);
		d->k->rope(d, x.f, dim, table.f, pos, -1);
		ref_rope(x.r, rows, cols, dim, table.r, pos, -1);
		check16("rope", x);
	}
}

/* ---- dropout ------------------------------------------------------------------------ */

static struct dropout some_dropout(int64_t rows)
{
	int32_t *pos = ints(rows);
	for (int64_t i = 0; i < rows; i++)
		pos[i] = (int32_t)(i % 5);
	return (struct dropout){.key = {{1, 2}},
		.p = 0.3f,
		.step = counter(3),
		.first_sample = 9,
		.pos = pos,
		.seq_rows = 5,
		.first_col = pick(0, 9)};
}

static void keep(struct twin to, const double *x, const struct dropout *o)
{
	int64_t cols = to.f.cols;
	for (int64_t i = 0; i < mat_size(to.f); i++)
		to.r[i] = x[i] * ref_keep(o, i / cols / o->seq_rows, 0, o->pos[i / cols],
					 o->first_col + i % cols);
}

/* For each pair of formats. */
static void check_dropout(struct device *d, int64_t rows, int64_t cols, enum dtype type)
{
	struct dropout o = some_dropout(rows);
	const enum dtype pairs[][2] = {{type, type}, {type, DT_F32}, {DT_F32, type}};
	for (size_t i = 0; i < ARRAY_LEN(pairs); i++) {
		struct twin x = random_any(rows, cols, pairs[i][0]);
		struct twin y = pairs[i][1] == DT_F32 ? twin_blank(rows, cols)
						      : twin16(rows, cols, pairs[i][1]);
		d->k->dropout(d, y.f, x.f, &o);
		keep(y, x.r, &o);
		if (y.f.type == DT_F32)
			twin_check("dropout", y, 2e-7);
		else
			check16("dropout", y);
	}
}

static void dropout(void **state)
{
	each_shape(state, check_dropout);
}

static void check_residual(struct device *d, int64_t rows, int64_t cols, enum dtype type)
{
	struct dropout o = some_dropout(rows);
	struct twin x = twin_random(rows, cols, 1), y = twin_blank(rows, cols);
	struct twin sum = random16(rows, cols, type, 1), bias = twin_random(1, cols, 1);
	d->k->residual(d, y.f, x.f, sum.f, bias.f, &o);
	for (int64_t i = 0; i < rows * cols; i++)
		sum.r[i] += bias.r[i % cols];
	keep(y, sum.r, &o);
	for (int64_t i = 0; i < rows * cols; i++)
		y.r[i] += x.r[i];
	twin_check("residual", y, 1e-6);
}

static void residual(void **state)
{
	each_shape(state, check_residual);
}

/* ---- loss --------------------------------------------------------------------------- */

/* One slice with the whole vocabulary, padded with NaN. */
static void check_xent(struct device *d, int64_t rows, int64_t cols, enum dtype type)
{
	int64_t vocab = max64(1, cols - 3);
	struct twin x = random16(rows, cols, type, 2), want = twin16(rows, vocab, type);
	struct mat have = blank16(rows, vocab, type);
	double *logits = doubles(rows * vocab), *lse = doubles(rows),
	       *loss = doubles(rows);
	float *stats = floats(3 * rows), *l = floats(rows), *v = floats(rows);
	int32_t *targets = ints(rows);
	uint16_t *bits = x.f.p;
	for (int64_t i = 0; i < rows; i++) {
		targets[i] = (int32_t)pick(0, vocab - 1);
		memcpy(logits + i * vocab, x.r + i * cols,
			(size_t)vocab * sizeof(double));
		for (int64_t j = vocab; j < cols; j++)
			bits[i * cols + j] = 0x7fff;
	}
	ref_xent_fwd(lse, loss, logits, targets, rows, vocab);
	ref_xent_bwd(want.r, logits, targets, rows, vocab, 0.25);
	d->k->xent_stats(
		d, stats, stats + rows, stats + 2 * rows, x.f, targets, 0, vocab);
	d->k->xent_join(d, l, v, stats, stats + rows, stats + 2 * rows, 1, rows);
	check_close("xent, log-sum-exp", l, lse, rows, 2e-6);
	check_close("xent, loss", v, loss, rows, 4e-6);
	d->k->xent_bwd(d, x.f, l, targets, 0, vocab, scalar(0.25f));
	for (int64_t i = 0; i < rows; i++) {
		memcpy((uint16_t *)have.p + i * vocab, bits + i * cols,
			(size_t)vocab * sizeof(*bits));
		for (int64_t j = vocab; j < cols; j++)
			assert_int_equal(bits[i * cols + j], 0);
	}
	want.f = have;
	check16("xent_bwd", want);
}

static void xent(void **state)
{
	each_shape(state, check_xent);
}

/* ---- casts, amax and checks ----------------------------------------------------------- */

/* `round` stores in 16 or 8 bits the number that it computes in fp32; fp8 is decoded by a table. */
static double of_8_bits(uint8_t bits, enum dtype type)
{
	int fraction = type == DT_E4M3 ? 3 : 2, bias = type == DT_E4M3 ? 7 : 15;
	int e = (bits & 0x7f) >> fraction, m = bits & ((1 << fraction) - 1);
	double v = e ? ldexp((1 << fraction) + m, e - bias - fraction)
		     : ldexp(m, 1 - bias - fraction);
	if ((bits & 0x7f) > (type == DT_E4M3 ? 0x7e : 0x7c))
		v = NAN;
	return bits & 0x80 ? -v : v;
}

static void check_round(struct device *d, int64_t rows, int64_t cols, enum dtype type)
{
	int64_t n = rows * cols;
	struct mat to[] = {blank16(rows, cols, DT_BF16), blank16(rows, cols, DT_F16),
		mat_typed(floats((n + 3) / 4), rows, cols, DT_E4M3),
		mat_typed(floats((n + 3) / 4), rows, cols, DT_E5M2)};
	struct twin x = random16(rows, cols, type, 30);
	uint16_t *bits = x.f.p;
	bits[n / 2] = type == DT_BF16 ? 0xff80 : 0xfc00; /* -infinity */
	bits[n / 3] = 0x7fff;				 /* none */
	struct mat in[] = {x.f, widened(x.f)};
	struct mat want = mat_blank(rows, cols), have = mat_blank(rows, cols);
	for (size_t i = 0; i < 2 * ARRAY_LEN(to); i++) {
		struct mat y = to[i / 2];
		cpu()->k->round(cpu(), want, in[1], y.type, 0.37f);
		d->k->round(d, have, in[i % 2], y.type, 0.37f);
		check_bits("round, to fp32", have.p, want.p, n);
		d->k->round(d, y, in[i % 2], y.type, 0.37f);
		if (dtype_bytes(y.type) == 2)
			have = widened(y);
		for (int64_t j = 0; j < n && dtype_bytes(y.type) == 1; j++)
			((float *)have.p)[j] =
				(float)of_8_bits(((uint8_t *)y.p)[j], y.type);
		for (int64_t j = 0; j < n; j++) {
			float a = ((float *)have.p)[j], b = ((float *)want.p)[j];
			assert_true(isnan(b) ? isnan(a) : !memcmp(&a, &b, sizeof(a)));
		}
	}
}

static void rounding(void **state)
{
	each_shape(state, check_round);
}

/* A cast gives the same numbers without a transposed matrix, with it, and in it alone. */
static void check_transposed(
	struct device *d, int64_t rows, int64_t cols, enum dtype type)
{
	int64_t n = rows * cols, words = (n + 3) / 4;
	struct twin x = random16(rows, cols, type, 30);
	struct mat in[] = {x.f, widened(x.f)};
	for (int i = 0; i < 4; i++) {
		enum dtype to = i / 2 ? DT_E5M2 : DT_E4M3;
		struct mat want = mat_typed(floats(words), rows, cols, to), y = want;
		float *inverse = floats(3), *amax = scalar(amax_of(d, x.f));
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

static void transposed(void **state)
{
	struct device *d = *state;
	each_shape(state, check_transposed);
	check_transposed(d, 256, 192, DT_BF16); /* whole tiles */
	check_transposed(d, 144, 80, DT_BF16);
}

static void check_whole(struct device *d, int64_t rows, int64_t cols, enum dtype type)
{
	int64_t n = rows * cols, at = pick(0, n - 1);
	struct mat x = random16(rows, cols, type, 1).f, y = blank16(rows, cols, type);
	uint16_t *bits = x.p;
	struct mat wide = widened(x);
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

static void of_a_whole_tensor(void **state)
{
	each_shape(state, check_whole);
}

/* A sum that overflows fp16 is infinity, and find_nonfinite finds it. */
static void overflow(void **state)
{
	struct device *d = *state;
	struct twin y = random16(3, 40, DT_F16, 1), b = twin_random(1, 40, 1);
	((float *)b.f.p)[17] = 70000;
	d->k->bias_fwd(d, y.f, b.f);
	assert_int_equal(d->k->find_nonfinite(d, y.f), 17);
	assert_true(amax_of(d, y.f) == INFINITY);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		on_device(bias),
		on_device(bias_of_many_rows),
		on_device(add),
		on_device(norm),
		on_device(act),
		on_device(rope),
		on_device(dropout),
		on_device(residual),
		on_device(xent),
		on_device(rounding),
		on_device(transposed),
		on_device(of_a_whole_tensor),
		on_device(overflow),
	};
	return run_on_device(tests);
}
