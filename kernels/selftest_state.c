/* The self-test of sums, optimizers, local SGD and its compression; and the table of trials. */
#include "kernels/selftest_trial.h"

#include <stddef.h>
#include <string.h>

static struct mat few(const struct trial *t, int i)
{
	return with_rows(t->c->m[i], fewer_rows(t->c->m[i]));
}

/* ---- memory ------------------------------------------------------------------------- */

void try_zero(struct trial *t)
{
	struct pair x = pair_random(t, few(t, 0), 1);
	BOTH(t, zero, x.m[s]);
	trial_check(t, "x", x);
}

void try_copy(struct trial *t)
{
	struct pair y = pair_blank(t, few(t, 0)), x = pair_random(t, few(t, 1), 1);
	BOTH(t, copy, y.m[s], x.m[s]);
	trial_check(t, "y", y);
}

/* In fp32, which both sides store with the same bits. */
void try_hash(struct trial *t)
{
	const float none[2] = {0, 0};
	struct mat of = few(t, 0);
	struct pair x = pair_random(t, mat(of.p, of.rows, of.cols), 1);
	struct pair sum = pair_bytes(t, none, sizeof(none));
	BOTH(t, hash, sum.m[s].p, x.m[s], 1, 2, of.cols);
	trial_check(t, "sum", sum);
}

/* ---- sums --------------------------------------------------------------------------- */

enum { MOST = 1 << 20 };

/* Compares the two sides' exact sums, rounded to floats. */
static void check_exact(struct trial *t, const char *what, struct pair x)
{
	struct exact sum[SIDES];
	float is[SIDES];
	if (t->measures)
		return;
	device_get(t->d[GPU], &sum[GPU], x.m[GPU].p, sizeof(sum[GPU]));
	memcpy(&sum[CPU], x.m[CPU].p, sizeof(sum[CPU]));
	for (enum side s = GPU; s < SIDES; s++)
		is[s] = (float)exact_round(&sum[s]);
	struct pair number = pair_bytes(t, &is[CPU], sizeof(float));
	device_put(t->d[GPU], number.m[GPU].p, &is[GPU], sizeof(float));
	trial_check(t, what, number);
}

static struct pair zero_sum(struct trial *t)
{
	struct exact zero;
	memset(&zero, 0, sizeof(zero));
	/* memory for check_exact() too */
	pair_bytes(t, &zero, sizeof(float));
	return pair_bytes(t, &zero, sizeof(zero));
}

void try_exact_sum(struct trial *t)
{
	int64_t n = fewer(t->c->n[0], MOST);
	struct pair x = zero_sum(t), v = pair_vector(t, n, 1);
	BOTH(t, exact_sum, x.m[s].p, v.m[s].p, n);
	check_exact(t, "sum", x);
}

void try_exact_sumsq(struct trial *t)
{
	struct pair x = zero_sum(t), v = pair_random(t, few(t, 0), 1);
	BOTH(t, exact_sumsq, x.m[s].p, &v.m[s], 1);
	check_exact(t, "sum of squares", x);
}

/* ---- the step ----------------------------------------------------------------------- */

static const struct update test_update = {.lr = 1e-2f,
	.beta1 = 0.9f,
	.beta2 = 0.95f,
	.eps = 1e-8f,
	.grad_scale = 0.5f,
	.correct1 = 0.19f,
	.correct2 = 0.0975f,
	.nesterov = true,
	.momentum = 0.9f};

enum { PARTS = 3 };

struct update_pair {
	struct pair p, m, v, g, copy;
};

static struct update_pair update_pair_of(struct trial *t, int64_t n)
{
	struct mat copy = t->c->m[0];
	struct update_pair x = {.p = pair_vector(t, n, 1),
		.m = pair_vector(t, n, 0.1),
		.v = pair_vector(t, n, 0.1),
		.g = pair_vector(t, n, 1)};
	float *v = x.v.m[CPU].p;
	for (int64_t i = 0; i < n && !t->measures; i++)
		v[i] *= v[i];
	pair_send(t, x.v);
	copy.rows = 1;
	copy.cols = n;
	x.copy = pair_blank(t, copy);
	return x;
}

