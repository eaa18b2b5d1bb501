/* Streams that must be seekable: they are copied to temporary files. */
#include "base/file.h"

#include <errno.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

int stream_read_first(struct stream *s, int fd, const char *name, struct err *e)
{
	*s = (struct stream){.fd = fd, .name = name};
	while (s->n < sizeof(s->first)) {
		ssize_t n = read_some(fd, s->first + s->n, sizeof(s->first) - s->n);
		if (n < 0)
			return err_errno(e, name);
		if (n == 0)
			break;
		s->n += (size_t)n;
	}
	return 0;
}

static int64_t spool_limit = INT64_MAX;

void file_spool_limit(int64_t n_bytes)
{
	spool_limit = n_bytes ? n_bytes : INT64_MAX;
}

/* Returns nine tenths of the free space on the file's disk. */
static int64_t usable_space(int fd)
{
	struct statvfs fs;
	if (fstatvfs(fd, &fs) || !fs.f_blocks)
		return INT64_MAX;
	return (int64_t)(0.9 * (double)fs.f_bavail * (double)fs.f_frsize);
}

int64_t file_spool_space(int fd)
{
	return min64(spool_limit, usable_space(fd));
}

int file_reject_spool(const char *name, int64_t limit, const char *why, struct err *e)
{
	char text[NUM_TEXT];
	const char *directory = file_temporary_directory();
	bool is_limit = limit == spool_limit;
	if (why)
		return err_set(e, EX_IOERR,
			"%s: cannot be copied to a temporary file in %s: %s", name,
			directory, why);
	return err_set(e, EX_IOERR,
		"%s: cannot be copied to a temporary file in %s: larger than the limit of %s "
		"(%lld bytes)%s%s",
		name, directory, text_bytes(text, (double)limit), (long long)limit,
		is_limit ? "" : ", nine tenths of the free space",
		advice_on(is_limit ? ADVICE_SPOOL_LIMIT : ADVICE_SPOOL_SPACE));
}

/* Copies a stream to a file, up to the smallest of three limits. */
static int copy_stream(const struct stream *s, int fd, int64_t max_bytes, struct err *e)
{
	int64_t limit = min64(max_bytes, file_spool_space(fd));
	int rc = (int64_t)s->n > limit ? 1 : write_all(fd, s->first, s->n);
	rc = rc ? rc : copy_up_to(s->fd, fd, limit - (int64_t)s->n);
	if (rc < 0)
		return file_reject_spool(s->name, limit, strerror(errno), e);
	if (rc > 0 && limit == max_bytes)
		return err_set(e, EX_DATAERR,
			"%s: larger than %lld bytes, the limit for such a file", s->name,
			(long long)max_bytes);
	return rc > 0 ? file_reject_spool(s->name, limit, NULL, e) : 0;
}

int file_spool(
	const struct stream *s, int64_t max_bytes, char path[static 4096], struct err *e)
{
	int copy_fd = file_temporary(path, e);
	if (copy_fd < 0)
		return err_prefix(e, "%s: ", s->name);
	if (!copy_stream(s, copy_fd, max_bytes, e))
		return copy_fd;
	cleanup_remove(path);
	close(copy_fd);
	return -1;
}

int file_copy_stream(int fd, const char *name, int64_t max_bytes, struct err *e)
{
	char path[4096];
	struct stream s;
	int out = stream_read_first(&s, fd, name, e) ? -1
						     : file_spool(&s, max_bytes, path, e);
	if (out >= 0)
		cleanup_remove(path);
	return out;
}

/* Copies a stream to a temporary file, and calls the reader with it. */
static int read_stream(
	int fd, const char *name, const struct seekable *reader, struct err *e)
{
	char path[4096];
	struct stream s;
	int64_t max_bytes;
	if (stream_read_first(&s, fd, name, e) ||
		reader->look(reader->to, &s, &max_bytes, e))
		return -1;
	int copy = file_spool(&s, max_bytes, path, e);
	if (copy < 0)
		return -1;
	int rc = lseek(copy, 0, SEEK_SET) ? err_errno(e, name)
					  : reader->read(reader->to, copy, path, e);
	cleanup_remove(path);
	close(copy);
	return rc;
}

int file_read_seekable(
	const char *path, const char *name, const struct seekable *reader, struct err *e)
{
	struct stat st;
	if (!strcmp(path, "-"))
		return read_stream(STDIN_FILENO, name, reader, e);
	int fd = file_open(path), rc;
	if (fd < 0 || fstat(fd, &st))
		rc = err_errno(e, path);
	else if (S_ISREG(st.st_mode))
		rc = reader->read(reader->to, fd, path, e);
	else
		rc = read_stream(fd, name, reader, e);
	if (fd >= 0)
		close(fd);
	return rc;
}
