/* The log of a run in memory: read from lines or HDF5, written to HDF5. */
#include "options/options.h"
#include "base/file.h"
#include "run/run.h"

#include <math.h>
#include <sys/stat.h>

enum { MAX_ROWS = 1 << 26 };

#define F(field) offsetof(struct run_info, field)
const struct h5_field run_fields[] = {
	{"format", H5_TEXT, F(format), false, "\"pt-run\""},
	{"version", H5_I64, F(version), false, "version of the format: 1"},
	{"created_by", H5_TEXT, F(created_by), false, "the program of the run"},
	{"started", H5_TEXT, F(started), true, "time of the last start (UTC)"},
	{"host", H5_TEXT, F(host), true, "host of rank 0"},
	{"pid", H5_I64, F(pid), true, "process ID of rank 0"},
	{"job", H5_TEXT, F(job), true, "job ID of the scheduler"},
	{"command", H5_TEXT, F(command), true, "the command line"},
	{"device", H5_TEXT, F(device), true, "the CPU or GPU that computes"},
	{"libraries", H5_TEXT, F(libraries), true, "versions of libraries"},
	{"layout", H5_TEXT, F(layout), true, "the axes of degree above 1"},
	{"invocation", H5_TEXT, F(invocation), true,
		"options that do not affect results, as a config file: data, readers, "
		"threads, checkpoint and so on"},
	{"environment", H5_TEXT, F(environment), true,
		"environment variables of pt, MPI, threads and the scheduler"},
	{"ranks", H5_I64, F(ranks), true, "number of ranks"},
	{"hosts", H5_I64, F(hosts), true, "number of hosts"},
	{"threads", H5_I64, F(threads), true, "threads per rank"},
	{"arithmetic", H5_U64, F(arithmetic), true,
		"hash of the dataset arithmetic; runs with another hash can have "
		"different bits"},
	{0},
};
#undef F

/* ---- columns and rows ------------------------------------------------------------ */

void run_log_rewind(struct run_log *l, int64_t step)
{
	while (l->n_rows && run_log_value(l, l->n_rows - 1, COL_STEP) > (double)step)
		l->n_rows--;
}

/* Adds the columns of the table, unless the log has columns. */
static void create_columns(struct run_log *l)
{
	if (l->column)
		return;
	l->column = xcalloc(N_COLUMNS, sizeof(*l->column));
	l->n_columns = N_COLUMNS;
	for (int c = 0; c < N_COLUMNS; c++)
		l->column[c].name = xstrdup(columns[c].name);
}

/* Allocates the values of a column, all absent. */
static void create_values(struct run_log *l, int c)
{
	double *v = l->column[c].v = xmalloc((size_t)l->capacity * sizeof(*v));
	for (int64_t i = 0; i < l->n_rows; i++)
		v[i] = absent_value();
}

/* Doubles the capacity of all columns that have values, if no row is free. */
static void grow_columns(struct run_log *l)
{
	if (l->n_rows < l->capacity)
		return;
	l->capacity = l->capacity ? 2 * l->capacity : 256;
	for (int c = 0; c < l->n_columns; c++)
		if (l->column[c].v)
			l->column[c].v = xrealloc(
				l->column[c].v, (size_t)l->capacity * sizeof(double));
}

void run_log_set(struct run_log *l, int64_t i, int c, double v)
{
	BUG_ON(i < 0 || i >= l->n_rows || c < 0 || c >= l->n_columns);
	if (!l->column[c].v)
		create_values(l, c);
	l->column[c].v[i] = is_absent(v) ? (double)NAN : v;
}

void run_log_set_unread(struct run_log *l, int64_t i, int c)
{
	run_log_set(l, i, c, 0);
	l->column[c].v[i] = unread_value();
}

/* Appends a row without values. */
static void append_row(struct run_log *l)
{
	create_columns(l);
	grow_columns(l);
	for (int c = 0; c < l->n_columns; c++)
		if (l->column[c].v)
			l->column[c].v[l->n_rows] = absent_value();
	l->n_rows++;
}

int run_log_set_steps(struct run_log *l, const int64_t *steps, int64_t n)
{
	BUG_ON(l->n_rows);
	if (n > MAX_ROWS || (n && !column_accepts(COL_STEP, (double)steps[n - 1])))
		return -1;
	create_columns(l);
	l->capacity = n > l->capacity ? n : l->capacity;
	for (int c = 0; c < l->n_columns; c++) {
		free(l->column[c].v);
		l->column[c].v = NULL;
	}
	l->n_rows = n;
	for (int64_t i = 0; i < n; i++)
		run_log_set(l, i, COL_STEP, (double)steps[i]);
	return 0;
}

