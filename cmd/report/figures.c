/* The curves of a page: chooses columns, numbers of points and ranges. */
#include "report/report.h"

#include <math.h>

/* Figures on a page; a log of another program may have a thousand columns. */
enum { MAX_FIGURES = 18 };

/* The budget of points for some curves, so that a page stays below 2 MB. */
struct budget {
	int64_t all, min, max; /* maximum for all curves; bounds per curve */
};
static const struct budget main_budget = {8000, 60, 2000},
			   other_budget = {16000, 20, 600}, run_budget = {8000, 20, 300};

static int64_t points_per_curve(const struct budget *b, int64_t curves)
{
	return max64(b->min, min64(b->max, b->all / max64(curves, 1)));
}

void report_list_series(const struct report *r, struct series_list *l)
{
	const struct series_opts o = {report_count_controls(r), r->one_set, false};
	series_list_init(l, r->logs, r->n, &o);
}

/* Extends both ranges to a curve's band; settled: the range of its settled part. */
static void extend_ranges(
	const struct figure_curve *c, struct scale *whole, struct scale *settled)
{
	struct graph_point *v = xmalloc((size_t)(2 * c->n + 1) * sizeof(*v));
	for (int64_t k = 0; k < c->n; k++) {
		v[2 * k] = (struct graph_point){c->p[k].step, c->p[k].low};
		v[2 * k + 1] = (struct graph_point){c->p[k].step, c->p[k].high};
		whole->low = fmin(whole->low, c->p[k].low);
		whole->high = fmax(whole->high, c->p[k].high);
	}
	scale_settle(settled, v, 2 * c->n);
	free(v);
}

/* Sets a figure's vertical range, padded, and counts the points outside; all: show all values. */
static void set_range(struct figure *f, int n_series, bool all)
{
	struct scale none = {INFINITY, -INFINITY, false}, whole = none, settled = none;
	for (int i = 0; i < n_series; i++)
		extend_ranges(&f->series[i], &whole, &settled);
	if (f->is_difference) { /* includes the line at zero */
		whole = (struct scale){fmin(0, whole.low), fmax(0, whole.high), false};
		settled = (struct scale){
			fmin(0, settled.low), fmax(0, settled.high), false};
	}
	f->y = all || !(settled.low <= settled.high) ? whole
						     : scale_shown(&whole, &settled);
	if (!(f->y.low <= f->y.high))
		f->y = (struct scale){0, 1, false};
	for (int i = 0; i < n_series; i++)
		for (int64_t k = 0; k < f->series[i].n; k++)
			scale_count_outside(&f->y, f->series[i].p[k].y, &f->outside);
	double pad = (f->y.high / 2 - f->y.low / 2) * 0.06;
	pad = pad > 0 ? pad : fabs(f->y.low) * 0.01 > 0 ? fabs(f->y.low) * 0.01 : 1;
	if (isfinite(f->y.high + pad) && isfinite(f->y.low - pad)) {
		f->y.high += pad;
		f->y.low -= pad;
	}
}

/* Sets *c to a series' points. Returns false if no run of the series has the column. */
static bool read_curve(struct figures *f, const struct curve_series *s,
	const char *column, struct figure_curve *c)
{
	struct err e;
	*c = (struct figure_curve){0};
	return !series_get_points(&f->list, s, column, f->r->axis, &c->p, &c->n, &e);
}

/* Drops points of a curve so that at most `max` remain. */
static void thin_curve(struct figure_curve *c, int64_t max)
{
	c->n = series_thin(c->p, c->n, max);
	if (c->n)
		c->p = xrealloc(c->p, (size_t)c->n * sizeof(*c->p));
}

/* Replaces the values of the test by test - control, at the steps that both have. */
static void subtract_control(
	struct figure_curve *test, const struct figure_curve *control)
{
	int64_t n = 0;
	for (int64_t i = 0, j = 0; i < control->n && j < test->n;) {
		const struct series_point *a = &control->p[i], *b = &test->p[j];
		if (a->step == b->step && isfinite(b->y - a->y)) {
			double y = b->y - a->y;
			test->p[n++] =
				(struct series_point){b->step, b->x, y, y, y, b->n_runs};
		}
		i += a->step <= b->step;
		j += b->step <= a->step;
	}
	test->n = n;
}

