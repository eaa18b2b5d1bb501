/* Causes in mixtures of experts. See causes.c. */
#include "causes/causes.h"

#include <math.h>

/* The largest number of ranks of expert parallelism that a factor is taken for, and the largest one
 * that is tried. */
enum { MAX_RANKS = 256, MAX_TRIED_RANKS = 16 };

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
	const int64_t tp = s->c->o.tp;
	const char *ranks = tp > 1 && k == (double)tp
				    ? "tensor-parallel ranks, or of expert parallelism"
				    : "ranks of expert parallelism";
	snprintf(s->detail, sizeof(s->detail),
		f > 1 ? "%.0f times as large: not divided by the %s?"
		      : "%.0f times too small: divided once more by the %s?",
		k, ranks);
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
	const bool biased = sigmoid || c->router_bias_rate > 0;
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
			biased},
		{{.zeroed = {".router.bias"}},
			"the choice had no bias (e_score_correction_bias)", biased},
		{{.change = one_expert_less}, "a token had one expert less",
			c->experts_per_token > 1},
		{{.change = one_expert_more}, "a token had one expert more",
			c->experts_per_token < c->experts && !c->router_groups},
		{{.change = remove_groups}, "experts were chosen without groups",
			c->router_groups > 0},
		{{.function = {.groups_by_best = true}},
			"a group of experts counted by its best score, not by its two best",
			c->router_groups > 0},
		{{.function = {.masked_zero = true}},
			"the experts of other groups had the score 0, not minus infinity: it "
			"beats negative ones",
			c->router_groups > 0 && sigmoid},
		{{.change = other_router},
			sigmoid ? "scores were a softmax, not sigmoids"
				: "scores were sigmoids, not a softmax",
			true},
		{{.zeroed = {".shared.w2."}}, "the shared expert were not added",
			c->shared_expert_dim > 0},
		{{.scaled = {".shared.w2."}, .scale = c->router_scale},
			"the shared expert were multiplied by routed_scaling_factor, too",
			c->shared_expert_dim > 0 && scaled},
		{{.scaled = {".shared.w2."}, .scale = scaled ? 1 / c->router_scale : 1},
			"the shared expert were divided by routed_scaling_factor",
			c->shared_expert_dim > 0 && scaled},
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

/* ---- ranks that do not exchange all gradients ---------------------------------------------- */

/* Sets rank[sequences] to the rank that each sequence was on: the assignment whose gradients fit the
 * screened tensors. Returns false if no assignment fits. */
static bool fit_ranks(
	struct cause_search *s, const struct local_experts *local, int *rank)
{
	const int n = (int)s->c->batch.n * local->n;
	struct gradients g[MAX_PARTS] = {{0}};
	double x[MAX_PARTS];
	if (n > MAX_PARTS)
		return false;
	for (int i = 0; i < n; i++) {
		for (int64_t k = 0; k < s->c->batch.n; k++)
			rank[k] = i % local->n;
		const struct variant v = {.sequence = i / local->n,
			.wanted = s->screen,
			.function = {.local = {local->kind, local->n, rank}}};
		reference_float64(&s->c->weights, &s->c->batch, &v, &g[i]);
	}
	const bool fits = solve_factors(s, g, n, x);
	for (int i = 0; i < n; i++) {
		int *best = &rank[i / local->n];
		if (i % local->n == 0 || x[i] > x[i - i % local->n + *best])
			*best = i % local->n;
		gradients_free(&g[i]);
	}
	return fits;
}

static bool is_local(const struct cause_search *s, const struct local_experts *local)
{
	const struct variant v = {.function = {.local = *local}};
	return variant_distance(s, v, false) <= s->near &&
	       variant_distance(s, v, true) <= s->near;
}

/* Returns true if n ranks explain the gradients, each with the parts of its own experts. */
static bool try_local_experts(struct cause_search *s, enum local_kind kind, int n)
{
	int *rank = xcalloc((size_t)s->c->batch.n, sizeof(*rank));
	struct local_experts local = {kind, n, rank};
	const bool is_first = is_local(s, &local);
	const bool found =
		is_first || (fit_ranks(s, &local, rank) && is_local(s, &local));
	if (found)
		snprintf(s->detail, sizeof(s->detail),
			"%s had a gradient only from the experts of %s of %d ranks of expert "
			"parallelism: %s",
			kind == LOCAL_GATES ? "the gates" : "the input of the experts",
			is_first ? "the first" : "the sequence's own", n,
			kind == LOCAL_GATES ? "the parts of the ranks are not summed"
					    : "the backward of the gather must be a sum");
	free(rank);
	return found;
}

/* Returns true if one of n slices of the experts' hidden layers explains the gradients. */
static bool try_input_slices(struct cause_search *s, int n)
{
	for (int i = 0; i < n; i++) {
		const struct variant v = {.function = {.input_slice = {n, i}}};
		if (variant_distance(s, v, false) > s->near ||
			variant_distance(s, v, true) > s->near)
			continue;
		snprintf(s->detail, sizeof(s->detail),
			"the input of the experts had the gradient of slice %d of %d of their "
			"hidden layers: not summed over the tensor-parallel ranks%s",
			i, n, layout_mark(s->c));
		return true;
	}
	return false;
}

bool explained_by_local_experts(struct cause_search *s)
{
	const struct model_config *m = &s->c->weights.m.c;
	const int64_t tp = s->c->o.tp;
	for (int n = 2; m->experts && n <= MAX_TRIED_RANKS; n++) {
		if (m->experts % n == 0 && (try_local_experts(s, LOCAL_GATES, n) ||
						   try_local_experts(s, LOCAL_INPUTS, n)))
			return true;
		if (m->expert_dim % n == 0 && (tp > 1 ? n == tp : n <= 8) &&
			may_have(s->c, tp) && try_input_slices(s, n))
			return true;
	}
	return false;
}
