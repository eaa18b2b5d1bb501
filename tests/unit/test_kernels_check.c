/* Checksums of exact sums: they equal the definition, they add up, and errors change them.
 * isa: sse2 avx2 avx512
 */
#include "base/hash.h"
#include "tests/support/support.h"

#include "kernels/device.h"
#include "kernels/kernels.h"

#include <stdlib.h>
#include <string.h>

enum { N = 3 * GRID_BLOCK + 777, SEED = 5, BUCKET = 7 };

static struct device device;
static uint32_t weights[GRID_BLOCK];

static struct grid_check check_at(int64_t first, uint64_t *word)
{
	return (struct grid_check){.u = weights,
		.key = grid_check_key(SEED),
		.bucket = BUCKET,
		.first = first,
		.word = word};
}

static int set_up(void **state)
{
	struct err e = {0};
	const struct device_options options = {.threads = 2, .exact = true};
	(void)state;
	if (device.k)
		return 0;
	if (device_open(&device, DEVICE_CPU, &options, &e))
		die_err(&e);
	grid_weights(SEED, weights);
	return 0;
}

/* The checksum of elements of a bucket, by the kernel. */
static uint64_t checksum(struct grid_part part, int64_t n, int64_t first)
{
	uint64_t word = 0;
	struct grid grid = {.exponent = 50};
	const struct grid_check check = check_at(first, &word);
	device.k->grid_sum(&device,
		&(struct grid_sum){.parts = &part,
			.n_parts = 1,
			.n = n,
			.levels = 5,
			.check = &check},
		&grid);
	assert_true(word < GRID_PRIME);
	return word;
}

static uint64_t checksum_of(const int64_t *x, int64_t n, int64_t first)
{
	return checksum((struct grid_part){.sum = x}, n, first);
}

/* By the definition: the sum of u[i % GRID_BLOCK] v[i / GRID_BLOCK] x[i] modulo GRID_PRIME. */
static uint64_t ref_checksum(const int64_t *x, int64_t n, int64_t first)
{
	__extension__ typedef __int128 wide;
	wide sum = 0;
	const struct grid_check check = check_at(0, NULL);
	for (int64_t i = 0; i < n; i++) {
		int64_t at = first + i;
		uint64_t v = grid_block_weight(&check, at / GRID_BLOCK);
		wide w = (wide)weights[at % GRID_BLOCK] * v % GRID_PRIME;
		sum = (sum + w * x[i]) % GRID_PRIME;
	}
	return (uint64_t)((sum + GRID_PRIME) % GRID_PRIME);
}

/* A sum as of a few leaves: up to 2^57. */
static int64_t random_sum(uint64_t seed, int64_t i)
{
	return (int64_t)hash_mix(seed * 1000003 + (uint64_t)i) >> (6 + seed % 20);
}

static int64_t *random_sums(uint64_t seed)
{
	int64_t *x = xmalloc(N * sizeof(*x));
	for (int64_t i = 0; i < N; i++)
		x[i] = random_sum(seed, i);
	return x;
}

TEST_AFTER(set_up, definition)
{
	int64_t *x = random_sums(3);
	x[0] = INT64_MIN; /* what only an error makes */
	x[1] = INT64_MAX;
	x[2] = -1;
	for (int64_t n = 1; n < N; n = 2 * n + 5)
		for (int64_t first = 0; first < 3 * GRID_BLOCK; first += 1531)
			assert_int_equal(
				checksum_of(x, n, first), ref_checksum(x, n, first));
	for (int i = 0; i < GRID_BLOCK; i++)
		assert_true(weights[i] > 0 && weights[i] < 1u << 27);
	free(x);
}

