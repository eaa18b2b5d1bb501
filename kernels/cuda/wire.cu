/* Compression of messages between workers, bit-identical to kernels/cpu/wire.c. */
#include "kernels/cuda/vector.h"

enum { MAX_CODE = 127 };
#define INFINITE 0x7f800000u
#define UPPER 0xffff0000u

/* Returns a random word. The last word of the counter separates this stream from keep_random's. */
static __device__ inline uint32_t random_bits(
	const struct rng_stream &c, int64_t row, int64_t col)
{
	uint64_t at = (uint64_t)(c.first + row * c.row_step + col);
	return philox(c.key, (uint32_t)at, (uint32_t)(at >> 32), 0, 1).x[0];
}

/* Rounds one element per thread to bf16 stochastically. */
static __global__ void round_stochastic_kernel(
	float *x, int64_t rows, int64_t cols, struct rng_stream c)
{
	int64_t i = thread_number();
	struct vector_place at = pack_place(i, cols, 1);
	if (at.row >= rows)
		return;
	uint32_t up = random_bits(c, at.row, at.col) >> 16;
	x[i] = __uint_as_float((__float_as_uint(x[i]) + up) & UPPER);
}

void cuda_round_stochastic(struct device *d, struct mat x, const struct rng_stream *o)
{
	struct rng_stream c = *o;
	c.row_step = row_step(o->row_step, x);
	launch(d, "round_stochastic", grid_of_packs(x.rows, x.cols, 1), THREADS, 0,
		round_stochastic_kernel, floats_of(x), x.rows, x.cols, c);
}

/* Returns the scale, from the bits of the largest |x|; 0: not finite, or too small. */
static __device__ inline float row_scale(unsigned max_bits, bool rounds_up)
{
	if (max_bits >= INFINITE)
		return 0;
	uint32_t u = __float_as_uint(__uint_as_float(max_bits) / MAX_CODE);
	u += rounds_up ? 0xffff : 0x7fff + (u >> 16 & 1);
	float scale = __uint_as_float(u & UPPER);
	return scale < 0x1p-126f ? 0 : scale;
}

static __device__ inline float nearest_code(float x, float scale)
{
	const float magic = 0x1.8p23f; /* its unit in the last place is 1 */
	return (x / scale + magic) - magic;
}

/* Returns x / scale, rounded stochastically to an integer in [-MAX_CODE, MAX_CODE]. */
static __device__ inline float stochastic_code(
	float x, float scale, const struct rng_stream &c, int64_t row, int64_t col)
{
	float code = x / scale, below = floorf(code);
	below += philox_uniform(random_bits(c, row, col)) < code - below;
	return fminf(fmaxf(below, -MAX_CODE), MAX_CODE);
}

/* Replaces a row per WARPS warps by scale * code; stores codes and scales unless NULL. */
template <int WARPS>
static __global__ void __launch_bounds__(threads_of_rows<WARPS>())
	quantize_kernel(float *x, int8_t *codes, float *scales, int64_t rows,
		int64_t cols, struct rng_stream c, bool random)
{
	int64_t row = thread_row<WARPS>(), at = row * cols;
	const int first = index_in_row<WARPS>();
	unsigned max_bits = 0;
	if (row >= rows)
		return;
#pragma unroll 4
	for (int64_t j = first; j < cols; j += WARPS * WARP)
		max_bits = max(max_bits, __float_as_uint(x[at + j]) & 0x7fffffffu);
	float scale = row_scale(row_max<WARPS>(max_bits), random);
	for (int64_t i = at + first; i < at + cols; i += WARPS * WARP) {
		float code = scale == 0 ? 0
			     : random	? stochastic_code(x[i], scale, c, row, i - at)
					: nearest_code(x[i], scale);
		int8_t whole = (int8_t)code; /* has no -0 */
		if (codes)
			codes[i] = whole;
		x[i] = (float)whole * scale;
	}
	if (scales && first == 0)
		scales[row] = scale;
}

/* Replaces each row by scale * code; stores codes and scales unless NULL. o NULL: to nearest. */
void cuda_quantize(struct device *d, struct mat x, int8_t *codes, float *scales,
	const struct rng_stream *o)
{
	struct rng_stream c = {};
	if (o) {
		c = *o;
		c.row_step = row_step(o->row_step, x);
	}
	call_by_width(ceil_div(x.cols, PER_PACK<float>), [&](auto w) {
		using W = decltype(w);
		launch(d, "quantize", grid_of_rows<W::WARPS>(x.rows),
			threads_of_rows<W::WARPS>(), 0, quantize_kernel<W::WARPS>,
			floats_of(x), codes, scales, x.rows, x.cols, c, o != NULL);
	});
}

static __global__ void dequantize_kernel(
	float *x, const int8_t *codes, const float *scales, int64_t rows, int64_t cols)
{
	int64_t i = thread_number(), row = pack_place(i, cols, 1).row;
	if (row < rows)
		x[i] = (float)codes[i] * scales[row];
}

void cuda_dequantize(
	struct device *d, struct mat x, const int8_t *codes, const float *scales)
{
	launch(d, "dequantize", grid_of_packs(x.rows, x.cols, 1), THREADS, 0,
		dequantize_kernel, floats_of(x), codes, scales, x.rows, x.cols);
}
