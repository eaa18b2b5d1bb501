/* Curves: a column of a log over steps, tokens, time or bytes; pictures and tables of them.
 * A column is given by its name, because a log of another program may have columns that are not in
 * the table of columns. */
#pragma once

#include "draw/draw.h"
#include "run/run.h"

/* ---- curve.c ----------------------------------------------------------------------- */

enum curve_axis {
	AXIS_STEPS,
	AXIS_TOKENS,
	AXIS_SAMPLES,
	AXIS_SECONDS,
	AXIS_BYTES,
	N_CURVE_AXES
};
extern const char *const curve_axis_names[N_CURVE_AXES + 1]; /* ends with NULL */

/* Allocates the value of the axis in each row, [n_rows]; NULL: not in the log. Seconds and bytes
 * are summed over all steps so far; without step times, seconds are from the log's time stamps. */
double *curve_axis_values(const struct run_log *l, enum curve_axis axis);
/* Returns true for a column that is an axis, not a curve. */
bool curve_is_axis(const char *name);
/* Returns the columns that an axis needs, for messages in quotes: "dt' or 'elapsed". */
const char *curve_axis_columns(enum curve_axis axis);
/* Returns true if any row has a value in column c; false for c = -1. */
bool curve_has_column(const struct run_log *l, int c);
/* Adds all columns with a value in one of the logs, except the axes. */
void curve_list_columns(const struct run_log *logs, int n, struct strs *names);

/* Prints a table: step or tokens, control, tests; '-' for a missing value. */
void curve_print_table(const struct run_log *logs, int n, const char *column,
	enum curve_axis axis, struct str *out); /* plot.c */
