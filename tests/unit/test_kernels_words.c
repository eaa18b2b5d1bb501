/* Checksums of 32-bit words, against the definition, and the word that they add up to.
 * isa: sse2 avx2 avx512
 * device: cpu cuda
 */
#include "base/hash.h"
#include "tests/support/device.h"

#include <stdlib.h>
#include <string.h>

enum { SEED = 5, LARGE = 9 * GRID_BLOCK + 321 };

__extension__ typedef __int128 wide;

static uint64_t *sums(int64_t n)
{
	uint64_t *x = (uint64_t *)(void *)doubles(n);
	memset(x, 0, (size_t)n * sizeof(*x));
	return x;
}

static const uint32_t *weights(void)
{
	uint32_t u[GRID_BLOCK];
	grid_weights(SEED, u);
	return there(u, sizeof(u));
}

/* Random words; with `large`, the largest ones. */
static uint32_t *random_words(int64_t n, bool large)
{
	uint32_t *x = (uint32_t *)(void *)floats(n);
	for (int64_t i = 0; i < n; i++)
		x[i] = large ? UINT32_MAX : (uint32_t)hash_mix((uint64_t)i + 11);
	return x;
}

/* By the definition: the sum of u[i % GRID_BLOCK] v[i / GRID_BLOCK] x[i] modulo GRID_PRIME. */
static uint64_t ref_checksum(
	const uint32_t *x, int64_t n, int64_t first, uint32_t vector, const uint32_t *u)
{
	const struct grid_check check = {.key = grid_check_key(SEED), .bucket = vector};
	wide sum = 0;
	for (int64_t i = 0; i < n; i++) {
		int64_t at = first + i;
		uint64_t v = grid_block_weight(&check, at / GRID_BLOCK);
		sum = (sum + (wide)x[i] * u[at % GRID_BLOCK] % GRID_PRIME * v) %
		      GRID_PRIME;
	}
	return (uint64_t)sum;
}

static uint64_t checksum(struct device *d, const uint32_t *x, int64_t n, int64_t first,
	uint32_t vector, const uint32_t *u)
{
	const struct word_part part = {.p = x, .n = n, .first = first, .vector = vector};
	uint64_t *sum = sums(1);
	d->k->word_sums(d, sum, &part, 1, u, grid_check_key(SEED));
	device_wait(d);
	return *sum % GRID_PRIME;
}

/* Any length, first index and alignment; also the largest words. */
DEVICE_TEST(definition)
{
	const uint32_t *u = weights();
	for (int large = 0; large < 2; large++) {
		const uint32_t *x = random_words(LARGE, large);
		for (int64_t n = 0; n < LARGE - 3; n = 3 * n + 1)
			for (int64_t first = 0; first < 3 * GRID_BLOCK; first += 2045)
				for (int at = 0; at < 3; at++)
					assert_int_equal(
						checksum(d, x + at, n, first, 7, u),
						ref_checksum(x + at, n, first, 7, u));
		assert_int_equal(
			checksum(d, x, LARGE, 0, 7, u), ref_checksum(x, LARGE, 0, 7, u));
	}
}

/* More parts than one launch has, cut anywhere, for several vectors and sums: the checksums of the
 * parts of a vector add up to its checksum. */
DEVICE_TEST(many_parts)
{
	enum { PARTS = 300, SUMS = 4 };
	const uint32_t *u = weights(), *x = random_words(LARGE, false);
	static struct word_part part[PARTS];
	uint64_t *sum = sums(SUMS), want[SUMS] = {0};
	for (int i = 0; i < PARTS; i++) {
		int s = i % SUMS, k = i / SUMS, n = PARTS / SUMS;
		int64_t first = (int64_t)LARGE * k / n;
		int64_t end = k % 7 == 3 ? first : (int64_t)LARGE * (k + 1) / n;
		part[i] = (struct word_part){.p = x + first,
			.n = end - first,
			.first = first,
			.vector = (uint32_t)s,
			.sum = s};
		want[s] += ref_checksum(x + first, end - first, first, (uint32_t)s, u);
	}
	for (int times = 1; times < 3; times++) {
		d->k->word_sums(d, sum, part, PARTS, u, grid_check_key(SEED));
		device_wait(d);
		for (int s = 0; s < SUMS; s++)
			assert_int_equal(sum[s] % GRID_PRIME,
				(uint64_t)times * want[s] % GRID_PRIME);
	}
}

DEVICE_TEST(single_bits)
{
	const uint32_t *u = weights();
	uint32_t *x = random_words(2 * GRID_BLOCK, false);
	uint64_t before = checksum(d, x, 2 * GRID_BLOCK, 100, 3, u);
	for (int bit = 0; bit < 64; bit++) {
		uint64_t i = hash_mix((uint64_t)bit) % (2 * GRID_BLOCK);
		x[i] ^= (uint32_t)1 << bit % 32;
		assert_true(checksum(d, x, 2 * GRID_BLOCK, 100, 3, u) != before);
		x[i] ^= (uint32_t)1 << bit % 32;
	}
	assert_true(checksum(d, x, 2 * GRID_BLOCK, 100, 3, u) == before);
}

/* Sums that are congruent to the earlier ones add only their factor times themselves. */
DEVICE_TEST(terms)
{
	static const int64_t counts[] = {0, 1, 5, 255, 256, 1000};
	for (size_t k = 0; k < ARRAY_LEN(counts); k++) {
		int64_t n = counts[k];
		uint64_t *sum = sums(n + 1), *earlier = sums(n + 1), *word = sums(1),
			 want = 0;
		struct checksum_term *terms =
			(struct checksum_term *)(void *)sums(2 * n + 2);
		for (int64_t i = 0; i < n; i++) {
			bool differs = i % 3 == 1;
			sum[i] = hash_mix((uint64_t)i) >> 4;
			earlier[i] = sum[i] + (differs ? 1 : 2 * (uint64_t)GRID_PRIME);
			terms[i].factor = hash_mix(sum[i]) % GRID_PRIME;
			terms[i].differs = hash_mix(terms[i].factor) % GRID_PRIME;
			want += (uint64_t)((wide)sum[i] * terms[i].factor % GRID_PRIME);
			want += differs ? terms[i].differs : 0;
		}
		*word = 99;
		d->k->checksum_word(d, word, sum, earlier, terms, n);
		device_wait(d);
		assert_int_equal(*word, want % GRID_PRIME);
	}
}

int main(void)
{
	return run_on_device();
}
