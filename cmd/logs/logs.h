/*
 * logs: reads the logs of other trainers into a struct run_log, for pt-compare.
 *
 * A format is a row of a table with a small parser. Values are converted to the columns of run.h
 * where the meaning is the same (units: seconds, bytes, fractions); others keep their own name as
 * further columns. What a log says about the run becomes lines `key = value` of its config, with the
 * names of pt-train's options where the meaning is the same, and `tokens-per-step`.
 *
 * No input is trusted. No call is collective.
 */
#ifndef LOGS_H
#define LOGS_H

#include "run/run.h"

/* ---- formats.c ------------------------------------------------------------------- */

/* "auto", then the names of formats, "pt" (this program's own logs) first; ends with NULL. */
extern const char *const log_format_names[];
/* The format of a log that begins with these bytes, of which whole lines count; NULL: not known. */
const char *log_detect(const char *first, size_t n);
/* Prints the formats as a list for a manual page. */
void log_formats_man(FILE *f);
/* The same with the names that columns and settings have in other logs (names.c). */
void log_names_man(FILE *f);

/* ---- read.c ---------------------------------------------------------------------- */

/* Reads a log from a file, a FIFO, or standard input ("-"). `format`: one of the names; "auto" or
 * NULL: it is detected; info.format says which one was read. Returns 0, or -1 with *e set. The caller frees
 * with run_log_free(). */
int log_read(struct run_log *l, const char *path, const char *format, struct err *e);
/* Reads n logs, several at a time. The caller frees all, also after an error. */
int log_read_all(struct run_log *l, const char *const *paths, int n, const char *format,
	struct err *e);
/* The same as log_read(), of a log that is still written: says nothing of what a later reading will find
 * complete. */
int log_read_growing(
	struct run_log *l, const char *path, const char *format, struct err *e);
/* The bytes that event files in a directory have; 0: there are none. */
int64_t log_event_bytes(const char *path);

/* ---- tail.c ---------------------------------------------------------------------- */

/* A log of another trainer that grows: of a file or a directory of event files only new bytes are read.
 * The strings must live as long as it does; a stream has no path. */
struct log_tail;
struct log_tail *log_tail_new(const char *path, const char *format);
/* Reads what is new. 1: *l, which is freed first, but for its name, is the log now; 0: it is as before;
 * -1: a stream in a format that must be read as a whole. Errors are none, since a log that grows may be
 * incomplete. */
int log_tail_read(struct log_tail *t, struct run_log *l);
/* Adds bytes of a stream. */
void log_tail_add(struct log_tail *t, const char *bytes, size_t n);
/* The log at its end: a last line without a line break counts, but for its last word. */
bool log_tail_end(struct log_tail *t, struct run_log *l);
void log_tail_free(struct log_tail *t);

#endif
