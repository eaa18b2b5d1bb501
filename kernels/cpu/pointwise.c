/* Element-wise kernels: activations, residual sums, dropout, RoPE, embeddings. */
#include "kernels/cpu/cpu.h"

/* ---- activations ----------------------------------------------------------------- */

/* GELU (Hendrycks, Gimpel 2016) in its tanh form is x sigmoid(2u), because
 * (1 + tanh u) / 2 = sigmoid(2u). */
static inline float gelu_tanh_u2(float x)
{
	return 1.5957691216057308f * (x + 0.044715f * (x * x * x));
}

static void act_row(
	enum act_kind kind, float *y, const float *a, const float *b, int64_t n)
{
	switch (kind) {
	case ACT_GELU_TANH:
		for (int64_t j = 0; j < n; j++)
			y[j] = a[j] * sigmoid_f(gelu_tanh_u2(a[j]));
		break;
	case ACT_GELU:
		for (int64_t j = 0; j < n; j++)
			y[j] = a[j] * normal_cdf_f(a[j]);
		break;
	case ACT_SWIGLU:
		for (int64_t j = 0; j < n; j++)
			y[j] = a[j] * sigmoid_f(a[j]) * b[j];
		break;
	}
}

void K(act_fwd)(
	struct device *d, enum act_kind kind, struct mat y, struct mat a, struct mat b)
{
#pragma omp parallel for if (mat_size(y) > PARALLEL_FROM)
	for (int64_t i = 0; i < y.rows; i++)
		act_row(kind, mat_row(y, i), mat_row(a, i), mat_row(b, i), y.cols);
}

static void act_bwd_row(enum act_kind kind, float *da, float *db, const float *dy,
	const float *a, const float *b, int64_t n)
{
	switch (kind) {
	case ACT_GELU_TANH:
		for (int64_t j = 0; j < n; j++) {
			float x = a[j], s = sigmoid_f(gelu_tanh_u2(x));
			float du2 = 1.5957691216057308f * (1.0f + 0.134145f * (x * x));
			da[j] = dy[j] * (s + x * (s * (1.0f - s)) * du2);
		}
		break;
	case ACT_GELU:
		for (int64_t j = 0; j < n; j++) {
			float x = a[j];
			float density = 0.39894228040143268f * exp_f(-0.5f * (x * x));
			da[j] = dy[j] * (normal_cdf_f(x) + x * density);
		}
		break;
	case ACT_SWIGLU:
		for (int64_t j = 0; j < n; j++) {
			float x = a[j], s = sigmoid_f(x), up = dy[j];
			db[j] = up * (x * s);
			da[j] = up * b[j] * (s + x * (s * (1.0f - s)));
		}
		break;
	}
}

void K(act_bwd)(struct device *d, enum act_kind kind, struct mat da, struct mat db,
	struct mat dy, struct mat a, struct mat b)
{
#pragma omp parallel for if (mat_size(dy) > PARALLEL_FROM)
	for (int64_t i = 0; i < dy.rows; i++)
		act_bwd_row(kind, mat_row(da, i), mat_row(db, i), mat_row(dy, i),
			mat_row(a, i), mat_row(b, i), dy.cols);
}

/* y = a + sign b */
static void add_signed(struct mat y, struct mat a, struct mat b, float sign)
{
	int64_t n = mat_size(y);
	float *out = y.p;
	const float *p = a.p, *q = b.p;
#pragma omp parallel for simd if (n > PARALLEL_FROM)
	for (int64_t i = 0; i < n; i++)
		out[i] = p[i] + sign * q[i];
}

void K(add)(struct device *d, struct mat y, struct mat a, struct mat b)
{
	add_signed(y, a, b, 1);
}

void K(sub)(struct device *d, struct mat y, struct mat a, struct mat b)
{
	add_signed(y, a, b, -1);
}

/* Dropout of row i, of n columns; out may be in. */
static void dropout_row(
	float *out, const float *in, int64_t n, int64_t i, const struct dropout *o)
{
	const float p = o->p, keep = 1.0f / (1.0f - p);
	uint32_t sample = (uint32_t)(o->first_sample + (o->first_row + i) / o->seq_rows);
	uint32_t step = *o->step;
	uint32_t x[RANDOM_WORDS];
	int64_t skip = o->first_col & 3; /* of the words of the first block */
	for (int64_t j = 0; j < n; j += RANDOM_WORDS - skip, skip = 0) {
		int64_t m = min64(RANDOM_WORDS - skip, n - j);
		random_words(x, o->key, (uint32_t)((o->first_col + j) >> 2),
			(uint32_t)o->pos[i], sample, step);
		for (int64_t l = 0; l < m; l++)
			out[j + l] =
				philox_uniform(x[skip + l]) < p ? 0 : in[j + l] * keep;
	}
}