TEST_AFTER(set_up, adds_up)
{
	enum { RANKS = 24, SHARDS = 5 };
	int64_t *total = xmalloc(N * sizeof(*total));
	uint64_t contributions = 0, pieces = 0;
	memset(total, 0, N * sizeof(*total));
	for (uint64_t r = 0; r < RANKS; r++) {
		int64_t *x = random_sums(r);
		contributions += checksum_of(x, N, 0);
		for (int64_t i = 0; i < N; i++)
			total[i] += x[i];
		free(x);
	}
	for (int64_t k = 0; k < SHARDS; k++) {
		int64_t first = N * k / SHARDS, end = N * (k + 1) / SHARDS;
		pieces += checksum_of(total + first, end - first, first);
	}
	assert_int_equal(contributions % GRID_PRIME, pieces % GRID_PRIME);
	free(total);
}

/* Leaves count as the integers that are added, elements that are too large as 0; and the sums of
 * several leaves that are only rounded have their checksum. */
TEST_AFTER(set_up, leaves)
{
	enum { LEAVES = 4, SIZE = 2000 };
	float *x[LEAVES], *rounded = xmalloc(SIZE * sizeof(*rounded));
	int64_t *sum = xmalloc(SIZE * sizeof(*sum));
	struct grid_part parts[LEAVES];
	for (int large = 0; large < 2; large++) {
		uint64_t contributions = 0, word = 0;
		struct grid grid = {.exponent = 50};
		struct grid_check check = check_at(100, &word);
		for (int k = 0; k < LEAVES; k++) {
			x[k] = xmalloc(SIZE * sizeof(float));
			for (int64_t i = 0; i < SIZE; i++)
				x[k][i] = (float)random_sum((uint64_t)k, i) *
					  (large ? 0x1p-50f : 0x1p-66f);
			x[k][7] = large ? 0x1p30f : 1;
			parts[k] = (struct grid_part){.leaf = x[k]};
			contributions += checksum(parts[k], SIZE, 100);
		}
		struct grid_sum s = {.rounded = rounded,
			.parts = parts,
			.n_parts = LEAVES,
			.n = SIZE,
			.levels = 5,
			.check = &check};
		device.k->grid_sum(&device, &s, &grid);
		assert_int_equal(contributions % GRID_PRIME, word);
		check.subtract = true;
		s.sum = sum;
		device.k->grid_sum(&device, &s, &grid);
		assert_int_equal(word, 0);
		assert_int_equal(
			contributions % GRID_PRIME, ref_checksum(sum, SIZE, 100));
		assert_true(grid.beyond == (large ? 2 * LEAVES : 0));
		for (int k = 0; k < LEAVES; k++)
			free(x[k]);
	}
	free(sum);
	free(rounded);
}

TEST_AFTER(set_up, single_bits)
{
	int64_t *x = random_sums(2);
	uint64_t before = checksum_of(x, N, 0);
	for (int bit = 0; bit < 64; bit++) {
		int64_t i = random_sum(9, bit) & 8191;
		x[i] ^= (int64_t)((uint64_t)1 << bit);
		assert_true(checksum_of(x, N, 0) != before);
		x[i] ^= (int64_t)((uint64_t)1 << bit);
	}
	assert_true(checksum_of(x, N, 0) == before);
	free(x);
}

/* 100,000 errors: one to eight flipped bits, in one element, in neighbors, or anywhere. */
TEST_AFTER(set_up, errors)
{
	enum { ERRORS = 100000, SIZE = 512, FIRST = GRID_BLOCK - 100 };
	int64_t *x = random_sums(4), wrong[SIZE];
	uint64_t before = checksum_of(x, SIZE, FIRST), seed = 0;
	for (int n = 0; n < ERRORS; n++) {
		uint64_t kind = (uint64_t)n / 8 % 3, at = hash_mix(++seed);
		memcpy(wrong, x, sizeof(wrong));
		for (int k = 0; k <= n % 8; k++) {
			uint64_t random = hash_mix(++seed);
			uint64_t i = kind == 0	 ? at
				     : kind == 1 ? at + (uint64_t)k
						 : random >> 32;
			wrong[i % SIZE] ^= (int64_t)((uint64_t)1 << random % 64);
		}
		if (!memcmp(wrong, x, sizeof(wrong))) /* a bit was flipped twice */
			continue;
		if (checksum_of(wrong, SIZE, FIRST) == before)
			fail_msg("error %d is missed", n);
	}
	free(x);
}
