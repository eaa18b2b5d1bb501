/*
 * Kernels of layers: linear, norm, activations, RoPE, embeddings, dropout.
 * isa: sse2 avx2 avx512
 * device: cpu cuda
 */
#include "tests/support/device.h"
#include "tests/support/kernels_ref.h"

#include <math.h>
#include <string.h>

/* ---- linear ---------------------------------------------------------------------- */

/* Shapes with tails, several tiles, and single rows, in addition to random shapes. */
static const struct linear_shape {
	int64_t n, in, out;
} linear_shapes[] = {
	{1, 1, 1}, {1, 300, 257}, {3, 17, 1}, {64, 64, 64}, {65, 63, 129}, {128, 96, 384},
	{33, 1000, 20}, {530, 70, 600}, /* more than a tile of 512 each way */
};

static void check_linear(struct device *d, struct linear_shape s, bool has_bias)
{
	const struct kernels *k = d->k;
	struct twin x = twin_random(s.n, s.in, 1), w = twin_random(s.out, s.in, 0.5);
	struct twin dy = twin_random(s.n, s.out, 1), y = twin_blank(s.n, s.out);
	struct twin bias = has_bias ? twin_random(1, s.out, 1) : twin_none();
	struct twin dx = twin_blank(s.n, s.in), dw = twin_blank(s.out, s.in);
	struct twin more_x = twin_random(s.n, s.in, 1);
	struct twin more_w = twin_random(s.out, s.in, 1);

	k->linear_fwd(d, y.f, x.f, w.f, bias.f);
	ref_linear_fwd(y.r, x.r, w.r, bias.r, s.n, s.in, s.out);
	twin_check("linear_fwd", y, 5e-6);
	k->linear_row(d, y.f, x.f, w.f, bias.f);
	twin_check("linear_row", y, 5e-6);

	k->linear_bwd_x(d, dx.f, dy.f, w.f, false);
	ref_linear_bwd_x(dx.r, dy.r, w.r, s.n, s.in, s.out);
	twin_check("linear_bwd_x", dx, 5e-6);
	k->linear_bwd_x(d, more_x.f, dy.f, w.f, true);
	ref_linear_bwd_x(more_x.r, dy.r, w.r, s.n, s.in, s.out);
	twin_check("linear_bwd_x, added", more_x, 5e-6);

	k->linear_bwd_w(d, dw.f, dy.f, x.f, false);
	ref_linear_bwd_w(dw.r, dy.r, x.r, s.n, s.in, s.out);
	twin_check("linear_bwd_w", dw, 5e-6);
	k->linear_bwd_w(d, more_w.f, dy.f, x.f, true);
	ref_linear_bwd_w(more_w.r, dy.r, x.r, s.n, s.in, s.out);
	twin_check("linear_bwd_w, added", more_w, 5e-6);
}

static void linear(void **state)
{
	for (size_t i = 0; i < ARRAY_LEN(linear_shapes); i++)
		check_linear(*state, linear_shapes[i], i % 2);
	for (int i = 0; i < 12; i++) {
		struct linear_shape s = {pick(1, 150), pick(1, 150), pick(1, 150)};
		check_linear(*state, s, i % 2);
	}
}

