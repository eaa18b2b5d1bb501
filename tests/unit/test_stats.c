/* Statistics with known answers. */
#include "tests/support/support.h"
#include "stats/stats.h"

#include <math.h>

TEST(students_t)
{
	/* two-sided 5 % and 0.1 %, from tables */
	static const struct {
		int64_t df;
		double t, p;
	} known[] = {{1, 12.7062047, 0.05}, {2, 4.30265273, 0.05}, {3, 3.18244631, 0.05},
		{4, 2.77644511, 0.05}, {10, 2.22813885, 0.05}, {30, 2.04227246, 0.05},
		{1, 636.619249, 0.001}, {5, 6.86882663, 0.001}, {100, 3.39049131, 0.001},
		{MAX_DF + 1, 1.95996398, 0.05}};
	for (size_t i = 0; i < ARRAY_LEN(known); i++) {
		assert_near(student_p(known[i].t, known[i].df), known[i].p, 1e-8);
		assert_near(student_p(-known[i].t, known[i].df), known[i].p, 1e-8);
		assert_near(
			student_quantile(known[i].p, known[i].df) / known[i].t, 1, 1e-7);
	}
	assert_true(student_p(0, 7) == 1);
	assert_near(student_p(INFINITY, 7), 0, 1e-15);
	assert_true(isnan(student_p(NAN, 7)) && isnan(student_p(NAN, MAX_DF + 1)));
	/* the series ends at MAX_DF, close to the normal distribution */
	assert_near(student_p(2, MAX_DF) / student_p(2, MAX_DF + 1), 1, 0.01);
}

TEST(moments)
{
	static const double at[] = {0, 1, 2, 3}, x[] = {1, 3, 5, 7}, y[] = {2, 1, 4, 3};
	assert_true(mean_of(x, 4) == 4 && mean_of(x, 0) == 0);
	assert_near(variance_of(x, 4), 20.0 / 3, 1e-15);
	assert_true(variance_of(x, 1) == 0);
	assert_near(slope_of(at, x, 4), 2, 1e-15);
	assert_true(slope_of(at, x, 1) == 0);
	assert_near(correlation_of(x, y, 4), 0.6, 1e-15);
	assert_true(isnan(correlation_of(x, (double[4]){0}, 4)));
	assert_near(roughness(x, 4), 2.0 / 3, 1e-15);
	assert_near(step_noise(x, 4), sqrt(2), 1e-15);
}

TEST(blocks_of_rows)
{
	for (int k = 0; k < 60; k++)
		assert_true(block_begin(k) < block_begin(k + 1));
	assert_true(block_begin(4) == 5 && block_begin(5) == 7 && block_begin(6) == 11);
	assert_true(block_count(0) == 0 && block_count(1) == 1 && block_count(5) == 4);
	for (int64_t n = 1; n < 3000; n++) {
		int k = block_count(n);
		assert_true(k >= 1 && block_begin(k - 1) < n);
		assert_true(
			k <= block_count(n + 1)); /* a longer log has at least as many */
		int whole = whole_blocks(n);
		assert_true(whole <= k && k <= whole + 1 && block_begin(whole) <= n);
	}
	assert_true(block_count(INT64_MAX / 8) <= 100);
}

TEST(batches)
{
	double x[400], sum = 0, squares = 0;
	const int n_trials = 400;
	/* the standard error is also right if neighbors have a correlation of 0.5 */
	for (int trial = 0; trial < n_trials; trial++) {
		double last = 0;
		for (int i = 0; i < 400; i++)
			x[i] = last = 0.5 * last + test_normal((uint64_t)trial + 1, i);
		struct estimate e = batch_means(x, 400);
		sum += e.se * e.se / n_trials;
		squares += e.mean * e.mean / n_trials;
	}
	assert_near(sum / squares, 1, 0.25);
	assert_true(batch_means(x, 1).df == 0 && batch_means(x, 3).df == 2);
}

TEST(intervals)
{
	const struct estimate e = {1, 0.1, 10}, none = {1, 0.1, 0};
	struct interval i = interval_of(&e, 0.975), unknown = interval_of(&none, 0.975);
	assert_near(i.half_width, 0.222813885, 1e-8); /* 5 % on both sides in total */
	assert_true(is_inside(&i, 1.23) && !is_inside(&i, 1.22));
	assert_true(is_beyond(&i, 0.77) && !is_beyond(&i, 0.78));
	i.value = -1;
	assert_true(is_inside(&i, 1.23) && is_beyond(&i, 0.77));
	assert_false(is_inside(&unknown, 9) || is_beyond(&unknown, 0));
}
