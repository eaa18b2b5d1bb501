/* Kernels of local SGD.
 * isa: sse2 avx2 avx512
 * device: cpu cuda
 */
#include "tests/support/device.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { LARGE = 40000, MOST_WORKERS = 9 };
static const int64_t sizes[] = {1, 15, 16, 257, 1003, LARGE + 7};

/* ---- combine ---------------------------------------------------------------------- */

static double ref_combine(const double *x, const struct combine *c)
{
	double vote = 0, sum = 0, share = 0;
	for (int i = 0; i < c->workers; i++) {
		double t = (double)c->weight[i] == 0 ? 0 : (double)c->weight[i] * x[i];
		vote += c->vote == SIGN_VOTE_SUM ? t : (double)((t > 0) - (t < 0));
	}
	for (int i = 0; i < c->workers; i++) {
		double w = (double)c->weight[i], t = w == 0 ? 0 : w * x[i];
		bool won = vote >= 0 ? t > 0 : t < 0;
		if (w == 0 || (c->vote != SIGN_VOTE_NONE && !won))
			continue;
		sum += t;
		share += w;
	}
	return c->normalize && fabs(share) >= 1e-8 ? sum / share : sum;
}

static float combine_scalars(struct device *d, const float *x, const struct combine *c)
{
	const float *each[MOST_WORKERS];
	float *out = floats(1), *of = floats(c->workers);
	memcpy(of, x, (size_t)c->workers * sizeof(float));
	for (int i = 0; i < c->workers; i++)
		each[i] = &of[i];
	d->k->combine(d, out, each, 1, c);
	return *out;
}

/* The cases of the reference implementation's tests. */
DEVICE_TEST(combine_is_known)
{
	static const float x[] = {1, -2, 3, -4}, one[] = {1, 1, 1, 1},
			   up[] = {1, 2, 3, 4};
	static const struct {
		struct combine c;
		float want;
	} some[] = {
		{{4, one, SIGN_VOTE_NONE, true}, -0.5f},
		{{4, one, SIGN_VOTE_NONE, false}, -2},
		{{4, one, SIGN_VOTE_SUM, true}, -3},
		{{4, one, SIGN_VOTE_COUNT, true}, 2},
		{{4, up, SIGN_VOTE_SUM, true}, -10.0f / 3},
		{{4, up, SIGN_VOTE_COUNT, true}, 2.5f},
	};
	for (size_t i = 0; i < ARRAY_LEN(some); i++)
		assert_true(combine_scalars(d, x, &some[i].c) == some[i].want);
	/* no votes: the sign is +, no term has it, and the divisor is 1 */
	static const float zeros[4] = {0, 0, -0.0f, 0};
	assert_true(combine_scalars(d, zeros, &some[2].c) == 0);
}

DEVICE_TEST(combine)
{
	for (int i = 0; i < 60; i++) {
		int workers = (int)pick(1, MOST_WORKERS);
		int64_t n = sizes[pick(0, (int64_t)ARRAY_LEN(sizes) - 1)];
		float weight[MOST_WORKERS];
		const float *x[MOST_WORKERS];
		struct twin of[MOST_WORKERS], out = twin_blank(1, n);
		const struct combine c = {
			workers, weight, (enum sign_vote)(i % 3), i / 3 % 2};
		for (int w = 0; w < workers; w++) {
			weight[w] = (float)pick(w > 0 ? 0 : 1, 4) / 4;
			of[w] = twin_random(1, n, 1);
			x[w] = of[w].f.p;
			if (weight[w] == 0) /* ignored, even if it is NaN */
				((float *)of[w].f.p)[n / 2] = NAN;
			if (weight[w] == 0)
				((float *)of[w].f.p)[n - 1] = -INFINITY;
		}
		for (int64_t e = 0; e < n; e++) {
			double each[MOST_WORKERS];
			for (int w = 0; w < workers; w++)
				each[w] = (double)x[w][e];
			out.r[e] = ref_combine(each, &c);
		}
		d->k->combine(d, out.f.p, x, n, &c);
		twin_check("combine", out, 1e-5);
	}
}

/* ---- sparsification --------------------------------------------------------------- */

static int by_size(const void *a, const void *b)
{
	float x = fabsf(*(const float *)a), y = fabsf(*(const float *)b);
	return (x < y) - (x > y);
}

static uint32_t size_of(float x)
{
	uint32_t bits;
	memcpy(&bits, &x, sizeof(bits));
	return bits & 0x7fffffff;
}

