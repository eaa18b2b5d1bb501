/* Reads a log from a file, a stream, or a directory of event files. */
#include "base/file.h"
#include "base/unpack.h"
#include "logs/named.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SAMPLE = 1 << 20, MAX_TEXT = 1 << 30, MAX_JSON = 1 << 28 };
enum { READERS = 4 }; /* threads */

/* Returns true for a line that ends with a closing quote. */
static bool ends_with_quote(struct span line)
{
	size_t quotes = 0;
	for (size_t i = 0; i < line.n; i++)
		quotes += line.p[i] == '"';
	return quotes && quotes % 2 == 0 && line.p[line.n - 1] == '"';
}

/* Returns the length of a line without its last word, which may be incomplete. The end of a JSON
 * object, of a text in quotes, as in W&B's exports, and of a progress bar is visible. */
static size_t length_of_complete_words(struct span line)
{
	size_t n = line.n;
	if (n && (line.p[n - 1] == '}' || line.p[n - 1] == '\r' || ends_with_quote(line)))
		return n;
	while (n && !strchr(" \t,;", line.p[n - 1]))
		n--;
	return n;
}

/* Reads a log line by line, and warns of everything in it that is ignored. */
static int read_lines(struct build *b, const struct log_format *f, int fd,
	const char *name, struct err *e)
{
	struct line_reader r = {b, f, {0}};
	scoped_str rest = {0};
	int rc = file_read_lines(fd, name, format_parse_line, &r, &rest, e);
	if (!rc && rest.len) {
		size_t n = length_of_complete_words((struct span){rest.s, rest.len});
		if (n < rest.len && !b->is_growing)
			warn("%s: the last word is ignored, because it may be incomplete: the "
			     "last line has no line break",
				name);
		struct garbled garbled = b->garbled;
		rc = format_parse_line(&r, rest.s, n, e);
		b->garbled = garbled; /* not a line that is still written */
	}
	if (!b->is_growing)
		runs_warn(&b->table, name);
	if (b->garbled.n && !b->is_growing)
		warn("%s: %lld %s ignored, because other output cuts or mixes with %s: the "
		     "first is '%s'",
			name, (long long)b->garbled.n,
			b->garbled.n == 1 ? "row is" : "rows are",
			b->garbled.n == 1 ? "it" : "them", b->garbled.first);
	if (!rc && !b->is_growing && f->line == parse_plain_line &&
		(!b->opts->format || strcmp(b->opts->format, f->name) != 0))
		plain_warn(b, name);
	if (rc && b->pattern.too_hard)
		rc = err_prefix(e, "%s: ", name);
	if (b->pattern.n_long && !b->is_growing)
		warn("%s: %lld lines are ignored, because they are longer than 4 KiB",
			name, (long long)b->pattern.n_long);
	if (!rc && f == &b->opts->formats->pattern && !b->n_parsed)
		rc = err_set(e, EX_DATAERR, "%s: no line matches the pattern", name);
	str_free(&r.plain);
	return rc;
}

/* Reads a log in a format whose parser needs the whole file. */
static int read_text(struct build *b, const struct log_format *f, int fd,
	const char *name, struct err *e)
{
	scoped_str text = {0};
	/* JSON takes many times its size in memory */
	size_t max = f->text == parse_tensorboard ? MAX_TEXT : MAX_JSON;
	int rc = file_read_rest(fd, name, max, &text, e);
	if (!rc && f->text(b, (struct span){text.s, text.len}, e))
		rc = err_prefix(e, "%s: ", name);
	return rc;
}

struct log_reading {
	struct run_log *l;
	struct build b;
	const struct log_format *format; /* NULL: to be detected */
	bool is_growing;		 /* the log is still written */
	bool is_stream;			 /* the file is a copy of a stream */
	bool is_pt;			 /* a log of pt-train */
};

/* Returns the format of an open file, or NULL with *e set. */
static const struct log_format *choose_format(
	int fd, const char *name, const struct log_reading *r, struct err *e)
{
	if (r->format)
		return r->format;
	scoped_ptr char *sample = xmalloc(SAMPLE);
	int64_t n = file_read_first(fd, name, sample, SAMPLE, e);
	/* (of the exact size, so that AddressSanitizer detects a read past it) */
	sample = xrealloc(sample, n > 0 ? (size_t)n : 1);
	struct span beginning = {sample, n > 0 ? (size_t)n : 0};
	const struct log_formats *all = r->b.opts->formats;
	const struct log_format *f = n < 0 ? NULL : format_detect(r->b.opts, beginning);
	if (f && f->line == parse_csv_line && !all->n_given &&
		csv_is_run_table(beginning))
		f = NULL;
	if (!f && n >= 0 && all->n_given)
		err_set(e, EX_DATAERR, "%s: no line matches a format of %s", name,
			r->b.opts->format);
	else if (!f && n >= 0)
		reject_unknown_format(r->b.opts, name, beginning, e);
	return f;
}

