/* The self-test of the kernels of layers, except attention, and of casts. */
#include "kernels/selftest_trial.h"

#include <math.h>

enum { FIRST = 3 }; /* the token of row 0; other slices have the tokens before it */

void try_embed_fwd(struct trial *t)
{
	make_operands(t, "y+ w");
	struct trial_pair ids =
		pair_ints(t, operand_rows(t, 0), 0, operand_rows(t, 1) + 2 * FIRST);
	bool add = t->c->n[0];
	BOTH(t, embed_fwd, M(0), M(1), ids.m[s].p, FIRST, add);
}

void try_embed_bwd(struct trial *t)
{
	make_operands(t, "dw! dy");
	struct trial_pair ids =
		pair_ints(t, operand_rows(t, 1), 0, operand_rows(t, 0) + 2 * FIRST);
	BOTH(t, embed_bwd, M(0), M(1), ids.m[s].p, FIRST);
}

/* ---- matmuls ----------------------------------------------------------------------- */

/* The algorithm of a matmul depends on its shape, so it is tested with all rows and columns. But
 * the GPU's weight [out, in] repeats the few rows of the CPU's weight, and rows of other operands
 * repeat too, so each row and column of a result equals one of the CPU's result. The CPU
 * multiplies rows by their repetitions for a sum over rows, and adds equal columns for one over
 * `out`. */
struct period {
	int64_t out, rows; /* rows of the weight, and of the other operands */
};

/* Returns after how many rows operands repeat: odd, so that no two tiles are equal. */
static struct period choose_period(struct mat w)
{
	enum { MIN = 16, MAX = 256 };
	int64_t out = max64(MIN, MAX_TRIAL_ELEMENTS / max64(1, w.cols)) | 1;
	int64_t rows = max64(MIN, MAX_TRIAL_ELEMENTS / max64(1, max64(w.rows, w.cols)));
	return (struct period){min64(out, w.rows), min64(rows, MAX)};
}

/* Returns the scale for which a sum of n products has the variance of the other operand. */
static double fan_scale(int64_t n)
{
	return 1 / sqrt((double)max64(1, n));
}

/* Makes the scale of an operand that has one. */
static struct trial_pair make_scale(struct trial *t, struct mat like)
{
	const float scale = 0.375f;
	return like.scale ? pair_bytes(t, &scale, sizeof(scale))
			  : (struct trial_pair){{{0}}};
}

/* Adds the transposed matrix to the GPU's fp8 operand, by a cast with a scale of 1, which does not
 * change the elements. x->p becomes NULL if the run has only the transposed matrix. */
static void add_transposed(struct trial *t, struct mat like, struct trial_pair *x)
{
	const float max = dtype_table[like.type].largest;
	struct device *d = t->d[GPU];
	struct trial_pair wide = *x, amax = pair_bytes(t, &max, sizeof(max));
	wide.m[GPU] = mat_alloc(t->memory[GPU], like.rows, like.cols, DT_BF16);
	x->m[GPU].transposed =
		mat_alloc(t->memory[GPU], like.cols, like.rows, like.type).p;
	pair_send(t, wide);
	d->k->round_scaled(d, x->m[GPU], arena_floats(t->memory[GPU], 1), wide.m[GPU],
		like.type, amax.m[GPU].p);
	if (!like.p)
		x->m[GPU].p = NULL;
}

/* Adds the scale and the transposed matrix of an operand. */
static struct trial_pair add_scale(struct trial *t, struct mat like, struct trial_pair x)
{
	struct trial_pair scale = make_scale(t, like);
	for (enum side s = GPU; s < SIDES; s++)
		x.m[s].scale = scale.m[s].p;
	if (like.transposed)
		add_transposed(t, like, &x);
	return x;
}

/* Returns the shape of matrix i of the call, with p even if the run has only `transposed`. */
static struct mat stored_shape(const struct trial *t, int i)
{
	struct mat m = call_shape(t, i);
	if (!m.p)
		m.p = m.transposed;
	return m;
}

