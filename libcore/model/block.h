/* A block: two sublayers. A sublayer is a table of functions in a separate file. */
#pragma once

#include "model/linear.h"

/* ---- config.c: rows of the tensor table --------------------------------------------- */

/* Tensors that are gathered together with --tile: the column-parallel weights of a sublayer, its
 * row-parallel weights, the embedding or output table. */
enum tile {
	TILE_NONE,
	TILE_ATTENTION_IN,
	TILE_ATTENTION_OUT,
	TILE_FFN_IN,
	TILE_FFN_OUT,
	TILE_TABLE
};

struct tensor_row {
	const char *name;   /* without the prefix "layers.N." */
	int64_t rows, cols; /* cols 0: a vector */
	enum tp_split tp_split;
	enum {
		ROW_WEIGHT,
		ROW_RESIDUAL,
		ROW_GATE,
		ROW_EMBED,
		ROW_OUTPUT,
		ROW_NORM,
		ROW_BIAS,
		ROW_STATE, /* not trained: has no gradient, but changes from step to step */
		ROW_ROUTER /* a weight that is multiplied in fp32, whatever the precision */
	} kind;
	bool present;	    /* false: this model does not have the tensor */
	struct tensor **to; /* receives the pointer to the tensor */
	enum tile tile;
	int64_t heads; /* key/value heads, the maximum number of slices; 0: no limit */
	int64_t experts, blocks; /* see struct tensor */
};

/* Adds the present rows to the tensor table; a model's first call only counts them. */
void tensors_add(struct model *m, int64_t layer, const struct tensor_row *rows, size_t n);

/* ---- block.c: sublayers --------------------------------------------------------------- */

/* How long a sublayer's matrix is needed. KEPT: an activation until the backward (or it is computed
 * again), a gradient until the weight gradients. UNTIL_INNER_ENDS: a gradient for out_backward()
 * and inner_backward(). UNTIL_SUBLAYER_ENDS: to the end of the sublayer's forward, or of its
 * backward without the weight gradients. All except KEPT are in scratch memory. */
enum lifetime { KEPT, UNTIL_INNER_ENDS, UNTIL_SUBLAYER_ENDS };

/* The shape and type of a sublayer's matrix; cols 0: no matrix. */
struct mat_size {
	int64_t cols;
	enum dtype type;
	enum lifetime lifetime;
	int64_t rows; /* 0: [slice][chunk][row] */
};

/* Indices in sublayer_acts.m: the results of inner_forward(), the input of the row-parallel matmul,
 * and of in_forward(), the first one. sublayer_grads.m begins with in_forward()'s gradients. */
enum { INNER_RESULT, IN_RESULT };

/* The arguments of a sublayer's functions: one sublayer of one block. */
struct sublayer_run {
	const struct sublayer *fn;
	const struct sublayer_tensors *tensors;
	struct sublayer_acts *acts;
	struct sublayer_grads *grads; /* NULL in the forward */
	int64_t layer;
	int index;	 /* ATTENTION or FFN */
	bool recomputes; /* in_forward() does not write outputs that were kept */
};

/* A sublayer of a block (attention, or a kind of feed-forward network) is
 *   y = x + dropout(bias + the sum over slices of out inner(in norm(x))),
 * with column-parallel matmuls `in` and a row-parallel one `out` (struct sublayer_tensors).
 * A sublayer implements in_forward() (the matmuls `in`), inner_forward() and the backwards; block.c
 * computes the rest. Functions with a gather or a sum are called for each slice and chunk, inner
 * functions once for all. The gather is still in progress: rows are used as they arrive. */
