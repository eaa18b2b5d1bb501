/* The order of samples: a function of the seed and the index of the sample. */
#include "data/data.h"

/* Permutes x, which has 2 * half bits: four rounds of a balanced Feistel network with Philox as
 * round function, a permutation for any round function (Luby, Rackoff 1988). */
static uint64_t feistel(struct philox_key key, int half, uint64_t x)
{
	uint64_t mask = ((uint64_t)1 << half) - 1;
	uint64_t left = x >> half, right = x & mask;
	for (uint32_t round = 0; round < 4; round++) {
		struct philox_block r =
			philox(key, (uint32_t)right, (uint32_t)(right >> 32), round, 0);
		uint64_t f = ((uint64_t)r.x[1] << 32 | r.x[0]) & mask;
		uint64_t next = left ^ f;
		left = right;
		right = next;
	}
	return left << half | right;
}

int64_t order_permute(struct philox_key key, int64_t n, int64_t i)
{
	BUG_ON(i < 0 || i >= n);
	int half = 1;
	while (half < 31 && ((uint64_t)1 << 2 * half) < (uint64_t)n)
		half++;
	uint64_t x = (uint64_t)i;
	do
		x = feistel(key, half, x);
	while (x >= (uint64_t)n);
	return (int64_t)x;
}

/* Returns a uniform number in [0, n) from 64 random bits: the high word of bits * n. */
static int64_t uniform_below(struct philox_block r, int64_t n)
{
	__extension__ typedef unsigned __int128 uint128;
	uint64_t bits = (uint64_t)r.x[0] << 32 | r.x[1];
	return (int64_t)((uint128)bits * (uint64_t)n >> 64);
}

int order_init(struct order *o, enum sampling s, uint64_t seed, int64_t n_tokens,
	int64_t context, int64_t n_windows)
{
	*o = (struct order){s, seed, n_tokens, context, 0};
	if (n_tokens < context + 1)
		return -1;
	int64_t fit = (n_tokens - 1) / context, starts = n_tokens - context;
	/* one window less than fit, so that the grid can be shifted by up to a window */
	if (s == SAMPLING_EVEN)
		o->n_windows = n_windows ? min64(n_windows, starts) : fit;
	else
		o->n_windows = max64(1, n_tokens / context - 1);
	return 0;
}

/* Returns the number of windows in the grid that begins with the first token. */
static int64_t windows_on_grid(const struct order *o)
{
	return (o->n_tokens - 1) / o->context;
}

void order_on_grid(struct order *o)
{
	int64_t fit = windows_on_grid(o);
	o->on_grid = true;
	o->n_windows = o->sampling == SAMPLING_EVEN ? min64(o->n_windows, fit) : fit;
}

/* Shifts all windows of an epoch by a random phase, and permutes them (SAMPLING_EPOCH). */
int64_t order_start(const struct order *o, int64_t g)
{
	int64_t last = o->n_tokens - o->context - 1; /* last start of a window */
	if (o->sampling == SAMPLING_RANDOM) {
		struct philox_key key = philox_key(o->seed, PHILOX_OFFSET, 0);
		struct philox_block b =
			philox(key, (uint32_t)g, (uint32_t)(g >> 32), 0, 0);
		return o->on_grid ? uniform_below(b, windows_on_grid(o)) * o->context
				  : uniform_below(b, last + 1);
	}
	if (o->sampling == SAMPLING_EVEN) {
		int64_t gaps = o->n_windows - 1;
		g = min64(g, gaps); /* padding of a micro-batch repeats the last window */
		int64_t at = gaps ? last / gaps * g + last % gaps * g / gaps : 0;
		return o->on_grid ? at / o->context * o->context : at;
	}
	int64_t epoch = g / o->n_windows;
	struct philox_key key = philox_key(o->seed, PHILOX_ORDER, (uint64_t)epoch);
	int64_t shifts = min64(o->context, last - (o->n_windows - 1) * o->context + 1);
	int64_t phase = o->on_grid ? 0 : uniform_below(philox(key, 0, 0, 0, 1), shifts);
	return phase + order_permute(key, o->n_windows, g % o->n_windows) * o->context;
}
