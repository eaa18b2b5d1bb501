/* Blocks and threads. A thread is a coroutine; at a barrier or a warp-wide operation it
 * switches to the next runnable thread. A thread that never waits needs no switch: the next
 * one begins on the same stack. */
#include "tests/emu/inside.h"

#include <execinfo.h>
#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
	LANES = 32,
	MAX_THREADS = 1024,
	MAX_SHARED = 227 << 10,
	STACK_BYTES = 128 << 10,
	PAGE = 4096,
};

/* ---- contexts ----------------------------------------------------------------------- */

#if defined(__x86_64__) && !defined(EMU_UCONTEXT)
struct context {
	void *sp;
};

/* Saves the callee-saved registers on the stack and switches stacks. */
extern "C" EMU_INSIDE void emu_switch(struct context *from, struct context *to);
__asm__(".text\n"
	".hidden emu_switch\n"
	".globl emu_switch\n"
	".type emu_switch, @function\n"
	"emu_switch:\n"
	"	push %rbp\n"
	"	push %rbx\n"
	"	push %r12\n"
	"	push %r13\n"
	"	push %r14\n"
	"	push %r15\n"
	"	mov %rsp, (%rdi)\n"
	"	mov (%rsi), %rsp\n"
	"	pop %r15\n"
	"	pop %r14\n"
	"	pop %r13\n"
	"	pop %r12\n"
	"	pop %rbx\n"
	"	pop %rbp\n"
	"	ret\n"
	".size emu_switch, .-emu_switch\n");

static void context_make(struct context *c, char *stack, void (*fn)(void))
{
	void **sp = (void **)stack;
	*--sp = NULL; /* fn has no caller */
	*--sp = (void *)fn;
	for (int i = 0; i < 6; i++)
		*--sp = NULL;
	c->sp = sp;
}
#else
#include <ucontext.h>
struct context {
	ucontext_t u;
};

static void emu_switch(struct context *from, struct context *to)
{
	swapcontext(&from->u, &to->u);
}

static void context_make(struct context *c, char *stack, void (*fn)(void))
{
	getcontext(&c->u);
	c->u.uc_stack.ss_sp = stack - STACK_BYTES / 2;
	c->u.uc_stack.ss_size = STACK_BYTES / 2;
	c->u.uc_link = NULL;
	makecontext(&c->u, fn, 0);
}
#endif

/* ---- the running block -------------------------------------------------------------- */

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;
unsigned char *emu_shared;
int emu_lane;

enum state { FRESH, READY, AT_BARRIER, AT_WARP, AT_ASKING, DONE };

struct copy {
	void *to;
	const void *from;
	bool there;
	int64_t group;
};

struct thread {
	struct context context;
	char *stack;
	enum state state;
	uint3 index;
	const char *what, *file; /* what it waits for */
	int line;
	void *brought;	       /* argument of the warp-wide operation */
	bool (*ready)(void *); /* AT_ASKING: whether it can continue */
	void *asks;
	struct copy *copies;
	int n_copies, max_copies;
	int64_t groups; /* committed */
};

struct pass {
	int item, n, left, step;
};

static struct thread threads[MAX_THREADS];

static struct {
	void (*fn)(void *);
	void *arg;
	int64_t launches;
	int n_threads, n_warps;
	struct thread *current;
	struct context outside;
	/* The passes over the warps, and over the lanes of a warp. */
	int phase, warp;
	struct pass warps, lanes;
	/* The warp-wide operation of each warp, and its first thread. */
	struct {
		emu_op *op;
		const struct thread *there;
		int arrived;
	} together[MAX_THREADS / LANES];
	int n_asking;
	bool moved; /* some thread ran in this pass over the warps */
	bool inside;
} run;

static pthread_mutex_t one_kernel = PTHREAD_MUTEX_INITIALIZER;

