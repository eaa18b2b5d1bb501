/*
 * Matmuls at any alignment, in runs of rows, with GELU; and the algorithms that a GPU chooses, written to
 * text and read back. (test_kernels_types.c compares matmuls of all types with float64.)
 * isa: sse2 avx2 avx512
 * device: cpu cuda
 */
#include "tests/support/device.h"
#include "tests/support/kernels_ref.h"
#include "base/file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct twin twin_stored(int64_t rows, int64_t cols, enum dtype type, double scale)
{
	struct twin t = twin_random(rows, cols, scale);
	t.f = stored(t.f, type);
	struct twin back = {loaded(t.f), t.r};
	twin_sync(back);
	return t;
}

/* Compares a result to the precision of its type. */
static void check_result(const char *what, struct twin y)
{
	static const double bounds[] = {
		[DT_F32] = 5e-6, [DT_BF16] = 6e-3, [DT_F16] = 1e-3};
	struct mat got = loaded(y.f);
	check_close(what, got.p, y.r, mat_size(got), bounds[y.f.type]);
}

/* Rows of a larger matrix, at any alignment. */
DEVICE_TEST(alignments)
{
	enum { ROWS = 9, IN = 5, OUT = 24 };
	for (enum dtype type = 0; type <= DT_F16; type++) {
		struct twin x = twin_stored(ROWS, IN, type, 1),
			    w = twin_stored(OUT, IN, type, 1);
		for (int64_t first = 0; first < ROWS; first++) {
			struct twin y = twin_stored(ROWS, OUT, type, 1);
			struct mat part = mat_rows(y.f, first, ROWS - first);
			d->k->linear_fwd(d, part, mat_rows(x.f, first, ROWS - first), w.f,
				mat(NULL, 0, 0));
			ref_linear_fwd(y.r + first * OUT, x.r + first * IN, w.r, NULL,
				ROWS - first, IN, OUT);
			check_result("linear_fwd, of rows", y);
		}
	}
}

static void only_on_gpu(const struct device *d)
{
	if (!d->discrete)
		skip();
}

/* 256 + 2^-6, which needs more than 14 bits, as a sum of products of e4m3 and `type`. */
static float long_sum(struct device *d, enum dtype type)
{
	enum { N = 16 };
	struct mat x = mat_blank(N, N), w = mat_blank(N, N), y = mat_blank(N, N);
	memset(x.p, 0, (size_t)mat_bytes(x));
	for (int i = 0; i < N; i++) {
		((float *)x.p)[i * N] = 256;
		((float *)x.p)[i * N + 1] = 0x1p-6f;
	}
	for (int i = 0; i < N * N; i++)
		((float *)w.p)[i] = 1;
	d->k->linear_fwd(d, y, stored(x, type), stored(w, DT_E4M3), mat(NULL, 0, 0));
	return *(const float *)y.p;
}

/* The forward's sums may have fewer bits if they need not be exact, the backward's may not. Emulated
 * matrix units keep all bits otherwise. */
static void check_long_sums(struct device *d, bool exact)
{
	const float all = 256 + 0x1p-6f;
	float forward = long_sum(d, DT_E4M3), backward = long_sum(d, DT_E5M2);
	bool emulated = strstr(d->name, "emulated") != NULL;
	assert_true(forward == all || (forward == 256 && (!exact || !emulated)));
	assert_true(backward == all || (backward == 256 && !emulated));
	assert_true(!emulated || exact || forward == 256);
}

/* Matmuls that need not be exact: tf32, with 10 fraction bits, and split-K; with and without
 * benchmarking of algorithms. */
