/* The self-test of sums, optimizers, local SGD and its compression; the table of trials. */
#include "kernels/selftest_trial.h"

#include <math.h>

TRIAL(zero, "x+", M(0))
TRIAL(copy, "y! x", M(0), M(1))

/* Tests hash, with a 64-bit sum that is compared as two 32-bit numbers. */
void try_hash(struct trial *t)
{
	const float none[2] = {0, 0};
	make_operands(t, "x");
	struct trial_pair sum = add_result(t, "sum", pair_bytes(t, none, sizeof(none)));
	BOTH(t, hash, sum.m[s].p, M(0), 1, 2, call_shape(t, 0).cols);
}

/* ---- sums --------------------------------------------------------------------------- */

enum { MAX_ELEMENTS = 1 << 20 };

/* Compares the two sides' exact sums, rounded to floats. */
static void check_exact(struct trial *t, const char *what, struct trial_pair x)
{
	struct exact sum[SIDES];
	float is[SIDES];
	struct trial_pair number = pair_vector(t, 1, 1);
	if (t->measures)
		return;
	device_get(t->d[GPU], &sum[GPU], x.m[GPU].p, sizeof(sum[GPU]));
	memcpy(&sum[CPU], x.m[CPU].p, sizeof(sum[CPU]));
	for (enum side s = GPU; s < SIDES; s++)
		is[s] = (float)exact_round(&sum[s]);
	*(float *)number.m[CPU].p = is[CPU];
	device_put(t->d[GPU], number.m[GPU].p, &is[GPU], sizeof(float));
	trial_check(t, what, number);
}

/* Makes an exact sum with this value on both sides. */
static struct trial_pair make_exact(struct trial *t, double value)
{
	struct exact sum;
	memset(&sum, 0, sizeof(sum));
	exact_add(&sum, value);
	return pair_bytes(t, &sum, sizeof(sum));
}

void try_exact_sum(struct trial *t)
{
	int64_t n = limit_size(t->c->n[0], MAX_ELEMENTS);
	struct trial_pair x = make_exact(t, 0), v = pair_vector(t, n, 1);
	BOTH(t, exact_sum, x.m[s].p, v.m[s].p, n);
	check_exact(t, "sum", x);
}

void try_exact_sumsq(struct trial *t)
{
	struct trial_pair x = make_exact(t, 0);
	make_operands(t, "v");
	BOTH(t, exact_sumsq, x.m[s].p, &M(0), 1);
	check_exact(t, "sum of squares", x);
}

enum { GRID_LEAVES = 4, GRID_SUMS = 2, GRID_NUMBERS = 1 << 18 };

/* Makes a leaf with elements far above the grid and on it, and some that are only counted. */
static struct trial_pair make_leaf(struct trial *t, int64_t n, enum dtype type)
{
	static const float bad[] = {1e30f, NAN, -INFINITY};
	struct trial_pair x = pair_random(t, mat_typed(t, 1, n, type), 0.01);
	float *v = x.m[CPU].p;
	for (int64_t i = 0; i < n && !t->measures; i++)
		v[i] = ldexpf(v[i], -(int)(i % 7 * 9));
	for (int64_t i = n - 1, k = 0;
		i >= 0 && k < (int64_t)ARRAY_LEN(bad) && !t->measures; i -= 1000)
		v[i] = bad[k++];
	pair_send(t, x);
	return x;
}

/* Makes the weights of checksums. */
static struct trial_pair make_weights(struct trial *t)
{
	uint32_t u[GRID_BLOCK];
	grid_weights(0, u);
	return pair_bytes(t, u, sizeof(u));
}

