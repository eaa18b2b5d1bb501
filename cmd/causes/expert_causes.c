/* Causes in mixtures of experts. See causes.c. */
#include "causes/causes.h"

#include <math.h>

/* The largest number of ranks of expert parallelism that a factor is taken for. */
enum { MAX_RANKS = 256 };

/* Returns the wrong tensors' common factor if all of them are experts' and have it; else 0. */
static double factor_of_experts(const struct cause_search *s)
{
	const struct step_check *c = s->c;
	double factor = 0;
	for (int k = 0; k < s->n_wrong; k++) {
		const int i = s->wrong[k];
		const struct products p =
			products_of(c->seen[i], reference_of(c, i), c->tensors[i].n);
		const double own = p.bb > 0 ? p.ab / p.bb / c->scale.common : 0;
		factor = k ? factor : own;
		if (!model_tensor(c, i)->experts || !(own > 0) ||
			fabs(own / factor - 1) > 2 * c->tensors[i].factor_bound ||
			!is_within(c, i, residual_of(&p, p.ab / p.bb)))
			return 0;
	}
	return factor;
}

bool explained_by_factor_of_experts(struct cause_search *s)
{
	if (!s->c->weights.m.c.experts)
		return false;
	const double f = factor_of_experts(s), k = f > 0 ? round(fmax(f, 1 / f)) : 0;
	const double within = s->c->o.precision == RUN_FP32 ? 1e-3 : 0.03;
	if (k < 2 || k > MAX_RANKS || !is_close(fmax(f, 1 / f), k, within))
		return false;
	snprintf(s->detail, sizeof(s->detail),
		f > 1 ? "%.0f times as large: not divided by the ranks of expert parallelism?"
		      : "%.0f times too small: divided once more by the ranks of expert "
			"parallelism?",
		k);
	return true;
}

static void other_gate_norm(struct model *m)
{
	m->c.router_norm = !m->c.router_norm;
}

static void remove_gate_scale(struct model *m)
{
	m->c.router_scale = 1;
}

static void square_gate_scale(struct model *m)
{
	m->c.router_scale *= m->c.router_scale;
}

static void one_expert_less(struct model *m)
{
	m->c.experts_per_token--;
}

static void one_expert_more(struct model *m)
{
	m->c.experts_per_token++;
}

static void remove_groups(struct model *m)
{
	m->c.router_groups = 0;
}

static void other_router(struct model *m)
{
	m->c.router = m->c.router == ROUTER_SOFTMAX ? ROUTER_SIGMOID : ROUTER_SOFTMAX;
}

/* Sets s->detail to the text of the guess that explains the gradients best; false: none does. */
static bool try_guesses(struct cause_search *s, const struct guess *tries, size_t n)
{
	double nearest = s->near;
	const char *text = NULL;
	for (size_t t = 0; t < n; t++)
		if (try_guess(s, &tries[t], &nearest))
			text = tries[t].text;
	snprintf(s->detail, sizeof(s->detail), "%s", text ? text : "");
	return text;
}

bool explained_by_router(struct cause_search *s)
{
	const struct model_config *c = &s->c->weights.m.c;
	const bool sigmoid = c->router == ROUTER_SIGMOID;
	const bool scaled = c->router_scale > 0 && c->router_scale != 1;
	const struct guess tries[] = {
		{{.change = other_gate_norm},
			c->router_norm
				? "the gates of a token were not divided by their sum "
				  "(norm_topk_prob)"
				: "the gates of a token were divided by their sum "
				  "(norm_topk_prob)",
			true},
		{{.change = remove_gate_scale},
			"the gates were not multiplied by routed_scaling_factor", scaled},
		{{.change = square_gate_scale},
			"the gates were multiplied by routed_scaling_factor twice",
			scaled},
		{{.function = {.biased_gates = true}},
			"the gates were scores with the bias of the choice "
			"(e_score_correction_bias)",
			sigmoid},
		{{.zeroed = {".router.bias"}},
			"the choice had no bias (e_score_correction_bias)", sigmoid},
		{{.change = one_expert_less}, "a token had one expert less",
			c->experts_per_token > 1},
		{{.change = one_expert_more}, "a token had one expert more",
			c->experts_per_token < c->experts && !c->router_groups},
		{{.change = remove_groups}, "experts were chosen without groups",
			c->router_groups > 0},
		{{.change = other_router},
			sigmoid ? "scores were a softmax, not sigmoids"
				: "scores were sigmoids, not a softmax",
			true},
		{{.zeroed = {".shared.w2."}}, "the shared expert were not added",
			c->shared_expert_dim > 0},
		{{.function = {.no_shared_gate = true}},
			"the shared expert were not multiplied by its gate",
			c->shared_expert_gate},
	};
	return c->experts && try_guesses(s, tries, ARRAY_LEN(tries));
}

