/* Reads logs while they grow. */
#include "compare/follow.h"
#include "base/file.h"
#include "logs/logs.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum source_kind {
	SOURCE_ABSENT, /* or empty: waited for */
	SOURCE_LINES,  /* a log of pt-train */
	SOURCE_STREAM, /* the same, through a pipe */
	SOURCE_OTHER,  /* a log of another trainer, in a file or a directory */
	SOURCE_DONE,   /* a file that does not grow */
};

struct source {
	const char *path;
	struct run_log *log;
	enum source_kind kind;
	struct str file;       /* the path, or the journal in that directory */
	struct str text;       /* of a line that is not complete yet */
	struct str first;      /* of a stream whose format is not known yet */
	struct log_tail *tail; /* of a log of another trainer */
	bool known;	       /* it is that of pt-train */
	int64_t at;	       /* bytes that were read */
	int fd;		       /* of a stream */
	bool ended;
};

static volatile sig_atomic_t interrupted;

static void on_interrupt(int number)
{
	(void)number;
	interrupted = 1;
}

/* ---- opening ----------------------------------------------------------------------- */

enum { SAMPLE = 1 << 16 };

static bool is_auto(const char *format)
{
	return !format || !strcmp(format, log_format_names[0]);
}

static bool is_ours(const char *format)
{
	return format && !strcmp(format, log_format_names[1]);
}

static bool is_ours_by(const char *format, const char *first, size_t n)
{
	return is_ours(is_auto(format) ? log_detect(first, n) : format);
}

static enum source_kind kind_of_file(const char *path, const char *format)
{
	char first[SAMPLE];
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : read(fd, first, sizeof(first));
	if (fd >= 0)
		close(fd);
	if (n <= 0)
		return SOURCE_ABSENT;
	if (n >= 8 && h5_begins(first, 8))
		return SOURCE_DONE;
	return is_ours_by(format, first, (size_t)n) ? SOURCE_LINES : SOURCE_OTHER;
}

static int refuse(const struct source *s, struct err *e)
{
	return err_set(e, EX_USAGE,
		"%s: a log of this format can be followed in a file, but not through a pipe",
		s->log->name);
}

