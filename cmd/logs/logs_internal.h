/* For the implementation of logs.h only: what parsers fill in and share. */
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

/* ---- build.c: collects values of columns, in the order of the log -------------------- */

struct point {
	int64_t step;
	double v;
};

struct known_name;
struct line_kind;
/* The values of a column, in ascending order of steps; for a table, in any order. */
struct series {
	char *name;
	int column;	/* index in columns[] of run.h; -1: not one of them */
	bool is_mapped; /* --column maps a name to it, so that all other names are ignored */
	struct point *p;
	int64_t n, capacity;
	int64_t n_replaced;		    /* values that were replaced by later ones */
	const struct known_name *last_name; /* name of the last value (JSON only) */
	int64_t last_row;		    /* row of the last value (JSON only) */
};

/* The state of csv.c. */
enum { MAX_FIELDS = 1024 };
struct table {
	char delimiter; /* 0: no line was read yet */
	bool by_epoch;	/* YOLO: a step is an epoch, and the loss is a sum */
	int step;	/* the field of the steps; -1: rows are counted */
	int64_t lines, rows;
	int64_t json_row;     /* number of the current row of JSON; 0: none */
	struct strs names;    /* names of the fields; "": not a column */
	const char *run;      /* the selected run; NULL: all fields, or first_run */
	int clock;	      /* the field of TensorBoard's wall time; -1: none */
	int run_field;	      /* the field that names the run of a row; -1: none */
	char *first_run;      /* the run of the first row, which is read by default */
	int64_t n_other_runs; /* rows of all other runs */
	char *duplicate;      /* a column with several fields; the last one is used */
};

/* A name in the log, with its column and unit. */
struct known_name {
	char *name;
	size_t len;
	int series;	/* -1: not looked up yet */
	bool is_mapped; /* --column maps it */
	double scale;
	struct known_name *next; /* the name that last came after this one */
};

enum { NAME_SLOTS = 4 * MAX_LOG_COLUMNS };

/* The names in the log so far. */
struct known_names {
	struct known_name *v; /* [MAX_LOG_COLUMNS] */
	int n;
	short slot[NAME_SLOTS];	 /* hash table of names: index + 1 */
	struct known_name *last; /* looked up last */
};

/* The state of the line parsers. */
struct line_state {
	int64_t step, trained; /* steps of the last row and of the last training row */
	int64_t total;	       /* steps of the run; -1: not stated */
	int64_t clocked;       /* the last step with a time */
	int64_t batches;       /* per epoch, if progress bars state it */
	double stamp;	       /* time of the line that began the row */
	bool open;	       /* the next line may continue the row */
};

/* Epochs in logs where steps may restart in each epoch (named.c). */
struct epochs {
	bool begun;
	int64_t first;	     /* epoch of the first line */
	int64_t epoch, step; /* epoch and step of the last line */
	int64_t gap;	     /* difference of the last two steps of an epoch */
	int64_t length;	     /* steps per epoch; 0: steps do not restart */
};

enum { MAX_FORMS = 64 };
/* The number of lines of one form: their numbers have the same names. */
struct form_count {
	uint64_t hash;
	int64_t n;
};

/* The state of plain.c, for lines of an unknown program. */
struct plain {
	int64_t epoch;	     /* epoch of a previous line; -1: none */
	int64_t rows, falls; /* training rows, and how often their step fell */
	int64_t last;	     /* step of the last training row */
	struct form_count forms[MAX_FORMS];
	bool by_epoch;		 /* a step is an epoch */
	char step[32], loss[32]; /* names of step and loss in the first row */
};

/* The cost of matching a pattern. */
struct pattern_state {
	int64_t lines, steps; /* lines tried, and steps of the matcher */
	int64_t n_long;	      /* lines that were too long to try */
	bool too_hard;	      /* a line took too many steps */
};

/* Training rows that are left out because they are cut off or mixed with other output. */
struct garbled {
	int64_t n;
	char first[41];
};

