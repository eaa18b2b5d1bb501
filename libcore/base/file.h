/* Files: reading them, replacing them atomically and durably, and removing temporary ones when
 * the program ends. Functions return -1 with *e set on failure, except as noted. */
#pragma once

#include "base/base.h"

#include <dirent.h>

/* ---- file.c ---------------------------------------------------------------------- */

/* Sets the error EX_IOERR with "NAME: " and the text of errno. Returns -1. */
int err_errno(struct err *e, const char *name);
/* Opens a file for reading, and returns its descriptor; -1 with errno set. Prints a message if a
 * FIFO has no data for a second. */
int file_open(const char *path);
/* Opens an output named by the user, which may be a link, a pipe or a device; flags: O_CREAT,
 * O_TRUNC. Prints a message if a FIFO has no reader for a second. -1 with errno set. */
int file_open_output(const char *path, int flags);
/* Appends the contents of a file to `out`; a file larger than max_bytes is an error. */
int file_read(const char *path, size_t max_bytes, struct str *out, struct err *e);
/* Appends the rest of an open file, which messages call `name`. */
int file_read_rest(
	int fd, const char *name, size_t max_bytes, struct str *out, struct err *e);
/* Calls on_line() with each line of the rest of an open file, without its line break. A last line
 * without line break is appended to `incomplete` instead. Fails if a line is longer than 64 MiB. */
typedef int line_fn(void *context, const char *line, size_t len, struct err *e);
int file_read_lines(int fd, const char *name, line_fn *on_line, void *context,
	struct str *incomplete, struct err *e);
int file_make_directory(const char *path, struct err *e); /* as mkdir -p */
bool file_exists(const char *path);
/* Sets *out to the first file that a pattern of glob() matches, relative to the program's
 * directory. Returns false if there is none. */
bool file_find_near_program(struct str *out, const char *pattern);
/* Sets *out to the path of an installed data file, relative to share/. Defined in preset.c. */
void share_path(struct str *out, const char *relative);
/* Closes a directory, unless NULL, at the end of its scope: `scoped_dir *d = opendir(path)`. */
#define scoped_dir __attribute__((cleanup(close_directory))) DIR
void close_directory(DIR **d);
bool file_is_fifo(const char *path);
/* Fails if a file in an untrusted directory is a FIFO or device, which could block the reader. */
int file_check_regular(const char *path, struct err *e);
bool file_is_directory(const char *path); /* keeps errno */
/* Fails if `path` is a symbolic link that neither this user nor root made: it could make the program
 * remove files elsewhere. (This user may have linked a directory to a larger disk.) */
int file_check_link(const char *path, struct err *e);
/* Opens a file that the program writes at a known name, where another user could put something
 * else: does not follow a link, wait for a FIFO, or open a file with hard links for writing. -1
 * with errno set: ELOOP if it is not a plain file, EMLINK if it has hard links
 * (file_check_plain()). */
int file_open_plain(const char *path, int flags);
int file_check_plain(const char *path, struct err *e); /* 0 also if it does not exist */
/* Write or read all bytes; -1 with errno set (0: end of file). */
int write_all(int fd, const void *p, size_t n_bytes);
/* Writes n_bytes at an offset. Returns -1 with errno set. */
int pwrite_all(int fd, const void *p, size_t n_bytes, int64_t offset);
/* Reads exactly n_bytes at an offset. Returns -1 with errno set; errno 0: the file ends before. */
int pread_all(int fd, void *p, size_t n_bytes, int64_t offset);
/* Reads bytes [offset, offset + n_bytes) of an open file, which messages call `name`. */
int file_read_at(
	int fd, const char *name, void *p, size_t n_bytes, int64_t offset, struct err *e);
/* Reads up to n_bytes first bytes of an open file. Returns their number; -1 with *e set. */
int64_t file_read_first(int fd, const char *name, void *p, size_t n_bytes, struct err *e);
/* Reads the first bytes of the regular file at `path`, to detect its format; -1: cannot be
 * opened. A read error ends the program with EX_IOERR, since the wrong format would be detected. */
int64_t file_sniff(const char *path, void *p, size_t n_bytes);
/* Calls read(), and repeats it if a signal interrupts it. */
ssize_t read_some(int fd, void *p, size_t n_bytes);
/* Copies the rest of a file. Returns -1 with errno set, or 1 if it has more than max_bytes. */
int copy_up_to(int from_fd, int to_fd, int64_t max_bytes);
/* Replaces `path` by a symbolic link, atomically and durably. */
int file_link(const char *target, const char *path, struct err *e);
/* Returns -1 if the file system of `path` has less than n_bytes free; 0 also if that is unknown. */
int file_check_space(const char *path, int64_t n_bytes, struct err *e);
/* Locks a file for writing, against other processes (and hosts, if the file system supports it),
 * until *fd is closed. Returns 0 or an errno value: EAGAIN when another process has the lock.
 * may_create: creates a missing file. */
int file_lock(const char *path, bool may_create, int *fd);

/* A file that appears under its name only when it is complete: it is written as NAME.xxx.tmp, with
 * 16 random digits, synced and renamed, and its directory is synced. */
struct durable {
	char *path, *tmp;
	bool keeps; /* a commit fails if the file exists, instead of replacing it */
};

