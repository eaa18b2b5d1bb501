/* Shared by the layers only: how activations are addressed, and small moves. */
#ifndef MODEL_LAYERS_H
#define MODEL_LAYERS_H

#include "model/model.h"

/* Chunk `c` (of those here) of [chunk][rows][width], with what is kept of its cast; nothing of
 * nothing. */
static inline struct mat chunk_of(const struct pass *p, struct mat x, int c)
{
	if (!x.p)
		return x;
	struct mat chunk = mat_rows(x, c * p->rows, p->rows);
	chunk.amax = x.amax ? x.amax + 2 * c : NULL;
	if (x.transposed)
		chunk.transposed = (char *)x.transposed + c * mat_size(chunk);
	return chunk;
}

/* The same of the residual stream, of which this rank may have a part of the rows. */
static inline struct mat stream_of(const struct pass *p, struct mat x, int c)
{
	return mat_rows(x, c * p->rows_here, p->rows_here);
}

static inline struct mat stats_of(struct mat stats, int c)
{
	return mat_rows(stats, c * 2, 2);
}

/* The rows of the residual stream among all rows of a chunk, whose largest number they share, and
 * all of whose cast they have where they are all. */
static inline struct mat here_of(const struct pass *p, struct mat all)
{
	struct mat here = mat_rows(all, p->first_row, p->rows_here);
	here.amax = all.amax;
	here.transposed = here.rows == all.rows ? all.transposed : NULL;
	return here;
}

/* Slice `s`, chunk `c` of [slice][chunk][rows][width]. */
static inline struct mat part_of(const struct pass *p, struct mat x, int s, int c)
{
	return chunk_of(p, x, s * p->cp.here + c);
}

static inline int32_t *pos_of(const struct pass *p, int c)
{
	return p->pos + c * p->rows;
}

static inline struct mat no_mat(void)
{
	return (struct mat){0};
}

/* What virtual slice `s` (of those here) uses of a parameter, or nothing where the model has
 * none. */
static inline struct mat param(const struct pass *p, const struct tensor *t, int s)
{
	return t ? store_param(p->store, t, tensor_slice(t, p->tp.first + s)) : no_mat();
}

/* Its part of the gradient, of chunk `c`. */
static inline struct mat leaf_of_use(
	const struct pass *p, const struct tensor *t, int s, int c, int use)
{
	int v = p->tp.first + s;
	const struct leaf at = {p->micro, use, p->cp.first + c, tensor_lane(t, v)};
	return store_leaf(p->store, t, tensor_slice(t, v), &at);
}

static inline void leaf_of_use_done(
	const struct pass *p, const struct tensor *t, int s, int c, int use)
{
	int v = p->tp.first + s;
	const struct leaf at = {p->micro, use, p->cp.first + c, tensor_lane(t, v)};
	store_leaf_done(p->store, t, tensor_slice(t, v), &at);
}

static inline struct mat leaf(const struct pass *p, const struct tensor *t, int s, int c)
{
	return leaf_of_use(p, t, s, c, 0);
}

static inline void leaf_done(const struct pass *p, const struct tensor *t, int s, int c)
{
	leaf_of_use_done(p, t, s, c, 0);
}

/* With tiles, what slice `s` (of those here) uses of one is here from use until done; and all
 * leaves of it are there. Without, they are used with the block. */
void tile_use(struct pass *p, int64_t layer, enum block_tile x, int s);
void tile_done(struct pass *p, int64_t layer, enum block_tile x, int s);
void tile_reduce(struct pass *p, int64_t layer, enum block_tile x, int s);

/* The same of the embedding and of the output, which may be one. */
bool table_is_tiled(const struct pass *p, const struct tensor *t);
void table_use(struct pass *p, const struct tensor *t, int s);
void table_done(struct pass *p, const struct tensor *t, int s);
void table_reduce(struct pass *p, const struct tensor *t, int s, int use);

/* Widths of one slice. */
static inline int64_t heads_here(const struct pass *p)
{
	return p->m->c.heads / p->tp.n;
}

/* Slices that share a head of keys and values compute it each for themselves. */
static inline int64_t kv_heads_here(const struct pass *p)
{
	return max64(1, p->m->c.kv_heads / p->tp.n);
}

static inline int64_t q_width(const struct pass *p)
{
	return heads_here(p) * p->m->head_dim;
}

static inline int64_t kv_width(const struct pass *p)
{
	return kv_heads_here(p) * p->m->head_dim;
}

