/* Inference, a row at a time: the result of a row does not depend on the other rows, so
 * decoding with a KV cache gives the same bits as decoding without. */
#include "kernels/cpu/cpu.h"

#include <omp.h>

/* A tile of the result keeps its sums in registers, and reads each element once. Only with enough
 * rows is that worth more than the order in which dot() reads memory; and where a v16 takes several
 * registers, tiles are not faster. */
#if defined(__AVX512F__)
enum { TILE = 4, TILES_FROM = 16 };
#else
enum { TILE = 1, TILES_FROM = INT32_MAX };
#endif

/* Sets out[i][j] to dot(x[i], w[j]), with its bits, by computing its four sums one by one. */
static void dot_tile(float out[TILE][TILE], const float *x, int64_t x_stride,
	const float *w, int64_t w_stride, int64_t n)
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
					c[i][j] += v16_load(x + i * x_stride + t) *
						   v16_load(w + j * w_stride + t);
		memcpy(sums[s], c, sizeof(c));
	}
	for (int i = 0; i < TILE; i++)
		for (int j = 0; j < TILE; j++) {
			v16 a0 = sums[0][i][j], a1 = sums[1][i][j];
			const float *p = x + i * x_stride, *q = w + j * w_stride;
			int64_t t = whole;
			for (; t + 16 <= n; t += 16)
				a0 += v16_load(p + t) * v16_load(q + t);
			if (t < n)
				a1 += v16_load_tail(p + t, n - t) *
				      v16_load_tail(q + t, n - t);
			out[i][j] = v16_sum((a0 + a1) + (sums[2][i][j] + sums[3][i][j]));
		}
}

/* Computes y = x w^T in whole tiles of columns [c, c + cols). Returns how many rows they cover. */
static int64_t linear_tiles(
	struct mat y, struct mat x, struct mat w, const float *b, int64_t c, int64_t cols)
{
	float v[TILE][TILE];
	int64_t i = 0;
	if (y.rows < TILES_FROM || cols % TILE)
		return 0;
	for (; i + TILE <= y.rows; i += TILE)
		for (int64_t j = c; j < c + cols; j += TILE) {
			dot_tile(v, mat_row(x, i), x.cols, mat_row(w, j), w.cols, x.cols);
			for (int64_t t = 0; t < TILE * TILE; t++) {
				int64_t col = j + t % TILE;
				float sum = v[t / TILE][t % TILE];
				mat_row(y, i + t / TILE)[col] = b ? sum + b[col] : sum;
			}
		}
	return i;
}

/* Computes y = x w^T + bias with bits of a row that do not depend on the number of rows. */
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

/* The keys and values of a head; their rows are `stride` apart. window: as in struct attn. */
struct keys_values {
	const float *k, *v;
	int64_t stride, dim, window;
	float scale;
};

/* Sets s[j] to scale q k[j] for keys [first, n). */
static void key_scores(
	float *s, const float *q, const struct keys_values *x, int64_t first, int64_t n)
{
	for (int64_t j = first; j < n; j++)
		s[j] = x->scale * dot(q, x->k + j * x->stride, x->dim);
}

/* Replaces n scores by exp(score - max), and scores of keys before the window by 0; returns 1 /
 * their sum. */
static float softmax_row(float *s, const struct keys_values *x, int64_t n)
{
	for (int64_t j = 0; x->window && j < n - x->window; j++)
		s[j] = -INFINITY;
	float top = max_of(s, n);
	for (int64_t j = 0; j < n; j++)
		s[j] = exp_f(s[j] - top);
	return 1.0f / sum_of(s, n);
}

/* Adds s v to o, for elements [e, dim) and keys [first, n). */
static void add_values(float *o, const float *s, const struct keys_values *x,
	int64_t first, int64_t n, int64_t e)
{
	for (int64_t j = first; j < n; j++)
		for (int64_t i = e; i < x->dim; i++)
			o[i] += s[j] * x->v[j * x->stride + i];
}

/* Computes the attention of one query to n keys; s is scratch memory for the scores. */
static void attend_row(
	float *o, const float *q, const struct keys_values *x, int64_t n, float *s)
{
	key_scores(s, q, x, 0, n);
	float inverse = softmax_row(s, x, n);
	memset(o, 0, (size_t)x->dim * sizeof(float));
	add_values(o, s, x, 0, n, 0);
	for (int64_t e = 0; e < x->dim; e++)
		o[e] *= inverse;
}

