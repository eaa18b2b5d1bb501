/* Rounding to formats of lower precision, bit-identical to the CPU (kernels/dtype_bits.h explains
 * it), except that a GPU's multiplication turns every NaN into the same one. */
#include "kernels/cuda/cuda_internal.h"
#include "kernels/cuda/vector.h"
#include "kernels/step_math.h"

#include <cuda_fp8.h>

#define SIGN_BIT 0x80000000u
#define INFINITE 0x7f800000u

/* Returns x rounded to the nearest number of the format f, ties to even; NaN stays NaN. */
static __device__ inline float round_to(float x, const struct dtype_row &f)
{
	const int drop = 23 - f.fraction_bits;
	const uint32_t half = (1u << (drop - 1)) - 1, keep = ~((1u << drop) - 1);
	const float magic = f.min_normal * (float)(1 << drop);
	uint32_t u = __float_as_uint(x), sign = u & SIGN_BIT, a = u ^ sign;
	uint32_t largest = __float_as_uint(f.largest);
	if (a > INFINITE) /* NaN */
		return __uint_as_float(((a | 0x400000u) & keep) | sign);
	if (f.saturates)
		a = min(a, largest);
	uint32_t r = (a + half + (a >> drop & 1)) & keep;
	if (!f.saturates && r > largest)
		r = INFINITE;
	if (a < __float_as_uint(f.min_normal))
		r = __float_as_uint((__uint_as_float(a) + magic) - magic);
	return __uint_as_float(r | sign);
}

/* Returns x rounded to the nearest bf16 number, ties to even; NaN stays NaN. */
static __device__ inline float round_bf16(float x)
{
	uint32_t u = __float_as_uint(x);
	uint32_t r = (u + 0x7fffu + (u >> 16 & 1)) & 0xffff0000u;
	bool nan = (u & ~SIGN_BIT) > INFINITE;
	return __uint_as_float(nan ? (u | 0x400000u) & 0xffff0000u : r);
}

static __device__ inline float round_f16(float x)
{
	constexpr struct dtype_row f16 = dtype_table[DT_F16];
	return round_to(x, f16);
}

static __device__ inline float round_e4m3(float x)
{
	constexpr struct dtype_row e4m3 = dtype_table[DT_E4M3];
	return round_to(x, e4m3);
}

static __device__ inline float round_e5m2(float x)
{
	constexpr struct dtype_row e5m2 = dtype_table[DT_E5M2];
	return round_to(x, e5m2);
}

/* The difference of the exponent biases of binary16 and fp32; twice that for infinity and NaN. */
enum { BIAS = (127 - 15) << 23 };

/* Returns the bits of a rounded number; a subnormal is an integer multiple of the smallest. */
static __device__ inline uint16_t f16_bits(float x)
{
	uint32_t u = __float_as_uint(x), a = u & ~SIGN_BIT;
	uint32_t r = (a - (uint32_t)BIAS) >> 13;
	if (a >= INFINITE)
		r = (a >> 13 & 0x3ff) | 0x7c00;
	if (a < __float_as_uint(0x1p-14f))
		r = (uint32_t)(int32_t)(__uint_as_float(a) * 0x1p24f);
	return (uint16_t)(r | (u >> 16 & 0x8000));
}

/* Widens an fp16 number, given by its bits. */
static __device__ inline float f16_to_float(uint16_t h)
{
	uint32_t a = h & 0x7fffu, sign = (h & 0x8000u) << 16;
	uint32_t r = (a << 13) + (uint32_t)BIAS + (a >= 0x7c00 ? (uint32_t)BIAS : 0);
	if (a < 0x400)
		r = __float_as_uint((float)(int32_t)a * 0x1p-24f);
	return __uint_as_float(r | sign);
}

/* Rounds N floats to the format `type`, as floats with its precision. */
template <int N>
static __device__ inline void cast(
	pack<float, N> &y, const float (&x)[N], enum dtype type)
{
#pragma unroll
	for (int i = 0; i < N; i++)
		y.x[i] = type == DT_F32	   ? x[i]
			 : type == DT_BF16 ? round_bf16(x[i])
			 : type == DT_F16  ? round_f16(x[i])
			 : type == DT_E4M3 ? round_e4m3(x[i])
					   : round_e5m2(x[i]);
}

