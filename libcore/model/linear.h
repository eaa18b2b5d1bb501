/* Matrix products in the precision of the run, beside the moves of tensor parallelism. */
#ifndef MODEL_LINEAR_H
#define MODEL_LINEAR_H

#include "model/layers.h"

/* How the device stores operands and results of products; and sums of attention over chunks. */
enum dtype act_type(const struct pass *p);
enum dtype sum_type(const struct pass *p);
/* How it stores the parts of a sum over slices. */
enum dtype slice_type(const struct pass *p);
/* To the format of activations, in place, where it is stored as fp32; in fp32 nothing. */
void linear_round(struct pass *p, struct mat x);
/* y = x in that format; x is fp32. */
void linear_cast(struct pass *p, struct mat y, struct mat x);
/*
 * float8: gives n matrices [..][rows of a chunk][..] of a block their `amax`: room for the largest
 * number of each slice and chunk, and for the inverse of its scale; and with `keep`, on a device
 * that is narrow, `transposed`: room for the cast that the products for weights take, which is made
 * with the one that the products before them take. Nothing in other precisions, and of matrices that
 * are rounded in a copy.
 *
 * The function that makes such a matrix sees to its largest number: kernels do it on the way where
 * kernels.h says so, and after others there is linear_amax(). On a device that is not narrow
 * rounding does it.
 */
struct mat linear_cast_room(const struct pass *p, int64_t layer, struct mat *const x[],
	int n, bool keep, struct arena *a);
/* Are the activations of a block kept as their casts alone? */
bool linear_keeps_casts(const struct pass *p, int64_t layer);
void linear_amax(struct pass *p, struct mat x);
/* Before the first number of it is made; nothing is done where there is no room. */
void linear_amax_begin(struct pass *p, struct mat room);
/* x with the room that linear_cast_room() gave it for another block, as this block takes it. */
struct mat linear_cast_of(const struct pass *p, int64_t layer, struct mat x);
/* Memory for the scales and casts of weights, if there are any. */
void linear_alloc(struct pass *p, struct arena *run);
/* Collective over the ranks of tensor parallelism. Before a forward of a block, with the
 * weights that its backward will have too. */
void linear_begin(struct pass *p, int64_t layer);
/* Can a product of this block take an elementwise function with it? It is the device's affair how,
 * and if it need not be exact the bits are others than those of two kernels. */
bool linear_fuses(const struct pass *p, int64_t layer);

/*
 * A product with slice at.slice of weight w of block at.layer (-1: of the head), which gives y, or
 * in the backward has the gradient y. Operands, x and dy, are rounded in place, which may be done
 * again without changing them.
 */
struct linear {
	struct mat y;
	const struct tensor *w, *bias;
	struct mat gelu; /* of y, to be computed with it; or nothing */
};
enum { LINEAR_MAX = 3 };
/* y = x w^T + bias. The weight is in use. */
void linear_forward(struct pass *p, struct at at, const struct linear *l, struct mat x);
/* dx = the sum of y w over n. The weights are in use. */
void linear_backward_x(
	struct pass *p, struct at at, struct mat dx, const struct linear *l, int n);
/* dw (+)= dy^T x; added to only in the head. A leaf that is complete is to be rounded, as
 * the result of one product. */
void linear_backward_w(struct pass *p, int64_t layer, struct mat dw, struct mat dy,
	struct mat x, bool add);

/*
 * The products that tensor parallelism has a move before or after, one piece of rows after
 * the other (slice_turn()), beside the move. What is gathered was rounded before. The n weights
 * of a call are those of one tile.
 */
/* Column-parallel: y = x w^T + bias for each of n, as x comes. */
void linear_enter(struct pass *p, struct at at, struct slice_gather *x,
	const struct linear *l, int n);
/* Its backward: the sum gets the sum of y w over n. */
void linear_enter_backward(struct pass *p, struct at at, struct slice_sum *sum,
	const struct linear *l, int n);
/* Row-parallel: the sum gets x w^T. */
void linear_leave(struct pass *p, struct at at, struct slice_sum *sum, struct mat x,
	const struct tensor *w);
/* Its backward: dx = dy w, as dy comes; times the slope of GELU at `gelu_of`, unless that is
 * nothing. */
void linear_leave_backward(struct pass *p, struct at at, struct mat dx,
	struct slice_gather *dy, const struct tensor *w, struct mat gelu_of);
/* Leaves: dw = y^T x, and of a bias, if there is one, db = column sums of y, for each of n. */
void linear_weights(
	struct pass *p, struct at at, struct mat x, const struct linear *l, int n);

#endif
