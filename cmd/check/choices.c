/* Choices of experts that rounding may turn. The reference chooses by its own scores, in float64.
 * Where the next best choice has nearly the same score, a right run may have made that choice. */
#include "check/check.h"

#include "stats/stats.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The changes by so many groups of near choices are measured. */
enum { GROUPS = 16 };
/* In bf16, the bounds include the effect of near choices, up to this fraction of all choices. */
static const double max_share = 0.3;

/* The relative errors of a router's input and logits, times 5 to 10, in fp32, autocast and bf16. */
static const double near_margins[] = {2e-5, 0.06, 0.06};

int64_t count_margins(const struct step_check *c)
{
	return c->weights.m.c.layers * c->choices.all.positions;
}

double margin_of_choice(const struct step_check *c, int64_t at, int other)
{
	return c->choices.all.margin[at * ALTERNATIVES + other];
}

bool is_near_choice(const struct step_check *c, int64_t at)
{
	return margin_of_choice(c, at, 0) < near_margins[c->o.precision];
}

bool is_near_plain_choice(const struct step_check *c, int64_t at)
{
	return c->choices.all.plain &&
	       c->choices.all.plain_margin[at] < near_margins[c->o.precision];
}

void choices_count(struct step_check *c)
{
	struct choice_check *x = &c->choices;
	x->n = x->n_near = x->n_near_plain = 0;
	x->loss_change = x->scale_change = 0;
	for (int64_t i = 0; x->all.margin && i < count_margins(c); i++) {
		x->n += layer_has_experts(&c->weights.m.c, i / x->all.positions);
		x->n_near += is_near_choice(c, i);
		x->n_near_plain += is_near_plain_choice(c, i);
	}
	x->too_near = c->o.precision == RUN_FP32
			      ? x->n_near > MAX_TRIED
			      : (double)x->n_near > max_share * (double)x->n;
}

/* Squared changes of the gradients by groups of near choices. */
struct changes {
	double *distance, *factor; /* [tensors], relative */
	double loss, scale;
};

/* Computes the gradients with another choice by the scores alone in every GROUPS-th row where
 * this choice is near. */
static void turn_plain_choices(
	struct step_check *c, int64_t group, struct choices *x, struct gradients *g)
{
	const int64_t k = c->weights.m.c.experts_per_token;
	const struct choices *counted = c->weights.counted;
	const struct variant v = {.sequence = -1, .choices = x};
	for (int64_t i = 0, n = 0; i < count_margins(c); i++)
		if (is_near_plain_choice(c, i) && n++ % GROUPS == group)
			memcpy(x->plain + i * k, x->plain_other + i * k,
				(size_t)k * sizeof(*x->plain));
	x->replay = true;
	c->weights.counted = counted ? x : NULL;
	reference_float64(&c->weights, &c->batch, &v, g);
	c->weights.counted = counted;
}

/* Adds the squared changes by the near choices i of a group: those with i % GROUPS = group. From
 * GROUPS on, by choices by the scores alone. */
static void add_group_changes(struct step_check *c, int64_t group, struct changes *s)
{
	struct choices turned;
	struct gradients g;
	double ab = 0, bb = 0;
	choices_copy(c, &turned);
	if (group < GROUPS) {
		for (int64_t i = 0, n = 0; i < count_margins(c); i++)
			if (is_near_choice(c, i) && n++ % GROUPS == group)
				choices_turn(c, &turned, i, 0);
		choices_gradients(c, &turned, &g);
	} else {
		turn_plain_choices(c, group - GROUPS, &turned, &g);
	}
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
	const bool has_plain = x->n_near_plain && c->weights.counts_plain &&
			       has_balance_loss(&c->weights);
	if (!x->n_near && !has_plain)
		return;
	x->is_widened = true;
	struct changes s = {.distance = xcalloc(2 * (size_t)c->n + 1, sizeof(double))};
	s.factor = s.distance + c->n;
	for (int64_t group = 0; group < min64(GROUPS, x->n_near); group++)
		add_group_changes(c, group, &s);
	for (int64_t group = 0; has_plain && group < min64(GROUPS, x->n_near_plain);
		group++)
		add_group_changes(c, GROUPS + group, &s);
	for (int i = 0; i < c->n; i++) {
		const double bound = c->tensors[i].gradient.bound;
		c->tensors[i].near_change = times * sqrt(s.distance[i]);
		c->tensors[i].gradient.bound += c->tensors[i].near_change;
		x->n_hidden += bound < 0.5 && !(c->tensors[i].gradient.bound < 0.5);
		c->tensors[i].factor_bound += c->tensors[i].near_change;
		s.factor[i] = sqrt(s.factor[i]);
	}
	x->scale_change = times * fmax(median(s.factor, c->n), sqrt(s.scale));
	x->loss_change = times * sqrt(s.loss);
	c->loss_bound += x->loss_change;
	free(s.distance);
}

/* Returns true if another beta1 was solved for: then all other findings depend on the gradients. */
static bool has_other_beta1(const struct step_check *c)
{
	bool found = false;
	for (int i = 0; i < c->n_findings; i++)
		found |= c->findings[i].kind == FINDING_STEP &&
			 strstr(c->findings[i].text, "as if beta1");
	return found;
}

/* Returns true for a finding that a turned choice may explain, or an unknown balance loss. */
static bool may_follow(const struct finding *f, bool other_beta1)
{
	return f->kind == FINDING_GRADIENT || f->kind == FINDING_ZERO ||
	       f->kind == FINDING_LOSS || f->kind == FINDING_SCALE ||
	       f->kind == FINDING_CLIP ||
	       (other_beta1 &&
		       (f->kind == FINDING_MOMENTS || f->kind == FINDING_UPDATE ||
			       f->kind == FINDING_BETA2 || f->kind == FINDING_STEP));
}

/* Returns true if a gradient is so far off that no near choices explain it: the changes by all
 * GROUPS add up to at most 4 / 1.5 of what the bound has. */
static bool is_beyond_choices(const struct step_check *c)
{
	bool found = false;
	for (int i = 0; i < c->n; i++) {
		const struct tensor_check *x = &c->tensors[i];
		found |= x->gradient.tested && x->gradient.wrong &&
			 x->gradient.value > x->gradient.bound + 3 * x->near_change;
	}
	return found;
}

/* Returns true if the run may have a balance loss that is not known. */
static bool is_balance_unknown(const struct step_check *c)
{
	const struct model_config *m = &c->weights.m.c;
	return m->experts && c->o.balance == BALANCE_AUTO && !(m->balance_loss > 0) &&
	       !has_stored_balance(c);
}

void choices_conclude(struct step_check *c)
{
	struct choice_check *x = &c->choices;
	const bool unknown = is_balance_unknown(c), other_beta1 = has_other_beta1(c);
	const bool may_turn = x->is_widened && !is_beyond_choices(c);
	/* (otherwise the bounds say how much is known) */
	x->undecided = may_turn && (x->n_hidden || x->too_near);
	if (!may_turn && !unknown)
		return;
	c->wrong = false;
	for (int i = 0; i < c->n_findings; i++) {
		struct finding *f = &c->findings[i];
		const bool follows = may_follow(f, other_beta1);
		x->undecided |= may_turn && follows;
		x->unknown_balance |= unknown && follows;
		f->kind = follows ? FINDING_NOTE : f->kind;
		c->wrong |= !is_note(f);
	}
	x->undecided |= x->unknown_balance;
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
