/* The self-test of the kernels of layers, except attention, and of casts. */
#include "kernels/selftest_trial.h"

#include <math.h>

static struct mat like(const struct trial *t, int i)
{
	return t->c->m[i];
}

/* The shape of matrix i of the call, with fewer rows if there are many. */
static struct mat few(const struct trial *t, int i)
{
	return with_rows(like(t, i), fewer_rows(like(t, i)));
}

/* ---- embedding ---------------------------------------------------------------------- */

enum { FIRST = 3 }; /* token of row 0; other slices have the tokens before it */

void try_embed_fwd(struct trial *t)
{
	struct mat of_w = few(t, 1);
	struct pair w = pair_random(t, of_w, 1), y = pair_random(t, few(t, 0), 1);
	struct pair ids = pair_ints(t, y.m[CPU].rows, 0, of_w.rows + 2 * FIRST);
	bool add = t->c->n[0];
	BOTH(t, embed_fwd, y.m[s], w.m[s], ids.m[s].p, FIRST, add);
	trial_check(t, "y", y);
}

void try_embed_bwd(struct trial *t)
{
	struct mat of_w = few(t, 0);
	struct pair dw = pair_blank(t, of_w), dy = pair_random(t, few(t, 1), 1);
	struct pair ids = pair_ints(t, dy.m[CPU].rows, 0, of_w.rows + 2 * FIRST);
	BOTH(t, embed_bwd, dw.m[s], dy.m[s], ids.m[s].p, FIRST);
	trial_check(t, "dw", dw);
}

/* ---- matmuls ----------------------------------------------------------------------- */

/*
 * The algorithm of a matmul depends on its shape, so it is tested with all rows. The GPU's operand
 * repeats the CPU's few rows: so each row of a result equals one of the CPU's, and a sum over rows is
 * the CPU's with each row weighted by its number of repetitions.
 */
static int64_t period(struct mat w)
{
	const int64_t enough = (int64_t)2 << 30, least = 16, most = 256;
	return max64(least, min64(most, enough / max64(1, mat_size(w))));
}

static double fan(int64_t n)
{
	return 1 / sqrt((double)max64(1, n));
}

/* The scale of an operand that has one. */
static struct pair scale_of(struct trial *t, struct mat like)
{
	const float scale = 0.375f;
	return like.scale ? pair_bytes(t, &scale, sizeof(scale)) : (struct pair){{{0}}};
}

/* Adds the transposed matrix to the GPU's fp8 operand, by a cast with a scale of 1, which does not
 * change the numbers. x->p becomes NULL if the run has only the transposed matrix. */
static void transpose(struct trial *t, struct mat like, struct pair *x)
{
	const float most = dtype_table[like.type].largest;
	struct device *d = t->d[GPU];
	struct pair wide = *x, amax = pair_bytes(t, &most, sizeof(most));
	wide.m[GPU] = mat_take(t->memory[GPU], like.rows, like.cols, DT_BF16);
	x->m[GPU].transposed =
		mat_take(t->memory[GPU], like.cols, like.rows, like.type).p;
	pair_send(t, wide);
	d->k->round_scaled(d, x->m[GPU], arena_floats(t->memory[GPU], 1), wide.m[GPU],
		like.type, amax.m[GPU].p);
	if (!like.p)
		x->m[GPU].p = NULL;
}

/* Adds the scale and the transposed matrix of an operand. */
static struct pair operand(struct trial *t, struct mat like, struct pair x)
{
	struct pair scale = scale_of(t, like);
	for (enum side s = GPU; s < SIDES; s++)
		x.m[s].scale = scale.m[s].p;
	if (like.transposed)
		transpose(t, like, &x);
	return x;
}

/* Matrix i of the call, with p even if the run has only the transposed matrix. */
static struct mat numbers_of(const struct trial *t, int i)
{
	struct mat m = like(t, i);
	if (!m.p)
		m.p = m.transposed;
	return m;
}

/* An operand with all rows, which repeat the `rows` rows of the CPU's. */
static struct pair rows_of(struct trial *t, int i, int64_t rows, double scale)
{
	struct pair x = pair_repeated(t, numbers_of(t, i), rows, scale);
	pair_send(t, x);
	return operand(t, like(t, i), x);
}