void emu_stop(const char *fmt, ...)
{
	va_list ap;
	fprintf(stderr, "emulated GPU: ");
	if (run.inside)
		fprintf(stderr, "block (%u, %u, %u), thread (%u, %u, %u): ", blockIdx.x,
			blockIdx.y, blockIdx.z, threadIdx.x, threadIdx.y, threadIdx.z);
	va_start(ap, fmt);
	vfprintf(stderr, fmt, ap);
	va_end(ap);
	fprintf(stderr, "\n");
	signal(SIGABRT, SIG_DFL);
	abort();
}

/* A pass over n items, in an order that depends on the phase. */
static void pass_begin(struct pass *p, int n)
{
	p->n = p->left = n;
	p->step = run.phase % 2 ? n - 1 : 1;
	p->item = run.phase / 2 * 5 % n;
}

static int pass_next(struct pass *p)
{
	p->item += p->step;
	p->item -= p->item >= p->n ? p->n : 0;
	p->left--;
	return p->item;
}

static bool same_place(const struct thread *a, const struct thread *b)
{
	return a->line == b->line && (a->file == b->file || !strcmp(a->file, b->file));
}

static void warp_diverged(const struct thread *first, int n_lanes)
{
	const struct thread *there = NULL, *elsewhere = NULL;
	for (const struct thread *t = first; t < first + n_lanes; t++)
		*(t->state == AT_WARP ? &there : &elsewhere) = t;
	if (!elsewhere)
		emu_stop("%s:%d: %s in a warp of %d threads", there->file, there->line,
			there->what, n_lanes);
	emu_stop("lanes of a warp part: lane %d is at %s, %s:%d; lane %d %s, %s:%d",
		(int)(there - first), there->what, there->file, there->line,
		(int)(elsewhere - first),
		elsewhere->state == DONE ? "is at its end, having been last at"
					 : "is at __syncthreads",
		elsewhere->file ? elsewhere->file : "nowhere", elsewhere->line);
}

/* All threads are at a barrier or have ended: releases them; false: the block is done. */
static bool barrier_release(void)
{
	const struct thread *first = NULL;
	for (struct thread *t = threads; t < threads + run.n_threads; t++) {
		if (t->state != AT_BARRIER)
			continue;
		if (!first)
			first = t;
		if (!same_place(t, first))
			emu_stop("threads of a block are at different barriers: "
				 "%s:%d and %s:%d",
				first->file, first->line, t->file, t->line);
		t->state = READY;
	}
	run.phase++;
	emu_hopper_sync();
	pass_begin(&run.warps, run.n_warps);
	return first != NULL;
}

static void nobody_moves(void)
{
	const struct thread *last = NULL;
	fprintf(stderr, "emulated GPU: no thread can go on\n");
	for (const struct thread *t = threads; t < threads + run.n_threads; t++) {
		if (t->state == DONE || (last && same_place(t, last)))
			continue;
		fprintf(stderr, "  thread %d is at %s, %s:%d\n", (int)(t - threads),
			t->what, t->file, t->line);
		last = t;
	}
	emu_stop("no thread can go on");
}

/* The end of a pass over the warps: begins the next; false: the block is done. */
static bool pass_over(void)
{
	if (!run.n_asking)
		return barrier_release();
	if (!run.moved && !emu_hopper_idle())
		nobody_moves();
	run.moved = false;
	run.phase++;
	pass_begin(&run.warps, run.n_warps);
	return true;
}

static void warp_begin(void)
{
	int n_lanes;
	run.warp = pass_next(&run.warps);
	n_lanes = run.n_threads - run.warp * LANES;
	pass_begin(&run.lanes, n_lanes < LANES ? n_lanes : LANES);
}

static bool some_ask(const struct thread *first, int n_lanes)
{
	for (int i = 0; run.n_asking && i < n_lanes; i++)
		if (first[i].state == AT_ASKING)
			return true;
	return false;
}

/* Whose turn it is in the running warp; NULL: of none. */
static inline struct thread *next_lane(void)
{
	struct thread *first = threads + run.warp * LANES;
	while (run.lanes.left) {
		struct thread *t = first + pass_next(&run.lanes);
		if (t->state > READY && (t->state != AT_ASKING || !t->ready(t->asks)))
			continue;
		run.moved = true;
		return t;
	}
	return NULL;
}

