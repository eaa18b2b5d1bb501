/* Reductions of whole tensors: exact sums, sums of squares, maximum, hash. */
#include "kernels/cuda/vector.h"

/* Returns the sum of squares of a row in double, in all of its WARPS warps. */
template <int WARPS>
static __device__ inline double sumsq(const float *x, int64_t cols, bool whole)
{
	enum { N = PER_PACK<float>, STEP = WARPS * WARP * N, AT_ONCE = 4 };
	double lane[N] = {};
	for (int64_t j = index_in_row<WARPS>() * N; j < cols; j += AT_ONCE * STEP) {
		float v[AT_ONCE][N]; /* zeros past the end */
#pragma unroll
		for (int k = 0; k < AT_ONCE; k++)
			load(v[k], x + j + k * STEP, cols - j - k * STEP, whole);
#pragma unroll
		for (int k = 0; k < AT_ONCE; k++)
			for (int i = 0; i < N; i++)
				lane[i] += (double)v[k][i] * (double)v[k][i];
	}
	return row_sum<WARPS>((lane[0] + lane[1]) + (lane[2] + lane[3]));
}

/* Adds x to *to atomically, modulo 2^64, which is right for negative digits of limbs too. */
static __device__ inline void add_word(int64_t *to, int64_t x)
{
	atomicAdd((unsigned long long *)to, (unsigned long long)x);
}

/* Adds v of each lane with `has` to an exact sum in device memory; called by all lanes of a warp.
 * Addends of the same limb are summed within the warp first. */
static __device__ inline void exact_add_lanes(struct exact *x, double v, bool has)
{
	enum { DIGIT = 32, NONE = EXACT_LIMBS, INFINITE = 0x7ff };
	uint64_t bits = (uint64_t)__double_as_longlong(v);
	bool negative = bits >> 63;
	int exponent = (int)(bits >> 52 & INFINITE);
	uint64_t mantissa = bits & (((uint64_t)1 << 52) - 1);
	if (__any_sync(ALL_LANES, has && exponent == INFINITE)) {
		bool bad = has && exponent == INFINITE, nan = bad && mantissa;
		unsigned n_nan = __ballot_sync(ALL_LANES, nan);
		unsigned n_neg = __ballot_sync(ALL_LANES, bad && !nan && negative);
		unsigned n_pos = __ballot_sync(ALL_LANES, bad && !nan && !negative);
		if (lane_number() == 0) {
			add_word(&x->n_nan, __popc(n_nan));
			add_word(&x->n_neg_inf, __popc(n_neg));
			add_word(&x->n_pos_inf, __popc(n_pos));
		}
		has = has && !bad;
	}
	/* the number is mantissa 2^(exponent - 1075); limb 0 counts multiples of 2^-1088 */
	mantissa |= exponent ? (uint64_t)1 << 52 : 0;
	has = has && mantissa;
	int at = (exponent ? exponent : 1) + 1088 - 1075, shift = at % DIGIT;
	int limb = has ? at / DIGIT : NONE, low = limb, high = has ? limb : -NONE;
	for (int i = WARP / 2; i; i /= 2) {
		low = min(low, __shfl_xor_sync(ALL_LANES, low, i));
		high = max(high, __shfl_xor_sync(ALL_LANES, high, i));
	}
	for (int l = low; l <= high + 2; l++) {
		uint64_t digit = l == limb	 ? mantissa << shift
				 : l == limb + 1 ? mantissa >> (DIGIT - shift)
				 : l == limb + 2 ? mantissa >> DIGIT >> (DIGIT - shift)
						 : 0;
		int64_t sum = (int64_t)(uint32_t)digit;
		sum = warp_sum(negative ? -sum : sum);
		if (lane_number() == 0 && sum)
			add_word(&x->limb[l], sum);
	}
}

/* The three digits of a finite |x|; digit i belongs to limb `limb` + i. */
struct exact_digits {
	uint64_t mantissa;
	int limb, shift;
	bool infinite; /* or NaN */
};