void K(dropout)(struct device *d, struct mat y, struct mat x, const struct dropout *o)
{
#pragma omp parallel for if (mat_size(x) > PARALLEL_FROM)
	for (int64_t i = 0; i < x.rows; i++)
		dropout_row(mat_row(y, i), mat_row(x, i), x.cols, i, o);
}

/* Row by row, so that a row stays in the cache. */
void K(residual)(struct device *d, struct mat y, struct mat x, struct mat sum,
	struct mat bias, const struct dropout *o)
{
	int64_t n = y.cols;
	const float *b = bias.p;
	BUG_ON(x.rows != y.rows || sum.rows != y.rows || x.cols != n || sum.cols != n);
#pragma omp parallel for if (mat_size(y) > PARALLEL_FROM)
	for (int64_t i = 0; i < y.rows; i++) {
		float *out = mat_row(y, i);
		const float *stream = mat_row(x, i), *in = mat_row(sum, i);
		for (int64_t j = 0; b && j < n; j++)
			out[j] = in[j] + b[j];
		in = b ? out : in;
		if (o) {
			dropout_row(out, in, n, i, o);
			in = out;
		}
		for (int64_t j = 0; j < n; j++)
			out[j] = stream[j] + in[j];
	}
}

void K(rope)(struct device *d, struct mat x, int64_t dim, struct mat rope,
	const int32_t *pos, float sign)
{
	int64_t half = dim / 2;
	BUG_ON(x.cols % dim || rope.cols != dim);
#pragma omp parallel for if (mat_size(x) > PARALLEL_FROM)
	for (int64_t i = 0; i < x.rows; i++) {
		const float *cosine = mat_row(rope, pos[i]), *sine = cosine + half;
		for (int64_t h = 0; h < x.cols; h += dim) {
			float *a = mat_row(x, i) + h, *b = a + half;
			for (int64_t j = 0; j < half; j++) {
				float u = a[j], v = b[j], s = sign * sine[j];
				a[j] = u * cosine[j] - v * s;
				b[j] = v * cosine[j] + u * s;
			}
		}
	}
}

void K(embed_fwd)(struct device *d, struct mat y, struct mat w, const int32_t *ids,
	int64_t first, bool add)
{
	BUG_ON(y.cols != w.cols);
	int64_t n = y.cols;
#pragma omp parallel for if (mat_size(y) > PARALLEL_FROM)
	for (int64_t i = 0; i < y.rows; i++) {
		int64_t id = ids[i] - first;
		bool here = id >= 0 && id < w.rows;
		float *out = mat_row(y, i);
		const float *in = mat_row(w, here ? id : 0);
		if (!here && !add)
			memset(out, 0, (size_t)n * sizeof(float));
		else if (here && !add)
			memcpy(out, in, (size_t)n * sizeof(float));
		else if (here)
			for (int64_t j = 0; j < n; j++)
				out[j] += in[j];
	}
}

/* Parallel over columns, so that each sum is over the rows in order. */
void K(embed_bwd)(
	struct device *d, struct mat dw, struct mat dy, const int32_t *ids, int64_t first)
{
	enum { COLS = 64 };
#pragma omp parallel for if (mat_size(dw) > PARALLEL_FROM)
	for (int64_t r = 0; r < dw.rows; r++)
		memset(mat_row(dw, r), 0, (size_t)dw.cols * sizeof(float));
#pragma omp parallel for if (mat_size(dy) > PARALLEL_FROM)
	for (int64_t c = 0; c < dy.cols; c += COLS) {
		int64_t n = min64(COLS, dy.cols - c);
		for (int64_t i = 0; i < dy.rows; i++) {
			int64_t id = ids[i] - first;
			if (id < 0 || id >= dw.rows)
				continue;
			float *out = mat_row(dw, id) + c;
			const float *in = mat_row(dy, i) + c;
			for (int64_t j = 0; j < n; j++)
				out[j] += in[j];
		}
	}
}
