/*
 * What known bugs would make of what is wrong: one table, whose rows are tried in turn. A cause
 * of a gradient is named only if it leaves no more than rounding does. This file has the table,
 * and the causes of one tensor; step_causes.c and solved.c have the causes of a whole step,
 * update.c those of updates.
 */
#include "check/search.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void explain(struct cause_search *s, int i, const char *text)
{
	s->c->of[i].cause = add_finding(s->c, FINDING_GRADIENT, &s->c->of[i], "%s", text);
}

static void explain_all(struct cause_search *s, const char *text)
{
	for (int k = 0; k < s->n_wrong; k++)
		if (s->c->of[s->wrong[k]].cause < 0)
			explain(s, s->wrong[k], text);
}

static double factor_grain(const struct step_check *c)
{
	return c->o.precision == RUN_FP32 ? 5e-5 : 5e-3;
}

/* How far the factors of parts of a tensor may be from each other and mean nothing. */
static double alike(const struct step_check *c)
{
	return c->o.precision == RUN_FP32 ? 0.01 : 0.04;
}

/* A factor as it is shown: no finer than the run's precision tells. (bf16 changes factors by up to 1 %.) */
double shown(const struct step_check *c, double f)
{
	if (c->o.precision != RUN_FP32 && fabs(f - round(f)) <= 0.02 * fabs(f))
		return round(f);
	double grain = 2 * factor_grain(c);
	double x = round(f / grain) * grain;
	return fabs(x) < grain ? 0 : x;
}

/* "1 2" */
void put_factors(
	const struct step_check *c, char *out, size_t room, const double *f, int n)
{
	size_t at = 0;
	for (int i = 0; i < n && at < room; i++)
		at += (size_t)snprintf(
			out + at, room - at, "%s%.4g", i ? " " : "", shown(c, f[i]));
}

/* ---- least squares ------------------------------------------------------------------------ */

/* Solves a x = b for a symmetric matrix [n][n], which is overwritten. False: the parts depend on each other. */
bool solve(double *a, double *b, int n)
{
	for (int i = 0; i < n; i++) {
		int pivot = i;
		for (int r = i + 1; r < n; r++)
			if (fabs(a[r * n + i]) > fabs(a[pivot * n + i]))
				pivot = r;
		if (!(fabs(a[pivot * n + i]) > 0))
			return false;
		for (int j = 0; j < n; j++) {
			double t = a[i * n + j];
			a[i * n + j] = a[pivot * n + j];
			a[pivot * n + j] = t;
		}
		double t = b[i];
		b[i] = b[pivot];
		b[pivot] = t;
		for (int r = i + 1; r < n; r++) {
			double f = a[r * n + i] / a[i * n + i];
			for (int j = i; j < n; j++)
				a[r * n + j] -= f * a[i * n + j];
			b[r] -= f * b[i];
		}
	}
	for (int i = n - 1; i >= 0; i--) {
		for (int j = i + 1; j < n; j++)
			b[i] -= a[i * n + j] * b[j];
		b[i] /= a[i * n + i];
	}
	return true;
}

/* Adds the products of n elements of the parts with each other and with y. */
void add_products(
	double *a, double *b, const float *const *parts, int k, const float *y, int64_t n)
{
	for (int i = 0; i < k; i++) {
		for (int j = 0; j <= i; j++) {
			a[i * k + j] += products_of(parts[i], parts[j], n).ab;
			a[j * k + i] = a[i * k + j];
		}
		b[i] += products_of(parts[i], y, n).ab;
	}
}

/* |y - sum of x[i] parts[i]| / |y| */
double distance_of(
	const float *const *parts, const double *x, int k, const float *y, int64_t n)
{
	double left = 0, size = 0;
	for (int64_t j = 0; j < n; j++) {
		double d = (double)y[j];
		for (int i = 0; i < k; i++)
			d -= x[i] * (double)parts[i][j];
		left += d * d;
		size += (double)y[j] * (double)y[j];
	}
	return size > 0 ? sqrt(left / size) : INFINITY;
}

/* Are the weights the same, so that the parts explain nothing? */
bool are_equal(const double *x, int n, double within)
{
	for (int i = 1; i < n; i++)
		if (fabs(x[i] - x[0]) > within * fabs(x[0]))
			return false;
	return true;
}

/* ---- one tensor by itself ------------------------------------------------------------------ */

