/*
 * Rows moved to experts and back, matmuls of groups of rows, and activations of experts, against float64; the
 * bits that depend on no other row, and those of a leaf in pieces.
 * isa: sse2 avx2 avx512
 * device: cpu cuda
 */
#include "tests/support/device.h"
#include "tests/support/experts_ref.h"
#include "tests/support/kernels_ref.h"
#include "tests/support/trials.h"

#include <math.h>
#include <string.h>

static const double bounds[] = {[DT_F32] = 5e-6, [DT_BF16] = 6e-3, [DT_F16] = 1e-3};

static struct twin twin_stored(int64_t rows, int64_t cols, enum dtype type, double scale)
{
	struct twin t = twin_random(rows, cols, scale);
	t.f = stored(t.f, type);
	struct twin back = {loaded(t.f), t.r};
	twin_sync(back);
	return t;
}

/* For a result of the type: NaN. */
static struct twin twin_result(int64_t rows, int64_t cols, enum dtype type)
{
	struct twin t = twin_blank(rows, cols);
	t.f = stored(t.f, type);
	return t;
}

static void check_result(const char *what, struct twin y)
{
	struct mat got = loaded(y.f);
	check_close(what, got.p, y.r, mat_size(got), bounds[y.f.type]);
}

/* Rows of any type as bits. */
static void check_same(const char *what, struct mat x, struct mat y)
{
	assert_int_equal(mat_size(x), mat_size(y));
	check_bits(what, loaded(x).p, loaded(y).p, mat_size(x));
}

/* ---- groups of rows ------------------------------------------------------------------ */

static struct row_groups make_groups(const int64_t *sizes, int64_t n, int64_t per_block)
{
	int32_t *offsets = ints(n + 1);
	for (int64_t g = 0; g < n; g++)
		offsets[g + 1] = offsets[g] + (int32_t)sizes[g];
	return (struct row_groups){offsets, n, per_block};
}

static int64_t end_of(const struct row_groups *g)
{
	return g->offsets[g->n];
}

/* The matmuls of groups, with rows behind the last group, which stay as they are. */
static void check_forward(struct device *d, const struct row_groups *g, int64_t in,
	int64_t out, enum dtype type, enum dtype to)
{
	enum { MORE = 3 };
	int64_t rows = end_of(g), blocks = g->n / g->per_block;
	struct twin x = twin_stored(rows + MORE, in, type, 1);
	struct twin w = twin_stored(blocks * out, in, type, 1 / sqrt((double)in));
	struct twin dy = twin_stored(rows + MORE, out, type, 1);
	struct twin y = twin_result(rows + MORE, out, to);
	struct twin dx = twin_result(rows + MORE, in, to);
	d->k->groups_fwd(d, y.f, x.f, w.f, g);
	d->k->groups_bwd_x(d, dx.f, dy.f, w.f, g);
	ref_groups(y.r, x.r, w.r, in, out, g, false);
	ref_groups(dx.r, dy.r, w.r, in, out, g, true);
	const float *behind = (float *)loaded(y.f).p + rows * out;
	for (int64_t i = 0; i < MORE * out; i++)
		assert_true(isnan(behind[i]));
	behind = (float *)loaded(dx.f).p + rows * in;
	for (int64_t i = 0; i < MORE * in; i++)
		assert_true(isnan(behind[i]));
	y.f.rows = dx.f.rows = rows;
	check_result("groups_fwd", y);
	check_result("groups_bwd_x", dx);
}