static inline int64_t ffn_width(const struct pass *p)
{
	return p->m->c.ffn_dim / p->tp.n;
}

/* What follows is a block's, or the embedding's (-1), or the head's (-2): profilers show it. */
void range_begin(struct pass *p, int64_t layer);
void range_end(struct pass *p);

/* Looks for bad numbers when asked to, and keeps communication going. */
void watch(struct pass *p, const char *what, int64_t layer, struct mat x);

/* What a row-parallel bias, a norm's weights and position embeddings share: the leaf of a
 * virtual slice is the sum over its piece of a chunk's rows. Rows [first, first + n) of the
 * residual stream here are the piece of slice s. */
static inline int64_t piece_rows(const struct pass *p, int s, int64_t *first)
{
	int64_t n = slice_piece(&p->tp, p->rows, p->tp.first + s, first);
	*first -= p->first_row;
	return n;
}

/* ---- linear.c: products in the precision of the run ------------------------------- */

/* How the device stores what products take and give; and what attention adds up over chunks. */
enum dtype act_type(const struct pass *p);
enum dtype sum_type(const struct pass *p);
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
 * Who makes such a matrix sees to its largest number: kernels do it on the way where kernels.h says
 * so, and after others there is linear_amax(). On a device that is not narrow rounding does it.
 */
struct mat linear_cast_room(const struct pass *p, int64_t layer, struct mat *const x[],
	int n, bool keep, struct arena *a);
/* Are the activations of a block kept as their casts alone? */
bool linear_keeps_casts(const struct pass *p, int64_t layer);
void linear_amax(struct pass *p, struct mat x);
/* Before the first number of it is made; nothing is done where there is no room. */
void linear_amax_begin(struct pass *p, struct mat room);
/* x, with the room that linear_cast_room() gave it in some block, for this one. */
struct mat linear_cast_of(const struct pass *p, int64_t layer, struct mat x);
/* Collective over the ranks of tensor parallelism. Before a forward of a block, with the
 * weights that its backward will have too. */
void linear_begin(struct pass *p, int64_t layer);
/*
 * Virtual slice s of weight w of a block (layer -1: of the head). What goes into a product,
 * x and dy, is rounded in place, which may be done again without changing it.
 */
/* y = x w^T + bias; bias may be NULL */
void linear_forward(struct pass *p, int64_t layer, struct mat y, struct mat x,
	const struct tensor *w, const struct tensor *bias, int s);
/*
 * The products that tensor parallelism has a move before or after, one piece of rows after
 * the other (slice_turn()), beside the move. What is gathered was rounded before.
 */
struct linear {
	struct mat y;
	const struct tensor *w, *bias;
	struct mat gelu; /* of y, where linear_gives_gelu(); or nothing */
};
enum { LINEAR_MOST = 3 };
/* Whether the product before an activation does it too. It is the device's affair how, and of one
 * that need not be exact the bits are others than if the activation is made again. */
bool linear_gives_gelu(const struct pass *p, int64_t layer);
/* Whether the product after it, in the backward, multiplies by its slope: whatever is recomputed. */
bool linear_gives_slope(const struct pass *p, int64_t layer);
/* Column-parallel: y = x w^T + bias for each of n, as x comes. */
void linear_enter(struct pass *p, int64_t layer, struct slice_gather *x,
	const struct linear *l, int n, int s);
/* Its backward: dx = the sum of y w over n, y being the gradients of what it gave. */
void linear_backward_x(struct pass *p, int64_t layer, struct mat dx,
	const struct linear *l, int n, int s);
/* Row-parallel: slice s of the sum gets x w^T, and is pushed. */
void linear_leave(struct pass *p, int64_t layer, struct slice_sum *sum, struct mat x,
	const struct tensor *w, int s);
/* Its backward: dx = dy w, as dy comes; times the slope of GELU at `gelu_of`, unless that is
 * nothing. */
void linear_leave_backward(struct pass *p, int64_t layer, struct mat dx,
	struct slice_gather *dy, const struct tensor *w, int s, struct mat gelu_of);
/* dw (+)= dy^T x; added to only in the head. A leaf that is complete is to be rounded, as
 * the result of one product. */
void linear_backward_w(struct pass *p, int64_t layer, struct mat dw, struct mat dy,
	struct mat x, bool add);

/* Where dropout is applied; part of what a run computes. */
enum drop_site { DROP_EMBED, DROP_PROBS, DROP_ATTENTION, DROP_FFN };

/* The gradient of what a half of a block adds, of all rows of a chunk: that of the stream,
 * which flows on past it, where dropout has not dropped it, rounded. It is kept in d, and
 * comes until the gather's end. */
