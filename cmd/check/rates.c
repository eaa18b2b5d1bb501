/* Learning rates that explain the updates; see rates.h. */
#include "check/rates.h"
#include "check/search.h"

#include "stats/stats.h"

#include <math.h>
#include <stdlib.h>

double rate_noise(const struct tensor_check *x)
{
	const struct update_sums *s = &x->sums;
	return s->uu > 0 ? s->amplification * s->rounding * sqrt(s->pp / s->uu)
			 : INFINITY;
}

void find_common_rate(struct step_check *c)
{
	double *noise = xcalloc((size_t)c->n + 1, sizeof(*noise));
	double *rates[2]; /* [0]: above 0, [1]: below 0 */
	int n = 0, n_rates[2] = {0};
	for (int k = 0; k < 2; k++)
		rates[k] = xcalloc((size_t)c->n + 1, sizeof(**rates));
	for (int i = 0; i < c->n; i++)
		if (c->tensors[i].sums.uu > 0)
			noise[n++] = rate_noise(&c->tensors[i]);
	double max_noise = n ? 4 * median(noise, n) : 0;
	for (int i = 0; i < c->n; i++) {
		const struct tensor_check *x = &c->tensors[i];
		bool is_negative = x->lr < 0;
		if (x->sums.uu > 0 && rate_noise(x) <= max_noise &&
			fabs(x->lr) > rate_noise(x))
			rates[is_negative][n_rates[is_negative]++] = x->lr / x->lr_scale;
	}
	bool is_negative = n_rates[1] > n_rates[0];
	c->lr = n_rates[is_negative] ? median(rates[is_negative], n_rates[is_negative])
				     : 0;
	c->lr_bound = n_rates[is_negative] ? fmax(1e-3, max_noise / fabs(c->lr)) : 0;
	free(rates[0]);
	free(rates[1]);
	free(noise);
}

bool lr_is_wrong(const struct step_check *c)
{
	double given_lr = c->files.adam.lr;
	return given_lr > 0 && fabs(c->lr / given_lr - 1) > c->lr_bound;
}

/* Counts the unchanged tensors that have an update. *n_changed: all tensors that changed. */
static int count_unchanged_tensors(const struct step_check *c, int *n_changed)
{
	int n_unchanged = 0;
	*n_changed = 0;
	for (int i = 0; i < c->n; i++) {
		n_unchanged += c->tensors[i].sums.uu > 0 && c->tensors[i].unchanged;
		*n_changed += !c->tensors[i].unchanged;
	}
	return n_unchanged;
}

static bool has_unchanged_parameters(const struct step_check *c)
{
	int n_changed;
	return count_unchanged_tensors(c, &n_changed) && !n_changed;
}

/* Returns true if some tensor's rounding is small enough to show this rate. */
static bool is_rate_visible(const struct step_check *c, double rate)
{
	for (int i = 0; i < c->n; i++)
		if (rate_noise(&c->tensors[i]) < 0.1 * rate)
			return true;
	return false;
}

/* Returns true if no parameter changed, though the learning rate is large enough to show.
 * Sets s->detail to the rate. */
bool explained_by_standstill(struct cause_search *s)
{
	double lr = s->c->files.adam.lr;
	snprintf(s->detail, sizeof(s->detail), "%.6g", lr);
	return lr > 0 && has_unchanged_parameters(s->c) && is_rate_visible(s->c, lr);
}

bool explained_by_no_rate(struct cause_search *s)
{
	return has_unchanged_parameters(s->c) &&
	       !(s->c->files.adam.lr > 0 && is_rate_visible(s->c, s->c->files.adam.lr));
}

/* Returns true if parameters only shrank, as by weight decay. (Their rate is then above 0.) Sets
 * s->detail. */
bool explained_by_decay_alone(struct cause_search *s)
{
	const struct step_check *c = s->c;
	double largest = 0;
	int n = 0;
	for (int i = 0; i < c->n && !(fabs(c->lr) > 0); i++) {
		const struct tensor_check *x = &c->tensors[i];
		double shrink = x->sums.shrinkage;
		if (x->frozen || x->unchanged || !(shrink > 4 * x->sums.rounding) ||
			rate_noise(x) > 0.1 * shrink)
			continue;
		largest = fmax(largest, shrink);
		n++;
	}
	snprintf(s->detail, sizeof(s->detail), "by %.3g of themselves (%d tensor%s)",
		largest, n, plural(n));
	return n;
}

/* Returns true if the learning rate is given, but no tensor moved along its update. Sets
 * s->detail. */
bool explained_by_no_update(struct cause_search *s)
{
	const struct step_check *c = s->c;
	double given_lr = c->files.adam.lr;
	snprintf(s->detail, sizeof(s->detail), "%.6g", given_lr);
	return given_lr > 0 && !(fabs(c->lr) > 0) && !has_unchanged_parameters(c) &&
	       is_rate_visible(c, given_lr);
}

