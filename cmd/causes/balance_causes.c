/* Causes in the loss that balances the experts. See causes.c. */
#include "causes/causes.h"

#include <math.h>

enum { MAX_LAYERS = 12 };

/* A balance loss that may explain the gradients. */
struct balance_guess {
	enum balance_form form;
	enum balance_scores scores;
	bool counts_first;
	int64_t layer; /* 1 + the only layer with it; 0: all */
	const char *
		text; /* what is wrong, after "as if"; NULL: the form or the coefficient */
};

/* Sets *coefficient to the coefficient of the loss that the run should have; returns its form.
 * BALANCE_AUTO: unknown. */
static enum balance_form own_balance(const struct step_check *c, double *coefficient)
{
	const struct model_config *m = &c->weights.m.c;
	*coefficient = c->o.balance_loss;
	if (c->o.balance != BALANCE_AUTO)
		return (enum balance_form)c->o.balance;
	if (strcmp(c->files.after.format, "pt") != 0 || m->balance_over == BALANCE_BATCH)
		return BALANCE_AUTO;
	*coefficient = m->balance_loss;
	if (m->balance_over == BALANCE_MODEL)
		*coefficient /= (double)m->experts_per_token;
	return !(m->balance_loss > 0)		     ? BALANCE_NONE
	       : m->balance_over == BALANCE_MODEL    ? BALANCE_HF
	       : m->balance_over == BALANCE_SEQUENCE ? BALANCE_DEEPSEEK
						     : BALANCE_MEGATRON;
}

/* Computes the gradients with a balance loss of this coefficient; of all tensors. */
static void guess_gradients(struct step_check *c, const struct balance_guess *x,
	double coefficient, struct gradients *g)
{
	struct model_config *m = &c->weights.m.c;
	const struct model_config saved = *m;
	const struct choices *counted = c->weights.counted;
	const bool counts_plain = c->weights.counts_plain;
	struct choices same = c->choices.all;
	const struct variant v = {.sequence = -1,
		.choices = &same,
		.function = {.balance_scores = x->scores, .balance_layer = x->layer}};
	same.replay = true;
	same.mass = NULL;
	c->weights.counts_first = x->counts_first;
	balance_set(c, x->form, coefficient);
	reference_float64(&c->weights, &c->batch, &v, g);
	c->weights.counted = counted;
	c->weights.counts_first = false;
	c->weights.counts_plain = counts_plain;
	*m = saved;
}

/* Sets g[0] to x[0] g[0] + ... + x[n - 1] g[n - 1]. */
static void combine(const struct model *m, struct gradients *g, int n, const double *x)
{
	for (int k = 0; k < g->n; k++)
		for (int64_t j = 0; g->g[k] && j < tensor_size(&m->tensors[k]); j++) {
			double sum = 0;
			for (int i = 0; i < n; i++)
				sum += x[i] * (double)g[i].g[k][j];
			g->g[k][j] = (float)sum;
		}
}

/* Sets x[n] to the factors of n - 1 balance losses of coefficient 1, and of the gradients without
 * such a loss, that are nearest to the wrong tensors. Returns the distance of their sum. */
static double fit_balance(
	struct cause_search *s, const struct balance_guess *guesses, int n, double *x)
{
	const struct model *m = &s->c->weights.m;
	const struct balance_guess none = {.form = BALANCE_NONE};
	struct gradients g[MAX_LAYERS + 1];
	guess_gradients(s->c, &none, 0, &g[n - 1]);
	for (int i = 0; i < n - 1; i++) {
		guess_gradients(s->c, &guesses[i], 1, &g[i]);
		for (int k = 0; k < g[i].n; k++)
			for (int64_t j = 0; g[i].g[k] && j < tensor_size(&m->tensors[k]);
				j++)
				g[i].g[k][j] -= g[n - 1].g[k][j];
	}
	const bool solved = solve_factors(s, g, n, x) && x[n - 1] > 0;
	if (solved)
		combine(m, g, n, x);
	const double distance = solved ? largest_residual(s, &g[0]) : INFINITY;
	for (int i = 0; i < n; i++)
		gradients_free(&g[i]);
	return distance;
}

