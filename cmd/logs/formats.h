/* Inside the wing logs: the table of formats, and formats of lines as data. */
#pragma once

#include "logs/logs_internal.h"

/* ---- lines.c: formats of lines ---------------------------------------------------- */

enum { MAX_LABELS = 16, MAX_KINDS = 12, MAX_HEADS = 4 };

/* A number next to a text of a line. */
struct label {
	const char *text, *column;
	double scale;	   /* BY_SUFFIX: by the suffix after the number */
	unsigned char len; /* of the text */
	bool before;	   /* the number stands before the text */
};

/* Names with numbers. */
struct fields {
	char is;	  /* between a name and its number; 0: the line has labels */
	char between;	  /* between fields; '|' also is before the first one */
	bool suffix;	  /* after numbers, such as K */
	const char *loss; /* a name that is the loss in this format only; NULL: none */
};

/* A kind of line: a mark, the step, then labels with numbers in any order, or fields. */
struct line_kind {
	const char *mark;  /* before the step */
	const char *needs; /* a text after the step, or NULL */
	bool training;	   /* and not an evaluation */
	bool whole;	   /* labels, fields and `needs` are before the mark, too */
	bool alone; /* no step: a line of the mark and a number belongs to the last training row */
	bool last;  /* no step: the line belongs to the last row */
	bool epoch; /* the mark is before an epoch, and the step in it follows */
	bool named; /* all numbers with names, of which labels may name the columns; "-": none */
	struct fields fields;
	struct label label[MAX_LABELS];
	int n_labels;
	unsigned char first[256]; /* by letter: 1 + the first label that begins with it */
};

struct log_format;
/* Takes a line if it is of one of the format's kinds. */
bool take_kinds(struct build *b, const struct log_format *f, struct span line);
/* Takes the fields of a text (pairs.c). Returns true if there is one. */
bool take_fields(struct build *b, struct span s, const struct line_kind *k, int64_t step);
/* Takes the numbers of a text that have names (named.c). `step`: or the epoch. */
bool take_named(struct build *b, struct span s, const struct line_kind *k, int64_t step);
/* Takes a line of a format whose step stands in a line of its own (pairs.c). */
bool take_block(struct build *b, const struct log_format *f, struct span line);

/* ---- names.c: names in other logs ---------------------------------------------------- */

/* A name of a column or a setting in other logs, or a text before a setting's value. */
struct log_name {
	const char *name, *ours;
	double scale; /* the factor of its unit, or INVERSE */
};

struct log_names {
	struct log_name *v;
	int n;
};

struct log_formats;
/* Prints the names of columns and settings for a manual page. */
void names_print(const struct log_formats *all, FILE *f);

/* ---- formats.c, format_text.c: the table ------------------------------------------- */

/* A format has one of: kinds of lines, a parser of lines, a parser of the whole file. */
struct log_format {
	const char *name;
	struct str about; /* for lists; empty: nothing */
	struct line_kind *kinds;
	int n_kinds;
	/* If the first is not NULL: texts before the step, which has a line of its own. Lines
	 * that begin with the marks of the kinds follow, each with one field. */
	const char *heads[MAX_HEADS + 1];
	bool closes;   /* any other line ends the row */
	bool ranks;    /* lines may begin with "0: ", and blanks */
	bool settings; /* other lines are searched for them */
	log_line_fn *line;
	log_text_fn *text;
	bool (*detect)(struct span first); /* of whole files; lines are tried */
};

struct log_formats {
	struct log_format *v; /* in the order in which they are tried */
	int n, n_given; /* the first n_given are from the file that --format names */
	struct log_names columns, settings, sentences;
	struct strs texts; /* what the tables were read from, and point into */
	/* A user's pattern: the format that reads by it. */
	struct log_format pattern;
	struct pcre2_real_code_8 *regex; /* NULL: none */
};

/* A format in C, by its name. */
struct log_code {
	const char *name;
	log_line_fn *line;
	log_text_fn *text;
	bool (*detect)(struct span first);
};
const struct log_code *log_code_find(const char *name); /* NULL: none */
/* Adds the formats and names of a text, which messages call `name`. Formats that *to has already
 * stay. built_in: formats without lines are in C. */
int formats_add(struct log_formats *to, const char *text, const char *name, bool built_in,
	struct err *e);
/* Adds the formats and names of a file. */
int formats_read(struct log_formats *to, const char *path, struct err *e);
void format_free(struct log_format *f); /* what *f points to */
int pattern_open(struct log_formats *f, const char *regex, struct err *e);
void pattern_close(struct log_formats *f);

/* ---- formats.c: lines of a format, and which format a log has ----------------------- */

/* Takes lines, in which carriage returns begin other lines: a line_fn. */
struct line_reader {
	struct build *b;
	const struct log_format *f;
	struct str plain; /* a line without colours */
};
int format_line(void *to, const char *p, size_t len, struct err *e);
/* Reads the lines of the beginning of a log. */
void format_sample(struct build *b, const struct log_format *f, struct span sample);
/* The format of a log that begins so; NULL: it is not known. */
const struct log_format *format_detect(const struct log_how *how, struct span sample);
const struct log_format *format_find(
	const struct log_formats *all, const char *name); /* NULL: none */
bool format_is_pt(const struct log_format *f);
