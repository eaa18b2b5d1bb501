/* The emulated NCCL: communicators, and registered memory. */
#include "tests/emu/nccl_inside.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

/* ---- communicators ------------------------------------------------------------------------ */

int emu_ncclGetVersion(int *version)
{
	*version = 22809;
	return NCCL_SUCCESS;
}

const char *emu_ncclGetErrorString(int result)
{
	static const char *const texts[] = {"no error", "unhandled cuda error",
		"unhandled system error", "internal error", "invalid argument",
		"invalid usage", "remote process exited or there was a network error",
		"NCCL operation in progress"};
	return result >= 0 && result <= NCCL_IN_PROGRESS ? texts[result] : "unknown";
}

const char *emu_ncclGetLastError(struct nccl_comm *c)
{
	return c ? c->error_text : "";
}

int emu_ncclGetUniqueId(struct nccl_id *id)
{
	static int n;
	memset(id, 0, sizeof(*id));
	snprintf(
		id->bytes, sizeof(id->bytes), "/pt-emu-nccl-%ld-%d", (long)getpid(), n++);
	return NCCL_SUCCESS;
}

static struct shared *map_shared(const char *name)
{
	int fd = shm_open(name, O_RDWR | O_CREAT, 0600);
	if (fd < 0 || ftruncate(fd, sizeof(struct shared)))
		emu_stop("NCCL: %s: %s", name, strerror(errno));
	void *p = mmap(
		NULL, sizeof(struct shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	if (p == MAP_FAILED)
		emu_stop("NCCL: %s: %s", name, strerror(errno));
	return (struct shared *)p;
}

/* Joins those who have the same name. */
static void join(struct nccl_comm *c, const char *name, int n, int rank)
{
	const char *host = getenv("NCCL_HOSTID"), *first = getenv("PT_EMU_GPU");
	if (n > MOST_RANKS)
		emu_stop("NCCL: %d ranks, and the emulation has %d", n, MOST_RANKS);
	snprintf(c->name, sizeof(c->name), "%s", name);
	c->shared = map_shared(name);
	c->n = n;
	c->rank = rank;
	struct member *m = &c->shared->member[rank];
	snprintf(m->host, sizeof(m->host), "%s", host ? host : "this");
	cudaGetDevice(&m->gpu);
	m->gpu += first ? atoi(first) : 0;
	m->here.store(1);
}

/* Two ranks of one host may not have the same GPU. */
static int find_duplicates(struct nccl_comm *c)
{
	struct member *m = c->shared->member;
	for (int i = 0; i < c->n; i++)
		for (int k = 0; k < i; k++)
			if (m[i].gpu == m[k].gpu && !strcmp(m[i].host, m[k].host)) {
				snprintf(c->error_text, sizeof(c->error_text),
					"Duplicate GPU detected : rank %d and rank %d", k,
					i);
				return NCCL_INVALID_USAGE;
			}
	return NCCL_SUCCESS;
}

/* Goes on with joining; true: it is ready, or has failed. */
static bool try_ready(struct nccl_comm *c)
{
	if (c->ready)
		return true;
	for (int i = 0; i < c->n; i++)
		if (!c->shared->member[i].here.load())
			return false;
	c->error = find_duplicates(c);
	c->ready = true;
	shm_unlink(c->name); /* all have mapped it */
	return true;
}

static int wait_if_blocking(struct nccl_comm *c)
{
	if (!c->blocking)
		return NCCL_IN_PROGRESS;
	while (!try_ready(c))
		usleep(100);
	return c->error;
}

int emu_ncclCommInitRankConfig(struct nccl_comm **out, int n_ranks, struct nccl_id id,
	int rank, struct nccl_config *config)
{
	if (config->magic != (unsigned)NCCL_MAGIC || config->size < sizeof(*config))
		return NCCL_INVALID_ARGUMENT;
	struct nccl_comm *c = (struct nccl_comm *)calloc(1, sizeof(*c));
	c->blocking = config->blocking != 0;
	join(c, id.bytes, n_ranks, rank);
	*out = c;
	return wait_if_blocking(c);
}

/* The ranks of this color, in the order of their keys, once all have said theirs. */
static void start_split(struct nccl_comm *c)
{
	struct nccl_comm *from = c->parent;
	int n = 0, rank = 0;
	for (int i = 0; i < from->n; i++)
		if (from->shared->member[i].splits.load() < c->splits)
			return;
	for (int i = 0; i < from->n; i++) {
		const struct member *m = &from->shared->member[i];
		if (m->color != c->color)
			continue;
		n++;
		rank += m->key < c->key || (m->key == c->key && i < from->rank);
	}
	char name[64];
	snprintf(name, sizeof(name), "%.40s.%llu.%d", from->name,
		(unsigned long long)c->splits, c->color);
	join(c, name, n, rank);
	c->parent = NULL;
	c->splits = 0;
}

/* Goes on with a split; true: it is complete. The next one begins when all have read the keys of this
 * one. */
static bool try_split(struct nccl_comm *c)
{
	struct nccl_comm *p = c->child;
	if (p->parent) {
		start_split(p);
		if (p->parent)
			return false;
		c->shared->member[c->rank].left.fetch_add(1);
	}
	for (int i = 0; i < c->n; i++)
		if (c->shared->member[i].left.load() < (int)c->splits)
			return false;
	if (p->color < 0) {
		shm_unlink(p->name);
		munmap(p->shared, sizeof(*p->shared));
		free(p);
	} else if (!try_ready(p)) {
		return false;
	} else {
		*c->out = p;
	}
	c->child = NULL;
	return true;
}

/* *part is set when the parent is no longer in progress. */
int emu_ncclCommSplit(struct nccl_comm *c, int color, int key, struct nccl_comm **part,
	struct nccl_config *config)
{
	if (!c->ready || c->child)
		emu_stop("NCCL: a communicator is split that is not ready");
	struct member *m = &c->shared->member[c->rank];
	m->color = color;
	m->key = key;
	m->splits.store(++c->splits);
	struct nccl_comm *p = (struct nccl_comm *)calloc(1, sizeof(*p));
	p->parent = c;
	p->splits = c->splits;
	p->color = color;
	p->key = key;
	p->blocking = config ? config->blocking != 0 : c->blocking;
	c->child = p;
	c->out = part;
	*part = NULL;
	if (!c->blocking)
		return NCCL_IN_PROGRESS;
	while (!try_split(c))
		usleep(50);
	return NCCL_SUCCESS;
}

int emu_ncclCommGetAsyncError(struct nccl_comm *c, int *error)
{
	*error = c->error;
	if (!c->ready ? !try_ready(c) : c->child && !try_split(c))
		*error = NCCL_IN_PROGRESS;
	if (c->waiting && c->late-- > 0) {
		*error = NCCL_IN_PROGRESS;
	} else if (c->waiting) {
		struct operation *o = c->waiting;
		c->waiting = NULL;
		emu_nccl_enqueue(c->waiting_stream, o);
	}
	*error = c->error ? c->error : *error;
	return NCCL_SUCCESS;
}

static int leave(struct nccl_comm *c)
{
	if (!c)
		return NCCL_SUCCESS;
	munmap(c->shared, sizeof(*c->shared));
	free(c);
	return NCCL_SUCCESS;
}

int emu_ncclCommFinalize(struct nccl_comm *c)
{
	if (c->in_graphs)
		emu_stop(
			"NCCL: a communicator is finalized before the graph that uses it is freed");
	emu_wait_all();
	return NCCL_SUCCESS;
}

int emu_ncclCommDestroy(struct nccl_comm *c)
{
	if (c && c->done != c->begun)
		emu_stop(
			"NCCL: a communicator is destroyed before its operations are complete");
	return leave(c);
}

int emu_ncclCommAbort(struct nccl_comm *c)
{
	return leave(c);
}

int emu_ncclCommRegister(struct nccl_comm *c, void *p, size_t n_bytes, void **handle)
{
	emu_nccl_check_pointer("register", p);
	if (!c->ready || !n_bytes)
		return NCCL_INVALID_USAGE;
	*handle = p;
	return NCCL_SUCCESS;
}

int emu_ncclCommDeregister(struct nccl_comm *, void *handle)
{
	return handle ? NCCL_SUCCESS : NCCL_INVALID_ARGUMENT;
}

int emu_ncclCommWindowRegister(
	struct nccl_comm *c, void *p, size_t n_bytes, void **win, int flags)
{
	int64_t all[MOST_RANKS];
	if ((uintptr_t)p % 4096 || n_bytes % 4096 || flags != NCCL_WIN_SYMMETRIC)
		emu_stop(
			"NCCL: a window of %zu bytes at %p, flags %d", n_bytes, p, flags);
	c->shared->member[c->rank].window.store((int64_t)n_bytes);
	for (int i = 0; i < c->n; i++)
		while (!(all[i] = c->shared->member[i].window.load()))
			usleep(50);
	for (int i = 0; i < c->n; i++)
		if (all[i] != (int64_t)n_bytes)
			emu_stop("NCCL: windows of %zu and %ld bytes", n_bytes,
				(long)all[i]);
	c->window = (char *)p;
	c->window_bytes = n_bytes;
	return emu_ncclCommRegister(c, p, n_bytes, win);
}

int emu_ncclCommWindowDeregister(struct nccl_comm *c, void *win)
{
	c->window = NULL;
	return emu_ncclCommDeregister(c, win);
}

int emu_ncclMemAlloc(void **p, size_t n_bytes)
{
	return cudaMalloc(p, n_bytes) ? NCCL_CUDA_ERROR : NCCL_SUCCESS;
}

int emu_ncclMemFree(void *p)
{
	return cudaFree(p) ? NCCL_CUDA_ERROR : NCCL_SUCCESS;
}
