/* The CUDA runtime, for the emulated GPU. */
#include "tests/emu/emu.h"