/* Returns the digits of a finite |x|, and the limb of the first. */
static __device__ inline struct exact_digits exact_digits_of(double x)
{
	enum { INFINITE = 0x7ff };
	uint64_t bits = (uint64_t)__double_as_longlong(x);
	int exponent = (int)(bits >> 52 & INFINITE);
	int at = max(exponent, 1) + EXACT_BIAS - 1075;
	struct exact_digits r = {bits & (((uint64_t)1 << 52) - 1), at / EXACT_DIGIT,
		at % EXACT_DIGIT, exponent == INFINITE};
	r.mantissa |= exponent ? (uint64_t)1 << 52 : 0;
	return r;
}

/* Returns digit i, 0 to 2, of a number. */
static __device__ inline uint32_t exact_digit(const struct exact_digits &x, int i)
{
	return (uint32_t)(i == 0 ? x.mantissa << x.shift
			  : i == 1
				  ? x.mantissa >> (EXACT_DIGIT - x.shift)
				  : x.mantissa >> EXACT_DIGIT >> (EXACT_DIGIT - x.shift));
}

/* Adds a sum of squares, which all lanes of a warp hold, to limbs in shared memory that no other
 * warp uses. A lane has every 32nd limb, so lanes need not wait for each other. */
static __device__ inline void exact_add_square(struct exact *to, double x)
{
	const struct exact_digits digits = exact_digits_of(x);
	const int lane = lane_number(), i = (lane - digits.limb) & (WARP - 1);
	if (digits.infinite && lane == 0) {
		to->n_nan += isnan(x);
		to->n_pos_inf += !isnan(x);
	} else if (!digits.infinite && i < 3) {
		to->limb[digits.limb + i] += exact_digit(digits, i);
	}
}

/* Carries the limbs as exact_normalize() does: equal numbers get equal limbs. */
static __global__ void exact_carry_kernel(struct exact *x)
{
	__shared__ int64_t limb[EXACT_LIMBS];
	const int thread = (int)threadIdx.x;
	if (thread < EXACT_LIMBS)
		limb[thread] = x->limb[thread];
	__syncthreads();
	if (thread == 0) {
		int64_t carry = 0;
		for (int i = 0; i < EXACT_LIMBS - 1; i++) {
			int64_t v = limb[i] + carry;
			limb[i] = v & 0xffffffff;
			carry = v >> 32;
		}
		limb[EXACT_LIMBS - 1] += carry;
	}
	__syncthreads();
	if (thread < EXACT_LIMBS)
		x->limb[thread] = limb[thread];
}

/* Carries the limbs of an exact sum, after at most MAX_ADDITIONS additions. */
static void exact_carry(struct device *d, const char *name, struct exact *x)
{
	launch(d, name, 1, round_up(EXACT_LIMBS, WARP), 0, exact_carry_kernel, x);
}

/* The number of additions after which limbs must be carried. */
enum { MAX_ADDITIONS = 1 << 29 };

static __global__ void exact_sum_kernel(struct exact *x, const float *v, int64_t n)
{
	int64_t step = (int64_t)gridDim.x * blockDim.x;
	for (int64_t i = thread_number(); i - lane_number() < n; i += step)
		exact_add_lanes(x, i < n ? (double)v[i] : 0, i < n);
}

void cuda_exact_sum(struct device *d, struct exact *x, const float *v, int64_t n)
{
	for (int64_t i = 0; i < n; i += MAX_ADDITIONS) {
		int64_t part = min64(MAX_ADDITIONS, n - i);
		launch(d, "exact_sum", grid_in_strides(part, 1), THREADS, 0,
			exact_sum_kernel, x, v + i, part);
		exact_carry(d, "exact_sum", x);
	}
}

/* The matrices of one launch, limited by the size of its arguments. Matrix i has the blocks from
 * first_block[i] on. */
enum { MATRICES = 64 };

struct matrices {
	const float *p[MATRICES];
	int64_t rows[MATRICES], cols[MATRICES];
	uint32_t first_block[MATRICES + 1];
	bool whole[MATRICES]; /* aligned for packs */
	int n;
};

