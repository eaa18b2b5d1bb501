/* Weights of single targets: a mask of the loss, a mean of means, a focal loss. Where the forward
 * pass is right, the gradient of the last block's w2 is the sum over the positions t of
 * w[t] dy[t] x[t]^T, and least squares give each weight without another backward pass. */
#include "causes/causes.h"

#include <math.h>

/* ---- least squares in as many equations as there are targets -------------------------- */

static double dot(const double *a, const double *b, int64_t n)
{
	double sum = 0;
#pragma omp simd reduction(+ : sum)
	for (int64_t j = 0; j < n; j++)
		sum += a[j] * b[j];
	return sum;
}

bool solve_definite(double *a, double *b, int64_t n)
{
	for (int64_t j = 0; j < n; j++) {
		double d = a[j * n + j] - dot(a + j * n, a + j * n, j);
		if (!(d > 0))
			return false;
		a[j * n + j] = d = sqrt(d);
#pragma omp parallel for
		for (int64_t i = j + 1; i < n; i++)
			a[i * n + j] = (a[i * n + j] - dot(a + i * n, a + j * n, j)) / d;
	}
	for (int64_t i = 0; i < n; i++)
		b[i] = (b[i] - dot(a + i * n, b, i)) / a[i * n + i];
	for (int64_t i = n - 1; i >= 0; i--) {
		b[i] /= a[i * n + i];
		for (int64_t j = 0; j < i; j++)
			b[j] -= b[i] * a[i * n + j];
	}
	return true;
}

double target_residual(const struct target_fit *t, const double *w)
{
	double wb = dot(w, t->b, t->n), wkw = 0;
#pragma omp parallel for reduction(+ : wkw)
	for (int64_t i = 0; i < t->n; i++)
		wkw += w[i] * dot(t->k + i * t->n, w, t->n);
	if (!(wkw > 0) || !(t->yy > 0))
		return INFINITY;
	return sqrt(fmax(0, t->yy - wb * wb / wkw) / t->yy);
}

/* Solves for t->w. Where the equations leave a choice, the weights are nearly equal. */
static bool solve_weights(struct target_fit *t, double noise)
{
	const int64_t n = t->n;
	double *a = xmalloc((size_t)(n * n) * sizeof(*a)), *ones = t->w, sum = 0,
	       trace = 0;
	for (int64_t i = 0; i < n; i++)
		ones[i] = 1;
	for (int64_t i = 0; i < n; i++) {
		sum += dot(t->k + i * n, ones, n);
		trace += t->k[i * n + i];
	}
	double mean = sum > 0 ? dot(t->b, ones, n) / sum : 0;
	double ridge = fmax(1e-13, noise * noise / (double)n) * trace / (double)n;
	memcpy(a, t->k, (size_t)(n * n) * sizeof(*a));
	for (int64_t i = 0; i < n; i++)
		a[i * n + i] += ridge;
	for (int64_t i = 0; i < n; i++)
		t->w[i] = t->b[i] + ridge * mean;
	bool is_solved = solve_definite(a, t->w, n);
	free(a);
	return is_solved;
}

/* ---- the equations -------------------------------------------------------------------- */

/* Returns the index of the last block's w2 if its gradient is wrong; otherwise -1. */
static int find_wrong_last_w2(const struct step_check *c)
{
	const struct model *m = &c->weights.m;
	const struct tensor *last = m->blocks[m->c.layers - 1].sub[FFN].out;
	for (int i = 0; i < c->n; i++)
		if (model_tensor(c, i) == last)
			return c->tensors[i].gradient.wrong ? i : -1;
	return -1;
}

/* Computes inputs x, output gradients dy and the loss of the last block's w2 at all positions. */
static void compute_rows(const struct step_check *c, int tensor, struct target_rows *r)
{
	const struct model *m = &c->weights.m;
	const int64_t n = c->batch.n * c->batch.length;
	struct gradients g = {0};
	bool *wanted = xcalloc((size_t)m->n_tensors, sizeof(*wanted));
	wanted[c->tensors[tensor].in_model] = true;
	*r = (struct target_rows){0};
	r->dy = xcalloc((size_t)(n * m->c.dim), sizeof(double));
	r->x = xcalloc((size_t)(n * m->c.ffn_dim), sizeof(double));
	r->loss = xcalloc((size_t)n, sizeof(double));
	const struct variant v = {.sequence = -1, .wanted = wanted, .rows = r};
	reference_float64(&c->weights, &c->batch, &v, &g);
	gradients_free(&g);
	free(wanted);
}