/* `made`: d is there already, but for the gather. */
void added_gather(struct pass *p, struct slice_gather *g, int64_t layer,
	enum drop_site site, struct mat d, struct mat dx, int c, bool made);
/* dy, x: of the residual stream. sums: nothing, or the leaves, [chunk][slice here][dim] */
void piece_bias_bwd(
	struct pass *p, const struct tensor *bias, int c, struct mat dy, struct mat sums);
void piece_norm_bwd(struct pass *p, const struct tensor *weight,
	const struct tensor *bias, int c, struct mat dy, struct mat x, struct mat stats);
/* dx += the gradient of x, of chunk c; and the leaves, as piece_norm_bwd() makes them. copy and sums: see
 * struct block_grads; sums are those for copy_bias, unless that is NULL. */
struct norm_backward {
	const struct tensor *weight, *bias, *copy_bias;
	struct mat dx, dy, x, stats, copy, sums;
};
void norm_backward(struct pass *p, const struct norm_backward *n, int c);
/* Not where only a part of dx is made here at once, or where products take something else. */
bool norms_give_copies(const struct pass *p);
/* dw = dy^T x, and of a column-parallel bias, if it has one, db = column sums: leaves */
void slice_weight_bwd(struct pass *p, int64_t layer, const struct tensor *w,
	const struct tensor *bias, int s, int c, struct mat dy, struct mat x);

/* A norm of the residual stream, and what a pass keeps of it: [chunk][rows][dim] of all rows, and
 * [chunk][2][rows here]. */
struct stream_norm {
	const char *what;
	int64_t layer;
	struct mat h, stats;
	const struct tensor *weight, *bias;
};
/* That of the block's feed-forward half. */
struct stream_norm ffn_norm(
	const struct pass *p, int64_t layer, const struct block_acts *a);
/* Of this rank's rows of chunk c, which are x. */
void norm_forward(struct pass *p, const struct stream_norm *n, struct mat x, int c);
/* Then all rows of it, rounded, which come until the gather's end. */
void norm_gather(
	struct pass *p, struct slice_gather *g, const struct stream_norm *n, int c);

struct dropout dropout_at(
	const struct pass *p, int64_t layer, enum drop_site site, int c);
/* Of rows of the residual stream, in place, and only when the pass trains with dropout. */
void drop(struct pass *p, int64_t layer, enum drop_site site, int c, struct mat x);
/* Where a sum over slices goes that becomes `to`: there, or, where there is one slice and the
 * device stores its product narrow, to scratch of that. */
struct mat sum_room(struct pass *p, struct mat to);
enum dtype slice_type(const struct pass *p);
/* The end of a half of a block: y = x + dropout(sum + bias), of the residual stream; sum is of
 * sum_room(). And the norm of y, unless `then` is NULL. */
void join_residual(struct pass *p, int64_t layer, enum drop_site site, int c,
	const struct tensor *bias, struct mat y, struct mat sum, struct mat x,
	const struct stream_norm *then);

void embed_forward(struct pass *p, struct mat x);
void embed_backward(struct pass *p, struct mat dx);
void attention_forward(struct pass *p, int64_t layer, struct block_acts *a);
/* From the gradient of the block's output to that of its input, and what the weights need of
 * it; then the leaves of the weights. With `weights` the first does both, the leaves while its
 * sums over slices are under way. */
void attention_backward_x(struct pass *p, int64_t layer, struct block_acts *a,
	struct block_grads *g, struct mat dx, bool weights);
void attention_backward_w(
	struct pass *p, int64_t layer, struct block_acts *a, struct block_grads *g);
/* Makes the results of the norm again. */
void attention_again(struct pass *p, int64_t layer, struct block_acts *a);
void ffn_forward(struct pass *p, int64_t layer, struct block_acts *a, struct mat x_next);
void ffn_backward_x(struct pass *p, int64_t layer, struct block_acts *a,
	struct block_grads *g, struct mat dx, bool weights);
void ffn_backward_w(
	struct pass *p, int64_t layer, struct block_acts *a, struct block_grads *g);
/* Makes the results of the norm and the activation again; or, with `products`, of W1, W3 and the
 * activation, after a forward of the attention, which makes the norm's. */
void ffn_again(struct pass *p, int64_t layer, struct block_acts *a, bool products);
/* The loss, and when training everything down to the gradient of x. */
void head(struct pass *p, struct mat x, struct mat dx);

#endif