/* Does a cause leave no more than rounding, and much less than there is without it? */
bool within(const struct step_check *c, int i, double residual)
{
	const struct distance *d = &c->of[i].gradient;
	return residual <= d->bound && residual <= 0.5 * d->value;
}

/* Is it the output layer, which has the same numbers as the embedding? */
static bool seems_tied(const struct step_check *c, int i)
{
	const struct model *m = &c->weights.m;
	const struct tensor *t = c->has_reference ? tensor_of(c, i) : NULL;
	return t && t == m->output && t != m->tokens &&
	       !memcmp(c->weights.w[t - m->tensors], c->weights.w[m->tokens - m->tensors],
		       (size_t)tensor_size(t) * sizeof(float));
}

static bool has_no_gradient(struct cause_search *s)
{
	const float *seen = s->c->seen[s->tensor];
	return products_of(seen, seen, s->c->of[s->tensor].n).aa <= 0;
}

static bool by_untying(struct cause_search *s)
{
	return has_no_gradient(s) && seems_tied(s->c, s->tensor);
}

/* The factor of the tensor, where it explains it and is not that of all; else 0. */
static double own_factor(const struct cause_search *s)
{
	const struct step_check *c = s->c;
	int i = s->tensor;
	const struct products p = products_of(c->seen[i], reference_of(c, i), c->of[i].n);
	double f = p.bb > 0 ? p.ab / p.bb : 0;
	bool other = fabs(f / c->common - 1) > factor_grain(c);
	return f != 0 && other && within(c, i, residual_of(&p, f)) ? f : 0;
}

static bool by_own_clip(struct cause_search *s)
{
	double clip = s->c->files.adam.clip;
	const float *seen = s->c->seen[s->tensor];
	double norm = sqrt(products_of(seen, seen, s->c->of[s->tensor].n).aa);
	return clip > 0 && fabs(norm / clip - 1) <= factor_grain(s->c) &&
	       own_factor(s) != 0;
}

static bool by_no_clip(struct cause_search *s)
{
	return s->c->files.adam.clip > 0 && fabs(own_factor(s) - 1) <= factor_grain(s->c);
}

static bool by_factor(struct cause_search *s)
{
	double f = own_factor(s);
	snprintf(s->detail, sizeof(s->detail), "%.5g", shown(s->c, f / s->c->common));
	return f != 0;
}

/* Factors of the slices of a dimension; true if they explain the tensor. */
static bool slices_of_dim(struct cause_search *s, int dim, int n)
{
	const struct step_check *c = s->c;
	int i = s->tensor;
	char list[120];
	double f[MAX_SLICES];
	double left = slice_factors(c, i, c->seen[i], reference_of(c, i), dim, n, f);
	for (int k = 0; k < n; k++)
		f[k] /= c->common;
	if (!within(c, i, left) || are_equal(f, n, alike(c)))
		return false;
	put_factors(c, list, sizeof(list), f, n);
	snprintf(s->detail, sizeof(s->detail), "%d in %d slices: %s", dim, n, list);
	return true;
}

bool try_slices(struct cause_search *s, const int64_t degrees[AT_LEAST(2)],
	bool (*explains)(struct cause_search *s, int dim, int n))
{
	const int64_t n[] = {degrees[0], degrees[1], 2, 3, 4, 8, 16};
	for (size_t k = 0; k < ARRAY_LEN(n); k++)
		for (int dim = 0; dim < 2; dim++)
			if (n[k] > 1 && n[k] <= MAX_SLICES && explains(s, dim, (int)n[k]))
				return true;
	return false;
}

static bool by_slices(struct cause_search *s)
{
	return try_slices(s, (const int64_t[]){s->c->o.tp, s->c->o.fsdp}, slices_of_dim);
}

/* Has slice k of a dimension what another one should have? Sets from[n] to those that come nearest; returns how
 * far. */
