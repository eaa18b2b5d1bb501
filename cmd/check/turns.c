/* Choices of experts that the run turned. Where the next best choice of a token has nearly the same
 * score, rounding may have made the run choose it: the gradients show which of both it chose. */
#include "check/check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
	MAX_TURNS = 200, /* so many turns are tried */
	MAX_SWEEPS = 4,	 /* passes over the near choices */
	MAX_SUBSETS = 6	 /* in fp32, all subsets of so many near choices are tried */
};
/* Multiplications that two cores do in a few minutes in float64. */
static const double max_work = 4e11;

static size_t count_ids(const struct step_check *c)
{
	return (size_t)(count_margins(c) * c->weights.m.c.experts_per_token);
}

void choices_copy(const struct step_check *c, struct choices *x)
{
	const struct choices *all = &c->choices.all;
	const size_t n = (size_t)count_margins(c);
	choices_init(x, &c->weights.m, &c->batch);
	memcpy(x->ids, all->ids, count_ids(c) * sizeof(*x->ids));
	memcpy(x->other, all->other, ALTERNATIVES * count_ids(c) * sizeof(*x->other));
	memcpy(x->margin, all->margin, ALTERNATIVES * n * sizeof(*x->margin));
	if (all->plain) {
		memcpy(x->plain, all->plain, count_ids(c) * sizeof(*x->plain));
		memcpy(x->plain_other, all->plain_other,
			count_ids(c) * sizeof(*x->plain_other));
		memcpy(x->plain_margin, all->plain_margin, n * sizeof(*x->plain_margin));
	}
	x->forced = xcalloc(n + 1, sizeof(*x->forced));
	if (all->forced)
		memcpy(x->forced, all->forced, n * sizeof(*x->forced));
}

void choices_turn(const struct step_check *c, struct choices *x, int64_t at, int other)
{
	const int64_t k = c->weights.m.c.experts_per_token;
	int *ids = x->ids + at * k, *others = x->other + (at * ALTERNATIVES + other) * k;
	/* (rounding turns equal choices alike) */
	if (x->plain && !memcmp(x->plain + at * k, ids, (size_t)k * sizeof(*ids)))
		memcpy(x->plain + at * k, others, (size_t)k * sizeof(*ids));
	for (int64_t j = 0; j < k; j++) {
		const int id = ids[j];
		ids[j] = others[j];
		others[j] = id;
	}
	x->forced[at] = true;
}

void choices_gradients(struct step_check *c, struct choices *x, struct gradients *g)
{
	const struct choices *counted = c->weights.counted;
	const struct variant v = {.sequence = -1, .choices = x};
	c->weights.counted = NULL;
	reference_float64(&c->weights, &c->batch, &v, g);
	if (counted) { /* (now the choices are known) */
		gradients_free(g);
		c->weights.counted = x;
		x->replay = true;
		reference_float64(&c->weights, &c->batch, &v, g);
		x->replay = false;
	}
	c->weights.counted = counted;
}

/* Returns the squared distance of the run's gradients from g, in units of their bounds. */
static double distance_from(const struct step_check *c, const struct gradients *g)
{
	const double factor = nearest_factor(c, g);
	double sum = 0;
	for (int i = 0; i < c->n; i++) {
		const struct tensor_check *x = &c->tensors[i];
		const struct products p =
			products_of(c->seen[i], g->g[x->in_model], x->n);
		const double norm = c->reference.norm;
		if (!x->frozen && isfinite(p.aa) && p.bb > 1e-14 * norm * norm)
			sum += pow(residual_of(&p, factor) / x->gradient.bound, 2);
	}
	return sum;
}

/* Uses other choices of experts: takes ownership of *x and *g. */
static void use_choices(struct step_check *c, struct choices *x, struct gradients *g)
{
	const struct choices old = c->choices.all;
	gradients_free(&c->reference);
	c->reference = *g;
	c->choices.all = *x; /* (c->weights.counted may point to it) */
	*x = old;
	choices_release(x);
	remove_frozen_gradients(c);
}

/* A search for turned choices. */
struct turn_search {
	struct step_check *c;
	double nearest;	  /* distance of the reference */
	int64_t sequence; /* whose part of the reference is in `part`; -1: none */
	struct gradients part;
};