/* Appends what a factor may come from, such as ": multiplied by the experts of a token?". */
static void append_factor_names(struct cause_search *s, double ratio)
{
	const struct step_check *c = s->c;
	const struct model_config *m = &c->weights.m.c;
	const double within = c->o.precision == RUN_FP32 ? 2e-3 : 0.03;
	const struct {
		double n;
		const char *name;
	} counts[] = {{(double)m->experts_per_token, "experts of a token"},
		{(double)model_layers_of_kind(&c->weights.m, 1), "layers with experts"},
		{(double)c->o.accumulation, "micro-batches of a rank"},
		{(double)(c->o.dp * c->o.fsdp), "data-parallel ranks"},
		{(double)(c->o.dp * c->o.fsdp * c->o.accumulation), "micro-batches"},
		{(double)c->o.tp, "tensor-parallel ranks"},
		{(double)m->experts, "experts"},
		{(double)(c->batch.n * c->batch.length), "tokens"},
		{(double)c->batch.counted, "targets"}};
	const double k = fmax(ratio, 1 / ratio);
	size_t len = strlen(s->detail);
	int n = 0;
	for (size_t i = 0; i < ARRAY_LEN(counts); i++)
		if (counts[i].n > 1.5 && is_close(k, counts[i].n, within) && n < 3)
			len += (size_t)snprintf(s->detail + len, sizeof(s->detail) - len,
				n++	    ? " or the %s"
				: ratio > 1 ? ": multiplied by the %s"
					    : ": divided by the %s",
				counts[i].name);
	if (ratio > 1 && is_close(k, 2, within))
		len += (size_t)snprintf(s->detail + len, sizeof(s->detail) - len,
			n++ ? ", or added twice" : ": added twice");
	if (n)
		snprintf(s->detail + len, sizeof(s->detail) - len, "?");
}

/* Rounds a coefficient for display, to the precision of the run. */
static double shown_coefficient(const struct step_check *c, double x)
{
	const double digits = c->o.precision == RUN_FP32 ? 3 : 2;
	const double grain = pow(10, floor(log10(fmax(fabs(x), 1e-30))) + 1 - digits);
	return round(x / grain) * grain;
}

/* Describes a balance loss that the gradients show, next to the one that the run should have. */
static void describe_balance(struct cause_search *s, const struct balance_guess *x,
	double coefficient, enum balance_form own, double given)
{
	const double ratio = given > 0 ? coefficient / given : 0;
	const char *form = balance_forms[x->form];
	if (own > BALANCE_NONE && fabs(ratio) < 0.02 && !x->text)
		snprintf(s->detail, sizeof(s->detail),
			"there were no balance loss, not %s=%.3g", balance_forms[own],
			given);
	else if (x->text && is_close(ratio, 1, 0.02))
		snprintf(s->detail, sizeof(s->detail), "%s", x->text);
	else if (x->text)
		snprintf(s->detail, sizeof(s->detail), "%s, and the loss were %s=%.3g",
			x->text, form, shown_coefficient(s->c, coefficient));
	else if (x->form == own) {
		snprintf(s->detail, sizeof(s->detail),
			"the balance loss were %s=%.3g, %.4g times %s", form,
			shown_coefficient(s->c, coefficient), ratio,
			s->c->o.balance == BALANCE_AUTO ? "the loss of the checkpoint"
							: "--balance");
		append_factor_names(s, ratio);
	} else
		snprintf(s->detail, sizeof(s->detail), "the balance loss were %s=%.3g",
			form, shown_coefficient(s->c, coefficient));
}

/* Lists the layers whose factor x[n] is near 1, such as " 1 2". */
static void list_layers(
	const int64_t *layers, const double *x, int n, char *out, size_t capacity)
{
	size_t len = 0;
	for (int i = 0; i < n && len < capacity; i++)
		if (is_close(x[i], 1, 0.02))
			len += (size_t)snprintf(
				out + len, capacity - len, " %lld", (long long)layers[i]);
}

