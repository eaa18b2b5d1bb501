/* Columns and axes of logs. */
#include "compare/curve.h"
#include "logs/logs.h"

#include <math.h>

const char *const curve_axis_names[] = {
	"step", "tokens", "samples", "seconds", "bytes", NULL};

static const struct {
	const char *per_step; /* a column of means since the previous row; NULL: none */
	const char *total;    /* otherwise a column with the values of the axis */
	const char *names;    /* names of both columns, for messages */
} axes[N_CURVE_AXES] = {
	[AXIS_STEPS] = {NULL, "step", "step"},
	[AXIS_TOKENS] = {NULL, "tokens", "tokens"},
	[AXIS_SAMPLES] = {NULL, LOG_SAMPLES, LOG_SAMPLES},
	[AXIS_SECONDS] = {"dt", LOG_ELAPSED, "dt' or '" LOG_ELAPSED},
	[AXIS_BYTES] = {"sent", NULL, "sent"},
};

const char *curve_axis_columns(enum curve_axis axis)
{
	return axes[axis].names;
}

bool curve_is_axis(const char *name)
{
	for (int i = 0; i < N_CURVE_AXES; i++)
		if (axes[i].total && !strcmp(axes[i].total, name))
			return true;
	return log_is_step_name(name);
}

bool curve_has_column(const struct run_log *l, int c)
{
	for (int64_t i = 0; i < l->n_rows; i++)
		if (run_log_has(l, i, c))
			return true;
	return false;
}

static int find_filled_column(const struct run_log *l, const char *name)
{
	int c = name ? run_log_find(l, name) : -1;
	return c >= 0 && curve_has_column(l, c) ? c : -1;
}

double *curve_axis_values(const struct run_log *l, enum curve_axis axis)
{
	int per_step = find_filled_column(l, axes[axis].per_step);
	int column = per_step >= 0 ? per_step : find_filled_column(l, axes[axis].total);
	double sum = 0, step = 0;
	if (column < 0)
		return NULL;
	double *x = xmalloc((size_t)(l->n_rows + 1) * sizeof(*x));
	for (int64_t i = 0; i < l->n_rows; i++) {
		double v = run_log_value(l, i, column);
		if (per_step < 0) {
			x[i] = v;
			continue;
		}
		double now = run_log_value(l, i, COL_STEP);
		if (isfinite(v)) {
			sum += v * (now - step);
			step = now;
		}
		x[i] = sum;
	}
	return x;
}

void curve_list_columns(const struct run_log *logs, int n, struct strs *names)
{
	for (int c = 0; c < MAX_LOG_COLUMNS; c++)
		for (int i = 0; i < n; i++)
			if (c < logs[i].n_columns &&
				!curve_is_axis(logs[i].column[c].name) &&
				curve_has_column(&logs[i], c) &&
				strs_find(names, logs[i].column[c].name) < 0)
				strs_add(names, logs[i].column[c].name);
}
