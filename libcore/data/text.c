/* Sources of text: mapped files, and streams spooled to a temporary file. */
#include "base/file.h"
#include "data/data.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* Maps the file from byte `begin`. */
static int map_text(struct text *t, int fd, off_t begin, struct err *e)
{
	struct stat st;
	if (fstat(fd, &st))
		return err_set(e, EX_IOERR, "%s: %s", t->name, strerror(errno));
	if (begin >= st.st_size)
		return 0;
	if (map_open(&t->map, fd, (size_t)st.st_size, t->name, e))
		return -1;
	madvise(t->map.p, t->map.n_bytes, MADV_SEQUENTIAL);
	t->p = t->map.p + begin;
	t->n_bytes = st.st_size - begin;
	return 0;
}

/* A stream may be larger than memory, so it is copied to a file. */
static int open_stream(struct text *t, int from, struct err *e)
{
	char kept[4096];
	int fd = file_spool(from, t->name, kept, e);
	if (fd < 0)
		return -1;
	cleanup_remove(kept);
	int rc = map_text(t, fd, 0, e);
	close(fd);
	return rc;
}

int text_open(struct text *t, const char *path, struct err *e)
{
	struct stat st;
	bool is_stdin = !strcmp(path, "-");
	*t = (struct text){.name = is_stdin ? "standard input" : path};
	int fd = is_stdin ? dup(STDIN_FILENO) : open(path, O_RDONLY | O_CLOEXEC);
	int rc;
	if (fd < 0 || fstat(fd, &st))
		rc = err_set(e, EX_IOERR, "%s: %s", t->name, strerror(errno));
	else if (S_ISDIR(st.st_mode))
		rc = err_set(e, EX_IOERR, "%s: is a directory", t->name);
	else if (S_ISREG(st.st_mode))
		rc = map_text(t, fd, lseek(fd, 0, SEEK_CUR), e);
	else
		rc = open_stream(t, fd, e);
	if (fd >= 0 && is_stdin) /* as after reading it */
		lseek(fd, 0, SEEK_END);
	if (fd >= 0)
		close(fd);
	return rc;
}

void text_passed(const struct text *t, int64_t at)
{
	if (!t->p)
		return;
	int64_t page = sysconf(_SC_PAGESIZE), end = t->p - t->map.p + at;
	madvise(t->map.p, (size_t)(end / page * page), MADV_DONTNEED);
}

void text_close(struct text *t)
{
	map_close(&t->map);
	*t = (struct text){0};
}
