/* Functions shared by all layers: activations, parameters, norms, dropout, the residual stream. */
#pragma once

#include "model/pass.h"

/* Returns local chunk `c` of x [chunk][row][width], with its amax and its transposed cast. */
static inline struct mat chunk_rows(const struct pass *p, struct mat x, int c)
{
	if (!x.p)
		return x;
	struct mat chunk = mat_rows(x, c * p->rows, p->rows);
	chunk.amax = x.amax ? &mat_scale_of(x.amax)[c].amax : NULL;
	if (x.transposed)
		chunk.transposed = (char *)x.transposed + c * mat_size(chunk);
	return chunk;
}

/* Returns this rank's rows of chunk `c` of the residual stream. */
static inline struct mat stream_chunk(const struct pass *p, struct mat x, int c)
{
	return mat_rows(x, c * p->stream_rows, p->stream_rows);
}

static inline struct mat chunk_stats(const struct pass *p, struct mat stats, int c)
{
	return mat((float *)stats.p + c * 2 * p->stream_rows, 2, p->stream_rows);
}

/* Returns this rank's rows of the residual stream, from all rows of a chunk. */
static inline struct mat local_rows(const struct pass *p, struct mat all)
{
	struct mat rows = mat_rows(all, p->first_row, p->stream_rows);
	rows.amax = all.amax;
	rows.transposed = rows.rows == all.rows ? all.transposed : NULL;
	return rows;
}

/* Returns the local slice and chunk at loc of x [slice][chunk][row][width]. */
static inline struct mat mat_at(const struct pass *p, struct mat x, struct loc loc)
{
	return chunk_rows(p, x, loc.slice * p->cp.local + loc.chunk);
}

/* Returns the positions [row] of local chunk `c` in its sequence, device memory. */
static inline int32_t *chunk_pos(const struct pass *p, int c)
{
	return p->in.pos + c * p->rows;
}

/* Returns the positions [row] for embeddings and RoPE, counted from the start of a document. */
static inline int32_t *chunk_doc_pos(const struct pass *p, int c)
{
	return p->in.doc_pos + c * p->rows;
}

static inline struct mat no_mat(void)
{
	return (struct mat){0};
}

/* ---- parameters and their gradients ----------------------------------------------- */

/* Returns the slice of a parameter that local virtual slice `s` uses; empty if t is NULL. */
static inline struct mat param(const struct pass *p, const struct tensor *t, int s)
{
	return t ? store_param(p->store, t, tensor_slice(t, p->tp.first + s)) : no_mat();
}

/* With --tile: gathers local slice s of all tensors in the tile of t (tensor.tile). Collective
 * over the ranks that share the parameters. */
void param_use(struct pass *p, const struct tensor *t, int s);
/* With --tile: releases local slice s of all tensors in the tile of t. */
void param_done(struct pass *p, const struct tensor *t, int s);
/* With --tile: reduces the gradients of local slice s of all tensors in the tile of t, of this
 * use. Collective over the ranks that share the parameters. */
void param_reduce(struct pass *p, const struct tensor *t, int s, int use);
/* Returns true if --tile gathers this tensor in slices. */
bool param_is_tiled(const struct pass *p, const struct tensor *t);

/* Returns the buffer for a leaf: one slice's gradient of one use of a parameter. The caller writes
 * it and then calls leaf_done(). Use 1 of a tied weight is the output layer. */
static inline struct mat leaf_buffer(
	const struct pass *p, const struct tensor *t, struct loc loc)
{
	return store_leaf(p->store, t, tensor_slice(t, p->tp.first + loc.slice));
}

/* Passes a complete leaf x to the observer. */
void observe_leaf(
	struct pass *p, const struct tensor *t, struct loc loc, int use, struct mat x);

/* Hands a written leaf to the store and the observer, unless there is no micro-batch. */
static inline void leaf_done(
	struct pass *p, const struct tensor *t, struct loc loc, int use)
{
	if (p->micro.empty)
		return;
	if (p->observer)
		observe_leaf(p, t, loc, use, leaf_buffer(p, t, loc));
	store_leaf_done(p->store, t, tensor_slice(t, p->tp.first + loc.slice));
}

/* Adds x, a leaf of use 0 in the caller's memory. */
static inline void add_leaf(
	struct pass *p, const struct tensor *t, struct loc loc, struct mat x)
{
	if (p->micro.empty)
		return;
	if (p->observer)
		observe_leaf(p, t, loc, 0, x);
	store_add_leaf(p->store, t, tensor_slice(t, p->tp.first + loc.slice), x);
}

/* ---- sizes of one virtual slice ---------------------------------------------------- */

static inline int64_t slice_heads(const struct pass *p)
{
	return p->m->c.heads / p->tp.n;
}

/* Returns the key/value heads of a slice, at least 1: slices that share a head all compute it. */
static inline int64_t slice_kv_heads(const struct pass *p)
{
	return max64(1, p->m->c.kv_heads / p->tp.n);
}

static inline int64_t q_width(const struct pass *p)
{
	return slice_heads(p) * p->m->head_dim;
}

static inline int64_t kv_width(const struct pass *p)
{
	return slice_kv_heads(p) * p->m->head_dim;
}

/* ---- layers.c: norms, dropout, the residual stream --------------------------------- */

