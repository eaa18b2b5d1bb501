/* Exact sums of gradients on a grid: grid.h. Sums are unsigned here, since they may wrap. */
#include "kernels/cuda/vector.h"

extern "C" {
#include "kernels/grid.h"
}

/* The parts of one launch: leaves, then sums. */
struct grid_parts {
	const void *p[GRID_PARTS];
	int leaves, n;
};

/* Elements per thread: one pack of leaves, two packs of sums. */
enum { GRID_N = PER_PACK<float>, GRID_HALF = PER_PACK<uint64_t> };

static __device__ inline double power_of_2(int64_t n)
{
	return __longlong_as_double((n + 1023) << 52);
}

struct bad_counts {
	uint64_t beyond, not_finite;
};

/* Adds the rounded elements of a leaf to the sums `to`. Adds 0 for elements that are too large or
 * not finite, and counts them in `bad`. */
static __device__ inline void add_leaf(uint64_t (&to)[GRID_N], const float (&x)[GRID_N],
	float scale, float max_units, struct bad_counts &bad)
{
#pragma unroll
	for (int i = 0; i < GRID_N; i++) {
		float units = x[i] * scale;
		bool good = fabsf(units) <= max_units, finite = isfinite(x[i]);
		to[i] += good ? (uint64_t)llrintf(units) : 0;
		bad.beyond += !good && finite;
		bad.not_finite += !finite;
	}
}

/* Adds GRID_N sums at x, or only the first `left`, to `to`. whole: x is aligned for packs. */
static __device__ inline void add_sum(
	uint64_t (&to)[GRID_N], const uint64_t *x, int64_t left, bool whole)
{
	typedef pack<uint64_t, GRID_HALF> half;
	if (whole && left >= GRID_N) {
		half a = ((const half *)x)[0], b = ((const half *)x)[1];
#pragma unroll
		for (int i = 0; i < GRID_HALF; i++) {
			to[i] += a.x[i];
			to[GRID_HALF + i] += b.x[i];
		}
	} else {
#pragma unroll
		for (int i = 0; i < GRID_N; i++)
			to[i] += i < left ? x[i] : 0;
	}
}

/* Stores GRID_N sums, or only the first `left`. whole: `to` is aligned for packs. */
static __device__ inline void store_sum(
	uint64_t *to, const uint64_t (&x)[GRID_N], int64_t left, bool whole)
{
#pragma unroll
	for (int h = 0; h < GRID_N; h += GRID_HALF) {
		pack<uint64_t, GRID_HALF> v;
#pragma unroll
		for (int i = 0; i < GRID_HALF; i++)
			v.x[i] = x[h + i];
		store_bits(to + h, v, left - h, whole);
	}
}

/* Adds the checksum of a thread block's sums to the word; a block-wide sync. `to`: elements i to
 * i + GRID_N - 1 of the call; 0 after the last one. The elements of a thread block are in at most
 * two blocks of weights. */
static __device__ inline void add_checksum(
	const struct grid_check &c, const uint64_t (&to)[GRID_N], int64_t i)
{
	const int64_t per_thread_block = (int64_t)THREADS * GRID_N;
	const int64_t begin = c.first + (int64_t)blockIdx.x * per_thread_block;
	const int64_t block = begin / GRID_BLOCK, at = c.first + i;
	uint64_t word = 0;
	for (int k = 0; k < 2; k++) {
		int64_t from = (block + k) * GRID_BLOCK, end = from + GRID_BLOCK;
		if (from >= begin + per_thread_block)
			break;
		uint64_t lower = 0;
		int64_t upper = 0;
#pragma unroll
		for (int j = 0; j < GRID_N; j++) {
			if (at + j < from || at + j >= end)
				continue;
			uint32_t u = c.u[(at + j) % GRID_BLOCK];
			lower += (to[j] & UINT32_MAX) * u;
			upper += (int64_t)(int32_t)(to[j] >> 32) * (int64_t)u;
		}
		uint64_t sum = row_sum<WARPS_PER_BLOCK>(grid_fold(lower, upper));
		if (threadIdx.x == 0)
			word += sum % GRID_PRIME * grid_block_weight(&c, block + k) %
				GRID_PRIME;
	}
	word %= GRID_PRIME;
	if (threadIdx.x == 0)
		atomicAdd((unsigned long long *)c.word,
			c.subtract ? GRID_PRIME - word : word);
}