/* Makes operand i, which repeats `rows` rows and `cols` columns. */
static struct trial_pair make_repeated(
	struct trial *t, int i, int64_t rows, int64_t cols, double scale)
{
	struct trial_pair x = pair_repeated(t, stored_shape(t, i), rows, cols, scale);
	pair_send(t, x);
	return add_scale(t, call_shape(t, i), x);
}

/* Makes operand i with all of its columns; the GPU repeats its first `rows` rows. */
static struct trial_pair make_rows(struct trial *t, int i, int64_t rows, double scale)
{
	return make_repeated(t, i, rows, call_shape(t, i).cols, scale);
}

/* Makes the operands of y = x w^T: all matrices except w and x have a column for each row of w. */
static void make_fwd_operands(struct trial *t, int w_at)
{
	struct period n = choose_period(call_shape(t, w_at));
	for (int i = 0; i < MAX_OPERANDS; i++)
		if (i == w_at)
			t->m[i] =
				make_rows(t, i, n.out, fan_scale(call_shape(t, i).cols));
		else if (i == w_at - 1)
			t->m[i] = make_rows(t, i, n.rows, 1);
		else
			t->m[i] = make_repeated(t, i, n.rows, n.out, 1);
}

/* Returns the CPU's matrix with the sums of the columns that belong to equal rows of w. */
static struct mat sum_equal_columns(struct trial *t, struct mat x, int64_t cols)
{
	struct mat sum = mat_alloc(t->memory[CPU], x.rows, cols, DT_F32);
	float *to = sum.p;
	const float *from = x.p;
	sum.scale = x.scale;
	if (t->measures)
		return sum;
	memset(to, 0, (size_t)mat_bytes(sum));
	for (int64_t i = 0; i < x.rows; i++)
		for (int64_t j = 0; j < x.cols; j++)
			to[i * cols + j % cols] += from[i * x.cols + j];
	return sum;
}

/* Makes the operands of dx = dy w; the weight is operand 2. */
static void make_bwd_operands(struct trial *t)
{
	enum { DY = 1, W };
	struct period n = choose_period(call_shape(t, W));
	for (int i = 0; i < MAX_OPERANDS; i++)
		t->m[i] =
			i == W ? make_rows(t, i, n.out, fan_scale(call_shape(t, i).rows))
			       : make_rows(t, i, n.rows, 1);
	t->m[DY].m[CPU] = sum_equal_columns(t, t->m[DY].m[CPU], n.out);
}

/* Defines the trial of a matmul with the weight as operand 2. */
#define MATMUL_TRIAL(name, what, prepare, ...) \
	void try_##name(struct trial *t)       \
	{                                      \
		prepare;                       \
		add_result(t, what, t->m[0]);  \
		BOTH(t, name, __VA_ARGS__);    \
	}
MATMUL_TRIAL(linear_fwd, "y", make_fwd_operands(t, 2), M(0), M(1), M(2), M(3))
MATMUL_TRIAL(linear_row, "y", make_fwd_operands(t, 2), M(0), M(1), M(2), M(3))
MATMUL_TRIAL(linear_bwd_x, "dx", make_bwd_operands(t), M(0), M(1), M(2), t->c->n[0])

/* Multiplies each row of x by the number of its repetitions in n rows. */
static void weigh_rows(struct mat x, int64_t n)
{
	float *v = x.p;
	for (int64_t i = 0; i < x.rows; i++) {
		float times = (float)(n / x.rows + (i < n % x.rows));
		for (int64_t j = 0; j < x.cols; j++)
			v[i * x.cols + j] *= times;
	}
}

/* Checks the sums of the GPU's own da. Its rows repeat, with equal bits. */
static void check_sums(struct trial *t, struct trial_pair sums, struct trial_pair da)
{
	struct device *cpu = t->d[CPU];
	int64_t n = da.m[GPU].rows;
	if (!sums.m[CPU].p)
		return;
	da.m[GPU] = mat_rows(da.m[GPU], 0, da.m[CPU].rows);
	pair_receive(t, da);
	if (!t->measures)
		weigh_rows(da.m[CPU], n);
	cpu->k->bias_bwd(cpu, sums.m[CPU], da.m[CPU]);
	trial_check(t, "sums", sums);
}