/* Rounds N floats to bf16 or fp16, as their 16 bits. */
template <int N>
static __device__ inline void cast(
	pack<uint16_t, N> &y, const float (&x)[N], enum dtype type)
{
#pragma unroll
	for (int i = 0; i < N; i++)
		y.x[i] = type == DT_BF16
				 ? (uint16_t)(__float_as_uint(round_bf16(x[i])) >> 16)
				 : f16_bits(round_f16(x[i]));
}

/* Rounds N floats to e4m3 or e5m2, as their 8 bits. */
template <int N>
static __device__ inline void cast(
	pack<uint8_t, N> &y, const float (&x)[N], enum dtype type)
{
	__nv_fp8_interpretation_t to = type == DT_E4M3 ? __NV_E4M3 : __NV_E5M2;
#pragma unroll
	for (int i = 0; i < N; i += 2) {
		float2 two = make_float2(x[i], x[i + 1]);
		unsigned bits = __nv_cvt_float2_to_fp8x2(two, __NV_SATFINITE, to);
		y.x[i] = (uint8_t)bits;
		y.x[i + 1] = (uint8_t)(bits >> 8);
	}
}

/* The factor of x: a number, or values on the device. */
struct by_number {
	float scale;
};

struct by_amax {
	const float *amax;
	float *inverse;
	float largest; /* the largest number of the format */
};

struct by_scales {
	const float *a, *b;
};

struct by_e4m3 {
	const float *amax;
};

static __device__ inline float get_scale(struct by_number by)
{
	return by.scale;
}

/* Returns the scale for the amax; the first thread also stores its inverse. */
static __device__ inline float get_scale(struct by_amax by)
{
	float scale = float8_scale(by.largest, *by.amax);
	if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0)
		*by.inverse = 1.0f / scale;
	return scale;
}

static __device__ inline float get_scale(struct by_scales by)
{
	return *by.a * *by.b;
}

static __device__ inline float get_scale(struct by_e4m3 by)
{
	constexpr struct dtype_row e4m3 = dtype_table[DT_E4M3];
	return float8_scale(e4m3.largest, *by.amax);
}

/* Casts one pack of x, times the factor `by`, per thread, and raises *amax unless it is NULL. */
template <typename Y, typename X, typename By>
static __global__ void __launch_bounds__(THREADS) round_kernel(
	Y *y, const X *x, int64_t n, enum dtype type, By by, float *amax, bool whole)
{
	enum { N = PER_PACK<X> };
	int64_t i = thread_number() * N, left = n - i;
	float v[N], scale = get_scale(by);
	pack<Y, N> to;
	if (left <= 0 && !amax)
		return;
	unsigned old_bits = read_amax(amax);
	load(v, x + i, left, whole);
	for (int j = 0; j < N; j++)
		v[j] = __fmul_rn(v[j], scale);
	cast(to, v, type);
	store_bits(y + i, to, left, whole);
	if (!amax)
		return;
	const float largest[1] = {
		__uint_as_float(row_max<WARPS_PER_BLOCK>(amax_bits(v, 0)))};
	pack<float, 1> stored; /* rounding is monotonic */
	cast(stored, largest, type);
	if (threadIdx.x == 0)
		raise_max(amax, old_bits, __float_as_uint(stored.x[0]) & ~SIGN_BIT);
}

/* Casts x, times the factor `by`, to the format `type`, stored as Y; raises *amax unless NULL. */
template <typename Y, typename By>
static void round_as(struct device *d, const char *name, Y *y, struct mat x,
	enum dtype type, By by, float *amax = NULL)
{
	int64_t n = mat_size(x);
	call_by_type(x.type, [&](auto t) {
		using X = decltype(t);
		enum { N = PER_PACK<X> };
		const X *in = (const X *)x.p;
		launch(d, name, grid_of_packs(1, n, N), THREADS, 0,
			round_kernel<Y, X, By>, y, in, n, type, by, amax,
			in_packs(0, N, y, in));
	});
}

