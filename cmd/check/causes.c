/*
 * What known bugs would make of the gradients that are wrong. A cause is named only if it leaves no more than
 * rounding does. In order: a factor of a tensor; of slices of a dimension; a transposition; rows of queries and
 * keys; a sum over ranks that misses parts, or has them twice (least squares on parts of the gradient); weights
 * of sequences; and, if most tensors are wrong, another function.
 */
#include "check/search.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void explain(struct cause_search *s, int i, const char *text)
{
	s->c->of[i].cause = add_finding(s->c, &s->c->of[i], "%s", text);
}

void explain_all(struct cause_search *s, const char *text)
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

/* The factor of a tensor that was not clipped with all others. False: there is no such reason. */
static bool by_clip(struct cause_search *s, int i, double f, double norm)
{
	double clip = s->c->files.adam.clip, within = factor_grain(s->c);
	if (!(clip > 0))
		return false;
	if (fabs(norm / clip - 1) <= within)
		explain(s, i, "clipped by its own norm, not by that of all gradients");
	else if (fabs(f - 1) <= within)
		explain(s, i, "not clipped, and others are");
	else
		return false;
	return true;
}

static bool by_factor(struct cause_search *s, int i)
{
	struct step_check *c = s->c;
	const struct products p = products_of(c->seen[i], reference_of(c, i), c->of[i].n);
	char text[CAUSE_TEXT];
	if (p.aa <= 0) {
		explain(s, i,
			seems_tied(c, i)
				? "no gradient, and the numbers of the embedding: does the run tie "
				  "them (tie_word_embeddings)?"
				: "no gradient: it is not trained (--freeze), or the backward does "
				  "not reach it");
		return true;
	}
	double f = p.bb > 0 ? p.ab / p.bb : 0;
	bool other = fabs(f / c->common - 1) > factor_grain(c);
	if (f == 0 || !other || !within(c, i, residual_of(&p, f)))
		return false;
	if (by_clip(s, i, f, sqrt(p.aa)))
		return true;
	snprintf(text, sizeof(text), "%.5g times what it should be",
		shown(c, f / c->common));
	explain(s, i, text);
	return true;
}

/* Factors of the slices of a dimension; true if they explain the tensor. */
static bool slices_of_dim(struct cause_search *s, int i, int dim, int n)
{
	struct step_check *c = s->c;
	double f[MAX_SLICES];
	double left = slice_factors(c, i, c->seen[i], reference_of(c, i), dim, n, f);
	for (int k = 0; k < n; k++)
		f[k] /= c->common;
	if (!within(c, i, left) || are_equal(f, n, alike(c)))
		return false;
	char list[120], text[CAUSE_TEXT];
	put_factors(c, list, sizeof(list), f, n);
	snprintf(text, sizeof(text), "dim %d in %d slices: %s times", dim, n, list);
	explain(s, i, text);
	return true;
}

static bool by_slices(struct cause_search *s, int i)
{
	const struct check_opts *o = &s->c->o;
	const int64_t n[] = {o->tp, o->fsdp, 2, 3, 4, 8, 16};
	for (size_t k = 0; k < ARRAY_LEN(n); k++)
		for (int dim = 0; dim < 2; dim++)
			if (n[k] > 1 && n[k] <= MAX_SLICES &&
				slices_of_dim(s, i, dim, (int)n[k]))
				return true;
	return false;
}

/* Has slice k of a dimension what another one should have? Sets from[n] to those that come nearest; returns how
 * far. */