int run_log_find(const struct run_log *l, const char *name)
{
	int c = column_find(name);
	for (int i = N_COLUMNS; c < 0 && i < l->n_columns; i++)
		if (!strcmp(l->column[i].name, name))
			return i;
	return c < l->n_columns ? c : -1;
}

int run_log_column(struct run_log *l, const char *name)
{
	create_columns(l);
	int c = run_log_find(l, name);
	if (c >= 0)
		return c;
	if (l->n_columns == MAX_LOG_COLUMNS)
		return -1;
	l->column = xrealloc(l->column, (size_t)(l->n_columns + 1) * sizeof(*l->column));
	l->column[l->n_columns] = (struct log_column){.name = xstrdup(name)};
	return l->n_columns++;
}

struct row run_log_row(const struct run_log *l, int64_t i)
{
	struct row r = {.has = 0};
	for (int c = 0; c < N_COLUMNS; c++)
		if (run_log_has(l, i, c))
			row_set(&r, c, run_log_value(l, i, c));
	return r;
}

void run_log_add(struct run_log *l, const struct row *r)
{
	run_log_rewind(l, (int64_t)r->v[COL_STEP] - 1);
	append_row(l);
	for (int c = 0; c < N_COLUMNS; c++)
		if (row_has(r, c))
			run_log_set(l, l->n_rows - 1, c, r->v[c]);
		else if (r->unread >> c & 1)
			run_log_set_unread(l, l->n_rows - 1, c);
}

void run_log_free(struct run_log *l)
{
	for (const struct h5_field *f = run_fields; f->name; f++)
		if (f->type == H5_TEXT)
			free(*(void **)((char *)&l->info + f->offset));
	for (int c = 0; c < l->n_columns; c++) {
		free(l->column[c].name);
		free(l->column[c].v);
	}
	str_free(&l->config);
	str_free(&l->arithmetic);
	str_free(&l->events);
	free(l->column);
	free(l->name);
	free(l->brief);
	*l = (struct run_log){0};
}

/* ---- lines ----------------------------------------------------------------------- */

/* Sets the field of struct run_info `to` with this name. Ignores unknown names. */
static int set_meta(void *to, const char *key, const char *value, struct err *e)
{
	struct run_info *info = to;
	(void)e;
	for (const struct h5_field *f = run_fields; f->name; f++) {
		void *at = (char *)info + f->offset;
		if (strcmp(f->name, key))
			continue;
		if (f->type == H5_TEXT) {
			free(*(void **)at);
			*(char **)at = xstrdup(value);
		} else if (f->type == H5_U64) {
			*(uint64_t *)at = strtoull(value, NULL, 0);
		} else {
			parse_int(value, at);
		}
	}
	return 0;
}

static bool line_begins(const char *line, size_t len, const char *prefix)
{
	size_t n = strlen(prefix);
	return len >= n && !memcmp(line, prefix, n);
}

/* Adds a row, or a line of the head or an event, and ignores other lines. */
int run_log_line(void *log, const char *line, size_t len, struct err *e)
{
	struct run_log *l = log;
	static const char meta[] = "# meta ", conf[] = "# config ", arith[] = "# arith ";
	static const char event[] = "# event ", start[] = "# meta started";
	struct row r;
	if (line_begins(line, len, "step=")) {
		if (!row_parse(line, len, &r, &l->unread) && l->n_rows < MAX_ROWS)
			run_log_add(l, &r);
		return 0;
	}
	if (line_begins(line, len, start)) { /* a resumed run writes a whole head */
		str_clear(&l->config);
		str_clear(&l->arithmetic);
	}
	if (line_begins(line, len, meta))
		return conf_parse(line + strlen(meta), len - strlen(meta), "meta",
			set_meta, &l->info, e);
	if (line_begins(line, len, conf) || line_begins(line, len, arith)) {
		bool is_conf = line_begins(line, len, conf);
		size_t prefix_len = is_conf ? strlen(conf) : strlen(arith);
		struct str *out = is_conf ? &l->config : &l->arithmetic;
		str_add(out, line + prefix_len, len - prefix_len);
		str_putc(out, '\n');
	} else if (line_begins(line, len, event)) {
		int64_t step;
		int n = 0;
		long long s;
		str_add(&l->events, line + strlen(event), len - strlen(event));
		str_putc(&l->events, '\n');
		char text[128];
		snprintf(text, sizeof(text), "%.*s", (int)min64((int64_t)len, 127), line);
		if (sscanf(text, "# event %*s step=%lld resume%n", &s, &n) == 1 && n) {
			step = s;
			run_log_rewind(l, step);
		}
	}
	return 0;
}

