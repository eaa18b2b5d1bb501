/* Exact sums of gradients on a grid: grid.h. Sums are unsigned here, since they may wrap. */
#include "kernels/cpu/pieces.h"
#include "kernels/grid.h"

#ifdef __AVX2__
#include <immintrin.h>
#endif

/* Adding it rounds a double of at most 2^51 to an integer, ties to even, in the low bits. */
static const double magic = 0x1.8p52;

static inline uint64_t bits_of_double(double x)
{
	uint64_t u;
	memcpy(&u, &x, sizeof(u));
	return u;
}

static inline double double_of(uint64_t u)
{
	double x;
	memcpy(&x, &u, sizeof(x));
	return x;
}

static inline double power_of_2(int64_t n)
{
	return double_of((uint64_t)(n + 1023) << 52);
}

/* Rounds a double of at most 2^51 to an integer, ties to even. */
static inline uint64_t to_integer(double x)
{
	return bits_of_double(x + magic) - bits_of_double(magic);
}

/* Adds a leaf with elements below 2^51 units. */
static void add_small_leaf(uint64_t *to, const float *x, int64_t n, float scale)
{
	for (int64_t i = 0; i < n; i++)
		to[i] += to_integer((double)(x[i] * scale));
}

/* Adds a leaf with elements of up to 2^62 units: a multiple of 2^32 and the remainder, which a
 * double holds exactly, since a float has 24 bits. */
static void add_large_leaf(uint64_t *to, const float *x, int64_t n, float scale)
{
	for (int64_t i = 0; i < n; i++) {
		double units = (double)(x[i] * scale), upper = units * 0x1p-32;
		double rest = units - ((upper + magic) - magic) * 0x1p32;
		to[i] += (to_integer(upper) << 32) + to_integer(rest);
	}
}

/* Copies a leaf with its bad elements, which are rare, as zeros, and counts them. */
static void copy_good_elements(float *to, const float *x, int64_t n, float scale,
	float max_units, struct grid *grid)
{
	uint64_t beyond = 0, not_finite = 0;
	for (int64_t i = 0; i < n; i++) {
		bool good = fabsf(x[i] * scale) <= max_units;
		to[i] = good ? x[i] : 0;
		not_finite += !isfinite(x[i]);
		beyond += !good && isfinite(x[i]);
	}
#pragma omp atomic
	grid->beyond += beyond;
#pragma omp atomic
	grid->not_finite += not_finite;
}

/* Returns elements [at, at + n) of a leaf. */
static const float *leaf_piece(const struct grid_sum *s, const struct grid_part *p,
	int64_t at, int64_t n, float buf[PIECE])
{
	struct mat leaf = mat_typed((void *)p->leaf, 1, s->n, s->leaf_type);
	return piece_load(leaf, at, n, buf);
}

/* Adds a leaf of any size, with its bad elements as zeros. */
static void add_leaf(uint64_t *to, const float *x, int64_t n, float scale, int levels,
	struct grid *grid)
{
	float buf[PIECE], largest = float_of((uint32_t)max_size_bits(x, n)) * scale;
	float max_units = (float)power_of_2(62 - levels);
	bool small = largest < 0x1p51f;
	if (!(largest <= max_units)) {
		copy_good_elements(buf, x, n, scale, max_units, grid);
		x = buf;
	}
	if (small)
		add_small_leaf(to, x, n, scale);
	else
		add_large_leaf(to, x, n, scale);
}

/* Adds n sums, which may wrap. */
static void add_sum(uint64_t *to, const int64_t *x, int64_t n)
{
	for (int64_t i = 0; i < n; i++)
		to[i] += (uint64_t)x[i];
}

/* Returns the nearest double: the upper 32 bits, exactly, plus the lower 32 bits. */
static inline double to_double(uint64_t u)
{
	double upper = double_of(u >> 32 ^ 0x4530000080000000u); /* + 2^84 + 2^63 */
	double lower = double_of((u & 0xffffffffu) | 0x4330000000000000u); /* + 2^52 */
	return (upper - 0x1.00000801p84) + lower;
}

/* Converts sums in multiples of unit to fp32. */
static void round_sums(float *to, const uint64_t *x, int64_t n, double unit)
{
	for (int64_t i = 0; i < n; i++)
		to[i] = (float)(to_double(x[i]) * unit);
}

/* ---- checksums ------------------------------------------------------------------- */

/* Sums of products of the two halves of elements: u < 2^27 and |upper| <= 2^31, so that 16 products
 * fit into 64 bits. */