struct sublayer {
	const char *norm,
		*out; /* names of the norm and the row-parallel matmul in messages */
	enum drop_site drop;
	/* Makes gradients of in_forward()'s results columns of one matrix, if linear_can_join(). */
	bool joins_grads;
	enum recompute
		kept_until[SUBLAYER_MATS]; /* the highest recomputation that keeps m[j] */
	void (*add_tensors)(struct model *m, int64_t layer, struct sublayer_tensors *t);
	/* Sets the sizes of the matrices sublayer_acts.m and sublayer_grads.m, initially 0. */
	void (*set_sizes)(
		const struct pass *p, struct mat_size *acts, struct mat_size *grads);
	void (*in_forward)(struct pass *, const struct sublayer_run *, struct loc,
		struct slice_gather *);
	void (*inner_forward)(
		struct pass *, const struct sublayer_run *); /* writes m[INNER_RESULT] */
	/* Returns true if out_backward() sets sublayer_grads.sums; NULL: it does not. */
	bool (*sums_grad)(const struct pass *, const struct sublayer_run *);
	/* Adds the result of a slice to the sum over slices; NULL: m[INNER_RESULT] times `out`. */
	void (*out_forward)(struct pass *, const struct sublayer_run *, struct loc,
		struct slice_sum *);
	/* Returns the matrix to use as the input of `out` in the gradient of its weight; NULL:
	 * m[INNER_RESULT]. */
	struct mat (*out_input)(const struct pass *, const struct sublayer_run *);
	/* Computes the gradients of weights other than `in` and `out`; NULL: no such weights. */
	void (*other_leaves)(struct pass *, const struct sublayer_run *, struct loc);
	/* Compute the gradients of m[INNER_RESULT], of in_forward()'s results, of the norm's
	 * output. */
	void (*out_backward)(struct pass *, const struct sublayer_run *, struct loc,
		struct slice_gather *);
	void (*inner_backward)(struct pass *, const struct sublayer_run *);
	void (*in_backward)(struct pass *, const struct sublayer_run *, struct loc,
		struct slice_sum *);
	/* Adds to dh, this rank's rows of the gradient of the norm's output, after the sum over
	 * slices; NULL: nothing. */
	void (*join_backward)(
		struct pass *, const struct sublayer_run *, struct loc, struct mat dh);
	/* in_backward() adds several matmuls, and join_backward() adds to their sum, in fp32. */
	bool sums_input_grads;
	bool input_grad_needs_norm; /* the gradient of the input depends on the norm's output */
};

/* Returns true if matrix j of sublayer_acts.m is kept until the backward, not recomputed. */
bool keeps_act(const struct pass *p, const struct sublayer_run *sub, int j);
/* Sets l to the column-parallel matmuls of a sublayer and returns their number. `m`: their outputs,
 * or the gradients of the outputs. A matmul that must not write its output has an empty y. */
int in_linears(const struct pass *p, const struct sublayer_run *sub, struct loc loc,
	const struct mat *m, struct linear l[SUBLAYER_INPUTS]);

/* Allocates the activations that a block keeps. x: fp32 input that blocks share with 16 bits. */
void block_alloc(const struct pass *p, int64_t layer, struct mat x, struct block_acts *b,
	struct arena *micro);
/* Allocates the activations that blocks do not keep; all blocks of a kind share them. */
void block_alloc_shared(
	const struct pass *p, struct block_acts b[LAYER_KINDS], struct arena *micro);
/* Allocates the gradients of a block's activations, except scratch. */
void block_alloc_grads(
	const struct pass *p, int64_t layer, struct block_grads *g, struct arena *a);
/* Widens a block's input, if it is kept in 16 bits; `rounds`: rounds the input to 16 bits first. */
void block_restore_input(struct pass *p, struct block_acts *b, bool rounds);
/* Runs a block's forward. y: the block's output; NULL: computes the activations only. */
void block_forward(
	struct pass *p, int64_t layer, struct block_acts *b, const struct mat *y);
/* Runs a block's backward. dx: gradient of the block's output, replaced by the input's gradient. */
void block_backward(struct pass *p, int64_t layer, struct block_acts *b, struct mat dx,
	struct grad_copy *copy);
/* Replaces dx, the gradient of a block's output, by the gradient of its input; keeps what
 * block_backward_w() needs in g. */
void block_backward_x(struct pass *p, int64_t layer, struct block_acts *b,
	struct block_grads *g, struct mat dx);
/* Computes the gradients of a block's weights, after block_backward_x(). */
void block_backward_w(
	struct pass *p, int64_t layer, struct block_acts *b, struct block_grads *g);

/* Allocates scratch memory for copies that norms write. `lowest`: first layer of the stage. */
struct grad_copy grad_copy_alloc(struct pass *p, int64_t lowest);

/* ---- attention.c ---------------------------------------------------------------------- */

/* Activations: output of the heads, queries, keys, values, state of the softmax, and (with qk_norm)
 * normalized queries and keys. */
enum { ATT_O = INNER_RESULT, ATT_Q, ATT_K, ATT_V, ATT_MAX, ATT_SUM, ATT_QN, ATT_KN };
/* Return the queries and keys that attention uses: normalized, if the model normalizes them. */
static inline struct mat att_q(const struct sublayer_acts *a)
{
	return a->m[ATT_QN].rows ? a->m[ATT_QN] : a->m[ATT_Q];
}

static inline struct mat att_k(const struct sublayer_acts *a)
{
	return a->m[ATT_KN].rows ? a->m[ATT_KN] : a->m[ATT_K];
}

/* Computes attention of all local slices and chunks; the default of pass_ops.attend. */
void attend_all_chunks(struct pass *p, int64_t layer, struct sublayer_acts *a);
