/*
 * Kernels of layers, what test_kernels_types.c does not compare: orders of sums, rows and slices that are
 * computed apart, results in place, numbers that cancel, dropout.
 * isa: sse2 avx2 avx512
 * device: cpu cuda
 */
#include "tests/support/device.h"
#include "tests/support/kernels_ref.h"

#include <math.h>
#include <string.h>

/* ---- linear ---------------------------------------------------------------------- */

/* linear_row gives a row the same bits alone and among others. */
DEVICE_TEST(linear_row_is_alone)
{
	enum { ROWS = 64, IN = 203, OUT = 391 };
	static const int64_t at_once[] = {1, 2, 7};
	struct twin x = twin_random(ROWS, IN, 1), w = twin_random(OUT, IN, 1);
	struct twin bias = twin_random(1, OUT, 1);
	struct mat all = mat_blank(ROWS, OUT), some = mat_blank(ROWS, OUT);
	d->k->linear_row(d, all, x.f, w.f, bias.f);
	for (size_t t = 0; t < ARRAY_LEN(at_once); t++) {
		for (int64_t i = 0; i < ROWS; i += at_once[t]) {
			int64_t n = min64(at_once[t], ROWS - i);
			d->k->linear_row(d, mat_rows(some, i, n), mat_rows(x.f, i, n),
				w.f, bias.f);
		}
		check_bits("linear_row", some.p, all.p, mat_size(all));
	}
}

/* The CPU's order: blocks of 64 rows, then the blocks. */
DEVICE_TEST(bias_bwd_order)
{
	enum { ROWS = 200, COLS = 77 };
	only_on_cpu();
	struct twin dy = twin_random(ROWS, COLS, 1);
	struct mat db = mat_blank(1, COLS), want = mat_blank(1, COLS);
	d->k->bias_bwd(d, db, dy.f);
	for (int64_t j = 0; j < COLS; j++) {
		float total = 0;
		for (int64_t r = 0; r < ROWS; r += 64) {
			float part = 0;
			for (int64_t i = r; i < min64(r + 64, ROWS); i++)
				part += ((const float *)dy.f.p)[i * COLS + j];
			total += part;
		}
		((float *)want.p)[j] = total;
	}
	check_bits("bias_bwd", db.p, want.p, COLS);
}

/* A GPU's: a warp adds every eighth row of a run, of 64 rows or more; then the warps, in order; then each
 * 32nd run, and these. */
static float bias_of_gpu(const float *dy, int64_t rows, int64_t cols)
{
	int64_t n_rows = round_up(max64(64, ceil_div(rows, 256)), 8);
	float runs[32] = {0}, total = 0;
	for (int64_t first = 0; first < rows; first += n_rows) {
		float warps[8] = {0}, run = 0;
		for (int64_t i = first; i < min64(first + n_rows, rows); i++)
			warps[(i - first) % 8] += dy[i * cols];
		for (int w = 0; w < 8; w++)
			run += warps[w];
		runs[first / n_rows % 32] += run;
	}
	for (int i = 0; i < 32; i++)
		total += runs[i];
	return total;
}

DEVICE_TEST(bias_bwd_order_of_gpu)
{
	static const int64_t shapes[][2] = {
		{1, 4}, {63, 5}, {200, 77}, {3001, 264}, {4000, 132}, {20003, 36}};
	if (!test_on_cuda())
		skip();
	for (size_t s = 0; s < ARRAY_LEN(shapes); s++) {
		int64_t rows = shapes[s][0], cols = shapes[s][1];
		struct mat dy = twin_random(rows, cols, 1).f, db = mat_blank(1, cols);
		d->k->bias_bwd(d, db, dy);
		for (int64_t j = 0; j < cols; j++) {
			float want = bias_of_gpu((const float *)dy.p + j, rows, cols);
			check_bits("bias_bwd", (float *)db.p + j, &want, 1);
		}
	}
}

/* ---- norms and activations ------------------------------------------------------- */