/* Tests linear_gelu_bwd; its sums are compared with sums of the GPU's own da. */
void try_linear_gelu_bwd(struct trial *t)
{
	struct trial_pair sums = pair_blank(t, call_shape(t, 4));
	make_bwd_operands(t);
	add_result(t, "da", t->m[0]);
	BOTH(t, linear_gelu_bwd, M(0), M(1), M(2), M(3),
		s == CPU ? mat(NULL, 0, 0) : sums.m[s]);
	check_sums(t, sums, t->m[0]);
}

/* Tests linear_bwd_w; the CPU weighs rows of dy by the number of their repetitions on the GPU. */
void try_linear_bwd_w(struct trial *t)
{
	struct period period = choose_period(call_shape(t, 0));
	int64_t n = call_shape(t, 1).rows;
	struct trial_pair dw = add_result(t, "dw", make_rows(t, 0, period.out, 1));
	struct trial_pair x = make_rows(t, 2, period.rows, 1);
	struct trial_pair dy = make_repeated(t, 1, period.rows, period.out, fan_scale(n));
	bool add = t->c->n[0];
	if (!t->measures)
		weigh_rows(dy.m[CPU], n);
	BOTH(t, linear_bwd_w, dw.m[s], dy.m[s], x.m[s], add);
}

void try_linear_gelu_fwd(struct trial *t)
{
	make_fwd_operands(t, 3);
	add_result(t, "a", t->m[1]);
	add_result(t, "y", t->m[0]);
	BOTH(t, linear_gelu_fwd, M(0), M(1), M(2), M(3), M(4));
}

TRIAL(bias_fwd, "y+ b", M(0), M(1))
TRIAL(bias_bwd, "db! dy", M(0), M(1))

/* ---- norms -------------------------------------------------------------------------- */

static const float eps = 1e-5f;

static enum norm_kind call_norm_kind(const struct trial *t)
{
	return (enum norm_kind)t->c->n[0];
}

/* Makes matrix i of the call, for the statistics of the rows of x. */
static struct trial_pair make_blank_stats(struct trial *t, int i, struct trial_pair x)
{
	struct mat stats = call_shape(t, i);
	stats.cols = x.m[CPU].rows;
	return pair_blank(t, stats);
}

void try_norm_fwd(struct trial *t)
{
	make_operands(t, "y! - x gamma beta");
	struct trial_pair stats =
		add_result(t, "statistics", make_blank_stats(t, 1, t->m[2]));
	BOTH(t, norm_fwd, call_norm_kind(t), M(0), stats.m[s], M(2), M(3), M(4), eps);
}

/* Makes matrix i of the call: the statistics of the rows of x, computed on the CPU. */
static struct trial_pair compute_stats(
	struct trial *t, int i, struct trial_pair x, struct trial_pair gamma)
{
	const struct device *cpu = t->d[CPU];
	struct mat none = mat(NULL, 0, 0);
	struct trial_pair stats = make_blank_stats(t, i, x);
	struct trial_pair y =
		pair_blank(t, mat(x.m[CPU].p, x.m[CPU].rows, x.m[CPU].cols));
	cpu->k->norm_fwd(t->d[CPU], call_norm_kind(t), y.m[CPU], stats.m[CPU], x.m[CPU],
		gamma.m[CPU], none, eps);
	pair_send(t, stats);
	return stats;
}

void try_norm_bwd_x(struct trial *t)
{
	make_operands(t, "dx+ dy x - gamma");
	struct trial_pair stats = compute_stats(t, 3, t->m[2], t->m[4]);
	BOTH(t, norm_bwd_x, call_norm_kind(t), M(0), M(1), M(2), stats.m[s], M(4));
}

/* Gets the range of rows over which the call sums dgamma and dbeta, at the end of all rows. */
static void get_sum_range(struct trial *t, struct mat x, int64_t *first, int64_t *rows)
{
	int64_t sums = t->c->n[1];
	*rows = limit_size(sums, limit_rows(x));
	*first = sums < x.rows ? *rows : 0;
}