/* The leaves of all groups: of the first and of the last columns of dy, in two types. */
static void check_leaves(struct device *d, const struct row_groups *g, int64_t in,
	int64_t out, enum dtype type)
{
	enum { MORE = 2 };
	int64_t rows = end_of(g), half = (out + 1) / 2;
	struct twin x = twin_stored(rows + MORE, in, type, 1);
	struct twin dy = twin_stored(rows + MORE, out, type, 1);
	struct group_leaf *leaves = xcalloc((size_t)(2 * g->n), sizeof(*leaves));
	struct twin *dw = xcalloc((size_t)(2 * g->n), sizeof(*dw));
	for (int64_t i = 0; i < 2 * g->n; i++) {
		int64_t group = i / 2, n = i % 2 ? out - half : half, at = i % 2 * half;
		int64_t first = g->offsets[group], end = g->offsets[group + 1];
		dw[i] = twin_result(n, in, i % 3 ? DT_F32 : type);
		leaves[i] = (struct group_leaf){dw[i].f, NULL, group, at};
		for (int64_t r = first; r < end; r++)
			for (int64_t o = 0; o < n; o++)
				for (int64_t j = 0; j < in; j++)
					dw[i].r[o * in + j] +=
						dy.r[r * out + at + o] * x.r[r * in + j];
	}
	d->k->groups_bwd_w(d, leaves, (int)(2 * g->n), dy.f, x.f, g);
	for (int64_t i = 0; i < 2 * g->n; i++) {
		check_result("groups_bwd_w", dw[i]);
		if (g->offsets[i / 2] == g->offsets[i / 2 + 1])
			for (int64_t j = 0; j < mat_size(dw[i].f); j++)
				assert_true(((float *)loaded(dw[i].f).p)[j] == 0);
	}
	free(leaves);
	free(dw);
}

/* Rows of an expert at the ends of tiles and of chains. */
DEVICE_TEST(sizes_of_groups)
{
	static const int64_t sizes[] = {0, 1, 15, 16, 17, 383, 384, 385, 1000, 0, 2, 64};
	for (enum dtype type = DT_F32; type <= DT_F16; type++) {
		for (int64_t per = 1; per <= 4; per += 3) {
			struct row_groups g = make_groups(sizes, ARRAY_LEN(sizes), per);
			int64_t in = type == DT_BF16 ? 48 : 37, out = 26 + 2 * per;
			check_forward(d, &g, in, out, type, type);
			check_forward(d, &g, 8, 16, type, type ? DT_F32 : DT_BF16);
			check_leaves(d, &g, in, out, type);
			assert_int_equal(memory_end(NULL), 0);
		}
	}
}

/* All rows to one expert, and long sums. */
DEVICE_TEST(numbers_of_experts)
{
	static const int64_t experts[] = {1, 8, 60, 256};
	for (size_t i = 0; i < ARRAY_LEN(experts); i++) {
		for (enum dtype type = DT_F32; type <= DT_F16; type++) {
			int64_t sizes[256] = {0};
			sizes[experts[i] / 2] = 70;
			struct row_groups one = make_groups(sizes, experts[i], 1);
			check_forward(d, &one, 40, 24, type, type);
			check_leaves(d, &one, 9, 8, type);
			for (int64_t e = 0; e < experts[i]; e++)
				sizes[e] = pick(0, 9);
			struct row_groups all = make_groups(sizes, experts[i], 1);
			check_forward(d, &all, 33, 16, type, type);
			check_leaves(d, &all, 8, 7, type);
			assert_int_equal(memory_end(NULL), 0);
		}
	}
	static const int64_t few[] = {30, 5};
	for (enum dtype type = DT_F32; type <= DT_BF16; type++) {
		struct row_groups g = make_groups(few, 2, 1);
		check_forward(d, &g, 900, 130, type, type);
	}
}