static double order_of_slices(
	const struct cause_search *s, int i, int dim, int n, int *from)
{
	struct step_check *c = s->c;
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

static bool by_order_of_slices(struct cause_search *s, int i)
{
	enum { MOST = 8 };
	struct step_check *c = s->c;
	const int64_t n[] = {c->o.tp, c->o.fsdp, 2, 3, 4, 8};
	const struct tensor *t = tensor_of(c, i);
	int from[MOST];
	for (size_t k = 0; k < ARRAY_LEN(n); k++)
		for (int dim = 0; dim < t->ndim; dim++) {
			if (n[k] < 2 || n[k] > MOST || t->dims[dim] % n[k] ||
				c->of[i].n < 4 * n[k] ||
				!within(c, i,
					order_of_slices(s, i, dim, (int)n[k], from)))
				continue;
			char text[CAUSE_TEXT];
			int at = snprintf(text, sizeof(text),
				"dim %d in %d slices: the gradients of slices", dim,
				(int)n[k]);
			for (int64_t j = 0; j < n[k]; j++)
				at += snprintf(text + at, sizeof(text) - (size_t)at,
					" %d", from[j]);
			snprintf(
				text + at, sizeof(text) - (size_t)at, ", counted from 0");
			explain(s, i, text);
			return true;
		}
	return false;
}

/* Each element clipped to what the largest one has. */
static bool by_value(struct cause_search *s, int i)
{
	struct step_check *c = s->c;
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
	if (!(all > 0) || !within(c, i, sqrt(left / all)))
		return false;
	char text[CAUSE_TEXT];
	snprintf(text, sizeof(text), "as if each element were clipped to %.3g", most);
	explain(s, i, text);
	return true;
}

/* The reference with its elements elsewhere. */
typedef int64_t element_of(const struct step_check *c, const struct tensor *t, int64_t j);

static bool by_places(struct cause_search *s, int i, element_of *from, const char *text)
{
	struct step_check *c = s->c;
	const struct tensor *t = tensor_of(c, i);
	float *moved = xmalloc((size_t)c->of[i].n * sizeof(*moved));
	for (int64_t j = 0; j < c->of[i].n; j++)
		moved[j] = reference_of(c, i)[from(c, t, j)];
	const struct products p = products_of(c->seen[i], moved, c->of[i].n);
	bool yes = within(c, i, residual_of(&p, c->common));
	if (yes)
		explain(s, i, text);
	free(moved);
	return yes;
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

static bool by_order(struct cause_search *s, int i)
{
	const struct tensor *t = tensor_of(s->c, i);
	bool rotated = is_rotated(t->name);
	if (t->ndim < 2)
		return false;
	if (t->dims[0] == t->dims[1] && by_places(s, i, transposed, "transposed"))
		return true;
	return rotated &&
	       (by_places(s, i, halves,
			"rows of heads in halves instead of pairs (rotary positions)") ||
		       by_places(s, i, pairs,
			       "rows of heads in pairs instead of halves (rotary positions)"));
}

/* The gradient of another tensor of this shape. */
static bool by_exchange(struct cause_search *s, int i)
{
	struct step_check *c = s->c;
	const struct tensor *t = tensor_of(c, i);
	for (int k = 0; k < s->n_wrong; k++) {
		const struct tensor *other = tensor_of(c, s->wrong[k]);
		if (other == t || other->ndim != t->ndim ||
			memcmp(other->dims, t->dims, sizeof(t->dims)))
			continue;
		const struct products p =
			products_of(c->seen[i], reference_of(c, s->wrong[k]), c->of[i].n);
		if (!within(c, i, residual_of(&p, c->common)))
			continue;
		char text[CAUSE_TEXT];
		snprintf(text, sizeof(text), "the gradient of %s", other->name);
		explain(s, i, text);
		return true;
	}
	return false;
}

/* The mean of the step before was that of another tensor of this shape: what is seen is
 * (m1 - beta1 m0) / (1 - beta1) with a wrong m0. */
static bool has_mean_of(struct cause_search *s, int i, const float *mean, int other)
{
	struct step_check *c = s->c;
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

static bool by_exchanged_means(struct cause_search *s, int i)
{
	struct step_check *c = s->c;
	const struct tensor *t = tensor_of(c, i);
	struct tensor_step own = {0};
	struct err e = {0};
	char text[CAUSE_TEXT] = "";
	bool read =
		c->files.m0 >= 0 && !tensor_step_read(&own, &c->files, i, STEP_MEANS, &e);
	die_io(&e);
	for (int k = 0; read && k < s->n_wrong && !*text; k++) {
		const struct tensor *other = tensor_of(c, s->wrong[k]);
		if (other != t && other->ndim == t->ndim &&
			!memcmp(other->dims, t->dims, sizeof(t->dims)) &&
			has_mean_of(s, i, own.m0, s->wrong[k]))
			snprintf(text, sizeof(text),
				"its moments of the step before were those of %s",
				other->name);
	}
	tensor_step_free(&own);
	if (*text)
		explain(s, i, text);
	return *text;
}

/* The gradient plus some of the parameter: weight decay as in Adam with L2. */
static bool by_decay(struct cause_search *s, int i)
{
	struct step_check *c = s->c;
	int k = c->of[i].in_model;
	const float *part[] = {c->reference.g[k], c->weights.w[k]};
	double a[4] = {0}, x[2] = {0};
	add_products(a, x, part, 2, c->seen[i], c->of[i].n);
	if (!solve(a, x, 2) || !(x[0] > 0) || fabs(x[1] / x[0]) < 1e-6 ||
		!within(c, i, distance_of(part, x, 2, c->seen[i], c->of[i].n)))
		return false;
	char text[CAUSE_TEXT];
	snprintf(text, sizeof(text),
		"the gradient plus %.3g times the parameter: weight decay before the moments (L2)",
		x[1] / x[0]);
	explain(s, i, text);
	return true;
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
	char text[CAUSE_TEXT];
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

/* (What does not explain the screen is not tried on the others.) */
static void by_sums(struct cause_search *s)
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
}

/* ---- all of them ------------------------------------------------------------ */

/* Are all wrong tensors nearly right, as bf16 makes them? */
static bool is_rounded(const struct cause_search *s)
{
	for (int k = 0; k < s->n_wrong; k++)
		if (s->c->of[s->wrong[k]].gradient.value > 0.03)
			return false;
	return s->c->o.precision == RUN_FP32 && 2 * s->n_wrong > s->c->n;
}

bool are_norms(const struct cause_search *s)
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

/* What the embedding tells of the batch. */
static void explain_batch(struct cause_search *s)
{
	int64_t others = other_tokens(s);
	char text[CAUSE_TEXT];
	if (!others) {
		explain_all(s,
			"no known cause: the embedding has gradients of the batch's tokens and of no "
			"others, so the batch is that of this step: is it another function, or "
			"other targets?");
		return;
	}
	size_t at = (size_t)snprintf(text, sizeof(text),
		"no known cause: is the batch that of this step, of all ranks and micro-batches?");
	if (others > 0)
		snprintf(text + at, sizeof(text) - at,
			" %lld token%s are in it and have no gradient in the embedding, or the other "
			"way round",
			(long long)others, plural(others));
	explain_all(s, text);
}

/* When nothing is known of those that are left: what may be told all the same. */
static void explain_rest(struct cause_search *s, bool affordable, bool most)
{
	const struct step_check *c = s->c;
	char text[CAUSE_TEXT];
	double cosine = most && c->has_reference ? least_cosine(s) : 0;
	if (are_norms(s))
		explain_all(s,
			"all norms, and nothing else: with sequence parallelism each "
			"tensor-parallel rank has a part of their gradients; is it not summed over "
			"the ranks?");
	else if (!c->has_reference)
		explain_all(s, "no known cause");
	else if (!affordable)
		explain_all(s,
			"no cause is looked for in a model of this size: take fewer layers");
	else if (is_rounded(s))
		explain_all(s,
			"farther than rounding in fp32, and not than in bf16: was a part of the "
			"run in bf16 (--precision)?");
	else if (c->loss_right || s->forward_right) {
		snprintf(text, sizeof(text),
			"no known cause: %s is right, and so are the batch and the forward pass; "
			"is it the backward pass%s?",
			c->loss_right ? "the loss" : "the output layer's gradient",
			most ? ", or gradients that were not set to zero" : "");
		explain_all(s, text);
	} else if (c->n_right)
		explain_all(s, "no known cause");
	else if (cosine > 0.5) {
		snprintf(text, sizeof(text),
			"no known cause: all gradients point about where they should (cosines of "
			"%.2f and more): dropout that is on, or a function that differs by little?",
			floor(100 * cosine) / 100);
		explain_all(s, text);
	} else
		explain_batch(s);
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

static void free_search(struct cause_search *s)
{
	free(s->wrong);
	free(s->screen);
}

int find_causes(struct step_check *c, struct err *e)
{
	struct cause_search s = {.c = c,
		.wrong = xcalloc((size_t)c->n + 1, sizeof(int)),
		.screen = xcalloc((size_t)c->n + 1, sizeof(bool)),
		.forward_right = has_forward_right(c)};
	for (int i = c->n - 1; i >= 0; i--)
		if (c->of[c->order[i]].gradient.wrong)
			s.wrong[s.n_wrong++] = c->order[i];
	for (int k = 0; k < s.n_wrong; k++) {
		double lost;
		if (!c->seen[s.wrong[k]] && read_seen(c, s.wrong[k], &lost, e))
			return free_search(&s), -1;
	}
	bool affordable = c->has_reference && c->o.reference == REFERENCE_FLOAT64;
	bool most = 2 * s.n_wrong > c->n;
	double work = float64_work(&c->weights.m, c->batch.length) * (double)c->batch.n;
	if (affordable && s.n_wrong && work > 5e9)
		info("%d tensors are wrong: to find a cause, the step is computed 50 times and more; "
		     "with fewer layers or sequences it takes less",
			s.n_wrong);
	for (int k = 0; k < s.n_wrong; k++) {
		int i = s.wrong[k];
		if (!by_factor(&s, i) && !by_slices(&s, i) && !by_order(&s, i) &&
			!by_exchange(&s, i) && c->has_reference &&
			!by_order_of_slices(&s, i) && !by_value(&s, i) &&
			!by_exchanged_means(&s, i))
			by_decay(&s, i);
	}
	if (c->has_reference)
		need_near(&s);
	if (most && c->has_reference)
		by_lost_moments(&s);
	if (affordable && most) {
		by_sequences(&s);
		by_function(&s);
		by_loss(&s);
		by_missing_all_reduce(&s);
		by_old_parameters(&s);
		by_cap(&s);
		by_window(&s);
	}
	if (affordable) {
		by_path(&s, most);
		by_sums(&s);
	}
	if (affordable && !most) {
		by_sequences(&s);
		by_loss(&s); /* (of which bf16 may hide most tensors' other parts) */
	}
	explain_rest(&s, affordable, most);
	free_search(&s);
	return 0;
}
