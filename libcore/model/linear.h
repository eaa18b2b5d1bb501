/* Linear layers: matmuls in the precision of the run, overlapped with the communication of tensor
 * parallelism. Calls that take a gather or a sum are collective over the tensor-parallel axis. */
#pragma once

#include "model/layers.h"

/* The types of activations, which are the operands and results of matmuls; of attention's sums over
 * chunks; and of the addends of a sum over slices. */
enum dtype act_type(const struct pass *p);
enum dtype sum_type(const struct pass *p);
enum dtype slice_type(const struct pass *p);
/* Rounds fp32 x in place to the format of activations; nothing if that is its type. */
void linear_round(struct pass *p, struct mat x);
/* y = x, rounded to that format; x is fp32. */
void linear_cast(struct pass *p, struct mat y, struct mat x);
/*
 * float8: allocates, for n matrices [slice][chunk][row][..] of a block, `amax`: of each slice and
 * chunk, the amax and the inverse of its scale; and with `keep`, `transposed`: the cast for the
 * weight gradients. Matrices that are rounded in a copy are skipped. Returns the memory of all amax,
 * for linear_amax_begin().
 *
 * Some kernels compute the amax of what they write (see matrix.h); after others linear_amax() is
 * called.
 */
struct mat linear_alloc_casts(const struct pass *p, int64_t layer, struct mat *const x[],
	int n, bool keep, struct arena *a);
/* Does a block keep only the casts of its activations? */
bool linear_keeps_casts(const struct pass *p, int64_t layer);
void linear_amax(struct pass *p, struct mat x);
/* Sets all amax to 0, before the matrices are written; `room` may be empty. */
void linear_amax_begin(struct pass *p, struct mat room);
/* x, which has amax and cast from another block; without them if this block is not float8. */
struct mat linear_cast_of(const struct pass *p, int64_t layer, struct mat x);
/* Allocates the casts of float8 weights. */
void linear_alloc(struct pass *p, struct arena *run);
/* Are the gradients of the outputs of a sublayer's matmuls columns of one matrix, if the sublayer wants
 * that? float8 has a scale for each, and the ring of context parallelism sends some of them. */
bool linear_joins(const struct pass *p, int64_t layer);
/* May matmuls of this block be fused with an elementwise function? */
bool linear_fuses(const struct pass *p, int64_t layer);

/*
 * A matmul with slice at.slice of weight w of block at.layer (-1: the head). y is its output, or in
 * the backward the gradient of that. Operands x and dy that are fp32 are cast to the type of activations.
 */
struct linear {
	struct mat y;
	const struct tensor *w, *bias;
	struct mat gelu; /* GELU(y), to be computed by the same kernel; or empty */
};
/* y = x w^T + bias. The weight has been gathered (param_use). */
void linear_forward(struct pass *p, struct at at, const struct linear *l, struct mat x);
/* dx = the sum of y w over n. The weights have been gathered. If the y have a stride, they are all columns
 * of one matrix, and the sum is one matmul; likewise in linear_weights(). */
void linear_backward_x(
	struct pass *p, struct at at, struct mat dx, const struct linear *l, int n);
/* dw = dy^T x; with `add` dw += dy^T x. The caller rounds a complete leaf in fp32. */
void linear_backward_w(struct pass *p, int64_t layer, struct mat dw, struct mat dy,
	struct mat x, bool add);

/*
 * Matmuls after an all-gather or before a reduce-scatter, one piece of rows after the other
 * (slice_turn()), overlapped with the communication. Rows are rounded before they are gathered.
 * The n weights of a call belong to one tile, which the call gathers.
 */
/* Column-parallel: y = x w^T + bias for each of n whose y is not empty. */
void linear_enter(struct pass *p, struct at at, struct slice_gather *x,
	const struct linear *l, int n);
/* Its backward: pushes the sum of y w over n. */
void linear_enter_backward(struct pass *p, struct at at, struct slice_sum *sum,
	const struct linear *l, int n);
/* Row-parallel: pushes x w^T. */
void linear_leave(struct pass *p, struct at at, struct slice_sum *sum, struct mat x,
	const struct tensor *w);
/* Its backward: dx = dy w, times the derivative of GELU at `gelu_of`, unless that is empty. */
void linear_leave_backward(struct pass *p, struct at at, struct mat dx,
	struct slice_gather *dy, const struct tensor *w, struct mat gelu_of);
/* The leaves dw = y^T x and, with a bias, db = column sums of y, for each of n. */
void linear_weights(
	struct pass *p, struct at at, struct mat x, const struct linear *l, int n);
