/* Kernels on parameters, gradients and optimizer state: updates, sums, checks, hashes. */
#include "kernels/cpu/pieces.h"
#include "kernels/dtype_bits.h"
#include "kernels/step_math.h"

/* Stores the updated parameters in their 16-bit copy, if there is one. */
static void write_copy(const struct update_part *x)
{
	int64_t n = x->n;
	if (!x->copy.p)
		return;
#pragma omp parallel for if (n > PARALLEL_FROM)
	for (int64_t i = 0; i < n; i += PIECE)
		piece_store(x->copy, i, min64(PIECE, n - i), x->p + i);
}

/* Defines a kernel that calls NAME_part() for each of its vectors. */
#define UPDATE(name)                                                              \
	void K(name)(struct device * d, const struct update_part *x, int n_parts, \
		const struct update *o)                                           \
	{                                                                         \
		for (int i = 0; i < n_parts && !o->off; i++) {                    \
			name##_part(&x[i], o);                                    \
			write_copy(&x[i]);                                        \
		}                                                                 \
	}

/* Updates one vector by AdamW: its moments m and v, then its parameters p. */
static void adamw_part(const struct update_part *x, const struct update *o)
{
	const struct update a = *o;
	float *p = x->p, *m = x->m, *v = x->v;
	const float *g = x->g;
	int64_t n = x->n;
	float shrink = 1.0f - a.lr * x->decay, rate = a.lr * x->rate / a.correct1;
	float root = 1.0f / sqrtf(a.correct2);
#pragma omp parallel for simd if (n > PARALLEL_FROM)
	for (int64_t i = 0; i < n; i++) {
		float grad = g[i] * a.grad_scale;
		float m1 = a.beta1 * m[i] + (1.0f - a.beta1) * grad;
		float v1 = a.beta2 * v[i] + (1.0f - a.beta2) * (grad * grad);
		m[i] = m1;
		v[i] = v1;
		p[i] = p[i] * shrink - rate * (m1 / (sqrtf(v1) * root + a.eps));
	}
}
UPDATE(adamw)

/* Updates one vector by SGD: its momentum m, if any, then its parameters p. */
static void sgd_part(const struct update_part *x, const struct update *o)
{
	const struct update a = *o;
	float *p = x->p, *m = x->m;
	const float *g = x->g, decay = x->decay, rate = a.lr * x->rate;
	int64_t n = x->n;
#pragma omp parallel for simd if (n > PARALLEL_FROM)
	for (int64_t i = 0; i < n; i++) {
		float grad = g[i] * a.grad_scale + decay * p[i];
		float step = grad;
		if (m) {
			m[i] = a.momentum * m[i] + grad;
			step = a.nesterov ? grad + a.momentum * m[i] : m[i];
		}
		p[i] -= rate * step;
	}
}
UPDATE(sgd)

/* ---- Muon -------------------------------------------------------------------------- */

/* Updates the momentum m of one vector, and stores the direction to orthogonalize in p. */
static void muon_momentum_part(const struct update_part *x, const struct update *o)
{
	const struct update a = *o;
	float *u = x->p, *m = x->m, rest = 1.0f - a.momentum;
	const float *g = x->g;
	int64_t n = x->n;
#pragma omp parallel for simd if (n > PARALLEL_FROM)
	for (int64_t i = 0; i < n; i++) {
		float grad = g[i] * a.grad_scale;
		m[i] = a.momentum * m[i] + rest * grad;
		u[i] = a.nesterov ? a.momentum * m[i] + rest * grad : m[i];
	}
}
UPDATE(muon_momentum)

/* Updates the parameters p of one vector by Muon, with the orthogonalized direction in g. */
static void muon_update_part(const struct update_part *x, const struct update *o)
{
	float *p = x->p, shrink = 1.0f - o->lr * x->decay;
	const float *g = x->g, rate = o->lr * x->rate;
	int64_t n = x->n;
#pragma omp parallel for simd if (n > PARALLEL_FROM)
	for (int64_t i = 0; i < n; i++)
		p[i] = p[i] * shrink - rate * g[i];
}
UPDATE(muon_update)

