/*
 * The router of experts against float64; ties, NaN, groups and bias; the order of slots; load balance.
 * isa: sse2 avx2 avx512
 * device: cpu cuda
 */
#include "tests/support/device.h"
#include "tests/support/experts_ref.h"
#include "tests/support/kernels_ref.h"

#include <math.h>
#include <string.h>

/* ---- against float64 ----------------------------------------------------------------- */

/* The inputs and the results of a router. */
struct case_of_router {
	struct router how;
	struct twin h, wr, shared, bias, dg;
	double *z, *gates, *shared_z; /* float64 */
	int64_t rows, dim;
	struct mat got;
	float *lse;
	int32_t *ids, *counts;
};

static struct router random_router(int64_t experts, int64_t per_row, int turn)
{
	struct router how = {.kind = (enum router_kind)(turn % N_ROUTER_KINDS),
		.normalize = turn & 2,
		.scale = turn & 4 ? 2.5f : 1,
		.experts = experts,
		.per_row = per_row};
	if (turn & 8 && experts % 4 == 0 && per_row <= experts / 2) {
		how.groups = 4;
		how.top_groups = 2;
	}
	return how;
}

static struct twin twin_in(struct twin t, enum dtype type)
{
	t.f = stored(t.f, type);
	struct twin back = {loaded(t.f), t.r};
	twin_sync(back);
	return t;
}

static struct case_of_router make_case(
	const struct router *how, int64_t rows, int64_t dim, enum dtype type, int turn)
{
	bool has_shared = turn & 16;
	struct case_of_router c = {.how = *how, .rows = rows, .dim = dim};
	c.h = twin_in(twin_random(rows, dim, 1), type);
	c.wr = twin_random(how->experts, dim, 2 / sqrt((double)dim));
	c.shared = has_shared ? twin_random(1, dim, 1 / sqrt((double)dim)) : twin_none();
	c.bias = turn & 32 ? twin_random(1, how->experts, 0.1) : twin_none();
	c.dg = twin_random(rows, how->per_row + has_shared, 1);
	c.z = doubles(rows * how->experts);
	c.shared_z = doubles(rows);
	c.gates = doubles(rows * how->per_row);
	ref_linear_fwd(c.z, c.h.r, c.wr.r, NULL, rows, dim, how->experts);
	if (has_shared)
		ref_linear_fwd(c.shared_z, c.h.r, c.shared.r, NULL, rows, dim, 1);
	c.how.seq_rows = rows > 6 ? rows / 3 : rows;
	c.got = mat_blank(rows, how->per_row + has_shared);
	c.lse = floats(rows);
	c.ids = ints(rows * how->per_row);
	c.counts = ints(ceil_div(rows, c.how.seq_rows) * how->experts);
	return c;
}

static void run_forward(struct device *d, struct case_of_router *c)
{
	d->k->route_fwd(d, c->ids, c->got, c->lse, c->counts, c->h.f, c->wr.f,
		c->bias.f.p, c->shared.f, &c->how);
}

/* Choices are those of float64 wherever fp32 cannot change them; gates are functions of the choice. */
static void check_forward(const struct case_of_router *c)
{
	const struct router *how = &c->how;
	int64_t k = how->per_row, n = how->experts, sure = 0, cols = c->got.cols;
	double margin =
		how->kind == ROUTER_SOFTMAX && !c->bias.r ? 1e-4 / (double)n : 1e-5;
	int32_t *want = ints(k), *counts = ints(ceil_div(c->rows, how->seq_rows) * n);
	double *gates = doubles(mat_size(c->got)), *lse = doubles(c->rows);
	for (int64_t i = 0; i < c->rows; i++) {
		const int32_t *ids = c->ids + i * k;
		const double *z = c->z + i * n;
		if (ref_choose(want, z, c->bias.f.p, how) > margin) {
			assert_memory_equal(ids, want, (size_t)k * sizeof(*ids));
			sure++;
		}
		for (int64_t j = 0; j < k; j++) {
			assert_true(ids[j] >= 0 && ids[j] < n);
			assert_true(!j || ids[j] > ids[j - 1]);
			counts[i / how->seq_rows * n + ids[j]]++;
		}
		ref_gates(gates + i * cols, z, ids, how);
		if (cols > k)
			gates[i * cols + k] = 1 / (1 + exp(-c->shared_z[i]));
		lse[i] = ref_log_sum_exp(z, n);
	}
	assert_true(sure >= c->rows * 8 / 10 || n > 256);
	assert_memory_equal(counts, c->counts,
		(size_t)(ceil_div(c->rows, how->seq_rows) * n) * sizeof(*counts));
	check_close("route_fwd, gates", c->got.p, gates, mat_size(c->got), 1e-5);
	check_close("route_fwd, lse", c->lse, lse, c->rows, 2e-6);
}