enum { UNFOLDED = 16 };

/* Returns the sum of u[i] x[i], in an unreduced form, of n <= GRID_BLOCK elements. */
static uint64_t add_weighted_plainly(const uint64_t *x, const uint32_t *u, int64_t n)
{
	uint64_t sum = 0;
	for (int64_t i = 0; i < n;) {
		uint64_t lower = 0;
		int64_t upper = 0, end = min64(n, i + UNFOLDED);
		for (; i < end; i++) {
			lower += (x[i] & UINT32_MAX) * u[i];
			upper += (int64_t)(int32_t)(x[i] >> 32) * (int64_t)u[i];
		}
		sum += grid_fold(lower, upper);
	}
	return sum;
}

/* Vectors of 64 bits: loads, weights, products of the lower 32 bits, sums, and both halves as
 * unsigned numbers. */
#if defined(__AVX512F__)
enum { LANES = 8 };
typedef __m512i vec;
#define LOAD(p) _mm512_loadu_si512(p)
#define WEIGHTS(p) _mm512_cvtepu32_epi64(_mm256_loadu_si256((const void *)(p)))
#define SPLAT(x) _mm512_set1_epi64((int64_t)(x))
#define MUL(a, b) _mm512_mul_epu32(a, b)
#define IMUL(a, b) _mm512_mul_epi32(a, b)
#define ADD(a, b) _mm512_add_epi64(a, b)
#define LOWER(a) _mm512_and_si512(a, SPLAT(UINT32_MAX))
#define UPPER(a) _mm512_srli_epi64(a, 32)
#define STORE(p, a) _mm512_storeu_si512(p, a)
#elif defined(__AVX2__)
enum { LANES = 4 };
typedef __m256i vec;
#define LOAD(p) _mm256_loadu_si256((const void *)(p))
#define WEIGHTS(p) _mm256_cvtepu32_epi64(_mm_loadu_si128((const void *)(p)))
#define SPLAT(x) _mm256_set1_epi64x((int64_t)(x))
#define MUL(a, b) _mm256_mul_epu32(a, b)
#define IMUL(a, b) _mm256_mul_epi32(a, b)
#define ADD(a, b) _mm256_add_epi64(a, b)
#define LOWER(a) _mm256_and_si256(a, SPLAT(UINT32_MAX))
#define UPPER(a) _mm256_srli_epi64(a, 32)
#define STORE(p, a) _mm256_storeu_si256((void *)(p), a)
#endif

#ifdef __AVX2__
static uint64_t sum_lanes(vec a)
{
	uint64_t lane[LANES], sum = 0;
	STORE(lane, a);
	for (int i = 0; i < LANES; i++)
		sum += lane[i];
	return sum;
}

/* Returns the sum of u[i] x[i] of n elements, a multiple of UNFOLDED * LANES, up to GRID_BLOCK, as
 * add_weighted_plainly() does. The sums of upper halves are signed; each starts at 2^63, so that it
 * is unsigned. */
static uint64_t add_weighted_lanes(const uint64_t *x, const uint32_t *u, int64_t n)
{
	const vec sign = SPLAT((uint64_t)1 << 63), zero = SPLAT(0);
	const uint64_t chunks = (uint64_t)(n / UNFOLDED);
	vec part[4] = {zero, zero, zero, zero}; /* halves of both sums */
	for (int64_t i = 0; i < n;) {
		vec low = zero, up = sign;
		for (int64_t end = i + UNFOLDED * LANES; i < end; i += LANES) {
			vec a = LOAD(x + i), w = WEIGHTS(u + i);
			low = ADD(low, MUL(a, w));
			up = ADD(up, IMUL(UPPER(a), w));
		}
		part[0] = ADD(part[0], LOWER(low));
		part[1] = ADD(part[1], UPPER(low));
		part[2] = ADD(part[2], LOWER(up));
		part[3] = ADD(part[3], UPPER(up));
	}
	int64_t signs = (int64_t)(chunks << 31);
	uint64_t low = grid_fold(sum_lanes(part[0]), (int64_t)sum_lanes(part[1]));
	uint64_t up = grid_fold(sum_lanes(part[2]), (int64_t)sum_lanes(part[3]) - signs);
	return grid_fold(low, (int64_t)(up % GRID_PRIME));
}
#endif