/* The CPU's kernels write no copy, so it is rounded here. */
static void check_copy(struct trial *t, const struct update_pair *x)
{
	struct mat copy = x->copy.m[CPU];
	if (!copy.p)
		return;
	t->d[CPU]->k->round(t->d[CPU], copy, mat(x->p.m[CPU].p, 1, copy.cols),
		x->copy.m[GPU].type, 1);
	trial_check(t, "the copy of p", x->copy);
}

/* An update kernel, on a long vector between short ones, since one call updates several. */
static void try_update(struct trial *t, size_t kernel, bool has_m, bool has_v)
{
	const int64_t n[PARTS] = {257, fewer(t->c->n[0], MOST), 5};
	struct pair a = pair_bytes(t, &test_update, sizeof(test_update));
	struct update_pair x[PARTS];
	struct update_part parts[SIDES][PARTS];
	for (int i = 0; i < PARTS; i++) {
		x[i] = update_pair_of(t, n[i]);
		for (enum side s = GPU; s < SIDES; s++)
			parts[s][i] = (struct update_part){x[i].p.m[s].p,
				has_m ? x[i].m.m[s].p : NULL,
				has_v ? x[i].v.m[s].p : NULL, x[i].g.m[s].p,
				x[i].copy.m[s], n[i], 0.1f, 3};
	}
	switch (kernel) {
	case KERNEL_adamw:
		BOTH(t, adamw, parts[s], PARTS, a.m[s].p);
		break;
	case KERNEL_sgd:
		BOTH(t, sgd, parts[s], PARTS, a.m[s].p);
		break;
	case KERNEL_muon_momentum:
		BOTH(t, muon_momentum, parts[s], PARTS, a.m[s].p);
		break;
	case KERNEL_muon_update:
		BOTH(t, muon_update, parts[s], PARTS, a.m[s].p);
		break;
	default:
		BUG_ON(true);
	}
	for (int i = 0; i < PARTS; i++) {
		trial_check_within(t, "p", x[i].p, 1e-6);
		trial_check_within(t, "m", x[i].m, 1e-6);
		trial_check_within(t, "v", x[i].v, 1e-6);
		check_copy(t, &x[i]);
	}
}

void try_adamw(struct trial *t)
{
	try_update(t, KERNEL_adamw, true, true);
}

void try_sgd(struct trial *t)
{
	try_update(t, KERNEL_sgd, t->c->n[1], false);
}

void try_muon_momentum(struct trial *t)
{
	try_update(t, KERNEL_muon_momentum, true, false);
}

void try_muon_update(struct trial *t)
{
	try_update(t, KERNEL_muon_update, false, false);
}

/* Fewer rows and columns; a tall matrix stays tall. */
static struct sliced fewer_slices(const struct trial *t)
{
	const int64_t *n = t->c->n;
	struct sliced s = {.rows = min64(n[0], 61), .slices = n[2]};
	s.cols = min64(n[1] / n[2], 40) * n[2];
	if (n[0] > n[1])
		s.rows = s.cols + 7;
	else
		s.rows = min64(s.rows, s.cols);
	return s;
}

static struct pair whole_pair(struct trial *t, const struct sliced *s)
{
	struct mat x = t->c->m[0];
	x.rows = min64(s->rows, s->cols);
	x.cols = s->rows * s->cols / x.rows;
	return pair_blank(t, x);
}

void try_muon_normalize(struct trial *t)
{
	struct sliced layout = fewer_slices(t);
	struct exact squares;
	memset(&squares, 0, sizeof(squares));
	exact_add(&squares, 123.25);
	struct pair of_squares = pair_bytes(t, &squares, sizeof(squares));
	struct pair from = pair_vector(t, layout.rows * layout.cols, 1);
	struct pair x = whole_pair(t, &layout);
	BOTH(t, muon_normalize, x.m[s], from.m[s].p, &layout, of_squares.m[s].p);
	trial_check(t, "x", x);
}

void try_muon_unpack(struct trial *t)
{
	struct sliced layout = fewer_slices(t);
	struct pair to = pair_vector(t, layout.rows * layout.cols, 1);
	struct mat like = t->c->m[0];
	like.rows = min64(layout.rows, layout.cols);
	like.cols = layout.rows * layout.cols / like.rows;
	struct pair x = pair_random(t, like, 1);
	BOTH(t, muon_unpack, to.m[s].p, x.m[s], &layout);
	trial_check(t, "slices", to);
}

