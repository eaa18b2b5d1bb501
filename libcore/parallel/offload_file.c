/*
 * A file of this rank for what does not fit into its memory: a thread reads and writes it
 * while the rank computes, in the order in which it was asked. No MPI in the thread.
 *
 * The file has no name, so nothing is left of it, however the program ends. Its pages are
 * given back as soon as they are on the disk: what was moved out of memory would else come
 * back as page cache, which counts against the limit of a container.
 */
#include "base/file.h"
#include "parallel/store_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

enum { QUEUE = 16, STRIDE = 4 << 20, STACK = 256 << 10 };

struct request {
	void *memory;
	int64_t n_bytes, at;
	bool write;
};

struct file {
	struct offload_backend how;
	int fd;
	char *folder;
	/* Of the last write, the pages may still be dirty. */
	int64_t dirty_at, dirty_bytes;
	bool threaded;
	pthread_t thread;
	/* What follows is both sides'. Request i waits in queue[i % QUEUE]. */
	pthread_mutex_t lock;
	pthread_cond_t asked_more, done_more;
	struct request queue[QUEUE];
	uint64_t asked, done;
	bool end;
	int error; /* the first errno, 0: none */
};

/* ---- in the thread ----------------------------------------------------------------- */

/* Waits until what was written last is on the disk, and lets its pages go. */
static int settle(struct file *x)
{
	int flags = SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE |
		    SYNC_FILE_RANGE_WAIT_AFTER;
	int rc = 0;
	if (x->dirty_bytes) {
		rc = sync_file_range(x->fd, x->dirty_at, x->dirty_bytes, (unsigned)flags);
		posix_fadvise(x->fd, x->dirty_at, x->dirty_bytes, POSIX_FADV_DONTNEED);
	}
	x->dirty_bytes = 0;
	return rc && errno != ENOSYS ? errno : 0;
}

static int write_stride(struct file *x, const void *from, int64_t n_bytes, int64_t at)
{
	if (pwrite_all(x->fd, from, (size_t)n_bytes, at))
		return errno;
	sync_file_range(x->fd, at, n_bytes, SYNC_FILE_RANGE_WRITE); /* begins */
	int rc = settle(x);
	x->dirty_at = at;
	x->dirty_bytes = n_bytes;
	return rc;
}

static int read_stride(struct file *x, void *to, int64_t n_bytes, int64_t at)
{
	if (pread_all(x->fd, to, (size_t)n_bytes, at))
		return errno ? errno : EIO;
	posix_fadvise(x->fd, at, n_bytes, POSIX_FADV_DONTNEED);
	return 0;
}

static int serve(struct file *x, const struct request *r)
{
	int rc = 0;
	for (int64_t i = 0; i < r->n_bytes && !rc; i += STRIDE) {
		int64_t n = min64(STRIDE, r->n_bytes - i);
		char *p = (char *)r->memory + i;
		rc = r->write ? write_stride(x, p, n, r->at + i)
			      : read_stride(x, p, n, r->at + i);
	}
	return rc;
}

static void *serve_all(void *with)
{
	struct file *x = with;
	pthread_mutex_lock(&x->lock);
	for (;;) {
		while (x->done == x->asked && !x->end)
			pthread_cond_wait(&x->asked_more, &x->lock);
		if (x->done == x->asked)
			break;
		struct request r = x->queue[x->done % QUEUE];
		pthread_mutex_unlock(&x->lock);
		int rc = serve(x, &r);
		pthread_mutex_lock(&x->lock);
		x->error = x->error ? x->error : rc;
		x->done++;
		pthread_cond_signal(&x->done_more);
	}
	pthread_mutex_unlock(&x->lock);
	return NULL;
}

/* ---- the file ---------------------------------------------------------------------- */

static int make_file(const char *folder, struct err *e)
{
	struct str name = {0};
	int fd = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
	if (fd >= 0)
		return fd;
	if (errno == EOPNOTSUPP ||
		errno == EISDIR) { /* a file system without such files */
		str_printf(&name, "%s/pt-offload-XXXXXX", folder);
		fd = mkostemp(name.s, O_CLOEXEC);
		if (fd >= 0)
			unlink(name.s);
		str_free(&name);
	}
	return fd >= 0 ? fd
		       : err_set(e, EX_IOERR, "offload-to: %s: %s", folder,
				 strerror(errno));
}

