/* Temporary and unfinished files, which are removed when the program ends. */
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

/* Signal handlers read this list at any time, in any thread: entries are reused, never freed. */
struct entry {
	struct entry *next;
	volatile sig_atomic_t armed;
	size_t capacity; /* bytes of path */
	char path[];
};

static struct entry *entries;
static pid_t owner; /* a child process does not remove its parent's files */
static pthread_mutex_t changing = PTHREAD_MUTEX_INITIALIZER; /* protects the list */
/* A thread that creates a file blocks signals. A signal handler in another thread waits until the
 * file is in the list, and then no thread creates another file. */
static bool creating, ending;

static void wait_while(const bool *flag)
{
	while (__atomic_load_n(flag, __ATOMIC_SEQ_CST))
		clock_sleep(1e-4);
}

static void set_flag(bool *flag, bool value)
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
	set_flag(&ending, true);
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

static void add_entry(const char *path)
{
	size_t n = strlen(path) + 1;
	struct entry *f = entries;
	while (f && (f->armed || f->capacity < n))
		f = f->next;
	if (f) {
		memcpy(f->path, path, n);
		f->armed = 1;
		return;
	}
	f = xmalloc(sizeof(*f) + n);
	f->capacity = n;
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
	add_entry(path);
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
	set_flag(&creating, true);
	if (__atomic_load_n(&ending, __ATOMIC_SEQ_CST)) {
		set_flag(&creating, false);
		wait_while(&ending); /* until the process ends */
	}
	int fd = pattern ? mkostemp(path, O_CLOEXEC)
			 : open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
	int saved = errno;
	if (fd >= 0)
		add_entry(path);
	set_flag(&creating, false);
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
		return err_set(e, EX_IOERR, "cannot create a temporary file in %s: %s",
			directory, strerror(errno));
	return fd;
}
