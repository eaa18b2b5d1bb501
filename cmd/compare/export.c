/* Writes logs as a table, JSON lines or event files. Every value is written as its bits, or as the
 * shortest text that reads back as the same double. */
#include "compare/export.h"
#include "compare/compare.h"

#include "base/file.h"
#include "base/json.h"
#include "compare/curve.h"
#include "run/tfevents.h"

#include <errno.h>
#include <math.h>
#include <unistd.h>

enum { CSV = 1, JSONL, EVENTS };
const char *const export_names[] = {"auto", "csv", "jsonl", "events", NULL};

int export_choose_format(const char *path, int format, struct err *e)
{
	const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
	bool is_events = strstr(name, "tfevents") || !*name || file_is_directory(path) ||
			 !strchr(name, '.');
	if (!format)
		format = !strcmp(path, "-") || text_ends(path, ".csv") ? CSV
			 : text_ends(path, ".jsonl")		       ? JSONL
			 : is_events				       ? EVENTS
								       : 0;
	if (!format)
		return err_set(e, EX_USAGE,
			"--export '%s': neither a .csv or .jsonl file nor a directory; "
			"specify --export-format",
			path);
	return format == EVENTS && !strcmp(path, "-")
		       ? err_set(e, EX_USAGE,
				 "--export: event files cannot be written to standard output")
		       : format;
}

struct exporting {
	const struct run_log *logs;
	int n;
	struct strs columns, runs; /* names; runs: unique */
	int *index; /* [columns]: column number in the log being written, or -1 */
};

/* Returns the value of a column in row i as a float, if pt-train logged a float: its journals have
 * the shortest text of the float, which reads as another double. */
static double exported_value(const struct run_log *l, int64_t i, int c)
{
	double v = run_log_value(l, i, c);
	bool is_from_pt = log_is_from_pt(l);
	return is_from_pt && c < N_COLUMNS && columns[c].kind == COLUMN_EXACT
		       ? (double)(float)v
		       : v;
}

/* Appends a number. Whole numbers, such as bytes, have no exponent. -0 becomes -0.0, since JSON
 * reads -0 as an integer, which has no sign. */
static void append_number(struct str *out, double v)
{
	char num[NUM_TEXT];
	if (v == 0 && signbit(v))
		str_puts(out, "-0.0");
	else if (fabs(v) < 0x1p53 && v == (double)(int64_t)v)
		str_printf(out, "%lld", (long long)v);
	else
		str_puts(out, text_double(num, v));
}

static bool has_row_values(const struct exporting *x, const struct run_log *l, int64_t i)
{
	for (int64_t k = 0; k < x->columns.n; k++)
		if (run_log_has(l, i, x->index[k]))
			return true;
	return false;
}

static int64_t step_of(const struct run_log *l, int64_t i)
{
	return (int64_t)run_log_value(l, i, COL_STEP);
}

/* Appends a name to the list; "NAME-2" and so on if it is already in the list. */
static void add_unique(struct strs *names, const char *name)
{
	scoped_str s = {0};
	str_puts(&s, name);
	for (int i = 2; strs_find(names, s.s) >= 0; i++) {
		str_clear(&s);
		str_printf(&s, "%s-%d", name, i);
	}
	strs_add(names, s.s);
}

/* Appends to x->columns each column that any log has: the axes first, except steps. */
static void list_all_columns(struct exporting *x)
{
	for (int i = 0; i < x->n; i++)
		for (int c = COL_STEP + 1; c < x->logs[i].n_columns; c++) {
			const char *name = x->logs[i].column[c].name;
			if (curve_is_axis(name) && curve_has_column(&x->logs[i], c) &&
				strs_find(&x->columns, name) < 0)
				strs_add(&x->columns, name);
		}
	curve_list_columns(x->logs, x->n, &x->columns);
}

/* Sets x->index for a log. */
static void find_columns(struct exporting *x, int log)
{
	for (int64_t k = 0; k < x->columns.n; k++)
		x->index[k] = run_log_find(&x->logs[log], x->columns.v[k]);
}

struct output {
	int fd;
	struct str text; /* not written yet */
	int rc, why;	 /* rc -1: a write failed with errno `why` */
};

/* Writes the text if it has at least `min` bytes. */
static void flush_text(struct output *o, size_t min)
{
	if (o->text.len < min)
		return;
	if (!o->rc && write_all(o->fd, o->text.s, o->text.len))
		o->rc = -1, o->why = errno;
	str_clear(&o->text);
}

typedef void write_log_fn(const struct exporting *x, int log, struct output *o);
enum { FLUSH_BYTES = 1 << 20 };

