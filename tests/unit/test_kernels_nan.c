/* NaN and infinity propagate to all results that depend on them, and to the loss.
 * isa: sse2 avx2 avx512
 * device: cpu cuda
 */
#include "tests/support/device.h"

#include <math.h>

static bool all_nan(const float *x, int64_t n)
{
	for (int64_t i = 0; i < n; i++)
		if (!isnan(x[i]))
			return false;
	return true;
}

static bool all_finite(const float *x, int64_t n)
{
	for (int64_t i = 0; i < n; i++)
		if (!isfinite(x[i]))
			return false;
	return true;
}

static float *row_of(struct mat m, int64_t row)
{
	return (float *)m.p + row * m.cols;
}

static struct mat random_mat(int64_t rows, int64_t cols)
{
	return twin_random(rows, cols, 1).f;
}

/* At the beginning and end of vectors, and in the tail of 101 columns. */
static const int64_t columns[] = {0, 15, 16, 63, 64, 95, 96, 99, 100};
enum { COLS = 101 };

/* ---- layers ---------------------------------------------------------------------- */

DEVICE_TEST(norm)
{
	static const float bad[] = {NAN, INFINITY, -INFINITY};
	struct mat y = mat_blank(3, COLS), stats = mat_blank(2, 3),
		   dx = mat_blank(3, COLS);
	struct mat gamma = random_mat(1, COLS), beta = random_mat(1, COLS);
	for (size_t i = 0; i < ARRAY_LEN(columns) * ARRAY_LEN(bad) * 2; i++) {
		enum norm_kind kind = i % 2;
		float value = bad[i / 2 % 3];
		struct mat x = random_mat(3, COLS), dy = random_mat(3, COLS);
		row_of(x, 1)[columns[i / 6]] = value;
		d->k->norm_fwd(d, kind, y, stats, x, gamma, beta, 1e-5f);
		assert_true(all_finite(row_of(y, 0), COLS));
		assert_true(all_finite(row_of(y, 2), COLS));
		if (isnan(value) || kind == NORM_LAYER)
			assert_true(all_nan(row_of(y, 1), COLS));
		else /* RMSNorm: finite / infinite = 0 */
			assert_true(isnan(row_of(y, 1)[columns[i / 6]]));

		x = random_mat(3, COLS);
		row_of(dy, 1)[columns[i / 6]] = NAN;
		d->k->norm_fwd(d, kind, y, stats, x, gamma, beta, 1e-5f);
		d->k->zero(d, dx);
		d->k->norm_bwd_x(d, kind, dx, dy, x, stats, gamma);
		assert_true(all_nan(row_of(dx, 1), COLS));
		assert_true(all_finite(row_of(dx, 2), COLS));
		struct mat dgamma = mat_blank(1, COLS), dbeta = mat_blank(1, COLS);
		d->k->norm_bwd_w(d, kind, dgamma, dbeta, dy, x, stats, 0, 3);
		assert_int_equal(d->k->find_nonfinite(d, dgamma), columns[i / 6]);
		assert_int_equal(d->k->find_nonfinite(d, dbeta), columns[i / 6]);
	}
}

DEVICE_TEST(act)
{
	for (size_t i = 0; i < ARRAY_LEN(columns) * N_ACT_KINDS; i++) {
		enum act_kind kind = i % N_ACT_KINDS;
		int64_t at = columns[i / N_ACT_KINDS];
		struct mat a = random_mat(1, COLS), b = random_mat(1, COLS);
		struct mat y = mat_blank(1, COLS), da = mat_blank(1, COLS);
		row_of(a, 0)[at] = NAN;
		d->k->act_fwd(d, kind, y, a, b);
		assert_int_equal(d->k->find_nonfinite(d, y), at);
		d->k->act_bwd(d, kind, da, mat_blank(1, COLS), random_mat(1, COLS), a, b);
		assert_int_equal(d->k->find_nonfinite(d, da), at);
	}
}

