/* The curves of several logs, as a graph and as a table. */
#include "compare/curve.h"

#include <math.h>
#include <stdlib.h>

int curves_of(struct curve_plot *c, const struct run_log *logs, int n, const char *column,
	enum curve_axis axis, struct err *e)
{
	*c = (struct curve_plot){
		.series = xcalloc((size_t)n, sizeof(*c->series)), .n = n};
	c->graph = (struct graph){.x_name = curve_axis_names[axis],
		.y_name = column,
		.series = c->series,
		.n_series = n};
	for (int i = 0; i < n; i++) {
		struct graph_point *p = NULL;
		c->series[i].name = logs[i].name;
		if (curve_points(&logs[i], column, axis, &p, &c->series[i].n, e)) {
			curves_free(c);
			return -1;
		}
		c->series[i].p = p;
	}
	return 0;
}

void curves_free(struct curve_plot *c)
{
	for (int i = 0; i < c->n; i++)
		free((void *)c->series[i].p);
	free(c->series);
	*c = (struct curve_plot){0};
}

/* ---- a table --------------------------------------------------------------------- */

struct cursor {
	const struct run_log *log;
	int column, by;
	int64_t row;
};

/* The key of the row; after the last one, infinity. */
static double key_of(const struct cursor *c)
{
	return c->row < c->log->n_rows ? run_log_value(c->log, c->row, c->by) : INFINITY;
}

/* Goes to the first row from `row` that has a value and a key. */
static void go_to(struct cursor *c, int64_t row)
{
	for (c->row = row; c->row < c->log->n_rows; c->row++)
		if (c->column >= 0 && run_log_has(c->log, c->row, c->column) &&
			run_log_has(c->log, c->row, c->by))
			break;
}

static void put_row(struct cursor *at, int n, double key, struct str *out)
{
	char num[NUM_TEXT];
	str_printf(out, "%.0f", key);
	for (int i = 0; i < n; i++) {
		if (key_of(&at[i]) != key) {
			str_puts(out, "\t-");
			continue;
		}
		double v = run_log_value(at[i].log, at[i].row, at[i].column);
		bool is_float = (double)(float)v == v || isnan(v);
		str_printf(out, "\t%s",
			is_float ? text_float(num, (float)v) : text_double(num, v));
		go_to(&at[i], at[i].row + 1);
	}
	str_putc(out, '\n');
}

void curve_table(const struct run_log *logs, int n, const char *column,
	enum curve_axis axis, struct str *out)
{
	struct cursor *at = xcalloc((size_t)n, sizeof(*at));
	int by = axis == AXIS_TOKENS ? COL_TOKENS : COL_STEP;
	str_printf(out, "# %s", columns[by].name);
	for (int i = 0; i < n; i++) {
		at[i] = (struct cursor){&logs[i], run_log_find(&logs[i], column), by, 0};
		go_to(&at[i], 0);
		str_printf(out, "\t%s", logs[i].name);
	}
	str_putc(out, '\n');
	for (;;) {
		double key = INFINITY;
		for (int i = 0; i < n; i++)
			key = fmin(key, key_of(&at[i]));
		if (isinf(key))
			break;
		put_row(at, n, key, out);
	}
	free(at);
}