/* Writes a file with all logs, or with the log `only` if it is not negative. */
static int write_file(struct exporting *x, const char *path, const struct str *head,
	write_log_fn *write_log, int only, struct err *e)
{
	bool is_stdout = !strcmp(path, "-");
	struct output o = {.fd = is_stdout ? STDOUT_FILENO : file_begin(path, e)};
	if (o.fd < 0)
		return -1;
	str_add(&o.text, head->s, head->len);
	for (int i = 0; i < x->n; i++)
		if (only < 0 || i == only) {
			find_columns(x, i);
			write_log(x, i, &o);
		}
	flush_text(&o, 1);
	str_free(&o.text);
	errno = o.why;
	if (!is_stdout)
		return file_end(o.fd, path, o.rc, e);
	if (o.rc)
		die(EX_IOERR, "standard output: %s",
			strerror(errno)); /* as stdout_close() */
	return 0;
}

/* ---- CSV --------------------------------------------------------------------------- */

/* Appends a CSV field. Line breaks become blanks, for readers that split the file into lines. */
static void append_field(struct str *out, const char *s)
{
	bool is_quoted =
		!*s || strpbrk(s, "\",;\t\r\n") || strchr("# '", *s) || text_ends(s, " ");
	if (is_quoted)
		str_putc(out, '"');
	for (; *s; s++) {
		if (*s == '"')
			str_putc(out, '"');
		str_putc(out, *s == '\n' || *s == '\r' ? ' ' : *s);
	}
	if (is_quoted)
		str_putc(out, '"');
}

/* Writes one line per row of a log that has any exported value. */
static void write_csv_log(const struct exporting *x, int log, struct output *o)
{
	const struct run_log *l = &x->logs[log];
	for (int64_t i = 0; i < l->n_rows; i++) {
		if (!has_row_values(x, l, i))
			continue;
		if (x->n > 1) {
			append_field(&o->text, x->runs.v[log]);
			str_putc(&o->text, ',');
		}
		str_printf(&o->text, "%lld", (long long)step_of(l, i));
		for (int64_t k = 0; k < x->columns.n; k++) {
			str_putc(&o->text, ',');
			if (run_log_has(l, i, x->index[k]))
				append_number(
					&o->text, exported_value(l, i, x->index[k]));
		}
		str_putc(&o->text, '\n');
		flush_text(o, FLUSH_BYTES);
	}
}

/* Writes all logs as CSV. Adds a column for loss to x->columns if only train_loss is exported. */
static int write_csv(struct exporting *x, const char *path, struct err *e)
{
	scoped_str head = {0};
	const char *loss = columns[COL_LOSS].name;
	/* (in a table without loss, readers such as pt-compare take train_loss for it) */
	if (strs_find(&x->columns, loss) < 0 &&
		strs_find(&x->columns, columns[COL_TRAIN_LOSS].name) >= 0)
		strs_add(&x->columns, loss);
	str_puts(&head, x->n > 1 ? "run,step" : "step");
	for (int64_t k = 0; k < x->columns.n; k++) {
		str_putc(&head, ',');
		append_field(&head, x->columns.v[k]);
	}
	str_putc(&head, '\n');
	return write_file(x, path, &head, write_csv_log, -1, e);
}

/* Appends a number; NaN and infinity, which JSON lacks, as strings. */
static void append_json_number(struct str *out, double v)
{
	if (isfinite(v))
		append_number(out, v);
	else
		str_puts(out, isnan(v) ? "\"NaN\""
			      : v > 0  ? "\"Infinity\""
				       : "\"-Infinity\"");
}

static char *quote_json(const char *s)
{
	json_auto_t *j = text_json(s);
	return json_dumps(j, JSON_ENCODE_ANY);
}

/* Writes one JSON object per line for each row of a log that has any exported value. */
static void write_json_log(const struct exporting *x, int log, struct output *o)
{
	const struct run_log *l = &x->logs[log];
	scoped_strs keys = {0};
	for (int64_t k = -1; k < x->columns.n; k++) {
		scoped_ptr char *key =
			quote_json(k < 0 ? x->runs.v[log] : x->columns.v[k]);
		strs_add(&keys, key);
	}
	for (int64_t i = 0; i < l->n_rows; i++) {
		if (!has_row_values(x, l, i))
			continue;
		str_putc(&o->text, '{');
		if (x->n > 1)
			str_printf(&o->text, "\"run\": %s, ", keys.v[0]);
		str_printf(&o->text, "\"step\": %lld", (long long)step_of(l, i));
		for (int64_t k = 0; k < x->columns.n; k++) {
			if (!run_log_has(l, i, x->index[k]))
				continue;
			str_printf(&o->text, ", %s: ", keys.v[k + 1]);
			append_json_number(&o->text, exported_value(l, i, x->index[k]));
		}
		str_puts(&o->text, "}\n");
		flush_text(o, FLUSH_BYTES);
	}
}

/* ---- event files ------------------------------------------------------------------- */

/* Returns true if a value of a column is not a float, the type that TensorBoard itself writes. */
static bool needs_doubles(const struct run_log *l, int c)
{
	for (int64_t i = 0; i < l->n_rows; i++) {
		double v = exported_value(l, i, c);
		if (run_log_has(l, i, c) && (double)(float)v != v && !isnan(v))
			return true;
	}
	return false;
}