/* Computes the part of a sequence in the gradients. (The counts of the balance loss are kept.) */
static void sequence_gradients(const struct step_check *c, struct choices *x,
	int64_t sequence, struct gradients *g)
{
	const struct variant v = {.sequence = (int)sequence, .choices = x};
	reference_float64(&c->weights, &c->batch, &v, g);
}

/* Sets s->part to the part of the reference of a sequence. */
static void set_part(struct turn_search *s, int64_t sequence)
{
	struct choices same;
	if (s->sequence == sequence)
		return;
	gradients_free(&s->part);
	choices_copy(s->c, &same);
	sequence_gradients(s->c, &same, sequence, &s->part);
	choices_release(&same);
	s->sequence = sequence;
}

/* Adds the reference without s->part to the gradients of a sequence. */
static void add_other_sequences(const struct turn_search *s, struct gradients *g)
{
	const struct gradients *all = &s->c->reference;
	for (int i = 0; i < g->n; i++)
		for (int64_t j = 0;
			g->g[i] && j < tensor_size(&s->c->weights.m.tensors[i]); j++)
			g->g[i][j] += all->g[i][j] - s->part.g[i][j];
}

/* Turns a choice if that brings the gradients nearer to the run's. Returns true if it does. */
static bool try_turn(struct turn_search *s, int64_t at, int other)
{
	struct step_check *c = s->c;
	const int64_t sequence = at % c->choices.all.positions / c->batch.length;
	struct choices x;
	struct gradients g;
	if (c->choices.n_tries++ >= MAX_TURNS)
		return false;
	set_part(s, sequence);
	choices_copy(c, &x);
	choices_turn(c, &x, at, other);
	sequence_gradients(c, &x, sequence, &g);
	add_other_sequences(s, &g);
	const bool is_nearer = distance_from(c, &g) < s->nearest;
	gradients_free(&g);
	if (is_nearer) {
		choices_gradients(c, &x, &g);
		use_choices(c, &x, &g);
		s->nearest = distance_from(c, &c->reference);
		s->sequence = -1;
	} else {
		choices_release(&x);
	}
	return is_nearer;
}

/* Tries all alternatives of a choice with a margin below max_margin. Returns true if any brings the
 * gradients nearer. */
static bool try_alternatives(struct turn_search *s, int64_t at, double max_margin)
{
	bool any = false;
	for (int k = 0; k < ALTERNATIVES; k++)
		if (margin_of_choice(s->c, at, k) < max_margin)
			any |= try_turn(s, at, k);
	return any;
}

/* Tries to turn all choices with a margin below max_margin. Returns true if any brings the
 * gradients nearer, and they are not right yet. */
static bool sweep(struct turn_search *s, double max_margin)
{
	struct step_check *c = s->c;
	bool any = false;
	for (int64_t at = 0; at < count_margins(c); at++) {
		if (!is_near_choice(c, at) || !try_alternatives(s, at, max_margin))
			continue;
		any = true;
		if (are_gradients_right(c, &c->reference))
			return false;
	}
	return any;
}

/* Turns near choices one by one until all gradients are right: the nearest ones first. */
static void turn_one_by_one(struct step_check *c)
{
	static const double limits[] = {0.005, 0.02, 0.06};
	struct turn_search s = {c, distance_from(c, &c->reference), -1, {0}};
	for (size_t k = 0; k < ARRAY_LEN(limits); k++)
		for (int i = 0; i < MAX_SWEEPS && !are_gradients_right(c, &c->reference);
			i++)
			if (!sweep(&s, limits[k]))
				break;
	gradients_free(&s.part);
}

/* Tries all subsets of the near choices, until all gradients are right. */
static void turn_subsets(struct step_check *c)
{
	int64_t near[MAX_SUBSETS], n = 0;
	for (int64_t at = 0; at < count_margins(c) && n < MAX_SUBSETS; at++)
		if (is_near_choice(c, at))
			near[n++] = at;
	for (int64_t set = 1; set < INT64_C(1) << n; set++) {
		struct choices x;
		struct gradients g;
		choices_copy(c, &x);
		for (int64_t i = 0; i < n; i++)
			if (set >> i & 1)
				choices_turn(c, &x, near[i], 0);
		choices_gradients(c, &x, &g);
		if (are_gradients_right(c, &g)) {
			use_choices(c, &x, &g);
			return;
		}
		gradients_free(&g);
		choices_release(&x);
	}
}

