/*
 * Kernels with the same bits on every device: compares them with the CPU's.
 * device: cuda
 */
#include "tests/support/device.h"

#include <math.h>
#include <string.h>

static const int64_t shapes[][2] = {
	{1, 1}, {3, 7}, {31, 64}, {7, 1003}, {70, 516}, {2, 33001}, {2, 70002}};
enum { SHAPES = ARRAY_LEN(shapes) };

/* The device under test and the CPU, with the same numbers on both, different at each call. */
struct two {
	struct device *d[2];
	struct mat m[2];
};

static struct two two_of(void **state)
{
	static struct device cpu;
	struct two t = {.d = {*state, &cpu}};
	if (!t.d[0]->discrete)
		skip();
	if (!cpu.k)
		device_cpu(&cpu, 1);
	return t;
}

static void fill(struct two *t, int64_t rows, int64_t cols)
{
	t->m[0] = twin_random(rows, cols, 1).f;
	t->m[1] = mat_blank(rows, cols);
	memcpy(t->m[1].p, t->m[0].p, (size_t)mat_bytes(t->m[0]));
}

/* Few different numbers: some are zero, and many are equal. */
static void fill_few(struct two *t, int64_t rows, int64_t cols)
{
	fill(t, rows, cols);
	for (int i = 0; i < 2; i++)
		for (int64_t j = 0; j < rows * cols; j++) {
			float *x = (float *)t->m[i].p + j;
			*x = j % 7 ? roundf(*x * 4) / 4 : 0;
		}
}

static void check_same(const char *what, const struct two *t)
{
	check_bits(what, t->m[0].p, t->m[1].p, mat_size(t->m[0]));
}

/* ---- random numbers ------------------------------------------------------------------- */

static void dropout(void **state)
{
	struct two t = two_of(state);
	for (size_t s = 0; s < SHAPES; s++) {
		int64_t rows = shapes[s][0];
		struct dropout o = {.key = {{5, 6}},
			.p = 0.2f,
			.step = counter(9),
			.first_sample = 3,
			.pos = ints(rows),
			.seq_rows = 5,
			.first_row = pick(0, 9),
			.first_col = pick(0, 9)};
		for (int64_t i = 0; i < rows; i++)
			((int32_t *)o.pos)[i] = (int32_t)pick(0, 1000);
		fill(&t, rows, shapes[s][1]);
		for (int i = 0; i < 2; i++)
			t.d[i]->k->dropout(t.d[i], t.m[i], t.m[i], &o);
		check_same("dropout", &t);
	}
}

static void keep_random(void **state)
{
	struct two t = two_of(state);
	const struct keep keep = {
		0.3f, 1.7f, {{{1, 2}}, ((int64_t)1 << 32) - 100, 100003}, 6};
	for (size_t s = 0; s < SHAPES; s++) {
		fill(&t, shapes[s][0], shapes[s][1]);
		for (int i = 0; i < 2; i++)
			t.d[i]->k->keep_random(t.d[i], t.m[i], &keep);
		check_same("keep_random", &t);
	}
}

static void round_stochastic(void **state)
{
	struct two t = two_of(state);
	const struct rng_stream c = {{{1, 2}}, ((int64_t)1 << 32) - 100, 100003};
	for (size_t s = 0; s < SHAPES; s++) {
		fill(&t, shapes[s][0], shapes[s][1]);
		for (int i = 0; i < 2; i++)
			t.d[i]->k->round_stochastic(t.d[i], t.m[i], &c);
		check_same("round_stochastic", &t);
	}
}

/* ---- compression ---------------------------------------------------------------------- */

static void rounding(void **state)
{
	struct two t = two_of(state);
	static const float scales[] = {1, 0.7f, 0x1p-20f, 3e30f};
	for (int type = DT_F32; type <= DT_E5M2; type++)
		for (size_t s = 0; s < ARRAY_LEN(scales); s++) {
			fill(&t, 33, 1003);
			((float *)t.m[0].p)[7] = ((float *)t.m[1].p)[7] = NAN;
			for (int i = 0; i < 2; i++)
				t.d[i]->k->round(t.d[i], t.m[i], t.m[i], type, scales[s]);
			check_same("round", &t);
		}
}

static void quantise(void **state)
{
	struct two t = two_of(state);
	const struct rng_stream c = {{{1, 2}}, 77, 100003};
	for (size_t s = 0; s < 2 * SHAPES; s++) {
		int64_t rows = shapes[s / 2][0], cols = shapes[s / 2][1];
		int8_t *codes[2];
		float *scales[2];
		fill(&t, rows, cols);
		for (int i = 0; i < 2; i++) {
			codes[i] = (int8_t *)floats((rows * cols + 3) / 4);
			scales[i] = floats(rows);
			t.d[i]->k->quantise(
				t.d[i], t.m[i], codes[i], scales[i], s % 2 ? &c : NULL);
		}
		check_same("quantise", &t);
		check_bits("quantise, scales", scales[0], scales[1], rows);
		assert_memory_equal(codes[0], codes[1], (size_t)(rows * cols));
		for (int i = 0; i < 2; i++)
			t.d[i]->k->dequantise(t.d[i], t.m[i], codes[i], scales[i]);
		check_same("dequantise", &t);
	}
}

