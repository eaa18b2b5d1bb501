/* Fused kernels give the bits of the separate kernels.
 * isa: sse2 avx2 avx512
 * device: cpu cuda
 */
#include "tests/support/device.h"

#include <math.h>
#include <string.h>

/* y = x + dropout(sum + bias), by separate kernels. */
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

static struct dropout some_dropout(int64_t rows, double p)
{
	int32_t *pos = ints(rows);
	for (int64_t i = 0; i < rows; i++)
		pos[i] = (int32_t)(3 * i % 17);
	return (struct dropout){.key = {{3, 4}},
		.p = (float)p,
		.step = counter(5),
		.first_sample = 6,
		.pos = pos,
		.seq_rows = 7,
		.first_col = pick(0, 9)};
}

static void check_residual(
	struct device *d, int64_t rows, int64_t cols, bool with_bias, double p)
{
	struct dropout drop = some_dropout(rows, p);
	const struct dropout *o = p > 0 ? &drop : NULL;
	struct twin x = twin_random(rows, cols, 1), sum = twin_random(rows, cols, 1);
	struct twin bias = with_bias ? twin_random(1, cols, 1) : twin_none();
	struct mat want = mat_blank(rows, cols), y = mat_blank(rows, cols);
	plain_residual(d, want, x.f, sum.f, bias.f, o);
	d->k->residual(d, y, x.f, sum.f, bias.f, o);
	check_bits("residual", y.p, want.p, rows * cols);
	d->k->residual(d, sum.f, x.f, sum.f, bias.f, o); /* in place */
	check_bits("residual, in place", sum.f.p, want.p, rows * cols);
}

DEVICE_TEST(residual)
{
	static const int64_t shapes[][2] = {
		{1, 1}, {3, 5}, {16, 64}, {33, 67}, {301, 211}};
	for (size_t i = 0; i < ARRAY_LEN(shapes); i++)
		for (int how = 0; how < 4; how++)
			check_residual(d, shapes[i][0], shapes[i][1], how & 1,
				how & 2 ? 0.3 : 0);
}

/* ---- norms ------------------------------------------------------------------------ */

/* Rows for one warp, a block and a large block; and row lengths that are not whole packs. */
static const int64_t rows_cols[][2] = {{1, 1}, {9, 67}, {65, 256}, {20, 768}, {201, 36},
	{17, 1023}, {5, 1024}, {6, 1276}, {100, 1600}, {70, 2048}, {16600, 7}, {2, 2052},
	{1, 9000}, {1, 17000}};

/* x in fp32 or a 16-bit type. */
static struct mat as(enum dtype type, struct mat x)
{
	return type == DT_F32 ? x : stored(x, type);
}

static void check_same(const char *what, struct mat x, struct mat y)
{
	struct mat a = x.type == DT_F32 ? x : loaded(x),
		   b = y.type == DT_F32 ? y : loaded(y);
	check_bits(what, a.p, b.p, mat_size(x));
}

struct norm_case {
	int64_t rows, cols;
	enum norm_kind kind;
	enum dtype sum, type;
	bool extras, drops; /* biases, and dropout */
};

static void check_residual_norm(struct device *d, struct norm_case c)
{
	struct mat none = mat(NULL, 0, 0), zero = mat_blank(c.rows, c.cols);
	struct dropout drop = some_dropout(c.rows, 0.3);
	const struct dropout *o = c.drops ? &drop : NULL;
	struct mat x = twin_random(c.rows, c.cols, 1).f;
	struct mat sum = as(c.sum, twin_random(c.rows, c.cols, 1).f);
	struct mat bias = c.extras ? twin_random(1, c.cols, 1).f : none;
	struct mat y[2] = {mat_blank(c.rows, c.cols), mat_blank(c.rows, c.cols)};
	struct norm n[2];
	memset(zero.p, 0, (size_t)mat_bytes(zero));
	for (int i = 0; i < 2; i++)
		n[i] = (struct norm){c.kind, as(c.type, zero), mat_blank(2, c.rows), none,
			none, 1e-5f};
	n[0].gamma = n[1].gamma = twin_random(1, c.cols, 1).f;
	n[0].beta = n[1].beta = c.extras ? twin_random(1, c.cols, 1).f : none;
	d->k->residual(d, y[0], x, sum, bias, o);
	d->k->norm_fwd(d, c.kind, n[0].h, n[0].stats, y[0], n[0].gamma, n[0].beta, 1e-5f);
	n[1].h.amax = scalar(0);
	d->k->residual_norm(d, y[1], x, sum, bias, o, &n[1]);
	assert_true(*n[1].h.amax == amax_of(d, n[1].h));
	check_same("residual_norm, sum", y[1], y[0]);
	check_same("residual_norm", n[1].h, n[0].h);
	check_same("residual_norm, stats", n[1].stats, n[0].stats);
	if (c.sum != DT_F32)
		return;
	d->k->residual_norm(d, sum, x, sum, bias, o, &n[1]);
	check_same("residual_norm, in place", sum, y[0]);
	check_same("residual_norm, in place", n[1].h, n[0].h);
}

