/* Top-k: the largest elements of each row and their indices; one block per row. */
#include "kernels/cuda/vector.h"

enum { WARPS = 32, ROW_THREADS = WARPS * WARP };

/* Returns the bits of |x|, which compare as |x| does. */
static __device__ inline uint32_t size_bits(float x)
{
	return __float_as_uint(x) & 0x7fffffffu;
}

enum { DIGIT_BITS = 8, DIGITS = 1 << DIGIT_BITS };

/* Returns the digit of a histogram that has the *k-th element, from the highest down; *k becomes
 * its rank within the digit. Called by all threads of one warp. */
static __device__ inline unsigned find_digit(const unsigned *counts, unsigned *k)
{
	enum { EACH = DIGITS / WARP };
	const int lane = lane_number();
	unsigned own_count = 0, found = 0, rest = 0;
	for (int i = 0; i < EACH; i++) /* lane 0 has the highest digits */
		own_count += counts[DIGITS - 1 - (lane * EACH + i)];
	unsigned before = own_count;
	for (int i = 1; i < WARP; i *= 2) {
		unsigned other = __shfl_up_sync(ALL_LANES, before, i);
		before += lane >= i ? other : 0;
	}
	before -= own_count;
	bool has_kth = before < *k && *k <= before + own_count;
	for (int i = 0; i < EACH && has_kth; i++) {
		unsigned digit = (unsigned)(DIGITS - 1 - (lane * EACH + i));
		if (before < *k && *k <= before + counts[digit]) {
			found = digit;
			rest = *k - before;
		}
		before += counts[digit];
	}
	int from = __ffs((int)__ballot_sync(ALL_LANES, has_kth)) - 1;
	*k = __shfl_sync(ALL_LANES, rest, from);
	return __shfl_sync(ALL_LANES, found, from);
}

/* Returns the k-th largest |x| by a radix select; *equal: the number of elements with that |x|
 * among the k largest. */
static __device__ inline uint32_t kth_largest(
	const float *x, int64_t n, unsigned k, unsigned *equal)
{
	__shared__ unsigned counts[DIGITS], digit, rest;
	uint32_t found = 0, known = 0;
	for (int shift = 32 - DIGIT_BITS; shift >= 0; shift -= DIGIT_BITS) {
		for (int i = (int)threadIdx.x; i < DIGITS; i += ROW_THREADS)
			counts[i] = 0;
		__syncthreads();
		for (int64_t i = threadIdx.x; i < n; i += ROW_THREADS) {
			uint32_t size = size_bits(x[i]);
			if ((size & known) == found)
				atomicAdd(&counts[size >> shift & (DIGITS - 1)], 1u);
		}
		__syncthreads();
		if (warp_number() == 0) {
			unsigned of_digit = k;
			unsigned found_digit = find_digit(counts, &of_digit);
			digit = found_digit;
			rest = of_digit;
		}
		__syncthreads();
		k = rest;
		found |= digit << shift;
		known |= (uint32_t)(DIGITS - 1) << shift;
	}
	*equal = k;
	return found;
}

/* Zeroes all but the k largest |x| of a row, one block per row; of equal ones, keeps the first. */
static __global__ void __launch_bounds__(ROW_THREADS)
	keep_largest_kernel(float *x, int64_t cols, unsigned k)
{
	unsigned equal, seen = 0;
	x += blockIdx.x * cols;
	uint32_t least = kth_largest(x, cols, k, &equal);
	for (int64_t first = 0; first < cols; first += ROW_THREADS) {
		int64_t i = first + threadIdx.x;
		uint32_t size = i < cols ? size_bits(x[i]) : 0;
		unsigned total;
		unsigned before =
			seen + count_before<WARPS>(i < cols && size == least, &total);
		seen += total;
		bool is_kept = size > least || (size == least && before < equal);
		if (i < cols && !is_kept)
			x[i] = 0;
	}
}

void cuda_keep_largest(struct device *d, struct mat x, int64_t k)
{
	BUG_ON(k < 1 || x.cols > INT32_MAX);
	if (k >= x.cols)
		return;
	launch(d, "keep_largest", grid_of(x.rows), ROW_THREADS, 0, keep_largest_kernel,
		floats_of(x), x.cols, (unsigned)k);
}

typedef unsigned long long word;

