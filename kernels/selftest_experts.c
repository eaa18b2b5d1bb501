/* The self-test of the kernels of experts. */
#include "kernels/selftest_trial.h"

#include <math.h>

/* Rows and columns of operands: no kernel of experts has other code for more of them. */
enum { EXPERT_ROWS = 256, EXPERT_COLS = 512 };

/* Returns a matrix like matrix i of the call, of another size. */
static struct mat sized(const struct trial *t, int i, int64_t rows, int64_t cols)
{
	struct mat m = with_rows(call_shape(t, i), rows);
	m.cols = cols;
	return m;
}

static int64_t few_rows(const struct trial *t, int i)
{
	return limit_size(call_shape(t, i).rows, EXPERT_ROWS);
}

static int64_t few_cols(const struct trial *t, int i)
{
	return limit_size(call_shape(t, i).cols, EXPERT_COLS);
}

/* Makes n integers, element i being fn(i, arg). */
static struct trial_pair make_ints(
	struct trial *t, int64_t n, int64_t (*fn)(int64_t i, int64_t arg), int64_t arg)
{
	struct trial_pair x = pair_ints(t, n, 0, 1);
	int32_t *to = x.m[CPU].p;
	for (int64_t i = 0; i < n && !t->measures; i++)
		to[i] = (int32_t)fn(i, arg);
	pair_send(t, x);
	return x;
}

static int64_t in_reverse(int64_t i, int64_t n)
{
	return n - 1 - i;
}

/* ---- the router ---------------------------------------------------------------------- */

/* The router of the call, with `rows` rows. */
static struct router call_router(const struct trial *t, int64_t experts, int64_t rows)
{
	const int64_t *n = t->c->n;
	return (struct router){.kind = (enum router_kind)(n[0] / 2),
		.normalize = n[0] % 2,
		.scale = 1.5f,
		.experts = experts,
		.per_row = n[1],
		.groups = n[2],
		.top_groups = n[3],
		.seq_rows = rows % 2 ? rows : rows / 2};
}

/* Makes ids[rows][k], ascending: expert j of a row is in the j-th of k equal ranges. */
static struct trial_pair make_ids(struct trial *t, int64_t rows, const struct router *how)
{
	int64_t k = how->per_row, range = how->experts / k;
	struct trial_pair ids = pair_ints(t, rows * k, 0, range);
	int32_t *to = ids.m[CPU].p;
	for (int64_t i = 0; i < rows * k && !t->measures; i++)
		to[i] += (int32_t)(i % k * range);
	pair_send(t, ids);
	return ids;
}

/* Makes n numbers of 64 bits below 2^20. */
static struct trial_pair make_counts(struct trial *t, int64_t n)
{
	struct trial_pair x = pair_ints(t, 2 * n, 0, 1 << 20);
	int64_t *to = x.m[CPU].p;
	for (int64_t i = 0; i < n && !t->measures; i++)
		to[i] &= (1 << 20) - 1;
	pair_send(t, x);
	return x;
}

/* Sets the elements of x to small integers, so that sums have no rounding. */
static void set_integers(struct trial *t, struct trial_pair x, int64_t end, float step)
{
	float *to = x.m[CPU].p;
	for (int64_t i = 0; to && i < mat_size(x.m[CPU]) && !t->measures; i++)
		to[i] = step * (float)(hash_mix((uint64_t)i) % (uint64_t)end);
	pair_send(t, x);
}

/* Sets each row of x to a row of the identity matrix. */
static void set_unit_rows(struct trial *t, struct trial_pair x)
{
	struct mat m = x.m[CPU];
	for (int64_t i = 0; i < mat_size(m) && !t->measures; i++)
		((float *)m.p)[i] = i % m.cols == i / m.cols % m.cols;
	pair_send(t, x);
}

/* Tries the statistics with random numbers, then the choice with logits that are integers: a choice
 * between nearly equal scores may differ. */