/* Tests norm_bwd_w with the row statistics of the CPU's forward. */
void try_norm_bwd_w(struct trial *t)
{
	int64_t first, rows;
	get_sum_range(t, call_shape(t, 3), &first, &rows);
	make_operands_with_rows(t, "dgamma! dbeta! dy x -", first + rows);
	struct trial_pair stats =
		compute_stats(t, 4, t->m[3], pair_random(t, call_shape(t, 0), 1));
	BOTH(t, norm_bwd_w, call_norm_kind(t), M(0), M(1), M(2), M(3), stats.m[s], first,
		rows);
}

/* Checks the copy of dx, which equals the GPU's own dx rounded to the copy's type, and its sums
 * over rows. (The CPU's dx differs by fp32 rounding, so a few would round differently.) */
static void check_norm_copy(struct trial *t, struct trial_pair copy,
	struct trial_pair sums, int64_t first, int64_t rows)
{
	struct trial_pair dx = t->m[0];
	struct device *cpu = t->d[CPU];
	if (!copy.m[CPU].p)
		return;
	struct mat rounded = mat_rows(copy.m[CPU], first, rows);
	pair_receive(t, dx);
	cpu->k->round(
		cpu, rounded, mat_rows(dx.m[CPU], first, rows), copy.m[GPU].type, 1);
	trial_check_within(t, "copy of dx", copy, 0);
	if (sums.m[CPU].p)
		cpu->k->bias_bwd(cpu, sums.m[CPU], rounded);
	trial_check(t, "sums of the copy", sums);
}

/* Tests norm_bwd with the statistics of the CPU's forward, then its copy of dx and sums. */
void try_norm_bwd(struct trial *t)
{
	int64_t first, rows;
	get_sum_range(t, call_shape(t, 4), &first, &rows);
	make_operands_with_rows(t, "dx+ dgamma! dbeta! dy x - gamma - -", first + rows);
	struct trial_pair copy =
		pair_random(t, with_rows(call_shape(t, 7), first + rows), 0);
	struct trial_pair sums = pair_blank(t, call_shape(t, 8));
	struct trial_pair stats = compute_stats(t, 5, t->m[4], t->m[6]);
	struct norm_grads to[SIDES];
	for (enum side s = GPU; s < SIDES; s++)
		to[s] = (struct norm_grads){M(0), M(1), M(2), copy.m[s], sums.m[s]};
	BOTH(t, norm_bwd, call_norm_kind(t), &to[s], M(3), M(4), stats.m[s], M(6), first,
		rows);
	check_norm_copy(t, copy, sums, first, rows);
}

TRIAL(head_norm_fwd, "y! x gamma", M(0), M(1), M(2), eps)
TRIAL(head_norm_bwd_w, "dgamma! dy x", M(0), M(1), M(2), eps)

/* Returns t->m[0], with the GPU's matrix as columns of a wider matrix if it is so in the run. */
static struct trial_pair as_columns(struct trial *t)
{
	struct trial_pair x = t->m[0];
	struct device *d = t->d[GPU];
	struct mat own = x.m[GPU];
	int64_t stride = t->c->m[0].stride;
	if (stride) {
		x.m[GPU] = mat_cols(
			blank_with_columns(t, own, stride), stride - own.cols, own.cols);
		d->k->copy(d, x.m[GPU], own);
	}
	return x;
}

/* Checks t->m[0], which the GPU wrote to x: columns of a wider matrix, or t->m[0]. */
static void check_columns(struct trial *t, const char *what, struct trial_pair x)
{
	if (x.m[GPU].stride)
		t->d[GPU]->k->copy(t->d[GPU], t->m[0].m[GPU], x.m[GPU]);
	trial_check(t, what, t->m[0]);
}

void try_head_norm_bwd_x(struct trial *t)
{
	make_operands(t, "dx dy x gamma");
	struct trial_pair dx = as_columns(t);
	BOTH(t, head_norm_bwd_x, dx.m[s], M(1), M(2), M(3), eps);
	check_columns(t, "dx", dx);
}