/* A row has the same bits whatever groups lie around it, and on a CPU those of linear_fwd and linear_bwd_x. */
DEVICE_TEST(rows_alone)
{
	enum { IN = 800, OUT = 72, ROWS = 90, AT = 37 };
	static const int64_t all[] = {AT, 30, ROWS - 30 - AT}, one[] = {1};
	for (enum dtype type = DT_F32; type <= DT_F16; type++) {
		struct mat x = stored(seeded(ROWS, IN, 1), type);
		struct mat dy = stored(seeded(ROWS, OUT, 2), type);
		struct mat w = stored(seeded(3 * OUT, IN, 3), type);
		struct mat own = mat_rows(w, OUT, OUT);
		struct mat y = stored(mat_blank(ROWS, OUT), type), y1 = mat_rows(y, 0, 1);
		struct mat dx = stored(mat_blank(ROWS, IN), type),
			   dx1 = mat_rows(dx, 0, 1);
		struct row_groups g = make_groups(all, 3, 1),
				  single = make_groups(one, 1, 1);
		d->k->groups_fwd(d, y, x, w, &g);
		d->k->groups_bwd_x(d, dx, dy, w, &g);
		for (int64_t i = AT; i < AT + 30; i += 7) {
			y1 = stored(mat_blank(1, OUT), type);
			dx1 = stored(mat_blank(1, IN), type);
			d->k->groups_fwd(d, y1, mat_rows(x, i, 1), own, &single);
			d->k->groups_bwd_x(d, dx1, mat_rows(dy, i, 1), own, &single);
			check_same("groups_fwd", y1, mat_rows(y, i, 1));
			check_same("groups_bwd_x", dx1, mat_rows(dx, i, 1));
		}
		if (d->discrete)
			continue;
		struct mat y2 = stored(mat_blank(30, OUT), type);
		struct mat dx2 = stored(mat_blank(30, IN), type);
		d->k->linear_fwd(d, y2, mat_rows(x, AT, 30), own, mat(NULL, 0, 0));
		d->k->linear_bwd_x(d, dx2, mat_rows(dy, AT, 30), own, false);
		check_same("groups_fwd, linear_fwd", y2, mat_rows(y, AT, 30));
		check_same("groups_bwd_x, linear_bwd_x", dx2, mat_rows(dx, AT, 30));
	}
}

/* Opens the device with PT_LAB_ON=groups. */
static void open_wgmma(const struct device *d, struct device *other)
{
	struct device_options o = {.exact = true};
	struct err e = {0};
	setenv("PT_LAB_ON", "groups", 1);
	int failed = device_open(other, DEVICE_CUDA, &o, &e);
	unsetenv("PT_LAB_ON");
	assert_int_equal(failed, 0);
	other->scratch = d->scratch;
}

/* Compares the matmuls of two devices, bit for bit. Behind the last group, operands are NaN. */
static void check_same_groups(
	struct device *const both[2], const struct row_groups *g, int64_t in, int64_t out)
{
	enum { MORE = 5 };
	int64_t rows = end_of(g) + MORE, blocks = g->n / g->per_block;
	struct mat x = seeded(rows, in, 1), dy = seeded(rows, out, 2);
	struct mat w = stored(seeded(blocks * out, in, 3), DT_BF16), y[2], dx[2];
	for (int64_t i = 0; i < MORE * in; i++)
		((float *)x.p)[(rows - MORE) * in + i] = NAN;
	for (int64_t i = 0; i < MORE * out; i++)
		((float *)dy.p)[(rows - MORE) * out + i] = NAN;
	x = stored(x, DT_BF16);
	dy = stored(dy, DT_BF16);
	for (int i = 0; i < 2; i++) {
		struct device *d = both[i];
		y[i] = stored(mat_blank(rows, out), DT_BF16);
		dx[i] = stored(mat_blank(rows, in), DT_BF16);
		d->k->groups_fwd(d, y[i], x, w, g);
		d->k->groups_bwd_x(d, dx[i], dy, w, g);
		device_wait(d);
	}
	check_same("groups_fwd, by wgmma", y[0], y[1]);
	check_same("groups_bwd_x, by wgmma", dx[0], dx[1]);
}

/* Compares the leaves of two devices, bit for bit: of a part of dy's columns and of all of them, in both
 * types, some of them continued. Rows behind the last group are NaN. */