/* Sums all parts for one pack per thread: stores the sums (unless `sum` is NULL) and the rounded
 * sums (unless NULL), and adds the counts of bad elements to *grid (unless both are NULL). T: the
 * type of leaves. */
template <typename T, bool CHECKED>
static __global__ void grid_sum_kernel(uint64_t *sum, bool add, float *rounded,
	const struct grid_parts parts, int64_t n, float max_units, struct grid *grid,
	bool whole, const struct grid_check check)
{
	const float scale = (float)power_of_2(grid->exponent);
	const double unit = power_of_2(-grid->exponent);
	const int64_t i = thread_number() * GRID_N, left = n - i;
	uint64_t to[GRID_N] = {};
	float x[GRID_N];
	struct bad_counts bad = {};
	if (add)
		add_sum(to, sum + i, left, whole);
#pragma unroll 4
	for (int k = 0; k < parts.leaves; k++) {
		load(x, (const T *)parts.p[k] + i, left, whole);
		add_leaf(to, x, scale, max_units, bad);
	}
#pragma unroll 4
	for (int k = parts.leaves; k < parts.n; k++)
		add_sum(to, (const uint64_t *)parts.p[k] + i, left, whole);
	if (sum)
		store_sum(sum + i, to, left, whole);
	if (CHECKED)
		add_checksum(check, to, i);
	for (int j = 0; j < GRID_N; j++)
		x[j] = (float)((double)(int64_t)to[j] * unit);
	if (rounded)
		store(rounded + i, x, left, whole);
	if (!sum && !rounded)
		return;
	if (!__any_sync(ALL_LANES, bad.beyond || bad.not_finite)) /* the usual case */
		return;
	bad.beyond = warp_sum(bad.beyond);
	bad.not_finite = warp_sum(bad.not_finite);
	if (lane_number() == 0) {
		atomicAdd((unsigned long long *)&grid->beyond, bad.beyond);
		atomicAdd((unsigned long long *)&grid->not_finite, bad.not_finite);
	}
}

/* Appends the leaves (`leaves`) or sums of n parts; false: one is not aligned for packs. */
template <typename T>
static bool append_parts(
	struct grid_parts *to, const struct grid_part *from, int n, bool leaves)
{
	bool whole = true;
	for (int i = 0; i < n; i++) {
		if ((from[i].leaf != NULL) != leaves)
			continue;
		whole &= in_packs(0, GRID_N, (const T *)from[i].leaf) &&
			 in_packs(0, GRID_HALF, from[i].sum);
		to->p[to->n++] = leaves ? from[i].leaf : (const void *)from[i].sum;
	}
	return whole;
}

/* Launches grid_sum_kernel() for GRID_PARTS parts at a time; the last launch also rounds, and adds
 * the checksum. */
template <typename T>
static void sum_parts(struct device *d, const struct grid_sum *s, struct grid *grid)
{
	int done = 0;
	do {
		struct grid_parts parts = {};
		const struct grid_part *from = s->parts + done;
		int n = s->n_parts - done;
		n = n < GRID_PARTS ? n : GRID_PARTS;
		bool whole =
			in_packs(0, GRID_HALF, s->sum) && in_packs(0, GRID_N, s->rounded);
		whole &= append_parts<T>(&parts, from, n, true);
		parts.leaves = parts.n;
		whole &= append_parts<T>(&parts, from, n, false);
		bool add = s->add || done, last = done + n == s->n_parts;
		bool checks = last && s->check;
		launch(d, "grid_sum", grid_of_packs(1, s->n, GRID_N), THREADS, 0,
			checks ? grid_sum_kernel<T, true> : grid_sum_kernel<T, false>,
			(uint64_t *)s->sum, add, last ? s->rounded : NULL, parts, s->n,
			ldexpf(1, 62 - s->levels), grid, whole,
			checks ? *s->check : (struct grid_check){});
		done += n;
	} while (done < s->n_parts);
}