static struct pair weight_of(struct trial *t, int i, double scale)
{
	return operand(t, like(t, i), pair_random(t, numbers_of(t, i), scale));
}

void try_linear_fwd(struct trial *t)
{
	struct mat of_w = like(t, 2);
	int64_t rows = period(of_w);
	struct pair y = rows_of(t, 0, rows, 1), x = rows_of(t, 1, rows, 1);
	struct pair w = weight_of(t, 2, fan(of_w.cols)),
		    b = pair_random(t, like(t, 3), 1);
	BOTH(t, linear_fwd, y.m[s], x.m[s], w.m[s], b.m[s]);
	trial_check(t, "y", y);
}

void try_linear_row(struct trial *t)
{
	struct mat of_w = like(t, 2);
	struct pair y = pair_blank(t, like(t, 0)), x = pair_random(t, like(t, 1), 1);
	struct pair w = weight_of(t, 2, fan(of_w.cols)),
		    b = pair_random(t, like(t, 3), 1);
	BOTH(t, linear_row, y.m[s], x.m[s], w.m[s], b.m[s]);
	trial_check(t, "y", y);
}

void try_linear_bwd_x(struct trial *t)
{
	struct mat of_w = like(t, 2);
	int64_t rows = period(of_w);
	struct pair dx = rows_of(t, 0, rows, 1), dy = rows_of(t, 1, rows, 1);
	struct pair w = weight_of(t, 2, fan(of_w.rows));
	bool add = t->c->n[0];
	BOTH(t, linear_bwd_x, dx.m[s], dy.m[s], w.m[s], add);
	trial_check(t, "dx", dx);
}

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

void try_linear_bwd_w(struct trial *t)
{
	struct mat of_w = like(t, 0);
	int64_t rows = period(of_w), n = like(t, 1).rows;
	struct pair dw = pair_random(t, of_w, 1), x = rows_of(t, 2, rows, 1);
	struct pair dy = rows_of(t, 1, rows, fan(n));
	bool add = t->c->n[0];
	if (!t->measures)
		weigh_rows(dy.m[CPU], n);
	BOTH(t, linear_bwd_w, dw.m[s], dy.m[s], x.m[s], add);
	trial_check(t, "dw", dw);
}

void try_linear_gelu_fwd(struct trial *t)
{
	struct mat of_w = like(t, 3);
	int64_t rows = period(of_w);
	struct pair y = rows_of(t, 0, rows, 1), a = rows_of(t, 1, rows, 1);
	struct pair x = rows_of(t, 2, rows, 1), w = weight_of(t, 3, fan(of_w.cols));
	struct pair b = pair_random(t, like(t, 4), 1);
	BOTH(t, linear_gelu_fwd, y.m[s], a.m[s], x.m[s], w.m[s], b.m[s]);
	trial_check(t, "a", a);
	trial_check(t, "y", y);
}

void try_linear_gelu_bwd(struct trial *t)
{
	struct mat of_w = like(t, 2);
	int64_t rows = period(of_w);
	struct pair da = rows_of(t, 0, rows, 1), dy = rows_of(t, 1, rows, 1);
	struct pair w = weight_of(t, 2, fan(of_w.rows)), a = rows_of(t, 3, rows, 1);
	BOTH(t, linear_gelu_bwd, da.m[s], dy.m[s], w.m[s], a.m[s]);
	trial_check(t, "da", da);
}

void try_bias_fwd(struct trial *t)
{
	struct pair y = pair_random(t, few(t, 0), 1), b = pair_random(t, like(t, 1), 1);
	BOTH(t, bias_fwd, y.m[s], b.m[s]);
	trial_check(t, "y", y);
}

void try_bias_bwd(struct trial *t)
{
	struct pair db = pair_blank(t, like(t, 0)), dy = pair_random(t, few(t, 1), 1);
	BOTH(t, bias_bwd, db.m[s], dy.m[s]);
	trial_check(t, "db", db);
}

/* ---- norms -------------------------------------------------------------------------- */

static const float eps = 1e-5f;

