/* The targets of --log-to, and how their files are written. */
#include "train/log_files.h"

#include "base/file.h"

#include <errno.h>

static const struct log_kind *const kinds[] = {&log_tensorboard, &log_wandb};

/* Writes the waiting records. If that fails, they keep waiting, and the file still ends with a
 * whole record. Returns -1 with errno set on failure. */
static int flush_records(struct log_file *f)
{
	if (f->waiting.len && write_all(f->fd, f->waiting.s, f->waiting.len)) {
		int why = errno;
		f->torn = ftruncate(f->fd, f->n_bytes);
		errno = why;
		return -1;
	}
	f->n_bytes += (int64_t)f->waiting.len;
	str_clear(&f->waiting);
	return 0;
}

static int reject_target(const char *target, struct err *e)
{
	scoped_str known = {0};
	for (size_t i = 0; i < ARRAY_LEN(kinds); i++)
		str_printf(&known, "%s%s:DIRECTORY", i ? " or " : "", kinds[i]->name);
	return err_set(e, EX_USAGE, "log-to '%s': expected %s", target, known.s);
}

static int open_file(struct log_file *f, const char *target, int worker,
	struct log_start s, struct err *e)
{
	const char *colon = strchr(target, ':');
	size_t n = colon ? (size_t)(colon - target) : 0;
	scoped_str dir = {0};
	for (size_t i = 0; i < ARRAY_LEN(kinds); i++)
		if (n == strlen(kinds[i]->name) && !strncmp(kinds[i]->name, target, n))
			f->kind = kinds[i];
	if (!f->kind || !colon[1])
		return reject_target(target, e);
	str_puts(&dir, colon + 1);
	if (worker > 0)
		str_printf(&dir, "/worker-%d", worker);
	s.dir = dir.s;
	f->started = clock_wall();
	if (file_make_directory(dir.s, e) || f->kind->open(f, &s, e))
		return -1;
	return flush_records(f) ? err_errno(e, f->path) : 0;
}

int log_files_open(struct log_files *l, const struct strs *targets, int worker,
	struct log_start s, struct err *e)
{
	l->v = xcalloc((size_t)targets->n + 1, sizeof(*l->v));
	for (int64_t i = 0; i < targets->n; i++) {
		l->v[l->n].fd = -1;
		if (open_file(&l->v[l->n++], targets->v[i], worker, s, e))
			return -1;
	}
	return 0;
}

static void write_records(struct log_file *f)
{
	bool failed = f->torn || flush_records(f);
	if (failed && !f->failed)
		warn("%s: %s; training continues, and rows are kept until they can be "
		     "written",
			f->path, strerror(errno));
	else if (!failed && f->failed)
		warn("%s can be written again, and has every row", f->path);
	f->failed = failed;
}

void log_files_write(struct log_files *l, const struct row *row)
{
	for (int64_t i = 0; i < l->n; i++) {
		l->v[i].kind->append_row(&l->v[i], row);
		write_records(&l->v[i]);
	}
}

void log_files_end(struct log_files *l, int code)
{
	for (int64_t i = 0; i < l->n; i++) {
		if (l->v[i].kind->append_end)
			l->v[i].kind->append_end(&l->v[i], code);
		write_records(&l->v[i]);
	}
}

bool log_files_failed(const struct log_files *l)
{
	bool failed = false;
	for (int64_t i = 0; i < l->n; i++)
		failed = failed || l->v[i].failed;
	return failed;
}

void log_files_close(struct log_files *l)
{
	for (int64_t i = 0; i < l->n; i++) {
		if (l->v[i].fd >= 0)
			close(l->v[i].fd);
		free(l->v[i].path);
		str_free(&l->v[i].waiting);
	}
	free(l->v);
	*l = (struct log_files){0};
}
