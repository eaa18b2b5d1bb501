/* Causes with a number that is solved for: a window of attention, soft caps, parameters of an
 * earlier step. See causes.c. */
#include "causes/causes.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- a window ------------------------------------------------------------------------- */

static double far_with_window(const struct cause_search *s, int64_t window, bool all)
{
	return variant_distance(s, (struct variant){.window = window}, all);
}

bool by_no_window(struct cause_search *s)
{
	int64_t length = s->c->batch.length;
	return s->c->weights.m.c.window && far_with_window(s, length, false) <= s->near &&
	       far_with_window(s, length, true) <= s->near;
}

/* Searches the best power of 2, then the windows around it: gradients come nearer as the window
 * does. */
bool by_window(struct cause_search *s)
{
	int64_t length = s->c->batch.length, best = 1;
	double nearest = INFINITY;
	for (int64_t w = 1; w < length; w *= 2) {
		double far = far_with_window(s, w, false);
		best = far < nearest ? w : best;
		nearest = fmin(nearest, far);
	}
	if (!(nearest < 0.9 * far_with_window(s, length, false)))
		return false;
	for (int64_t step = best / 2; step > 0; step /= 2)
		for (int side = -1; side <= 1; side += 2) {
			int64_t w = best + side * step;
			double far = w < length ? far_with_window(s, w, false) : INFINITY;
			if (far < nearest) {
				nearest = far;
				best = w;
				break;
			}
		}
	snprintf(s->detail, sizeof(s->detail), "%lld", (long long)best);
	return nearest <= s->near && far_with_window(s, best, true) <= s->near;
}

/* ---- a number that gradients depend on smoothly --------------------------------------- */

/* Uses the Gauss-Newton method with secants, from 0 and `first`: the wrong tensors are a times
 * the gradients at x plus b times the change since the number before. */
double solve_number(const struct cause_search *s, gradients_with *compute,
	const void *with, double first)
{
	enum { MOST = 10 };
	const struct model *m = &s->c->weights.m;
	struct gradients was = {0}, of[2];
	double x = first, before = 0, nearest = INFINITY, best = 0;
	compute(s, with, 0, false, &was);
	for (int k = 0; k < MOST && x > 0; k++) {
		double weights[2];
		compute(s, with, x, false, &of[0]);
		of[1] = was;
		for (int t = 0; t < m->n_tensors; t++)
			for (int64_t j = 0; was.g[t] && j < tensor_size(&m->tensors[t]);
				j++)
				was.g[t][j] = of[0].g[t][j] - was.g[t][j];
		double far = largest_residual(s, &of[0]);
		bool better = far < nearest, fits = fit(s, of, 2, weights);
		nearest = better ? far : nearest;
		best = better ? x : best;
		gradients_free(&was);
		was = of[0];
		if (!fits || !(weights[0] > 0) || (k > 1 && !better))
			break;
		double next = x + weights[1] / weights[0] * (x - before);
		before = x;
		x = next;
	}
	gradients_free(&was);
	if (!(nearest <= s->near))
		return 0;
	compute(s, with, best, true, &was);
	nearest = largest_residual(s, &was);
	gradients_free(&was);
	return nearest <= s->near ? best : 0;
}

/* ---- soft caps, temperatures ---------------------------------------------------------- */

enum squashing { SCORES_CAPPED, LOGITS_CAPPED, LOGITS_DIVIDED, LOGITS_MULTIPLIED };

/* Solves for 1 / cap^2, since the change is proportional to it for large caps. Logits are
 * divided or multiplied by 1 + x. */
static void with_squashing(const struct cause_search *s, const void *with, double x,
	bool all, struct gradients *g)
{
	const enum squashing *how = with;
	struct variant v = {0};
	double cap = x > 0 ? 1 / sqrt(x) : 0;
	if (*how == SCORES_CAPPED)
		v.function.score_cap = cap;
	else if (*how == LOGITS_CAPPED)
		v.function.logit_cap = cap;
	else
		v.function.logit_scale = *how == LOGITS_DIVIDED ? 1 / (1 + x) : 1 + x;
	gradients_of(s, v, all, g);
}

static bool by_factor_of_logits(struct cause_search *s, enum squashing how)
{
	double x = solve_number(s, with_squashing, &how, 0.1);
	snprintf(s->detail, sizeof(s->detail), "%.4g", 1 + x);
	return x > 0;
}

bool by_divided_logits(struct cause_search *s)
{
	return by_factor_of_logits(s, LOGITS_DIVIDED);
}

bool by_multiplied_logits(struct cause_search *s)
{
	return by_factor_of_logits(s, LOGITS_MULTIPLIED);
}