static struct mat stats_like(struct mat stats, struct mat x)
{
	stats.cols = x.rows;
	return stats;
}

void try_norm_fwd(struct trial *t)
{
	enum norm_kind kind = (enum norm_kind)t->c->n[0];
	struct mat of_x = few(t, 2);
	struct pair x = pair_random(t, of_x, 1);
	struct pair y = pair_blank(t, with_rows(like(t, 0), of_x.rows));
	struct pair stats = pair_blank(t, stats_like(like(t, 1), of_x));
	struct pair gamma = pair_random(t, like(t, 3), 1);
	struct pair beta = pair_random(t, like(t, 4), 1);
	BOTH(t, norm_fwd, kind, y.m[s], stats.m[s], x.m[s], gamma.m[s], beta.m[s], eps);
	trial_check(t, "y", y);
	trial_check(t, "statistics", stats);
}

/* The forward's statistics, computed by the CPU. */
static struct pair stats_of(
	struct trial *t, struct mat stats, struct pair x, struct pair gamma)
{
	const struct device *cpu = t->d[CPU];
	struct mat none = mat(NULL, 0, 0);
	struct pair made = pair_blank(t, stats_like(stats, x.m[CPU]));
	struct pair y = pair_blank(t, mat(x.m[CPU].p, x.m[CPU].rows, x.m[CPU].cols));
	cpu->k->norm_fwd(t->d[CPU], (enum norm_kind)t->c->n[0], y.m[CPU], made.m[CPU],
		x.m[CPU], gamma.m[CPU], none, eps);
	pair_send(t, made);
	return made;
}

void try_norm_bwd_x(struct trial *t)
{
	enum norm_kind kind = (enum norm_kind)t->c->n[0];
	struct mat of_x = few(t, 2);
	struct pair x = pair_random(t, of_x, 1), gamma = pair_random(t, like(t, 4), 1);
	struct pair dy = pair_random(t, with_rows(like(t, 1), of_x.rows), 1);
	struct pair dx = pair_random(t, with_rows(like(t, 0), of_x.rows), 1);
	struct pair stats = stats_of(t, like(t, 3), x, gamma);
	BOTH(t, norm_bwd_x, kind, dx.m[s], dy.m[s], x.m[s], stats.m[s], gamma.m[s]);
	trial_check(t, "dx", dx);
}

/* Fewer rows of x, and the range of rows, at the end, that dgamma and dbeta are summed over. */
static struct mat some_rows(struct mat x, int64_t sums, int64_t *first, int64_t *rows)
{
	*rows = fewer(sums, fewer_rows(x));
	*first = sums < x.rows ? *rows : 0;
	return with_rows(x, *first + *rows);
}

void try_norm_bwd_w(struct trial *t)
{
	enum norm_kind kind = (enum norm_kind)t->c->n[0];
	int64_t first, rows;
	struct mat of_x = some_rows(like(t, 3), t->c->n[1], &first, &rows);
	struct mat of_dy = with_rows(like(t, 2), of_x.rows);
	struct pair x = pair_random(t, of_x, 1), dy = pair_random(t, of_dy, 1);
	struct pair dgamma = pair_blank(t, like(t, 0)), dbeta = pair_blank(t, like(t, 1));
	struct pair stats = stats_of(t, like(t, 4), x, pair_random(t, like(t, 0), 1));
	BOTH(t, norm_bwd_w, kind, dgamma.m[s], dbeta.m[s], dy.m[s], x.m[s], stats.m[s],
		first, rows);
	trial_check(t, "dgamma", dgamma);
	trial_check(t, "dbeta", dbeta);
}

