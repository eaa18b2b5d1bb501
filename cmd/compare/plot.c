/* The curves of several logs, as a graph and as a table. */
#include "compare/compare.h"
#include "compare/series.h"

#include <math.h>

/* Fills a graph's series with points, and for replicas with a band. */
static void fill_series(struct graph_series *graph, struct series_point *points,
	int64_t n, bool are_replicas)
{
	enum { MAX_BAND = 1024 }; /* points: about as many as there are pixels */
	struct graph_point *p = xmalloc((size_t)(n + 1) * sizeof(*p));
	for (int64_t k = 0; k < n; k++)
		p[k] = (struct graph_point){points[k].x, points[k].y};
	graph->p = p;
	graph->n = n;
	if (!are_replicas)
		return;
	graph->n_band = series_thin(points, n, MAX_BAND);
	struct graph_band *band = xmalloc((size_t)(graph->n_band + 1) * sizeof(*band));
	for (int64_t k = 0; k < graph->n_band; k++)
		band[k] = (struct graph_band){points[k].x, points[k].low, points[k].high};
	graph->band = band;
}

int curve_plot_init(struct curve_plot *c, const struct run_log *logs, int n,
	const struct series_opts *o, const char *column, enum curve_axis axis,
	struct err *e)
{
	*c = (struct curve_plot){0};
	series_list_init(&c->list, logs, n, o);
	c->series = xcalloc((size_t)c->list.n, sizeof(*c->series));
	c->graph = (struct graph){.x_name = curve_axis_names[axis],
		.y_name = column,
		.series = c->series,
		.n_series = c->list.n,
		.settled = true};
	for (int i = 0; i < c->list.n; i++) {
		const struct curve_series *s = &c->list.v[i];
		struct series_point *p;
		int64_t points;
		if (series_get_points(&c->list, s, column, axis, &p, &points, e)) {
			curve_plot_release(c);
			return -1;
		}
		c->series[i].name = s->name;
		fill_series(&c->series[i], p, points, s->n > 1);
		free(p);
	}
	return 0;
}

void curve_plot_release(struct curve_plot *c)
{
	for (int i = 0; i < c->list.n; i++) {
		free((void *)c->series[i].p);
		free((void *)c->series[i].band);
	}
	free(c->series);
	series_list_release(&c->list);
	*c = (struct curve_plot){0};
}

static void print_value(const struct log_rows *r, struct str *out)
{
	char num[NUM_TEXT];
	bool is_float = (double)(float)r->v == r->v || isnan(r->v);
	str_printf(out, "\t%s",
		!r->has_row ? "-"
		: is_float  ? text_float(num, (float)r->v)
			    : text_double(num, r->v));
}

void curve_print_table(const struct run_log *logs, int n, const char *column,
	enum curve_axis axis, struct str *out)
{
	scoped_ptr struct log_rows *r = xcalloc((size_t)n, sizeof(*r));
	int key_column = axis == AXIS_TOKENS ? COL_TOKENS : COL_STEP;
	double key;
	str_printf(out, "# %s", columns[key_column].name);
	for (int i = 0; i < n; i++) {
		r[i] = (struct log_rows){&logs[i], run_log_find(&logs[i], column)};
		str_printf(out, "\t%s", logs[i].name);
	}
	while (str_putc(out, '\n'), log_rows_next(r, n, key_column, &key)) {
		str_printf(out, "%.0f", key);
		for (int i = 0; i < n; i++)
			print_value(&r[i], out);
	}
}