/* Sets (or with s->add increases) the sums, and the rounded sums and the checksum if wanted; counts
 * bad elements. */
void cuda_grid_sum(struct device *d, const struct grid_sum *s, struct grid *grid)
{
	BUG_ON(!s->sum && (s->add || s->n_parts > GRID_PARTS));
	BUG_ON(s->levels < 0 || s->levels > 62);
	call_by_type(s->leaf_type, [&](auto t) { sum_parts<decltype(t)>(d, s, grid); });
}

static __global__ void grid_count_kernel(struct exact *x, struct grid *grid)
{
	grid->check %= GRID_PRIME;
	x->n_neg_inf += (int64_t)grid->beyond;
	x->n_nan += (int64_t)grid->not_finite;
}

void cuda_grid_count(struct device *d, struct exact *x, struct grid *grid)
{
	launch(d, "grid_count", 1, 1, 0, grid_count_kernel, x, grid);
}

/* ---- words ----------------------------------------------------------------------- */

/* The parts of one launch. Part i has the blocks of weights from first_block[i] on. */
enum { WORD_PARTS = 64, WORD_BLOCKS = 4 };
struct word_parts {
	const uint32_t *p[WORD_PARTS];
	int64_t n[WORD_PARTS], first[WORD_PARTS];
	uint32_t vector[WORD_PARTS];
	int sum[WORD_PARTS];
	int64_t first_block[WORD_PARTS + 1];
	bool whole[WORD_PARTS]; /* packs of a block are aligned */
	int n_parts;
};

/* Words of a block of weights per thread, in packs. A thread has the same weights u in all blocks,
 * which it keeps in registers. */
enum {
	WORD_PACK = PER_PACK<uint32_t>,
	WORD_PACKS = GRID_BLOCK / THREADS / WORD_PACK,
};
static_assert(
	WORD_PACKS * WORD_PACK * THREADS == GRID_BLOCK, "threads share a block evenly");

/* Returns a number congruent to x modulo GRID_PRIME, below 2^40. */
static __device__ inline uint64_t fold_once(uint64_t x)
{
	const uint64_t r = ((uint64_t)1 << 32) % GRID_PRIME; /* 198 */
	return (x & UINT32_MAX) + r * (x >> 32);
}

typedef pack<uint32_t, WORD_PACK> word_pack;

/* Returns WORD_PACK words of n from index i on, which may be negative; 0 outside. whole: packs at
 * multiples of WORD_PACK in a block are aligned. */
static __device__ inline word_pack load_words(
	const uint32_t *p, int64_t i, int64_t n, bool whole)
{
	word_pack x = {};
	if (whole && i >= 0 && i + WORD_PACK <= n)
		return *(const word_pack *)(p + i);
#pragma unroll
	for (int j = 0; j < WORD_PACK; j++)
		if (i + j >= 0 && i + j < n)
			x.x[j] = p[i + j];
	return x;
}

/* Adds the checksums of a range of blocks of weights to the sums. The ranges of thread blocks are
 * contiguous, so most have one part, and add once. */
