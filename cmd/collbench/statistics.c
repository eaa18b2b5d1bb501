/* Statistics of the times of a case. */
#include "collbench/bench_internal.h"
#include "stats/stats.h"

#include <math.h>

const struct bench_result bench_not_measured = {NAN, NAN, NAN, -1, -1, -1, NAN, NAN, NAN,
	NAN, NAN, NAN, NAN, 0, 0, 0, NAN, NAN, NAN}; /* in the order of the struct */

double bench_median(const double *times, int64_t n)
{
	scoped_ptr double *copy = xcalloc((size_t)n + 1, sizeof(*copy));
	memcpy(copy, times, (size_t)n * sizeof(*times));
	return median(copy, n);
}

/* Sets times[] to the times of the parts to use, and returns their number. Ignores parts that are
 * much shorter, as at the beginning of a run with --seconds; and parts in which a rank waited for
 * a processor, unless there are no other parts. Sets r->parts and r->waited. */
static int64_t select_parts(
	const struct bench_samples *s, double *times, struct bench_result *r)
{
	enum { SHORT = 4 }; /* parts shorter than 1/4 of the longest are ignored */
	int64_t longest = 0, n = 0, n_waited = 0;
	for (int64_t i = 0; i < s->n_parts; i++)
		longest = max64(longest, s->part[i].iters);
	for (int64_t i = 0; i < s->n_parts; i++)
		n_waited += SHORT * s->part[i].iters >= longest && s->part[i].waited;
	for (int64_t i = 0; i < s->n_parts; i++)
		if (SHORT * s->part[i].iters >= longest && !s->part[i].waited)
			times[n++] = s->part[i].seconds;
	r->parts = n;
	r->waited = n_waited;
	for (int64_t i = 0; i < s->n_parts && !r->parts; i++)
		if (SHORT * s->part[i].iters >= longest)
			times[n++] = s->part[i].seconds;
	return n;
}

/* Sets the median over parts of the run, and its standard error. Neighboring iterations share
 * their disturbances, so the error is estimated from the parts, by the standard deviation of
 * their logarithms; a single outlier makes it large. */
static void set_typical(const struct bench_samples *s, struct bench_result *r)
{
	scoped_ptr double *times = xcalloc((size_t)s->n_parts + 1, sizeof(*times));
	int64_t n = select_parts(s, times, r);
	double middle = median(times, n);
	r->typical = 1e6 * middle;
	for (int64_t i = 0; i < n; i++)
		times[i] = log(times[i]);
	r->noise = r->parts >= 3 && middle > 0
			   ? 100 * sqrt(variance_of(times, n) / (double)n)
			   : (double)NAN;
}

/* Sets minimum, maximum, median, p99 (microseconds) and variation (%) of the iterations. */
static void set_spread(const struct bench_samples *s, struct bench_result *r)
{
	int64_t n = s->n;
	double squares = 0, *times = xcalloc((size_t)n, sizeof(*times));
	memcpy(times, s->seconds, (size_t)n * sizeof(*times));
	qsort(times, (size_t)n, sizeof(*times), compare_doubles);
	double mean = mean_of(times, n);
	for (int64_t i = 0; i < n; i++)
		squares += (times[i] - mean) * (times[i] - mean);
	r->i_min = 1e6 * times[0];
	r->i_max = 1e6 * times[n - 1];
	r->i_p50 = 1e6 * median(times, n);
	r->i_p99 = 1e6 * times[ceil_div(99 * n, 100) - 1]; /* nearest rank */
	r->i_cv = mean > 0 ? 100 * sqrt(squares / (double)n) / mean : 0;
	free(times);
}

/* Sets the percentage of the communication that computation hides, as osu_iallreduce does. */
static void set_overlap(const struct bench_samples *s, struct bench_result *r)
{
	double n = (double)s->n_overlapped;
	r->overall = 1e6 * s->overall / n;
	r->compute = 1e6 * s->compute / n;
	double hidden = 100 * (1 - (r->overall - r->compute) / r->time);
	r->overlap = hidden < 0 ? 0 : hidden > 100 ? 100 : hidden;
}

void bench_compute_statistics(const struct bench_samples *s, const struct coll_case *c,
	int ranks, struct bench_result *r)
{
	const struct coll_info *info = bench_info(c->what);
	double n_bytes = (double)bench_bytes(c->what, ranks, c->count, c->type);
	double mean = s->total / (double)s->iters;
	r->time = 1e6 * mean;
	r->algbw = mean > 0 ? 1e-9 * n_bytes / mean : 0;
	r->busbw = r->algbw * info->bus(ranks);
	r->iters = s->iters;
	set_typical(s, r);
	if (s->n)
		set_spread(s, r);
	if (s->n_overlapped)
		set_overlap(s, r);
}
