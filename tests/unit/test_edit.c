/* edit: the detector against a model of it that keeps everything, weights, and wires. */
#include "edit/exchange_internal.h"
#include "tests/support/support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- the detector ---------------------------------------------------------------- */

/* All norms that were taken in, and their z; everything is computed anew each time. */
struct history {
	double x[400], z[400];
	int n;
};

static void statistics(const struct history *h, int n, const struct outlier_config *c,
	double *mean, double *m2)
{
	*mean = *m2 = 0;
	for (int i = 0; i < n; i++) {
		double d = h->x[i] - *mean;
		*mean += c->alpha * d;
		*m2 = (1 - c->alpha) * (*m2 + c->alpha * d * (h->x[i] - *mean));
	}
}

static double score(
	const struct history *h, int n, const struct outlier_config *c, double x)
{
	double mean, m2;
	statistics(h, n, c, &mean, &m2);
	return n < 2 || n < c->warmup || m2 <= 0 ? 0 : (x - mean) / sqrt(m2);
}

static bool model_outlier(struct history *h, const struct outlier_config *c, double x)
{
	double mean = 0, sum = 0;
	int from = h->n > c->warmup ? h->n - (int)c->warmup : 0, n = h->n - from;
	if (!isfinite(x))
		return true;
	for (int i = from; i < h->n; i++)
		mean += h->z[i] / n;
	for (int i = from; i < h->n; i++)
		sum += (h->z[i] - mean) * (h->z[i] - mean);
	double spread = n < 2 ? 0 : sqrt(sum / (n - 1));
	double limit = c->threshold * (spread > 1 ? spread : 1);
	if (h->n >= c->warmup && score(h, h->n, c, x) > limit)
		return true;
	h->x[h->n] = x;
	h->n++;
	h->z[h->n - 1] = score(h, h->n, c, x);
	return false;
}

/* A norm that drifts, and now and then jumps, or is none. */
static double next_norm(uint64_t seed, int sequence, int i, double *level)
{
	int64_t at = (int64_t)sequence * 1000 + i * 3;
	double u = test_uniform(seed, at), jump = test_uniform(seed, at + 1);
	*level *= 0.98 + 0.04 * test_uniform(seed, at + 2);
	return jump < 0.01   ? (double)NAN
	       : jump < 0.02 ? (double)INFINITY
	       : jump < 0.1  ? *level * (2 + 20 * u)
			     : *level * (0.8 + 0.4 * u);
}

TEST(detector_is_its_model)
{
	enum { SEQUENCES = 10000, MOST = 120 };
	static struct history h;
	int64_t outliers = 0, judged = 0;
	for (int s = 0; s < SEQUENCES; s++) {
		const struct outlier_config c = {.alpha = 0.01 + 0.4 * test_uniform(5, s),
			.threshold = 1 + 3 * test_uniform(6, s),
			.warmup = s % 13};
		int n = s % 100 ? 30 : MOST;
		double level = 1;
		struct detector d;
		detector_init(&d, &c);
		h.n = 0;
		for (int i = 0; i < n; i++) {
			double x = next_norm(7, s, i, &level);
			bool out = model_outlier(&h, &c, x);
			assert_int_equal(detector_test_and_add(&d, &c, x), out);
			outliers += out && isfinite(x);
			judged += h.n > c.warmup;
		}
		assert_int_equal(d.count, h.n);
		detector_release(&d);
	}
	assert_true(outliers > judged / 100 && outliers < judged / 2);
	printf("# figure: %d sequences of norms, %lld of %lld that could be are "
	       "outliers\n",
		SEQUENCES, (long long)outliers, (long long)judged);
}

