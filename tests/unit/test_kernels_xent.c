/* Cross-entropy over slices of the vocabulary.
 * isa: sse2 avx2 avx512
 * device: cpu cuda
 */
#include "tests/support/device.h"
#include "tests/support/kernels_ref.h"

#include <math.h>

/* The vocabulary in slices of equal width; the last slices may have padding, or only padding. */
struct xent {
	int64_t rows, vocab, n_slices, cols;
	double *logits;	   /* [rows, vocab] */
	struct mat *slice; /* n_slices of [rows, cols]; padding is NaN */
	int32_t *targets;
	float *lse, *loss;
	struct xent_terms terms;
};

static struct xent xent_of(int64_t rows, int64_t vocab, int64_t n_slices, int64_t cols)
{
	static struct mat slice[8];
	struct xent x = {rows, vocab, n_slices, cols, .slice = slice};
	x.logits = doubles(rows * vocab);
	x.targets = ints(rows);
	x.lse = floats(rows);
	x.loss = floats(rows);
	for (int64_t s = 0; s < n_slices; s++)
		slice[s] = mat_blank(rows, cols);
	for (int64_t i = 0; i < rows; i++)
		x.targets[i] = (int32_t)pick(0, vocab - 1);
	return x;
}

static void set_logit(struct xent *x, int64_t row, int64_t j, float value)
{
	float *slice = x->slice[j / x->cols].p;
	x->logits[row * x->vocab + j] = (double)value;
	slice[row * x->cols + j % x->cols] = value;
}

static void random_logits(struct xent *x, double scale)
{
	float *values = floats(x->rows * x->vocab);
	fill_normal(values, x->rows * x->vocab, scale);
	for (int64_t i = 0; i < x->rows * x->vocab; i++)
		set_logit(x, i / x->vocab, i % x->vocab, values[i]);
}

static void run_forward(struct device *d, struct xent *x)
{
	int64_t n = x->n_slices * x->rows;
	float *max = floats(n), *sum = floats(n), *target = floats(n);
	for (int64_t s = 0; s < x->n_slices; s++)
		d->k->xent_stats(d,
			(struct xent_stats){max + s * x->rows, sum + s * x->rows,
				target + s * x->rows},
			x->slice[s], x->targets, s * x->cols, x->vocab, x->terms);
	d->k->xent_join(d, x->lse, x->loss, (struct xent_stats){max, sum, target},
		x->n_slices, x->rows, x->terms);
}

static void run_backward(struct device *d, struct xent *x, float scale)
{
	const float *at = scalar(scale);
	for (int64_t s = 0; s < x->n_slices; s++)
		d->k->xent_bwd(d, x->slice[s], x->lse, x->targets, s * x->cols, x->vocab,
			x->terms, at);
}

/* The gradients of all slices without padding, as one matrix; those of padding must be zero, and
 * each row must sum to zero. */
static float *gathered(const struct xent *x, double scale, double bound)
{
	float *grad = floats(x->rows * x->vocab);
	for (int64_t i = 0; i < x->rows; i++) {
		double sum = 0;
		for (int64_t j = 0; j < x->n_slices * x->cols; j++) {
			float g = ((float *)x->slice[j / x->cols]
					   .p)[i * x->cols + j % x->cols];
			sum += (double)g;
			if (j < x->vocab)
				grad[i * x->vocab + j] = g;
			else
				assert_true(g == 0);
		}
		if (!(x->terms.z > 0))
			assert_near(sum, 0, bound * scale);
	}
	return grad;
}

/* Near 1e4, floats, and so the log-sum-exp, have a spacing of 1e-3. */
static void check_xent(struct device *d, struct xent *x, float scale, bool large)
{
	double bound = large ? 2e-4 : 1e-6, grad_bound = large ? 1e-3 : 4e-6;
	double *lse = doubles(x->rows), *loss = doubles(x->rows);
	double *want = doubles(x->rows * x->vocab);
	ref_xent_fwd(lse, loss, x->logits, x->targets, x->rows, x->vocab, x->terms);
	ref_xent_bwd(
		want, x->logits, x->targets, x->rows, x->vocab, x->terms, (double)scale);
	run_forward(d, x);
	for (int64_t i = 0; i < x->rows; i++) /* without weight: of nobody's use */
		x->lse[i] = x->targets[i] < 0 ? (float)lse[i] : x->lse[i];
	check_close(large ? "xent, log-sum-exp, to 1e4" : "xent, log-sum-exp", x->lse,
		lse, x->rows, bound);
	check_close(large ? "xent, loss, to 1e4" : "xent, loss", x->loss, loss, x->rows,
		bound);
	run_backward(d, x, scale);
	float *grad = gathered(x, (double)scale, grad_bound);
	check_close(large ? "xent_bwd, to 1e4" : "xent_bwd", grad, want,
		x->rows * x->vocab, grad_bound);
}

