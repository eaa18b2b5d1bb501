/* Temporary and unfinished files, which are removed when the program ends. */
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

/* A list that signal handlers read at any time, in any thread: an entry is used again, but never
 * freed. */
struct entry {
	struct entry *next;
	volatile sig_atomic_t armed;
	size_t room;
	char path[];
};

static struct entry *entries;
static pid_t owner; /* a child process removes none of its parent's files */
static pthread_mutex_t changing = PTHREAD_MUTEX_INITIALIZER; /* the list */
/* A thread that makes a file takes no signals, but another thread does: it waits for the file to be
 * in the list, and no thread begins another one. */
static bool creating, ending;

static void wait_while(const bool *flag)
{
	static const struct timespec moment = {.tv_nsec = 100000};
	while (__atomic_load_n(flag, __ATOMIC_SEQ_CST))
		nanosleep(&moment, NULL);
}

static void set(bool *flag, bool value)
{
	__atomic_store_n(flag, value, __ATOMIC_SEQ_CST);
}

void cleanup_run(void)
{
	if (getpid() != owner)
		return;
	wait_while(&creating);
	struct entry *f = __atomic_load_n(&entries, __ATOMIC_ACQUIRE);
	for (; f; f = f->next)
		if (f->armed)
			unlink(f->path);
}

static void on_signal(int sig)
{
	set(&ending, true);
	cleanup_run();
	signal(sig, SIG_DFL);
	raise(sig);
}

static void install_handlers(void)
{
	static const int fatal[] = {SIGHUP, SIGINT, SIGQUIT, SIGPIPE, SIGTERM, SIGALRM,
		SIGUSR1, SIGUSR2, SIGXCPU, SIGXFSZ, SIGBUS};
	struct sigaction a = {.sa_handler = on_signal}, old;
	sigemptyset(&a.sa_mask);
	owner = getpid();
	for (size_t i = 0; i < ARRAY_LEN(fatal); i++)
		if (!sigaction(fatal[i], NULL, &old) && old.sa_handler == SIG_DFL)
			sigaction(fatal[i], &a, NULL);
	atexit(cleanup_run);
}

static void add(const char *path)
{
	size_t n = strlen(path) + 1;
	struct entry *f = entries;
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
	f->next = entries;
	__atomic_store_n(&entries, f, __ATOMIC_RELEASE);
}

static void begin_change(void)
{
	pthread_mutex_lock(&changing);
	if (!owner)
		install_handlers();
}

void cleanup_add(const char *path)
{
	begin_change();
	add(path);
	pthread_mutex_unlock(&changing);
}

void cleanup_forget(const char *path)
{
	pthread_mutex_lock(&changing);
	struct entry *f = entries;
	while (f && (!f->armed || strcmp(f->path, path)))
		f = f->next;
	if (f)
		f->armed = 0;
	pthread_mutex_unlock(&changing);
}

void cleanup_remove(const char *path)
{
	unlink(path);
	cleanup_forget(path);
}

int cleanup_create(char *path, bool pattern)
{
	sigset_t all, old;
	sigfillset(&all);
	pthread_sigmask(SIG_BLOCK, &all, &old);
	begin_change();
	set(&creating, true);
	if (__atomic_load_n(&ending, __ATOMIC_SEQ_CST)) {
		set(&creating, false);
		wait_while(&ending); /* the process ends */
	}
	int fd = pattern ? mkostemp(path, O_CLOEXEC)
			 : open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
	int saved = errno;
	if (fd >= 0)
		add(path);
	set(&creating, false);
	pthread_mutex_unlock(&changing);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	errno = saved;
	return fd;
}

const char *file_temporary_directory(void)
{
	const char *tmp = getenv("TMPDIR");
	return tmp && *tmp ? tmp : "/tmp";
}

int file_temporary(char path[static 4096], struct err *e)
{
	const char *directory = file_temporary_directory();
	snprintf(path, 4096, "%s/pt-XXXXXX", directory);
	int fd = cleanup_create(path, true);
	if (fd < 0)
		return err_set(e, EX_IOERR, "a temporary file in %s: %s", directory,
			strerror(errno));
	return fd;
}

int stream_look(struct stream *s, int fd, const char *name, struct err *e)
{
	*s = (struct stream){.fd = fd, .name = name};
	while (s->n < sizeof(s->first)) {
		ssize_t n = read(fd, s->first + s->n, sizeof(s->first) - s->n);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return err_set(e, EX_IOERR, "%s: %s", name, strerror(errno));
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

/* Nine tenths of what is free beside the file. */
static int64_t spool_room(int fd)
{
	struct statvfs fs;
	if (fstatvfs(fd, &fs) || !fs.f_blocks)
		return INT64_MAX;
	return (int64_t)(0.9 * (double)fs.f_bavail * (double)fs.f_frsize);
}

static int copy_stream(const struct stream *s, int to, int64_t most, struct err *e)
{
	char text[NUM_TEXT];
	const char *folder = file_temporary_directory();
	int64_t room = spool_room(to), limit = min64(most, min64(spool_limit, room));
	int rc = (int64_t)s->n > limit ? 1 : write_all(to, s->first, s->n);
	rc = rc ? rc : copy_most(s->fd, to, limit - (int64_t)s->n);
	if (rc < 0)
		return err_set(e, EX_IOERR, "%s, copied to a file in %s: %s", s->name,
			folder, strerror(errno));
	if (rc > 0 && limit == most)
		return err_set(e, EX_DATAERR,
			"%s: larger than the %lld bytes such a file may have", s->name,
			(long long)most);
	if (rc > 0)
		return err_set(e, EX_IOERR,
			"%s, copied to a file in %s: larger than %s (%lld bytes)%s%s",
			s->name, folder, text_bytes(text, (double)limit),
			(long long)limit,
			limit == room ? ", nine tenths of what is free there" : "",
			advice_on(
				limit == room ? ADVICE_SPOOL_ROOM : ADVICE_SPOOL_LIMIT));
	return 0;
}

int file_spool(
	const struct stream *s, int64_t most, char path[static 4096], struct err *e)
{
	int to = file_temporary(path, e);
	if (to < 0)
		return err_prefix(e, "%s: ", s->name);
	if (!copy_stream(s, to, most, e))
		return to;
	cleanup_remove(path);
	close(to);
	return -1;
}

/* Of a stream: of its copy. */
static int read_stream(
	int from, const char *name, const struct seekable *how, struct err *e)
{
	char kept[4096];
	struct stream s;
	int64_t most;
	if (stream_look(&s, from, name, e) || how->look(how->to, &s, &most, e))
		return -1;
	int fd = file_spool(&s, most, kept, e);
	if (fd < 0)
		return -1;
	int rc = lseek(fd, 0, SEEK_SET)
			 ? err_set(e, EX_IOERR, "%s: %s", name, strerror(errno))
			 : how->read(how->to, fd, kept, e);
	cleanup_remove(kept);
	close(fd);
	return rc;
}

int file_read_seekable(
	const char *path, const char *name, const struct seekable *how, struct err *e)
{
	struct stat st;
	if (!strcmp(path, "-"))
		return read_stream(STDIN_FILENO, name, how, e);
	int fd = file_open(path), rc;
	if (fd < 0 || fstat(fd, &st))
		rc = err_set(e, EX_IOERR, "%s: %s", path, strerror(errno));
	else if (S_ISREG(st.st_mode))
		rc = how->read(how->to, fd, path, e);
	else
		rc = read_stream(fd, name, how, e);
	if (fd >= 0)
		close(fd);
	return rc;
}
