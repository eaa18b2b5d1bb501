/* Moments, noise of a curve, and blocks of rows. */
#include "stats/stats.h"

#include <math.h>

double mean_of(const double *x, int64_t n)
{
	double sum = 0;
	for (int64_t i = 0; i < n; i++)
		sum += x[i];
	return n ? sum / (double)n : 0;
}

double variance_of(const double *x, int64_t n)
{
	double mean = mean_of(x, n), sum = 0;
	for (int64_t i = 0; i < n; i++)
		sum += (x[i] - mean) * (x[i] - mean);
	return n > 1 ? sum / (double)(n - 1) : 0;
}

double slope_of(const double *at, const double *x, int64_t n)
{
	double mean_at = mean_of(at, n), mean = mean_of(x, n), xy = 0, xx = 0;
	for (int64_t i = 0; i < n; i++) {
		xy += (at[i] - mean_at) * (x[i] - mean);
		xx += (at[i] - mean_at) * (at[i] - mean_at);
	}
	return xx > 0 ? xy / xx : 0;
}

double correlation_of(const double *x, const double *y, int64_t n)
{
	double mean_x = mean_of(x, n), mean_y = mean_of(y, n), xy = 0, xx = 0, yy = 0;
	for (int64_t i = 0; i < n; i++) {
		xy += (x[i] - mean_x) * (y[i] - mean_y);
		xx += (x[i] - mean_x) * (x[i] - mean_x);
		yy += (y[i] - mean_y) * (y[i] - mean_y);
	}
	return xx > 0 && yy > 0 ? xy / sqrt(xx * yy) : (double)NAN;
}

double step_noise(const double *x, int64_t n)
{
	double sum = 0;
	for (int64_t i = 1; i < n; i++)
		sum += (x[i] - x[i - 1]) * (x[i] - x[i - 1]);
	return n > 1 ? sqrt(sum / 2 / (double)(n - 1)) : 0;
}

double trendless_noise(const double *x, int64_t n)
{
	double sum = 0;
	for (int64_t i = 2; i < n; i++) {
		double d = x[i] - 2 * x[i - 1] + x[i - 2];
		sum += d * d;
	}
	return n > 2 ? sqrt(sum / 6 / (double)(n - 2)) : 0;
}

double roughness(const double *x, int64_t n)
{
	double sum = 0, squares = 0;
	for (int64_t i = 1; i < n; i++) {
		double d = x[i] - x[i - 1];
		squares += d * d;
		if (i + 1 < n)
			sum += d * (x[i + 1] - x[i]);
	}
	return squares > 0 ? sum / squares : 1;
}

struct estimate batch_means(const double *x, int64_t n)
{
	double means[N_BATCHES];
	struct estimate e = {.mean = mean_of(x, n)};
	if (n < 2)
		return e;
	if (n < 2 * N_BATCHES) {
		e.se = sqrt(variance_of(x, n) / (double)n);
		e.df = n - 1;
		return e;
	}
	for (int i = 0; i < N_BATCHES; i++) {
		int64_t from = part_begin(n, N_BATCHES, i);
		means[i] = mean_of(x + from, part_begin(n, N_BATCHES, i + 1) - from);
	}
	e.se = sqrt(variance_of(means, N_BATCHES) / N_BATCHES);
	e.df = N_BATCHES - 1;
	return e;
}

struct interval interval_of(const struct estimate *e, double confidence)
{
	double t = e->df ? student_quantile(2 * (1 - confidence), e->df) : (double)NAN;
	return (struct interval){e->mean, t * e->se};
}

bool is_inside(const struct interval *i, double margin)
{
	return fabs(i->value) + i->half_width <= margin;
}

bool is_beyond(const struct interval *i, double margin)
{
	return fabs(i->value) - i->half_width > margin;
}

int64_t block_begin(int k)
{
	static const int64_t first[] = {0, 1, 2, 3};
	if (k < 4)
		return first[k];
	/* 5, 7, 11, 15, 23, 31, ...: 6 2^i - 1 and 8 2^i - 1 */
	return ((int64_t)(k % 2 ? 8 : 6) << (k - 4) / 2) - 1;
}

int block_count(int64_t n)
{
	int k = 0;
	while (k < 100 &&
		block_begin(k) + (block_begin(k + 1) - block_begin(k) + 1) / 2 <= n)
		k++;
	return k;
}

int whole_blocks(int64_t n)
{
	int k = 0;
	while (k < 100 && block_begin(k + 1) <= n)
		k++;
	return k;
}
