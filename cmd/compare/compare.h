/* compare: compares the logs of runs for pt-compare: differences, verdicts, plots, reports.
 *   compare.h  rows of several runs, and the exact comparison of two, column by column
 *   verdict.h  a statistical verdict on curves that need not be equal
 *   outcome.h  both comparisons as one verdict, in text or JSON
 *   curve.h    columns over steps, tokens, time or bytes: pictures and tables
 *   speed.h    speed and memory
 *   report.h   a report, as an HTML page or as Markdown
 *   export.h   logs in other formats
 *   follow.h   runs that are training
 *   locate.h   the first tensor in which two runs differ
 *
 * Curves are compared value by value, as floats, or as doubles if both values have more digits
 * than a float. The results are the first and the largest difference, the latter also in units in
 * the last place (ULP). There is no mean, in which differences of opposite sign would cancel. */
#pragma once

#include "base/base.h"
#include "compare/verdict.h"
#include "run/run.h"

/* ---- rows.c ---------------------------------------------------------------------- */

/* Iterates over the rows of a log that have a value in a column; starts as {log, column}. */
struct log_rows {
	const struct run_log *log;
	int column; /* -1: not in the log */
	int64_t row;
	bool has_row; /* the log has the row that log_rows_next() found, with value v */
	double v;
};

/* Moves to the next row of n logs, in ascending order of key_column, and sets *key to its step
 * or tokens. Returns the number of logs that have the row; 0 after the last one. */
int log_rows_next(struct log_rows *r, int n, int key_column, double *key);

/* ---- diff.c ---------------------------------------------------------------------- */

struct compare_opts {
	int by;		    /* COL_STEP or COL_TOKENS: the column that matches rows */
	double rtol, atol;  /* tolerance: |test - control| <= atol + rtol |control| */
	bool common;	    /* ignore rows that only one run has */
	bool strict_end;    /* a row that is missing at the end is a difference, too */
	const char *column; /* judged, also compared if no curve is shared; or NULL */
	bool only_column;   /* compare only this column */
};

struct value_pair {
	double at;	      /* step or tokens */
	double control, test; /* rounded to float, unless they are equal as floats */
	double abs;	      /* |test - control| */
	int64_t ulp;	      /* between the floats */
};

struct curve_diff {
	const char *name; /* name of the column; NULL: not compared */
	int64_t n_common, n_differ,
		n_beyond;		 /* n_beyond: values that exceed the tolerance */
	int64_t n_higher, n_lower;	 /* values of the test that are higher, lower */
	int64_t only_control, only_test; /* values that only one run has */
	int64_t n_ending;  /* values after the last common row, included in only_* */
	double first_only; /* step or tokens of the first value that only one run has */
	int64_t unread_control, unread_test; /* values that cannot be read */
	double first_unread;		     /* step or tokens of the first such value */
	double max_relative;		     /* max |test - control| / |control| */
	bool has_lone; /* values that only one run has, or that are unreadable, count */
	int64_t n_nonfinite; /* equal values that are NaN or infinite */
	double first_nonfinite;
	struct value_pair first, largest, max_ulp;
	struct value_pair beyond; /* the first pair that exceeds the tolerance */
	enum verdict verdict;	  /* VERDICT_NOTHING: a run lacks the column */
};

enum { N_CURVES = N_COLUMNS + 1 };
struct run_diff {
	/* By column number, for columns that are curves; the last is for compare_opts.column. */
	struct curve_diff curve[N_CURVES];
	enum verdict verdict; /* the worst verdict of any curve that both runs have */
	const char *missing;  /* NULL, or a curve every run must have but only one has */
	int64_t unread_rows;  /* rows of both logs with an unreadable step */
	bool are_from_pt; /* both logs are from pt-train, so equal bits are possible */
	bool arithmetic_differs;
	struct str arithmetic; /* how it differs: lines `key: control, test` */
};

/* Returns true for a log of pt-train, which has all bits of the values. */
bool log_is_from_pt(const struct run_log *l);
/* Returns true if the n rows missing at the end are at most a tenth of n + n_common rows. */
bool few_are_missing(int64_t n, int64_t n_common);
/* Returns true for equal bits as floats; also as doubles, if both values have more digits than a
 * float. One log may print a float as a short decimal, another one the same float in full. */
bool same_as_logged(double a, double b);
/* Appends "; 500 values of loss are NaN or infinite in both, from step 501" if there are any. */
void append_nonfinite(const struct run_diff *d, int key_column, struct str *out);
/* Returns 1 if all values that differ are higher in the test, -1 if all are lower, else 0. */
int curve_direction(const struct curve_diff *c);
/* Compares all curves of two runs value by value. */
void compare_runs(const struct run_log *control, const struct run_log *test,
	const struct compare_opts *o, struct run_diff *d);
/* Orders by verdict, then by the number of values that differ, then by the largest difference of
 * the loss. Returns less than 0 if a is the better match. */
int run_diff_cmp(const struct run_diff *a, const struct run_diff *b);
void run_diff_release(struct run_diff *d);
/* Prints one line per curve, then the differences in the arithmetic. */
void run_diff_print(
	const struct run_diff *d, const struct compare_opts *o, struct str *out);
/* Prints the differences in the arithmetic, one line `key: control, test` per option. */
void arithmetic_print(const struct run_diff *d, struct str *out);
