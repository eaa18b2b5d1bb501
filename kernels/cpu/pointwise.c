/* Element-wise kernels: activations, residual sums, dropout, RoPE, embeddings. */
#include "kernels/cpu/activations.h"
#include "kernels/cpu/pieces.h"

void K(act_fwd)(
	struct device *d, enum act_kind kind, struct mat y, struct mat a, struct mat b)
{
	int64_t size = mat_size(y);
	BUG_ON(a.type != y.type || (b.p && b.type != y.type));
#pragma omp parallel for if (size > PARALLEL_FROM)
	for (int64_t i = 0; i < size; i += PIECE) {
		float buf_y[PIECE], buf_a[PIECE], buf_b[PIECE];
		int64_t n = min64(PIECE, size - i);
		float *out = piece_or_buffer(y, i, buf_y);
		act_fwd_piece(kind, out, piece_load(a, i, n, buf_a),
			piece_load(b, i, n, buf_b), n);
		piece_store(y, i, n, out);
	}
	raise_amax(d, y);
}

void K(act_bwd)(struct device *d, enum act_kind kind, struct mat da, struct mat db,
	struct mat dy, struct mat a, struct mat b)
{
	int64_t size = mat_size(dy);
	BUG_ON(da.type != dy.type || a.type != dy.type);
	BUG_ON((db.p && db.type != dy.type) || (b.p && b.type != dy.type));
#pragma omp parallel for if (size > PARALLEL_FROM)
	for (int64_t i = 0; i < size; i += PIECE) {
		float buf[3][PIECE], buf_da[PIECE], buf_db[PIECE];
		int64_t n = min64(PIECE, size - i);
		float *out = piece_or_buffer(da, i, buf_da),
		      *out_b = piece_or_buffer(db, i, buf_db);
		act_bwd_piece(kind, out, out_b, piece_load(dy, i, n, buf[0]),
			piece_load(a, i, n, buf[1]), piece_load(b, i, n, buf[2]), n);
		piece_store(da, i, n, out);
		piece_store(db, i, n, out_b);
	}
	raise_amax(d, da);
	raise_amax(d, db);
}

/* Computes y = a + sign b. */
static void add_signed(struct mat y, struct mat a, struct mat b, float sign)
{
	int64_t size = mat_size(y);
#pragma omp parallel for if (size > PARALLEL_FROM)
	for (int64_t i = 0; i < size; i += PIECE) {
		float buf[PIECE], *out = (float *)y.p + i;
		int64_t n = min64(PIECE, size - i);
		const float *p = (const float *)a.p + i, *q = piece_load(b, i, n, buf);
		for (int64_t j = 0; j < n; j++)
			out[j] = p[j] + sign * q[j];
	}
}

void K(add)(struct device *d, struct mat y, struct mat a, struct mat b)
{
	add_signed(y, a, b, 1);
}

void K(sub)(struct device *d, struct mat y, struct mat a, struct mat b)
{
	add_signed(y, a, b, -1);
}

/* Applies dropout to n columns of row i, from `col`, a multiple of 4, on. `out` may be `in`. */
static void dropout_piece(float *out, const float *in, int64_t n, int64_t i, int64_t col,
	const struct dropout *o)
{
	const float p = o->p, keep = 1.0f / (1.0f - p);
	uint32_t sample = (uint32_t)(o->first_sample + (o->first_row + i) / o->seq_rows);
	uint32_t step = *o->step;
	uint32_t x[RANDOM_WORDS];
	int64_t first = o->first_col + col;
	int64_t skip = first & 3; /* words of the first block */
	for (int64_t j = 0; j < n; j += RANDOM_WORDS - skip, skip = 0) {
		int64_t m = min64(RANDOM_WORDS - skip, n - j);
		random_words(x, o->key, (uint32_t)((first + j) >> 2), (uint32_t)o->pos[i],
			sample, step);
		for (int64_t l = 0; l < m; l++)
			out[j + l] =
				philox_uniform(x[skip + l]) < p ? 0 : in[j + l] * keep;
	}
}

/* Computes y = x with dropped elements 0 and the other elements divided by 1 - p; y may be x. */
void K(dropout)(struct device *d, struct mat y, struct mat x, const struct dropout *o)
{
#pragma omp parallel for if (mat_size(x) > PARALLEL_FROM)
	for (int64_t i = 0; i < x.rows; i++) {
		float buf[PIECE];
		for (int64_t c = 0; c < x.cols; c += PIECE) {
			int64_t n = min64(PIECE, x.cols - c), at = i * x.cols + c;
			const float *in = piece_load(x, at, n, buf);
			float *out = piece_or_buffer(y, at, buf);
			dropout_piece(out, in, n, i, c, o);
			piece_store(y, at, n, out);
		}
	}
}

