/*
 * The self-test of kernels: its work for every preset, and what it finds in matrices that are larger
 * than its staging buffer.
 * device: cpu cuda
 */
#include "tests/support/trials.h"
#include "tests/support/support.h"
#include "kernels/dtype_bits.h"
#include "kernels/selftest.h"
#include "train/selftest.h"
#include "plan/plan.h"

#include <dirent.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- presets ------------------------------------------------------------------------- */

/* The kernel calls of a run on one GPU, with samples. */
static void calls_of(const char *path, const char *more, struct kernel_calls *calls)
{
	enum { GPT2_VOCAB = 50257 };
	struct train_opts o;
	struct model m;
	struct str text = {0};
	struct err e = {0};
	if (file_read(path, 1 << 16, &text, &e))
		die_err(&e);
	str_printf(&text, "device = cuda\nsample-every = 1\n%s", more);
	if (opts_from_text(&train_program, &o, text.s, false, &e) ||
		options_check(&o, &e) ||
		model_init(&m, &o.model, o.model.vocab ? 0 : GPT2_VOCAB, &e) ||
		layout_resolve(&o, (int)max64(1, o.edit.workers), &e) ||
		layout_check(&o, &m, &e))
		fail_msg("%s: %s", path, e.msg);
	if (o.dtype == PRECISION_FLOAT8)
		model_set_float8(&m, o.float8_skip_ends);
	selftest_calls(&o, &m, 0, calls);
	model_release(&m);
	str_free(&text);
}

/* About a second of four threads with 20 GFLOP/s and 10 ns for a number each; Llama 405B has 400
 * million numbers, dots1 527 million, and Qwen3 0.6B 16 GFLOP. */
static void check_work(const char *path, const char *more)
{
	const double most_numbers = 530e6, most_flops = 17e9;
	struct kernel_calls calls = {0};
	struct selftest_work w;
	calls_of(path, more, &calls);
	selftest_measure(&calls, &w);
	if (w.numbers > most_numbers || w.flops > most_flops)
		fail_msg("%s with %s: %lld calls, %.0f million numbers, %.1f GFLOP", path,
			more, (long long)calls.n, w.numbers / 1e6, w.flops / 1e9);
	assert_true(calls.n > 60);
	kernel_calls_release(&calls);
}

/* Calls fn(path, more options) for a preset, in each type. */
static void each_type(const char *path, void (*fn)(const char *, const char *))
{
	static const char *const types[] = {"dtype = bf16\n", "dtype = fp16\n",
		"dtype = fp32\n", "dtype = float8\nfloat8-skip-ends = no\n"};
	/* Presets of local SGD have no model. */
	static const char model[] =
		"arch = llama\nlayers = 4\ndim = 4096\nheads = 32\ncontext = 4096\n"
		"batch = 8\nmicro-batch = 1\nedit-workers = 2\n";
	struct str text = {0}, more = {0};
	struct err e = {0};
	if (file_read(path, 1 << 16, &text, &e))
		die_err(&e);
	for (size_t i = 0; i < ARRAY_LEN(types); i++) {
		str_clear(&more);
		str_puts(&more, types[i]);
		if (strstr(text.s, "edit-"))
			str_puts(&more, model);
		if (!strstr(text.s, "\nexperts") || !strstr(types[i], "float8"))
			fn(path, more.s); /* (experts are not computed in float8) */
	}
	str_free(&text);
	str_free(&more);
}

static void each_preset(void (*fn)(const char *, const char *))
{
	enum { LEAST = 16 };
	static const char folder[] = "share/presets"; /* tests run in the repository */
	int n = 0;
	DIR *d = opendir(folder);
	assert_non_null(d);
	for (struct dirent *f; (f = readdir(d));) {
		struct str path = {0};
		str_printf(&path, "%s/%s", folder, f->d_name);
		if (text_ends(path.s, ".conf")) {
			each_type(path.s, fn);
			n++;
		}
		str_free(&path);
	}
	closedir(d);
	assert_true(n >= LEAST);
}

DEVICE_TEST(each_preset_takes_about_a_second)
{
	each_preset(check_work);
}

/* ---- large trials -------------------------------------------------------------------- */

static int run_call(const struct kernel_call *c, struct err *e)
{
	struct kernel_calls calls = {0};
	struct selftest r;
	kernel_calls_add(&calls, c);
	int rc = selftest_run(test_device(), 1, &calls, &r, e);
	kernel_calls_release(&calls);
	return rc;
}

