/* Choices of experts that rounding may turn. The reference chooses by its own scores, in float64.
 * Where the next best choice has nearly the same score, a right run may have made that choice. */
#include "check/check.h"

#include "stats/stats.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Up to MAX_TRIED near choices are tried one by one, if the run was in fp32. */
enum { MAX_TRIED = 8 };
/* Otherwise the changes by so many groups of near choices are measured. */
enum { GROUPS = 16 };
/* In bf16, the bounds include the effect of near choices, up to this fraction of all choices. */
static const double max_share = 0.3;

/* The relative errors of a router's input and logits, times 5 to 10, in fp32, autocast and bf16. */
static const double near_margins[] = {2e-5, 0.06, 0.06};

static int64_t count_margins(const struct step_check *c)
{
	return c->weights.m.c.layers * c->choices.all.positions;
}

static bool is_near(const struct step_check *c, int64_t at)
{
	return c->choices.all.margin[at] < near_margins[c->o.precision];
}

/* Replaces a choice by the next best one. */
static void turn(const struct step_check *c, struct choices *x, int64_t at)
{
	const int64_t k = c->weights.m.c.experts_per_token;
	memcpy(x->ids + at * k, c->choices.all.other + at * k,
		(size_t)k * sizeof(*x->ids));
}

static struct choices copy_choices(const struct step_check *c)
{
	struct choices x;
	choices_init(&x, &c->weights.m, &c->batch);
	memcpy(x.ids, c->choices.all.ids,
		(size_t)(count_margins(c) * c->weights.m.c.experts_per_token) *
			sizeof(*x.ids));
	x.replay = true;
	return x;
}

void choices_count(struct step_check *c)
{
	struct choice_check *x = &c->choices;
	x->n = x->n_near = 0;
	x->loss_change = x->scale_change = 0;
	for (int64_t i = 0; x->all.margin && i < count_margins(c); i++) {
		x->n += layer_has_experts(&c->weights.m.c, i / x->all.positions);
		x->n_near += is_near(c, i);
	}
	x->too_near = c->o.precision == RUN_FP32
			      ? x->n_near > MAX_TRIED
			      : (double)x->n_near > max_share * (double)x->n;
}

/* Computes the gradients with given choices. */
static void gradients_with(
	const struct step_check *c, struct choices *x, struct gradients *g)
{
	const struct variant v = {.sequence = -1, .choices = x};
	reference_float64(&c->weights, &c->batch, &v, g);
}

/* Squared changes of the gradients by groups of near choices. */
struct changes {
	double *distance, *factor; /* [tensors], relative */
	double loss, scale;
};

/* Adds the squared changes by the near choices i of a group: those with i % GROUPS = group. */
static void add_group_changes(
	const struct step_check *c, int64_t group, struct changes *s)
{
	struct choices turned = copy_choices(c);
	struct gradients g;
	double ab = 0, bb = 0;
	for (int64_t i = 0, n = 0; i < count_margins(c); i++)
		if (is_near(c, i) && n++ % GROUPS == group)
			turn(c, &turned, i);
	gradients_with(c, &turned, &g);
	for (int i = 0; i < c->n; i++) {
		const int k = c->tensors[i].in_model;
		const struct products p =
			products_of(g.g[k], c->reference.g[k], c->tensors[i].n);
		if (!(p.bb > 0))
			continue;
		s->distance[i] += pow(residual_of(&p, 1), 2);
		s->factor[i] += pow(p.ab / p.bb - 1, 2);
		ab += p.ab;
		bb += p.bb;
	}
	s->loss += pow((g.loss - c->reference.loss) / c->reference.size, 2);
	s->scale += bb > 0 ? pow(ab / bb - 1, 2) : 0;
	gradients_free(&g);
	choices_release(&turned);
}

void choices_widen_bounds(struct step_check *c)
{
	/* A run turns about a quarter of the near choices, and their changes hardly add up: half of
	 * the root of the sum of squares is expected, and all of it if one change dominates. */
	const double times = 1.5;
	struct choice_check *x = &c->choices;
	if (!x->n_near || (c->o.precision == RUN_FP32 && !x->too_near))
		return;
	struct changes s = {.distance = xcalloc(2 * (size_t)c->n + 1, sizeof(double))};
	s.factor = s.distance + c->n;
	for (int64_t group = 0; group < min64(GROUPS, x->n_near); group++)
		add_group_changes(c, group, &s);
	for (int i = 0; i < c->n; i++) {
		c->tensors[i].gradient.bound += times * sqrt(s.distance[i]);
		c->tensors[i].factor_bound += times * sqrt(s.distance[i]);
		s.factor[i] = sqrt(s.factor[i]);
	}
	x->scale_change = times * fmax(median(s.factor, c->n), sqrt(s.scale));
	x->loss_change = times * sqrt(s.loss);
	free(s.distance);
}

/* Returns the squared sine of the angle between the run's gradients and g, over all tensors. */
static double squared_sine(const struct step_check *c, const struct gradients *g)
{
	double aa = 0, bb = 0, ab = 0;
	for (int i = 0; i < c->n; i++) {
		const struct products p = products_of(
			c->seen[i], g->g[c->tensors[i].in_model], c->tensors[i].n);
		if (c->tensors[i].frozen || !isfinite(p.aa))
			continue;
		aa += p.aa;
		bb += p.bb;
		ab += p.ab;
	}
	return aa > 0 && bb > 0 ? 1 - ab / aa * ab / bb : 1;
}

