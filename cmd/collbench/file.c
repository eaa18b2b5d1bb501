/* The results of pt-collbench as an HDF5 file. */
#include "collbench/table.h"

#include <math.h>

#define FORMAT "pt-collbench"

#define F(field) offsetof(struct bench_about, field)
static const struct h5_field about_fields[] = {
	{"format", H5_TEXT, F(format), false, "\"pt-collbench\""},
	{"version", H5_I64, F(version), false, "version of the format: 3"},
	{"created_by", H5_TEXT, F(created_by), false,
		"the program that wrote the file, and its libraries"},
	{"started", H5_TEXT, F(started), false, "when it was started (UTC)"},
	{"host", H5_TEXT, F(host), false, "host of rank 0"},
	{"ranks", H5_I64, F(ranks), false, "number of ranks"},
	{"hosts", H5_I64, F(hosts), false, "number of hosts"},
	{"iters", H5_I64, F(iters), false, "iterations timed"},
	{"warmup_iters", H5_I64, F(warmup_iters), false,
		"untimed iterations before them"},
	{"check", H5_I64, F(check), false, "iterations checked"},
	{"device", H5_TEXT, F(device), true,
		"the device with the buffers; empty: the host"},
	{"comm", H5_TEXT, F(comm), true, "the library that transfers device memory"},
	{"launch", H5_TEXT, F(launch), true,
		"when the host waits: blocking, queued, graph"},
	{"aggregate", H5_I64, F(aggregate), true, "collectives per iteration"},
	{"reruns", H5_I64, F(reruns), true, "repetitions of each reduction"},
	{"registered", H5_I64, F(registered), true, "1: registered buffers"},
	{"passes", H5_I64, F(passes), true, "passes over all cases"},
	{"seconds", H5_F64, F(seconds), true,
		"time of a measurement; 0: iters iterations"},
	{"settings", H5_TEXT, F(settings), true,
		"options that all times depend on; results are compared only if they are equal"},
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
		"for a column of indices: the names, separated by blanks"},
	{0},
};

/* An array of structs with fields that are columns. */
struct records {
	void *first;  /* the part of the first struct with the columns */
	size_t bytes; /* distance between structs */
	int64_t n;
	const char *file; /* path, in messages */
};

static void *cell_address(
	const struct records *r, int64_t i, const struct bench_column *c)
{
	_Static_assert(sizeof(double) == sizeof(int64_t), "cells are 8 bytes");
	return (char *)r->first + (size_t)i * r->bytes + c->offset;
}

static enum h5_type column_type(const struct bench_column *c)
{
	return c->kind == COLUMN_REAL ? H5_F64 : H5_I64;
}

/* Appends the names of a column's indices, separated by blanks. */
static void append_names(const struct bench_column *c, struct str *out)
{
	const char *const *name = c->names();
	for (int i = 0; name[i] && strcmp(name[i], "all"); i++)
		str_printf(out, "%s%s", i ? " " : "", name[i]);
}

/* Writes a column of the records as a data set at `path`, with its unit and names of values. */
static int write_column(struct h5 *file, const struct bench_column *c, const char *path,
	const struct records *r, struct err *e)
{
	scoped_str names = {0};
	scoped_ptr int64_t *all = xcalloc((size_t)r->n, sizeof(*all));
	if (c->kind == COLUMN_NAME)
		append_names(c, &names);
	for (int64_t i = 0; i < r->n; i++)
		memcpy(&all[i], cell_address(r, i, c), sizeof(*all));
	struct column_about about = {c->doc, names.s};
	return h5_put(file, path, column_type(c), 1, &r->n, all, e) ||
	       h5_fields_write(file, path, column_fields, &about, e);
}

/* Checks the names of a column. Other versions may have more or fewer, in the same order. */
static int check_names(struct h5 *file, const struct bench_column *c, const char *path,
	const char *name, struct err *e)
{
	struct column_about about = {NULL, NULL};
	scoped_str ours = {0};
	append_names(c, &ours);
	int rc = h5_fields_read(file, path, column_fields, &about, e);
	if (!rc && !about.names)
		rc = err_set(e, EX_DATAERR,
			"%s: column %s: the attribute 'names' is missing", name, path);
	size_t theirs = about.names ? strlen(about.names) : 0;
	if (!rc && strncmp(about.names, ours.s, theirs < ours.len ? theirs : ours.len))
		rc = err_set(e, EX_DATAERR, "%s: column %s: its names differ from %s",
			name, path, ours.s);
	free((char *)(uintptr_t)about.doc);
	free((char *)(uintptr_t)about.names);
	return rc;
}

