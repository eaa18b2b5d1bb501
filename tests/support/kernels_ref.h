/* Reference kernels in float64 and plain loops, written from the formulas, not from
 * kernels/cpu. tests/unit/test_kernels_ref.c compares each backward with finite differences
 * of its forward; the tests of a device compare its kernels with these.
 *
 * Matrices are [rows, cols], row-major. Forwards set their results; backwards add to gradients. */
#pragma once

#include "kernels/kernels.h"

/* y = x w^T + bias; bias may be NULL */
void ref_linear_fwd(double *y, const double *x, const double *w, const double *bias,
	int64_t n, int64_t in, int64_t out);
void ref_linear_bwd_x(double *dx, const double *dy, const double *w, int64_t n,
	int64_t in, int64_t out);
void ref_linear_bwd_w(double *dw, const double *dy, const double *x, int64_t n,
	int64_t in, int64_t out);
void ref_bias_bwd(double *db, const double *dy, int64_t n, int64_t out);

/* Of one row; the mean is 0 for RMSNorm. */
void ref_norm_stats(enum norm_kind, double *mean, double *rstd, const double *x,
	int64_t n, double eps);
/* beta, dx, dgamma and dbeta may be NULL. */
void ref_norm_fwd(enum norm_kind, double *y, const double *x, const double *gamma,
	const double *beta, int64_t rows, int64_t cols, double eps);
void ref_norm_bwd(enum norm_kind, double *dx, double *dgamma, double *dbeta,
	const double *dy, const double *x, const double *gamma, int64_t rows,
	int64_t cols, double eps);

void ref_rope(double *x, int64_t rows, int64_t cols, int64_t dim, const double *table,
	const int32_t *pos, double sign);

/* b and db are NULL except for SwiGLU. */
void ref_act_fwd(enum act_kind, double *y, const double *a, const double *b, int64_t n);
void ref_act_bwd(enum act_kind, double *da, double *db, const double *dy, const double *a,
	const double *b, int64_t n);

void ref_embed_fwd(double *y, const double *w, const int32_t *ids, int64_t first,
	int64_t n, int64_t vocab, int64_t cols);
void ref_embed_bwd(double *dw, const double *dy, const int32_t *ids, int64_t first,
	int64_t n, int64_t vocab, int64_t cols);

/* The dropout mask at one element, 0 or 1/(1-p). For attention `index` is the key's position, else
 * the channel, and head is 0. */
double ref_keep(
	const struct dropout *, int64_t sample, int64_t head, int64_t pos, int64_t index);

/* Whole sequences: q, o [batch][rows][heads][dim]; k, v [batch][rows][kv_heads][dim];
 * lse [batch][heads][rows]. */
struct ref_attn {
	int64_t batch, rows, heads, kv_heads, dim;
	double scale;
	struct dropout drop; /* p, key, step, first_sample */
	int64_t first_head;
	const int32_t *start; /* [batch][rows]: of each query, its first key; NULL: 0 */
	int64_t window;	      /* of these, only so many up to the query; 0: all */
};

void ref_attn_fwd(const struct ref_attn *, double *o, double *lse, const double *q,
	const double *k, const double *v);
void ref_attn_bwd(const struct ref_attn *, double *dq, double *dk, double *dv,
	const double *dout, const double *q, const double *k, const double *v);

/* logits [rows, vocab] */
void ref_xent_fwd(double *lse, double *loss, const double *logits, const int32_t *targets,
	int64_t rows, int64_t vocab, struct xent_terms terms);
void ref_xent_bwd(double *dlogits, const double *logits, const int32_t *targets,
	int64_t rows, int64_t vocab, struct xent_terms terms, double scale);

/* Step `step`, counted from 1, of torch.optim.AdamW. */
void ref_adamw(double *p, double *m, double *v, const double *g, int64_t n,
	const struct update *, double decay, int step);

/* Muon's five steps of the Newton-Schulz iteration, as in the paper: x [r, c], of norm 1. */
void ref_orthogonalize(double *x, int64_t r, int64_t c);
