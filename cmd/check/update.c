/* What the files say without a model: the moments against each other, and the update against AdamW's. */
#include "check/check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct products products_of(const float *a, const float *b, int64_t n)
{
	struct products p = {0};
	for (int64_t i = 0; i < n; i++) {
		p.aa += (double)a[i] * (double)a[i];
		p.ab += (double)a[i] * (double)b[i];
		p.bb += (double)b[i] * (double)b[i];
	}
	return p;
}

double residual_of(const struct products *p, double factor)
{
	double squares = p->aa - 2 * factor * p->ab + factor * factor * p->bb;
	double size = factor * factor * p->bb;
	if (size <= 0)
		return p->aa > 0 ? INFINITY : 0;
	return sqrt(fmax(squares, 0) / size);
}

/* ---- the second witness: exp_avg_sq ------------------------------------------------------ */

/* Is what exp_avg_sq gained the square of what exp_avg gained? */
static void test_moments(const struct step_check *c, struct tensor_check *x,
	const struct tensor_step *t, const float *g, double lost)
{
	double beta = c->files.adam.beta2, difference = 0, size = 0, moments = 0;
	for (int64_t i = 0; i < t->n; i++) {
		double old = t->v0 ? (double)t->v0[i] : 0, now = (double)t->v1[i];
		double gained = (now - beta * old) / (1 - beta);
		double square = (double)g[i] * (double)g[i];
		difference += (gained - square) * (gained - square);
		size += square * square;
		moments += now * now;
	}
	if (size <= 0 && moments <= 0)
		return; /* no gradient so far */
	double round = rounding_of(t->v1, t->n);
	x->moments = (struct distance){.value = sqrt(difference / size),
		.bound = 2e-6 + 8 * lost +
			 4 * round * sqrt(moments) / ((1 - beta) * sqrt(size)),
		.tested = size > 0};
	x->moments.wrong = x->moments.tested && !(x->moments.value <= x->moments.bound);
}

/* ---- the update ------------------------------------------------------------------------ */

/* Variants of AdamW's update that other programs have had by mistake. */
struct rule {
	const char *text; /* NULL: as it should be */
	double later;	  /* steps more than the file says */
	bool uncorrected, eps_inside;
};

static const struct rule rules[] = {
	{0},
	{.text = "the optimizer's step is one more than the file says", .later = 1},
	{.text = "the optimizer's step is one less than the file says", .later = -1},
	{.text = "the moments' bias is not corrected", .uncorrected = true},
	{.text = "eps is added inside the square root", .eps_inside = true},
};

/* The direction of the update of one element. */
static double direction(const struct step_check *c, const struct rule *r, double m, double v)
{
	const struct adam *a = &c->files.adam;
	double step = fmax(1, c->files.step + r->later);
	double m_hat = m / (r->uncorrected ? 1 : 1 - pow(a->beta1, step));
	double v_hat = v / (r->uncorrected ? 1 : 1 - pow(a->beta2, step));
	return m_hat / (r->eps_inside ? sqrt(v_hat + a->eps) : sqrt(v_hat) + a->eps);
}

/* p0 - p1 = lr u + k p0, by least squares; the decay is k / lr. */
static void test_update(const struct step_check *c, const struct rule *r,
	struct tensor_check *x, const struct tensor_step *t)
{
	double uu = 0, up = 0, pp = 0, ud = 0, pd = 0, dd = 0;
	for (int64_t i = 0; i < t->n; i++) {
		double p = (double)t->p0[i], d = p - (double)t->p1[i];
		double u = direction(c, r, (double)t->m1[i], (double)t->v1[i]);
		uu += u * u, up += u * p, pp += p * p;
		ud += u * d, pd += p * d, dd += d * d;
	}
	double det = uu * pp - up * up, round = rounding_of(t->p1, t->n), k = 0;
	bool both = det > 1e-6 * uu * pp;
	x->lr = uu > 0 ? ud / uu : 0;
	if (both) {
		x->lr = (ud * pp - pd * up) / det;
		k = (pd * uu - ud * up) / det;
	}
	x->sums = (struct update_sums){.uu = uu,
		.pp = pp,
		.left = fmax(dd - x->lr * ud - k * pd, 0),
		.round = round,
		.fine = rounding_of(t->m1, t->n) + rounding_of(t->v1, t->n)};
	x->decay = x->lr > 0 ? k / x->lr : 0;
	x->decays = both && x->lr > 0 && 3 * round / sqrt((double)t->n) < 0.01 * x->lr;
}

