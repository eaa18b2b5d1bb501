/* Points of a log's column. */
#include "compare/curve.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *const curve_axis_names[] = {"step", "tokens", "seconds", "bytes", NULL};

static const struct {
	int column;
	bool of_a_step; /* mean over the steps since the previous row */
} axes[N_CURVE_AXES] = {
	[AXIS_STEPS] = {COL_STEP, false},
	[AXIS_TOKENS] = {COL_TOKENS, false},
	[AXIS_SECONDS] = {COL_DT, true},
	[AXIS_BYTES] = {COL_SENT, true},
};

const char *curve_axis_column(enum curve_axis axis)
{
	return columns[axes[axis].column].name;
}

bool curve_has_column(const struct run_log *l, int c)
{
	for (int64_t i = 0; i < l->n_rows; i++)
		if (run_log_has(l, i, c))
			return true;
	return false;
}

double *curve_axis_values(const struct run_log *l, enum curve_axis axis)
{
	int by = axes[axis].column;
	double sum = 0, step = 0;
	if (!curve_has_column(l, by))
		return NULL;
	double *x = xmalloc((size_t)(l->n_rows + 1) * sizeof(*x));
	for (int64_t i = 0; i < l->n_rows; i++) {
		double v = run_log_value(l, i, by);
		if (!axes[axis].of_a_step) {
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

static bool is_axis(const char *name)
{
	return !strcmp(name, columns[COL_STEP].name) ||
	       !strcmp(name, columns[COL_TOKENS].name);
}

static void add_new(struct strs *names, const char *name)
{
	for (int64_t i = 0; i < names->n; i++)
		if (!strcmp(names->v[i], name))
			return;
	strs_add(names, name);
}

void curve_columns(const struct run_log *logs, int n, struct strs *names)
{
	for (int c = 0; c < MAX_LOG_COLUMNS; c++)
		for (int i = 0; i < n; i++)
			if (c < logs[i].n_columns && !is_axis(logs[i].column[c].name) &&
				curve_has_column(&logs[i], c))
				add_new(names, logs[i].column[c].name);
}
