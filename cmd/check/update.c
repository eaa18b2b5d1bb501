/* Checks that need no model: the moments against each other, and the update against AdamW's. */
#include "check/rates.h"
#include "check/search.h"

#include "stats/stats.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Least squares over all tensors for v1 - g^2 = beta2 (v0 - g^2). */
struct beta_sums {
	double ab, bb;
};

/* Sets x->moments: exp_avg_sq must gain the square of what exp_avg gained, g with relative error
 * `lost`. Sets x->squares_lost. Adds to *sums, from which beta2 is estimated. */
static void test_second_moment(const struct step_check *c, struct tensor_check *x,
	const struct tensor_step *t, const float *g, double lost, struct beta_sums *sums)
{
	double beta = c->files.adam.beta2, difference = 0, size = 0, moments = 0;
	double gained_squares = 0, lost_before = 0;
	for (int64_t i = 0; i < t->n; i++) {
		double old = t->v0 ? (double)t->v0[i] : 0, now = (double)t->v1[i];
		double gained = (now - beta * old) / (1 - beta);
		double square = (double)g[i] * (double)g[i];
		difference += (gained - square) * (gained - square);
		size += square * square;
		gained_squares += gained * gained;
		moments += now * now;
		lost_before += pow(now / (1 - beta) - square, 2);
		sums->ab += (now - square) * (old - square);
		sums->bb += (old - square) * (old - square);
	}
	double rounding = rounding_of(t->v1, t->n);
	size = fmax(size, gained_squares);
	x->moments = (struct distance){.value = size > 0 ? sqrt(difference / size) : 0,
		/* (beta2 in fp32 is off by 2^-25) */
		.bound = 2e-6 + 0x1p-25 / (1 - beta) + 8 * lost +
			 (size > 0 ? 4 * rounding * sqrt(moments) /
						 ((1 - beta) * sqrt(size))
				   : 0),
		.tested = size > 0};
	x->moments.tested &= x->moments.bound < 0.5;
	x->moments.wrong = x->moments.tested && !(x->moments.value <= x->moments.bound);
	x->squares_lost = size > 0 && sqrt(lost_before / size) <= x->moments.bound;
}

/* Wrong variants of AdamW's update that other programs have had. */
struct rule {
	const char *text;   /* NULL: AdamW */
	double extra_steps; /* added to the file's step count */
	bool mean_uncorrected, square_uncorrected, eps_inside;
	bool eps_corrected; /* divides eps by the root of exp_avg_sq's correction, too */
	enum optimizer { ADAMW, NADAM, RMSPROP, AMSGRAD } optimizer;
};

static const struct rule rules[] = {
	{0},
	{.text = "the optimizer's step is one more than the file says", .extra_steps = 1},
	{.text = "the optimizer's step is one less than the file says",
		.extra_steps = -1},
	{.text = "the moments' bias is not corrected",
		.mean_uncorrected = true,
		.square_uncorrected = true},
	{.text = "the bias of exp_avg is not corrected", .mean_uncorrected = true},
	{.text = "the bias of exp_avg_sq is not corrected", .square_uncorrected = true},
	{.text = "eps is added inside the square root", .eps_inside = true},
	{.text = "eps is added before the bias of exp_avg_sq is corrected",
		.eps_corrected = true},
	{.text = "the optimizer is NAdam", .optimizer = NADAM},
	{.text = "the optimizer is RMSprop: exp_avg has no part in the update",
		.square_uncorrected = true,
		.optimizer = RMSPROP},
	{.text = "the optimizer has amsgrad, the maximum of exp_avg_sq",
		.optimizer = AMSGRAD},
};

/* Factors that all elements of an update share. */
struct direction {
	double mean, square; /* bias corrections of the moments */
	double gradient; /* divisor of the gradient that is added to exp_avg; 0: none is added */
	double beta1, eps;
	bool eps_inside, amsgrad;
};

