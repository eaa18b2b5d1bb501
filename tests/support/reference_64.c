/* The reference in float64 as a device: its kernels take and return fp32. */
#include "tests/support/kernels_ref.h"
#include "tests/support/trials.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- matrices in float64, until the kernel is done ------------------------------------- */

static struct {
	double *x;
	struct mat result; /* p: NULL for what is only read */
} held[16];
static size_t n_held;

static double *hold(struct mat m, bool read, bool write)
{
	if (!m.p)
		return NULL;
	const float *x = m.p;
	double scale = m.scale ? (double)*m.scale : 1;
	double *y = xcalloc((size_t)max64(1, mat_size(m)), sizeof(*y));
	for (int64_t i = 0; i < mat_size(m) && read; i++)
		y[i] = (double)x[i] * scale;
	BUG_ON(n_held == ARRAY_LEN(held));
	held[n_held].x = y;
	held[n_held++].result = write ? m : mat(NULL, 0, 0);
	return y;
}

static double *in(struct mat m)
{
	return hold(m, true, false);
}

/* A result: 0 at first, or what the matrix has. */
static double *out(struct mat m)
{
	return hold(m, false, true);
}

static double *in_out(struct mat m)
{
	return hold(m, true, true);
}

static void done(void)
{
	for (size_t i = 0; i < n_held; i++) {
		struct mat m = held[i].result;
		for (int64_t j = 0; m.p && j < mat_size(m); j++)
			((float *)m.p)[j] = (float)held[i].x[j];
		free(held[i].x);
	}
	n_held = 0;
}

static struct mat row(float *x, int64_t n)
{
	return mat(x, 1, n);
}

/* ---- the kernels ------------------------------------------------------------------------- */

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter" /* the device */

static void embed_fwd(struct device *d, struct mat y, struct mat w, const int32_t *ids,
	int64_t first, bool add)
{
	double *to = in_out(y), *rows = hold(y, false, false);
	ref_embed_fwd(rows, in(w), ids, first, y.rows, w.rows, y.cols);
	for (int64_t i = 0; i < mat_size(y); i++)
		to[i] = rows[i] + (add ? to[i] : 0);
	done();
}

static void embed_bwd(
	struct device *d, struct mat dw, struct mat dy, const int32_t *ids, int64_t first)
{
	ref_embed_bwd(out(dw), in(dy), ids, first, dy.rows, dw.rows, dw.cols);
	done();
}

static void linear_fwd(
	struct device *d, struct mat y, struct mat x, struct mat w, struct mat bias)
{
	ref_linear_fwd(out(y), in(x), in(w), in(bias), x.rows, x.cols, w.rows);
	done();
}

static void linear_row(
	struct device *d, struct mat y, struct mat x, struct mat w, struct mat bias)
{
	linear_fwd(d, y, x, w, bias);
}

static void linear_bwd_x(
	struct device *d, struct mat dx, struct mat dy, struct mat w, bool add)
{
	ref_linear_bwd_x(hold(dx, add, true), in(dy), in(w), dx.rows, dx.cols, dy.cols);
	done();
}

static void linear_bwd_w(
	struct device *d, struct mat dw, struct mat dy, struct mat x, bool add)
{
	ref_linear_bwd_w(hold(dw, add, true), in(dy), in(x), x.rows, dw.cols, dw.rows);
	done();
}

static void bias_fwd(struct device *d, struct mat y, struct mat bias)
{
	double *to = in_out(y), *b = in(bias);
	for (int64_t i = 0; i < mat_size(y); i++)
		to[i] += b[i % y.cols];
	done();
}

static void bias_bwd(struct device *d, struct mat db, struct mat dy)
{
	ref_bias_bwd(out(db), in(dy), dy.rows, dy.cols);
	done();
}

static void norm_fwd(struct device *d, enum norm_kind kind, struct mat y,
	struct mat stats, struct mat x, struct mat gamma, struct mat beta, float eps)
{
	double *from = in(x), *to = out(stats);
	ref_norm_fwd(
		kind, out(y), from, in(gamma), in(beta), x.rows, x.cols, (double)eps);
	for (int64_t i = 0; i < x.rows; i++)
		ref_norm_stats(kind, &to[i], &to[x.rows + i], from + i * x.cols, x.cols,
			(double)eps);
	done();
}

