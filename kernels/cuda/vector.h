/* Shared by memory-bound kernels: loads of 16 bytes (pack.h), a warp or a block per row,
 * and sums and maxima over a block.
 *
 * The thread of element j of a row depends only on j: an unaligned address costs time but
 * does not change the order of additions. */
#pragma once

#include "kernels/cuda/pack.h"

enum { THREADS = 256, WARPS_PER_BLOCK = THREADS / WARP };

/* ---- indices and grids ---------------------------------------------------------------- */

static __device__ inline int64_t thread_number(void)
{
	return (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
}

static __device__ inline int lane_number(void)
{
	return (int)threadIdx.x % WARP;
}

static __device__ inline int warp_number(void)
{
	return (int)threadIdx.x / WARP;
}

static inline dim3 grid_of(int64_t n)
{
	BUG_ON(n > INT32_MAX);
	return dim3((unsigned)n);
}

/* Returns blocks of THREADS with one thread per pack, for `rows` rows of n elements. */
static inline dim3 grid_of_packs(int64_t rows, int64_t n, int per_pack)
{
	return grid_of(ceil_div(rows * ceil_div(n, per_pack), THREADS));
}

/* Returns a grid for grid-stride loops: at most a few times what fills any GPU. */
static inline dim3 grid_in_strides(int64_t n, int per_pack)
{
	return grid_of(min64(2048, ceil_div(ceil_div(n, per_pack), THREADS)));
}

struct vector_place {
	int64_t row, col;
};

/* Returns the row and column of pack i, where each row has ceil(cols / n) packs. */
static __device__ inline struct vector_place pack_place(int64_t i, int64_t cols, int n)
{
	int64_t packs = ceil_div(cols, n);
	struct vector_place at;
	if ((uint64_t)(i | packs) >> 32) {
		at.row = i / packs;
	} else { /* 32-bit division takes an eighth of the time */
		at.row = (uint32_t)i / (uint32_t)packs;
	}
	at.col = (i - at.row * packs) * n;
	return at;
}

/* ---- a warp or a block for each row --------------------------------------------------- */

/* WARPS: warps per row. With 1 a block has WARPS_PER_BLOCK rows, otherwise one row. */
template <int WARPS> static inline dim3 grid_of_rows(int64_t rows)
{
	return grid_of(WARPS == 1 ? ceil_div(rows, WARPS_PER_BLOCK) : rows);
}

template <int WARPS> static constexpr int threads_of_rows(void)
{
	return WARPS == 1 ? THREADS : WARPS * WARP;
}

template <int WARPS> static __device__ inline int64_t thread_row(void)
{
	return WARPS == 1 ? (int64_t)blockIdx.x * WARPS_PER_BLOCK + warp_number()
			  : (int64_t)blockIdx.x;
}

/* Returns the thread's index among the threads of its row. */
template <int WARPS> static __device__ inline int index_in_row(void)
{
	return WARPS == 1 ? lane_number() : (int)threadIdx.x;
}

template <int W> struct warps {
	enum { WARPS = W };
};

/* Calls fn(warps<...>()) with the warps that a row of `packs` packs keeps busy. */
template <typename F> static inline void call_by_width(int64_t packs, F fn)
{
	if (packs <= 8 * WARP)
		fn(warps<1>());
	else if (packs <= 64 * 8 * WARP)
		fn(warps<8>());
	else
		fn(warps<32>());
}

static __device__ inline unsigned warp_max(unsigned x)
{
	for (int i = WARP / 2; i; i /= 2)
		x = max(x, __shfl_xor_sync(ALL_LANES, x, i));
	return x;
}

/* Returns in lane i of each warp the x of warp i, or `none` without a warp; a block-wide sync. */
template <int WARPS, typename T> static __device__ inline T gather_warps(T x, T none)
{
	__shared__ T parts[WARPS];
	__syncthreads(); /* the last call's values are read */
	if (lane_number() == 0)
		parts[warp_number()] = x;
	__syncthreads();
	return lane_number() < WARPS ? parts[lane_number()] : none;
}

/* Returns the sum over the threads of a row, in all of them, in a fixed order. */
template <int WARPS, typename T> static __device__ inline T row_sum(T x)
{
	x = warp_sum(x);
	if constexpr (WARPS > 1)
		x = warp_sum(gather_warps<WARPS>(x, (T)0));
	return x;
}

/* Returns the maximum over the threads of a row, in all of them. */
template <int WARPS, typename T> static __device__ inline T row_max(T x)
{
	x = warp_max(x);
	if constexpr (WARPS > 1)
		x = warp_max(gather_warps<WARPS>(x, x));
	return x;
}

/* ---- the largest element of a matrix --------------------------------------------------- */

/* Returns the maximum of max_bits and the bits of |x|: the bits of non-negative floats have the
 * order of the floats, with NaN as the largest. */
template <int N>
static __device__ inline unsigned amax_bits(const float (&x)[N], unsigned max_bits)
{
	for (int i = 0; i < N; i++)
		max_bits = max(max_bits, __float_as_uint(x[i]) & 0x7fffffffu);
	return max_bits;
}

/* Returns *to, read at the begin of a kernel together with its data, so that at the end most
 * threads need not wait to skip an update. *to may have grown since. */
static __device__ inline unsigned read_amax(const float *to)
{
	return to ? *(const unsigned *)to : 0;
}

/* Sets *to = max(*to, max_bits); the result does not depend on the order of updates. */
static __device__ inline void raise_max(float *to, unsigned old_bits, unsigned max_bits)
{
	if (max_bits > old_bits)
		atomicMax((unsigned *)to, max_bits);
}

/* Raises *to for all threads of a row, with elements that were stored as T: rounding keeps their
 * order. Does nothing if `to` is NULL. */
template <int WARPS, typename T>
static __device__ inline void raise_amax(float *to, unsigned old_bits, unsigned max_bits)
{
	if (!to)
		return;
	max_bits = row_max<WARPS>(max_bits);
	if (index_in_row<WARPS>())
		return;
	const T stored = narrow<T>(__uint_as_float(max_bits));
	packed<T, 4 / sizeof(T)> bits = {};
	memcpy(&bits, &stored, sizeof(stored));
	raise_max(to, old_bits, __float_as_uint(number_of(bits, 0)) & 0x7fffffffu);
}

/* Returns the number of threads before this one with `yes`, in a block of WARPS warps; *total: the
 * number of all threads with `yes`. */
template <int WARPS>
static __device__ inline unsigned count_before(bool yes, unsigned *total)
{
	unsigned ballot = __ballot_sync(ALL_LANES, yes);
	unsigned in_warp = (unsigned)__popc(ballot & ((1u << lane_number()) - 1));
	unsigned all = gather_warps<WARPS>((unsigned)__popc(ballot), 0u);
	unsigned before = lane_number() < warp_number() ? all : 0;
	for (int i = WARP / 2; i; i /= 2) {
		before += __shfl_xor_sync(ALL_LANES, before, i);
		all += __shfl_xor_sync(ALL_LANES, all, i);
	}
	*total = all;
	return before + in_warp;
}

/* ---- the canonical tree --------------------------------------------------------------- */

/* The canonical tree over leaves that are added one by one: pairs of neighbors, then pairs of
 * pairs; a node without a pair moves up. All threads add the same leaf at a time. */
enum { TREE_LEVELS = 14, TREE_LEAVES = 1 << TREE_LEVELS };

struct tree {
	float at[TREE_LEVELS];
};

/* Adds leaf number i, the next one, to the tree. */
static __device__ inline void tree_add(struct tree &t, int i, float x)
{
	bool carry = true;
#pragma unroll
	for (int l = 0; l < TREE_LEVELS; l++) {
		if (carry && (i >> l & 1)) {
			x = t.at[l] + x;
		} else if (carry) {
			t.at[l] = x;
			carry = false;
		}
	}
}

/* Returns the sum of the n leaves that were added. */
static __device__ inline float tree_sum(const struct tree &t, int n)
{
	bool any = false;
	float x = 0;
#pragma unroll
	for (int l = 0; l < TREE_LEVELS; l++) {
		if (n >> l & 1) {
			x = any ? t.at[l] + x : t.at[l];
			any = true;
		}
	}
	return x;
}
