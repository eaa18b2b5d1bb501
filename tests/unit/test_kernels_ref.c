/* The reference kernels: each backward against finite differences of its forward. The
 * differentiated function is sum(dy * forward(x)), whose gradient with respect to x is the
 * result of the backward for dy. */
#include "tests/support/support.h"
#include "tests/support/kernels_ref.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MANY = 4096 };
static const double allowed = 1e-8;
static uint64_t seed;
static const uint32_t step = 3;

/* All arguments of a reference kernel: inputs, dy, outputs and gradients. */
struct bench {
	double x[MANY], w[MANY], b[MANY], dy[MANY];
	double y[MANY], extra[MANY];
	double dx[MANY], dw[MANY], db[MANY];
	int64_t rows, cols, out;
	enum norm_kind norm;
	enum act_kind act;
	struct ref_attn attn;
	struct dropout drop;
	int32_t ids[MANY];
};

static struct bench *bench_new(int64_t rows, int64_t cols, int64_t out)
{
	struct bench *t = xcalloc(1, sizeof(*t));
	double *const inputs[] = {t->x, t->w, t->b, t->dy};
	for (size_t k = 0; k < ARRAY_LEN(inputs); k++, seed++)
		for (int64_t i = 0; i < MANY; i++)
			inputs[k][i] = test_normal(seed, i);
	t->rows = rows, t->cols = cols, t->out = out;
	for (int64_t i = 0; i < MANY; i++)
		t->ids[i] = (int32_t)(test_uniform(seed, i) * 7);
	return t;
}

static double weighted(const struct bench *t, int64_t n)
{
	double sum = 0;
	for (int64_t i = 0; i < n; i++)
		sum += t->dy[i] * t->y[i];
	return sum;
}

typedef double loss_of(struct bench *);

/* Compares grad[n] with the slope of loss() along each element of x, which is in the bench. */
static void check_slopes(const char *what, loss_of *loss, struct bench *t, double *x,
	const double *grad, int64_t n)
{
	const double h = 1e-5;
	double sum = 0, worst = 0;
	for (int64_t i = 0; i < n; i++)
		sum += grad[i] * grad[i];
	assert_true(sum > 0);
	for (int64_t i = 0; i < n; i++) {
		double x0 = x[i];
		x[i] = x0 + h;
		double up = loss(t);
		x[i] = x0 - h;
		double down = loss(t);
		x[i] = x0;
		double error = fabs((up - down) / (2 * h) - grad[i]);
		worst = fmax(worst, error / (fabs(grad[i]) + sqrt(sum / (double)n)));
	}
	print_message("# %-34s worst error %8.2g, allowed %8.2g\n", what, worst, allowed);
	assert_true(worst <= allowed);
}

/* ---- linear, bias ---------------------------------------------------------------- */

static double linear_loss(struct bench *t)
{
	ref_linear_fwd(t->y, t->x, t->w, t->b, t->rows, t->cols, t->out);
	return weighted(t, t->rows * t->out);
}

TEST(linear)
{
	struct bench *t = bench_new(5, 7, 6);
	ref_linear_bwd_x(t->dx, t->dy, t->w, 5, 7, 6);
	ref_linear_bwd_w(t->dw, t->dy, t->x, 5, 7, 6);
	ref_bias_bwd(t->db, t->dy, 5, 6);
	check_slopes("linear, x", linear_loss, t, t->x, t->dx, 5 * 7);
	check_slopes("linear, w", linear_loss, t, t->w, t->dw, 6 * 7);
	check_slopes("linear, bias", linear_loss, t, t->b, t->db, 6);
	free(t);
}

/* ---- norm ------------------------------------------------------------------------ */

static const double eps = 1e-3;

static double norm_loss(struct bench *t)
{
	const double *beta = t->norm == NORM_LAYER ? t->b : NULL;
	ref_norm_fwd(t->norm, t->y, t->x, t->w, beta, t->rows, t->cols, eps);
	return weighted(t, t->rows * t->cols);
}

TEST(norm)
{
	for (int kind = 0; kind < 2; kind++) {
		bool layer = kind == NORM_LAYER;
		struct bench *t = bench_new(4, 9, 0);
		t->norm = kind;
		ref_norm_bwd(kind, t->dx, t->dw, t->db, t->dy, t->x, t->w, 4, 9, eps);
		check_slopes(layer ? "LayerNorm, x" : "RMSNorm, x", norm_loss, t, t->x,
			t->dx, 4 * 9);
		check_slopes(layer ? "LayerNorm, gamma" : "RMSNorm, gamma", norm_loss, t,
			t->w, t->dw, 9);
		if (layer)
			check_slopes("LayerNorm, beta", norm_loss, t, t->b, t->db, 9);
		free(t);
	}
}

/* ---- element by element ---------------------------------------------------------- */

static double act_loss(struct bench *t)
{
	ref_act_fwd(t->act, t->y, t->x, t->w, t->cols);
	return weighted(t, t->cols);
}

