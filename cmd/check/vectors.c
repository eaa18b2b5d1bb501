/* Sums over vectors, factors between vectors, and the row order of rotary weights. */
#include "check/vectors.h"

#include "check/check.h"

#include <math.h>
#include <string.h>

struct products products_of(const float *a, const float *b, int64_t n)
{
	struct products p = {0};
	for (int64_t i = 0; i < n; i++) {
		p.aa += (double)a[i] * (double)a[i];
		p.ab += (double)a[i] * (double)b[i];
		p.bb += (double)b[i] * (double)b[i];
	}
	return p;
}

double residual_of(const struct products *p, double factor)
{
	double squares = p->aa - 2 * factor * p->ab + factor * factor * p->bb;
	double size = factor * factor * p->bb;
	if (isnan(squares))
		return INFINITY;
	if (size <= 0)
		return p->aa > 0 ? INFINITY : 0;
	return sqrt(fmax(squares, 0) / size);
}

/* Computes slice_factors(); if head_dim > 0, with rows in the order of Meta's files. */
static double factors_of_slices(const struct ckpt_tensor *t, const float *a,
	const float *b, int dim, int n, int64_t head_dim, double *f)
{
	int64_t size = ckpt_size(t), cols = t->ndim > 1 ? t->dims[1] : 1;
	struct products part[MAX_SLICES] = {0};
	double left = 0, all = 0;
	for (int64_t i = 0; i < size; i++) {
		int64_t at = dim ? i % cols : i / cols;
		at = head_dim ? row_of_pairs(at, head_dim) : at;
		struct products *p = &part[at * n / t->dims[dim]];
		p->aa += (double)a[i] * (double)a[i];
		p->ab += (double)a[i] * (double)b[i];
		p->bb += (double)b[i] * (double)b[i];
	}
	for (int k = 0; k < n; k++) {
		f[k] = part[k].bb > 0 ? part[k].ab / part[k].bb : 0;
		left += fmax(0, part[k].aa - f[k] * part[k].ab);
		all += part[k].aa;
	}
	return all > 0 ? sqrt(left / all) : INFINITY;
}

double slice_factors(const struct step_check *c, int tensor, const float *a,
	const float *b, int dim, int n, double *f)
{
	const struct ckpt_tensor *t = &c->files.after.tensors[tensor];
	int64_t head_dim = c->weights.m.head_dim;
	double in_pairs[MAX_SLICES];
	if (dim >= t->ndim || t->dims[dim] % n || ckpt_size(t) < 4 * n)
		return INFINITY;
	double left = factors_of_slices(t, a, b, dim, n, 0, f);
	/* (Meta's files have rotated rows in pairs: their slices have other rows of the model.) */
	if (dim || head_dim < 2 || !is_rotated(t->name))
		return left;
	double other = factors_of_slices(t, a, b, dim, n, head_dim, in_pairs);
	if (other < left)
		memcpy(f, in_pairs, (size_t)n * sizeof(*f));
	return fmin(left, other);
}

bool is_rotated(const char *name)
{
	return (strstr(name, ".wq.") || strstr(name, ".wk.")) && !strstr(name, ".lora_");
}

int64_t row_of_pairs(int64_t row, int64_t head_dim)
{
	int64_t r = row % head_dim, half = head_dim / 2;
	return row - r + (r < half ? 2 * r : 2 * (r - half) + 1);
}

bool solve_linear(double *a, double *b, int n)
{
	for (int i = 0; i < n; i++) {
		int pivot = i;
		for (int r = i + 1; r < n; r++)
			if (fabs(a[r * n + i]) > fabs(a[pivot * n + i]))
				pivot = r;
		if (!(fabs(a[pivot * n + i]) > 0))
			return false;
		for (int j = 0; j < n; j++) {
			double t = a[i * n + j];
			a[i * n + j] = a[pivot * n + j];
			a[pivot * n + j] = t;
		}
		double t = b[i];
		b[i] = b[pivot];
		b[pivot] = t;
		for (int r = i + 1; r < n; r++) {
			double f = a[r * n + i] / a[i * n + i];
			for (int j = i; j < n; j++)
				a[r * n + j] -= f * a[i * n + j];
			b[r] -= f * b[i];
		}
	}
	for (int i = n - 1; i >= 0; i--) {
		for (int j = i + 1; j < n; j++)
			b[i] -= a[i * n + j] * b[j];
		b[i] /= a[i * n + i];
	}
	return true;
}

void add_products(
	double *a, double *b, const float *const *parts, int k, const float *y, int64_t n)
{
	for (int i = 0; i < k; i++) {
		for (int j = 0; j <= i; j++) {
			a[i * k + j] += products_of(parts[i], parts[j], n).ab;
			a[j * k + i] = a[i * k + j];
		}
		b[i] += products_of(parts[i], y, n).ab;
	}
}

double fit_distance(
	const float *const *parts, const double *x, int k, const float *y, int64_t n)
{
	double left = 0, size = 0;
	for (int64_t j = 0; j < n; j++) {
		double d = (double)y[j];
		for (int i = 0; i < k; i++)
			d -= x[i] * (double)parts[i][j];
		left += d * d;
		size += (double)y[j] * (double)y[j];
	}
	return size > 0 ? sqrt(left / size) : INFINITY;
}

bool are_equal(const double *x, int n, double within)
{
	for (int i = 1; i < n; i++)
		if (fabs(x[i] - x[0]) > within * fabs(x[0]))
			return false;
	return true;
}