DEVICE_TEST(fast)
{
	enum { N = 40, IN = 600, OUT = 70 };
	only_on_gpu(d);
	struct device other;
	struct device_options o = {.measure = true};
	struct err e = {0};
	struct twin x = twin_random(N, IN, 1), w = twin_random(OUT, IN, 0.1);
	struct twin y = twin_blank(N, OUT), dw = twin_blank(OUT, IN);
	assert_true(d != NULL);
	check_long_sums(d, true);
	for (int i = 0; i < 2; i++, o.measure = false) {
		assert_int_equal(device_open(&other, DEVICE_CUDA, &o, &e), 0);
		other.k->linear_fwd(&other, y.f, x.f, w.f, mat(NULL, 0, 0));
		memset(y.r, 0, N * OUT * sizeof(double));
		ref_linear_fwd(y.r, x.r, w.r, NULL, N, IN, OUT);
		twin_check("linear_fwd, fast", y, 2e-3);
		other.k->zero(&other, dw.f);
		for (int turn = 0; turn < 2; turn++)
			other.k->linear_bwd_w(&other, dw.f, y.f, x.f, true);
		memset(dw.r, 0, OUT * IN * sizeof(double));
		twin_sync(y);
		for (int turn = 0; turn < 2; turn++)
			ref_linear_bwd_w(dw.r, y.r, x.r, N, IN, OUT);
		twin_check("linear_bwd_w, fast", dw, 2e-3);
		check_long_sums(&other, false);
		device_close(&other);
	}
}

/* A sum over no rows is 0, or the old value with `add`; an empty operand has an empty result. */
DEVICE_TEST(nothing)
{
	struct twin dw = twin_random(3, 4, 1);
	float *x = floats(1);
	d->k->linear_bwd_w(d, dw.f, mat(x, 0, 3), mat(x, 0, 4), true);
	twin_check("linear_bwd_w, of no rows", dw, 0);
	d->k->linear_bwd_w(d, dw.f, mat(x, 0, 3), mat(x, 0, 4), false);
	for (int i = 0; i < 12; i++)
		assert_true(((const float *)dw.f.p)[i] == 0);
	d->k->linear_fwd(d, mat(x, 0, 3), mat(x, 0, 4), dw.f, mat(NULL, 0, 0));
}

/* ---- sums in runs of rows ----------------------------------------------------------- */

/* Has `d` computed dw[out, in] in so many runs of k rows? `how`: as the operands are stored, for
 * cuBLASLt, and their types. */
static bool runs_in(struct device *d, const char *how, const char *types,
	const int sizes[3], int runs)
{
	struct str text = {0};
	char head[80];
	bool found = false;
	(void)snprintf(head, sizeof(head), "\n%s %d %d %d %s fp32 0 ", how, sizes[0],
		sizes[1], sizes[2], types);
	device_algorithms(d, &text);
	for (const char *line = text.s; (line = strstr(line, head)); line++) {
		int told = 0;
		assert_int_equal(sscanf(line + strlen(head), "%*d %*d %d ", &told), 1);
		found |= told == runs;
	}
	str_free(&text);
	return found;
}

static bool runs_told(struct device *d, enum dtype type, int in, int out, int k, int runs)
{
	static const char *const names[] = {"fp32 fp32", "bf16 bf16", "fp16 fp16"};
	return runs_in(d, "nt", names[type], (int[]){in, out, k}, runs);
}

/* Weight gradients over many rows are summed in runs, whose number depends on the shape only, and
 * have the same bits each time, whatever the alignment of operands. */
