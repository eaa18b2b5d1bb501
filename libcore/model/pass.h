/*
 * A forward and a backward of the model, or of a stage of the pipeline, for one micro-batch.
 *
 * Activations are [slice][chunk][row][width]: slices and chunks that this rank has, rows of a
 * micro-batch's chunk [sequence][position].
 */
#ifndef MODEL_PASS_H
#define MODEL_PASS_H

#include "model/model.h"

/* What matrix products are computed in: linear.c. */
enum precision { PRECISION_FP32, PRECISION_BF16, PRECISION_FP16, PRECISION_FLOAT8 };
extern const char *const precision_names[]; /* closed by NULL */

/* The activations that a micro-batch keeps from its forward to its backward. Operands and results
 * of products are stored in the precision of the run, on a device that stores 16 bits; the
 * residual stream is fp32. Of each sublayer: */
enum { SUBLAYER_MATS = 6 };
struct sublayer_acts {
	struct mat x;	     /* the residual stream before it: [chunk][row][dim] */
	struct mat h, stats; /* its norm: [chunk][row][dim]; [chunk][2][row] */
	struct mat m
		[SUBLAYER_MATS]; /* its own: [slice][chunk][row][...]; numbered by its file */
};

struct block_acts {
	struct sublayer_acts sub[SUBLAYERS];
	/* float8, of the operands h and m[LEAVING] of both sublayers, for each slice and chunk: the
	 * largest number, which is 0 before a forward, and the inverse of the scale that it asks for;
	 * recomputed they are the same. Where the casts for the backward are kept with them, h and
	 * m[LEAVING] of a feed-forward network are not. */
	struct mat amax;
};

/* The gradients that a sublayer needs for those of its weights, which may be computed
 * later. */
struct sublayer_grads {
	struct mat d;  /* of what it adds to the stream: [chunk][row][dim] */
	struct mat dh; /* of its norm; as x */
	struct mat m[SUBLAYER_MATS]; /* its own, numbered by its file */
	struct mat amax;	     /* float8, as in block_acts: of d and m */
};

struct block_grads {
	struct sublayer_grads sub[SUBLAYERS];
};

/*
 * What of a block is recomputed in its backward, and not kept: nothing; the results of norms
 * and activation functions, which cost little; everything but the block's input. No bit depends
 * on it.
 */
enum recompute { RECOMPUTE_NONE, RECOMPUTE_SELECTIVE, RECOMPUTE_FULL, RECOMPUTE_AUTO };
extern const char *const recompute_names[]; /* closed by NULL */

struct acts {
	struct block_acts *block; /* [layers of the stage] */
	struct mat x_in;	  /* the input of the first block */
	struct mat x;		  /* the output of the last block */
	struct mat dx;		  /* the gradient that flows back */
};

/* The first number that is not finite, when one is looked for. */
struct probe {
	char where[96];
	int64_t index;
	bool found;
};

/* Which blocks [first, end) a stage of the pipeline has, and whether it embeds, and has the
 * head. */
struct stage {
	int64_t first, end;
	bool embeds, heads;
};

/* What the layout and the options say of a pass. */
struct pass_config {
	struct mesh *mesh;
	int64_t batch; /* sequences of a micro-batch */
	/* Decoding: rows of one sequence that go through at most at once, as one chunk; 0: whole
	 * micro-batches. */
	int64_t decode_rows;
	uint64_t seed;
	enum precision precision;
	bool float8_skip_ends; /* the first and the last block are bf16 */
	bool sp; /* sequence parallelism between the products of tensor parallelism */
	bool async_tp;	    /* sums and gathers of slices overlap with products */
	bool gather_kv;	    /* context parallelism by all-gather, and not by a ring */
	bool plain_kernels; /* no fused kernels */
	bool cp_rounds;	    /* sums of attention are bf16 between two chunks */
};

/* All that differs from step to step but samples. */
struct pass_step {
	uint32_t number; /* on which it depends what is dropped */
	float loss_scale; /* of the gradient: 1 / tokens of the whole batch, in fp16 times more */
};

