/*
 * The time of a collective as latency and bandwidth, T = alpha + beta size, fitted to measured times of one
 * collective in groups of one kind (Hockney, "The communication challenge for MPP", 1994). Small and large
 * sizes count alike: the relative deviations are squared. Each axis of a mesh has fits of its own, which do not tell
 * its name: those of one collective stand in the order in which the axes were measured.
 */
#pragma once

#include "base/base.h"

struct bench_fit {
	int64_t collective /* enum coll, or BENCH_LATENCY and so on */,
		library /* enum bench_library */;
	int64_t group_ranks, group_hosts,
		groups; /* hosts that a group spans; groups at once */
	double alpha /* s */, beta /* s per byte of the column size */;
	double error; /* median |T_fit / T - 1| over the sizes */
};

/* Sets alpha, beta and error from n sizes in bytes and times in seconds. False: fewer than 3 times. */
bool bench_fit_times(
	const double *size, const double *time, int64_t n, struct bench_fit *f);
/* Reads the fits of a result of pt-collbench, which is not trusted. 0, or -1 with *e set; *fits is freed by the
 * caller. */
int bench_fits_read(const char *path, struct bench_fit **fits, int64_t *n, struct err *e);