enum {
	LONG = SELFTEST_STAGED + 1000,
	TALL = 4200,
	WIDE = 1024,
	OUT = 20000,
	IN = 64,
	ROWS = 48
};

static struct kernel_call long_row(void)
{
	return (struct kernel_call){KERNEL_linear_fwd,
		.m = {shape(2, LONG, DT_F32), shape(2, 1, DT_F32), shape(LONG, 1, DT_F32),
			shape(1, LONG, DT_F32)}};
}

static struct kernel_call tall(void)
{
	return (struct kernel_call){KERNEL_linear_bwd_w,
		.m = {shape(TALL, WIDE, DT_F32), shape(ROWS, TALL, DT_F32),
			shape(ROWS, WIDE, DT_F32)}};
}

/* Of all matmuls with more rows and columns than the CPU computes. */
static void check_matmuls(enum dtype type, enum dtype operand)
{
	const struct mat out = shape(ROWS, OUT, type), in = shape(ROWS, IN, type);
	const struct mat w = shape(OUT, IN, operand), x = shape(ROWS, IN, operand);
	const struct mat dy = shape(ROWS, OUT, operand), bias = shape(1, OUT, type);
	const struct mat dw = shape(OUT, IN, DT_F32);
	const bool bytes = dtype_bytes(operand) == 1;
	const struct kernel_call calls[] = {
		{KERNEL_linear_fwd, .m = {out, x, w, bias}},
		{KERNEL_linear_bwd_x, .m = {in, dy, w}},
		{KERNEL_linear_bwd_w, .m = {dw, dy, x}, .n = {!bytes}},
		{KERNEL_linear_gelu_fwd, .m = {out, out, x, w, bias}},
		{KERNEL_linear_gelu_bwd, .m = {in, dy, w, in, shape(1, IN, DT_F32)}},
	};
	for (size_t i = 0; i < (bytes ? 3 : ARRAY_LEN(calls)); i++) {
		struct kernel_call c = calls[i];
		struct err e = {0};
		for (int j = 0; bytes && j < 3; j++)
			if (c.m[j].type == operand)
				c.m[j] = with_scale(c.m[j]);
		if (run_call(&c, &e))
			fail_msg("%s", e.msg);
	}
}

DEVICE_TEST(large_trials_pass)
{
	const struct mat row = shape(1, LONG, DT_F32);
	const struct kernel_call calls[] = {long_row(), tall(), {KERNEL_zero, .m = {row}},
		{KERNEL_copy, .m = {row, row}}, {KERNEL_exact_sumsq, .m = {row}},
		{KERNEL_hash, .m = {row}},
		{KERNEL_grid_sum, .n = {LONG, 1, 0, GRID_ADD | GRID_KEPT}},
		{KERNEL_grid_sum, .m = {{.type = DT_BF16}},
			.n = {LONG, 1, 0, GRID_ADD | GRID_KEPT}},
		{KERNEL_grid_sum, .m = {{.type = DT_F16}},
			.n = {5003, 3, 1, GRID_KEPT | GRID_ROUNDED}},
		{KERNEL_grid_sum, .n = {5003, 3, 1, GRID_KEPT | GRID_ROUNDED}},
		{KERNEL_grid_sum, .n = {7, 500, 0, GRID_ROUNDED}},
		{KERNEL_grid_sum, .n = {300, 0, 1, GRID_ROUNDED}}};
	for (size_t i = 0; i < ARRAY_LEN(calls); i++) {
		struct err e = {0};
		if (run_call(&calls[i], &e))
			fail_msg("%s", e.msg);
	}
	check_matmuls(DT_F32, DT_F32);
	if (!d->discrete)
		return;
	check_matmuls(DT_BF16, DT_BF16);
	check_matmuls(DT_BF16, DT_E4M3);
}

/* ---- wrong kernels ------------------------------------------------------------------- */

static const struct kernels *right;
static int64_t wrong_at;
static float wrong;

static void spoil(struct device *d, struct mat m)
{
	device_put(d, (float *)m.p + wrong_at, &wrong, sizeof(wrong));
}

static void wrong_fwd(
	struct device *d, struct mat y, struct mat x, struct mat w, struct mat bias)
{
	right->linear_fwd(d, y, x, w, bias);
	spoil(d, y);
}

