/* The normal kernel: random initial weights, computed tile by tile (kernels/normal.h). */
#include "kernels/cpu/cpu.h"
#include "kernels/normal.h"

#if defined(__SSE2__)
#include <immintrin.h>
#endif

/* Each 32-bit word is in a 64-bit lane, as the instruction for 32 x 32 -> 64-bit multiplication
 * needs it, which GCC does not generate for plain loops. The upper half of a lane is ignored. */
#if defined(__AVX512F__)
enum { WORDS_BYTES = 64 };
#define MULTIPLY(a, b) _mm512_mul_epu32((__m512i)(a), _mm512_set1_epi64(b))
#elif defined(__AVX2__)
enum { WORDS_BYTES = 32 };
#define MULTIPLY(a, b) _mm256_mul_epu32((__m256i)(a), _mm256_set1_epi64x(b))
#elif defined(__SSE2__)
enum { WORDS_BYTES = 16 };
#define MULTIPLY(a, b) _mm_mul_epu32((__m128i)(a), _mm_set1_epi64x(b))
#else
enum { WORDS_BYTES = 16 };
#define MULTIPLY(a, b) (((a)&0xffffffffu) * (uint64_t)(b))
#endif
enum { WORDS = WORDS_BYTES / 8 };

typedef uint64_t words __attribute__((vector_size(WORDS_BYTES)));
typedef uint32_t narrow_words
	__attribute__((vector_size(WORDS_BYTES / 2), aligned(4), may_alias));

/* Stores the lower 32 bits of each lane. */
static inline void store_words(uint32_t *to, words x)
{
	*(narrow_words *)to = __builtin_convertvector(x, narrow_words);
}

/* Sets to[i][l] to word i of block first + l; `first` is a multiple of NORMAL_LANES. */
static inline void philox_lanes(uint32_t to[4][NORMAL_LANES], struct philox_key key,
	uint64_t first, uint32_t attempt)
{
	for (int l = 0; l < NORMAL_LANES; l += WORDS) {
		uint32_t k0 = key.k[0], k1 = key.k[1];
		words c0 = {0}, c1 = {0}, c2 = {0}, c3 = {0};
		for (int i = 0; i < WORDS; i++)
			c0[i] = first + (uint64_t)(l + i);
		c1 += first >> 32;
		c2 += attempt;
#pragma GCC unroll 10
		for (int round = 0; round < 10; round++) {
			words p0 = (words)MULTIPLY(c0, 0xD2511F53u);
			words p1 = (words)MULTIPLY(c2, 0xCD9E8D57u);
			c0 = p1 >> 32 ^ c1 ^ k0;
			c2 = p0 >> 32 ^ c3 ^ k1;
			c1 = p1;
			c3 = p0;
			k0 += 0x9E3779B9u;
			k1 += 0xBB67AE85u;
		}
		store_words(&to[0][l], c0);
		store_words(&to[1][l], c1);
		store_words(&to[2][l], c2);
		store_words(&to[3][l], c3);
	}
}

/* Computes all numbers of a tile of the key's sequence: mean 0, deviation 1, first draws. */
static void fill_tile(float *z, struct philox_key key, uint64_t tile)
{
	uint32_t w[4][NORMAL_LANES];
	philox_lanes(w, key, tile * NORMAL_LANES, 0);
#pragma omp simd
	for (int l = 0; l < NORMAL_LANES; l++) {
		normal_pair(&z[l], &z[NORMAL_LANES + l], w[0][l], w[1][l]);
		normal_pair(&z[2 * NORMAL_LANES + l], &z[3 * NORMAL_LANES + l], w[2][l],
			w[3][l]);
	}
}

/* Sets to[] to numbers [from, end) of the sequence, all in one tile, with o's mean, deviation and
 * limit. */
static void fill_part(float *to, const struct normal *o, int64_t from, int64_t end)
{
	float z[NORMAL_TILE];
	int64_t tile = from / NORMAL_TILE, skip = from % NORMAL_TILE;
	fill_tile(z, o->rng.key, (uint64_t)tile);
	for (int64_t i = 0; i < end - from && o->max_deviation > 0; i++)
		z[skip + i] = normal_within(
			o->rng.key, (uint64_t)(from + i), z[skip + i], o->max_deviation);
	for (int64_t i = 0; i < end - from; i++)
		to[i] = o->mean + o->std * z[skip + i];
}

/* Fills x with normal numbers, in parallel over the tiles of all rows. `tiles`: maximum per row. */
void K(normal)(struct device *d, struct mat x, const struct normal *o)
{
	int64_t step = row_step(o->rng.row_step, x);
	if (step == x.cols)
		x = mat(x.p, 1, mat_size(x));
	int64_t tiles = (x.cols + NORMAL_TILE - 2) / NORMAL_TILE + 1;
#pragma omp parallel for if (mat_size(x) > PARALLEL_FROM)
	for (int64_t i = 0; i < x.rows * tiles; i++) {
		int64_t row = i / tiles, first = o->rng.first + row * step;
		int64_t tile = (first / NORMAL_TILE + i % tiles) * NORMAL_TILE;
		int64_t from = max64(first, tile);
		int64_t end = min64(first + x.cols, tile + NORMAL_TILE);
		if (from < end)
			fill_part(mat_row(x, row) + (from - first), o, from, end);
	}
}
