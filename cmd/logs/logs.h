/* logs: reads the logs of other trainers into a struct run_log, for pt-compare.
 * A format is a few lines of share/logs/trainers, which is built in, or a small parser in C. Values
 * are converted to the columns of run.h where the meaning is the same (units: seconds, bytes,
 * fractions); all other values become columns with their own name. Settings in a log become lines
 * `key = value` of its config, with the names of pt-train's options where the meaning is the same,
 * and `tokens-per-step`.
 * No input is trusted. No call is collective. */
#pragma once

#include "run/run.h"

/* Columns of other programs' logs that run.h lacks: seconds since the first row, samples so far. */
#define LOG_ELAPSED "elapsed"
#define LOG_SAMPLES "samples"

/* ---- formats.c: how logs are read ------------------------------------------------- */

struct log_formats;

/* How logs are read. Threads may share the options once they are loaded. */
struct log_options {
	/* The name of a format; or a file of formats, with a dot or a slash in its name; or NULL
	 * or "auto" to detect the format. */
	const char *format;
	/* A regular expression for all logs except pt-train's; its named groups are columns. NULL:
	 * none */
	const char *pattern;
	struct strs columns;	     /* OURS=THEIRS: the column for a name in a log */
	struct log_formats *formats; /* the built-in formats and the user's */
};

/* Appends OURS=THEIRS, the argument of --column. */
int log_options_map_column(struct log_options *h, const char *pair, struct err *e);
/* Reads the formats of the file named by `format`, of share/pt/logs, and the built-in ones. */
int log_options_load(struct log_options *h, struct err *e);
void log_options_release(struct log_options *h); /* also after an error */
/* Appends "auto", then the names of the built-in formats, "pt" (logs of pt-train) first. */
void log_list_format_names(struct strs *names);
/* Prints the built-in formats as a list for a manual page. */
void log_print_formats_man(FILE *f);
/* Prints the names that columns and settings have in other logs (names.c). */
void log_print_names_man(FILE *f);

/* Allocates the column for another program's name, such as loss for "lm loss". */
char *log_column_for_name(const struct log_options *opts, const char *theirs);
/* Returns true for a name that logs give to steps, such as global_step. */
bool log_is_step_name(const char *name);

/* ---- read.c ---------------------------------------------------------------------- */

/* Reads a log from a file, a FIFO, or standard input ("-"). info.format is the name of its format.
 * The caller frees with run_log_free(). */
int log_read(struct run_log *l, const char *path, const struct log_options *opts,
	struct err *e);
/* Reads n logs, several at a time. The caller frees all, also after an error. */
int log_read_all(struct run_log *l, const char *const *paths, int n,
	const struct log_options *opts, struct err *e);
/* Returns a hash that changes with the files at a path; 0: missing or empty. */
uint64_t log_state(const char *path);
/* Appends the runs at a path: PATH#RUN for each run of a table of several runs, such as W&B
 * exports; PATH/RUN for each subdirectory with event files; else PATH. */
int log_list_runs(const char *path, struct strs *names, struct err *e);
/* Reads a log that is still written, and replaces *l except its name. Returns 1 and keeps *l if
 * the log is incomplete or not yet recognized; -1 with *e set for an error in a log of pt-train,
 * or for a stream in a format that must be read as a whole. */
int log_read_growing(struct run_log *l, const char *path, const struct log_options *opts,
	bool is_stream, struct err *e);
