/* Points of runs and replicas, and short names. */
#include "compare/series.h"
#include "base/utf8.h"
#include "compare/compare.h"

#include <math.h>

/* Returns the length of the logs' common prefix that ends with /, or with # before a run. */
static size_t common_prefix(const struct run_log *logs, int n)
{
	size_t common = 0;
	for (size_t at = 0;; at++) {
		char c = logs[0].name[at];
		for (int i = 0; i < n; i++)
			if (logs[i].name[at] != c || !c || !logs[i].name[at + 1])
				return common;
		if (c == '/' || c == '#')
			common = at + 1;
	}
}

/* Returns the length of the common suffix of the logs' names that begins with /, as "/log.csv". */
static size_t common_suffix(const struct run_log *logs, int n, size_t begin)
{
	size_t common = 0, len = strlen(logs[0].name);
	bool do_differ = false;
	for (int i = 1; i < n; i++)
		do_differ |= strcmp(logs[0].name, logs[i].name) != 0;
	for (size_t at = 1; do_differ && at <= len; at++) {
		char c = logs[0].name[len - at];
		for (int i = 0; i < n; i++) {
			size_t other_len = strlen(logs[i].name);
			if (begin + at >= other_len || logs[i].name[other_len - at] != c)
				return common;
		}
		if (c == '/')
			common = at;
	}
	return common;
}

/* Allocates a name without its first `begin` and last `end` bytes. */
static char *brief_name(const char *name, size_t begin, size_t end)
{
	size_t len = strlen(name) - begin - end;
	char *brief = xcalloc(len + 1, 1);
	memcpy(brief, name + begin, len);
	text_printable(brief);
	for (char *c = brief; *c; c++) /* (a name has one line) */
		*c = *c == '\n' ? ' ' : *c;
	return brief;
}

/* Allocates the brief names. Returns the length of the prefix that was removed. */
static size_t shorten_names(const struct run_log *logs, int n, char **names)
{
	size_t begin = n > 1 ? common_prefix(logs, n) : 0;
	size_t end = common_suffix(logs, n, begin);
	for (int i = 0; i < n; i++)
		names[i] = brief_name(logs[i].name, begin, end);
	return begin;
}

void runs_set_brief_names(struct run_log *logs, int n)
{
	scoped_ptr char **names = xcalloc((size_t)n, sizeof(*names));
	shorten_names(logs, n, names);
	for (int i = 0; i < n; i++) {
		free(logs[i].brief);
		logs[i].brief = names[i];
	}
}

/* Sets names of the runs without their common path, which becomes l->path. */
static void set_names(struct series_list *l)
{
	l->names = xcalloc((size_t)l->n_runs, sizeof(*l->names));
	size_t begin = shorten_names(l->logs, l->n_runs, l->names);
	l->path = xcalloc(begin + 1, 1);
	memcpy(l->path, l->logs[0].name, begin);
}

/* Adds a series of n runs from `first` on, named after the run or "mean of 3 controls". */
static void add_series(struct series_list *l, int first, int n, bool is_control)
{
	struct curve_series *s = &l->v[l->n++];
	struct str name = {0};
	if (n > 1)
		str_printf(&name, "mean of %d %s", n, is_control ? "controls" : "tests");
	else
		str_puts(&name, l->names[first]);
	*s = (struct curve_series){first, n, is_control, name.s};
}

/* Adds n runs as as_one series each, or as as_one series of replicas. */
static void add_runs_as_series(
	struct series_list *l, int first, int n, bool as_one, bool is_control)
{
	if (as_one && n > 1)
		add_series(l, first, n, is_control);
	else
		for (int i = 0; i < n; i++)
			add_series(l, first + i, 1, is_control);
}

void series_list_init(struct series_list *l, const struct run_log *logs, int n,
	const struct series_opts *o)
{
	*l = (struct series_list){.logs = logs, .n_runs = n};
	l->v = xcalloc((size_t)n, sizeof(*l->v));
	set_names(l);
	add_runs_as_series(l, 0, o->n_controls, !o->each_run, true);
	add_runs_as_series(
		l, o->n_controls, n - o->n_controls, o->one_set && !o->each_run, false);
}

