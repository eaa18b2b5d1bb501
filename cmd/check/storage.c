/* Storage of parameters and moments: notes about rounding, and stochastic rounding of updates. */
#include "check/rates.h"
#include "check/search.h"

#include <math.h>
#include <stdlib.h>

static const char *const stored_names[N_STORED] = {"parameters", "exp_avg", "exp_avg_sq"};

/* Counts the tensors that are rounded at least this much. *all: the tensors that have values. */
static int count_rounded(const struct step_check *c, int kind, double precision, int *all)
{
	int n = 0;
	*all = 0;
	for (int i = 0; i < c->n; i++) {
		const struct tensor_check *x = &c->tensors[i];
		double rounding = x->stored[kind];
		bool counts = rounding > 0 && !x->frozen && !x->unchanged;
		*all += counts;
		n += counts && !(rounding < precision);
	}
	return n;
}

void note_storage(struct step_check *c)
{
	for (int kind = 0; kind < N_STORED; kind++) {
		int all, n_bf16 = count_rounded(c, kind, 0x1p-9, &all);
		if (2 * n_bf16 <= all)
			continue;
		add_finding(c, FINDING_NOTE, NULL,
			"%s: all values are bf16 numbers (%d of %d tensors)%s",
			stored_names[kind], n_bf16, all,
			kind == STORED_PARAMETERS
				? ": no fp32 master weights, so small updates are lost"
				: "");
	}
	if (c->files.m0 >= 0 && !(c->files.from > 0) && !c->files.two_runs)
		add_finding(c, FINDING_NOTE, NULL,
			"the optimizer's step count before the step is %.0f, but its "
			"moments are not zero: was the count reset?",
			fmax(0, c->files.from));
	if (c->files.after.optimizer & CKPT_MAXIMIZES)
		add_finding(c, FINDING_NOTE, NULL,
			"the optimizer has maximize=True: it moves along the gradient, not "
			"against it");
}

/* Returns true if each new parameter is one of the two bf16 neighbors of AdamW's exact result. */
static bool is_stochastically_rounded(
	const struct tensor_step *t, const float *update, double lr)
{
	double sum = 0, squares = 0;
	for (int64_t i = 0; i < t->n; i++) {
		double moved = lr * (double)update[i], exact = (double)t->p0[i] - moved;
		double off = (double)t->p1[i] - exact;
		int exponent;
		frexp(exact, &exponent);
		double unit = ldexp(1, exponent - 8);
		/* (tolerance, because rate and decay are estimates) */
		if (fabs(off) > 1.05 * unit + 0.02 * fabs(moved))
			return false;
		sum += off / unit;
		squares += off / unit * (off / unit);
	}
	/* (up as often as down) */
	return fabs(sum) <= 5 * sqrt(squares);
}

/* Returns true if the update of s->tensor differs from AdamW's as by stochastic rounding.
 * If so, also widens the update's bound, so that it is no longer wrong. */
bool has_stochastic_rounding(struct cause_search *s)
{
	struct step_check *c = s->c;
	struct tensor_check *x = &c->tensors[s->tensor];
	struct tensor_step t = {0};
	bool yes = false;
	/* (decay and update alone rarely come nearer to the bound) */
	if (!(x->update.value > 0.7 * x->update.bound) ||
		x->stored[STORED_PARAMETERS] < 0x1p-9 || !(c->lr > 0))
		return false;
	if (!tensor_step_read(&t, &c->files, s->tensor, STEP_ALL, &s->e)) {
		float *change, *update;
		compute_updates(c, &t, x->decays ? x->decay : -1, &change, &update);
		yes = is_stochastically_rounded(&t, update, c->lr * x->lr_scale);
		free(change);
		free(update);
	}
	tensor_step_free(&t);
	if (yes) { /* stochastic rounding errs up to twice as much as rounding to nearest */
		x->update.bound = fmax(2 * x->update.bound, x->update.value);
		x->update.wrong = false;
	}
	return yes;
}
