/* Compression of messages between workers. */
#include "kernels/cpu/cpu.h"

enum { MAX_CODE = 127 };
static const int32_t infinite = 0x7f800000;
static const uint32_t upper = 0xffff0000u;

/* Returns the random word of element `number`. The counter's last word selects the stream. */
static inline uint32_t random_bits(const struct rng_stream *c, int64_t number)
{
	uint64_t at = (uint64_t)number;
	return philox(c->key, (uint32_t)at, (uint32_t)(at >> 32), 0, 1).x[0];
}

/* Adds random bits to the dropped bits: the probability of a carry is the dropped fraction of the
 * distance to the next bfloat16. */
void K(round_stochastic)(struct device *d, struct mat x, const struct rng_stream *o)
{
	const struct rng_stream c = *o;
	int64_t n = mat_size(x), step = row_step(c.row_step, x);
	float *v = x.p;
#pragma omp parallel for if (n > PARALLEL_FROM)
	for (int64_t i = 0; i < n; i++) {
		int64_t at = c.first + i / x.cols * step + i % x.cols;
		uint32_t up = random_bits(&c, at) >> 16;
		v[i] = float_of((bits_of(v[i]) + up) & upper);
	}
}

/* Returns the scale of a row. Rounded to nearest, it leaves no code above MAX_CODE, since an
 * error of 2^-9 shifts a code by less than half. `rounds_up`: for stochastic rounding, as
 * clamping is biased. */
static float row_scale(const float *x, int64_t n, bool rounds_up)
{
	int32_t max = max_size_bits(x, n);
	if (max >= infinite)
		return 0;
	uint32_t u = bits_of(float_of((uint32_t)max) / MAX_CODE);
	u += rounds_up ? 0xffff : 0x7fff + (u >> 16 & 1);
	float scale = float_of(u & upper);
	return scale < 0x1p-126f ? 0 : scale;
}

static void round_codes(float *x, int64_t n, float scale)
{
	const float magic = 0x1.8p23f; /* its last bit is worth 1: adding it rounds */
	for (int64_t i = 0; i < n; i++)
		x[i] = (x[i] / scale + magic) - magic;
}

/* Replaces x[i] by x[i] / scale, rounded stochastically to an integer in [-MAX_CODE, MAX_CODE]. */
static void round_codes_random(
	float *x, int64_t n, float scale, const struct rng_stream *c)
{
	for (int64_t i = 0; i < n; i++) {
		float code = x[i] / scale, below = floorf(code);
		below += philox_uniform(random_bits(c, c->first + i)) < code - below;
		x[i] = below > MAX_CODE	   ? MAX_CODE
		       : below < -MAX_CODE ? -MAX_CODE
					   : below;
	}
}

/* Replaces a row by scale * code; stores codes unless NULL; returns scale. c NULL: to nearest. */
static float quantize_row(float *x, int64_t n, int8_t *codes, const struct rng_stream *c)
{
	float scale = row_scale(x, n, c);
	if (scale == 0)
		memset(x, 0, (size_t)n * sizeof(*x));
	else if (c)
		round_codes_random(x, n, scale, c);
	else
		round_codes(x, n, scale);
	for (int64_t i = 0; i < n && codes; i++)
		codes[i] = (int8_t)x[i];
	for (int64_t i = 0; i < n; i++) /* as dequantize(): a code has no -0 */
		x[i] = (float)(int32_t)x[i] * scale;
	return scale;
}

/* Replaces each row by scale * code; stores codes and scales unless NULL. o NULL: to nearest. */
void K(quantize)(struct device *d, struct mat x, int8_t *codes, float *scales,
	const struct rng_stream *o)
{
#pragma omp parallel for if (mat_size(x) > PARALLEL_FROM)
	for (int64_t r = 0; r < x.rows; r++) {
		int64_t at = r * x.cols;
		struct rng_stream c = o ? *o : (struct rng_stream){.first = 0};
		c.first += r * row_step(c.row_step, x);
		float scale = quantize_row((float *)x.p + at, x.cols,
			codes ? codes + at : NULL, o ? &c : NULL);
		if (scales)
			scales[r] = scale;
	}
}

void K(dequantize)(
	struct device *d, struct mat x, const int8_t *codes, const float *scales)
{
#pragma omp parallel for if (mat_size(x) > PARALLEL_FROM)
	for (int64_t r = 0; r < x.rows; r++) {
		float *row = mat_row(x, r);
		for (int64_t i = 0; i < x.cols; i++)
			row[i] = (float)codes[r * x.cols + i] * scales[r];
	}
}

/* Packs the nonzero elements of each row, at most k, and zeros to make up k, with their columns. */
void K(topk_pack)(struct device *d, float *values, void *columns, bool wide, struct mat x,
	int64_t k)
{
#pragma omp parallel for if (mat_size(x) > PARALLEL_FROM)
	for (int64_t r = 0; r < x.rows; r++) {
		const float *row = mat_row(x, r);
		int64_t to = r * k, zeros = k;
		for (int64_t i = 0; i < x.cols; i++)
			zeros -= bits_of(row[i]) != 0;
		for (int64_t i = 0; i < x.cols && to < (r + 1) * k; i++) {
			if (bits_of(row[i]) == 0 && zeros-- <= 0)
				continue;
			if (wide)
				((uint32_t *)columns)[to] = (uint32_t)i;
			else
				((uint16_t *)columns)[to] = (uint16_t)i;
			values[to++] = row[i];
		}
	}
}

/* Sets each row to 0 except for its k packed elements. */
void K(topk_scatter)(struct device *d, struct mat x, const float *values,
	const void *columns, bool wide, int64_t k)
{
#pragma omp parallel for if (mat_size(x) > PARALLEL_FROM)
	for (int64_t r = 0; r < x.rows; r++) {
		float *row = mat_row(x, r);
		memset(row, 0, (size_t)x.cols * sizeof(*row));
		for (int64_t i = r * k; i < (r + 1) * k; i++)
			row[wide ? ((const uint32_t *)columns)[i]
				 : ((const uint16_t *)columns)[i]] = values[i];
	}
}
