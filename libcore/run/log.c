/* The log of a run in memory: read from lines or HDF5, written to HDF5. */
#include "base/options.h"
#include "base/file.h"
#include "run/run.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

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
	{"layout", H5_TEXT, F(layout), true, "the parallel layout"},
	{"invocation", H5_TEXT, F(invocation), true,
		"options that do not affect results, as a config file: data, readers, "
		"threads, checkpoint"},
	{"environment", H5_TEXT, F(environment), true,
		"environment variables of pt, MPI, threads, the scheduler"},
	{"ranks", H5_I64, F(ranks), true, "number of ranks"},
	{"hosts", H5_I64, F(hosts), true, "number of hosts"},
	{"threads", H5_I64, F(threads), true, "threads per rank"},
	{"arithmetic", H5_U64, F(arithmetic), true,
		"hash of the dataset arithmetic: runs that differ in it can have "
		"different bits"},
	{0},
};
#undef F

void run_log_rewind(struct run_log *l, int64_t step)
{
	while (l->n_rows && l->rows[l->n_rows - 1].v[COL_STEP] > (double)step)
		l->n_rows--;
}

void run_log_add(struct run_log *l, const struct row *r)
{
	run_log_rewind(l, (int64_t)r->v[COL_STEP] - 1);
	if (l->n_rows == l->room) {
		l->room = l->room ? 2 * l->room : 256;
		l->rows = xrealloc(l->rows, (size_t)l->room * sizeof(*l->rows));
	}
	l->rows[l->n_rows++] = *r;
}

void run_log_free(struct run_log *l)
{
	for (const struct h5_field *f = run_fields; f->name; f++)
		if (f->type == H5_TEXT)
			free(*(void **)((char *)&l->info + f->offset));
	str_free(&l->config);
	str_free(&l->arithmetic);
	str_free(&l->events);
	free(l->rows);
	free(l->name);
	*l = (struct run_log){0};
}

/* ---- lines ----------------------------------------------------------------------- */

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

static bool begins(const char *line, size_t len, const char *with)
{
	size_t n = strlen(with);
	return len >= n && !memcmp(line, with, n);
}