/* Adds the sums of squares of a block's rows. */
template <int WARPS>
static __global__ void __launch_bounds__(threads_of_rows<WARPS>())
	exact_sumsq_kernel(struct exact *to, const struct matrices all)
{
	enum { ROWS = WARPS == 1 ? WARPS_PER_BLOCK : 1 };
	__shared__ double squares[ROWS];
	int at = 0, lane = lane_number();
	for (int half = MATRICES / 2; half; half /= 2)
		if (at + half < all.n && all.first_block[at + half] <= blockIdx.x)
			at += half;
	int64_t rows = all.rows[at], cols = all.cols[at];
	int64_t first = (int64_t)(blockIdx.x - all.first_block[at]) * ROWS;
	int64_t row = first + (ROWS > 1 ? warp_number() : 0);
	if (row < rows) {
		double total = sumsq<WARPS>(all.p[at] + row * cols, cols, all.whole[at]);
		if (index_in_row<WARPS>() == 0)
			squares[row - first] = total;
	}
	__syncthreads();
	if (warp_number() == 0) {
		bool has = lane < ROWS && first + lane < rows;
		exact_add_lanes(to, has ? squares[lane] : 0, has);
	}
}

/* Returns up to `left` elements, then zeros; WHOLE: rows are aligned for packs. */
template <bool WHOLE>
static __device__ inline packed<float, 4> fetch_floats(const float *p, int64_t left)
{
	if (!WHOLE)
		return fetch<4>(p, left, false);
	packed<float, 4> r = {};
	if (left > 0)
		r = *(const packed<float, 4> *)p;
	return r;
}

static __device__ inline void add_squares(double (&to)[4], const packed<float, 4> &x)
{
#pragma unroll
	for (int i = 0; i < 4; i++)
		to[i] += (double)number_of(x, i) * (double)number_of(x, i);
}

static __device__ inline double sum_of_four(const double (&x)[4])
{
	return (x[0] + x[1]) + (x[2] + x[3]);
}

/* sum() adds the squares of a row by WARPS warps, with the bits of AS warps, in all lanes. */
template <int WARPS, int AS, bool WHOLE> struct row_squares {
	static_assert(WARPS == AS, "");
	static __device__ inline double sum(const float *x, int64_t cols)
	{
		enum { STEP = WARPS * WARP * 4, AT_ONCE = 8 };
		double lane[4] = {};
		for (int64_t j = index_in_row<WARPS>() * 4; j < cols;
			j += AT_ONCE * STEP) {
			packed<float, 4> v[AT_ONCE];
#pragma unroll
			for (int k = 0; k < AT_ONCE; k++)
				v[k] = fetch_floats<WHOLE>(
					x + j + k * STEP, cols - j - k * STEP);
#pragma unroll
			for (int k = 0; k < AT_ONCE; k++)
				if (j + k * STEP < cols)
					add_squares(lane, v[k]);
		}
		return row_sum<WARPS>(sum_of_four(lane));
	}
};

/* A block of 8 warps has little to do for a row of up to 2048 columns. So one warp computes the
 * parts of all eight, and adds their sums as row_sum() does. */
enum { ONE_WARP_COLS = 2048 };
template <bool WHOLE> struct row_squares<1, 8, WHOLE> {
	static __device__ inline double sum(const float *x, int64_t cols)
	{
		enum { AS = 8, STEP = AS * WARP * 4, AT_ONCE = ONE_WARP_COLS / STEP };
		packed<float, 4> v[AT_ONCE][AS];
		double warp[AS];
#pragma unroll
		for (int k = 0; k < AT_ONCE; k++)
#pragma unroll
			for (int w = 0; w < AS; w++) {
				int j = k * STEP + (w * WARP + lane_number()) * 4;
				v[k][w] = fetch_floats<WHOLE>(x + j, cols - j);
			}
#pragma unroll
		for (int w = 0; w < AS; w++) {
			double lane[4] = {};
			add_squares(lane, v[0][w]);
			add_squares(lane, v[1][w]); /* + 0 changes no bits */
			warp[w] = sum_of_four(lane);
		}
#pragma unroll
		for (int i = WARP / 2; i; i /= 2)
#pragma unroll
			for (int w = 0; w < AS; w++)
				warp[w] += __shfl_xor_sync(ALL_LANES, warp[w], i);
#pragma unroll
		for (int i = AS / 2; i; i /= 2)
#pragma unroll
			for (int w = 0; w < i; w++)
				warp[w] += warp[w + i];
		return warp[0];
	}
};