/* ---- element by element ------------------------------------------------------------- */

/* Tests rope, in columns of a wider matrix if the run does so. */
void try_rope(struct trial *t)
{
	make_operands(t, "x rope");
	struct trial_pair pos = pair_ints(t, operand_rows(t, 0), 0, operand_rows(t, 1));
	struct trial_pair x = as_columns(t);
	int64_t dim = t->c->n[0];
	float sign = t->c->n[1] ? -1 : 1;
	BOTH(t, rope, x.m[s], dim, M(1), pos.m[s].p, sign);
	check_columns(t, "x", x);
}

static enum act_kind call_act_kind(const struct trial *t)
{
	return (enum act_kind)t->c->n[0];
}

TRIAL(act_fwd, "y! a b", call_act_kind(t), M(0), M(1), M(2))
TRIAL(act_bwd, "da! db! dy a b", call_act_kind(t), M(0), M(1), M(2), M(3), M(4))
TRIAL(add, "y! a b", M(0), M(1), M(2))
TRIAL(sub, "y! a b", M(0), M(1), M(2))

struct dropouts make_dropouts(struct trial *t, int64_t rows)
{
	const uint32_t step = 7;
	struct dropouts x;
	int64_t seq_rows = rows % 2 ? rows : rows / 2;
	struct trial_pair steps = pair_bytes(t, &step, sizeof(step));
	struct trial_pair pos = pair_ints(t, rows, 0, seq_rows);
	for (enum side s = GPU; s < SIDES; s++)
		x.d[s] = (struct dropout){.key = philox_key(1, 2, 3),
			.p = t->c->p,
			.step = steps.m[s].p,
			.first_sample = 5,
			.pos = pos.m[s].p,
			.seq_rows = seq_rows};
	return x;
}

void try_dropout(struct trial *t)
{
	make_operands(t, "y! x");
	struct dropouts o = make_dropouts(t, operand_rows(t, 1));
	BOTH(t, dropout, M(0), M(1), &o.d[s]);
}

void try_residual(struct trial *t)
{
	make_operands(t, "y! x sum bias");
	struct dropouts o = make_dropouts(t, operand_rows(t, 1));
	bool drops = t->c->p > 0;
	BOTH(t, residual, M(0), M(1), M(2), M(3), drops ? &o.d[s] : NULL);
}

/* Tests residual_norm: the sum, the norm of the sum, and its row statistics. */
void try_residual_norm(struct trial *t)
{
	make_operands(t, "y! x sum bias h! - gamma beta");
	struct trial_pair stats =
		add_result(t, "statistics", make_blank_stats(t, 5, t->m[1]));
	struct dropouts o = make_dropouts(t, operand_rows(t, 1));
	bool drops = t->c->p > 0;
	struct norm n[SIDES];
	for (enum side s = GPU; s < SIDES; s++)
		n[s] = (struct norm){
			call_norm_kind(t), M(4), stats.m[s], M(6), M(7), eps};
	BOTH(t, residual_norm, M(0), M(1), M(2), M(3), drops ? &o.d[s] : NULL, &n[s]);
}

/* ---- formats ------------------------------------------------------------------------ */

static enum dtype call_dtype(const struct trial *t)
{
	return (enum dtype)t->c->n[0];
}

TRIAL(round, "y! x", M(0), M(1), call_dtype(t), 1)