void try_route_fwd(struct trial *t)
{
	enum { GATES, WR, H, SHARED, BIAS };
	int64_t rows = few_rows(t, H), n = call_shape(t, WR).rows, k = t->c->n[1];
	int64_t dim = few_cols(t, H);
	const struct router how = call_router(t, n, rows);
	double scale = 1 / sqrt((double)dim);
	struct trial_pair h = pair_random(t, sized(t, H, rows, dim), 1);
	struct trial_pair wr = pair_random(t, sized(t, WR, n, dim), scale);
	struct trial_pair shared = pair_random(t, sized(t, SHARED, 1, dim), scale);
	struct trial_pair bias = pair_random(t, sized(t, BIAS, 1, n), 1);
	struct trial_pair gates = pair_blank(t, with_rows(call_shape(t, GATES), rows));
	struct trial_pair ids = pair_blank_vector(t, rows * k);
	struct trial_pair counts = pair_blank_vector(t, ceil_div(rows, how.seq_rows) * n);
	struct trial_pair lse = pair_blank_vector(t, rows);
	for (int pass = 0; pass < 2; pass++) {
		add_result(t, "log-sum-exp", lse);
		if (pass) {
			add_result(t, "gates", gates);
			set_unit_rows(t, h);
			set_integers(t, wr, 7, 1);
			/* with groups, sums of two biased scores would have near ties */
			set_integers(t, bias, how.groups > 1 ? 1 : 3, 2);
		}
		BOTH(t, route_fwd, ids.m[s].p, gates.m[s], lse.m[s].p, counts.m[s].p,
			h.m[s], wr.m[s], bias.m[s].p, shared.m[s], &how);
	}
	trial_check_within(t, "ids", ids, 0);
	trial_check_within(t, "counts", counts, 0);
}

void try_route_bwd(struct trial *t)
{
	enum { DZ, WR, H, DG, GATES };
	static const float weights[2] = {0.25f, 0.125f};
	int64_t rows = few_rows(t, H), n = call_shape(t, WR).rows, dim = few_cols(t, H);
	const struct router how = call_router(t, n, rows);
	double scale = 1 / sqrt((double)dim);
	struct trial_pair h = pair_random(t, sized(t, H, rows, dim), 1);
	struct trial_pair wr = pair_random(t, sized(t, WR, n, dim), scale);
	struct trial_pair dg = pair_random(t, with_rows(call_shape(t, DG), rows), 1);
	struct trial_pair gates =
		pair_random(t, with_rows(call_shape(t, GATES), rows), 1);
	struct trial_pair ids = make_ids(t, rows, &how), f = pair_vector(t, n, 1);
	struct trial_pair factors = pair_bytes(t, weights, sizeof(weights));
	struct trial_pair dz = pair_blank(t, with_rows(call_shape(t, DZ), rows));
	struct trial_pair dshared = pair_vector(t, rows, 1),
			  lse = pair_vector(t, rows, 0.1);
	struct trial_pair values = add_vector(t, "losses", 2 * rows);
	bool has_f = t->c->p > 0;
	float *to = lse.m[CPU].p;
	for (int64_t i = 0; i < rows && !t->measures; i++)
		to[i] += logf((float)n);
	pair_send(t, lse);
	add_result(t, "dz", dz);
	add_result(t, "dshared", dshared);
	BOTH(t, route_bwd, dz.m[s], dshared.m[s].p, dg.m[s], ids.m[s].p, gates.m[s],
		lse.m[s].p, h.m[s], wr.m[s], &how,
		&(struct router_losses){.f = has_f ? f.m[s].p : NULL,
			.weights = factors.m[s].p,
			.values = values.m[s].p});
}

void try_route_bwd_x(struct trial *t)
{
	enum { DH, DZ, WR };
	int64_t rows = few_rows(t, DH), n = call_shape(t, DZ).cols, dim = few_cols(t, DH);
	struct trial_pair dz = pair_random(t, sized(t, DZ, rows, n), 1);
	struct trial_pair wr = pair_random(t, sized(t, WR, n, dim), 1 / sqrt((double)n));
	struct trial_pair dh =
		add_result(t, "dh", pair_random(t, sized(t, DH, rows, dim), 1));
	BOTH(t, route_bwd_x, dh.m[s], dz.m[s], wr.m[s]);
}

