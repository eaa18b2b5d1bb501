/*
 * Tries the known bugs, a table, to explain what is wrong. A cause of a wrong gradient is
 * reported only if it leaves no more unexplained than rounding does. cmd/causes has the
 * tests of gradients; update.c, rates.c and storage.c have the tests of updates.
 */
#include "check/search.h"

#include "stats/stats.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- reports without a known cause ------------------------------------------------------ */

/* Returns the median of the wrong tensors' factors. */
static double middle_factor(const struct cause_search *s)
{
	const struct step_check *c = s->c;
	double *f = xcalloc((size_t)s->n_wrong + 1, sizeof(*f));
	for (int k = 0; k < s->n_wrong; k++) {
		int i = s->wrong[k];
		const struct products p =
			products_of(c->seen[i], reference_of(c, i), c->of[i].n);
		f[k] = p.bb > 0 ? p.ab / p.bb : 0;
	}
	double middle = s->n_wrong ? median(f, s->n_wrong) : 1;
	free(f);
	return middle;
}

/* Returns how far off the logged loss is, relative to `part` of the loss; 0: none was logged. */
static double loss_off(const struct step_check *c, double part)
{
	double off = fabs(c->o.loss - c->reference.loss) - c->o.loss_half;
	return isnan(c->o.loss) ? 0 : off / (part * c->reference.size);
}

/* Returns the median distance of the wrong tensors, relative to their bounds in bf16, after
 * dividing out their common factor. INFINITY: a tensor or the loss is beyond its bound. (The bound
 * in fp32 includes the rounding of the moments.) */
static double middle_in_bf16(struct cause_search *s)
{
	const struct step_check *c = s->c;
	if (c->o.precision != RUN_FP32 || 2 * s->n_wrong <= c->n || !c->has_reference ||
		loss_off(c, 1e-2 / sqrt((double)max64(1, c->batch.counted))) > 1)
		return INFINITY;
	double *bounds = bounds_in_bf16(c, &s->e), factor = middle_factor(s);
	double *far = xcalloc((size_t)s->n_wrong, sizeof(*far));
	bool all = bounds && factor > 0;
	for (int k = 0; k < s->n_wrong && all; k++) {
		int i = s->wrong[k];
		const struct products p =
			products_of(c->seen[i], reference_of(c, i), c->of[i].n);
		double left = residual_of(&p, factor);
		all = left <= fmin(bounds[i] + c->of[i].gradient.bound, 0.5);
		far[k] = left / bounds[i];
	}
	double middle = all ? median(far, s->n_wrong) : INFINITY;
	free(bounds);
	free(far);
	return middle;
}

/* The loss is right in fp32 or unknown: perhaps only a sum was rounded to bf16. */
bool is_rounded(struct cause_search *s)
{
	return loss_off(s->c, s->c->loss_bound) <= 1 && isfinite(middle_in_bf16(s));
}

/* (With a wrong loss, the whole run was in bf16. Such runs were at 0.3 to 0.5 of their bounds.) */
bool seems_rounded(struct cause_search *s)
{
	double middle = middle_in_bf16(s);
	return middle > 0.15 && isfinite(middle);
}

/* Returns true if all norms are wrong, and nothing else. */
static bool are_only_norms(const struct cause_search *s)
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

bool are_rounded_norms(struct cause_search *s)
{
	double most = 0;
	for (int k = 0; k < s->n_wrong; k++)
		most = fmax(most, s->c->of[s->wrong[k]].gradient.value);
	snprintf(s->detail, sizeof(s->detail), "%.1g", most);
	return s->c->o.precision == RUN_FP32 && most <= 0.03 && are_only_norms(s);
}

/* (Without tensor-parallel ranks there is no sequence parallelism.) */
bool are_norms(struct cause_search *s)
{
	return may_have(s->c, s->c->o.tp) && are_only_norms(s);
}

/* Counts the tokens that have a gradient in the embedding but are not in the batch, or the other
 * way round. -1: unknown, if the table is also the output layer or the batch has all tokens. */
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
	bool is_known =
		c->o.precision == RUN_FP32 && in_batch && in_batch < rows && seen < rows;
	return is_known ? others : -1;
}

bool is_unexplained(struct cause_search *s)
{
	(void)s;
	return true;
}

bool has_right_forward(struct cause_search *s)
{
	const char *also =
		s->has & IF_MOST ? ", or gradients that were not set to zero" : "";
	/* (a loss with few digits cannot separate two functions) */
	const struct step_check *c = s->c;
	bool coarse = !s->forward_right && c->loss_right &&
		      c->o.loss_half > c->loss_bound * c->reference.size;
	if (c->o.precision == RUN_FP32 && coarse)
		snprintf(s->detail, sizeof(s->detail),
			"the loss agrees in the logged digits, which hide small errors of the "
			"forward pass; is it the backward pass, a slightly different function%s",
			also);
	else if (c->o.precision == RUN_FP32)
		snprintf(s->detail, sizeof(s->detail),
			"%s is right, and so are the batch and the forward pass; is it the "
			"backward pass%s",
			s->c->loss_right ? "the loss" : "the output layer's gradient",
			also);
	else
		snprintf(s->detail, sizeof(s->detail),
			"the loss is within the rounding of bf16, which hides small errors of the "
			"forward pass; is it the backward pass, a slightly different function%s",
			also);
	return s->c->loss_right || s->forward_right;
}