DEVICE_TEST(runs)
{
	static const struct {
		int n, in, out, runs;
	} shapes[] = {{2048, 24, 40, 2}, {4096, 24, 40, 4}, {4096, 7, 5, 4},
		{16384, 8, 16, 16}, {2048, 130, 3, 2}, {2040, 24, 40, 1},
		{2064, 24, 40, 1}};
	only_on_gpu(d);
	struct device other;
	struct device_options o = {.exact = true, .measure = true};
	struct err e = {0};
	assert_true(d != NULL);
	assert_int_equal(device_open(&other, DEVICE_CUDA, &o, &e), 0);
	for (size_t i = 0; i < ARRAY_LEN(shapes); i++) {
		int n = shapes[i].n, in = shapes[i].in, out = shapes[i].out;
		for (enum dtype type = 0; type <= DT_F16; type++) {
			struct twin dy = twin_stored(n, out, type, 1);
			struct twin x = twin_stored(n, in, type, 0.1);
			struct twin dw = twin_random(out, in, 1);
			struct mat again = mat_blank(out, in);
			memcpy(again.p, dw.f.p, (size_t)mat_bytes(again));
			for (int add = 1; add >= 0; add--) {
				if (!add)
					memset(dw.r, 0,
						(size_t)(out * in) * sizeof(double));
				ref_linear_bwd_w(dw.r, dy.r, x.r, n, in, out);
				other.k->linear_bwd_w(&other, dw.f, dy.f, x.f, add);
				other.k->linear_bwd_w(&other, again, dy.f, x.f, add);
				twin_check("linear_bwd_w, in runs", dw, 2e-5);
				check_bits("linear_bwd_w, in runs, again", again.p,
					dw.f.p, out * in);
			}
			if (in % 8 || out % 8) /* there may be no algorithm */
				continue;
			assert_true(runs_told(&other, type, in, out, n / shapes[i].runs,
				shapes[i].runs));
			if (type != DT_F32 && shapes[i].runs > 1) {
				struct mat narrow = stored(again, type);
				other.k->round(&other, dw.f, dw.f, type, 1);
				other.k->linear_bwd_w(&other, narrow, dy.f, x.f, false);
				check_bits("linear_bwd_w, in 16 bits", loaded(narrow).p,
					dw.f.p, out * in);
			}
		}
		assert_int_equal(memory_end(NULL), 0);
	}
	device_close(&other);
}

/* Partial sums are added in order, to the old value: of 2^24, 1, 1 and -2^24 the sum is 0 in fp32,
 * where a sum of pairs, or in reverse order, is 1 or 2. An old value of 3 becomes 4, and would stay 3
 * if it were added last. */
DEVICE_TEST(order_of_runs)
{
	enum { N = 4096, RUNS = 4, IN = 16, OUT = 8 };
	static const float sums[RUNS] = {0x1p24f, 1, 1, -0x1p24f};
	only_on_gpu(d);
	for (enum dtype type = 0; type <= DT_BF16; type++) {
		struct mat dy = mat_blank(N, OUT), x = mat_blank(N, IN);
		struct mat dw = mat_blank(OUT, IN);
		float *up = dy.p, *in = x.p, *to = dw.p;
		memset(up, 0, (size_t)mat_bytes(dy));
		for (int64_t i = 0; i < N * IN; i++)
			in[i] = 1;
		for (int run = 0; run < RUNS; run++)
			for (int j = 0; j < OUT; j++)
				up[(run * (N / RUNS) + 77 * run) * OUT + j] = sums[run];
		dy = stored(dy, type);
		x = stored(x, type);
		for (int add = 0; add < 2; add++) {
			for (int i = 0; i < OUT * IN; i++)
				to[i] = 3;
			d->k->linear_bwd_w(d, dw, dy, x, add);
			for (int i = 0; i < OUT * IN; i++)
				assert_true(to[i] == (add ? 4 : 0));
		}
		assert_true(runs_told(d, type, IN, OUT, N / RUNS, RUNS));
	}
}

/* The same with float8 operands, which the matmul scales; `left` is the type of dy. */
static void check_order_of_bytes(struct device *d, enum dtype left)
{
	enum { N = 4096, RUNS = 4, IN = 16, OUT = 32 };
	/* as products of two numbers of float8, twice */
	static const float up[RUNS] = {0x1p7f, 0.5f, 0.5f, -0x1p7f},
			   in[RUNS] = {0x1p8f, 0x1p-8f, 0x1p-8f, 0x1p8f};
	struct mat dy = mat_blank(N, OUT), x = mat_blank(N, IN), dw = mat_blank(OUT, IN);
	float *scale = floats(2 * SCALE_ALIGN), *to = dw.p;
	memset(dy.p, 0, (size_t)mat_bytes(dy));
	for (int64_t i = 0; i < N * IN; i++)
		((float *)x.p)[i] = in[i / IN / (N / RUNS)];
	for (int run = 0; run < RUNS; run++)
		for (int j = 0; j < 2 * OUT; j++)
			((float *)dy.p)[(run * (N / RUNS) + 77 * run) * OUT + j] =
				up[run];
	dy = stored(dy, left);
	x = stored(x, DT_E4M3);
	scale[0] = 0x1p3f;
	scale[SCALE_ALIGN] = 0x1p5f;
	for (int how = 0; how < 3; how++) { /* replaced, added to, scaled */
		for (int i = 0; i < OUT * IN; i++)
			to[i] = 0x1.8p-7f;
		dy.scale = how == 2 ? scale : NULL;
		x.scale = how == 2 ? scale + SCALE_ALIGN : NULL;
		d->k->linear_bwd_w(d, dw, dy, x, how == 1);
		for (int i = 0; i < OUT * IN; i++)
			assert_true(to[i] == (how == 1 ? 0x1p-6f : 0));
	}
}

