/*
 * What layers share: how activations and parameters are addressed; norms, dropout and the residual
 * stream.
 */
#ifndef MODEL_LAYERS_H
#define MODEL_LAYERS_H

#include "model/pass.h"

/* Where something is computed: in which block (-1: in none), and for which of the virtual slices
 * and chunks that are here. */
struct at {
	int64_t layer;
	int slice, chunk;
};

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

static inline struct mat stats_of(const struct pass *p, struct mat stats, int c)
{
	return mat((float *)stats.p + c * 2 * p->rows_here, 2, p->rows_here);
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

/* A slice of a chunk, of [slice][chunk][rows][width]. */
static inline struct mat part_of(const struct pass *p, struct mat x, struct at at)
{
	return chunk_of(p, x, at.slice * p->cp.here + at.chunk);
}

static inline int32_t *pos_of(const struct pass *p, int c)
{
	return p->in.pos + c * p->rows;
}

static inline struct mat no_mat(void)
{
	return (struct mat){0};
}

/* ---- parameters and their gradients ----------------------------------------------- */

/* The slice of a parameter that virtual slice `s` (of those here) uses, or nothing where the
 * model has no such parameter. */
static inline struct mat param(const struct pass *p, const struct tensor *t, int s)
{
	return t ? store_param(p->store, t, tensor_slice(t, p->tp.first + s)) : no_mat();
}

/* Tensors that have a tile (tensor.tile) are here from use to done, a slice at a time: the store
 * may gather them so. All that are in one tile come with one call, and when the leaves of all are
 * there, they are reduced with one. */
void param_use(struct pass *p, const struct tensor *t, int s);
void param_done(struct pass *p, const struct tensor *t, int s);
void param_reduce(struct pass *p, const struct tensor *t, int s, int use);
/* Does it come so, or with the rest of its unit? */
bool param_is_tiled(const struct pass *p, const struct tensor *t);

/* The gradient that one use of a parameter adds: where it is to be written, and that it was. Of a
 * tied weight use 1 is the output's. */
static inline struct leaf leaf_number(
	const struct pass *p, const struct tensor *t, struct at at, int use)
{
	return (struct leaf){p->micro.number, use, p->cp.first + at.chunk,
		tensor_slice_user(t, p->tp.first + at.slice)};
}

static inline struct mat leaf(
	const struct pass *p, const struct tensor *t, struct at at, int use)
{
	const struct leaf number = leaf_number(p, t, at, use);
	return store_leaf(p->store, t, tensor_slice(t, p->tp.first + at.slice), &number);
}

static inline void leaf_done(
	const struct pass *p, const struct tensor *t, struct at at, int use)
{
	const struct leaf number = leaf_number(p, t, at, use);
	store_leaf_done(p->store, t, tensor_slice(t, p->tp.first + at.slice), &number);
}

/* ---- widths of one slice ----------------------------------------------------------- */

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

/* ---- layers.c: norms, dropout, the residual stream --------------------------------- */

/* With p->probe: notes the first element that is not finite. */
void check_finite(struct pass *p, const char *what, int64_t layer, struct mat x);
void check_gradient(struct pass *p, const char *what, int64_t layer, struct mat dx);

/* What a row-parallel bias, a norm's weights and position embeddings share: the leaf of a
 * virtual slice is the sum over its piece of a chunk's rows. Rows [first, first + n) of the
 * residual stream here are the piece of slice s. */
static inline int64_t piece_rows(const struct pass *p, int s, int64_t *first)
{
	int64_t n = slice_piece(&p->tp, p->rows, p->tp.first + s, first);
	*first -= p->first_row;
	return n;
}

/* Where dropout is applied; part of what a run computes. */
enum drop_site { DROP_EMBED, DROP_PROBS, DROP_ATTENTION, DROP_FFN };
struct dropout dropout_at(const struct pass *p, struct at at, enum drop_site site);
/* Of rows of the residual stream, in place, and only when the pass trains with dropout. */
void drop(struct pass *p, struct at at, enum drop_site site, struct mat x);

/* A norm of a chunk of the residual stream, and what a pass keeps of it: h, of all rows, and
 * stats, of the rows here. */
struct stream_norm {
	const char *what;
	struct at at;
	struct mat h, stats;
	const struct tensor *weight, *bias;
};
/* Of this rank's rows, which are x. */
void norm_forward(struct pass *p, const struct stream_norm *n, struct mat x);
/* Then all rows of it, rounded, which come until the gather's end. */
void norm_gather(struct pass *p, struct slice_gather *g, const struct stream_norm *n);
/*
 * A norm's backward may also write the 16-bit copy of dx that the backward of the sublayer below
 * begins with, and the sums of its rows, which are the gradient of that sublayer's bias.
 */
struct grad_copy {
	struct mat copy; /* [chunk][rows][dim]; nothing: norms do not write it */
	struct mat sums; /* [chunk][slice here][dim], of the rows of a piece */
	bool valid;	 /* both are of the gradient that the next sublayer takes */
	int64_t lowest;	 /* below this layer there is no sublayer */
};
/* Do norms write copies? Not if only a part of dx is computed at once (tensor parallelism without
 * sequence parallelism), or if the sublayer takes something else (dropout). */
bool norm_writes_copies(const struct pass *p);
/* dx, which is added to, is the gradient of x. copy: of dx, or nothing; sums: its row sums for
 * leaves of `copy_bias`, unless that is NULL. */
struct norm_grad {
	struct mat dx, dy, x, copy, sums;
	const struct tensor *copy_bias;
};
/* With `leaves` also norm_leaves(). */
void norm_backward(struct pass *p, const struct stream_norm *n, const struct norm_grad *g,
	bool leaves);
void norm_leaves(
	struct pass *p, const struct stream_norm *n, struct mat dy, struct mat x);

/* The end of a sublayer: y = x + dropout(sum + bias), of the residual stream. */
struct residual {
	struct mat y, sum, x; /* sum: of sum_room() */
	const struct tensor *bias;
	enum drop_site drop;
};
/* Room for a sum over slices that becomes `to`: that itself, or, where there is one slice and the
 * device stores its product in 16 bits, scratch of that. */
struct mat sum_room(struct pass *p, struct mat to);
/* And the norm of y, unless `then` is NULL. */
void join_residual(struct pass *p, struct at at, const struct residual *r,
	const struct stream_norm *then);
/* The gradient of a sublayer's output, of all rows of a chunk: dx, that of the residual stream, with
 * dropout's mask, rounded to d; it is complete at the gather's end. `copied`: d holds it already,
 * but for the gather. */
void residual_gather(struct pass *p, struct slice_gather *g, struct at at,
	enum drop_site site, struct mat d, struct mat dx, bool copied);
/* The leaves of the bias. dy: of the residual stream; sums: nothing, or those of its rows. */
void bias_leaves(struct pass *p, struct at at, const struct tensor *bias, struct mat dy,
	struct mat sums);

/* ---- embed.c, head.c ------------------------------------------------------------------ */

void embed_forward(struct pass *p, struct mat x);
void embed_backward(struct pass *p, struct mat dx);
/* pass_ops.head of training: the loss, and when training everything down to the gradient of x. */
void head_loss(struct pass *p, struct mat x, struct mat dx);
/* The norm of chunk `c` in front of the output, in scratch. */
struct stream_norm head_norm(struct pass *p, int c);

#endif