static void check_backward(struct device *d, const struct case_of_router *c, bool losses)
{
	const struct router *how = &c->how;
	int64_t k = how->per_row, n = how->experts, sets = 2, cols = c->got.cols;
	static const float weights[2] = {0.25f, 0.125f};
	double wide[2] = {0.25 * losses, 0.125 * losses};
	struct twin f = twin_random(sets, n, 1), dz = twin_blank(c->rows, n);
	struct twin dshared = twin_blank(1, c->rows), values = twin_blank(2, c->rows);
	const struct router_losses terms = {.f = f.f.p,
		.first_row = 1,
		.seq_rows = ceil_div(c->rows + 1, sets),
		.weights = there(weights, sizeof(weights)),
		.values = values.f.p};
	d->k->route_bwd(d, dz.f, cols > k ? dshared.f.p : NULL, c->dg.f, c->ids, c->got,
		c->lse, c->h.f, c->wr.f, how, losses ? &terms : NULL);
	for (int64_t i = 0; i < c->rows; i++) {
		const double *z = c->z + i * n;
		const float *own = (const float *)f.f.p + (i + 1) / terms.seq_rows * n;
		double lse = ref_log_sum_exp(z, n);
		ref_route_bwd(dz.r + i * n, z, c->dg.r + i * cols, c->ids + i * k,
			losses ? own : NULL, wide, how);
		values.r[i] = ref_balance(z, own, how);
		values.r[c->rows + i] = lse * lse;
		double g = 1 / (1 + exp(-c->shared_z[i]));
		dshared.r[i] = c->dg.r[i * cols + cols - 1] * g * (1 - g);
	}
	bool is_zero =
		n == 1 && !losses && (how->normalize || how->kind == ROUTER_SOFTMAX);
	if (!is_zero)
		twin_check("route_bwd", dz, 5e-5); /* sums that cancel */
	for (int64_t i = 0; is_zero && i < c->rows; i++)
		assert_near((double)((float *)dz.f.p)[i], 0, 1e-6);
	if (losses)
		twin_check("route_bwd, losses", values, 2e-5);
	if (cols > k)
		twin_check("route_bwd, shared", dshared, 1e-5);
}

/* The gradients of h and of the weights. */
static void check_products(
	struct device *d, const struct case_of_router *c, enum dtype type)
{
	int64_t n = c->how.experts;
	struct twin dz = twin_random(c->rows, n, 1), dw = twin_blank(n, c->dim);
	struct twin dh = twin_in(twin_random(c->rows, c->dim, 1), type);
	d->k->route_bwd_x(d, dh.f, dz.f, c->wr.f);
	d->k->route_bwd_w(d, dw.f, dz.f, c->h.f);
	ref_linear_bwd_x(dh.r, dz.r, c->wr.r, c->rows, c->dim, n);
	ref_linear_bwd_w(dw.r, dz.r, c->h.r, c->rows, c->dim, n);
	struct mat got = loaded(dh.f);
	check_close("route_bwd_x", got.p, dh.r, mat_size(got), type ? 6e-3 : 5e-6);
	twin_check("route_bwd_w", dw, 1e-5);
}

