/* Inside the wing logs: what parsers fill in, and what they share. */
#pragma once

#include "logs/logs.h"

#include <math.h>

/* A piece of text, not NUL-terminated. */
struct span {
	const char *p;
	size_t n;
};

#define SPAN(literal) ((struct span){literal, sizeof(literal) - 1})

static inline struct span span_of(const char *s)
{
	return (struct span){s, strlen(s)};
}

/* ---- build.c: values of columns, in the order in which a log has them --------------- */

struct point {
	int64_t step;
	double v;
};

/* The values of a column, in ascending order of steps, but of a table in any order. */
struct known_name;
struct line_kind;
struct series {
	char *name;
	int column; /* of the table; -1: a column that only this log has */
	bool given; /* a name that the user gave stands for it; no other one does then */
	struct point *p;
	int64_t n, room;
	int64_t n_replaced; /* values that were replaced by later ones */
	/* In rows of JSON: the name of the last value, and the number of its row. */
	const struct known_name *by;
	int64_t by_row;
};

/* What csv.c knows of a table. */
enum { MAX_FIELDS = 1024 };
struct table {
	char delimiter; /* 0: no line was seen */
	bool by_epoch;	/* of YOLO: a step is an epoch, and the loss is a sum */
	int step;	/* the field of the steps; -1: rows are counted */
	int64_t lines, rows;
	int64_t json_row;  /* the number of the row of JSON that is read; 0: none */
	struct strs names; /* of the fields; "" : not a column */
	const char *run;   /* of several, that is read; NULL: all fields are */
	int clock;	   /* the field of TensorBoard's wall time; -1: none */
	int run_field;	   /* the field that names the run of a row; -1: none */
	char *first_run; /* of several in rows, the one that is read if none is asked for */
	int64_t n_others; /* rows of the others */
	char *twice; /* a column that several fields stand for, of which the last one counts */
};

/* A name of the log, and the column and factor that it stands for. */
struct known_name {
	char *name;
	size_t len;
	int series; /* -1: not looked up yet */
	bool given; /* by the user */
	double scale;
	struct known_name *next; /* the name that came behind this one last time */
};

enum { NAME_SLOTS = 4 * MAX_LOG_COLUMNS };

/* The names that a log has used so far. */
struct known_names {
	struct known_name *v; /* [MAX_LOG_COLUMNS] */
	int n;
	short slot[NAME_SLOTS];	 /* hash table of names: number + 1 */
	struct known_name *last; /* the name that was looked up last */
};

/* What the line parsers know from the lines before. */
struct line_state {
	int64_t step, trained; /* of the last row, and of the last training row */
	int64_t total;	       /* steps of the run, if the log states them; -1: none */
	int64_t clocked;       /* the last step that has a time */
	int64_t batches;       /* per epoch, as far as progress bars state them */
	double stamp;	       /* the time of the line that began the row */
	bool open;	       /* the next line may continue the row */
};

/* Epochs of lines whose steps may begin again in each (named.c). */
struct epochs {
	bool begun;
	int64_t first, epoch, step; /* of the first line; of the last one */
	int64_t gap;		    /* between the last two steps of an epoch */
	int64_t length;		    /* steps of an epoch; 0: steps do not begin again */
};

/* What the lines of a program that is not known have (plain.c). */
enum { MAX_FORMS = 64 };
/* Lines whose numbers have the same names. */
struct form_count {
	uint64_t hash;
	int64_t n;
};

struct plain {
	int64_t epoch; /* of a line before; -1: none */
	int64_t rows, falls,
		last; /* training rows, those whose step fell, and the last step */
	struct form_count forms[MAX_FORMS];
	bool by_epoch;		 /* a step is an epoch */
	char step[32], loss[32]; /* the names that the first row had */
};

/* What reading by a pattern has cost. */
struct pattern_state {
	int64_t lines, steps; /* that were tried */
	int64_t n_long;	      /* lines that were not tried */
	bool too_hard;	      /* a line took too many steps */
};

/* Training rows that are left out, because other output cuts them or is within them. */
struct garbled {
	int64_t n;
	char first[41];
};

/* A log while it is read. */
struct build {
	const struct log_how *how;
	const char *
		file; /* the column's name, where only the path of the file states it; NULL: none */
	bool growing; /* the log is still written: no warnings */
	bool exact;   /* values are floats, not printed ones */
	/* Rows are in any order. build_finish() sorts them, and the last one of several values of a
	 * column at a step counts. */
	bool is_table;
	struct series *series; /* [MAX_LOG_COLUMNS] */
	int n_series;
	int64_t n_points, n_taken;  /* values, and rows that a parser recognised */
	struct strs keys, settings; /* what the log states about the run */
	struct unread unread;
	struct garbled garbled;
	struct known_names known;
	struct line_state line;
	struct pattern_state pattern;
	struct epochs epochs;
	struct plain plain;
	/* The row repeats the last step, as progress bars do: what it replaces is not counted. */
	bool repeats;
	struct table table;
};

void build_begin(struct build *b, const struct log_how *how);
void build_free(struct build *b);
/* A value of the column that `name` stands for, in its unit: a column of the table, or another. It
 * replaces values of the column at this and later steps: the run was resumed from before them.
 * Values that the column cannot have are ignored. In a table, it replaces none. */
void build_set(struct build *b, int64_t step, struct span name, double v);
/* A text in the place of a value. If it begins as a number does, and the name stands for a column of the
 * table, what is there cannot be read. Whether that is so. */
