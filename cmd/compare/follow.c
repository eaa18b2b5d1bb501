/* Reads logs while they grow. */
#include "compare/follow.h"
#include "base/file.h"
#include "logs/logs.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

/* A log that is followed. */
struct source {
	const char *path;
	struct run_log *log;
	char file[4096]; /* the file to read; empty: the path does not exist yet */
	int stream,
		copy; /* descriptors of a stream and of its copy in the file; -1: no stream */
	int64_t n_copied;
	uint64_t state; /* log_state() of the file when it was read */
	bool ended;
};

static volatile sig_atomic_t interrupted;

static void on_interrupt(int number)
{
	(void)number;
	interrupted = 1;
}

/* Opens a stream and a temporary file to copy it to. */
static int open_stream(struct source *s, struct err *e)
{
	bool is_stdin = !strcmp(s->path, "-");
	s->stream = is_stdin ? STDIN_FILENO
			     : open(s->path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
	if (s->stream < 0)
		return err_errno(e, s->path);
	s->copy = file_temporary(s->file, e);
	return s->copy < 0 ? err_prefix(e, "%s: ", s->log->name) : 0;
}

/* Returns 1 if the path exists, 0 if not, -1 with *e set if that cannot be determined. */
static int stat_path(const char *path, struct stat *st, struct err *e)
{
	if (!stat(path, st))
		return 1;
	return errno == ENOENT ? 0 : err_errno(e, path);
}

/* Opens a stream, or sets s->file to the file to read, once the path exists. */
static int open_source(struct source *s, struct err *e)
{
	char file[sizeof(s->file)];
	struct stat st;
	bool is_stdin = !strcmp(s->path, "-");
	int exists = is_stdin ? 1 : stat_path(s->path, &st, e);
	if (exists < 1)
		return exists;
	if (is_stdin || S_ISFIFO(st.st_mode) || S_ISSOCK(st.st_mode))
		return open_stream(s, e);
	bool has_events = S_ISDIR(st.st_mode) && log_state(s->path);
	bool is_run = S_ISDIR(st.st_mode) && !has_events;
	snprintf(file, sizeof(file), "%s%s", s->path, is_run ? "/journal.txt" : "");
	exists = is_run ? stat_path(file, &st, e) : 1;
	if (exists < 1)
		return exists;
	if (!has_events && !S_ISREG(st.st_mode))
		return err_set(e, EX_DATAERR, "%s: not a regular file", file);
	memcpy(s->file, file, sizeof(file));
	return 0;
}

/* Copies the available bytes of a stream to its file. */
static int copy_stream(struct source *s, struct err *e)
{
	char bytes[1 << 16];
	struct pollfd p = {.fd = s->stream, .events = POLLIN};
	while (poll(&p, 1, 0) > 0) {
		ssize_t n = read(s->stream, bytes, sizeof(bytes));
		if (n < 0 && errno != EAGAIN && errno != EINTR)
			return err_errno(e, s->path);
		/* (a FIFO has no end before its first writer) */
		s->ended = n == 0 && (s->n_copied > 0 || s->stream == STDIN_FILENO);
		if (n <= 0)
			break;
		s->n_copied += n;
		if (write_all(s->copy, bytes, (size_t)n))
			return err_set(e, EX_IOERR, "%s: cannot copy to %s: %s",
				s->log->name, s->file, strerror(errno));
	}
	return 0;
}

/* Returns true if the last event of a journal is the run's end; earlier ends were resumed. */
static bool journal_ended(const struct run_log *l)
{
	const char *last = l->events.len ? l->events.s : "";
	for (const char *p = last; (p = strchr(p, '\n')) && p[1]; p++)
		last = p + 1;
	return strstr(last, " ends with code ") != NULL;
}

/* Returns true for a run.h5, which does not grow. */
static bool is_run_h5(const struct run_log *l)
{
	return l->info.format && !strcmp(l->info.format, "pt-run");
}

/* Opens a log if necessary, and reads it again if it has changed. */
static int read_source(struct source *s, const struct follow *f, struct err *e)
{
	if (!*s->file && open_source(s, e))
		return -1;
	bool is_stream = s->stream >= 0;
	if (is_run_h5(s->log) || (is_stream && s->ended))
		return 0;
	if (is_stream && copy_stream(s, e))
		return -1;
	uint64_t state = *s->file ? log_state(s->file) : 0;
	if (!state || state == s->state)
		return 0; /* (a missing file may appear later) */
	s->state = state;
	if (log_read_growing(s->log, s->file, f->how, is_stream, e) < 0)
		return -1;
	if (!is_stream)
		s->ended = is_run_h5(s->log) || journal_ended(s->log);
	return 0;
}

/* Reads all logs that have changed. Sets *rows to the sum of rows, *ended if all have ended. */
static int read_sources(struct source *s, int n, const struct follow *f, int64_t *rows,
	bool *ended, struct err *e)
{
	*rows = 0;
	*ended = true;
	for (int i = 0; i < n; i++) {
		if (read_source(&s[i], f, e))
			return -1;
		*rows += s[i].log->n_rows;
		*ended &= s[i].ended;
	}
	return 0;
}

/* Sleeps for four times the seconds worked, 0.5 to 60 s: reading takes a fifth of the time. */
static void sleep_after(double worked)
{
	const double min = 0.5, max = 60;
	poll(NULL, 0, (int)(1000 * fmin(fmax(4 * worked, min), max)));
}

/* Reads and judges the logs until there is a reason to stop, which *why is set to. */
static int read_until_end(struct source *s, struct run_log *logs, int n,
	const struct follow *f, enum follow_end *why, struct err *e)
{
	double last = clock_seconds();
	int64_t rows = 0, now;
	bool have_ended;
	for (;;) {
		double began = clock_seconds();
		if (read_sources(s, n, f, &now, &have_ended, e))
			return -1;
		bool has_grown = now != rows;
		rows = now;
		last = has_grown ? clock_seconds() : last;
		*why = has_grown && f->judge(f->context, logs, n) ? FOLLOW_STOPPED
		       : interrupted				  ? FOLLOW_SIGNAL
		       : have_ended				  ? FOLLOW_ENDED
		       : clock_seconds() - last >= f->patience	  ? FOLLOW_QUIET
								  : FOLLOW_CONTINUES;
		if (*why != FOLLOW_CONTINUES)
			return 0;
		sleep_after(clock_seconds() - began);
	}
}

static void source_close(struct source *s)
{
	if (s->copy >= 0) {
		cleanup_remove(s->file);
		close(s->copy);
	}
	if (s->stream > STDIN_FILENO)
		close(s->stream);
}

int follow_runs(struct run_log *logs, const char *const *paths, int n,
	const struct follow *f, enum follow_end *why, struct err *e)
{
	scoped_ptr struct source *s = xcalloc((size_t)n, sizeof(*s));
	struct sigaction action = {.sa_handler = on_interrupt}, previous;
	sigemptyset(&action.sa_mask);
	sigaction(SIGINT, &action, &previous);
	interrupted = 0;
	for (int i = 0; i < n; i++) {
		bool is_stdin = !strcmp(paths[i], "-");
		logs[i] = (struct run_log){
			.name = xstrdup(is_stdin ? "standard input" : paths[i])};
		s[i] = (struct source){
			.path = paths[i], .log = &logs[i], .stream = -1, .copy = -1};
	}
	int rc = read_until_end(s, logs, n, f, why, e);
	for (int i = 0; i < n; i++) {
		if (!rc && !s[i].file[0] && s[i].stream < 0)
			warn("%s: the log did not appear", paths[i]);
		source_close(&s[i]);
	}
	sigaction(SIGINT, &previous, NULL);
	return rc;
}
