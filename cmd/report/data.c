/* Prints the thinned curves of a report as JSON. */
#include "report/report.h"

#include <math.h>

/* Prints a JSON string. Escapes <, > and &, too: the JSON is the text of an HTML element. */
static void print_string(struct str *out, const char *s)
{
	str_putc(out, '"');
	for (; *s; s++) {
		unsigned char c = (unsigned char)*s;
		if (c < ' ' || strchr("\"\\<>&", c))
			str_printf(out, "\\u%04x", c);
		else
			str_putc(out, *s);
	}
	str_putc(out, '"');
}

/* Prints a number in at most seven digits, or exactly if it is whole. */
static void print_number(struct str *out, double v)
{
	char text[NUM_TEXT];
	if (v == floor(v) && fabs(v) < 1e15)
		str_printf(out, "%.0f", v);
	else if ((double)(float)v == v)
		str_puts(out, text_float(text, (float)v));
	else
		str_printf(out, "%.7g", v);
}

static void print_key(struct str *out, bool is_first, const char *key)
{
	str_puts(out, is_first ? "" : ",");
	print_string(out, key);
	str_putc(out, ':');
}

/* Prints a key and n numbers that are `stride` bytes apart. */
static void print_array(
	struct str *out, const char *key, const double *first, int64_t n, size_t stride)
{
	print_key(out, !strcmp(key, "x"), key);
	for (int64_t i = 0; i < n; i++) {
		str_putc(out, i ? ',' : '[');
		print_number(out, first[(size_t)i * (stride / sizeof(double))]);
	}
	str_puts(out, n ? "]" : "[]");
}

/* Prints {x, y}, or {x, y, lo, hi} if points stand for several values; x are steps. */
static void print_curve(struct str *out, const struct figure_curve *c)
{
	const struct series_point *p = c->p;
	bool has_band = false;
	for (int64_t k = 0; k < c->n; k++)
		has_band |= p[k].low < p[k].high;
	if (!c->n) {
		str_puts(out, "null");
		return;
	}
	str_putc(out, '{');
	print_array(out, "x", &p->step, c->n, sizeof(*p));
	print_array(out, "y", &p->y, c->n, sizeof(*p));
	if (has_band) {
		print_array(out, "lo", &p->low, c->n, sizeof(*p));
		print_array(out, "hi", &p->high, c->n, sizeof(*p));
	}
	str_putc(out, '}');
}

static void print_curves(struct str *out, const struct figure_curve *c, int n)
{
	for (int i = 0; i < n; i++) {
		str_putc(out, i ? ',' : '[');
		print_curve(out, &c[i]);
	}
	str_putc(out, ']');
}

/* Prints the values of the axes in at most `max` evenly spaced rows, from the first to the last. */
static void print_knots(struct str *out, const struct run_log *l, int64_t max)
{
	int64_t n = min64(l->n_rows, max);
	bool is_first = true;
	str_putc(out, '{');
	for (enum curve_axis a = 0; a < N_CURVE_AXES; a++) {
		double *v = n ? curve_axis_values(l, a) : NULL;
		bool is_complete = v != NULL;
		for (int64_t i = 0; i < l->n_rows && is_complete; i++)
			is_complete = isfinite(v[i]);
		if (is_complete) {
			print_key(out, is_first, curve_axis_names[a]);
			for (int64_t i = 0; i < n; i++) {
				str_putc(out, i ? ',' : '[');
				print_number(out,
					v[n > 1 ? i * (l->n_rows - 1) / (n - 1) : 0]);
			}
			str_putc(out, ']');
			is_first = false;
		}
		free(v);
	}
	str_putc(out, '}');
}

/* Appends the names, runs and strokes of all series as JSON objects. */
static void print_series(struct str *out, const struct figures *f)
{
	for (int i = 0; i < f->list.n; i++) {
		const struct curve_series *s = &f->list.v[i];
		struct str stroke = {0};
		figure_print_stroke(&f->list, i, &stroke);
		str_puts(out, i ? ",\n{\"name\":" : "\n{\"name\":");
		print_string(out, s->name);
		str_printf(out, ",\"first\":%d,\"n\":%d,\"stroke\":", s->first, s->n);
		print_string(out, stroke.s);
		str_putc(out, '}');
		str_free(&stroke);
	}
}

/* Appends a figure as a JSON object: its title, its range of y and its points. */
static void print_figure(
	struct str *out, const struct figures *f, const struct figure *fig)
{
	str_puts(out, "{\"title\":");
	print_string(out, fig->title);
	str_printf(out, ",\"zero\":%s,\"y\":[", fig->is_difference ? "true" : "false");
	print_number(out, fig->y.low);
	str_putc(out, ',');
	print_number(out, fig->y.high);
	str_puts(out, "],\"series\":");
	print_curves(out, fig->series, f->list.n);
	str_puts(out, ",\"runs\":");
	print_curves(out, fig->runs, f->list.n_runs);
	str_putc(out, '}');
}

void report_print_data(const struct figures *f, struct str *out)
{
	enum { KNOTS = 2000 };
	int64_t max = max64(20, min64(500, KNOTS / f->list.n_runs));
	str_printf(out, "{\"axis\":\"%s\",\"series\":[", curve_axis_names[f->r->axis]);
	print_series(out, f);
	str_puts(out, "],\"runs\":[");
	for (int i = 0; i < f->list.n_runs; i++) {
		str_puts(out, i ? ",\n{\"name\":" : "\n{\"name\":");
		print_string(out, f->list.names[i]);
		str_puts(out, ",\"knots\":");
		print_knots(out, &f->list.logs[i], max);
		str_putc(out, '}');
	}
	str_puts(out, "],\"figures\":[\n");
	for (int i = 0; i < f->n; i++) {
		str_puts(out, i ? ",\n" : "");
		print_figure(out, f, &f->v[i]);
	}
	str_puts(out, "]}");
}