/* Returns true for -1, a count, or an index of a name. */
static bool is_valid_cell(const struct bench_column *c, int64_t v)
{
	int64_t n = 0;
	if (c->kind == COLUMN_NAME) {
		while (c->names()[n] && strcmp(c->names()[n], "all"))
			n++;
		return v >= -1 && v < n;
	}
	return v >= -1;
}

/* Reads a column. If r->n is -1, sets it and allocates r->first. */
static int read_column(struct h5 *file, const struct bench_column *c, const char *path,
	struct records *r, struct err *e)
{
	enum { MAX_ROWS = 1 << 20 };
	void *values;
	int64_t n;
	if (c->kind == COLUMN_NAME && check_names(file, c, path, r->file, e))
		return -1;
	if (h5_get(file, path, column_type(c), r->n, MAX_ROWS, &values, &n, e))
		return -1;
	int rc = 0;
	if (r->n < 0) {
		r->n = n;
		r->first = xcalloc((size_t)n + 1, r->bytes);
	}
	for (int64_t i = 0; i < n; i++) {
		int64_t v = ((int64_t *)values)[i];
		memcpy(cell_address(r, i, c), &v, sizeof(v));
		if (c->kind != COLUMN_REAL && !is_valid_cell(c, v) && !rc)
			rc = err_set(e, EX_DATAERR,
				"%s: %s[%lld]: %lld is not a valid value", r->file, path,
				(long long)i, (long long)v);
	}
	free(values);
	return rc;
}

/* Reads or writes the columns of records, datasets of a group. */
static int transfer_columns(struct h5 *file, const struct bench_column *columns,
	const char *group, struct records *r, bool reads, struct err *e)
{
	scoped_str path = {0};
	int rc = 0;
	for (const struct bench_column *c = columns; c->label && !rc; c++) {
		str_clear(&path);
		str_printf(&path, "%s/%s", group, c->dataset);
		rc = reads ? read_column(file, c, path.s, r, e)
			   : write_column(file, c, path.s, r, e);
	}
	return rc;
}

static struct records result_records(
	struct bench_row *rows, int64_t n, int place, const char *file)
{
	return (struct records){&rows->result[place], sizeof(*rows), n, file};
}

/* Writes facts, rows, fits and the results of both placements to an open file. */
static int write_results(struct h5 *file, const struct bench_table *t,
	const struct bench_about *about, struct err *e)
{
	struct records rows = {t->rows, sizeof(*t->rows), t->n_rows, NULL};
	struct records fits = {t->fits, sizeof(*t->fits), t->n_fits, NULL};
	int rc = h5_fields_write(file, "/", about_fields, about, e) ||
		 transfer_columns(file, case_columns, "", &rows, false, e) ||
		 transfer_columns(file, fit_columns, "/fit", &fits, false, e);
	for (int p = 0; p < N_COLL_PLACES && !rc; p++) {
		struct records r = result_records(t->rows, t->n_rows, p, NULL);
		rc = transfer_columns(file, result_columns, place_names[p], &r, false, e);
	}
	return rc;
}

/* Opens a result file, and checks its format and that it is complete. Returns -1 with *e set. */
static int open_result_file(struct h5 **file, const char *path, struct err *e)
{
	if (h5_open(file, path, e))
		return -1;
	if (h5_check_format(*file, FORMAT, BENCH_VERSION, e) || h5_check_seal(*file, e))
		return h5_end(*file, -1, e);
	return 0;
}

/* Returns -1 with *e set if a fit that was read has a value out of range. */
static int check_fits(const struct records *r, struct err *e)
{
	const struct bench_fit *f = r->first;
	for (int64_t i = 0; i < r->n; i++, f++)
		if (f->collective < 0 || f->library < 0 || f->group_ranks < 1 ||
			f->group_hosts < 1 || f->groups < 1 || !(f->alpha >= 0) ||
			!(f->beta >= 0) || !(f->error >= 0) || isinf(f->alpha) ||
			isinf(f->beta) || isinf(f->error))
			return err_set(e, EX_DATAERR,
				"%s: /fit: row %lld has an invalid value", r->file,
				(long long)i);
	return 0;
}