/* Tests round_scaled: the cast, its transposed copy if the run has one, and the inverse scale. */
void try_round_scaled(struct trial *t)
{
	const float max = 3.7f;
	enum dtype type = call_dtype(t);
	struct mat shape = with_rows(stored_shape(t, 0), limit_rows(call_shape(t, 0)));
	struct trial_pair x = pair_random(t, small_shape(t, 1), 1),
			  y = pair_blank(t, shape), transposed = y;
	struct trial_pair amax = pair_bytes(t, &max, sizeof(max));
	struct trial_pair inverse = add_vector(t, "inverse", 1);
	if (shape.transposed) {
		struct mat wide_shape = shape;
		wide_shape.rows = shape.cols;
		wide_shape.cols = shape.rows;
		transposed = pair_blank(t, wide_shape);
		y.m[GPU].transposed = transposed.m[GPU].p;
	}
	if (!call_shape(t, 0).p)
		y.m[GPU].p = NULL;
	BOTH(t, round_scaled, y.m[s], inverse.m[s].p, x.m[s], type, amax.m[s].p);
	if (y.m[GPU].p)
		trial_check(t, "y", y);
	for (int64_t i = 0; shape.transposed && !t->measures && i < mat_size(shape); i++)
		((float *)transposed.m[CPU]
				.p)[i % shape.cols * shape.rows + i / shape.cols] =
			((const float *)y.m[CPU].p)[i];
	if (shape.transposed)
		trial_check(t, "y, transposed", transposed);
}

/* Compares two 16-bit results at a time, as a 32-bit one. */
void try_narrow(struct trial *t)
{
	enum dtype type = call_dtype(t);
	make_operands(t, "x");
	struct trial_pair y =
		add_vector(t, "y", ceil_div(mat_size(small_shape(t, 0)), 2));
	BOTH(t, narrow, y.m[s].p, M(0), type);
}

/* Tests widen on the 16-bit values of the CPU's narrow. */
void try_widen(struct trial *t)
{
	enum dtype type = call_dtype(t);
	struct device *cpu = t->d[CPU];
	make_operands(t, "y!");
	struct trial_pair x = pair_random(t, small_shape(t, 0), 1);
	struct trial_pair bits = pair_blank_vector(t, ceil_div(mat_size(x.m[CPU]), 2));
	cpu->k->narrow(cpu, bits.m[CPU].p, x.m[CPU], type);
	pair_send(t, bits);
	BOTH(t, widen, M(0), bits.m[s].p, type);
}

static const float weights_amax = 3.7f;

/* Tests narrow_scaled; compares four 8-bit results at a time, as a 32-bit number. */
void try_narrow_scaled(struct trial *t)
{
	make_operands(t, "x");
	struct trial_pair amax = pair_bytes(t, &weights_amax, sizeof(weights_amax));
	struct trial_pair y =
		add_vector(t, "y", ceil_div(mat_size(small_shape(t, 0)), 4));
	BOTH(t, narrow_scaled, y.m[s].p, M(0), amax.m[s].p);
}

/* Tests widen_scaled on the bytes of the CPU's narrow_scaled. */
void try_widen_scaled(struct trial *t)
{
	struct device *cpu = t->d[CPU];
	make_operands(t, "y!");
	struct trial_pair amax = pair_bytes(t, &weights_amax, sizeof(weights_amax));
	struct trial_pair x = pair_random(t, small_shape(t, 0), 1);
	struct trial_pair bytes = pair_blank_vector(t, ceil_div(mat_size(x.m[CPU]), 4));
	cpu->k->narrow_scaled(cpu, bytes.m[CPU].p, x.m[CPU], &weights_amax);
	pair_send(t, bytes);
	BOTH(t, widen_scaled, M(0), bytes.m[s].p, amax.m[s].p);
}

void try_amax(struct trial *t)
{
	const float min = 0.5f;
	make_operands(t, "x");
	struct trial_pair amax = add_result(t, "amax", pair_bytes(t, &min, sizeof(min)));
	BOTH(t, amax, amax.m[s].p, M(0));
}

/* ---- cross-entropy ------------------------------------------------------------------ */

static const float try_z = 1e-3f; /* z-loss is tried whether the run has it or not */

/* Makes targets in [0, end); every fifth row has no weight. */
static struct trial_pair make_targets(struct trial *t, int64_t n, int64_t end)
{
	struct trial_pair targets = pair_ints(t, n, 0, end);
	int32_t *v = targets.m[CPU].p;
	for (int64_t i = 4; i < n && !t->measures; i += 5)
		v[i] = -1;
	pair_send(t, targets);
	return targets;
}

