/* The blocks that run, for emu.cc and grid.cc. */
#pragma once

#include "tests/emu/inside.h"

#if defined(__x86_64__) && !defined(EMU_UCONTEXT)
#define EMU_STACKS 1
#else
#include <ucontext.h>
#endif

struct emu_context {
#ifdef EMU_STACKS
	void *sp;
#else
	ucontext_t u;
#endif
};

enum { LANES = 32, MAX_THREADS = 1024, MAX_ALIVE = EMU_MAX_ALIVE };

enum state { FRESH, READY, AT_BARRIER, AT_WARP, AT_ASKING, DONE };

struct copy {
	void *to;
	const void *from;
	bool there;
	int64_t group;
};

struct thread {
	struct emu_context context;
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

struct emu_pass {
	int item, n, left, step;
};

/* Blocks that run at once: some of a grid, and all of a cluster. */
struct emu_block {
	struct thread threads[MAX_THREADS];
	uint3 index;
	int64_t number; /* in the grid */
	struct emu_cluster *cluster;
	int rank; /* in the cluster */
	/* `still`: no thread could go on in its last pass; moved: one did in this pass. */
	bool alive, still, moved;
	/* Dynamic shared memory, which a guard page follows; shared_zero is address 0. */
	unsigned char *shared, *shared_end, *shared_zero;
	/* The passes over the warps, and over the lanes of a warp. */
	int phase, warp;
	struct emu_pass warps, lanes;
	/* The warp-wide operation of each warp, and its first thread. */
	struct {
		emu_op *op;
		const struct thread *there;
		int arrived;
	} together[MAX_THREADS / LANES];
	int n_asking;
};

struct emu_cluster {
	int blocks, threads; /* that have not ended */
	int arrived;
	int64_t syncs;
};

extern EMU_INSIDE struct emu_block blocks[MAX_ALIVE], *now; /* now: the running one */

extern EMU_INSIDE struct grid {
	void (*fn)(void *);
	void *arg;
	struct emu_kernel *kernel;
	size_t shared_bytes;
	int64_t launches;
	int n_threads, n_warps;
	int size;		   /* blocks of a cluster, or 1 */
	int at_once;		   /* clusters */
	int64_t n_clusters, begun; /* of the grid */
	struct thread *current;
	struct emu_context outside;
	uint32_t random;
	bool inside;
} run;

/* ---- emu.cc -------------------------------------------------------------------------- */

EMU_INSIDE void emu_block_use(struct emu_block *b); /* makes it the running one */
/* Runs the grid's blocks, of which the first have begun. */
EMU_INSIDE void emu_blocks_run(void);
EMU_INSIDE void emu_pass_begin(struct emu_pass *p, int n);

/* ---- grid.cc ------------------------------------------------------------------------- */

EMU_INSIDE bool emu_is_static(const void *p); /* in static shared memory */
EMU_INSIDE void emu_block_end(void); /* of the running one, whose threads have ended */