/* Adds a figure without points to f, which has space for it. Returns the figure. */
static struct figure *add_figure(
	struct figures *f, const char *column, bool is_difference)
{
	struct figure *fig = &f->v[f->n++];
	struct str title = {0};
	str_printf(&title, "%s%s", column, is_difference ? ": test − control" : "");
	*fig = (struct figure){.title = title.s, .is_difference = is_difference};
	fig->series = xcalloc((size_t)f->list.n, sizeof(*fig->series));
	fig->runs = xcalloc((size_t)f->list.n_runs, sizeof(*fig->runs));
	return fig;
}

/* Adds the figure of a column, with its curves thinned to the budget of the page. */
static void add_column_figure(struct figures *f, const char *column, int64_t n_columns)
{
	bool is_first = f->n == 0;
	int n = f->list.n;
	struct figure *fig = add_figure(f, column, false);
	int64_t max = is_first ? points_per_curve(&main_budget, n)
			       : points_per_curve(&other_budget, n * n_columns);
	int64_t run_max = points_per_curve(&run_budget, f->list.n_runs * n_columns);
	for (int i = 0; i < n; i++) {
		const struct curve_series *s = &f->list.v[i];
		f->lacks_axis[i] |= !read_curve(f, s, column, &fig->series[i]);
		thin_curve(&fig->series[i], max);
		for (int k = s->first; k < s->first + s->n && s->n > 1; k++) {
			const struct curve_series single = {k, 1, s->is_control, NULL};
			read_curve(f, &single, column, &fig->runs[k]);
			thin_curve(&fig->runs[k], run_max);
		}
	}
	set_range(fig, n, f->r->whole_range);
}

/* Adds the figure of the differences between each series and the first one, the controls. */
static void add_difference_figure(struct figures *f)
{
	int n = f->list.n;
	struct figure_curve control;
	if (n < 2)
		return;
	struct figure *fig = add_figure(f, f->r->column, true);
	read_curve(f, &f->list.v[0], f->r->column, &control);
	for (int i = 1; i < n; i++) {
		read_curve(f, &f->list.v[i], f->r->column, &fig->series[i]);
		subtract_control(&fig->series[i], &control);
		thin_curve(&fig->series[i], points_per_curve(&main_budget, n));
	}
	free(control.p);
	set_range(fig, n, f->r->whole_range);
}

/* Sets f->x to the range of x of all points of all figures; 0 to 1 if there are none. */
static void set_x_range(struct figures *f)
{
	f->x = (struct scale){INFINITY, -INFINITY, false};
	for (int i = 0; i < f->n; i++)
		for (int k = 0; k < f->list.n; k++) {
			const struct figure_curve *c = &f->v[i].series[k];
			for (int64_t j = 0; j < c->n; j++) {
				f->x.low = fmin(f->x.low, c->p[j].x);
				f->x.high = fmax(f->x.high, c->p[j].x);
			}
		}
	if (!(f->x.low <= f->x.high))
		f->x = (struct scale){0, 1, false};
}

void figures_init(struct figures *f, const struct report *r)
{
	struct strs names = {0};
	*f = (struct figures){.r = r};
	report_list_series(r, &f->list);
	f->v = xcalloc(MAX_FIGURES + 2, sizeof(*f->v));
	f->lacks_axis = xcalloc((size_t)f->list.n, sizeof(*f->lacks_axis));
	curve_list_columns(r->logs, r->n, &names);
	int64_t n_columns = min64(names.n, MAX_FIGURES);
	add_column_figure(f, r->column, n_columns);
	add_difference_figure(f);
	for (int64_t i = 0; i < names.n; i++) {
		if (!strcmp(names.v[i], r->column))
			continue;
		if (f->n < MAX_FIGURES)
			add_column_figure(f, names.v[i], n_columns);
		else
			strs_add(&f->left_out, names.v[i]);
	}
	set_x_range(f);
	strs_free(&names);
}

void figures_release(struct figures *f)
{
	for (int i = 0; i < f->n; i++) {
		for (int k = 0; k < f->list.n; k++)
			free(f->v[i].series[k].p);
		for (int k = 0; k < f->list.n_runs; k++)
			free(f->v[i].runs[k].p);
		free(f->v[i].series);
		free(f->v[i].runs);
		free(f->v[i].title);
	}
	free(f->v);
	free(f->lacks_axis);
	strs_free(&f->left_out);
	series_list_release(&f->list);
}
