/*
 * Reports: what is known of a control and its tests, as a page for a browser or as Markdown.
 *
 * The page is one file, which asks for nothing else: tables, curves, differences. Long logs are
 * thinned to some thousand points. All text comes from logs, which are not trusted, and is escaped.
 */
#ifndef COMPARE_REPORT_H
#define COMPARE_REPORT_H

#include "base/page.h"
#include "compare/curve.h"
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

/* ---- report_html.c, page.c, report_data.c, report_md.c ----------------------------------------------------- */

void report_html(const struct report *r, struct str *out);
/* The part of the page that shows curves, its style and its script. */
extern const char report_curves_html[], report_curves_css[], report_page_js[];
/* The curves, as JSON for the script of the page. */
void report_data(const struct report *r, struct str *out);
void report_md(const struct report *r, struct str *out);

#endif
