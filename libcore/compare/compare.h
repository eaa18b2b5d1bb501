/*
 * compare: are two runs the same? Alignment, differences, verdicts, plots.
 *
 * Two curves are compared value by value, as floats; what is reported is where they part,
 * the largest difference, and its size in units of the last place: never a mean, in which
 * differences cancel.
 */
#ifndef COMPARE_H
#define COMPARE_H

#include "base/base.h"
#include "run/run.h"

/* ---- diff.c ---------------------------------------------------------------------- */

struct compare_opts {
	int by; /* COL_STEP or COL_TOKENS: what rows are matched by */
	double rtol,
		atol; /* |test - control| <= atol + rtol |control| is as good as equal */
	bool common;  /* rows that only one run has do not count */
};

enum verdict {
	VERDICT_SAME,	/* bit for bit */
	VERDICT_WITHIN, /* the tolerance */
	VERDICT_DIFFER,
	VERDICT_NOTHING, /* no row in common */
};

struct value_pair {
	double at; /* step or tokens */
	float control, test;
	double abs;
	int64_t ulp;
};

struct curve_diff {
	int column;
	int64_t n_common, n_differ, n_beyond; /* the last: beyond the tolerance */
	int64_t only_control, only_test;      /* values that the other has not */
	double first_only;		      /* the first such */
	struct value_pair first, largest, most_ulp;
	enum verdict verdict;
};

struct run_diff {
	struct curve_diff curve[N_COLUMNS]; /* of the columns that are curves */
	enum verdict verdict;		    /* the worst of the curves */
	bool other_arithmetic;
	struct str arithmetic; /* what differs there, a line each */
};

void compare_runs(const struct run_log *control, const struct run_log *test,
	const struct compare_opts *o, struct run_diff *d);
void run_diff_free(struct run_diff *d);
/* For a person: a line a curve, and the verdict. */
void run_diff_print(
	const struct run_diff *d, const struct compare_opts *o, struct str *out);
/* A table for scripts: at, control, tests; '-' where a run has no value. */
void compare_table(
	const struct run_log *logs, int n, int column, int by, struct str *out);

/* ---- plot.c ---------------------------------------------------------------------- */

/* What a curve is drawn over: a column as it is, or what it says of a step, summed over all
 * steps so far. */
enum plot_axis { AXIS_STEPS, AXIS_TOKENS, AXIS_SECONDS, AXIS_BYTES, N_PLOT_AXES };
extern const char *const plot_axis_names[N_PLOT_AXES + 1]; /* closed by NULL */

/* A graph of text, `width` x `height` characters. */
void plot_text(const struct run_log *logs, int n, int column, enum plot_axis axis,
	int width, int height, bool color, struct str *out);
/* Through gnuplot, to a .svg, .png or .pdf file, which appears when it is complete. */
int plot_check(const char *path, struct err *e); /* can a file of that name be drawn? */
int plot_file(const struct run_log *logs, int n, int column, enum plot_axis axis,
	const char *path, struct err *e);

#endif
