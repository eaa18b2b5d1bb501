/* Causes with a number that is solved for: a window of attention, soft caps, parameters of an
 * earlier step. See causes.c. */
#include "causes/causes.h"

#include <math.h>

static double window_distance(const struct cause_search *s, int64_t window, bool is_full)
{
	return variant_distance(s, (struct variant){.window = window}, is_full);
}

/* Returns true if the model's sliding window is missing. */
bool explained_by_no_window(struct cause_search *s)
{
	int64_t length = s->c->batch.length;
	return s->c->weights.m.c.window && window_distance(s, length, false) <= s->near &&
	       window_distance(s, length, true) <= s->near;
}

/* Returns true if another sliding window explains the gradients. Searches the best power of 2,
 * then the windows around it: gradients come nearer as the window does. Sets s->detail. */
bool explained_by_window(struct cause_search *s)
{
	int64_t length = s->c->batch.length, best = 1;
	double nearest = INFINITY;
	for (int64_t w = 1; w < length; w *= 2) {
		double dist = window_distance(s, w, false);
		best = dist < nearest ? w : best;
		nearest = fmin(nearest, dist);
	}
	if (!(nearest < 0.9 * window_distance(s, length, false)))
		return false;
	for (int64_t step = best / 2; step > 0; step /= 2)
		for (int side = -1; side <= 1; side += 2) {
			int64_t w = best + side * step;
			double dist =
				w < length ? window_distance(s, w, false) : INFINITY;
			if (dist < nearest) {
				nearest = dist;
				best = w;
				break;
			}
		}
	snprintf(s->detail, sizeof(s->detail), "%lld", (long long)best);
	return nearest <= s->near && window_distance(s, best, true) <= s->near;
}

/* ---- a number that gradients depend on smoothly --------------------------------------- */

/* Uses the Gauss-Newton method with secants, from 0 and `first`: the wrong tensors are a times the
 * gradients at x plus b times their change since the previous number. */
double solve_number(const struct cause_search *s, compute_with_number *compute,
	const void *context, double first)
{
	enum { MAX_STEPS = 10 };
	const struct model *m = &s->c->weights.m;
	struct gradients last = {0}, parts[2];
	double x = first, x_before = 0, nearest = INFINITY, best = 0;
	compute(s, context, 0, false, &last);
	for (int k = 0; k < MAX_STEPS && x > 0; k++) {
		double weights[2];
		compute(s, context, x, false, &parts[0]);
		parts[1] = last;
		for (int t = 0; t < m->n_tensors; t++)
			for (int64_t j = 0; last.g[t] && j < tensor_size(&m->tensors[t]);
				j++)
				last.g[t][j] = parts[0].g[t][j] - last.g[t][j];
		double distance = largest_residual(s, &parts[0]);
		bool is_nearer = distance < nearest,
		     is_fit = solve_factors(s, parts, 2, weights);
		nearest = is_nearer ? distance : nearest;
		best = is_nearer ? x : best;
		gradients_free(&last);
		last = parts[0];
		if (!is_fit || !(weights[0] > 0) || (k > 1 && !is_nearer))
			break;
		double next = x + weights[1] / weights[0] * (x - x_before);
		x_before = x;
		x = next;
	}
	gradients_free(&last);
	if (!(nearest <= s->near))
		return 0;
	compute(s, context, best, true, &last);
	nearest = largest_residual(s, &last);
	gradients_free(&last);
	return nearest <= s->near ? best : 0;
}

/* ---- soft caps, temperatures ---------------------------------------------------------- */

enum squashing { SCORES_CAPPED, LOGITS_CAPPED, LOGITS_DIVIDED, LOGITS_MULTIPLIED };

/* Computes the gradients with a soft cap, x = 1 / cap^2, as the change is proportional to x for
 * large caps; or with logits divided or multiplied by 1 + x. */
static void compute_with_squashing(const struct cause_search *s, const void *context,
	double x, bool is_full, struct gradients *g)
{
	const enum squashing *how = context;
	struct variant v = {0};
	double cap = x > 0 ? 1 / sqrt(x) : 0;
	if (*how == SCORES_CAPPED)
		v.function.score_cap = cap;
	else if (*how == LOGITS_CAPPED)
		v.function.logit_cap = cap;
	else
		v.function.logit_scale = *how == LOGITS_DIVIDED ? 1 / (1 + x) : 1 + x;
	variant_gradients(s, v, is_full, g);
}

/* Returns true if logits divided or multiplied by a number explain the gradients. Sets
 * s->detail. */
static bool by_factor_of_logits(struct cause_search *s, enum squashing how)
{
	double x = solve_number(s, compute_with_squashing, &how, 0.1);
	snprintf(s->detail, sizeof(s->detail), "%.4g", 1 + x);
	return x > 0;
}

bool explained_by_divided_logits(struct cause_search *s)
{
	return by_factor_of_logits(s, LOGITS_DIVIDED);
}

