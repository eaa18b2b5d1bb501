/* Kernels of optimizers, of the end of a step, and of exact sums. kernels.h explains KERNEL. */
#ifndef KERNELS_OPTIMIZER_H
#define KERNELS_OPTIMIZER_H

#include "kernels/matrix.h"

/* The hyperparameters of an update, in device memory, where step_end writes them. Each optimizer's
 * kernel reads the ones it needs. */
struct update {
	float lr, beta1, beta2, eps;
	float grad_scale;	  /* factor of the gradient: clipping, unscaling */
	float correct1, correct2; /* 1 - beta^step */
	/* 0 or 1, in 32 bits: the struct has no gaps, since checks hash its words. */
	int32_t off; /* skip the update */
	int32_t nesterov;
	float momentum;
};

/* A vector to update: parameters, optimizer state (NULL: none), gradient, [n] each. Unless copy.p
 * is NULL, the update also writes a 16-bit copy of the parameters. */
struct update_part {
	float *p, *m, *v;
	const float *g;
	struct mat copy; /* [1, n] */
	int64_t n;
	float decay; /* weight decay */
	float rate;  /* factor of the learning rate, except in decoupled weight decay */
};

/* A matrix [rows, cols] that is stored as consecutive slices of its columns, [rows, cols / slices]
 * each. */
struct sliced {
	int64_t rows, cols, slices;
};

/* The inputs of step_end that are known before the step is computed. */
struct step_terms {
	struct update update; /* except grad_scale and off */
	double count; /* number of terms in the sum of losses: the loss is their mean */
	double max_norm; /* gradient clipping; 0: off */
	float scale;	 /* loss scale: the computed gradient contains it */
	int64_t step;
};

/* The results of step_end. */
struct step_end {
	struct update
		update; /* off unless loss and norm are finite, and the checks are right */
	float loss, grad_norm;
	int64_t step;
	bool too_large; /* the norm is infinite only because of leaves too large for the grid */
};

#endif

#ifdef KERNEL

/* AdamW (Loshchilov, Hutter 2019) with decoupled decay, in PyTorch's order of operations: the
 * learning rate is lr rate, and parameters are multiplied by 1 - lr decay. */
KERNEL(void, adamw, struct device *d, const struct update_part *parts, int n_parts,
	const struct update *update)
/* SGD in PyTorch's form, with coupled weight decay: g' = grad_scale g + decay p;
 * m = momentum m + g'; p -= lr rate (nesterov ? g' + momentum m : m). Without m: p -= lr rate g' */
KERNEL(void, sgd, struct device *d, const struct update_part *parts, int n_parts,
	const struct update *update)
/* Muon (Jordan et al. 2024), the momentum: g' = grad_scale g; m = momentum m + (1 - momentum) g';
 * p, which may be g, = nesterov ? momentum m + (1 - momentum) g' : m. */
KERNEL(void, muon_momentum, struct device *d, const struct update_part *parts,
	int n_parts, const struct update *update)
/* The update, with the orthogonalized momentum in g: p = (1 - lr decay) p - lr rate g. */
KERNEL(void, muon_update, struct device *d, const struct update_part *parts, int n_parts,
	const struct update *update)
/* x = the matrix / (its Frobenius norm sqrt(*squares) + 1e-7): [rows, cols], or transposed if it
 * has more rows than columns. x: any. *squares is in device memory. */
KERNEL(void, muon_normalize, struct device *d, struct mat x, const float *slices,
	const struct sliced *shape, const struct exact *squares)
/* The inverse layout: x, transposed back, to slices. */
KERNEL(void, muon_unpack, struct device *d, float *slices, struct mat x,
	const struct sliced *shape)
/* y = a x + b y. Both of one type, any. */
KERNEL(void, axpby, struct device *d, struct mat y, float a, struct mat x, float b)
/* Computes the mean loss from the sum, the gradient norm from the sum of squares of the scaled
 * gradient, and the clipping factor. The update is off if one of the n_words checksums at `word` is
 * not 0 modulo GRID_PRIME. All are in device memory, so that the update can be enqueued before the
 * step has ended. Equal sums give equal bits on every device. */
KERNEL(void, step_end, struct device *d, struct step_end *end, const struct exact *loss,
	const struct exact *squares, const struct step_terms *terms, const uint64_t *word,
	int n_words)

/* x += the sum of v[0..n), exactly. x is in device memory. */
KERNEL(void, exact_sum, struct device *d, struct exact *x, const float *v, int64_t n)
/* x += the sums of squares of the rows of n matrices: the sum of a row is rounded to double, and
 * these doubles are added exactly. x is in device memory. */
KERNEL(void, exact_sumsq, struct device *d, struct exact *x, const struct mat *m, int n)

#endif