/* Returns the shared factors of the update of rule r at the files' step. */
static struct direction direction_of(const struct step_check *c, const struct rule *r)
{
	const struct adam *a = &c->files.adam;
	double step = fmax(1, c->files.step + r->extra_steps);
	double square = 1 - pow(a->beta2, step);
	struct direction d = {.mean = r->mean_uncorrected ? 1 : 1 - pow(a->beta1, step),
		.square = r->square_uncorrected ? 1 : square,
		.beta1 = a->beta1,
		.eps = r->eps_corrected ? a->eps / sqrt(square) : a->eps,
		.eps_inside = r->eps_inside,
		.amsgrad = r->optimizer == AMSGRAD};
	if (r->optimizer == NADAM) { /* (Dozat 2016) */
		d.gradient = d.mean / (1 - a->beta1);
		d.mean = (1 - pow(a->beta1, step + 1)) / a->beta1;
	} else if (r->optimizer == RMSPROP) {
		d.gradient = 1;
		d.mean = INFINITY;
	}
	return d;
}

/* Returns the update of element i at learning rate 1. */
static inline double element_update(
	const struct direction *d, const struct tensor_step *t, int64_t i)
{
	double m = (double)t->m1[i], v = (double)t->v1[i], m_hat = m / d->mean;
	if (d->gradient > 0)
		m_hat += (m - d->beta1 * (t->m0 ? (double)t->m0[i] : 0)) /
			 (1 - d->beta1) / d->gradient;
	if (d->amsgrad && t->v0)
		v = fmax(v, (double)t->v0[i]);
	double square = v / d->square;
	return m_hat / (d->eps_inside ? sqrt(square + d->eps) : sqrt(square) + d->eps);
}

/* Sets the tensor's lr and decay: solves p0 - p1 = lr u + k p0 by least squares; decay = k / lr. */
static void fit_update(const struct step_check *c, const struct rule *r,
	struct tensor_check *x, const struct tensor_step *t)
{
	const struct direction direction = direction_of(c, r);
	double uu = 0, up = 0, pp = 0, ud = 0, pd = 0, dd = 0;
	for (int64_t i = 0; i < t->n; i++) {
		double p = (double)t->p0[i], d = p - (double)t->p1[i];
		double u = element_update(&direction, t, i);
		uu += u * u, up += u * p, pp += p * p;
		ud += u * d, pd += p * d, dd += d * d;
	}
	double det = uu * pp - up * up, rounding = x->stored[STORED_PARAMETERS], k = 0;
	double moment_rounding = x->stored[STORED_MEANS] + x->stored[STORED_SQUARES];
	bool has_decay_term = det > 1e-6 * uu * pp;
	x->lr = uu > 0 ? ud / uu : 0;
	if (has_decay_term) {
		x->lr = (ud * pp - pd * up) / det;
		k = (pd * uu - ud * up) / det;
	}
	x->sums = (struct update_sums){.uu = uu,
		.pp = pp,
		.left = fmax(dd - x->lr * ud - k * pd, 0),
		.rounding = rounding,
		.moment_rounding = moment_rounding,
		.shrinkage = k,
		.amplification = has_decay_term ? sqrt(uu * pp / det) : 1,
		.decay_as_rate = !has_decay_term && uu > 0 ? fabs(up / uu) : 0,
		.decay_left = !has_decay_term && uu > 0 ? sqrt(fmax(det, 0)) / uu : 0};
	x->decay = x->lr > 0 ? k / x->lr : 0;
	/* (parameters much smaller than their update, as early biases, determine no decay) */
	x->decays = has_decay_term && x->lr > 0 &&
		    3 * rounding * x->sums.amplification / sqrt((double)t->n) <
			    0.01 * x->lr &&
		    1e-5 * sqrt(uu / pp) < 0.003;
	/* (nor do moments whose rounding resembles a decay) */
	x->decays &= 3 * moment_rounding * x->sums.amplification *
			     sqrt(uu / pp / (double)t->n) <
		     0.003;
	/* (a decay below the rounding of 16-bit parameters is lost in all of them) */
	x->decays &= rounding < 1e-5 ||
		     fmax(fabs(k), fabs(x->lr * c->files.adam.decay)) > 4 * rounding;
}