static const double trial_eps =
	(double)1e-5f; /* with which the self-test calls norm_fwd */

static void norm_bwd_x(struct device *d, enum norm_kind kind, struct mat dx,
	struct mat dy, struct mat x, struct mat stats, struct mat gamma)
{
	ref_norm_bwd(kind, in_out(dx), NULL, NULL, in(dy), in(x), in(gamma), x.rows,
		x.cols, trial_eps);
	done();
}

static void norm_bwd_w(struct device *d, enum norm_kind kind, struct mat dgamma,
	struct mat dbeta, struct mat dy, struct mat x, struct mat stats, int64_t first,
	int64_t rows)
{
	ref_norm_bwd(kind, NULL, out(dgamma), out(dbeta), in(mat_rows(dy, first, rows)),
		in(mat_rows(x, first, rows)), NULL, rows, x.cols, trial_eps);
	done();
}

static void head_norm_fwd(
	struct device *d, struct mat y, struct mat x, struct mat gamma, float eps)
{
	ref_norm_fwd(NORM_RMS, out(y), in(x), in(gamma), NULL, mat_size(x) / gamma.cols,
		gamma.cols, (double)eps);
	done();
}

static void head_norm_bwd_x(struct device *d, struct mat dx, struct mat dy, struct mat x,
	struct mat gamma, float eps)
{
	ref_norm_bwd(NORM_RMS, out(dx), NULL, NULL, in(dy), in(x), in(gamma),
		mat_size(x) / gamma.cols, gamma.cols, (double)eps);
	done();
}

static void head_norm_bwd_w(
	struct device *d, struct mat dgamma, struct mat dy, struct mat x, float eps)
{
	ref_norm_bwd(NORM_RMS, NULL, out(dgamma), NULL, in(dy), in(x), NULL,
		mat_size(x) / dgamma.cols, dgamma.cols, (double)eps);
	done();
}

static void rope(struct device *d, struct mat x, int64_t dim, struct mat table,
	const int32_t *pos, float sign)
{
	ref_rope(in_out(x), x.rows, x.cols, dim, in(table), pos, (double)sign);
	done();
}

static void act_fwd(
	struct device *d, enum act_kind kind, struct mat y, struct mat a, struct mat b)
{
	ref_act_fwd(kind, out(y), in(a), in(b), mat_size(y));
	done();
}

static void act_bwd(struct device *d, enum act_kind kind, struct mat da, struct mat db,
	struct mat dy, struct mat a, struct mat b)
{
	ref_act_bwd(kind, out(da), out(db), in(dy), in(a), in(b), mat_size(da));
	done();
}

/* y = a x + b z */
static void weighted(struct mat y, double a, struct mat x, double b, struct mat z)
{
	double *to = out(y), *left = in(x), *right = in(z);
	for (int64_t i = 0; i < mat_size(y); i++)
		to[i] = a * left[i] + b * right[i];
	done();
}

static void add(struct device *d, struct mat y, struct mat a, struct mat b)
{
	weighted(y, 1, a, 1, b);
}

static void sub(struct device *d, struct mat y, struct mat a, struct mat b)
{
	weighted(y, 1, a, -1, b);
}

static void axpby(struct device *d, struct mat y, float a, struct mat x, float b)
{
	weighted(y, (double)a, x, (double)b, y);
}

static double mask_at(const struct dropout *o, int64_t cols, int64_t i)
{
	int64_t at = i / cols;
	return ref_keep(o, (o->first_row + at) / o->seq_rows, 0, o->pos[at],
		o->first_col + i % cols);
}

static void dropout(
	struct device *d, struct mat y, struct mat x, const struct dropout *drop)
{
	double *to = out(y), *from = in(x);
	for (int64_t i = 0; i < mat_size(y); i++)
		to[i] = from[i] * mask_at(drop, y.cols, i);
	done();
}