bool explained_by_ascent(struct cause_search *s)
{
	snprintf(s->detail, sizeof(s->detail), "%.6g", s->c->lr);
	return s->c->lr < 0;
}

/* Returns true if the common rate differs from the given one, and explains most updates. Sets
 * s->detail. */
bool explained_by_other_rate(struct cause_search *s)
{
	const struct step_check *c = s->c;
	int wrong = 0;
	for (int i = 0; i < c->n; i++)
		wrong += c->tensors[i].update.wrong;
	snprintf(s->detail, sizeof(s->detail), "%.6g instead of %.6g", c->lr,
		c->files.adam.lr);
	return lr_is_wrong(c) && c->lr > 0 && 4 * wrong <= c->n;
}

/* Returns the relative bound of a tensor's rate. (If all weights of a norm are 1 and its
 * gradients all have one sign, as with many positions, the update points along the
 * weights. Their decay then looks like another rate.) */
static double rate_bound(const struct step_check *c, const struct tensor_check *x)
{
	double decay = fmax(c->decay, c->files.adam.decay) * x->sums.decay_as_rate;
	return decay + fmax(1e-3, 3 * x->update.bound * x->sums.amplification);
}

/* Returns true if the tensor's rate is `times` the common rate. */
static bool has_rate(
	const struct step_check *c, const struct tensor_check *x, double times)
{
	return fabs(x->lr / c->lr - times) <= rate_bound(c, x) * fmax(1, fabs(times));
}

bool has_other_lr(const struct step_check *c, const struct tensor_check *x)
{
	return x->update.tested && !x->update.wrong && !x->unchanged &&
	       !has_rate(c, x, x->lr_scale);
}

/* Returns the settings of a tensor's group in a file; NULL: unknown. */
static const struct ckpt_settings *group_settings(
	const struct step_check *c, const struct tensor_check *x, bool before)
{
	const struct step_files *f = &c->files;
	const struct ckpt_view *v = before ? &f->before : &f->after;
	int i = ckpt_view_find(v, x->name);
	return v->settings && i >= 0 && v->settings[i].lr >= 0 ? &v->settings[i] : NULL;
}

/* Returns a tensor that has the common rate and settings in the files; NULL: none. */
static const struct tensor_check *find_typical_tensor(const struct step_check *c)
{
	for (int k = 0; k < c->n; k++) {
		const struct tensor_check *x = &c->tensors[c->order[k]];
		if (x->update.tested && !x->update.wrong && !x->unchanged &&
			has_rate(c, x, 1) && group_settings(c, x, false))
			return x;
	}
	return NULL;
}

enum group_rate {
	RATE_UNKNOWN,	/* the files have no settings */
	RATE_EXPLAINED, /* a file has this rate, or this multiple of the common rate */
	RATE_UNSURE,	/* the file after the step may have the next step's rates */
	RATE_REFUTED
};

/* Classifies a tensor's rate by the optimizer groups in the files. Schedules change the rates
 * before or after a file is written, so either file may have the rates of this step. */
static enum group_rate classify_rate(
	const struct step_check *c, const struct tensor_check *x)
{
	const struct tensor_check *typical = find_typical_tensor(c);
	bool both =
		typical && group_settings(c, x, true) && group_settings(c, typical, true);
	if (!typical || !group_settings(c, x, false))
		return RATE_UNKNOWN;
	for (int before = both; before >= 0; before--) {
		double own = group_settings(c, x, before)->lr;
		double other = group_settings(c, typical, before)->lr;
		if (!(own > 0 || other > 0)) /* (end of a schedule) */
			continue;
		if (has_rate(c, x, own / c->lr) ||
			(other > 0 && has_rate(c, x, own / other)))
			return RATE_EXPLAINED;
	}
	const struct ckpt_settings *a = group_settings(c, x, false),
				   *b = group_settings(c, typical, false);
	bool same_group =
		a->group >= 0 && b->group >= 0
			? a->group == b->group
			: !(fabs(a->lr - b->lr) > 0) && !(fabs(a->decay - b->decay) > 0);
	return same_group || both ? RATE_REFUTED : RATE_UNSURE;
}

/* Returns true if a rate that differs from the common rate is wrong. */
static bool rate_is_wrong(const struct step_check *c, const struct tensor_check *x)
{
	enum group_rate kind = classify_rate(c, x);
	if (c->lr_scaled || kind == RATE_REFUTED)
		return true;
	return kind != RATE_EXPLAINED && c->files.adam.lr > 0;
}

/* Returns the rate to print: a group shares one rate within rounding, the first tensor's. */
static double rate_to_print(const struct step_check *c, const struct tensor_check *x)
{
	for (int k = 0; c->order[k] != x - c->tensors; k++) {
		const struct tensor_check *y = &c->tensors[c->order[k]];
		if (has_other_lr(c, y) && fabs(y->lr / x->lr - 1) < 3e-3)
			return y->lr;
	}
	return has_rate(c, x, 0) ? 0 : x->lr;
}

