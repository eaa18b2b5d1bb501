/* Launches: the blocks of a grid, and their shared memory. */
#include "tests/emu/blocks.h"

#include <execinfo.h>
#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
	MAX_SHARED = 227 << 10,
	PAGE = 4096,
	AT_ONCE = 4 /* blocks that run at once, if there are no larger clusters */
};

static struct emu_cluster clusters[MAX_ALIVE];
static pthread_mutex_t one_kernel = PTHREAD_MUTEX_INITIALIZER;

/* ---- shared memory ------------------------------------------------------------------ */

static thread_local char shared_marker;

struct range {
	char *at;
	size_t n;
	const char *path; /* of this library */
};
static struct range shared_static;

static void shared_make(struct emu_block *b)
{
	size_t n = MAX_SHARED + PAGE;
	n = n / PAGE * PAGE;
	char *p = (char *)mmap(
		NULL, n + 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED || mprotect(p + PAGE, n, PROT_READ | PROT_WRITE))
		emu_stop("no memory for shared memory");
	b->shared_zero = (unsigned char *)p + PAGE;
	b->shared_end = b->shared_zero + n;
}

static int find_marker(struct dl_phdr_info *info, size_t n_bytes, void *range)
{
	char *marker = &shared_marker, *at = (char *)info->dlpi_tls_data;
	(void)n_bytes;
	if (!at ||
		!*info->dlpi_name) /* not loaded, or the program's own thread-local memory */
		return 0;
	for (int i = 0; i < info->dlpi_phnum; i++) {
		size_t n = info->dlpi_phdr[i].p_memsz;
		if (info->dlpi_phdr[i].p_type != PT_TLS || marker < at ||
			marker >= at + n)
			continue;
		((struct range *)range)->at = at;
		((struct range *)range)->n = n;
		((struct range *)range)->path = info->dlpi_name;
		return 1;
	}
	return 0;
}

/* Fills the shared memory of a new block with NaN, also past its end, where shared_check() looks.
 * Blocks at once have no static shared memory. */
static void shared_begin(void)
{
	memset(emu_shared, 0xff, (size_t)(now->shared_end - emu_shared));
	if (shared_static.n && (run.at_once * run.size == 1 || !run.begun))
		memset(shared_static.at, 0xff, shared_static.n);
}

static void shared_check(size_t n)
{
	for (const unsigned char *p = emu_shared + n; p < now->shared_end; p++)
		if (*p != 0xff)
			emu_stop("byte %d of %d of shared memory was written",
				(int)(p - emu_shared), (int)n);
}

bool emu_is_static(const void *p)
{
	const char *at = (const char *)p;
	return at >= shared_static.at && at < shared_static.at + shared_static.n;
}

uint32_t emu_address(const void *p)
{
	const unsigned char *at = (const unsigned char *)p;
	if (at < emu_shared || at >= now->shared_end)
		emu_stop("%p is not dynamic shared memory", p);
	return (uint32_t)(at - now->shared_zero);
}

unsigned char *emu_shared_at(uint32_t address, size_t n)
{
	unsigned char *at = now->shared_zero + address;
	if (at < emu_shared || at + n > now->shared_end)
		emu_stop("address %#x is not of dynamic shared memory", address);
	return at;
}

bool emu_is_shared(const void *p, size_t n)
{
	const char *at = (const char *)p;
	return ((const unsigned char *)p >= emu_shared &&
		       (const unsigned char *)p + n <= now->shared_end) ||
	       !shared_static.n ||
	       (at >= shared_static.at && at + n <= shared_static.at + shared_static.n);
}

/* ---- launches ----------------------------------------------------------------------- */

static struct sigaction before; /* the previous action */

static void put_text(const char *s)
{
	if (write(STDERR_FILENO, s, strlen(s)) < 0)
		_exit(127);
}

/* Prints the thread of the fault and restores the default action, which ends the program at
 * the repeated fault; if no kernel runs, restores the previous action. */
