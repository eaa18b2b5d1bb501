/* Reading files whole, writing all of a buffer, and files that survive a crash. */
#include "base/base.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int write_all(int fd, const void *p, size_t n_bytes)
{
	const char *at = p;
	while (n_bytes) {
		ssize_t n = write(fd, at, n_bytes);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -1;
		at += n, n_bytes -= (size_t)n;
	}
	return 0;
}

int pwrite_all(int fd, const void *p, size_t n_bytes, int64_t at)
{
	const char *from = p;
	while (n_bytes) {
		ssize_t n = pwrite(fd, from, n_bytes, at);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -1;
		from += n, n_bytes -= (size_t)n, at += n;
	}
	return 0;
}

int pread_all(int fd, void *p, size_t n_bytes, int64_t at)
{
	char *to = p;
	while (n_bytes) {
		ssize_t n = pread(fd, to, n_bytes, at);
		if (n < 0 && errno == EINTR)
			continue;
		if (n == 0)
			errno = 0;
		if (n <= 0)
			return -1;
		to += n, n_bytes -= (size_t)n, at += n;
	}
	return 0;
}

int copy_all(int from, int to)
{
	enum { PIECE = 1 << 18 };
	char *piece = xmalloc(PIECE);
	int rc = 0;
	for (;;) {
		ssize_t n = read(from, piece, PIECE);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0 || write_all(to, piece, (size_t)n)) {
			rc = n == 0 ? 0 : -1;
			break;
		}
	}
	free(piece);
	return rc;
}

int file_read(const char *path, size_t max_bytes, struct str *out, struct err *e)
{
	char piece[1 << 14];
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return err_set(e, EX_IOERR, "%s: %s", path, strerror(errno));
	for (;;) {
		ssize_t n = read(fd, piece, sizeof(piece));
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			err_set(e, EX_IOERR, "%s: %s", path, strerror(errno));
		else if (n > 0 && out->len + (size_t)n > max_bytes)
			err_set(e, EX_DATAERR,
				"%s: larger than the %zu bytes such a file may have",
				path, max_bytes);
		else if (n > 0) {
			str_add(out, piece, (size_t)n);
			continue;
		}
		close(fd);
		if (n == 0)
			str_add(out, "", 0);
		return n == 0 ? 0 : -1;
	}
}

bool file_exists(const char *path)
{
	struct stat st;
	return stat(path, &st) == 0;
}

int file_make_folder(const char *path, struct err *e)
{
	char *copy = xstrdup(path);
	int rc = 0;
	for (char *p = copy + 1; !rc; p++) {
		char was = *p;
		if (was != '/' && was != '\0')
			continue;
		*p = '\0';
		if (mkdir(copy, 0777) && errno != EEXIST)
			rc = err_set(e, EX_IOERR, "%s: %s", copy, strerror(errno));
		*p = was;
		if (!was)
			break;
	}
	free(copy);
	return rc;
}

/* ---- files that must not outlive the program --------------------------------------- */

/* Used again, but never freed: a signal may come at any time, in any thread. */
struct doomed {
	struct doomed *next;
	volatile sig_atomic_t armed;
	char path[];
};

static struct doomed *doomed;
static pid_t doomed_by; /* a child has no say in its parent's files */

/* Calls only what a signal handler may. */
static void remove_doomed(void)
{
	if (getpid() != doomed_by)
		return;
	struct doomed *f = __atomic_load_n(&doomed, __ATOMIC_ACQUIRE);
	for (; f; f = f->next)
		if (f->armed)
			unlink(f->path);
}

static void on_end(int sig)
{
	remove_doomed();
	signal(sig, SIG_DFL);
	raise(sig);
}

static void watch_ends(void)
{
	static const int ends[] = {SIGHUP, SIGINT, SIGQUIT, SIGPIPE, SIGTERM, SIGALRM,
		SIGUSR1, SIGUSR2, SIGXCPU, SIGXFSZ, SIGBUS};
	struct sigaction a = {.sa_handler = on_end}, old;
	sigemptyset(&a.sa_mask);
	for (size_t i = 0; i < ARRAY_LEN(ends); i++)
		if (!sigaction(ends[i], NULL, &old) && old.sa_handler == SIG_DFL)
			sigaction(ends[i], &a, NULL);
	atexit(remove_doomed);
	doomed_by = getpid();
}

static struct doomed *find_doomed(const char *path)
{
	struct doomed *f = doomed;
	while (f && strcmp(f->path, path))
		f = f->next;
	return f;
}