static double order_of_slices(const struct cause_search *s, int dim, int n, int *from)
{
	const struct step_check *c = s->c;
	int i = s->tensor;
	const struct tensor *t = tensor_of(c, i);
	const float *a = c->seen[i], *b = reference_of(c, i);
	int64_t cols = t->ndim > 1 ? t->dims[1] : 1, size = t->dims[dim] / n;
	int64_t step = dim ? size : size * cols; /* from a slice to the next */
	double left = 0, all = products_of(b, b, c->of[i].n).aa;
	for (int k = 0; k < n; k++) {
		double nearest = INFINITY;
		for (int to = 0; to < n; to++) {
			int r = (k + to) % n; /* (first its own) */
			double far = 0;
			for (int64_t j = 0; j < c->of[i].n; j++) {
				int64_t at = dim ? j % cols : j / cols;
				if (at / size != k)
					continue;
				double d = (double)a[j] -
					   c->common * (double)b[j + (r - k) * step];
				far += d * d;
			}
			if (far < nearest) {
				nearest = far;
				from[k] = r;
			}
		}
		left += nearest;
	}
	return sqrt(left / all) / fabs(c->common);
}

static bool by_order_of_slices(struct cause_search *s)
{
	enum { MOST = 8 };
	const struct step_check *c = s->c;
	const int64_t n[] = {c->o.tp, c->o.fsdp, 2, 3, 4, 8};
	const struct tensor *t = tensor_of(c, s->tensor);
	int from[MOST];
	for (size_t k = 0; k < ARRAY_LEN(n); k++)
		for (int dim = 0; dim < t->ndim; dim++) {
			if (n[k] < 2 || n[k] > MOST || t->dims[dim] % n[k] ||
				c->of[s->tensor].n < 4 * n[k] ||
				!within(c, s->tensor,
					order_of_slices(s, dim, (int)n[k], from)))
				continue;
			int at = snprintf(s->detail, sizeof(s->detail),
				"%d in %d slices: the gradients of slices", dim,
				(int)n[k]);
			for (int64_t j = 0; j < n[k]; j++)
				at += snprintf(s->detail + at,
					sizeof(s->detail) - (size_t)at, " %d", from[j]);
			return true;
		}
	return false;
}

/* Each element clipped to what the largest one has. */
static bool by_value(struct cause_search *s)
{
	const struct step_check *c = s->c;
	int i = s->tensor;
	double most = 0, left = 0, all = 0;
	for (int64_t j = 0; j < c->of[i].n; j++)
		most = fmax(most, fabs((double)c->seen[i][j]));
	for (int64_t j = 0; j < c->of[i].n; j++) {
		double want = c->common * (double)reference_of(c, i)[j];
		double clipped = fmin(fmax(want, -most), most);
		double d = (double)c->seen[i][j] - clipped;
		left += d * d;
		all += clipped * clipped;
	}
	snprintf(s->detail, sizeof(s->detail), "%.3g", most);
	return all > 0 && within(c, i, sqrt(left / all));
}

/* The reference with its elements elsewhere. */
typedef int64_t element_of(const struct step_check *c, const struct tensor *t, int64_t j);

static bool by_places(const struct cause_search *s, element_of *from)
{
	const struct step_check *c = s->c;
	int i = s->tensor;
	const struct tensor *t = tensor_of(c, i);
	float *moved = xmalloc((size_t)c->of[i].n * sizeof(*moved));
	for (int64_t j = 0; j < c->of[i].n; j++)
		moved[j] = reference_of(c, i)[from(c, t, j)];
	const struct products p = products_of(c->seen[i], moved, c->of[i].n);
	free(moved);
	return within(c, i, residual_of(&p, c->common));
}

static int64_t in_place(const struct step_check *c, const struct tensor *t, int64_t j)
{
	(void)c;
	(void)t;
	return j;
}

static int64_t transposed(const struct step_check *c, const struct tensor *t, int64_t j)
{
	(void)c;
	return j % t->dims[1] * t->dims[1] + j / t->dims[1];
}

/* Rows of a head, also of a bias: halves (j, j + half) instead of pairs (2j, 2j + 1). */
static int64_t halves(const struct step_check *c, const struct tensor *t, int64_t j)
{
	int64_t cols = t->ndim > 1 ? t->dims[1] : 1;
	return row_of_pairs(j / cols, c->weights.m.head_dim) * cols + j % cols;
}

static int64_t pairs(const struct step_check *c, const struct tensor *t, int64_t j)
{
	int64_t cols = t->ndim > 1 ? t->dims[1] : 1;
	int64_t dim = c->weights.m.head_dim, row = j / cols, r = row % dim;
	r = r % 2 ? dim / 2 + r / 2 : r / 2;
	return (row / dim * dim + r) * cols + j % cols;
}

