/* Files that must not outlive the program: unfinished ones, and temporary ones. */
#include "base/base.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Used again, but never freed: a signal may come at any time, in any thread. */
struct doomed {
	struct doomed *next;
	volatile sig_atomic_t armed;
	size_t room;
	char path[];
};

static struct doomed *doomed;
static pid_t doomed_by; /* a child has no say in its parent's files */

void file_remove_doomed(void)
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
	file_remove_doomed();
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
	atexit(file_remove_doomed);
	doomed_by = getpid();
}

static struct doomed *find_doomed(const char *path)
{
	struct doomed *f = doomed;
	while (f && (!f->armed || strcmp(f->path, path)))
		f = f->next;
	return f;
}

void file_doom(const char *path)
{
	size_t n = strlen(path) + 1;
	struct doomed *f = doomed;
	if (!doomed)
		watch_ends();
	while (f && (f->armed || f->room < n))
		f = f->next;
	if (f) {
		memcpy(f->path, path, n);
		f->armed = 1;
		return;
	}
	f = xmalloc(sizeof(*f) + n);
	f->room = n;
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

int file_make_doomed(char *path, bool pattern)
{
	sigset_t all, old;
	sigfillset(&all);
	sigprocmask(SIG_BLOCK, &all, &old);
	int fd = pattern ? mkostemp(path, O_CLOEXEC)
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
	int fd = file_make_doomed(path, true);
	if (fd < 0)
		return err_set(e, EX_IOERR, "a temporary file in %s: %s", folder,
			strerror(errno));
	return fd;
}

int file_spool(int from, const char *name, char path[static 4096], struct err *e)
{
	int to = file_temporary(path, e);
	if (to < 0)
		return err_prefix(e, "%s: ", name);
	if (!copy_all(from, to))
		return to;
	err_set(e, EX_IOERR, "%s, kept in a file in %s: %s", name,
		file_temporary_folder(), strerror(errno));
	file_remove(path);
	close(to);
	return -1;
}
