/* Graphs of series of points: as text for a terminal, and as a picture by gnuplot.
 *
 * Points that are not finite, or not positive on a logarithmic axis, are ignored. */
#pragma once

#include "options/options.h"

struct graph_point {
	double x, y;
};

struct graph_band {
	double x, low, high;
};

struct graph_series {
	const char *name;	     /* for the legend */
	const struct graph_point *p; /* [n] */
	int64_t n;
	const struct graph_band *band; /* [n_band], drawn in pictures; x ascends */
	int64_t n_band;
};

struct graph {
	const char *x_name, *y_name;
	const struct graph_series *series; /* [n_series] */
	int n_series;
	bool log_x, log_y;
	bool settled; /* scale_settle() limits the range of y */
};

/* ---- graph.c: scales, ticks, fewer points ----------------------------------------- */

struct scale {
	double low, high;
	bool log;
};

/* Sets the scales to the range of all points. Returns false if there are no points. */
bool graph_scales(const struct graph *g, struct scale *x, struct scale *y);
/* Widens a range to the settled part of a curve: points after the first tenth of x, except those
 * further from the middle nine tenths of the values than twice their span. */
void scale_settle(struct scale *y, const struct graph_point *p, int64_t n);
/* Returns the range to show: the settled one, or the whole one if that is not much wider. */
struct scale scale_shown(const struct scale *whole, const struct scale *settled);
/* Points outside the scale. */
struct outside {
	int64_t n, total; /* points outside, and all points */
	double low, high; /* range of the points outside */
};
void scale_count_outside(
	const struct scale *y, double v, struct outside *o); /* counts v */
/* Appends "3 of 60 points are outside the graph: 1.2 to 4", or nothing. */
void outside_print(const struct outside *o, struct str *out);
bool scale_has(const struct scale *s, double v); /* finite, and positive if logarithmic */
double scale_at(const struct scale *s, double v); /* 0: low, 1: high */

/* Round values for the labels of an axis, with steps of 1, 2 or 5 times a power of ten. */
enum { MAX_TICKS = 16 };
struct ticks {
	int n;
	double v[MAX_TICKS];
	char text[MAX_TICKS][NUM_TEXT];
};
void ticks_choose(
	const struct scale *s, int max, struct ticks *t); /* at most max ticks */

/* Thins points in place, and returns the new n. Of consecutive points in each of `groups` intervals
 * of x, keeps first, lowest, highest and last. A line through them covers the same pixels if an
 * interval is at most a pixel wide (M4: Jugel, Jerzak, Hackenbroich, Markl 2014). */
int64_t points_thin(
	struct graph_point *p, int64_t n, const struct scale *x, int64_t groups);

/* ---- graph_text.c ------------------------------------------------------------------ */

enum graph_marks {
	MARKS_BRAILLE, /* 2 x 4 dots per cell, in UTF-8; series differ only by color */
	MARKS_ASCII,   /* one character per series */
};

struct graph_style {
	enum graph_marks marks;
	bool color;
	int width, height; /* in characters, and in lines without the legend */
};

/* Appends the graph as text: curves, axes and legend; or "no values of NAME". */
void graph_text(const struct graph *g, const struct graph_style *style, struct str *out);

/* The rows of an option table for graphs as text; `at` is the offset of a struct graph_opts. */
struct graph_opts {
	bool graph, log_scale;
	int marks; /* 0: auto, else 1 + enum graph_marks */
	int64_t width, height;
};
extern const char *const graph_marks_words[];
/* clang-format off */
#define OPT_GRAPH(at) \
	{OPT_FLAG, 'g', "graph", NULL, "no", (at) + offsetof(struct graph_opts, graph), .help = \
		"Draw the curves as text."}, \
	{OPT_ENUM, 0, "marks", NULL, "auto", (at) + offsetof(struct graph_opts, marks), \
		.values = graph_marks_words, .help = \
		"Marks of the graph of --graph. braille: lines of dots; curves differ by color. " \
		"ascii: one character per curve. auto: braille in a UTF-8 locale with colors or " \
		"only one curve, else ascii."}, \
	{OPT_FLAG, 0, "log-scale", NULL, "no", (at) + offsetof(struct graph_opts, log_scale), .help = \
		"Draw values on a logarithmic scale, in graphs and in plots."}, \
	{OPT_INT, 0, "width", "N", "0", (at) + offsetof(struct graph_opts, width), 0, 0, 1000, .help = \
		"Width of the graph of --graph in characters. 0: the width of the terminal."}, \
	{OPT_INT, 0, "height", "N", "20", (at) + offsetof(struct graph_opts, height), 0, 7, 1000, .help = \
		"Height of the graph of --graph in lines."}
/* clang-format on */
/* Returns the style for these options. */
struct graph_style graph_style_of(const struct graph_opts *o, int n_series, bool colored);

/* ---- graph_picture.c ---------------------------------------------------------------- */

/* Checks that a path ends in .svg, .png or .pdf. Returns 0, or -1 with *e set. */
int graph_picture_check(const char *path, struct err *e);
/* Writes a picture by gnuplot. Returns 0, or -1 with *e set. */
int graph_picture(const struct graph *g, const char *path, struct err *e);
