/* LayerNorm and RMSNorm; RMSNorm of heads. */
#include "kernels/cpu/pieces.h"

/* Computes the mean (0 for RMSNorm) and 1 / sqrt(variance + eps) of a row. */
static void row_stats(enum norm_kind kind, const float *x, int64_t n, float eps,
	float *mean, float *rstd)
{
	*mean = 0;
	float square;
	if (kind == NORM_LAYER) {
		*mean = sum_of(x, n) / (float)n;
		v16 s = {0};
		int64_t i = 0;
		for (; i + 16 <= n; i += 16) {
			v16 c = v16_load(x + i) - *mean;
			s += c * c;
		}
		square = v16_sum(s);
		for (; i < n; i++)
			square += (x[i] - *mean) * (x[i] - *mean);
	} else {
		square = dot(x, x, n);
	}
	*rstd = 1.0f / sqrtf(square / (float)n + eps);
}

/* Stores row i of y: the row `in`, normalized. */
static void normalize(struct mat y, int64_t i, const float *in, float mean, float rstd,
	const float *gamma, const float *beta)
{
	float buf[PIECE];
	for (int64_t c = 0; c < y.cols; c += PIECE) {
		int64_t n = min64(PIECE, y.cols - c), at = i * y.cols + c;
		const float *x = in + c, *g = gamma + c, *b = beta ? beta + c : NULL;
		float *out = piece_or_buffer(y, at, buf);
		if (b)
			for (int64_t j = 0; j < n; j++)
				out[j] = (x[j] - mean) * rstd * g[j] + b[j];
		else
			for (int64_t j = 0; j < n; j++)
				out[j] = (x[j] - mean) * rstd * g[j];
		piece_store(y, at, n, out);
	}
}

/* Normalizes each row of x into y, and stores mean and rstd in stats; raises y's amax. */
void K(norm_fwd)(struct device *d, enum norm_kind kind, struct mat y, struct mat stats,
	struct mat x, struct mat gamma, struct mat beta, float eps)
{
	BUG_ON(stats.cols != x.rows || gamma.cols != x.cols);
#pragma omp parallel for if (mat_size(x) > PARALLEL_FROM)
	for (int64_t i = 0; i < x.rows; i++) {
		const float *in = mat_row(x, i);
		float mean, rstd;
		row_stats(kind, in, x.cols, eps, &mean, &rstd);
		((float *)stats.p)[i] = mean;
		((float *)stats.p)[x.rows + i] = rstd;
		normalize(y, i, in, mean, rstd, gamma.p, beta.p);
	}
	raise_amax(d, y);
}

/* Computes the sums over row i of e = dy gamma and of e h, with h = (x - mean) rstd. */
static void sum_e_eh(struct mat dy, int64_t i, const float *x, float mean, float rstd,
	const float *gamma, float *total_e, float *total_eh)
{
	float buf[PIECE];
	v16 sum_e = {0}, sum_eh = {0};
	for (int64_t c = 0; c < dy.cols; c += PIECE) {
		int64_t n = min64(PIECE, dy.cols - c);
		const float *up = piece_load(dy, i * dy.cols + c, n, buf);
		for (int64_t j = 0; j < n; j += 16) {
			int64_t w = min64(16, n - j);
			const float *in = x + c + j, *g = gamma + c + j;
			bool full = w == 16;
			v16 xs = full ? v16_load(in) : v16_load_tail(in, w);
			v16 dys = full ? v16_load(up + j) : v16_load_tail(up + j, w);
			v16 gammas = full ? v16_load(g) : v16_load_tail(g, w);
			v16 e = dys * gammas;
			sum_e += e;
			sum_eh += e * ((xs - mean) * rstd);
		}
	}
	*total_e = v16_sum(sum_e);
	*total_eh = v16_sum(sum_eh);
}

/* Adds the gradient of x to dx. With h = (x - mean) rstd and e = dy gamma: LayerNorm dx = rstd (e
 * - mean(e) - h mean(e h)); RMSNorm omits mean(e). */
