/* The results of pt-collbench as an HDF5 file. */
#include "collbench/collbench.h"

#include <stdlib.h>
#include <string.h>

#define FORMAT "pt-collbench"

#define F(field) offsetof(struct bench_about, field)
static const struct h5_field about_fields[] = {
	{"format", H5_TEXT, F(format), false, "\"pt-collbench\""},
	{"version", H5_I64, F(version), false, "version of the format: 1"},
	{"created_by", H5_TEXT, F(created_by), false,
		"the program that wrote the file, and its libraries"},
	{"started", H5_TEXT, F(started), false, "when it was started (UTC)"},
	{"host", H5_TEXT, F(host), false, "host of rank 0"},
	{"ranks", H5_I64, F(ranks), false, "number of ranks"},
	{"hosts", H5_I64, F(hosts), false, "number of hosts"},
	{"iters", H5_I64, F(iters), false, "iterations timed"},
	{"warmup_iters", H5_I64, F(warmup_iters), false, "iterations before them"},
	{"check", H5_I64, F(check), false, "iterations checked"},
	{"device", H5_TEXT, F(device), true,
		"whose memory the buffers are in, empty: the host's"},
	{"comm", H5_TEXT, F(comm), true, "what transfers that memory"},
	{"launch", H5_TEXT, F(launch), true,
		"when the host waits: blocking, queued, graph"},
	{"aggregate", H5_I64, F(aggregate), true, "collectives of an iteration"},
	{"reruns", H5_I64, F(reruns), true, "repetitions of each reduction"},
	{"registered", H5_I64, F(registered), true, "1: registered buffers"},
	{0},
};
#undef F

/* Attributes of a column. */
struct column_about {
	const char *doc, *names;
};
static const struct h5_field column_fields[] = {
	{"doc", H5_TEXT, offsetof(struct column_about, doc), false,
		"what the column holds"},
	{"names", H5_TEXT, offsetof(struct column_about, names), true,
		"in a column of indices: their meanings, separated by blanks"},
	{0},
};

static void *column_values(
	const struct bench_table *t, const struct bench_column *c, size_t offset)
{
	int64_t *all = xcalloc((size_t)t->n_rows, sizeof(*all));
	_Static_assert(sizeof(double) == sizeof(int64_t), "cells are 8 bytes");
	for (int64_t i = 0; i < t->n_rows; i++)
		memcpy(&all[i], (const char *)&t->rows[i] + offset + c->offset,
			sizeof(*all));
	return all;
}

/* Writes columns whose struct is at `offset` in a row. */
static int write_columns(struct h5 *file, const struct bench_table *t,
	const struct bench_column *columns, size_t offset, const char *group,
	struct err *e)
{
	struct str path = {0}, names = {0};
	int rc = 0;
	for (const struct bench_column *c = columns; c->label && !rc; c++) {
		const char *const *name = c->kind != COLUMN_NAME ? NULL
					  : c->names		 ? c->names
								 : bench_coll_names();
		str_clear(&path);
		str_clear(&names);
		str_printf(&path, "%s/%s", group, c->dataset);
		for (int i = 0; name && name[i] && strcmp(name[i], "all"); i++)
			str_printf(&names, "%s%s", i ? " " : "", name[i]);
		struct column_about about = {c->doc, name ? names.s : NULL};
		void *values = column_values(t, c, offset);
		rc = h5_put(file, path.s, c->kind == COLUMN_REAL ? H5_F64 : H5_I64, 1,
			     &t->n_rows, values, e) ||
		     h5_fields_write(file, path.s, column_fields, &about, e);
		free(values);
	}
	str_free(&path);
	str_free(&names);
	return rc;
}

static int write_results(struct h5 *file, const struct bench_table *t,
	const struct bench_about *about, struct err *e)
{
	int rc = h5_fields_write(file, "/", about_fields, about, e) ||
		 write_columns(file, t, case_columns, 0, "", e);
	for (int p = 0; p < N_COLL_PLACES && !rc; p++) {
		size_t at = offsetof(struct bench_row, result) +
			    (size_t)p * sizeof(struct bench_result);
		rc = write_columns(file, t, result_columns, at, place_names[p], e);
	}
	return rc || h5_seal(file, e);
}

/* Only results of pt-collbench are replaced, unless f->overwrite. */
static int may_replace(const struct bench_file *f, struct err *e)
{
	struct h5 *h;
	struct err other = {0};
	if (f->overwrite || !file_exists(f->path))
		return 0;
	int rc = h5_open(&h, f->path, &other);
	if (!rc) {
		rc = h5_check_format(h, FORMAT, 1, &other);
		h5_end(h, rc, &other);
	}
	if (rc)
		return err_set(e, EX_IOERR,
			"%s exists, and is not a result of " FORMAT "%s", f->path,
			advice_on(ADVICE_FILE_EXISTS));
	return 0;
}

int bench_file_begin(struct bench_file *f, struct comm *c, struct err *e)
{
	if (f->path && c->rank == 0 && !may_replace(f, e) &&
		!durable_begin_own(&f->out, f->path, e)) {
		if (h5_open_as(&f->file, f->out.tmp, f->path, H5_MAKE, e))
			durable_abort(&f->out);
	}
	return comm_agree(c, e);
}

int bench_file_end(struct bench_file *f, struct comm *c, const struct bench_table *t,
	const struct bench_about *about, struct err *e)
{
	if (f->file) {
		int rc = t && write_results(f->file, t, about, e);
		rc = h5_end(f->file, rc, e);
		if (rc || !t)
			durable_abort(&f->out);
		else
			durable_commit(&f->out, e);
	}
	return comm_agree(c, e);
}
