/* Graphs as pictures, by gnuplot. */
#include "base/file.h"
#include "base/gnuplot.h"
#include "base/graph.h"

#include <stdlib.h>

static void put_points(const struct graph *g, const struct graph_series *s,
	const struct scale *x, struct str *out)
{
	enum { GROUPS = 2048 }; /* more than a picture has pixels */
	const struct scale y = {.log = g->log_y};
	struct graph_point *p = xmalloc((size_t)(s->n + 1) * sizeof(*p));
	int64_t n = 0;
	for (int64_t k = 0; k < s->n; k++)
		if (scale_has(x, s->p[k].x) && scale_has(&y, s->p[k].y))
			p[n++] = s->p[k];
	if (n > 4 * GROUPS)
		n = points_thin(p, n, x, GROUPS);
	for (int64_t k = 0; k < n; k++)
		str_printf(out, "%.17g %.9g\n", p[k].x, p[k].y);
	free(p);
}

static void script(const struct graph *g, const struct scale *x, const char *terminal,
	struct str *out)
{
	str_printf(out, "set terminal %s\nset key top right noenhanced\nset grid\n",
		terminal);
	str_puts(out, g->log_x ? "set logscale x\n" : "");
	str_puts(out, g->log_y ? "set logscale y\n" : "");
	str_puts(out, "set xlabel ");
	gnuplot_quote(out, g->x_name);
	str_puts(out, " noenhanced\nset ylabel ");
	gnuplot_quote(out, g->y_name);
	str_puts(out, " noenhanced\n");
	for (int i = 0; i < g->n_series; i++) {
		str_printf(out, "$series%d << EOD\n", i);
		put_points(g, &g->series[i], x, out);
		str_puts(out, "EOD\n");
	}
	str_puts(out, "plot ");
	for (int i = 0; i < g->n_series; i++) {
		/* later curves are thinner, so that equal curves are visible */
		str_printf(out, "%s$series%d using 1:2 with lines linewidth %d title ",
			i ? ", " : "", i, i == 0 ? 4 : 2);
		gnuplot_quote(out, g->series[i].name);
	}
	str_putc(out, '\n');
}

int graph_picture_check(const char *path, struct err *e)
{
	return gnuplot_terminal(path)
		       ? 0
		       : err_set(e, EX_USAGE,
				 "plot: '%s' ends in none of .svg, .png, .pdf", path);
}

int graph_picture(const struct graph *g, const char *path, struct err *e)
{
	struct scale x, y;
	if (graph_picture_check(path, e))
		return -1;
	if (!graph_scales(g, &x, &y))
		return err_set(e, EX_DATAERR, "no values of %s", g->y_name);
	struct str text = {0}, picture = {0};
	script(g, &x, gnuplot_terminal(path), &text);
	int rc = gnuplot_run(&text, &picture, e) || file_replace(path, &picture, e);
	str_free(&text);
	str_free(&picture);
	return rc ? -1 : 0;
}
