/* Figures as SVG. A picture is stretched to the available width, except for the width of its
 * lines; its text stands next to it, as HTML. */
#include "report/report.h"

#include <math.h>

void figure_print_stroke(const struct series_list *l, int series, struct str *out)
{
	enum { CONTROLS = 3, TESTS = 8 };
	static const char *const dashes[] = {
		"", ";stroke-dasharray:7 3", ";stroke-dasharray:2 3"};
	const struct curve_series *s = &l->v[series];
	int n_before = 0;
	for (int i = 0; i < series; i++)
		n_before += l->v[i].is_control == s->is_control;
	/* wide controls under ever thinner tests, so that equal curves are all visible */
	if (s->is_control)
		str_printf(out, "color:var(--k%d);--w:4", n_before % CONTROLS);
	else
		str_printf(out, "color:var(--t%d);--w:%.2g%s", n_before % TESTS,
			fmax(1.3, 2.6 - 0.4 * n_before),
			dashes[n_before / TESTS % (int)ARRAY_LEN(dashes)]);
}

enum { MANY_SERIES = 8 };
enum { SIZE = 1000 }; /* units of a picture, in both directions */

/* Appends a point of a path in units of the picture; x and y are 0 to 1 inside of it. */
static void append_point(struct str *out, char pen, double x, double y)
{
	/* (limited: points far outside of the picture are invisible) */
	x = fmax(-SIZE, fmin(2 * SIZE, x * SIZE));
	y = fmax(-9 * SIZE, fmin(9 * SIZE, SIZE - y * SIZE));
	str_printf(out, "%c%.4g %.4g", pen, x + 0.0, y + 0.0);
}

static void append_line(struct str *out, const struct figure_curve *c,
	const struct scale *x, const struct scale *y)
{
	for (int64_t k = 0; k < c->n; k++)
		append_point(out, k ? 'L' : 'M', scale_at(x, c->p[k].x),
			scale_at(y, c->p[k].y));
	if (c->n == 1) /* a dot: the end of a line is round */
		str_puts(out, "h0");
}

static bool has_band(const struct figure_curve *c)
{
	for (int64_t k = 0; k < c->n; k++)
		if (c->p[k].low < c->p[k].high)
			return true;
	return false;
}

static void append_band(struct str *out, const struct figure_curve *c,
	const struct scale *x, const struct scale *y)
{
	for (int64_t k = 0; k < c->n; k++)
		append_point(out, k ? 'L' : 'M', scale_at(x, c->p[k].x),
			scale_at(y, c->p[k].high));
	for (int64_t k = c->n - 1; k >= 0; k--)
		append_point(out, 'L', scale_at(x, c->p[k].x), scale_at(y, c->p[k].low));
}

/* Appends a series as SVG: its line, and its band unless many bands would hide the lines. */
static void print_curve(
	const struct figures *f, const struct figure *fig, int series, struct str *out)
{
	const struct figure_curve *c = &fig->series[series];
	if (!c->n)
		return;
	str_printf(out, "<g class=\"series s%d\" style=\"", series);
	figure_print_stroke(&f->list, series, out);
	str_puts(out, "\">");
	/* (bands of single runs would hide the curves if there are many) */
	if (has_band(c) && (f->list.n <= MANY_SERIES || f->list.v[series].n > 1)) {
		str_puts(out, "<path class=\"band\" d=\"");
		append_band(out, c, &f->x, &fig->y);
		str_puts(out, "\"/>");
	}
	str_puts(out, "<path class=\"curve\" d=\"");
	append_line(out, c, &f->x, &fig->y);
	str_puts(out, "\"/></g>\n");
}

static void print_labels(struct str *out, const char *class, const char *side,
	const struct ticks *t, const struct scale *s)
{
	str_printf(out, "<div class=\"%s\">", class);
	for (int i = 0; i < t->n; i++)
		str_printf(out, "<span style=\"%s:%.4g%%\">%s</span>", side,
			100 * scale_at(s, t->v[i]), t->text[i]);
	str_puts(out, "</div>\n");
}