void try_axpby(struct trial *t)
{
	struct mat like = few(t, 0);
	struct pair y = pair_random(t, like, 1), x = pair_random(t, like, 1);
	BOTH(t, axpby, y.m[s], -1.25f, x.m[s], 0.75f);
	trial_check(t, "y", y);
}

/* n floats of a struct. */
static struct pair floats_of(struct pair x, size_t offset, int64_t n)
{
	for (enum side s = GPU; s < SIDES; s++)
		x.m[s] = mat((char *)x.m[s].p + offset, 1, n);
	return x;
}

void try_step_end(struct trial *t)
{
	const struct step_terms terms = {.update = test_update,
		.count = 100,
		.max_norm = 1,
		.scale = 4,
		.step = 9};
	struct exact loss, squares;
	memset(&loss, 0, sizeof(loss));
	memset(&squares, 0, sizeof(squares));
	exact_add(&loss, 123.25);
	exact_add(&squares, 2345.5);
	struct pair of_loss = pair_bytes(t, &loss, sizeof(loss));
	struct pair of_squares = pair_bytes(t, &squares, sizeof(squares));
	struct pair of_terms = pair_bytes(t, &terms, sizeof(terms));
	struct step_end none;
	memset(&none, 0, sizeof(none));
	struct pair end = pair_bytes(t, &none, sizeof(none));
	BOTH(t, step_end, end.m[s].p, of_loss.m[s].p, of_squares.m[s].p, of_terms.m[s].p);
	trial_check(t, "the update's hyperparameters", floats_of(end, 0, 7));
	trial_check(
		t, "loss and norm", floats_of(end, offsetof(struct step_end, loss), 2));
}

/* ---- workers ------------------------------------------------------------------------ */

void try_pseudo_grad(struct trial *t)
{
	int64_t n = fewer(t->c->n[0], MOST);
	struct pair p = pair_vector(t, n, 1), anchor = pair_vector(t, n, 1);
	BOTH(t, pseudo_grad, p.m[s].p, anchor.m[s].p, n);
	trial_check(t, "p", p);
}

void try_mix(struct trial *t)
{
	int64_t n = fewer(t->c->n[0], MOST);
	struct pair p = pair_vector(t, n, 1), a = pair_vector(t, n, 1);
	BOTH(t, mix, p.m[s].p, a.m[s].p, n, 0.25f);
	trial_check(t, "p", p);
}

enum { WORKERS = 8 };

void try_combine(struct trial *t)
{
	static const float weight[WORKERS] = {
		0.5f, 1, 0, 0.25f, 0.125f, 2, 0.75f, 0.375f};
	int64_t n = fewer(t->c->n[0], MOST);
	struct combine c = {.workers = (int)min64(t->c->n[1], WORKERS),
		.vote = (enum sign_vote)t->c->n[2],
		.normalize = t->c->n[3]};
	struct pair out = pair_blank_vector(t, n);
	const float *x[SIDES][WORKERS];
	for (int w = 0; w < c.workers; w++) {
		struct pair one = pair_vector(t, n, 1);
		for (enum side s = GPU; s < SIDES; s++)
			x[s][w] = one.m[s].p;
	}
	c.weight = weight;
	BOTH(t, combine, out.m[s].p, x[s], n, &c);
	trial_check(t, "out", out);
}

void try_keep_largest(struct trial *t)
{
	struct pair x = pair_random(t, few(t, 0), 1);
	int64_t k = t->c->n[0];
	BOTH(t, keep_largest, x.m[s], k);
	trial_check(t, "x", x);
}

void try_keep_random(struct trial *t)
{
	const struct keep o = {.density = 0.25f,
		.scale = 4,
		.rng.key = philox_key(1, 2, 3),
		.worker = 1};
	struct pair x = pair_random(t, few(t, 0), 1);
	BOTH(t, keep_random, x.m[s], &o);
	trial_check(t, "x", x);
}

static struct rng_stream rng(void)
{
	return (struct rng_stream){.key = philox_key(1, 2, 3), .first = 4};
}

void try_round_stochastic(struct trial *t)
{
	const struct rng_stream o = rng();
	struct pair x = pair_random(t, few(t, 0), 1);
	BOTH(t, round_stochastic, x.m[s], &o);
	trial_check(t, "x", x);
}

