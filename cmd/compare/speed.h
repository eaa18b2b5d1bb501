/* Speed and memory of runs, with their noise.
 * A measurement per step (time, tokens per second, MFU) is the median without the first steps: a
 * tenth of the rows, at least 2 and at most 100, in which memory is touched for the first time,
 * kernels are compiled and algorithms chosen. Statistics are computed from logarithms, so that a
 * time and its rate (steps per second) give the same answer. The standard error comes from the
 * medians of ten blocks of consecutive rows, because neighboring steps are slow together: 1.4826
 * times their median absolute deviation, times 1.2533 (the efficiency of a median), over the root
 * of ten. Memory is measured by its peak, which has no noise within a run. Several runs of a side
 * are combined by the geometric mean. If the standard error between them is larger, it is used,
 * also for a single run of the other side. */
#pragma once

#include "base/base.h"
#include "run/run.h"

enum { SPEED_BLOCKS = 10 };

/* The speed or memory of one run, or of the runs of one side. */
struct speed {
	double value; /* the median or the peak; NaN: not measured */
	double error; /* standard error, relative to value; NaN: too few rows */
	int df;	      /* degrees of freedom of the error */
	int n_runs;
	double deviation; /* relative standard deviation between the runs; 0: one run */
	int64_t n_rows, n_skipped; /* rows used, and first rows that are not */
};

struct speed_diff {
	int column;
	struct speed control, test;
	double ratio;	   /* test over control; NaN: not measured by both */
	double low, high;  /* a 95 % confidence interval; NaN: too few rows */
	const char *words; /* "faster", "no difference beyond noise" and so on */
};

/* Measures n runs, combined by the geometric mean. */
struct speed measure_speed(const struct run_log *logs, int n, int column);
enum { MAX_SPEEDS = 8 };
/* Compares all measurements that both sides have; returns their number. */
int speed_compare(const struct run_log *control, int n_control,
	const struct run_log *test, int n_test, struct speed_diff d[MAX_SPEEDS]);
/* Appends one line per measurement. */
void speed_print(const struct speed_diff *d, int n, struct str *out);
/* Returns the column that measures speed in a table of these runs: the first one a log has. */
int choose_speed_column(const struct run_log *logs, int n);
/* Returns the table heading for a measure, such as ">Tokens/s"; > aligns a column to the right. */
const char *speed_heading(int column);
const char *speed_name(int column); /* such as "tokens/s" */
/* Prints a value with its unit, in a few digits. Returns buf. */
char *speed_format(char buf[AT_LEAST(NUM_TEXT)], int column, double v);