/* Turns each near choice, and keeps those that bring the gradients nearer to the run's. */
static void try_near_choices(struct step_check *c)
{
	struct choice_check *x = &c->choices;
	struct choices turned = copy_choices(c);
	const int64_t k = c->weights.m.c.experts_per_token;
	double nearest = squared_sine(c, &c->reference);
	for (int64_t i = 0; i < count_margins(c); i++) {
		struct gradients g;
		if (!is_near(c, i))
			continue;
		turn(c, &turned, i);
		gradients_with(c, &turned, &g);
		double sine = squared_sine(c, &g);
		if (sine < nearest) {
			nearest = sine;
			x->n_turned++;
			gradients_free(&c->reference);
			c->reference = g;
			continue;
		}
		gradients_free(&g);
		memcpy(turned.ids + i * k, x->all.ids + i * k,
			(size_t)k * sizeof(*turned.ids));
	}
	memcpy(x->all.ids, turned.ids,
		(size_t)(count_margins(c) * k) * sizeof(*turned.ids));
	choices_release(&turned);
}

int choices_adopt(struct step_check *c, struct err *e)
{
	const double close_enough = 1e-11; /* (5e-6)^2 is a right run in fp32 */
	double lost;
	int rc = 0;
	if (c->o.precision != RUN_FP32 || !c->choices.n_near || c->choices.too_near)
		return 0;
	c->seen = xcalloc((size_t)c->n + 1, sizeof(*c->seen));
	for (int i = 0; i < c->n && !rc; i++)
		rc = read_seen_gradient(c, i, &lost, e);
	if (!rc && squared_sine(c, &c->reference) > close_enough) {
		try_near_choices(c);
		remove_frozen_gradients(c);
	}
	for (int i = 0; i < c->n; i++)
		free(c->seen[i]);
	free(c->seen);
	c->seen = NULL;
	return rc ? -1 : 0;
}

/* Returns true for a finding that a wrong choice of experts may explain, or an unknown balance loss. */
static bool may_follow(const struct finding *f)
{
	return f->kind == FINDING_GRADIENT || f->kind == FINDING_ZERO ||
	       f->kind == FINDING_MOMENTS || f->kind == FINDING_UPDATE ||
	       f->kind == FINDING_LOSS || f->kind == FINDING_SCALE ||
	       f->kind == FINDING_CLIP || f->kind == FINDING_BETA2 ||
	       f->kind == FINDING_STEP;
}

/* Returns true if the run may have a balance loss that is not known. */
static bool is_balance_unknown(const struct step_check *c)
{
	const struct model_config *m = &c->weights.m.c;
	return m->experts && c->o.balance == BALANCE_AUTO && !(m->balance_loss > 0) &&
	       strcmp(c->files.after.format, "pt") != 0;
}

void choices_conclude(struct step_check *c)
{
	bool any_tested = false, unknown = is_balance_unknown(c);
	for (int i = 0; i < c->n; i++)
		any_tested |= c->tensors[i].gradient.tested;
	/* (in bf16, the bounds say how much is known) */
	c->choices.undecided =
		c->choices.n_near &&
		(!any_tested || (c->choices.too_near && c->o.precision == RUN_FP32));
	if (!c->choices.n_near && !unknown)
		return;
	c->wrong = false;
	for (int i = 0; i < c->n_findings; i++) {
		struct finding *f = &c->findings[i];
		c->choices.undecided |= c->choices.n_near && may_follow(f);
		c->choices.unknown_balance |= unknown && may_follow(f);
		f->kind = may_follow(f) ? FINDING_NOTE : f->kind;
		c->wrong |= !is_note(f);
	}
	c->choices.undecided |= c->choices.unknown_balance;
}

void append_choices_line(const struct step_check *c, struct str *out)
{
	const struct choice_check *x = &c->choices;
	if (!x->n)
		return;
	str_printf(out, "experts %lld choices of a token; %lld may turn by rounding",
		(long long)x->n, (long long)x->n_near);
	if (x->n_turned)
		str_printf(out, ", and %d did in the run", x->n_turned);
	str_putc(out, '\n');
}

/* Returns the first expert of a stack that has no gradient in the reference; -1: none. */
static int64_t find_idle_expert(const struct step_check *c, int i)
{
	const struct tensor *t = &c->weights.m.tensors[c->tensors[i].in_model];
	const float *g = c->reference.g[c->tensors[i].in_model];
	for (int64_t e = 0; e < t->experts; e++) {
		const int64_t n = c->tensors[i].n / t->experts;
		if (!(products_of(g + e * n, g + e * n, n).aa > 0))
			return e;
	}
	return -1;
}

int choices_check_idle_experts(const struct step_check *c, struct err *e)
{
	for (int i = 0; i < c->n && c->files.m1 >= 0; i++) {
		if (!text_ends(
			    c->tensors[i].file_name, " more tensors")) /* not in parts */
			continue;
		if (!c->has_reference)
			return err_set(e, EX_TROUBLE,
				"%s: experts are separate tensors, and an optimizer skips the "
				"experts that no token chose: give the batch (--batch)",
				c->files.after.name);
		const int64_t expert = find_idle_expert(c, i);
		if (expert >= 0)
			return err_set(e, EX_TROUBLE,
				"%s: no token of the batch chose expert %lld of %s, and it is a "
				"separate tensor, which an optimizer may skip: check a step with "
				"more tokens",
				c->files.after.name, (long long)expert,
				c->tensors[i].name);
	}
	return 0;
}