/* Makes leaves and sums, few of each, and tests their sum on the grid, and its checksum. */
void try_grid_sum(struct trial *t)
{
	const int64_t *numbers = t->c->n, n = limit_size(numbers[0], GRID_NUMBERS);
	const int leaves = (int)min64(numbers[1], GRID_LEAVES);
	const int sums = (int)min64(numbers[2], GRID_SUMS);
	const struct grid empty = {.exponent = GRID_EXPONENT};
	struct trial_pair grid =
		add_result(t, "grid", pair_bytes(t, &empty, sizeof(empty)));
	struct trial_pair sum = {{{.p = NULL}}}, rounded = {{{.p = NULL}}};
	struct grid_part parts[SIDES][GRID_LEAVES + GRID_SUMS] = {0};
	struct grid_sum args[SIDES];
	struct grid_check check[SIDES];
	const bool checked = numbers[3] & GRID_CHECKED;
	struct trial_pair weights = make_weights(t), count = make_exact(t, 1);
	struct trial_pair words = pair_bytes(t, &empty, sizeof(empty));
	if (numbers[3] & GRID_KEPT)
		sum = add_result(t, "sum", pair_ints(t, 2 * n, INT32_MIN, INT32_MAX));
	if (numbers[3] & GRID_ROUNDED)
		rounded = add_vector(t, "rounded", n);
	for (int i = 0; i < leaves + sums; i++) {
		bool is_leaf = i < leaves;
		struct trial_pair x = is_leaf ? make_leaf(t, n, t->c->m[0].type)
					      : pair_ints(t, 2 * n, INT32_MIN, INT32_MAX);
		for (enum side s = GPU; s < SIDES; s++)
			parts[s][i] = (struct grid_part){
				is_leaf ? x.m[s].p : NULL, is_leaf ? NULL : x.m[s].p};
	}
	for (enum side s = GPU; s < SIDES; s++) {
		struct grid *word = words.m[s].p;
		check[s] = (struct grid_check){.u = weights.m[s].p,
			.key = grid_check_key(0),
			.bucket = 3,
			.first = 5000,
			.word = &word->check};
		args[s] = (struct grid_sum){.sum = sum.m[s].p,
			.add = numbers[3] & GRID_ADD,
			.rounded = rounded.m[s].p,
			.parts = parts[s],
			.n_parts = leaves + sums,
			.leaf_type = s == GPU ? t->c->m[0].type : DT_F32,
			.n = n,
			.levels = 6,
			.check = checked ? &check[s] : NULL};
	}
	BOTH(t, grid_sum, &args[s], grid.m[s].p);
	BOTH(t, grid_count, count.m[s].p, words.m[s].p); /* makes the words comparable */
	for (enum side s = GPU; s < SIDES; s++)
		words.m[s] =
			mat((char *)words.m[s].p + offsetof(struct grid, check), 1, 2);
	trial_check(t, "checksum", words);
}

/* Tests that elements which grid_sum could not add make a sum of squares not finite. */
void try_grid_count(struct trial *t)
{
	const struct grid counted = {.beyond = 3, .not_finite = 5};
	struct trial_pair x = make_exact(t, 1),
			  grid = pair_bytes(t, &counted, sizeof(counted));
	BOTH(t, grid_count, x.m[s].p, grid.m[s].p);
	check_exact(t, "a sum that is not finite", x);
}

/* Adds the checksums of three parts to two sums. The sums are congruent, but may differ. */
void try_word_sums(struct trial *t)
{
	enum { PARTS = 3, SUMS = 2 };
	const int64_t n = limit_size(t->c->n[0], MAX_ELEMENTS);
	const uint64_t zeros[SUMS] = {0};
	struct trial_pair x = pair_ints(t, n, INT32_MIN, INT32_MAX);
	struct trial_pair u = make_weights(t),
			  word = pair_bytes(t, zeros, sizeof(*zeros));
	struct trial_pair sums = pair_bytes(t, zeros, sizeof(zeros));
	const struct checksum_term terms[SUMS] = {{1, 0}, {GRID_PRIME / 3, 0}};
	struct trial_pair factors = pair_bytes(t, terms, sizeof(terms));
	struct word_part parts[SIDES][PARTS];
	for (enum side s = GPU; s < SIDES; s++)
		for (int i = 0; i < PARTS; i++) {
			int64_t first = n * i / PARTS;
			parts[s][i] = (struct word_part){.p = (int32_t *)x.m[s].p + first,
				.n = n * (i + 1) / PARTS - first,
				.first = 4000 + first,
				.vector = (uint32_t)i / 2,
				.sum = i / 2};
		}
	BOTH(t, word_sums, sums.m[s].p, parts[s], PARTS, u.m[s].p, grid_check_key(0));
	BOTH(t, checksum_word, word.m[s].p, sums.m[s].p, sums.m[s].p, factors.m[s].p,
		SUMS);
	trial_check(t, "checksum", word);
}

