/* Offloading to a file per rank. A thread reads and writes it in the order of the requests while
 * the rank computes. The thread calls no MPI. The file has no name, so it disappears when the
 * process ends. Its pages are dropped from the page cache as soon as they are on disk, because
 * the page cache counts against the memory limit of a container. */
#include "base/file.h"
#include "parallel/offload.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <pthread.h>
#include <signal.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

enum { QUEUE = OFFLOAD_QUEUE, STRIDE = 4 << 20 };

struct request {
	void *memory;
	int64_t n_bytes, pos;
	bool write;
};

struct file {
	struct offload_backend backend;
	int fd;
	char *directory;
	int64_t dirty_at, dirty_bytes; /* the last write: its pages may still be dirty */
	pthread_t thread;
	/* Shared with the thread, protected by the lock. Request i is queue[i % QUEUE]. */
	pthread_mutex_t lock;
	pthread_cond_t queued_more, done_more;
	struct request queue[QUEUE];
	uint64_t queued, done;
	bool end;
	int error; /* the first errno, 0: none */
};

/* ---- in the thread --------------------------------------------------------------- */

/* Waits until the last write is on the disk, and drops its pages. Returns 0 or an errno. */
static int flush_last_write(struct file *x)
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

/* Writes bytes, and drops the pages of the previous write. Returns an errno, or 0. */
static int write_stride(struct file *x, const void *from, int64_t n_bytes, int64_t pos)
{
	if (pwrite_all(x->fd, from, (size_t)n_bytes, pos))
		return errno;
	sync_file_range(x->fd, pos, n_bytes, SYNC_FILE_RANGE_WRITE); /* does not wait */
	int rc = flush_last_write(x);
	x->dirty_at = pos;
	x->dirty_bytes = n_bytes;
	return rc;
}

static int read_stride(struct file *x, void *to, int64_t n_bytes, int64_t pos)
{
	if (pread_all(x->fd, to, (size_t)n_bytes, pos))
		return errno ? errno : EIO;
	posix_fadvise(x->fd, pos, n_bytes, POSIX_FADV_DONTNEED);
	return 0;
}

/* Executes a request. Returns an errno, or 0. */
static int execute_request(struct file *x, const struct request *r)
{
	int rc = 0;
	for (int64_t i = 0; i < r->n_bytes && !rc; i += STRIDE) {
		int64_t n = min64(STRIDE, r->n_bytes - i);
		char *p = (char *)r->memory + i;
		rc = r->write ? write_stride(x, p, n, r->pos + i)
			      : read_stride(x, p, n, r->pos + i);
	}
	return rc;
}

/* Runs in a thread: executes requests in order until the file is closed. Keeps the first error. */
static void *run_requests(void *arg)
{
	struct file *x = arg;
	pthread_mutex_lock(&x->lock);
	for (;;) {
		while (x->done == x->queued && !x->end)
			pthread_cond_wait(&x->queued_more, &x->lock);
		if (x->done == x->queued)
			break;
		struct request r = x->queue[x->done % QUEUE];
		pthread_mutex_unlock(&x->lock);
		int rc = execute_request(x, &r);
		pthread_mutex_lock(&x->lock);
		x->error = x->error ? x->error : rc;
		x->done++;
		pthread_cond_signal(&x->done_more);
	}
	pthread_mutex_unlock(&x->lock);
	return NULL;
}

/* ---- the file -------------------------------------------------------------------- */

