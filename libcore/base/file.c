/* Reading whole files, writing whole buffers, and files that survive a crash. */
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <linux/magic.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>

int err_errno(struct err *e, const char *name)
{
	return err_set(e, EX_IOERR, "%s: %s", name, strerror(errno));
}

int write_all(int fd, const void *p, size_t n_bytes)
{
	const char *next = p;
	while (n_bytes) {
		ssize_t n = write(fd, next, n_bytes);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -1;
		next += n, n_bytes -= (size_t)n;
	}
	return 0;
}

int pwrite_all(int fd, const void *p, size_t n_bytes, int64_t offset)
{
	const char *next = p;
	while (n_bytes) {
		ssize_t n = pwrite(fd, next, n_bytes, offset);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -1;
		next += n, n_bytes -= (size_t)n, offset += n;
	}
	return 0;
}

int pread_all(int fd, void *p, size_t n_bytes, int64_t offset)
{
	char *next = p;
	while (n_bytes) {
		ssize_t n = pread(fd, next, n_bytes, offset);
		if (n < 0 && errno == EINTR)
			continue;
		if (n == 0)
			errno = 0;
		if (n <= 0)
			return -1;
		next += n, n_bytes -= (size_t)n, offset += n;
	}
	return 0;
}

int file_read_at(
	int fd, const char *name, void *p, size_t n_bytes, int64_t offset, struct err *e)
{
	if (!pread_all(fd, p, n_bytes, offset))
		return 0;
	if (!errno)
		return err_set(e, EX_IOERR, "%s became shorter while it was read", name);
	return err_errno(e, name);
}

int64_t file_read_first(int fd, const char *name, void *p, size_t n_bytes, struct err *e)
{
	size_t n = 0;
	while (n < n_bytes) {
		ssize_t got = pread(fd, (char *)p + n, n_bytes - n, (off_t)n);
		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0)
			return err_errno(e, name);
		if (got == 0)
			break;
		n += (size_t)got;
	}
	return (int64_t)n;
}

int64_t file_sniff(const char *path, void *p, size_t n_bytes)
{
	struct err e;
	struct stat st;
	int fd = stat(path, &st) || !S_ISREG(st.st_mode)
			 ? -1
			 : open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (fd < 0)
		return -1;
	int64_t n = file_read_first(fd, path, p, n_bytes, &e);
	close(fd);
	if (n < 0)
		die_err(&e);
	return n;
}

ssize_t read_some(int fd, void *p, size_t n_bytes)
{
	ssize_t n;
	do
		n = read(fd, p, n_bytes);
	while (n < 0 && errno == EINTR);
	return n;
}

int copy_up_to(int from_fd, int to_fd, int64_t max_bytes)
{
	enum { BUFFER = 1 << 18 };
	scoped_ptr char *buffer = xmalloc(BUFFER);
	int rc = 0;
	for (;;) {
		ssize_t n = read_some(from_fd, buffer, BUFFER);
		if (n <= 0 || n > max_bytes || write_all(to_fd, buffer, (size_t)n)) {
			rc = n == 0 ? 0 : n > max_bytes ? 1 : -1;
			break;
		}
		max_bytes -= n;
	}
	return rc;
}

int file_read_rest(
	int fd, const char *name, size_t max_bytes, struct str *out, struct err *e)
{
	char buffer[1 << 14];
	for (;;) {
		ssize_t n = read_some(fd, buffer, sizeof(buffer));
		if (n < 0)
			return err_errno(e, name);
		if (out->len + (size_t)n > max_bytes)
			return err_set(e, EX_DATAERR,
				"%s: larger than %zu bytes, the limit for such a file",
				name, max_bytes);
		str_add(out, buffer, (size_t)n);
		if (n == 0)
			return 0;
	}
}

/* Removes the complete lines of text, after on_line(); its first `searched` bytes have no break. */
static int pass_complete_lines(
	struct str *text, size_t searched, line_fn *on_line, void *context, struct err *e)
{
	size_t begin = 0;
	const char *stop;
	while ((stop = memchr(text->s + searched, '\n', text->len - searched))) {
		size_t len = (size_t)(stop - text->s) - begin;
		if (on_line(context, text->s + begin, len, e))
			return -1;
		begin = searched = begin + len + 1;
	}
	memmove(text->s, text->s + begin, text->len - begin);
	text->len -= begin;
	return 0;
}

