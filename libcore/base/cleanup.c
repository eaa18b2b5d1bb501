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
static pid_t owner_pid; /* child processes must not remove these files */
static pthread_mutex_t entries_mutex = PTHREAD_MUTEX_INITIALIZER;
/* creating: a thread, with signals blocked, creates a file that is not in the list yet; a signal
 * handler in another thread waits for it. ending: the handler runs, and no file is created. */
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
	if (getpid() != owner_pid)
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

/* Makes exit() and fatal signals with the default handler run the cleanup in this process. */
static void install_handlers(void)
{
	static const int fatal[] = {SIGHUP, SIGINT, SIGQUIT, SIGPIPE, SIGTERM, SIGALRM,
		SIGUSR1, SIGUSR2, SIGXCPU, SIGXFSZ, SIGBUS};
	struct sigaction a = {.sa_handler = on_signal}, old;
	sigemptyset(&a.sa_mask);
	owner_pid = getpid();
	for (size_t i = 0; i < ARRAY_LEN(fatal); i++)
		if (!sigaction(fatal[i], NULL, &old) && old.sa_handler == SIG_DFL)
			sigaction(fatal[i], &a, NULL);
	atexit(cleanup_run);
}

/* Adds a path to the files to remove. Signal handlers may read the list meanwhile. */
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

/* Locks the list; the first call also installs the signal handlers. */
static void lock_entries(void)
{
	pthread_mutex_lock(&entries_mutex);
	if (!owner_pid)
		install_handlers();
}

void cleanup_add(const char *path)
{
	lock_entries();
	add_entry(path);
	pthread_mutex_unlock(&entries_mutex);
}

void cleanup_forget(const char *path)
{
	pthread_mutex_lock(&entries_mutex);
	struct entry *f = entries;
	while (f && (!f->armed || strcmp(f->path, path)))
		f = f->next;
	if (f)
		f->armed = 0;
	pthread_mutex_unlock(&entries_mutex);
}

void cleanup_remove(const char *path)
{
	unlink(path);
	cleanup_forget(path);
}

/* Creates a file and its entry without a signal in between. */
int cleanup_create(char *path, bool is_template)
{
	sigset_t all_signals, old;
	sigfillset(&all_signals);
	pthread_sigmask(SIG_BLOCK, &all_signals, &old);
	lock_entries();
	set_flag(&creating, true);
	if (__atomic_load_n(&ending, __ATOMIC_SEQ_CST)) {
		set_flag(&creating, false);
		wait_while(&ending); /* until the process ends */
	}
	int fd = is_template ? mkostemp(path, O_CLOEXEC)
			     : open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
	int saved = errno;
	if (fd >= 0)
		add_entry(path);
	set_flag(&creating, false);
	pthread_mutex_unlock(&entries_mutex);
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