/* Where x - mean cancels: a mean of 100. */
DEVICE_TEST(norm_far_from_zero)
{
	enum { ROWS = 9, COLS = 333 };
	const float eps = 1e-5f;
	for (int kind = 0; kind < 2; kind++) {
		struct twin x = twin_random(ROWS, COLS, 1), y = twin_blank(ROWS, COLS);
		struct twin gamma = twin_random(1, COLS, 1),
			    beta = twin_random(1, COLS, 1);
		struct twin dy = twin_random(ROWS, COLS, 1), dgamma = twin_blank(1, COLS);
		struct mat stats = mat_blank(2, ROWS), dbeta = mat_blank(1, COLS);
		for (int64_t i = 0; i < ROWS * COLS; i++)
			((float *)x.f.p)[i] += 100;
		twin_sync(x);
		d->k->norm_fwd(d, kind, y.f, stats, x.f, gamma.f, beta.f, eps);
		ref_norm_fwd(kind, y.r, x.r, gamma.r, beta.r, ROWS, COLS, (double)eps);
		twin_check("norm_fwd, mean 100", y, 5e-5);
		d->k->norm_bwd_w(d, kind, dgamma.f, dbeta, dy.f, x.f, stats, 0, ROWS);
		ref_norm_bwd(kind, NULL, dgamma.r, NULL, dy.r, x.r, gamma.r, ROWS, COLS,
			(double)eps);
		twin_check("norm_bwd_w, gamma, mean 100", dgamma, 5e-5);
	}
}

/* For large numbers 1 - sigmoid cancels. */
DEVICE_TEST(act_far_from_zero)
{
	enum { ROWS = 90, COLS = 131, N = ROWS * COLS };
	for (int kind = 0; kind < N_ACT_KINDS; kind++) {
		bool gated = act_is_gated((enum act_kind)kind);
		struct twin a = twin_random(ROWS, COLS, 6), y = twin_blank(ROWS, COLS);
		struct twin b = gated ? twin_random(ROWS, COLS, 1) : twin_none();
		struct twin dy = twin_random(ROWS, COLS, 1), da = twin_blank(ROWS, COLS);
		struct twin db = gated ? twin_blank(ROWS, COLS) : twin_none();
		d->k->act_fwd(d, kind, y.f, a.f, b.f);
		ref_act_fwd(kind, y.r, a.r, b.r, N);
		twin_check("act_fwd, wide", y, 5e-7);
		d->k->act_bwd(d, kind, da.f, db.f, dy.f, a.f, b.f);
		ref_act_bwd(kind, da.r, db.r, dy.r, a.r, b.r, N);
		twin_check("act_bwd, wide", da, 5e-6);
		if (gated)
			twin_check("act_bwd, b, wide", db, 1e-6);
		d->k->act_bwd(d, kind, dy.f, db.f, dy.f, a.f, b.f);
		check_bits("act_bwd in place", dy.f.p, da.f.p, N);
	}
}

DEVICE_TEST(add_in_place)
{
	for (int i = 0; i < 2; i++) {
		struct mat a = twin_random(pick(1, 200), pick(1, 200), 1).f;
		struct mat b = twin_random(a.rows, a.cols, 1).f;
		struct mat y = mat_blank(a.rows, a.cols), to = i ? a : b;
		d->k->add(d, y, a, b);
		d->k->add(d, to, a, b);
		check_bits("add in place", to.p, y.p, mat_size(y));
	}
}

/* ---- rows and columns -------------------------------------------------------------- */

/* The sum of a column has the same bits alone, and among other columns. */
DEVICE_TEST(sums_of_columns)
{
	enum { ROWS = 1501, COLS = 259 };
	struct twin dy = twin_random(ROWS, COLS, 1);
	struct mat whole = mat_blank(1, COLS), alone = mat_blank(1, 1);
	struct mat column = mat_blank(ROWS, 1);
	d->k->bias_bwd(d, whole, dy.f);
	for (int64_t j = 0; j < COLS; j += 37) {
		for (int64_t i = 0; i < ROWS; i++)
			((float *)column.p)[i] = ((float *)dy.f.p)[i * COLS + j];
		d->k->bias_bwd(d, alone, column);
		check_bits("bias_bwd", alone.p, (float *)whole.p + j, 1);
	}
}