bool explained_by_router_gradient(struct cause_search *s)
{
	const struct guess tries[] = {
		{{.function = {.gates_detached = true}},
			"the gates were detached: no gradient reached the router", true},
		{{.function = {.router_detached = true}},
			"the router's input were detached: the gradient of the gates did not "
			"reach the layers before it",
			true},
	};
	return s->c->weights.m.c.experts && try_guesses(s, tries, ARRAY_LEN(tries));
}

/* Describes a coefficient that the gradients show, next to the coefficient of --balance. */
static void describe_balance(
	struct cause_search *s, enum balance_form form, double coefficient)
{
	const struct check_opts *o = &s->c->o;
	const double ratio = o->balance_loss > 0 ? coefficient / o->balance_loss : 0;
	if (o->balance_loss > 0 && fabs(ratio) < 0.02)
		snprintf(s->detail, sizeof(s->detail),
			"there were no balance loss, not %s=%.3g",
			balance_forms[o->balance], o->balance_loss);
	else if (form == (enum balance_form)o->balance)
		snprintf(s->detail, sizeof(s->detail),
			"the balance loss were %s=%.3g, %.4g times --balance",
			balance_forms[form], to_shown_digits(s->c, coefficient),
			to_shown_digits(s->c, ratio));
	else
		snprintf(s->detail, sizeof(s->detail), "the balance loss were %s=%.3g",
			balance_forms[form], to_shown_digits(s->c, coefficient));
}

/* Sets x to the factors of a balance loss and of the other gradient that are nearest to the wrong
 * tensors. Returns their distance as largest_residual(). */
static double fit_balance(struct cause_search *s, enum balance_form form, double x[2])
{
	struct gradients g[2];
	balance_gradients(s->c, form, 1, &g[0]);
	balance_gradients(s->c, BALANCE_NONE, 0, &g[1]);
	for (int k = 0; k < g[0].n; k++)
		for (int64_t j = 0;
			g[0].g[k] && j < tensor_size(&s->c->weights.m.tensors[k]); j++)
			g[0].g[k][j] -= g[1].g[k][j];
	const bool solved = solve_factors(s, g, 2, x) && x[1] > 0;
	for (int k = 0; k < g[0].n && solved; k++)
		for (int64_t j = 0;
			g[0].g[k] && j < tensor_size(&s->c->weights.m.tensors[k]); j++)
			g[0].g[k][j] = (float)(x[0] * (double)g[0].g[k][j] +
					       x[1] * (double)g[1].g[k][j]);
	const double distance = solved ? largest_residual(s, &g[0]) : INFINITY;
	gradients_free(&g[0]);
	gradients_free(&g[1]);
	return distance;
}

bool explained_by_balance(struct cause_search *s)
{
	double nearest = s->near, x[2];
	bool found = false;
	if (!s->c->weights.m.c.experts || s->c->o.balance == BALANCE_AUTO)
		return false;
	const int own = s->c->o.balance > BALANCE_NONE ? s->c->o.balance : BALANCE_HF;
	for (int i = 0; i < N_BALANCE_FORMS - BALANCE_HF;
		i++) { /* (its own form first) */
		const int form = i == 0			 ? own
				 : BALANCE_HF + i <= own ? BALANCE_HF + i - 1
							 : BALANCE_HF + i;
		const double distance = fit_balance(s, (enum balance_form)form, x);
		if (!(distance <= (found ? 0.9 * nearest : nearest)))
			continue;
		nearest = distance;
		found = true;
		describe_balance(s, (enum balance_form)form, x[0] / x[1]);
	}
	return found;
}
