/* XXH3 (64 bits), from xxHash. */
#include "base/base.h"

#include <xxhash.h>

/* The library's functions for the CPU's vector units, as declared by xxh_x86dispatch.h: three to
 * ten times as fast as the SSE2 functions, with the same hashes. A library may lack them. (The
 * header itself would replace the other functions even then.) */
#define WEAK __attribute__((weak))
XXH64_hash_t XXH3_64bits_withSeed_dispatch(const void *, size_t, XXH64_hash_t) WEAK;
XXH128_hash_t XXH3_128bits_withSeed_dispatch(const void *, size_t, XXH64_hash_t) WEAK;
XXH_errorcode XXH3_64bits_update_dispatch(XXH3_state_t *, const void *, size_t) WEAK;

enum { DISPATCH_MIN_BYTES = 512 }; /* shorter inputs are faster without the dispatch */

uint64_t hash_bytes(const void *p, size_t n_bytes, uint64_t seed)
{
	if (n_bytes < DISPATCH_MIN_BYTES || !XXH3_64bits_withSeed_dispatch)
		return XXH3_64bits_withSeed(p, n_bytes, seed);
	return XXH3_64bits_withSeed_dispatch(p, n_bytes, seed);
}

struct hash128 hash128_bytes(const void *p, size_t n_bytes, uint64_t seed)
{
	XXH128_hash_t h;
	if (n_bytes < DISPATCH_MIN_BYTES || !XXH3_128bits_withSeed_dispatch)
		h = XXH3_128bits_withSeed(p, n_bytes, seed);
	else
		h = XXH3_128bits_withSeed_dispatch(p, n_bytes, seed);
	return (struct hash128){h.low64, h.high64};
}

uint64_t hash_str(const char *s)
{
	return XXH3_64bits(s, strlen(s));
}

const char *hash_version(void)
{
	static char text[NUM_TEXT];
	unsigned v = XXH_versionNumber();
	snprintf(text, sizeof(text), "%u.%u.%u", v / 10000, v / 100 % 100, v % 100);
	return text;
}

struct hash_state *hash_open(void)
{
	XXH3_state_t *s = XXH3_createState();
	if (!s)
		die(EX_FAILED, "out of memory for a checksum");
	XXH3_64bits_reset(s);
	return (struct hash_state *)s;
}

void hash_add(struct hash_state *h, const void *p, size_t n_bytes)
{
	XXH3_state_t *s = (XXH3_state_t *)h;
	if (n_bytes < DISPATCH_MIN_BYTES || !XXH3_64bits_update_dispatch)
		XXH3_64bits_update(s, p, n_bytes);
	else
		XXH3_64bits_update_dispatch(s, p, n_bytes);
}

uint64_t hash_close(struct hash_state *h)
{
	uint64_t x = XXH3_64bits_digest((XXH3_state_t *)h);
	XXH3_freeState((XXH3_state_t *)h);
	return x;
}
