/* Tries the known bugs, a table, to explain what is wrong. A cause of a wrong gradient is
 * reported only if it leaves no more unexplained than rounding does. cmd/causes has the
 * tests of gradients; update.c, rates.c and storage.c have the tests of updates. */
#include "check/search.h"

#include "stats/stats.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Returns the median of the wrong tensors' factors. */
static double median_wrong_factor(const struct cause_search *s)
{
	const struct step_check *c = s->c;
	double *f = xcalloc((size_t)s->n_wrong + 1, sizeof(*f));
	for (int k = 0; k < s->n_wrong; k++) {
		int i = s->wrong[k];
		const struct products p =
			products_of(c->seen[i], reference_of(c, i), c->tensors[i].n);
		f[k] = p.bb > 0 ? p.ab / p.bb : 0;
	}
	double middle = s->n_wrong ? median(f, s->n_wrong) : 1;
	free(f);
	return middle;
}

/* Returns the error of the logged loss beyond the rounding of the log, as a multiple of bound (a
 * fraction of the loss). 0: none was logged. */
static double loss_error_ratio(const struct step_check *c, double bound)
{
	double error = fabs(c->o.loss - c->reference.loss) - c->o.loss_half;
	return isnan(c->o.loss) ? 0 : error / (bound * c->reference.size);
}

/* Returns the median distance of the wrong tensors, relative to their bounds in bf16, after
 * dividing out their common factor. INFINITY: a tensor or the loss is beyond its bound. (The bound
 * in fp32 includes the rounding of the moments.) */
static double median_distance_in_bf16(struct cause_search *s)
{
	const struct step_check *c = s->c;
	if (c->o.precision != RUN_FP32 || 2 * s->n_wrong <= c->n || !c->has_reference ||
		loss_error_ratio(c, 1e-2 / sqrt((double)max64(1, c->batch.counted))) > 1)
		return INFINITY;
	double *bounds = compute_bf16_bounds(c, &s->e), factor = median_wrong_factor(s);
	double *distances = xcalloc((size_t)s->n_wrong, sizeof(*distances));
	bool all = bounds && factor > 0;
	for (int k = 0; k < s->n_wrong && all; k++) {
		int i = s->wrong[k];
		const struct products p =
			products_of(c->seen[i], reference_of(c, i), c->tensors[i].n);
		double residual = residual_of(&p, factor);
		all = residual <= fmin(bounds[i] + c->tensors[i].gradient.bound, 0.5);
		distances[k] = residual / bounds[i];
	}
	double result = all ? median(distances, s->n_wrong) : INFINITY;
	free(bounds);
	free(distances);
	return result;
}

/* Returns true if gradients are within the bounds of bf16, and the loss is right in fp32 or
 * unknown. */
bool seems_partly_bf16(struct cause_search *s)
{
	return loss_error_ratio(s->c, s->c->loss_bound) <= 1 &&
	       isfinite(median_distance_in_bf16(s));
}

/* Returns true if gradients are as far off as in right runs in bf16: 0.3 to 0.5 of their bounds. */
bool seems_all_bf16(struct cause_search *s)
{
	double middle = median_distance_in_bf16(s);
	return middle > 0.15 && isfinite(middle);
}

/* Returns true if all norms are wrong, and nothing else. */
static bool are_only_norms(const struct cause_search *s)
{
	int n_norms = 0;
	for (int i = 0; i < s->c->n; i++) {
		const struct tensor_check *x = &s->c->tensors[i];
		bool is_norm = model_tensor(s->c, i)->init == INIT_ONE;
		if (x->gradient.wrong && !is_norm)
			return false;
		n_norms += is_norm && x->gradient.tested;
	}
	return n_norms > 1 && n_norms == s->n_wrong;
}