static bool by_transposition(struct cause_search *s)
{
	const struct tensor *t = tensor_of(s->c, s->tensor);
	return t->ndim > 1 && t->dims[0] == t->dims[1] && by_places(s, transposed);
}

static bool has_rotated_rows(const struct cause_search *s)
{
	const struct tensor *t = tensor_of(s->c, s->tensor);
	return t->ndim > 1 && is_rotated(t->name);
}

static bool by_halves(struct cause_search *s)
{
	return has_rotated_rows(s) && by_places(s, halves);
}

static bool by_pairs(struct cause_search *s)
{
	return has_rotated_rows(s) && by_places(s, pairs);
}

static bool has_same_shape(const struct cause_search *s, int other)
{
	const struct tensor *t = tensor_of(s->c, s->tensor), *o = tensor_of(s->c, other);
	return o != t && o->ndim == t->ndim && !memcmp(o->dims, t->dims, sizeof(t->dims));
}

/* The gradient of another tensor of this shape. */
static bool by_exchange(struct cause_search *s)
{
	const struct step_check *c = s->c;
	int i = s->tensor;
	for (int k = 0; k < s->n_wrong; k++) {
		if (!has_same_shape(s, s->wrong[k]))
			continue;
		const struct products p =
			products_of(c->seen[i], reference_of(c, s->wrong[k]), c->of[i].n);
		snprintf(s->detail, sizeof(s->detail), "%s",
			tensor_of(c, s->wrong[k])->name);
		if (within(c, i, residual_of(&p, c->common)))
			return true;
	}
	return false;
}

/* The mean of the step before was that of another tensor of this shape: what is seen is
 * (m1 - beta1 m0) / (1 - beta1) with a wrong m0. */
static bool has_mean_of(const struct cause_search *s, const float *mean, int other)
{
	const struct step_check *c = s->c;
	int i = s->tensor;
	const double part = c->files.adam.beta1 / (1 - c->files.adam.beta1);
	element_of *const orders[] = {in_place, halves, pairs};
	struct tensor_step t;
	struct err e = {0};
	bool yes = false;
	if (tensor_step_read(&t, &c->files, other, STEP_MEANS, &e) || !t.m0) {
		die_io(&e);
		return tensor_step_free(&t), false;
	}
	float *g = xmalloc((size_t)max64(1, t.n) * sizeof(*g));
	for (size_t k = 0; k < ARRAY_LEN(orders) && !yes; k++) {
		if (k > 0 && is_rotated(tensor_of(c, i)->name) ==
				     is_rotated(tensor_of(c, other)->name))
			break;
		for (int64_t j = 0; j < t.n; j++) {
			int64_t from = orders[k](c, tensor_of(c, i), j);
			g[j] = (float)((double)c->seen[i][j] +
				       part * ((double)mean[j] - (double)t.m0[from]));
		}
		const struct products p = products_of(g, reference_of(c, i), t.n);
		yes = within(c, i, residual_of(&p, c->common));
	}
	free(g);
	tensor_step_free(&t);
	return yes;
}

static bool by_exchanged_means(struct cause_search *s)
{
	const struct step_check *c = s->c;
	struct tensor_step own = {0};
	struct err e = {0};
	bool yes = false, read = c->files.m0 >= 0 && !tensor_step_read(&own, &c->files,
							     s->tensor, STEP_MEANS, &e);
	die_io(&e);
	for (int k = 0; read && k < s->n_wrong && !yes; k++) {
		snprintf(s->detail, sizeof(s->detail), "%s",
			tensor_of(c, s->wrong[k])->name);
		yes = has_same_shape(s, s->wrong[k]) &&
		      has_mean_of(s, own.m0, s->wrong[k]);
	}
	tensor_step_free(&own);
	return yes;
}

/* The gradient plus some of the parameter: weight decay as in Adam with L2. */
static bool by_decay(struct cause_search *s)
{
	const struct step_check *c = s->c;
	int i = s->tensor, k = c->of[i].in_model;
	const float *part[] = {c->reference.g[k], c->weights.w[k]};
	double a[4] = {0}, x[2] = {0};
	add_products(a, x, part, 2, c->seen[i], c->of[i].n);
	if (!solve(a, x, 2) || !(x[0] > 0))
		return false;
	snprintf(s->detail, sizeof(s->detail), "%.3g", x[1] / x[0]);
	return fabs(x[1] / x[0]) >= 1e-6 &&
	       within(c, i, distance_of(part, x, 2, c->seen[i], c->of[i].n));
}