/* After 10 norms that are the same the mean has come to 1 - 0.98^10 of it. */
TEST(detector_is_known)
{
	const struct outlier_config c = {0.02, 3, 10};
	struct detector d;
	detector_init(&d, &c);
	for (int i = 0; i < 10; i++)
		assert_false(detector_test_and_add(&d, &c, 1));
	double mean = 1 - pow(0.98, 10), limit = mean + 3 * sqrt(d.m2);
	assert_true(fabs(d.mean - mean) < 1e-12);
	assert_true(fabs(limit - 1.331) < 0.001);
	struct detector before = d;
	assert_true(detector_test_and_add(&d, &c, limit * 1.0001));
	assert_true(detector_test_and_add(&d, &c, (double)NAN));
	assert_true(detector_test_and_add(&d, &c, (double)INFINITY));
	assert_true(
		d.mean == before.mean && d.m2 == before.m2 && d.count == before.count);
	assert_false(detector_test_and_add(&d, &c, limit * 0.9999));
	assert_false(detector_test_and_add(&d, &c, 0)); /* small ones are none */
	detector_release(&d);
}

/* An outlier that is added changes the statistics as any other norm does. */
TEST(outliers_are_added)
{
	const struct outlier_config c = {0.02, 3, 10}, any = {0.02, 1e9, 10};
	struct detector d, other;
	detector_init(&d, &c);
	detector_init(&other, &any);
	for (int i = 0; i < 30; i++) {
		double x = i < 10 ? 1 : 5;
		assert_false(detector_test_and_add(&other, &any, x));
		if (detector_test_and_add(&d, &c, x))
			detector_add(&d, &c, x);
		assert_true(i != 10 || d.count == 11);
	}
	assert_true(d.mean == other.mean && d.m2 == other.m2 && d.count == other.count);
	assert_memory_equal(d.z, other.z, 10 * sizeof(*d.z));
	assert_false(detector_test_and_add(&d, &c, 5));
	detector_release(&d);
	detector_release(&other);
}

/* ---- weights --------------------------------------------------------------------- */

static void near(float x, double want)
{
	assert_true(fabs((double)x - want) < 1e-6);
}

static void weigh(const struct weights_config *c, int n, const double *norm,
	const bool *excluded, const int64_t *steps, float *weight)
{
	struct worker_report r[4];
	for (int i = 0; i < n; i++)
		r[i] = (struct worker_report){norm[i], excluded[i], steps[i]};
	worker_weights(c, n, r, weight);
}

TEST(weights)
{
	static const double norm[] = {1, 2, (double)NAN, 3};
	static const bool none[4] = {0}, third[] = {false, false, true, false},
			  all[] = {true, true, true, true};
	static const int64_t steps[] = {1, 2, 3, 4};
	struct weights_config c = {0};
	float w[4];
	weigh(&c, 4, norm, none, steps, w);
	for (int i = 0; i < 4; i++)
		near(w[i], 1);
	c.temperature = 2; /* alone: alike, and 1 in all */
	weigh(&c, 4, norm, third, steps, w);
	near(w[0], 1.0 / 3);
	near(w[2], 0);
	c.by_norm = true;
	weigh(&c, 4, norm, third, steps, w);
	double sum = 1 + exp(-0.5) + exp(-1.0);
	near(w[0], 1 / sum);
	near(w[1], exp(-0.5) / sum);
	near(w[2], 0);
	near(w[3], exp(-1.0) / sum);
	c.by_steps = true;
	c.steps_ratio = 0.25;
	weigh(&c, 4, norm, third, steps, w);
	near(w[1], 0.75 * exp(-0.5) / sum + 0.25 * 2 / 7);
	near(w[2], 0);
	weigh(&c, 4, norm, all, steps, w);
	for (int i = 0; i < 4; i++)
		near(w[i], 0);
	static const double huge[] = {1e300, 2e300};
	weigh(&c, 2, huge, none, steps, w); /* nothing overflows */
	near(w[0], 0.75 + 0.25 / 3);
	near(w[1], 0.25 * 2 / 3);
}

/* ---- wires ----------------------------------------------------------------------- */

enum { N_PARTS = 5, N_FLOATS = 5 * 7 + 9 + 3 * 70000 + 6 * 10 + 16 };

/* Some rows of a matrix, a vector, rows with many places, columns of a matrix, another. What
 * is between the last two belongs to nobody. */
