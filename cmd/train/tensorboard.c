/* Event files of TensorBoard. */
#include "train/log_files.h"

#include "base/file.h"
#include "run/tfevents.h"

#include <fcntl.h>

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

static int open_events(struct log_file *f, const struct log_start *s, struct err *e)
{
	bool has_files;
	long long time = choose_name_time(s->dir, &has_files);
	if (has_files && s->resume < 0 && !s->overwrite)
		warn("%s has event files of another run, which TensorBoard will no longer show; "
		     "give each run its own directory",
			s->dir);
	f->path = text_printf("%s/" TFEVENTS_NAME "%010lld.%s.%lld", s->dir, time,
		s->host, (long long)getpid());
	f->fd = file_open_plain(f->path, O_RDWR | O_CREAT | O_EXCL | O_APPEND);
	tfevents_put_begin(&f->waiting, f->started, s->resume + 1);
	return f->fd < 0 ? err_errno(e, f->path) : 0;
}

static void append_row(struct log_file *f, const struct row *row)
{
	struct tfevents_scalar list[N_COLUMNS];
	int n = 0;
	/* (bytes and tokens have more digits than a float can hold) */
	for (int c = 0; c < N_COLUMNS; c++)
		if (columns[c].tag && row_has(row, c))
			list[n++] = (struct tfevents_scalar){
				columns[c].tag, row->v[c], columns[c].kind == COLUMN_INT};
	tfevents_put_row(&f->waiting, clock_wall(), (int64_t)row->v[COL_STEP], list, n);
}

const struct log_kind log_tensorboard = {
	.name = "tensorboard",
	.open = open_events,
	.append_row = append_row,
};
