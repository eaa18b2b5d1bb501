/* Normal numbers: the kernel gives the bits of normal_number(), on every instruction set and on the
 * GPU; these agree with the C library's functions in float64; and they are normally distributed.
 * isa: sse2 avx2 avx512
 * device: cpu cuda
 */
#include "tests/support/device.h"
#include "kernels/normal.h"

#include <math.h>
#include <stdlib.h>

static const struct philox_key key = {{0x1234567, 0x89abcdef}};

/* ---- bits ------------------------------------------------------------------------ */

static void check_rows(struct device *d, struct normal o, int64_t rows, int64_t cols)
{
	struct mat x = mat_blank(rows, cols), y = mat_blank(rows, cols);
	float *want = y.p;
	int64_t step = row_step(o.rng.row_step, x);
	for (int64_t i = 0; i < rows * cols; i++) {
		uint64_t at = (uint64_t)(o.rng.first + i / cols * step + i % cols);
		float z = normal_within(
			o.rng.key, at, normal_number(o.rng.key, at, 0), o.max_deviation);
		want[i] = o.mean + o.std * z;
	}
	d->k->normal(d, x, &o);
	check_bits("normal", x.p, y.p, rows * cols);
}

/* Ranges that begin and end anywhere in a tile; indices beyond 32 bits of the counter. */
DEVICE_TEST(one_by_one)
{
	static const int64_t shapes[][2] = {{1, 1}, {1, 255}, {1, 256}, {1, 257}, {3, 64},
		{7, 100}, {2, 1000}, {40, 3}, {5, 5000}};
	static const int64_t firsts[] = {
		0, 1, 255, 256, 1000003, ((int64_t)1 << 41) - 77};
	for (size_t s = 0; s < ARRAY_LEN(shapes); s++)
		for (size_t f = 0; f < ARRAY_LEN(firsts); f++)
			for (int wide = 0; wide < 2; wide++) {
				int64_t rows = shapes[s][0], cols = shapes[s][1];
				struct normal o = {0, 0.02f, f % 2 ? 1.5f : 0,
					{key, firsts[f], wide ? 3 * cols + 5 : 0}};
				check_rows(d, o, rows, cols);
			}
	check_rows(d, (struct normal){1, 0, 0, {key, 5, 0}}, 1, 1000);
	check_rows(d, (struct normal){-3, 2, 0, {key, 5, 0}}, 7, 1000);
}

/* A shard, of rows or columns, has the numbers of the whole tensor. */
DEVICE_TEST(parts)
{
	enum { ROWS = 96, COLS = 320, SLICE = COLS / 5 };
	const int64_t first = 12345;
	struct mat x = mat_blank(ROWS, COLS), y = mat_blank(ROWS, COLS);
	struct normal o = {0, 1, 3, {key, first, COLS}};
	d->k->normal(d, x, &o);
	for (int64_t r = 0, n; r < ROWS; r += n) {
		n = min64(pick(1, 20), ROWS - r);
		o.rng.first = first + r * COLS;
		d->k->normal(d, mat_rows(y, r, n), &o);
	}
	check_bits("rows", y.p, x.p, ROWS * COLS);
	for (int s = 0; s < 5; s++) {
		struct mat part = mat_blank(ROWS, SLICE), want = mat_blank(ROWS, SLICE);
		for (int64_t r = 0; r < ROWS; r++)
			memcpy((float *)want.p + r * SLICE,
				(float *)x.p + r * COLS + s * SLICE,
				SLICE * sizeof(float));
		o.rng.first = first + s * SLICE;
		d->k->normal(d, part, &o);
		check_bits("columns", part.p, want.p, ROWS * SLICE);
	}
}

/* ---- accuracy -------------------------------------------------------------------- */

static struct {
	double radius, part; /* relative to the radius */
	double largest;
} worst;

static void compare_pair(uint32_t radius, uint32_t angle)
{
	const double turn = 6.283185307179586;
	float x, y;
	normal_pair(&x, &y, radius, angle);
	double u = (double)normal_uniform(radius), r = sqrt(-2 * log(u));
	double a = turn * 0x1p-32 * (double)angle;
	double r_error = fabs((double)normal_radius((float)u) - r);
	double error = fmax(fabs((double)x - r * cos(a)), fabs((double)y - r * sin(a)));
	assert_true(u > 0 && u <= 1 && isfinite(x) && isfinite(y));
	worst.radius = fmax(worst.radius, r > 0 ? r_error / r : r_error);
	worst.part = fmax(worst.part, r > 0 ? error / r : error);
	worst.largest = fmax(worst.largest, (double)fmaxf(fabsf(x), fabsf(y)));
}

/* Words of all zeros or ones, words at the boundaries of the logarithm's and the angle's cases, and
 * four million others. */
