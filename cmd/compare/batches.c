/* Detects which runs read the same batches: from their logs, or by the noise of their curves. */
#include "compare/judge_internal.h"

#include <float.h>
#include <math.h>

enum { GRID_SAMPLES = 64 };

static int64_t grid_stride(int64_t n)
{
	return max64(1, n / GRID_SAMPLES);
}

/* Returns the minimum number of digits that print a finite value, up to FLT_DECIMAL_DIG. Sets
 * *exponent to its decimal exponent. */
static int count_digits(double v, int *exponent)
{
	char text[NUM_TEXT];
	int digits = FLT_DECIMAL_DIG;
	for (bool same = true; same && digits > 1; digits -= same) {
		snprintf(text, sizeof(text), "%.*e", digits - 2, v);
		same = strtod(text, NULL) == v;
	}
	*exponent = atoi(strchr(text, 'e') + 1);
	return digits;
}

/* Returns how a curve was printed, from samples of its values. */
static struct digits find_grid(const double *x, int64_t n)
{
	struct digits g = {1, -DBL_MAX_10_EXP};
	for (int64_t i = 0; i < n && g.digits < FLT_DECIMAL_DIG; i += grid_stride(n)) {
		int exponent, digits = count_digits(x[i], &exponent);
		int decimals = digits - 1 - exponent;
		g.digits = digits > g.digits ? digits : g.digits;
		g.decimals = decimals > g.decimals ? decimals : g.decimals;
	}
	return g;
}

/* Returns true if values have all digits of fp32, so that no rounding is allowed for. */
static bool has_all_digits(const struct digits *g)
{
	return g->digits >= FLT_DECIMAL_DIG;
}

/* Returns one unit in the last printed digit of a value near v. */
static double grid_unit(const struct digits *g, double v)
{
	double significant = v != 0 ? floor(log10(fabs(v))) + 1 - g->digits : -HUGE_VAL;
	return pow(10, fmax(significant, -g->decimals));
}

/* Returns the fraction of the variance of a curve's noise that is not due to rounding. */
static double reliability(const struct digits *g, const double *x, int64_t n)
{
	double squares = 0, noise = has_all_digits(g) ? 0 : trendless_noise(x, n);
	int64_t n_samples = 0;
	if (has_all_digits(g))
		return 1;
	for (int64_t i = 0; i < n; i += grid_stride(n), n_samples++)
		squares += grid_unit(g, x[i]) * grid_unit(g, x[i]);
	squares /= 12 * (double)n_samples;
	return noise > 0 ? fmax(0, 1 - squares / (noise * noise)) : 0;
}

/* Returns the finite curve of run i: the controls first, then the tests. */
static const double *curve_of_run(const struct judging *j, int i)
{
	int n = j->n_runs[CONTROL];
	return i < n ? curve_of(&j->finite, CONTROL, i)
		     : curve_of(&j->finite, TEST, i - n);
}

/* Relies on dither: with noise of 0.4 units, rounding moves a mean by at most 1 % of a unit. */
bool rounding_averages(const struct judging *j, int64_t from, int64_t to)
{
	const double min_reliability = 0.5;
	int n = j->n_runs[CONTROL] + j->n_runs[TEST];
	for (int i = 0; i < n; i++)
		if (reliability(&j->grid[i], curve_of_run(j, i) + from, to - from) <
			min_reliability)
			return false;
	return true;
}

double noise_correlation(
	const struct judging *j, int control, int test, int64_t from, int64_t n)
{
	const double max_rough = -0.2, min_reliability = 0.5;
	enum { MIN_N = 16 };
	const double *x = curve_of_run(j, control) + from,
		     *y = curve_of_run(j, test) + from;
	if (n < MIN_N || roughness(x, n) > max_rough || roughness(y, n) > max_rough)
		return NAN;
	/* Rounding lowers the correlation, so that more rows are needed. */
	double reliable =
		reliability(&j->grid[control], x, n) * reliability(&j->grid[test], y, n);
	if (reliable < min_reliability || reliable * (double)n < MIN_N)
		return NAN;
	scoped_ptr double *d = xcalloc((size_t)(2 * n), sizeof(*d));
	for (int64_t i = 0; i + 1 < n; i++) {
		d[i] = x[i + 1] - x[i];
		d[n + i] = y[i + 1] - y[i];
	}
	double r = correlation_of(d, d + n, n - 1);
	return fmin(r / sqrt(reliable), 1);
}

