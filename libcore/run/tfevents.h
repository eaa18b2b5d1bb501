/* tfevents: TensorBoard's event files. Records with checksums hold Events in the encoding of
 * protocol buffers; only a few fields are read and written (tensorflow/core/util/event.proto,
 * framework/summary.proto, framework/tensor.proto; lib/io/record_writer for the records).
 *
 * Files are not trusted. No call is collective. */
#pragma once

#include "base/base.h"

/* TensorBoard reads files with this in their name, in the order of their names. */
#define TFEVENTS_NAME "events.out.tfevents."

/* ---- reading --------------------------------------------------------------------- */

struct tfevents_sink {
	/* Receives a scalar, with the time in seconds since 1970. `tag` is not NUL-terminated. */
	void (*scalar)(
		void *to, int64_t step, double wall, const char *tag, size_t n, double v);
	/* The run was resumed before this step: earlier events of this and later steps are void. */
	void (*restart)(void *to, int64_t step);
	void *to;
};

/* Returns true if the bytes begin an event file. */
bool tfevents_begins(const char *p, size_t n);
/* Reads all events of a file, which may end within a record. Returns -1 if a record is damaged. */
int tfevents_read(
	const char *p, size_t n, const struct tfevents_sink *sink, struct err *e);

/* ---- writing: each appends a record ----------------------------------------------- */

void tfevents_put_record(struct str *out, const struct str *data);
/* Appends the first record of a file, and the start or the resumption of the run at a step. */
void tfevents_put_begin(struct str *out, double wall, int64_t step);

struct tfevents_scalar {
	const char *tag;
	double v;
	bool wide; /* a double, which TensorBoard stores as a tensor; else a float */
};
void tfevents_put_row(struct str *out, double wall, int64_t step,
	const struct tfevents_scalar *list, int n);
