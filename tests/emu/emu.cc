/* Blocks and threads. A thread is a coroutine; at a barrier or a warp-wide operation it
 * switches to the next runnable thread. A thread that never waits needs no switch: the next
 * one begins on the same stack. */
#include "tests/emu/blocks.h"

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

enum { STACK_BYTES = 128 << 10, PAGE = 4096 };

/* ---- contexts ----------------------------------------------------------------------- */

#ifdef EMU_STACKS
/* Saves the callee-saved registers on the stack and switches stacks. */
extern "C" EMU_INSIDE void emu_switch(struct emu_context *from, struct emu_context *to);
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

static void context_make(struct emu_context *c, char *stack, void (*fn)(void))
{
	void **sp = (void **)stack;
	*--sp = NULL; /* fn has no caller */
	*--sp = (void *)fn;
	for (int i = 0; i < 6; i++)
		*--sp = NULL;
	c->sp = sp;
}
#else
static void emu_switch(struct emu_context *from, struct emu_context *to)
{
	swapcontext(&from->u, &to->u);
}

static void context_make(struct emu_context *c, char *stack, void (*fn)(void))
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
struct emu_block blocks[MAX_ALIVE], *now = blocks;
struct grid run;

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
void emu_pass_begin(struct emu_pass *p, int n)
{
	p->n = p->left = n;
	p->step = now->phase % 2 ? n - 1 : 1;
	p->item = now->phase / 2 * 5 % n;
}

static int pass_next(struct emu_pass *p)
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
	for (struct thread *t = now->threads; t < now->threads + run.n_threads; t++) {
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
	now->phase++;
	emu_hopper_sync();
	emu_pass_begin(&now->warps, run.n_warps);
	return first != NULL;
}

static void nobody_moves(void)
{
	fprintf(stderr, "emulated GPU: no thread can go on\n");
	for (const struct emu_block *b = blocks; b < blocks + MAX_ALIVE; b++) {
		const struct thread *last = NULL;
		for (int i = 0; b->alive && i < run.n_threads; i++) {
			const struct thread *t = &b->threads[i];
			if (t->state == DONE || (last && same_place(t, last)))
				continue;
			fprintf(stderr, "  block %d, thread %d is at %s, %s:%d\n",
				(int)b->number, i, t->what, t->file, t->line);
			last = t;
		}
	}
	emu_stop("no thread can go on");
}

static unsigned dice(unsigned n)
{
	run.random = run.random * 1664525 + 1013904223;
	return (run.random >> 16) % n;
}

void emu_block_use(struct emu_block *b)
{
	now = b;
	blockIdx = b->index;
	emu_shared = b->shared;
	emu_hopper_use((int)(b - blocks));
}

static void all_move(void)
{
	for (struct emu_block *b = blocks; b < blocks + MAX_ALIVE; b++)
		b->still = false;
}

/* Chooses the block that goes on, mostly the running one; false: all are done. If no thread of any
 * block can go on, one asynchronous copy completes. */
static bool block_choose(void)
{
	struct emu_block *alive[MAX_ALIVE], *can[MAX_ALIVE];
	unsigned n = 0, n_can = 0;
	for (struct emu_block *b = blocks; b < blocks + MAX_ALIVE; b++) {
		if (b->alive)
			alive[n++] = b;
		if (b->alive && !b->still)
			can[n_can++] = b;
	}
	if (!n)
		return false;
	if (n_can) {
		if (!now->alive || now->still || (n_can > 1 && !dice(4)))
			emu_block_use(can[dice(n_can)]);
		return true;
	}
	for (unsigned i = 0, first = dice(n); i < n; i++) {
		emu_block_use(alive[(first + i) % n]);
		if (emu_hopper_idle()) {
			all_move();
			return true;
		}
	}
	nobody_moves();
	return true;
}

/* The end of a pass over the warps of a block: begins the next, or ends the block; false: the grid
 * is done. */
static bool pass_over(void)
{
	if (!now->n_asking) {
		if (!barrier_release())
			emu_block_end();
		all_move();
	} else {
		if (now->moved || (dice(2) && emu_hopper_idle()))
			all_move();
		else
			now->still = true;
		now->moved = false;
		now->phase++;
		emu_pass_begin(&now->warps, run.n_warps);
	}
	return block_choose();
}

static void warp_begin(void)
{
	int n_lanes;
	now->warp = pass_next(&now->warps);
	n_lanes = run.n_threads - now->warp * LANES;
	emu_pass_begin(&now->lanes, n_lanes < LANES ? n_lanes : LANES);
}

static bool some_ask(const struct thread *first, int n_lanes)
{
	for (int i = 0; now->n_asking && i < n_lanes; i++)
		if (first[i].state == AT_ASKING)
			return true;
	return false;
}

