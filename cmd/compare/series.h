/*
 * Series: what is drawn of some runs, a run by itself or replicas as their mean and the band from the lowest to
 * the highest of them; and the names that runs have in pictures.
 */
#pragma once

#include "compare/curve.h"

struct curve_series {
	int first, n; /* of these runs */
	bool control;
	char *name; /* of the run, or "mean of 4 controls" */
};

/* Sets the brief names of the runs: without the path that all have in common. */
void runs_shorten(struct run_log *logs, int n);

struct series_list {
	const struct run_log *logs;
	char **names; /* [n_runs] of the runs, without the path that all have in common */
	char *path;   /* what was left out before them; "" */
	int n_runs;
	struct curve_series *v;
	int n;
};

/* The controls, if there are several, are replicas of each other, and so are the tests if they are one set. */
struct series_opts {
	int n_controls;
	bool one_set, each_run; /* each_run: nevertheless each by itself */
};
void series_list_init(struct series_list *l, const struct run_log *logs, int n,
	const struct series_opts *o);
void series_list_free(struct series_list *l);

/* A step, its place on the axis, and the mean and the extremes of some rows and runs. */
struct series_point {
	double step, x, y, low, high;
	int n_runs;
};
/* The finite points in ascending order of steps; of replicas, where more than half of them have a value. *p is
 * allocated. 0, or -1 with *e set if a log has values of the column but not the axis. */
int series_points(const struct series_list *l, const struct curve_series *s,
	const char *column, enum curve_axis axis, struct series_point **p, int64_t *n,
	struct err *e);
/* At most so many points, each of a group of consecutive ones, all equally many. In place; returns their number. */
int64_t series_thin(struct series_point *p, int64_t n, int64_t most);

/* ---- plot.c ------------------------------------------------------------------------ */

struct curve_plot {
	struct series_list list;
	struct graph_series *series; /* [list.n] */
	struct graph graph;
};

/* The curves of a column. */
int curves_of(struct curve_plot *c, const struct run_log *logs, int n,
	const struct series_opts *o, const char *column, enum curve_axis axis,
	struct err *e);
void curves_free(struct curve_plot *c);