/* Reads a log of pt-train that may have no row yet, and may end within a line. */
static int read_growing_pt_log(struct run_log *l, int fd, struct err *e)
{
	scoped_str rest = {0};
	return file_read_lines(fd, l->name, run_log_line, l, &rest, e);
}

/* Returns fd, or for a compressed log a descriptor of its contents; -1 with *e set. A file that
 * grows more than 256-fold is rejected: logs grow about tenfold. */
static int open_uncompressed(int fd, const char *name, struct err *e)
{
	enum { MAX_GROWTH = 256, ALLOWED = 1 << 24 };
	char first[FOREIGN_BYTES];
	struct stat st;
	int64_t n = file_read_first(fd, name, first, sizeof(first), e);
	if (n < 0)
		return -1;
	if (!is_compressed(first, (size_t)n))
		return fd;
	int64_t size = fstat(fd, &st) ? 0 : (int64_t)st.st_size;
	int unpacked =
		file_unpack(fd, name, min64(MAX_TEXT, ALLOWED + MAX_GROWTH * size), e);
	int h5 = unpacked < 0 ? 0 : h5_file_is_hdf5(unpacked, name, e);
	if (!h5)
		return unpacked;
	close(unpacked);
	return h5 < 0 ? -1
		      : err_set(e, EX_DATAERR,
				"%s: compressed HDF5 is not supported; decompress it",
				name);
}

/* Reads a log that is not compressed. */
static int read_contents(void *to, int fd, const char *path, struct err *e)
{
	struct log_reading *r = to;
	struct run_log *l = r->l;
	const struct log_format *f = choose_format(fd, l->name, r, e);
	if (!f)
		return -1;
	r->is_pt = is_pt_format(f);
	int h5 = r->is_pt && r->is_growing ? h5_file_is_hdf5(fd, l->name, e) : 1;
	if (r->is_pt)
		return h5 < 0 ? -1
		       : h5   ? run_log_read_file(l, fd, path, e)
			      : read_growing_pt_log(l, fd, e);
	if (r->is_stream && f->text && f->text != parse_tensorboard)
		return err_set(e, EX_USAGE,
			"%s: cannot follow a log of this format through a pipe; write the log to a "
			"file",
			l->name);
	free((char *)(uintptr_t)l->info.format);
	l->info.format = xstrdup(f->name);
	return f->text ? read_text(&r->b, f, fd, l->name, e)
		       : read_lines(&r->b, f, fd, l->name, e);
}

static int read_file(void *to, int fd, const char *path, struct err *e)
{
	const struct log_reading *r = to;
	int contents = open_uncompressed(fd, r->l->name, e);
	int rc = contents < 0 ? -1 : read_contents(to, contents, path, e);
	if (contents >= 0 && contents != fd)
		close(contents);
	return rc;
}

/* Rejects a stream of unknown binary data. *max: set to the maximum number of bytes to copy. */
static int check_stream(void *to, const struct stream *s, int64_t *max, struct err *e)
{
	bool h5 = h5_has_signature(s->first, s->n);
	(void)to;
	*max = h5 ? INT64_MAX : MAX_TEXT;
	return !h5 && !is_tensorboard((struct span){s->first, s->n}) &&
			       !is_compressed(s->first, s->n) &&
			       memchr(s->first, '\0', s->n)
		       ? reject_unknown_format(
				 NULL, s->name, (struct span){s->first, s->n}, e)
		       : 0;
}

/* Returns the name of the metric in a file of MLflow: the path after metrics/. */
static const char *metric_name(const char *path)
{
	static const char directory[] = "metrics/";
	const char *name = NULL, *slash = strrchr(path, '/');
	for (const char *p = path; (p = strstr(p, directory)); p++)
		if (p == path || p[-1] == '/')
			name = p + sizeof(directory) - 1;
	return name ? name : slash ? slash + 1 : path;
}

/* Reads a file, a directory or a stream (-) into the log r->l. A metric without a name gets its name
 * from the path. */
static int read_path(struct log_reading *r, const char *path, struct err *e)
{
	r->b.file = strcmp(path, "-") ? metric_name(path) : NULL;
	const struct seekable callbacks = {check_stream, read_file, r};
	return file_read_seekable(path, r->l->name, &callbacks, e);
}

/* ---- directories ------------------------------------------------------------------- */

static int is_event_file(const struct dirent *d)
{
	return strstr(d->d_name, "tfevents") != NULL;
}

