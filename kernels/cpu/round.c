/* Casts to lower-precision formats, and amax for scaled ones. */
#include "kernels/cpu/pieces.h"
#include "kernels/dtype_bits.h"
#include "kernels/step_math.h"

/* One loop per format, so that the format is a constant in it. */
#define EACH(type_, result)                     \
	case type_:                             \
		for (int64_t i = 0; i < n; i++) \
			y[i] = result;          \
		break;

/* Widens n elements of a 16-bit or 8-bit type to fp32. */
void K(widen_run)(float *y, const void *from, enum dtype type, int64_t n)
{
	const uint16_t *half = from;
	const uint8_t *byte = from;
	switch (type) {
		EACH(DT_BF16, widen_bits(half[i], DT_BF16))
		EACH(DT_F16, widen_bits(half[i], DT_F16))
		EACH(DT_E4M3, widen_bits(byte[i], DT_E4M3))
		EACH(DT_E5M2, widen_bits(byte[i], DT_E5M2))
	case DT_F32:
		BUG_ON(true);
	}
}

/* Rounds n floats to nearest, as bf16 or fp16. */
static void narrow_half(uint16_t *y, enum dtype type, const float *x, int64_t n)
{
	int64_t i = 0;
	for (; type == DT_BF16 && i + 16 <= n; i += 16)
		store_bf16(y + i, v16_load(x + i));
	for (; type == DT_BF16 && i < n; i++)
		y[i] = (uint16_t)narrow_bits(x[i], DT_BF16);
	for (; i < n; i++)
		y[i] = (uint16_t)narrow_bits(x[i], DT_F16);
}

static void narrow_byte(uint8_t *y, enum dtype type, const float *x, int64_t n)
{
	if (type == DT_E4M3)
		for (int64_t i = 0; i < n; i++)
			y[i] = (uint8_t)narrow_bits(x[i], DT_E4M3);
	else
		for (int64_t i = 0; i < n; i++)
			y[i] = (uint8_t)narrow_bits(x[i], DT_E5M2);
}

void K(narrow_run)(void *y, enum dtype type, const float *x, int64_t n)
{
	if (dtype_bytes(type) == 2)
		narrow_half(y, type, x, n);
	else
		narrow_byte(y, type, x, n);
}

/* Sets y[i] to x[i] scale, rounded to the format `type` and stored as fp32. */
static void round_run(float *y, const float *x, int64_t n, enum dtype type, float scale)
{
	switch (type) {
		EACH(DT_F32, x[i] * scale)
		EACH(DT_BF16, round_bf16(x[i] * scale))
		EACH(DT_F16, round_to(x[i] * scale, dtype_table[DT_F16]))
		EACH(DT_E4M3, round_to(x[i] * scale, dtype_table[DT_E4M3]))
		EACH(DT_E5M2, round_to(x[i] * scale, dtype_table[DT_E5M2]))
	}
}

/* Casts n elements from `at` on to the format `type`, stored as fp32 or in its own bits; y may be
 * x. */
static void round_piece(
	struct mat y, struct mat x, int64_t at, int64_t n, enum dtype type, float scale)
{
	float buf[PIECE];
	const float *in = piece_load(x, at, n, buf);
	float *out = piece_or_buffer(y, at, buf);
	round_run(out, in, n, y.type == DT_F32 ? type : DT_F32, scale);
	piece_store(y, at, n, out);
}

/* Casts x scale to the format `type`, stored in it or as fp32, and raises y's amax. */
void K(round)(struct device *d, struct mat y, struct mat x, enum dtype type, float scale)
{
	int64_t n = mat_size(y);
	BUG_ON(n != mat_size(x) || (y.type != DT_F32 && y.type != type));
#pragma omp parallel for if (n > PARALLEL_FROM)
	for (int64_t i = 0; i < n; i += PIECE)
		round_piece(y, x, i, min64(PIECE, n - i), type, scale);
	raise_amax(d, y);
}

enum { TILE = 64 };

/* Casts rows [r, r + rows) of columns [c, c + cols) to y and to the transposed matrix. */
static void cast_tile(struct mat y, struct mat x, int64_t r, int64_t rows, int64_t c,
	int64_t cols, float scale)
{
	uint8_t tile[TILE][TILE];
	float buf[PIECE], scaled[TILE];
	for (int64_t i = 0; i < rows; i++) {
		int64_t at = (r + i) * x.cols + c;
		round_run(scaled, piece_load(x, at, cols, buf), cols, DT_F32, scale);
		narrow_byte(tile[i], y.type, scaled, cols);
		if (y.p)
			memcpy(element_address(y, at), tile[i], (size_t)cols);
	}
	for (int64_t j = 0; j < cols; j++) {
		uint8_t *to = (uint8_t *)y.transposed + (c + j) * x.rows + r;
		for (int64_t i = 0; i < rows; i++)
			to[i] = tile[i][j];
	}
}