void try_norm_bwd(struct trial *t)
{
	enum norm_kind kind = (enum norm_kind)t->c->n[0];
	int64_t first, rows;
	struct mat of_x = some_rows(like(t, 4), t->c->n[1], &first, &rows);
	struct pair x = pair_random(t, of_x, 1), gamma = pair_random(t, like(t, 6), 1);
	struct pair dy = pair_random(t, with_rows(like(t, 3), of_x.rows), 1);
	struct pair dx = pair_random(t, with_rows(like(t, 0), of_x.rows), 1);
	struct pair dgamma = pair_blank(t, like(t, 1)), dbeta = pair_blank(t, like(t, 2));
	struct pair copy = pair_random(t, with_rows(like(t, 7), of_x.rows), 0);
	struct pair sums = pair_blank(t, like(t, 8));
	const double rounding = copy.m[GPU].type == DT_F16 ? 0x1p-11 : 0x1p-8;
	struct pair stats = stats_of(t, like(t, 5), x, gamma);
	const struct norm_grads to[SIDES] = {
		{dx.m[GPU], dgamma.m[GPU], dbeta.m[GPU], copy.m[GPU], sums.m[GPU]},
		{dx.m[CPU], dgamma.m[CPU], dbeta.m[CPU], copy.m[CPU], sums.m[CPU]}};
	BOTH(t, norm_bwd, kind, &to[s], dy.m[s], x.m[s], stats.m[s], gamma.m[s], first,
		rows);
	trial_check(t, "dx", dx);
	trial_check(t, "dgamma", dgamma);
	trial_check(t, "dbeta", dbeta);
	trial_check_within(t, "copy of dx", copy, t->allowed + rounding);
	trial_check_within(t, "sums of the copy", sums, t->allowed + rounding);
}

/* ---- element by element ------------------------------------------------------------- */

void try_rope(struct trial *t)
{
	struct pair x = pair_random(t, few(t, 0), 1),
		    rope = pair_random(t, like(t, 1), 1);
	struct pair pos = pair_ints(t, x.m[CPU].rows, 0, like(t, 1).rows);
	int64_t dim = t->c->n[0];
	float sign = t->c->n[1] ? -1 : 1;
	BOTH(t, rope, x.m[s], dim, rope.m[s], pos.m[s].p, sign);
	trial_check(t, "x", x);
}

void try_act_fwd(struct trial *t)
{
	enum act_kind kind = (enum act_kind)t->c->n[0];
	struct pair y = pair_blank(t, few(t, 0)), a = pair_random(t, few(t, 1), 1);
	struct pair b = pair_random(t, few(t, 2), 1);
	BOTH(t, act_fwd, kind, y.m[s], a.m[s], b.m[s]);
	trial_check(t, "y", y);
}

void try_act_bwd(struct trial *t)
{
	enum act_kind kind = (enum act_kind)t->c->n[0];
	struct pair da = pair_blank(t, few(t, 0)), db = pair_blank(t, few(t, 1));
	struct pair dy = pair_random(t, few(t, 2), 1), a = pair_random(t, few(t, 3), 1);
	struct pair b = pair_random(t, few(t, 4), 1);
	BOTH(t, act_bwd, kind, da.m[s], db.m[s], dy.m[s], a.m[s], b.m[s]);
	trial_check(t, "da", da);
	trial_check(t, "db", db);
}

void try_add(struct trial *t)
{
	struct pair y = pair_blank(t, few(t, 0)), a = pair_random(t, few(t, 1), 1);
	struct pair b = pair_random(t, few(t, 2), 1);
	BOTH(t, add, y.m[s], a.m[s], b.m[s]);
	trial_check(t, "y", y);
}

void try_sub(struct trial *t)
{
	struct pair y = pair_blank(t, few(t, 0)), a = pair_random(t, few(t, 1), 1);
	struct pair b = pair_random(t, few(t, 2), 1);
	BOTH(t, sub, y.m[s], a.m[s], b.m[s]);
	trial_check(t, "y", y);
}

/* The same dropout on both sides. */
struct dropouts {
	struct dropout d[SIDES];
};

static struct dropouts dropouts_of(struct trial *t, int64_t rows)
{
	const uint32_t step = 7;
	struct dropouts x;
	int64_t seq_rows = rows % 2 ? rows : rows / 2;
	struct pair steps = pair_bytes(t, &step, sizeof(step));
	struct pair pos = pair_ints(t, rows, 0, seq_rows);
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
	struct mat of_x = few(t, 1);
	struct pair x = pair_random(t, of_x, 1), y = pair_blank(t, few(t, 0));
	struct dropouts o = dropouts_of(t, of_x.rows);
	BOTH(t, dropout, y.m[s], x.m[s], &o.d[s]);
	trial_check(t, "y", y);
}

