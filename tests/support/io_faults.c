/*
 * Makes the k-th call of one kind fail, as a disk does (LD_PRELOAD). SQLite's tests of I/O errors do
 * this for every k. Only calls for files below one folder count, in the process that was started and
 * not in its children, except that reads of its forks count too.
 *   IO_FAULT=KIND:K:HOW       the K-th call (from 1) of KIND: write, pwrite, fsync, ftruncate, rename,
 *                             open, mmap, close or read (pread too). HOW: ENOSPC, EIO, EINTR; short,
 *                             which writes half; lost, which writes nothing and reports that all is
 *                             written, or reads as if the file ended there
 *   IO_FAULT=KIND:K:HOW:on    it and all later ones
 *   IO_FAULT_IN=FOLDER        the folder or file, as realpath() has it
 *   IO_FAULT_RANK=N           in that rank only
 *   IO_FAULT_COUNTS=FILE      at the end, a line `KIND CALLS` for each kind
 * A close that fails has closed the file, as Linux does it.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum kind { WRITE, PWRITE, FSYNC, FTRUNCATE, RENAME, OPEN, MMAP, CLOSE, READ, N_KINDS };
static const char *const kinds[] = {"write", "pwrite", "fsync", "ftruncate", "rename",
	"open", "mmap", "close", "read"};
static const struct {
	const char *name;
	int error; /* 0: another result than an error */
} hows[] = {
	{"ENOSPC", ENOSPC}, {"EIO", EIO}, {"EINTR", EINTR}, {"short", 0}, {"lost", 0}};
enum { AS_EVER, FAILS, SHORT, LOST };

static atomic_long *calls; /* [N_KINDS], shared with forks */
static struct {
	bool on;
	enum kind kind;
	long first;
	int error;
	bool lost;
	bool later; /* all later calls fail too */
	pid_t process;
	char folder[4096];
} fault;

static void take_fault(const char *text)
{
	char kind[16], how[16], on[4] = "";
	if (sscanf(text, "%15[^:]:%ld:%15[^:]:%3s", kind, &fault.first, how, on) < 3)
		abort();
	for (int k = 0; k < N_KINDS; k++)
		if (!strcmp(kind, kinds[k]))
			fault.kind = (enum kind)k;
	for (size_t i = 0; i < sizeof(hows) / sizeof(*hows); i++)
		if (!strcmp(how, hows[i].name))
			fault.error = hows[i].error;
	fault.lost = !strcmp(how, "lost");
	fault.later = !strcmp(on, "on");
	fault.on = true;
}

