/*
 * logs: reads the logs of other trainers into a struct run_log, for pt-compare.
 *
 * A format is a few lines of share/logs/trainers, which is built in, or a small parser in C. Values
 * are converted to the columns of run.h where the meaning is the same (units: seconds, bytes,
 * fractions); others keep their own name as further columns. What a log states of the run becomes
 * lines `key = value` of its config, with the names of pt-train's options where the meaning is the
 * same, and `tokens-per-step`.
 *
 * No input is trusted. No call is collective.
 */
#pragma once

#include "run/run.h"

/* Columns of other programs' logs beside those of the table: seconds since the first row, and samples so far. */
#define LOG_ELAPSED "elapsed"
#define LOG_SAMPLES "samples"

/* ---- formats.c: how logs are read ------------------------------------------------- */

struct log_formats;

/* How logs are read. Threads may share an open one. */
struct log_how {
	/* The name of a format; or a file of formats, which has a dot or a slash in its name; or NULL
	 * or "auto": the format is detected. */
	const char *format;
	/* A regular expression that reads all logs except pt-train's, line by line. Its named groups
	 * are columns. NULL: none */
	const char *pattern;
	struct strs columns; /* OURS=THEIRS: the column that a name in a log stands for */
	struct log_formats *formats; /* the built-in formats and the user's */
};

/* Adds OURS=THEIRS to the columns. */
int log_how_map(struct log_how *h, const char *pair, struct err *e);
/* Reads the formats of the file that `format` names, of share/pt/logs, and the built-in ones. */
int log_how_open(struct log_how *h, struct err *e);
void log_how_close(struct log_how *h); /* also after an error */
/* Adds "auto", then the names of the built-in formats, "pt" (this program's own logs) first. */
void log_format_names(struct strs *names);
/* Prints the built-in formats as a list for a manual page. */
void log_formats_man(FILE *f);
/* Prints the names that columns and settings have in other logs (names.c). */
void log_names_man(FILE *f);

/* The column that another program's name stands for, such as loss for "lm loss"; allocated. */
char *log_column_name(const struct log_how *how, const char *theirs);
/* Returns true for a column that a log has beside its steps if it has a name of steps, too. */
bool log_is_step(const char *name);

/* ---- read.c ---------------------------------------------------------------------- */

/* Reads a log from a file, a FIFO, or standard input ("-"). info.format is the name of its format.
 * The caller frees with run_log_free(). */
int log_read(
	struct run_log *l, const char *path, const struct log_how *how, struct err *e);
/* Reads n logs, several at a time. The caller frees all, also after an error. */
int log_read_all(struct run_log *l, const char *const *paths, int n,
	const struct log_how *how, struct err *e);
/* A number that changes when a file, or the event files of a directory do; 0: none is there, or all are empty. */
uint64_t log_state(const char *path);
/* Adds the runs in a file: PATH#RUN for each, if it is a table of several runs, as W&B exports; PATH/RUN for each
 * of a directory of directories with event files; else PATH. */
int log_runs(const char *path, struct strs *names, struct err *e);
/* Reads a log that is still written, in the place of *l, whose name stays. 1: *l is as it was, because what is
 * there now is not complete, or not yet known as a log; -1, *e: of a log of pt-train, or of a copy of a stream
 * in a format that must be read as a whole. */
int log_read_growing(struct run_log *l, const char *path, const struct log_how *how,
	bool is_stream, struct err *e);