static int is_not_hidden(const struct dirent *d)
{
	return *d->d_name != '.';
}

static bool is_directory(const char *path)
{
	return strcmp(path, "-") != 0 && file_is_directory(path);
}

/* Appends event files (depth 0), oldest first, or metrics of MLflow and its subdirectories. */
static void list_files(const char *directory, int depth, struct strs *paths)
{
	enum { MAX_DEPTH = 8 };
	struct dirent **d;
	int n = scandir(directory, &d, depth ? is_not_hidden : is_event_file, alphasort);
	for (int i = 0; i < n; i++) {
		scoped_ptr char *file = text_printf("%s/%s", directory, d[i]->d_name);
		if (!depth || !is_directory(file))
			strs_add(paths, file);
		else if (depth < MAX_DEPTH)
			list_files(file, depth + 1, paths);
		free(d[i]);
	}
	if (n >= 0)
		free(d);
}

/* Lists the log files of a directory that is not a run of pt-train; returns their format. */
static const char *list_directory(const char *path, struct strs *files)
{
	scoped_str state = {0};
	const char *format = "tensorboard";
	scoped_ptr char *metrics = text_printf("%s/metrics", path);
	str_printf(&state, "%s/trainer_state.json", path);
	list_files(path, 0, files);
	if (!files->n && is_directory(metrics)) {
		format = "mlflow";
		list_files(metrics, 1, files);
	} else if (!files->n && !access(state.s, F_OK)) {
		format = "trainer-state";
		strs_add(files, state.s);
	}
	return format;
}

/* Reads all files of a directory of logs as one log, of the format that its files show. */
static int read_directory(struct log_reading *r, const char *path, struct err *e)
{
	scoped_strs files = {0};
	int rc = 0;
	r->format = format_find(r->b.opts->formats, list_directory(path, &files));
	for (int64_t i = 0; i < files.n && !rc; i++)
		rc = read_path(r, files.v[i], e);
	return rc;
}

/* Returns a hash of a file's size, inode and time, which changes with the file; 0:
 * missing or empty. */
static uint64_t file_state(const char *path)
{
	struct stat st;
	if (stat(path, &st) || !st.st_size)
		return 0;
	uint64_t time = hash_mix(
		(uint64_t)st.st_mtim.tv_sec ^ hash_mix((uint64_t)st.st_mtim.tv_nsec));
	return hash_mix((uint64_t)st.st_size ^ hash_mix((uint64_t)st.st_ino ^ time)) | 1;
}

uint64_t log_state(const char *path)
{
	scoped_strs files = {0};
	uint64_t state = 0;
	if (!is_directory(path))
		return file_state(path);
	list_directory(path, &files);
	for (int64_t i = 0; i < files.n; i++) {
		uint64_t hash = file_state(files.v[i]);
		state = hash ? hash_mix(state ^ hash) | 1 : state;
	}
	return state;
}

/* Returns RUN of PATH#RUN, a run in a table of several runs; NULL: an ordinary path. */
static const char *find_run_in_path(const char *path)
{
	bool is_path = !access(path, F_OK);
	for (const char *hash = path; !is_path && (hash = strchr(hash, '#')); hash++) {
		scoped_str file = {0};
		str_add(&file, path, (size_t)(hash - path));
		bool is_file = file.len && !access(file.s, F_OK);
		if (is_file)
			return hash + 1;
	}
	return NULL;
}

/* Appends the runs of a TensorBoard directory, which has a subdirectory per run. */
static void list_directory_runs(const char *path, struct strs *names)
{
	struct dirent **d;
	struct strs files = {0};
	/* (a run of pt-train may have a directory of event files) */
	struct str run_file = {0};
	str_printf(&run_file, "%s/run.h5", path);
	list_directory(path, &files);
	bool is_run = files.n || !access(run_file.s, F_OK);
	int n = is_run ? 0 : scandir(path, &d, is_not_hidden, alphasort);
	for (int i = 0; i < n; i++) {
		scoped_ptr char *run = text_printf("%s/%s", path, d[i]->d_name);
		if (is_directory(run))
			list_files(run, 0, &files);
		if (files.n)
			strs_add(names, run);
		strs_free(&files);
		free(d[i]);
	}
	if (n > 0)
		free(d);
	strs_free(&files);
	str_free(&run_file);
}

