/* Reference kernels in float64, written for clarity. */
#include "tests/support/kernels_ref.h"

#include <math.h>
#include <stdlib.h>

/* ---- linear ---------------------------------------------------------------------- */

void ref_linear_fwd(double *y, const double *x, const double *w, const double *bias,
	int64_t n, int64_t in, int64_t out)
{
	for (int64_t i = 0; i < n; i++) {
		for (int64_t o = 0; o < out; o++) {
			double sum = bias ? bias[o] : 0;
			for (int64_t j = 0; j < in; j++)
				sum += x[i * in + j] * w[o * in + j];
			y[i * out + o] = sum;
		}
	}
}

void ref_linear_bwd_x(
	double *dx, const double *dy, const double *w, int64_t n, int64_t in, int64_t out)
{
	for (int64_t i = 0; i < n; i++)
		for (int64_t o = 0; o < out; o++)
			for (int64_t j = 0; j < in; j++)
				dx[i * in + j] += dy[i * out + o] * w[o * in + j];
}

void ref_linear_bwd_w(
	double *dw, const double *dy, const double *x, int64_t n, int64_t in, int64_t out)
{
	for (int64_t i = 0; i < n; i++)
		for (int64_t o = 0; o < out; o++)
			for (int64_t j = 0; j < in; j++)
				dw[o * in + j] += dy[i * out + o] * x[i * in + j];
}

void ref_bias_bwd(double *db, const double *dy, int64_t n, int64_t out)
{
	for (int64_t i = 0; i < n; i++)
		for (int64_t o = 0; o < out; o++)
			db[o] += dy[i * out + o];
}

/* ---- norm ------------------------------------------------------------------------ */

void ref_norm_stats(enum norm_kind kind, double *mean, double *rstd, const double *x,
	int64_t n, double eps)
{
	double square = 0;
	*mean = 0;
	for (int64_t j = 0; j < n && kind == NORM_LAYER; j++)
		*mean += x[j] / (double)n;
	for (int64_t j = 0; j < n; j++)
		square += (x[j] - *mean) * (x[j] - *mean) / (double)n;
	*rstd = 1 / sqrt(square + eps);
}

static void normalize(enum norm_kind kind, double *h, double *rstd, const double *x,
	int64_t n, double eps)
{
	double mean;
	ref_norm_stats(kind, &mean, rstd, x, n, eps);
	for (int64_t j = 0; j < n; j++)
		h[j] = (x[j] - mean) * *rstd;
}

void ref_norm_fwd(enum norm_kind kind, double *y, const double *x, const double *gamma,
	const double *beta, int64_t rows, int64_t cols, double eps)
{
	double rstd;
	for (int64_t i = 0; i < rows; i++) {
		normalize(kind, y + i * cols, &rstd, x + i * cols, cols, eps);
		for (int64_t j = 0; j < cols; j++)
			y[i * cols + j] =
				y[i * cols + j] * gamma[j] + (beta ? beta[j] : 0);
	}
}

/* dh_i / dx_j = rstd ([i = j] - [LayerNorm] / n - h_i h_j / n). */
static void norm_bwd_row(enum norm_kind kind, double *dx, const double *dy,
	const double *h, double rstd, const double *gamma, int64_t n)
{
	double sum = 0, sum_h = 0;
	for (int64_t i = 0; i < n; i++) {
		sum += kind == NORM_LAYER ? dy[i] * gamma[i] : 0;
		sum_h += dy[i] * gamma[i] * h[i];
	}
	for (int64_t j = 0; j < n; j++)
		dx[j] += rstd * (dy[j] * gamma[j] - (sum + sum_h * h[j]) / (double)n);
}

void ref_norm_bwd(enum norm_kind kind, double *dx, double *dgamma, double *dbeta,
	const double *dy, const double *x, const double *gamma, int64_t rows,
	int64_t cols, double eps)
{
	double rstd, *h = xcalloc((size_t)cols, sizeof(double));
	for (int64_t i = 0; i < rows; i++) {
		const double *up = dy + i * cols;
		normalize(kind, h, &rstd, x + i * cols, cols, eps);
		if (dx)
			norm_bwd_row(kind, dx + i * cols, up, h, rstd, gamma, cols);
		for (int64_t j = 0; j < cols && dgamma; j++)
			dgamma[j] += up[j] * h[j];
		for (int64_t j = 0; j < cols && dbeta; j++)
			dbeta[j] += up[j];
	}
	free(h);
}

