/* Exit codes, errors and messages. */
#include "base/file.h"
#include "base/utf8.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

void (*die_hook)(int code);

static const char *const *advice;

static bool silent;
static int silent_code;

static const char *log_program = "pt";
static int log_rank_id;
static bool log_multi, log_all, log_is_quiet;

/* Opens /dev/null for closed descriptors below 3, or else the next file would get the descriptor
 * and receive messages. Its access mode makes reads or writes fail as if it were closed. */
static void occupy_standard_descriptors(void)
{
	for (int fd = 0; fd < 3; fd++)
		if (fcntl(fd, F_GETFD) < 0)
			open("/dev/null", fd ? O_RDONLY : O_WRONLY);
}

enum { STACK_WANTED = 8 << 20, STACK_NEEDED = 256 << 10 };

/* Raises the stack limit before main(). A small stack would end the program by SIGSEGV even
 * earlier than main(), because libraries such as UCX read files when they are loaded. The kernel
 * reads the soft limit whenever the main thread's stack grows, so this is in time. It runs on
 * little stack and before the sanitizers are ready, so it makes little more than system calls. */
__attribute__((no_sanitize("address", "undefined"))) static void ensure_stack(
	int argc, char **argv, char **env)
{
	static const char why[] = ": the stack is limited to less than 256 KiB; "
				  "raise the limit (ulimit -s)\n";
	struct rlimit l;
	size_t n = 0;
	(void)env;
	if (syscall(SYS_prlimit64, 0, RLIMIT_STACK, NULL, &l) ||
		l.rlim_cur >= STACK_WANTED)
		return;
	l.rlim_cur = l.rlim_max < STACK_WANTED ? l.rlim_max : STACK_WANTED;
	if (syscall(SYS_prlimit64, 0, RLIMIT_STACK, &l, NULL))
		syscall(SYS_prlimit64, 0, RLIMIT_STACK, NULL, &l);
	if (l.rlim_cur >= STACK_NEEDED)
		return;
	const char *name = argc ? argv[0] : "";
	for (const char *p = name; *p; p++)
		if (*p == '/')
			name = p + 1;
	while (name[n])
		n++;
	if (syscall(SYS_write, STDERR_FILENO, name, n) >= 0)
		syscall(SYS_write, STDERR_FILENO, why, sizeof(why) - 1);
	syscall(SYS_exit_group, EX_FAILED);
}

typedef void before_main(int argc, char **argv, char **env);
__attribute__((section(".preinit_array"),
	used)) static before_main *const run_before_main = ensure_stack;

/* Sets the stack size of threads, since the C library read the limit before it was raised. */
static void ensure_stacks_of_threads(void)
{
	pthread_attr_t threads;
	size_t n_bytes;
	if (!pthread_getattr_default_np(&threads) &&
		!pthread_attr_getstacksize(&threads, &n_bytes) &&
		n_bytes < STACK_WANTED / 4 &&
		!pthread_attr_setstacksize(&threads, STACK_WANTED / 4))
		pthread_setattr_default_np(&threads);
}

void log_name(const char *program)
{
	occupy_standard_descriptors();
	signal(SIGXFSZ, SIG_IGN); /* a write beyond the limit returns an error */
	log_program = program;
	ensure_stacks_of_threads();
}

void log_set_rank(int rank, int size, bool all_ranks)
{
	log_rank_id = rank;
	log_multi = size > 1;
	log_all = all_ranks;
}

void log_set_quiet(bool quiet)
{
	log_is_quiet = quiet;
}

bool log_is_enabled(void)
{
	return !log_is_quiet && (log_rank_id == 0 || log_all);
}

bool log_uses_color(FILE *f)
{
	const char *no = getenv("NO_COLOR"), *term = getenv("TERM");
	if (no && *no)
		return false;
	return isatty(fileno(f)) && term && strcmp(term, "dumb") != 0;
}

/* Prints a message with one write, so that lines of several ranks do not mix. Messages quote names
 * and texts of files, which must not control the terminal. */