/* Returns the sum of u[i] x[i] modulo GRID_PRIME. */
static uint64_t add_weighted(const uint64_t *x, const uint32_t *u, int64_t n)
{
	uint64_t sum = 0;
	int64_t i = 0;
#ifdef __AVX2__
	i = n / (UNFOLDED * LANES) * (UNFOLDED * LANES);
	sum = add_weighted_lanes(x, u, i);
#endif
	return (sum + add_weighted_plainly(x + i, u + i, n - i)) % GRID_PRIME;
}

/* The weight of the last block that a thread hashed, since a block is several pieces. */
struct last_block {
	int64_t block; /* -1: none */
	uint32_t v;
};

/* Returns the checksum of the sums x of elements [at, at + n) of a call. */
static uint64_t checksum(const struct grid_check *c, const uint64_t *x, int64_t at,
	int64_t n, struct last_block *last)
{
	uint64_t sum = 0;
	for (int64_t i = 0, len; i < n; i += len) {
		int64_t index = c->first + at + i, skip = index % GRID_BLOCK;
		int64_t block = index / GRID_BLOCK;
		if (block != last->block)
			*last = (struct last_block){block, grid_block_weight(c, block)};
		len = min64(n - i, GRID_BLOCK - skip);
		sum += add_weighted(x + i, c->u + skip, len) * last->v % GRID_PRIME;
	}
	return sum;
}

/* Adds a sum of checksums to the word of a call. */
static void add_to_word(const struct grid_check *c, uint64_t sum)
{
	sum %= GRID_PRIME;
	*c->word = (*c->word + (c->subtract ? GRID_PRIME - sum : sum)) % GRID_PRIME;
}

/* ---- the kernel ------------------------------------------------------------------ */

/* Returns the sums of elements [at, at + n), in `buf` unless they are kept. */
static const uint64_t *sum_piece(const struct grid_sum *s, int64_t at, int64_t n,
	float scale, struct grid *grid, uint64_t buf[PIECE])
{
	uint64_t *to = s->sum ? (uint64_t *)s->sum + at : buf;
	if (!s->sum && s->n_parts == 1 && s->parts->sum) /* only rounded */
		return (const uint64_t *)s->parts->sum + at;
	if (!s->add)
		memset(to, 0, (size_t)n * sizeof(*to));
	for (int i = 0; i < s->n_parts; i++) {
		const struct grid_part *p = &s->parts[i];
		float wide[PIECE];
		if (p->leaf)
			add_leaf(to, leaf_piece(s, p, at, n, wide), n, scale, s->levels,
				grid);
		else
			add_sum(to, p->sum + at, n);
	}
	return to;
}

/* Sets acc to (first ? 0 : acc) + two leaves, rounded to integers of units. */
static void add_two_leaves(
	double *acc, bool first, const float *x, const float *y, int64_t n, float scale)
{
	for (int64_t i = 0; i < n; i++) {
		double a = ((double)(x[i] * scale) + magic) - magic;
		double b = ((double)(y[i] * scale) + magic) - magic;
		acc[i] = (first ? 0 : acc[i]) + (a + b);
	}
}

/* Computes only `rounded`, from a few leaves of the usual sizes: doubles hold their sums exactly,
 * which takes a third of the time. Adds the checksum, if wanted. Returns false, with nothing done,
 * if that is not possible. */
static bool round_leaves(const struct grid_sum *s, int64_t at, int64_t n, float scale,
	double unit, uint64_t *check, struct last_block *last)
{
	static const float zeros[PIECE];
	double acc[PIECE];
	if (s->sum || s->n_parts < 2 || s->leaf_type != DT_F32)
		return false;
	for (int i = 0; i < s->n_parts; i++) {
		const float *x = s->parts[i].leaf;
		float max_units = x ? float_of((uint32_t)max_size_bits(x + at, n)) * scale
				    : INFINITY;
		if (!(max_units * (float)s->n_parts < 0x1p51f &&
			    max_units <= (float)power_of_2(62 - s->levels)))
			return false;
	}
	for (int i = 0; i < s->n_parts; i += 2) {
		const float *x = s->parts[i].leaf;
		const float *y = i + 1 < s->n_parts ? s->parts[i + 1].leaf : NULL;
		add_two_leaves(acc, !i, x + at, y ? y + at : zeros, n, scale);
	}
	for (int64_t i = 0; i < n; i++)
		s->rounded[at + i] = (float)(acc[i] * unit);
	if (s->check) {
		uint64_t sums[PIECE];
		for (int64_t i = 0; i < n; i++)
			sums[i] = to_integer(acc[i]);
		*check += checksum(s->check, sums, at, n, last);
	}
	return true;
}

