/* Losses that balance the experts (libcore/model/router.c), in double precision. E experts, k of a
 * token, f: the fraction of an expert in the choices, P: its mean score. The loss is E times the
 * sum of f P, of a micro-batch or a sequence and a layer, or of all layers at once. */
#include "reference/reference.h"

#include <stdlib.h>
#include <string.h>

/* The sequences [first, end) and layers [layer, last] that the loss of a position is of. */
struct balance_group {
	int64_t first, end, layer, last;
	double positions,
		groups; /* positions x layers of it; groups of a layer, or of all */
};

static struct balance_group group_of(const struct weights *w, const struct token_batch *b,
	int64_t sequence, int64_t layer)
{
	const struct model_config *c = &w->m.c;
	const int64_t n =
		c->balance_over == BALANCE_SEQUENCE ? b->n : max64(1, w->micro_batches);
	const int64_t at = sequence * n / b->n;
	struct balance_group g = {
		.first = 0, .layer = layer, .last = layer, .groups = (double)n};
	while (g.first * n / b->n < at)
		g.first++;
	for (g.end = g.first; g.end < b->n && g.end * n / b->n == at;)
		g.end++;
	int64_t layers = 1;
	if (c->balance_over == BALANCE_MODEL) {
		g.layer = 0;
		g.last = c->layers - 1;
		layers = model_layers_of_kind(&w->m, 1);
	}
	g.positions = (double)((g.end - g.first) * b->length * layers);
	return g;
}

/* Returns how often a choice counts: once or, if only first choices count, k times or never. */
static double weight_of_choice(const struct weights *w, int64_t at, int id)
{
	const bool is_first = w->counted->first[at] == id;
	return !w->counts_first ? 1 : is_first ? (double)w->m.c.experts_per_token : 0;
}

/* Adds the choices of each expert in a group to counts[E]. */
static void count_choices(const struct weights *w, const struct token_batch *b,
	const struct balance_group *g, double *counts)
{
	const struct choices *x = w->counted;
	const int *ids = w->counts_plain && x->plain ? x->plain : x->ids;
	const int64_t k = w->m.c.experts_per_token;
	for (int64_t layer = g->layer; layer <= g->last; layer++)
		for (int64_t i = g->first * b->length;
			i < g->end * b->length && layer_has_experts(&w->m.c, layer); i++)
			for (int64_t j = 0; j < k; j++) {
				const int64_t at = layer * x->positions + i;
				const int id = ids[at * k + j];
				counts[id] += weight_of_choice(w, at, id);
			}
}

bool has_balance_loss(const struct weights *w)
{
	return w->counted && w->m.c.balance_loss > 0;
}

double *balance_slopes(
	const struct weights *w, const struct token_batch *b, int64_t sequence)
{
	const struct model_config *c = &w->m.c;
	const int64_t n = c->experts;
	double *slopes = xcalloc((size_t)(c->layers * n), sizeof(*slopes));
	for (int64_t layer = 0; layer < c->layers; layer++) {
		if (!layer_has_experts(c, layer))
			continue;
		const struct balance_group g = group_of(w, b, sequence, layer);
		count_choices(w, b, &g, slopes + layer * n);
		for (int64_t e = 0; e < n; e++)
			slopes[layer * n + e] *=
				c->balance_loss * (double)n /
				((double)c->experts_per_token * g.positions *
					g.positions * g.groups);
	}
	return slopes;
}

double balance_value(const struct weights *w, const struct token_batch *b)
{
	const int64_t n = w->m.c.experts;
	double sum = 0;
	for (int64_t i = 0; i < b->n && has_balance_loss(w); i++) {
		/* (the loss is linear in the scores) */
		double *slopes = balance_slopes(w, b, i);
		for (int64_t at = 0; at < w->m.c.layers * n; at++)
			sum += slopes[at] * w->counted->mass[i * w->m.c.layers * n + at];
		free(slopes);
	}
	return sum;
}