/* Sets o[TILE] to s v for n keys and `vectors` vectors from element e on. s_stride: rows of s. */
static inline __attribute__((always_inline)) void add_values_tile(float *o,
	int64_t o_stride, const float *s, int64_t s_stride, const struct keys_values *x,
	int64_t n, int64_t e, const int vectors)
{
	enum { MAX_VECTORS = 4 };
	v16 c[TILE][MAX_VECTORS] = {{{0}}};
	for (int64_t j = 0; j < n; j++) {
		const float *v = x->v + j * x->stride + e;
#pragma GCC unroll 4
		for (int i = 0; i < TILE; i++)
#pragma GCC unroll 4
			for (int l = 0; l < vectors; l++)
				c[i][l] += s[i * s_stride + j] * v16_load(v + 16 * l);
	}
	for (int i = 0; i < TILE; i++)
		for (int l = 0; l < vectors; l++)
			v16_store(o + i * o_stride + e + 16 * l, c[i][l]);
}

/* Computes the attention of TILE queries, with the bits of attend_row(); query i has n + i keys.
 * Reads keys and values once for all queries. */
static void attend_tile(float *o, int64_t o_stride, const float *q, int64_t q_stride,
	const struct keys_values *x, int64_t n, float *s, int64_t s_stride)
{
	int64_t common = n / TILE * TILE, dim = x->dim, e = 0;
	float v[TILE][TILE];
	for (int64_t j = 0; j < common; j += TILE) {
		dot_tile(v, q, q_stride, x->k + j * x->stride, x->stride, dim);
		for (int i = 0; i < TILE; i++)
			for (int l = 0; l < TILE; l++)
				s[i * s_stride + j + l] = x->scale * v[i][l];
	}
	float inverse[TILE];
	for (int i = 0; i < TILE; i++) {
		key_scores(s + i * s_stride, q + i * q_stride, x, common, n + i);
		inverse[i] = softmax_row(s + i * s_stride, x, n + i);
	}
	for (; e + 64 <= dim; e += 64)
		add_values_tile(o, o_stride, s, s_stride, x, common, e, 4);
	for (; e + 16 <= dim; e += 16)
		add_values_tile(o, o_stride, s, s_stride, x, common, e, 1);
	for (int i = 0; i < TILE; i++) {
		float *to = o + i * o_stride, *row_scores = s + i * s_stride;
		memset(to + e, 0, (size_t)(dim - e) * sizeof(float));
		add_values(to, row_scores, x, 0, common, e);
		add_values(to, row_scores, x, common, n + i, 0);
		for (int64_t l = 0; l < dim; l++)
			to[l] *= inverse[i];
	}
}

/* Returns the number of first keys to skip, since no query with at least n keys attends to them. It
 * keeps the order of sum_of(), so that a row has the same bits alone and in a tile. */
static int64_t skipped_keys(int64_t n, int64_t window)
{
	enum { STEP = 32 };
	return window ? max64(0, n - window) / STEP * STEP : 0;
}

/* Computes the attention of query i to keys 0 to first + i, or to the last `window` of them. */
void K(attn_row)(struct device *d, struct mat o, struct mat q, struct mat k, struct mat v,
	int64_t heads, int64_t kv_heads, int64_t dim, int64_t first, int64_t window,
	float scale)
{
	int64_t group = heads / kv_heads, longest = round_up(first + q.rows, 16);
	_Static_assert(
		(int)TILE <= (int)ATTN_ROW_QUERIES, "they share the scratch memory");
	int64_t tile = q.rows < TILES_FROM ? 1 : TILE, tiles = ceil_div(q.rows, tile);
	size_t mark = arena_mark(d->scratch);
	float *s = arena_floats(d->scratch, d->threads * tile * longest);
#pragma omp parallel for schedule(dynamic, 1)
	for (int64_t t = 0; t < tiles * heads; t++) {
		/* the tiles of a head follow each other: its keys and values stay in the cache */
		int64_t h = t / tiles, i = t % tiles * tile,
			end = min64(i + tile, q.rows);
		float *own = s + omp_get_thread_num() * tile * longest;
		float *out = mat_row(o, i) + h * dim;
		const float *in = mat_row(q, i) + h * dim;
		int64_t n = first + i + 1, from = skipped_keys(n, window);
		int64_t at = from * k.cols + h / group * dim;
		const struct keys_values x = {(const float *)k.p + at,
			(const float *)v.p + at, k.cols, dim, window, scale};
		if (tile > 1 && end - i == tile)
			attend_tile(out, o.cols, in, q.cols, &x, n - from, own, longest);
		else
			for (; i < end; i++, n++, out += o.cols, in += q.cols)
				attend_row(out, in, &x, n - from, own);
	}
	arena_reset(d->scratch, mark);
}