static struct mat with_transposed_of(struct mat m, bool only)
{
	m.transposed = floats(ceil_div(mat_size(m), 4));
	for (int64_t i = 0; i < mat_size(m); i++)
		((uint8_t *)m.transposed)[i % m.cols * m.rows + i / m.cols] =
			((const uint8_t *)m.p)[i];
	if (only)
		m.p = NULL;
	return m;
}

struct bytes {
	int n, in, out, runs;
};

static void check_runs_of_bytes(
	struct device *d, const struct bytes *s, enum dtype left, const char *types)
{
	struct twin dy = twin_stored(s->n, s->out, left, 1);
	struct twin x = twin_stored(s->n, s->in, DT_E4M3, 0.1);
	struct twin dw = twin_random(s->out, s->in, 1);
	float *scale = floats(SCALE_ALIGN + 1);
	bool emulated = strstr(d->name, "emulated") != NULL;
	const int sizes[] = {s->in, s->out, s->n / s->runs};
	memset(dw.r, 0, (size_t)(s->out * s->in) * sizeof(double));
	ref_linear_bwd_w(dw.r, dy.r, x.r, s->n, s->in, s->out);
	for (int i = 0; i < s->out * s->in; i++)
		dw.r[i] *= 0.375;
	scale[0] = 0.25F;
	scale[SCALE_ALIGN] = 1.5F;
	dy.f.scale = scale;
	x.f.scale = scale + SCALE_ALIGN;
	for (int stored_as = 0; stored_as < 3; stored_as++) {
		struct mat up = dy.f, in = x.f, again = mat_blank(s->out, s->in);
		if (stored_as) {
			up = with_transposed_of(up, stored_as == 2);
			in = with_transposed_of(in, stored_as == 2);
		}
		d->k->linear_bwd_w(d, dw.f, up, in, false);
		d->k->linear_bwd_w(d, again, up, in, false);
		twin_check("linear_bwd_w, float8 in runs", dw, emulated ? 2e-5 : 2e-3);
		check_bits("linear_bwd_w, float8 in runs, again", again.p, dw.f.p,
			s->out * s->in);
	}
	assert_true(!emulated || runs_in(d, "tn", types, sizes, s->runs));
}

/* Computes one with another emulated GPU. */
static void check_other(const char *variable, const char *value, const struct bytes *s,
	enum dtype left, const char *types)
{
	const struct device_options o = {.exact = true};
	struct device d;
	struct err e = {0};
	setenv(variable, value, 1);
	assert_int_equal(device_open(&d, DEVICE_CUDA, &o, &e), 0);
	check_runs_of_bytes(&d, s, left, types);
	device_close(&d);
	unsetenv(variable);
}

/* Float8's are computed in runs if they must be exact; without conversion, if there are such matrix units. If
 * cuBLASLt refuses runs when it is asked to multiply, there is one. */