/* The micro-batch that goes through, which the caller sets. */
struct micro_batch {
	int64_t number;	      /* in the step: where its leaves are in the tree */
	int64_t first_sample; /* of the step */
	int64_t counted; /* sequences of which the loss is taken; others only fill up */
	int then;	 /* the unit that will be used after the pass, or -1 */
	bool train;	 /* gradients and dropout */
	bool empty;	 /* there is none: only the store hears of the pass */
	bool last; /* of this rank's in this step: sums may begin when leaves are there */
};

/* Its positions, tokens and targets, [chunk][row], in the device's memory; and in the program's,
 * where they are made. */
struct pass_rows {
	int32_t *pos, *tokens, *targets;
	int32_t *host_pos, *host_ids;
};

/* float8, of the weights in the last forward, in the device's memory: [layer][operand] largest
 * numbers, and the inverses of the scales; and the transposed casts of all slices here, one behind
 * the other, or NULL: they are not kept. */
struct float8_weights {
	float *amax, *inverse;
	char *transposed;
};

struct pass;
/* What decoding does in another way than training, whose functions pass_init() sets. */
struct pass_ops {
	kern_linear_fwd *linear; /* the kernel of products in a forward */
	/* from queries, keys and values, of all slices and chunks, to the heads' output */
	void (*attend)(struct pass *, int64_t layer, struct sublayer_acts *);
	void (*head)(struct pass *, struct mat x, struct mat dx);
	void *with; /* for these */
};

/* Everything that a pass needs. */
struct pass {
	struct pass_config c;
	struct pass_ops ops;
	struct model *m;
	struct device *d; /* its scratch arena is used */
	struct store *store;
	struct slices tp;
	struct chunks cp;
	int64_t rows;		      /* of a chunk */
	int64_t first_row, rows_here; /* of a chunk, in this rank's residual stream */
	struct pass_rows in;
	float *rope; /* [context][head_dim], NULL without rotary positions */
	struct float8_weights float8;
	enum recompute recompute;
	struct block_acts shared; /* of all blocks, because it is not kept */
	struct micro_batch micro;
	struct pass_step *step; /* the device's */
	struct exact *loss;	/* likewise; over tokens, of the chunks here: added to */
	struct probe *probe;	/* NULL: do not look */
};

/* Collective. Memory that lasts comes from `run`. */
void pass_init(struct pass *p, struct model *m, struct device *d, struct store *store,
	const struct pass_config *c, struct arena *run);
void pass_close(struct pass *p);
/* Puts windows [batch][context + 1] in the order of chunks. */
void pass_load(struct pass *p, const int32_t *windows);
/* Sets the step, until the next call. */
void pass_step_begin(struct pass *p, const struct pass_step *step);
/* Sets the sum of losses to 0; waits for the device and returns it. */
void pass_loss_begin(struct pass *p);
struct exact pass_loss(struct pass *p);
/* Before acts are allocated: what they do not keep; the room for it is shared. */
void pass_recompute(struct pass *p, enum recompute how, struct arena *micro);
/* For the blocks of a stage. */
void acts_alloc(const struct pass *p, const struct stage *st, struct acts *a,
	struct arena *micro);
void acts_free(struct acts *a); /* not what is in the arena */
/* The unit that a forward, or a backward, of the stage uses first. */
int stage_first_unit(const struct stage *st, bool backward);
/* From a->x_in (where the stage does not embed) to a->x. With p->train, the head's backward
 * is part of the forward: no logits are kept. */
void model_forward(struct pass *p, const struct stage *st, struct acts *a);
/* a->dx goes through the stage, backwards. */
void model_backward(struct pass *p, const struct stage *st, struct acts *a);
/* The same in two parts, with equal bits: first the gradient of the input, then those of the
 * weights, for which each block keeps some: grads_alloc() makes room for them. */
struct block_grads *grads_alloc(
	const struct pass *p, const struct stage *st, struct arena *micro);
void model_backward_x(
	struct pass *p, const struct stage *st, struct acts *a, struct block_grads *g);
void model_backward_w(
	struct pass *p, const struct stage *st, struct acts *a, struct block_grads *g);
/* Cosines and sines for all positions, [context][head_dim]; NULL where there are none. */
float *model_rope(const struct model *m, struct device *d, struct arena *run);

#endif