/* Sums and rounds the elements of a piece from `at` on. Returns their checksum, or 0. */
static uint64_t sum_and_round(const struct grid_sum *s, int64_t at, float scale,
	double unit, struct grid *grid, struct last_block *last)
{
	uint64_t buf[PIECE], check = 0;
	int64_t n = min64(PIECE, s->n - at);
	if (round_leaves(s, at, n, scale, unit, &check, last))
		return check;
	const uint64_t *sum = sum_piece(s, at, n, scale, grid, buf);
	if (s->rounded)
		round_sums(s->rounded + at, sum, n, unit);
	return s->check ? checksum(s->check, sum, at, n, last) : 0;
}

/* Sets (or with s->add increases) the sums, and the rounded sums and the checksum if wanted; counts
 * bad elements. */
void K(grid_sum)(struct device *d, const struct grid_sum *s, struct grid *grid)
{
	const float scale = (float)power_of_2(grid->exponent);
	const double unit = power_of_2(-grid->exponent);
	BUG_ON(!s->sum && (s->add || s->n_parts > GRID_PARTS));
	BUG_ON(s->levels < 0 || s->levels > 62);
	BUG_ON(grid->exponent < GRID_MIN_EXPONENT || grid->exponent > GRID_MAX_EXPONENT);
	uint64_t check = 0;
	struct grid ignored = *grid;
	if (!s->sum && !s->rounded)
		grid = &ignored;
#pragma omp parallel if (s->n > PARALLEL_FROM) reduction(+ : check)
	{
		struct last_block last = {.block = -1};
#pragma omp for nowait
		for (int64_t at = 0; at < s->n; at += PIECE)
			check += sum_and_round(s, at, scale, unit, grid, &last);
	}
	if (s->check)
		add_to_word(s->check, check);
}

/* Adds the counts of bad elements to a sum of squares, as -infinities and NaNs. */
void K(grid_count)(struct device *d, struct exact *x, struct grid *grid)
{
	grid->check %= GRID_PRIME;
	x->n_neg_inf += (int64_t)grid->beyond;
	x->n_nan += (int64_t)grid->not_finite;
}

/* ---- words ----------------------------------------------------------------------- */

/* Returns the sum of u[i] x[i] modulo GRID_PRIME, of up to GRID_BLOCK words. */
static uint64_t add_weighted_words(const uint32_t *x, const uint32_t *u, int64_t n)
{
	uint64_t lower = 0, upper = 0;
	for (int64_t i = 0; i < n; i++) {
		uint64_t product = (uint64_t)x[i] * u[i];
		lower += product & UINT32_MAX;
		upper += product >> 32;
	}
	return grid_fold(lower, (int64_t)upper) % GRID_PRIME;
}

/* Returns the checksum of the words of a part that are in one block of weights. */
static uint64_t block_checksum(const struct word_part *x, int64_t block,
	const uint32_t *u, struct philox_key key)
{
	const struct grid_check check = {.key = key, .bucket = x->vector};
	int64_t begin = block * GRID_BLOCK, from = max64(begin, x->first);
	int64_t end = min64(begin + GRID_BLOCK, x->first + x->n);
	uint64_t sum = add_weighted_words((const uint32_t *)x->p + (from - x->first),
		u + (from - begin), end - from);
	return sum * grid_block_weight(&check, block) % GRID_PRIME;
}

/* Adds the checksums of parts to sums. */
void K(word_sums)(struct device *d, uint64_t *sum, const struct word_part *parts,
	int n_parts, const uint32_t *u, struct philox_key key)
{
	for (int i = 0; i < n_parts; i++) {
		const struct word_part *x = &parts[i];
		int64_t begin = x->first / GRID_BLOCK;
		int64_t end = x->n ? ceil_div(x->first + x->n, GRID_BLOCK) : begin;
		uint64_t all = 0;
#pragma omp parallel for if (x->n > PARALLEL_FROM) reduction(+ : all)
		for (int64_t k = begin; k < end; k++)
			all += block_checksum(x, k, u, key);
		sum[x->sum] = (sum[x->sum] + all) % GRID_PRIME;
	}
}

/* Sets *word to the sum of n terms. */
void K(checksum_word)(struct device *d, uint64_t *word, const uint64_t *sum,
	const uint64_t *earlier, const struct checksum_term *terms, int64_t n)
{
	uint64_t all = 0;
	for (int64_t i = 0; i < n; i++)
		all += checksum_term_of(&terms[i], sum[i], earlier[i]);
	*word = all % GRID_PRIME;
}