/* Creates the empty temporary file, which no other program uses. */
int durable_begin(struct durable *d, const char *path, struct err *e);
/* Joins a file that another rank has begun, to write a part of it. */
void durable_join(struct durable *d, const char *path, const char *tmp);
/* Opens the temporary file for reading and writing; -1 with errno set. */
int durable_open(const struct durable *d);
/* Returns the length of NAME in NAME.xxx.tmp; 0: not a temporary file. */
size_t durable_name_length(const char *tmp);
/* Removes the temporary files of this name that killed programs have left. The caller has a lock,
 * so that no other program writes the file. */
void durable_remove_stale(const char *path);
int durable_commit(struct durable *d, struct err *e);
/* Commits n files under a lock on the directory of the first one, so that two programs that write
 * the same set of files do not mix them. */
int durable_commit_all(struct durable *const *d, int64_t n, struct err *e);
void durable_abort(struct durable *d);	/* removes the temporary file */
void durable_forget(struct durable *d); /* only frees *d: another rank commits the file */
/* Writes the text to the temporary file of durable_begin(). */
int durable_write_text(const struct durable *d, const struct str *text, struct err *e);
/* Replaces a file durably by this text. */
int file_replace(const char *path, const struct str *text, struct err *e);
/* Creates or truncates an output, which may be a pipe or a device. Returns the descriptor. */
int file_begin(const char *path, struct err *e);
/* Closes an output of file_begin() after writes with result rc (-1 with errno set). Removes the
 * file if a write failed. */
int file_end(int fd, const char *path, int rc, struct err *e);
/* Closes a file, which messages call `name`, after writes with result rc (-1 with errno set). */
int file_close(int fd, const char *name, int rc, struct err *e);

/* ---- cleanup.c: files that are removed when the program ends ---------------------- */

/* Registers a file that exit() and fatal signals remove, until cleanup_forget(). Does not change
 * signals that the program handles or ignores. Thread-safe. */
void cleanup_add(const char *path);
/* Takes a file off the list, so that it remains on disk. */
void cleanup_forget(const char *path);
void cleanup_remove(const char *path); /* removes a registered file now */
/* Creates and registers a file atomically. Returns a descriptor; -1 with errno set, EEXIST if it
 * exists. is_template: path is a template for mkostemp(), which changes it. */
int cleanup_create(char *path, bool is_template);
/* Removes all registered files, in a handler of a fatal signal. Async-signal-safe. */
void cleanup_run(void);

/* Creates and registers a file in $TMPDIR (or /tmp), and sets `path`. Returns a descriptor. */
int file_temporary(char path[AT_LEAST(4096)], struct err *e);
const char *file_temporary_directory(void);

/* ---- foreign.c: unsupported files, by their first bytes --------------------------- */

/* The expected content of a file, which determines supported kinds and the advised conversion. */
enum foreign_use { FOREIGN_TEXT, FOREIGN_LOG, N_FOREIGN_USES };
enum { FOREIGN_BYTES = 16 }; /* bytes at the start of a file that identify its kind */
/* Sets an error with the kind of an unsupported file and a command that converts it, and returns
 * -1; 0: the kind is unknown or supported. */
int file_reject_foreign(const char *name, const char *first, size_t n,
	enum foreign_use use, struct err *e);
int file_reject_url(const char *name, struct err *e); /* 0: not a URL */

/* ---- spool.c: streams whose contents must be seekable ------------------------------ */

/* A stream and its first bytes, which a reader inspects before the stream is copied to a file. */
enum { STREAM_FIRST_BYTES = 512 };
struct stream {
	int fd;
	const char *name; /* in messages */
	size_t n; /* bytes in `first`; fewer than its size if the stream is shorter */
	char first[STREAM_FIRST_BYTES];
};
/* Reads the first bytes of a stream into s->first, and sets the other members. */
int stream_read_first(struct stream *s, int fd, const char *name, struct err *e);
/* Copies a stream to a temporary file, and returns its descriptor. Limits: max_bytes,
 * file_spool_limit(), and nine tenths of the free space, in bytes. */
int file_spool(const struct stream *s, int64_t max_bytes, char path[AT_LEAST(4096)],
	struct err *e);
void file_spool_limit(int64_t n_bytes); /* 0: none */
/* Returns how many bytes a copy may have: file_spool_limit(), and nine tenths of the free space. */
int64_t file_spool_space(int fd);
/* Sets the error that a copy is larger than `limit`, or fails because of `why`. Returns -1. */
int file_reject_spool(const char *name, int64_t limit, const char *why, struct err *e);
/* Copies a stream of at most max_bytes bytes to an unnamed file. Returns its descriptor, or -1. */
int file_copy_stream(int fd, const char *name, int64_t max_bytes, struct err *e);
/* Functions of a reader that needs a seekable file. */
struct seekable {
	/* Inspects the beginning of a stream, and sets its maximum size in bytes. */
	int (*look)(void *to, const struct stream *s, int64_t *max_bytes, struct err *e);
	/* Reads the open file at `path`. */
	int (*read)(void *to, int fd, const char *path, struct err *e);
	void *to;
};
/* Reads a file, or a temporary copy of a pipe or of standard input ("-"). */
int file_read_seekable(
	const char *path, const char *name, const struct seekable *reader, struct err *e);