/* Returns true if two values are equal within the rounding of the coarser curve. */
static bool are_equal_if_rounded(
	const struct digits *a, const struct digits *b, double x, double y)
{
	const double slack = 1.01; /* for the rounding of the finer curve */
	return same_as_logged(x, y) ||
	       (!(has_all_digits(a) && has_all_digits(b)) &&
		       fabs(x - y) <=
			       0.5 * slack * fmax(grid_unit(a, x), grid_unit(b, y)));
}

bool share_values(const struct judging *j, int control, int test, int64_t from, int64_t n)
{
	enum { MIN_NOISE = 16 }; /* in units of the resolution */
	const double *x = curve_of_run(j, control) + from,
		     *y = curve_of_run(j, test) + from;
	int64_t same = 0;
	for (int64_t i = 0; i < n; i++)
		same += are_equal_if_rounded(
			&j->grid[control], &j->grid[test], x[i], y[i]);
	return n >= MIN_ROWS && 2 * same >= n &&
	       trendless_noise(x, n) > MIN_NOISE * j->resolution * fabs(mean_of(x, n));
}

/* Returns true if two runs read the same batches: as the logs state it, or else by the noise of
 * the curves, which comes mostly from the batches. Looks at all rows; the first half, since a run
 * may lose its place in the data later; and the second half, since the loss may first fall so
 * steeply that the noise is negligible. */
static bool read_same_batches(const struct judging *j, int a, int b)
{
	int64_t n = j->finite.n, half = n / 2;
	int stated = same_batches(&j->stated[a], &j->stated[b]);
	if (stated >= 0)
		return stated;
	return share_values(j, a, b, 0, n) ||
	       noise_correlation(j, a, b, 0, n) >= SHARED_NOISE ||
	       noise_correlation(j, a, b, 0, half) >= SHARED_NOISE ||
	       noise_correlation(j, a, b, half, n - half) >= SHARED_NOISE;
}

/* Returns half a unit in the last digit of the coarsest curve, relative to its values. */
static double coarsest_resolution(const struct judging *j)
{
	double coarsest = FLOAT_RESOLUTION;
	for (int i = 0; i < j->n_runs[CONTROL] + j->n_runs[TEST]; i++)
		if (!has_all_digits(&j->grid[i]))
			coarsest = fmax(coarsest, 0.5 * pow(10, 1 - j->grid[i].digits));
	return coarsest;
}

void set_clusters(struct judging *j)
{
	int n = j->n_runs[CONTROL] + j->n_runs[TEST];
	j->cluster = xcalloc((size_t)n, sizeof(*j->cluster));
	j->stated = xcalloc((size_t)n, sizeof(*j->stated));
	j->grid = xcalloc((size_t)n, sizeof(*j->grid));
	for (int i = 0; i < n; i++)
		j->grid[i] = find_grid(curve_of_run(j, i), j->finite.n);
	j->resolution = coarsest_resolution(j);
	for (int i = 0; i < n; i++)
		read_properties(i < j->n_runs[CONTROL]
					? j->log[CONTROL][i]
					: j->log[TEST][i - j->n_runs[CONTROL]],
			&j->stated[i]);
	for (int i = 0; i < n; i++) {
		int first = 0;
		/* a cluster has the number of its first run */
		while (first < i &&
			(j->cluster[first] != first || !read_same_batches(j, first, i)))
			first++;
		j->cluster[i] = first;
	}
}

int find_partner(const struct judging *j, int test)
{
	for (int i = 0; i < j->n_runs[CONTROL]; i++)
		if (j->cluster[i] == j->cluster[j->n_runs[CONTROL] + test])
			return i;
	return -1;
}
