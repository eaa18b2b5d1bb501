/*
 * Files: reading them, replacing them atomically and durably, and removing temporary ones when
 * the program ends. Functions return -1 with *e set on failure, unless their comment says
 * otherwise.
 */
#pragma once

#include "base/base.h"

#include <dirent.h>

/* ---- file.c ---------------------------------------------------------------------- */

/* The error EX_IOERR with "NAME: " and what errno says. Returns -1. */
int err_errno(struct err *e, const char *name);
/* Opens a file for reading, and returns its descriptor; -1 with errno set. If no data comes from a
 * FIFO for a second, a message says that it is waited for. */
int file_open(const char *path);
/* Opens an output that the user has named, and that may also be a link, a pipe or a device; flags:
 * O_CREAT, O_TRUNC. If nobody opens a FIFO for reading for a second, a message says so. -1 with errno
 * set. */
int file_open_output(const char *path, int flags);
/* Appends the contents of a file to `out`; a file larger than max_bytes is an error. */
int file_read(const char *path, size_t max_bytes, struct str *out, struct err *e);
/* Appends the rest of an open file, which messages call `name`. */
int file_read_rest(
	int fd, const char *name, size_t max_bytes, struct str *out, struct err *e);
/* Calls take() with each line of the rest of an open file, without its line break. If the last line
 * has no line break, it may be incomplete: it is appended to `rest` and not taken. A line of more
 * than 64 MiB is an error. */
typedef int line_fn(void *to, const char *line, size_t len, struct err *e);
int file_lines(int fd, const char *name, line_fn *take, void *to, struct str *rest,
	struct err *e);
int file_make_directory(const char *path, struct err *e); /* as mkdir -p */
bool file_exists(const char *path);
/* preset.c: the path of a file that comes with the programs. */
void share_path(struct str *out, const char *below);
/* A directory, as in `scoped_dir *d = opendir(path)`, that is closed at the end of its scope. NULL: none. */
#define scoped_dir __attribute__((cleanup(close_directory))) DIR
void close_directory(DIR **d);
bool file_is_fifo(const char *path);
/* Fails if a file of a directory that is not trusted is a FIFO or device, for which reading would wait. */
int file_check_regular(const char *path, struct err *e);
bool file_is_folder(const char *path); /* errno stays */
/* Fails if `path` is a symbolic link of somebody else than this user or root, whose files are not to be
 * removed: who has linked a folder to a larger disk meant it. */
int file_check_link(const char *path, struct err *e);
/* Opens a file that the program writes at a known name, which somebody else could put something
 * else at: a link is not followed, a FIFO not waited for, and a file with hard links not opened for
 * writing. -1 with errno set: ELOOP if it is no plain file, EMLINK if it has hard links;
 * file_check_plain() says what it is. */
int file_open_plain(const char *path, int flags);
int file_check_plain(const char *path, struct err *e); /* 0 also if there is nothing */
/* They loop until all bytes are written or read; -1 with errno set (0: end of file). */
int write_all(int fd, const void *p, size_t n_bytes);
int pwrite_all(int fd, const void *p, size_t n_bytes, int64_t at);
int pread_all(int fd, void *p, size_t n_bytes, int64_t at);
/* Reads bytes [at, at + n_bytes) of an open file, which messages call `name`. */
int file_read_at(
	int fd, const char *name, void *p, size_t n_bytes, int64_t at, struct err *e);
/* Reads the first bytes of an open file: their number, at most n_bytes; -1 with *e set. */
int64_t file_read_first(int fd, const char *name, void *p, size_t n_bytes, struct err *e);
/* For detectors of formats: the same for the regular file at `path`; -1: there is none that can be opened.
 * A read that fails ends the program with EX_IOERR: the file would be taken for one of another format. */
int64_t file_sniff(const char *path, void *p, size_t n_bytes);
/* read(), but again after a signal. */
ssize_t read_some(int fd, void *p, size_t n_bytes);
/* Copies from the current position of `from` to its end; -1 with errno set; 1: there are more than
 * `most` bytes. */
int copy_most(int from, int to, int64_t most);
/* Replaces what is at `path` by a symbolic link, atomically and durably. */
int file_link(const char *target, const char *path, struct err *e);
/* -1 if the file system of `path` has less than n_bytes free; 0 also if that is not known. */
int file_room(const char *path, int64_t n_bytes, struct err *e);
/* Locks a file for writing, against other processes, and against other hosts where the file system
 * supports it; the lock ends when *fd is closed, at the latest with the process. Returns 0 or an
 * errno value: EAGAIN when another process has the lock. `make`: create the file if needed. */
int file_lock(const char *path, bool make, int *fd);

/* A file that appears under its name only when it is complete: it is written as NAME.xxx.tmp, with
 * 16 random digits, synced and renamed, and its directory is synced. */