void try_residual(struct trial *t)
{
	struct mat of_x = few(t, 1);
	struct pair x = pair_random(t, of_x, 1), y = pair_blank(t, few(t, 0));
	struct pair sum = pair_random(t, with_rows(like(t, 2), of_x.rows), 1);
	struct pair bias = pair_random(t, like(t, 3), 1);
	struct dropouts o = dropouts_of(t, of_x.rows);
	bool drops = t->c->p > 0;
	BOTH(t, residual, y.m[s], x.m[s], sum.m[s], bias.m[s], drops ? &o.d[s] : NULL);
	trial_check(t, "y", y);
}

void try_residual_norm(struct trial *t)
{
	struct mat of_x = few(t, 1);
	struct pair x = pair_random(t, of_x, 1), y = pair_blank(t, few(t, 0));
	struct pair sum = pair_random(t, with_rows(like(t, 2), of_x.rows), 1);
	struct pair bias = pair_random(t, like(t, 3), 1);
	struct pair h = pair_blank(t, with_rows(like(t, 4), of_x.rows));
	struct pair stats = pair_blank(t, stats_like(like(t, 5), of_x));
	struct pair gamma = pair_random(t, like(t, 6), 1);
	struct pair beta = pair_random(t, like(t, 7), 1);
	struct dropouts o = dropouts_of(t, of_x.rows);
	bool drops = t->c->p > 0;
	struct norm n[SIDES];
	for (enum side s = GPU; s < SIDES; s++)
		n[s] = (struct norm){(enum norm_kind)t->c->n[0], h.m[s], stats.m[s],
			gamma.m[s], beta.m[s], eps};
	BOTH(t, residual_norm, y.m[s], x.m[s], sum.m[s], bias.m[s],
		drops ? &o.d[s] : NULL, &n[s]);
	trial_check(t, "y", y);
	trial_check(t, "h", h);
	trial_check(t, "statistics", stats);
}

/* ---- formats ------------------------------------------------------------------------ */

void try_round(struct trial *t)
{
	enum dtype type = (enum dtype)t->c->n[0];
	struct pair x = pair_random(t, few(t, 1), 1), y = pair_blank(t, few(t, 0));
	BOTH(t, round, y.m[s], x.m[s], type, 1);
	trial_check(t, "y", y);
}

void try_round_scaled(struct trial *t)
{
	const float most = 3.7f;
	enum dtype type = (enum dtype)t->c->n[0];
	struct mat of = with_rows(numbers_of(t, 0), fewer_rows(like(t, 0)));
	struct pair x = pair_random(t, few(t, 1), 1), y = pair_blank(t, of), turned = y;
	struct pair amax = pair_bytes(t, &most, sizeof(most));
	struct pair inverse = pair_blank_vector(t, 1);
	if (of.transposed) {
		struct mat other = of;
		other.rows = of.cols;
		other.cols = of.rows;
		turned = pair_blank(t, other);
		y.m[GPU].transposed = turned.m[GPU].p;
	}
	if (!like(t, 0).p)
		y.m[GPU].p = NULL;
	BOTH(t, round_scaled, y.m[s], inverse.m[s].p, x.m[s], type, amax.m[s].p);
	if (y.m[GPU].p)
		trial_check(t, "y", y);
	for (int64_t i = 0; of.transposed && !t->measures && i < mat_size(of); i++)
		((float *)turned.m[CPU].p)[i % of.cols * of.rows + i / of.cols] =
			((const float *)y.m[CPU].p)[i];
	if (of.transposed)
		trial_check(t, "y, transposed", turned);
	trial_check(t, "inverse", inverse);
}

/* Compares two 16-bit results at a time, as a 32-bit one. */
void try_narrow(struct trial *t)
{
	enum dtype type = (enum dtype)t->c->n[0];
	struct pair x = pair_random(t, few(t, 0), 1);
	struct pair y = pair_blank_vector(t, ceil_div(mat_size(x.m[CPU]), 2));
	BOTH(t, narrow, y.m[s].p, x.m[s], type);
	trial_check(t, "y", y);
}