/* Sets t->k and t->b: products of the targets' parts with each other and with y [dim][ffn]. */
static void multiply_rows(
	struct target_fit *t, const struct target_rows *r, const float *y)
{
	const int64_t dim = t->c->weights.m.c.dim, ffn = t->c->weights.m.c.ffn_dim;
#pragma omp parallel for schedule(dynamic, 16)
	for (int64_t i = 0; i < t->n; i++) {
		const double *dy = r->dy + t->position[i] * dim;
		const double *x = r->x + t->position[i] * ffn;
		for (int64_t j = 0; j <= i; j++) {
			double k = dot(dy, r->dy + t->position[j] * dim, dim) *
				   dot(x, r->x + t->position[j] * ffn, ffn);
			t->k[i * t->n + j] = t->k[j * t->n + i] = k;
		}
		for (int64_t row = 0; row < dim; row++) {
			double sum = 0;
			for (int64_t j = 0; j < ffn; j++)
				sum += (double)y[row * ffn + j] * x[j];
			t->b[i] += sum * dy[row];
		}
	}
}

/* Lists the positions of the targets that count. */
static void list_targets(struct target_fit *t)
{
	const struct token_batch *b = &t->c->batch;
	t->position = xcalloc((size_t)b->counted + 1, sizeof(*t->position));
	for (int64_t i = 0; i < b->n * b->length && t->n < b->counted; i++)
		if (b->targets[i] >= 0) {
			t->position[t->n++] = i;
			t->length = max64(t->length, i % b->length + 1);
		}
}

/* Returns true if the targets are few enough, with at least four equations each. */
static bool is_solvable(const struct step_check *c)
{
	enum { MAX_TARGETS = 2048 };
	const struct model *m = &c->weights.m;
	const double n = (double)c->batch.counted;
	return n >= 2 && n <= MAX_TARGETS &&
	       4 * n <= (double)m->c.dim * (double)m->c.ffn_dim &&
	       n * n * (double)(m->c.dim + m->c.ffn_dim) <= 2e10;
}

bool target_fit_init(struct target_fit *t, const struct step_check *c)
{
	const int last = find_wrong_last_w2(c);
	*t = (struct target_fit){.c = c};
	const struct model_config *o = &c->weights.m.c;
	if (last < 0 || !is_solvable(c) || layer_has_experts(o, o->layers - 1))
		return false;
	struct target_rows r;
	list_targets(t);
	const size_t n = (size_t)t->n;
	t->k = xcalloc(n * n, sizeof(*t->k));
	t->b = xcalloc(n, sizeof(*t->b));
	t->w = xcalloc(n, sizeof(*t->w));
	t->p = xcalloc(n, sizeof(*t->p));
	compute_rows(c, last, &r);
	multiply_rows(t, &r, c->seen[last]);
	for (size_t i = 0; i < n; i++)
		t->p[i] = exp(-r.loss[t->position[i]]);
	t->yy = products_of(c->seen[last], c->seen[last], c->tensors[last].n).aa;
	t->bound = c->tensors[last].gradient.bound;
	free(r.dy);
	free(r.x);
	free(r.loss);
	return solve_weights(t, t->bound) && target_residual(t, t->w) <= t->bound;
}

void target_fit_release(struct target_fit *t)
{
	free(t->position);
	free(t->k);
	free(t->b);
	free(t->w);
	free(t->p);
}

/* Returns true if targets with weights w explain all wrong tensors, or only s->screen. */
static bool weights_explain_wrong(const struct cause_search *s,
	const struct target_fit *t, const double *w, bool is_full)
{
	const struct token_batch *b = &s->c->batch;
	double *weights = xcalloc((size_t)(b->n * b->length), sizeof(*weights));
	for (int64_t i = 0; i < t->n; i++)
		weights[t->position[i]] = w[i];
	double dist = variant_distance(s, (struct variant){.weights = weights}, is_full);
	free(weights);
	return dist <= s->near;
}

void normalize_weights(double *w, int64_t n)
{
	double *sorted = xmalloc((size_t)n * sizeof(*sorted)), max = 0;
	memcpy(sorted, w, (size_t)n * sizeof(*sorted));
	double scale = median(sorted, n);
	for (int64_t i = 0; i < n; i++)
		max = fmax(max, fabs(w[i]));
	if (fabs(scale) < 0.1 * max)
		scale = max;
	for (int64_t i = 0; i < n && scale != 0; i++)
		w[i] /= scale;
	free(sorted);
}

/* Returns true if target weights explain the gradients. (explained_by_sequences() tries weights of
 * whole sequences, which are fewer.) */
bool explained_by_targets(struct cause_search *s)
{
	static target_pattern *const patterns[] = {by_places, by_means, by_labels,
		by_label_weights, by_probability, by_chunks, by_positions, by_mask,
		by_any_weights};
	struct target_fit t;
	bool found = false;
	if (target_fit_init(&t, s->c)) {
		double *w = xcalloc((size_t)t.n, sizeof(*w));
		normalize_weights(t.w, t.n);
		for (size_t k = 0; k < ARRAY_LEN(patterns) && !found; k++)
			found = patterns[k](&t, w, s->detail, sizeof(s->detail)) &&
				target_residual(&t, w) <= t.bound &&
				weights_explain_wrong(s, &t, w, false) &&
				weights_explain_wrong(s, &t, w, true);
		free(w);
	}
	target_fit_release(&t);
	return found;
}
