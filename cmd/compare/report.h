/*
 * Reports: what is known of a control and its tests, as a page for a browser or as Markdown.
 *
 * The page is one file, which asks for nothing else: tables, curves, differences. Without its script it shows the
 * same; the script is for another axis, for zoom and for values at the pointer. Long logs are thinned to some hundred
 * points. All text comes from logs, which are not trusted, and is escaped.
 */
#pragma once

#include "draw/draw.h"
#include "compare/series.h"
#include "run/run.h"

struct report_run {
	int control;	       /* the run that it is compared with; -1: it is a control */
	const char *verdict;   /* words, or words, ": " and a reason; NULL: none */
	const char *details;   /* lines of text; NULL: none */
	enum report_tone tone; /* of the verdict */
};

struct report {
	const struct run_log *logs;    /* [n], the controls first */
	const struct report_run *runs; /* [n] */
	int n;
	const char *column;   /* that is shown first */
	enum curve_axis axis; /* likewise */
	bool one_set;	      /* the tests are replicas of each other */
	bool whole_range;     /* of values, instead of the settled one */
};

/* Writes the report to a file, which it replaces. 0, or -1 with *e set. */
int report_write(const struct report *r, const char *path, struct err *e);

/* ---- facts.c: what the logs say about their runs ----------------------------------- */

int report_controls(const struct report *r); /* their number */
/* The words of a verdict without its reason; of a control, "control". */
void report_words(const struct report_run *run, struct str *out);

/* Techniques of a run: options that differ from those of the plainest run, as words. */
void report_techniques(const struct run_log *l, struct str *out);

/* A property that not all runs have in common. */
struct difference {
	const char *group; /* of properties */
	char *key;
	char **value; /* [n runs]; NULL: the log does not say */
};

struct differences {
	struct difference *v;
	int64_t n;
	int n_runs;
};

void differences_of(const struct report *r, struct differences *d);
void differences_free(struct differences *d);

/* The list of what is drawn of a report. */
void report_series(const struct report *r, struct series_list *l);

/* ---- figures.c: the curves of a page, thinned --------------------------------------- */

struct figure_curve {
	struct series_point *p; /* in steps, ascending */
	int64_t n;
};

/* A column, or the difference of tests and controls in it. */
struct figure {
	char *title;
	bool difference;
	struct scale y;
	struct outside outside;	     /* of the points */
	struct figure_curve *series; /* [list.n] */
	struct figure_curve *runs;   /* [list.n_runs] of series that have several */
};

struct figures {
	const struct report *r;
	struct series_list list;
	struct scale x;
	struct figure *v; /* [n], that of the report's column first */
	int n;
	struct strs left_out; /* columns that have no figure */
	bool *lacks;	      /* [list.n] values, but not the axis */
};

void figures_init(struct figures *f, const struct report *r);
void figures_free(struct figures *f);

/* ---- figure_svg.c: as pictures in a page ------------------------------------------------ */

/* A curve's colour, width and dashes. */
void figure_stroke(const struct series_list *l, int series, struct str *out);
void figure_svg(const struct figures *f, int number, struct str *out);
/* A small picture of a run in the first figure. */
void figure_spark(const struct figures *f, int run, struct str *out);
void figure_legend(const struct figures *f, struct str *out);

/* ---- report_page.c, report_data.c ------------------------------------------------------- */

void report_put(const struct report *r, enum page_kind kind, struct str *out);
/* The curves, as JSON for the script of the page. */
void report_data(const struct figures *f, struct str *out);