/* Blocks per multiprocessor: as many as have the registers for a row's packs. */
template <int WARPS, int AS>
constexpr int BLOCKS_OF_SQUARES = WARPS == 32  ? 1
				  : AS > WARPS ? 2
					       : 4;

/* Adds sums of squares by persistent blocks: each has every gridDim.x'th of the blocks of rows. */
template <int WARPS, int AS>
static __global__ void __launch_bounds__(
	threads_of_rows<WARPS>(), BLOCKS_OF_SQUARES<WARPS, AS>)
	exact_squares_kernel(struct exact *to, const struct matrices all)
{
	enum { ROWS = WARPS == 1 ? WARPS_PER_BLOCK : 1 };
	__shared__ struct exact sums[ROWS];
	const int warp = warp_number();
	int at = 0;
	for (int i = (int)threadIdx.x; i < ROWS * EXACT_WORDS; i += (int)blockDim.x)
		((int64_t *)sums)[i] = 0;
	__syncthreads();
	for (uint32_t b = blockIdx.x; b < all.first_block[all.n]; b += gridDim.x) {
		while (b >= all.first_block[at + 1])
			at++;
		int64_t row =
			(int64_t)(b - all.first_block[at]) * ROWS + (ROWS > 1 ? warp : 0);
		if (row >= all.rows[at]) /* only with one row per warp */
			continue;
		int64_t cols = all.cols[at];
		const float *x = all.p[at] + row * cols;
		double total = all.whole[at]
				       ? row_squares<WARPS, AS, true>::sum(x, cols)
				       : row_squares<WARPS, AS, false>::sum(x, cols);
		if (warp < ROWS)
			exact_add_square(&sums[warp], total);
	}
	__syncthreads();
	for (int i = (int)threadIdx.x; i < EXACT_WORDS; i += (int)blockDim.x) {
		int64_t sum = 0;
		for (int w = 0; w < ROWS; w++)
			sum += ((int64_t *)&sums[w])[i];
		if (sum)
			add_word((int64_t *)to + i, sum);
	}
}

/* Adds the squares of all listed matrices to an exact sum, carries it, and empties the list. */
template <int WARPS, int AS>
static void launch_sumsq(struct device *d, struct exact *x, struct matrices *all)
{
	const dim3 block = threads_of_rows<WARPS>();
	if (!all->n)
		return;
	if (cuda_lab_off(d, LAB_SUMSQ))
		launch(d, "exact_sumsq", grid_of(all->first_block[all->n]), block, 0,
			exact_sumsq_kernel<WARPS>, x, *all);
	else
		launch(d, "exact_sumsq",
			cuda_persistent(d, all->first_block[all->n],
				BLOCKS_OF_SQUARES<WARPS, AS>),
			block, 0, exact_squares_kernel<WARPS, AS>, x, *all);
	exact_carry(d, "exact_sumsq", x);
	all->n = 0;
}

/* Adds the squares of the matrices with rows that WARPS warps add in the order of AS warps. */
template <int WARPS, int AS>
static void sumsq_by_width(struct device *d, struct exact *x, const struct mat *m, int n)
{
	enum { N = PER_PACK<float> };
	struct matrices all = {};
	int64_t n_rows = 0;
	for (int i = 0; i < n; i++) {
		bool has_width = false,
		     by_one = m[i].cols <= ONE_WARP_COLS && !cuda_lab_off(d, LAB_SUMSQ);
		call_by_width(ceil_div(m[i].cols, N), [&](auto w) {
			enum { W = decltype(w)::WARPS };
			has_width = W == AS && WARPS == (by_one ? 1 : W);
		});
		for (int64_t row = 0, rows; has_width && row < m[i].rows; row += rows) {
			rows = min64(MAX_ADDITIONS, m[i].rows - row);
			if (all.n == MATRICES || n_rows + rows > MAX_ADDITIONS) {
				launch_sumsq<WARPS, AS>(d, x, &all);
				n_rows = 0;
			}
			int k = all.n++;
			all.p[k] = floats_of(mat_rows(m[i], row, rows));
			all.rows[k] = rows;
			all.cols[k] = m[i].cols;
			all.whole[k] = in_packs(m[i].cols, N, all.p[k]);
			all.first_block[k + 1] =
				all.first_block[k] + grid_of_rows<WARPS>(rows).x;
			n_rows += rows;
		}
	}
	launch_sumsq<WARPS, AS>(d, x, &all);
}