static int open_stream(struct source *s, const char *format, struct err *e)
{
	bool is_stdin = !strcmp(s->path, "-");
	s->known = is_ours(format);
	s->fd = is_stdin ? STDIN_FILENO
			 : open(s->path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
	s->kind = SOURCE_STREAM;
	if (!s->known && !is_auto(format))
		s->tail = log_tail_new(NULL, format);
	return s->fd < 0 ? err_set(e, EX_IOERR, "%s: %s", s->path, strerror(errno)) : 0;
}

/* Finds out what is at the path, once something is. */
static int open_source(struct source *s, const char *format, struct err *e)
{
	struct stat st;
	if (!strcmp(s->path, "-"))
		return open_stream(s, format, e);
	str_clear(&s->file);
	str_puts(&s->file, s->path);
	if (stat(s->path, &st))
		return errno == ENOENT
			       ? 0
			       : err_set(e, EX_IOERR, "%s: %s", s->path, strerror(errno));
	if (S_ISFIFO(st.st_mode) || S_ISSOCK(st.st_mode))
		return open_stream(s, format, e);
	if (S_ISDIR(st.st_mode) && log_event_bytes(s->path)) {
		s->kind = SOURCE_OTHER;
		return 0;
	}
	if (S_ISDIR(st.st_mode)) {
		str_puts(&s->file, "/journal.txt");
		if (stat(s->file.s, &st)) {
			if (errno == ENOENT)
				return 0;
			return err_set(e, EX_IOERR, "%s: %s", s->file.s, strerror(errno));
		}
	}
	if (!S_ISREG(st.st_mode))
		return err_set(e, EX_DATAERR, "%s is not a plain file", s->file.s);
	s->kind = kind_of_file(s->file.s, format);
	return 0;
}

/* ---- reading ----------------------------------------------------------------------- */

/* Forgets what was read, because the file is another one now. */
static void restart(struct source *s)
{
	char *name = xstrdup(s->log->name);
	run_log_free(s->log);
	s->log->name = name;
	str_clear(&s->text);
	s->at = 0;
}

/* Adds bytes, of which complete lines go to the log. */
static int take(struct source *s, const char *bytes, size_t n, struct err *e)
{
	enum { MAX_LINE = 1 << 20 };
	size_t whole;
	str_add(&s->text, bytes, n);
	if (!memchr(bytes, '\n', n))
		return s->text.len <= MAX_LINE
			       ? 0
			       : err_set(e, EX_DATAERR, "%s: a line is longer than 1 MiB",
					 s->path);
	if (run_log_lines(s->log, &s->text, &whole, e))
		return -1;
	memmove(s->text.s, s->text.s + whole, s->text.len - whole);
	s->text.len -= whole;
	s->text.s[s->text.len] = '\0';
	return 0;
}

static int read_lines(struct source *s, struct err *e)
{
	char bytes[1 << 16];
	struct stat st;
	int rc = 0, fd = open(s->file.s, O_RDONLY | O_CLOEXEC);
	if (fd < 0 || fstat(fd, &st)) {
		if (fd >= 0)
			close(fd);
		return 0; /* it may come back */
	}
	if (st.st_size < s->at)
		restart(s);
	for (ssize_t n; !rc && (n = pread(fd, bytes, sizeof(bytes), s->at)) > 0;
		s->at += n)
		rc = take(s, bytes, (size_t)n, e);
	close(fd);
	return rc;
}

/* Finds out whether a stream is of pt-train; if not, its bytes so far go to s->tail. */
static void find_format(struct source *s, const char *bytes, size_t n)
{
	static const char program[] = "pt-train: "; /* its messages may come first */
	str_add(&s->first, bytes, n);
	const char *format = log_detect(s->first.s, s->first.len);
	s->known = is_ours(format) || s->first.len >= SAMPLE ||
		   !strncmp(s->first.s, program, sizeof(program) - 1);
	if (format && !s->known)
		s->tail = log_tail_new(NULL, NULL);
}

static int take_stream(struct source *s, const char *bytes, size_t n, struct err *e)
{
	if (s->known)
		return take(s, bytes, n, e);
	if (!s->tail) {
		find_format(s, bytes, n);
		if (s->known)
			return take(s, s->first.s, s->first.len, e);
		bytes = s->first.s;
		n = s->first.len;
	}
	if (s->tail)
		log_tail_add(s->tail, bytes, n);
	return 0;
}

static int read_stream(struct source *s, struct err *e)
{
	char bytes[1 << 16];
	struct pollfd p = {.fd = s->fd, .events = POLLIN};
	while (poll(&p, 1, 0) > 0) {
		ssize_t n = read(s->fd, bytes, sizeof(bytes));
		if (n < 0 && errno != EAGAIN && errno != EINTR)
			return err_set(e, EX_IOERR, "%s: %s", s->path, strerror(errno));
		/* (a FIFO has no end before its first writer) */
		s->ended = n == 0 && (s->at > 0 || s->fd == STDIN_FILENO);
		if (n <= 0)
			break;
		s->at += n;
		if (take_stream(s, bytes, (size_t)n, e))
			return -1;
	}
	return 0;
}

/* A run has ended if the last event of its journal says so: it may have been resumed after others. */
static bool journal_ended(const struct run_log *l)
{
	const char *last = l->events.len ? l->events.s : "";
	for (const char *p = last; (p = strchr(p, '\n')) && p[1]; p++)
		last = p + 1;
	return strstr(last, " ends with code ") != NULL;
}

static int follow_stream(struct source *s, struct err *e)
{
	if (read_stream(s, e))
		return -1;
	return s->tail && log_tail_read(s->tail, s->log) < 0 ? refuse(s, e) : 0;
}

/* A file without a row yet may turn out to be a log of pt-train. */
static bool is_undecided(const struct source *s)
{
	struct stat st;
	return s->kind == SOURCE_ABSENT ||
	       (s->kind == SOURCE_OTHER && !stat(s->path, &st) && st.st_size < SAMPLE);
}

static int read_source(struct source *s, const struct follow *f, struct err *e)
{
	enum source_kind was = s->kind;
	if (is_undecided(s) && open_source(s, f->format, e))
		return -1;
	if (was == SOURCE_OTHER && s->kind != was) {
		log_tail_free(s->tail);
		s->tail = NULL;
		restart(s);
	}
	if (s->kind == SOURCE_DONE && !s->ended) {
		run_log_free(s->log);
		s->ended = true;
		return log_read(s->log, s->path, f->format, e);
	}
	if (s->kind == SOURCE_STREAM)
		return s->ended ? 0 : follow_stream(s, e);
	if (s->kind == SOURCE_OTHER && !s->tail)
		s->tail = log_tail_new(s->path, f->format);
	if (s->kind == SOURCE_OTHER)
		log_tail_read(s->tail, s->log);
	if (s->kind != SOURCE_LINES)
		return 0;
	int rc = read_lines(s, e);
	s->ended = journal_ended(s->log);
	return rc;
}

/* ---- following --------------------------------------------------------------------- */

/* Reads what is new; *rows and *ended of all. */
static int read_all(struct source *s, int n, const struct follow *f, int64_t *rows,
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

static int watch(struct source *s, struct run_log *logs, int n, const struct follow *f,
	enum follow_end *why, struct err *e)
{
	enum { INTERVAL_MS = 500 };
	double last = clock_seconds();
	int64_t rows = 0, now;
	bool ended;
	for (;;) {
		if (read_all(s, n, f, &now, &ended, e))
			return -1;
		bool grown = now != rows;
		rows = now;
		last = grown ? clock_seconds() : last;
		*why = grown && f->judge(f->to, logs, n)       ? FOLLOW_STOPPED
		       : interrupted			       ? FOLLOW_SIGNAL
		       : ended				       ? FOLLOW_ENDED
		       : clock_seconds() - last >= f->patience ? FOLLOW_QUIET
							       : FOLLOW_GOES_ON;
		if (*why != FOLLOW_GOES_ON)
			return 0;
		poll(NULL, 0, INTERVAL_MS);
	}
}

int follow_runs(struct run_log *logs, const char *const *paths, int n,
	const struct follow *f, enum follow_end *why, struct err *e)
{
	struct source *s = xcalloc((size_t)n, sizeof(*s));
	struct sigaction on = {.sa_handler = on_interrupt}, before;
	sigemptyset(&on.sa_mask);
	sigaction(SIGINT, &on, &before);
	interrupted = 0;
	for (int i = 0; i < n; i++) {
		bool is_stdin = !strcmp(paths[i], "-");
		logs[i] = (struct run_log){
			.name = xstrdup(is_stdin ? "standard input" : paths[i])};
		s[i] = (struct source){.path = paths[i], .log = &logs[i], .fd = -1};
	}
	int rc = watch(s, logs, n, f, why, e);
	for (int i = 0; i < n; i++) {
		if (s[i].tail && *why != FOLLOW_STOPPED)
			log_tail_end(s[i].tail, &logs[i]);
		log_tail_free(s[i].tail);
		str_free(&s[i].file);
		str_free(&s[i].text);
		str_free(&s[i].first);
		if (s[i].fd > STDIN_FILENO)
			close(s[i].fd);
	}
	free(s);
	sigaction(SIGINT, &before, NULL);
	return rc;
}
