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
		ROW_BIAS
	} kind;
	bool present;	    /* false: this model does not have the tensor */
	struct tensor **to; /* receives the pointer to the tensor */
	enum tile tile;
	int64_t heads; /* key/value heads, the maximum number of slices; 0: no limit */
};

void tensors_add(struct model *m, int64_t layer, const struct tensor_row *rows, size_t n);

/* ---- block.c: sublayers --------------------------------------------------------------- */

/* The size of a matrix [slice][chunk][row][cols] of a sublayer; cols 0: no matrix. */
struct mat_size {
	int64_t cols;
	enum dtype type;
	bool scratch; /* a gradient that only leave_backward and inner_backward need */
};

/* Indices in sublayer_acts.m: the output of inner(), which is the input of the row-parallel
 * matmul, and the first output of enter(). sublayer_grads.m begins with enter()'s gradients. */
enum { INNER_OUT, ENTER_OUT };

/* A sublayer of a block in a pass. */
struct sub {
	const struct sublayer *f;
	const struct sublayer_tensors *t;
	struct sublayer_acts *a;
	struct sublayer_grads *g; /* NULL in the forward */
	int64_t layer;
	int i;	    /* ATTENTION or FFN */
	bool again; /* recomputes: enter() does not write outputs that were kept */
};

/* A sublayer of a block (attention, or a kind of feed-forward network) is
 *   y = x + dropout(bias + the sum over slices of out inner(in norm(x))),
 * with column-parallel matmuls `in` and a row-parallel one `out` (struct sublayer_tensors).
 * A sublayer implements enter() (the matmuls `in`), inner() and the backwards; block.c computes the
 * rest. Functions with a gather or a sum are called for each slice and chunk, inner() once in all.
 * The gather is still in progress: rows are used as they arrive. */
struct sublayer {
	const char *norm, *out; /* names in messages: the norm, the row-parallel matmul */
	enum drop_site drop;
	/* Makes gradients of the outputs of enter() columns of one matrix, if linear_joins(). */
	bool joins;
	enum recompute
		until[SUBLAYER_MATS]; /* the highest recomputation that keeps m[j] */
	void (*tensors)(struct model *m, int64_t layer, struct sublayer_tensors *t);
	/* Sets the sizes of sublayer_acts.m and sublayer_grads.m, initially 0. */
	void (*sizes)(
		const struct pass *p, struct mat_size *acts, struct mat_size *grads);
	void (*enter)(
		struct pass *, const struct sub *, struct at, struct slice_gather *);
	void (*inner)(struct pass *, const struct sub *); /* writes m[INNER_OUT] */
	/* Returns true if leave_backward() sets sublayer_grads.sums; or NULL. */
	bool (*sums)(const struct pass *, const struct sub *);
	/* Computes the leaves of weights other than `in` and `out`; or NULL. */
	void (*leaves)(struct pass *, const struct sub *, struct at);
	/* Compute the gradient of m[INNER_OUT] from the sum's; then the gradients of the outputs of
	 * enter(); then the norm's. */
	void (*leave_backward)(
		struct pass *, const struct sub *, struct at, struct slice_gather *);
	void (*inner_backward)(struct pass *, const struct sub *);
	void (*enter_backward)(
		struct pass *, const struct sub *, struct at, struct slice_sum *);
};

/* Sets the column-parallel matmuls; `m`: their outputs, or the gradients of the outputs. An
 * output that is not to be written has an empty y. Returns their number. */
int sub_linears(const struct pass *p, const struct sub *x, struct at at,
	const struct mat *m, struct linear l[SUBLAYER_INPUTS]);

/* Allocates the activations that a block keeps. x: buffer of all blocks for 16-bit inputs. */
void block_alloc(const struct pass *p, int64_t layer, struct mat x, struct block_acts *b,
	struct arena *micro);
/* Allocates the activations that blocks do not keep; all blocks share them. */
void block_alloc_shared(const struct pass *p, struct block_acts *b, struct arena *micro);
void block_alloc_grads(
	const struct pass *p, int64_t layer, struct block_grads *g, struct arena *a);
/* Restores a block's input from 16 bits, if it is kept so; `narrow`: rounds and keeps it first. */
void block_input(struct pass *p, struct block_acts *b, bool narrow);
/* Runs a forward. y: the block's output; NULL: computes only the activations for the backward. */
void block_forward(
	struct pass *p, int64_t layer, struct block_acts *b, const struct mat *y);
/* Runs a backward. dx: the gradient of the output, replaced by the gradient of the input. */
void block_backward(struct pass *p, int64_t layer, struct block_acts *b, struct mat dx,
	struct grad_copy *copy);
/* Run a backward in two parts: gradient of the input, then gradients of the weights. */
void block_backward_x(struct pass *p, int64_t layer, struct block_acts *b,
	struct block_grads *g, struct mat dx);
void block_backward_w(
	struct pass *p, int64_t layer, struct block_acts *b, struct block_grads *g);

/* Allocates a copy in scratch memory; `lowest`: the first layer of the stage. */
struct grad_copy block_copy(struct pass *p, int64_t lowest);

/* ---- attention.c ---------------------------------------------------------------------- */

/* Activations: output of the heads, queries, keys, values, state of the softmax, and (with qk_norm)
 * normalized queries and keys. */
enum { ATT_O = INNER_OUT, ATT_Q, ATT_K, ATT_V, ATT_MAX, ATT_SUM, ATT_QN, ATT_KN };
/* Return the queries and keys that attention uses. */
static inline struct mat att_q(const struct sublayer_acts *a)
{
	return a->m[ATT_QN].rows ? a->m[ATT_QN] : a->m[ATT_Q];
}

static inline struct mat att_k(const struct sublayer_acts *a)
{
	return a->m[ATT_KN].rows ? a->m[ATT_KN] : a->m[ATT_K];
}

/* The default of pass_ops.attend. */
void attend_chunks(struct pass *p, int64_t layer, struct sublayer_acts *a);