/* ---- element by element ---------------------------------------------------------- */

void ref_rope(double *x, int64_t rows, int64_t cols, int64_t dim, const double *table,
	const int32_t *pos, double sign)
{
	int64_t half = dim / 2;
	for (int64_t i = 0; i < rows; i++) {
		for (int64_t c = 0; c < cols; c++) {
			int64_t j = c % dim;
			if (j >= half)
				continue;
			double cosine = table[pos[i] * dim + j];
			double sine = sign * table[pos[i] * dim + half + j];
			double *a = x + i * cols + c, *b = a + half, u = *a, v = *b;
			*a = u * cosine - v * sine;
			*b = u * sine + v * cosine;
		}
	}
}

static const double pi = 3.14159265358979323846;

static double sigmoid(double x)
{
	return 1 / (1 + exp(-x));
}

static double normal_cdf(double x)
{
	return 0.5 * erfc(-x / sqrt(2));
}

static double gelu_tanh(double x)
{
	double u = sqrt(2 / pi) * (x + 0.044715 * x * x * x);
	return 0.5 * x * (1 + tanh(u));
}

static double gelu_tanh_slope(double x)
{
	double t = tanh(sqrt(2 / pi) * (x + 0.044715 * x * x * x));
	double du = sqrt(2 / pi) * (1 + 3 * 0.044715 * x * x);
	return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * du;
}

static double gelu(double x)
{
	return x * normal_cdf(x);
}

static double gelu_slope(double x)
{
	return normal_cdf(x) + x * exp(-x * x / 2) / sqrt(2 * pi);
}

static double swiglu(double x, double gate)
{
	return x * sigmoid(x) * gate;
}

/* Functions of two: returns the derivative by x, and sets the derivative by the gate. */
static double swiglu_slope(double x, double gate, double *dgate)
{
	double s = sigmoid(x);
	*dgate = x * s;
	return gate * s * (1 + x * (1 - s));
}

static double geglu_tanh(double x, double gate)
{
	return gelu_tanh(x) * gate;
}

static double geglu_tanh_slope(double x, double gate, double *dgate)
{
	*dgate = gelu_tanh(x);
	return gelu_tanh_slope(x) * gate;
}

#define PLAIN_FWD(f) f(a[i])
#define GATED_FWD(f) f(a[i], b[i])
#define PLAIN_BWD(f) da[i] += dy[i] * f##_slope(a[i])
#define GATED_BWD(f)                                    \
	double dgate;                                   \
	da[i] += dy[i] * f##_slope(a[i], b[i], &dgate); \
	db[i] += dy[i] * dgate

void ref_act_fwd(
	enum act_kind kind, double *y, const double *a, const double *b, int64_t n)
{
	for (int64_t i = 0; i < n; i++)
		switch (kind) {
#define ACT(id, name, kind, ...)         \
	case ACT_##id:                   \
		y[i] = kind##_FWD(name); \
		break;
#include "kernels/acts.h"
		}
}

void ref_act_bwd(enum act_kind kind, double *da, double *db, const double *dy,
	const double *a, const double *b, int64_t n)
{
	for (int64_t i = 0; i < n; i++)
		switch (kind) {
#define ACT(id, name, kind, ...)  \
	case ACT_##id: {          \
		kind##_BWD(name); \
		break;            \
	}
#include "kernels/acts.h"
		}
}

void ref_embed_fwd(double *y, const double *w, const int32_t *ids, int64_t first,
	int64_t n, int64_t vocab, int64_t cols)
{
	for (int64_t i = 0; i < n; i++) {
		int64_t id = ids[i] - first;
		for (int64_t j = 0; j < cols; j++)
			y[i * cols + j] = id >= 0 && id < vocab ? w[id * cols + j] : 0;
	}
}

void ref_embed_bwd(double *dw, const double *dy, const int32_t *ids, int64_t first,
	int64_t n, int64_t vocab, int64_t cols)
{
	for (int64_t i = 0; i < n; i++) {
		int64_t id = ids[i] - first;
		for (int64_t j = 0; j < cols && id >= 0 && id < vocab; j++)
			dw[id * cols + j] += dy[i * cols + j];
	}
}