/* Judges the update at the run's learning rate. Its bound is the rounding of the parameters, once
 * by the decay and once by the update: together 0.53 unit roundoffs in the mean over all mantissas,
 * and 0.82 if all are slightly above 1. (In 16 bits, rounding_of() is half a unit roundoff.) A decay
 * that was not fitted leaves its part across the update. */
static void judge_tensor_update(struct tensor_check *x, double lr, double decay)
{
	const struct update_sums *s = &x->sums;
	double size = lr * x->lr_scale * sqrt(s->uu);
	const double times = s->rounding > 0x1p-24 ? 1.7 : 1.2;
	x->update = (struct distance){.value = sqrt(s->left) / size,
		.bound = 1e-5 + 4 * s->moment_rounding +
			 times * s->rounding * sqrt(s->pp) / size +
			 1.2 * decay * s->decay_left};
	x->update.tested = size > 0 && x->update.bound < 0.5;
	x->update.wrong = x->update.tested && !(x->update.value <= x->update.bound);
}

/* Sets the run's learning rate, judges each tensor's update by it, and sets c->decay to
 * the median decay of the right ones. */
static void judge_updates(struct step_check *c)
{
	double *decay = xcalloc((size_t)c->n + 1, sizeof(*decay));
	int n = 0;
	find_common_rate(c);
	for (int i = 0; i < c->n && fabs(c->lr) > 0; i++) {
		struct tensor_check *x = &c->tensors[i];
		judge_tensor_update(x, fabs(c->lr), fmax(0, c->files.adam.decay));
		if (x->update.tested && !x->update.wrong && x->decays && x->decay > 0.004)
			decay[n++] = x->decay;
	}
	c->decay = n ? median(decay, n) : 0;
	for (int i = 0; i < c->n && fabs(c->lr) > 0 && c->decay > c->files.adam.decay;
		i++)
		if (c->tensors[i].sums.decay_left > 0)
			judge_tensor_update(&c->tensors[i], fabs(c->lr), c->decay);
	free(decay);
}

static bool all_finite(const float *x, int64_t n)
{
	for (int64_t i = 0; x && i < n; i++)
		if (!isfinite(x[i]))
			return false;
	return true;
}

/* Returns true if x is `old` times beta, within rounding. */
static bool only_decays(const float *x, const float *old, double beta, int64_t n)
{
	double round = 4 * rounding_of(x, n);
	for (int64_t i = 0; i < n; i++) {
		double was = old ? beta * (double)old[i] : 0;
		if (!(fabs((double)x[i] - was) <= round * fabs(was)))
			return false;
	}
	return true;
}

/* Runs all tests of a tensor, with the update of this rule. */
static void test_tensor(struct step_check *c, struct tensor_check *x,
	const struct rule *r, const struct tensor_step *t, struct beta_sums *sums)
{
	double lost;
	x->nonfinite = !all_finite(t->p1, t->n) || !all_finite(t->m1, t->n) ||
		       !all_finite(t->v1, t->n);
	x->stored[STORED_PARAMETERS] = rounding_of(t->p1, t->n);
	x->stored[STORED_MEANS] = rounding_of(t->m1, t->n);
	x->stored[STORED_SQUARES] = rounding_of(t->v1, t->n);
	x->unchanged = !memcmp(t->p0, t->p1, (size_t)t->n * sizeof(float));
	x->dead = t->m1 && only_decays(t->m1, t->m0, c->files.adam.beta1, t->n) &&
		  (!t->v1 || only_decays(t->v1, t->v0, c->files.adam.beta2, t->n));
	if (!t->m1 || x->nonfinite || x->frozen)
		return;
	float *g = gradient_from_means(&c->files, t, &lost);
	if (!c->given.n || !c->has_reference) /* (else it is the norm in --grads) */
		x->norm = sqrt(products_of(g, g, t->n).aa);
	if (t->v1) {
		test_second_moment(c, x, t, g, lost, sums);
		if (has_adamw_update(c))
			fit_update(c, r, x, t);
	}
	free(g);
}