static void residual(struct device *d, struct mat y, struct mat x, struct mat sum,
	struct mat bias, const struct dropout *drop)
{
	double *to = out(y), *from = in(x), *add = in(sum), *b = in(bias);
	for (int64_t i = 0; i < mat_size(y); i++)
		to[i] = from[i] + (add[i] + (b ? b[i % y.cols] : 0)) *
					  (drop ? mask_at(drop, y.cols, i) : 1);
	done();
}

/* The columns of the vocabulary in a slice, without padding. */
static double *columns_of(struct mat logits, int64_t cols)
{
	double *all = in(logits), *some = hold(logits, false, false);
	for (int64_t i = 0; i < logits.rows; i++)
		memcpy(some + i * cols, all + i * logits.cols,
			(size_t)cols * sizeof(*some));
	return some;
}

static void xent_stats(struct device *d, struct xent_stats to, struct mat logits,
	const int32_t *targets, int64_t first, int64_t vocab, struct xent_terms terms)
{
	int64_t n = logits.rows, cols = min64(logits.cols, vocab - first);
	const double *x = columns_of(logits, cols);
	double *top = out(row(to.max, n)), *total = out(row(to.sum, n)),
	       *hit = out(row(to.target, n));
	for (int64_t i = 0; i < n; i++, x += cols) {
		int64_t t = targets[i] - first;
		if (targets[i] < 0) {
			total[i] = 1, hit[i] = (double)INFINITY;
			continue;
		}
		top[i] = -INFINITY;
		for (int64_t j = 0; j < cols; j++)
			top[i] = fmax(top[i], x[j]);
		for (int64_t j = 0; j < cols; j++)
			total[i] += exp(x[j] - top[i]);
		hit[i] = t >= 0 && t < cols ? x[t] : (double)-INFINITY;
		double e = (double)terms.smoothing, sum = 0;
		for (int64_t j = 0; j < cols; j++)
			sum += x[j];
		if (e > 0)
			hit[i] = (hit[i] > (double)-INFINITY ? (1 - e) * hit[i] : 0) +
				 e / (double)vocab * sum;
	}
	done();
}

static void xent_bwd(struct device *d, struct mat logits, const float *lse,
	const int32_t *targets, int64_t first, int64_t vocab, struct xent_terms terms,
	const float *scale)
{
	int64_t cols = min64(logits.cols, vocab - first);
	const double *x = columns_of(logits, cols);
	double *to = out(logits); /* 0 for padding */
	double e = (double)terms.smoothing, even = e / (double)vocab;
	for (int64_t i = 0; i < logits.rows; i++, to += logits.cols, x += cols) {
		double all = 1 + 2 * (double)terms.z * (double)lse[i];
		for (int64_t j = 0; j < cols && targets[i] >= 0; j++)
			to[j] = (double)*scale *
				(all * exp(x[j] - (double)lse[i]) - even -
					(1 - e) * (j == targets[i] - first));
	}
	done();
}

#pragma GCC diagnostic pop

/* ---- the device ---------------------------------------------------------------------------- */

struct device *reference_64(void)
{
	static struct kernels k;
	static struct device d;
	if (d.k)
		return &d;
	device_open_cpu(&d, 1);
	k = *d.k;
	k.name = "float64";
	k.embed_fwd = embed_fwd;
	k.embed_bwd = embed_bwd;
	k.linear_fwd = linear_fwd;
	k.linear_row = linear_row;
	k.linear_bwd_x = linear_bwd_x;
	k.linear_bwd_w = linear_bwd_w;
	k.bias_fwd = bias_fwd;
	k.bias_bwd = bias_bwd;
	k.norm_fwd = norm_fwd;
	k.norm_bwd_x = norm_bwd_x;
	k.norm_bwd_w = norm_bwd_w;
	k.head_norm_fwd = head_norm_fwd;
	k.head_norm_bwd_x = head_norm_bwd_x;
	k.head_norm_bwd_w = head_norm_bwd_w;
	k.rope = rope;
	k.act_fwd = act_fwd;
	k.act_bwd = act_bwd;
	k.add = add;
	k.sub = sub;
	k.axpby = axpby;
	k.dropout = dropout;
	k.residual = residual;
	k.xent_stats = xent_stats;
	k.xent_bwd = xent_bwd;
	d.k = &k;
	return &d;
}
