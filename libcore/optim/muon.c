/* Muon (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon): the update of a matrix
 * is its momentum, orthogonalized by five steps of a quintic Newton-Schulz iteration.
 * Embeddings, the head, norms and biases are updated by AdamW. W1, W3 and W2 of an expert are one
 * matrix each.
 *
 * The update is scaled by 0.2 sqrt(max(rows, cols)), the usual root mean square of AdamW's update,
 * to keep AdamW's learning rate and weight decay (Moonlight: Liu et al. 2025, arXiv:2502.16982);
 * or by Jordan's sqrt(max(1, rows / cols)), for a learning rate of about 0.02. */
#include "optim/optim.h"

#include <math.h>

enum { ITERATIONS = 5 };

static void muon_prepare(const struct optim_config *c, double step, struct update *u)
{
	optimizer_adamw.prepare(c, step, u);
	u->momentum = (float)c->momentum;
	u->nesterov = c->nesterov;
}

/* Returns true for a matrix of a block: unit 0 is the embedding, the last unit the head. */
static bool is_block_matrix(const struct tensor *t, int n_units)
{
	return t->ndim == 2 && t->unit > 0 && t->unit < n_units - 1;
}

static void add_momentum(
	struct device *d, const struct update_part *x, int n, const struct update *hyper)
{
	d->k->muon_momentum(d, x, n, hyper);
}

static void apply_update(
	struct device *d, const struct update_part *x, int n, const struct update *hyper)
{
	d->k->muon_update(d, x, n, hyper);
}

static double learning_rate_factor(const struct optim_config *c, const struct tensor *t)
{
	double rows = (double)tensor_block_dim(t), cols = (double)t->dims[1];
	return c->muon_original ? sqrt(fmax(1, rows / cols))
				: 0.2 * sqrt(fmax(rows, cols));
}

/* Runs the Newton-Schulz iteration on x [r, c], r <= c, with singular values in (0, 1]. Returns x
 * or `other`: a matrix with the same singular vectors and singular values near 1. gram and square
 * are scratch [r, r]. All have one type. X' = a X + (b A + c A A) X, A = X X^T. */
static struct mat orthogonalize(struct device *d, struct mat x, struct mat other,
	struct mat gram, struct mat square)
{
	const float a = 3.4445f, b = -4.7750f, c = 2.0315f;
	const struct mat none = {.p = NULL};
	for (int i = 0; i < ITERATIONS; i++) {
		struct mat next = other;
		d->k->linear_fwd(d, gram, x, x, none);
		d->k->linear_fwd(d, square, gram, gram, none); /* gram is symmetric */
		d->k->axpby(d, square, b, gram, c);
		d->k->linear_bwd_x(d, next, square, x, false);
		d->k->axpby(d, next, a, x, 1);
		other = x;
		x = next;
	}
	return x;
}

/* Replaces a matrix, stored as slices of columns, by its orthogonalized matrix. */
static void orthogonalize_whole(struct device *d, const struct optim_config *c,
	float *slices, const struct sliced *s)
{
	int64_t n = s->rows * s->cols, r = min64(s->rows, s->cols);
	enum dtype type = c->matmul;
	size_t mark = arena_mark(d->scratch);
	struct exact *squares = arena_alloc(d->scratch, sizeof(*squares));
	struct mat x = mat_alloc(d->scratch, r, n / r, type);
	struct mat other = mat_alloc(d->scratch, r, n / r, type);
	struct mat gram = mat_alloc(d->scratch, r, r, type);
	struct mat square = mat_alloc(d->scratch, r, r, type);
	struct mat in = mat(slices, s->rows * s->slices, s->cols / s->slices);
	d->k->zero(d, mat(squares, 1, EXACT_FLOATS));
	d->k->exact_sumsq(d, squares, &in, 1);
	d->k->muon_normalize(d, x, slices, s, squares);
	d->k->muon_unpack(d, slices, orthogonalize(d, x, other, gram, square), s);
	arena_reset(d->scratch, mark);
}

static const struct matrix_rule muon_rule = {.applies_to = is_block_matrix,
	.begin = add_momentum,
	.whole = orthogonalize_whole,
	.end = apply_update,
	.rate = learning_rate_factor};

const struct optimizer optimizer_muon = {
	.name = "muon",
	.help = "Muon and AdamW: two moments, fp32",
	.state = {"exp_avg", "exp_avg_sq"},
	.prepare = muon_prepare,
	.update = adamw_update,
	.matrix = &muon_rule,
};