/* Returns 1 / cap^2 of the cap that comes nearest, out of a few. */
static double first_cap(const struct cause_search *s, enum squashing how)
{
	static const double caps[] = {50, 30, 20, 10, 5, 2, 1};
	double first = 1 / (caps[0] * caps[0]), nearest = INFINITY;
	for (size_t k = 0; k < ARRAY_LEN(caps); k++) {
		struct gradients g;
		double x = 1 / (caps[k] * caps[k]);
		with_squashing(s, &how, x, false, &g);
		double far = largest_residual(s, &g);
		first = far < nearest ? x : first;
		nearest = fmin(nearest, far);
		gradients_free(&g);
	}
	return first;
}

static bool by_cap(struct cause_search *s, enum squashing how)
{
	double x = solve_number(s, with_squashing, &how, first_cap(s, how));
	snprintf(s->detail, sizeof(s->detail), "x becomes %.3g tanh(x / %.3g)",
		1 / sqrt(x), 1 / sqrt(x));
	return x > 0;
}

bool by_capped_scores(struct cause_search *s)
{
	return by_cap(s, SCORES_CAPPED);
}

bool by_capped_logits(struct cause_search *s)
{
	return by_cap(s, LOGITS_CAPPED);
}

/* ---- a padded vocabulary -------------------------------------------------------------- */

static void with_zero_logits(const struct cause_search *s, const void *with, double x,
	bool all, struct gradients *g)
{
	(void)with;
	gradients_of(s, (struct variant){.function = {.zero_logits = x}}, all, g);
}

bool by_zero_logits(struct cause_search *s)
{
	double x = solve_number(s, with_zero_logits, NULL, 1);
	snprintf(s->detail, sizeof(s->detail), "%.4g", x);
	return x > 0;
}

/* ---- parameters of an earlier step ---------------------------------------------------- */

/* Slices of the rows whose parameters lack the last update. */
enum { MAX_OLD = 16 };
struct old {
	float **update; /* [tensors of the model]: the last update, at learning rate 1 */
	int n;
	bool slice[MAX_OLD]; /* [n]: the slice lacks the update */
	bool in_pairs;	     /* rows of heads are in another order in the files */
};

/* Computes the update of AdamW that led to BEFORE from its moments: p = p0 (1 - lr decay) - lr
 * u. */
static float *last_update(const struct step_check *c, int i, struct err *e)
{
	const struct adam *a = &c->files.adam;
	const struct tensor_check *x = &c->of[i];
	const double t = c->files.from, eps = a->eps >= 0 ? a->eps : 1e-8;
	double decay = x->decays ? x->decay : fmax(0, a->decay);
	struct tensor_step f;
	float *u = NULL;
	if (!tensor_step_read(&f, &c->files, i, STEP_ALL, e) && f.m0 && f.v0) {
		u = xmalloc((size_t)max64(1, f.n) * sizeof(*u));
		for (int64_t j = 0; j < f.n; j++)
			u[j] = (float)((double)f.m0[j] / (1 - pow(a->beta1, t)) /
					       (sqrt((double)f.v0[j] /
							(1 - pow(a->beta2, t))) +
						       eps) +
				       decay * (double)f.p0[j]);
	}
	tensor_step_free(&f);
	return u;
}

/* Returns the slice that has row r of a tensor, as torch.chunk divides the rows. */
static int64_t slice_of(
	const struct model *m, const struct tensor *t, int64_t r, const struct old *old)
{
	if (old->in_pairs && is_rotated(t->name))
		r = row_of_pairs(r, m->head_dim);
	return r / ((t->dims[0] + old->n - 1) / old->n);
}

/* x: the learning rate of the last update. */
static void with_old_parameters(const struct cause_search *s, const void *with, double x,
	bool all, struct gradients *g)
{
	const struct old *old = with;
	struct weights w = s->c->weights;
	w.w = xcalloc((size_t)w.m.n_tensors, sizeof(*w.w));
	for (int k = 0; k < w.m.n_tensors; k++) {
		const struct tensor *t = &w.m.tensors[k];
		int64_t n = tensor_size(t), cols = n / t->dims[0];
		w.w[k] = xmalloc((size_t)n * sizeof(**w.w));
		for (int64_t j = 0; j < n; j++) {
			bool is_old = old->slice[slice_of(&w.m, t, j / cols, old)];
			double by = is_old ? x * (double)old->update[k][j] : 0;
			w.w[k][j] = (float)((double)s->c->weights.w[k][j] + by);
		}
	}
	const struct variant v = {.sequence = -1, .wanted = all ? NULL : s->screen};
	reference_float64(&w, &s->c->batch, &v, g);
	for (int k = 0; k < w.m.n_tensors; k++)
		free(w.w[k]);
	free(w.w);
}

/* Finds the slices that are old: their change of the gradients at this step's learning rate
 * appears at least half as often as the most frequent one. Returns false if there are none. */