static void check_same_leaves(
	struct device *const both[2], const struct row_groups *g, int64_t in, int64_t out)
{
	enum { MORE = 5 };
	int64_t rows = end_of(g) + MORE, part = out / 2 - 3, n = 2 * g->n;
	struct mat x = seeded(rows, in, 1), dy = seeded(rows, out, 2);
	struct group_leaf *leaves[2];
	for (int64_t i = 0; i < MORE * in; i++)
		((float *)x.p)[(rows - MORE) * in + i] = NAN;
	for (int64_t i = 0; i < MORE * out; i++)
		((float *)dy.p)[(rows - MORE) * out + i] = NAN;
	x = stored(x, DT_BF16);
	dy = stored(dy, DT_BF16);
	for (int i = 0; i < 2; i++) {
		leaves[i] = xcalloc((size_t)n, sizeof(*leaves[i]));
		for (int64_t j = 0; j < n; j++) {
			int64_t width = j % 2 ? part : out;
			struct mat dw =
				j % 3 == 1 ? seeded(width, in, 3) : mat_blank(width, in);
			leaves[i][j] = (struct group_leaf){.dw = dw,
				.group = j / 2,
				.first_col = j % 2 ? out - part : 0};
			if (j % 3 == 1)
				leaves[i][j].before =
					j % 2 ? dw.p : seeded(width, in, 4).p;
			if (j % 3 == 2)
				leaves[i][j].dw = stored(dw, DT_BF16);
		}
		both[i]->k->groups_bwd_w(both[i], leaves[i], (int)n, dy, x, g);
		device_wait(both[i]);
	}
	for (int64_t j = 0; j < n; j++)
		check_same("groups_bwd_w, by wgmma", leaves[0][j].dw, leaves[1][j].dw);
	free(leaves[0]);
	free(leaves[1]);
}

/* Infinity and NaN in a group's rows do not reach the next group's leaf. */
static void check_leaf_alone(struct device *d)
{
	enum { ROWS = 200, FIRST = 70, IN = 64, OUT = 136 };
	static const int64_t sizes[] = {FIRST, ROWS - FIRST};
	struct row_groups g = make_groups(sizes, 2, 1);
	struct mat x = seeded(ROWS, IN, 1), dy = seeded(ROWS, OUT, 2);
	for (int64_t i = FIRST * IN; i < ROWS * IN; i++)
		((float *)x.p)[i] = i % 2 ? INFINITY : NAN;
	for (int64_t i = FIRST * OUT; i < ROWS * OUT; i++)
		((float *)dy.p)[i] = i % 2 ? NAN : -INFINITY;
	x = stored(x, DT_BF16);
	dy = stored(dy, DT_BF16);
	struct mat alone = mat_blank(OUT, IN), beside = mat_blank(OUT, IN);
	d->k->groups_bwd_w(d, &(struct group_leaf){.dw = beside}, 1, dy, x, &g);
	d->k->groups_bwd_w(d, &(struct group_leaf){.dw = alone}, 1,
		mat_rows(dy, 0, FIRST), mat_rows(x, 0, FIRST), &g);
	device_wait(d);
	check_same("groups_bwd_w, beside NaN", alone, beside);
	for (int64_t i = 0; i < OUT * IN; i++)
		assert_true(isfinite(((float *)beside.p)[i]));
}

/* The matmuls of sm_90 by warpgroups: parts of tiles, several tiles of rows and of columns, more tiles than
 * multiprocessors, groups without rows, and shapes that they leave to the other kernels. */