/* linear_row gives a row the same bits alone and among others. */
static void linear_row_is_alone(void **state)
{
	enum { ROWS = 64, IN = 203, OUT = 391 };
	static const int64_t at_once[] = {1, 2, 7};
	struct device *d = *state;
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

static void bias(void **state)
{
	struct device *d = *state;
	for (int i = 0; i < 10; i++) {
		int64_t n = pick(1, 300), out = pick(1, 300);
		struct twin y = twin_random(n, out, 1), b = twin_random(1, out, 1);
		struct twin db = twin_blank(1, out);
		d->k->bias_bwd(d, db.f, y.f);
		ref_bias_bwd(db.r, y.r, n, out);
		twin_check("bias_bwd", db, 2e-6);
		d->k->bias_fwd(d, y.f, b.f);
		for (int64_t j = 0; j < n * out; j++)
			y.r[j] += b.r[j % out];
		twin_check("bias_fwd", y, 1e-7);
	}
}

/* The CPU's order: blocks of 64 rows, then the blocks. */
static void bias_bwd_order(void **state)
{
	enum { ROWS = 200, COLS = 77 };
	struct device *d = *state;
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

/* ---- norm ------------------------------------------------------------------------ */

struct norm_case {
	enum norm_kind kind;
	int64_t rows, cols;
	bool has_beta;
	float shift; /* added to x: a mean far from zero */
	double bound;
};

static void check_norm(struct device *d, struct norm_case c)
{
	const float eps = 1e-5f;
	int64_t n = c.rows, cols = c.cols;
	struct twin x = twin_random(n, cols, 1), dy = twin_random(n, cols, 1);
	struct twin gamma = twin_random(1, cols, 1), y = twin_blank(n, cols);
	struct twin beta = c.has_beta ? twin_random(1, cols, 1) : twin_none();
	struct twin dx = twin_random(n, cols, 1), dgamma = twin_blank(1, cols);
	struct twin dbeta = c.has_beta ? twin_blank(1, cols) : twin_none();
	struct mat stats = mat_blank(2, n);
	bool far = c.shift > 0; /* where x - mean cancels */
	for (int64_t i = 0; i < n * cols; i++)
		((float *)x.f.p)[i] += c.shift;
	twin_sync(x);

	d->k->norm_fwd(d, c.kind, y.f, stats, x.f, gamma.f, beta.f, eps);
	ref_norm_fwd(c.kind, y.r, x.r, gamma.r, beta.r, n, cols, (double)eps);
	twin_check(far ? "norm_fwd, mean 100" : "norm_fwd", y, c.bound);
	d->k->norm_bwd_x(d, c.kind, dx.f, dy.f, x.f, stats, gamma.f);
	ref_norm_bwd(c.kind, dx.r, NULL, NULL, dy.r, x.r, gamma.r, n, cols, (double)eps);
	twin_check("norm_bwd_x", dx, 5e-6);

	/* of all rows, then of a range of rows, which overwrites the result */
	int64_t first = pick(0, n - 1), rows = pick(1, n - first);
	for (int part = 0; part < 2; part++) {
		int64_t f = part ? first : 0, r = part ? rows : n;
		d->k->norm_bwd_w(d, c.kind, dgamma.f, dbeta.f, dy.f, x.f, stats, f, r);
		memset(dgamma.r, 0, (size_t)cols * sizeof(double));
		if (c.has_beta)
			memset(dbeta.r, 0, (size_t)cols * sizeof(double));
		ref_norm_bwd(c.kind, NULL, dgamma.r, dbeta.r, dy.r + f * cols,
			x.r + f * cols, gamma.r, r, cols, (double)eps);
		twin_check(far ? "norm_bwd_w, gamma, mean 100" : "norm_bwd_w, gamma",
			dgamma, c.bound);
		if (c.has_beta)
			twin_check("norm_bwd_w, beta", dbeta, 2e-6);
	}
}

static void norm(void **state)
{
	static const int64_t wide[] = {1024, 1030, 5000, 9000, 17000};
	for (int kind = 0; kind < 2; kind++) {
		for (int i = 0; i < 12; i++) {
			struct norm_case c = {
				.kind = kind,
				.rows = pick(1, 200),
				.cols = pick(2, 260),
				.has_beta = kind == NORM_LAYER && i % 3,
				.bound = 5e-6,
			};
			check_norm(*state, c);
		}
		for (size_t i = 0; i < ARRAY_LEN(wide); i++)
			check_norm(*state,
				(struct norm_case){kind, 3, wide[i], true, 0, 5e-6});
		check_norm(*state, (struct norm_case){kind, 9, 333, true, 100, 5e-5});
	}
	check_norm(*state, (struct norm_case){NORM_RMS, 5, 1, false, 0, 5e-6});
}

/* ---- element by element ---------------------------------------------------------- */

static void act(void **state)
{
	struct device *d = *state;
	for (int i = 0; i < 24; i++) {
		enum act_kind kind = i % 3;
		bool wide = i >= 12; /* for large numbers 1 - sigmoid cancels */
		bool gated = kind == ACT_SWIGLU;
		int64_t n = pick(1, 150), cols = pick(1, 150);
		struct twin a = twin_random(n, cols, wide ? 6 : 1);
		struct twin b = gated ? twin_random(n, cols, 1) : twin_none();
		struct twin dy = twin_random(n, cols, 1), y = twin_blank(n, cols);
		struct twin da = twin_blank(n, cols);
		struct twin db = gated ? twin_blank(n, cols) : twin_none();
		d->k->act_fwd(d, kind, y.f, a.f, b.f);
		ref_act_fwd(kind, y.r, a.r, b.r, n * cols);
		twin_check("act_fwd", y, 5e-7);
		d->k->act_bwd(d, kind, da.f, db.f, dy.f, a.f, b.f);
		ref_act_bwd(kind, da.r, db.r, dy.r, a.r, b.r, n * cols);
		twin_check(wide ? "act_bwd, wide" : "act_bwd", da, wide ? 5e-6 : 1e-6);
		if (gated)
			twin_check("act_bwd, b", db, 1e-6);
		d->k->act_bwd(d, kind, dy.f, db.f, dy.f, a.f, b.f);
		check_bits("act_bwd in place", dy.f.p, da.f.p, n * cols);
	}
}

static void add(void **state)
{
	struct device *d = *state;
	for (int i = 0; i < 6; i++) {
		struct twin a = twin_random(pick(1, 200), pick(1, 200), 1);
		struct twin b = twin_random(a.f.rows, a.f.cols, 1);
		struct twin y = twin_blank(a.f.rows, a.f.cols);
		for (int64_t j = 0; j < mat_size(y.f); j++)
			y.r[j] = a.r[j] + b.r[j];
		d->k->add(d, y.f, a.f, b.f);
		twin_check("add", y, 1e-7);
		struct mat to = i % 2 ? a.f : b.f;
		d->k->add(d, to, a.f, b.f);
		check_bits("add in place", to.p, y.f.p, mat_size(y.f));
	}
}

static void rope(void **state)
{
	enum { POSITIONS = 50 };
	static const int64_t dims[] = {2, 8, 30, 64, 128};
	struct device *d = *state;
	for (size_t i = 0; i < ARRAY_LEN(dims); i++) {
		int64_t dim = dims[i], rows = pick(1, 90), cols = dim * pick(1, 5);
		struct twin x = twin_random(rows, cols, 1);
		struct twin table = twin_random(POSITIONS, dim, 1);
		int32_t *pos = ints(rows);
		for (int64_t r = 0; r < rows; r++)
			pos[r] = (int32_t)pick(0, POSITIONS - 1);
		for (int sign = 1; sign >= -1; sign -= 2) {
			d->k->rope(d, x.f, dim, table.f, pos, (float)sign);
			ref_rope(x.r, rows, cols, dim, table.r, pos, sign);
			twin_check("rope", x, 1e-6);
		}
	}
}

/* ---- embeddings ------------------------------------------------------------------ */

/* Three slices of a table, which hold all ids but a few. */
static void embed(void **state)
{
	struct device *d = *state;
	for (int i = 0; i < 8; i++) {
		int64_t n = pick(1, 200), cols = pick(1, 200), slice = pick(1, 20);
		struct twin y = twin_random(n, cols, 1), dy = twin_random(n, cols, 1);
		struct mat alone = mat_blank(n, cols);
		int32_t *ids = ints(n);
		for (int64_t r = 0; r < n; r++)
			ids[r] = (int32_t)pick(-1, 3 * slice);
		for (int64_t s = 0; s < 3; s++) {
			struct twin w = twin_random(slice, cols, 1);
			struct twin dw = twin_blank(slice, cols);
			double *want = doubles(n * cols);
			ref_embed_fwd(want, w.r, ids, s * slice, n, slice, cols);
			d->k->embed_fwd(d, alone, w.f, ids, s * slice, false);
			check_close("embed_fwd", alone.p, want, n * cols, 0);
			d->k->embed_fwd(d, y.f, w.f, ids, s * slice, true);
			for (int64_t j = 0; j < n * cols; j++)
				y.r[j] += want[j];
			twin_check("embed_fwd, added", y, 1e-7);
			d->k->embed_bwd(d, dw.f, dy.f, ids, s * slice);
			ref_embed_bwd(dw.r, dy.r, ids, s * slice, n, slice, cols);
			twin_check("embed_bwd", dw, 2e-6);
		}
	}
}

/* The sum of a column has the same bits alone, and among other columns. */
static void sums_of_columns(void **state)
{
	enum { ROWS = 1501, COLS = 259 };
	struct device *d = *state;
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
static void rows_anywhere(void **state)
{
	enum { ROWS = 9 };
	static const int64_t cols[] = {64, 260, 1028, 4100};
	struct device *d = *state;
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

/* The order that layers.h specifies: rows of dy in ascending order. */
static void embed_bwd_order(void **state)
{
	enum { ROWS = 300, VOCAB = 5, COLS = 130 };
	struct device *d = *state;
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

static void dropout_mask(void **state)
{
	struct device *d = *state;
	static const float ps[] = {0, 0.1f, 0.5f, 0.9f};
	for (size_t i = 0; i < ARRAY_LEN(ps); i++) {
		int64_t seq_rows = pick(1, 40), rows = 3 * seq_rows, cols = pick(1, 300);
		struct dropout o = dropout_some(seq_rows, ps[i]);
		struct twin x = twin_random(rows, cols, 1), y = twin_blank(rows, cols);
		o.first_col = pick(0, 9);
		d->k->dropout(d, y.f, x.f, &o);
		for (int64_t j = 0; j < rows * cols; j++)
			y.r[j] =
				x.r[j] * ref_keep(&o, j / cols / seq_rows, 0,
						 o.pos[j / cols], o.first_col + j % cols);
		for (int64_t j = 0; j < rows * cols; j++)
			assert_int_equal(((float *)y.f.p)[j] == 0, y.r[j] == 0);
		twin_check("dropout", y, 2e-7);
		d->k->dropout(d, x.f, x.f, &o);
		check_bits("dropout in place", x.f.p, y.f.p, rows * cols);
	}
}

/* Slices of columns get the mask of the whole, wherever they begin. */
static void dropout_of_slices(void **state)
{
	enum { SEQ = 30, ROWS = 3 * SEQ, COLS = 101 };
	static const int64_t cuts[] = {0, 1, 7, 8, 50, 99, COLS};
	struct device *d = *state;
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
static void dropout_of_pieces(void **state)
{
	enum { SEQ = 30, ROWS = 3 * SEQ, COLS = 37 };
	static const int64_t cuts[] = {0, 1, 29, 30, 47, 61, ROWS};
	struct device *d = *state;
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
static void dropout_rate(void **state)
{
	enum { SEQ = 100, ROWS = 3 * SEQ, COLS = 500, N = ROWS * COLS };
	static const float ps[] = {0.1f, 0.25f, 0.5f};
	struct device *d = *state;
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
	const struct CMUnitTest tests[] = {
		on_device(linear),
		on_device(linear_row_is_alone),
		on_device(bias),
		on_device(bias_bwd_order),
		on_device(sums_of_columns),
		on_device(rows_anywhere),
		on_device(norm),
		on_device(act),
		on_device(add),
		on_device(rope),
		on_device(embed),
		on_device(embed_bwd_order),
		on_device(dropout_mask),
		on_device(dropout_of_slices),
		on_device(dropout_of_pieces),
		on_device(dropout_rate),
	};
	return run_on_device(tests);
}