/* Runs the tests of all tensors with the update of rule r. *sums: for another beta2. */
static int test_all_tensors(
	struct step_check *c, const struct rule *r, struct beta_sums *sums, struct err *e)
{
	*sums = (struct beta_sums){0};
	for (int i = 0; i < c->n; i++) {
		struct tensor_step t;
		int rc = tensor_step_read(&t, &c->files, i, STEP_ALL, e);
		if (!rc)
			test_tensor(c, &c->tensors[i], r, &t, sums);
		tensor_step_free(&t);
		if (rc)
			return -1;
	}
	judge_updates(c);
	return 0;
}

static bool has_decay(const struct tensor_check *x, double decay)
{
	return fabs(x->decay - decay) <= fmax(0.01, 0.02 * fabs(decay));
}

/* Returns the weight decay of a tensor's optimizer group in the file; -1: unknown. */
static double decay_of_group(const struct step_check *c, const struct tensor_check *x)
{
	const struct ckpt_settings *s = c->files.after.settings;
	return s ? s[x - c->tensors].decay : -1;
}

/* Returns true if the decay is neither the run's nor zero, or differs from the tensor's
 * group. (No decay in any tensor is another finding.) */
static bool has_other_decay(const struct step_check *c, const struct tensor_check *x)
{
	double decay = c->files.adam.decay, own = decay_of_group(c, x);
	bool none = has_decay(x, 0);
	if (!x->decays || !x->update.tested || x->update.wrong)
		return false;
	return (decay >= 0 && !has_decay(x, decay) && !none) ||
	       (own >= 0 && !has_decay(x, own) && (!none || c->decay > 0));
}

/* Returns true if a tensor should decay and does not. (Rules with a large rate hide decays.) */
static bool lacks_decay(const struct step_check *c, const struct tensor_check *x)
{
	double own = decay_of_group(c, x);
	return x->decays && x->update.tested && !x->update.wrong && has_decay(x, 0) &&
	       (own >= 0 ? own : c->files.adam.decay) > 0.02;
}

/* Returns how many tensors the current rule leaves unexplained. */
static int count_unexplained(const struct step_check *c)
{
	int n = lr_is_wrong(c) ? c->n : 0;
	for (int i = 0; i < c->n; i++)
		n += c->tensors[i].update.wrong || has_other_decay(c, &c->tensors[i]) ||
		     lacks_decay(c, &c->tensors[i]);
	return n;
}

/* Chooses the first rule that explains nearly all tensors; if none does, AdamW's. */
static int choose_rule(struct step_check *c, const struct rule **best, struct err *e)
{
	struct beta_sums sums;
	*best = &rules[0];
	if (4 * count_unexplained(c) <= c->n)
		return 0;
	for (size_t i = 1; i < ARRAY_LEN(rules); i++) {
		if (test_all_tensors(c, &rules[i], &sums, e))
			return -1;
		if (4 * count_unexplained(c) <= c->n) {
			*best = &rules[i];
			return 0;
		}
	}
	return test_all_tensors(c, &rules[0], &sums, e);
}

/* Adds findings about wrong exp_avg_sq. If it is wrong in most tensors and another beta2 explains
 * it, judges the update with that beta2. */