static __global__ void word_sums_kernel(uint64_t *sum, const struct word_parts all,
	const uint32_t *u, struct philox_key key)
{
	const int64_t n_blocks = all.first_block[all.n_parts];
	const int64_t begin = n_blocks * blockIdx.x / gridDim.x;
	const int64_t end = n_blocks * (blockIdx.x + 1) / gridDim.x;
	word_pack weight[WORD_PACKS];
#pragma unroll
	for (int k = 0; k < WORD_PACKS; k++)
		weight[k] =
			load_words(u, (int64_t)(k * THREADS + threadIdx.x) * WORD_PACK,
				GRID_BLOCK, (uintptr_t)u % sizeof(word_pack) == 0);
	int at = 0;
	uint64_t word = 0;
	for (int64_t b = begin; b < end; b++) {
		while (b >= all.first_block[at + 1])
			at++;
		int64_t block = all.first[at] / GRID_BLOCK + b - all.first_block[at];
		int64_t from = block * GRID_BLOCK - all.first[at];
		word_pack x[WORD_PACKS];
#pragma unroll
		for (int k = 0; k < WORD_PACKS; k++)
			x[k] = load_words(all.p[at],
				from + (int64_t)(k * THREADS + threadIdx.x) * WORD_PACK,
				all.n[at], all.whole[at]);
		uint64_t products = 0; /* 16 of up to 2^59 */
#pragma unroll
		for (int k = 0; k < WORD_PACKS; k++)
#pragma unroll
			for (int j = 0; j < WORD_PACK; j++)
				products += (uint64_t)x[k].x[j] * weight[k].x[j];
		struct grid_check check = {};
		check.key = key;
		check.bucket = all.vector[at];
		uint64_t v = grid_block_weight(&check, block);
		word += fold_once(fold_once(fold_once(products)) * v);
		if (b + 1 < end && b + 1 < all.first_block[at + 1])
			continue;
		word = row_sum<WARPS_PER_BLOCK>(word % GRID_PRIME);
		if (threadIdx.x == 0)
			atomicAdd((unsigned long long *)&sum[all.sum[at]],
				word % GRID_PRIME);
		word = 0;
	}
}

/* Adds the checksums of parts to sums, up to WORD_PARTS per launch. */
void cuda_word_sums(struct device *d, uint64_t *sum, const struct word_part *parts,
	int n_parts, const uint32_t *u, struct philox_key key)
{
	for (int done = 0; done < n_parts;) {
		struct word_parts all = {};
		for (; done < n_parts && all.n_parts < WORD_PARTS; done++) {
			const struct word_part *x = &parts[done];
			int i = all.n_parts;
			if (!x->n)
				continue;
			all.p[i] = (const uint32_t *)x->p;
			all.n[i] = x->n;
			all.first[i] = x->first;
			all.vector[i] = x->vector;
			all.sum[i] = x->sum;
			all.whole[i] = ((uintptr_t)x->p / sizeof(uint32_t) -
					       (uintptr_t)x->first) %
					       WORD_PACK ==
				       0;
			all.first_block[i + 1] = all.first_block[i] +
						 ceil_div(x->first + x->n, GRID_BLOCK) -
						 x->first / GRID_BLOCK;
			all.n_parts++;
		}
		if (!all.n_parts)
			continue;
		launch(d, "word_sums",
			cuda_persistent(d, all.first_block[all.n_parts], WORD_BLOCKS),
			THREADS, 0, word_sums_kernel, sum, all, u, key);
	}
}

static __global__ void checksum_word_kernel(uint64_t *word, const uint64_t *sum,
	const uint64_t *earlier, const struct checksum_term *terms, int64_t n)
{
	uint64_t all = 0;
	for (int64_t i = threadIdx.x; i < n; i += THREADS)
		all += checksum_term_of(&terms[i], sum[i], earlier[i]);
	all = row_sum<WARPS_PER_BLOCK>(all % GRID_PRIME);
	if (threadIdx.x == 0)
		*word = all % GRID_PRIME;
}

void cuda_checksum_word(struct device *d, uint64_t *word, const uint64_t *sum,
	const uint64_t *earlier, const struct checksum_term *terms, int64_t n)
{
	launch(d, "checksum_word", 1, THREADS, 0, checksum_word_kernel, word, sum,
		earlier, terms, n);
}
