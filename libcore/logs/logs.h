/*
 * logs: reading the logs of other trainers into a struct run_log.
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

/* Reads a log from a file, a FIFO, or standard input ("-"). `format`: one of the names; "auto" or
 * NULL: it is detected; info.format says which one was read. Returns 0, or -1 with *e set. The caller frees
 * with run_log_free(). */
int log_read(struct run_log *l, const char *path, const char *format, struct err *e);

/* The same of a log that is still written: says nothing of what a later reading will find complete. */
int log_read_growing(
	struct run_log *l, const char *path, const char *format, struct err *e);
/* The format of a log that begins with these bytes, of which whole lines count; NULL: not known. */
const char *log_detect(const char *first, size_t n);
/* The bytes that event files in a directory have; 0: there are none. */
int64_t log_event_bytes(const char *path);

/* Prints the formats as a list for a manual page. */
void log_formats_man(FILE *f);
/* The same with the names that columns and settings have in other logs (names.c). */
void log_names_man(FILE *f);

#endif