/* ---- sums over ranks ------------------------------------------------------------------------ */

/* The parts of the gradients of all tensors that are wanted: what each of n ranks has before the sum. */
struct parts {
	struct grad_part kind;
	int n;
	struct gradients of[MAX_PARTS];
};

static void compute_parts(struct cause_search *s, struct parts *p, const bool *wanted)
{
	struct variant v = {.part = p->kind, .sequence = -1, .wanted = wanted};
	v.part.i = EACH_PART;
	reference_float64(&s->c->weights, &s->c->batch, &v, p->of);
}

static void free_parts(struct parts *p)
{
	for (int k = 0; k < p->n; k++)
		gradients_free(&p->of[k]);
}

static const char *part_name(enum part_kind kind)
{
	return kind == PART_SLICE    ? "tensor-parallel slices"
	       : kind == PART_USE    ? "embedding and output layer"
	       : kind == PART_ZIGZAG ? "load-balanced chunks of the positions"
				     : "chunks of the positions";
}

/* What the weights of the parts of a sum say. */
static void describe_parts(const struct step_check *c, char *text, size_t room,
	const struct parts *p, const double *x)
{
	char list[120];
	int ones = 0, zeros = 0, last = 0;
	for (int k = 0; k < p->n; k++) {
		bool one = fabs(x[k] - 1) < 0.01;
		ones += one;
		zeros += fabs(x[k]) < 0.01;
		last = one ? k : last;
	}
	put_factors(c, list, sizeof(list), x, p->n);
	if (p->kind.kind != PART_USE && ones == 1 && zeros == p->n - 1)
		snprintf(text, room,
			"the part of slice %d of %d %s: not summed over the ranks", last,
			p->n, part_name(p->kind.kind));
	else
		snprintf(text, room, "parts of %d %s: %s times", p->n,
			part_name(p->kind.kind), list);
}

static bool by_parts(struct cause_search *s, int i, const struct parts *p)
{
	struct step_check *c = s->c;
	const float *part[MAX_PARTS];
	double a[MAX_PARTS * MAX_PARTS] = {0}, x[MAX_PARTS] = {0};
	int k = c->of[i].in_model;
	for (int j = 0; j < p->n; j++)
		part[j] = p->of[j].g[k];
	add_products(a, x, part, p->n, c->seen[i], c->of[i].n);
	if (!solve(a, x, p->n) ||
		!within(c, i, distance_of(part, x, p->n, c->seen[i], c->of[i].n)))
		return false;
	for (int j = 0; j < p->n; j++)
		x[j] /= c->common;
	if (are_equal(x, p->n, alike(c)))
		return false;
	char text[FINDING_TEXT];
	describe_parts(c, text, sizeof(text), p, x);
	explain(s, i, text);
	return true;
}

/* Tensors without a cause so far; their number. */
int unexplained(const struct cause_search *s, bool *wanted)
{
	int n = 0;
	memset(wanted, 0, (size_t)s->c->weights.m.n_tensors);
	for (int k = 0; k < s->n_wrong; k++)
		if (s->c->of[s->wrong[k]].cause < 0) {
			wanted[s->c->of[s->wrong[k]].in_model] = true;
			n++;
		}
	return n;
}

/* Returns how many of the tensors that are wanted they explain. */
static int explain_parts(struct cause_search *s, struct parts *p, const bool *wanted)
{
	int n = 0;
	compute_parts(s, p, wanted);
	for (int k = 0; k < s->n_wrong; k++) {
		const struct tensor_check *x = &s->c->of[s->wrong[k]];
		if (x->cause < 0 && wanted[x->in_model])
			n += by_parts(s, s->wrong[k], p);
	}
	free_parts(p);
	return n;
}

/* (What does not explain the screen is not tried on the others.) Each tensor has its own parts,
 * and is explained here. */