__attribute__((constructor)) static void begin(void)
{
	const char *text = getenv("IO_FAULT"), *folder = getenv("IO_FAULT_IN");
	const char *rank = getenv("IO_FAULT_RANK"), *own = getenv("PMI_RANK");
	if (!folder || (rank && strcmp(rank, own ? own : "0")))
		return;
	snprintf(fault.folder, sizeof(fault.folder), "%s/", folder);
	calls = mmap(NULL, N_KINDS * sizeof(*calls), PROT_READ | PROT_WRITE,
		MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (calls == MAP_FAILED)
		abort();
	fault.process = getpid();
	if (text && *text)
		take_fault(text);
	/* what it starts is not its own */
	unsetenv("LD_PRELOAD");
}

__attribute__((destructor)) static void end(void)
{
	const char *path = getenv("IO_FAULT_COUNTS");
	char text[512] = "";
	size_t n = 0;
	if (!path || getpid() != fault.process)
		return;
	for (int k = 0; k < N_KINDS; k++)
		n += (size_t)snprintf(
			text + n, sizeof(text) - n, "%s %ld\n", kinds[k], (long)calls[k]);
	int fd = (int)syscall(
		SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT | O_TRUNC, 0666);
	if (syscall(SYS_write, fd, text, n) != (long)n)
		abort();
	syscall(SYS_close, fd);
}

/* (the file need not exist) */
static bool is_in_folder(const char *path)
{
	char full[PATH_MAX], folder[PATH_MAX];
	const char *slash = strrchr(path, '/');
	size_t n = strlen(fault.folder) - 1; /* without the slash at the end */
	snprintf(folder, sizeof(folder), "%.*s", slash ? (int)(slash - path) + 1 : 1,
		slash ? path : ".");
	return (realpath(folder, full) && !strncmp(full, fault.folder, n) &&
		       (full[n] == '/' || !full[n])) ||
	       (realpath(path, full) && strlen(full) == n &&
		       !strncmp(full, fault.folder, n));
}

static bool is_file_in_folder(int fd)
{
	char link[64], path[PATH_MAX];
	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	ssize_t n = readlink(link, path, sizeof(path) - 1);
	path[n < 0 ? 0 : n] = '\0';
	size_t folder = strlen(fault.folder) - 1;
	return !strncmp(path, fault.folder, folder) &&
	       (path[folder] == '/' || !path[folder]);
}

/* Counts a call, and says how it ends; FAILS: with errno set. */
static int count(enum kind kind, bool ours)
{
	if (!fault.process || !ours || (kind != READ && fault.process != getpid()))
		return AS_EVER;
	long k = atomic_fetch_add(&calls[kind], 1) + 1;
	if (!fault.on || kind != fault.kind || k < fault.first ||
		(k > fault.first && !fault.later))
		return AS_EVER;
	if (!fault.error)
		return fault.lost ? LOST : SHORT;
	errno = fault.error;
	return FAILS;
}

static bool watched(int fd)
{
	int saved = errno;
	bool ours = fault.process && is_file_in_folder(fd);
	errno = saved;
	return ours;
}

static bool watched_path(const char *path)
{
	int saved = errno;
	bool ours = fault.process && is_in_folder(path);
	errno = saved;
	return ours;
}

ssize_t read(int fd, void *p, size_t n)
{
	int how = count(READ, watched(fd));
	if (how == FAILS)
		return -1;
	return how == LOST ? 0 : syscall(SYS_read, fd, p, n);
}

ssize_t pread(int fd, void *p, size_t n, off_t at)
{
	int how = count(READ, watched(fd));
	if (how == FAILS)
		return -1;
	return how == LOST ? 0 : syscall(SYS_pread64, fd, p, n, at);
}

ssize_t pread64(int fd, void *p, size_t n, off64_t at)
{
	return pread(fd, p, n, at);
}

static size_t part_of(size_t n, int how)
{
	return how == SHORT && n > 1 ? n / 2 : n;
}

ssize_t write(int fd, const void *p, size_t n)
{
	int how = count(WRITE, watched(fd));
	if (how == FAILS)
		return -1;
	return how == LOST ? (ssize_t)n : syscall(SYS_write, fd, p, part_of(n, how));
}

ssize_t pwrite(int fd, const void *p, size_t n, off_t at)
{
	int how = count(PWRITE, watched(fd));
	if (how == FAILS)
		return -1;
	return how == LOST ? (ssize_t)n
			   : syscall(SYS_pwrite64, fd, p, part_of(n, how), at);
}

ssize_t pwrite64(int fd, const void *p, size_t n, off64_t at)
{
	return pwrite(fd, p, n, at);
}

int fsync(int fd)
{
	return count(FSYNC, watched(fd)) == FAILS ? -1 : (int)syscall(SYS_fsync, fd);
}

int fdatasync(int fd)
{
	return count(FSYNC, watched(fd)) == FAILS ? -1 : (int)syscall(SYS_fdatasync, fd);
}

int ftruncate(int fd, off_t n)
{
	return count(FTRUNCATE, watched(fd)) == FAILS
		       ? -1
		       : (int)syscall(SYS_ftruncate, fd, n);
}

int ftruncate64(int fd, off64_t n)
{
	return ftruncate(fd, n);
}

int truncate(const char *path, off_t n)
{
	return count(FTRUNCATE, watched_path(path)) == FAILS
		       ? -1
		       : (int)syscall(SYS_truncate, path, n);
}

int rename(const char *from, const char *to)
{
	return count(RENAME, watched_path(to)) == FAILS
		       ? -1
		       : (int)syscall(SYS_rename, from, to);
}

int renameat2(int a, const char *from, int b, const char *to, unsigned flags)
{
	return count(RENAME, watched_path(to)) == FAILS
		       ? -1
		       : (int)syscall(SYS_renameat2, a, from, b, to, flags);
}

static int open_at(int folder, const char *path, int flags, va_list ap)
{
	mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(ap, mode_t) : 0;
	if (count(OPEN, watched_path(path)) == FAILS)
		return -1;
	return (int)syscall(SYS_openat, folder, path, flags, mode);
}

int open(const char *path, int flags, ...)
{
	va_list ap;
	va_start(ap, flags);
	int fd = open_at(AT_FDCWD, path, flags, ap);
	va_end(ap);
	return fd;
}

int open64(const char *path, int flags, ...)
{
	va_list ap;
	va_start(ap, flags);
	int fd = open_at(AT_FDCWD, path, flags, ap);
	va_end(ap);
	return fd;
}

int openat(int folder, const char *path, int flags, ...)
{
	va_list ap;
	va_start(ap, flags);
	int fd = open_at(folder, path, flags, ap);
	va_end(ap);
	return fd;
}

void *mmap(void *p, size_t n, int protection, int flags, int fd, off_t at)
{
	if (fd >= 0 && count(MMAP, watched(fd)) == FAILS)
		return MAP_FAILED;
	return (void *)syscall(SYS_mmap, p, n, protection, flags, fd, at);
}

void *mmap64(void *p, size_t n, int protection, int flags, int fd, off64_t at)
{
	return mmap(p, n, protection, flags, fd, at);
}

int close(int fd)
{
	int how = count(CLOSE, watched(fd)), why = errno;
	int rc = (int)syscall(SYS_close, fd);
	if (how == FAILS) {
		errno = why;
		return -1;
	}
	return rc;
}