static int judge_moments(
	struct step_check *c, const struct beta_sums *sums, struct err *e)
{
	int n_wrong = 0, n_tested = 0, n_left = 0;
	double beta = c->files.adam.beta2,
	       solved_beta = sums->bb > 0 ? sums->ab / sums->bb : -1;
	struct beta_sums new_sums;
	for (int i = 0; i < c->n; i++) {
		n_tested += c->tensors[i].moments.tested;
		n_wrong += c->tensors[i].moments.wrong;
	}
	if (2 * n_wrong > n_tested && solved_beta > 0 && solved_beta < 1) {
		c->files.adam.beta2 = solved_beta;
		if (test_all_tensors(c, &rules[0], &new_sums, e))
			return -1;
		for (int i = 0; i < c->n; i++)
			n_left += c->tensors[i].moments.wrong;
		if (2 * n_left <= n_tested) {
			add_finding(c, FINDING_BETA2, NULL,
				"exp_avg_sq: as if beta2 were %.4g instead of %.4g%s",
				solved_beta, beta,
				fabs(c->files.adam.beta1 - beta) < 1e-3
					? ": are the betas exchanged?"
					: "");
			n_wrong = n_left;
		} else {
			c->files.adam.beta2 = beta;
			if (test_all_tensors(c, &rules[0], &new_sums, e))
				return -1;
		}
	}
	for (int i = 0; i < c->n && n_wrong; i++)
		if (c->tensors[i].moments.wrong && c->tensors[i].squares_lost)
			add_finding(c, FINDING_MOMENTS, &c->tensors[i],
				"exp_avg_sq: as if it were zero before the step");
		else if (c->tensors[i].moments.wrong)
			add_finding(c, FINDING_MOMENTS, &c->tensors[i],
				"exp_avg_sq did not gain the square of what exp_avg gained%s",
				n_wrong == n_tested
					? ": is it one step of AdamW with these betas?"
					: "");
	return 0;
}

void compute_updates(const struct step_check *c, const struct tensor_step *t,
	double decay, float **change, float **update)
{
	const struct direction direction = direction_of(c, &rules[0]);
	if (decay < 0)
		decay = c->files.adam.decay >= 0 ? c->files.adam.decay : c->decay;
	*change = xmalloc((size_t)max64(1, t->n) * sizeof(**change));
	*update = xmalloc((size_t)max64(1, t->n) * sizeof(**update));
	for (int64_t i = 0; i < t->n; i++) {
		double p = (double)t->p0[i];
		double u = element_update(&direction, t, i);
		(*change)[i] = (float)(p - (double)t->p1[i]);
		(*update)[i] = (float)(u + decay * p);
	}
}

/* Returns true if n slices of dimension `dim` had different learning rates, such as 0. Sets
 * s->detail. */
static bool explains_update_slices(struct cause_search *s, int dim, int n)
{
	double rate[MAX_SLICES];
	char list[120];
	size_t at = 0;
	bool equal = true;
	double left = slice_factors(s->c, s->tensor, s->change, s->update, dim, n, rate);
	if (!(left <= fmax(0.01, 2 * s->c->tensors[s->tensor].update.bound)))
		return false;
	for (int k = 0; k < n && at < sizeof(list); k++) {
		equal &= fabs(rate[k] - rate[0]) <= 0.02 * fabs(rate[0]);
		at += (size_t)snprintf(
			list + at, sizeof(list) - at, "%s%.3g", k ? " " : "", rate[k]);
	}
	snprintf(s->detail, sizeof(s->detail), "%d in %d slices, with learning rates %s",
		dim, n, list);
	return !equal;
}

/* Returns true if slices of the update have other factors. Sets s->detail to the factors. */
bool explained_by_update_slices(struct cause_search *s)
{
	const struct step_check *c = s->c;
	struct tensor_step t = {0};
	bool yes = false;
	if (c->tensors[s->tensor].update.wrong &&
		!tensor_step_read(&t, &c->files, s->tensor, STEP_ALL, &s->e)) {
		compute_updates(c, &t, -1, &s->change, &s->update);
		yes = try_slices(
			s, (const int64_t[]){c->o.fsdp, c->o.tp}, explains_update_slices);
		free(s->change);
		free(s->update);
	}
	tensor_step_free(&t);
	return yes;
}

