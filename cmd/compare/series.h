/* Series: the curves to draw. A series is one run, or replicas as their mean and the band from the
 * lowest to the highest of them. Also the names of runs in pictures. */
#pragma once

#include "compare/curve.h"

struct curve_series {
	int first, n; /* runs [first, first + n) */
	bool is_control;
	char *name; /* name of the run, or "mean of 4 controls" */
};

/* Sets the brief names of the runs: without the path they have in common. */
void runs_set_brief_names(struct run_log *logs, int n);

struct series_list {
	const struct run_log *logs;
	char **names; /* [n_runs], without the path they have in common */
	char *path;   /* the common path that was cut off; may be "" */
	int n_runs;
	struct curve_series *v;
	int n;
};

/* Several controls are replicas of each other, and so are the tests if one_set. */
struct series_opts {
	int n_controls;
	bool one_set, each_run; /* each_run: nevertheless draw each run by itself */
};
/* Sets *l to the series to draw: each run, or means of controls and of tests. Borrows logs. */
void series_list_init(struct series_list *l, const struct run_log *logs, int n,
	const struct series_opts *o);
void series_list_release(struct series_list *l);

struct series_point {
	double step, x;	     /* x: value on the axis */
	double y, low, high; /* mean and extremes, over runs and thinned rows */
	int n_runs;
};
/* Allocates the finite points, in ascending order of steps; for replicas, only steps where more
 * than half have a value. Returns 0, or -1 with *e set if a log has the column but not the axis. */
int series_get_points(const struct series_list *l, const struct curve_series *s,
	const char *column, enum curve_axis axis, struct series_point **p, int64_t *n,
	struct err *e);
/* Merges groups of consecutive points, all of the same size, so that at most `max` remain. In
 * place; returns their number. */
int64_t series_thin(struct series_point *p, int64_t n, int64_t max);

/* ---- plot.c ------------------------------------------------------------------------ */

struct curve_plot {
	struct series_list list;
	struct graph_series *series; /* [list.n] */
	struct graph graph;
};

/* Opens the curves of a column for drawing. Returns 0, or -1 with *e set. */
int curve_plot_init(struct curve_plot *c, const struct run_log *logs, int n,
	const struct series_opts *o, const char *column, enum curve_axis axis,
	struct err *e);
void curve_plot_release(struct curve_plot *c);
