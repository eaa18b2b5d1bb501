/* A block as two sublayers, each of which is a row of functions and a file. */
#ifndef MODEL_BLOCK_H
#define MODEL_BLOCK_H

#include "model/layers.h"

/* ---- config.c: rows of the tensor table --------------------------------------------- */

/* What is gathered and dropped a slice at a time (--tile): the column-parallel weights of a
 * sublayer, its row-parallel ones, the embedding or output. */
enum tile {
	TILE_NONE,
	TILE_ATTENTION_IN,
	TILE_ATTENTION_OUT,
	TILE_FFN_IN,
	TILE_FFN_OUT,
	TILE_TABLE
};

struct tensor_row {
	const char *name;   /* a block's gets "layers.N." in front */
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
	bool there;
	struct tensor **to; /* where the pointer to it goes */
	enum tile tile;
	int64_t heads; /* of keys or values: it is cut into as many slices at most; 0: any */
};

void tensors_add(struct model *m, int64_t layer, const struct tensor_row *rows, size_t n);

/* ---- block.c: sublayers --------------------------------------------------------------- */

/* A matrix [slice][chunk][row][cols] of a sublayer; none where cols is 0. */
struct room {
	int64_t cols;
	enum dtype type;
	bool scratch; /* of gradients: needed until enter_backward only, and not by `weights` */
};

/* Among a sublayer's activations: what inner() makes, and the row-parallel product takes. */
enum { LEAVING = 0 };

/*
 * A sublayer of a block (attention, or a kind of feed-forward network) is
 *   y = x + dropout(bias + the sum over slices of leave(inner(enter(norm(x))))).
 * block.c does all that is outside of the three functions; here are they, and their backward.
 * Those that take a gather or a sum are called for each slice and chunk, inner() for all at once.
 */
struct sublayer {
	const char *norm,
		*out; /* what messages call the norm, and the row-parallel product */
	enum drop_site drop;
	bool cheap_inner; /* selective recomputation computes its result again */
	void (*tensors)(struct model *m, int64_t layer, struct sublayer_tensors *t);
	/* What of sublayer_acts.m and sublayer_grads.m it has; both are zeros before. */
	void (*rooms)(const struct pass *p, struct room *acts, struct room *grads);
	/* Column-parallel, as the rows of the norm come. */
	void (*enter)(
		struct pass *, struct at, struct sublayer_acts *, struct slice_gather *);
	/* To a->m[LEAVING]. */
	void (*inner)(struct pass *, int64_t layer, struct sublayer_acts *);
	/* Row-parallel: pushes a part of the sum. */
	void (*leave)(
		struct pass *, struct at, struct sublayer_acts *, struct slice_sum *);
	/* From the gradient of the sum, as its rows come; to that of m[LEAVING]. */
	void (*leave_backward)(struct pass *, struct at, struct sublayer_acts *,
		struct sublayer_grads *, struct slice_gather *);
	void (*inner_backward)(struct pass *, int64_t layer, struct sublayer_acts *,
		struct sublayer_grads *);
	/* Pushes a part of the gradient of the norm. */
	void (*enter_backward)(
		struct pass *, struct at, struct sublayer_grads *, struct slice_sum *);
	/* The leaves of the weights and of column-parallel biases. */
	void (*weights)(struct pass *, struct at, struct sublayer_acts *,
		struct sublayer_grads *);
};

/* The memory of a block's activations that are kept, or with `shared` of those that are not; and
 * of its gradients. */
void block_alloc(const struct pass *p, int64_t layer, struct block_acts *b, bool shared,
	struct arena *micro);
void block_alloc_grads(
	const struct pass *p, int64_t layer, struct block_grads *g, struct arena *a);
/* To y, the residual stream behind the block; NULL: only what its backward needs. */
void block_forward(
	struct pass *p, int64_t layer, struct block_acts *b, const struct mat *y);
/* From the gradient of the block's output to that of its input, in dx, and the leaves, while sums
 * over slices are under way. `copy`: see block_copy(). */
void block_backward(struct pass *p, int64_t layer, struct block_acts *b, struct mat dx,
	struct grad_copy *copy);
/* The same in two parts: without leaves, and the leaves. */
void block_backward_x(struct pass *p, int64_t layer, struct block_acts *b,
	struct block_grads *g, struct mat dx);
void block_backward_w(
	struct pass *p, int64_t layer, struct block_acts *b, struct block_grads *g);

/* What the norms of a backward write for the sublayers below, in scratch. `lowest`: the first layer of
 * the stage, below which there is no sublayer. */
struct grad_copy block_copy(struct pass *p, int64_t lowest);

/* Its activations: the heads' output, queries, keys, values, and the state of the softmax. */
enum { ATT_O = LEAVING, ATT_Q, ATT_K, ATT_V, ATT_MAX, ATT_SUM };
/* pass_ops.attend of training. */
void attend_chunks(struct pass *p, int64_t layer, struct sublayer_acts *a);

#endif