static bool by_sums(struct cause_search *s)
{
	const struct check_opts *o = &s->c->o;
	const struct model *m = &s->c->weights.m;
	const struct {
		enum part_kind kind;
		int64_t n;
	} tries[] = {{PART_USE, m->tie ? 2 : 0}, {PART_SLICE, o->tp}, {PART_CHUNK, o->cp},
		{PART_ZIGZAG, o->cp}, {PART_CHUNK, o->tp}, {PART_SLICE, 2},
		{PART_CHUNK, 2}, {PART_ZIGZAG, 2}, {PART_SLICE, 4}, {PART_CHUNK, 4},
		{PART_SLICE, 8}, {PART_CHUNK, 8}};
	bool *wanted = xcalloc((size_t)m->n_tensors, sizeof(*wanted));
	for (size_t t = 0; t < ARRAY_LEN(tries) && unexplained(s, wanted); t++) {
		struct parts p = {.kind = {tries[t].kind, (int)tries[t].n, 0},
			.n = (int)tries[t].n};
		if (p.n < 2 || p.n > MAX_PARTS || p.n > s->c->batch.length)
			continue;
		set_screen(s);
		if (explain_parts(s, &p, s->screen) && unexplained(s, wanted))
			explain_parts(s, &p, wanted);
	}
	free(wanted);
	return false;
}

/* ---- all of them ------------------------------------------------------------ */

/* Are all wrong tensors nearly right, as bf16 makes them? */
static bool is_rounded(struct cause_search *s)
{
	for (int k = 0; k < s->n_wrong; k++)
		if (s->c->of[s->wrong[k]].gradient.value > 0.03)
			return false;
	return s->c->o.precision == RUN_FP32 && 2 * s->n_wrong > s->c->n;
}

bool are_norms(struct cause_search *s)
{
	int norms = 0;
	for (int i = 0; i < s->c->n; i++) {
		const struct tensor_check *x = &s->c->of[i];
		bool norm = tensor_of(s->c, i)->init == INIT_ONE;
		if (x->gradient.wrong && !norm)
			return false;
		norms += norm && x->gradient.tested;
	}
	return norms > 1 && norms == s->n_wrong;
}

/* The tokens that have a gradient in the embedding and are not in the batch, or the other way round; -1: not known, as
 * of a table that is the output layer's, too, or of a batch with all tokens. */
static int64_t other_tokens(const struct cause_search *s)
{
	const struct step_check *c = s->c;
	const struct model *m = &c->weights.m;
	int64_t rows = m->tokens->dims[0], cols = m->tokens->dims[1];
	int64_t in_batch = 0, seen = 0, others = 0;
	for (int k = 0; k < s->n_wrong; k++) {
		int i = s->wrong[k];
		const float *a = c->seen[i], *b = reference_of(c, i);
		double least = 1e-8 * products_of(a, a, c->of[i].n).aa / (double)rows;
		if (tensor_of(c, i) != m->tokens || m->output == m->tokens)
			continue;
		for (int64_t r = 0; r < rows; r++) {
			const struct products p =
				products_of(a + r * cols, b + r * cols, cols);
			in_batch += p.bb > 0;
			seen += p.aa > least;
			others += (p.bb > 0) != (p.aa > least);
		}
	}
	bool tells =
		c->o.precision == RUN_FP32 && in_batch && in_batch < rows && seen < rows;
	return tells ? others : -1;
}

static bool is_unexplained(struct cause_search *s)
{
	(void)s;
	return true;
}

static bool has_right_forward(struct cause_search *s)
{
	snprintf(s->detail, sizeof(s->detail),
		"%s is right, and so are the batch and the forward pass; is it the backward pass%s",
		s->c->loss_right ? "the loss" : "the output layer's gradient",
		s->has & IF_MOST ? ", or gradients that were not set to zero" : "");
	return s->c->loss_right || s->forward_right;
}

static bool has_right_tensors(struct cause_search *s)
{
	return s->c->n_right > 0;
}

static bool by_cosines(struct cause_search *s)
{
	double cosine = least_cosine(s);
	snprintf(s->detail, sizeof(s->detail), "%.2f", floor(100 * cosine) / 100);
	return cosine > 0.5;
}

static bool has_right_tokens(struct cause_search *s)
{
	return other_tokens(s) == 0;
}

static bool has_other_batch(struct cause_search *s)
{
	int64_t others = other_tokens(s);
	if (others > 0)
		snprintf(s->detail, sizeof(s->detail),
			" %lld token%s are in it and have no gradient in the embedding, or the "
			"other way round",
			(long long)others, plural(others));
	return true;
}

/* ---- the table -------------------------------------------------------------------------- */

