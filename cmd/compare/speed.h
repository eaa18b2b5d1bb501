/*
 * Speed and memory of runs, with their noise.
 *
 * For a measurement per step (time, tokens per second, MFU) the median counts, without the first
 * steps: a tenth of the rows, at least 2 and at most 100, in which memory is touched for the
 * first time, kernels are compiled and algorithms chosen. Statistics are computed from
 * logarithms, so that a time and its rate (steps per second) give the same answer. The standard
 * error comes from the medians of ten blocks of consecutive rows, because neighbouring steps are
 * slow together: 1.4826 times their median absolute deviation, times 1.2533 (the efficiency of a
 * median), over the root of ten. Of memory the peak counts, which has no noise within a run. For
 * several runs of a side the geometric mean counts, and if it is larger, the standard error
 * between the runs; it then holds for a single run of the other side, too.
 */
#pragma once

#include "base/base.h"
#include "run/run.h"

enum { SPEED_BLOCKS = 10 };

/* One side, or one run. */
struct speed {
	double value; /* the median or the peak; NaN: not measured */
	double error; /* standard error, relative to value; NaN: too few rows */
	int df;	      /* degrees of freedom of the error */
	int n_runs;
	double deviation; /* relative standard deviation between the runs; 0: one run */
	int64_t n_rows, n_skipped;
};

struct speed_diff {
	int column;
	struct speed control, test;
	double ratio;	  /* test over control; NaN: not measured by both */
	double low, high; /* a 95 % confidence interval; NaN: too few rows */
	const char
		*words; /* "faster", "slower", "no difference beyond noise" and so on */
};

/* The measurement of some runs. */
struct speed speed_of(const struct run_log *logs, int n, int column);
/* Compares all measurements that both sides have; returns their number. */
enum { MAX_SPEEDS = 8 };
int speed_compare(const struct run_log *control, int n_control,
	const struct run_log *test, int n_test, struct speed_diff d[MAX_SPEEDS]);
/* Appends a line for each. */
void speed_print(const struct speed_diff *d, int n, struct str *out);
/* The measure of speed that a table of these runs has, the first of those that a log has; and ">Tokens/s", for the
 * head of a column of numbers. */
int speed_shown(const struct run_log *logs, int n);
const char *speed_heading(int column);
/* "tokens/s"; and a value with its unit, in a few digits. Returns buf. */
const char *speed_name(int column);
char *speed_text(char buf[AT_LEAST(NUM_TEXT)], int column, double v);