DEVICE_TEST(sizes_of_elements)
{
	for (int i = 0; i < 40; i++) {
		int64_t n = pick(1, 70000), want[256] = {0}, got[256];
		int shift = 8 * (i % 4);
		struct mat x = twin_random(1, n, 1).f, counts = mat_blank(1, 512);
		float *v = x.p, some = v[pick(0, n)];
		uint32_t found =
			shift == 24 ? 0 : size_of(some) >> (shift + 8) << (shift + 8);
		for (int64_t e = 0; e < n; e++)
			if ((uint64_t)size_of(v[e]) >> (shift + 8) ==
				(uint64_t)found >> (shift + 8))
				want[size_of(v[e]) >> shift & 255]++;
		d->k->zero(d, counts);
		d->k->count_sizes(d, counts.p, x, found, shift);
		device_get(d, got, counts.p, sizeof(got));
		assert_memory_equal(got, want, sizeof(got));
		float *kept = floats(n);
		memcpy(kept, v, (size_t)n * sizeof(*kept));
		d->k->keep_sizes(d, x, size_of(some));
		for (int64_t e = 0; e < n; e++)
			assert_true(v[e] == (fabsf(kept[e]) < fabsf(some) ? 0 : kept[e]));
	}
}

DEVICE_TEST(keep_largest)
{
	for (int i = 0; i < 40; i++) {
		int64_t rows = pick(1, 40), cols = pick(1, 1500), k = pick(1, cols + 1);
		struct mat x = twin_random(rows, cols, 1).f, y = mat_blank(rows, cols);
		float *a = x.p, *b = y.p, *sorted = floats(cols);
		for (int64_t e = 0; e < rows * cols && i % 2; e++)
			a[e] = roundf(a[e] * 2) / 2; /* many that are equal */
		d->k->copy(d, y, x);
		d->k->keep_largest(d, y, k);
		for (int64_t r = 0; r < rows; r++, a += cols, b += cols) {
			int64_t kept = 0, want = k < cols ? k : cols;
			memcpy(sorted, a, (size_t)cols * sizeof(float));
			qsort(sorted, (size_t)cols, sizeof(float), by_size);
			float least = fabsf(sorted[want - 1]);
			bool missed = false; /* one of the least */
			for (int64_t e = 0; e < cols; e++) {
				bool stays = b[e] == a[e] && a[e] != 0;
				assert_true(stays || b[e] == 0);
				assert_true(stays || fabsf(a[e]) <= least);
				assert_true(!stays || fabsf(a[e]) >= least);
				assert_false(stays && missed && fabsf(a[e]) == least);
				missed |= !stays && a[e] != 0 && fabsf(a[e]) == least;
				kept += stays || (a[e] == 0 && least == 0);
			}
			assert_true(least == 0 || kept == want);
		}
	}
}

DEVICE_TEST(keep_random)
{
	struct keep keep = {
		.density = 0.25f, .scale = 4, .rng.key = {{7, 9}}, .worker = 3};
	float *x = floats(LARGE), *y = floats(LARGE), *other = floats(LARGE);
	int64_t kept = 0, same = 0;
	for (int64_t i = 0; i < LARGE; i++)
		x[i] = y[i] = other[i] = (float)(i + 1);
	d->k->keep_random(d, mat(x, 1, LARGE), &keep);
	for (int64_t i = 0; i < LARGE; i++) {
		assert_true(x[i] == 0 || x[i] == 4 * (float)(i + 1));
		kept += x[i] != 0;
	}
	double off = (double)kept / LARGE - 0.25; /* 5 standard deviations */
	assert_true(fabs(off) < 5 * sqrt(0.25 * 0.75 / LARGE));
	/* for any sharding */
	d->k->keep_random(d, mat(y, 1, 777), &keep);
	keep.rng.first = 777;
	d->k->keep_random(d, mat(y + 777, 1, LARGE - 777), &keep);
	check_bits("keep_random", x, y, LARGE);
	/* of columns 10 to 29 of 100, all rows at once */
	for (int64_t i = 0; i < 7 * 20; i++)
		y[i] = (float)(10 + i / 20 * 100 + i % 20 + 1);
	keep.rng.first = 10;
	keep.rng.row_step = 100;
	d->k->keep_random(d, mat(y, 7, 20), &keep);
	for (int64_t i = 0; i < 7 * 20; i++)
		assert_true(y[i] == x[10 + i / 20 * 100 + i % 20]);
	keep.rng.first = keep.rng.row_step = 0;
	keep.worker = 4;
	d->k->keep_random(d, mat(other, 1, LARGE), &keep);
	for (int64_t i = 0; i < LARGE; i++)
		same += (x[i] != 0) == (other[i] != 0);
	assert_true(fabs((double)same / LARGE - 0.625) < 0.02);
}

int main(void)
{
	return run_on_device();
}