DEVICE_TEST(routers)
{
	static const int64_t shapes[][4] = {/* E, k, rows, dim */
		{1, 1, 5, 7}, {8, 2, 300, 40}, {60, 4, 37, 129}, {256, 8, 70, 64},
		{17, 17, 9, 33}, {1024, 64, 3, 16}};
	for (size_t i = 0; i < ARRAY_LEN(shapes); i++) {
		const int64_t *s = shapes[i];
		for (int turn = 0; turn < 64;
			turn += i == 1 && !test_device_slow(d) ? 1 : 7) {
			enum dtype type = (enum dtype)(turn % 3);
			struct router how = random_router(s[0], s[1], turn);
			struct case_of_router c = make_case(&how, s[2], s[3], type, turn);
			run_forward(d, &c);
			check_forward(&c);
			check_backward(d, &c, turn & 2);
			check_backward(d, &c, !(turn & 2));
			check_products(d, &c, type);
			assert_int_equal(memory_end(NULL), 0);
		}
	}
}

/* A row has the same bits alone and among others. */
DEVICE_TEST(rows_alone)
{
	enum { ROWS = 600, EXPERTS = 20, DIM = 50, K = 3 };
	struct router how = random_router(EXPERTS, K, 3);
	struct case_of_router c = make_case(&how, ROWS, DIM, DT_BF16, 16);
	struct mat dz = mat_blank(ROWS, EXPERTS), one = mat_blank(1, EXPERTS);
	float *dshared = floats(ROWS), *own = floats(1);
	run_forward(d, &c);
	d->k->route_bwd(
		d, dz, dshared, c.dg.f, c.ids, c.got, c.lse, c.h.f, c.wr.f, &c.how, NULL);
	for (int64_t i = 0; i < ROWS; i += 59) {
		int32_t *ids = ints(K);
		struct mat gates = mat_blank(1, K + 1), h = mat_rows(c.h.f, i, 1);
		float *lse = floats(1);
		d->k->route_fwd(
			d, ids, gates, lse, NULL, h, c.wr.f, NULL, c.shared.f, &c.how);
		assert_memory_equal(ids, c.ids + i * K, K * sizeof(*ids));
		check_bits("route_fwd, gates", gates.p, mat_rows(c.got, i, 1).p, K + 1);
		check_bits("route_fwd, lse", lse, c.lse + i, 1);
		d->k->route_bwd(d, one, own, mat_rows(c.dg.f, i, 1), ids, gates, lse, h,
			c.wr.f, &c.how, NULL);
		check_bits("route_bwd", one.p, mat_rows(dz, i, 1).p, EXPERTS);
		check_bits("route_bwd, shared", own, dshared + i, 1);
	}
}

/* ---- ties, NaN, force ------------------------------------------------------------------ */

/* Routes rows of logits: the identity is the router's matrix. */
static void route_logits(struct device *d, int32_t *ids, struct mat gates, struct mat z,
	const float *bias, struct router *how)
{
	struct mat wr = mat_blank(z.cols, z.cols);
	for (int64_t i = 0; i < mat_size(wr); i++)
		((float *)wr.p)[i] = i % (z.cols + 1) ? 0 : 1;
	how->experts = z.cols;
	how->seq_rows = z.rows;
	d->k->route_fwd(d, ids, gates, floats(z.rows), ints(z.cols), z, wr, bias,
		mat(NULL, 0, 0), how);
}

static void check_ids(const int32_t *ids, const int32_t *want, int64_t k)
{
	for (int64_t j = 0; j < k; j++)
		assert_int_equal(ids[j], want[j]);
}

