/* Assigns layers to stages such that the most expensive stage is as cheap as possible. */
#include "schedule/schedule.h"

#include <math.h>

/* Dynamic programming over the assignment of layers [i, n) to the last k stages. Costs are added
 * only within a stage, from its first layer on, and otherwise compared: stages of equal layers
 * have equal costs wherever they are, and ties are exact. */
struct split {
	int n, stages;
	const double *cost; /* [n][n + 1]: cost of a stage of layers [i, j) */
	double *best;	    /* [stages + 1][n + 1] */
	int *cut;	    /* [stages + 1][n + 1]: end of the stage that begins at i */
};

static double stage_cost(const struct split *x, int i, int j)
{
	return x->cost[(size_t)i * (size_t)(x->n + 1) + (size_t)j];
}

/* Returns the costs of all stages of adjacent layers: [n][n + 1], allocated. */
static double *stage_costs(const double *layer, int n, double embedding, double head)
{
	double *cost = xcalloc((size_t)n * (size_t)(n + 1), sizeof(*cost));
	for (int i = 0; i < n; i++) {
		BUG_ON(!(layer[i] >= 0) || !(embedding >= 0) || !(head >= 0));
		double sum = i == 0 ? embedding : 0;
		for (int j = i + 1; j <= n; j++) {
			sum += layer[j - 1];
			cost[(size_t)i * (size_t)(n + 1) + (size_t)j] =
				sum + (j == n ? head : 0);
		}
	}
	return cost;
}

/* Splits layers [i, n) into the last k stages: minimizes the largest stage, or with a limit on the
 * largest, maximizes the smallest stage (-1: impossible). Chooses the first of equal splits. */
static void choose_cut(struct split *x, int k, int i, const double *limit)
{
	double *best = &x->best[k * (x->n + 1) + i];
	int *cut = &x->cut[k * (x->n + 1) + i];
	const double *rest = x->best + (k - 1) * (x->n + 1);
	*best = limit ? -1 : (double)INFINITY;
	*cut = x->n;
	for (int j = k == 1 ? x->n : i + 1; j <= x->n - (k - 1); j++) {
		double c = stage_cost(x, i, j);
		double worst = limit ? fmin(c, rest[j]) : fmax(c, rest[j]);
		if (limit && c > *limit)
			break;
		if (limit ? worst > *best : worst < *best) {
			*best = worst;
			*cut = j;
		}
	}
}

/* Splits all layers into all stages. Returns the cost of the largest stage, or the smallest. */
static double solve(struct split *x, const double *limit)
{
	x->best[x->n] = limit ? (double)INFINITY : 0; /* no layers on no stages */
	for (int k = 1; k <= x->stages; k++)
		for (int i = 0; i <= x->n - k; i++)
			choose_cut(x, k, i, limit);
	return x->best[x->stages * (x->n + 1)];
}

int schedule_split(const double *layer, int n_layers, double embedding, double head,
	int n_stages, int *first, struct err *e)
{
	BUG_ON(n_stages < 1);
	if (n_layers < n_stages)
		return err_set(e, EX_USAGE,
			"%d layers are too few for %d pipeline stages; each stage needs one",
			n_layers, n_stages);
	size_t cells = (size_t)(n_stages + 1) * (size_t)(n_layers + 1);
	scoped_ptr double *cost = stage_costs(layer, n_layers, embedding, head);
	struct split x = {.n = n_layers,
		.stages = n_stages,
		.cost = cost,
		.best = xcalloc(cells, sizeof(*x.best)),
		.cut = xcalloc(cells, sizeof(*x.cut))};
	double largest = solve(&x, NULL);
	solve(&x, &largest);
	first[0] = 0;
	for (int i = 0; i < n_stages; i++)
		first[i + 1] = x.cut[(n_stages - i) * (n_layers + 1) + first[i]];
	free(x.best);
	free(x.cut);
	return 0;
}