DEVICE_TEST(by_warpgroups)
{
	static const int64_t sizes[] = {0, 1, 127, 128, 129, 0, 300, 2, 64, 0};
	bool emulated = strstr(d->name, "emulated") != NULL;
	if (!d->discrete)
		skip(); /* a GPU's */
	struct device other, *const both[] = {d, &other};
	open_wgmma(d, &other);
	for (int64_t per = 1; per <= 2; per++) {
		struct row_groups g = make_groups(sizes, ARRAY_LEN(sizes), per);
		check_forward(&other, &g, 72, 320, DT_BF16, DT_BF16);
		check_forward(&other, &g, 520, 64, DT_BF16, DT_BF16);
		check_forward(&other, &g, 40, 26, DT_BF16, DT_BF16);
		check_forward(&other, &g, 40, 64, DT_F16, DT_F16);
		check_leaves(&other, &g, 72, 136, DT_BF16);
		check_leaves(&other, &g, 40, 26, DT_BF16);
		check_leaf_alone(&other);
		if (!emulated)
			continue;
		check_same_groups(both, &g, 72, 320);
		check_same_groups(both, &g, 520, 64);
		check_same_groups(both, &g, 264, 72);
		check_same_leaves(both, &g, 72, 320);
		check_same_leaves(both, &g, 520, 64);
		check_same_leaves(both, &g, 264, 144);
	}
	device_close(&other);
}

/* A leaf in pieces has the bits of a leaf at once; so has a leaf whose rows lie elsewhere. */
static void check_pieces(struct device *d, int64_t out)
{
	enum { IN = 40, ROWS = 4 * GROUP_CUT + 50, FIRST = 5 };
	static const int64_t whole[] = {ROWS},
			     cut[][4] = {{GROUP_CUT, 1, ROWS},
				     {3 * GROUP_CUT, GROUP_CUT, 50},
				     {2 * GROUP_CUT, 2 * GROUP_CUT, 50}};
	for (enum dtype type = DT_F32; type <= DT_F16; type++) {
		struct mat x = stored(seeded(ROWS, IN, 1), type);
		struct mat dy = stored(seeded(ROWS, out, 2), type);
		struct mat want = mat_blank(out, IN);
		struct row_groups all = make_groups(whole, 1, 1);
		d->k->groups_bwd_w(
			d, &(struct group_leaf){want, NULL, 0, 0}, 1, dy, x, &all);
		for (size_t c = 1; c < ARRAY_LEN(cut); c++) {
			struct row_groups g = make_groups(cut[c], 3, 3);
			struct mat sums = mat_blank(out, IN);
			struct mat last = stored(mat_blank(out, IN), type);
			struct group_leaf l = {sums, NULL, 0, 0};
			for (l.group = 0; l.group < 2; l.group++) {
				d->k->groups_bwd_w(d, &l, 1, dy, x, &g);
				l.before = sums.p;
			}
			l.dw = last;
			d->k->groups_bwd_w(d, &l, 1, dy, x, &g);
			struct mat narrow = stored(want, type);
			check_same("groups_bwd_w, in pieces", last, narrow);
			l.dw = sums; /* in place */
			d->k->groups_bwd_w(d, &l, 1, dy, x, &g);
			check_same("groups_bwd_w, in place", sums, want);
		}
		const int64_t moved[] = {FIRST, ROWS - FIRST};
		struct row_groups g = make_groups(moved, 2, 1);
		struct mat part = mat_blank(out, IN), again = mat_blank(out, IN);
		const int64_t rest[] = {ROWS - FIRST};
		struct row_groups own = make_groups(rest, 1, 1);
		d->k->groups_bwd_w(
			d, &(struct group_leaf){part, NULL, 1, 0}, 1, dy, x, &g);
		d->k->groups_bwd_w(d, &(struct group_leaf){again, NULL, 0, 0}, 1,
			mat_rows(dy, FIRST, ROWS - FIRST),
			mat_rows(x, FIRST, ROWS - FIRST), &own);
		check_same("groups_bwd_w, elsewhere", part, again);
	}
}

DEVICE_TEST(leaves_in_pieces)
{
	struct device other;
	check_pieces(d, 37);
	if (!d->discrete)
		return;
	open_wgmma(d, &other);
	check_pieces(&other, 40);
	device_close(&other);
}