static void wrong_bwd_w(
	struct device *d, struct mat dw, struct mat dy, struct mat x, bool add)
{
	right->linear_bwd_w(d, dw, dy, x, add);
	spoil(d, dw);
}

/* A leaf is not counted, a sum is a unit too large, or a number is rounded wrongly. */
static enum { COUNT, UNIT, ROUNDING, WRONG_SUMS } wrong_sum;

static void wrong_grid_sum(struct device *d, const struct grid_sum *s, struct grid *grid)
{
	const struct grid zero = {.exponent = GRID_EXPONENT};
	int64_t unit;
	float x;
	right->grid_sum(d, s, grid);
	device_get(d, &unit, s->sum + 5, sizeof(unit));
	device_get(d, &x, s->rounded + 5, sizeof(x));
	unit++;
	x = nextafterf(x, INFINITY);
	if (wrong_sum == COUNT)
		device_put(d, grid, &zero, sizeof(zero));
	else if (wrong_sum == UNIT)
		device_put(d, s->sum + 5, &unit, sizeof(unit));
	else
		device_put(d, s->rounded + 5, &x, sizeof(x));
}

DEVICE_TEST(wrong_sums_are_found)
{
	static const char *const names[] = {": grid: ", ": sum: ", ": rounded: "};
	const struct kernel_call c = {
		KERNEL_grid_sum, .n = {2003, 2, 0, GRID_KEPT | GRID_ROUNDED}};
	struct kernels k = *d->k;
	right = d->k;
	k.grid_sum = wrong_grid_sum;
	for (int i = 0; i < WRONG_SUMS; i++) {
		struct err e = {0};
		wrong_sum = i;
		d->k = &k;
		int rc = run_call(&c, &e);
		d->k = right;
		assert_int_equal(rc, -1);
		if (!strstr(e.msg, names[i]))
			fail_msg("not%s: %s", names[i], e.msg);
	}
}

/* One element of the copy is the next number of bf16, or the sum of its column is as much larger. */
static bool wrong_copy;
enum { COPY_ROW = 702, COPY_COL = 100 };

static void wrong_norm_bwd(struct device *d, enum norm_kind kind,
	const struct norm_grads *to, struct mat dy, struct mat x, struct mat stats,
	struct mat gamma, int64_t first, int64_t rows)
{
	uint16_t *at = (uint16_t *)to->copy.p + COPY_ROW * x.cols + COPY_COL, bits;
	float *sum = (float *)to->sums.p + COPY_COL, total;
	right->norm_bwd(d, kind, to, dy, x, stats, gamma, first, rows);
	device_get(d, &bits, at, sizeof(bits));
	device_get(d, &total, sum, sizeof(total));
	total -= widen_bits(bits, DT_BF16);
	bits++;
	total += widen_bits(bits, DT_BF16);
	if (wrong_copy)
		device_put(d, at, &bits, sizeof(bits));
	else
		device_put(d, sum, &total, sizeof(total));
}

/* With a copy and its sums, as in a model with biases. */
static struct kernel_call norm_bwd_call(int64_t rows, int64_t cols)
{
	const struct mat x = shape(rows, cols, DT_F32), dy = shape(rows, cols, DT_BF16);
	const struct mat row = shape(1, cols, DT_F32);
	return (struct kernel_call){KERNEL_norm_bwd,
		.m = {x, row, row, dy, x, shape(2, rows, DT_F32), row, dy, row},
		.n = {NORM_LAYER, rows}};
}

/* An error of one bf16 number in one element of a column. */
DEVICE_TEST(a_wrong_rounding_is_found)
{
	static const char *const names[] = {": sums of the copy: element [0][100] is",
		": copy of dx: element [702][100] is"};
	const struct kernel_call c = norm_bwd_call(4000, 768);
	struct kernels k = *d->k;
	if (!d->discrete)
		skip();
	right = d->k;
	k.norm_bwd = wrong_norm_bwd;
	for (int i = 0; i < 2; i++) {
		struct err e = {0};
		wrong_copy = i;
		d->k = &k;
		int rc = run_call(&c, &e);
		d->k = right;
		assert_int_equal(rc, -1);
		if (!strstr(e.msg, names[i]))
			fail_msg("not%s: %s", names[i], e.msg);
	}
}

static void wrong_zero(struct device *d, struct mat x)
{
	right->zero(d, x);
	spoil(d, x);
}

