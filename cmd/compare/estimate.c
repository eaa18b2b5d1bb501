/* Estimates differences between the sets and their standard errors, by design. */
#include "compare/judge_internal.h"

#include <math.h>

/* DESIGN_ALONE has one curve per set. Part of their difference is due to the seed, which averaging
 * over steps does not remove. Its standard deviation is assumed to be ASSUMED_NOISE times the
 * noise of a step (for evaluations, at least of the training loss), plus ASSUMED_FALL times what
 * the loss fell since the rows before, because another seed falls a little sooner or later. make
 * calibrate checks both. */
static const double ASSUMED_NOISE = 0.5, ASSUMED_FALL = 1.5;

/* Returns the mean or the slope of a run in n rows. */
static double reduce_curve(const struct judging *j, enum set s, int run, int64_t from,
	int64_t n, enum functional f)
{
	const double *x = curve_of(&j->finite, s, run) + from;
	return f == MEAN ? mean_of(x, n) : slope_of(j->finite.at + from, x, n);
}

/* Allocates the mean or slope of each unit, averaged over its runs. */
static double *unit_values(
	const struct judging *j, enum set s, int64_t from, int64_t to, enum functional f)
{
	double *u = xcalloc((size_t)j->n_units[s] + 1, sizeof(*u));
	for (int unit = 0; unit < j->n_units[s]; unit++) {
		int n = 0;
		for (int i = 0; i < j->n_runs[s]; i++) {
			if (j->unit[s][i] != unit)
				continue;
			u[unit] += reduce_curve(j, s, i, from, to - from, f);
			n++;
		}
		u[unit] /= n;
	}
	return u;
}

double set_mean(const struct judging *j, enum set s, int64_t from, int64_t to)
{
	double *u = unit_values(j, s, from, to, MEAN), mean = mean_of(u, j->n_units[s]);
	free(u);
	return mean;
}

double set_sd(const struct judging *j, enum set s, int64_t from, int64_t to)
{
	scoped_ptr double *u = unit_values(j, s, from, to, MEAN);
	return sqrt(variance_of(u, j->n_units[s]));
}

/* Estimates the mean difference of n pairs; overwrites control[]. */
static struct estimate estimate_pairs(double *control, const double *test, int n)
{
	for (int i = 0; i < n; i++)
		control[i] = test[i] - control[i];
	return (struct estimate){
		mean_of(control, n), sqrt(variance_of(control, n) / (double)n), n - 1};
}

/* Estimates the difference of two independent means with a pooled variance (Student's t). */
static struct estimate estimate_replicas(
	const double *control, int n_control, const double *test, int n_test)
{
	int df = n_control + n_test - 2;
	double squares = variance_of(control, n_control) * (n_control - 1) +
			 variance_of(test, n_test) * (n_test - 1);
	return (struct estimate){mean_of(test, n_test) - mean_of(control, n_control),
		sqrt(squares / df * (1.0 / n_control + 1.0 / n_test)), df};
}

/* Estimates test minus control from one value per unit (pair or replica), in rows [from, to). */
static struct estimate estimate_units(
	const struct judging *j, int64_t from, int64_t to, enum functional f)
{
	scoped_ptr double *control = unit_values(j, CONTROL, from, to, f);
	scoped_ptr double *test = unit_values(j, TEST, from, to, f);
	return j->design == DESIGN_PAIRED
		       ? estimate_pairs(control, test, j->n_units[CONTROL])
		       : estimate_replicas(
				 control, j->n_units[CONTROL], test, j->n_units[TEST]);
}

/* Allocates the mean curve of the runs in unit 0. */
static double *mean_curve(const struct judging *j, enum set s, int64_t from, int64_t n)
{
	double *mean = xcalloc((size_t)n + 1, sizeof(*mean));
	int count = 0;
	for (int i = 0; i < j->n_runs[s]; i++)
		count += j->unit[s][i] == 0;
	for (int i = 0; i < j->n_runs[s]; i++)
		for (int64_t row = 0; row < n && j->unit[s][i] == 0; row++)
			mean[row] += curve_of(&j->finite, s, i)[from + row] / count;
	return mean;
}

/* Fits a straight line. Returns its slope and the standard error of the slope. */
static struct estimate fit_line(const double *steps, const double *x, int64_t n)
{
	struct estimate e = {.mean = slope_of(steps, x, n), .df = n - 2};
	double mean_at = mean_of(steps, n), mean = mean_of(x, n), rest = 0, xx = 0;
	for (int64_t i = 0; i < n; i++) {
		double d = x[i] - mean - e.mean * (steps[i] - mean_at);
		rest += d * d;
		xx += (steps[i] - mean_at) * (steps[i] - mean_at);
	}
	if (n < 3 || !(xx > 0))
		return (struct estimate){.mean = e.mean};
	e.se = sqrt(rest / (double)(n - 2) / xx);
	return e;
}