/* A call with no rows, and leaves of no rows that continue. */
DEVICE_TEST(nothing)
{
	static const int64_t sizes[] = {0, 0};
	struct row_groups g = make_groups(sizes, 2, 1);
	struct mat x = mat_blank(1, 4), y = mat_blank(1, 3), w = seeded(6, 4, 1);
	struct mat dw = seeded(3, 4, 2), before = seeded(3, 4, 2);
	x.rows = y.rows = 0;
	d->k->groups_fwd(d, y, x, w, &g);
	d->k->groups_bwd_x(d, x, y, w, &g);
	struct group_leaf l = {dw, before.p, 1, 0};
	d->k->groups_bwd_w(d, &l, 1, y, x, &g);
	check_same("groups_bwd_w, of no rows", dw, before);
}

/* ---- moving rows --------------------------------------------------------------------- */

static int32_t *random_order(int64_t n)
{
	int32_t *order = ints(n);
	for (int64_t i = 0; i < n; i++) {
		int64_t j = pick(0, i);
		order[i] = order[j];
		order[j] = (int32_t)i;
	}
	return order;
}

DEVICE_TEST(rows)
{
	static const int64_t shapes[][2] = {
		{1, 1}, {9, 7}, {40, 64}, {33, 1030}, {500, 1}};
	for (size_t s = 0; s < 3 * ARRAY_LEN(shapes); s++) {
		int64_t rows = shapes[s / 3][0], cols = shapes[s / 3][1], k = 3;
		enum dtype type = (enum dtype)(s % 3);
		int32_t *order = random_order(k * rows);
		struct mat h = stored(seeded(rows, cols, s), type);
		struct mat x = stored(mat_blank(k * rows, cols), type);
		struct mat back = stored(mat_blank(k * rows, cols), type);
		d->k->rows_take(d, x, h, order, k);
		for (int64_t i = 0; i < k * rows; i++)
			check_same("rows_take", mat_rows(x, i, 1),
				mat_rows(h, order[i] / k, 1));
		d->k->rows_put(d, back, x, order);
		for (int64_t i = 0; i < k * rows; i++)
			check_same("rows_put", mat_rows(back, order[i], 1),
				mat_rows(x, i, 1));
	}
}

static void check_combine(struct device *d, int64_t rows, int64_t cols, int64_t k,
	enum dtype type, int turn)
{
	bool has_gates = turn & 1, has_more = turn & 2, has_order = turn & 4;
	int64_t n_gates = k + (turn & 8 ? 1 : 0);
	struct twin x = twin_stored(rows * k, cols, type, 1);
	struct twin more = has_more ? twin_stored(rows, cols, type, 1) : twin_none();
	struct twin gates = has_gates ? twin_random(rows, n_gates, 1) : twin_none();
	struct twin y = twin_result(rows, cols, type);
	int32_t *pos = has_order ? random_order(rows * k) : NULL;
	for (int64_t i = 0; i < rows; i++) {
		for (int64_t j = 0; j < k + has_more; j++) {
			double g =
				has_gates && j < n_gates ? gates.r[i * n_gates + j] : 1;
			int64_t at = pos && j < k ? pos[i * k + j] : i * k + j;
			for (int64_t c = 0; c < cols; c++)
				y.r[i * cols + c] += g * (j < k ? x.r[at * cols + c]
								: more.r[i * cols + c]);
		}
	}
	d->k->slots_combine(d, y.f, x.f, pos, k, gates.f, more.f);
	check_result("slots_combine", y);
	if (!has_more)
		return;
	d->k->slots_combine(d, more.f, x.f, pos, k, gates.f, more.f);
	check_same("slots_combine, in place", more.f, y.f);
}

DEVICE_TEST(combine)
{
	for (int turn = 0; turn < 16; turn++)
		for (enum dtype type = DT_F32; type <= DT_F16; type++) {
			check_combine(d, 7, 40, 1 + turn % 4, type, turn);
			check_combine(d, 3, 1031, 8, type, turn);
			check_combine(d, 20, 5, 2, type, turn);
		}
}