static __attribute__((noinline)) struct thread *next_elsewhere(void)
{
	for (;;) {
		struct thread *first = threads + run.warp * LANES;
		if (run.together[run.warp].arrived && !some_ask(first, run.lanes.n))
			warp_diverged(first, run.lanes.n);
		if (!run.warps.left && !pass_over())
			return NULL;
		warp_begin();
		struct thread *t = next_lane();
		if (t)
			return t;
	}
}

/* The next runnable thread; NULL at the end of the block. */
static inline struct thread *next(void)
{
	struct thread *t = next_lane();
	return t ? t : next_elsewhere();
}

/* ---- threads ------------------------------------------------------------------------ */

static char *stacks[MAX_THREADS]; /* ends of the free stacks */
static int n_stacks;

static void stacks_make(void)
{
	size_t each = STACK_BYTES + PAGE;
	char *p = (char *)mmap(NULL, MAX_THREADS * each, PROT_READ | PROT_WRITE,
		MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (p == MAP_FAILED)
		emu_stop("no memory for the stacks of threads");
	for (n_stacks = 0; n_stacks < MAX_THREADS; n_stacks++) {
		/* Offsets, so that the ends do not compete for the same cache sets. */
		int apart = n_stacks * 7 % (PAGE / 64) * 64;
		mprotect(p + n_stacks * each, PAGE, PROT_NONE);
		stacks[n_stacks] = p + (n_stacks + 1) * each - apart;
	}
}

static void become(struct thread *t)
{
	t->state = READY;
	run.current = t;
	threadIdx = t->index;
	emu_lane = (int)(t - threads) % LANES;
}

/* The function of a stack: runs threads until one waits. */
static void body(void)
{
	for (;;) {
		struct thread *t = run.current, *to;
		run.fn(run.arg);
		t = run.current;
		t->state = DONE;
		to = next();
		if (to && to->state == FRESH) {
			to->stack = t->stack;
			become(to);
			continue;
		}
		stacks[n_stacks++] = t->stack;
		if (to)
			become(to);
		emu_switch(&t->context, to ? &to->context : &run.outside);
	}
}

static void hand_over(struct context *from)
{
	struct thread *to = next();
	if (to == run.current && from == &to->context) {
		to->state = READY;
		return;
	}
	if (to->state == FRESH) {
		to->stack = stacks[--n_stacks];
		context_make(&to->context, to->stack, body);
	}
	become(to);
	emu_switch(from, &to->context);
}

static struct thread *wait_at(
	enum state state, const char *what, const char *file, int line)
{
	struct thread *t = run.current;
	t->state = state;
	t->what = what;
	t->file = file;
	t->line = line;
	return t;
}

void emu_barrier(const char *file, int line)
{
	hand_over(&wait_at(AT_BARRIER, "__syncthreads", file, line)->context);
}

void emu_until(
	bool (*ready)(void *), void *asks, const char *what, const char *file, int line)
{
	if (ready(asks))
		return;
	struct thread *t = wait_at(AT_ASKING, what, file, line);
	t->ready = ready;
	t->asks = asks;
	run.n_asking++;
	hand_over(&t->context);
	run.n_asking--;
}

int emu_thread(void)
{
	return (int)(run.current - threads);
}

void emu_warp(emu_op *op, void *mine, const char *what, const char *file, int line)
{
	struct thread *first = threads + run.warp * LANES;
	struct thread *t = wait_at(AT_WARP, what, file, line);
	auto *w = &run.together[run.warp];
	t->brought = mine;
	if (!w->arrived++) {
		w->op = op;
		w->there = t;
	} else if (op != w->op || !same_place(t, w->there)) {
		emu_stop("lanes of a warp part: lane %d is at %s, %s:%d; "
			 "lane %d is at %s, %s:%d",
			emu_lane, what, file, line, (int)(w->there - first),
			w->there->what, w->there->file, w->there->line);
	}
	if (w->arrived < LANES) {
		hand_over(&t->context);
		return;
	}
	void *lanes[LANES];
	for (int i = 0; i < LANES; i++) {
		lanes[i] = first[i].brought;
		first[i].state = READY;
	}
	w->arrived = 0;
	run.lanes.left = LANES;
	op(lanes);
}

void emu_op_sync(void *const lanes[32])
{
	(void)lanes;
}

void emu_op_shuffle(void *const lanes[32])
{
	struct emu_exchange *const *e = (struct emu_exchange *const *)lanes;
	for (int i = 0; i < LANES; i++)
		e[i]->result = e[e[i]->from]->value;
}

void emu_op_ballot(void *const lanes[32])
{
	struct emu_exchange *const *e = (struct emu_exchange *const *)lanes;
	uint64_t all = 0;
	for (int i = 0; i < LANES; i++)
		all |= e[i]->value << i;
	for (int i = 0; i < LANES; i++)
		e[i]->result = all;
}

/* ---- shared memory ------------------------------------------------------------------ */

/* A guard page follows it; shared_zero is address 0. */
static unsigned char *shared_end, *shared_zero;
static thread_local char shared_marker;

struct range {
	char *at;
	size_t n;
};
static struct range shared_static;

static void shared_make(void)
{
	size_t n = MAX_SHARED + PAGE;
	n = n / PAGE * PAGE;
	char *p = (char *)mmap(
		NULL, n + 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED || mprotect(p + PAGE, n, PROT_READ | PROT_WRITE))
		emu_stop("no memory for shared memory");
	shared_zero = (unsigned char *)p + PAGE;
	shared_end = shared_zero + n;
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
		return 1;
	}
	return 0;
}