static void bwd_x_rows(enum norm_kind kind, struct mat dx, struct mat dy, struct mat x,
	struct mat stats, struct mat gamma, int64_t first, int64_t rows)
{
	int64_t n = x.cols;
#pragma omp parallel for if (rows * n > PARALLEL_FROM)
	for (int64_t i = first; i < first + rows; i++) {
		float mean = ((const float *)stats.p)[i], mean_e, mean_eh, buf[PIECE];
		float rstd = ((const float *)stats.p)[x.rows + i];
		sum_e_eh(dy, i, mat_row(x, i), mean, rstd, gamma.p, &mean_e, &mean_eh);
		mean_e = kind == NORM_LAYER ? mean_e / (float)n : 0;
		mean_eh = mean_eh / (float)n;
		for (int64_t c = 0; c < n; c += PIECE) {
			int64_t m = min64(PIECE, n - c);
			const float *in = mat_row(x, i) + c, *g = (float *)gamma.p + c;
			const float *up = piece_load(dy, i * n + c, m, buf);
			float *out = mat_row(dx, i) + c;
			for (int64_t j = 0; j < m; j++) {
				float h = (in[j] - mean) * rstd;
				out[j] += rstd * (up[j] * g[j] - mean_e - h * mean_eh);
			}
		}
	}
}

void K(norm_bwd_x)(struct device *d, enum norm_kind kind, struct mat dx, struct mat dy,
	struct mat x, struct mat stats, struct mat gamma)
{
	bwd_x_rows(kind, dx, dy, x, stats, gamma, 0, x.rows);
}

/* Sets dgamma, and dbeta unless NULL, to sums over rows [first, first + rows), 64 at a time. */
void K(norm_bwd_w)(struct device *d, enum norm_kind kind, struct mat dgamma,
	struct mat dbeta, struct mat dy, struct mat x, struct mat stats, int64_t first,
	int64_t rows)
{
	enum { COLS = 64, ROWS = 64 };
	const float *mean = stats.p, *rstd = mean + x.rows;
#pragma omp parallel for if (rows * x.cols > PARALLEL_FROM)
	for (int64_t c = 0; c < x.cols; c += COLS) {
		int64_t n = min64(COLS, x.cols - c);
		float total_g[COLS] = {0}, total_b[COLS] = {0}, buf[PIECE];
		for (int64_t r = first; r < first + rows; r += ROWS) {
			float part_g[COLS] = {0}, part_b[COLS] = {0};
			for (int64_t i = r; i < min64(r + ROWS, first + rows); i++) {
				const float *in = mat_row(x, i) + c;
				const float *up = piece_load(dy, i * dy.cols + c, n, buf);
				for (int64_t j = 0; j < n; j++) {
					part_g[j] +=
						up[j] * ((in[j] - mean[i]) * rstd[i]);
					part_b[j] += up[j];
				}
			}
			for (int64_t j = 0; j < n; j++) {
				total_g[j] += part_g[j];
				total_b[j] += part_b[j];
			}
		}
		memcpy((float *)dgamma.p + c, total_g, (size_t)n * sizeof(float));
		if (dbeta.p)
			memcpy((float *)dbeta.p + c, total_b, (size_t)n * sizeof(float));
	}
}

/* Adds to dx; sets dgamma, dbeta, the rounded copy of dx and the copy's column sums, if wanted. */
void K(norm_bwd)(struct device *d, enum norm_kind kind, const struct norm_grads *to,
	struct mat dy, struct mat x, struct mat stats, struct mat gamma, int64_t first,
	int64_t rows)
{
	struct mat copy = mat_rows(to->copy, first, rows);
	copy.amax = to->copy.amax;
	K(norm_bwd_w)(d, kind, to->dgamma, to->dbeta, dy, x, stats, first, rows);
	bwd_x_rows(kind, to->dx, dy, x, stats, gamma, first, rows);
	if (to->copy.p)
		K(round)(d, copy, mat_rows(to->dx, first, rows), copy.type, 1);
	if (to->copy.p && to->sums.p)
		K(bias_bwd)(d, to->sums, copy);
}

void K(residual_norm)(struct device *d, struct mat y, struct mat x, struct mat sum,
	struct mat bias, const struct dropout *o, const struct norm *n)
{
	K(residual)(d, y, x, sum, bias, o);
	K(norm_fwd)(d, n->kind, n->h, n->stats, y, n->gamma, n->beta, n->eps);
}

/* Returns 1 / sqrt(mean(x^2) + eps) of the head at element `at`. */
static float head_rstd(struct mat x, int64_t at, int64_t dim, float eps)
{
	float buf[PIECE], square = 0;
	for (int64_t c = 0; c < dim; c += PIECE) {
		int64_t n = min64(PIECE, dim - c);
		const float *in = piece_load(x, at + c, n, buf);
		square += dot(in, in, n);
	}
	return 1.0f / sqrtf(square / (float)dim + eps);
}