/* Returns true if only norms are wrong, by little. s->detail: the largest distance. */
bool are_only_norms_rounded(struct cause_search *s)
{
	double largest = 0;
	for (int k = 0; k < s->n_wrong; k++)
		largest = fmax(largest, s->c->tensors[s->wrong[k]].gradient.value);
	snprintf(s->detail, sizeof(s->detail), "%.1g", largest);
	return s->c->o.precision == RUN_FP32 && largest <= 0.03 && are_only_norms(s);
}

/* Returns true if only norms are wrong and the run may have sequence parallelism. */
bool are_norms(struct cause_search *s)
{
	return may_have(s->c, s->c->o.tp) && are_only_norms(s);
}

/* Counts the tokens that are in the batch or have a gradient in the embedding, but not both. -1:
 * unknown, because the table is also the output layer or the batch has all tokens. */
static int64_t count_mismatched_tokens(const struct cause_search *s)
{
	const struct step_check *c = s->c;
	const struct model *m = &c->weights.m;
	int64_t rows = m->tokens->dims[0], cols = m->tokens->dims[1];
	int64_t in_batch = 0, seen = 0, n_mismatched = 0;
	for (int k = 0; k < s->n_wrong; k++) {
		int i = s->wrong[k];
		const float *a = c->seen[i], *b = reference_of(c, i);
		double min_square =
			1e-8 * products_of(a, a, c->tensors[i].n).aa / (double)rows;
		if (model_tensor(c, i) != m->tokens || m->output == m->tokens)
			continue;
		for (int64_t r = 0; r < rows; r++) {
			const struct products p =
				products_of(a + r * cols, b + r * cols, cols);
			in_batch += p.bb > 0;
			seen += p.aa > min_square;
			n_mismatched += (p.bb > 0) != (p.aa > min_square);
		}
	}
	bool is_known =
		c->o.precision == RUN_FP32 && in_batch && in_batch < rows && seen < rows;
	return is_known ? n_mismatched : -1;
}

/* Applies to any step: a cause for the last rows of the table. */
bool is_always_true(struct cause_search *s)
{
	(void)s;
	return true;
}

/* Returns true if the loss or the output layer's gradient shows that the forward pass is right.
 * Sets s->detail. */
bool has_right_forward_pass(struct cause_search *s)
{
	const char *zero_grad_hint =
		s->has & IF_MOST ? ", or were gradients not set to zero" : "";
	/* (a loss with few digits cannot separate two functions) */
	const struct step_check *c = s->c;
	bool has_coarse_loss = !s->forward_right && c->loss_right &&
			       c->o.loss_half > c->loss_bound * c->reference.size;
	if (c->o.precision == RUN_FP32 && has_coarse_loss)
		snprintf(s->detail, sizeof(s->detail),
			"the loss agrees in the logged digits, which hide small errors of the "
			"forward pass; is the backward pass wrong, or the "
			"function slightly different%s",
			zero_grad_hint);
	else if (c->o.precision == RUN_FP32)
		snprintf(s->detail, sizeof(s->detail),
			"%s is right, and so are the batch and the forward pass; is the "
			"backward pass wrong%s",
			s->c->loss_right ? "the loss" : "the output layer's gradient",
			zero_grad_hint);
	else
		snprintf(s->detail, sizeof(s->detail),
			"the loss is within the rounding of bf16, which hides small errors of the "
			"forward pass; is the backward pass wrong, or the "
			"function slightly different%s",
			zero_grad_hint);
	return s->c->loss_right || s->forward_right;
}

bool has_some_right_tensors(struct cause_search *s)
{
	return s->c->scale.n_right > 0;
}

/* Returns true if no wrong gradient points far from the reference. s->detail: the cosine. */
bool has_similar_directions(struct cause_search *s)
{
	double cosine = smallest_cosine(s);
	snprintf(s->detail, sizeof(s->detail), "%.2f", floor(100 * cosine) / 100);
	return cosine > 0.5;
}

bool has_only_batch_tokens(struct cause_search *s)
{
	return count_mismatched_tokens(s) == 0;
}