/* A row gets the same bits at any address: alone, and unaligned. */
DEVICE_TEST(rows_anywhere)
{
	enum { ROWS = 9 };
	static const int64_t cols[] = {64, 260, 768, 1028, 1600, 4100};
	for (size_t c = 0; c < ARRAY_LEN(cols); c++) {
		int64_t n = cols[c];
		struct mat x = twin_random(ROWS, n, 1).f, y = mat_blank(ROWS, n);
		struct mat gamma = twin_random(1, n, 1).f, none = mat(NULL, 0, 0);
		struct mat stats = mat_blank(2, ROWS), one = mat_blank(2, 1);
		float *moved = floats(n + 1), *out = floats(n + 1);
		d->k->norm_fwd(d, NORM_LAYER, y, stats, x, gamma, none, 1e-5f);
		for (int64_t r = 0; r < ROWS; r++) {
			struct mat in = mat(moved + r % 2, 1, n),
				   to = mat(out + r % 2, 1, n);
			memcpy(in.p, mat_rows(x, r, 1).p, (size_t)n * sizeof(float));
			d->k->norm_fwd(d, NORM_LAYER, to, one, in, gamma, none, 1e-5f);
			check_bits("norm_fwd", to.p, mat_rows(y, r, 1).p, n);
			assert_true(sumsq_of(d, in) == sumsq_of(d, mat_rows(x, r, 1)));
		}
	}
}

/* Columns of a matrix are copied, and rotated as in a matrix of their own; the others keep their bits. */
DEVICE_TEST(some_columns)
{
	enum { ROWS = 37, POSITIONS = 40 };
	static const int64_t of[][4] = {/* first, cols, head, of all */
		{0, 128, 64, 210}, {64, 144, 16, 210}, {5, 60, 20, 210}, {208, 2, 2, 210},
		{0, 128, 64, 240}, {128, 96, 48, 240}};
	for (size_t i = 0; i < 3 * ARRAY_LEN(of); i++) {
		int64_t first = of[i / 3][0], cols = of[i / 3][1], head = of[i / 3][2];
		const int64_t all = of[i / 3][3];
		struct mat table = twin_random(POSITIONS, head, 1).f;
		struct mat x = stored(twin_random(ROWS, all, 1).f, (enum dtype)(i % 3));
		struct mat some = mat_cols(x, first, cols);
		struct mat before = loaded(x);
		struct mat alone = stored(mat_blank(ROWS, cols), x.type);
		int32_t *pos = ints(ROWS);
		for (int r = 0; r < ROWS; r++)
			pos[r] = (int32_t)pick(0, POSITIONS - 1);
		d->k->copy(d, alone, some);
		d->k->rope(d, alone, head, table, pos, -1);
		d->k->rope(d, some, head, table, pos, -1);
		struct mat after = loaded(x), want = loaded(alone);
		d->k->copy(d, mat_cols(before, first, cols), want);
		check_bits("rope of some columns", after.p, before.p, ROWS * all);
	}
}

/* The order that layers.h specifies: rows of dy in ascending order. */
DEVICE_TEST(embed_bwd_order)
{
	enum { ROWS = 300, VOCAB = 5, COLS = 130 };
	struct twin dy = twin_random(ROWS, COLS, 1);
	struct mat dw = mat_blank(VOCAB, COLS), want = mat_blank(VOCAB, COLS);
	int32_t *ids = ints(ROWS);
	memset(want.p, 0, sizeof(float) * VOCAB * COLS);
	for (int64_t i = 0; i < ROWS; i++) {
		ids[i] = (int32_t)pick(0, VOCAB - 1);
		for (int64_t j = 0; j < COLS; j++)
			((float *)want.p)[ids[i] * COLS + j] +=
				((const float *)dy.f.p)[i * COLS + j];
	}
	d->k->embed_bwd(d, dw, dy.f, ids, 0);
	check_bits("embed_bwd", dw.p, want.p, VOCAB * COLS);
}

/* ---- dropout --------------------------------------------------------------------- */