DEVICE_TEST(slices)
{
	for (int64_t n = 1; n <= 4; n++) {
		for (int i = 0; i < 8; i++) {
			int64_t cols = pick(1, 300), most = n * cols;
			/* full, or with padding: a part of a slice, or whole slices */
			int64_t vocab = i == 0 ? most : pick(1, most);
			struct xent x = xent_of(pick(1, 40), vocab, n, cols);
			random_logits(&x, i < 4 ? 1 : 5);
			if (i % 4 > 1)
				x.terms = (struct xent_terms){0.1f, i > 5 ? 1e-3f : 0};
			for (int64_t r = 0; i % 2 && r < x.rows; r++)
				x.targets[r] = pick(0, 3) ? x.targets[r] : -1;
			check_xent(d, &x, 0.01f, false);
		}
	}
	struct xent large = xent_of(3, 4999, 2, 2504);
	random_logits(&large, 2);
	check_xent(d, &large, 1, false);
}

/* All logits of a row, or one, are large; nothing overflows. */
DEVICE_TEST(large_logits)
{
	for (int64_t n = 1; n <= 4; n++) {
		struct xent x = xent_of(24, 100, n, 128 / n);
		random_logits(&x, 1);
		for (int64_t i = 0; i < x.rows; i++) {
			float by = i % 3 == 0 ? 1e4f : -1e4f;
			for (int64_t j = 0; j < x.vocab; j++) {
				bool here = i % 3 < 2 || j == i;
				float *p = x.slice[j / x.cols].p;
				float v = p[i * x.cols + j % x.cols];
				set_logit(&x, i, j, here ? v + by : v);
			}
		}
		check_xent(d, &x, 1, true);
		for (int64_t i = 0; i < x.rows; i++)
			assert_true(isfinite(x.loss[i]));
	}
}

/* A certain and correct prediction has no loss; a wrong one has the difference of the logits. */
DEVICE_TEST(certain_rows)
{
	struct xent x = xent_of(2, 50, 1, 64);
	for (int64_t i = 0; i < 2 * 50; i++)
		set_logit(&x, i / 50, i % 50, i % 50 == 7 ? 200 : -200);
	x.targets[0] = 7;
	x.targets[1] = 8;
	run_forward(d, &x);
	assert_true(x.loss[0] == 0 && x.loss[1] == 400);
	run_backward(d, &x, 1);
	const float *g = x.slice[0].p;
	assert_true(g[7] == 0 && g[64 + 7] == 1 && g[64 + 8] == -1);
}

/* What the logits are does not matter to rows without weight, but to the others. */
DEVICE_TEST(rows_without_weight)
{
	for (int64_t n = 1; n <= 3; n++) {
		struct xent x = xent_of(4, 300, n, 300 / n + 4);
		random_logits(&x, 1);
		set_logit(&x, 0, 5, NAN);
		set_logit(&x, 1, 299, INFINITY);
		set_logit(&x, 2, 0, INFINITY);
		x.targets[0] = x.targets[1] = -1;
		x.targets[2] = 0;
		run_forward(d, &x);
		assert_true(x.loss[0] == 0 && x.loss[1] == 0);
		assert_false(isfinite(x.loss[2]));
		assert_true(x.loss[3] > 0);
		run_backward(d, &x, 1);
		for (int64_t s = 0; s < n; s++)
			for (int64_t i = 0; i < 2 * x.cols; i++)
				assert_true(((float *)x.slice[s].p)[i] == 0);
	}
}

int main(void)
{
	return run_on_device();
}