/* Returns the index in the matrix of a slice's row; *step: from one element to the next. */
static int64_t sliced_index(
	const struct sliced *s, int64_t slice, int64_t row, int64_t *step)
{
	int64_t col = slice * (s->cols / s->slices);
	bool transposed = s->rows > s->cols;
	*step = transposed ? s->rows : 1;
	return transposed ? col * s->rows + row : row * s->cols + col;
}

/* Sets x to the sliced matrix divided by its norm; transposed if it has more rows than columns. */
void K(muon_normalize)(struct device *d, struct mat x, const float *slices,
	const struct sliced *s, const struct exact *squares)
{
	int64_t width = s->cols / s->slices;
	float scale = muon_scale(exact_round(squares));
#pragma omp parallel for if (mat_size(x) > PARALLEL_FROM)
	for (int64_t i = 0; i < s->slices * s->rows; i++) {
		int64_t step, at = sliced_index(s, i / s->rows, i % s->rows, &step);
		for (int64_t j = 0; j < width; j++) {
			float v = slices[i * width + j] * scale;
			if (x.type == DT_F32)
				((float *)x.p)[at + j * step] = v;
			else
				((uint16_t *)x.p)[at + j * step] =
					(uint16_t)narrow_bits(v, x.type);
		}
	}
}

/* Copies x back to slices: the inverse of muon_normalize's layout. */
void K(muon_unpack)(struct device *d, float *slices, struct mat x, const struct sliced *s)
{
	int64_t width = s->cols / s->slices;
#pragma omp parallel for if (mat_size(x) > PARALLEL_FROM)
	for (int64_t i = 0; i < s->slices * s->rows; i++) {
		int64_t step, at = sliced_index(s, i / s->rows, i % s->rows, &step);
		for (int64_t j = 0; j < width; j++) {
			int64_t k = at + j * step;
			slices[i * width + j] =
				x.type == DT_F32
					? ((const float *)x.p)[k]
					: widen_bits(((const uint16_t *)x.p)[k], x.type);
		}
	}
}

void K(axpby)(struct device *d, struct mat y, float a, struct mat x, float b)
{
	int64_t size = mat_size(y);
	BUG_ON(x.type != y.type);
#pragma omp parallel for if (size > PARALLEL_FROM)
	for (int64_t i = 0; i < size; i += PIECE) {
		float buf_x[PIECE], buf_y[PIECE];
		int64_t n = min64(PIECE, size - i);
		const float *from = piece_load(x, i, n, buf_x);
		float *to = piece_load(y, i, n, buf_y);
		for (int64_t j = 0; j < n; j++)
			to[j] = a * from[j] + b * to[j];
		piece_store(y, i, n, to);
	}
}

void K(step_end)(struct device *d, struct step_end *to, const struct exact *loss,
	const struct exact *squares, const struct step_terms *terms, const uint64_t *word,
	int n_words)
{
	*to = step_end_of(exact_round(loss), exact_round(squares), terms, word, n_words);
}

/* Returns the sum of squares of a row in double, over 16 lanes that are then added as a tree. */
static double sumsq(const float *row, int64_t n)
{
	double lane[16] = {0};
	int64_t j = 0;
	for (; j + 16 <= n; j += 16)
		for (int l = 0; l < 16; l++)
			lane[l] += (double)row[j + l] * (double)row[j + l];
	for (int l = 0; j + l < n; l++)
		lane[l] += (double)row[j + l] * (double)row[j + l];
	for (int width = 8; width; width /= 2)
		for (int l = 0; l < width; l++)
			lane[l] += lane[l + width];
	return lane[0];
}

void K(exact_sum)(struct device *d, struct exact *x, const float *v, int64_t n)
{
	for (int64_t i = 0; i < n; i++)
		exact_add(x, (double)v[i]);
	exact_normalize(x);
}

