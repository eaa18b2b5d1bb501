/* The elementary functions of the CPU's kernels, against float64, over floats of all
 * magnitudes. tests/unit/test_kernels_bits.c tests that all instruction sets give equal bits. */
#include "tests/support/support.h"
#include "kernels/cpu/cpu.h"

enum { STEP = 1021 }; /* of bit patterns: every sign, and 8000 numbers an exponent */

typedef float function(float);
typedef double function64(double);

static double sigmoid(double x)
{
	return 1 / (1 + exp(-x));
}

static double normal_cdf(double x)
{
	return 0.5 * erfc(-x / sqrt(2));
}

/* The distance in ULPs of y. */
static double ulps(float x, double y)
{
	int exponent;
	frexp((double)(float)y, &exponent);
	return fabs((double)x - y) / ldexp(1, exponent - 24);
}

/* Over [low, high] every result is a normal float. `hardest` is the float with the largest error. */
static void check_function(const char *name, function *f, function64 *want, float low,
	float high, float hardest, double allowed)
{
	double worst = ulps(f(hardest), want((double)hardest));
	assert_true(worst > 0.95 * allowed);
	for (int64_t bits = 0; bits <= UINT32_MAX; bits += STEP) {
		float x = float_of((uint32_t)bits);
		if (!(x >= low && x <= high))
			continue;
		double error = ulps(f(x), want((double)x));
		if (!(error <= allowed))
			fail_msg("%s(%a) is wrong by %.2f ULP", name, (double)x, error);
		worst = fmax(worst, error);
	}
	print_message(
		"# %-12s worst error %.2f ULP, allowed %.2f\n", name, worst, allowed);
	assert_true(worst <= allowed);
}

TEST(exponential)
{
	check_function("exp_f", exp_f, exp, -87.33f, 88.37f, -0x1.df388ep+5f, 0.96);
	assert_true(exp_f(0) == 1 && exp_f(-0.0f) == 1);
	assert_true(exp_f(-87.34f) == 0 && exp_f(-1e30f) == 0 && exp_f(-INFINITY) == 0);
	assert_true(exp_f(88.38f) == INFINITY && exp_f(1e30f) == INFINITY);
	assert_true(exp_f(INFINITY) == INFINITY && isnan(exp_f(NAN)));
}

TEST(logistic)
{
	check_function(
		"sigmoid_f", sigmoid_f, sigmoid, -87.3f, 3.4e38f, -0x1.0a2bd8p+4f, 2.5);
	assert_true(sigmoid_f(0) == 0.5f && sigmoid_f(INFINITY) == 1);
	assert_true(sigmoid_f(-INFINITY) == 0 && sigmoid_f(-1e30f) == 0);
	assert_true(isnan(sigmoid_f(NAN)));
}

TEST(normal_distribution)
{
	check_function("normal_cdf_f", normal_cdf_f, normal_cdf, -12.9f, 3.4e38f,
		-0x1.d6ba78p+1f, 5.2);
	assert_true(normal_cdf_f(INFINITY) == 1 && normal_cdf_f(1e30f) == 1);
	assert_true(normal_cdf_f(-INFINITY) == 0 && normal_cdf_f(-1e30f) == 0);
	assert_true(isnan(normal_cdf_f(NAN)));
}

/* The maximum may be in any lane and in the tail. */
TEST(maximum)
{
	float x[70];
	for (int64_t n = 0; n <= 70; n++) {
		for (int64_t i = 0; i < n; i++) {
			for (int64_t j = 0; j < n; j++)
				x[j] = j == i ? -1 : -2;
			assert_true(max_of(x, n) == -1);
		}
	}
	assert_true(max_of(x, 0) == -INFINITY);
}
