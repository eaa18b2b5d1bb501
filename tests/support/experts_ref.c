/* Reference kernels of experts in float64, written for clarity. */
#include "tests/support/experts_ref.h"
#include "tests/support/kernels_ref.h"

#include <math.h>
#include <stdlib.h>

static double *numbers(int64_t n)
{
	return xcalloc((size_t)max64(1, n), sizeof(double));
}

/* ---- the router ---------------------------------------------------------------------- */

/* for scores.inc */
#define LOGISTIC(x) (1 / (1 + exp(-(x))))
#define EXP exp
#define LOG1P log1p
#define EXPM1 expm1

/* The score of a logit alone. */
static double score_of(double z, const struct router *how)
{
	switch (how->kind) {
#define SCORE(id, word, score, slope) \
	case ROUTER_##id:             \
		return score;
#include "kernels/scores.inc"
	default:
		return NAN;
	}
}

static double log_slope(double s, const struct router *how)
{
	switch (how->kind) {
#define SCORE(id, word, score, slope) \
	case ROUTER_##id:             \
		return slope;
#include "kernels/scores.inc"
	default:
		return NAN;
	}
}

/* The scores p or s, which are chosen by and are made into gates. */
static void compute_scores(double *p, const double *z, const struct router *how)
{
	double lse = ref_log_sum_exp(z, how->experts);
	for (int64_t e = 0; e < how->experts; e++)
		p[e] = how->kind == ROUTER_SOFTMAX ? exp(z[e] - lse)
						   : score_of(z[e], how);
}

double ref_log_sum_exp(const double *z, int64_t n)
{
	double max = -INFINITY, sum = 0;
	for (int64_t e = 0; e < n; e++)
		max = fmax(max, z[e]);
	for (int64_t e = 0; e < n; e++)
		sum += exp(z[e] - max);
	return max + log(sum);
}

/* Marks the k largest of n numbers that are not masked; returns the gap to the next one. */
static double mark_largest(bool *marks, const double *x, int64_t n, int64_t k)
{
	double last = INFINITY, gap = INFINITY;
	memset(marks, 0, (size_t)n * sizeof(*marks));
	for (int64_t j = 0; j <= k; j++) {
		int64_t best = -1;
		for (int64_t i = 0; i < n; i++)
			if (!marks[i] && (best < 0 || x[i] > x[best]))
				best = i;
		if (best < 0)
			return INFINITY;
		if (j == k)
			gap = last - x[best];
		else
			marks[best] = true;
		last = x[best];
	}
	return gap;
}

/* The sum of the two largest numbers. */
static double two_best(const double *x, int64_t n)
{
	double best = -INFINITY, second = -INFINITY;
	for (int64_t i = 0; i < n; i++) {
		second = fmax(second, fmin(best, x[i]));
		best = fmax(best, x[i]);
	}
	return n > 1 ? best + second : best;
}

double ref_choose(
	int32_t *ids, const double *z, const float *bias, const struct router *how)
{
	int64_t n = how->experts, groups = max64(1, how->groups), size = n / groups;
	double *p = numbers(n), *sums = numbers(groups), margin = INFINITY;
	bool *marks = xcalloc((size_t)n, sizeof(*marks));
	compute_scores(p, z, how);
	for (int64_t e = 0; bias && e < n; e++)
		p[e] += (double)bias[e];
	if (groups > 1) {
		for (int64_t g = 0; g < groups; g++)
			sums[g] = two_best(p + g * size, size);
		margin = mark_largest(marks, sums, groups, how->top_groups);
		for (int64_t e = n - 1; e >= 0; e--)
			p[e] = marks[e / size] ? p[e] : -INFINITY;
	}
	margin = fmin(margin, mark_largest(marks, p, n, how->per_row));
	for (int64_t e = 0, j = 0; e < n; e++)
		if (marks[e])
			ids[j++] = (int32_t)e;
	free(p);
	free(sums);
	free(marks);
	return margin;
}