/* A cause that only needs a condition on the tensor x. */
#define TENSOR_CAUSE(name, condition)                                     \
	bool name(struct cause_search *s)                                 \
	{                                                                 \
		const struct tensor_check *x = &s->c->tensors[s->tensor]; \
		return condition;                                         \
	}

TENSOR_CAUSE(is_not_finite, x->nonfinite)
TENSOR_CAUSE(has_frozen_gradient,
	x->frozen && !x->nonfinite && !x->dead && s->c->files.m1 >= 0)
TENSOR_CAUSE(is_dead, x->dead && !x->frozen && !is_zero_lora_a(s->c, s->tensor, &s->e))
TENSOR_CAUSE(is_unchanged, x->unchanged && x->update.tested)
TENSOR_CAUSE(has_other_update, x->update.wrong)

/* Returns true if a frozen tensor changed. *decays: weight decay alone explains the change. */
static bool frozen_changed(struct cause_search *s, bool *decays)
{
	const struct tensor_check *x = &s->c->tensors[s->tensor];
	struct tensor_step t = {0};
	bool changed =
		x->frozen && !x->buffer && !x->nonfinite && !x->unchanged &&
		!tensor_step_read(&t, &s->c->files, s->tensor, STEP_PARAMETERS, &s->e);
	if (changed) {
		const struct products p = products_of(t.p1, t.p0, t.n);
		double k = p.bb > 0 ? p.ab / p.bb : 1;
		*decays = k < 1 && residual_of(&p, k) <= 4 * rounding_of(t.p1, t.n);
	}
	tensor_step_free(&t);
	return changed;
}

bool has_frozen_decay(struct cause_search *s)
{
	bool decays;
	return frozen_changed(s, &decays) && decays;
}

bool has_frozen_update(struct cause_search *s)
{
	bool decays;
	return frozen_changed(s, &decays) && !decays;
}

/* Returns true if a tensor's decay differs from its group's or the given one. s->detail: both. */
bool has_wrong_decay(struct cause_search *s)
{
	const struct tensor_check *x = &s->c->tensors[s->tensor];
	double group = decay_of_group(s->c, x);
	snprintf(s->detail, sizeof(s->detail), "%.3g instead of %.3g", x->decay,
		group >= 0 ? group : s->c->files.adam.decay);
	return has_other_decay(s->c, x) && !lr_is_wrong(s->c);
}

bool explained_by_rule(struct cause_search *s)
{
	snprintf(s->detail, sizeof(s->detail), "%s", s->rule ? s->rule : "");
	return s->rule;
}

/* Returns true if no tensor decays and the given decay is large enough to be measured. Sets
 * s->detail. */
bool explained_by_no_decay(struct cause_search *s)
{
	const struct step_check *c = s->c;
	double decay = c->files.adam.decay;
	int n_decayed = 0, n_undecayed = 0, n_other = 0;
	for (int i = 0; i < c->n; i++) {
		const struct tensor_check *x = &c->tensors[i];
		bool is_measurable = x->decays && x->update.tested && !x->update.wrong;
		n_decayed += is_measurable && has_decay(x, decay);
		n_undecayed += is_measurable && has_decay(x, 0);
		n_other += has_other_decay(c, x);
	}
	snprintf(s->detail, sizeof(s->detail), "%.3g", decay);
	return decay > 0.02 && n_undecayed && !n_decayed && !n_other;
}

int judge_update(struct step_check *c, struct err *e)
{
	const struct rule *best = &rules[0];
	struct beta_sums sums;
	if (test_all_tensors(c, best, &sums, e) || judge_moments(c, &sums, e) ||
		choose_rule(c, &best, e))
		return -1;
	describe_unchecked_updates(c);
	note_storage(c);
	return find_update_causes(c, best->text, e);
}