/* With the learning rate of the run: the distance, and what the rounding of the new parameters explains. */
static void judge_tensor_update(struct tensor_check *x, double lr)
{
	const struct update_sums *s = &x->sums;
	double size = lr * sqrt(s->uu);
	x->update = (struct distance){.value = sqrt(s->left) / size,
		.bound = 1e-5 + 4 * s->fine + 1.2 * s->round * sqrt(s->pp) / size};
	x->update.tested = size > 0 && x->update.bound < 0.5;
	x->update.wrong = x->update.tested && !(x->update.value <= x->update.bound);
}

static int by_value(const void *x, const void *y)
{
	double a = *(const double *)x, b = *(const double *)y;
	return (a > b) - (a < b);
}

static double median(double *v, int n)
{
	qsort(v, (size_t)n, sizeof(*v), by_value);
	return n ? v[n / 2] : 0;
}

/* The learning rate of most tensors: the median of those that rounding disturbs least. */
static double common_lr(struct step_check *c)
{
	double *lr = xcalloc((size_t)c->n + 1, sizeof(*lr));
	double *noise = xcalloc((size_t)c->n + 1, sizeof(*noise));
	int n = 0, kept = 0;
	for (int i = 0; i < c->n; i++) {
		const struct update_sums *s = &c->of[i].sums;
		if (s->uu > 0 && c->of[i].lr > 0)
			noise[n++] = s->round * sqrt(s->pp / s->uu);
	}
	double most = 4 * median(noise, n);
	for (int i = 0; i < c->n; i++) {
		const struct update_sums *s = &c->of[i].sums;
		if (s->uu > 0 && c->of[i].lr > 0 && s->round * sqrt(s->pp / s->uu) <= most)
			lr[kept++] = c->of[i].lr;
	}
	double middle = median(lr, kept);
	c->lr_bound = middle > 0 ? fmax(1e-3, most / middle) : 0;
	free(lr);
	free(noise);
	return middle;
}

static void judge_updates(struct step_check *c)
{
	double *decay = xcalloc((size_t)c->n + 1, sizeof(*decay));
	int n = 0;
	c->lr = common_lr(c);
	for (int i = 0; i < c->n && c->lr > 0; i++) {
		struct tensor_check *x = &c->of[i];
		judge_tensor_update(x, c->lr);
		if (x->update.tested && !x->update.wrong && x->decays && x->decay > 0.004)
			decay[n++] = x->decay;
	}
	c->decay = median(decay, n);
	free(decay);
}

static bool all_finite(const float *x, int64_t n)
{
	for (int64_t i = 0; x && i < n; i++)
		if (!isfinite(x[i]))
			return false;
	return true;
}

static int test_all(struct step_check *c, const struct rule *r, struct err *e)
{
	for (int i = 0; i < c->n; i++) {
		struct tensor_check *x = &c->of[i];
		struct tensor_step t;
		if (tensor_step_read(&t, &c->files, i, e)) {
			tensor_step_free(&t);
			return -1;
		}
		size_t n_bytes = (size_t)t.n * sizeof(float);
		x->nonfinite = !all_finite(t.p1, t.n) || !all_finite(t.m1, t.n) ||
			       !all_finite(t.v1, t.n);
		x->unchanged = !memcmp(t.p0, t.p1, n_bytes);
		if (t.m1 && !x->nonfinite) {
			double lost;
			float *g = seen_gradient(&c->files, &t, &lost);
			x->norm = sqrt(products_of(g, g, t.n).aa);
				if (t.v1 && !r->text)
				test_moments(c, x, &t, g, lost);
			free(g);
		}
		if (t.m1 && t.v1 && !x->nonfinite)
			test_update(c, r, x, &t);
		tensor_step_free(&t);
	}
	judge_updates(c);
	return 0;
}