int file_read_lines(int fd, const char *name, line_fn *on_line, void *context,
	struct str *incomplete, struct err *e)
{
	enum { BUFFER = 1 << 18, MAX_LINE = 1 << 26 };
	scoped_str text = {0};
	ssize_t n;
	int rc = 0;
	do {
		str_reserve(&text, BUFFER);
		n = read_some(fd, text.s + text.len, BUFFER);
		if (n < 0)
			rc = err_errno(e, name);
		size_t searched = text.len;
		if (n > 0) {
			text.len += (size_t)n;
			text.s[text.len] = '\0';
			rc = pass_complete_lines(&text, searched, on_line, context, e);
		}
		if (!rc && text.len > MAX_LINE)
			rc = err_set(e, EX_DATAERR, "%s: a line is longer than %d bytes",
				name, MAX_LINE);
	} while (n && !rc);
	str_add(incomplete, text.s, text.len);
	return rc;
}

/* Returns true for a FIFO in the file system. Unlike a pipe, it may not have a writer yet. */
static bool is_fifo(int fd)
{
	struct stat st;
	struct statfs fs;
	return !fstat(fd, &st) && S_ISFIFO(st.st_mode) && !fstatfs(fd, &fs) &&
	       fs.f_type != PIPEFS_MAGIC;
}

/* Waits until fd has data; -1 ms: forever. Returns 0 on a timeout. */
static int wait_for_data(int fd, int milliseconds)
{
	struct pollfd p = {.fd = fd, .events = POLLIN};
	int n;
	do
		n = poll(&p, 1, milliseconds);
	while (n < 0 && errno == EINTR);
	return n;
}

int file_open(const char *path)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (fd < 0)
		return -1;
	if (is_fifo(fd) && wait_for_data(fd, 1000) == 0) {
		info_wait("waiting for data from the FIFO %s", path);
		wait_for_data(fd, -1);
	}
	fcntl(fd, F_SETFL, 0);
	return fd;
}

bool file_is_fifo(const char *path)
{
	struct stat st;
	return !stat(path, &st) && S_ISFIFO(st.st_mode);
}

/* Tries for 1 s without blocking: open() of a FIFO without a reader sets ENXIO. Then blocks. */
int file_open_output(const char *path, int flags)
{
	enum { ATTEMPTS = 20 };
	int fd, all_flags = flags | O_WRONLY | O_CLOEXEC;
	for (int i = 0; i <= ATTEMPTS; i++) {
		fd = open(path, all_flags | O_NONBLOCK, 0666);
		if (fd >= 0)
			fcntl(fd, F_SETFL, 0);
		if (fd >= 0 || errno != ENXIO || !file_is_fifo(path))
			return fd;
		clock_sleep(0.05);
	}
	info_wait("waiting for a reader of the FIFO %s", path);
	return open(path, all_flags, 0666);
}

int file_check_regular(const char *path, struct err *e)
{
	struct stat st;
	return stat(path, &st) || S_ISREG(st.st_mode)
		       ? 0
		       : err_set(e, EX_DATAERR, "%s: not a regular file", path);
}

int file_read(const char *path, size_t max_bytes, struct str *out, struct err *e)
{
	int fd = file_open(path);
	if (fd < 0)
		return err_errno(e, path);
	int rc = file_read_rest(fd, path, max_bytes, out, e);
	close(fd);
	return rc;
}

bool file_exists(const char *path)
{
	struct stat st;
	return stat(path, &st) == 0;
}

bool file_find_near_program(struct str *out, const char *pattern)
{
	char exe[4096];
	glob_t found = {0};
	ssize_t n = readlink("/proc/self/exe", exe, sizeof(exe) - 1);
	exe[n > 0 ? n : 0] = '\0';
	char *slash = strrchr(exe, '/');
	if (!slash)
		return false;
	slash[1] = '\0';
	str_clear(out);
	for (const char *c = exe; *c; c++)
		str_printf(out, "%s%c", strchr("*?[\\", *c) ? "\\" : "", *c);
	str_puts(out, pattern);
	bool is_found = !glob(out->s, 0, NULL, &found);
	str_clear(out);
	if (is_found)
		str_puts(out, found.gl_pathv[0]);
	globfree(&found);
	return is_found;
}

