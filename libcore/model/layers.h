/* Shared by the layers only: how activations are addressed, and small moves. */
#ifndef MODEL_LAYERS_H
#define MODEL_LAYERS_H

#include "model/model.h"

/* Chunk `c` (of those here) of [chunk][rows][width]. */
static inline struct mat chunk_of(const struct pass *p, float *x, int c, int64_t width)
{
	return mat(x + c * p->rows * width, p->rows, width);
}

/* Slice `s`, chunk `c` of [slice][chunk][rows][width]. */
static inline struct mat part_of(
	const struct pass *p, float *x, int s, int c, int64_t width)
{
	return chunk_of(p, x, s * p->cp.here + c, width);
}

static inline int32_t *pos_of(const struct pass *p, int c)
{
	return p->pos + c * p->rows;
}

static inline struct mat no_mat(void)
{
	return (struct mat){0};
}

/* A slice of a parameter, or nothing where the model has none. */
static inline struct mat param(const struct pass *p, const struct tensor *t, int s)
{
	return t ? store_param(p->store, t, t->slices > 1 ? p->tp.first + s : 0)
		 : no_mat();
}

static inline struct mat leaf(const struct pass *p, const struct tensor *t, int s)
{
	return store_leaf(p->store, t, t->slices > 1 ? p->tp.first + s : 0);
}

static inline void leaf_done(const struct pass *p, const struct tensor *t, int s)
{
	store_leaf_done(p->store, t, t->slices > 1 ? p->tp.first + s : 0);
}

/* Widths of one slice. */
static inline int64_t heads_here(const struct pass *p)
{
	return p->m->c.heads / p->tp.n;
}

static inline int64_t kv_heads_here(const struct pass *p)
{
	return p->m->c.kv_heads / p->tp.n;
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

/* Looks for bad numbers when asked to, and keeps communication going. */
void watch(struct pass *p, const char *what, int64_t layer, struct mat x);

/* What a row-parallel bias, a norm's weights and position embeddings share: their leaf is a
 * piece of a chunk's rows. Rows [first, first + n) are piece i. */
static inline int64_t piece_rows(const struct pass *p, int i, int64_t *first)
{
	*first = part_begin(p->rows, p->tp.n, i);
	return part_begin(p->rows, p->tp.n, i + 1) - *first;
}

void piece_bias_bwd(struct pass *p, const struct tensor *bias, struct mat dy);
void piece_norm_bwd(struct pass *p, const struct tensor *weight,
	const struct tensor *bias, struct mat dy, struct mat x, struct mat stats);
/* db = column sums, a leaf of a column-parallel bias */
void slice_bias_bwd(struct pass *p, const struct tensor *bias, int s, struct mat dy);

/* ---- linear.c: products in the precision of the run ------------------------------- */

/* Are operands rounded? Then a gradient that flows on is to be copied before a product. */
bool linear_rounds(const struct pass *p);
/* To the format of activations, in place; in fp32 nothing. */
void linear_round(struct pass *p, struct mat x);
/*
 * Slice s of weight w of a block (layer -1: of the head). What goes into a product, x and
 * dy, is rounded in place, which may be done again without changing it.
 */
/* y = x w^T + bias; bias may be NULL */
void linear_forward(struct pass *p, int64_t layer, struct mat y, struct mat x,
	const struct tensor *w, const struct tensor *bias, int s);
/* dx (+)= dy w, after a forward with the same weights */
void linear_backward_x(struct pass *p, int64_t layer, struct mat dx, struct mat dy,
	const struct tensor *w, int s, bool add);
/* the leaf of w (+)= dy^T x; added to only in the head */
void linear_backward_w(struct pass *p, int64_t layer, const struct tensor *w, int s,
	struct mat dy, struct mat x, bool add);
/* The leaf is complete: it is rounded as the result of one product. */
void linear_leaf_done(struct pass *p, const struct tensor *w, int s);

/* Where dropout is applied; part of what a run computes. */
enum drop_site { DROP_EMBED, DROP_PROBS, DROP_ATTENTION, DROP_FFN };
struct dropout dropout_at(
	const struct pass *p, int64_t layer, enum drop_site site, int c);
/* In place, and only when the pass trains with dropout. */
void drop(struct pass *p, int64_t layer, enum drop_site site, int c, struct mat x);
/* The end of a branch: y, which is a sum over slices, becomes x + dropout(y + bias). */
void join_residual(struct pass *p, int64_t layer, enum drop_site site, int c,
	const struct tensor *bias, struct mat y, struct mat x);
/* The gradient of that sum, before the bias: dx with the same mask, rounded. It is dx
 * itself, which flows on past the block, or in `room` where it differs. */
struct mat branch_gradient(struct pass *p, int64_t layer, enum drop_site site, int c,
	struct mat dx, struct mat room);

void embed_forward(struct pass *p, float *x);
void embed_backward(struct pass *p, float *dx);
void attention_forward(struct pass *p, int64_t layer, struct block_acts *a);
void attention_backward(struct pass *p, int64_t layer, struct block_acts *a, float *dx);
void ffn_forward(struct pass *p, int64_t layer, struct block_acts *a, float *x_next);
void ffn_backward(struct pass *p, int64_t layer, struct block_acts *a, float *dx);
/* The loss, and when training everything down to the gradient of x. */
void head(struct pass *p, float *x, float *dx);

#endif