/* Writes a log as events; their time is the time of all steps so far: logs have no wall clock. */
static void write_events_log(const struct exporting *x, int log, struct output *o)
{
	const struct run_log *l = &x->logs[log];
	scoped_ptr struct tfevents_scalar *all =
		xcalloc((size_t)x->columns.n + 1, sizeof(*all));
	scoped_ptr struct tfevents_scalar *row =
		xcalloc((size_t)x->columns.n + 1, sizeof(*row));
	scoped_ptr double *time = curve_axis_values(l, AXIS_SECONDS);
	tfevents_put_begin(&o->text, 0, 0);
	for (int64_t k = 0; k < x->columns.n; k++) {
		int c = x->index[k];
		bool has_tag = c >= 0 && c < N_COLUMNS && columns[c].tag;
		all[k].tag = has_tag ? columns[c].tag : x->columns.v[k];
		all[k].wide = c >= 0 && needs_doubles(l, c);
	}
	for (int64_t i = 0; i < l->n_rows; i++) {
		int n = 0;
		for (int64_t k = 0; k < x->columns.n; k++)
			if (run_log_has(l, i, x->index[k])) {
				row[n] = all[k];
				row[n++].v = exported_value(l, i, x->index[k]);
			}
		if (n)
			tfevents_put_row(
				&o->text, time ? time[i] : 0, step_of(l, i), row, n);
		flush_text(o, FLUSH_BYTES);
	}
}

/* Returns a valid name of a directory for a run. */
static char *directory_name(const char *run)
{
	enum { MAX_LEN = 200 };
	char *name = xstrdup(run);
	for (char *p = name; *p; p++) {
		bool is_plain = (*p >= 'a' && *p <= 'z') || (*p >= 'A' && *p <= 'Z') ||
				(*p >= '0' && *p <= '9') || strchr("_-+=", *p) ||
				(*p == '.' && p > name);
		if (!is_plain)
			*p = '_';
	}
	name[strnlen(name, MAX_LEN)] = '\0';
	return name;
}

/* Rejects a directory with event files: readers would take both runs for one. */
static int check_directory(const char *path, struct err *e)
{
	scoped_dir *d = opendir(path);
	bool has_events = false;
	for (struct dirent *f; d && (f = readdir(d));)
		has_events |= strstr(f->d_name, "tfevents") != NULL;
	return has_events ? err_set(e, EX_USAGE,
				    "--export '%s': the directory already has event "
				    "files; specify a new one",
				    path)
			  : 0;
}

/* Writes one log as an event file in a directory, which is made if it is missing. */
static int write_events_directory(
	struct exporting *x, const char *directory, int log, struct err *e)
{
	scoped_ptr char *path =
		text_printf("%s/" TFEVENTS_NAME "0000000000.pt-compare", directory);
	return check_directory(directory, e) || file_make_directory(directory, e) ||
	       write_file(x, path, &(struct str){0}, write_events_log, log, e);
}

/* Writes an event file, a directory for one run, or a directory of directories. */
static int write_events(struct exporting *x, const char *path, struct err *e)
{
	scoped_strs directories = {0};
	const char *slash = strrchr(path, '/');
	bool is_file =
		strstr(slash ? slash : path, "tfevents") && !file_is_directory(path);
	int rc = 0;
	if (is_file && x->n > 1)
		return err_set(e, EX_USAGE,
			"--export '%s': an event file holds one run; specify a directory",
			path);
	if (is_file)
		return write_file(x, path, &(struct str){0}, write_events_log, 0, e);
	if (x->n == 1)
		return write_events_directory(x, path, 0, e);
	for (int i = 0; i < x->n && !rc; i++) {
		scoped_ptr char *name = directory_name(x->runs.v[i]);
		add_unique(&directories, name);
		scoped_ptr char *directory = text_printf("%s/%s", path, directories.v[i]);
		rc = write_events_directory(x, directory, i, e);
	}
	return rc;
}

int export_write(const struct run_log *logs, int n, const struct strs *chosen,
	const char *path, int format, struct err *e)
{
	struct exporting x = {.logs = logs, .n = n};
	for (int64_t k = 0; k < chosen->n; k++)
		if (strs_find(&x.columns, chosen->v[k]) < 0)
			strs_add(&x.columns, chosen->v[k]);
	if (!chosen->n)
		list_all_columns(&x);
	for (int i = 0; i < n; i++)
		add_unique(&x.runs, run_log_brief(&logs[i]));
	x.index = xcalloc((size_t)x.columns.n + 2, sizeof(*x.index));
	format = export_choose_format(path, format, e);
	int rc = format < 0	 ? -1
		 : format == CSV ? write_csv(&x, path, e)
		 : format == JSONL
			 ? write_file(&x, path, &(struct str){0}, write_json_log, -1, e)
			 : write_events(&x, path, e);
	free(x.index);
	strs_free(&x.columns);
	strs_free(&x.runs);
	return rc ? -1 : 0;
}