int file_check_link(const char *path, struct err *e)
{
	struct stat st;
	if (lstat(path, &st) || !S_ISLNK(st.st_mode) || st.st_uid == geteuid() ||
		!st.st_uid)
		return 0;
	return err_set(e, EX_IOERR, "%s is a symbolic link made by another user (%ld)",
		path, (long)st.st_uid);
}

bool file_is_directory(const char *path)
{
	struct stat st;
	int saved = errno;
	bool is_directory = stat(path, &st) == 0 && S_ISDIR(st.st_mode);
	errno = saved;
	return is_directory;
}

int file_make_directory(const char *path, struct err *e)
{
	scoped_ptr char *copy = xstrdup(path);
	int rc = 0;
	for (char *p = copy + 1; !rc; p++) {
		char separator = *p;
		if (separator != '/' && separator != '\0')
			continue;
		*p = '\0';
		if (mkdir(copy, 0777) &&
			!(errno == EEXIST && (separator || file_is_directory(copy))))
			rc = err_set(e, EX_IOERR, "%s: %s", copy,
				errno == EEXIST ? "is not a directory" : strerror(errno));
		*p = separator;
		if (!separator)
			break;
	}
	return rc;
}

/* Returns the directory that `path` is in; the caller frees it. */
static char *directory_of(const char *path)
{
	char *directory = xstrdup(path);
	char *slash = strrchr(directory, '/');
	if (slash) {
		slash[slash == directory] = '\0';
		return directory;
	}
	free(directory);
	return xstrdup(".");
}

int file_check_space(const char *path, int64_t n_bytes, struct err *e)
{
	struct statvfs fs;
	char need[NUM_TEXT], have[NUM_TEXT];
	scoped_ptr char *directory = directory_of(path);
	int rc = statvfs(directory, &fs);
	if (rc || !fs.f_blocks)
		return 0;
	/* file systems may reserve some space for root */
	double blocks = (double)(geteuid() ? fs.f_bavail : fs.f_bfree);
	double space = blocks * (double)fs.f_frsize;
	if ((double)n_bytes <= space)
		return 0;
	return err_set(e, EX_IOERR,
		"%s: not enough disk space: needs %s (%lld bytes), but only %s (%.0f bytes) are "
		"free",
		path, text_bytes(need, (double)n_bytes), (long long)n_bytes,
		text_bytes(have, space), space);
}

int file_open_plain(const char *path, int flags)
{
	struct stat st;
	int fd = open(path, flags | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0666);
	if (fd < 0 && errno == ENXIO) /* a FIFO or a socket */
		errno = ELOOP;
	if (fd < 0)
		return fd;
	bool plain = !fstat(fd, &st) && S_ISREG(st.st_mode);
	bool writes = (flags & O_ACCMODE) != O_RDONLY;
	if (plain && !(writes && st.st_nlink > 1))
		return fd;
	close(fd);
	errno = plain ? EMLINK : ELOOP;
	return -1;
}

int file_check_plain(const char *path, struct err *e)
{
	struct stat st;
	if (lstat(path, &st) || (S_ISREG(st.st_mode) && st.st_nlink <= 1))
		return 0;
	if (S_ISREG(st.st_mode))
		return err_set(e, EX_IOERR,
			"%s has a second hard link, which would change too; replace the file "
			"by a copy",
			path);
	return err_set(e, EX_IOERR, "%s is %s, not a plain file; move it away", path,
		S_ISLNK(st.st_mode)    ? "a symbolic link"
		: S_ISDIR(st.st_mode)  ? "a directory"
		: S_ISFIFO(st.st_mode) ? "a FIFO"
		: S_ISSOCK(st.st_mode) ? "a socket"
				       : "a device");
}

/* Returns true if the open file is still at `path`: it may have been removed or replaced since. */
static bool is_still_at_path(int fd, const char *path)
{
	struct stat a, b;
	return !fstat(fd, &a) && !lstat(path, &b) && a.st_ino == b.st_ino &&
	       a.st_dev == b.st_dev;
}