/* Fills the shared memory of a new block with NaN, also past its end, where shared_check() looks. */
static void shared_begin(size_t n)
{
	memset(emu_shared, 0xff, (size_t)(shared_end - emu_shared));
	if (shared_static.n)
		memset(shared_static.at, 0xff, shared_static.n);
	(void)n;
}

static void shared_check(size_t n)
{
	for (const unsigned char *p = emu_shared + n; p < shared_end; p++)
		if (*p != 0xff)
			emu_stop("byte %d of %d of shared memory was written",
				(int)(p - emu_shared), (int)n);
}

uint32_t emu_address(const void *p)
{
	const unsigned char *at = (const unsigned char *)p;
	if (at < emu_shared || at >= shared_end)
		emu_stop("%p is not dynamic shared memory", p);
	return (uint32_t)(at - shared_zero);
}

unsigned char *emu_shared_at(uint32_t address, size_t n)
{
	unsigned char *at = shared_zero + address;
	if (at < emu_shared || at + n > shared_end)
		emu_stop("address %#x is not of dynamic shared memory", address);
	return at;
}

bool emu_is_shared(const void *p, size_t n)
{
	const char *at = (const char *)p;
	return ((const unsigned char *)p >= emu_shared &&
		       (const unsigned char *)p + n <= shared_end) ||
	       !shared_static.n ||
	       (at >= shared_static.at && at + n <= shared_static.at + shared_static.n);
}

/* ---- asynchronous copies ------------------------------------------------------------ */

/* A copy completes when it is waited for, and its destination is filled with NaN at once: so
 * reads that are too early or too late are found. */
void emu_copy(void *to, const void *from, bool there)
{
	struct thread *t = run.current;
	if ((uintptr_t)to % 16 || (there && (uintptr_t)from % 16))
		emu_stop("copy_async: %p to %p: not on 16 bytes", from, to);
	if (!emu_is_shared(to, 16))
		emu_stop("copy_async: %p is not shared memory", to);
	memset(to, 0xff, 16);
	if (t->n_copies == t->max_copies) {
		t->max_copies = t->max_copies ? 2 * t->max_copies : 16;
		t->copies = (struct copy *)realloc(
			t->copies, (size_t)t->max_copies * sizeof(*t->copies));
	}
	t->copies[t->n_copies++] = (struct copy){to, from, there, t->groups};
}

