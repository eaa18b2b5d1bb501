/* Accesses of blocks that may run at once: not checked. */
#include "tests/emu/inside.h"

void emu_races_begin(int64_t)
{
}

void emu_atomic(const void *)
{
}

void emu_fence(void)
{
}