void try_widen(struct trial *t)
{
	enum dtype type = (enum dtype)t->c->n[0];
	struct pair y = pair_blank(t, few(t, 0)), x = pair_random(t, few(t, 0), 1);
	struct pair bits = pair_blank_vector(t, ceil_div(mat_size(x.m[CPU]), 2));
	t->d[CPU]->k->narrow(t->d[CPU], bits.m[CPU].p, x.m[CPU], type);
	pair_send(t, bits);
	BOTH(t, widen, y.m[s], bits.m[s].p, type);
	trial_check(t, "y", y);
}

void try_amax(struct trial *t)
{
	const float least = 0.5f;
	struct pair x = pair_random(t, few(t, 0), 1);
	struct pair most = pair_bytes(t, &least, sizeof(least));
	BOTH(t, amax, most.m[s].p, x.m[s]);
	trial_check(t, "amax", most);
}

/* ---- cross-entropy ------------------------------------------------------------------ */

void try_xent_stats(struct trial *t)
{
	struct mat of = few(t, 0);
	int64_t n = of.rows, real = t->c->n[0];
	struct pair logits = pair_random(t, of, 3);
	struct pair max = pair_blank_vector(t, n), sum = pair_blank_vector(t, n);
	struct pair target = pair_blank_vector(t, n);
	struct pair targets = pair_ints(t, n, 0, real + 2 * FIRST);
	BOTH(t, xent_stats, max.m[s].p, sum.m[s].p, target.m[s].p, logits.m[s],
		targets.m[s].p, FIRST, FIRST + real);
	trial_check(t, "max", max);
	trial_check(t, "sum", sum);
	trial_check(t, "target", target);
}

void try_xent_join(struct trial *t)
{
	int64_t n_slices = t->c->n[0], rows = fewer(t->c->n[1], 1 << 16);
	int64_t n = n_slices * rows;
	struct pair lse = pair_blank_vector(t, rows), loss = pair_blank_vector(t, rows);
	struct pair max = pair_vector(t, n, 3), target = pair_vector(t, n, 1);
	struct pair sum = pair_vector(t, n, 1);
	float *v = sum.m[CPU].p;
	for (int64_t i = 0; i < n && !t->measures; i++)
		v[i] = 1 + v[i] * v[i];
	pair_send(t, sum);
	BOTH(t, xent_join, lse.m[s].p, loss.m[s].p, max.m[s].p, sum.m[s].p, target.m[s].p,
		n_slices, rows);
	trial_check(t, "log-sum-exp", lse);
	trial_check(t, "loss", loss);
}

void try_xent_fused(struct trial *t)
{
	const float scale = 0.25f;
	struct mat of = few(t, 0);
	int64_t n = of.rows, real = t->c->n[0];
	struct pair logits = pair_random(t, of, 3), loss = pair_blank_vector(t, n);
	struct pair targets = pair_ints(t, n, 0, real);
	struct pair scales = pair_bytes(t, &scale, sizeof(scale));
	BOTH(t, xent_fused, loss.m[s].p, logits.m[s], targets.m[s].p, real,
		scales.m[s].p);
	trial_check(t, "loss", loss);
	trial_check(t, "logits", logits);
}

void try_xent_bwd(struct trial *t)
{
	const float scale = 0.25f, below = 3; /* sums of exp(logit - lse) are near 1 */
	struct mat of = few(t, 0);
	int64_t n = of.rows, real = t->c->n[0];
	struct pair logits = pair_random(t, of, 1), lse = pair_vector(t, n, 0.1);
	struct pair targets = pair_ints(t, n, 0, real + 2 * FIRST);
	struct pair scales = pair_bytes(t, &scale, sizeof(scale));
	float *v = lse.m[CPU].p;
	for (int64_t i = 0; i < n && !t->measures; i++)
		v[i] += below;
	pair_send(t, lse);
	BOTH(t, xent_bwd, logits.m[s], lse.m[s].p, targets.m[s].p, FIRST, FIRST + real,
		scales.m[s].p);
	trial_check(t, "logits", logits);
}