/* Tests xent_stats with targets in and outside of the slice, and rows without weight. */
void try_xent_stats(struct trial *t)
{
	struct mat shape = small_shape(t, 0);
	int64_t n = shape.rows, n_real = min64(t->c->n[0], shape.cols);
	struct trial_pair logits = pair_random(t, shape, 3);
	struct trial_pair max = add_vector(t, "max", n), sum = add_vector(t, "sum", n);
	struct trial_pair target = add_vector(t, "target", n);
	struct trial_pair targets = make_targets(t, n, n_real + 2 * FIRST);
	const struct xent_terms terms = {.smoothing = t->c->p};
	BOTH(t, xent_stats, (struct xent_stats){max.m[s].p, sum.m[s].p, target.m[s].p},
		logits.m[s], targets.m[s].p, FIRST, FIRST + n_real, terms);
}

/* Tests xent_join on random statistics; every fifth row has no weight. */
void try_xent_join(struct trial *t)
{
	int64_t n_slices = t->c->n[0], rows = limit_size(t->c->n[1], 1 << 16);
	int64_t n = n_slices * rows;
	struct trial_pair lse = add_vector(t, "log-sum-exp", rows);
	struct trial_pair loss = add_vector(t, "loss", rows);
	struct trial_pair max = pair_vector(t, n, 3), target = pair_vector(t, n, 1);
	struct trial_pair sum = pair_vector(t, n, 1);
	float *v = sum.m[CPU].p;
	for (int64_t i = 0; i < n && !t->measures; i++)
		v[i] = 1 + v[i] * v[i];
	pair_send(t, sum);
	float *none = target.m[CPU].p; /* rows without weight */
	for (int64_t i = 4; i < n && !t->measures; i += 5)
		none[i] = INFINITY;
	pair_send(t, target);
	const struct xent_terms terms = {.smoothing = t->c->p, .z = try_z};
	BOTH(t, xent_join, lse.m[s].p, loss.m[s].p,
		(struct xent_stats){max.m[s].p, sum.m[s].p, target.m[s].p}, n_slices,
		rows, terms);
}

/* Tests xent_fused: the loss of each row, and the gradient that replaces the logits. */
void try_xent_fused(struct trial *t)
{
	const float scale = 0.25f;
	struct mat shape = small_shape(t, 0);
	int64_t n = shape.rows, n_real = min64(t->c->n[0], shape.cols);
	struct trial_pair logits = add_result(t, "logits", pair_random(t, shape, 3));
	struct trial_pair loss = add_vector(t, "loss", n);
	struct trial_pair targets = make_targets(t, n, n_real);
	struct trial_pair scales = pair_bytes(t, &scale, sizeof(scale));
	const struct xent_terms terms = {.smoothing = t->c->p, .z = try_z};
	BOTH(t, xent_fused, loss.m[s].p, logits.m[s], targets.m[s].p, n_real, terms,
		scales.m[s].p);
}

/* Tests xent_bwd with random log-sum-exps: only the arithmetic of the gradient is compared. */
void try_xent_bwd(struct trial *t)
{
	const float scale = 0.25f, offset = 3; /* sums of exp(logit - lse) are near 1 */
	struct mat shape = small_shape(t, 0);
	int64_t n = shape.rows, n_real = min64(t->c->n[0], shape.cols);
	struct trial_pair logits = add_result(t, "logits", pair_random(t, shape, 1));
	struct trial_pair lse = pair_vector(t, n, 0.1);
	struct trial_pair targets = make_targets(t, n, n_real + 2 * FIRST);
	struct trial_pair scales = pair_bytes(t, &scale, sizeof(scale));
	float *v = lse.m[CPU].p;
	for (int64_t i = 0; i < n && !t->measures; i++)
		v[i] += offset;
	pair_send(t, lse);
	const struct xent_terms terms = {.smoothing = t->c->p, .z = try_z};
	BOTH(t, xent_bwd, logits.m[s], lse.m[s].p, targets.m[s].p, FIRST, FIRST + n_real,
		terms, scales.m[s].p);
}