int log_list_runs(const char *path, struct strs *names, struct err *e)
{
	int64_t n_before = names->n;
	if (is_directory(path))
		list_directory_runs(path, names);
	if (names->n > n_before)
		return 0;
	char header[1 << 16];
	scoped_strs runs = {0};
	struct stat st;
	int fd = stat(path, &st) || !S_ISREG(st.st_mode)
			 ? -1
			 : open(path, O_RDONLY | O_CLOEXEC);
	int file = fd;
	fd = file < 0 ? -1 : open_uncompressed(file, path, e);
	int64_t n = file < 0 ? 0
		    : fd < 0 ? -1
			     : file_read_first(fd, path, header, sizeof(header), e);
	const char *end = n > 0 ? memchr(header, '\n', (size_t)n) : NULL;
	struct span line = {header, end ? (size_t)(end - header) : 0};
	int rc = n < 0 || (end && list_row_runs(fd, path, line, &runs, e)) ? -1 : 0;
	if (!rc && end && !runs.n)
		csv_list_runs(line, &runs);
	if (fd >= 0 && fd != file)
		close(fd);
	if (file >= 0)
		close(file);
	for (int64_t i = 0; i < runs.n && runs.n > 1 && !rc; i++) {
		scoped_ptr char *name = text_printf("%s#%s", path, runs.v[i]);
		strs_add(names, name);
	}
	if (runs.n < 2)
		strs_add(names, path);
	return rc;
}

/* Reads a file or directory into r->l. Returns -1 with *e set, and r->l freed. */
static int parse_log(struct log_reading *r, const char *path,
	const struct log_options *opts, struct err *e)
{
	build_init(&r->b, opts);
	r->b.is_growing = r->is_growing;
	r->format = opts->format ? format_find(opts->formats, opts->format) : NULL;
	scoped_str file = {0};
	r->b.table.run = find_run_in_path(path);
	str_add(&file, path,
		r->b.table.run ? (size_t)(r->b.table.run - path) - 1 : strlen(path));
	int rc = is_directory(file.s) ? read_directory(r, file.s, e)
				      : read_path(r, file.s, e);
	if (!rc && !r->is_pt)
		rc = build_finish(&r->b, r->l, e);
	build_release(&r->b);
	if (rc)
		run_log_free(r->l);
	return rc ? -1 : 0;
}

/* Reads a run of pt. Returns -1 with *e set; explains directories of W&B. */
static int read_pt_run(struct run_log *l, const char *path, struct err *e)
{
	scoped_ptr char *h5 = text_printf("%s/run.h5", path);
	*l = (struct run_log){0};
	return !file_exists(h5) && reject_wandb_directory(path, e)
		       ? -1
		       : run_log_read(l, path, e);
}

int log_read(struct run_log *l, const char *path, const struct log_options *opts,
	struct err *e)
{
	bool is_stdin = !strcmp(path, "-");
	if (is_directory(path) && !log_state(path))
		return read_pt_run(l, path, e);
	*l = (struct run_log){.name = xstrdup(is_stdin ? "standard input" : path)};
	return parse_log(&(struct log_reading){.l = l}, path, opts, e);
}

int log_read_growing(struct run_log *l, const char *path, const struct log_options *opts,
	bool is_stream, struct err *e)
{
	struct run_log current = {.name = xstrdup(l->name)};
	struct log_reading r = {
		.l = &current, .is_growing = true, .is_stream = is_stream};
	struct err why = {0};
	if (parse_log(&r, path, opts, &why)) {
		bool is_final = r.is_pt || why.code == EX_USAGE;
		if (is_final)
			*e = why;
		return is_final ? -1 : 1;
	}
	current.brief = l->brief;
	l->brief = NULL;
	run_log_free(l);
	*l = current;
	return 0;
}

/* Returns true for a file that threads can read: not HDF5, whose library is not thread-safe, and
 * not a stream, which is first copied to a temporary file. */
static bool is_text_file(const char *path)
{
	struct stat st;
	struct err e;
	if (!strcmp(path, "-") || stat(path, &st) || !S_ISREG(st.st_mode))
		return false;
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	bool is_text = fd >= 0 && h5_file_is_hdf5(fd, path, &e) == 0;
	if (fd >= 0)
		close(fd);
	return is_text;
}

int log_read_all(struct run_log *l, const char *const *paths, int n,
	const struct log_options *opts, struct err *e)
{
	scoped_ptr struct err *why = xcalloc((size_t)n, sizeof(*why));
	int rc = 0;
	memset(l, 0, (size_t)n * sizeof(*l));
#pragma omp parallel for schedule(dynamic) num_threads(READERS)
	for (int i = 0; i < n; i++)
		if (is_text_file(paths[i]))
			log_read(&l[i], paths[i], opts, &why[i]);
	for (int i = 0; i < n && !rc; i++) {
		if (!l[i].name && !why[i].code)
			log_read(&l[i], paths[i], opts, &why[i]);
		rc = why[i].code ? -1 : 0;
		if (rc)
			*e = why[i];
	}
	return rc;
}