/* Casts x scale to fp8, into y.p (unless NULL) and, transposed, into y.transposed. */
static void cast_transposed(struct mat y, struct mat x, float scale)
{
	int64_t n_across = ceil_div(x.cols, TILE), n_down = ceil_div(x.rows, TILE);
#pragma omp parallel for if (mat_size(x) > PARALLEL_FROM)
	for (int64_t i = 0; i < n_across * n_down; i++) {
		int64_t r = i / n_across * TILE, c = i % n_across * TILE;
		cast_tile(y, x, r, min64(TILE, x.rows - r), c, min64(TILE, x.cols - c),
			scale);
	}
}

/* Casts x to fp8 with the scale for *amax; also sets y.transposed unless NULL, and *inverse. */
void K(round_scaled)(struct device *d, struct mat y, float *inverse, struct mat x,
	enum dtype type, const float *amax)
{
	float scale = float8_scale(dtype_table[type].largest, *amax);
	BUG_ON(dtype_bytes(type) != 1);
	BUG_ON(y.transposed && (y.type != type || y.rows != x.rows || y.cols != x.cols));
	if (y.transposed)
		cast_transposed(y, x, scale);
	else
		K(round)(d, y, x, type, scale);
	*inverse = 1.0f / scale;
}

void K(narrow)(struct device *d, uint16_t *y, struct mat x, enum dtype type)
{
	int64_t size = mat_size(x);
	BUG_ON(type != DT_BF16 && type != DT_F16);
#pragma omp parallel for if (size > PARALLEL_FROM)
	for (int64_t i = 0; i < size; i += PIECE) {
		float buf[PIECE];
		int64_t n = min64(PIECE, size - i);
		narrow_half(y + i, type, piece_load(x, i, n, buf), n);
	}
}

void K(widen)(struct device *d, struct mat y, const uint16_t *x, enum dtype type)
{
	int64_t size = mat_size(y);
	BUG_ON(type != DT_BF16 && type != DT_F16);
#pragma omp parallel for if (size > PARALLEL_FROM)
	for (int64_t i = 0; i < size; i += PIECE)
		K(widen_run)((float *)y.p + i, x + i, type, min64(PIECE, size - i));
}

/* Casts x, times the scale for *amax, to the bytes of e4m3. */
void K(narrow_scaled)(struct device *d, uint8_t *y, struct mat x, const float *amax)
{
	const float scale = float8_scale(dtype_table[DT_E4M3].largest, *amax);
	int64_t size = mat_size(x);
#pragma omp parallel for if (size > PARALLEL_FROM)
	for (int64_t i = 0; i < size; i += PIECE) {
		float buf[PIECE], scaled[PIECE];
		int64_t n = min64(PIECE, size - i);
		round_run(scaled, piece_load(x, i, n, buf), n, DT_F32, scale);
		narrow_byte(y + i, DT_E4M3, scaled, n);
	}
}

/* Widens the bytes of e4m3, and divides them by the scale for *amax. */
void K(widen_scaled)(struct device *d, struct mat y, const uint8_t *x, const float *amax)
{
	float *p = y.p;
	const float inverse = 1.0f / float8_scale(dtype_table[DT_E4M3].largest, *amax);
	int64_t n = mat_size(y);
#pragma omp parallel for simd if (n > PARALLEL_FROM)
	for (int64_t i = 0; i < n; i++)
		p[i] = widen_bits(x[i], DT_E4M3) * inverse;
}

/* Raises *to to the largest |x|; to NaN if x has one. */
void K(amax)(struct device *d, float *to, struct mat x)
{
	int64_t size = mat_size(x);
	int32_t max = (int32_t)bits_of(*to);
#pragma omp parallel for reduction(max : max) if (size > PARALLEL_FROM)
	for (int64_t i = 0; i < size; i += PIECE) {
		float buf[PIECE];
		int64_t n = min64(PIECE, size - i);
		int32_t bits = max_size_bits(piece_load(x, i, n, buf), n);
		max = bits > max ? bits : max;
	}
	*to = float_of((uint32_t)max);
}
