/* The process that reads a table, and its pipe. */
#include "table/table.h"

#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
	BUFFER_BYTES = 1 << 16,
	PIPE_BYTES = 1 << 20,
	MAX_ROWS = 1 << 24, /* in a chunk */
	CHUNK_COLUMN = 1,
	CHUNK_ERROR = 2,
	CHUNK_END = 3
};

__asm__(".section .rodata\n.global read_table_script\nread_table_script:\n"
	".incbin \"share/python/read_table.py\"\n.byte 0\n.previous\n");
extern const char read_table_script[];

struct table {
	const char *name;
	bool is_text;
	pid_t pid; /* 0: ended */
	int fd;
	char buffer[BUFFER_BYTES]; /* bytes [at, n) are next */
	size_t at, n;
	int64_t position;      /* bytes of the file read so far */
	struct column *column; /* the current chunk; NULL: none */
	int64_t left;	       /* its rows that are left */
	bool has_ended;
};

enum table_kind table_detect(const char *first, size_t n)
{
	static const struct {
		const char *bytes;
		size_t n;
		enum table_kind kind;
	} kinds[] = {{"PAR1\x15", 5, TABLE_PARQUET}, {"ARROW1\0\0", 8, TABLE_ARROW_FILE},
		{"\xff\xff\xff\xff", 4, TABLE_ARROW_STREAM}};
	for (size_t i = 0; i < ARRAY_LEN(kinds); i++)
		if (n >= kinds[i].n && !memcmp(first, kinds[i].bytes, kinds[i].n))
			return kinds[i].kind;
	return TABLE_NONE;
}

/* Sets `out` to the Python to start: $PT_PYTHON; the one of the virtual environment in which the
 * program is installed; or the first python3 in $PATH. */
static void find_python(struct str *out)
{
	char exe[4096];
	const char *env = getenv("PT_PYTHON");
	if (env && *env) {
		str_puts(out, env);
		return;
	}
	ssize_t n = readlink("/proc/self/exe", exe, sizeof(exe) - 1);
	exe[n > 0 ? n : 0] = '\0';
	char *slash = strrchr(exe, '/');
	if (slash)
		*slash = '\0';
	str_printf(out, "%s/../pyvenv.cfg", exe);
	bool is_environment = slash && file_exists(out->s);
	str_clear(out);
	str_printf(out, is_environment ? "%s/python3" : "python3", exe);
}

/* Returns an unnamed file with these bytes, at its start; -1 with errno set. */
static int put_in_file(const char *bytes, size_t n)
{
	int fd = memfd_create("first bytes", MFD_CLOEXEC);
	if (fd >= 0 && !write_all(fd, bytes, n) && !lseek(fd, 0, SEEK_SET))
		return fd;
	if (fd >= 0)
		close(fd);
	return -1;
}

/* Starts the process with these descriptors 0, 1 and, unless it is -1, 3. Signals have their
 * default actions there, so that it ends with its pipe. */
static int spawn(pid_t *pid, char *const argv[], int input, int output, int first)
{
	extern char **environ;
	enum { FIRST = 3 };
	posix_spawn_file_actions_t files;
	posix_spawnattr_t attributes;
	sigset_t all, none;
	sigfillset(&all);
	sigemptyset(&none);
	posix_spawn_file_actions_init(&files);
	posix_spawnattr_init(&attributes);
	posix_spawn_file_actions_adddup2(&files, input, STDIN_FILENO);
	posix_spawn_file_actions_adddup2(&files, output, STDOUT_FILENO);
	if (first >= 0)
		posix_spawn_file_actions_adddup2(&files, first, FIRST);
	posix_spawnattr_setsigdefault(&attributes, &all);
	posix_spawnattr_setsigmask(&attributes, &none);
	posix_spawnattr_setflags(
		&attributes, POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK);
	int rc = posix_spawnp(pid, argv[0], &files, &attributes, argv, environ);
	posix_spawn_file_actions_destroy(&files);
	posix_spawnattr_destroy(&attributes);
	return rc;
}

struct table *table_open(const struct table_source *s, bool is_text,
	const struct strs *columns, struct err *e)
{
	static const char *const kinds[] = {
		[TABLE_PARQUET] = "parquet",
		[TABLE_ARROW_FILE] = "file",
		[TABLE_ARROW_STREAM] = "stream",
		[TABLE_ARROW_PIPE] = "pipe",
	};
	enum { N_WORDS = 5, MAX_COLUMNS = 8 };
	scoped_str python = {0};
	int pipes[2];
	BUG_ON(columns->n > MAX_COLUMNS);
	find_python(&python);
	char *argv[N_WORDS + MAX_COLUMNS + 1] = {python.s, (char *)"-c",
		(char *)read_table_script, (char *)kinds[s->kind],
		(char *)(is_text ? "text" : "record")};
	for (int64_t i = 0; i < columns->n; i++)
		argv[N_WORDS + i] = columns->v[i];
	if (pipe2(pipes, O_CLOEXEC)) {
		err_set(e, EX_IOERR, "%s: pipe: %s", s->name, strerror(errno));
		return NULL;
	}
	fcntl(pipes[0], F_SETPIPE_SZ, PIPE_BYTES); /* (only for speed) */
	struct table *t = xcalloc(1, sizeof(*t));
	t->name = s->name;
	t->is_text = is_text;
	t->fd = pipes[0];
	int first = -1, rc = 0;
	if (s->kind == TABLE_ARROW_PIPE) {
		first = put_in_file(s->first, s->n_first);
		rc = first < 0 ? errno : 0;
	}
	rc = rc ? rc : spawn(&t->pid, argv, s->fd, pipes[1], first);
	close(pipes[1]);
	if (first >= 0)
		close(first);
	if (!rc)
		return t;
	err_set(e, EX_UNAVAILABLE,
		"%s: Python and its package pyarrow read this file, but %s does not start: %s; "
		"install python3 and pyarrow, or set PT_PYTHON to a python3 that has pyarrow",
		s->name, python.s, strerror(rc));
	t->pid = 0;
	table_close(t);
	return NULL;
}

