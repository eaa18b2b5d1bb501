/* Shared by the files of the emulator. */
#pragma once

#include "tests/emu/emu.h"

/* Device memory is accessible between emu_memory(true) and emu_memory(false); they nest. */
EMU_INSIDE void emu_memory(bool open);
EMU_INSIDE bool emu_is_device(const void *at);

/* Counts a launch; true: it must not run (PT_EMU_FAIL and PT_EMU_LOAD, or a broken
 * device). */
EMU_INSIDE bool emu_breaks(void);

/* Whether PT_EMU_BREAK names this function, or with NULL the one that launches. */
EMU_INSIDE bool emu_is_short(const char *name);
EMU_INSIDE const char *emu_asked(void); /* the function that launches, or "" */

/* The result of a call: rc, or the error of a broken device. */
EMU_INSIDE cudaError_t emu_gives(cudaError_t rc);

/* Enqueues fn(arg) with a copy of the argument. */
EMU_INSIDE void emu_ask(
	cudaStream_t s, void (*fn)(void *), const void *arg, size_t n_bytes);
/* The same of an operation that waits for other processes: poll(arg) is called until it returns true. */
EMU_INSIDE void emu_ask_others(
	cudaStream_t s, bool (*poll)(void *), const void *arg, size_t n_bytes);
EMU_INSIDE void emu_wait(cudaStream_t s);
EMU_INSIDE void emu_wait_all(void);

/* ---- emu.cc, for hopper.cc ---------------------------------------------------------- */

/* Waits until ready(asks), while other threads run. */
EMU_INSIDE void emu_until(
	bool (*ready)(void *), void *asks, const char *what, const char *file, int line);
EMU_INSIDE int emu_thread(void); /* number of the running thread in its block */
enum { EMU_MAX_ALIVE = 8 };	 /* blocks that run at once */
/* The block's number in its cluster, and how often the cluster has synchronized. */
EMU_INSIDE int emu_cluster_rank(void);
EMU_INSIDE int64_t emu_cluster_syncs(void);
/* Goes to another block of the cluster, which must not have ended, and back. Returns the rank to
 * return to. */
EMU_INSIDE int emu_cluster_enter(int rank, const char *what);
EMU_INSIDE void emu_cluster_leave(int rank);
/* Dynamic shared memory at a 32-bit address of instructions. */
EMU_INSIDE unsigned char *emu_shared_at(uint32_t address, size_t n);

/* Whether it is neither on the stack of a thread nor shared memory. */
EMU_INSIDE bool emu_is_global(const void *p);
EMU_INSIDE int64_t emu_block_number(void); /* of the running block in the grid */

/* ---- races.cc ------------------------------------------------------------------------ */

EMU_INSIDE void emu_races_begin(int64_t n_blocks); /* of a launch */

/* ---- hopper.cc ----------------------------------------------------------------------- */

EMU_INSIDE void emu_hopper_use(
	int block); /* the number of the running block of those at once */
/* Of a block, with the registers of a thread. */
EMU_INSIDE void emu_hopper_begin(int n_threads, int registers);
EMU_INSIDE bool emu_hopper_end(void);  /* true: the block has used features of sm_90 */
EMU_INSIDE void emu_hopper_sync(void); /* all threads were at a barrier */
/* All threads wait: completes one asynchronous copy, if any is in flight. */
EMU_INSIDE bool emu_hopper_idle(void);

/* Ends the program if the device has no such instructions. */
EMU_INSIDE void emu_needs_hopper(const char *what);
/* Whether a copy of a tile has brought x to this address of shared memory. */
EMU_INSIDE bool emu_brought(uint32_t address, uint16_t x);

/* ---- wgmma.cc ------------------------------------------------------------------------ */

/* Whether the running thread has matmuls in flight; `held`: with an operand in registers. */
EMU_INSIDE bool emu_wgmma_under_way(bool held);
EMU_INSIDE void emu_wgmma_use(int block);
EMU_INSIDE void emu_wgmma_end(void); /* of a block */
/* No thread can go on: ends a wait; false: there is none that lasts until then. */
EMU_INSIDE bool emu_wgmma_idle(void);

/* ---- resources.cc ------------------------------------------------------------------- */

/* A kernel's attributes; NULL of NULL. name: for messages, a literal, or NULL. */
struct emu_kernel;
EMU_INSIDE struct emu_kernel *emu_kernel_of(const void *fn, const char *name);
/* Returns true if blocks of the kernel run at once: its launches have used features of sm_90, and
 * no static shared memory. */
EMU_INSIDE bool emu_kernel_at_once(const struct emu_kernel *k);
EMU_INSIDE void emu_kernel_hopper(struct emu_kernel *k); /* it uses features of sm_90 */
EMU_INSIDE bool emu_was_written(
	const char *p, size_t n);	/* since it was filled with NaN */
EMU_INSIDE size_t emu_max_shared(void); /* of a block, with the attribute */
/* Ends the program if the block is larger than the bounds, or needs more shared memory than the
 * kernel may have. */
EMU_INSIDE void emu_kernel_bounds(const struct emu_kernel *k, unsigned n_threads);
EMU_INSIDE void emu_kernel_fits(const struct emu_kernel *k, size_t dynamic_bytes);
/* Adds what a block has written of the n bytes of static shared memory, and checks again; path: of
 * this library. */
EMU_INSIDE void emu_kernel_check(struct emu_kernel *k, size_t dynamic_bytes,
	const char *memory, size_t n, const char *path);
/* Registers of a thread at the launch. */
EMU_INSIDE int emu_kernel_registers(const struct emu_kernel *k, int n_threads);

/* ---- runtime.cc ---------------------------------------------------------------------- */

EMU_INSIDE int emu_arch(void);	    /* 90: compute capability 9.0 */
EMU_INSIDE uint32_t emu_seed(void); /* of the order of blocks: PT_EMU_SEED */

/* ---- nccl.cc ------------------------------------------------------------------------- */

/* The program waits for the GPU: no group may be open. */
EMU_INSIDE void emu_nccl_check(void);
/* An operation that waits for other processes is captured (1), or its graph is freed (-1). */
EMU_INSIDE void emu_nccl_in_graph(bool (*poll)(void *), const void *arg, int by);

/* ---- mma.cc -------------------------------------------------------------------------- */

/* n 16-bit numbers, bf16 or else fp16, to fp32. */
EMU_INSIDE void emu_widen(float *to, const uint16_t *from, int n, bool bf16);

/* ---- streams.cc ---------------------------------------------------------------------- */

/* For calls that are not allowed during a capture: ends the capture with an error. */
EMU_INSIDE cudaError_t emu_safe(void);
/* The same for calls that are not allowed on a stream that is captured. */
EMU_INSIDE cudaError_t emu_not_captured(cudaStream_t s);
/* Advances the clock of events. */
EMU_INSIDE void emu_clock_on(double seconds);
