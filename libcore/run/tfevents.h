/*
 * tfevents: TensorBoard's event files: records with checksums, each an Event in the encoding of protocol
 * buffers, of which a few fields are read and written (tensorflow/core/util/event.proto,
 * framework/summary.proto, framework/tensor.proto; lib/io/record_writer for the records).
 *
 * Files are not trusted. No call is collective.
 */
#pragma once

#include "base/base.h"

/* TensorBoard takes files with this in their name; readers take them in the order of their names. */
#define TFEVENTS_NAME "events.out.tfevents."

/* ---- reading --------------------------------------------------------------------- */

struct tfevents_take {
	/* A scalar, and the time in seconds since 1970. `tag` is not NUL-terminated. */
	void (*scalar)(
		void *to, int64_t step, double wall, const char *tag, size_t n, double v);
	/* What came before, of this and later steps, is no longer so: the run was resumed before this step. */
	void (*restart)(void *to, int64_t step);
	void *to;
};

/* Is it the beginning of an event file? */
bool tfevents_begins(const char *p, size_t n);
/* All events of a file, which may end within a record. -1: one is damaged. */
int tfevents_read(
	const char *p, size_t n, const struct tfevents_take *take, struct err *e);

/* ---- writing: they append a record ------------------------------------------------ */

void tfevents_put_record(struct str *out, const struct str *data);
/* The first of a file, and that the run begins with this step, or goes on with it. */
void tfevents_put_begin(struct str *out, double wall, int64_t step);

struct tfevents_scalar {
	const char *tag;
	double v;
	bool wide; /* a double, which TensorBoard has as a tensor; else a float */
};
void tfevents_put_row(struct str *out, double wall, int64_t step,
	const struct tfevents_scalar *list, int n);