struct durable {
	char *path, *tmp;
	bool keeps; /* an existing file of that name is an error, instead of being replaced */
};

/* Creates the empty temporary file, which no other program uses. */
int durable_begin_own(struct durable *d, const char *path, struct err *e);
/* For a rank that writes a part of the file that another one has begun. */
void durable_join(struct durable *d, const char *path, const char *tmp);
/* Opens the temporary file for reading and writing; -1 with errno set. */
int durable_open(const struct durable *d);
/* The length of the name in the name of a temporary file; 0: it is none. */
size_t durable_name(const char *tmp);
/* Removes the temporary files of this name that killed programs have left; for who has a lock that
 * says that no other program writes it. */
void durable_clear(const char *path);
int durable_commit(struct durable *d, struct err *e);
/* Commits n files under a lock on the directory of the first, so that two programs that write the
 * same set of files do not mix them. */
int durable_commit_all(struct durable *const *d, int64_t n, struct err *e);
void durable_abort(struct durable *d);	/* removes the temporary file */
void durable_forget(struct durable *d); /* frees *d only: another rank commits the file */
/* Writes the text to the temporary file of durable_begin_own(). */
int durable_put(const struct durable *d, const struct str *text, struct err *e);
/* Such a file with this text. */
int file_replace(const char *path, const struct str *text, struct err *e);
/* An output that may also be a pipe or a device: it is created or truncated. Returns the descriptor,
 * which file_end() closes after writes with result rc (-1 with errno set); a file that is not whole is
 * removed. */
int file_begin(const char *path, struct err *e);
int file_end(int fd, const char *path, int rc, struct err *e);
/* Closes a file, which messages call `name`, after writes with result rc (-1 with errno set). */
int file_close(int fd, const char *name, int rc, struct err *e);

/* ---- cleanup.c: files that are removed when the program ends ---------------------- */

/* Registers a file, which exit() and fatal signals then remove, until cleanup_forget(). Signals that
 * the program handles or ignores stay as they are. Thread-safe. */
void cleanup_add(const char *path);
void cleanup_forget(const char *path);
void cleanup_remove(const char *path); /* now */
/* Creates and registers a file, with no moment in between; -1 with errno set, EEXIST if it exists.
 * `pattern`: path is a template as for mkostemp(). Returns a descriptor. */
int cleanup_create(char *path, bool pattern);
/* Removes all registered files: for handlers of fatal signals. Async-signal-safe. */
void cleanup_run(void);

/* A new registered file in $TMPDIR (or /tmp), whose name is written to `path`. Returns a
 * descriptor. */
int file_temporary(char path[AT_LEAST(4096)], struct err *e);
const char *file_temporary_directory(void);

/* ---- foreign.c: files that are not read, by their first bytes --------------------- */

/* What a file was given as: it decides which kinds are read, and which conversion is advised. */
enum foreign_use { FOREIGN_TEXT, FOREIGN_LOG, N_FOREIGN_USES };
enum { FOREIGN_BYTES = 16 }; /* bytes at the start of a file that identify its kind */
/* Sets an error that names the kind of the file and a command that converts it, and returns
 * -1; 0: it is of no known kind, or is read. */
int file_refuse_foreign(const char *name, const char *first, size_t n,
	enum foreign_use use, struct err *e);
int file_refuse_url(const char *name, struct err *e); /* 0: it is none */

/* ---- spool.c: streams whose contents must be seekable ------------------------------ */

/* A stream, and its first bytes: a reader looks at them before it lets the stream be copied to a file. */
enum { STREAM_LOOKS_AT = 512 };
struct stream {
	int fd;
	const char *name; /* in messages */
	size_t n;	  /* fewer, if the stream ends before */
	char first[STREAM_LOOKS_AT];
};
int stream_look(struct stream *s, int fd, const char *name, struct err *e);
/* A temporary file with the whole stream, of at most `most` bytes, as many as file_spool_limit()
 * set, and nine tenths of what is free. */
int file_spool(
	const struct stream *s, int64_t most, char path[AT_LEAST(4096)], struct err *e);
void file_spool_limit(int64_t n_bytes); /* 0: none */
/* A copy of a whole stream, of at most `most` bytes, in a file without a name: its descriptor, or -1. */
int file_keep(int fd, const char *name, int64_t most, struct err *e);
/* Reads a file, or a copy of a stream; "-" is standard input. */
struct seekable {
	/* Looks at the beginning of a stream, and sets the bytes that it may have. */
	int (*look)(void *to, const struct stream *s, int64_t *most, struct err *e);
	/* Reads the open file at `path`. */
	int (*read)(void *to, int fd, const char *path, struct err *e);
	void *to;
};
int file_read_seekable(
	const char *path, const char *name, const struct seekable *how, struct err *e);
