/* Latency and bandwidth, fitted to the times of a table. */
#include "collbench/table.h"
#include "stats/stats.h"

#include <math.h>

/* Returns the median relative error of a fit at n measured points. */
static double median_deviation(
	const double *size, const double *time, int64_t n, const struct bench_fit *f)
{
	scoped_ptr double *off = xcalloc((size_t)n, sizeof(*off));
	for (int64_t i = 0; i < n; i++)
		off[i] = fabs((f->alpha + f->beta * size[i]) / time[i] - 1);
	return median(off, n);
}

/* Minimizes the squares of (alpha + beta s) / T - 1, that is, of alpha u + beta v - 1 with u = 1
 * / T and v = s / T. If the unconstrained solution has a negative parameter, it becomes 0 and the
 * other is fitted alone, since the sum of squares is convex. */
bool bench_fit_times(
	const double *size, const double *time, int64_t n, struct bench_fit *f)
{
	double uu = 0, uv = 0, vv = 0, u1 = 0, v1 = 0;
	if (n < 3)
		return false;
	for (int64_t i = 0; i < n; i++) {
		double u = 1 / time[i], v = size[i] / time[i];
		uu += u * u, uv += u * v, vv += v * v;
		u1 += u, v1 += v;
	}
	double det = uu * vv - uv * uv;
	f->alpha = det > 0 ? (u1 * vv - v1 * uv) / det : -1;
	f->beta = det > 0 ? (v1 * uu - u1 * uv) / det : 0;
	if (!(f->alpha >= 0)) {
		f->alpha = 0;
		f->beta = vv > 0 ? v1 / vv : 0;
	} else if (!(f->beta >= 0)) {
		f->beta = 0;
		f->alpha = u1 / uu;
	}
	f->error = median_deviation(size, time, n, f);
	return isfinite(f->alpha) && isfinite(f->beta) && isfinite(f->error);
}

static int64_t row_library(const struct bench_row *r)
{
	return r->library < 0 ? LIBRARY_MPI : r->library;
}

/* Returns true if both rows belong to one fit, regardless of type, operation and root. Different
 * axes have different fits, even if their groups have equally many ranks. */
static bool same_kind(const struct bench_row *a, const struct bench_row *b)
{
	return a->collective == b->collective && row_library(a) == row_library(b) &&
	       a->group == b->group && a->group_ranks == b->group_ranks &&
	       a->group_hosts == b->group_hosts && a->groups == b->groups;
}

static bool same_type(const struct bench_row *a, const struct bench_row *b)
{
	return a->type == b->type && a->redop == b->redop && a->root == b->root;
}

/* Returns the typical time of a row in seconds; 0: not measured. */
static double row_seconds(const struct bench_row *r)
{
	for (int p = 0; p < N_COLL_PLACES; p++) {
		if (r->result[p].typical > 0)
			return 1e-6 * r->result[p].typical;
	}
	return 0;
}

/* Returns the row with the type, operation and root to fit: float and sum if measured, else
 * `kind`. */
static const struct bench_row *find_reference(
	const struct bench_table *t, const struct bench_row *kind)
{
	for (int64_t i = 0; i < t->n_rows; i++) {
		const struct bench_row *r = &t->rows[i];
		if (same_kind(r, kind) && r->type == COMM_F32 && r->redop <= COMM_SUM)
			return r;
	}
	return kind;
}

/* Fits the rows of the same kind as `kind`, and appends the fit to t->fits. */
static void fit_kind(struct bench_table *t, const struct bench_row *kind)
{
	scoped_ptr double *size = xcalloc((size_t)t->n_rows, sizeof(*size));
	scoped_ptr double *time = xcalloc((size_t)t->n_rows, sizeof(*time));
	const struct bench_row *like = find_reference(t, kind);
	struct bench_fit f = {kind->collective, row_library(kind), kind->group_ranks,
		kind->group_hosts, kind->groups, 0, 0, 0};
	int64_t n = 0;
	for (int64_t i = 0; i < t->n_rows; i++) {
		const struct bench_row *r = &t->rows[i];
		if (!same_kind(r, kind) || !same_type(r, like) || !(row_seconds(r) > 0))
			continue;
		size[n] = (double)r->size;
		time[n++] = row_seconds(r);
	}
	if (bench_fit_times(size, time, n, &f)) {
		t->fits = xgrow(t->fits, t->n_fits, sizeof(*t->fits));
		t->fits[t->n_fits++] = f;
	}
}

void table_add_fits(struct bench_table *t)
{
	for (int64_t i = 0; i < t->n_rows; i++) {
		bool first = t->rows[i].size > 0;
		for (int64_t k = 0; k < i && first; k++)
			first = !same_kind(&t->rows[k], &t->rows[i]);
		if (first)
			fit_kind(t, &t->rows[i]);
	}
}