/* Prints grid lines, and sets t[] to the ticks of the axes. */
static void print_grid(struct str *out, const struct figures *f, const struct figure *fig,
	struct ticks t[2])
{
	ticks_choose(&f->x, 5, &t[0]);
	ticks_choose(&fig->y, 5, &t[1]);
	str_puts(out, "<path class=\"grid\" d=\"");
	for (int i = 0; i < t[1].n; i++)
		str_printf(out, "M0 %.4gh%d", SIZE - SIZE * scale_at(&fig->y, t[1].v[i]),
			SIZE);
	for (int i = 0; i < t[0].n; i++)
		str_printf(out, "M%.4g 0v%d", SIZE * scale_at(&f->x, t[0].v[i]), SIZE);
	str_puts(out, "\"/>\n");
	if (fig->is_difference)
		str_printf(out, "<path class=\"zero\" d=\"M0 %.4gh%d\"/>\n",
			SIZE - SIZE * scale_at(&fig->y, 0), SIZE);
}

void figure_print_svg(const struct figures *f, int number, struct str *out)
{
	const struct figure *fig = &f->v[number];
	struct ticks t[2];
	struct str note = {0};
	int64_t n = 0;
	for (int i = 0; i < f->list.n; i++)
		n += fig->series[i].n;
	outside_print(&fig->outside, &note);
	str_printf(out, "<figure class=\"plot%s\">\n<figcaption>", number ? "" : " wide");
	html_element(out, "b", NULL, fig->title);
	html_element(out, "span", "note", n ? note.len ? note.s : "" : "no values");
	str_puts(out,
		"</figcaption>\n<div class=\"picture\"><svg viewBox=\"0 0 1000 1000\" "
		"preserveAspectRatio=\"none\" "
		"tabindex=\"0\" role=\"img\" aria-label=\"");
	html_text(out, fig->title);
	str_printf(out, " over %s\">\n", curve_axis_names[f->r->axis]);
	print_grid(out, f, fig, t);
	for (int i = 0; i < f->list.n; i++)
		print_curve(f, fig, i, out);
	str_puts(out, "</svg></div>\n");
	print_labels(out, "y", "bottom", &t[1], &fig->y);
	print_labels(out, "x", "left", &t[0], &f->x);
	str_puts(out, "</figure>\n");
	str_free(&note);
}

void figure_print_spark(const struct figures *f, int run, struct str *out)
{
	enum { POINTS = 60 };
	struct figure_curve c = {0};
	struct err e;
	int series = 0;
	while (run >= f->list.v[series].first + f->list.v[series].n)
		series++;
	const struct curve_series single = {run, 1, false, NULL};
	if (!series_get_points(
		    &f->list, &single, f->r->column, f->r->axis, &c.p, &c.n, &e))
		c.n = series_thin(c.p, c.n, POINTS);
	str_puts(out,
		"<svg class=\"spark\" viewBox=\"0 0 1000 1000\" "
		"preserveAspectRatio=\"none\" aria-hidden=\"true\"><path class=\"curve\" style=\"");
	figure_print_stroke(&f->list, series, out);
	str_puts(out, "\" d=\"");
	append_line(out, &c, &f->x, &f->v[0].y);
	str_puts(out, "\"/></svg>");
	free(c.p);
}

void figure_print_legend(const struct figures *f, struct str *out)
{
	str_puts(out, "<ul class=\"legend\">\n");
	for (int i = 0; i < f->list.n; i++) {
		const struct curve_series *s = &f->list.v[i];
		str_printf(out,
			"<li><svg class=\"sample\" aria-hidden=\"true\"><path class=\"curve\" "
			"d=\"M2 6h24\" style=\"");
		figure_print_stroke(&f->list, i, out);
		str_puts(out, "\"/></svg>");
		html_element(out, "bdi", NULL, s->name);
		if (s->is_control && s->n == 1)
			str_puts(out, " (control)");
		if (f->lacks_axis[i])
			str_printf(out, " (no %s)", curve_axis_names[f->r->axis]);
		str_puts(out, "</li>\n");
	}
	str_puts(out, "</ul>\n");
}
