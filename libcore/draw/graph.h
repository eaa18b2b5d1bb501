/*
 * Graphs of series of points: as text for a terminal, and as a picture by gnuplot.
 *
 * Points that are not finite, and on a logarithmic axis those that are not positive, are left out.
 */
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
	const struct graph_band *band; /* [n_band] around it, in pictures; x ascends */
	int64_t n_band;
};

struct graph {
	const char *x_name, *y_name;
	const struct graph_series *series; /* [n_series] */
	int n_series;
	bool log_x, log_y;
	bool settled; /* the range of y is that of scale_settle() */
};

/* ---- graph.c: scales, ticks, fewer points ----------------------------------------- */

struct scale {
	double low, high;
	bool log;
};

/* The scales of the points; false: there is no point. */
bool graph_scales(const struct graph *g, struct scale *x, struct scale *y);
/* Widens a range by that of most of a curve: of its points after the first tenth of x, but by none that is
 * further from nine tenths of them than twice what these span. */
void scale_settle(struct scale *y, const struct graph_point *p, int64_t n);
/* The range to show of a whole one: the settled one, unless little would be left out. */
struct scale scale_shown(const struct scale *whole, const struct scale *settled);
/* Appends "3 of 60 points are outside, 1.2 to 4" about points beyond the scale; nothing if there are none. */
struct outside {
	int64_t n, of;
	double low, high;
};
void scale_outside(const struct scale *y, double v, struct outside *o);
void outside_print(const struct outside *o, struct str *out);
bool scale_has(const struct scale *s, double v); /* finite, and positive if logarithmic */
double scale_at(const struct scale *s, double v); /* 0: low, 1: high */

/* Round values for the labels of an axis: 1, 2 or 5 times a power of ten apart. */
enum { MAX_TICKS = 16 };
struct ticks {
	int n;
	double v[MAX_TICKS];
	char text[MAX_TICKS][NUM_TEXT];
};
void ticks_of(const struct scale *s, int most, struct ticks *t);

/* Keeps of all consecutive points in the same one of `groups` intervals of x the first, the lowest,
 * the highest and the last: a line through them covers the same pixels if a group is not wider than
 * one (M4: Jugel, Jerzak, Hackenbroich, Markl 2014). In place; returns the new n. */
int64_t points_thin(
	struct graph_point *p, int64_t n, const struct scale *x, int64_t groups);

/* ---- graph_text.c ------------------------------------------------------------------ */

enum graph_marks {
	MARKS_BRAILLE, /* 2 x 4 dots in a cell, in UTF-8; series differ by colour only */
	MARKS_ASCII,   /* a character of its own for each series */
};

struct graph_style {
	enum graph_marks marks;
	bool color;
	int width, height; /* characters, lines without the legend */
};

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
		"What this graph consists of. braille: lines of dots, where curves differ by " \
		"their colour. ascii: a character for each curve. auto: braille in a UTF-8 locale " \
		"and with colours or one curve, else ascii."}, \
	{OPT_FLAG, 0, "log-scale", NULL, "no", (at) + offsetof(struct graph_opts, log_scale), .help = \
		"Draw values on a logarithmic scale, in this graph and in plots."}, \
	{OPT_INT, 0, "width", "N", "0", (at) + offsetof(struct graph_opts, width), 0, 0, 1000, .help = \
		"Width of this graph in characters. 0: the width of the terminal."}, \
	{OPT_INT, 0, "height", "N", "20", (at) + offsetof(struct graph_opts, height), 0, 7, 1000, .help = \
		"Height of this graph in lines."}
/* clang-format on */
/* The style that these options ask for, with colours if `color`. */
struct graph_style graph_style_of(const struct graph_opts *o, int n_series, bool color);

/* ---- graph_picture.c ---------------------------------------------------------------- */

/* 0, or -1 with *e set. */
int graph_picture_check(
	const char *path, struct err *e); /* its suffix: .svg, .png, .pdf */
int graph_picture(const struct graph *g, const char *path, struct err *e);