/* Waits for the end of the process. Returns -1 if it failed. */
static int reap(struct table *t, struct err *e)
{
	int status = 0;
	pid_t pid = t->pid, got;
	t->pid = 0;
	do
		got = pid ? waitpid(pid, &status, 0) : 0;
	while (got < 0 && errno == EINTR);
	if (WIFSIGNALED(status))
		return err_set(e, EX_UNAVAILABLE,
			"%s: the python3 that reads it was killed by signal %d (%s)",
			t->name, WTERMSIG(status), strsignal(WTERMSIG(status)));
	if (WEXITSTATUS(status))
		return err_set(e, EX_UNAVAILABLE,
			"%s: the python3 that reads it exited with code %d", t->name,
			WEXITSTATUS(status));
	return 0;
}

static int reject_stream(const struct table *t, struct err *e)
{
	return err_set(e, EX_SOFTWARE,
		"%s: the python3 that reads it sent data that are not valid", t->name);
}

/* Reads n bytes of the pipe. */
static int read_bytes(void *from, void *to, size_t n, struct err *e)
{
	struct table *t = from;
	for (char *p = to; n;) {
		size_t now = n < t->n - t->at ? n : t->n - t->at;
		memcpy(p, t->buffer + t->at, now);
		t->at += now;
		p += now;
		n -= now;
		if (!n)
			break;
		bool is_large = n >= BUFFER_BYTES;
		ssize_t got = read_some(
			t->fd, is_large ? p : t->buffer, is_large ? n : BUFFER_BYTES);
		if (got < 0)
			return err_errno(e, t->name);
		if (!got)
			return reap(t, e) ? -1 : reject_stream(t, e);
		t->at = 0;
		t->n = is_large ? 0 : (size_t)got;
		p += is_large ? got : 0;
		n -= is_large ? (size_t)got : 0;
	}
	return 0;
}

/* Sets *e to the error that the process reports. */
static int read_error(struct table *t, struct err *e)
{
	int64_t code, n;
	char text[512] = "";
	if (read_bytes(t, &code, sizeof(code), e) || read_bytes(t, &n, sizeof(n), e))
		return -1;
	if (n < 0 || n >= (int64_t)sizeof(text) ||
		(code != EX_DATAERR && code != EX_UNAVAILABLE))
		return reject_stream(t, e);
	if (read_bytes(t, text, (size_t)n, e) || reap(t, e))
		return -1;
	return err_set(e, (int)code, "%s: %s", t->name, text);
}

static int read_end(struct table *t, struct err *e)
{
	char byte;
	if (t->at < t->n || read_some(t->fd, &byte, 1))
		return reject_stream(t, e);
	t->has_ended = true;
	return reap(t, e);
}

/* Reads the next chunk with rows: 1; 0 at the end, -1 on an error. */
static int read_chunk(struct table *t, struct err *e)
{
	int64_t kind;
	column_free(t->column);
	t->column = NULL;
	t->left = 0;
	if (read_bytes(t, &kind, sizeof(kind), e))
		return -1;
	if (kind == CHUNK_ERROR)
		return read_error(t, e);
	if (kind == CHUNK_END)
		return read_end(t, e);
	if (kind != CHUNK_COLUMN)
		return reject_stream(t, e);
	if (read_bytes(t, &t->left, sizeof(t->left), e) ||
		read_bytes(t, &t->position, sizeof(t->position), e))
		return -1;
	if (t->left < 0 || t->left > MAX_ROWS || t->position < 0)
		return reject_stream(t, e);
	struct err why = {0};
	t->column = column_read(read_bytes, t, t->left, t->is_text, &why);
	if (t->column)
		return 1;
	*e = why;
	return why.code ? -1 : reject_stream(t, e);
}

int table_next(struct table *t, struct str *row, enum row_state *state, struct err *e)
{
	while (!t->left) {
		int rc = t->has_ended ? 0 : read_chunk(t, e);
		if (rc <= 0)
			return rc;
	}
	t->left--;
	*state = t->is_text ? column_next_text(t->column, row)
			    : column_next_row(t->column, row);
	return 1;
}

int64_t table_bytes_read(const struct table *t)
{
	return t->position;
}

void table_close(struct table *t)
{
	if (!t)
		return;
	close(t->fd);
	if (t->pid) {
		struct err ignored;
		kill(t->pid, SIGKILL);
		reap(t, &ignored);
	}
	column_free(t->column);
	free(t);
}