/* Returns true if a balance loss with another factor in each layer explains the gradients. Sets
 * s->detail. */
static bool try_balance_layers(
	struct cause_search *s, enum balance_form form, double given)
{
	const struct model *m = &s->c->weights.m;
	struct balance_guess guesses[MAX_LAYERS];
	int64_t layers[MAX_LAYERS];
	double x[MAX_LAYERS + 1];
	int n = 0;
	char list[100] = "";
	for (int64_t layer = 0; layer < m->c.layers; layer++) {
		if (!layer_has_experts(&m->c, layer))
			continue;
		if (n == MAX_LAYERS)
			return false;
		layers[n] = layer;
		guesses[n++] = (struct balance_guess){.form = form, .layer = layer + 1};
	}
	if (n < 2 || !(given > 0) || fit_balance(s, guesses, n + 1, x) > s->near)
		return false;
	int n_right = 0, n_missing = 0;
	for (int i = 0; i < n; i++) {
		x[i] /= x[n] * given;
		n_right += is_close(x[i], 1, 0.02);
		n_missing += fabs(x[i]) < 0.02;
	}
	if (n_right && n_right + n_missing == n) {
		list_layers(layers, x, n, list, sizeof(list));
		snprintf(s->detail, sizeof(s->detail),
			"only layer%s%s had a balance loss", plural(n_right), list);
		return true;
	}
	append_factors(s->c, list, sizeof(list), x, n);
	snprintf(s->detail, sizeof(s->detail),
		"the layers had balance losses of %s times the right one", list);
	return true;
}

/* Tries the forms of --balance, the run's own form first. */
static bool try_balance_forms(struct cause_search *s, enum balance_form own, double given)
{
	double nearest = s->near, x[2];
	bool found = false;
	const int first = own > BALANCE_NONE ? (int)own : BALANCE_HF;
	for (int i = 0; i < N_BALANCE_FORMS - BALANCE_HF; i++) {
		const int form = i == 0			   ? first
				 : BALANCE_HF + i <= first ? BALANCE_HF + i - 1
							   : BALANCE_HF + i;
		const struct balance_guess guess = {.form = (enum balance_form)form};
		const double distance = fit_balance(s, &guess, 2, x);
		if (!(distance <= (found ? 0.9 * nearest : nearest)))
			continue;
		nearest = distance;
		found = true;
		describe_balance(s, &guess, x[0] / x[1], own, given);
	}
	return found;
}

/* Tries losses that no trainer defines, but bugs compute. */
static bool try_balance_bugs(struct cause_search *s, enum balance_form own, double given)
{
	const struct balance_guess bugs[] = {
		{.form = own,
			.scores = BALANCE_SOFTMAX,
			.text = "the balance loss took the softmax of scores that are a softmax "
				"already"},
		{.form = own,
			.scores = BALANCE_CHOSEN,
			.text = "only the tokens that chose an expert counted in its mean score in "
				"the balance loss"},
		{.form = own,
			.counts_first = true,
			.text = "only the first choice of a token counted in the fractions of the "
				"balance loss"}};
	double nearest = s->near, x[2];
	bool found = false;
	for (size_t i = 0; i < ARRAY_LEN(bugs) && own > BALANCE_NONE; i++) {
		const double distance = fit_balance(s, &bugs[i], 2, x);
		if (!(distance <= nearest) || !(x[0] > 0))
			continue;
		nearest = distance;
		found = true;
		describe_balance(s, &bugs[i], x[0] / x[1], own, given);
	}
	return found;
}

bool explained_by_balance(struct cause_search *s)
{
	double given;
	const enum balance_form own = own_balance(s->c, &given);
	if (!s->c->weights.m.c.experts || own == BALANCE_AUTO)
		return false;
	return try_balance_forms(s, own, given) || try_balance_bugs(s, own, given) ||
	       (own > BALANCE_NONE && try_balance_layers(s, own, given));
}