static void fewer_elements(void **state)
{
	struct two t = two_of(state);
	for (size_t s = 0; s < 4 * SHAPES; s++) {
		int64_t rows = shapes[s / 4][0], cols = shapes[s / 4][1];
		int64_t k = pick(1, max64(1, cols / (s % 2 ? 1 : 5))), n = rows * k;
		bool wide = cols > 1 << 16 || s % 2;
		float *values[2], *places[2];
		fill_few(&t, rows, cols);
		for (int i = 0; i < 2; i++) {
			values[i] = floats(n);
			places[i] = floats(n);
			memset(places[i], 0, (size_t)n * sizeof(float));
			if (s % 4 < 2) /* else more than k are nonzero */
				t.d[i]->k->keep_largest(t.d[i], t.m[i], k);
			t.d[i]->k->topk_pack(
				t.d[i], values[i], places[i], wide, t.m[i], k);
		}
		check_same("keep_largest", &t);
		check_bits("topk_pack, values", values[0], values[1], n);
		check_bits("topk_pack, places", places[0], places[1], n);
		for (int i = 0; i < 2; i++)
			t.d[i]->k->topk_scatter(
				t.d[i], t.m[i], values[i], places[i], wide, k);
		check_same("topk_scatter", &t);
	}
}

/* ---- exact sums ----------------------------------------------------------------------- */

/* Numbers of all magnitudes, NaN and infinity. */
static void exact_sum(void **state)
{
	struct two t = two_of(state);
	for (int bad = 0; bad < 2; bad++)
		for (size_t s = 0; s < SHAPES; s++) {
			struct exact *x[2];
			int64_t n = shapes[s][0] * shapes[s][1];
			fill(&t, 1, n);
			for (int i = 0; i < 2; i++) {
				float *v = t.m[i].p;
				for (int64_t j = 0; j < n; j++)
					v[j] = ldexpf(v[j], (int)(j * 37 % 270) - 150);
				if (bad)
					v[n / 2] = s % 3 ? -INFINITY : NAN;
				x[i] = exact_zero();
				exact_add(x[i], -1e300);
				exact_normalize(x[i]);
				t.d[i]->k->exact_sum(t.d[i], x[i], v, n);
				t.d[i]->k->exact_sum(t.d[i], x[i], v, n / 3);
			}
			assert_memory_equal(x[0], x[1], sizeof(*x[0]));
		}
}

/* Sums of squares of whole numbers are exact in any order. */
static void exact_sumsq(void **state)
{
	struct two t = two_of(state);
	for (size_t s = 0; s < SHAPES; s++) {
		int64_t rows = shapes[s][0], cols = shapes[s][1];
		struct exact *x[2];
		fill(&t, rows, cols);
		for (int i = 0; i < 2; i++) {
			for (int64_t j = 0; j < rows * cols; j++) {
				float *v = (float *)t.m[i].p + j;
				*v = ldexpf(roundf(*v * 100), (int)(j / cols % 90) - 45);
			}
			x[i] = exact_zero();
			t.d[i]->k->exact_sumsq(t.d[i], x[i], &t.m[i], 1);
		}
		assert_memory_equal(x[0], x[1], sizeof(*x[0]));
	}
}

static void hash(void **state)
{
	struct two t = two_of(state);
	for (size_t s = 0; s < SHAPES; s++) {
		uint64_t h[2];
		fill(&t, shapes[s][0], shapes[s][1]);
		for (int i = 0; i < 2; i++)
			h[i] = kernel_hash(
				t.d[i], t.m[i].p, mat_size(t.m[i]), 42, (int64_t)1 << 40);
		assert_true(h[0] == h[1]);
	}
}

/* Whole numbers: rare tokens, and tokens too frequent for a single block. */
static void embed_bwd(void **state)
{
	struct two t = two_of(state);
	static const int64_t sizes[][3] = {/* rows, tokens, cols */
		{1, 1, 1}, {900, 65, 40}, {3000, 3, 30}, {5000, 700, 260}, {2500, 1, 7}};
	for (size_t s = 0; s < ARRAY_LEN(sizes); s++) {
		int64_t n = sizes[s][0], vocab = sizes[s][1], cols = sizes[s][2];
		int32_t *ids = ints(n);
		for (int64_t i = 0; i < n; i++) /* half of them are the same */
			ids[i] = (int32_t)(pick(0, 1) ? 1 : pick(0, vocab + 1));
		fill_few(&t, n, cols);
		struct two w = t;
		for (int i = 0; i < 2; i++) {
			w.m[i] = mat_blank(vocab, cols);
			t.d[i]->k->embed_bwd(t.d[i], w.m[i], t.m[i], ids, 1);
		}
		check_same("embed_bwd", &w);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		on_device(dropout),
		on_device(keep_random),
		on_device(round_stochastic),
		on_device(rounding),
		on_device(quantise),
		on_device(fewer_elements),
		on_device(exact_sum),
		on_device(exact_sumsq),
		on_device(hash),
		on_device(embed_bwd),
	};
	return run_on_device(tests);
}
