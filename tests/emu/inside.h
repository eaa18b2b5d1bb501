/* What the files of the emulator share. */
#ifndef EMU_INSIDE_H
#define EMU_INSIDE_H

#include "tests/emu/emu.h"

/* Device memory can be touched between emu_memory(true) and emu_memory(false); they nest. */
EMU_INSIDE void emu_memory(bool open);
EMU_INSIDE bool emu_is_device(const void *at);

/* Counts a launch; true when the device is broken, and runs no more. */
EMU_INSIDE bool emu_breaks(void);

/* What a call gives: this, or that the device is broken. */
EMU_INSIDE cudaError_t emu_gives(cudaError_t rc);

/* fn(arg), of a copy of what is there, in its turn in the stream. */
EMU_INSIDE void emu_ask(
	cudaStream_t s, void (*fn)(void *), const void *arg, size_t n_bytes);
EMU_INSIDE void emu_wait(cudaStream_t s);
EMU_INSIDE void emu_wait_all(void);

/* What nobody may ask for while he captures a stream ends the capture, and gives an error. */
EMU_INSIDE cudaError_t emu_safe(void);
/* The same of what may not be asked of a stream that is captured. */
EMU_INSIDE cudaError_t emu_not_captured(cudaStream_t s);

#endif
