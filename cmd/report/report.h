/*
 * Reports on controls and tests, as a page for a browser or as Markdown.
 * The page is one self-contained file with tables, curves and differences. It shows the same
 * without its script, which adds other axes, zoom and the values at the pointer. Long logs are
 * thinned to a few hundred points. All text comes from logs, which are not trusted, and is escaped.
 */
#pragma once

#include "draw/draw.h"
#include "compare/series.h"
#include "run/run.h"

struct report_run {
	int control;	     /* index of the run's control; -1: it is a control itself */
	const char *verdict; /* words, maybe ": " and a reason; NULL: none */
	const char *details; /* lines of text; NULL: none */
	enum report_tone tone; /* selects the color of the verdict */
};

struct report {
	const struct run_log *logs;    /* [n], the controls first */
	const struct report_run *runs; /* [n] */
	int n;
	const char *column;   /* column that is shown first */
	enum curve_axis axis; /* axis that is shown first */
	bool one_set;	      /* the tests are replicas of each other */
	bool whole_range;     /* show all values, even those far from the rest */
};

/* Writes the report, replacing the file. Returns 0, or -1 with *e set. */
int report_write(const struct report *r, const char *path, struct err *e);

/* ---- facts.c: facts about runs, from their logs ------------------------------------ */

/* Returns the number of controls, which are the first runs. */
int report_count_controls(const struct report *r);
/* Appends the verdict without its reason; "control" for a control. */
void report_append_verdict(const struct report_run *run, struct str *out);

/* Appends the techniques of a run: its options that differ from a plain run's. */
void report_append_techniques(const struct run_log *l, struct str *out);

/* A property that is not the same in all runs. */
struct difference {
	const char *group; /* kind of the properties, such as "option" */
	char *key;
	char **value; /* [n_runs]; NULL: not in the log */
};

struct differences {
	struct difference *v;
	int64_t n;
	int n_runs;
};

/* Collects the options and other properties that differ between the runs. */
void differences_init(const struct report *r, struct differences *d);
void differences_release(struct differences *d);

/* Sets *l to the series of the runs of a report. */
void report_list_series(const struct report *r, struct series_list *l);

/* ---- figures.c: the curves of a page, thinned --------------------------------------- */

struct figure_curve {
	struct series_point *p; /* [n], in ascending order of steps */
	int64_t n;
};

/* The curves of a column, or the differences of tests and controls. */
struct figure {
	char *title;
	bool is_difference;
	struct scale y;
	struct outside outside;	     /* points outside the range */
	struct figure_curve *series; /* [list.n] */
	struct figure_curve *runs;   /* [list.n_runs] for series of several runs */
};

struct figures {
	const struct report *r;
	struct series_list list;
	struct scale x;
	struct figure *v; /* [n], the report's column first */
	int n;
	struct strs left_out; /* columns without a figure */
	bool *lacks_axis;     /* [list.n]: the log has values, but not the axis */
};

/* Makes the figures of a report: the judged column, its differences, and further columns.
 * Names the columns that have no figure in f->left_out. Borrows r. */
void figures_init(struct figures *f, const struct report *r);
void figures_release(struct figures *f);

/* ---- figure_svg.c: as pictures in a page ------------------------------------------------ */

/* Appends a curve's color, width and dashes, as CSS. */
void figure_print_stroke(const struct series_list *l, int series, struct str *out);
/* Appends a figure with its caption and labels. */
void figure_print_svg(const struct figures *f, int number, struct str *out);
/* Appends a small picture (sparkline) of a run's curve in the first figure. */
void figure_print_spark(const struct figures *f, int run, struct str *out);
/* Appends a list of the series with samples of their strokes. */
void figure_print_legend(const struct figures *f, struct str *out);

/* ---- page.c, data.c ------------------------------------------------------- */

void report_print_page(const struct report *r, enum page_kind kind, struct str *out);
/* Appends the curves, as JSON for the script of the page. */
void report_print_data(const struct figures *f, struct str *out);