int run_log_lines(struct run_log *l, const struct str *text, size_t *whole, struct err *e)
{
	*whole = 0;
	for (size_t at = 0; at < text->len; at = *whole) {
		const char *stop = memchr(text->s + at, '\n', text->len - at);
		if (!stop)
			break;
		*whole = (size_t)(stop - text->s) + 1;
		if (run_log_line(l, text->s + at, *whole - at - 1, e))
			return -1;
	}
	return 0;
}

/* ---- HDF5 ------------------------------------------------------------------------ */

static enum h5_type column_type(int c)
{
	return columns[c].kind == COLUMN_INT	 ? H5_I64
	       : columns[c].kind == COLUMN_EXACT ? H5_F32
						 : H5_F64;
}

/* The file has C's NAN for a missing value, or INT64_MIN in integer columns. A logged NaN has
 * another payload. */
#define ABSENT_F32 UINT32_C(0x7fc00000)
#define ABSENT_F64 UINT64_C(0x7ff8000000000000)

union cell {
	double f64;
	float f32;
	int64_t i64;
	uint64_t bits64;
	uint32_t bits32;
};

/* Encodes a value for HDF5. An absent value gets a bit pattern that no NaN of a value has. */
static union cell cell_of_value(enum h5_type type, double v)
{
	union cell x = {.f64 = v};
	if (type == H5_I64)
		x.i64 = is_absent(v) ? INT64_MIN : (int64_t)v;
	else if (type == H5_F32 && isnan(v))
		x.bits32 = ABSENT_F32 + !is_absent(v);
	else if (type == H5_F32)
		x.f32 = (float)v;
	else if (isnan(v))
		x.bits64 = ABSENT_F64 + !is_absent(v);
	return x;
}

/* Decodes a value from HDF5; absent_value() if the cell is absent. */
static double value_of_cell(enum h5_type type, union cell x)
{
	if (type == H5_I64)
		return x.i64 == INT64_MIN ? absent_value() : (double)x.i64;
	if (type == H5_F32)
		return x.bits32 == ABSENT_F32 ? absent_value() : (double)x.f32;
	return x.bits64 == ABSENT_F64 ? absent_value() : x.f64;
}

/* Encodes column c of all rows to out[n_rows], in the column's type. */
static void encode_column(const struct run_log *l, int c, void *out)
{
	size_t n_bytes = h5_type_bytes(column_type(c));
	for (int64_t i = 0; i < l->n_rows; i++) {
		union cell x = cell_of_value(column_type(c), run_log_value(l, i, c));
		memcpy((char *)out + (size_t)i * n_bytes, &x, n_bytes);
	}
}

/* Sets a column from the values of a file. Returns -1 if a value is invalid. */
static int decode_column(struct run_log *l, int c, const void *in)
{
	size_t n_bytes = h5_type_bytes(column_type(c));
	for (int64_t i = 0; i < l->n_rows; i++) {
		union cell x;
		memcpy(&x, (const char *)in + (size_t)i * n_bytes, n_bytes);
		double v = value_of_cell(column_type(c), x);
		bool has_no_value = is_absent(v);
		if (!has_no_value && !column_accepts(c, v))
			return -1;
		/* every row has a step, in ascending order */
		if (c == COL_STEP &&
			(has_no_value || (i && v <= run_log_value(l, i - 1, COL_STEP))))
			return -1;
		if (!has_no_value)
			run_log_set(l, i, c, v);
	}
	return 0;
}

/* Writes all columns that have values as datasets /columns/NAME. */
static int write_columns(const struct run_log *l, struct h5 *h, struct err *e)
{
	scoped_ptr void *data = xcalloc((size_t)l->n_rows + 1, sizeof(double));
	int rc = 0;
	for (int c = 0; c < N_COLUMNS && !rc; c++) {
		char path[64];
		if (c != COL_STEP && l->column && !l->column[c].v)
			continue; /* no row has a value */
		snprintf(path, sizeof(path), "/columns/%s", columns[c].name);
		encode_column(l, c, data);
		rc = h5_put(h, path, column_type(c), 1, &l->n_rows, data, e);
	}
	return rc;
}

