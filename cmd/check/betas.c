/* Solves for beta1 from moments and reference, to detect a wrong beta1 or exchanged betas. */
#include "check/check.h"

#include <math.h>
#include <stdlib.h>

/* Sums over all tensors. Each tensor has the same weight, whatever its size. */
struct moment_sums {
	/* least squares for exp_avg = beta1 * (exp_avg before) + rest * (reference) */
	double mm, mr, rr, am, ar;
	double square; /* sum over tensors: gain of exp_avg_sq / square of the reference */
	int n;
};

/* Adds the sums of a tensor, relative to the square of its reference gradient. */
static void add_moment_sums(
	struct moment_sums *s, const struct tensor_step *t, const float *reference)
{
	double rr = products_of(reference, reference, t->n).aa, quad = 0, gain = 0;
	if (!(rr > 0))
		return;
	if (t->m0) {
		s->mm += products_of(t->m0, t->m0, t->n).aa / rr;
		s->mr += products_of(t->m0, reference, t->n).ab / rr;
		s->am += products_of(t->m1, t->m0, t->n).ab / rr;
	}
	s->ar += products_of(t->m1, reference, t->n).ab / rr;
	s->rr += 1;
	for (int64_t i = 0; i < t->n && t->v1 && !t->v0; i++) {
		double square = (double)reference[i] * (double)reference[i];
		quad += square * square;
		gain += (double)t->v1[i] * square;
	}
	s->square += quad > 0 ? gain / quad : 0;
	s->n++;
}

/* Sets beta1 and the factor of the reference that explain exp_avg. Returns false if none do. */
static bool solve_beta1(const struct step_check *c, const struct moment_sums *s,
	double *beta1, double *factor)
{
	double clip = c->files.adam.clip;
	if (!s->n)
		return false;
	if (c->files.m0 >= 0) {
		double det = s->mm * s->rr - s->mr * s->mr;
		if (!(det > 1e-6 * s->mm * s->rr))
			return false;
		*beta1 = (s->am * s->rr - s->ar * s->mr) / det;
		*factor = (s->ar * s->mm - s->am * s->mr) / det / (1 - *beta1);
		return true;
	}
	/* If moments were zero before the step, beta1 can be solved only if the clipping is
	 * known. */
	if (clip < 0)
		return false;
	*factor = clip_factor(clip, c->reference.norm);
	*beta1 = 1 - s->ar / s->rr / *factor;
	return true;
}

/* Returns the nearby beta with few digits that was probably meant. (What matters is 1 - beta.) */
static double round_beta(double x)
{
	double near = round(x * 1000) / 1000;
	return fabs(x - near) < fmin(2e-4, 0.02 * (1 - x)) ? near : x;
}

/* Counts the tensors that beta1 explains. *better: how many much better than the file's beta1. */
static int count_explained(const struct step_check *c, double beta1, double factor,
	int *better, struct err *e)
{
	const double old = c->files.adam.beta1;
	int n = 0;
	*better = 0;
	for (int i = 0; i < c->n && !e->code; i++) {
		const float *r = c->reference.g[c->tensors[i].in_model];
		struct tensor_step t;
		double new_squares = 0, old_squares = 0, gain_squares = 0,
		       memory_squares = 0;
		if (c->tensors[i].frozen ||
			tensor_step_read(&t, &c->files, i, STEP_MEANS, e))
			continue;
		for (int64_t j = 0; j < t.n; j++) {
			double m0 = t.m0 ? (double)t.m0[j] : 0, m1 = (double)t.m1[j];
			double g = factor * (double)r[j];
			double d = m1 - beta1 * m0 - (1 - beta1) * g;
			double old_d = m1 - old * m0 - (1 - old) * g;
			new_squares += d * d;
			old_squares += old_d * old_d;
			gain_squares += (1 - beta1) * g * (1 - beta1) * g;
			memory_squares += m0 * m0;
		}
		double bound = c->tensors[i].gradient.bound +
			       4 * rounding_of(t.m1, t.n) *
				       sqrt(memory_squares / fmax(gain_squares, 1e-300));
		if (gain_squares > 0 && sqrt(new_squares / gain_squares) <= bound) {
			n++;
			*better += new_squares < 0.25 * old_squares;
		}
		tensor_step_free(&t);
	}
	return n;
}

int solve_betas(struct step_check *c, bool *solved, struct err *e)
{
	struct adam *a = &c->files.adam;
	struct moment_sums s = {0};
	double beta1 = 0, factor = 0;
	int better;
	*solved = false;
	for (int i = 0; i < c->n; i++) {
		struct tensor_step t;
		if (c->tensors[i].frozen)
			continue;
		int rc = tensor_step_read(&t, &c->files, i, STEP_MEANS | STEP_SQUARES, e);
		if (!rc)
			add_moment_sums(&s, &t, c->reference.g[c->tensors[i].in_model]);
		tensor_step_free(&t);
		if (rc)
			return -1;
	}
	if (!solve_beta1(c, &s, &beta1, &factor))
		return 0;
	beta1 = round_beta(beta1);
	if (!(beta1 > 0.01 && beta1 < 0.9999 && factor > 0) ||
		fabs(beta1 - a->beta1) < 1e-3)
		return 0;
	/* (kept gradients also raise exp_avg: see explained_by_kept_gradients()) */
	double kept = (beta1 - a->beta1) * (1 - a->beta1) / (factor * (1 - beta1));
	if (c->files.m0 >= 0 && fabs(kept - 1) < 0.01)
		return 0;
	/* If moments were zero before the step, a wrong beta1 looks like a scale, unless
	 * exp_avg_sq excludes that. */
	double beta2 = round_beta(1 - s.square / s.n / (factor * factor));
	bool from_zero = c->files.m0 < 0;
	double tolerance = c->o.precision == RUN_FP32 ? 0.01 : 0.05;
	/* (if the square of exp_avg's factor is exp_avg_sq's factor, it is a scale, not a beta) */
	double mean_factor = (1 - beta1) / (1 - a->beta1);
	bool has_beta2 = fabs(beta2 - a->beta2) <= tolerance * (1 - a->beta2) &&
			 fabs(mean_factor * mean_factor - 1) > 2 * tolerance;
	bool swapped = fabs(beta1 - a->beta2) < 1e-3 &&
		       fabs(beta2 - a->beta1) <= tolerance * (1 - a->beta1);
	if (from_zero && (c->files.v1 < 0 || !(has_beta2 || swapped)))
		return 0;
	int n_explained = count_explained(c, beta1, factor, &better, e);
	if (e->code)
		return -1;
	if (2 * n_explained <= c->n || 2 * better <= n_explained)
		return 0;
	*solved = true;
	add_finding(c, FINDING_STEP, NULL,
		"exp_avg: as if beta1 were %.4g instead of %.4g", beta1, a->beta1);
	a->beta1 = beta1;
	return 0;
}