DEVICE_TEST(runs_of_bytes)
{
	static const struct bytes shapes[] = {{2048, 32, 48, 2}, {4096, 16, 64, 4},
		{2064, 32, 48, 1}, {8192, 16, 4096, 8}, {4096, 144, 16, 4}};
	static const struct bytes one = {2048, 32, 48, 1};
	static const enum dtype types[] = {DT_E4M3, DT_E5M2};
	static const char *const names[] = {"e4m3 e4m3", "e4m3 e5m2"};
	only_on_gpu(d);
	bool emulated = strstr(d->name, "emulated") != NULL;
	for (size_t i = 0; i < ARRAY_LEN(types); i++) {
		check_order_of_bytes(d, types[i]);
		for (size_t j = 0; j < ARRAY_LEN(shapes); j++)
			check_runs_of_bytes(d, &shapes[j], types[i], names[i]);
		if (!emulated)
			continue;
		check_other("PT_EMU_REFUSE", "float8-runs", &one, types[i], names[i]);
		check_other("PT_LAB_OFF", "float8-runs", &one, types[i], names[i]);
		check_other("PT_EMU_ARCH", "80", &shapes[0], types[i], "bf16 bf16");
	}
}

/* ---- algorithms ------------------------------------------------------------------ */

/* A device that takes the text of another's algorithms returns the same text, and its matmuls the
 * same bits. Two devices take it, since one may happen to measure the same algorithms. */
DEVICE_TEST(told_and_taken)
{
	only_on_gpu(d);
	struct device other;
	struct device_options o = {.exact = true, .measure = true};
	struct err e = {0};
	struct str first = {0}, second = {0};
	struct twin x = twin_random(30, 40, 1), w = twin_random(50, 40, 1);
	struct mat y = mat_blank(30, 50), z = mat_blank(30, 50);
	d->k->linear_fwd(d, y, x.f, w.f, mat(NULL, 0, 0));
	device_algorithms(d, &first);
	for (int i = 0; i < 2; i++) {
		assert_int_equal(device_open(&other, DEVICE_CUDA, &o, &e), 0);
		assert_int_equal(device_set_algorithms(&other, first.s, &e), 0);
		str_clear(&second);
		device_algorithms(&other, &second);
		assert_string_equal(first.s, second.s);
		str_clear(&second);
		other.k->linear_fwd(&other, z, x.f, w.f, mat(NULL, 0, 0));
		device_algorithms(&other, &second);
		assert_string_equal(first.s, second.s);
		check_bits("linear_fwd, as told", z.p, y.p, mat_size(y));
		device_close(&other);
	}
	str_free(&first);
	str_free(&second);
}

/* Malformed texts are rejected and do no harm: lines truncated, duplicated, or with any byte
 * changed. */
DEVICE_TEST(hostile_algorithms)
{
	only_on_gpu(d);
	struct device other;
	struct device_options o = {.exact = true, .measure = true};
	struct err e = {0};
	struct str good = {0}, bad = {0};
	struct twin x = twin_random(3, 4, 1), w = twin_random(5, 4, 1);
	struct mat y = mat_blank(3, 5);
	assert_int_equal(device_open(&other, DEVICE_CUDA, &o, &e), 0);
	other.k->linear_fwd(&other, y, x.f, w.f, mat(NULL, 0, 0));
	device_algorithms(&other, &good);
	device_close(&other);
	char *line = strchr(good.s, '\n') + 1;
	for (size_t n = 1; n + 1 < strlen(line); n++) {
		str_clear(&bad);
		str_add(&bad, good.s, (size_t)(line - good.s) + n);
		e = (struct err){0};
		assert_int_equal(device_set_algorithms(d, bad.s, &e), -1);
		assert_int_equal(e.code, EX_DATAERR);
	}
	static const char *const lines[] = {"", "tn", "xx 1 1 1 fp32 fp32 fp32 0 0 64 1 ",
		"tn 0 1 1 fp32 fp32 fp32 0 0 64 1 ", "tn 1 -1 1 fp32 fp32 fp32 0 0 64 1 ",
		"tn 1 1 1 fp33 fp32 fp32 0 0 64 1 ", "tn 1 1 1 fp32 fp32 fp32 2 0 64 1 ",
		"tn 8 1 1 bf16 bf16 bf16 5 0 64 1 ", "tn 7 1 1 bf16 bf16 bf16 3 0 64 1 ",
		"tn 8 1 1 bf16 bf16 bf16 3 1 64 1 ", "tn 8 1 1 bf16 bf16 bf16 3 0 8 1 ",
		"tn 8 1 1 bf16 bf16 fp32 3 0 64 1 ",
		"tn 1 1 1 fp32 fp32 fp32 1 0 64 1 apart",
		"tn 1 1 1 fp32 fp32 fp32 0 0 63 1 ", "tn 1 1 1 fp32 fp32 fp32 0 0 64 0 ",
		"tn 1 1 1 fp32 fp32 fp32 0 0 64 129 ", "tn 1 1 1 fp32 fp32 fp32 0 0 64 ",
		"tn 99999999999 1 1 fp32 fp32 fp32 0 0 64 1 ",
		"tn 1 1 1 fp32 fp32 fp32 0 0 64 1 "};
	for (size_t i = 0; i < ARRAY_LEN(lines); i++) {
		str_clear(&bad);
		str_add(&bad, good.s, (size_t)(line - good.s));
		str_puts(&bad, lines[i]);
		str_puts(&bad, strrchr(good.s, ' ') + 1);
		bool whole = i == ARRAY_LEN(lines) - 1;
		assert_int_equal(device_set_algorithms(d, bad.s, &e), whole ? 0 : -1);
	}
	str_free(&good);
	str_free(&bad);
}

