/* Reference kernels of experts in float64, written from the formulas. kernels_ref.h explains them. */
#pragma once

#include "kernels/kernels.h"

/* The choice of a row of logits z[E]: sets ids[k], ascending. Returns the smallest difference between
 * two scores that could change it: choices with a small margin may differ in fp32. */
double ref_choose(
	int32_t *ids, const double *z, const float *bias, const struct router *how);
/* The gates of a row with this choice. */
void ref_gates(
	double *gates, const double *z, const int32_t *ids, const struct router *how);
double ref_log_sum_exp(const double *z, int64_t n);
/* E sum f p of a row. */
double ref_balance(const double *z, const float *f, const struct router *how);
/* dz = the gradient of sum gates dg + weights[0] ref_balance() + weights[1] lse^2; f may be NULL. */
void ref_route_bwd(double *dz, const double *z, const double *dg, const int32_t *ids,
	const float *f, const double weights[2], const struct router *how);

/* y = x w[block of the row]^T; with `across`, y = x w[block of the row]. */
void ref_groups(double *y, const double *x, const double *w, int64_t in, int64_t out,
	const struct row_groups *groups, bool across);
/* From z[f], ab[2 f] and a gate g of a row: dab, ga, and the gradient of g, which it returns. */
double ref_expert_act_bwd(enum act_kind kind, double *dab, double *ga, const double *z,
	const double *ab, double g, int64_t f);