/* Always returns true: the last cause. s->detail: tokens only in the batch, or only in
 * gradients. */
bool describe_batch_mismatch(struct cause_search *s)
{
	int64_t n_tokens = count_mismatched_tokens(s);
	if (n_tokens > 0)
		snprintf(s->detail, sizeof(s->detail),
			" %lld token%s are in the batch without a gradient "
			"in the embedding, or the "
			"reverse",
			(long long)n_tokens, plural(n_tokens));
	return true;
}

static const struct cause causes[] = {
#define CAUSE(scope, needs, ...) {scope, needs, __VA_ARGS__},
#include "check/causes.h"
};

int mark_unexplained(const struct cause_search *s, bool *wanted)
{
	int n = 0;
	memset(wanted, 0, (size_t)s->c->weights.m.n_tensors);
	for (int k = 0; k < s->n_wrong; k++)
		if (s->c->tensors[s->wrong[k]].cause < 0) {
			wanted[s->c->tensors[s->wrong[k]].in_model] = true;
			n++;
		}
	return n;
}

void set_cause(struct cause_search *s, int i, const char *text)
{
	s->c->tensors[i].cause =
		add_finding(s->c, FINDING_GRADIENT, &s->c->tensors[i], "%s", text);
}

/* Sets the cause of all wrong tensors that have none. Returns their number. */
static int explain_remaining(struct cause_search *s, const char *text)
{
	int n = 0;
	for (int k = 0; k < s->n_wrong; k++)
		if (s->c->tensors[s->wrong[k]].cause < 0) {
			set_cause(s, s->wrong[k], text);
			n++;
		}
	return n;
}

/* Adds the finding of cause x: for s->tensor, for all tensors without a cause, or for the step. */
static void add_cause_finding(struct cause_search *s, const struct cause *cause)
{
	const bool is_single_update = cause->scope == TRY_UPDATE;
	char text[FINDING_TEXT];
	snprintf(text, sizeof(text), cause->text, s->detail);
	if (cause->scope == TRY_TENSOR)
		set_cause(s, s->tensor, text);
	else if (cause->scope == TRY_STEP || cause->scope == TRY_FIRST) {
		const bool most = 2 * explain_remaining(s, text) > s->n_wrong;
		s->c->unexplained = most && cause->needs & IF_NO_CAUSE;
	} else
		add_finding(s->c, cause->kind,
			is_single_update ? &s->c->tensors[s->tensor] : NULL, "%s", text);
}

/* Tries the causes of a scope in turn, until one explains what is wrong. */
static void try_causes(struct cause_search *s, enum cause_scope scope)
{
	bool found = false;
	for (size_t k = 0; k < ARRAY_LEN(causes) && !s->e.code; k++) {
		const struct cause *x = &causes[k];
		*s->detail = '\0';
		if (x->scope != scope || (x->needs & ~(s->has | IF_ALSO)) ||
			(found && !(x->needs & IF_ALSO)))
			continue;
		if (scope == TRY_STEP && !set_screen(s))
			return;
		if (x->explains(s)) {
			add_cause_finding(s, x);
			found = true;
		}
	}
}

/* Returns true if the output layer's gradient is right in fp32: then so is the forward pass. */
static bool has_forward_right(const struct step_check *c)
{
	const struct model *m = &c->weights.m;
	for (int i = 0; i < c->n && c->has_reference && c->o.precision == RUN_FP32; i++) {
		const struct distance *d = &c->tensors[i].gradient;
		if (model_tensor(c, i) == m->output && m->output != m->tokens)
			return d->tested && !d->wrong && d->bound < 1e-4;
	}
	return false;
}