/* The order of the sum: 2^24 + 1 + 1 - 2^24 is 0 in fp32 from left to right. */
DEVICE_TEST(order_of_sums)
{
	enum { K = 4 };
	static const float sums[K] = {0x1p24f, 1, 1, -0x1p24f};
	struct mat x = mat_blank(K, 1), y = mat_blank(1, 1), one = mat_blank(1, 1);
	memcpy(x.p, sums, sizeof(sums));
	*(float *)one.p = 3;
	d->k->slots_combine(d, y, x, NULL, K, mat(NULL, 0, 0), mat(NULL, 0, 0));
	assert_true(*(float *)y.p == 0);
	d->k->slots_combine(d, y, x, NULL, K, mat(NULL, 0, 0), one);
	assert_true(*(float *)y.p == 3);
}

/* ---- activations --------------------------------------------------------------------- */

static struct mat halves(struct mat ab, int64_t which)
{
	struct mat wide = loaded(ab), half = mat_blank(ab.rows, ab.cols / 2);
	for (int64_t i = 0; i < ab.rows; i++)
		memcpy((float *)half.p + i * half.cols,
			(float *)wide.p + (2 * i + which) * half.cols,
			(size_t)half.cols * sizeof(float));
	return stored(half, ab.type);
}

static void check_act(struct device *d, enum act_kind kind, int64_t rows, int64_t f,
	enum dtype type, bool indexed)
{
	const int64_t stride = 3;
	struct twin ab = twin_stored(rows, 2 * f, type, 1),
		    z = twin_stored(rows, f, type, 1);
	struct twin dab = twin_result(rows, 2 * f, type), ga = twin_result(rows, f, type);
	struct twin gates = twin_random(rows, stride, 1), dg = twin_blank(rows, stride);
	struct mat a = stored(mat_blank(rows, f), type),
		   same = stored(mat_blank(rows, f), type);
	int32_t *index = indexed ? random_order(rows) : NULL;
	for (int64_t i = 0; i < rows * stride; i++)
		((float *)dg.f.p)[i] = 0;
	d->k->expert_act_fwd(d, kind, a, ab.f);
	d->k->act_fwd(d, kind, same, halves(ab.f, 0), halves(ab.f, 1));
	check_same("expert_act_fwd", a, same);
	d->k->expert_act_bwd(
		d, kind, dab.f, ga.f, dg.f.p, z.f, ab.f, gates.f.p, index, stride);
	for (int64_t i = 0; i < rows; i++) {
		int64_t at = index ? index[i] : i * stride;
		dg.r[at] = ref_expert_act_bwd(kind, dab.r + 2 * i * f, ga.r + i * f,
			z.r + i * f, ab.r + 2 * i * f, gates.r[at], f);
	}
	check_result("expert_act_bwd, dab", dab);
	check_close(
		"expert_act_bwd, ga", loaded(ga.f).p, ga.r, rows * f, 2 * bounds[type]);
	twin_check("expert_act_bwd, dg", dg, 4 * bounds[type]); /* sums that cancel */
	float *again = floats(rows * stride);
	memcpy(again, dg.f.p, (size_t)(rows * stride) * sizeof(*again));
	d->k->expert_act_bwd(
		d, kind, ab.f, z.f, again, z.f, ab.f, gates.f.p, index, stride);
	check_same("expert_act_bwd, dab in place", ab.f, dab.f);
	check_same("expert_act_bwd, ga in place", z.f, ga.f);
	check_bits("expert_act_bwd, dg in place", again, dg.f.p, rows * stride);
}

DEVICE_TEST(activations)
{
	static const int64_t shapes[][2] = {{1, 1}, {5, 16}, {9, 33}, {3, 700}, {40, 96}};
	for (size_t s = 0; s < ARRAY_LEN(shapes); s++)
		for (enum dtype type = DT_F32; type <= DT_F16; type++)
			for (int kind = 0; kind < N_ACT_KINDS; kind++)
				for (int indexed = 0; indexed < 2; indexed++)
					if (act_is_gated(kind))
						check_act(d, kind, shapes[s][0],
							shapes[s][1], type, indexed);
}

