/* What the files of the emulator share. */
#ifndef EMU_INSIDE_H
#define EMU_INSIDE_H

#include "tests/emu/emu.h"

/* Device memory can be touched between emu_memory(true) and emu_memory(false); they nest. */
EMU_INSIDE void emu_memory(bool open);
EMU_INSIDE bool emu_is_device(const void *at);

/* Counts a launch; true when it is not to be done: the device is broken, and runs no more, say. */
EMU_INSIDE bool emu_breaks(void);

/* Is this function, or with NULL the one that launches, to be wrong? */
EMU_INSIDE bool emu_is_short(const char *name);

/* What a call gives: this, or that the device is broken. */
EMU_INSIDE cudaError_t emu_gives(cudaError_t rc);

/* fn(arg), of a copy of what is there, in its turn in the stream. */
EMU_INSIDE void emu_ask(
	cudaStream_t s, void (*fn)(void *), const void *arg, size_t n_bytes);
EMU_INSIDE void emu_wait(cudaStream_t s);
EMU_INSIDE void emu_wait_all(void);

/* ---- emu.cc, for hopper.cc ---------------------------------------------------------- */

/* Until ready(asks): others go on meanwhile. */
EMU_INSIDE void emu_until(
	bool (*ready)(void *), void *asks, const char *what, const char *file, int line);
EMU_INSIDE int emu_thread(void); /* which it is, of the block */
/* Dynamic shared memory by addresses, as instructions have them, and back. */
EMU_INSIDE unsigned char *emu_shared_at(uint32_t address, size_t n);

/* ---- hopper.cc ----------------------------------------------------------------------- */

EMU_INSIDE void emu_hopper_begin(int n_threads); /* of a block */
EMU_INSIDE void emu_hopper_end(void);
EMU_INSIDE void emu_hopper_sync(void); /* all threads were at a barrier */
/* Nobody can go on: something that is under way is done, if there is anything. */
EMU_INSIDE bool emu_hopper_idle(void);

/* ---- runtime.cc ---------------------------------------------------------------------- */

EMU_INSIDE int emu_arch(void); /* 90: compute capability 9.0 */

/* ---- mma.cc -------------------------------------------------------------------------- */

/* n numbers of 16 bits, bf16 or else fp16, as fp32. */
EMU_INSIDE void emu_widen(float *to, const uint16_t *from, int n, bool bf16);

/* ---- streams.cc ---------------------------------------------------------------------- */

/* What nobody may ask for while he captures a stream ends the capture, and gives an error. */
EMU_INSIDE cudaError_t emu_safe(void);
/* The same of what may not be asked of a stream that is captured. */
EMU_INSIDE cudaError_t emu_not_captured(cudaStream_t s);
/* Puts the clock of events on. */
EMU_INSIDE void emu_clock_on(double seconds);

#endif
