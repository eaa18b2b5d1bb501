/* Linear layers: matmuls in the precision of the run, overlapped with the communication of tensor
 * parallelism. Calls that take a gather or a sum are collective over the tensor-parallel axis. */
#pragma once

#include "model/layers.h"

/* Return the types of activations (operands and results of matmuls), of sums over chunks,
 * and of the addends of a sum over slices. */
enum dtype act_type(const struct pass *p);
enum dtype sum_type(const struct pass *p);
enum dtype slice_type(const struct pass *p);
/* Rounds x in place to act_type() if it is stored in fp32. */
void linear_round(struct pass *p, struct mat x);
/* Copies fp32 x, rounded to act_type(), into y. */
void linear_cast(struct pass *p, struct mat y, struct mat x);
/* float8: allocates memory for n matrices x [slice][chunk][row][..] of a block. x->amax: the amax
 * of each slice and chunk, with the inverse of its scale. With `keep`, x->transposed: the cast
 * for the weight gradients. Skips matrices that are rounded in a copy. Returns the memory of all
 * amax, for linear_clear_amax(). Some kernels compute the amax of their output (matrix.h); after
 * other kernels, call linear_compute_amax(). */
struct mat linear_alloc_casts(const struct pass *p, int64_t layer, struct mat *const x[],
	int n, bool keep, struct arena *a);
/* Returns true if a block keeps only the float8 casts of its activations. */
bool linear_keeps_casts(const struct pass *p, int64_t layer);
void linear_compute_amax(struct pass *p, struct mat x);
/* Sets all amax to 0, before the matrices are written; `amax` may be empty. */
void linear_clear_amax(struct pass *p, struct mat amax);
/* Returns x without its amax and cast, if this block is not float8 and does not use them. */
struct mat linear_drop_unused_cast(const struct pass *p, int64_t layer, struct mat x);
/* Allocates the casts of float8 weights. */
void linear_alloc_weight_casts(struct pass *p, struct arena *run);
/* Returns true if the output gradients of a sublayer's matmuls can be columns of one matrix. They
 * cannot with float8 (one scale each) or context parallelism (the ring sends some gradients). */
bool linear_can_join(const struct pass *p, int64_t layer);
/* Returns true if matmuls of this block may be fused with an elementwise function. */
bool linear_can_fuse(const struct pass *p, int64_t layer);

/* A matmul with slice loc.slice of weight w of block loc.layer (-1: the head). y is its output, or
 * in the backward the gradient of the output. fp32 operands x and dy are cast to act_type(). */
struct linear {
	struct mat y;
	const struct tensor *w, *bias;
	struct mat gelu; /* receives GELU(y) from the same kernel; or empty */
	struct mat sums; /* sums of y over its rows, the gradient of the bias; or empty */
};
/* Returns local slice s of a gathered parameter in act_type(), cast in scratch memory if needed. */
struct mat linear_param(struct pass *p, const struct tensor *t, int s);
/* Sets l->y to x w^T + bias, with operands in E4M3 if the layer is in float8. The weight has been
 * gathered (param_use). Also lets MPI make progress. */
void linear_forward(struct pass *p, struct loc loc, const struct linear *l, struct mat x);
/* Computes the loss of rows of x, and l->y, the gradient of their logits x w^T. */
void linear_loss(struct pass *p, const struct linear *l, struct mat x, float *loss,
	const int32_t *targets, struct xent_terms terms);
/* Computes dx = the sum of y w over n. The weights have been gathered. If the y have a stride,
 * they are all columns of one matrix, and the sum is one matmul; likewise in linear_weight_leaves(). */
void linear_backward_x(
	struct pass *p, struct loc loc, struct mat dx, const struct linear *l, int n);
/* Computes dw = dy^T x, or with `add` dw += dy^T x. The caller rounds a complete leaf in fp32. */
void linear_backward_w(struct pass *p, int64_t layer, struct mat dw, struct mat dy,
	struct mat x, bool add);

/* Matmuls after an all-gather or before a reduce-scatter, one piece of rows after the other
 * (slice_turn()), overlapped with the communication. Rows are rounded before they are gathered.
 * The n weights of a call belong to one tile, which the call gathers. */
/* Computes y = x w^T + bias for each of n matmuls with a non-empty y. */
void column_parallel_forward(struct pass *p, struct loc loc, struct slice_gather *x,
	const struct linear *l, int n);
/* Adds y w, summed over n matmuls, to the sum over slices. */
void column_parallel_backward(struct pass *p, struct loc loc, struct slice_sum *sum,
	const struct linear *l, int n);
/* Adds x w^T to the sum over slices. */
void row_parallel_forward(struct pass *p, struct loc loc, struct slice_sum *sum,
	struct mat x, const struct tensor *w);
/* Computes dx = dy w, times the derivative of GELU at `gelu_input` unless that is empty. Then sets
 * `sums` to the sums of dx over its rows, unless it is empty, as without linear_can_sum(). */
void row_parallel_backward(struct pass *p, struct loc loc, struct mat dx,
	struct slice_gather *dy, const struct tensor *w, struct mat gelu_input,
	struct mat sums);
/* Returns true if one call of row_parallel_backward() has all rows of a chunk and slice. */
bool linear_can_sum(const struct pass *p);
/* Computes the leaves dw = y^T x and, with a bias, db = column sums of y, for each of n. */
void linear_weight_leaves(
	struct pass *p, struct loc loc, struct mat x, const struct linear *l, int n);