/* Sets *fits[*n] to the fits of a file, allocated. Returns -1 with *e set on failure. */
static int read_fits(struct h5 *file, const char *path, struct bench_fit **fits,
	int64_t *n, struct err *e)
{
	struct records r = {NULL, sizeof(**fits), -1, path};
	if (transfer_columns(file, fit_columns, "/fit", &r, true, e) ||
		check_fits(&r, e)) {
		free(r.first);
		return -1;
	}
	*fits = r.first;
	*n = r.n;
	return 0;
}

int bench_fits_read(const char *path, struct bench_fit **fits, int64_t *n, struct err *e)
{
	struct h5 *file;
	if (open_result_file(&file, path, e))
		return -1;
	return h5_end(file, read_fits(file, path, fits, n, e), e);
}

/* Returns -1 with *e set if a row that was read lacks its collective, size or group. */
static int check_rows(const struct bench_table *t, const char *path, struct err *e)
{
	for (int64_t i = 0; i < t->n_rows; i++) {
		const struct bench_row *r = &t->rows[i];
		if (r->collective < 0 || r->size < 0 || r->group < 0)
			return err_set(e, EX_DATAERR,
				"%s: row %lld has no collective, size or group", path,
				(long long)i);
	}
	return 0;
}

/* Copies the settings of the earlier run into t->settings. */
static int read_settings(struct h5 *file, struct bench_table *t, struct err *e)
{
	static const struct h5_field field[] = {
		{"settings", H5_TEXT, offsetof(struct bench_about, settings), false, ""},
		{0}};
	struct bench_about about = {.settings = NULL};
	if (h5_fields_read(file, "/", field, &about, e))
		return -1;
	snprintf(t->settings, sizeof(t->settings), "%s", about.settings);
	free((char *)(uintptr_t)about.settings);
	return 0;
}

/* Reads rows, settings and fits into *t. Returns -1 with *e set; the caller releases *t
 * in any case. */
static int read_results(
	struct h5 *file, const char *path, struct bench_table *t, struct err *e)
{
	struct records rows = {NULL, sizeof(*t->rows), -1, path};
	int rc = transfer_columns(file, case_columns, "", &rows, true, e);
	t->rows = rows.first;
	t->n_rows = max64(0, rows.n);
	for (int p = 0; p < N_COLL_PLACES && !rc; p++) {
		struct records r = result_records(t->rows, t->n_rows, p, path);
		rc = transfer_columns(file, result_columns, place_names[p], &r, true, e);
	}
	return rc || check_rows(t, path, e) || read_settings(file, t, e) ||
	       read_fits(file, path, &t->fits, &t->n_fits, e);
}

int bench_file_read(const char *path, struct bench_table *t, struct err *e)
{
	struct h5 *file;
	if (open_result_file(&file, path, e))
		return -1;
	int rc = h5_end(file, read_results(file, path, t, e), e);
	if (rc)
		table_release(t);
	return rc;
}

/* Rejects replacing a file that is not a result of pt-collbench, unless f->overwrite. */
static int check_replace(const struct bench_file *f, struct err *e)
{
	struct h5 *h;
	struct err other = {0};
	if (f->overwrite || !file_exists(f->path))
		return 0;
	int rc = h5_open(&h, f->path, &other);
	if (!rc) {
		rc = h5_check_format(h, FORMAT, BENCH_VERSION, &other);
		rc = h5_end(h, rc, &other);
	}
	if (rc && other.code == EX_IOERR) {
		*e = other;
		return -1;
	}
	if (rc)
		return err_set(e, EX_IOERR,
			"%s exists, but is not a result of " FORMAT "%s", f->path,
			advice_on(ADVICE_FILE_EXISTS));
	return 0;
}

int bench_file_begin(struct bench_file *f, struct comm *c, struct err *e)
{
	if (f->path && c->rank == 0 && !check_replace(f, e) &&
		!durable_begin(&f->out, f->path, e)) {
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
		rc = t ? h5_finish(f->file, rc, e) : h5_end(f->file, rc, e);
		if (rc || !t)
			durable_abort(&f->out);
		else
			durable_commit(&f->out, e);
	}
	return comm_agree(c, e);
}