/* A log under construction: parsers add its rows and values. */
struct build {
	const struct log_options *opts;
	const char *file; /* name of the column, if only the path states it; or NULL */
	bool is_growing;  /* the log is still written: no warnings */
	bool exact;	  /* values are binary floats, not printed ones */
	/* Rows are in any order: build_finish() sorts them, and keeps the last value of a column at
	 * a step. */
	bool is_table;
	struct series *series; /* [MAX_LOG_COLUMNS] */
	int n_series;
	int64_t n_points, n_parsed; /* values, and rows that a parser recognized */
	struct strs keys, settings; /* keys of the log's settings, and their values */
	struct unread unread;
	struct garbled garbled;
	struct known_names known;
	struct line_state line;
	struct pattern_state pattern;
	struct epochs epochs;
	struct plain plain;
	bool repeats; /* like a progress bar: n_replaced does not count what the row replaces */
	struct table table;
};

void build_init(struct build *b, const struct log_options *opts);
void build_release(struct build *b);
/* Adds a value, in the unit of `name`, to the column of `name`. Except in a table, it replaces the
 * column's values at this and later steps, since the run was resumed before them. Values that the
 * column cannot have are ignored. */
void build_set(struct build *b, int64_t step, struct span name, double v);
/* Records a value that begins like a number, but is not one, of a column in run.h. Returns false
 * for any other text or name, which is not recorded. */
bool build_add_unread(struct build *b, int64_t step, struct span name, struct span text);
/* Records a row with an unreadable step, or one that is not understood. */
void build_add_lost_row(struct build *b, struct span text);
/* Looks up a name, or adds it; NULL: too many names. */
struct known_name *build_add_name(struct build *b, struct span name);
/* Adds a value to the column of a known name, by the rules of build_set(). */
void build_set_known(struct build *b, int64_t step, struct known_name *name, double v);
/* Adds a mean over the steps from + 1 to step, in place of the column's values at these steps. */
void build_set_mean(
	struct build *b, int64_t from, int64_t step, struct span name, double v);
/* Begins a row. Except in a table, a training row at an earlier step than the last one removes all
 * rows after it. */
void build_begin_row(struct build *b, int64_t step, bool is_training);
/* Removes the values at this and later steps, since the run was resumed before them. */
void build_rewind(struct build *b, int64_t step);
/* Adds a setting that the log states. A later value replaces an earlier one. */
void build_add_setting(struct build *b, const char *key, struct span value);
/* Sets the number of steps of the run, which some logs state in each row. */
void build_set_total(struct build *b, int64_t steps);
/* Sets the time of a row, in seconds since 1970 in any time zone; 0: unknown. The first time of a
 * step is used. */
void build_set_time(struct build *b, int64_t step, double seconds);
/* Moves the values to *l. Returns -1 with *e set if there are no rows, or too many. */
int build_finish(struct build *b, struct run_log *l, struct err *e);

/* ---- clock.c: time and tokens ------------------------------------------------------ */

/* Returns the time stamp near the beginning of a line in seconds, for build_set_time(); 0: none. */
double time_of_line(struct span line);
/* Derives the columns elapsed and tokens. The series must be sorted. */
void build_derive_columns(struct build *b);

/* ---- names.c: names of columns and settings in other logs ------------------------- */

/* Returns our column for a name in a log, or the same name; *scale: the factor of its unit. */
struct span our_column(const struct log_options *opts, struct span name, double *scale);
/* The scale that converts a rate to a time. */
static const double INVERSE = -1;
/* Converts a value to our unit, rounded as well as possible: 35 % as 35 / 100 (35 0.01 is not
 * 0.35), and 8.38M as 8380000. */
