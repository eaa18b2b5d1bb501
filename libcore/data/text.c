/* Sources of text: mapped files, and streams spooled to a temporary file. */
#include "data/data.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* A pipe may carry more than memory holds. */
static int spool(const char *name, int from, struct err *e)
{
	char path[4096];
	int fd = file_temporary(path, e);
	if (fd >= 0)
		file_remove(path);
	if (fd >= 0 && copy_all(from, fd)) {
		err_set(e, EX_IOERR, "%s, kept in a file in %s: %s", name,
			file_temporary_folder(), strerror(errno));
		close(fd);
		return -1;
	}
	return fd;
}

int text_open(struct text *t, const char *path, struct err *e)
{
	struct stat st;
	bool is_stdin = !strcmp(path, "-");
	*t = (struct text){.name = is_stdin ? "standard input" : path, .fd = -1};
	int fd = is_stdin ? dup(STDIN_FILENO) : open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0 || fstat(fd, &st)) {
		err_set(e, EX_IOERR, "%s: %s", t->name, strerror(errno));
		close(fd);
		return -1;
	}
	if (!S_ISREG(st.st_mode)) {
		int spooled = S_ISDIR(st.st_mode) ? err_set(e, EX_IOERR,
							    "%s: is a directory", t->name)
						  : spool(t->name, fd, e);
		close(fd);
		fd = spooled;
		if (fd < 0 || fstat(fd, &st))
			return -1;
	}
	t->fd = fd;
	t->n_bytes = st.st_size;
	if (!t->n_bytes)
		return 0;
	void *p = mmap(NULL, (size_t)t->n_bytes, PROT_READ, MAP_PRIVATE, fd, 0);
	if (p == MAP_FAILED) {
		err_set(e, EX_IOERR, "%s: %s", t->name, strerror(errno));
		close(fd);
		return -1;
	}
	madvise(p, (size_t)t->n_bytes, MADV_SEQUENTIAL);
	t->p = p;
	return 0;
}

void text_passed(const struct text *t, int64_t at)
{
	int64_t page = sysconf(_SC_PAGESIZE);
	if (t->p)
		madvise((void *)t->p, (size_t)(at / page * page), MADV_DONTNEED);
}

void text_close(struct text *t)
{
	if (t->p)
		munmap((void *)t->p, (size_t)t->n_bytes);
	if (t->fd >= 0)
		close(t->fd);
	*t = (struct text){.fd = -1};
}