/* Casts x, times the factor `by`, to y, in the format `type` or as fp32; raises y's amax. */
template <typename By>
static void round_by(struct device *d, const char *name, struct mat y, struct mat x,
	enum dtype type, By by)
{
	BUG_ON(mat_size(y) != mat_size(x));
	BUG_ON(y.type != DT_F32 && y.type != type);
	float *amax = y.amax;
	if (y.type == DT_F32)
		round_as(d, name, floats_of(y), x, type, by, amax);
	else if (dtype_bytes(type) == 2)
		round_as(d, name, (uint16_t *)y.p, x, type, by, amax);
	else
		round_as(d, name, (uint8_t *)y.p, x, type, by, amax);
}

void cuda_round(
	struct device *d, struct mat y, struct mat x, enum dtype type, float scale)
{
	struct by_number by = {scale};
	round_by(d, "round", y, x, type, by);
}

enum { TILE_ROWS = 128, TILE_COLS = 64, WORD = 4 };

/* Sets to[col + i, row + j] to column i of the tile: 16 bytes per thread, 128 per row. */
static __device__ inline void store_transposed_tile(uint8_t *to,
	const uint32_t (*tile)[TILE_ROWS / WORD + 1], int64_t row, int64_t rows,
	int64_t col, int64_t cols, bool whole)
{
	enum { BYTES = 16, ACROSS = TILE_ROWS / BYTES };
	for (int i = (int)threadIdx.x; i < TILE_COLS * ACROSS; i += THREADS) {
		int c = i / ACROSS, r = i % ACROSS * BYTES;
		int64_t left = col + c < cols ? rows - row - r : 0;
		uint8_t *at = to + (col + c) * rows + row + r;
		pack<uint32_t, BYTES / WORD> v;
		for (int j = 0; j < BYTES / WORD; j++)
			v.x[j] = tile[c][r / WORD + j];
		if (whole && left >= BYTES)
			*(pack<uint32_t, BYTES / WORD> *)at = v;
		else
			for (int j = 0; j < BYTES && j < left; j++)
				at[j] = (uint8_t)(v.x[j / WORD] >> j % WORD * 8);
	}
}

/* Stores y, unless it is NULL, and its transpose, one block per tile. A column of the tile
 * has an odd number of words, so that its lanes read different banks of shared memory. */
template <typename X>
static __global__ void __launch_bounds__(THREADS) round_transposed_kernel(uint8_t *y,
	uint8_t *transposed, const X *x, int64_t rows, int64_t cols, enum dtype type,
	struct by_amax by, bool whole, bool whole_columns)
{
	enum { N = PER_PACK<X>, ACROSS = TILE_COLS / N, DOWN = THREADS / ACROSS };
	enum { PACKS = TILE_ROWS / DOWN, PITCH = TILE_ROWS / WORD + 1 };
	__shared__ uint32_t tile[TILE_COLS][PITCH];
	int64_t row = (int64_t)blockIdx.y * TILE_ROWS;
	int64_t col = (int64_t)blockIdx.x * TILE_COLS;
	int first = (int)threadIdx.x / ACROSS, across = (int)threadIdx.x % ACROSS * N;
	int64_t at = (row + first) * cols + col + across;
	packed<X, N> from[PACKS];
#pragma unroll
	for (int p = 0; p < PACKS; p++) {
		bool in_rows = row + first + p * DOWN < rows;
		from[p] = fetch<N>(x + at + p * DOWN * cols,
			in_rows ? cols - col - across : 0, whole);
	}
	float scale = get_scale(by); /* while loads are in flight */
#pragma unroll
	for (int p = 0; p < PACKS; p++) {
		int r = first + p * DOWN;
		pack<uint8_t, N> to;
		float v[N];
		unpack(v, from[p]);
		for (int j = 0; j < N; j++)
			v[j] = __fmul_rn(v[j], scale);
		cast(to, v, type);
		if (y)
			store_bits(y + at + p * DOWN * cols, to,
				row + r < rows ? cols - col - across : 0, whole);
		for (int j = 0; j < N; j++)
			((uint8_t *)tile[across + j])[r] = to.x[j];
	}
	__syncthreads();
	store_transposed_tile(transposed, tile, row, rows, col, cols, whole_columns);
}