void ref_gates(
	double *gates, const double *z, const int32_t *ids, const struct router *how)
{
	double *p = numbers(how->experts), sum = 0;
	compute_scores(p, z, how);
	for (int64_t j = 0; j < how->per_row; j++)
		sum += p[ids[j]];
	for (int64_t j = 0; j < how->per_row; j++)
		gates[j] = (double)how->scale * p[ids[j]] / (how->normalize ? sum : 1);
	free(p);
}

double ref_balance(const double *z, const float *f, const struct router *how)
{
	double *p = numbers(how->experts), sum = 0, dot = 0;
	compute_scores(p, z, how);
	for (int64_t e = 0; e < how->experts; e++)
		sum += p[e];
	for (int64_t e = 0; e < how->experts; e++)
		dot += (double)f[e] * p[e] / sum;
	free(p);
	return (double)how->experts * dot;
}

/* dp of the scores: dz. */
static void scores_bwd(
	double *dz, const double *dp, const double *p, const struct router *how)
{
	double dot = 0;
	for (int64_t e = 0; e < how->experts; e++)
		dot += p[e] * dp[e];
	for (int64_t e = 0; e < how->experts; e++)
		dz[e] = how->kind == ROUTER_SOFTMAX ? p[e] * (dp[e] - dot)
						    : p[e] * log_slope(p[e], how) * dp[e];
}

void ref_route_bwd(double *dz, const double *z, const double *dg, const int32_t *ids,
	const float *f, const double weights[2], const struct router *how)
{
	int64_t n = how->experts, k = how->per_row;
	double *p = numbers(n), *dp = numbers(n), chosen = 0, dot = 0, sum = 0, load = 0;
	double lse = ref_log_sum_exp(z, n), c = (double)how->scale;
	compute_scores(p, z, how);
	for (int64_t j = 0; j < k; j++) {
		chosen += p[ids[j]];
		dot += p[ids[j]] * dg[j];
	}
	for (int64_t j = 0; j < k; j++)
		dp[ids[j]] =
			how->normalize ? c * (dg[j] - dot / chosen) / chosen : c * dg[j];
	for (int64_t e = 0; f && e < n; e++) {
		sum += p[e];
		load += (double)f[e] * p[e];
	}
	for (int64_t e = 0; f && e < n; e++)
		dp[e] += weights[0] * (double)n * ((double)f[e] - load / sum) / sum;
	scores_bwd(dz, dp, p, how);
	for (int64_t e = 0; e < n; e++)
		dz[e] += 2 * weights[1] * lse * exp(z[e] - lse);
	free(p);
	free(dp);
}

/* ---- experts ------------------------------------------------------------------------- */

void ref_groups(double *y, const double *x, const double *w, int64_t in, int64_t out,
	const struct row_groups *groups, bool across)
{
	for (int64_t g = 0; g < groups->n; g++) {
		int64_t first = groups->offsets[g], n = groups->offsets[g + 1] - first;
		const double *block = w + g / groups->per_block * in * out;
		if (across)
			ref_linear_bwd_x(
				y + first * in, x + first * out, block, n, in, out);
		else
			ref_linear_fwd(
				y + first * out, x + first * in, block, NULL, n, in, out);
	}
}

double ref_expert_act_bwd(enum act_kind kind, double *dab, double *ga, const double *z,
	const double *ab, double g, int64_t f)
{
	double *up = numbers(f), sum = 0;
	ref_act_fwd(kind, ga, ab, ab + f, f);
	for (int64_t j = 0; j < f; j++) {
		sum += z[j] * ga[j];
		up[j] = g * z[j];
		ga[j] *= g;
	}
	memset(dab, 0, (size_t)(2 * f) * sizeof(*dab));
	ref_act_bwd(kind, dab, dab + f, up, ab, ab + f, f);
	free(up);
	return sum;
}