/* Tests terms of equal and of different sums. */
void try_checksum_word(struct trial *t)
{
	enum { MAX_TERMS = 1000 };
	const int64_t n = limit_size(t->c->n[0], MAX_TERMS);
	uint64_t sum[MAX_TERMS], earlier[MAX_TERMS], none = 0;
	struct checksum_term terms[MAX_TERMS];
	for (int64_t i = 0; i < n; i++) {
		sum[i] = hash_mix((uint64_t)i) >> 8;
		earlier[i] = i % 3 ? sum[i] + GRID_PRIME : sum[i] + 1;
		terms[i] = (struct checksum_term){hash_mix(sum[i]) % GRID_PRIME, 7};
	}
	struct trial_pair a = pair_bytes(t, sum, (size_t)n * sizeof(*sum));
	struct trial_pair b = pair_bytes(t, earlier, (size_t)n * sizeof(*earlier));
	struct trial_pair c = pair_bytes(t, terms, (size_t)n * sizeof(*terms));
	struct trial_pair word = pair_bytes(t, &none, sizeof(none));
	BOTH(t, checksum_word, word.m[s].p, a.m[s].p, b.m[s].p, c.m[s].p, n);
	trial_check(t, "word", word);
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

struct update_trial {
	struct trial_pair update, p[PARTS], m[PARTS], v[PARTS], g[PARTS], copy[PARTS];
	struct update_part part[SIDES][PARTS];
};

/* Makes n random numbers >= 0, as second moments are. */
static struct trial_pair make_squares(struct trial *t, int64_t n)
{
	struct trial_pair x = pair_vector(t, n, 0.1);
	float *v = x.m[CPU].p;
	for (int64_t i = 0; i < n && !t->measures; i++)
		v[i] *= v[i];
	pair_send(t, x);
	return x;
}

/* Makes a long vector between short ones, since one call updates several. */
static struct update_trial make_update_trial(struct trial *t)
{
	bool has_m = t->c->n[1], has_v = t->c->n[2];
	const int64_t n[PARTS] = {257, limit_size(t->c->n[0], MAX_ELEMENTS), 5};
	struct update_trial x = {
		.update = pair_bytes(t, &test_update, sizeof(test_update))};
	for (int i = 0; i < PARTS; i++) {
		x.p[i] = pair_vector(t, n[i], 1);
		x.m[i] = pair_vector(t, n[i], 0.1);
		x.v[i] = make_squares(t, n[i]);
		x.g[i] = pair_vector(t, n[i], 1);
		struct mat copy = call_shape(t, 0);
		copy.rows = 1;
		copy.cols = n[i];
		x.copy[i] = pair_blank(t, copy);
		for (enum side s = GPU; s < SIDES; s++)
			x.part[s][i] = (struct update_part){x.p[i].m[s].p,
				has_m ? x.m[i].m[s].p : NULL,
				has_v ? x.v[i].m[s].p : NULL, x.g[i].m[s].p,
				x.copy[i].m[s], n[i], 0.1f, 3};
	}
	return x;
}

/* Checks the copy of p. The CPU kernels do not write their fp32 copy, so p is rounded here. */
static void check_copy(struct trial *t, struct trial_pair x, struct trial_pair p)
{
	struct mat copy = x.m[CPU];
	if (!copy.p)
		return;
	t->d[CPU]->k->round(
		t->d[CPU], copy, mat(p.m[CPU].p, 1, copy.cols), x.m[GPU].type, 1);
	trial_check(t, "the copy of p", x);
}

/* Checks the parameters, the moments and the 16-bit copy of all vectors after an update. */
static void check_update(struct trial *t, const struct update_trial *x)
{
	for (int i = 0; i < PARTS; i++) {
		trial_check_within(t, "p", x->p[i], 1e-6);
		trial_check_within(t, "m", x->m[i], 1e-6);
		trial_check_within(t, "v", x->v[i], 1e-6);
		check_copy(t, x->copy[i], x->p[i]);
	}
}

#define UPDATE_TRIAL(name)                                        \
	void try_##name(struct trial *t)                          \
	{                                                         \
		struct update_trial x = make_update_trial(t);     \
		BOTH(t, name, x.part[s], PARTS, x.update.m[s].p); \
		check_update(t, &x);                              \
	}
UPDATE_TRIAL(adamw)
UPDATE_TRIAL(sgd)
UPDATE_TRIAL(muon_momentum)
UPDATE_TRIAL(muon_update)

/* Returns a shape with fewer rows and columns; a tall matrix stays tall. */
static struct sliced shrink_sliced(const struct trial *t)
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

/* Returns the shape of matrix 0 of the call for these slices. */
static struct mat sliced_shape(const struct trial *t, const struct sliced *s)
{
	struct mat x = call_shape(t, 0);
	x.rows = min64(s->rows, s->cols);
	x.cols = s->rows * s->cols / x.rows;
	return x;
}

void try_muon_normalize(struct trial *t)
{
	struct sliced layout = shrink_sliced(t);
	struct trial_pair squares = make_exact(t, 123.25);
	struct trial_pair from = pair_vector(t, layout.rows * layout.cols, 1);
	struct trial_pair x = add_result(t, "x", pair_blank(t, sliced_shape(t, &layout)));
	BOTH(t, muon_normalize, x.m[s], from.m[s].p, &layout, squares.m[s].p);
}

void try_muon_unpack(struct trial *t)
{
	struct sliced layout = shrink_sliced(t);
	struct trial_pair x = pair_random(t, sliced_shape(t, &layout), 1);
	struct trial_pair to = add_vector(t, "slices", layout.rows * layout.cols);
	BOTH(t, muon_unpack, to.m[s].p, x.m[s], &layout);
}

TRIAL(axpby, "y+ x", M(0), -1.25f, M(1), 0.75f)

/* Returns the n floats at an offset of a struct, as vectors. */
static struct trial_pair as_vector(struct trial_pair x, size_t offset, int64_t n)
{
	for (enum side s = GPU; s < SIDES; s++)
		x.m[s] = mat((char *)x.m[s].p + offset, 1, n);
	return x;
}

/* Tests step_end: the hyperparameters for the update, the loss and the gradient norm. */
void try_step_end(struct trial *t)
{
	const struct step_terms terms = {.update = test_update,
		.count = 100,
		.max_norm = 1,
		.scale = 4,
		.step = 9};
	struct trial_pair loss = make_exact(t, 123.25), squares = make_exact(t, 2345.5);
	struct trial_pair device_terms = pair_bytes(t, &terms, sizeof(terms));
	const uint64_t words[] = {0, (uint64_t)3 * GRID_PRIME, 1};
	struct trial_pair word = pair_bytes(t, words, sizeof(words));
	struct step_end zero;
	memset(&zero, 0, sizeof(zero));
	for (int n_words = 2; n_words <= 3; n_words++) { /* the last word is wrong */
		struct trial_pair end = pair_bytes(t, &zero, sizeof(zero));
		BOTH(t, step_end, end.m[s].p, loss.m[s].p, squares.m[s].p,
			device_terms.m[s].p, word.m[s].p, n_words);
		trial_check(t, "the update's hyperparameters", as_vector(end, 0, 7));
		trial_check(t, "loss and norm",
			as_vector(end, offsetof(struct step_end, loss), 2));
	}
}

/* ---- workers ------------------------------------------------------------------------ */

enum { WORKERS = 8 };

/* Tests combine with the vote and normalization of the call, and one weight of 0. */
void try_combine(struct trial *t)
{
	static const float weight[WORKERS] = {
		0.5f, 1, 0, 0.25f, 0.125f, 2, 0.75f, 0.375f};
	int64_t n = limit_size(t->c->n[0], MAX_ELEMENTS);
	struct combine c = {.workers = (int)min64(t->c->n[1], WORKERS),
		.vote = (enum sign_vote)t->c->n[2],
		.normalize = t->c->n[3]};
	struct trial_pair out = add_vector(t, "out", n);
	const float *x[SIDES][WORKERS];
	for (int w = 0; w < c.workers; w++) {
		struct trial_pair one = pair_vector(t, n, 1);
		for (enum side s = GPU; s < SIDES; s++)
			x[s][w] = one.m[s].p;
	}
	c.weight = weight;
	BOTH(t, combine, out.m[s].p, x[s], n, &c);
}

TRIAL(keep_largest, "x+", M(0), t->c->n[0])
TRIAL(keep_sizes, "x+", M(0), 0x3f << 24) /* 0.5 */

/* Tests count_sizes, with 64-bit counts that are compared as pairs of 32-bit numbers. */
void try_count_sizes(struct trial *t)
{
	static const int64_t none[256];
	make_operands(t, "x");
	struct trial_pair counts =
		add_result(t, "counts", pair_bytes(t, none, sizeof(none)));
	BOTH(t, count_sizes, counts.m[s].p, M(0), 0x3f << 24, (int)t->c->n[0]);
}

/* Returns a stream with indices that need more than 32 bits, except some in row 0. */
static const struct rng_stream *test_rng(void)
{
	static struct rng_stream stream = {
		.first = ((int64_t)1 << 32) - 100, .row_step = 100003};
	stream.key = philox_key(1, 2, 3);
	return &stream;
}

TRIAL(keep_random, "x+", M(0),
	&(struct keep){.density = 0.25f, .scale = 4, .rng = *test_rng(), .worker = 1})
TRIAL(round_stochastic, "x+", M(0), test_rng())

/* Codes are compared four at a time, as 32-bit numbers. */
void try_quantize(struct trial *t)
{
	bool random = t->c->n[0];
	make_operands(t, "x+");
	struct trial_pair codes =
		add_vector(t, "codes", ceil_div(mat_size(small_shape(t, 0)), 4));
	struct trial_pair scales = add_vector(t, "scales", operand_rows(t, 0));
	BOTH(t, quantize, M(0), codes.m[s].p, scales.m[s].p, random ? test_rng() : NULL);
}

/* Tests dequantize on the codes and scales of the CPU's quantize. */
void try_dequantize(struct trial *t)
{
	struct device *cpu = t->d[CPU];
	make_operands(t, "x!");
	struct trial_pair from = pair_random(t, small_shape(t, 0), 1);
	struct trial_pair codes =
		pair_blank_vector(t, ceil_div(mat_size(small_shape(t, 0)), 4));
	struct trial_pair scales = pair_blank_vector(t, operand_rows(t, 0));
	cpu->k->quantize(cpu, from.m[CPU], codes.m[CPU].p, scales.m[CPU].p, NULL);
	pair_send(t, codes);
	pair_send(t, scales);
	BOTH(t, dequantize, M(0), codes.m[s].p, scales.m[s].p);
}

/* Makes a blank vector of n column indices, of 32 bits if `wide`, else 16. */
static struct trial_pair make_blank_columns(struct trial *t, int64_t n, bool wide)
{
	return pair_blank_vector(t, wide ? n : ceil_div(n, 2));
}

/* Tests topk_pack on rows in which keep_largest left k elements. */
void try_topk_pack(struct trial *t)
{
	struct device *cpu = t->d[CPU];
	make_operands(t, "x");
	int64_t k = t->c->n[0], n = operand_rows(t, 0) * k;
	bool wide = t->c->n[1];
	struct trial_pair values = add_vector(t, "values", n);
	struct trial_pair columns =
		add_result(t, "columns", make_blank_columns(t, n, wide));
	cpu->k->keep_largest(cpu, t->m[0].m[CPU], k);
	pair_send(t, t->m[0]);
	BOTH(t, topk_pack, values.m[s].p, columns.m[s].p, wide, M(0), k);
}

/* Tests topk_scatter on the packed elements of the CPU's topk_pack. */
void try_topk_scatter(struct trial *t)
{
	struct device *cpu = t->d[CPU];
	make_operands(t, "x!");
	int64_t k = t->c->n[0], n = operand_rows(t, 0) * k;
	bool wide = t->c->n[1];
	struct trial_pair from = pair_random(t, small_shape(t, 0), 1);
	struct trial_pair values = pair_blank_vector(t, n),
			  columns = make_blank_columns(t, n, wide);
	cpu->k->keep_largest(cpu, from.m[CPU], k);
	cpu->k->topk_pack(cpu, values.m[CPU].p, columns.m[CPU].p, wide, from.m[CPU], k);
	pair_send(t, values);
	pair_send(t, columns);
	BOTH(t, topk_scatter, M(0), values.m[s].p, columns.m[s].p, wide, k);
}

TRIAL(normal, "x!", M(0),
	&(struct normal){.mean = 0.5f,
		.std = 0.02f,
		.max_deviation = t->c->n[0] ? 3 : 0,
		.rng = *test_rng()})

/* ---- the tables --------------------------------------------------------------------- */

/* The tolerances of tests/unit/test_kernels_*.c, enlarged for longer sums: stopping a run without
 * cause would be worse than missing an error of a few roundings, and a real fault is a thousand
 * times as large. The results of unlisted kernels must have the CPU's bits. */
const struct tolerance tolerances[N_KERNELS] = {
	[KERNEL_embed_fwd] = {1e-6, 2},
	[KERNEL_embed_bwd] = {1e-5, 2},
	[KERNEL_linear_fwd] = {1e-4, 2},
	[KERNEL_linear_bwd_x] = {1e-4, 2},
	[KERNEL_linear_bwd_w] = {1e-4, 2},
	[KERNEL_linear_row] = {1e-4, 2},
	[KERNEL_linear_gelu_fwd] = {1e-4, 3},
	[KERNEL_linear_gelu_bwd] = {1e-4, 3},
	[KERNEL_bias_fwd] = {1e-6, 2},
	[KERNEL_bias_bwd] = {1e-5, 0},
	[KERNEL_norm_fwd] = {1e-5, 2},
	[KERNEL_norm_bwd_x] = {1e-5, 0},
	[KERNEL_norm_bwd_w] = {1e-5, 0},
	[KERNEL_norm_bwd] = {1e-5, 0},
	[KERNEL_head_norm_fwd] = {1e-5, 2},
	[KERNEL_head_norm_bwd_x] = {1e-5, 2},
	[KERNEL_head_norm_bwd_w] = {1e-5, 0},
	[KERNEL_rope] = {1e-6, 2},
	[KERNEL_act_fwd] = {5e-6, 2},
	[KERNEL_act_bwd] = {5e-6, 2},
	[KERNEL_add] = {1e-6, 2},
	[KERNEL_sub] = {1e-6, 2},
	[KERNEL_dropout] = {1e-6, 2},
	[KERNEL_residual] = {1e-6, 2},
	[KERNEL_residual_norm] = {1e-5, 3},
	[KERNEL_attn_fwd] = {5e-5, 4},
	[KERNEL_attn_bwd] = {5e-5, 8},
	[KERNEL_attn_row] = {5e-5, 4},
	[KERNEL_xent_stats] = {1e-5, 0},
	[KERNEL_xent_join] = {1e-5, 0},
	[KERNEL_xent_bwd] = {1e-5, 2},
	[KERNEL_xent_fused] = {1e-5, 2},
	[KERNEL_route_fwd] = {1e-5, 2},
	[KERNEL_route_bwd] = {1e-4, 2},
	[KERNEL_route_bwd_x] = {1e-4, 2},
	[KERNEL_route_bwd_w] = {1e-4, 0},
	[KERNEL_slots_combine] = {1e-6, 2},
	[KERNEL_groups_fwd] = {1e-4, 2},
	[KERNEL_groups_bwd_x] = {1e-4, 2},
	[KERNEL_groups_bwd_w] = {1e-4, 2},
	[KERNEL_expert_act_fwd] = {5e-6, 2},
	[KERNEL_expert_act_bwd] = {1e-5, 4},
	[KERNEL_counts_fractions] = {1e-6, 0},
	[KERNEL_bias_balance] = {1e-6, 0},
	[KERNEL_exact_sumsq] = {1e-6, 0},
	[KERNEL_adamw] = {1e-6, 2},
	[KERNEL_sgd] = {1e-5, 2},
	[KERNEL_muon_momentum] = {1e-6, 0},
	[KERNEL_muon_update] = {1e-6, 2},
	[KERNEL_muon_normalize] = {1e-6, 2},
	[KERNEL_axpby] = {1e-6, 2},
	[KERNEL_combine] = {1e-5, 0},
};

#define try_find_nonfinite NULL /* no run calls it on a GPU */
#define try_linear_xent NULL	/* plan.c records linear_fwd and xent_fused */

#define KERNEL(type, name, ...) [KERNEL_##name] = try_##name,
void (*const trials[N_KERNELS])(struct trial *) = {
#include "kernels/list.h"
};
