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
/* Dynamic shared memory at a 32-bit address of instructions. */
EMU_INSIDE unsigned char *emu_shared_at(uint32_t address, size_t n);

/* ---- hopper.cc ----------------------------------------------------------------------- */

EMU_INSIDE void emu_hopper_begin(int n_threads); /* of a block */
EMU_INSIDE void emu_hopper_end(void);
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
EMU_INSIDE void emu_wgmma_end(void); /* of a block */
/* No thread can go on: ends a wait; false: there is none that lasts until then. */
EMU_INSIDE bool emu_wgmma_idle(void);

/* ---- runtime.cc ---------------------------------------------------------------------- */

EMU_INSIDE int emu_arch(void); /* 90: compute capability 9.0 */

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