/* Spoils one number; the self-test says so. */
static void check_said(struct kernel_call c, int64_t at, float value, const char *said)
{
	struct device *d = test_device();
	struct kernels k = *d->k;
	struct err e = {0};
	right = d->k;
	k.linear_fwd = wrong_fwd;
	k.linear_bwd_w = wrong_bwd_w;
	k.zero = wrong_zero;
	wrong_at = at;
	wrong = value;
	d->k = &k;
	int rc = run_call(&c, &e);
	d->k = right;
	assert_int_equal(rc, -1);
	if (!strstr(e.msg, said))
		fail_msg("not%s: %s", said, e.msg);
}

/* The self-test names the only element that is wrong. */
static void check_found(struct kernel_call c, int64_t row, int64_t col, float value)
{
	char element[64];
	snprintf(element, sizeof(element), ": element [%lld][%lld] is ", (long long)row,
		(long long)col);
	check_said(c, row * c.m[0].cols + col, value, element);
}

/* In the first and in later pieces, in a first and in a last element; a number, and none. */
DEVICE_TEST(one_wrong_element_is_found)
{
	static const float values[] = {1e3f, NAN};
	for (size_t i = 0; i < ARRAY_LEN(values); i++) {
		check_found(tall(), 0, 0, values[i]);
		check_found(tall(), 700, 1000, values[i]);
		check_found(tall(), TALL - 1, WIDE - 1, values[i]);
		check_found(long_row(), 0, SELFTEST_STAGED + 7, values[i]);
		check_found(long_row(), 1, LONG - 1, values[i]);
	}
}

/* Behind the last element, and at the fence's end. */
DEVICE_TEST(writes_behind_a_matrix_are_found)
{
	static const char said[] = ": memory: the kernel wrote past the end of a matrix";
	const struct kernel_call small = {KERNEL_linear_fwd,
		.m = {shape(3, 7, DT_F32), shape(3, 5, DT_F32), shape(7, 5, DT_F32)}};
	check_said(small, 3 * 7, 0, said);
	check_said(small, 3 * 7 + 31, 1, said);
	check_said(tall(), TALL * WIDE, 0, said);
}

/* Kernels that must have the CPU's bits. */
DEVICE_TEST(signs_of_zeros_are_compared)
{
	const struct kernel_call c = {KERNEL_zero, .m = {shape(1, 9, DT_F32)}};
	check_said(c, 5, -0.0f, ": element [0][5] is -0 on the GPU, but 0 on the CPU");
}

/* ---- columns of another matrix --------------------------------------------------------- */

static struct mat columns(int64_t rows, int64_t cols, int64_t stride, enum dtype type)
{
	struct mat m = shape(rows, cols, type);
	m.stride = stride;
	return m;
}

static void dense_attn_bwd(struct device *d, const struct attn *a, struct mat dq,
	struct mat dk, struct mat dv, float *delta, struct mat dout, struct mat o,
	const float *lse, struct mat q, struct mat k, struct mat v, bool begin)
{
	dq.stride = dk.stride = dv.stride = 0;
	right->attn_bwd(d, a, dq, dk, dv, delta, dout, o, lse, q, k, v, begin);
}

static void dense_rope(struct device *d, struct mat x, int64_t dim, struct mat rope,
	const int32_t *pos, float sign)
{
	x.stride = 0;
	right->rope(d, x, dim, rope, pos, sign);
}

/* Kernels get columns of another matrix where the run's do, and are found if they write elsewhere. */
DEVICE_TEST(columns_are_tried)
{
	enum { N = 200, BATCH = 2, DIM = 64, HEADS = 4, KV = 2 };
	enum { Q = HEADS * DIM, K = KV * DIM, ALL = Q + 2 * K, POSITIONS = 300 };
	const enum dtype type = d->discrete ? DT_BF16 : DT_F32;
	const struct mat q = shape(BATCH * N, Q, type), k = shape(BATCH * N, K, type);
	const struct mat dq = columns(BATCH * N, Q, ALL, type);
	const struct mat dk = columns(BATCH * N, K, ALL, type);
	const struct attn a = {.batch = BATCH,
		.heads = HEADS,
		.kv_heads = KV,
		.dim = DIM,
		.q_rows = N,
		.k_rows = N,
		.q_first = {0, N / 2},
		.k_first = {0, N / 2},
		.scale = 0.125f};
	const struct kernel_call calls[] = {
		{KERNEL_attn_bwd, .m = {dq, dk, dk, q, q, q, k, k}, .n = {true},
			.attn = a},
		{KERNEL_rope, .m = {dk, shape(POSITIONS, DIM, DT_F32)}, .n = {DIM, true}},
	};
	struct kernels wrong_ones = *d->k;
	right = d->k;
	wrong_ones.attn_bwd = dense_attn_bwd;
	wrong_ones.rope = dense_rope;
	for (size_t i = 0; i < ARRAY_LEN(calls); i++) {
		struct err e = {0};
		if (run_call(&calls[i], &e))
			fail_msg("%s", e.msg);
		d->k = &wrong_ones;
		int rc = run_call(&calls[i], &e);
		d->k = right;
		assert_int_equal(rc, -1);
	}
}