/* Passes a result to p->observer, unless r.x is empty or there is no micro-batch. */
void observe_result(struct pass *p, struct result r);
/* Passes a result of the forward to the observer, if there is one. */
static inline void observe(struct pass *p, const char *name, enum extent extent,
	struct loc loc, struct mat x)
{
	if (p->observer)
		observe_result(
			p, (struct result){
				   .name = name, .extent = extent, .at = loc, .x = x});
}

/* Passes a gradient to the observer, if there is one. */
static inline void observe_gradient(struct pass *p, const char *name, enum extent extent,
	struct loc loc, struct mat dx)
{
	if (p->observer)
		observe_result(p, (struct result){.name = name,
					  .gradient = true,
					  .extent = extent,
					  .at = loc,
					  .x = dx});
}

/* Passes x [slice][chunk][row][width] to the observer, one slice and chunk at a time. */
void observe_slices(
	struct pass *p, const char *name, bool gradient, int64_t layer, struct mat x);

/* Returns the number of rows in the piece of virtual slice s, over which its leaves of row-parallel
 * biases, norms and position embeddings are summed. *first: index among this rank's rows. */
static inline int64_t piece_rows(const struct pass *p, int s, int64_t *first)
{
	int64_t n = slice_piece(&p->tp, p->rows, p->tp.first + s, first);
	*first -= p->first_row;
	return n;
}

/* The random numbers of dropout depend on these values. */
enum drop_site { DROP_EMBED, DROP_PROBS, DROP_ATTENTION, DROP_FFN };
/* Returns the arguments of dropout at one place of the model; p is 0 outside of training. */
struct dropout dropout_at(const struct pass *p, struct loc loc, enum drop_site site);
/* Applies dropout in place to this rank's rows of the residual stream, if the pass has dropout. */
void apply_dropout(struct pass *p, struct loc loc, enum drop_site site, struct mat x);

/* The norm of one chunk of the residual stream. */
struct stream_norm {
	const char *name; /* for the observer */
	struct loc loc;
	struct mat h;	  /* output: all rows of the chunk */
	struct mat stats; /* statistics of this rank's rows */
	const struct tensor *weight, *bias;
};
/* Computes the norm of x, this rank's rows. */
void norm_forward(struct pass *p, const struct stream_norm *n, struct mat x);
/* Rounds this rank's rows of n->h and begins their all-gather into n->h. */
void norm_gather_begin(
	struct pass *p, struct slice_gather *g, const struct stream_norm *n);
/* The backward of a norm may also write the 16-bit copy of dx, the input of the preceding
 * sublayer's backward, and the sums of its rows, the gradient of that sublayer's bias. */
struct grad_copy {
	struct mat copy; /* [chunk][row][dim]; empty: norms do not write it */
	struct mat sums; /* [chunk][local slice][dim], sums over the rows of a piece */
	bool is_valid;	 /* both are up to date: the next backward uses them */
	int64_t lowest;	 /* the first layer of the stage */
};
/* Returns true if the backwards of norms write struct grad_copy. They do not if dx is computed in
 * several calls (tensor parallelism without sequence parallelism) or has dropout. */
bool norm_writes_copies(const struct pass *p);
struct norm_grad {
	struct mat dx, dy, x;		/* the gradient of x is added to dx */
	struct mat copy, sums;		/* see struct grad_copy; or empty */
	const struct tensor *copy_bias; /* the bias that gets the sums, or NULL */
};
/* Computes the gradient of x and, with `with_weights`, the gradients of weight and bias. */
void norm_backward(struct pass *p, const struct stream_norm *n, const struct norm_grad *g,
	bool with_weights);
void norm_backward_weights(
	struct pass *p, const struct stream_norm *n, struct mat dy, struct mat x);

/* The operands of y = x + dropout(sum + bias), this rank's rows of the residual stream. */
struct residual {
	struct mat y, sum, x; /* sum: from sum_buffer() */
	const struct tensor *bias;
	enum drop_site drop;
};
/* Returns a buffer for the sum over slices that is added to the stream in y: y itself, or scratch
 * memory if the sum has 16 bits. */
struct mat sum_buffer(struct pass *p, struct mat y);
/* Computes y and, unless `next` is NULL, its norm. */
void add_residual(struct pass *p, struct loc loc, const struct residual *r,
	const struct stream_norm *next);
/* Begins the all-gather into d of the gradient of a sublayer's output: dx with the dropout mask,
 * rounded. `is_copied`: d already has this rank's rounded rows. */
void output_grad_gather_begin(struct pass *p, struct slice_gather *g, struct loc loc,
	enum drop_site site, struct mat d, struct mat dx, bool is_copied);
/* Computes the leaves of a row-parallel bias, or NULL. `sums`: sums of the rows of dy, or empty. */
void bias_leaves(struct pass *p, struct loc loc, const struct tensor *bias, struct mat dy,
	struct mat sums);

/* ---- embed.c, head.c ------------------------------------------------------------------ */

/* Computes the embeddings of the tokens, x [chunk][row][dim], with positions and dropout. */
void embed_forward(struct pass *p, struct mat x);
/* Computes the leaves of the token and position tables from the gradient dx, to which it applies
 * dropout in place. */
void embed_backward(struct pass *p, struct mat dx);
/* Computes the loss and, with micro.train, the gradient dx of x. The default of pass_ops.head. */
void head_loss(struct pass *p, struct mat x, struct mat dx);
/* Returns the final norm of chunk `c`, in scratch memory. */
struct stream_norm final_norm(struct pass *p, int c);