/* Returns the conditions of causes (enum cause_needs) that this step meets. */
static unsigned conditions_met(const struct cause_search *s)
{
	const struct step_check *c = s->c;
	bool can_search = c->has_reference && c->o.reference == REFERENCE_FLOAT64;
	return (c->has_reference ? IF_REFERENCE : IF_NO_REFERENCE) |
	       (can_search ? IF_SEARCH : IF_NO_SEARCH) |
	       (2 * s->n_wrong > c->n ? IF_MOST : IF_FEW) |
	       (s->forward_right ? 0 : IF_FORWARD) | IF_NO_CAUSE;
}

/* Lists the tensors with wrong gradients in backward order, and reads these gradients. */
static int list_wrong_tensors(struct cause_search *s, struct err *e)
{
	struct step_check *c = s->c;
	double lost;
	for (int i = c->n - 1; i >= 0; i--)
		if (c->tensors[c->order[i]].gradient.wrong)
			s->wrong[s->n_wrong++] = c->order[i];
	for (int k = 0; k < s->n_wrong; k++)
		if (!c->seen[s->wrong[k]] && read_seen_gradient(c, s->wrong[k], &lost, e))
			return -1;
	return 0;
}

/* Tries causes on the wrong tensors that may fit by chance, or on those that cannot. */
static void try_each_tensor(struct cause_search *s, bool by_chance)
{
	for (int k = 0; k < s->n_wrong; k++) {
		s->tensor = s->wrong[k];
		if (s->c->tensors[s->tensor].cause < 0 &&
			may_fit_by_chance(s, s->tensor) == by_chance)
			try_causes(s, TRY_TENSOR);
	}
}

/* Tries causes on each wrong tensor. IF_SURE causes apply to tensors that may fit by chance only
 * if most tensors are wrong, and half of the tensors that cannot fit by chance have a cause. */
static void try_tensors(struct cause_search *s)
{
	int n_explained = 0, n_certain = 0;
	s->has |= IF_SURE;
	try_each_tensor(s, false);
	for (int k = 0; k < s->n_wrong; k++) {
		bool is_certain = !may_fit_by_chance(s, s->wrong[k]);
		n_certain += is_certain;
		n_explained += is_certain && s->c->tensors[s->wrong[k]].cause >= 0;
	}
	if (2 * n_explained < n_certain || !(s->has & IF_MOST))
		s->has &= ~(unsigned)IF_SURE;
	try_each_tensor(s, true);
}

int find_causes(struct step_check *c, struct err *e)
{
	struct cause_search s = {.c = c,
		.wrong = xcalloc((size_t)c->n + 1, sizeof(int)),
		.screen = xcalloc(
			(size_t)(c->n + c->weights.m.n_tensors) + 1, sizeof(bool)),
		.forward_right = has_forward_right(c)};
	int rc = list_wrong_tensors(&s, e);
	double work = float64_work(&c->weights.m, c->batch.length) * (double)c->batch.n;
	s.has = conditions_met(&s);
	if (!rc && (s.has & IF_SEARCH) && s.n_wrong && work > 5e9)
		info("%d gradients are wrong: the search for causes computes the step at "
		     "least 100 times; fewer layers or sequences make it faster",
			s.n_wrong);
	if (!rc && s.n_wrong)
		try_causes(&s, TRY_FIRST);
	if (!rc)
		try_tensors(&s);
	if (c->has_reference && !rc)
		set_required_distance(&s);
	if (!rc)
		try_causes(&s, TRY_STEP);
	free(s.wrong);
	free(s.screen);
	return rc;
}

int find_update_causes(struct step_check *c, const char *rule, struct err *e)
{
	struct cause_search s = {.c = c, .rule = rule};
	s.has = conditions_met(&s);
	try_causes(&s, TRY_UPDATES);
	for (int k = 0; k < c->n && !s.e.code; k++) {
		s.tensor = c->order[k];
		try_causes(&s, TRY_UPDATE);
	}
	try_causes(&s, TRY_REST);
	if (s.e.code)
		*e = s.e;
	return s.e.code ? -1 : 0;
}