bool has_right_tensors(struct cause_search *s)
{
	return s->c->scale.n_right > 0;
}

bool by_cosines(struct cause_search *s)
{
	double cosine = least_cosine(s);
	snprintf(s->detail, sizeof(s->detail), "%.2f", floor(100 * cosine) / 100);
	return cosine > 0.5;
}

bool has_right_tokens(struct cause_search *s)
{
	return other_tokens(s) == 0;
}

bool has_other_batch(struct cause_search *s)
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

static const struct cause causes[] = {
#define CAUSE(scope, needs, ...) {scope, needs, __VA_ARGS__},
#include "check/causes.h"
};

/* ---- the search ------------------------------------------------------------------------- */

/* Marks the tensors without a cause in wanted[tensors of the model]. Returns their number. */
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

void explain(struct cause_search *s, int i, const char *text)
{
	s->c->of[i].cause = add_finding(s->c, FINDING_GRADIENT, &s->c->of[i], "%s", text);
}

/* Explains all tensors without a cause. Returns their number. */
static int explain_all(struct cause_search *s, const char *text)
{
	int n = 0;
	for (int k = 0; k < s->n_wrong; k++)
		if (s->c->of[s->wrong[k]].cause < 0) {
			explain(s, s->wrong[k], text);
			n++;
		}
	return n;
}

/* Adds the finding of a cause: for s->tensor, for all tensors without a cause, or for the step. */
static void add_cause(struct cause_search *s, const struct cause *x)
{
	const bool each = x->scope == TRY_UPDATE;
	char text[FINDING_TEXT];
	snprintf(text, sizeof(text), x->text, s->detail);
	if (x->scope == TRY_TENSOR)
		explain(s, s->tensor, text);
	else if (x->scope == TRY_STEP || x->scope == TRY_FIRST) {
		const bool most = 2 * explain_all(s, text) > s->n_wrong;
		s->c->unexplained = most && x->needs & IF_NO_CAUSE;
	} else
		add_finding(
			s->c, x->kind, each ? &s->c->of[s->tensor] : NULL, "%s", text);
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
			add_cause(s, x);
			found = true;
		}
	}
}

/* In fp32, a right gradient of the output layer means a right forward pass. */
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
	       (s->forward_right ? 0 : IF_FORWARD) | IF_NO_CAUSE;
}

/* Lists the tensors with wrong gradients in backward order, and reads these gradients. */
static int list_wrong(struct cause_search *s, struct err *e)
{
	struct step_check *c = s->c;
	double lost;
	for (int i = c->n - 1; i >= 0; i--)
		if (c->of[c->order[i]].gradient.wrong)
			s->wrong[s->n_wrong++] = c->order[i];
	for (int k = 0; k < s->n_wrong; k++)
		if (!c->seen[s->wrong[k]] && read_seen_gradient(c, s->wrong[k], &lost, e))
			return -1;
	return 0;
}

/* Tries causes on each tensor that may fit by chance (or on each that cannot). */
static void try_each(struct cause_search *s, bool chance)
{
	for (int k = 0; k < s->n_wrong; k++) {
		s->tensor = s->wrong[k];
		if (s->c->of[s->tensor].cause < 0 && may_chance(s, s->tensor) == chance)
			try_causes(s, TRY_TENSOR);
	}
}

/* (A possible chance fit needs most tensors wrong, and half of the other tensors explained.) */
static void try_tensors(struct cause_search *s)
{
	int known = 0, others = 0;
	s->has |= IF_SURE;
	try_each(s, false);
	for (int k = 0; k < s->n_wrong; k++) {
		bool other = !may_chance(s, s->wrong[k]);
		others += other;
		known += other && s->c->of[s->wrong[k]].cause >= 0;
	}
	if (2 * known < others || !(s->has & IF_MOST))
		s->has &= ~(unsigned)IF_SURE;
	try_each(s, true);
}

int find_causes(struct step_check *c, struct err *e)
{
	struct cause_search s = {.c = c,
		.wrong = xcalloc((size_t)c->n + 1, sizeof(int)),
		.screen = xcalloc(
			(size_t)(c->n + c->weights.m.n_tensors) + 1, sizeof(bool)),
		.forward_right = has_forward_right(c)};
	int rc = list_wrong(&s, e);
	double work = float64_work(&c->weights.m, c->batch.length) * (double)c->batch.n;
	s.has = needs_of(&s);
	if (!rc && (s.has & IF_SEARCH) && s.n_wrong && work > 5e9)
		info("%d tensors are wrong: to find a cause, the step is computed at "
		     "least 100 times; fewer layers or sequences take less time",
			s.n_wrong);
	if (!rc && s.n_wrong)
		try_causes(&s, TRY_FIRST);
	if (!rc)
		try_tensors(&s);
	if (c->has_reference && !rc)
		need_near(&s);
	if (!rc)
		try_causes(&s, TRY_STEP);
	free(s.wrong);
	free(s.screen);
	return rc;
}

int find_update_causes(struct step_check *c, const char *rule, struct err *e)
{
	struct cause_search s = {.c = c, .rule = rule};
	s.has = needs_of(&s);
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