static const char smoothed[] = "as if labels were smoothed by %s";
static const char z_loss[] =
	"as if the loss had a z-loss: %s times the square of log(sum of exp(logits))";

static const struct cause causes[] = {
	{TRY_TENSOR, 0, by_untying,
		"no gradient, and the numbers of the embedding: does the run tie them "
		"(tie_word_embeddings)?"},
	{TRY_TENSOR, 0, has_no_gradient,
		"no gradient: it is not trained (--freeze), or the backward does not reach it"},
	{TRY_TENSOR, 0, by_own_clip,
		"clipped by its own norm, not by that of all gradients"},
	{TRY_TENSOR, 0, by_no_clip, "not clipped, and others are"},
	{TRY_TENSOR, 0, by_factor, "%s times what it should be"},
	{TRY_TENSOR, 0, by_slices, "dim %s times"},
	{TRY_TENSOR, 0, by_transposition, "transposed"},
	{TRY_TENSOR, 0, by_halves,
		"rows of heads in halves instead of pairs (rotary positions)"},
	{TRY_TENSOR, 0, by_pairs,
		"rows of heads in pairs instead of halves (rotary positions)"},
	{TRY_TENSOR, 0, by_exchange, "the gradient of %s"},
	{TRY_TENSOR, IF_REFERENCE, by_order_of_slices, "dim %s, counted from 0"},
	{TRY_TENSOR, IF_REFERENCE, by_value, "as if each element were clipped to %s"},
	{TRY_TENSOR, IF_REFERENCE, by_exchanged_means,
		"its moments of the step before were those of %s"},
	{TRY_TENSOR, IF_REFERENCE, by_decay,
		"the gradient plus %s times the parameter: weight decay before the moments "
		"(L2)"},

	{TRY_STEP, IF_REFERENCE | IF_MOST, by_lost_moments,
		"as if the moments of the step before were zero"},
	{TRY_STEP, IF_SEARCH | IF_MOST, by_sequences, "sequences %s"},
	{TRY_STEP, IF_SEARCH | IF_MOST | IF_FORWARD, by_function, "as if %s"},
	{TRY_STEP, IF_SEARCH | IF_MOST | IF_FORWARD, by_smoothing, smoothed},
	{TRY_STEP, IF_SEARCH | IF_MOST | IF_FORWARD, by_z_loss, z_loss},
	{TRY_STEP, IF_SEARCH | IF_MOST, by_missing_all_reduce,
		"as if each tensor-parallel rank %s"},
	{TRY_STEP, IF_SEARCH | IF_MOST | IF_FORWARD, by_old_parameters,
		"as if %s: gathered too early"},
	{TRY_STEP, IF_SEARCH | IF_MOST | IF_FORWARD, by_divided_logits,
		"as if logits were divided by %s"},
	{TRY_STEP, IF_SEARCH | IF_MOST | IF_FORWARD, by_multiplied_logits,
		"as if logits were multiplied by %s"},
	{TRY_STEP, IF_SEARCH | IF_MOST | IF_FORWARD, by_capped_scores,
		"as if scores of attention were softly capped: %s"},
	{TRY_STEP, IF_SEARCH | IF_MOST | IF_FORWARD, by_capped_logits,
		"as if logits were softly capped: %s"},
	{TRY_STEP, IF_SEARCH | IF_MOST | IF_FORWARD, by_no_window,
		"as if attention had no sliding window"},
	{TRY_STEP, IF_SEARCH | IF_MOST | IF_FORWARD, by_window,
		"as if attention had a sliding window of %s tokens, the own one included"},
	{TRY_STEP, IF_SEARCH, by_path, "as if %s"},
	{TRY_STEP, IF_SEARCH, by_sums, ""},
	{TRY_STEP, IF_SEARCH | IF_FEW, by_sequences, "sequences %s"},
	/* (bf16 may hide most tensors' other parts) */
	{TRY_STEP, IF_SEARCH | IF_FEW | IF_FORWARD, by_smoothing, smoothed},
	{TRY_STEP, IF_SEARCH | IF_FEW | IF_FORWARD, by_z_loss, z_loss},

	{TRY_STEP, 0, are_norms,
		"all norms, and nothing else: with sequence parallelism each tensor-parallel "
		"rank has a part of their gradients; is it not summed over the ranks?"},
	{TRY_STEP, IF_NO_REFERENCE, is_unexplained, "no known cause"},
	{TRY_STEP, IF_NO_SEARCH, is_unexplained,
		"no cause is looked for in a model of this size: take fewer layers"},
	{TRY_STEP, 0, is_rounded,
		"farther than rounding in fp32, and not than in bf16: was a part of the run "
		"in bf16 (--precision)?"},
	{TRY_STEP, 0, has_right_forward, "no known cause: %s?"},
	{TRY_STEP, 0, has_right_tensors, "no known cause"},
	{TRY_STEP, IF_MOST, by_cosines,
		"no known cause: all gradients point about where they should (cosines of %s "
		"and more): dropout that is on, or a function that differs by little?"},
	{TRY_STEP, 0, has_right_tokens,
		"no known cause: the embedding has gradients of the batch's tokens and of no "
		"others, so the batch is that of this step: is it another function, or other "
		"targets?"},
	{TRY_STEP, 0, has_other_batch,
		"no known cause: is the batch that of this step, of all ranks and "
		"micro-batches?%s"},
};