static void print_message(const char *level, bool with_rank, const char *fmt, va_list ap)
{
	if (silent)
		return;
	char line[2048];
	size_t n = 0, size = sizeof(line) - 1;
	n += (size_t)snprintf(line, size, "%s: ", log_program);
	if (with_rank)
		n += (size_t)snprintf(line + n, size - n, "rank %d: ", log_rank_id);
	n += (size_t)snprintf(line + n, size - n, "%s", level);
	int more = vsnprintf(line + n, size - n, fmt, ap);
	n += more < 0 ? 0 : (size_t)more;
	if (n > size - 1)
		n = size - 1;
	line[n] = '\0';
	text_printable(line);
	line[n++] = '\n';
	fflush(stdout);
	if (write(STDERR_FILENO, line, n) < 0)
		return; /* there is no other place to report it */
}

void advice_set(const char *const table[N_ADVICE])
{
	advice = table;
}

const char *advice_on(enum advice_on failure)
{
	static _Thread_local char text[256];
	if (!advice || !advice[failure])
		return "";
	snprintf(text, sizeof(text), "; %s", advice[failure]);
	return text;
}

int err_set(struct err *e, int code, const char *fmt, ...)
{
	va_list ap;
	e->code = code;
	va_start(ap, fmt);
	vsnprintf(e->msg, sizeof(e->msg), fmt, ap);
	va_end(ap);
	return -1;
}

int err_prefix(struct err *e, const char *fmt, ...)
{
	char message[sizeof(e->msg)];
	va_list ap;
	memcpy(message, e->msg, sizeof(message));
	va_start(ap, fmt);
	int n = vsnprintf(e->msg, sizeof(e->msg), fmt, ap);
	va_end(ap);
	if (n >= 0 && (size_t)n < sizeof(e->msg))
		snprintf(e->msg + n, sizeof(e->msg) - (size_t)n, "%s", message);
	return -1;
}

/* Flushes stdio, removes temporary files, calls the exit hook and exits. */
static _Noreturn void exit_cleanly(int code)
{
	if (silent)
		_exit(silent_code);
	fflush(NULL);
	cleanup_run(); /* the hook may end the program without exit() */
	if (die_hook)
		die_hook(code);
	exit(code);
}

void silence_messages(int code)
{
	silent = true;
	silent_code = code;
}

void die(int code, const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	print_message("", log_multi, fmt, ap);
	va_end(ap);
	exit_cleanly(code);
}

void die_err(const struct err *e)
{
	die(e->code, "%s", e->msg);
}

void die_io(const struct err *e)
{
	if (e->code == EX_IOERR)
		die_err(e);
}

static void print_line(const char *level, bool with_rank, const char *fmt, ...)
	PRINTF(3, 4);
static void print_line(const char *level, bool with_rank, const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	print_message(level, with_rank, fmt, ap);
	va_end(ap);
}

int err_print(const struct err *e)
{
	if (*e->msg)
		print_line("", false, "%s", e->msg);
	return e->code;
}

void err_print_keep_first(struct err *first, const struct err *e)
{
	err_print(e);
	if (!first->code)
		first->code = e->code;
}

void bug(const char *file, int line, const char *what)
{
	if (silent)
		abort();
	fprintf(stderr, "%s: rank %d: BUG at %s:%d: %s\n", log_program, log_rank_id, file,
		line, what);
	fflush(NULL);
	if (die_hook)
		die_hook(128 + SIGABRT);
	abort();
}

void warn(const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	print_message("warning: ", log_multi, fmt, ap);
	va_end(ap);
}

void info(const char *fmt, ...)
{
	if (!log_is_enabled())
		return;
	va_list ap;
	va_start(ap, fmt);
	print_message("", log_multi && log_all, fmt, ap);
	va_end(ap);
}

void info_wait(const char *fmt, ...)
{
	if (log_rank_id && !log_all)
		return;
	va_list ap;
	va_start(ap, fmt);
	print_message(log_is_quiet ? "warning: " : "", log_multi && log_all, fmt, ap);
	va_end(ap);
}

void stdout_close(void)
{
	if (fflush(stdout) || ferror(stdout) || (fclose(stdout) && errno != EBADF))
		die(EX_IOERR, "standard output: %s", strerror(errno));
}
