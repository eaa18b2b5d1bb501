/*
 * Curves: a column of a log over steps, tokens, time or bytes; pictures and tables of them.
 *
 * A column is given by its name, because a log of another program may have columns beside those of
 * the table.
 */
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

/* The values of the axis in each row: [n_rows], allocated; NULL: the log does not have it. Of
 * seconds and bytes: the sum over all steps so far; of logs without times of steps, seconds are by the clock. */
double *curve_axis_values(const struct run_log *l, enum curve_axis axis);
/* Whether a column is that of an axis, and no curve. */
bool curve_is_axis(const char *name);
const char *curve_axis_columns(
	enum curve_axis axis); /* "dt' or 'elapsed": that it needs */
/* Whether a row has a value of the column (-1: of none). */
bool curve_has_column(const struct run_log *l, int c);
/* All columns with a value in one of the logs, but those of the axes. */
void curve_columns(const struct run_log *logs, int n, struct strs *names);

/* ---- plot.c ------------------------------------------------------------------------ */

/* Prints a table: step or tokens, control, tests; '-' if a run has no value. */
void curve_table(const struct run_log *logs, int n, const char *column,
	enum curve_axis axis, struct str *out);