static int count_wrong(const struct step_check *c)
{
	int n = 0;
	for (int i = 0; i < c->n; i++)
		n += c->of[i].update.wrong;
	return n;
}

/* ---- findings ---------------------------------------------------------------------------- */

typedef bool is_such(const struct step_check *c, const struct tensor_check *x);

static void say_tensors(struct step_check *c, is_such *is, const char *text)
{
	const char *first = NULL;
	int n = 0;
	for (int i = 0; i < c->n; i++)
		if (is(c, &c->of[c->order[i]])) {
			first = first ? first : c->of[c->order[i]].name;
			n++;
		}
	if (n)
		add_finding(c, n, "%s%s: %s", first, n > 1 ? " and others" : "", text);
}

static bool is_nonfinite(const struct step_check *c, const struct tensor_check *x)
{
	(void)c;
	return x->nonfinite;
}

static bool is_stuck(const struct step_check *c, const struct tensor_check *x)
{
	(void)c;
	return x->unchanged && x->update.tested;
}

static bool has_other_lr(const struct step_check *c, const struct tensor_check *x)
{
	double within = fmax(1e-3, 3 * x->update.bound);
	return x->update.tested && !x->update.wrong && c->lr > 0 &&
	       fabs(x->lr / c->lr - 1) > within && !is_stuck(c, x);
}

/* A witness that is wrong everywhere alike is another beta2: gained = (1 - b) / (1 - beta2) times the square. */
static void say_moments(struct step_check *c)
{
	int wrong = 0, tested = 0;
	for (int i = 0; i < c->n; i++) {
		tested += c->of[i].moments.tested;
		wrong += c->of[i].moments.wrong;
	}
	if (!wrong)
		return;
	add_finding(c, wrong,
		"exp_avg_sq of %d of %d tensors did not gain the square of what exp_avg gained%s",
		wrong, tested,
		wrong == tested ? ": not one step of AdamW with these betas (--betas)" : "");
}

static void say_update(struct step_check *c, const struct rule *r, int wrong)
{
	const struct adam *a = &c->files.adam;
	int decayed = 0, plain = 0;
	if (r->text && !wrong)
		add_finding(c, c->n, "update: as if %s", r->text);
	else if (wrong)
		add_finding(c, wrong,
			"the update of %d tensors is not AdamW's from these moments", wrong);
	for (int i = 0; i < c->n; i++) {
		const struct tensor_check *x = &c->of[i];
		double within = fmax(0.01, 0.02 * fabs(a->decay));
		if (!x->decays || x->update.wrong || a->decay < 0)
			continue;
		decayed += fabs(x->decay - a->decay) <= within;
		plain += fabs(x->decay) <= within;
		if (fabs(x->decay - a->decay) > within && fabs(x->decay) > within)
			add_finding(c, 1, "%s: weight decay %.3g instead of %.3g", x->name,
				x->decay, a->decay);
	}
	if (a->decay > 0 && plain && !decayed)
		add_finding(c, plain, "no tensor decays, and weight decay is %.3g", a->decay);
	if (a->lr > 0 && fabs(c->lr / a->lr - 1) > c->lr_bound)
		add_finding(c, 0, "learning rate %.6g instead of %.6g", c->lr, a->lr);
}

int judge_update(struct step_check *c, struct err *e)
{
	const struct rule *best = &rules[0];
	if (test_all(c, best, e))
		return -1;
	int wrong = count_wrong(c);
	for (size_t i = 1; i < ARRAY_LEN(rules) && 2 * wrong > c->n; i++) {
		if (test_all(c, &rules[i], e))
			return -1;
		if (2 * count_wrong(c) <= c->n) {
			best = &rules[i];
			break;
		}
		if (i + 1 == ARRAY_LEN(rules) && test_all(c, &rules[0], e))
			return -1;
	}
	say_tensors(c, is_nonfinite, "not finite");
	say_tensors(c, is_stuck, "has a gradient, and did not change");
	if (c->files.v1 < 0)
		return 0;
	say_moments(c);
	say_update(c, best, count_wrong(c));
	say_tensors(c, has_other_lr, "another learning rate than most");
	return 0;
}
