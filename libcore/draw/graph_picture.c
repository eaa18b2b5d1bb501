/* Graphs as pictures, by gnuplot. */
#include "base/file.h"
#include "draw/gnuplot.h"
#include "draw/graph.h"

#include <math.h>

/* Appends the points of a curve that the axes can show, one per line. Thins long curves. */
static void append_points(const struct graph *g, const struct graph_series *s,
	const struct scale *x, struct str *out)
{
	enum { GROUPS = 2048 }; /* more than a picture has pixels */
	const struct scale y = {.log = g->log_y};
	scoped_ptr struct graph_point *p = xmalloc((size_t)(s->n + 1) * sizeof(*p));
	int64_t n = 0;
	for (int64_t k = 0; k < s->n; k++)
		if (scale_has(x, s->p[k].x) && scale_has(&y, s->p[k].y))
			p[n++] = s->p[k];
	if (n > 4 * GROUPS)
		n = points_thin(p, n, x, GROUPS);
	for (int64_t k = 0; k < n; k++)
		str_printf(out, "%.17g %.9g\n", p[k].x, p[k].y);
}

static void append_band(const struct graph_series *s, struct str *out)
{
	for (int64_t k = 0; k < s->n_band; k++)
		str_printf(out, "%.17g %.9g %.9g\n", s->band[k].x, s->band[k].low,
			s->band[k].high);
}

/* Appends a name for the legend, of a long name only the begin and the end. */
static void append_name(struct str *out, const char *name)
{
	enum { MAX = 100, BEGIN = 40, END = 57 };
	size_t len = strlen(name), begin = BEGIN, end = len - END;
	if (len <= MAX) {
		gnuplot_quote(out, name);
		return;
	}
	/* (do not cut a UTF-8 character) */
	while (begin && ((unsigned char)name[begin] & 0xc0) == 0x80)
		begin--;
	while (((unsigned char)name[end] & 0xc0) == 0x80)
		end++;
	scoped_str text = {0};
	str_add(&text, name, begin);
	str_puts(&text, "...");
	str_puts(&text, name + end);
	gnuplot_quote(out, text.s);
}

/* Returns how many columns the legend below the plot has, by the length of the longest name. */
static int key_columns(const struct graph *g)
{
	enum { WIDTH = 110, SAMPLE = 8 };
	int columns = 4;
	for (int i = 0; i < g->n_series; i++) {
		int len = (int)min64((int64_t)strlen(g->series[i].name), WIDTH);
		columns = (int)max64(1, min64(columns, WIDTH / (len + SAMPLE)));
	}
	return columns;
}

/* Appends gnuplot's plot command: all bands first, then all curves, with their names and colors. */
static void append_plot_command(const struct graph *g, struct str *out)
{
	static const char *const colors[] = {
		"1c2128", "0b6bcb", "c4500a", "7a3ff2", "0d7d6c", "c01b6c", "8a6d00"};
	enum { N = ARRAY_LEN(colors) };
	str_puts(out, "plot ");
	for (int i = 0; i < g->n_series; i++)
		if (g->series[i].n_band)
			str_printf(out,
				"$band%d using 1:2:3 with filledcurves fillstyle transparent "
				"solid 0.2 noborder linecolor rgb '#%s' notitle, ",
				i, colors[i % N]);
	for (int i = 0; i < g->n_series; i++) {
		/* later curves are thinner, so that equal curves are visible */
		str_printf(out,
			"%s$series%d using 1:2 with lines linewidth %g dashtype %d linecolor "
			"rgb '#%s' title ",
			i ? ", " : "", i, fmax(1, i ? 3 - 0.5 * i : 4.5), i / N % 4 + 1,
			colors[i % N]);
		append_name(out, g->series[i].name);
	}
	str_putc(out, '\n');
}

/* Appends a gnuplot script that draws the graph to an image file of the type of `path`. */
static void write_script(const struct graph *g, const struct scale *x,
	const struct scale *y, const char *path, struct str *out)
{
	int columns = key_columns(g);
	str_puts(out, "set terminal ");
	gnuplot_terminal(path, (int)ceil_div(g->n_series, columns), out);
	str_printf(out,
		"\nset key below vertical Left reverse noenhanced height 1 maxrows %d\nset grid\n",
		(int)ceil_div(g->n_series, columns));
	str_puts(out, g->log_x ? "set logscale x\n" : "");
	str_puts(out, g->log_y ? "set logscale y\n" : "");
	double pad = g->log_y ? 0 : (y->high / 2 - y->low / 2) * 0.05;
	if (g->settled && y->high > y->low && isfinite(y->low - pad + y->high + pad))
		str_printf(
			out, "set yrange [%.17g:%.17g]\n", y->low - pad, y->high + pad);
	str_puts(out, "set xlabel ");
	gnuplot_quote(out, g->x_name);
	str_puts(out, " noenhanced\nset ylabel ");
	gnuplot_quote(out, g->y_name);
	str_puts(out, " noenhanced\n");
	for (int i = 0; i < g->n_series; i++) {
		str_printf(out, "$series%d << EOD\n", i);
		append_points(g, &g->series[i], x, out);
		str_printf(out, "EOD\n$band%d << EOD\n", i);
		append_band(&g->series[i], out);
		str_puts(out, "EOD\n");
	}
	append_plot_command(g, out);
}

int graph_picture_check(const char *path, struct err *e)
{
	return gnuplot_terminal(path, 0, NULL)
		       ? 0
		       : err_set(e, EX_USAGE,
				 "--plot: '%s' ends in none of .svg, .png, .pdf", path);
}

/* Escapes ]]> in the texts of *picture: gnuplot does not, and strict XML parsers reject it. */
static void escape_svg(struct str *picture)
{
	static const char end[] = "]]>";
	struct str out = {0};
	const char *from = picture->s, *stop = picture->s + picture->len;
	for (const char *p; (p = memmem(from, (size_t)(stop - from), end, 3));
		from = p + 3) {
		str_add(&out, from, (size_t)(p - from));
		str_puts(&out, "]]&gt;");
	}
	str_add(&out, from, (size_t)(stop - from));
	str_free(picture);
	*picture = out;
}

int graph_picture(const struct graph *g, const char *path, struct err *e)
{
	struct scale x, y;
	if (graph_picture_check(path, e))
		return -1;
	if (!graph_scales(g, &x, &y))
		return err_set(e, EX_DATAERR, "no values of %s", g->y_name);
	scoped_str text = {0}, picture = {0};
	write_script(g, &x, &y, path, &text);
	int rc = gnuplot_run(&text, &picture, e);
	if (!rc && text_ends(path, ".svg"))
		escape_svg(&picture);
	return rc || file_replace(path, &picture, e) ? -1 : 0;
}
