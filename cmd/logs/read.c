/* Reading a log from a file, a stream, or a directory of event files. */
#include "base/file.h"
#include "logs/logs_internal.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SAMPLE = 1 << 20, MAX_TEXT = 1 << 30, READERS = 4 /* threads */ };

/* ---- files ----------------------------------------------------------------------- */

size_t whole_words(struct span line)
{
	size_t n = line.n;
	if (n && line.p[n - 1] == '}')
		return n;
	while (n && !strchr(" \t,;", line.p[n - 1]))
		n--;
	return n;
}

static int read_lines(struct build *b, const struct log_format *f, int fd,
	const char *name, struct err *e)
{
	struct line_reader r = {b, f, {0}};
	struct str rest = {0};
	int rc = file_lines(fd, name, format_line, &r, &rest, e);
	if (!rc && rest.len) {
		size_t n = whole_words((struct span){rest.s, rest.len});
		if (n < rest.len && !b->growing)
			warn("%s: the last line has no line break; its last word is "
			     "ignored, which may be incomplete",
				name);
		format_line(&r, rest.s, n, e);
	}
	str_free(&rest);
	str_free(&r.plain);
	return rc;
}

static int read_text(struct build *b, const struct log_format *f, int fd,
	const char *name, struct err *e)
{
	struct str text = {0};
	/* JSON takes many times its size in memory */
	size_t most = f->text == text_tensorboard ? MAX_TEXT : MOST_JSON;
	int rc = file_read_rest(fd, name, most, &text, e);
	if (!rc && f->text(b, (struct span){text.s, text.len}, e))
		rc = err_prefix(e, "%s: ", name);
	str_free(&text);
	return rc;
}

static int not_a_log(const char *name, struct err *e)
{
	return err_set(e, EX_DATAERR,
		"%s: neither a log of pt-train nor of another known format", name);
}

/* The format of an open file; NULL with *e set. */
static const struct log_format *format_of(
	int fd, const char *name, const char *format, struct err *e)
{
	const struct log_format *f = NULL;
	if (format) {
		f = format_find(format);
		if (!f)
			err_set(e, EX_USAGE, "%s: no such format of logs", format);
		return f;
	}
	char *sample = xmalloc(SAMPLE);
	size_t n = 0;
	for (ssize_t got = 1; got > 0 && n<SAMPLE; n += got> 0 ? (size_t)got : 0)
		got = pread(fd, sample + n, SAMPLE - n, (off_t)n);
	/* (of its exact size, so that AddressSanitizer sees a detector that reads too far) */
	sample = xrealloc(sample, n ? n : 1);
	f = format_detect((struct span){sample, n});
	free(sample);
	if (!f)
		not_a_log(name, e);
	return f;
}

struct reading {
	struct run_log *l;
	struct build *b;
	const char *format;
};

static int read_file(void *to, int fd, const char *path, struct err *e)
{
	const struct reading *r = to;
	struct run_log *l = r->l;
	const struct log_format *f = format_of(fd, l->name, r->format, e);
	if (!f)
		return -1;
	if (format_is_pt(f))
		return run_log_read_file(l, fd, path, e);
	free((char *)(uintptr_t)l->info.format);
	l->info.format = xstrdup(f->name);
	return f->text ? read_text(r->b, f, fd, l->name, e)
		       : read_lines(r->b, f, fd, l->name, e);
}

static int look(void *to, const struct stream *s, int64_t *most, struct err *e)
{
	bool h5 = h5_begins(s->first, s->n);
	(void)to;
	*most = h5 ? INT64_MAX : MAX_TEXT;
	return !h5 && !is_tensorboard((struct span){s->first, s->n}) &&
			       memchr(s->first, '\0', s->n)
		       ? not_a_log(s->name, e)
		       : 0;
}