/* Returns true if most tensors moved, but s->tensor did not, or only by weight decay. */
bool has_no_update(struct cause_search *s)
{
	const struct step_check *c = s->c;
	const struct tensor_check *x = &c->tensors[s->tensor];
	return has_other_lr(c, x) && has_rate(c, x, 0) &&
	       classify_rate(c, x) != RATE_EXPLAINED;
}

/* Returns true if s->tensor moved with the opposite sign of most tensors. Sets s->detail. */
bool has_opposite_update(struct cause_search *s)
{
	const struct step_check *c = s->c;
	const struct tensor_check *x = &c->tensors[s->tensor];
	snprintf(s->detail, sizeof(s->detail), "%.4g, but most have %.4g",
		rate_to_print(c, x), c->lr);
	return has_other_lr(c, x) && x->lr / c->lr < 0 && !has_rate(c, x, 0);
}

/* Returns true if a tensor's learning rate differs from the other tensors' and is wrong.
 * Sets s->detail to both rates. */
bool has_wrong_rate(struct cause_search *s)
{
	const struct step_check *c = s->c;
	const struct tensor_check *x = &c->tensors[s->tensor];
	if (!has_other_lr(c, x) || !rate_is_wrong(c, x))
		return false;
	snprintf(s->detail, sizeof(s->detail), "%.4g instead of %.4g",
		rate_to_print(c, x), c->lr * x->lr_scale);
	return true;
}

/* Returns true if the tensor has another rate than most, which is not known to be wrong. Sets
 * s->detail. */
bool has_own_rate(struct cause_search *s)
{
	const struct step_check *c = s->c;
	const struct tensor_check *x = &c->tensors[s->tensor];
	if (!has_other_lr(c, x) || rate_is_wrong(c, x))
		return false;
	snprintf(s->detail, sizeof(s->detail), "%.4g, but most have %.4g",
		rate_to_print(c, x), c->lr);
	return true;
}

/* Returns true if the tensor has the common rate although its group in the file has another one.
 * Sets s->detail. */
bool lacks_own_rate(struct cause_search *s)
{
	const struct step_check *c = s->c;
	const struct tensor_check *x = &c->tensors[s->tensor];
	const struct ckpt_settings *before = group_settings(c, x, true);
	if (!before || !x->update.tested || x->update.wrong || x->unchanged ||
		has_other_lr(c, x) || c->lr_scaled || classify_rate(c, x) != RATE_REFUTED)
		return false;
	snprintf(s->detail, sizeof(s->detail), "%.4g, but its group in the file has %.4g",
		c->lr, before->lr);
	return true;
}

/* Returns the optimizer's name if its update is not AdamW's; else NULL. */
static const char *other_optimizer(const struct step_check *c)
{
	unsigned is = c->files.after.optimizer;
	return is & CKPT_NADAM				  ? "NAdam"
	       : (is & CKPT_AMSGRAD) && c->files.step > 1 ? "AMSGrad"
							  : NULL;
}

bool has_adamw_update(const struct step_check *c)
{
	return !other_optimizer(c);
}

void describe_unchecked_updates(struct step_check *c)
{
	const char *optimizer = other_optimizer(c);
	const char *why = NULL;
	int n_updates = 0, n_tested = 0;
	for (int i = 0; i < c->n; i++) {
		const struct tensor_check *x = &c->tensors[i];
		bool has_update = x->sums.uu > 0 && !x->zero;
		n_updates += has_update;
		n_tested += has_update && x->update.tested;
	}
	if (c->files.no_after)
		why = "no checkpoint after the step was given";
	else if (!step_files_have_moments(&c->files) || c->files.v1 < 0)
		why = "the file after the step has no exp_avg and exp_avg_sq";
	else if (!n_updates)
		why = "all moments are zero";
	else if (has_unchanged_parameters(c))
		why = "no parameter changed";
	else if (!(fabs(c->lr) > 0))
		why = "the learning rate is 0, or so small that rounding of the "
		      "parameters hides it";
	else if (!n_tested)
		why = "the rounding of the parameters hides it";
	snprintf(c->update_unchecked, sizeof(c->update_unchecked), "%s", why ? why : "");
	c->n_updates_unchecked = 0;
	if (optimizer)
		snprintf(c->update_unchecked, sizeof(c->update_unchecked),
			"the optimizer is %s; its update differs from AdamW's",
			optimizer);
	else if (!why && n_tested < n_updates) {
		c->n_updates_unchecked = n_updates - n_tested;
		snprintf(c->update_unchecked, sizeof(c->update_unchecked),
			"the rounding of the parameters hides it (%d of %d tensors)",
			n_updates - n_tested, n_updates);
	}
}