/* Algorithms of another GPU model or cuBLASLt version are ignored. */
DEVICE_TEST(foreign_algorithms)
{
	only_on_gpu(d);
	struct device other;
	struct device_options o = {.exact = true, .measure = true};
	struct err e = {0};
	struct str text = {0}, after = {0};
	struct twin x = twin_random(3, 4, 1), w = twin_random(5, 4, 1);
	d->k->linear_fwd(d, mat_blank(3, 5), x.f, w.f, mat(NULL, 0, 0));
	device_algorithms(d, &text);
	memcpy(strstr(text.s, "sm_"), "sm_10", 5);
	assert_int_equal(device_open(&other, DEVICE_CUDA, &o, &e), 0);
	assert_int_equal(device_set_algorithms(&other, text.s, &e), 0);
	device_algorithms(&other, &after);
	assert_int_equal(after.len, 0);
	device_close(&other);
	str_free(&text);
	str_free(&after);
}

/* An algorithm that does not work for the matmul is not used. */
DEVICE_TEST(broken_algorithm)
{
	only_on_gpu(d);
	struct device other;
	struct device_options o = {.exact = true, .measure = true};
	struct err e = {0};
	struct str text = {0};
	struct twin x = twin_random(7, 6, 1), w = twin_random(9, 6, 1),
		    y = twin_blank(7, 9);
	d->k->linear_fwd(d, y.f, x.f, w.f, mat(NULL, 0, 0));
	device_algorithms(d, &text);
	for (char *s = strchr(text.s, '\n'); s && *s; s = strchr(s + 1, '\n')) {
		char *end = strchr(s + 1, '\n');
		if (end)
			memset(end - 128, 'f', 128);
	}
	assert_int_equal(device_open(&other, DEVICE_CUDA, &o, &e), 0);
	assert_int_equal(device_set_algorithms(&other, text.s, &e), 0);
	other.k->linear_fwd(&other, y.f, x.f, w.f, mat(NULL, 0, 0));
	ref_linear_fwd(y.r, x.r, w.r, NULL, 7, 6, 9);
	twin_check("linear_fwd, not as told", y, 5e-6);
	device_close(&other);
	str_free(&text);
}

/* PT_LAB_CANDIDATES lists, for each matmul once, which algorithms there are; only those that exact numerics may
 * use are said to be exact. */