/* ---- one expert ---------------------------------------------------------------------- */

/* One expert, which each row chooses, computes what a dense layer does: all bits of the forward and, with a
 * gate of 1, of the gradients of h and of the weights. */
static void check_dense(struct device *d, enum dtype type, bool normalize)
{
	enum { ROWS = 70, DIM = 48, F = 40 };
	const struct mat none = mat(NULL, 0, 0);
	struct router how = {.kind = ROUTER_SOFTMAX,
		.normalize = normalize,
		.scale = 1,
		.experts = 1,
		.per_row = 1,
		.seq_rows = ROWS};
	struct mat h = stored(seeded(ROWS, DIM, 1), type), wr = seeded(1, DIM, 2);
	struct mat w13 = stored(seeded(2 * F, DIM, 3), type);
	struct mat w2 = stored(seeded(DIM, F, 4), type), gates = mat_blank(ROWS, 1);
	struct mat w1 = mat_rows(w13, 0, F), w3 = mat_rows(w13, F, F);
	struct mat x = stored(mat_blank(ROWS, DIM), type), y = x, out = x;
	struct mat ab = stored(mat_blank(ROWS, 2 * F), type), act, a, b, want;
	int32_t *ids = ints(ROWS), *pos = ints(ROWS), *slots = ints(ROWS),
		*offsets = ints(2);
	y.p = stored(mat_blank(ROWS, DIM), type).p;
	out.p = stored(mat_blank(ROWS, DIM), type).p;
	want = stored(mat_blank(ROWS, DIM), type);
	act = stored(mat_blank(ROWS, F), type);
	a = stored(mat_blank(ROWS, F), type);
	b = stored(mat_blank(ROWS, F), type);
	d->k->route_fwd(d, ids, gates, floats(ROWS), ints(1), h, wr, NULL, none, &how);
	d->k->sort_slots(d, pos, slots, offsets, ids, ROWS, ROWS, 1, &how);
	const struct row_groups g = {offsets, 1, 1};
	d->k->rows_take(d, x, h, slots, 1);
	d->k->groups_fwd(d, ab, x, w13, &g);
	d->k->expert_act_fwd(d, ACT_SWIGLU, act, ab);
	d->k->groups_fwd(d, y, act, w2, &g);
	d->k->slots_combine(d, out, y, pos, 1, gates, none);
	d->k->linear_fwd(d, a, h, w1, none);
	d->k->linear_fwd(d, b, h, w3, none);
	d->k->act_fwd(d, ACT_SWIGLU, act, a, b);
	d->k->linear_fwd(d, want, act, w2, none);
	check_same("one expert", out, want);
}

DEVICE_TEST(one_expert)
{
	only_on_cpu(); /* a GPU's dense matmuls are cuBLASLt's */
	for (enum dtype type = DT_F32; type <= DT_F16; type++)
		for (int normalize = 0; normalize < 2; normalize++)
			check_dense(d, type, normalize);
}

/* ---- trials of the self-test --------------------------------------------------------- */

/* What a run's self-test compares with the CPU, in all types. */
DEVICE_TEST(self_test)
{
	static const int64_t shapes[][2] = {{37, 40}, {2, 1}, {150, 264}, {301, 36}};
	size_t n = test_device_slow(d) ? 1 : ARRAY_LEN(shapes);
	for (size_t s = 0; s < n; s++)
		for (enum dtype type = DT_F32; type <= DT_F16; type++) {
			const struct kernel_calls *calls =
				calls_of_experts(shapes[s][0], shapes[s][1], type);
			for (int64_t i = 0; i < calls->n; i++)
				check_call(calls->calls[i], reference_64(),
					tolerances[calls->calls[i].kernel]);
		}
}

int main(void)
{
	if (test_device_missing())
		return 0;
	return run_on_device();
}
