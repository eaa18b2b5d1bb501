/* The curves of several logs, as a graph and as a table. */
#include "compare/compare.h"
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

static void put_value(const struct log_rows *r, struct str *out)
{
	char num[NUM_TEXT];
	bool is_float = (double)(float)r->v == r->v || isnan(r->v);
	str_printf(out, "\t%s",
		!r->here   ? "-"
		: is_float ? text_float(num, (float)r->v)
			   : text_double(num, r->v));
}

void curve_table(const struct run_log *logs, int n, const char *column,
	enum curve_axis axis, struct str *out)
{
	struct log_rows *r = xcalloc((size_t)n, sizeof(*r));
	int by = axis == AXIS_TOKENS ? COL_TOKENS : COL_STEP;
	double key;
	str_printf(out, "# %s", columns[by].name);
	for (int i = 0; i < n; i++) {
		r[i] = (struct log_rows){&logs[i], run_log_find(&logs[i], column)};
		str_printf(out, "\t%s", logs[i].name);
	}
	while (str_putc(out, '\n'), rows_next(r, n, by, &key)) {
		str_printf(out, "%.0f", key);
		for (int i = 0; i < n; i++)
			put_value(&r[i], out);
	}
	free(r);
}