/* Opens a new file without a name in a directory. */
static int open_unlinked(const char *directory, struct err *e)
{
	scoped_str name = {0};
	int fd = open(directory, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
	if (fd >= 0)
		return fd;
	/* a file system without O_TMPFILE */
	if (errno == EOPNOTSUPP || errno == EISDIR) {
		str_printf(&name, "%s/pt-offload-XXXXXX", directory);
		fd = mkostemp(name.s, O_CLOEXEC);
		if (fd >= 0)
			unlink(name.s);
	}
	return fd >= 0 ? fd
		       : err_set(e, EX_IOERR, "--offload-to: %s: %s", directory,
				 strerror(errno));
}

/* Allocates the file, so that a full disk is detected before anything is computed. */
static int allocate_file(int fd, const char *directory, int64_t n_bytes, struct err *e)
{
	char text[NUM_TEXT];
	int rc = n_bytes ? posix_fallocate(fd, 0, n_bytes) : 0;
	if (!rc)
		return 0;
	return err_set(e, EX_IOERR, "--offload-to: %s: cannot allocate %s per rank: %s",
		directory, text_bytes(text, (double)n_bytes), strerror(rc));
}

static void warn_if_tmpfs(const char *directory)
{
	struct statfs fs;
	if (!statfs(directory, &fs) && fs.f_type == TMPFS_MAGIC)
		warn("--offload-to: %s is in memory (tmpfs); use a disk", directory);
}

/* Starts the thread with all signals blocked. */
static int start_thread(struct file *x)
{
	sigset_t all, old;
	sigfillset(&all);
	pthread_sigmask(SIG_BLOCK, &all, &old);
	int rc = pthread_create(&x->thread, NULL, run_requests, x);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	return rc;
}

/* ---- requests -------------------------------------------------------------------- */

/* Waits up to a millisecond for the thread, and polls messages, which other ranks may wait for. */
static void wait_and_poll(struct file *x)
{
	enum { MILLISECOND = 1000000, SECOND = 1000000000 };
	struct timespec until;
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_nsec += MILLISECOND;
	until.tv_sec += until.tv_nsec / SECOND;
	until.tv_nsec %= SECOND;
	pthread_cond_timedwait(&x->done_more, &x->lock, &until);
	pthread_mutex_unlock(&x->lock);
	comm_poll();
	pthread_mutex_lock(&x->lock);
}

/* Enqueues a request for the thread. Polls while the queue is full. Returns a ticket. */
static uint64_t enqueue_file(struct offload_backend *backend, bool write, void *memory,
	int64_t n_bytes, int64_t pos, uint64_t after)
{
	(void)after; /* requests are executed in order */
	struct file *x = (struct file *)backend;
	pthread_mutex_lock(&x->lock);
	while (x->queued - x->done == QUEUE)
		wait_and_poll(x);
	x->queue[x->queued % QUEUE] = (struct request){memory, n_bytes, pos, write};
	uint64_t ticket = ++x->queued;
	pthread_cond_signal(&x->queued_more);
	pthread_mutex_unlock(&x->lock);
	return ticket;
}

/* Blocks until a request is complete, polling. Ends the program if a read or write has failed. */
static void wait_for_file(struct offload_backend *backend, uint64_t ticket)
{
	struct file *x = (struct file *)backend;
	pthread_mutex_lock(&x->lock);
	while (x->done < ticket && !x->error)
		wait_and_poll(x);
	int error = x->error;
	pthread_mutex_unlock(&x->lock);
	if (error) /* the state is lost: the run must be resumed from a checkpoint */
		die(EX_IOERR, "--offload-to: %s: %s", x->directory, strerror(error));
}

static void copy_file(struct offload_backend *backend, bool write, void *memory,
	int64_t n_bytes, int64_t pos)
{
	wait_for_file(backend, enqueue_file(backend, write, memory, n_bytes, pos, 0));
}

/* ---- opening --------------------------------------------------------------------- */

/* Closes the descriptor and frees the state. The thread must have ended. */
static void free_file(struct file *x)
{
	pthread_cond_destroy(&x->queued_more);
	pthread_cond_destroy(&x->done_more);
	pthread_mutex_destroy(&x->lock);
	close(x->fd);
	free(x->directory);
	free(x);
}

/* Executes the requests that are left, ends the thread and frees the state. */
static void close_file(struct offload_backend *backend)
{
	struct file *x = (struct file *)backend;
	pthread_mutex_lock(&x->lock);
	x->end = true;
	pthread_cond_signal(&x->queued_more);
	pthread_mutex_unlock(&x->lock);
	pthread_join(x->thread, NULL);
	free_file(x);
}

struct offload_backend *offload_file_open(
	const char *directory, int64_t n_bytes, struct err *e)
{
	int fd = open_unlinked(directory, e);
	if (fd < 0)
		return NULL;
	if (allocate_file(fd, directory, n_bytes, e)) {
		close(fd);
		return NULL;
	}
	if (log_is_enabled())
		warn_if_tmpfs(directory);
	struct file *x = xcalloc(1, sizeof(*x));
	x->backend = (struct offload_backend){
		enqueue_file, wait_for_file, copy_file, close_file};
	x->fd = fd;
	x->directory = xstrdup(directory);
	pthread_mutex_init(&x->lock, NULL);
	pthread_cond_init(&x->queued_more, NULL);
	pthread_cond_init(&x->done_more, NULL);
	int rc = start_thread(x);
	if (!rc)
		return &x->backend;
	err_set(e, EX_FAILED, "--offload-to: cannot start a thread: %s", strerror(rc));
	free_file(x);
	return NULL;
}
