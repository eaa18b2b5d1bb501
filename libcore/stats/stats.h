/* stats: Student's t, medians, moments, noise of a curve, blocks of rows. Pure functions.
 * NaN and infinity give NaN, which no comparison finds significant. */
#pragma once

#include "base/base.h"

/* ---- student.c ------------------------------------------------------------------- */

/* Returns P(|T| >= |t|) for Student's t with df >= 1 degrees of freedom, by the finite sums of
 * Abramowitz and Stegun, 26.7.3 and 26.7.4. Above MAX_DF it uses the normal distribution. */
enum { MAX_DF = 1000 };
double student_p(double t, int64_t df);
/* Returns the t for which student_p() is p, 0 < p < 1. */
double student_quantile(double p, int64_t df);
/* Returns the median of n > 0 values, which it reorders. */
double median(double *v, int64_t n);

/* ---- stats.c --------------------------------------------------------------------- */

double mean_of(const double *x, int64_t n);
double variance_of(const double *x, int64_t n); /* unbiased; 0 if n < 2 */
/* Returns the slope of the least-squares line, in x per unit of `at`; 0 if `at` is constant. */
double slope_of(const double *at, const double *x, int64_t n);
/* Returns the correlation coefficient of two series; NaN if one is constant. */
double correlation_of(
	const double *x, const double *y, int64_t n); /* NaN if x or y is constant */

/* Returns the noise between neighboring rows: the standard deviation of first differences, divided
 * by sqrt(2). A trend adds little as long as the curve falls less per row than it jitters. */
double step_noise(const double *x, int64_t n);
/* Returns the noise estimated from second differences, to which a straight trend adds nothing. */
double trendless_noise(const double *x, int64_t n);
/* Returns the correlation of neighboring first differences: -0.5 for a curve of independent noise,
 * near 1 for a smooth curve. step_noise() means nothing for a smooth curve. */
double roughness(const double *x, int64_t n);

/* The mean of x and its standard error, which allows for correlated neighbors: from the means of
 * N_BATCHES batches (N_BATCHES - 1 degrees of freedom), or from single values if n is small. */
struct estimate {
	double mean, se;
	int64_t df; /* 0: no standard error */
};
enum { N_BATCHES = 8 };
/* Returns the mean of x[n] and its standard error, by the method of batch means. */
struct estimate batch_means(const double *x, int64_t n);

/* A value and half the width of its confidence interval (NaN: no interval). */
struct interval {
	double value, half_width;
};
/* Returns the interval with this confidence on each side, for two one-sided tests (TOST). */
struct interval interval_of(const struct estimate *e, double confidence);
/* Returns true if the whole interval lies within +-margin. */
bool is_inside(const struct interval *i, double margin);
/* Returns true if the whole interval lies above margin or below -margin. */
bool is_beyond(const struct interval *i, double margin);

/* Returns the first row of block k. Blocks of rows grow with the row number, two per octave: rows
 * 0, 1, 2, 3-4, 5-6, 7-10, 11-14, 15-22, ... They do not depend on the length of a run, so a
 * longer log of the same run has the same blocks and more of them. */
int64_t block_begin(int k);
/* Returns the number of blocks among n rows. The last block may have only half of its
 * rows; whole_blocks() counts whole blocks only. */
int block_count(int64_t n);
int whole_blocks(int64_t n);
