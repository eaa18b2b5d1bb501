/* Latency and bandwidth, T = alpha + beta size, fitted to measured times of one collective in
 * groups of one kind (Hockney, "The communication challenge for MPP", 1994). Small and large
 * sizes count equally: the relative deviations are squared. Each axis of a mesh has its own fits,
 * without its name; the fits of a collective are in the order in which the axes were measured. */
#pragma once

#include "base/base.h"

struct bench_fit {
	int64_t collective; /* enum coll, or BENCH_LATENCY and so on */
	int64_t library;    /* enum bench_library */
	int64_t group_ranks, group_hosts,
		groups;	    /* ranks and hosts per group; groups at once */
	double alpha, beta; /* seconds; seconds per byte of the column size */
	double error;	    /* median |T_fit / T - 1| over the sizes */
};

/* Fits alpha, beta and error to n sizes in bytes and times in seconds. Returns false for n < 3. */
bool bench_fit_times(
	const double *size, const double *time, int64_t n, struct bench_fit *f);
/* Reads the fits of a result of pt-collbench, which is not trusted. The caller frees *fits. */
int bench_fits_read(const char *path, struct bench_fit **fits, int64_t *n, struct err *e);