/* The lowest index wins, and 0 equals -0, for each kind. */
DEVICE_TEST(ties)
{
	enum { E = 40, K = 3, ROWS = 3 };
	static const int32_t want[ROWS][K] = {{0, 1, 2}, {5, 7, 9}, {0, 1, 33}};
	for (int turn = 0; turn < 4; turn++) {
		struct router how = random_router(E, K, turn);
		struct mat z = mat_blank(ROWS, E), gates = mat_blank(ROWS, K);
		float *x = z.p;
		int32_t *ids = ints(ROWS * K);
		for (int e = 0; e < E; e++) {
			x[e] = e % 2 ? -0.0f : 0.0f;
			x[E + e] = e == 7 ? 2 : e == 5 || e == 9 || e == 30 ? 1 : -1;
			x[2 * E + e] = e == 33 ? 1 : -3;
		}
		route_logits(d, ids, gates, z, NULL, &how);
		for (int i = 0; i < ROWS; i++)
			check_ids(ids + (ptrdiff_t)i * K, want[i], K);
	}
}

/* NaN is never chosen while there is a number, and makes all gates of its row NaN. */
DEVICE_TEST(not_a_number)
{
	enum { E = 8, K = 2, ROWS = 3 };
	static const int32_t want[ROWS][K] = {{1, 2}, {0, 1}, {6, 7}};
	for (int turn = 0; turn < 4; turn++) {
		struct router how = random_router(E, K, turn);
		struct mat z = mat_blank(ROWS, E), wr = mat_blank(E, 1);
		struct mat h = mat_blank(ROWS, 1), gates = mat_blank(ROWS, K);
		int32_t *ids = ints(ROWS * K);
		for (int e = 0; e < E; e++)
			((float *)wr.p)[e] = (float)e;
		((float *)wr.p)[0] = NAN;
		((float *)wr.p)[3] = NAN;
		((float *)h.p)[0] = -1;
		((float *)h.p)[1] = NAN;
		((float *)h.p)[2] = 1;
		how.seq_rows = ROWS;
		d->k->route_fwd(d, ids, gates, floats(ROWS), NULL, h, wr, NULL,
			mat(NULL, 0, 0), &how);
		for (int i = 0; i < ROWS; i++)
			check_ids(ids + (ptrdiff_t)i * K, want[i], K);
		for (int i = 0; i < ROWS * K; i++)
			assert_true(isnan(((float *)gates.p)[i]));
		assert_non_null(z.p);
	}
}

/* A bias changes the choice, but no gate. */
DEVICE_TEST(bias_is_not_in_gates)
{
	enum { E = 4, K = 1 };
	struct router how = {.kind = ROUTER_SIGMOID, .scale = 1, .per_row = K};
	struct mat z = mat_blank(1, E), gates = mat_blank(1, K);
	int32_t *ids = ints(K);
	float *bias = floats(E);
	for (int e = 0; e < E; e++) {
		((float *)z.p)[e] = (float)e;
		bias[e] = e ? 0 : 5;
	}
	route_logits(d, ids, gates, z, bias, &how);
	assert_int_equal(ids[0], 0);
	assert_true(*(float *)gates.p == 0.5f);
}

DEVICE_TEST(force)
{
	enum { E = 8, K = 2, ROWS = 5 };
	for (int64_t n = 2; n <= E; n += 3) {
		struct router how = random_router(E, K, 2);
		struct mat gates = mat_blank(ROWS, K), z = seeded(ROWS, E, 1);
		int32_t *ids = ints(ROWS * K), *pos = ints(ROWS);
		for (int i = 0; i < ROWS; i++)
			pos[i] = 3 * i;
		how.force = n;
		how.pos = pos;
		route_logits(d, ids, gates, z, NULL, &how);
		for (int i = 0; i < ROWS; i++) {
			int64_t a = 3 * i * K % n, b = (3 * i * K + 1) % n;
			assert_int_equal(ids[i * K], min64(a, b));
			assert_int_equal(ids[i * K + 1], max64(a, b));
		}
	}
}

/* ---- the order of slots ---------------------------------------------------------------- */

