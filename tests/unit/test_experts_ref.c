/* The reference kernels of experts: backwards against finite differences of the forwards. */
#include "tests/support/experts_ref.h"
#include "tests/support/kernels_ref.h"
#include "tests/support/support.h"

#include <math.h>
#include <string.h>

enum { EXPERTS = 12, CHOSEN = 3 };
static const double weights[2] = {0.7, 0.3};
static const double allowed = 1e-8, h = 1e-5;

/* A row of logits and all that its gradient depends on. */
struct routed {
	struct router how;
	double z[EXPERTS], dg[CHOSEN];
	float f[EXPERTS];
	int32_t ids[CHOSEN];
};

static double routed_loss(const struct routed *r)
{
	double gates[CHOSEN], lse = ref_log_sum_exp(r->z, EXPERTS), sum = 0;
	ref_gates(gates, r->z, r->ids, &r->how);
	for (int j = 0; j < CHOSEN; j++)
		sum += gates[j] * r->dg[j];
	return sum + weights[0] * ref_balance(r->z, r->f, &r->how) +
	       weights[1] * lse * lse;
}

static void check_router(enum router_kind kind, bool normalize)
{
	struct routed r = {.how = {.kind = kind,
				   .normalize = normalize,
				   .scale = 1.7f,
				   .experts = EXPERTS,
				   .per_row = CHOSEN}};
	double dz[EXPERTS], worst = 0, largest = 0;
	for (int e = 0; e < EXPERTS; e++) {
		r.z[e] = test_normal(1, e);
		r.f[e] = (float)test_uniform(2, e);
	}
	for (int j = 0; j < CHOSEN; j++)
		r.dg[j] = test_normal(3, j);
	assert_true(ref_choose(r.ids, r.z, NULL, &r.how) > 1e-3);
	ref_route_bwd(dz, r.z, r.dg, r.ids, r.f, weights, &r.how);
	for (int e = 0; e < EXPERTS; e++) {
		double z = r.z[e];
		r.z[e] = z + h;
		double up = routed_loss(&r);
		r.z[e] = z - h;
		double down = routed_loss(&r);
		r.z[e] = z;
		worst = fmax(worst, fabs((up - down) / (2 * h) - dz[e]));
		largest = fmax(largest, fabs(dz[e]));
	}
	print_message("# router %d, %d: worst error %.2g of %.2g\n", kind, normalize,
		worst, largest);
	assert_true(worst <= allowed * largest);
}

TEST(routers)
{
	for (int kind = ROUTER_SOFTMAX; kind < N_ROUTER_KINDS; kind++)
		for (int normalize = 0; normalize < 2; normalize++)
			check_router((enum router_kind)kind, normalize);
}

/* A choice by groups, with a bias, by hand: s = 0.5 + z / 4 for small z. */
TEST(choices)
{
	static const double z[8] = {0, .1, .2, .3, .4, .5, .6, .7};
	static const float bias[8] = {0, 0, 1, 1, 0, 2, 0, 0};
	struct router how = {.kind = ROUTER_SIGMOID,
		.experts = 8,
		.per_row = 2,
		.groups = 4,
		.top_groups = 2};
	int32_t ids[2];
	ref_choose(ids, z, NULL, &how);
	assert_int_equal(ids[0], 6);
	assert_int_equal(ids[1], 7);
	ref_choose(ids, z, bias, &how); /* groups 1 and 2: 3.1 and 3.2 */
	assert_int_equal(ids[0], 3);
	assert_int_equal(ids[1], 5);
}

/* One row of experts' hidden numbers. */
struct row {
	enum act_kind kind;
	double ab[14], w[7], g;
};

/* sum w (g a): its gradient with respect to g a is w, which is z. */
static double row_loss(const struct row *r)
{
	double a[7], sum = 0;
	ref_act_fwd(r->kind, a, r->ab, r->ab + 7, 7);
	for (int j = 0; j < 7; j++)
		sum += r->w[j] * r->g * a[j];
	return sum;
}

static void check_slope(const struct row *r, double *x, double grad)
{
	double x0 = *x;
	*x = x0 + h;
	double up = row_loss(r);
	*x = x0 - h;
	double down = row_loss(r);
	*x = x0;
	assert_near((up - down) / (2 * h), grad, allowed * (1 + fabs(grad)));
}

TEST(activations)
{
	for (int kind = 0; kind < N_ACT_KINDS; kind++) {
		struct row r = {.kind = kind, .g = 0.6};
		double dab[14], ga[7];
		if (!act_is_gated(kind))
			continue;
		for (int j = 0; j < 14; j++)
			r.ab[j] = test_normal(4, j);
		for (int j = 0; j < 7; j++)
			r.w[j] = test_normal(5, j);
		double dg = ref_expert_act_bwd(kind, dab, ga, r.w, r.ab, r.g, 7);
		check_slope(&r, &r.g, dg);
		for (int j = 0; j < 14; j++)
			check_slope(&r, &r.ab[j], dab[j]);
	}
}