/* Tries the causes of a scope in turn, on s->tensor or on all tensors that are left, up to one
 * that explains them. */
static void try_causes(struct cause_search *s, enum cause_scope scope)
{
	for (size_t k = 0; k < ARRAY_LEN(causes); k++) {
		const struct cause *x = &causes[k];
		char text[FINDING_TEXT];
		*s->detail = '\0';
		if (x->scope != scope || (x->needs & ~s->has))
			continue;
		if (scope == TRY_STEP && !set_screen(s))
			return;
		if (!x->explains(s))
			continue;
		snprintf(text, sizeof(text), x->text, s->detail);
		if (scope == TRY_STEP)
			explain_all(s, text);
		else
			explain(s, s->tensor, text);
		return;
	}
}

/* In fp32 the gradient of the output layer tells it. */
static bool has_forward_right(const struct step_check *c)
{
	const struct model *m = &c->weights.m;
	for (int i = 0; i < c->n && c->has_reference && c->o.precision == RUN_FP32; i++) {
		const struct distance *d = &c->of[i].gradient;
		if (tensor_of(c, i) == m->output && m->output != m->tokens)
			return d->tested && !d->wrong && d->bound < 1e-4;
	}
	return false;
}

static unsigned needs_of(const struct cause_search *s)
{
	const struct step_check *c = s->c;
	bool search = c->has_reference && c->o.reference == REFERENCE_FLOAT64;
	return (c->has_reference ? IF_REFERENCE : IF_NO_REFERENCE) |
	       (search ? IF_SEARCH : IF_NO_SEARCH) |
	       (2 * s->n_wrong > c->n ? IF_MOST : IF_FEW) |
	       (s->forward_right ? 0 : IF_FORWARD);
}

/* The tensors with wrong gradients, in backward order, and these gradients. */
static int list_wrong(struct cause_search *s, struct err *e)
{
	struct step_check *c = s->c;
	double lost;
	for (int i = c->n - 1; i >= 0; i--)
		if (c->of[c->order[i]].gradient.wrong)
			s->wrong[s->n_wrong++] = c->order[i];
	for (int k = 0; k < s->n_wrong; k++)
		if (!c->seen[s->wrong[k]] && read_seen(c, s->wrong[k], &lost, e))
			return -1;
	return 0;
}

int find_causes(struct step_check *c, struct err *e)
{
	struct cause_search s = {.c = c,
		.wrong = xcalloc((size_t)c->n + 1, sizeof(int)),
		.screen = xcalloc((size_t)c->n + 1, sizeof(bool)),
		.forward_right = has_forward_right(c)};
	int rc = list_wrong(&s, e);
	double work = float64_work(&c->weights.m, c->batch.length) * (double)c->batch.n;
	s.has = needs_of(&s);
	if (!rc && (s.has & IF_SEARCH) && s.n_wrong && work > 5e9)
		info("%d tensors are wrong: to find a cause, the step is computed 50 times and more; "
		     "with fewer layers or sequences it takes less",
			s.n_wrong);
	for (int k = 0; k < s.n_wrong && !rc; k++) {
		s.tensor = s.wrong[k];
		try_causes(&s, TRY_TENSOR);
	}
	if (c->has_reference && !rc)
		need_near(&s);
	if (!rc)
		try_causes(&s, TRY_STEP);
	free(s.wrong);
	free(s.screen);
	return rc;
}
