/*
 * compare: compares the logs of runs: differences, verdicts, plots and reports, for pt-compare.
 *   compare.h  rows of several runs, and the exact comparison of two, column by column
 *   verdict.h  what the curves of several runs say when they need not be equal
 *   outcome.h  both together, as text or JSON
 *   curve.h    columns over steps, tokens, time or bytes: pictures and tables
 *   speed.h    speed and memory
 *   report.h   all of it as a page or as Markdown
 *   export.h   logs in other formats
 *   follow.h   runs that are training
 *   locate.h   the first tensor in which two runs differ
 *
 * Curves are compared value by value, as floats; as doubles, if both have more digits than a float. The
 * results are the first and the largest difference, and its size in units in the last place (ULP), but no
 * mean, in which differences of opposite sign would cancel.
 */
#pragma once

#include "base/base.h"
#include "compare/verdict.h"
#include "run/run.h"

/* ---- rows.c ---------------------------------------------------------------------- */

/* The rows of a log that have a value of a column; begins as {log, column}. */
struct log_rows {
	const struct run_log *log;
	int column; /* -1: the log does not have it */
	int64_t row;
	bool here; /* it has the row that rows_next() found, with the value v */
	double v;
};

/* The next row of n logs in ascending order of the column `by`: sets *key to its step or tokens, and returns
 * how many of the logs have it; 0: there is none. */
int rows_next(struct log_rows *r, int n, int by, double *key);

/* ---- diff.c ---------------------------------------------------------------------- */

struct compare_opts {
	int by;		   /* COL_STEP or COL_TOKENS: the column that matches rows */
	double rtol, atol; /* tolerance: |test - control| <= atol + rtol |control| */
	bool common;	   /* ignore rows that only one run has */
	bool whole;	   /* a row that is missing at the end is a difference, too */
	/* NULL, or the judged column: it is compared, too, if no curve is shared. */
	const char *column;
	bool only; /* compare this column only */
};

struct value_pair {
	double at;	      /* step or tokens */
	double control, test; /* floats, unless these are equal */
	double abs;	      /* |test - control| */
	int64_t ulp;	      /* of floats */
};

struct curve_diff {
	const char *name; /* of the column; NULL: it was not compared */
	int64_t n_common, n_differ, n_beyond; /* n_beyond: beyond the tolerance */
	int64_t n_higher, n_lower;	      /* values of the test that are */
	int64_t only_control, only_test;      /* values that only one of them has */
	int64_t n_ending;		     /* those of them after the last common row */
	double first_only;		     /* step or tokens of the first of them */
	int64_t unread_control, unread_test; /* values that cannot be read */
	double first_unread;
	double most_relative; /* the largest |test - control| / |control| */
	bool lone; /* a row that one of them lacks, or has no readable value in, counts */
	int64_t n_nonfinite; /* equal values that are NaN or infinite */
	double first_nonfinite;
	struct value_pair first, largest, most_ulp;
	struct value_pair beyond; /* the first that is beyond the tolerance */
	enum verdict verdict;	  /* VERDICT_NOTHING: not both runs have it */
};

enum { N_CURVES = N_COLUMNS + 1 };
struct run_diff {
	/* For columns of the table that are curves; the last is of compare_opts.column. */
	struct curve_diff curve[N_CURVES];
	enum verdict verdict; /* the worst of the curves of both runs */
	const char
		*missing; /* NULL, or a curve that only one of them has, but every run */
	int64_t unread_rows; /* of both, whose steps cannot be read */
	bool own;	     /* both logs are pt-train's, so equal bits are possible */
	bool other_arithmetic;
	struct str arithmetic; /* lines `key: control, test` of its differences */
};

/* Returns true if a log is pt-train's, which has all bits of its values. */
bool log_is_own(const struct run_log *l);
/* Returns true if n rows that are missing at the end, next to n_common common rows, are few: at
 * most a tenth. */
bool few_are_missing(int64_t n, int64_t n_common);
/* Equal bits as floats; and as doubles, if both values have more digits than a float. A log may have
 * a float as a short decimal number, and another one the same float in full. */
bool same_as_logged(double a, double b);
/* Appends "; 500 values of loss are NaN or infinite in both, from step 501"; nothing where none is. */
void print_nonfinite(const struct run_diff *d, int by, struct str *out);
/* Returns 1 or -1 if every value of the test that differs is higher or lower, else 0. */
int curve_direction(const struct curve_diff *c);
void compare_runs(const struct run_log *control, const struct run_log *test,
	const struct compare_opts *o, struct run_diff *d);
/* Below 0: a's verdict is better than b's; or they are equal, and fewer values of a differ, or as many and
 * the losses less. Above 0: the same of b. */
int run_diff_cmp(const struct run_diff *a, const struct run_diff *b);
void run_diff_free(struct run_diff *d);
/* Prints a line for each curve, and what differs in the arithmetic. */
void run_diff_print(
	const struct run_diff *d, const struct compare_opts *o, struct str *out);
/* Prints what differs in the arithmetic, one line `key: control, test` per option. */
void arithmetic_print(const struct run_diff *d, struct str *out);