static void check_sort(struct device *d, int64_t rows, int64_t chunk_rows, int64_t stride,
	const struct router *how)
{
	int64_t k = how->per_row, n = rows * k, chunks = rows / chunk_rows;
	int64_t groups = how->experts * chunks;
	int32_t *ids = ints(n), *pos = ints(n), *slots = ints(n),
		*offsets = ints(groups + 1);
	for (int64_t i = 0; i < rows; i++) {
		int64_t left = how->experts - k;
		for (int64_t j = 0; j < k; j++) {
			int64_t skip = left && i % 3 ? pick(0, left) / (k - j) : 0;
			ids[i * k + j] =
				(int32_t)(j ? ids[i * k + j - 1] + 1 + skip : skip);
			left -= skip;
		}
	}
	d->k->sort_slots(d, pos, slots, offsets, ids, rows, chunk_rows, stride, how);
	assert_int_equal(offsets[0], 0);
	assert_int_equal(offsets[groups], n);
	for (int64_t g = 0; g < groups; g++) {
		assert_true(offsets[g] <= offsets[g + 1]);
		for (int64_t p = offsets[g]; p < offsets[g + 1]; p++) {
			int64_t row = slots[p] / stride, j = slots[p] % stride;
			assert_true(j < k);
			assert_int_equal(pos[row * k + j], p);
			assert_int_equal(ids[row * k + j], g / chunks);
			assert_int_equal(row / chunk_rows, g % chunks);
			assert_true(p == offsets[g] || slots[p] > slots[p - 1]);
		}
	}
}

DEVICE_TEST(order_of_slots)
{
	static const int64_t shapes[][5] = {/* E, k, rows, chunk rows, stride */
		{1, 1, 1, 1, 1}, {8, 2, 300, 100, 2}, {8, 2, 300, 300, 3},
		{60, 4, 1000, 250, 4}, {256, 8, 77, 7, 9}, {128, 8, 5000, 5000, 8},
		{1024, 64, 40, 20, 64}, {3, 3, 50, 25, 4}};
	for (size_t i = 0; i < ARRAY_LEN(shapes); i++) {
		const int64_t *s = shapes[i];
		struct router how = {.experts = s[0], .per_row = s[1]};
		check_sort(d, s[2], s[3], s[4], &how);
	}
}

/* ---- capacity ------------------------------------------------------------------------ */

/* The gate in float64, NaN as the smallest. */
static double rank_of(float gate)
{
	return isnan(gate) ? -INFINITY : (double)gate;
}

/* Random groups, some of them empty, whose gates have ties, zeros of both signs and NaN: each slot against
 * a count of the slots before it. */
static void check_drop(struct device *d, int64_t groups, int64_t most, int64_t capacity)
{
	int32_t *offsets = ints(groups + 1);
	for (int64_t g = 0; g < groups; g++)
		offsets[g + 1] = offsets[g] + (int32_t)(g ? pick(0, most) : most);
	int64_t n = offsets[groups], cols = 3, rows = ceil_div(n, cols), n_dropped = 0;
	struct mat gates = mat_blank(rows, cols), kept = mat_blank(rows, cols);
	struct mat slopes = seeded(rows, cols, 5), was = seeded(rows, cols, 5);
	float *gate = gates.p, *keeps = kept.p;
	int32_t *slots = ints(n);
	const int64_t start = 5;
	int64_t *dropped = there(&start, sizeof(start));
	for (int64_t i = 0; i < rows * cols; i++) {
		gate[i] = (float)pick(-20, 20) / 8;
		if (i % 17 == 3)
			gate[i] = i % 2 ? NAN : i % 4 ? -INFINITY : -0.0f;
	}
	for (int64_t i = 0; i < n; i++)
		slots[i] = (int32_t)(n - 1 - i);
	d->k->copy(d, kept, gates);
	d->k->slots_drop(d, kept, dropped, gates, slots, offsets, groups, most, capacity);
	d->k->slots_mask(d, slopes, kept, gates);
	device_wait(d);
	for (int64_t g = 0; g < groups; g++)
		for (int64_t i = offsets[g]; i < offsets[g + 1]; i++) {
			int64_t before = 0, at = slots[i];
			double mine = rank_of(gate[at]);
			for (int64_t j = offsets[g]; j < offsets[g + 1]; j++) {
				double other = rank_of(gate[slots[j]]);
				before += other > mine || (other >= mine && j < i);
			}
			bool drops = before >= capacity;
			n_dropped += drops;
			float want = drops ? 0 : gate[at];
			assert_true(isnan(want) ? isnan(keeps[at]) : keeps[at] == want);
			bool masks = drops && (isnan(gate[at]) || gate[at] != 0);
			assert_true(((float *)slopes.p)[at] ==
				    (masks ? 0 : ((float *)was.p)[at]));
		}
	assert_int_equal(*dropped, start + n_dropped);
	assert_int_equal(memory_end(NULL), 0);
}

