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