/* Adds to *x, exactly, the sums of squares of the rows of n matrices, each rounded to double. */
void cuda_exact_sumsq(struct device *d, struct exact *x, const struct mat *m, int n)
{
	sumsq_by_width<1, 1>(d, x, m, n);
	sumsq_by_width<1, 8>(d, x, m, n);
	sumsq_by_width<8, 8>(d, x, m, n);
	sumsq_by_width<32, 32>(d, x, m, n);
}

/* Raises *to to the largest |x|; to NaN if x has one. */
template <typename T>
static __global__ void amax_kernel(float *to, const T *x, int64_t n, bool whole)
{
	enum { N = PER_PACK<T>, AT_ONCE = 4 };
	int64_t step = (int64_t)gridDim.x * blockDim.x * N;
	unsigned max_bits = 0;
	for (int64_t i = thread_number() * N; i < n; i += AT_ONCE * step) {
		packed<T, N> from[AT_ONCE]; /* zeros past the end */
#pragma unroll
		for (int k = 0; k < AT_ONCE; k++)
			from[k] = fetch<N>(x + i + k * step, n - i - k * step, whole);
#pragma unroll
		for (int k = 0; k < AT_ONCE; k++) {
			float v[N];
			unpack(v, from[k]);
			max_bits = amax_bits(v, max_bits);
		}
	}
	max_bits = warp_max(max_bits);
	if (lane_number() == 0)
		atomicMax((unsigned *)to, max_bits);
}

/* Computes amax_kernel() by few blocks, which read the shared word before they raise it. */
enum { AMAX_BLOCKS = 2 };
template <typename T>
static __global__ void __launch_bounds__(THREADS, AMAX_BLOCKS)
	amax_block_kernel(float *to, const T *x, int64_t n, bool whole)
{
	enum { N = PER_PACK<T>, AT_ONCE = 8 };
	const int64_t threads = (int64_t)gridDim.x * THREADS, packs = whole ? n / N : 0;
	const packed<T, N> *from = (const packed<T, N> *)x;
	unsigned old_bits = read_amax(to), max_bits = 0;
	for (int64_t i = thread_number(); i < packs; i += AT_ONCE * threads) {
		packed<T, N> packs_read[AT_ONCE] = {};
#pragma unroll
		for (int k = 0; k < AT_ONCE; k++)
			if (i + k * threads < packs)
				packs_read[k] = from[i + k * threads];
#pragma unroll
		for (int k = 0; k < AT_ONCE; k++) {
			float v[N];
			unpack(v, packs_read[k]);
			max_bits = amax_bits(v, max_bits);
		}
	}
	for (int64_t i = packs * N + thread_number(); i < n; i += threads) {
		const float v[] = {widen(x[i])};
		max_bits = amax_bits(v, max_bits);
	}
	max_bits = row_max<WARPS_PER_BLOCK>(max_bits);
	if (threadIdx.x == 0)
		raise_max(to, old_bits, max_bits);
}

/* Raises *to to the largest |x|; to NaN if x has one. */
void cuda_amax(struct device *d, float *to, struct mat x)
{
	int64_t n = mat_size(x);
	call_by_type(x.type, [&](auto t) {
		using T = decltype(t);
		enum { N = PER_PACK<T> };
		const T *p = (const T *)x.p;
		bool whole = in_packs(0, N, p);
		dim3 old = grid_in_strides(n, N);
		if (cuda_lab_off(d, LAB_AMAX_BLOCK))
			launch(d, "amax", old, THREADS, 0, amax_kernel<T>, to, p, n,
				whole);
		else
			launch(d, "amax", cuda_persistent(d, old.x, AMAX_BLOCKS), THREADS,
				0, amax_block_kernel<T>, to, p, n, whole);
	});
}

