/*
 * Kernels of the optimizer: AdamW, the end of a step, exact sums. A list: kernels.h says how it is
 * read.
 */
#ifndef KERNELS_OPTIMIZER_H
#define KERNELS_OPTIMIZER_H

#include "kernels/matrix.h"

struct adamw {
	float lr, beta1, beta2, eps;
	float grad_scale;	  /* the gradient's factor: clipping, unscaling */
	float correct1, correct2; /* 1 - beta^step */
	bool off;		  /* nothing is updated */
};

/* A vector that it updates: parameters, moments, gradient, [n] each; and, unless copy.p is NULL,
 * what the parameters are when they are stored narrow. */
struct adamw_part {
	float *p, *m, *v;
	const float *g;
	struct mat copy; /* [1, n] */
	int64_t n;
	float decay;
};

/* The inputs of step_end, known before the step is computed; and its result: the loss, the norm of
 * the gradient, and the update to apply, which is off where one of the two is not finite. */
struct step_terms {
	struct adamw adamw; /* but for grad_scale and off */
	double count;	    /* of terms in the sum of losses: the loss is their mean */
	double max_norm;    /* of the gradient, which is scaled down to it; 0: any */
	float scale;	    /* of the gradient as it was computed */
	int64_t step;
};

struct step_end {
	struct adamw adamw;
	float loss, grad_norm;
	int64_t step;
};

#endif

#ifdef KERNEL

/* AdamW (Loshchilov, Hutter 2019), decoupled decay, in PyTorch's order of operations. Its
 * hyperparameters are in the device's memory, where step_end writes them. */
KERNEL(void, adamw, struct device *d, const struct adamw_part *parts, int n_parts,
	const struct adamw *adamw)
/* The mean loss, from its sum; the norm, from the sum of squares of the scaled gradient; and the
 * factor that clips it. All are in the device's memory, so that the update can be enqueued before
 * the step has ended. Equal sums give equal bits on every device. */
KERNEL(void, step_end, struct device *d, struct step_end *end, const struct exact *loss,
	const struct exact *squares, const struct step_terms *terms)

/* out[i] = sum of squares of row i, in double */
KERNEL(void, row_sumsq, struct device *d, double *out, struct mat x)
/* x += the sum of v[0..n), exactly. x is in the device's memory. */
KERNEL(void, exact_sum, struct device *d, struct exact *x, const float *v, int64_t n)
/* x += the sums of squares of the rows of n matrices, each rounded to double, exactly. x
 * likewise. */
KERNEL(void, exact_sumsq, struct device *d, struct exact *x, const struct mat *m, int n)

#endif