void emu_copy_commit(void)
{
	run.current->groups++;
}

void emu_copy_wait(int groups)
{
	struct thread *t = run.current;
	int n = 0;
	for (int i = 0; i < t->n_copies; i++) {
		struct copy *c = &t->copies[i];
		if (c->group + groups >= t->groups)
			t->copies[n++] = *c;
		else if (c->there)
			memcpy(c->to, c->from, 16);
		else
			memset(c->to, 0, 16);
	}
	t->n_copies = n;
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
			(void *)shared_end);
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

static void block_run(int64_t i, size_t shared_bytes)
{
	struct context *outside = &run.outside;
	blockIdx.x = (unsigned)(i % gridDim.x);
	blockIdx.y = (unsigned)(i / gridDim.x % gridDim.y);
	blockIdx.z = (unsigned)(i / gridDim.x / gridDim.y);
	for (struct thread *t = threads; t < threads + run.n_threads; t++) {
		t->state = FRESH;
		t->n_copies = 0;
		t->file = NULL;
		t->line = 0;
	}
	run.phase = (int)(i & 0xffff);
	memset(run.together, 0, sizeof(run.together));
	run.moved = false;
	emu_hopper_begin(run.n_threads);
	pass_begin(&run.warps, run.n_warps);
	warp_begin();
	shared_begin(shared_bytes);
	hand_over(outside);
	emu_hopper_end();
	shared_check(shared_bytes);
}

static void launch_check(dim3 grid, dim3 block, size_t shared_bytes)
{
	if (!block.x || !block.y || !block.z || block.z > 64 ||
		(uint64_t)block.x * block.y * block.z > MAX_THREADS)
		emu_stop("a block of %u x %u x %u threads", block.x, block.y, block.z);
	if (!grid.x || !grid.y || !grid.z || grid.x > 0x7fffffffu || grid.y > 65535 ||
		grid.z > 65535)
		emu_stop("a grid of %u x %u x %u blocks", grid.x, grid.y, grid.z);
	if (shared_bytes > MAX_SHARED)
		emu_stop("%zu bytes of shared memory", shared_bytes);
}

enum { MAX_ARG = 4096 };

struct launch {
	dim3 grid, block;
	size_t shared_bytes, arg_bytes;
	void (*fn)(void *);
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
	if (!shared_end) {
		stacks_make();
		shared_make();
	}
	shared_static = (struct range){NULL, 0};
	dl_iterate_phdr(find_marker, &shared_static);
	emu_shared = shared_end - (l->shared_bytes + 127) / 128 * 128;
	gridDim = l->grid;
	blockDim = l->block;
	run.fn = l->fn;
	run.arg = memcpy(arg, l->arg, l->arg_bytes);
	run.n_threads = (int)(blockDim.x * blockDim.y * blockDim.z);
	run.n_warps = (run.n_threads + LANES - 1) / LANES;
	for (unsigned i = 0; i < (unsigned)run.n_threads; i++)
		threads[i].index = make_uint3(i % blockDim.x, i / blockDim.x % blockDim.y,
			i / blockDim.x / blockDim.y);
	emu_memory(true);
	faults_catch();
	run.inside = true;
	for (int64_t i = 0; i < n; i++) {
		int64_t block = run.launches % 2 ? n - 1 - i : i;
		if (!l->is_short || block != n - 1)
			block_run(block, l->shared_bytes);
	}
	run.inside = false;
	run.launches++;
	emu_memory(false);
	pthread_mutex_unlock(&one_kernel);
}

void emu_run(dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream,
	void (*fn)(void *), const void *arg, size_t n_bytes)
{
	struct launch l;
	launch_check(grid, block, shared_bytes);
	l.grid = grid;
	l.block = block;
	l.shared_bytes = shared_bytes;
	l.fn = fn;
	l.arg_bytes = n_bytes;
	l.is_short = emu_is_short(NULL);
	memcpy(l.arg, arg, n_bytes);
	emu_ask(stream, launch_run, &l, offsetof(struct launch, arg) + n_bytes);
}
