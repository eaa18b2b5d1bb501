/*
 * Inference, a row at a time: the result of a row does not depend on the other rows, so
 * decoding with a KV cache gives the bits of decoding without.
 */
#include "kernels/cpu/cpu.h"

#include <omp.h>

void K(linear_row)(
	struct device *d, struct mat y, struct mat x, struct mat w, struct mat bias)
{
	enum { COLS = 16 };
	BUG_ON(y.rows != x.rows || y.cols != w.rows || x.cols != w.cols);
	const float *b = bias.p;
#pragma omp parallel for if (mat_size(w) > PARALLEL_FROM)
	for (int64_t c = 0; c < y.cols; c += COLS) {
		for (int64_t i = 0; i < y.rows; i++) {
			const float *in = mat_row(x, i);
			float *out = mat_row(y, i);
			for (int64_t j = c; j < min64(c + COLS, y.cols); j++) {
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