/* Computes a piece of a row of y = x + dropout(sum + bias), from `col` on. y may be x or sum. */
static void residual_piece(float *y, const float *x, struct mat sum, const float *bias,
	int64_t i, int64_t col, const struct dropout *o)
{
	float buf[PIECE], all[PIECE];
	int64_t n = min64(PIECE, sum.cols - col);
	const float *in = piece_load(sum, i * sum.cols + col, n, buf);
	for (int64_t j = 0; bias && j < n; j++)
		all[j] = in[j] + bias[j];
	in = bias ? all : in;
	if (o) {
		dropout_piece(all, in, n, i, col, o);
		in = all;
	}
	for (int64_t j = 0; j < n; j++)
		y[j] = x[j] + in[j];
}

/* Computes y = x + dropout(sum + bias); bias.p and o may be NULL. */
void K(residual)(struct device *d, struct mat y, struct mat x, struct mat sum,
	struct mat bias, const struct dropout *o)
{
	int64_t n = y.cols;
	const float *b = bias.p;
	BUG_ON(x.rows != y.rows || sum.rows != y.rows || x.cols != n || sum.cols != n);
#pragma omp parallel for if (mat_size(y) > PARALLEL_FROM)
	for (int64_t i = 0; i < y.rows; i++) {
		for (int64_t c = 0; c < n; c += PIECE)
			residual_piece(mat_row(y, i) + c, mat_row(x, i) + c, sum,
				b ? b + c : NULL, i, c, o);
	}
}

/* Rotates the pairs (a[j], b[j]) in place by angles with these cosines and sines; sign -1: back. */
static void rotate_pairs(
	float *a, float *b, const float *cosine, const float *sine, float sign, int64_t n)
{
	for (int64_t j = 0; j < n; j++) {
		float u = a[j], v = b[j], s = sign * sine[j];
		a[j] = u * cosine[j] - v * s;
		b[j] = v * cosine[j] + u * s;
	}
}

/* Rotates the pairs (j, j + dim/2) of each head in place by the angles of the row's position. */
void K(rope)(struct device *d, struct mat x, int64_t dim, struct mat rope,
	const int32_t *pos, float sign)
{
	int64_t half = dim / 2, heads = x.cols / dim;
	BUG_ON(x.cols % dim || rope.cols != dim);
#pragma omp parallel for if (mat_size(x) > PARALLEL_FROM)
	for (int64_t i = 0; i < x.rows; i++) {
		const float *cosine = mat_row(rope, pos[i]), *sine = cosine + half;
		float buf_a[PIECE], buf_b[PIECE];
		for (int64_t h = 0; h < heads; h++) {
			for (int64_t c = 0; c < half; c += PIECE) {
				int64_t n = min64(PIECE, half - c);
				int64_t at = i * mat_stride(x) + h * dim + c;
				float *a = piece_load(x, at, n, buf_a);
				float *b = piece_load(x, at + half, n, buf_b);
				rotate_pairs(a, b, cosine + c, sine + c, sign, n);
				piece_store(x, at, n, a);
				piece_store(x, at + half, n, b);
			}
		}
	}
}

/* Sets (or with `add`, increases) each row of y by its token's row of w, by 0 outside of w. */
void K(embed_fwd)(struct device *d, struct mat y, struct mat w, const int32_t *ids,
	int64_t first, bool add)
{
	BUG_ON(y.cols != w.cols);
	int64_t n = y.cols;
#pragma omp parallel for if (mat_size(y) > PARALLEL_FROM)
	for (int64_t i = 0; i < y.rows; i++) {
		int64_t id = ids[i] - first;
		bool in_slice = id >= 0 && id < w.rows;
		float *out = mat_row(y, i);
		const float *in = mat_row(w, in_slice ? id : 0);
		if (!in_slice && !add)
			memset(out, 0, (size_t)n * sizeof(float));
		else if (in_slice && !add)
			memcpy(out, in, (size_t)n * sizeof(float));
		else if (in_slice)
			for (int64_t j = 0; j < n; j++)
				out[j] += in[j];
	}
}

/* Sets each row of dw to the sum of the rows of dy with its token. Works in parallel over columns,
 * so that each sum is over the rows in order. */
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