/* The tiles of the largest call; one number of its last row is wrong. */
static int64_t most_tiles;

static void wrong_attn_fwd(struct device *d, const struct attn *a, struct mat o,
	float *max, float *sum, struct mat q, struct mat k, struct mat v, bool begin,
	bool end)
{
	most_tiles = max64(most_tiles, a->batch * a->heads * ceil_div(a->q_rows, 128));
	right->attn_fwd(d, a, o, max, sum, q, k, v, begin, end);
	d->k->zero(d, mat_rows(o, o.rows - 1, 1));
}

/* More than the largest GPU has multiprocessors, twice; but not more than the run has. */
DEVICE_TEST(blocks_have_several_tiles)
{
	enum { N = 128, DIM = 64, HEADS = 12, TWICE = 2 * 192 };
	static const int64_t batches[] = {64, 3};
	struct kernels wrong_ones = *d->k;
	right = d->k;
	wrong_ones.attn_fwd = wrong_attn_fwd;
	for (size_t i = 0; i < ARRAY_LEN(batches); i++) {
		const struct attn a = {.batch = batches[i],
			.heads = HEADS,
			.kv_heads = HEADS,
			.dim = DIM,
			.q_rows = N,
			.k_rows = N,
			.q_first = {0, N / 2},
			.k_first = {0, N / 2},
			.scale = 0.125f};
		const struct mat q = shape(a.batch * N, HEADS * DIM, DT_F32);
		const struct kernel_call c = {
			KERNEL_attn_fwd, .m = {q, q, q, q}, .n = {true}, .attn = a};
		struct err e = {0};
		most_tiles = 0;
		if (run_call(&c, &e))
			fail_msg("%s", e.msg);
		d->k = &wrong_ones;
		int rc = run_call(&c, &e);
		d->k = right;
		assert_int_equal(rc, -1);
		assert_true(most_tiles >= min64(TWICE, a.batch * HEADS));
		assert_true(most_tiles <= min64(TWICE + 20, a.batch * HEADS));
	}
}

/* Calls that differ in this only are two. */
DEVICE_TEST(columns_are_another_call)
{
	struct kernel_call c = {KERNEL_rope,
		.m = {shape(8, 64, DT_F32), shape(9, 64, DT_F32)}, .n = {64}};
	struct kernel_calls calls = {0};
	kernel_calls_add(&calls, &c);
	c.m[0].stride = 128;
	kernel_calls_add(&calls, &c);
	kernel_calls_add(&calls, &c);
	assert_int_equal(calls.n, 2);
	kernel_calls_release(&calls);
}

/* ---- right kernels -------------------------------------------------------------------- */

static struct kernel_calls right_calls;

/* Adds a call to right_calls; a matmul with sums of the same length, but fewer of them. */
static void add_call(struct kernel_call c)
{
	enum { FEW = 64 };
	/* Rows and columns of each matrix; k: those that the matmul sums over. */
	static const char *const dims[N_KERNELS] = {
		[KERNEL_linear_fwd] = "no nk ok 1o",
		[KERNEL_linear_row] = "no nk ok 1o",
		[KERNEL_linear_gelu_fwd] = "no no nk ok 1o",
		[KERNEL_linear_bwd_x] = "ni nk ki",
		[KERNEL_linear_gelu_bwd] = "ni nk ki ni 1i",
		[KERNEL_linear_bwd_w] = "oi ko ki",
	};
	const char *s = dims[c.kernel];
	for (size_t i = 0; s && i <= strlen(s) / 3; i++) {
		struct mat *m = &c.m[i];
		m->rows = s[3 * i] == 'k' ? m->rows : min64(m->rows, FEW);
		m->cols = s[3 * i + 1] == 'k' ? m->cols : min64(m->cols, FEW);
	}
	kernel_calls_add(&right_calls, &c);
}