static void on_fault(int sig, siginfo_t *info, void *context)
{
	char text[300];
	void *frames[12];
	(void)context;
	if (run.inside) {
		snprintf(text, sizeof(text),
			"emulated GPU: block (%u, %u, %u) of (%u, %u, %u), "
			"thread (%u, %u, %u): touches %p (stack %p, dynamic shared "
			"memory "
			"%p to %p); addresses for addr2line -e:\n",
			blockIdx.x, blockIdx.y, blockIdx.z, gridDim.x, gridDim.y,
			gridDim.z, threadIdx.x, threadIdx.y, threadIdx.z, info->si_addr,
			(void *)run.current->stack, (void *)emu_shared,
			(void *)now->shared_end);
		put_text(text);
		backtrace_symbols_fd(frames, backtrace(frames, 12), STDERR_FILENO);
		signal(sig, SIG_DFL);
		return;
	}
	if (emu_is_device(info->si_addr))
		put_text("emulated GPU: the program touches memory of the device\n");
	sigaction(sig, &before, NULL);
}

/* Before each launch, since others may have installed handlers. */
static void faults_catch(void)
{
	static char stack[64 << 10];
	static stack_t alternative;
	struct sigaction sa = {}, old;
	if (!alternative.ss_sp) {
		alternative.ss_sp = stack;
		alternative.ss_size = sizeof(stack);
		sigaltstack(&alternative, NULL);
	}
	sa.sa_sigaction = on_fault;
	sa.sa_flags = SA_SIGINFO | SA_ONSTACK;
	sigaction(SIGSEGV, &sa, &old);
	if (old.sa_sigaction != on_fault)
		before = old;
}

/* Begins block i of the grid in the place of the running one. */
static void block_begin(int64_t i, struct emu_cluster *cluster, int rank)
{
	struct emu_block *b = now;
	if (!b->shared_end)
		shared_make(b);
	b->number = i;
	b->index = make_uint3((unsigned)(i % gridDim.x),
		(unsigned)(i / gridDim.x % gridDim.y),
		(unsigned)(i / gridDim.x / gridDim.y));
	b->cluster = cluster;
	b->rank = rank;
	b->alive = true;
	b->still = b->moved = false;
	b->shared = b->shared_end - (run.shared_bytes + 127) / 128 * 128;
	b->n_asking = 0;
	for (unsigned t = 0; t < (unsigned)run.n_threads; t++) {
		b->threads[t].state = FRESH;
		b->threads[t].n_copies = 0;
		b->threads[t].file = NULL;
		b->threads[t].line = 0;
	}
	for (unsigned t = 0; run.begun < run.at_once && t < (unsigned)run.n_threads; t++)
		b->threads[t].index = make_uint3(t % blockDim.x,
			t / blockDim.x % blockDim.y, t / blockDim.x / blockDim.y);
	memset(b->together, 0, sizeof(b->together));
	emu_block_use(b);
	b->phase = (int)(i & 0xffff);
	emu_hopper_begin(run.n_threads, emu_kernel_registers(run.kernel, run.n_threads));
	emu_pass_begin(&b->warps, run.n_warps);
	now->lanes.left = 0;
	shared_begin();
}

/* Begins the next blocks of the grid, if any, as cluster c. */
static void cluster_begin(int c)
{
	int64_t n = run.n_clusters, i = run.launches % 2 ? n - 1 - run.begun : run.begun;
	if (run.begun == n)
		return;
	clusters[c] = (struct emu_cluster){run.size, run.size * run.n_threads, 0, 0};
	for (int rank = 0; rank < run.size; rank++) {
		now = &blocks[c * run.size + rank];
		block_begin(i * run.size + rank, &clusters[c], rank);
	}
	run.begun++;
}