bool build_unread(struct build *b, int64_t step, struct span name, struct span text);
/* A row whose step cannot be read, or that is not understood. */
void build_lost_row(struct build *b, struct span text);
/* In two parts, for a name that is looked up once; NULL: a name too many. */
struct known_name *build_name(struct build *b, struct span name);
void build_set_known(struct build *b, int64_t step, struct known_name *name, double v);
/* A mean over the steps so far since `from`: it replaces those after earlier ones of them. */
void build_mean(struct build *b, int64_t from, int64_t step, struct span name, double v);
/* Begins a row. A training row at an earlier step than the last one removes all rows after it, but
 * not of a table. */
void build_row(struct build *b, int64_t step, bool training);
/* Removes the values at this and later steps: the run was resumed from before them. */
void build_rewind(struct build *b, int64_t step);
/* What the log says about the run. A later value replaces an earlier one. */
void build_setting(struct build *b, const char *key, struct span value);
/* The number of steps, which some logs say in each row. */
void build_total(struct build *b, int64_t steps);
/* The time of a row, in seconds since 1970 of any time zone; 0: it is not known. The first of a step counts. */
void build_clock(struct build *b, int64_t step, double seconds);
/* Moves all to *l. Returns -1 if there is no row. */
int build_finish(struct build *b, struct run_log *l, struct err *e);

/* ---- clock.c: time and tokens ------------------------------------------------------ */

/* The time stamp near the beginning of a line, for build_clock(); 0: none. */
double time_of_line(struct span line);
/* Makes the columns elapsed and tokens of what was read, in series that are sorted. */
void build_derive(struct build *b);

/* ---- names.c: names of columns and settings in other logs ------------------------- */

/* The column that stands for a name of a log, and the factor of its unit; or the same name, 1. */
struct span name_of_column(const struct log_how *how, struct span name, double *scale);
/* A factor of a rate, whose column is a time. */
static const double INVERSE = -1;
/* A value in our unit. (35 % are 0.35, as 35 / 100 is, but 35 * 0.01 is not; and 8.38M are 8380000.) */
static inline double scaled(double v, double scale)
{
	if (scale == INVERSE)
		return 1 / v;
	double product = scale < 1 ? v / round(1 / scale) : v * scale;
	bool whole =
		scale >= 1e3 && fabs(product - round(product)) <= 1e-12 * fabs(product);
	return whole ? round(product) : product;
}
/* The column that --column gives a name; empty: none. */
struct span given_column(const struct log_how *how, struct span name);
/* The column of TensorBoard's exports, named "Value": the loss, unless --column names it. */
struct span value_of_export(const struct log_how *how, struct span name);
/* Returns true if a name is a name of the steps. */
bool name_is_step(struct span name);
/* The option that stands for a name of a setting; NULL: none. */
const char *name_of_setting(const struct log_how *how, struct span name);
/* Adds the settings in a line: "name: value", "| name | value |", "name ... value", sentences. */
void find_settings(struct build *b, struct span line);

/* ---- lines.c: spans, numbers and units -------------------------------------------- */

bool span_begins(struct span s, const char *with);
struct span span_trim(struct span s);
/* Where `text` is in s; NULL: nowhere. */
const char *span_find(struct span s, const char *text);
/* Finds it at the beginning of a word. */
const char *span_find_word(struct span s, const char *text);
/* A number with commas between thousands. Returns the byte behind it, or NULL. */
const char *scan_number(struct span s, double *v);
/* Whether more than the number is there, behind which a text continues: 0x2, 2abc, 2,5. Units are none. */
bool goes_on(struct span behind);
/* Sets the factor of a unit as formats name it, or BY_SUFFIX, or INVERSE. false: there is none. */
enum { BY_SUFFIX = 0 };
bool scale_of_unit(const char *unit, double *scale);
/* The factor of a unit or suffix at the beginning, such as K; 1: none. */
double scale_of_suffix(struct span rest);
/* A step: an integer of at most 2^53. Returns the byte behind it, or NULL. */
const char *scan_step(struct span s, int64_t *step);

/* ---- parsers ----------------------------------------------------------------------- */

/* Takes a line without colours; whether it is a row. */
typedef bool log_line_fn(struct build *b, struct span line);
/* Takes a whole file. */
typedef int log_text_fn(struct build *b, struct span text, struct err *e);

log_line_fn line_wordplay, line_lightning, line_losses, line_csv, line_jsonl,
	line_trainer, line_mlflow, line_pattern, line_plain, line_keras, line_yolo;
log_text_fn text_golden, text_bridge, text_trainer_state, text_tensorboard, text_array;
bool is_golden(struct span first), is_bridge(struct span first);
bool is_trainer_state(struct span first), is_tensorboard(struct span first);
bool is_array(struct span first);
/* Adds the names of the columns if the beginning of a log is a header and a row with numbers. */
bool csv_columns(struct span sample, struct strs *names);
/* Returns true for the beginning of a table with a row per run, such as W&B's table of runs. */
bool csv_is_runs(struct span sample);
/* The names of the runs of a table like W&B's, whose header is given. */
void csv_runs(struct span header, struct strs *runs);
/* runs.c: tables and JSON lines of several runs, of which each row names its own. */
bool runs_take_row(
	struct table *t, const char *run); /* is a row of the run that is read? */
void runs_say_others(const struct table *t, const char *name);
/* Adds the names of the runs in an open file, if its rows have them; at most MAX_RUNS names. -1, *e: it
 * cannot be read. */
int runs_of_rows(
	int fd, const char *path, struct span header, struct strs *runs, struct err *e);
/* The number of the field "run" in a header; -1: none. */
int csv_run_field(struct span header, char *delimiter);
/* The text of field i: without its quotes. */
void csv_field(struct span line, char delimiter, int i, struct str *out);

/* ---- read.c -------------------------------------------------------------------------- */

enum { MOST_JSON = 1 << 28 };