/* Results of norm_bwd, dx with its old value; a 16-bit copy. */
static struct norm_grads norm_results(struct norm_case c, struct mat was, enum dtype copy)
{
	struct mat none = mat(NULL, 0, 0), zero = mat_blank(c.rows, c.cols);
	struct norm_grads g = {mat_blank(c.rows, c.cols), mat_blank(1, c.cols),
		c.extras ? mat_blank(1, c.cols) : none};
	memcpy(g.dx.p, was.p, (size_t)mat_bytes(was));
	memset(zero.p, 0, (size_t)mat_bytes(zero));
	g.copy = as(copy, zero);
	g.sums = c.rows % 4 ? mat_blank(1, c.cols) : none; /* of no bias */
	g.copy.amax = scalar(0);
	return g;
}

/* Compares the copy of dx with a cast, in rows [first, first + rows) of `to`. */
static void check_norm_copy(
	struct device *d, const struct norm_grads *to, int64_t first, int64_t rows)
{
	struct mat copy = as(to->copy.type, mat_blank(to->copy.rows, to->copy.cols));
	struct mat sums = mat_blank(1, to->copy.cols), part = mat_rows(copy, first, rows);
	memset(copy.p, 0, (size_t)mat_bytes(copy));
	d->k->round(d, part, mat_rows(to->dx, first, rows), copy.type, 1);
	d->k->bias_bwd(d, sums, part);
	check_same("norm_bwd, copy", to->copy, copy);
	if (to->sums.p)
		check_same("norm_bwd, sums of the copy", to->sums, sums);
	assert_true(*to->copy.amax == amax_of(d, copy));
}

/* With all rows, and with a range of rows, outside of which dx does not change. */
static void check_norm_bwd(struct device *d, struct norm_case c)
{
	struct mat x = twin_random(c.rows, c.cols, 1).f;
	struct mat dy = as(c.type, twin_random(c.rows, c.cols, 1).f);
	struct mat gamma = twin_random(1, c.cols, 1).f;
	enum dtype of_fp32 = c.rows % 2 ? DT_BF16 : DT_F16;
	enum dtype copy = c.type == DT_F32 ? of_fp32 : c.type;
	struct mat stats = twin_random(2, c.rows, 1).f;
	for (int part = 0; part < 2; part++) {
		int64_t first = part ? pick(0, c.rows - 1) : 0;
		int64_t rows = part ? pick(1, c.rows - first) : c.rows;
		struct mat was = twin_random(c.rows, c.cols, 1).f;
		struct norm_grads want = norm_results(c, was, copy),
				  have = norm_results(c, was, copy);
		d->k->norm_bwd_x(d, c.kind, want.dx, dy, x, stats, gamma);
		memcpy(want.dx.p, was.p, (size_t)(first * c.cols) * sizeof(float));
		int64_t end = (first + rows) * c.cols;
		memcpy((float *)want.dx.p + end, (float *)was.p + end,
			(size_t)(mat_size(was) - end) * sizeof(float));
		d->k->norm_bwd_w(
			d, c.kind, want.dgamma, want.dbeta, dy, x, stats, first, rows);
		d->k->norm_bwd(d, c.kind, &have, dy, x, stats, gamma, first, rows);
		check_same("norm_bwd, x", have.dx, want.dx);
		check_same("norm_bwd, gamma", have.dgamma, want.dgamma);
		if (c.extras)
			check_same("norm_bwd, beta", have.dbeta, want.dbeta);
		check_norm_copy(d, &have, first, rows);
	}
}

DEVICE_TEST(norms)
{
	for (size_t i = 0; i < ARRAY_LEN(rows_cols); i++)
		for (enum dtype type = 0; type <= DT_F16; type++)
			for (int kind = 0; kind < 2; kind++) {
				enum dtype sum = (i + kind) % 2 ? type : DT_F32;
				struct norm_case c = {rows_cols[i][0], rows_cols[i][1],
					kind, sum, type, kind == NORM_LAYER, false};
				check_residual_norm(d, c);
				c.drops = c.extras;
				check_residual_norm(d, c);
				check_norm_bwd(d, c);
				assert_int_equal(memory_end(NULL), 0);
			}
}

/* ---- matmuls with GELU ------------------------------------------------------------ */

/* x equals y, except for one rounding of an intermediate result. */
static void check_rounded_less(struct mat x, struct mat y, enum dtype type)
{
	struct mat near = loaded(y);
	double *r = doubles(mat_size(y));
	for (int64_t i = 0; i < mat_size(y); i++)
		r[i] = (double)((const float *)near.p)[i];
	check_close("linear_gelu_bwd, against product and slope", loaded(x).p, r,
		mat_size(y), type == DT_BF16 ? 0x1p-7 : 0x1p-10);
}