static void make_parts(struct tensor *t, struct part *p)
{
	static const struct {
		int64_t rows, cols;
		int ndim, slice;
		enum tp_split tp_split;
	} some[N_PARTS] = {{5, 7, 2, 1, TP_SPLIT_ROWS}, {9, 1, 1, 0, TP_SPLIT_NONE},
		{3, 70000, 2, 0, TP_SPLIT_NONE}, {6, 10, 2, 1, TP_SPLIT_COLS},
		{1, 10, 2, 0, TP_SPLIT_NONE}};
	int64_t at = 0;
	for (int i = 0; i < N_PARTS; i++) {
		int64_t cols = some[i].cols;
		at += i == N_PARTS - 1 ? 6 : 0;
		t[i] = (struct tensor){.ndim = some[i].ndim,
			.dims = {20, some[i].tp_split == TP_SPLIT_COLS ? 2 * cols : cols},
			.tp_split = some[i].tp_split,
			.rows = 10,
			.cols = cols};
		snprintf(t[i].name, sizeof(t[i].name), "tensor %d", i);
		p[i] = (struct part){.t = &t[i],
			.slice = some[i].slice,
			.row = i,
			.rows = some[i].rows,
			.cols = cols,
			.pos = at};
		at += some[i].rows * cols;
	}
	assert_int_equal(at, N_FLOATS);
}

/* To bytes and from them, cut in pieces of about so many floats. */
static void travel(const struct wire *w, float *v, int64_t step, bool random)
{
	for (int64_t at = 0, n; at < w->floats; at += n) {
		n = wire_row_end(w, at + step) - at;
		assert_true(n > 0);
		int64_t n_bytes = wire_bytes(w, at, n);
		char *bytes = xcalloc((size_t)n_bytes + 1, 1);
		bytes[n_bytes] = 42;
		if (random)
			wire_pack_random(w, bytes, v + at, at, n, 3);
		else
			wire_pack(w, bytes, v + at, at, n);
		assert_int_equal(bytes[n_bytes], 42);
		memset(v + at, 0xff, (size_t)n * sizeof(*v));
		wire_unpack(w, v + at, bytes, at, n);
		free(bytes);
	}
}

static uint64_t hash_of_parts(const struct wire *w, const float *v)
{
	uint64_t hash = 0;
	for (int64_t i = 0; i < w->n_parts; i++) {
		const struct part *p = &w->part[i];
		hash = hash_bytes(
			v + p->pos, (size_t)(p->rows * p->cols) * sizeof(*v), hash);
	}
	return hash;
}

TEST(wires_cut_anywhere)
{
	static const int64_t steps[] = {1, 8, 64, 70001, 1 << 20};
	static float v[N_FLOATS];
	struct tensor t[N_PARTS];
	struct part p[N_PARTS];
	struct device d;
	device_open_cpu(&d, 1);
	make_parts(t, p);
	for (int kind = EDIT_WIRE_BF16; kind <= EDIT_WIRE_SPARSE; kind++)
		for (int random = 0; random <= (kind != EDIT_WIRE_SPARSE); random++) {
			const struct wire w = {
				(enum edit_wire)kind, 0.2, 7, &d, p, N_PARTS, N_FLOATS};
			uint64_t want = 0, rounded = 0;
			for (size_t s = 0; s < ARRAY_LEN(steps); s++) {
				for (int64_t i = 0; i < N_FLOATS; i++)
					v[i] = (float)(test_uniform(5, i) - 0.5);
				for (int i = 0; i < N_PARTS && !random; i++)
					if (t[i].ndim > 1)
						wire_round(
							&w, mat(v + p[i].pos, p[i].rows,
								    p[i].cols));
				rounded = hash_of_parts(&w, v);
				travel(&w, v, steps[s], random);
				want = s ? want : hash_of_parts(&w, v);
				assert_true(hash_of_parts(&w, v) == want);
			}
			/* what was rounded comes as it was sent */
			assert_true((want == rounded) == !random);
		}
}