int file_lock(const char *path, bool may_create, int *fd)
{
	/* the lock belongs to the open file, not to the process: other descriptors may be closed */
	enum { MAX_TRIES = 20 };
	struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
	for (int tries = 0;; tries++) {
		if (tries == MAX_TRIES) /* is_still_at_path() never holds here */
			return ENOLCK;
		*fd = file_open_plain(path, O_RDWR | (may_create ? O_CREAT : 0));
		if (*fd < 0)
			return errno;
		int error = fcntl(*fd, F_OFD_SETLK, &whole) ? errno : 0;
		if (!error && is_still_at_path(*fd, path))
			return 0;
		close(*fd);
		*fd = -1;
		if (error)
			return error == EACCES ? EAGAIN : error;
	}
}

/* ---- files that appear when they are complete -------------------------------------- */

/* Sets a random name, PATH.xxxxxxxxxxxxxxxx.tmp, where nobody can put a link in advance. Ends the
 * program without random numbers. */
static void make_temporary_name(struct str *out, const char *path)
{
	uint64_t r;
	while (getrandom(&r, sizeof(r), 0) != sizeof(r))
		if (errno != EINTR)
			die(EX_OSERR, "getrandom: %s", strerror(errno));
	str_clear(out);
	str_printf(out, "%s.%016llx.tmp", path, (unsigned long long)r);
}

size_t durable_name_length(const char *tmp)
{
	enum { DIGITS = 16 };
	size_t n = strlen(tmp), added = strlen(".") + DIGITS + strlen(".tmp");
	const char *end = tmp + n - added;
	return n > added && *end == '.' &&
			       strspn(end + 1, "0123456789abcdef") == DIGITS &&
			       !strcmp(end + 1 + DIGITS, ".tmp")
		       ? n - added
		       : 0;
}

void close_directory(DIR **d)
{
	if (*d)
		closedir(*d);
}

void durable_remove_stale(const char *path)
{
	scoped_ptr char *directory = directory_of(path);
	const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
	size_t n = strlen(name);
	scoped_str leftover = {0};
	scoped_dir *d = opendir(directory);
	for (struct dirent *f; d && (f = readdir(d));) {
		if (durable_name_length(f->d_name) != n || strncmp(f->d_name, name, n))
			continue;
		str_clear(&leftover);
		str_printf(&leftover, "%s/%s", directory, f->d_name);
		unlink(leftover.s);
	}
}

int durable_begin(struct durable *d, const char *path, struct err *e)
{
	struct str tmp = {0};
	int fd;
	do {
		make_temporary_name(&tmp, path);
		fd = cleanup_create(tmp.s, false);
	} while (fd < 0 && errno == EEXIST);
	if (fd < 0) {
		err_errno(e, path);
		str_free(&tmp);
		return -1;
	}
	close(fd);
	*d = (struct durable){.path = xstrdup(path), .tmp = tmp.s};
	return 0;
}

void durable_join(struct durable *d, const char *path, const char *tmp)
{
	*d = (struct durable){.path = xstrdup(path), .tmp = xstrdup(tmp)};
	cleanup_add(d->tmp);
}

int durable_open(const struct durable *d)
{
	return file_open_plain(d->tmp, O_RDWR);
}

void durable_forget(struct durable *d)
{
	if (d->tmp)
		cleanup_forget(d->tmp);
	free(d->path);
	free(d->tmp);
	*d = (struct durable){0};
}

void durable_abort(struct durable *d)
{
	if (d->tmp)
		unlink(d->tmp);
	durable_forget(d);
}

/* Syncs a file, and returns its descriptor, or -1. */
static int open_synced(const char *path)
{
	int fd = file_open_plain(path, O_RDONLY);
	if (fd < 0 || !fsync(fd))
		return fd;
	int saved = errno;
	close(fd);
	errno = saved;
	return -1;
}

static int open_directory_of(const char *path)
{
	char *directory = directory_of(path);
	int fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC), saved = errno;
	free(directory);
	errno = saved;
	return fd;
}

static int sync_directory_of(const char *path)
{
	int fd = open_directory_of(path);
	if (fd < 0)
		return -1;
	int rc = fsync(fd), saved = errno;
	close(fd);
	errno = saved;
	return rc;
}

int file_link(const char *target, const char *path, struct err *e)
{
	scoped_str tmp = {0};
	int rc;
	do {
		make_temporary_name(&tmp, path);
		rc = symlink(target, tmp.s);
	} while (rc && errno == EEXIST);
	bool made = !rc;
	rc = rc || rename(tmp.s, path) || sync_directory_of(path);
	if (rc)
		err_errno(e, path);
	if (rc && made)
		unlink(tmp.s);
	return rc ? -1 : 0;
}