void try_route_bwd_w(struct trial *t)
{
	enum { DW, DZ, H };
	int64_t rows = few_rows(t, H), n = call_shape(t, DZ).cols, dim = few_cols(t, H);
	struct trial_pair dz = pair_random(t, sized(t, DZ, rows, n), 1);
	struct trial_pair h = pair_random(t, sized(t, H, rows, dim), 1);
	struct trial_pair dw = add_result(t, "dw", pair_blank(t, sized(t, DW, n, dim)));
	BOTH(t, route_bwd_w, dw.m[s], dz.m[s], h.m[s]);
}

/* ---- rows ---------------------------------------------------------------------------- */

void try_sort_slots(struct trial *t)
{
	enum { MAX_ROWS = 2048 };
	const int64_t *n = t->c->n, k = n[1], chunks = min64(n[3], n[0]);
	const struct router how = {.experts = n[2], .per_row = k};
	int64_t chunk_rows = max64(1, limit_size(n[0], MAX_ROWS) / chunks);
	int64_t rows = chunk_rows * chunks, groups = how.experts * chunks;
	struct trial_pair ids = make_ids(t, rows, &how);
	struct trial_pair pos = add_vector(t, "places", rows * k);
	struct trial_pair slots = add_vector(t, "slots", rows * k);
	struct trial_pair offsets = add_vector(t, "offsets", groups + 1);
	BOTH(t, sort_slots, pos.m[s].p, slots.m[s].p, offsets.m[s].p, ids.m[s].p, rows,
		chunk_rows, k + 1, &how);
}

static int64_t times(int64_t i, int64_t n)
{
	return i * n;
}

/* Gates are small integers, so there are equal ones. */
void try_slots_drop(struct trial *t)
{
	enum { MAX_GROUPS = 16, MAX_SLOTS = 700 };
	int64_t groups = limit_size(t->c->n[0], MAX_GROUPS);
	int64_t n = limit_size(t->c->n[1], MAX_SLOTS),
		capacity = min64(t->c->n[2], n / 2);
	struct trial_pair slots = make_ints(t, groups * n, in_reverse, groups * n);
	struct trial_pair offsets = make_ints(t, groups + 1, times, n);
	struct trial_pair gates = pair_vector(t, groups * n, 1);
	struct trial_pair dropped = add_result(t, "dropped", make_counts(t, 1));
	struct trial_pair kept = add_result(t, "kept", pair_vector(t, groups * n, 1));
	set_integers(t, gates, 50, 0.125f);
	BOTH(t, slots_drop, kept.m[s], dropped.m[s].p, gates.m[s], slots.m[s].p,
		offsets.m[s].p, groups, n, capacity);
}

void try_slots_mask(struct trial *t)
{
	int64_t rows = limit_rows(call_shape(t, 0)), cols = call_shape(t, 0).cols;
	struct trial_pair kept = pair_random(t, sized(t, 1, rows, cols), 1);
	struct trial_pair gates = pair_random(t, sized(t, 2, rows, cols), 1);
	struct trial_pair dgates =
		add_result(t, "dgates", pair_random(t, sized(t, 0, rows, cols), 1));
	set_integers(t, kept, 2, 1);
	BOTH(t, slots_mask, dgates.m[s], kept.m[s], gates.m[s]);
}

void try_rows_take(struct trial *t)
{
	int64_t rows = limit_rows(call_shape(t, 0)), cols = call_shape(t, 0).cols;
	int64_t divisor = t->c->n[0], sources = ceil_div(rows, divisor);
	struct trial_pair h = pair_random(t, sized(t, 1, sources, cols), 1);
	struct trial_pair index = pair_ints(t, rows, 0, sources * divisor);
	struct trial_pair x = add_result(t, "x", pair_blank(t, sized(t, 0, rows, cols)));
	BOTH(t, rows_take, x.m[s], h.m[s], index.m[s].p, divisor);
}

void try_rows_put(struct trial *t)
{
	int64_t rows = limit_rows(call_shape(t, 1)), cols = call_shape(t, 1).cols;
	struct trial_pair x = pair_random(t, sized(t, 1, rows, cols), 1);
	struct trial_pair index = make_ints(t, rows, in_reverse, rows);
	struct trial_pair h = add_result(t, "h", pair_blank(t, sized(t, 0, rows, cols)));
	BOTH(t, rows_put, h.m[s], x.m[s], index.m[s].p);
}

