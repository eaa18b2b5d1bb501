/* Functions shared by all layers: activations, parameters, norms, dropout, the residual stream. */
#pragma once

#include "model/pass.h"

/* Returns local chunk `c` of x [chunk][row][width], with its amax and its transposed cast. */
static inline struct mat chunk_of(const struct pass *p, struct mat x, int c)
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
static inline struct mat stream_of(const struct pass *p, struct mat x, int c)
{
	return mat_rows(x, c * p->stream_rows, p->stream_rows);
}

static inline struct mat stats_of(const struct pass *p, struct mat stats, int c)
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

/* Returns one slice and chunk of x [slice][chunk][row][width]. */
static inline struct mat part_of(const struct pass *p, struct mat x, struct at at)
{
	return chunk_of(p, x, at.slice * p->cp.local + at.chunk);
}

static inline int32_t *pos_of(const struct pass *p, int c)
{
	return p->in.pos + c * p->rows;
}

/* Returns the positions for embeddings and RoPE, counted from the start of a row's document. */
static inline int32_t *doc_pos_of(const struct pass *p, int c)
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

/* With --tile: use, end the use of, and reduce one slice of all tensors in the tile of t
 * (tensor.tile). Collective over the ranks that share the parameters. */
void param_use(struct pass *p, const struct tensor *t, int s);
void param_done(struct pass *p, const struct tensor *t, int s);
void param_reduce(struct pass *p, const struct tensor *t, int s, int use);
bool param_is_tiled(const struct pass *p, const struct tensor *t);

/* Returns the buffer for a leaf, the gradient of one use of a parameter. leaf_done() follows when
 * it is written. Use 1 of a tied weight is the output layer. */
static inline struct mat leaf(const struct pass *p, const struct tensor *t, struct at at)
{
	return store_leaf(p->store, t, tensor_slice(t, p->tp.first + at.slice));
}

/* Passes a complete leaf x to the observer. */
void show_leaf(
	struct pass *p, const struct tensor *t, struct at at, int use, struct mat x);

static inline void leaf_done(
	struct pass *p, const struct tensor *t, struct at at, int use)
{
	if (p->micro.empty)
		return;
	if (p->observer)
		show_leaf(p, t, at, use, leaf(p, t, at));
	store_leaf_done(p->store, t, tensor_slice(t, p->tp.first + at.slice));
}

/* Adds x, in separate memory, as the leaf of use 0. */
static inline void add_leaf(
	struct pass *p, const struct tensor *t, struct at at, struct mat x)
{
	if (p->micro.empty)
		return;
	if (p->observer)
		show_leaf(p, t, at, 0, x);
	store_take_leaf(p->store, t, tensor_slice(t, p->tp.first + at.slice), x);
}

/* ---- sizes of one virtual slice ---------------------------------------------------- */

static inline int64_t slice_heads(const struct pass *p)
{
	return p->m->c.heads / p->tp.n;
}

/* Returns at least 1: all slices that share a key/value head compute it. */
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

/* Passes a result to p->observer, unless x is empty or there is no micro-batch. */
void show_result(struct pass *p, struct result r);
static inline void show(
	struct pass *p, const char *name, enum extent extent, struct at at, struct mat x)
{
	if (p->observer)
		show_result(p, (struct result){
				       .name = name, .extent = extent, .at = at, .x = x});
}

static inline void show_gradient(
	struct pass *p, const char *name, enum extent extent, struct at at, struct mat dx)
{
	if (p->observer)
		show_result(p, (struct result){.name = name,
				       .gradient = true,
				       .extent = extent,
				       .at = at,
				       .x = dx});
}

/* Passes all slices and chunks of x [slice][chunk][row][width] to the observer. */
void show_parts(
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
struct dropout dropout_at(const struct pass *p, struct at at, enum drop_site site);
/* Applies dropout to rows of the residual stream, in place, if the pass has any. */
void drop(struct pass *p, struct at at, enum drop_site site, struct mat x);

/* A norm of a chunk of the residual stream. */
struct stream_norm {
	const char *what; /* name for the observer */
	struct at at;
	struct mat h;	  /* output: all rows of the chunk */
	struct mat stats; /* statistics of this rank's rows */
	const struct tensor *weight, *bias;
};
/* Computes the norm of x, this rank's rows. */
void norm_forward(struct pass *p, const struct stream_norm *n, struct mat x);
/* Rounds n->h and begins the all-gather of its rows. */
void norm_gather(struct pass *p, struct slice_gather *g, const struct stream_norm *n);
/* The backward of a norm may also write the 16-bit copy of dx, the input of the preceding
 * sublayer's backward, and the sums of its rows, the gradient of that sublayer's bias. */
struct grad_copy {
	struct mat copy; /* [chunk][row][dim]; empty: norms do not write it */
	struct mat sums; /* [chunk][local slice][dim], sums over the rows of a piece */
	bool valid;	 /* both are up to date: the next backward uses them */
	int64_t lowest;	 /* the first layer of the stage */
};
/* Returns false if dx is computed in several calls (tensor parallelism without sequence
 * parallelism), or if the sublayer's input is not dx itself (dropout). */
bool norm_writes_copies(const struct pass *p);
struct norm_grad {
	struct mat dx, dy, x;		/* the gradient of x is added to dx */
	struct mat copy, sums;		/* see struct grad_copy; or empty */
	const struct tensor *copy_bias; /* the bias that gets the sums, or NULL */
};
/* Computes the gradient of x and, with `leaves`, calls norm_leaves() for weight and bias. */
void norm_backward(struct pass *p, const struct stream_norm *n, const struct norm_grad *g,
	bool leaves);
void norm_leaves(
	struct pass *p, const struct stream_norm *n, struct mat dy, struct mat x);

/* y = x + dropout(sum + bias), this rank's rows of the stream. */
struct residual {
	struct mat y, sum, x; /* sum: from sum_buffer() */
	const struct tensor *bias;
	enum drop_site drop;
};
/* Returns a buffer for the sum over slices that is added to the stream in y: y itself, or scratch
 * memory if the sum has 16 bits. */
struct mat sum_buffer(struct pass *p, struct mat y);
/* Computes y and, unless `next` is NULL, its norm. */
void add_residual(struct pass *p, struct at at, const struct residual *r,
	const struct stream_norm *next);
/* Begins the all-gather to d of the gradient of a sublayer's output: dx with the dropout mask,
 * rounded. `copied`: this rank's rounded rows are in d already. */
void residual_gather(struct pass *p, struct slice_gather *g, struct at at,
	enum drop_site site, struct mat d, struct mat dx, bool copied);
/* Computes the leaves of a row-parallel bias, or NULL. `sums`: sums of the rows of dy, or empty. */
void bias_leaves(struct pass *p, struct at at, const struct tensor *bias, struct mat dy,
	struct mat sums);

/* ---- embed.c, head.c ------------------------------------------------------------------ */

void embed_forward(struct pass *p, struct mat x);
void embed_backward(struct pass *p, struct mat dx);
/* The default of pass_ops.head: computes the loss and, with micro.train, the gradient dx of x. */
void head_loss(struct pass *p, struct mat x, struct mat dx);
/* Returns the final norm of chunk `c`, in scratch memory. */
struct stream_norm head_norm(struct pass *p, int c);
