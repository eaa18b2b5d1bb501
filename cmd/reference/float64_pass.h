/* State of a pass over one sequence, for float64.c and float64_attn.c. Not collective. */
#pragma once

#include "reference/float64.h"

#include <math.h>

/* A pass over a sequence, or one tensor-parallel rank's part of it. */
struct sequence_work {
	const struct float64 *f;
	const struct model *m;
	const struct sequence *s;
	int64_t n, dim, ffn, q, kv; /* number of positions; widths */
	int64_t layer;		    /* layer of the current sublayer */
	double scale;
	struct grad_part part;
	double **grad;
	double *table; /* rotations [2][n][head_dim]: cosines, sines; [1]: layers with a window */
};

/* The router of a layer: logits and scores [n][experts]; ids and gates of the chosen experts, and
 * gradients of the gates [n][experts_per_token]. */
struct float64_routing {
	double *z, *score, *gate, *dgate;
	int *ids;
	const double *gate_bias; /* [experts], added to the scores of gates; NULL: none */
};

/* Activations of a sublayer: after the norm; of attention; of the FFN. */
struct float64_acts {
	struct float64_routing routing;
	double *h, *q, *k, *v, *o, *a, *b, *y;
	double *q0, *k0; /* queries and keys before their norms */
};

/* Returns a variant's factor, or else the model's; 0: neither has one. */
static inline double variant_or_model(double of_variant, double of_model)
{
	return of_variant != 0 ? of_variant : of_model;
}

static inline double *weight_of(const struct sequence_work *w, const struct tensor *t)
{
	return t ? w->f->w[t - w->m->tensors] : NULL;
}

/* Returns the sums for a tensor's gradient; NULL if they are not requested, or t = NULL. */
static inline double *grad_of(const struct sequence_work *w, const struct tensor *t)
{
	return t ? w->grad[t - w->m->tensors] : NULL;
}

/* Returns true if the gradients of weights include this position's contribution. */
static inline bool part_has(const struct sequence_work *w, int64_t i)
{
	int n = w->part.n, k = w->part.i;
	if (w->part.kind == PART_CHUNK)
		return i * n / w->n == k;
	if (w->part.kind == PART_ZIGZAG) {
		int64_t piece = i * 2 * n / w->n;
		return piece == k || piece == 2 * n - 1 - k;
	}
	return true;
}

/* Allocates n zeros; the caller frees them. */
static inline double *zeros(int64_t n)
{
	return xcalloc((size_t)max64(n, 1), sizeof(double));
}

static inline void add_scaled(double *y, double a, const double *x, int64_t n)
{
#pragma omp simd
	for (int64_t j = 0; j < n; j++)
		y[j] += a * x[j];
}

/* Returns a softly capped score or logit, and its derivative. */
static inline double soft_cap(double x, double cap, double *slope)
{
	double t = cap > 0 ? tanh(x / cap) : 0;
	*slope = 1 - t * t;
	return cap > 0 ? cap * t : x;
}

/* A range of rows or columns. */
struct range {
	int64_t from, to;
};

/* float64_matrix.c */
/* Sets y[n][out] = x[n][in] w[out][in]^T + bias. */
void float64_linear(double *y, const double *x, const double *w, const double *bias,
	int64_t n, int64_t in, int64_t out);
/* Adds dy w to dx, for the outputs in the range. */
void float64_linear_dx(double *dx, const double *dy, const double *w, int64_t n,
	int64_t in, int64_t out, struct range of);

/* float64_loss.c: Returns the loss of one position, and replaces its logits by their gradients.
 * slope: [vocab], scratch. */
double float64_loss(const struct sequence_work *w, double *logits, double *slope,
	int32_t target, double scale);

/* float64_act.c: Returns an activation of a model or of a bug (ACT_OF_BUG), times the gate. */
double float64_act(enum act_kind kind, double x, double gate);
/* Returns the derivative by x, and sets the derivative by the gate, if there is one. */
double float64_act_slope(enum act_kind kind, double x, double gate, double *dgate);

/* float64_attn.c */
/* Returns the rotations for sequence_work.table; the caller frees them. */
double *float64_rotations(const struct sequence_work *w);
/* Rotates the heads of x [n][width] in place. sign -1: the inverse rotation. */
void float64_rotate(const struct sequence_work *w, double *x, int64_t width, double sign);
/* Computes a->o from a->q, a->k and a->v. */
void float64_attend(const struct sequence_work *w, const struct float64_acts *a);
/* Computes d->q, d->k and d->v from d->o. */
void float64_attend_backward(const struct sequence_work *w, const struct float64_acts *a,
	const struct float64_acts *d);

/* float64_experts.c */
void float64_routing_init(const struct sequence_work *w, struct float64_routing *r);
void float64_routing_release(struct float64_routing *r);
/* Sets out[n][dim] to the output of a mixture of experts for h[n][dim]. */
void float64_experts(const struct sequence_work *w, const struct sublayer_tensors *t,
	struct float64_routing *r, const double *h, double *out);
/* Adds the gradients of weights and of h, after float64_experts(). */
void float64_experts_backward(const struct sequence_work *w,
	const struct sublayer_tensors *t, const struct float64_routing *r,
	const double *h, const double *dout, double *dh);