void file_doom(const char *path)
{
	struct doomed *f = find_doomed(path);
	if (!doomed)
		watch_ends();
	if (f) {
		f->armed = 1;
		return;
	}
	size_t n = strlen(path) + 1;
	f = xmalloc(sizeof(*f) + n);
	memcpy(f->path, path, n);
	f->armed = 1;
	f->next = doomed;
	__atomic_store_n(&doomed, f, __ATOMIC_RELEASE);
}

void file_spare(const char *path)
{
	struct doomed *f = find_doomed(path);
	if (f)
		f->armed = 0;
}

void file_remove(const char *path)
{
	unlink(path);
	file_spare(path);
}

/* Makes a file that is doomed from its first moment: -1 when there is one already. */
static int make_doomed(char *path, bool template)
{
	sigset_t all, old;
	sigfillset(&all);
	sigprocmask(SIG_BLOCK, &all, &old);
	int fd = template ? mkostemp(path, O_CLOEXEC)
			  : open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
	int saved = errno;
	if (fd >= 0)
		file_doom(path);
	sigprocmask(SIG_SETMASK, &old, NULL);
	errno = saved;
	return fd;
}

const char *file_temporary_folder(void)
{
	const char *tmp = getenv("TMPDIR");
	return tmp && *tmp ? tmp : "/tmp";
}

int file_temporary(char path[static 4096], struct err *e)
{
	const char *folder = file_temporary_folder();
	snprintf(path, 4096, "%s/pt-XXXXXX", folder);
	int fd = make_doomed(path, true);
	if (fd < 0)
		return err_set(e, EX_IOERR, "a temporary file in %s: %s", folder,
			strerror(errno));
	return fd;
}

/* ---- files that appear when they are complete -------------------------------------- */

void durable_begin(struct durable *d, const char *path)
{
	struct str tmp = {0};
	str_printf(&tmp, "%s.tmp", path);
	*d = (struct durable){.path = xstrdup(path), .tmp = tmp.s};
	file_doom(d->tmp);
}

int durable_begin_own(struct durable *d, const char *path, struct err *e)
{
	uint64_t r = hash_mix((uint64_t)getpid() << 40 ^ (uint64_t)(clock_wall() * 1e6));
	struct str tmp = {0};
	int fd;
	do {
		str_clear(&tmp);
		r = hash_mix(r);
		str_printf(&tmp, "%s.%06llx.tmp", path, (unsigned long long)(r >> 40));
		fd = make_doomed(tmp.s, false);
	} while (fd < 0 && errno == EEXIST);
	if (fd < 0) {
		err_set(e, EX_IOERR, "%s: %s", path, strerror(errno));
		str_free(&tmp);
		return -1;
	}
	close(fd);
	*d = (struct durable){.path = xstrdup(path), .tmp = tmp.s};
	return 0;
}

void durable_forget(struct durable *d)
{
	if (d->tmp)
		file_spare(d->tmp);
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

static int sync_path(const char *path, int flags)
{
	int fd = open(path, flags | O_CLOEXEC);
	if (fd < 0)
		return -1;
	int rc = fsync(fd);
	int saved = errno;
	close(fd);
	errno = saved;
	return rc;
}

static int sync_folder_of(const char *path)
{
	char *folder = xstrdup(path);
	char *slash = strrchr(folder, '/');
	if (slash)
		slash[slash == folder] = '\0';
	int rc = sync_path(slash ? folder : ".", O_RDONLY | O_DIRECTORY);
	free(folder);
	return rc;
}

int file_link(const char *target, const char *path, struct err *e)
{
	struct str tmp = {0};
	str_printf(&tmp, "%s.tmp", path);
	unlink(tmp.s);
	int rc = symlink(target, tmp.s) || rename(tmp.s, path) || sync_folder_of(path);
	if (rc)
		err_set(e, EX_IOERR, "%s: %s", path, strerror(errno));
	str_free(&tmp);
	return rc ? -1 : 0;
}

int durable_commit(struct durable *d, struct err *e)
{
	int rc = sync_path(d->tmp, O_RDONLY) || rename(d->tmp, d->path) ||
		 sync_folder_of(d->path);
	if (rc) {
		err_set(e, EX_IOERR, "%s: %s", d->path, strerror(errno));
		unlink(d->tmp);
	}
	durable_forget(d);
	return rc ? -1 : 0;
}
