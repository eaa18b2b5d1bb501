/* For the implementation of logs.h only: the table of formats, and formats of lines as data. */
#pragma once

#include "logs/logs_internal.h"

/* ---- lines.c: formats of lines ---------------------------------------------------- */

enum { MAX_LABELS = 16, MAX_KINDS = 12, MAX_HEADS = 4 };

/* A number next to a text in a line. */
struct label {
	const char *text, *column;
	double scale;	   /* BY_SUFFIX: from the suffix after the number */
	unsigned char len; /* bytes of the text */
	bool is_before;	   /* the number stands before the text */
};

/* The syntax of fields, each with a name and a number. */
struct fields {
	char assign;	  /* byte between a name and its number; 0: the line has labels */
	char delimiter;	  /* byte between fields; '|' also before the first one */
	bool suffix;	  /* numbers may have a suffix, such as K */
	const char *loss; /* further name of the loss in this format; NULL: none */
};

/* A kind of line: a mark, the step, then labels with numbers in any order, or fields. */
struct line_kind {
	const char *mark;  /* a text before the step */
	const char *needs; /* a text that must follow the step; or NULL */
	bool is_training;  /* a training row, not an evaluation */
	bool whole_line;   /* labels, fields and `needs` may also be before the mark */
	bool is_alone;	/* no step: mark and number, belonging to the last training row */
	bool no_step;	/* the line belongs to the last row */
	bool has_epoch; /* after the mark come an epoch and the step within it */
	bool reads_named; /* all numbers with names are read; labels choose columns, "-" skips */
	struct fields fields;
	struct label label[MAX_LABELS];
	int n_labels;
	unsigned char first[256]; /* [letter]: 1 + index of the first label with it */
};

struct log_format;
/* Parses a line if it is one of the format's kinds. */
bool parse_kinds(struct build *b, const struct log_format *f, struct span line);
/* Parses the fields of a text (pairs.c). Returns true if there are any. */
bool parse_fields(
	struct build *b, struct span s, const struct line_kind *k, int64_t step);
/* Parses the numbers of a text that have names (named.c). step: the epoch if k->has_epoch. */
bool parse_named(struct build *b, struct span s, const struct line_kind *k, int64_t step);
/* Parses a line of a format with the step in its own line (pairs.c). */
bool parse_block(struct build *b, const struct log_format *f, struct span line);

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

/* A format has kinds of lines, or a parser of lines, or a parser of the whole file. */
struct log_format {
	const char *name;
	struct str about; /* for lists; may be empty */
	struct line_kind *kinds;
	int n_kinds;
	/* If heads[0] is set: texts before a step in its own line. Lines that begin with the marks
	 * of the kinds follow, each with one field. */
	const char *heads[MAX_HEADS + 1];
	bool closes;   /* any other line ends the row */
	bool ranks;    /* lines may begin with "0: " and blanks */
	bool settings; /* search all other lines for settings */
	log_line_fn *line;
	log_text_fn *text;
	bool (*detect)(struct span first); /* for `text` only: lines are tried */
};

struct log_formats {
	struct log_format *v; /* in the order in which they are tried */
	int n, n_given;	      /* n_given: first ones, from the file of --format */
	struct log_names columns, settings, sentences;
	struct strs texts;	   /* the sources of the tables, which point into them */
	struct log_format pattern; /* the format of --pattern */
	struct pcre2_real_code_8 *regex; /* NULL: no pattern */
};

/* A format implemented in C. */
struct coded_format {
	const char *name;
	log_line_fn *line;
	log_text_fn *text;
	bool (*detect)(struct span first);
};
/* Returns the format with this name that is written in C, or NULL. */
const struct coded_format *find_coded_format(const char *name);
/* Adds the formats and names of a text, called `name` in messages, except formats that it
 * already has. built_in: formats without kinds of lines are in C. */
int formats_add(struct log_formats *to, const char *text, const char *name, bool built_in,
	struct err *e);
/* Adds the formats and names of a file. */
int formats_read(struct log_formats *to, const char *path, struct err *e);
void format_release(struct log_format *f);
/* Compiles the regular expression of --pattern. */
int pattern_open(struct log_formats *f, const char *regex, struct err *e);
void pattern_close(struct log_formats *f);

/* ---- formats.c: reads lines of a format, and detects the format of a log ------------- */

struct line_reader {
	struct build *b;
	const struct log_format *f;
	struct str plain; /* a line without color codes */
};
/* Parses lines separated by carriage returns. A line_fn: *to is a struct line_reader. */
int format_parse_line(void *to, const char *p, size_t len, struct err *e);
/* Parses the lines of a sample, the beginning of a log. */
void format_parse_sample(struct build *b, const struct log_format *f, struct span sample);
/* Returns the format of a log that begins with this sample; NULL: unknown. */
const struct log_format *format_detect(
	const struct log_options *opts, struct span sample);
const struct log_format *format_find(
	const struct log_formats *all, const char *name); /* NULL: none */
bool is_pt_format(const struct log_format *f);