/* Compares four 8-bit codes at a time, as a 32-bit number. */
void try_quantise(struct trial *t)
{
	const struct rng_stream o = rng();
	struct pair x = pair_random(t, few(t, 0), 1);
	struct pair codes = pair_blank_vector(t, ceil_div(mat_size(x.m[CPU]), 4));
	struct pair scales = pair_blank_vector(t, x.m[CPU].rows);
	bool random = t->c->n[0];
	BOTH(t, quantise, x.m[s], codes.m[s].p, scales.m[s].p, random ? &o : NULL);
	trial_check(t, "x", x);
	trial_check(t, "codes", codes);
	trial_check(t, "scales", scales);
}

void try_dequantise(struct trial *t)
{
	struct mat of = few(t, 0);
	struct pair from = pair_random(t, of, 1), x = pair_blank(t, of);
	struct pair codes = pair_blank_vector(t, ceil_div(mat_size(of), 4));
	struct pair scales = pair_blank_vector(t, of.rows);
	t->d[CPU]->k->quantise(
		t->d[CPU], from.m[CPU], codes.m[CPU].p, scales.m[CPU].p, NULL);
	pair_send(t, codes);
	pair_send(t, scales);
	BOTH(t, dequantise, x.m[s], codes.m[s].p, scales.m[s].p);
	trial_check(t, "x", x);
}

static struct pair places_of(struct trial *t, int64_t n, bool wide)
{
	return pair_blank_vector(t, wide ? n : ceil_div(n, 2));
}

void try_topk_pack(struct trial *t)
{
	struct pair x = pair_random(t, few(t, 0), 1);
	int64_t k = t->c->n[0], n = x.m[CPU].rows * k;
	bool wide = t->c->n[1];
	struct pair values = pair_blank_vector(t, n), places = places_of(t, n, wide);
	t->d[CPU]->k->keep_largest(t->d[CPU], x.m[CPU], k);
	pair_send(t, x);
	BOTH(t, topk_pack, values.m[s].p, places.m[s].p, wide, x.m[s], k);
	trial_check(t, "values", values);
	trial_check(t, "places", places);
}

void try_topk_scatter(struct trial *t)
{
	struct pair from = pair_random(t, few(t, 0), 1), x = pair_blank(t, few(t, 0));
	int64_t k = t->c->n[0], n = x.m[CPU].rows * k;
	bool wide = t->c->n[1];
	struct pair values = pair_blank_vector(t, n), places = places_of(t, n, wide);
	t->d[CPU]->k->keep_largest(t->d[CPU], from.m[CPU], k);
	t->d[CPU]->k->topk_pack(
		t->d[CPU], values.m[CPU].p, places.m[CPU].p, wide, from.m[CPU], k);
	pair_send(t, values);
	pair_send(t, places);
	BOTH(t, topk_scatter, x.m[s], values.m[s].p, places.m[s].p, wide, k);
	trial_check(t, "x", x);
}

void try_normal(struct trial *t)
{
	const struct normal o = {
		.mean = 0.5f, .std = 0.02f, .most = t->c->n[0] ? 3 : 0, .rng = rng()};
	struct pair x = pair_blank(t, few(t, 0));
	BOTH(t, normal, x.m[s], &o);
	trial_check(t, "x", x);
}

/* ---- the table ---------------------------------------------------------------------- */

/*
 * The tolerances are those of the kernels' tests (tests/unit/test_kernels_*.c), enlarged for longer
 * sums: stopping a run without cause would be worse than missing an error of a few roundings, and a
 * real fault is a thousand times as large.
 *
 * Kernels without a row are not recorded by the planning device.
 */