/* Whose turn it is in the running warp; NULL: of none. */
static inline struct thread *next_lane(void)
{
	struct thread *first = now->threads + now->warp * LANES;
	while (now->lanes.left) {
		struct thread *t = first + pass_next(&now->lanes);
		if (t->state > READY && (t->state != AT_ASKING || !t->ready(t->asks)))
			continue;
		now->moved = true;
		return t;
	}
	return NULL;
}

static __attribute__((noinline)) struct thread *next_elsewhere(void)
{
	for (;;) {
		struct thread *first = now->threads + now->warp * LANES;
		if (now->together[now->warp].arrived && !some_ask(first, now->lanes.n))
			warp_diverged(first, now->lanes.n);
		if (!now->warps.left && !pass_over())
			return NULL;
		warp_begin();
		struct thread *t = next_lane();
		if (t)
			return t;
	}
}

/* The next runnable thread; NULL at the end of the grid. */
static inline struct thread *next(void)
{
	struct thread *t = next_lane();
	return t ? t : next_elsewhere();
}

/* ---- threads ------------------------------------------------------------------------ */

static char *stacks[MAX_ALIVE * MAX_THREADS]; /* ends of the free stacks */
static int n_stacks;
static const char *stacks_begin, *stacks_end;

static void stacks_make(void)
{
	size_t each = STACK_BYTES + PAGE;
	char *p =
		(char *)mmap(NULL, MAX_ALIVE * MAX_THREADS * each, PROT_READ | PROT_WRITE,
			MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (p == MAP_FAILED)
		emu_stop("no memory for the stacks of threads");
	stacks_begin = p;
	stacks_end = p + MAX_ALIVE * MAX_THREADS * each;
	for (n_stacks = 0; n_stacks < MAX_ALIVE * MAX_THREADS; n_stacks++) {
		/* Offsets, so that the ends do not compete for the same cache sets. */
		int apart = n_stacks * 7 % (PAGE / 64) * 64;
		mprotect(p + (size_t)n_stacks * each, PAGE, PROT_NONE);
		stacks[n_stacks] = p + (size_t)(n_stacks + 1) * each - apart;
	}
}

static void become(struct thread *t)
{
	t->state = READY;
	run.current = t;
	threadIdx = t->index;
	emu_lane = (int)(t - now->threads) % LANES;
}

/* The function of a stack: runs threads until one waits. */
static void body(void)
{
	for (;;) {
		struct thread *t = run.current, *to;
		run.fn(run.arg);
		t = run.current;
		t->state = DONE;
		now->cluster->threads--;
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

static void hand_over(struct emu_context *from)
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
	now->n_asking++;
	hand_over(&t->context);
	now->n_asking--;
}

int emu_thread(void)
{
	return (int)(run.current - now->threads);
}

void emu_blocks_run(void)
{
	if (!n_stacks)
		stacks_make();
	if (!block_choose())
		return;
	warp_begin();
	hand_over(&run.outside);
}

int64_t emu_block_number(void)
{
	return now->number;
}

bool emu_is_global(const void *p)
{
	const char *at = (const char *)p;
	if (at >= stacks_begin && at < stacks_end)
		return false;
	for (const struct emu_block *b = blocks; b < blocks + MAX_ALIVE && b->shared_end;
		b++)
		if (at >= (char *)b->shared_zero && at < (char *)b->shared_end)
			return false;
	return !emu_is_static(p);
}

/* ---- clusters ----------------------------------------------------------------------- */

struct meeting {
	struct emu_cluster *c;
	int64_t was;
};

static bool cluster_met(void *asks)
{
	const struct meeting *m = (const struct meeting *)asks;
	struct emu_cluster *c = m->c;
	if (c->arrived && c->arrived == c->threads) {
		c->arrived = 0;
		c->syncs++;
	}
	return c->syncs > m->was;
}

void emu_cluster_sync(const char *file, int line)
{
	struct meeting m = {now->cluster, now->cluster->syncs};
	emu_needs_hopper("cluster_sync");
	m.c->arrived++;
	emu_until(cluster_met, &m, "cluster_sync", file, line);
}

int64_t emu_cluster_syncs(void)
{
	return now->cluster->syncs;
}

int emu_cluster_enter(int rank, const char *what)
{
	struct emu_block *mine = now, *there = now + (rank - now->rank);
	if (rank < 0 || rank >= run.size)
		emu_stop("%s: block %d of a cluster of %d", what, rank, run.size);
	if (!there->alive)
		emu_stop("%s: block %d of the cluster has ended", what, rank);
	if (there != now)
		emu_block_use(there);
	return mine->rank;
}

void emu_cluster_leave(int rank)
{
	if (rank != now->rank)
		emu_block_use(now + (rank - now->rank));
}

int emu_cluster_rank(void)
{
	return now->rank;
}

void emu_warp(emu_op *op, void *mine, const char *what, const char *file, int line)
{
	struct thread *first = now->threads + now->warp * LANES;
	struct thread *t = wait_at(AT_WARP, what, file, line);
	auto *w = &now->together[now->warp];
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
	now->lanes.left = LANES;
	op(lanes);
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