DEVICE_TEST(accuracy)
{
	static const uint32_t corners[] = {0, 0x20000000, 0x40000000, 0x5a827999,
		0x60000000, 0x80000000, 0xa0000000, 0xb504f334, 0xc0000000, 0xe0000000};
	enum { AROUND = 300, RANDOM = 1 << 22 };
	only_on_cpu();
	for (size_t i = 0; i < ARRAY_LEN(corners); i++)
		for (size_t j = 0; j < ARRAY_LEN(corners); j++)
			for (uint32_t k = 0; k < 2 * AROUND; k++)
				compare_pair(corners[i] + k - AROUND,
					corners[j] + k * 7 - AROUND);
	for (uint32_t i = 0; i < RANDOM; i++) {
		struct philox_block b = philox(key, i, 0, 0, 9);
		compare_pair(b.x[0] >> i % 32, b.x[1]);
	}
	print_message("# figure: relative to the radius, the largest error is %.2g of a "
		      "number, %.2g of a radius; the largest number is %.3f\n",
		worst.part, worst.radius, worst.largest);
	assert_true(worst.radius < 1.4e-7);
	assert_true(worst.part < 2.5e-7);
	assert_true(worst.largest > 6.66 && worst.largest < 6.67);
}

/* ---- the distribution ------------------------------------------------------------- */

enum { DRAWS = 10000128, BINS = 200 };

static double above(double z) /* probability */
{
	return erfc(z / sqrt(2)) / 2;
}

static void check_within(const char *what, double x, double want, double error)
{
	if (fabs(x - want) > 5 * error)
		fail_msg("%s: %.9g, and it should be %.9g within five times %.3g", what,
			x, want, error);
}

/* Correlation with the number `lag` later: the neighbour, the other of its pair, or the tile's next
 * word. */
static void check_independent(const float *x, int64_t lag)
{
	double sum = 0, squares = 0, n = (double)(DRAWS - lag);
	for (int64_t i = 0; i + lag < DRAWS; i++) {
		double a = (double)x[i], b = (double)x[i + lag];
		sum += a * b;
		squares += a * a * b * b;
	}
	check_within("product", sum / n, 0, 1 / sqrt(n));
	/* squares must be independent too: a pair has the same radius */
	check_within("product of squares", squares / n, 1, sqrt(8 / n));
}

static void check_tails(const float *x)
{
	int64_t low[7] = {0}, high[7] = {0};
	for (int64_t i = 0; i < DRAWS; i++)
		for (int z = 0; z < 7; z++) {
			low[z] += x[i] < (float)-z;
			high[z] += x[i] > (float)z;
		}
	for (int z = 0; z < 7; z++) {
		double want = DRAWS * above(z), error = sqrt(want) + 0.2;
		check_within("below", (double)low[z], want, error);
		check_within("above", (double)high[z], want, error);
	}
}

/* Chi-square test over bins of equal width, and two tails. */
static void check_histogram(const float *x)
{
	static int64_t bin[BINS + 2];
	const double end = 4, width = 2 * end / BINS;
	double chi = 0;
	for (int64_t i = 0; i < DRAWS; i++) {
		double at = ((double)x[i] + end) / width;
		bin[at < 0 ? 0 : at >= BINS ? BINS + 1 : 1 + (int)at]++;
	}
	for (int b = 0; b < BINS + 2; b++) {
		double from = b ? above(-end + (b - 1) * width) : 1;
		double to = b <= BINS ? above(-end + b * width) : 0;
		double want = DRAWS * (from - to), off = (double)bin[b] - want;
		chi += off * off / want;
	}
	check_within("chi-square", chi, BINS + 1, sqrt(2.0 * (BINS + 1)));
}

DEVICE_TEST(distribution)
{
	only_on_cpu();
	struct mat m = mat_blank(1, DRAWS);
	const struct normal o = {0, 1, 0, {key, 0, 0}};
	const float *x = m.p;
	double sum[5] = {0}, n = DRAWS;
	d->k->normal(d, m, &o);
	for (int64_t i = 0; i < DRAWS; i++) {
		double v = (double)x[i], square = v * v;
		sum[1] += v;
		sum[2] += square;
		sum[3] += square * v;
		sum[4] += square * square;
	}
	check_within("mean", sum[1] / n, 0, sqrt(1 / n));
	check_within("variance", sum[2] / n, 1, sqrt(2 / n));
	check_within("third moment", sum[3] / n, 0, sqrt(15 / n));
	check_within("kurtosis", sum[4] / n, 3, sqrt(96 / n));
	check_tails(x);
	check_histogram(x);
	check_independent(x, 1);
	check_independent(x, NORMAL_LANES);
	check_independent(x, 2 * NORMAL_LANES);
	check_independent(x, NORMAL_TILE);
}

/* Exactly the numbers beyond the limit are drawn again. */
DEVICE_TEST(truncated)
{
	enum { N = 200000 };
	struct mat m = mat_blank(1, N), all = mat_blank(1, N);
	struct normal o = {0, 1, 0, {key, 0, 0}};
	const float *x = m.p, *was = all.p;
	double squares = 0;
	int64_t again = 0;
	d->k->normal(d, all, &o);
	o.max_deviation = 2;
	d->k->normal(d, m, &o);
	for (int64_t i = 0; i < N; i++) {
		bool far = fabsf(was[i]) > 2;
		assert_true(fabsf(x[i]) <= 2 && (far || x[i] == was[i]));
		squares += (double)x[i] * (double)x[i];
		again += far;
	}
	double kept = 1 - 2 * above(2), density = exp(-2) / sqrt(2 * acos(-1));
	check_within("drawn again", (double)again, N * (1 - kept),
		sqrt(N * kept * (1 - kept)));
	check_within("variance", squares / N, 1 - 4 * density / kept, 1 / sqrt(N));
}

int main(void)
{
	return run_on_device();
}
