/* Tensor maps and boxes of the emulator, for the copies of hopper.cc and the stores of stores.cc. */
#pragma once

#include "tests/emu/inside.h"

#include <cuda.h>
#include <string.h>

enum { MAP = 0x7e450b, MAX_RANK = 5 };

struct map {
	uint32_t magic;
	uint16_t size, rank; /* bytes of an element; dimensions */
	uint32_t dims[MAX_RANK];
	uint16_t box[MAX_RANK], swizzle; /* bytes of a row */
	char *p;
	uint64_t strides[MAX_RANK - 1];
};

/* The swizzled address: pieces of 16 bytes are permuted by the number of the 128-byte row of
 * the address. */
static inline uint32_t swizzled(uint32_t address, int bytes)
{
	return address ^ (address >> 3 & (uint32_t)(bytes - 1) & ~15u);
}

static inline int box_bytes(const struct map *m)
{
	int n = m->size;
	for (int i = 0; i < m->rank; i++)
		n *= m->box[i];
	return n;
}

/* The address of row i of a box, counted over all dimensions except the first, or NULL
 * outside the tensor. */
static inline char *box_row(const struct map *m, const int from[4], int i)
{
	char *p = m->p;
	for (int d = 1; d < m->rank; d++) {
		int64_t at = from[d] + i % m->box[d];
		i /= m->box[d];
		if (at < 0 || at >= (int64_t)m->dims[d])
			return NULL;
		p += (uint64_t)at * m->strides[d - 1];
	}
	return p;
}

/* Of the thread: what it cleared becomes visible to matmuls. */
EMU_INSIDE void emu_publish_pieces(void);

/* Of a block. */
EMU_INSIDE void emu_stores_use(int block);
EMU_INSIDE void emu_stores_begin(int n_threads);
EMU_INSIDE void emu_stores_end(void);