/* Returns true if turn_subsets() tries all choices that rounding may turn. */
static bool has_few_subsets(const struct step_check *c)
{
	bool few = c->o.precision == RUN_FP32 && c->choices.n_near <= MAX_SUBSETS &&
		   !(c->choices.n_near_plain && c->weights.counts_plain);
	for (int64_t at = 0; at < count_margins(c) && few; at++)
		few = !is_near_choice(c, at) ||
		      margin_of_choice(c, at, 1) > 2 * margin_of_choice(c, at, 0) + 1e-4;
	return few;
}

/* Turns the near choices that the run turned, if there are few enough to try. */
static void turn_choices(struct step_check *c)
{
	const struct choice_check *x = &c->choices;
	const double work = float64_work(&c->weights.m, c->batch.length) *
			    (double)c->batch.n * (double)x->n_near;
	if (!x->n_near || x->n_near > MAX_TRIED || !(work <= max_work) ||
		are_gradients_right(c, &c->reference))
		return;
	if (has_few_subsets(c))
		turn_subsets(c);
	else
		turn_one_by_one(c);
}

/* Counts the tokens whose experts are others than in ids. */
static int count_turned(const struct step_check *c, const int *ids)
{
	const size_t k = (size_t)c->weights.m.c.experts_per_token;
	int n = 0;
	for (int64_t at = 0; at < count_margins(c); at++)
		n += memcmp(ids + (size_t)at * k, c->choices.all.ids + (size_t)at * k,
			     k * sizeof(*ids)) != 0;
	return n;
}

/* Uses the choices of the reference again, without a balance loss that was only supposed. */
static void restore_choices(
	struct step_check *c, const struct choices *before, int64_t micro_batches)
{
	struct choices x;
	struct gradients g;
	balance_set(c, BALANCE_NONE, 0);
	c->weights.micro_batches = micro_batches;
	choices_copy(c, &x);
	memcpy(x.ids, before->ids, count_ids(c) * sizeof(*x.ids));
	memcpy(x.other, before->other, ALTERNATIVES * count_ids(c) * sizeof(*x.other));
	memset(x.forced, 0, (size_t)count_margins(c) * sizeof(*x.forced));
	choices_gradients(c, &x, &g);
	use_choices(c, &x, &g);
}

/* Finds both the choices that the run turned, and a balance loss that is not known. */
static void find_choices_and_balance(struct step_check *c, const struct choices *before)
{
	const int64_t micro_batches = c->weights.micro_batches;
	balance_adopt(c);
	if (are_gradients_right(c, &c->reference))
		return;
	turn_choices(c);
	if (are_gradients_right(c, &c->reference) || c->o.balance != BALANCE_AUTO ||
		has_stored_balance(c))
		return;
	restore_choices(c, before, micro_batches);
	c->choices.n_tries = 0;
	if (!balance_suppose(c))
		return;
	turn_choices(c);
	balance_adopt(c);
	c->choices.supposed = BALANCE_AUTO;
	if (!are_gradients_right(c, &c->reference))
		restore_choices(c, before, micro_batches);
}

int choices_adopt(struct step_check *c, struct err *e)
{
	struct choice_check *x = &c->choices;
	int rc = 0;
	if (!c->weights.m.c.experts)
		return 0;
	struct choices before;
	choices_copy(c, &before);
	c->seen = xcalloc((size_t)c->n + 1, sizeof(*c->seen));
	for (int i = 0; i < c->n && !rc; i++)
		rc = read_seen_gradient(c, i, &c->tensors[i].lost, e);
	const bool all_tried = has_few_subsets(c);
	if (!rc) {
		find_choices_and_balance(c, &before);
		x->n_turned = count_turned(c, before.ids);
		if (!all_tried && !are_gradients_right(c, &c->reference))
			choices_widen_bounds(c);
	}
	for (int i = 0; i < c->n; i++)
		free(c->seen[i]);
	free(c->seen);
	c->seen = NULL;
	choices_release(&before);
	return rc ? -1 : 0;
}