/* Estimates the slope from means of batches of rows, since neighboring rows may be correlated. */
static struct estimate slope_by_batches(const double *steps, const double *x, int64_t n)
{
	double mean_at[N_BATCHES], mean[N_BATCHES];
	if (n < 2 * N_BATCHES)
		return fit_line(steps, x, n);
	for (int i = 0; i < N_BATCHES; i++) {
		int64_t from = part_begin(n, N_BATCHES, i);
		int64_t len = part_begin(n, N_BATCHES, i + 1) - from;
		mean_at[i] = mean_of(steps + from, len);
		mean[i] = mean_of(x + from, len);
	}
	return fit_line(mean_at, mean, N_BATCHES);
}

/* Estimates test minus control from the differences row by row: both runs saw the same
 * batches. control, test: [n] values from row `from` on. */
static struct estimate estimate_same_batches(const struct judging *j,
	const double *control, const double *test, int64_t from, int64_t n,
	enum functional f)
{
	scoped_ptr double *d = xcalloc((size_t)n + 1, sizeof(*d));
	for (int64_t i = 0; i < n; i++)
		d[i] = test[i] - control[i];
	return f == MEAN ? batch_means(d, n)
			 : slope_by_batches(j->finite.at + from, d, n);
}

/* Returns the change of the controls' mean from the previous to - from rows to rows [from, to). */
static double previous_fall(const struct judging *j, int64_t from, int64_t to)
{
	int64_t start = max64(0, 2 * from - to);
	if (start == from)
		return 0;
	return fabs(set_mean(j, CONTROL, start, from) - set_mean(j, CONTROL, from, to));
}

/* Estimates the difference of two curves with different batches. The error has an assumed part. */
static struct estimate estimate_alone(const struct judging *j, const double *control,
	const double *test, int64_t from, int64_t n, enum functional f)
{
	double noise = step_noise(control, n), test_noise = step_noise(test, n);
	double fall = ASSUMED_FALL * previous_fall(j, from, from + n);
	double control_part = noise * noise / (double)n,
	       test_part = test_noise * test_noise / (double)n;
	/* (the mean of independent runs varies less) */
	double runs = 1.0 / j->n_seeds[CONTROL] + 1.0 / j->n_seeds[TEST];
	double loss_noise = j->noise_of_loss * fabs(mean_of(control, n));
	double seed = ASSUMED_NOISE * fmax(noise, loss_noise) * sqrt(j->n_seeds[CONTROL]);
	double se = sqrt(control_part + test_part + runs * (seed * seed + fall * fall));
	if (f == MEAN)
		return (struct estimate){
			mean_of(test, n) - mean_of(control, n), se, MAX_DF + 1};
	/* as if the assumed part grew linearly over the rows */
	const double *at = j->finite.at + from;
	return (struct estimate){slope_of(at, test, n) - slope_of(at, control, n),
		sqrt(12) * se / (at[n - 1] - at[0]), MAX_DF + 1};
}

/* Estimates test minus control from the mean curves of both sides, in rows [from, to). */
static struct estimate estimate_curves(
	const struct judging *j, int64_t from, int64_t to, enum functional f)
{
	scoped_ptr double *control = mean_curve(j, CONTROL, from, to - from);
	scoped_ptr double *test = mean_curve(j, TEST, from, to - from);
	struct estimate e =
		j->design == DESIGN_SAME_BATCHES
			? estimate_same_batches(j, control, test, from, to - from, f)
			: estimate_alone(j, control, test, from, to - from, f);
	return e;
}

struct estimate estimate_difference(
	const struct judging *j, int64_t from, int64_t to, enum functional f)
{
	bool has_units = j->design == DESIGN_PAIRED || j->design == DESIGN_REPLICAS;
	struct estimate e = has_units ? estimate_units(j, from, to, f)
				      : estimate_curves(j, from, to, f);
	/* (replicas may have equal bits or digits, which would give an error of 0) */
	double min_se = j->resolution * fabs(set_mean(j, CONTROL, from, to));
	if (j->resolution > FLOAT_RESOLUTION && rounding_averages(j, from, to))
		min_se /= sqrt((double)(to - from));
	if (f == SLOPE && to - from > 1)
		min_se /= j->finite.at[to - 1] - j->finite.at[from];
	e.se = e.se < min_se ? min_se : e.se;
	return e;
}