/* Normalizes each head of gamma.cols channels by RMSNorm. */
void K(head_norm_fwd)(
	struct device *d, struct mat y, struct mat x, struct mat gamma, float eps)
{
	int64_t dim = gamma.cols, size = mat_size(x);
	BUG_ON(x.cols % dim || mat_size(y) != size || y.type != x.type);
#pragma omp parallel for if (size > PARALLEL_FROM)
	for (int64_t at = 0; at < size; at += dim) {
		float rstd = head_rstd(x, at, dim, eps), buf_x[PIECE], buf_y[PIECE];
		for (int64_t c = 0; c < dim; c += PIECE) {
			int64_t n = min64(PIECE, dim - c);
			const float *in = piece_load(x, at + c, n, buf_x);
			const float *g = (const float *)gamma.p + c;
			float *out = piece_or_buffer(y, at + c, buf_y);
			for (int64_t j = 0; j < n; j++)
				out[j] = in[j] * rstd * g[j];
			piece_store(y, at + c, n, out);
		}
	}
}

/* Sets e = dy gamma and h = x rstd, for channels [c, c + n) of the head at element `at`. */
static void load_head_piece(float *e, float *h, struct mat dy, struct mat x, int64_t at,
	int64_t c, int64_t n, const float *gamma, float rstd)
{
	float buf[PIECE];
	const float *up = piece_load(dy, at + c, n, buf);
	for (int64_t j = 0; j < n; j++)
		e[j] = up[j] * gamma[c + j];
	const float *in = piece_load(x, at + c, n, buf);
	for (int64_t j = 0; j < n; j++)
		h[j] = in[j] * rstd;
}

/* Sets dx = rstd (e - h mean(e h)) for each head, with e = dy gamma and h = x rstd. */
void K(head_norm_bwd_x)(struct device *d, struct mat dx, struct mat dy, struct mat x,
	struct mat gamma, float eps)
{
	int64_t dim = gamma.cols, size = mat_size(x);
	BUG_ON(x.cols % dim || mat_size(dy) != size || mat_size(dx) != size);
#pragma omp parallel for if (size > PARALLEL_FROM)
	for (int64_t at = 0; at < size; at += dim) {
		float rstd = head_rstd(x, at, dim, eps), mean = 0;
		float e[PIECE], h[PIECE], buf[PIECE];
		for (int64_t c = 0; c < dim; c += PIECE) {
			int64_t n = min64(PIECE, dim - c);
			load_head_piece(e, h, dy, x, at, c, n, gamma.p, rstd);
			mean += dot(e, h, n);
		}
		mean /= (float)dim;
		int64_t to = at / x.cols * mat_stride(dx) + at % x.cols;
		for (int64_t c = 0; c < dim; c += PIECE) {
			int64_t n = min64(PIECE, dim - c);
			float *out = piece_or_buffer(dx, to + c, buf);
			load_head_piece(e, h, dy, x, at, c, n, gamma.p, rstd);
			for (int64_t j = 0; j < n; j++)
				out[j] = rstd * (e[j] - h[j] * mean);
			piece_store(dx, to + c, n, out);
		}
	}
}

/* Sets dgamma to sums over all heads, in order: threads have different columns. */
void K(head_norm_bwd_w)(
	struct device *d, struct mat dgamma, struct mat dy, struct mat x, float eps)
{
	enum { COLS = 32, HEADS = 64 };
	int64_t dim = dgamma.cols, size = mat_size(x);
	BUG_ON(x.cols % dim || mat_size(dy) != size);
#pragma omp parallel for if (size > PARALLEL_FROM)
	for (int64_t c = 0; c < dim; c += COLS) {
		int64_t n = min64(COLS, dim - c);
		float total[COLS] = {0}, buf_x[PIECE], buf_dy[PIECE];
		for (int64_t first = 0; first < size; first += HEADS * dim) {
			float part[COLS] = {0};
			int64_t end = min64(size, first + HEADS * dim);
			for (int64_t at = first; at < end; at += dim) {
				float rstd = head_rstd(x, at, dim, eps);
				const float *in = piece_load(x, at + c, n, buf_x);
				const float *up = piece_load(dy, at + c, n, buf_dy);
				for (int64_t j = 0; j < n; j++)
					part[j] += up[j] * (in[j] * rstd);
			}
			for (int64_t j = 0; j < n; j++)
				total[j] += part[j];
		}
		memcpy((float *)dgamma.p + c, total, (size_t)n * sizeof(float));
	}
}