static inline double convert_unit(double v, double scale)
{
	if (scale == INVERSE)
		return 1 / v;
	double product = scale < 1 ? v / round(1 / scale) : v * scale;
	bool whole =
		scale >= 1e3 && fabs(product - round(product)) <= 1e-12 * fabs(product);
	return whole ? round(product) : product;
}
/* Returns the column that --column maps a name to; empty: none. */
struct span mapped_column(const struct log_options *opts, struct span name);
/* Returns loss for "Value" of TensorBoard's exports, unless --column maps it; or the same name. */
struct span rename_export_value(const struct log_options *opts, struct span name);
/* Returns true for a name that logs give to steps, such as global_step. */
bool name_is_step(struct span name);
/* Returns pt-train's option for the name of a setting in a log; NULL: none. */
const char *option_for_setting(const struct log_options *opts, struct span name);
/* Adds the settings in a line: "name: value", "| name | value |", "name ... value", sentences. */
void add_settings_of_line(struct build *b, struct span line);

/* ---- lines.c: spans, numbers and units -------------------------------------------- */

bool span_begins(struct span s, const char *prefix);
struct span span_trim(struct span s);
/* Returns the first occurrence of `text` in s, or NULL. */
const char *span_find(struct span s, const char *text);
/* Returns the first occurrence of `text` at the beginning of a word, or NULL. */
const char *span_find_word(struct span s, const char *text);
/* Reads a number, perhaps with commas between thousands. Returns the byte after it, or NULL. */
const char *scan_number(struct span s, double *v);
/* Returns true if the text after a number continues it: 0x2, 2abc, 2,5. A unit does not. */
bool number_continues(struct span rest);
/* Sets *scale to the factor of a unit, BY_SUFFIX or INVERSE. Returns false for an unknown unit. */
enum { BY_SUFFIX = 0 };
bool scale_of_unit(const char *unit, double *scale);
/* Returns the factor of the unit or suffix, such as K, that a text begins with; 1: none. */
double scale_of_suffix(struct span rest);
/* Reads a step, an integer of at most 2^53. Returns the byte after it, or NULL. */
const char *scan_step(struct span s, int64_t *step);

/* ---- parsers ----------------------------------------------------------------------- */

/* Parses a line without color codes. Returns true if it is a row. */
typedef bool log_line_fn(struct build *b, struct span line);
/* Parses a whole file. */
typedef int log_text_fn(struct build *b, struct span text, struct err *e);

log_line_fn parse_wordplay_line, parse_lightning_line, parse_losses_line, parse_csv_line,
	parse_jsonl_line, parse_trainer_line, parse_mlflow_line, parse_pattern_line,
	parse_plain_line, parse_keras_line, parse_yolo_line;
log_text_fn parse_megatron_golden, parse_megatron_bridge, parse_trainer_state,
	parse_tensorboard, parse_json_array;
bool is_megatron_golden(struct span first), is_megatron_bridge(struct span first);
bool is_trainer_state(struct span first), is_tensorboard(struct span first);
/* Returns true if a log begins like a JSON array of objects or of TensorBoard's triples. */
bool is_json_array(struct span first);
/* Appends the names of the columns if a log begins with a header and a row with numbers. */
bool csv_list_columns(struct span sample, struct strs *names);
/* Returns true if a log begins like a table with one row per run, such as W&B's table of runs. */
bool csv_is_run_table(struct span sample);
/* Appends the names of the runs in the header of a table that W&B exported. */
void csv_list_runs(struct span header, struct strs *runs);
/* runs.c: tables and JSON lines of several runs, where each row names its run. */
/* Returns true for a row of the selected run, by default the first one; counts all other rows. */
bool runs_select_row(struct table *t, const char *run);
/* Warns of rows of other runs and of fields that are not used. name: the log. */
void runs_warn(const struct table *t, const char *name);
/* Appends the names of the runs in an open file, at most MAX_RUNS, if its rows have them. Returns
 * -1 with *e set if the file cannot be read. */
int list_row_runs(
	int fd, const char *path, struct span header, struct strs *runs, struct err *e);
/* Returns the index of the field "run" in a header; -1: none. */
int csv_find_run_field(struct span header, char *delimiter);
/* Sets *out to the text of field i, without its quotes. */
void csv_copy_field(struct span line, char delimiter, int i, struct str *out);
