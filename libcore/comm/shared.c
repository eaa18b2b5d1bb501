/* Shared memory of the ranks on a host: each creates a memfd, which the other ranks open
 * through /proc. MPI's shared windows are not used: they are in /dev/shm, which is small in
 * containers, and a killed job may leave files there. */
#include "base/file.h"
#include "comm/shared.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

enum { PAGE = 4096, LINE = 64 };

/* A segment is this head, then a cache line per slot, then the data, aligned to a page. */
struct head {
	/* Verifies the segment: a process id may be another process in another container. */
	uint64_t token[2];
};

struct segment_info {
	int64_t pid, fd, n_bytes;
	uint64_t token[2];
};

static int64_t own_bytes; /* bytes of all segments of this process */

static int64_t data_offset(int n_slots)
{
	return round_up((n_slots + 1) * LINE, PAGE);
}

static int64_t segment_bytes(const struct comm_shared *m, int rank)
{
	return data_offset(m->n_slots) + m->n_bytes[rank];
}

static void *map_segment(int fd, int64_t size)
{
	void *p = mmap(NULL, (size_t)size, PROT_READ | PROT_WRITE,
		MAP_SHARED | MAP_NORESERVE, fd, 0);
	if (p == MAP_FAILED)
		return NULL;
	madvise(p, (size_t)size, MADV_HUGEPAGE);
	return p;
}

/* Creates and maps this rank's segment. Sets *own for the other ranks. */
static int create_segment(struct comm_shared *m, struct segment_info *own, struct err *e)
{
	int64_t size = data_offset(m->n_slots) + own->n_bytes;
	own->fd = memfd_create("pt-shared", MFD_CLOEXEC);
	bool good = own->fd >= 0 && !ftruncate((int)own->fd, size) &&
		    getrandom(own->token, sizeof(own->token), 0) >= 0;
	struct head *h = good ? map_segment((int)own->fd, size) : NULL;
	if (!h)
		return err_set(e, EX_FAILED, "shared memory: %s", strerror(errno));
	memcpy(h->token, own->token, sizeof(h->token));
	m->base[m->c->rank] = h;
	own_bytes += size;
	return 0;
}

/* Maps the segment of another rank, and verifies its size and token. */
static int map_other(
	struct comm_shared *m, int rank, const struct segment_info *info, struct err *e)
{
	char name[64];
	snprintf(name, sizeof(name), "/proc/%lld/fd/%lld", (long long)info->pid,
		(long long)info->fd);
	int fd = open(name, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		return err_set(e, EX_FAILED, "shared memory of rank %d: %s", rank,
			strerror(errno));
	bool fits = lseek(fd, 0, SEEK_END) == segment_bytes(m, rank);
	struct head *h = fits ? map_segment(fd, segment_bytes(m, rank)) : NULL;
	int error = h ? 0 : errno;
	close(fd);
	if (fits && !h)
		return err_set(e, EX_FAILED, "shared memory of rank %d: %s", rank,
			strerror(error));
	if (h && !memcmp(h->token, info->token, sizeof(h->token))) {
		m->base[rank] = h;
		return 0;
	}
	if (h)
		munmap(h, (size_t)segment_bytes(m, rank));
	return err_set(e, EX_FAILED, "shared memory of rank %d is not visible", rank);
}

struct comm_shared *comm_shared_open(
	struct comm *c, int64_t n_bytes, int n_slots, struct err *e)
{
	struct comm_shared *m = xcalloc(1, sizeof(*m));
	struct segment_info own = {.pid = getpid(), .fd = -1, .n_bytes = n_bytes};
	struct segment_info *infos = xcalloc((size_t)c->size, sizeof(*infos));
	m->c = c;
	m->n_slots = n_slots;
	m->data = xcalloc((size_t)c->size, sizeof(*m->data));
	m->base = xcalloc((size_t)c->size, sizeof(*m->base));
	m->n_bytes = xcalloc((size_t)c->size, sizeof(*m->n_bytes));
	m->n_bytes[c->rank] = n_bytes;
	create_segment(m, &own, e);
	comm_allgather(c, &own, infos, sizeof(own));
	for (int r = 0; r < c->size; r++) {
		m->n_bytes[r] = infos[r].n_bytes;
		if (r != c->rank && !e->code)
			map_other(m, r, &infos[r], e);
		if (m->base[r])
			m->data[r] = (char *)m->base[r] + data_offset(n_slots);
	}
	free(infos);
	int failed = comm_agree(c, e); /* all ranks have mapped all segments */
	if (own.fd >= 0)
		close((int)own.fd);
	if (!failed)
		return m;
	comm_shared_close(m);
	return NULL;
}

void comm_shared_close(struct comm_shared *m)
{
	if (!m)
		return;
	own_bytes -= m->base[m->c->rank] ? segment_bytes(m, m->c->rank) : 0;
	for (int r = 0; r < m->c->size; r++)
		if (m->base[r])
			munmap(m->base[r], (size_t)segment_bytes(m, r));
	free(m->data);
	free(m->base);
	free(m->n_bytes);
	free(m);
}

static _Atomic uint64_t *counter_of(const struct comm_shared *m, int slot, int rank)
{
	BUG_ON(slot < 0 || slot >= m->n_slots);
	return (_Atomic uint64_t *)((char *)m->base[rank] + (slot + 1) * LINE);
}

void comm_shared_post(const struct comm_shared *m, int slot, uint64_t n)
{
	atomic_store_explicit(counter_of(m, slot, m->c->rank), n, memory_order_release);
}

bool comm_shared_all_posted(const struct comm_shared *m, int slot, uint64_t n)
{
	for (int r = 0; r < m->c->size; r++)
		if (atomic_load_explicit(counter_of(m, slot, r), memory_order_acquire) <
			n)
			return false;
	return true;
}

int64_t comm_shared_foreign(void)
{
	scoped_str text = {0};
	int64_t kib = 0;
	if (own_bytes &&
		!file_read("/proc/self/status", 1 << 16, &text, &(struct err){0})) {
		const char *rss = strstr(text.s, "RssShmem:");
		kib = rss ? atoll(rss + strlen("RssShmem:")) : 0;
	}
	return kib * 1024 > own_bytes ? kib * 1024 - own_bytes : 0;
}