/* Three sequences of rows at positions of a zigzag. */
static struct dropout dropout_some(int64_t seq_rows, float p)
{
	int32_t *pos = ints(3 * seq_rows);
	for (int64_t i = 0; i < 3 * seq_rows; i++)
		pos[i] = (int32_t)(i % seq_rows * (i % seq_rows % 2 ? 1 : 5));
	return (struct dropout){
		.key = {{0x12345678, 0x9abcdef0}},
		.p = p,
		.step = counter(77),
		.first_sample = 1000,
		.pos = pos,
		.seq_rows = seq_rows,
	};
}

DEVICE_TEST(dropout_in_place)
{
	struct dropout o = dropout_some(31, 0.5f);
	struct mat x = twin_random(3 * 31, 203, 1).f, y = mat_blank(3 * 31, 203);
	d->k->dropout(d, y, x, &o);
	d->k->dropout(d, x, x, &o);
	check_bits("dropout in place", x.p, y.p, mat_size(x));
}

/* Slices of columns get the mask of the whole, wherever they begin. */
DEVICE_TEST(dropout_of_slices)
{
	enum { SEQ = 30, ROWS = 3 * SEQ, COLS = 101 };
	static const int64_t cuts[] = {0, 1, 7, 8, 50, 99, COLS};
	struct dropout o = dropout_some(SEQ, 0.3f);
	struct twin x = twin_random(ROWS, COLS, 1);
	struct mat whole = mat_blank(ROWS, COLS);
	d->k->dropout(d, whole, x.f, &o);
	for (size_t i = 0; i + 1 < ARRAY_LEN(cuts); i++) {
		int64_t n = cuts[i + 1] - cuts[i];
		struct mat part = mat_blank(ROWS, n);
		for (int64_t r = 0; r < ROWS; r++)
			memcpy((float *)part.p + r * n,
				(float *)x.f.p + r * COLS + cuts[i],
				(size_t)n * sizeof(float));
		o.first_col = cuts[i];
		d->k->dropout(d, part, part, &o);
		for (int64_t r = 0; r < ROWS; r++)
			check_bits("dropout", (float *)part.p + r * n,
				(float *)whole.p + r * COLS + cuts[i], n);
	}
}

/* Ranges of rows get the mask of the whole, wherever they begin, also within a sequence. */
DEVICE_TEST(dropout_of_pieces)
{
	enum { SEQ = 30, ROWS = 3 * SEQ, COLS = 37 };
	static const int64_t cuts[] = {0, 1, 29, 30, 47, 61, ROWS};
	struct dropout o = dropout_some(SEQ, 0.3f);
	const int32_t *pos = o.pos;
	struct twin x = twin_random(ROWS, COLS, 1);
	struct mat whole = mat_blank(ROWS, COLS);
	d->k->dropout(d, whole, x.f, &o);
	for (size_t i = 0; i + 1 < ARRAY_LEN(cuts); i++) {
		int64_t n = cuts[i + 1] - cuts[i];
		struct mat part = mat_blank(n, COLS);
		o.first_row = cuts[i];
		o.pos = pos + cuts[i];
		d->k->dropout(d, part, mat_rows(x.f, cuts[i], n), &o);
		check_bits("dropout", part.p, mat_rows(whole, cuts[i], n).p, n * COLS);
	}
}

/* The fraction of kept elements is 1 - p, within 5 standard deviations. */
DEVICE_TEST(dropout_rate)
{
	enum { SEQ = 100, ROWS = 3 * SEQ, COLS = 500, N = ROWS * COLS };
	static const float ps[] = {0.1f, 0.25f, 0.5f};
	for (size_t i = 0; i < ARRAY_LEN(ps); i++) {
		struct dropout o = dropout_some(SEQ, ps[i]);
		struct mat x = mat_blank(ROWS, COLS);
		double p = (double)ps[i], kept = 0;
		for (int64_t j = 0; j < N; j++)
			((float *)x.p)[j] = 1;
		for (int64_t r = 0; r < ROWS; r++) /* of each row another */
			((int32_t *)o.pos)[r] = (int32_t)(r % SEQ);
		d->k->dropout(d, x, x, &o);
		for (int64_t j = 0; j < N; j++)
			kept += ((float *)x.p)[j] != 0;
		assert_near(kept / N, 1 - p, 5 * sqrt(p * (1 - p) / N));
	}
}

int main(void)
{
	return run_on_device();
}
