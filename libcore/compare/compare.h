/*
 * compare: comparison of runs: alignment, differences, verdicts, plots.
 *
 * Curves are compared value by value, as floats. The results are the first and the largest
 * difference, and its size in units in the last place (ULP), but no mean, in which differences of
 * opposite sign would cancel.
 */
#ifndef COMPARE_H
#define COMPARE_H

#include "base/base.h"
#include "run/run.h"

/* ---- diff.c ---------------------------------------------------------------------- */

struct compare_opts {
	int by;		   /* COL_STEP or COL_TOKENS: the column that matches rows */
	double rtol, atol; /* tolerance: |test - control| <= atol + rtol |control| */
	bool common;	   /* ignore rows that only one run has */
};

enum verdict {
	VERDICT_SAME,	/* bit for bit */
	VERDICT_WITHIN, /* within the tolerance */
	VERDICT_DIFFER,
	VERDICT_NOTHING, /* no row in common, or a curve that every run has is missing */
};

struct value_pair {
	double at; /* step or tokens */
	float control, test;
	double abs;
	int64_t ulp;
};

struct curve_diff {
	int column;
	int64_t n_common, n_differ, n_beyond; /* n_beyond: beyond the tolerance */
	int64_t only_control, only_test;      /* values that only one of them has */
	double first_only;		      /* step or tokens of the first of them */
	struct value_pair first, largest, most_ulp;
	enum verdict verdict; /* VERDICT_NOTHING: not both runs have it */
};

struct run_diff {
	struct curve_diff curve[N_COLUMNS]; /* for columns that are curves */
	enum verdict verdict;		    /* the worst of the curves of both runs */
	const char
		*missing; /* NULL, or a curve that only one of them has, but every run */
	bool other_arithmetic;
	struct str arithmetic; /* lines `key: control, test` of its differences */
};

void compare_runs(const struct run_log *control, const struct run_log *test,
	const struct compare_opts *o, struct run_diff *d);
void run_diff_free(struct run_diff *d);
/* Prints a line for each curve, and the verdict. */
void run_diff_print(
	const struct run_diff *d, const struct compare_opts *o, struct str *out);
/* Prints a table: step or tokens, control, tests; '-' if a run has no value. */
void compare_table(
	const struct run_log *logs, int n, int column, int by, struct str *out);

/* ---- plot.c ---------------------------------------------------------------------- */

/* The x axis: a column, or the sum over steps of a column that has values per step. */
enum plot_axis { AXIS_STEPS, AXIS_TOKENS, AXIS_SECONDS, AXIS_BYTES, N_PLOT_AXES };
extern const char *const plot_axis_names[N_PLOT_AXES + 1]; /* ends with NULL */

/* Draws a graph as text, `width` x `height` characters. */
void plot_text(const struct run_log *logs, int n, int column, enum plot_axis axis,
	int width, int height, bool color, struct str *out);
/* Draws a graph by gnuplot to a .svg, .png or .pdf file. 0, or -1 with *e set. */
int plot_check(const char *path, struct err *e); /* checks the suffix */
int plot_file(const struct run_log *logs, int n, int column, enum plot_axis axis,
	const char *path, struct err *e);

#endif