/* Adds to counts[] a histogram of 8 bits of |x|, first summed in shared memory. */
static __global__ void __launch_bounds__(ROW_THREADS) count_sizes_kernel(
	word *counts, const float *x, int64_t n, uint32_t found, int shift)
{
	__shared__ unsigned own_count[DIGITS];
	int64_t step = (int64_t)gridDim.x * ROW_THREADS;
	for (int i = (int)threadIdx.x; i < DIGITS; i += ROW_THREADS)
		own_count[i] = 0;
	__syncthreads();
	for (int64_t i = thread_number(); i < n; i += step) {
		uint32_t size = size_bits(x[i]);
		if ((size ^ found) >> shift < DIGITS)
			atomicAdd(&own_count[size >> shift & (DIGITS - 1)], 1u);
	}
	__syncthreads();
	for (int i = (int)threadIdx.x; i < DIGITS; i += ROW_THREADS)
		if (own_count[i])
			atomicAdd(&counts[i], (word)own_count[i]);
}

void cuda_count_sizes(
	struct device *d, int64_t *counts, struct mat x, uint32_t found, int shift)
{
	int64_t n = mat_size(x);
	if (!n)
		return;
	launch(d, "count_sizes", grid_of(min64(2048, ceil_div(n, ROW_THREADS))),
		ROW_THREADS, 0, count_sizes_kernel, (word *)counts, floats_of(x), n,
		found, shift);
}

/* Zeroes the elements with bits of |x| below `least`. */
static __global__ void __launch_bounds__(ROW_THREADS)
	keep_sizes_kernel(float *x, int64_t n, uint32_t least)
{
	int64_t step = (int64_t)gridDim.x * ROW_THREADS;
	for (int64_t i = thread_number(); i < n; i += step)
		if (size_bits(x[i]) < least)
			x[i] = 0;
}

/* Zeroes the elements with bits of |x| below `least`. */
void cuda_keep_sizes(struct device *d, struct mat x, uint32_t least)
{
	int64_t n = mat_size(x);
	if (!n)
		return;
	launch(d, "keep_sizes", grid_of(min64(2048, ceil_div(n, ROW_THREADS))),
		ROW_THREADS, 0, keep_sizes_kernel, floats_of(x), n, least);
}

/* Packs a row's nonzero elements in order, at most k, and zeros to make up k; one block per row. */
template <typename T>
static __global__ void __launch_bounds__(ROW_THREADS) topk_pack_kernel(
	float *values, T *columns, const float *x, int64_t cols, int64_t k)
{
	unsigned total;
	int64_t own_count = 0, seen = 0;
	x += blockIdx.x * cols;
	values += blockIdx.x * k;
	columns += blockIdx.x * k;
	for (int64_t i = threadIdx.x; i < cols; i += ROW_THREADS)
		own_count += __float_as_uint(x[i]) != 0;
	own_count = warp_sum(gather_warps<WARPS>(warp_sum(own_count), (int64_t)0));
	int64_t zeros = max64(0, k - own_count);
	for (int64_t first = 0; first < cols; first += ROW_THREADS) {
		int64_t i = first + threadIdx.x;
		float v = i < cols ? x[i] : 0;
		bool is_nonzero = __float_as_uint(v) != 0;
		int64_t before = seen + count_before<WARPS>(is_nonzero, &total);
		seen += total;
		int64_t to = before + min64(i - before, zeros);
		if (i < cols && (is_nonzero || i - before < zeros) && to < k) {
			values[to] = v;
			columns[to] = (T)i;
		}
	}
}

/* Packs the nonzero elements of each row, at most k, and zeros to make up k, with their columns. */
void cuda_topk_pack(struct device *d, float *values, void *columns, bool wide,
	struct mat x, int64_t k)
{
	auto pack = [&](auto column) {
		using T = decltype(column);
		launch(d, "topk_pack", grid_of(x.rows), ROW_THREADS, 0,
			topk_pack_kernel<T>, values, (T *)columns,
			(const float *)floats_of(x), x.cols, k);
	};
	wide ? pack(uint32_t()) : pack(uint16_t());
}

/* Stores one packed element per thread at its column. */
template <typename T>
static __global__ void topk_scatter_kernel(float *x, const float *values,
	const T *columns, int64_t rows, int64_t cols, int64_t k)
{
	int64_t i = thread_number();
	int64_t row = pack_place(i, k, 1).row;
	if (row < rows)
		x[row * cols + columns[i]] = values[i];
}

/* Sets each row to 0 except for its k packed elements. */
void cuda_topk_scatter(struct device *d, struct mat x, const float *values,
	const void *columns, bool wide, int64_t k)
{
	auto scatter = [&](auto column) {
		using T = decltype(column);
		launch(d, "topk_scatter", grid_of_packs(x.rows, k, 1), THREADS, 0,
			topk_scatter_kernel<T>, floats_of(x), values, (const T *)columns,
			x.rows, x.cols, k);
	};
	cuda_zero(d, x);
	wide ? scatter(uint32_t()) : scatter(uint16_t());
}