void try_slots_combine(struct trial *t)
{
	enum { Y, X, GATES, MORE, MIN_ROWS = 16 };
	int64_t cols = call_shape(t, Y).cols, k = t->c->n[0];
	int64_t rows =
		min64(few_rows(t, Y), max64(MIN_ROWS, limit_rows(call_shape(t, X)) / k));
	struct trial_pair x = pair_random(t, sized(t, X, rows * k, cols), 1);
	struct trial_pair gates =
		pair_random(t, with_rows(call_shape(t, GATES), rows), 1);
	struct trial_pair more = pair_random(t, sized(t, MORE, rows, cols), 1);
	struct trial_pair pos = make_ints(t, rows * k, in_reverse, rows * k);
	struct trial_pair y = add_result(t, "y", pair_blank(t, sized(t, Y, rows, cols)));
	bool sorted = t->c->n[1];
	BOTH(t, slots_combine, y.m[s], x.m[s], sorted ? pos.m[s].p : NULL, k, gates.m[s],
		more.m[s]);
}

/* ---- matmuls ------------------------------------------------------------------------- */

/* Rows of groups of three blocks: one of several tiles, none, and one row. */
enum { GROUP_BLOCKS = 3, FULL = 150, TRIAL_ROWS = FULL + 1 };

struct group_pairs {
	struct trial_pair offsets;
	struct row_groups of[SIDES];
};

/* Makes the groups of the trial: per_block groups for each block, and the first has its rows. */
static void make_groups(struct trial *t, struct group_pairs *g, int64_t per_block)
{
	static const int32_t ends[GROUP_BLOCKS] = {FULL, FULL, TRIAL_ROWS};
	int64_t n = GROUP_BLOCKS * per_block;
	g->offsets = pair_ints(t, n + 1, 0, 1);
	int32_t *to = g->offsets.m[CPU].p;
	for (int64_t i = 0; i < n && !t->measures; i++)
		to[i + 1] = ends[i / per_block];
	pair_send(t, g->offsets);
	for (enum side s = GPU; s < SIDES; s++)
		g->of[s] = (struct row_groups){g->offsets.m[s].p, n, per_block};
}

void try_groups_fwd(struct trial *t)
{
	enum { Y, X, W };
	int64_t in = few_cols(t, X), out = few_cols(t, Y);
	struct trial_pair x = pair_random(t, sized(t, X, TRIAL_ROWS, in), 1);
	struct trial_pair w =
		pair_random(t, sized(t, W, GROUP_BLOCKS * out, in), 1 / sqrt((double)in));
	struct trial_pair y =
		add_result(t, "y", pair_blank(t, sized(t, Y, TRIAL_ROWS, out)));
	struct group_pairs g;
	make_groups(t, &g, min64(2, t->c->n[1]));
	BOTH(t, groups_fwd, y.m[s], x.m[s], w.m[s], &g.of[s]);
}

void try_groups_bwd_x(struct trial *t)
{
	enum { DX, DY, W };
	int64_t in = few_cols(t, DX), out = few_cols(t, DY);
	struct trial_pair dy = pair_random(t, sized(t, DY, TRIAL_ROWS, out), 1);
	struct trial_pair w = pair_random(
		t, sized(t, W, GROUP_BLOCKS * out, in), 1 / sqrt((double)out));
	struct trial_pair dx =
		add_result(t, "dx", pair_blank(t, sized(t, DX, TRIAL_ROWS, in)));
	struct group_pairs g;
	make_groups(t, &g, min64(2, t->c->n[1]));
	BOTH(t, groups_bwd_x, dx.m[s], dy.m[s], w.m[s], &g.of[s]);
}