TEST(act)
{
	static const char *const names[] = {
		"GELU by tanh", "GELU", "SwiGLU, a", "GEGLU, a"};
	_Static_assert(ARRAY_LEN(names) == N_ACT_KINDS, "each has a name");
	for (int kind = 0; kind < N_ACT_KINDS; kind++) {
		struct bench *t = bench_new(1, 300, 0);
		t->act = kind;
		ref_act_bwd(kind, t->dx, t->dw, t->dy, t->x, t->w, 300);
		check_slopes(names[kind], act_loss, t, t->x, t->dx, 300);
		if (act_is_gated((enum act_kind)kind))
			check_slopes("the gate of a gated activation", act_loss, t, t->w,
				t->dw, 300);
		free(t);
	}
}

static double rope_loss(struct bench *t)
{
	memcpy(t->y, t->x, (size_t)(t->rows * t->cols) * sizeof(double));
	ref_rope(t->y, t->rows, t->cols, 6, t->w, t->ids, 1);
	return weighted(t, t->rows * t->cols);
}

/* The table need not hold cosines and sines: the backward is the transpose for any numbers. */
TEST(rope)
{
	struct bench *t = bench_new(5, 12, 0);
	memcpy(t->dx, t->dy, sizeof(t->dx));
	ref_rope(t->dx, 5, 12, 6, t->w, t->ids, -1);
	check_slopes("rope", rope_loss, t, t->x, t->dx, 5 * 12);
	free(t);
}

static double embed_loss(struct bench *t)
{
	ref_embed_fwd(t->y, t->w, t->ids, 2, t->rows, 4, t->cols);
	return weighted(t, t->rows * t->cols);
}

TEST(embed)
{
	struct bench *t = bench_new(30, 3, 0); /* ids 0 .. 6; the slice has 2 .. 5 */
	ref_embed_bwd(t->dw, t->dy, t->ids, 2, 30, 4, 3);
	check_slopes("embed", embed_loss, t, t->w, t->dw, 4 * 3);
	free(t);
}

static double dropout_loss(struct bench *t)
{
	for (int64_t i = 0; i < t->rows * t->cols; i++)
		t->y[i] = t->x[i] * ref_keep(&t->drop, i / t->cols, 0, 5, i % t->cols);
	return weighted(t, t->rows * t->cols);
}

TEST(dropout)
{
	struct bench *t = bench_new(4, 21, 0);
	t->drop = (struct dropout){.key = {{1, 2}}, .p = 0.4f, .step = &step};
	for (int64_t i = 0; i < 4 * 21; i++)
		t->dx[i] = t->dy[i] * ref_keep(&t->drop, i / 21, 0, 5, i % 21);
	check_slopes("dropout", dropout_loss, t, t->x, t->dx, 4 * 21);
	free(t);
}

/* ---- attention, loss ------------------------------------------------------------- */

static double attn_loss(struct bench *t)
{
	const struct ref_attn *a = &t->attn;
	ref_attn_fwd(a, t->y, t->extra, t->x, t->w, t->b);
	return weighted(t, a->batch * a->rows * a->heads * a->dim);
}

TEST(attn)
{
	static const int32_t documents[2 * 5] = {0, 0, 2, 3, 3, 0, 1, 1, 1, 1};
	for (int i = 0; i < 9; i++) {
		struct bench *t = bench_new(0, 0, 0);
		t->attn = (struct ref_attn){.batch = 2, .rows = 5, .heads = 4, .dim = 3};
		t->attn.kv_heads = 4 >> i % 3;
		t->attn.scale = 0.6;
		t->attn.first_head = 2;
		t->attn.drop = (struct dropout){
			.key = {{3, 4}}, .p = i < 3 ? 0 : 0.3f, .step = &step};
		t->attn.start = i < 6 ? NULL : documents;
		ref_attn_bwd(&t->attn, t->dx, t->dw, t->db, t->dy, t->x, t->w, t->b);
		int64_t n = 2 * 5 * 4 * 3, kv = 2 * 5 * t->attn.kv_heads * 3;
		check_slopes("attention, q", attn_loss, t, t->x, t->dx, n);
		check_slopes("attention, k", attn_loss, t, t->w, t->dw, kv);
		check_slopes("attention, v", attn_loss, t, t->b, t->db, kv);
		free(t);
	}
}

static const struct xent_terms some_terms = {.smoothing = 0.2f, .z = 0.03f};

static double xent_loss(struct bench *t)
{
	double sum = 0;
	ref_xent_fwd(t->extra, t->y, t->x, t->ids, t->rows, t->cols, some_terms);
	for (int64_t i = 0; i < t->rows; i++)
		sum += 0.7 * t->y[i];
	return sum;
}

TEST(xent)
{
	struct bench *t = bench_new(6, 11, 0);
	ref_xent_bwd(t->dx, t->x, t->ids, 6, 11, some_terms, 0.7);
	check_slopes("cross-entropy", xent_loss, t, t->x, t->dx, 6 * 11);
	free(t);
}