int run_log_line(struct run_log *l, const char *line, size_t len, struct err *e)
{
	static const char meta[] = "# meta ", conf[] = "# config ", arith[] = "# arith ";
	static const char event[] = "# event ", start[] = "# meta started";
	struct row r;
	if (begins(line, len, "step=")) {
		if (!row_parse(line, len, &r) && l->n_rows < MAX_ROWS)
			run_log_add(l, &r);
		return 0;
	}
	if (begins(line, len, start)) { /* the head of a resumed run is complete */
		str_clear(&l->config);
		str_clear(&l->arithmetic);
	}
	if (begins(line, len, meta))
		return conf_parse(line + strlen(meta), len - strlen(meta), "meta",
			set_meta, &l->info, e);
	if (begins(line, len, conf) || begins(line, len, arith)) {
		size_t skip = begins(line, len, conf) ? strlen(conf) : strlen(arith);
		struct str *to = begins(line, len, conf) ? &l->config : &l->arithmetic;
		str_add(to, line + skip, len - skip);
		str_putc(to, '\n');
	} else if (begins(line, len, event)) {
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

/* Absent values become NaN, or INT64_MIN in columns of integers. */
static void to_column(const struct run_log *l, int c, void *out)
{
	for (int64_t i = 0; i < l->n_rows; i++) {
		const struct row *r = &l->rows[i];
		bool has = row_has(r, c);
		if (column_type(c) == H5_I64)
			((int64_t *)out)[i] = has ? (int64_t)r->v[c] : INT64_MIN;
		else if (column_type(c) == H5_F32)
			((float *)out)[i] = has ? (float)r->v[c] : NAN;
		else
			((double *)out)[i] = has ? r->v[c] : (double)NAN;
	}
}

static int from_column(struct run_log *l, int c, const void *in)
{
	for (int64_t i = 0; i < l->n_rows; i++) {
		enum h5_type t = column_type(c);
		double v = t == H5_I64	 ? (double)((const int64_t *)in)[i]
			   : t == H5_F32 ? (double)((const float *)in)[i]
					 : ((const double *)in)[i];
		bool absent =
			t == H5_I64 ? ((const int64_t *)in)[i] == INT64_MIN : isnan(v);
		if (!absent && !column_fits(c, v))
			return -1;
		if (!absent)
			row_set(&l->rows[i], c, v);
		/* every row has a step, in ascending order */
		if (c == COL_STEP && (absent || (i && v <= l->rows[i - 1].v[c])))
			return -1;
	}
	return 0;
}

static int write_columns(const struct run_log *l, struct h5 *h, struct err *e)
{
	void *data = xcalloc((size_t)l->n_rows + 1, sizeof(double));
	int rc = 0;
	for (int c = 0; c < N_COLUMNS && !rc; c++) {
		char path[64];
		snprintf(path, sizeof(path), "/columns/%s", columns[c].name);
		to_column(l, c, data);
		rc = h5_put(h, path, column_type(c), 1, &l->n_rows, data, e);
	}
	free(data);
	return rc;
}

static int read_columns(struct run_log *l, struct h5 *h, struct err *e)
{
	for (int c = 0; c < N_COLUMNS; c++) {
		char path[64];
		void *data;
		int64_t n;
		snprintf(path, sizeof(path), "/columns/%s", columns[c].name);
		if (columns[c].was && !h5_has(h, path))
			snprintf(path, sizeof(path), "/columns/%s", columns[c].was);
		if (c != COL_STEP && !h5_has(h, path))
			continue; /* not logged by an older program */
		if (h5_get(h, path, column_type(c), c == COL_STEP ? -1 : l->n_rows,
			    MAX_ROWS, &data, &n, e))
			return -1;
		if (c == COL_STEP) {
			l->rows = xcalloc((size_t)n + 1, sizeof(*l->rows));
			l->n_rows = l->room = n;
		}
		int rc = from_column(l, c, data);
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
		 write_columns(l, h, e) || h5_seal(h, e);
	return h5_end(h, rc, e);
}

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

/* ---- any kind of log ------------------------------------------------------------- */

static bool is_hdf5(int fd)
{
	char first[8];
	return !pread_all(fd, first, 8, 0) && h5_begins(first, 8);
}

enum { MAX_TEXT = 1 << 30 };

static int not_a_log(const struct run_log *l, struct err *e)
{
	return err_set(e, EX_DATAERR,
		"%s: neither a run.h5 nor a text with lines that begin with step=",
		l->name);
}

static int read_text(struct run_log *l, int fd, const char *name, struct err *e)
{
	struct str text = {0};
	size_t whole = 0;
	int rc = file_read_rest(fd, name, MAX_TEXT, &text, e) ||
		 run_log_lines(l, &text, &whole, e);
	if (!rc && whole < text.len) /* a number may be incomplete */
		warn("%s: the last line is incomplete and is ignored", l->name);
	str_free(&text);
	if (!rc && !l->n_rows)
		rc = not_a_log(l, e);
	return rc;
}

/* Reads the file at `path`, with `name` in messages. */
static int read_file(
	struct run_log *l, int fd, const char *path, const char *name, struct err *e)
{
	return is_hdf5(fd) ? read_h5(l, path, name, e) : read_text(l, fd, name, e);
}

/* Copies a stream to a temporary file, because the reader needs its first bytes twice. */
static int read_stream(struct run_log *l, int from, struct err *e)
{
	char kept[4096];
	struct stream s;
	if (stream_look(&s, from, l->name, e))
		return -1;
	bool h5 = h5_begins(s.first, s.n);
	if (!h5 && memchr(s.first, '\0', s.n))
		return not_a_log(l, e);
	int fd = file_spool(&s, h5 ? INT64_MAX : MAX_TEXT, kept, e);
	if (fd < 0)
		return -1;
	int rc = lseek(fd, 0, SEEK_SET)
			 ? err_set(e, EX_IOERR, "%s: %s", l->name, strerror(errno))
			 : read_file(l, fd, kept, l->name, e);
	cleanup_remove(kept);
	close(fd);
	return rc;
}

static int read_any(struct run_log *l, const char *path, struct err *e)
{
	struct stat st;
	int fd = file_open(path);
	if (fd < 0 || fstat(fd, &st)) {
		err_set(e, EX_IOERR, "%s: %s", path, strerror(errno));
		close(fd);
		return -1;
	}
	int rc = S_ISREG(st.st_mode) ? read_file(l, fd, path, path, e)
				     : read_stream(l, fd, e);
	close(fd);
	return rc;
}

int run_log_read(struct run_log *l, const char *path, struct err *e)
{
	struct str in_folder = {0};
	struct stat st;
	bool is_stdin = !strcmp(path, "-");
	*l = (struct run_log){.name = xstrdup(is_stdin ? "standard input" : path)};
	if (!is_stdin && stat(path, &st) == 0 && S_ISDIR(st.st_mode)) {
		str_printf(&in_folder, "%s/run.h5", path);
		path = in_folder.s;
	}
	int rc = is_stdin ? read_stream(l, STDIN_FILENO, e) : read_any(l, path, e);
	str_free(&in_folder);
	if (rc)
		run_log_free(l);
	return rc ? -1 : 0;
}
