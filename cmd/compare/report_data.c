/* The curves of a report as JSON, thinned. */
#include "compare/report.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* How many points a curve of two runs has at most, so that the page stays below 2 MB; with more runs
 * fewer, but not fewer than the least number. A group of rows has four numbers. */
static const struct {
	int64_t most, least;
} points[2] = {{800, 40}, {4000, 400}}; /* of measurements, of results */

/* ---- JSON -------------------------------------------------------------------------- */

/* (As text in an element of HTML, where < may begin its end.) */
static void put_string(struct str *out, const char *s)
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

static void put_number(struct str *out, double v)
{
	char text[NUM_TEXT];
	if (v == floor(v) && fabs(v) < 1e15)
		str_printf(out, "%.0f", v);
	else if ((double)(float)v == v)
		str_puts(out, text_float(text, (float)v));
	else
		str_printf(out, "%.7g", v);
}

static void put_key(struct str *out, bool first, const char *key)
{
	str_puts(out, first ? "" : ",");
	put_string(out, key);
	str_putc(out, ':');
}

/* The member `field` (0: x, 1: y, ...) of records of `width` numbers. */
static void put_array(struct str *out, const char *key, const double *v, int64_t n,
	int width, int field)
{
	str_printf(out, "%s\"%s\":[", field ? "," : "", key);
	for (int64_t i = 0; i < n; i++) {
		str_puts(out, i ? "," : "");
		put_number(out, v[i * width + field]);
	}
	str_putc(out, ']');
}

/* ---- curves ------------------------------------------------------------------------ */

/* Points as {x, y}, or of more than `most` of them groups as {x, y, lo, hi} with their mean. */
static void put_curve(
	struct str *out, const struct graph_point *p, int64_t n, int64_t most)
{
	static const char *const keys[] = {"x", "y", "lo", "hi"};
	int64_t groups = n <= most ? n : most / 2;
	int width = n <= most ? 2 : 4;
	double *v = xmalloc((size_t)(groups * width + 1) * sizeof(*v));
	for (int64_t g = 0; g < groups; g++) {
		int64_t begin = part_begin(n, groups, g),
			end = part_begin(n, groups, g + 1);
		double sum = 0, low = INFINITY, high = -INFINITY;
		for (int64_t k = begin; k < end; k++) {
			sum += p[k].y / (double)(end - begin);
			low = fmin(low, p[k].y);
			high = fmax(high, p[k].y);
		}
		const double record[4] = {p[begin + (end - begin) / 2].x, sum, low, high};
		memcpy(&v[g * width], record, (size_t)width * sizeof(*v));
		if (width == 2)
			v[g * 2 + 1] = p[begin].y;
	}
	str_putc(out, '{');
	for (int f = 0; f < width; f++)
		put_array(out, keys[f], v, groups, width, f);
	str_putc(out, '}');
	free(v);
}

static bool is_result(const struct report *r, const char *column)
{
	int c = column_find(column);
	return (c >= 0 && columns[c].curve) || !strcmp(column, r->column);
}

static int64_t most_points(const struct report *r, const char *column)
{
	bool result = is_result(r, column);
	return max64(2 * points[result].most / max64(r->n, 2), points[result].least);
}

static void put_curves(
	struct str *out, const struct report *r, int run, const struct strs *names)
{
	bool first = true;
	str_putc(out, '{');
	for (int64_t c = 0; c < names->n; c++) {
		struct graph_point *p;
		int64_t n;
		struct err e;
		if (curve_points(&r->logs[run], names->v[c], AXIS_STEPS, &p, &n, &e))
			continue;
		if (n) {
			put_key(out, first, names->v[c]);
			put_curve(out, p, n, most_points(r, names->v[c]));
			first = false;
		}
		free(p);
	}
	str_putc(out, '}');
}

/* The values of the axes in some rows: the first, the last, and between them. */
static void put_knots(struct str *out, const struct run_log *l)
{
	enum { MOST = 500 };
	int64_t n = min64(l->n_rows, MOST);
	bool first = true;
	str_putc(out, '{');
	for (enum curve_axis a = 0; a < N_CURVE_AXES; a++) {
		double *v = n ? curve_axis_values(l, a) : NULL;
		bool whole = v != NULL;
		for (int64_t i = 0; i < l->n_rows && whole; i++)
			whole = isfinite(v[i]);
		if (whole) {
			put_key(out, first, curve_axis_names[a]);
			for (int64_t i = 0; i < n; i++) {
				str_putc(out, i ? ',' : '[');
				put_number(out,
					v[n > 1 ? i * (l->n_rows - 1) / (n - 1) : 0]);
			}
			str_putc(out, ']');
			first = false;
		}
		free(v);
	}
	str_putc(out, '}');
}

/* ---- differences ------------------------------------------------------------------- */

/* test - control in the steps that both have; p has room for the test's points. */
static int64_t subtract(const struct graph_point *control, int64_t n_control,
	const struct graph_point *test, int64_t n_test, struct graph_point *p)
{
	int64_t n = 0;
	for (int64_t i = 0, j = 0; i < n_control && j < n_test;) {
		if (control[i].x < test[j].x) {
			i++;
		} else if (control[i].x > test[j].x) {
			j++;
		} else {
			p[n++] =
				(struct graph_point){test[j].x, test[j].y - control[i].y};
			i++;
			j++;
		}
	}
	return n;
}

static void put_difference(
	struct str *out, const struct report *r, int run, const char *column, bool *first)
{
	struct graph_point *a, *b;
	int64_t n_a, n_b;
	struct err e;
	/* (every log has steps) */
	BUG_ON(curve_points(&r->logs[r->runs[run].control], column, AXIS_STEPS, &a, &n_a,
		       &e) ||
		curve_points(&r->logs[run], column, AXIS_STEPS, &b, &n_b, &e));
	int64_t n = subtract(a, n_a, b, n_b, b);
	if (n) {
		put_key(out, *first, column);
		put_curve(out, b, n, most_points(r, column));
		*first = false;
	}
	free(a);
	free(b);
}

static void put_differences(
	struct str *out, const struct report *r, int run, const struct strs *names)
{
	bool first = true;
	if (r->runs[run].control < 0) {
		str_puts(out, "null");
		return;
	}
	str_putc(out, '{');
	for (int64_t c = 0; c < names->n; c++)
		if (is_result(r, names->v[c]))
			put_difference(out, r, run, names->v[c], &first);
	str_putc(out, '}');
}

void report_data(const struct report *r, struct str *out)
{
	struct strs names = {0};
	curve_columns(r->logs, r->n, &names);
	str_puts(out, "{\"column\":");
	put_string(out, r->column);
	str_printf(out, ",\"axis\":\"%s\",\"columns\":[", curve_axis_names[r->axis]);
	for (int64_t i = 0; i < names.n; i++) {
		str_puts(out, i ? "," : "");
		put_string(out, names.v[i]);
	}
	str_puts(out, "],\"runs\":[");
	for (int i = 0; i < r->n; i++) {
		str_puts(out, i ? ",\n{\"name\":" : "\n{\"name\":");
		put_string(out, r->logs[i].name);
		str_printf(out, ",\"control\":%d,\"knots\":", r->runs[i].control);
		put_knots(out, &r->logs[i]);
		str_puts(out, ",\"curves\":");
		put_curves(out, r, i, &names);
		str_putc(out, '}');
	}
	str_puts(out, "],\"differences\":[");
	for (int i = 0; i < r->n; i++) {
		str_puts(out, i ? ",\n" : "\n");
		put_differences(out, r, i, &names);
	}
	str_puts(out, "]}");
	strs_free(&names);
}