bool explained_by_multiplied_logits(struct cause_search *s)
{
	return by_factor_of_logits(s, LOGITS_MULTIPLIED);
}

/* Returns 1 / cap^2 of the nearest cap, out of a few. */
static double find_first_cap(const struct cause_search *s, enum squashing how)
{
	static const double caps[] = {50, 30, 20, 10, 5, 2, 1};
	double first = 1 / (caps[0] * caps[0]), nearest = INFINITY;
	for (size_t k = 0; k < ARRAY_LEN(caps); k++) {
		struct gradients g;
		double x = 1 / (caps[k] * caps[k]);
		compute_with_squashing(s, &how, x, false, &g);
		double dist = largest_residual(s, &g);
		first = dist < nearest ? x : first;
		nearest = fmin(nearest, dist);
		gradients_free(&g);
	}
	return first;
}

/* Returns true if a soft cap explains the gradients. Sets s->detail. */
static bool by_cap(struct cause_search *s, enum squashing how)
{
	double x = solve_number(s, compute_with_squashing, &how, find_first_cap(s, how));
	snprintf(s->detail, sizeof(s->detail), "x becomes %.3g tanh(x / %.3g)",
		1 / sqrt(x), 1 / sqrt(x));
	return x > 0;
}

bool explained_by_capped_scores(struct cause_search *s)
{
	return by_cap(s, SCORES_CAPPED);
}

bool explained_by_capped_logits(struct cause_search *s)
{
	return by_cap(s, LOGITS_CAPPED);
}

static void compute_with_zero_logits(const struct cause_search *s, const void *context,
	double x, bool is_full, struct gradients *g)
{
	(void)context;
	variant_gradients(
		s, (struct variant){.function = {.zero_logits = x}}, is_full, g);
}

/* Returns true if a number of further logits that are 0 explains the gradients. Sets s->detail. */
bool explained_by_zero_logits(struct cause_search *s)
{
	double x = solve_number(s, compute_with_zero_logits, NULL, 1);
	snprintf(s->detail, sizeof(s->detail), "%.4g", x);
	return x > 0;
}

/* ---- parameters of an earlier step ---------------------------------------------------- */

enum { MAX_OLD = 16 };
/* Slices of the rows whose parameters lack the last update. */
struct old_slices {
	float **update; /* [tensors of the model]: the last update, at learning rate 1 */
	int n;
	bool is_old[MAX_OLD]; /* [n]: the slice lacks the update */
	bool in_pairs;	      /* rows of heads are in adjacent pairs in the files */
};

/* Computes the AdamW update u that led to BEFORE, from its moments: p = p0 (1 - lr decay) - lr u.
 * NULL: the files lack the moments, or *e is set. */
