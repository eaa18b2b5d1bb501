/*
 * Inference, a row at a time: the result of a row does not depend on the other rows, so
 * decoding with a KV cache gives the bits of decoding without.
 */
#include "kernels/cpu/cpu.h"

#include <omp.h>

/* A tile of the result keeps its sums in registers, and reads each number once. It needs rows enough to be
 * worth more than the order in which dot() reads memory; and where a v16 is several registers, tiles
 * are no faster. */
#if defined(__AVX512F__)
enum { TILE = 4, TILES_FROM = 16 };
#else
enum { TILE = 1, TILES_FROM = INT32_MAX };
#endif

/* out[i][j] = dot(x[i], w[j]) with the same bits: dot()'s four sums, one after the other. */
static void dots(float out[TILE][TILE], const float *x, const float *w, int64_t n)
{
	enum { SUMS = 4, STEP = 16 * SUMS };
	v16 sums[SUMS][TILE][TILE];
	int64_t whole = n / STEP * STEP;
	for (int s = 0; s < SUMS; s++) {
		v16 c[TILE][TILE] = {{{0}}};
		for (int64_t t = 16 * s; t < whole; t += STEP)
#pragma GCC unroll 4
			for (int i = 0; i < TILE; i++)
#pragma GCC unroll 4
				for (int j = 0; j < TILE; j++)
					c[i][j] += v16_load(x + i * n + t) *
						   v16_load(w + j * n + t);
		memcpy(sums[s], c, sizeof(c));
	}
	for (int i = 0; i < TILE; i++)
		for (int j = 0; j < TILE; j++) {
			v16 a0 = sums[0][i][j], a1 = sums[1][i][j];
			const float *p = x + i * n, *q = w + j * n;
			int64_t t = whole;
			for (; t + 16 <= n; t += 16)
				a0 += v16_load(p + t) * v16_load(q + t);
			if (t < n)
				a1 += v16_load_tail(p + t, n - t) *
				      v16_load_tail(q + t, n - t);
			out[i][j] = v16_sum((a0 + a1) + (sums[2][i][j] + sums[3][i][j]));
		}
}

/* y = x w^T in whole tiles of columns [c, c + cols); the number of rows that they cover. */
static int64_t linear_tiles(
	struct mat y, struct mat x, struct mat w, const float *b, int64_t c, int64_t cols)
{
	float v[TILE][TILE];
	int64_t i = 0;
	if (y.rows < TILES_FROM || cols % TILE)
		return 0;
	for (; i + TILE <= y.rows; i += TILE)
		for (int64_t j = c; j < c + cols; j += TILE) {
			dots(v, mat_row(x, i), mat_row(w, j), x.cols);
			for (int64_t t = 0; t < TILE * TILE; t++) {
				int64_t col = j + t % TILE;
				float sum = v[t / TILE][t % TILE];
				mat_row(y, i + t / TILE)[col] = b ? sum + b[col] : sum;
			}
		}
	return i;
}

void K(linear_row)(
	struct device *d, struct mat y, struct mat x, struct mat w, struct mat bias)
{
	enum { COLS = 16 };
	BUG_ON(y.rows != x.rows || y.cols != w.rows || x.cols != w.cols);
	const float *b = bias.p;
#pragma omp parallel for if (mat_size(w) > PARALLEL_FROM)
	for (int64_t c = 0; c < y.cols; c += COLS) {
		int64_t cols = min64(COLS, y.cols - c);
		for (int64_t i = linear_tiles(y, x, w, b, c, cols); i < y.rows; i++) {
			const float *in = mat_row(x, i);
			float *out = mat_row(y, i);
			for (int64_t j = c; j < c + cols; j++) {
				float v = dot(in, mat_row(w, j), x.cols);
				out[j] = b ? v + b[j] : v;
			}
		}
	}
}

static void attend(float *o, const float *q, const float *k, const float *v,
	int64_t stride, int64_t dim, int64_t n, float scale, float *s)
{
	for (int64_t j = 0; j < n; j++)
		s[j] = scale * dot(q, k + j * stride, dim);
	float top = max_of(s, n);
	for (int64_t j = 0; j < n; j++)
		s[j] = exp_f(s[j] - top);
	float total = 1.0f / sum_of(s, n);
	memset(o, 0, (size_t)dim * sizeof(float));
	for (int64_t j = 0; j < n; j++)
		for (int64_t e = 0; e < dim; e++)
			o[e] += s[j] * v[j * stride + e];
	for (int64_t e = 0; e < dim; e++)
		o[e] *= total;
}

void K(attn_row)(struct device *d, struct mat o, struct mat q, struct mat k, struct mat v,
	int64_t heads, int64_t kv_heads, int64_t dim, int64_t first, float scale)
{
	int64_t group = heads / kv_heads, width = k.cols, longest = first + q.rows;
	size_t mark = arena_mark(d->scratch);
	float *s = arena_floats(d->scratch, d->threads * round_up(longest, 16));
#pragma omp parallel for schedule(dynamic, 1)
	for (int64_t t = 0; t < q.rows * heads; t++) {
		int64_t i = t / heads, h = t % heads;
		float *mine = s + omp_get_thread_num() * round_up(longest, 16);
		attend(mat_row(o, i) + h * dim, mat_row(q, i) + h * dim,
			(const float *)k.p + h / group * dim,
			(const float *)v.p + h / group * dim, width, dim, first + i + 1,
			scale, mine);
	}
	arena_reset(d->scratch, mark);
}