DEVICE_TEST(candidates)
{
	only_on_gpu(d);
	struct device other;
	struct device_options o = {.exact = true};
	struct err e = {0};
	struct str text = {0};
	struct twin x = twin_random(30, 40, 1), w = twin_random(50, 40, 1);
	struct mat y = mat_blank(30, 50);
	const char *path = test_path("candidates");
	setenv("PT_LAB_CANDIDATES", path, 1);
	assert_int_equal(device_open(&other, DEVICE_CUDA, &o, &e), 0);
	for (int i = 0; i < 2; i++)
		other.k->linear_fwd(&other, y, x.f, w.f, mat(NULL, 0, 0));
	other.k->linear_bwd_x(&other, x.f, y, w.f, true);
	device_close(&other);
	unsetenv("PT_LAB_CANDIDATES");
	assert_int_equal(file_read(path, 1 << 20, &text, &e), 0);
	static const char *const products[] = {
		"\nlinear_fwd\ttn 50 30 40 fp32 fp32 fp32 0 0 16 1\t",
		"\nlinear_bwd_x\tnn 40 30 50 fp32 fp32 fp32 0 1 16 1\t"};
	assert_int_equal(strncmp(text.s, "# cublasLt ", 11), 0);
	for (size_t i = 0; i < ARRAY_LEN(products); i++) {
		int n_exact = 0, n_fast = 0, n_first = 0;
		for (const char *s = text.s; (s = strstr(s, products[i]));) {
			s += strlen(products[i]);
			char list[8], exact[8];
			int number;
			double us, rate;
			assert_int_equal(sscanf(s,
						 "%7s %d %*d %*d %*d %*d %*d %*d %lf %lf "
						 "%7s",
						 list, &number, &us, &rate, exact),
				5);
			n_exact += !strcmp(list, "exact") && !strcmp(exact, "yes");
			n_fast += !strcmp(list, "fast") && !strcmp(exact, "no");
			n_first += number == 0 && !strcmp(list, "exact");
			assert_true(us >= 0 && rate >= 0); /* an emulated clock */
		}
		assert_int_equal(n_first, 1); /* at its first use only */
		assert_true(
			!strstr(d->name, "emulated") || (n_exact == 2 && n_fast == 1));
	}
	str_free(&text);
}

/* ---- matmuls with GELU -------------------------------------------------------------- */

enum { GELU_ROWS = 40, GELU_IN = 48, GELU_OUT = 64 };

struct gelu {
	struct twin x, w, back, bias;
};

struct gelu_results {
	struct mat y, a, da;
};

static struct gelu_results gelu_of(struct device *d, const struct gelu *g)
{
	struct gelu_results r = {
		.y = stored(twin_random(GELU_ROWS, GELU_OUT, 1).f, DT_BF16)};
	r.a = stored(twin_random(GELU_ROWS, GELU_OUT, 1).f, DT_BF16);
	r.da = stored(twin_random(GELU_ROWS, GELU_OUT, 1).f, DT_BF16);
	d->k->linear_gelu_fwd(d, r.y, r.a, g->x.f, g->w.f, g->bias.f);
	d->k->linear_gelu_bwd(d, r.da, g->x.f, g->back.f, r.a, mat(NULL, 0, 0));
	return r;
}

static bool same_bits(struct mat x, struct mat y)
{
	return !memcmp(x.p, y.p, (size_t)mat_bytes(x));
}

static bool gelu_same(struct gelu_results x, struct gelu_results y)
{
	return same_bits(x.y, y.y) && same_bits(x.da, y.da);
}

static struct gelu_results gelu_told(const struct gelu *g, const struct device_options *o,
	const char *text, struct str *after)
{
	struct device d;
	struct err e = {0};
	assert_int_equal(device_open(&d, DEVICE_CUDA, o, &e), 0);
	assert_int_equal(device_set_algorithms(&d, text, &e), 0);
	struct gelu_results r = gelu_of(&d, g);
	str_clear(after);
	device_algorithms(&d, after);
	device_close(&d);
	return r;
}

/* Copies the lines of `text` with these epilogues, with `how` at their ends; returns their number. */
static int gelu_lines(struct str *out, const char *text, const char *how)
{
	int n_lines = 0;
	str_clear(out);
	str_add(out, text, strcspn(text, "\n") + 1);
	for (const char *s = text; *s; s += strcspn(s, "\n") + 1) {
		char *line = strndup(s, strcspn(s, "\n"));
		if (strstr(line, " bf16 3 0 ") || strstr(line, " bf16 4 0 ")) {
			str_add(out, line, (size_t)(strrchr(line, ' ') - line) + 1);
			str_puts(out, how);
			str_puts(out, "\n");
			n_lines++;
		}
		free(line);
	}
	return n_lines;
}

