/* Event files of TensorBoard (--tensorboard): each row of the log is a record, written at once. */
#include "train/train_internal.h"

#include "base/file.h"
#include "run/tfevents.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

/* Returns the time for the name of a new file: later than all others even if a clock went back,
 * since readers order files by it. *has_files: the directory has event files. */
static long long choose_name_time(const char *dir, bool *has_files)
{
	long long last = (long long)clock_wall();
	scoped_dir *d = opendir(dir);
	*has_files = false;
	for (struct dirent *f; d && (f = readdir(d));) {
		if (strncmp(f->d_name, TFEVENTS_NAME, strlen(TFEVENTS_NAME)))
			continue;
		long long time = strtoll(f->d_name + strlen(TFEVENTS_NAME), NULL, 10);
		last = time >= last && time < 9999999999 ? time + 1 : last;
		*has_files = true;
	}
	return last;
}

/* Writes the waiting records. If that fails, as on a full disk, they keep waiting, and the file
 * still ends with a whole record. Returns -1 with errno set on failure. */
static int flush_records(struct run_tensorboard *b)
{
	off_t begin = lseek(b->fd, 0, SEEK_END);
	if (b->waiting.len && write_all(b->fd, b->waiting.s, b->waiting.len)) {
		int why = errno;
		b->torn = begin < 0 || ftruncate(b->fd, begin);
		errno = why;
		return -1;
	}
	str_clear(&b->waiting);
	return 0;
}

int tensorboard_open(
	struct run *r, const struct train_opts *o, int64_t resume, struct err *e)
{
	struct run_tensorboard *b = &r->tensorboard;
	scoped_str dir = {0};
	struct str path = {0};
	bool has_files;
	if (!o->tensorboard || !run_is_first(r))
		return 0;
	str_puts(&dir, o->tensorboard);
	if (o->resolved.worker > 0)
		str_printf(&dir, "/worker-%d", o->resolved.worker);
	int rc = file_make_directory(dir.s, e);
	long long time = rc ? 0 : choose_name_time(dir.s, &has_files);
	if (!rc && has_files && resume < 0 && !o->overwrite)
		warn("%s has event files of another run, which TensorBoard will no longer show; "
		     "give each run its own directory",
			dir.s);
	str_printf(&path, "%s/" TFEVENTS_NAME "%010lld.%s.%lld", dir.s, time,
		comm_place()->host, (long long)getpid());
	if (!rc) {
		b->fd = file_open_plain(path.s, O_RDWR | O_CREAT | O_EXCL | O_APPEND);
		b->path = path.s;
		tfevents_put_begin(&b->waiting, clock_wall(), resume + 1);
		rc = b->fd < 0 || flush_records(b) ? err_errno(e, path.s) : 0;
	} else {
		str_free(&path);
	}
	return rc;
}

void tensorboard_row(struct run *r, const struct row *row)
{
	struct run_tensorboard *b = &r->tensorboard;
	struct tfevents_scalar list[N_COLUMNS];
	int n = 0;
	if (!b->path)
		return;
	/* (bytes and tokens have more digits than a float can hold) */
	for (int c = 0; c < N_COLUMNS; c++)
		if (columns[c].tag && row_has(row, c))
			list[n++] = (struct tfevents_scalar){
				columns[c].tag, row->v[c], columns[c].kind == COLUMN_INT};
	tfevents_put_row(&b->waiting, clock_wall(), (int64_t)row->v[COL_STEP], list, n);
	bool failed = b->torn || flush_records(b);
	if (failed && !b->failed)
		warn("%s: %s; training continues, and rows are kept until they can be "
		     "written",
			b->path, strerror(errno));
	else if (!failed && b->failed)
		warn("%s can be written again, and has every row", b->path);
	b->failed = failed;
}

void tensorboard_close(struct run *r)
{
	struct run_tensorboard *b = &r->tensorboard;
	if (b->path && b->fd >= 0)
		close(b->fd);
	free(b->path);
	str_free(&b->waiting);
}