/* Renames a file unless the new name exists. Where the file system lacks RENAME_NOREPLACE,
 * creates an empty file first, which fails if the name exists. */
static int rename_new(const struct durable *d)
{
	int rc = renameat2(AT_FDCWD, d->tmp, AT_FDCWD, d->path, RENAME_NOREPLACE);
	if (!rc || (errno != EINVAL && errno != ENOSYS))
		return rc;
	int fd = open(d->path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
	if (fd < 0)
		return -1;
	close(fd);
	rc = rename(d->tmp, d->path);
	if (rc) {
		int saved = errno;
		unlink(d->path);
		errno = saved;
	}
	return rc;
}

/* Renames a complete file to its final name. If the directory cannot be synced, removes a file
 * that is new. A file that replaced another one stays, since the old one is lost. */
static int commit_file(const struct durable *d, struct err *e)
{
	bool replaces = !d->keeps && file_exists(d->path);
	int directory = open_directory_of(d->path);
	int fd = directory < 0 ? -1 : open_synced(d->tmp);
	bool renamed = fd >= 0 && !(d->keeps ? rename_new(d) : rename(d->tmp, d->path));
	int why = renamed && !fsync(directory) ? 0 : errno;
	if (why && !renamed)
		unlink(d->tmp);
	else if (why && !replaces && is_still_at_path(fd, d->path))
		unlink(d->path);
	if (fd >= 0)
		close(fd); /* nothing was written through it */
	if (directory >= 0)
		close(directory);
	return !why ? 0
		    : err_set(e, EX_IOERR, "%s: %s%s", d->path,
			      why == EEXIST ? "another program has just created this file"
					    : strerror(why),
			      renamed && replaces
				      ? " while syncing its directory; the new file is in place"
				      : "");
}

int durable_commit(struct durable *d, struct err *e)
{
	int rc = commit_file(d, e);
	durable_forget(d);
	return rc;
}

int durable_commit_all(struct durable *const *d, int64_t n, struct err *e)
{
	int fd = open_directory_of(n ? d[0]->path : ""), rc = 0;
	int64_t done = 0;
	for (int64_t i = 0; i < n; i++) { /* slow, so without the lock */
		int synced = open_synced(d[i]->tmp);
		if (synced >= 0)
			close(synced);
	}
	if (fd >= 0)
		flock(fd, LOCK_EX); /* goes on if locks are not supported */
	while (done < n && !(rc = commit_file(d[done], e)))
		done++;
	for (int64_t i = 0; i < done; i++) {
		if (rc && d[i]->keeps) /* the set is incomplete, and the file is new */
			unlink(d[i]->path);
		durable_forget(d[i]);
	}
	if (fd >= 0)
		close(fd);
	return rc;
}

int file_begin(const char *path, struct err *e)
{
	int fd = file_open_output(path, O_CREAT | O_TRUNC);
	return fd < 0 ? err_errno(e, path) : fd;
}

int file_close(int fd, const char *name, int rc, struct err *e)
{
	int error = rc ? errno : 0;
	if (close(fd) && !rc)
		rc = -1, error = errno;
	return rc ? err_set(e, EX_IOERR, "%s: %s", name, strerror(error)) : 0;
}

int file_end(int fd, const char *path, int rc, struct err *e)
{
	struct stat st;
	int saved = errno;
	bool regular = !fstat(fd, &st) && S_ISREG(st.st_mode);
	errno = saved;
	rc = file_close(fd, path, rc, e);
	if (rc && regular)
		unlink(path);
	return rc;
}

int durable_write_text(const struct durable *d, const struct str *text, struct err *e)
{
	int fd = durable_open(d);
	if (fd < 0)
		return err_errno(e, d->path);
	return file_close(fd, d->path, write_all(fd, text->s, text->len), e);
}

int file_replace(const char *path, const struct str *text, struct err *e)
{
	struct durable d;
	if (durable_begin(&d, path, e))
		return -1;
	if (!durable_write_text(&d, text, e))
		return durable_commit(&d, e);
	durable_abort(&d);
	return -1;
}