double ref_keep(
	const struct dropout *d, int64_t sample, int64_t head, int64_t pos, int64_t index)
{
	struct philox_block r = philox(d->key, (uint32_t)(head << 20 | index / 4),
		(uint32_t)pos, (uint32_t)(d->first_sample + sample), *d->step);
	double uniform = (r.x[index % 4] >> 8) / 16777216.0;
	return uniform < (double)d->p ? 0 : 1 / (1 - (double)d->p);
}

/* ---- attention ------------------------------------------------------------------- */

/* For query i of sequence b: p[j] = softmax of its scores over keys first .. i, and 0 for earlier keys;
 * returns the log-sum-exp. */
static double probabilities(const struct ref_attn *a, double *p, const double *q,
	const double *k, int64_t b, int64_t i)
{
	int64_t stride = a->kv_heads * a->dim;
	int64_t first = a->start ? a->start[b * a->rows + i] : 0;
	double top = -INFINITY, sum = 0;
	for (; a->window && i - first >= a->window; first++)
		continue;
	for (int64_t j = 0; j < first; j++)
		p[j] = 0;
	for (int64_t j = first; j <= i; j++) {
		p[j] = 0;
		for (int64_t e = 0; e < a->dim; e++)
			p[j] += a->scale * q[e] * k[j * stride + e];
		top = fmax(top, p[j]);
	}
	for (int64_t j = first; j <= i; j++)
		sum += exp(p[j] - top);
	for (int64_t j = first; j <= i; j++)
		p[j] = exp(p[j] - top) / sum;
	return top + log(sum);
}

static double keep(const struct ref_attn *a, int64_t b, int64_t h, int64_t i, int64_t j)
{
	return a->drop.p > 0 ? ref_keep(&a->drop, b, a->first_head + h, i, j) : 1;
}

/* The index of the first element of sequence b, head h in a matrix with n_heads heads. */
static int64_t at(const struct ref_attn *a, int64_t n_heads, int64_t b, int64_t h)
{
	return (b * a->rows * n_heads + h) * a->dim;
}

void ref_attn_fwd(const struct ref_attn *a, double *o, double *lse, const double *q,
	const double *k, const double *v)
{
	int64_t stride = a->heads * a->dim, kv_stride = a->kv_heads * a->dim;
	double *p = xcalloc((size_t)a->rows, sizeof(double));
	for (int64_t t = 0; t < a->batch * a->heads * a->rows; t++) {
		int64_t i = t % a->rows, h = t / a->rows % a->heads,
			b = t / a->rows / a->heads;
		int64_t kv = at(a, a->kv_heads, b, h * a->kv_heads / a->heads);
		int64_t row = at(a, a->heads, b, h) + i * stride;
		lse[t] = probabilities(a, p, q + row, k + kv, b, i);
		for (int64_t e = 0; e < a->dim; e++)
			o[row + e] = 0;
		for (int64_t j = 0; j <= i; j++) {
			double weight = p[j] * keep(a, b, h, i, j);
			for (int64_t e = 0; e < a->dim; e++)
				o[row + e] += weight * v[kv + j * kv_stride + e];
		}
	}
	free(p);
}

/* For one query: dp = (dout v^T) mask, ds = p (dp - sum of p dp). */
static void attn_bwd_row(const struct ref_attn *a, double *dq, double *dk, double *dv,
	const double *dout, const double *q, const double *k, const double *v, int64_t b,
	int64_t h, int64_t i, double *p, double *dp)
{
	int64_t stride = a->kv_heads * a->dim;
	double sum = 0;
	probabilities(a, p, q, k, b, i);
	for (int64_t j = 0; j <= i; j++) {
		double mask = keep(a, b, h, i, j);
		dp[j] = 0;
		for (int64_t e = 0; e < a->dim; e++) {
			dp[j] += dout[e] * v[j * stride + e] * mask;
			dv[j * stride + e] += p[j] * mask * dout[e];
		}
		sum += p[j] * dp[j];
	}
	for (int64_t j = 0; j <= i; j++) {
		double ds = p[j] * (dp[j] - sum) * a->scale;
		for (int64_t e = 0; e < a->dim; e++) {
			dq[e] += ds * k[j * stride + e];
			dk[j * stride + e] += ds * q[e];
		}
	}
}

