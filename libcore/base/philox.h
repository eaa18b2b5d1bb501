/* Philox4x32-10 (Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2,
 * 3; SC'11): a keyed bijection of 128-bit counters. A random number is a function of its
 * purpose and index, so every rank can compute its own part, and nothing has to be sent,
 * stored or skipped.
 *
 * The key comes from (seed, purpose, tensor), the counter is the index of the element.
 * Both backends compile this header. */
#pragma once

#include <stdint.h>

#ifdef __CUDACC__
#define PHILOX_FN static __host__ __device__ inline
#else
#define PHILOX_FN static inline
#endif

enum philox_purpose { /* part of what a run computes: never renumber */
	PHILOX_INIT = 1,
	PHILOX_DROPOUT = 2,
	PHILOX_ORDER = 3,
	PHILOX_OFFSET = 4,
	PHILOX_SAMPLE = 5,
	PHILOX_EDIT = 6,
	PHILOX_STRAGGLE = 7, /* no result depends on it */
	PHILOX_GARBLE = 8,
	PHILOX_FLIP = 9,   /* no result depends on it */
	PHILOX_CHECK = 10, /* no result depends on it */
	PHILOX_AUDIT = 11, /* no result depends on it */
	PHILOX_TEST = 99,
};

struct philox_key {
	uint32_t k[2];
};

struct philox_block {
	uint32_t x[4];
};

PHILOX_FN struct philox_block philox(
	struct philox_key key, uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3)
{
	uint32_t k0 = key.k[0], k1 = key.k[1];
	for (int round = 0; round < 10; round++) {
		uint64_t p0 = (uint64_t)0xD2511F53u * c0;
		uint64_t p1 = (uint64_t)0xCD9E8D57u * c2;
		c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
		c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
		c1 = (uint32_t)p1;
		c3 = (uint32_t)p0;
		k0 += 0x9E3779B9u;
		k1 += 0xBB67AE85u;
	}
	struct philox_block b = {{c0, c1, c2, c3}};
	return b;
}

/* Returns a key for one purpose. `index` is the number of a tensor, epoch or step. */
PHILOX_FN struct philox_key philox_key(uint64_t seed, uint32_t purpose, uint64_t index)
{
	struct philox_key seed_key = {{(uint32_t)seed, (uint32_t)(seed >> 32)}};
	struct philox_block b = philox(
		seed_key, purpose, (uint32_t)index, (uint32_t)(index >> 32), 0x70740001u);
	struct philox_key key = {{b.x[0], b.x[1]}};
	return key;
}

/* Returns a uniform number in [0, 1) from 24 random bits, exact in a float. */
PHILOX_FN float philox_uniform(uint32_t x)
{
	return (float)(x >> 8) * 0x1p-24f;
}

/* Returns a uniform number in [0, 1) from 53 random bits. */
PHILOX_FN double philox_uniform64(uint32_t hi, uint32_t lo)
{
	return (double)(((uint64_t)hi << 32 | lo) >> 11) * 0x1p-53;
}