void series_list_release(struct series_list *l)
{
	for (int i = 0; i < l->n; i++)
		free(l->v[i].name);
	for (int i = 0; i < l->n_runs; i++)
		free(l->names[i]);
	free(l->v);
	free(l->names);
	free(l->path);
	*l = (struct series_list){0};
}

/* The runs of a series. */
struct members {
	struct log_rows *rows; /* [n] */
	double **x;	       /* [n][rows], on the axis; NULL: x is the step */
	int n;
};

static void members_release(struct members *m)
{
	for (int i = 0; i < m->n && m->x; i++)
		free(m->x[i]);
	free(m->x);
	free(m->rows);
}

/* Collects the rows and x values of `column` from each log. Returns -1 with *e set, and
 * *m released, if a log lacks the axis. */
static int members_init(struct members *m, const struct run_log *logs, int n,
	const char *column, enum curve_axis axis, struct err *e)
{
	*m = (struct members){.rows = xcalloc((size_t)n, sizeof(*m->rows)), .n = n};
	if (axis != AXIS_STEPS)
		m->x = xcalloc((size_t)n, sizeof(*m->x));
	for (int i = 0; i < n; i++) {
		int c = run_log_find(&logs[i], column);
		m->rows[i] = (struct log_rows){&logs[i], c};
		if (!m->x || c < 0 || !logs[i].column[c].v)
			continue;
		m->x[i] = curve_axis_values(&logs[i], axis);
		if (m->x[i])
			continue;
		err_set(e, EX_DATAERR,
			"%s: no column '%s', so %s cannot be drawn over %s", logs[i].name,
			curve_axis_columns(axis), column, curve_axis_names[axis]);
		members_release(m);
		return -1;
	}
	return 0;
}

/* Sets *p to the mean of the finite values at a step; false: none. (A sum might overflow.) */
static bool mean_point(const struct members *m, double step, struct series_point *p)
{
	*p = (struct series_point){step, 0, 0, INFINITY, -INFINITY, 0};
	for (int i = 0; i < m->n; i++) {
		const struct log_rows *r = &m->rows[i];
		double x = !r->has_row ? NAN : m->x ? m->x[i][r->row] : step;
		if (!isfinite(x) || !isfinite(r->v))
			continue;
		double share = 1.0 / ++p->n_runs;
		p->x += x * share - p->x * share;
		p->y += r->v * share - p->y * share;
		p->low = fmin(p->low, r->v);
		p->high = fmax(p->high, r->v);
	}
	p->y = fmin(
		fmax(p->y, p->low), p->high); /* (rounding must not pass equal values) */
	return p->n_runs > 0;
}

int series_get_points(const struct series_list *l, const struct curve_series *s,
	const char *column, enum curve_axis axis, struct series_point **p, int64_t *n,
	struct err *e)
{
	struct members m;
	int64_t capacity = 1, kept = 0;
	int max_n = 0;
	double step;
	*n = 0;
	*p = NULL;
	if (members_init(&m, &l->logs[s->first], s->n, column, axis, e))
		return -1;
	for (int i = 0; i < s->n; i++)
		capacity += m.rows[i].column < 0 ? 0 : m.rows[i].log->n_rows;
	*p = xmalloc((size_t)capacity * sizeof(**p));
	while (log_rows_next(m.rows, m.n, COL_STEP, &step)) {
		if (mean_point(&m, step, &(*p)[*n])) {
			max_n = max_n > (*p)[*n].n_runs ? max_n : (*p)[*n].n_runs;
			++*n;
		}
	}
	for (int64_t k = 0; k < *n; k++)
		if (2 * (*p)[k].n_runs > max_n)
			(*p)[kept++] = (*p)[k];
	*n = kept;
	members_release(&m);
	return 0;
}

int64_t series_thin(struct series_point *p, int64_t n, int64_t max)
{
	int64_t size = ceil_div(n, max), groups = 0;
	for (int64_t begin = 0; size > 1 && begin < n; begin += size) {
		int64_t end = min64(begin + size, n);
		struct series_point group = p[begin + (end - begin) / 2];
		group.y = 0;
		for (int64_t k = begin; k < end; k++) {
			group.y += p[k].y / (double)(end - begin);
			group.low = fmin(group.low, p[k].low);
			group.high = fmax(group.high, p[k].high);
		}
		group.y = fmin(fmax(group.y, group.low), group.high);
		p[groups++] = group;
	}
	return size > 1 ? groups : n;
}