/* Ends the running block, whose threads have ended. */
void emu_block_end(void)
{
	if (emu_hopper_end())
		emu_kernel_hopper(run.kernel);
	shared_check(run.shared_bytes);
	emu_kernel_check(run.kernel, run.shared_bytes, shared_static.at, shared_static.n,
		shared_static.path);
	now->alive = false;
	if (!--now->cluster->blocks)
		cluster_begin((int)(now->cluster - clusters));
}

static void launch_check(
	dim3 grid, dim3 block, size_t shared_bytes, const struct emu_kernel *k)
{
	if (!block.x || !block.y || !block.z || block.z > 64 ||
		(uint64_t)block.x * block.y * block.z > MAX_THREADS)
		emu_stop("a block of %u x %u x %u threads", block.x, block.y, block.z);
	if (!grid.x || !grid.y || !grid.z || grid.x > 0x7fffffffu || grid.y > 65535 ||
		grid.z > 65535)
		emu_stop("a grid of %u x %u x %u blocks", grid.x, grid.y, grid.z);
	emu_kernel_bounds(k, block.x * block.y * block.z);
	emu_kernel_fits(k, shared_bytes);
}

enum { MAX_ARG = 4096 };

struct launch {
	dim3 grid, block;
	size_t shared_bytes, arg_bytes;
	unsigned cluster;
	void (*fn)(void *);
	struct emu_kernel *kernel;
	bool is_short; /* without its last block */
	alignas(16) char arg[MAX_ARG];
};

static void launch_run(void *launch)
{
	alignas(128) static char arg[MAX_ARG]; /* for tensor maps */
	struct launch *l = (struct launch *)launch;
	int64_t n = (int64_t)l->grid.x * l->grid.y * l->grid.z;
	if (emu_breaks())
		return;
	pthread_mutex_lock(&one_kernel);
	shared_static = (struct range){NULL, 0, NULL};
	dl_iterate_phdr(find_marker, &shared_static);
	gridDim = l->grid;
	blockDim = l->block;
	run.fn = l->fn;
	run.arg = memcpy(arg, l->arg, l->arg_bytes);
	run.kernel = l->kernel;
	run.shared_bytes = l->shared_bytes;
	run.n_threads = (int)(blockDim.x * blockDim.y * blockDim.z);
	run.n_warps = (run.n_threads + LANES - 1) / LANES;
	run.size = (int)l->cluster;
	run.at_once = 1;
	if (run.size > 1 || emu_kernel_at_once(l->kernel))
		run.at_once = run.size < AT_ONCE ? AT_ONCE / run.size : 1;
	run.n_clusters = (n - l->is_short) / run.size;
	run.begun = 0;
	run.random = (uint32_t)(run.launches * 2654435761u) + emu_seed();
	emu_races_begin(n);
	emu_memory(true);
	faults_catch();
	run.inside = true;
	for (int c = 0; c < run.at_once; c++)
		cluster_begin(c);
	emu_blocks_run();
	if (run.at_once * run.size > 1 &&
		emu_was_written(shared_static.at, shared_static.n))
		emu_stop("static shared memory of blocks that run at once is not "
			 "emulated");
	emu_races_begin(0);
	run.inside = false;
	run.launches++;
	emu_memory(false);
	pthread_mutex_unlock(&one_kernel);
}

void emu_run(dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream,
	const void *kernel, unsigned cluster, void (*fn)(void *), const void *arg,
	size_t n_bytes)
{
	struct launch l;
	l.kernel = emu_kernel_of(kernel, emu_asked());
	launch_check(grid, block, shared_bytes, l.kernel);
	l.grid = grid;
	l.block = block;
	l.shared_bytes = shared_bytes;
	l.cluster = cluster;
	l.fn = fn;
	l.arg_bytes = n_bytes;
	l.is_short = emu_is_short(NULL);
	memcpy(l.arg, arg, n_bytes);
	emu_ask(stream, launch_run, &l, offsetof(struct launch, arg) + n_bytes);
}
