/* vectors: sums over the elements of tensors, and factors between tensors. */
#pragma once

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

struct step_check;

/* Sums over the elements of two vectors: a*a, a*b and b*b. */
struct products {
	double aa, ab, bb;
};
/* Returns true if a / b differs from 1 by at most `within`. */
static inline bool is_close(double a, double b, double within)
{
	return fabs(a / b - 1) <= within;
}
/* Returns the sums over the first n elements of a and b. */
struct products products_of(const float *a, const float *b, int64_t n);
/* Returns |a - factor b| / |factor b|. */
double residual_of(const struct products *p, double factor);
/* Cuts a and b, both of the tensor's shape, into n slices along `dim`, and sets f[n] to
 * the factors that bring each slice of b nearest to a. Returns the remaining distance,
 * relative to a; infinity if the dimension cannot be cut so, or if the slices are too
 * small for reliable factors. */
enum { MAX_SLICES = 64 };
double slice_factors(const struct step_check *c, int tensor, const float *a,
	const float *b, int dim, int n, double *f);
/* Returns true for weights of queries and keys. Files with Meta's names have the rows of
 * each head in another order: channels that are rotated together are neighbors. */
bool is_rotated(const char *name);
/* Returns the row that holds our row in files with Meta's names. */
int64_t row_of_pairs(int64_t row, int64_t head_dim);

/* ---- least squares ---- */

/* Adds the dot products of k parts [n] with each other to a[k][k], and with y to b[k]: the normal
 * equations of least squares. */
void add_products(double *a, double *b, const float *const *parts, int k, const float *y,
	int64_t n);
/* Solves a x = b for a symmetric matrix [n][n]. Overwrites a; b becomes x. Returns false
 * if the parts depend on each other. */
bool solve_linear(double *a, double *b, int n);
/* Returns |y - sum of x[i] parts[i]| / |y|. */
double fit_distance(
	const float *const *parts, const double *x, int k, const float *y, int64_t n);
/* Returns true if the weights are about equal, so that the parts explain nothing. */
bool are_equal(const double *x, int n, double within);