typedef unsigned long long word;

static __global__ void set_kernel(word *to, word x)
{
	*to = x;
}

/* Returns a word on the device with initial value x, which kernels add to, or minimize. */
static word *make_result(struct device *d, const char *name, word x)
{
	word *result = (word *)cuda_workspace(d, sizeof(*result));
	launch(d, name, 1, 1, 0, set_kernel, result, x);
	return result;
}

/* Waits for the device, and returns the word that make_result() made. */
static word read_result(struct device *d, const word *result)
{
	word x;
	cuda_get(d, &x, result, sizeof(x));
	return x;
}

/* Lowers *result to the index of the first infinite or NaN element. */
template <typename T>
static __global__ void find_nonfinite_kernel(
	word *result, const T *x, int64_t n, bool whole)
{
	enum { N = PER_PACK<T> };
	const unsigned infinite = 0x7f800000u;
	int64_t step = (int64_t)gridDim.x * blockDim.x * N;
#pragma unroll 4
	for (int64_t i = thread_number() * N; i < n; i += step) {
		float v[N];
		int bad = N;
		load(v, x + i, n - i, whole);
		for (int j = N - 1; j >= 0; j--)
			bad = (__float_as_uint(v[j]) & infinite) == infinite ? j : bad;
		if (bad < N)
			atomicMin(result, (word)(i + bad));
	}
}

/* Returns the index of the first element that is infinite or NaN, or -1. Waits for the device. */
int64_t cuda_find_nonfinite(struct device *d, struct mat x)
{
	int64_t n = mat_size(x);
	word *result = make_result(d, "find_nonfinite", (word)-1);
	call_by_type(x.type, [&](auto t) {
		using T = decltype(t);
		enum { N = PER_PACK<T> };
		const T *p = (const T *)x.p;
		launch(d, "find_nonfinite", grid_in_strides(n, N), THREADS, 0,
			find_nonfinite_kernel<T>, result, p, n, in_packs(0, N, p));
	});
	return (int64_t)read_result(d, result);
}

/* Hashes elements with one division per pack, although its elements may be of several rows. */
template <typename T>
static __global__ void hash_kernel(word *sum, const T *x, int64_t n, int64_t cols,
	int64_t stride, uint64_t key, int64_t first, bool whole)
{
	enum { N = PER_PACK<T> };
	int64_t step = (int64_t)gridDim.x * blockDim.x * N;
	word total = 0;
#pragma unroll 2
	for (int64_t i = thread_number() * N; i < n; i += step) {
		float v[N];
		load(v, x + i, n - i, whole);
		int64_t row = cols == n ? 0 : i / cols, col = i - row * cols;
		for (int j = 0; j < N && i + j < n; j++) {
			int64_t index = first + row * stride + col;
			uint64_t at = (uint64_t)index * 0x9e3779b97f4a7c15u;
			uint64_t bits = __float_as_uint(v[j]);
			total += hash_mix((at + key) ^ bits * 0xd6e8feb86659fd93u);
			if (++col == cols) {
				col = 0;
				row++;
			}
		}
	}
	total = warp_sum(total);
	if (lane_number() == 0)
		atomicAdd(sum, total);
}

/* Adds to *sum the hashes of all elements; element (i, j) has index first + i stride + j. */
void cuda_hash(struct device *d, uint64_t *sum, struct mat x, uint64_t key, int64_t first,
	int64_t stride)
{
	int64_t n = mat_size(x);
	if (!n)
		return;
	call_by_type(x.type, [&](auto t) {
		using T = decltype(t);
		enum { N = PER_PACK<T> };
		const T *p = (const T *)x.p;
		launch(d, "hash", grid_in_strides(n, N), THREADS, 0, hash_kernel<T>,
			(word *)sum, p, n, stride == x.cols ? n : x.cols, stride, key,
			first, in_packs(0, N, p));
	});
}