/* Adds to *x, exactly, the sums of squares of m's rows, each rounded to double. */
static void add_squares(struct exact *x, struct mat m)
{
	enum { ROWS = 512 };
	double squares[ROWS];
	for (int64_t i = 0; i < m.rows; i += ROWS) {
		int64_t n = min64(ROWS, m.rows - i);
#pragma omp parallel for if (n * m.cols > PARALLEL_FROM)
		for (int64_t j = 0; j < n; j++)
			squares[j] = sumsq(mat_row(m, i + j), m.cols);
		for (int64_t j = 0; j < n; j++)
			exact_add(x, squares[j]);
	}
	exact_normalize(x);
}

void K(exact_sumsq)(struct device *d, struct exact *x, const struct mat *m, int n)
{
	for (int i = 0; i < n; i++)
		add_squares(x, m[i]);
}

void K(zero)(struct device *d, struct mat x)
{
	int64_t n = mat_size(x);
#pragma omp parallel for if (n > PARALLEL_FROM)
	for (int64_t i = 0; i < n; i += PARALLEL_FROM)
		memset(element_address(x, i), 0,
			(size_t)(min64(PARALLEL_FROM, n - i) * dtype_bytes(x.type)));
}

/* Copies a matrix row by row: its rows may be ranges of columns of a wider matrix. */
static void copy_columns(struct mat to, struct mat from)
{
	BUG_ON(to.rows != from.rows);
#pragma omp parallel for if (mat_size(to) > PARALLEL_FROM)
	for (int64_t i = 0; i < to.rows; i++)
		memcpy(mat_rows(to, i, 1).p, mat_rows(from, i, 1).p,
			(size_t)(to.cols * dtype_bytes(to.type)));
}

void K(copy)(struct device *d, struct mat to, struct mat from)
{
	int64_t n = mat_size(to);
	BUG_ON(n != mat_size(from) || to.type != from.type);
	if (to.stride || from.stride) {
		copy_columns(to, from);
		return;
	}
#pragma omp parallel for if (n > PARALLEL_FROM)
	for (int64_t i = 0; i < n; i += PARALLEL_FROM)
		memcpy(element_address(to, i), element_address(from, i),
			(size_t)(min64(PARALLEL_FROM, n - i) * dtype_bytes(to.type)));
}

int64_t K(find_nonfinite)(struct device *d, struct mat x)
{
	int64_t size = mat_size(x);
	float buf[PIECE];
	for (int64_t i = 0; i < size; i += PIECE) {
		int64_t n = min64(PIECE, size - i);
		const float *p = piece_load(x, i, n, buf);
		for (int64_t j = 0; j < n; j++)
			if (!isfinite(p[j]))
				return i + j;
	}
	return -1;
}

/* Returns the sum of the hashes of elements at to at + n - 1, whose indices begin at `first`. */
static uint64_t hash_row(struct mat x, int64_t at, int64_t n, uint64_t key, int64_t first)
{
	uint64_t total = 0;
#pragma omp parallel for reduction(+ : total) if (n > PARALLEL_FROM)
	for (int64_t i = 0; i < n; i += PIECE) {
		float buf[PIECE];
		int64_t k = min64(PIECE, n - i);
		const float *v = piece_load(x, at + i, k, buf);
		for (int64_t j = 0; j < k; j++) {
			uint64_t place = (uint64_t)(first + i + j) * 0x9e3779b97f4a7c15u;
			uint64_t bits = (uint64_t)bits_of(v[j]) * 0xd6e8feb86659fd93u;
			total += hash_mix((place + key) ^ bits);
		}
	}
	return total;
}

/* Adds to *sum the hashes of all elements; element (i, j) has index first + i stride + j. */
void K(hash)(struct device *d, uint64_t *sum, struct mat x, uint64_t key, int64_t first,
	int64_t stride)
{
	if (stride == x.cols)
		x = mat_typed(x.p, 1, mat_size(x), x.type);
	for (int64_t i = 0; i < x.rows; i++)
		*sum += hash_row(x, i * x.cols, x.cols, key, first + i * stride);
}