DEVICE_TEST(capacity)
{
	check_drop(d, 1, 1, 0);
	check_drop(d, 9, 40, 7);
	check_drop(d, 3, 256, 255);
	check_drop(d, 2, 257, 100);
	check_drop(d, 4, 700, 300);
	check_drop(d, 5, 600, 600); /* nothing is dropped */
}

/* ---- load balance ---------------------------------------------------------------------- */

DEVICE_TEST(counts)
{
	enum { SETS = 6, E = 70, PER = 3 };
	int32_t *counts = ints(SETS * E);
	const int64_t zeros[SETS / PER * E] = {0};
	int64_t *sums = there(zeros, sizeof(zeros));
	float *f = floats(SETS / PER * E);
	for (int i = 0; i < SETS * E; i++)
		counts[i] = i < PER * E ? (int32_t)pick(0, 1 << 20) : 0;
	counts[0] = INT32_MAX;
	d->k->counts_sum(d, sums, counts, SETS, PER, E, false);
	d->k->counts_sum(d, sums, counts, SETS, PER, E, true);
	d->k->counts_fractions(d, f, sums, SETS / PER, E, NULL);
	int64_t total = 0;
	for (int e = 0; e < E; e++) {
		int64_t sum = 0;
		for (int s = 0; s < PER; s++)
			sum += 2 * (int64_t)counts[s * E + e];
		assert_true(sums[e] == sum);
		total += sum;
	}
	for (int e = 0; e < E; e++) {
		assert_true(f[e] == (float)((double)sums[e] / (double)total));
		assert_true(f[E + e] == (float)(1 / (double)E));
	}
	const struct update off = {.off = true};
	const float was = f[0];
	d->k->counts_fractions(d, f, sums + E, 1, E, there(&off, sizeof(off)));
	device_wait(d);
	assert_true(f[0] == was);
}

DEVICE_TEST(bias)
{
	enum { E = 5 };
	/* the means are 10 and 10.2 */
	static const int64_t counts[2][E] = {{10, 10, 0, 30, 0}, {10, 11, 0, 30, 0}};
	static const float signs[2][E] = {{0, 0, 1, -1, 1}, {1, -1, 1, -1, 1}};
	static const struct update off = {.off = true}, on = {.off = false};
	for (int turn = 0; turn < 8; turn++) {
		const int64_t *own = there(counts[turn / 4], sizeof(counts[0]));
		bool center = turn & 1;
		float *b = floats(E);
		for (int e = 0; e < E; e++)
			b[e] = (float)e;
		d->k->bias_balance(d, b, own, E, 0.25f, center,
			turn & 2 ? there(&on, sizeof(on)) : NULL);
		d->k->bias_balance(d, b, own, E, 0.25f, center, there(&off, sizeof(off)));
		for (int e = 0; e < E; e++) {
			float want =
				0.25f * signs[turn / 4][e] - (center ? 0.25f / E : 0);
			assert_near((double)b[e], (double)((float)e + want), 1e-6);
		}
	}
}

int main(void)
{
	if (test_device_missing())
		return 0;
	return run_on_device();
}