static float *compute_last_update(const struct step_check *c, int i, struct err *e)
{
	const struct adam *a = &c->files.adam;
	const struct tensor_check *x = &c->tensors[i];
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

/* Returns the slice that has row r of a model's tensor: torch.chunk divides the file's rows. */
static int64_t slice_of_row(const struct model *m, const struct tensor *t, int64_t r,
	const struct old_slices *old)
{
	if (old->in_pairs && is_rotated(t->name))
		r = row_of_pairs(r, m->head_dim);
	return r / ((t->dims[0] + old->n - 1) / old->n);
}

/* Computes the gradients with old parameters in old slices. x: learning rate of the last update. */
static void compute_with_old_parameters(const struct cause_search *s, const void *context,
	double x, bool is_full, struct gradients *g)
{
	const struct old_slices *old = context;
	struct weights w = s->c->weights;
	w.w = xcalloc((size_t)w.m.n_tensors, sizeof(*w.w));
	for (int k = 0; k < w.m.n_tensors; k++) {
		const struct tensor *t = &w.m.tensors[k];
		int64_t n = tensor_size(t), cols = n / t->dims[0];
		w.w[k] = xmalloc((size_t)n * sizeof(**w.w));
		for (int64_t j = 0; j < n; j++) {
			bool is_old = old->is_old[slice_of_row(&w.m, t, j / cols, old)];
			double change = is_old ? x * (double)old->update[k][j] : 0;
			w.w[k][j] = (float)((double)s->c->weights.w[k][j] + change);
		}
	}
	const struct variant v = {.sequence = -1, .wanted = is_full ? NULL : s->screen};
	reference_float64(&w, &s->c->batch, &v, g);
	for (int k = 0; k < w.m.n_tensors; k++)
		free(w.w[k]);
	free(w.w);
}

/* Marks the old slices in old->is_old: in a fit, the change that they make to the gradients has
 * at least half of the largest weight. Returns false if there are none. */
static bool find_old(const struct cause_search *s, struct old_slices *old)
{
	const struct model *m = &s->c->weights.m;
	struct gradients g[MAX_OLD + 1] = {s->c->reference};
	double x[MAX_OLD + 1], max = 0;
	for (int i = 0; i < old->n; i++) {
		memset(old->is_old, 0, sizeof(old->is_old));
		old->is_old[i] = true;
		compute_with_old_parameters(s, old, s->c->lr, false, &g[i + 1]);
		for (int t = 0; t < m->n_tensors; t++)
			for (int64_t j = 0;
				g[i + 1].g[t] && j < tensor_size(&m->tensors[t]); j++)
				g[i + 1].g[t][j] -= g[0].g[t][j];
	}
	bool fits = solve_factors(s, g, old->n + 1, x) && x[0] > 0;
	for (int i = 1; i <= old->n; i++) {
		max = fmax(max, x[i]);
		gradients_free(&g[i]);
	}
	for (int i = 0; i < old->n; i++)
		old->is_old[i] = x[i + 1] > 0.5 * max;
	return fits && max > 0;
}

/* Writes to s->detail which slices lacked the last update, and its learning rate. */
static void describe_old_slices(
	struct cause_search *s, const struct old_slices *old, double lr)
{
	char list[60] = "", *text = s->detail;
	size_t len = 0;
	int n = 0;
	for (int i = 0; i < old->n && len < sizeof(list); i++)
		if (old->is_old[i])
			len += (size_t)snprintf(list + len, sizeof(list) - len, " %d", i),
				n++;
	if (n == old->n)
		snprintf(text, sizeof(s->detail), "the parameters were");
	else
		snprintf(text, sizeof(s->detail), "slices%s of %d of all rows were", list,
			old->n);
	len = strlen(text);
	snprintf(text + len, sizeof(s->detail) - len,
		" as before the last update (learning rate %.3g)", lr);
}

/* Returns true if all or some slices of the parameters lacked the last update. */
bool explained_by_old_parameters(struct cause_search *s)
{
	const struct step_check *c = s->c;
	bool sharded = c->o.fsdp > 1 && c->o.fsdp <= MAX_OLD;
	struct old_slices old = {.n = sharded ? (int)c->o.fsdp : 2};
	struct err e = {0};
	if (c->lora.used || c->files.m0 < 0 || c->files.v0 < 0 || !(c->files.from >= 1) ||
		!(c->lr > 0))
		return false;
	old.update = xcalloc((size_t)c->weights.m.n_tensors, sizeof(*old.update));
	bool is_complete = true;
	for (int i = 0; i < c->n && is_complete; i++) {
		old.update[c->tensors[i].in_model] = compute_last_update(c, i, &e);
		die_io(&e);
		is_complete = old.update[c->tensors[i].in_model];
	}
	double lr = 0;
	for (int pairs = 0; pairs < 2 && is_complete && !(lr > 0); pairs++) {
		old.in_pairs = pairs;
		lr = find_old(s, &old)
			     ? solve_number(s, compute_with_old_parameters, &old, c->lr)
			     : 0;
	}
	if (lr > 0)
		describe_old_slices(s, &old, lr);
	for (int i = 0; i < c->weights.m.n_tensors; i++)
		free(old.update[i]);
	free(old.update);
	return lr > 0;
}

/* Fits the checked gradient by x[0] times the reference plus x[1] times the last gradient,
 * which is exp_avg / (1 - beta1) after a first step. Returns the residual. */
static double residual_of_sum(
	const struct cause_search *s, int i, double x[2], struct err *e)
{
	const struct step_check *c = s->c;
	const double beta = c->files.adam.beta1;
	struct tensor_step t;
	double dist = INFINITY, a[4] = {0};
	x[0] = x[1] = 0;
	if (!tensor_step_read(&t, &c->files, i, STEP_MEANS, e) && t.m0) {
		for (int64_t j = 0; j < t.n; j++)
			t.m0[j] = (float)((double)t.m0[j] / (1 - beta));
		const float *part[] = {reference_of(c, i), t.m0};
		add_products(a, x, part, 2, c->seen[i], t.n);
		if (solve_linear(a, x, 2))
			dist = fit_distance(part, x, 2, c->seen[i], t.n);
	}
	tensor_step_free(&t);
	return dist;
}

/* Returns true if the previous gradients were not set to zero: both factors are equal. */
bool explained_by_kept_gradients(struct cause_search *s)
{
	const struct step_check *c = s->c;
	const double within_factor = c->o.precision == RUN_FP32 ? 2e-3 : 0.05;
	struct err e = {0};
	int explained = 0;
	for (int k = 0; k < s->n_wrong && c->files.m0 >= 0 && !e.code; k++) {
		double x[2], dist = residual_of_sum(s, s->wrong[k], x, &e);
		explained += is_within(c, s->wrong[k], dist) &&
			     fabs(x[1] / x[0] - 1) <= within_factor;
	}
	die_io(&e);
	return 10 * explained >= 9 * s->n_wrong && explained;
}
