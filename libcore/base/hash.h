/* hash: XXH3 of bytes (Collet), 64 and 128 bits, and a mixing function of 64 bits.
 *
 * base.h includes this header, and defines ON_BOTH first. */
#pragma once

#include "base/base.h"

uint64_t hash_bytes(const void *p, size_t n_bytes, uint64_t seed); /* XXH3, 64 bits */
static ON_BOTH inline uint64_t hash_mix(uint64_t x)
{ /* the finalizer of SplitMix64 (Steele, Lea, Flood 2014) */
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
	x = (x ^ x >> 27) * 0x94d049bb133111ebu;
	return x ^ x >> 31;
}

/* XXH3, 128 bits. */
struct hash128 {
	uint64_t low, high;
};
struct hash128 hash128_bytes(const void *p, size_t n_bytes, uint64_t seed);
static inline bool hash128_same(struct hash128 a, struct hash128 b)
{
	return a.low == b.low && a.high == b.high;
}

uint64_t hash_str(const char *s);
const char *hash_version(void);
/* XXH3, 64 bits, of bytes added in several calls. */
struct hash_state;
struct hash_state *hash_open(void);
void hash_add(struct hash_state *h, const void *p, size_t n_bytes);
uint64_t hash_close(struct hash_state *h); /* returns the hash, and frees the state */
