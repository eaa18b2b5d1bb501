/* Sources of text: files, and streams that are copied to a temporary file. */
#include "base/file.h"
#include "data/data.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { WINDOW = 4 * TEXT_MAX_PIECE };

/* A stream may be larger than memory, so t->fd becomes a copy in a file. */
static int spool(struct text *t, struct err *e)
{
	char kept[4096];
	struct stream s;
	int fd = stream_look(&s, t->fd, t->name, e) ? -1
						    : file_spool(&s, INT64_MAX, kept, e);
	close(t->fd);
	t->fd = fd;
	t->stays_open = true;
	if (fd >= 0)
		cleanup_remove(kept);
	return fd < 0 ? -1 : 0;
}

int text_open(struct text *t, const char *path, struct err *e)
{
	struct stat st;
	bool is_stdin = !strcmp(path, "-");
	*t = (struct text){
		.name = is_stdin ? "standard input" : path, .stays_open = is_stdin};
	t->fd = is_stdin ? dup(STDIN_FILENO) : file_open(path);
	if (t->fd < 0 || fstat(t->fd, &st))
		return err_set(e, EX_IOERR, "%s: %s", t->name, strerror(errno));
	if (S_ISDIR(st.st_mode))
		return err_set(e, EX_IOERR, "%s: is a directory", t->name);
	if (S_ISREG(st.st_mode))
		t->begin = lseek(t->fd, 0, SEEK_CUR);
	else if (spool(t, e))
		return -1;
	t->n_bytes = max64(0, lseek(t->fd, 0, SEEK_END) - t->begin);
	text_rest(t);
	return 0;
}

const char *text_piece(struct text *t, int64_t at, int64_t n, struct err *e)
{
	if (at >= t->window_begin && at + n <= t->window_end)
		return t->window + (at - t->window_begin);
	BUG_ON(n > TEXT_MAX_PIECE || at + n > t->n_bytes);
	if (t->fd < 0)
		t->fd = open(t->name, O_RDONLY | O_CLOEXEC);
	if (t->fd < 0) {
		err_set(e, EX_IOERR, "%s: %s", t->name, strerror(errno));
		return NULL;
	}
	if (!t->window)
		t->window = xmalloc(WINDOW);
	t->window_begin = at;
	t->window_end = min64(t->n_bytes, at + WINDOW);
	size_t n_bytes = (size_t)(t->window_end - at);
	return file_read_at(t->fd, t->name, t->window, n_bytes, t->begin + at, e)
		       ? NULL
		       : t->window;
}

void text_rest(struct text *t)
{
	free(t->window);
	t->window = NULL;
	t->window_begin = t->window_end = 0;
	if (t->fd >= 0 && !t->stays_open) {
		close(t->fd);
		t->fd = -1;
	}
}

void text_close(struct text *t)
{
	t->stays_open = false;
	text_rest(t);
}