const struct trial_row trial_rows[N_KERNELS] = {
	[KERNEL_round] = {try_round, 0, 0},
	[KERNEL_round_scaled] = {try_round_scaled, 0, 0},
	[KERNEL_narrow] = {try_narrow, 0, 0},
	[KERNEL_widen] = {try_widen, 0, 0},
	[KERNEL_amax] = {try_amax, 0, 0},
	[KERNEL_zero] = {try_zero, 0, 0},
	[KERNEL_copy] = {try_copy, 0, 0},
	[KERNEL_hash] = {try_hash, 0, 0},
	[KERNEL_embed_fwd] = {try_embed_fwd, 1e-6, 2},
	[KERNEL_embed_bwd] = {try_embed_bwd, 1e-5, 2},
	[KERNEL_linear_fwd] = {try_linear_fwd, 1e-4, 2},
	[KERNEL_linear_bwd_x] = {try_linear_bwd_x, 1e-4, 2},
	[KERNEL_linear_bwd_w] = {try_linear_bwd_w, 1e-4, 2},
	[KERNEL_linear_row] = {try_linear_row, 1e-4, 2},
	[KERNEL_linear_gelu_fwd] = {try_linear_gelu_fwd, 1e-4, 3},
	[KERNEL_linear_gelu_bwd] = {try_linear_gelu_bwd, 1e-4, 3},
	[KERNEL_bias_fwd] = {try_bias_fwd, 1e-6, 2},
	[KERNEL_bias_bwd] = {try_bias_bwd, 1e-5, 0},
	[KERNEL_norm_fwd] = {try_norm_fwd, 1e-5, 2},
	[KERNEL_norm_bwd_x] = {try_norm_bwd_x, 1e-5, 0},
	[KERNEL_norm_bwd_w] = {try_norm_bwd_w, 1e-5, 0},
	[KERNEL_norm_bwd] = {try_norm_bwd, 1e-5, 0},
	[KERNEL_rope] = {try_rope, 1e-6, 2},
	[KERNEL_act_fwd] = {try_act_fwd, 5e-6, 2},
	[KERNEL_act_bwd] = {try_act_bwd, 5e-6, 2},
	[KERNEL_add] = {try_add, 1e-6, 2},
	[KERNEL_sub] = {try_sub, 1e-6, 2},
	[KERNEL_dropout] = {try_dropout, 1e-6, 2},
	[KERNEL_residual] = {try_residual, 1e-6, 2},
	[KERNEL_residual_norm] = {try_residual_norm, 1e-5, 3},
	[KERNEL_attn_fwd] = {try_attn_fwd, 5e-5, 4},
	[KERNEL_attn_bwd] = {try_attn_bwd, 5e-5, 8},
	[KERNEL_attn_row] = {try_attn_row, 5e-5, 4},
	[KERNEL_xent_stats] = {try_xent_stats, 1e-5, 0},
	[KERNEL_xent_join] = {try_xent_join, 1e-5, 0},
	[KERNEL_xent_bwd] = {try_xent_bwd, 1e-5, 2},
	[KERNEL_xent_fused] = {try_xent_fused, 1e-5, 2},
	[KERNEL_normal] = {try_normal, 0, 0},
	[KERNEL_exact_sum] = {try_exact_sum, 0, 0},
	[KERNEL_exact_sumsq] = {try_exact_sumsq, 1e-6, 0},
	[KERNEL_adamw] = {try_adamw, 1e-6, 2},
	[KERNEL_sgd] = {try_sgd, 1e-5, 2},
	[KERNEL_muon_momentum] = {try_muon_momentum, 1e-6, 0},
	[KERNEL_muon_update] = {try_muon_update, 1e-6, 2},
	[KERNEL_muon_normalize] = {try_muon_normalize, 1e-6, 2},
	[KERNEL_muon_unpack] = {try_muon_unpack, 0, 0},
	[KERNEL_axpby] = {try_axpby, 1e-6, 2},
	[KERNEL_step_end] = {try_step_end, 0, 0},
	[KERNEL_pseudo_grad] = {try_pseudo_grad, 0, 0},
	[KERNEL_mix] = {try_mix, 1e-6, 0},
	[KERNEL_combine] = {try_combine, 1e-5, 0},
	[KERNEL_keep_largest] = {try_keep_largest, 0, 0},
	[KERNEL_keep_random] = {try_keep_random, 0, 0},
	[KERNEL_round_stochastic] = {try_round_stochastic, 0, 0},
	[KERNEL_quantise] = {try_quantise, 0, 0},
	[KERNEL_dequantise] = {try_dequantise, 0, 0},
	[KERNEL_topk_pack] = {try_topk_pack, 0, 0},
	[KERNEL_topk_scatter] = {try_topk_scatter, 0, 0},
};
