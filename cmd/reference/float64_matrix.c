/* Matmuls in double precision. */
#include "reference/float64_pass.h"

enum { ROWS = 4 }; /* rows that are multiplied with a row of weights at a time */

/* Sets sum[r] to the dot product of row r of x with v[n]. n_rows: at most ROWS. */
static void dot_rows(
	double *sum, const double *x, const double *v, int64_t n, int64_t n_rows)
{
	const double *a = x, *b = x + (n_rows > 1) * n, *c = x + (n_rows > 2) * 2 * n,
		     *d = x + (n_rows > 3) * 3 * n;
	double p = 0, q = 0, r = 0, s = 0;
#pragma omp simd reduction(+ : p, q, r, s)
	for (int64_t j = 0; j < n; j++) {
		p += a[j] * v[j];
		q += b[j] * v[j];
		r += c[j] * v[j];
		s += d[j] * v[j];
	}
	sum[0] = p, sum[1] = q, sum[2] = r, sum[3] = s;
}

void float64_linear(double *y, const double *x, const double *w, const double *bias,
	int64_t n, int64_t in, int64_t out)
{
#pragma omp parallel for
	for (int64_t i = 0; i < n; i += ROWS) {
		int64_t rows = min64(ROWS, n - i);
		for (int64_t o = 0; o < out; o++) {
			double sum[ROWS];
			dot_rows(sum, x + i * in, w + o * in, in, rows);
			for (int64_t r = 0; r < rows; r++)
				y[(i + r) * out + o] = sum[r] + (bias ? bias[o] : 0);
		}
	}
}

void float64_linear_dx(double *dx, const double *dy, const double *w, int64_t n,
	int64_t in, int64_t out, struct range of)
{
#pragma omp parallel for
	for (int64_t i = 0; i < n; i++)
		for (int64_t o = of.from; o < of.to; o++)
			add_scaled(dx + i * in, dy[i * out + o], w + o * in, in);
}