/* Adds the calls of a run with short sequences. */
static void add_calls(const char *path, const char *more)
{
	enum { DY = 3, GAMMA = 6, COPY, SUMS };
	struct kernel_calls calls = {0};
	struct str all = {0};
	str_printf(&all, "%slayers = 3\ncontext = 128\nbatch = %d\nmicro-batch = 2\n",
		more, strstr(more, "edit-workers") ? 8 : 2);
	calls_of(path, all.s, &calls);
	for (int64_t i = 0; i < calls.n; i++) {
		struct kernel_call c = calls.calls[i];
		add_call(c);
		if (c.kernel != KERNEL_norm_bwd || dtype_bytes(c.m[DY].type) != 2)
			continue;
		c.m[COPY] = c.m[DY]; /* as models with biases have them */
		c.m[SUMS] = c.m[GAMMA];
		add_call(c);
	}
	kernel_calls_release(&calls);
	str_free(&all);
}

/* Error / tolerance, the largest of all calls of a kernel. */
static struct margin {
	double worst;
	struct str call;
} margins[N_KERNELS];

/* Runs a call with the random numbers of each seed; with those of a few seeds if no error is near the
 * tolerance. */
static void try_seeds(struct trial *t, const struct kernel_call *c, int n_seeds)
{
	enum { FEW = 4 };
	struct margin *m = &margins[c->kernel];
	double worst = 0;
	for (int64_t seed = 1; seed <= n_seeds && (seed <= FEW || worst > 0.25); seed++) {
		t->worst = 0;
		t->n_random = seed << 40;
		trial_run(t, c, &tolerances[c->kernel]);
		if (t->e->code)
			fail_msg("seed %lld: %s", (long long)seed, t->e->msg);
		worst = fmax(worst, t->worst);
		if (t->worst <= m->worst)
			continue;
		m->worst = t->worst;
		str_clear(&m->call);
		append_call_text(&m->call, c);
	}
}

static void try_right_calls(struct device *d, int n_seeds)
{
	struct device cpu;
	struct arena memory[SIDES], scratch;
	struct selftest_work work;
	struct err e = {0};
	struct trial t = {
		.d = {d, &cpu}, .memory = {&memory[GPU], &memory[CPU]}, .e = &e};
	selftest_measure(&right_calls, &work);
	device_open_cpu(&cpu, 0);
	arena_init(&scratch, "scratch", (size_t)64 << 20);
	cpu.scratch = &scratch;
	device_arena_init(d, &memory[GPU], "trials", work.gpu_bytes);
	arena_init(&memory[CPU], "trials", work.cpu_bytes);
	trial_begin(&t);
	for (int64_t i = 0; i < right_calls.n; i++)
		if (tolerances[right_calls.calls[i].kernel].exact > 0)
			try_seeds(&t, &right_calls.calls[i], n_seeds);
	device_arena_release(d, &memory[GPU]);
	arena_release(&memory[CPU]);
	arena_release(&scratch);
	device_close(&cpu);
}

/* No seed's random numbers are refused: one seed at some widths, or with LONG=yes 50 seeds at the widths and in
 * the types of all presets. Kernels that must have the CPU's bits are left out. */
DEVICE_TEST(right_kernels_pass)
{
	enum { SEEDS = 50 };
	const char *all = getenv("LONG");
	bool whole = all && !strcmp(all, "yes");
	if (!d->discrete)
		skip();
	if (whole)
		each_preset(add_calls);
	else
		add_calls("share/presets/gpt2-124m.conf", "dtype = bf16\n");
	for (int64_t cols = 2048; cols <= 16384; cols += 1024)
		add_call(norm_bwd_call(64, cols));
	try_right_calls(d, whole ? SEEDS : 1);
	for (int i = 0; i < N_KERNELS; i++) {
		if (whole && margins[i].worst > 0)
			print_message("# figure: %.2f of the tolerance: %s\n",
				margins[i].worst, margins[i].call.s);
		str_free(&margins[i].call);
	}
	kernel_calls_release(&right_calls);
}

int main(void)
{
	if (test_device_missing())
		return 0;
	return run_on_device();
}