static int read_path(struct run_log *l, struct build *b, const char *path,
	const char *format, struct err *e)
{
	struct reading r = {l, b, format};
	return file_read_seekable(
		path, l->name, &(struct seekable){look, read_file, &r}, e);
}

/* ---- directories ------------------------------------------------------------------- */

static int is_event_file(const struct dirent *d)
{
	return strstr(d->d_name, "tfevents") != NULL;
}

void list_event_files(const char *folder, struct strs *paths)
{
	struct dirent **d;
	int n = scandir(folder, &d, is_event_file, alphasort);
	for (int i = 0; i < n; i++) {
		struct str file = {0};
		str_printf(&file, "%s/%s", folder, d[i]->d_name);
		strs_add(paths, file.s);
		str_free(&file);
		free(d[i]);
	}
	if (n >= 0)
		free(d);
}

static int read_events(
	struct run_log *l, struct build *b, const char *path, struct err *e)
{
	struct strs files = {0};
	int rc = 0;
	list_event_files(path, &files);
	for (int64_t i = 0; i < files.n && !rc; i++)
		rc = read_path(l, b, files.v[i], "tensorboard", e);
	strs_free(&files);
	return rc;
}

int64_t log_event_bytes(const char *path)
{
	struct strs files = {0};
	struct stat st;
	int64_t n_bytes = 0;
	list_event_files(path, &files);
	for (int64_t i = 0; i < files.n; i++)
		n_bytes += stat(files.v[i], &st) ? 0 : st.st_size;
	strs_free(&files);
	return n_bytes;
}

static int read_log(struct run_log *l, const char *path, const char *format, bool growing,
	struct err *e)
{
	struct build b;
	struct stat st;
	bool is_stdin = !strcmp(path, "-");
	bool folder = !is_stdin && !stat(path, &st) && S_ISDIR(st.st_mode);
	if (format && !strcmp(format, log_format_names[0]))
		format = NULL;
	if (folder && !log_event_bytes(path))
		return run_log_read(l, path, e);
	*l = (struct run_log){.name = xstrdup(is_stdin ? "standard input" : path)};
	build_begin(&b);
	b.growing = growing;
	int rc = folder ? read_events(l, &b, path, e) : read_path(l, &b, path, format, e);
	if (!rc && !l->n_rows)
		rc = build_finish(&b, l, e);
	build_free(&b);
	if (rc)
		run_log_free(l);
	return rc ? -1 : 0;
}

int log_read(struct run_log *l, const char *path, const char *format, struct err *e)
{
	return read_log(l, path, format, false, e);
}

/* A text, in contrast to HDF5, whose library is not thread-safe, and to streams, which are copied to a
 * temporary file first. */
static bool is_text_file(const char *path)
{
	char first[8];
	struct stat st;
	if (!strcmp(path, "-") || stat(path, &st) || !S_ISREG(st.st_mode))
		return false;
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	bool text = fd >= 0 && !pread_all(fd, first, sizeof(first), 0) &&
		    !h5_begins(first, sizeof(first));
	if (fd >= 0)
		close(fd);
	return text;
}

int log_read_all(struct run_log *l, const char *const *paths, int n, const char *format,
	struct err *e)
{
	struct err *why = xcalloc((size_t)n, sizeof(*why));
	int rc = 0;
	memset(l, 0, (size_t)n * sizeof(*l));
#pragma omp parallel for schedule(dynamic) num_threads(READERS)
	for (int i = 0; i < n; i++)
		if (is_text_file(paths[i]))
			log_read(&l[i], paths[i], format, &why[i]);
	for (int i = 0; i < n && !rc; i++) {
		if (!l[i].name && !why[i].code)
			log_read(&l[i], paths[i], format, &why[i]);
		rc = why[i].code ? -1 : 0;
		if (rc)
			*e = why[i];
	}
	free(why);
	return rc;
}

int log_read_growing(
	struct run_log *l, const char *path, const char *format, struct err *e)
{
	return read_log(l, path, format, true, e);
}
