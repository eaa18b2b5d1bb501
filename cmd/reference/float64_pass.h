/* For float64.c and float64_attn.c: what a pass over one sequence has. Not collective. */
#pragma once

#include "reference/float64.h"

#include <math.h>

/* A pass over a sequence, or what one tensor-parallel rank has of it. */
struct sequence_work {
	const struct float64 *f;
	const struct model *m;
	const struct sequence *s;
	int64_t n, dim, ffn, q, kv; /* positions; widths */
	int64_t layer;		    /* of the sublayer that is computed */
	double scale;
	struct grad_part part;
	double **grad;
	double *table; /* of rotations, [2][n][head_dim]: cosines, then sines; second: of layers with a window */
};

/* The activations of a sublayer: behind the norm; of attention, and of the FFN. */
struct float64_acts {
	double *h, *q, *k, *v, *o, *a, *b, *y;
	double *q0, *k0; /* queries and keys before their norms */
};

/* A factor of a variant, or else of the model; 0: neither has one. */
static inline double either_factor(double of_variant, double of_model)
{
	return of_variant != 0 ? of_variant : of_model;
}

/* Zeros; the caller frees them. */
static inline double *doubles(int64_t n)
{
	return xcalloc((size_t)max64(n, 1), sizeof(double));
}

static inline void add_scaled(double *y, double a, const double *x, int64_t n)
{
#pragma omp simd
	for (int64_t j = 0; j < n; j++)
		y[j] += a * x[j];
}

/* A score or logit that is softly capped, and the slope there. */
static inline double capped(double x, double cap, double *slope)
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
/* y[n][out] = x[n][in] w[out][in]^T + bias */
void float64_linear(double *y, const double *x, const double *w, const double *bias,
	int64_t n, int64_t in, int64_t out);
/* dx += dy w, of the outputs in the range */
void float64_linear_dx(double *dx, const double *dy, const double *w, int64_t n,
	int64_t in, int64_t out, struct range of);

/* float64_loss.c: returns the loss of one position, and replaces its logits by their gradients. slope: [vocab], scratch. */
double float64_loss(const struct sequence_work *w, double *logits, double *slope,
	int32_t target, double scale);

/* float64_act.c: activation functions of models, or of bugs (ACT_OF_BUG). */
double float64_act(enum act_kind kind, double x, double gate);
/* Returns the derivative by x. Sets the derivative by the gate, if there is one. */
double float64_act_slope(enum act_kind kind, double x, double gate, double *dgate);

/* float64_attn.c */
/* Of rotary positions, for sequence_work.table; the caller frees it. */
double *float64_rotations(const struct sequence_work *w);
/* Rotates the heads of x [n][width] in place; sign -1: the transposed rotation. */
void float64_rotate(const struct sequence_work *w, double *x, int64_t width, double sign);
/* From a->q, a->k and a->v to a->o. */
void float64_attend(const struct sequence_work *w, const struct float64_acts *a);
/* From d->o to d->q, d->k and d->v. */
void float64_attend_backward(const struct sequence_work *w, const struct float64_acts *a,
	const struct float64_acts *d);
