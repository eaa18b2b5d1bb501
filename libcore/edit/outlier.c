/* Detects outliers among norms, by an exponentially weighted mean and variance. */
#include "edit/edit.h"

#include <math.h>

void detector_init(struct detector *d, const struct outlier_config *c)
{
	*d = (struct detector){.z = xcalloc((size_t)c->warmup + 1, sizeof(*d->z))};
}

void detector_release(struct detector *d)
{
	free(d->z);
	*d = (struct detector){.z = NULL};
}

/* Returns how many standard deviations x is above the mean; 0 during the warm-up. */
static double z_score(const struct detector *d, const struct outlier_config *c, double x)
{
	double deviation = d->count < 2 ? 0 : sqrt(d->m2);
	return deviation == 0 || d->count < c->warmup ? 0 : (x - d->mean) / deviation;
}

/* Returns the sample standard deviation of the window. */
static double window_deviation(const struct detector *d, const struct outlier_config *c)
{
	int64_t n = min64(d->count, c->warmup);
	double mean = 0, sum = 0;
	if (n < 2)
		return 0;
	for (int64_t i = 0; i < n; i++)
		mean += d->z[i];
	mean /= (double)n;
	for (int64_t i = 0; i < n; i++)
		sum += (d->z[i] - mean) * (d->z[i] - mean);
	return sqrt(sum / (double)(n - 1));
}

void detector_add(struct detector *d, const struct outlier_config *c, double x)
{
	double distance = x - d->mean;
	d->mean += c->alpha * distance;
	d->m2 = (1 - c->alpha) * (d->m2 + c->alpha * distance * (x - d->mean));
	d->count++;
	if (c->warmup)
		d->z[(d->count - 1) % c->warmup] = z_score(d, c, x);
}

bool detector_test_and_add(struct detector *d, const struct outlier_config *c, double x)
{
	if (!isfinite(x))
		return true;
	if (d->count >= c->warmup &&
		z_score(d, c, x) > c->threshold * fmax(1, window_deviation(d, c)))
		return true;
	detector_add(d, c, x);
	return false;
}