/* All of its room at once: a disk that is full is found out before anything is computed. */
static int make_room(int fd, const char *folder, int64_t n_bytes, struct err *e)
{
	char text[NUM_TEXT];
	int rc = n_bytes ? posix_fallocate(fd, 0, n_bytes) : 0;
	if (!rc)
		return 0;
	return err_set(e, EX_IOERR, "offload-to: %s: no room for %s of a rank: %s",
		folder, text_bytes(text, (double)n_bytes), strerror(rc));
}

static void warn_of_memory(const char *folder)
{
	struct statfs fs;
	if (!statfs(folder, &fs) && fs.f_type == TMPFS_MAGIC)
		warn("offload-to: %s is memory (tmpfs): nothing is saved", folder);
}

/* Signals are the program's. */
static void start_thread(struct file *x)
{
	sigset_t all, old;
	pthread_attr_t small;
	sigfillset(&all);
	pthread_attr_init(&small);
	pthread_attr_setstacksize(&small, STACK);
	pthread_sigmask(SIG_BLOCK, &all, &old);
	x->threaded = !pthread_create(&x->thread, &small, serve_all, x);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	pthread_attr_destroy(&small);
}

/* ---- asking ------------------------------------------------------------------------ */

/* Others may wait for messages of this rank meanwhile. */
static void wait_a_moment(struct file *x)
{
	enum { MOMENT = 1000000, SECOND = 1000000000 };
	struct timespec until;
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_nsec += MOMENT;
	until.tv_sec += until.tv_nsec / SECOND;
	until.tv_nsec %= SECOND;
	pthread_cond_timedwait(&x->done_more, &x->lock, &until);
	pthread_mutex_unlock(&x->lock);
	comm_poll();
	pthread_mutex_lock(&x->lock);
}

static uint64_t ask_file(struct offload_backend *backend, bool write, void *memory, int64_t n_bytes,
	int64_t at, uint64_t after)
{
	(void)after; /* all come in their order */
	struct file *x = (struct file *)backend;
	const struct request r = {memory, n_bytes, at, write};
	if (!x->threaded) {
		int rc = serve(x, &r);
		x->error = x->error ? x->error : rc;
		return ++x->done;
	}
	pthread_mutex_lock(&x->lock);
	while (x->asked - x->done == QUEUE)
		wait_a_moment(x);
	x->queue[x->asked % QUEUE] = r;
	uint64_t ticket = ++x->asked;
	pthread_cond_signal(&x->asked_more);
	pthread_mutex_unlock(&x->lock);
	return ticket;
}

static void wait_for_file(struct offload_backend *backend, uint64_t ticket)
{
	struct file *x = (struct file *)backend;
	pthread_mutex_lock(&x->lock);
	while (x->done < ticket && !x->error)
		wait_a_moment(x);
	int error = x->error;
	pthread_mutex_unlock(&x->lock);
	if (error) /* what is lost is lost: the run ends, and goes on from a checkpoint */
		die(EX_IOERR, "offload-to: %s: %s", x->folder, strerror(error));
}

static void move_rows(
	struct offload_backend *backend, bool write, void *memory, int64_t n_bytes, int64_t at)
{
	wait_for_file(backend, ask_file(backend, write, memory, n_bytes, at, 0));
}

/* ---- opening ----------------------------------------------------------------------- */

static void close_file(struct offload_backend *backend)
{
	struct file *x = (struct file *)backend;
	if (x->threaded) {
		pthread_mutex_lock(&x->lock);
		x->end = true;
		pthread_cond_signal(&x->asked_more);
		pthread_mutex_unlock(&x->lock);
		pthread_join(x->thread, NULL);
	}
	pthread_cond_destroy(&x->asked_more);
	pthread_cond_destroy(&x->done_more);
	pthread_mutex_destroy(&x->lock);
	close(x->fd);
	free(x->folder);
	free(x);
}

struct offload_backend *offload_file_open(const char *folder, int64_t n_bytes, struct err *e)
{
	int fd = make_file(folder, e);
	if (fd < 0)
		return NULL;
	if (make_room(fd, folder, n_bytes, e)) {
		close(fd);
		return NULL;
	}
	if (log_speaks())
		warn_of_memory(folder);
	struct file *x = xcalloc(1, sizeof(*x));
	x->how = (struct offload_backend){ask_file, wait_for_file, move_rows, close_file};
	x->fd = fd;
	x->folder = xstrdup(folder);
	pthread_mutex_init(&x->lock, NULL);
	pthread_cond_init(&x->asked_more, NULL);
	pthread_cond_init(&x->done_more, NULL);
	start_thread(x);
	return &x->how;
}