/* Tries two leaves: of all columns of dy, and of no rows, which continues if the call does. */
void try_groups_bwd_w(struct trial *t)
{
	enum { DW, DY, X };
	int64_t in = few_cols(t, X),
		out = limit_size(call_shape(t, DW).rows, EXPERT_COLS);
	struct trial_pair dy = pair_random(t, sized(t, DY, TRIAL_ROWS, out), 1);
	struct trial_pair x = pair_random(t, sized(t, X, TRIAL_ROWS, in), 1);
	struct trial_pair before = pair_vector(t, out * in, 1);
	struct group_leaf leaves[SIDES][2];
	struct group_pairs g;
	bool continues = t->c->n[2];
	make_groups(t, &g, 1);
	for (int i = 0; i < 2; i++) {
		struct trial_pair dw = add_result(t, i ? "dw of no rows" : "dw",
			pair_blank(t, sized(t, DW, out, in)));
		for (enum side s = GPU; s < SIDES; s++)
			leaves[s][i] = (struct group_leaf){
				dw.m[s], continues ? before.m[s].p : NULL, i, 0};
	}
	BOTH(t, groups_bwd_w, leaves[s], 2, dy.m[s], x.m[s], &g.of[s]);
}

/* ---- activations --------------------------------------------------------------------- */

void try_expert_act_fwd(struct trial *t)
{
	int64_t rows = limit_rows(call_shape(t, 1)), f = call_shape(t, 0).cols;
	enum act_kind kind = (enum act_kind)t->c->n[0];
	struct trial_pair ab = pair_random(t, sized(t, 1, rows, 2 * f), 1);
	struct trial_pair a = add_result(t, "a", pair_blank(t, sized(t, 0, rows, f)));
	BOTH(t, expert_act_fwd, kind, a.m[s], ab.m[s]);
}

void try_expert_act_bwd(struct trial *t)
{
	enum { DAB, GA, Z, AB };
	int64_t rows = limit_rows(call_shape(t, AB)), f = call_shape(t, Z).cols;
	int64_t stride = t->c->n[1] ? 1 : t->c->n[2];
	enum act_kind kind = (enum act_kind)t->c->n[0];
	bool has_index = t->c->n[1];
	struct trial_pair z = pair_random(t, sized(t, Z, rows, f), 1);
	struct trial_pair ab = pair_random(t, sized(t, AB, rows, 2 * f), 1);
	struct trial_pair gates = pair_vector(t, rows * stride, 1);
	struct trial_pair index = make_ints(t, rows, in_reverse, rows);
	struct trial_pair dg = add_result(t, "dg", pair_vector(t, rows * stride, 1));
	struct trial_pair dab =
		add_result(t, "dab", pair_blank(t, sized(t, DAB, rows, 2 * f)));
	struct trial_pair ga = add_result(t, "ga", pair_blank(t, sized(t, GA, rows, f)));
	BOTH(t, expert_act_bwd, kind, dab.m[s], ga.m[s], dg.m[s].p, z.m[s], ab.m[s],
		gates.m[s].p, has_index ? index.m[s].p : NULL, stride);
}

/* ---- load balance -------------------------------------------------------------------- */

void try_counts_sum(struct trial *t)
{
	const int64_t *n = t->c->n, experts = n[2];
	int64_t sets = min64(n[0], EXPERT_ROWS), per_sum = min64(n[1], sets);
	struct trial_pair counts = pair_ints(t, sets * experts, 0, INT32_MAX);
	struct trial_pair sums =
		add_result(t, "sums", make_counts(t, ceil_div(sets, per_sum) * experts));
	bool add = n[3];
	BOTH(t, counts_sum, sums.m[s].p, counts.m[s].p, sets, per_sum, experts, add);
}

void try_counts_fractions(struct trial *t)
{
	int64_t sets = min64(t->c->n[0], EXPERT_ROWS), experts = t->c->n[1];
	struct trial_pair counts = make_counts(t, sets * experts);
	struct trial_pair f = add_vector(t, "fractions", sets * experts);
	BOTH(t, counts_fractions, f.m[s].p, counts.m[s].p, sets, experts, NULL);
}

void try_bias_balance(struct trial *t)
{
	int64_t experts = t->c->n[0];
	struct trial_pair counts = make_counts(t, experts);
	struct trial_pair bias = add_result(t, "bias", pair_vector(t, experts, 1));
	bool center = t->c->n[1];
	BOTH(t, bias_balance, bias.m[s].p, counts.m[s].p, experts, 0.001f, center, NULL);
}