static void check_gelu(const struct gelu *g, struct gelu_results r)
{
	enum { N = GELU_ROWS, IN = GELU_IN, OUT = GELU_OUT };
	struct twin a = {r.a, doubles(N * OUT)}, y = {r.y, doubles(N * OUT)};
	double *up = doubles(N * OUT), *da = doubles(N * OUT);
	ref_linear_fwd(a.r, g->x.r, g->w.r, g->bias.r, N, IN, OUT);
	ref_act_fwd(ACT_GELU_TANH, y.r, a.r, NULL, N * OUT);
	ref_linear_bwd_x(up, g->x.r, g->back.r, N, OUT, IN);
	ref_act_bwd(ACT_GELU_TANH, da, NULL, up, a.r, NULL, N * OUT);
	check_result("linear_gelu_fwd, what GELU is of", a);
	check_result("linear_gelu_fwd", y);
	check_close("linear_gelu_bwd", loaded(r.da).p, da, N * OUT, 1.2e-2);
}

/* The text of algorithms that cuBLASLt has for these matmuls, not necessarily the fastest: those of a
 * device without such a text that does not benchmark, which are cuBLASLt's first choice. */
static void gelu_algorithms(const struct gelu *g, const char *how_apart, struct str *out)
{
	const struct device_options fast = {0};
	char none[129];
	struct str text = {0};
	memset(none, 'f', sizeof(none) - 1);
	none[sizeof(none) - 1] = '\0';
	assert_int_equal(gelu_lines(&text, how_apart, none), 2);
	gelu_told(g, &fast, text.s, out);
	assert_null(strstr(out->s, none));
	str_free(&text);
}

/* A matmul's epilogue is GELU only if the device is not exact, and a benchmark or a text chose it:
 * then the argument of GELU is not rounded. The epilogue with its derivative is used on exact devices
 * too. */
DEVICE_TEST(gelu)
{
	enum { N = GELU_ROWS, IN = GELU_IN, OUT = GELU_OUT };
	const struct device_options fast = {0}, measuring = {.measure = true},
				    exact = {.exact = true};
	struct str text = {0}, told = {0}, after = {0};
	only_on_gpu(d);
	struct gelu g = {twin_stored(N, IN, DT_BF16, 1),
		twin_stored(OUT, IN, DT_BF16, 0.2), twin_stored(IN, OUT, DT_BF16, 0.2),
		twin_stored(1, OUT, DT_BF16, 1)};
	struct gelu_results here = gelu_of(d, &g), apart, fused, r;
	check_gelu(&g, here);
	check_gelu(&g, gelu_told(&g, &measuring, "", &text));
	assert_int_equal(gelu_lines(&told, text.s, "apart"), 2);
	apart = gelu_told(&g, &fast, told.s, &after);
	check_gelu(&g, apart);
	r = gelu_told(&g, &exact, told.s, &text);
	assert_true(same_bits(r.y, apart.y) && !same_bits(r.da, apart.da));
	assert_true(same_bits(here.y, apart.y) && !same_bits(here.da, apart.da));
	assert_int_equal(gelu_lines(&text, after.s, "apart"), 2); /* as the text said */
	r = gelu_told(&g, &fast, "", &after);
	assert_true(gelu_same(r, apart) && !gelu_lines(&text, after.s, ""));

	gelu_algorithms(&g, told.s, &text);
	fused = gelu_told(&g, &fast, text.s, &after);
	r = gelu_told(&g, &exact, text.s, &told);
	assert_true(same_bits(r.y, apart.y) && same_bits(r.da, fused.da));
	assert_false(gelu_same(fused, apart));
	assert_string_equal(after.s, text.s); /* and there was no other matmul */
	check_gelu(&g, fused);
	/* Devices that benchmark use the text too; two devices, since one may happen to measure the same
	 * algorithms. */
	for (int i = 0; i < 2; i++) {
		r = gelu_told(&g, &measuring, text.s, &after);
		assert_true(gelu_same(r, fused));
		assert_string_equal(after.s, text.s);
	}
	str_free(&text);
	str_free(&told);
	str_free(&after);
}

int main(void)
{
	return run_on_device();
}