/* Reads all columns, also under their former names. Sets the number of rows from column step. */
static int read_columns(struct run_log *l, struct h5 *h, struct err *e)
{
	create_columns(l);
	for (int c = 0; c < N_COLUMNS; c++) {
		char path[64];
		void *data;
		int64_t n;
		snprintf(path, sizeof(path), "/columns/%s", columns[c].name);
		if (columns[c].was && !h5_has(h, path))
			snprintf(path, sizeof(path), "/columns/%s", columns[c].was);
		if (c != COL_STEP && !h5_has(h, path))
			continue; /* no row has a value */
		if (h5_get(h, path, column_type(c), c == COL_STEP ? -1 : l->n_rows,
			    MAX_ROWS, &data, &n, e))
			return -1;
		if (c == COL_STEP)
			l->n_rows = l->capacity = n;
		int rc = decode_column(l, c, data);
		free(data);
		if (rc)
			return err_set(e, EX_DATAERR, "%s: %s has an invalid value",
				l->name, path);
	}
	return 0;
}

int run_log_write(const struct run_log *l, const char *path, struct err *e)
{
	struct h5 *h;
	struct run_info info = l->info;
	info.format = "pt-run";
	info.version = RUN_VERSION;
	info.created_by = "pt-train " PT_VERSION;
	if (h5_create(&h, path, e))
		return -1;
	int rc = h5_fields_write(h, "/", run_fields, &info, e) ||
		 h5_put_text(h, "/config", l->config.s ? l->config.s : "", e) ||
		 h5_put_text(
			 h, "/arithmetic", l->arithmetic.s ? l->arithmetic.s : "", e) ||
		 h5_put_text(h, "/events", l->events.s ? l->events.s : "", e) ||
		 write_columns(l, h, e);
	return h5_finish(h, rc, e);
}

/* Reads a sealed HDF5 run log into *l. After an error *l is partly filled. */
static int read_h5(struct run_log *l, const char *path, const char *name, struct err *e)
{
	struct h5 *h;
	if (h5_open_as(&h, path, name, H5_READ, e))
		return -1;
	int rc = h5_check_format(h, "pt-run", RUN_VERSION, e) || h5_check_seal(h, e) ||
		 h5_fields_read(h, "/", run_fields, &l->info, e) ||
		 h5_get_text(h, "/config", &l->config, e) ||
		 h5_get_text(h, "/arithmetic", &l->arithmetic, e) ||
		 h5_get_text(h, "/events", &l->events, e) || read_columns(l, h, e);
	return h5_end(h, rc, e);
}

/* ---- logs of any kind ------------------------------------------------------------ */

enum { MAX_TEXT = 1 << 30 };

static int set_format_error(const struct run_log *l, struct err *e)
{
	return err_set(e, EX_DATAERR,
		"%s: neither a run.h5 nor a text with lines that begin with step=",
		l->name);
}

/* Reads a text log into *l. Warns of unread keys, and ignores an incomplete last line. */
static int read_text(struct run_log *l, int fd, struct err *e)
{
	scoped_str rest = {0};
	int rc = file_read_lines(fd, l->name, run_log_line, l, &rest, e);
	if (!rc && rest.len) /* its last number may be incomplete */
		warn("%s: the last line is incomplete and is ignored", l->name);
	unread_warn(&l->unread, l->name);
	if (!rc && !l->n_rows)
		rc = set_format_error(l, e);
	return rc;
}

int run_log_read_file(void *log, int fd, const char *path, struct err *e)
{
	struct run_log *l = log;
	int h5 = h5_file_is_hdf5(fd, l->name, e);
	return h5 < 0 ? -1 : h5 ? read_h5(l, path, l->name, e) : read_text(l, fd, e);
}

/* Checks the first bytes of a log, and sets *max, its maximum size, by its format. */
static int check_start(void *to, const struct stream *s, int64_t *max, struct err *e)
{
	bool is_h5 = h5_has_signature(s->first, s->n);
	*max = is_h5 ? INT64_MAX : MAX_TEXT;
	return !is_h5 && memchr(s->first, '\0', s->n) ? set_format_error(to, e) : 0;
}

int run_log_read(struct run_log *l, const char *path, struct err *e)
{
	scoped_str h5_path = {0};
	struct stat st;
	bool is_stdin = !strcmp(path, "-");
	*l = (struct run_log){.name = xstrdup(is_stdin ? "standard input" : path)};
	if (!is_stdin && file_is_directory(path)) {
		str_printf(&h5_path, "%s/run.h5", path);
		path = h5_path.s;
	}
	const struct seekable reader = {check_start, run_log_read_file, l};
	int rc = h5_path.len && !stat(path, &st) && !S_ISREG(st.st_mode)
			 ? err_set(e, EX_DATAERR, "%s is not a plain file", path)
			 : file_read_seekable(path, l->name, &reader, e);
	if (rc)
		run_log_free(l);
	return rc ? -1 : 0;
}