/* Also where the other factor is zero: 0 NaN is NaN. */
DEVICE_TEST(linear)
{
	struct mat w = mat_blank(70, COLS), y = mat_blank(5, 70);
	d->k->zero(d, w);
	for (size_t i = 0; i < ARRAY_LEN(columns); i++) {
		struct mat x = random_mat(5, COLS);
		row_of(x, 3)[columns[i]] = NAN;
		d->k->linear_fwd(d, y, x, w, mat(NULL, 0, 0));
		assert_true(all_nan(row_of(y, 3), 70));
		assert_int_equal(d->k->find_nonfinite(d, y), 3 * 70);
		d->k->linear_row(d, y, x, w, mat(NULL, 0, 0));
		assert_true(all_nan(row_of(y, 3), 70));
		assert_int_equal(d->k->find_nonfinite(d, y), 3 * 70);
	}
}

/* ---- attention ------------------------------------------------------------------- */

enum { SEQ = 200, DIM = 24 };
static const int64_t places[] = {0, 1, 127, 128, 130, SEQ - 1};

static struct attn attention_of(float p)
{
	return (struct attn){.batch = 1,
		.heads = 1,
		.kv_heads = 1,
		.dim = DIM,
		.q_rows = SEQ,
		.k_rows = SEQ,
		.q_first = {0, SEQ / 2},
		.k_first = {0, SEQ / 2},
		.scale = 0.2f,
		.drop = {.p = p, .step = counter(0)}};
}

static void run_attention(
	struct device *d, struct mat o, struct mat q, struct mat k, struct mat v, float p)
{
	struct attn a = attention_of(p);
	float *max = floats(SEQ), *sum = floats(SEQ);
	d->k->attn_fwd(d, &a, o, max, sum, q, k, v, true, true);
}

/* A key and a value affect every later row, a query its own row. */
DEVICE_TEST(attention)
{
	for (size_t i = 0; i < ARRAY_LEN(places) * 2; i++) {
		float p = i % 2 ? 0.4f : 0; /* what is dropped is lost no more */
		int64_t at = places[i / 2];
		struct mat q = random_mat(SEQ, DIM), k = random_mat(SEQ, DIM);
		struct mat v = random_mat(SEQ, DIM), o = mat_blank(SEQ, DIM);
		float kept = row_of(k, at)[5];
		row_of(k, at)[5] = NAN;
		run_attention(d, o, q, k, v, p);
		assert_true(all_nan(row_of(o, at), (SEQ - at) * DIM));
		assert_true(all_finite(o.p, at * DIM));
		d->k->attn_row(d, o, q, k, v, 1, 1, DIM, 0, 0, 0.2f);
		assert_true(all_nan(row_of(o, at), (SEQ - at) * DIM));
		assert_true(all_finite(o.p, at * DIM));
		row_of(k, at)[5] = kept;

		kept = row_of(v, at)[5];
		row_of(v, at)[5] = NAN;
		run_attention(d, o, q, k, v, p);
		for (int64_t r = at; r < SEQ; r++)
			assert_true(isnan(row_of(o, r)[5]));
		row_of(v, at)[5] = kept;

		row_of(q, at)[5] = NAN;
		run_attention(d, o, q, k, v, p);
		assert_true(all_nan(row_of(o, at), DIM));
		assert_true(all_finite(o.p, at * DIM));
		assert_true(all_finite(row_of(o, at) + DIM, (SEQ - at - 1) * DIM));
	}
}