static void check_gelu(
	struct device *d, int64_t n, int64_t in, int64_t out, enum dtype type)
{
	struct mat x = as(type, twin_random(n, in, 1).f), none = mat(NULL, 0, 0);
	struct mat w = as(type, twin_random(out, in, 0.1).f);
	struct mat back = as(type, twin_random(in, out, 0.1).f); /* of the next layer */
	struct mat bias = as(type, twin_random(1, out, 1).f);
	struct mat y[2], a[2], da[2], sums[2];
	for (int i = 0; i < 2; i++) {
		y[i] = as(type, twin_random(n, out, 1).f);
		a[i] = as(type, twin_random(n, out, 1).f);
		da[i] = as(type, twin_random(n, out, 1).f);
		sums[i] = mat_blank(1, out);
	}
	d->k->linear_fwd(d, a[0], x, w, bias);
	d->k->act_fwd(d, ACT_GELU_TANH, y[0], a[0], none);
	d->k->linear_gelu_fwd(d, y[1], a[1], x, w, bias);
	check_same("linear_gelu_fwd", y[1], y[0]);
	check_same("linear_gelu_fwd, what GELU is of", a[1], a[0]);
	d->k->linear_bwd_x(d, da[0], x, back, false);
	d->k->act_bwd(d, ACT_GELU_TANH, da[0], none, da[0], a[0], none);
	d->k->linear_gelu_bwd(d, da[1], x, back, a[0], sums[1]);
	d->k->bias_bwd(d, sums[0], da[1]);
	check_same("linear_gelu_bwd, sums", sums[1], sums[0]);
	if (d->discrete && type != DT_F32 && out % 8 == 0)
		check_rounded_less(da[1], da[0], type);
	else
		check_same("linear_gelu_bwd", da[1], da[0]);
}

/* On an exact device. */
DEVICE_TEST(gelu)
{
	for (enum dtype type = 0; type <= DT_F16; type++) {
		check_gelu(d, 40, 48, 64, type);
		check_gelu(d, 7, 5, 9, type);
	}
}

/* ---- cross-entropy ---------------------------------------------------------------- */

/* Logits whose first rows have a nonfinite loss: with NaN, with infinity, all -infinity, and with a
 * target outside of the vocabulary; some have no weight. */
static struct mat odd_logits(int64_t rows, int64_t cols, int32_t *targets, int64_t vocab)
{
	static const float odd[] = {NAN, INFINITY};
	struct mat x = twin_random(rows, cols, 3).f;
	for (int64_t i = 0; i < rows; i++) {
		float *row = (float *)x.p + i * cols;
		targets[i] = (int32_t)(i == 3 ? vocab : pick(0, vocab - 1));
		if (i > 3 && pick(0, 2) == 0)
			targets[i] = -1;
		if (i < 2)
			row[pick(0, vocab - 1)] = odd[i];
		for (int64_t j = 0; i == 2 && j < cols; j++)
			row[j] = -INFINITY;
	}
	return x;
}

static void check_xent(struct device *d, int64_t rows, int64_t cols, int64_t vocab,
	enum dtype type, struct xent_terms terms)
{
	int32_t *targets = ints(rows);
	struct mat x = odd_logits(rows, cols, targets, vocab), loss[2], grad[2];
	float *max = floats(rows), *sum = floats(rows), *target = floats(rows);
	float *lse = floats(rows), *scale = scalar(0.25f);
	for (int i = 0; i < 2; i++) {
		loss[i] = mat_blank(1, rows);
		grad[i] = as(type, twin_random(rows, cols, 1).f);
		struct mat from = as(type, x);
		memcpy(grad[i].p, from.p, (size_t)mat_bytes(from));
	}
	const struct xent_stats of = {max, sum, target};
	d->k->xent_stats(d, of, grad[0], targets, 0, vocab, terms);
	d->k->xent_join(d, lse, loss[0].p, of, 1, rows, terms);
	d->k->xent_bwd(d, grad[0], lse, targets, 0, vocab, terms, scale);
	d->k->xent_fused(d, loss[1].p, grad[1], targets, vocab, terms, scale);
	check_same("xent_fused, loss", loss[1], loss[0]);
	check_same("xent_fused, gradient", grad[1], grad[0]);
}

DEVICE_TEST(xent)
{
	/* Rows for one warp and for a block, of whole packs or not, with and without padding, with up to
	 * as many packs as the threads hold at a time, and more. */
	static const int64_t shapes[][3] = {{1, 1, 1}, {40, 67, 60}, {9, 256, 256},
		{5, 2100, 2100}, {4, 16384, 16384}, {5, 16400, 16001}, {6, 50304, 50257}};
	for (size_t i = 0; i < ARRAY_LEN(shapes); i++)
		for (enum dtype type = 0; type <= DT_F16; type++) {
			static const struct xent_terms terms[] = {
				{0}, {.z = 1e-3f}, {0.1f, 1e-3f}};
			check_xent(d, shapes[i][0], shapes[i][1], shapes[i][2], type,
				terms[(i + type) % ARRAY_LEN(terms)]);
			assert_int_equal(memory_end(NULL), 0);
		}
}

int main(void)
{
	return run_on_device();
}