void ref_attn_bwd(const struct ref_attn *a, double *dq, double *dk, double *dv,
	const double *dout, const double *q, const double *k, const double *v)
{
	double *p = xcalloc((size_t)a->rows, 2 * sizeof(double));
	for (int64_t t = 0; t < a->batch * a->heads * a->rows; t++) {
		int64_t i = t % a->rows, h = t / a->rows % a->heads,
			b = t / a->rows / a->heads;
		int64_t kv = at(a, a->kv_heads, b, h * a->kv_heads / a->heads);
		int64_t row = at(a, a->heads, b, h) + i * a->heads * a->dim;
		attn_bwd_row(a, dq + row, dk + kv, dv + kv, dout + row, q + row, k + kv,
			v + kv, b, h, i, p, p + a->rows);
	}
	free(p);
}

/* ---- loss and optimizer ---------------------------------------------------------- */

static double log_sum_exp(const double *x, int64_t n)
{
	double top = -INFINITY, sum = 0;
	for (int64_t j = 0; j < n; j++)
		top = fmax(top, x[j]);
	for (int64_t j = 0; j < n; j++)
		sum += exp(x[j] - top);
	return top + log(sum);
}

void ref_xent_fwd(double *lse, double *loss, const double *logits, const int32_t *targets,
	int64_t rows, int64_t vocab, struct xent_terms terms)
{
	double e = (double)terms.smoothing;
	for (int64_t i = 0; i < rows; i++) {
		const double *x = logits + i * vocab;
		lse[i] = log_sum_exp(x, vocab);
		loss[i] = targets[i] < 0 ? 0 : (1 - e) * (lse[i] - x[targets[i]]);
		for (int64_t j = 0; j < vocab && targets[i] >= 0; j++)
			loss[i] += e / (double)vocab * (lse[i] - x[j]);
		if (targets[i] >= 0)
			loss[i] += (double)terms.z * lse[i] * lse[i];
	}
}

void ref_xent_bwd(double *dlogits, const double *logits, const int32_t *targets,
	int64_t rows, int64_t vocab, struct xent_terms terms, double scale)
{
	double e = (double)terms.smoothing;
	for (int64_t i = 0; i < rows; i++) {
		const double *x = logits + i * vocab;
		double lse = log_sum_exp(x, vocab);
		for (int64_t j = 0; j < vocab && targets[i] >= 0; j++)
			dlogits[i * vocab + j] +=
				scale *
				(exp(x[j] - lse) * (1 + 2 * (double)terms.z * lse) -
					e / (double)vocab - (1 - e) * (j == targets[i]));
	}
}

void ref_adamw(double *p, double *m, double *v, const double *g, int64_t n,
	const struct update *o, double decay, int step)
{
	double beta1 = (double)o->beta1, beta2 = (double)o->beta2, lr = (double)o->lr;
	double correct1 = 1 - pow(beta1, step), correct2 = 1 - pow(beta2, step);
	for (int64_t i = 0; i < n; i++) {
		double grad = g[i] * (double)o->grad_scale;
		p[i] *= 1 - lr * decay;
		m[i] = beta1 * m[i] + (1 - beta1) * grad;
		v[i] = beta2 * v[i] + (1 - beta2) * grad * grad;
		p[i] -= lr * (m[i] / correct1) / (sqrt(v[i] / correct2) + (double)o->eps);
	}
}

void ref_orthogonalize(double *x, int64_t r, int64_t c)
{
	double *gram = calloc((size_t)(r * r), sizeof(*gram));
	double *poly = calloc((size_t)(r * r), sizeof(*poly));
	double *next = calloc((size_t)(r * c), sizeof(*next));
	for (int step = 0; step < 5; step++) {
		memset(gram, 0, (size_t)(r * r) * sizeof(*gram));
		for (int64_t i = 0; i < r; i++)
			for (int64_t j = 0; j < r; j++)
				for (int64_t k = 0; k < c; k++)
					gram[i * r + j] += x[i * c + k] * x[j * c + k];
		for (int64_t i = 0; i < r; i++)
			for (int64_t j = 0; j < r; j++) {
				double square = 0;
				for (int64_t k = 0; k < r; k++)
					square += gram[i * r + k] * gram[k * r + j];
				poly[i * r + j] =
					-4.7750 * gram[i * r + j] + 2.0315 * square;
			}
		for (int64_t i = 0; i < r; i++)
			for (int64_t k = 0; k < c; k++) {
				next[i * c + k] = 3.4445 * x[i * c + k];
				for (int64_t j = 0; j < r; j++)
					next[i * c + k] += poly[i * r + j] * x[j * c + k];
			}
		memcpy(x, next, (size_t)(r * c) * sizeof(*x));
	}
	free(gram);
	free(poly);
	free(next);
}
