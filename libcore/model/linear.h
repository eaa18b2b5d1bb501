/* Linear layers: matmuls in the precision of the run, overlapped with the communication of tensor
 * parallelism. Calls that take a gather or a sum are collective over the tensor-parallel axis. */
#pragma once

#include "model/layers.h"

enum dtype act_type(
	const struct pass *p); /* activations: operands and results of matmuls */
enum dtype sum_type(const struct pass *p);   /* attention's sums over chunks */
enum dtype slice_type(const struct pass *p); /* addends of a sum over slices */
/* Rounds x in place to act_type() if it is stored in fp32. */
void linear_round(struct pass *p, struct mat x);
/* Rounds fp32 x to act_type(), into y. */
void linear_cast(struct pass *p, struct mat y, struct mat x);
/* float8: allocates memory for n matrices x [slice][chunk][row][..] of a block. x->amax: the amax
 * of each slice and chunk, with the inverse of its scale. With `keep`, x->transposed: the cast
 * for the weight gradients. Skips matrices that are rounded in a copy. Returns the memory of all
 * amax, for linear_amax_begin().
 *
 * Some kernels compute the amax of their output (matrix.h); linear_amax() follows other kernels. */
struct mat linear_alloc_casts(const struct pass *p, int64_t layer, struct mat *const x[],
	int n, bool keep, struct arena *a);
/* Returns true if a block keeps only the float8 casts of its activations. */
bool linear_keeps_casts(const struct pass *p, int64_t layer);
void linear_amax(struct pass *p, struct mat x);
/* Sets all amax to 0, before the matrices are written; `amax` may be empty. */
void linear_amax_begin(struct pass *p, struct mat amax);
/* Returns x, from another block, without its amax and cast if this block is not float8. */
struct mat linear_cast_of(const struct pass *p, int64_t layer, struct mat x);
/* Allocates the casts of float8 weights. */
void linear_alloc(struct pass *p, struct arena *run);
/* Returns true if output gradients of a sublayer's matmuls can be columns of one matrix. They
 * cannot with float8 (one scale each), or if the ring of context parallelism sends some of them. */
bool linear_joins(const struct pass *p, int64_t layer);
/* Returns true if matmuls of this block may be fused with an elementwise function. */
bool linear_fuses(const struct pass *p, int64_t layer);

/* A matmul with slice at.slice of weight w of block at.layer (-1: the head). y is its output, or in
 * the backward the gradient of the output. fp32 operands x and dy are cast to act_type(). */
struct linear {
	struct mat y;
	const struct tensor *w, *bias;
	struct mat gelu; /* GELU(y), to be computed by the same kernel; or empty */
	struct mat
		sums; /* the sums of y over its rows, for the leaf of the bias; or empty */
};
/* Computes y = x w^T + bias. The weight has been gathered (param_use). */
void linear_forward(struct pass *p, struct at at, const struct linear *l, struct mat x);
/* Computes the loss of rows of x, and l->y, the gradient of their logits x w^T. */
void linear_loss(struct pass *p, const struct linear *l, struct mat x, float *loss,
	const int32_t *targets, struct xent_terms terms);
/* Computes dx = the sum of y w over n. The weights have been gathered. If the y have a stride,
 * they are all columns of one matrix, and the sum is one matmul; likewise in linear_weights(). */
void linear_backward_x(
	struct pass *p, struct at at, struct mat dx, const struct linear *l, int n);
/* Computes dw = dy^T x, or with `add` dw += dy^T x. The caller rounds a complete leaf in fp32. */
void linear_backward_w(struct pass *p, int64_t layer, struct mat dw, struct mat dy,
	struct mat x, bool add);

/* Matmuls after an all-gather or before a reduce-scatter, one piece of rows after the other
 * (slice_turn()), overlapped with the communication. Rows are rounded before they are gathered.
 * The n weights of a call belong to one tile, which the call gathers. */
/* Column-parallel forward: computes y = x w^T + bias for each of n with a non-empty y. */
void linear_enter(struct pass *p, struct at at, struct slice_gather *x,
	const struct linear *l, int n);
/* Column-parallel backward: pushes the sum of y w over n. */
void linear_enter_backward(struct pass *p, struct at at, struct slice_sum *sum,
	const struct linear *l, int n);
/* Row-parallel forward: pushes x w^T. */
void linear_leave(struct pass *p, struct at at, struct slice_sum *sum, struct mat x,
	const struct tensor *w);
/* Row-parallel backward: dx = dy w, times the derivative of GELU at `gelu_of` (or empty); then `sums`,
 * the sums of dx over its rows (or empty), with linear_sums_slope(). */
void linear_leave_backward(struct pass *p, struct at at, struct mat dx,
	struct slice_gather *dy, const struct tensor *w, struct mat gelu_of,
	struct mat sums);
/* Returns true if one call of the row-parallel backward with GELU has all rows of a bias. */
bool linear_sums_slope(const struct pass *p);
/* Computes the leaves dw = y^T x and, with a bias, db = column sums of y, for each of n. */
void linear_weights(
	struct pass *p, struct at at, struct mat x, const struct linear *l, int n);