/* Casts x, scaled by its amax, to the fp8 matrix y and to y.transposed. */
static void round_transposed(
	struct device *d, struct mat y, struct mat x, struct by_amax by)
{
	int64_t rows = x.rows, cols = x.cols;
	dim3 grid(
		(unsigned)ceil_div(cols, TILE_COLS), (unsigned)ceil_div(rows, TILE_ROWS));
	BUG_ON(grid.y > 65535);
	call_by_type(x.type, [&](auto t) {
		using X = decltype(t);
		enum { N = PER_PACK<X> };
		const X *in = (const X *)x.p;
		uint8_t *out = (uint8_t *)y.p, *columns = (uint8_t *)y.transposed;
		launch(d, "round_scaled", grid, THREADS, 0, round_transposed_kernel<X>,
			out, columns, in, rows, cols, y.type, by,
			in_packs(cols, N, in, out), in_packs(rows, 16, columns));
	});
}

/* Casts x to fp8 with the scale for *amax; also sets y.transposed unless NULL, and *inverse. */
void cuda_round_scaled(struct device *d, struct mat y, float *inverse, struct mat x,
	enum dtype type, const float *amax)
{
	struct by_amax by = {amax, inverse, dtype_table[type].largest};
	BUG_ON(dtype_bytes(type) != 1 || !mat_size(x));
	BUG_ON(y.transposed && (y.type != type || y.rows != x.rows || y.cols != x.cols));
	if (y.transposed)
		round_transposed(d, y, x, by);
	else
		round_by(d, "round_scaled", y, x, type, by);
}

void cuda_round_by(struct device *d, const char *name, struct mat y, struct mat x,
	const float *a, const float *b)
{
	struct by_scales by = {a, b};
	round_by(d, name, y, x, y.type, by);
}

void cuda_narrow(struct device *d, uint16_t *y, struct mat x, enum dtype type)
{
	BUG_ON(type != DT_BF16 && type != DT_F16);
	round_as(d, "narrow", y, x, type, (struct by_number){1});
}

void cuda_narrow_scaled(struct device *d, uint8_t *y, struct mat x, const float *amax)
{
	round_as(d, "narrow_scaled", y, x, DT_E4M3, (struct by_e4m3){amax});
}

/* How decode_element() converts 16-bit elements. */
struct from_16_bits {
	bool is_bf16;
};

static __device__ inline float decode_element(struct from_16_bits from, uint16_t x)
{
	return from.is_bf16 ? __uint_as_float((uint32_t)x << 16) : f16_to_float(x);
}

static __device__ inline float decode_element(struct by_e4m3 by, uint8_t x)
{
	float v = __half2float(__half(__nv_cvt_fp8_to_halfraw(x, __NV_E4M3)));
	return __fmul_rn(v, 1.0f / get_scale(by));
}

/* Widens one pack per thread of 8-bit or 16-bit numbers to fp32. */
template <typename X, typename From>
static __global__ void widen_kernel(
	float *y, const X *x, int64_t n, From from, bool whole)
{
	enum { N = PER_PACK<float> };
	int64_t i = thread_number() * N, left = n - i;
	pack<X, N> bits;
	float v[N];
	if (left <= 0)
		return;
	if (whole && left >= N)
		bits = *(const pack<X, N> *)(x + i);
	else
		for (int j = 0; j < N; j++)
			bits.x[j] = j < left ? x[i + j] : (X)0;
	for (int j = 0; j < N; j++)
		v[j] = decode_element(from, bits.x[j]);
	store(y + i, v, left, whole);
}

/* Widens 8-bit or 16-bit numbers to the fp32 matrix y. */
template <typename X, typename From>
static void widen_as(
	struct device *d, const char *name, struct mat y, const X *x, From from)
{
	enum { N = PER_PACK<float> };
	float *out = floats_of(y);
	int64_t n = mat_size(y);
	launch(d, name, grid_of_packs(1, n, N), THREADS, 0, widen_kernel<X, From>, out, x,
		n, from, in_packs(0, N, out, x));
}

void cuda_widen(struct device *d, struct mat y, const uint16_t *x, enum dtype type)
{
	BUG_ON(type != DT_BF16 && type != DT_F16);
	widen_as(d, "widen", y, x, (struct from_16_bits){type == DT_BF16});
}

void cuda_widen_scaled(
	struct device *d, struct mat y, const uint8_t *x, const float *amax)
{
	widen_as(d, "widen_scaled", y, x, (struct by_e4m3){amax});
}