static bool find_old(const struct cause_search *s, struct old *old)
{
	const struct model *m = &s->c->weights.m;
	struct gradients of[MAX_OLD + 1] = {s->c->reference};
	double x[MAX_OLD + 1], most = 0;
	for (int i = 0; i < old->n; i++) {
		memset(old->slice, 0, sizeof(old->slice));
		old->slice[i] = true;
		with_old_parameters(s, old, s->c->lr, false, &of[i + 1]);
		for (int t = 0; t < m->n_tensors; t++)
			for (int64_t j = 0;
				of[i + 1].g[t] && j < tensor_size(&m->tensors[t]); j++)
				of[i + 1].g[t][j] -= of[0].g[t][j];
	}
	bool fits = fit(s, of, old->n + 1, x) && x[0] > 0;
	for (int i = 1; i <= old->n; i++) {
		most = fmax(most, x[i]);
		gradients_free(&of[i]);
	}
	for (int i = 0; i < old->n; i++)
		old->slice[i] = x[i + 1] > 0.5 * most;
	return fits && most > 0;
}

static void describe_old(struct cause_search *s, const struct old *old, double lr)
{
	char list[60] = "", *text = s->detail;
	size_t at = 0;
	int n = 0;
	for (int i = 0; i < old->n && at < sizeof(list); i++)
		if (old->slice[i])
			at += (size_t)snprintf(list + at, sizeof(list) - at, " %d", i),
				n++;
	if (n == old->n)
		snprintf(text, sizeof(s->detail), "the parameters were");
	else
		snprintf(text, sizeof(s->detail), "slices%s of %d of all rows were", list,
			old->n);
	at = strlen(text);
	snprintf(text + at, sizeof(s->detail) - at,
		" of before the last update (learning rate %.3g)", lr);
}

bool by_old_parameters(struct cause_search *s)
{
	const struct step_check *c = s->c;
	bool sharded = c->o.fsdp > 1 && c->o.fsdp <= MAX_OLD;
	struct old old = {.n = sharded ? (int)c->o.fsdp : 2};
	struct err e = {0};
	if (c->lora.used || c->files.m0 < 0 || c->files.v0 < 0 || !(c->files.from >= 1) ||
		!(c->lr > 0))
		return false;
	old.update = xcalloc((size_t)c->weights.m.n_tensors, sizeof(*old.update));
	bool all = true;
	for (int i = 0; i < c->n && all; i++) {
		old.update[c->of[i].in_model] = last_update(c, i, &e);
		die_io(&e);
		all = old.update[c->of[i].in_model];
	}
	double lr = 0;
	for (int pairs = 0; pairs < 2 && all && !(lr > 0); pairs++) {
		old.in_pairs = pairs;
		lr = find_old(s, &old) ? solve_number(s, with_old_parameters, &old, c->lr)
				       : 0;
	}
	if (lr > 0)
		describe_old(s, &old, lr);
	for (int i = 0; i < c->weights.m.n_tensors; i++)
		free(old.update[i]);
	free(old.update);
	return lr > 0;
}

/* ---- gradients of the step before ----------------------------------------------------- */

/* Fits the gradient that was seen as a sum of the reference and of the gradient before, which
 * is exp_avg / (1 - beta1) after a first step. Sets both factors; returns the residual. */
static double far_from_sum(
	const struct cause_search *s, int i, double x[2], struct err *e)
{
	const struct step_check *c = s->c;
	const double beta = c->files.adam.beta1;
	struct tensor_step t;
	double far = INFINITY, a[4] = {0};
	x[0] = x[1] = 0;
	if (!tensor_step_read(&t, &c->files, i, STEP_MEANS, e) && t.m0) {
		for (int64_t j = 0; j < t.n; j++)
			t.m0[j] = (float)((double)t.m0[j] / (1 - beta));
		const float *part[] = {reference_of(c, i), t.m0};
		add_products(a, x, part, 2, c->seen[i], t.n);
		if (solve(a, x, 2))
			far = distance_of(part, x, 2, c->seen[i], t.n);
	}
	tensor_step_free(&t);
	return far;
}

/* Returns whether the gradients of the step before were kept: both factors are equal. */
bool by_kept_gradients(struct cause_search *s)
{
	const struct step_check *c = s->c;
	const double within_factor = c->o.precision == RUN_FP32 ? 2e-3 : 0.05;
	struct err e = {0};
	int explained = 0;
	for (int k = 0; k < s->n_wrong && c->files.m0 >= 0 && !e.code; k++) {
		double x[2], far = far_from_sum(s, s->wrong[k], x, &e);
		explained += within(c, s->wrong[k], far) &&
			     fabs(x[1] / x[0] - 1) <= within_factor;
	}
	die_io(&e);
	return 10 * explained >= 9 * s->n_wrong && explained;
}