DEVICE_TEST(attention_backward)
{
	struct attn a = attention_of(0);
	struct mat q = random_mat(SEQ, DIM), k = random_mat(SEQ, DIM);
	struct mat v = random_mat(SEQ, DIM), o = mat_blank(SEQ, DIM);
	struct mat grad[3];
	float *lse = floats(SEQ), *sum = floats(SEQ), *delta = floats(SEQ);
	d->k->attn_fwd(d, &a, o, lse, sum, q, k, v, true, true);
	for (size_t i = 0; i < ARRAY_LEN(places); i++) {
		int64_t at = places[i];
		struct mat dout = random_mat(SEQ, DIM);
		row_of(dout, at)[5] = NAN;
		for (int g = 0; g < 3; g++)
			grad[g] = mat_blank(SEQ, DIM);
		d->k->attn_bwd(d, &a, grad[0], grad[1], grad[2], delta, dout, o, lse, q,
			k, v, true);
		assert_true(all_nan(row_of(grad[0], at), DIM));	 /* dq of its row */
		assert_true(all_nan(grad[1].p, (at + 1) * DIM)); /* dk up to it */
		for (int64_t r = 0; r <= at; r++)
			assert_true(isnan(row_of(grad[2], r)[5])); /* dv, one channel */
	}
}

/* ---- loss, optimizer ------------------------------------------------------------- */

DEVICE_TEST(cross_entropy)
{
	const struct xent_terms none = {0};
	static const float bad[] = {NAN, INFINITY};
	for (size_t i = 0; i < ARRAY_LEN(columns) * 2; i++) {
		struct mat slice[2] = {random_mat(3, COLS), random_mat(3, COLS)};
		int32_t *targets = ints(3); /* 0 each */
		float *max = floats(6), *sum = floats(6), *target = floats(6);
		float *lse = floats(3), *loss = floats(3);
		row_of(slice[1], 1)[columns[i / 2]] = bad[i % 2];
		for (int s = 0; s < 2; s++)
			d->k->xent_stats(d,
				(struct xent_stats){
					max + 3 * s, sum + 3 * s, target + 3 * s},
				slice[s], targets, s * COLS, 2 * COLS, none);
		d->k->xent_join(
			d, lse, loss, (struct xent_stats){max, sum, target}, 2, 3, none);
		assert_true(isfinite(loss[0]) && isnan(loss[1]) && isfinite(loss[2]));
		for (int s = 0; s < 2; s++) {
			d->k->xent_bwd(d, slice[s], lse, targets, s * COLS, 2 * COLS,
				none, scalar(1));
			assert_true(all_finite(row_of(slice[s], 0), COLS));
			assert_true(all_nan(row_of(slice[s], 1), COLS));
			assert_true(all_finite(row_of(slice[s], 2), COLS));
		}
	}
}

DEVICE_TEST(parameters)
{
	static const float bad[] = {NAN, INFINITY, -INFINITY};
	struct update o = {.lr = 0.1f,
		.beta1 = 0.9f,
		.beta2 = 0.99f,
		.eps = 1e-8f,
		.grad_scale = 1,
		.correct1 = 0.1f,
		.correct2 = 0.01f};
	for (size_t i = 0; i < ARRAY_LEN(columns) * 3; i++) {
		int64_t at = columns[i / 3];
		struct mat p = random_mat(1, COLS), g = random_mat(1, COLS);
		struct mat m = mat_blank(1, COLS), v = mat_blank(1, COLS);
		struct exact *values = exact_zero(), *squares = exact_zero();
		row_of(g, 0)[at] = bad[i % 3];
		d->k->zero(d, m);
		d->k->zero(d, v);
		const struct update_part part = {
			.p = p.p, .m = m.p, .v = v.p, .g = g.p, .n = COLS, .rate = 1};
		d->k->adamw(d, &part, 1, there(&o, sizeof(o)));
		assert_int_equal(d->k->find_nonfinite(d, p), at);
		d->k->exact_sum(d, values, g.p, COLS);
		d->k->exact_sumsq(d, squares, &g, 1);
		assert_false(isfinite(exact_round(values)));
		assert_false(isfinite(exact_round(squares)));
	}
}

int main(void)
{
	return run_on_device();
}
