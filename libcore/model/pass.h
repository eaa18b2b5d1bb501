/* Forward and backward of a pipeline stage, for one micro-batch. Activations are [slice][chunk][row]
 * [width]: the virtual slices and chunks of this rank; the rows of a chunk are [sequence][position]. */
#pragma once

#include "model/model.h"

/* The precision of matmuls, see linear.c. */
enum precision { PRECISION_FP32, PRECISION_BF16, PRECISION_FP16, PRECISION_FLOAT8 };
extern const char *const precision_names[]; /* NULL-terminated */

/* The activations of a sublayer that a micro-batch keeps from its forward to its backward. On a
 * device that stores 16 bits, operands and results of matmuls are stored in the precision of the
 * run; the residual stream is fp32, but for the inputs of blocks (pass_config.residual). */
enum { SUBLAYER_MATS = 8 };
struct sublayer_acts {
	struct mat x;	     /* the input, the residual stream: [chunk][row][dim] */
	struct mat h, stats; /* the norm: [chunk][row][dim]; [chunk][2][row] */
	struct mat m[SUBLAYER_MATS]; /* [slice][chunk][row][...], see struct sublayer */
};

struct block_acts {
	struct sublayer_acts sub[SUBLAYERS];
	/* A residual stream of 16 bits: the input of the block, from which sub[0].x, then the same
	 * buffer for all blocks, is widened for the forward and for the backward; else NULL. */
	uint16_t *x;
	/* float8, for the operands h and m[INNER_OUT] of both sublayers, for each slice and chunk:
	 * the amax, which is 0 before a forward, and the inverse of its scale. */
	struct mat amax;
};

/* The gradients of activations from which a sublayer computes its weight gradients, at once or
 * later. */
struct sublayer_grads {
	struct mat d;		     /* of the sublayer's output: [chunk][row][dim] */
	struct mat dh;		     /* of the norm's output: this rank's rows, as x */
	struct mat m[SUBLAYER_MATS]; /* see struct sublayer */
	struct mat amax;	     /* float8, as in block_acts: of d and m */
};

struct block_grads {
	struct sublayer_grads sub[SUBLAYERS];
};

/* Activation recomputation in the backward of a block. Selective: the results of norms and activation
 * functions, which cost little (Korthikanti et al. 2022); matmuls: also those of every second matmul, as
 * with torchtitan's selective option `op`; full: all but the block's input. */
enum recompute {
	RECOMPUTE_NONE,
	RECOMPUTE_SELECTIVE,
	RECOMPUTE_MATMULS,
	RECOMPUTE_FULL,
	RECOMPUTE_AUTO
};
extern const char *const recompute_names[]; /* NULL-terminated */

struct acts {
	struct block_acts *block; /* [layers of the stage] */
	int64_t *begin;		  /* of each, in bytes of the arena, and the end of all */
	/* The input of the first block, and the output of the last one as it is sent to the next
	 * stage: fp32, or the type of the residual stream. */
	struct mat x_in, x_out;
	/* The output of the last block; with a residual stream of 16 bits the first backward
	 * overwrites it. */
	struct mat x;
	struct mat dx; /* the gradient of the residual stream, of x_in after a backward */
};

/* The block (-1: embedding or head), and the indices of a virtual slice and a chunk on this rank. */
struct at {
	int64_t layer;
	int slice, chunk;
};

/* Which part of a whole activation a result is: this rank's rows of the residual stream; rows of a
 * chunk, on every rank of the tp axis; rows of a chunk in the columns of a virtual slice; or no part of
 * an activation, but a leaf of the gradient of a parameter. */
enum extent { OF_STREAM, OF_CHUNK, OF_SLICE, OF_TENSOR };

/* A result of a forward, or of a backward: the gradient of an activation. */
struct result {
	const char *name; /* without the prefix "layers.N." */
	bool gradient;
	enum extent extent;
	struct at at;
	int64_t first_row; /* of x, among the rows of the chunk */
	struct mat x;	   /* in device memory; of integers, x.p is int32_t * */
	bool integers;
	/* OF_TENSOR: the parameter, its slice, and the use; 1 is the output layer of a tied weight. */
	const struct tensor *tensor;
	int slice, use;
};

/* Is shown every result of a micro-batch, in the order of computation. A step begins again if a gradient
 * was too large for exact sums: what was seen of it before does not count. */
struct observer {
	void (*begin)(void *with); /* NULL: nothing is done */
	void (*see)(void *with, const struct result *r);
	void *with;
};

/* A pipeline stage: blocks [first, end), with or without the embedding and the head. */
struct stage {
	int64_t first, end;
	bool embeds, heads;
};

/* The settings of a pass from the layout and the options. */
struct pass_config {
	struct mesh *mesh;
	int64_t batch; /* sequences of a micro-batch */
	/* Decoding: the largest number of rows of one sequence in a pass, as one chunk; 0: whole
	 * micro-batches. */
	int64_t decode_rows;
	uint64_t seed;
	enum precision precision;
	/* To this type the input of each block is rounded, in which it is kept: DT_F32 or DT_BF16. */
	enum dtype residual;
	bool sp;	    /* sequence parallelism */
	bool async_tp;	    /* communication of slices overlaps with matmuls */
	bool gather_kv;	    /* context parallelism by all-gather instead of a ring */
	bool plain_kernels; /* no fused kernels */
	bool cp_rounds;	    /* sums of attention are rounded to bf16 between chunks */
	struct xent_terms loss_terms; /* of training */
	bool documents; /* attention stays within documents, in which positions begin at 0 */
};

/* The values that differ from step to step, except the samples. */
struct pass_step {
	uint32_t number; /* for the random numbers of dropout */
	float loss_scale; /* of the gradient: 1 / targets of the batch, times fp16's loss scale */
};

/* The current micro-batch, set by the caller. */
struct micro_batch {
	int64_t number;	      /* in the step */
	int64_t first_sample; /* of the step */
	int64_t counted;      /* sequences that count in the loss; the rest is padding */
	bool train;	      /* gradients and dropout */
	bool empty; /* no micro-batch: only the store's collectives are called */
};

/* Of the micro-batch, [chunk][row], in device memory: positions in the sequence, tokens and targets.
 * With documents: the position in the sequence at which the document of a row starts, and positions in
 * the document; else start is NULL and doc_pos is pos. And the host buffers that they are copied
 * from. */
struct pass_rows {
	int32_t *pos, *tokens, *targets, *start, *doc_pos;
	int32_t *host_pos, *host_ids;
};

/* float8: for each tensor its amax and the factor that its cast must still be multiplied by, as `scale` of
 * struct mat; and the transposed casts of the local slices of weights, in the order of the tensors (NULL:
 * not kept). In device memory. */
struct float8_weights {
	struct mat_scale *scale;
	char *transposed;
};

struct pass;
/* The functions that decoding replaces; pass_init() sets those of training. */
struct pass_ops {
	kern_linear_fwd *linear; /* the matmul kernel of a forward */
	/* attention of all local slices and chunks: from a->m[ATT_Q, ATT_K, ATT_V] to ATT_O */
	void (*attend)(struct pass *, int64_t layer, struct sublayer_acts *);
	void (*head)(struct pass *, struct mat x, struct mat dx);
	void *with; /* for these */
};

/* The context of forwards and backwards. */
struct pass {
	struct pass_config c;
	struct pass_ops ops;
	struct model *m;
	struct device *d; /* its scratch arena is used */
	struct store *store;
	struct slices tp;
	struct chunks cp;
	int64_t rows;			/* of a chunk */
	int64_t first_row, stream_rows; /* of a chunk, in this rank's residual stream */
	struct pass_rows in;
	float *rope; /* [context][head_dim]: cosines, then sines; NULL without rotary positions */
	struct float8_weights float8;
	enum recompute recompute;
	int64_t recompute_every; /* of every Nth block of the model */
	/* The lowest unit with a tensor that is trained, below which there is no backward. */
	int lowest;
	struct block_acts
		shared; /* the activations that are not kept: one buffer for all blocks */
	struct micro_batch micro;
	struct pass_step *step; /* in device memory */
	struct exact *loss;	/* likewise: the sum over tokens of the local chunks */
	const struct observer *observer; /* NULL: nothing is shown */
};

/* Memory is from `run`; all arguments stay the caller's. Forwards and backwards are collective over
 * the ranks of a pipeline stage, other calls are not. */
void pass_init(struct pass *p, struct model *m, struct device *d, struct store *store,
	const struct pass_config *c, struct arena *run);
void pass_close(struct pass *p);
/* Copies the local chunks of windows [batch][context + 1] to the device, as tokens and targets: -1 for
 * tokens with TOKEN_CONTEXT. With documents, tokens with DOCUMENT_BEGINS begin one. */
void pass_load(struct pass *p, const int32_t *windows);
void pass_step_begin(struct pass *p, const struct pass_step *step);
/* begin: sets the sum of losses to 0. pass_loss: waits for the device and returns it. */
void pass_loss_begin(struct pass *p);
struct exact pass_loss(struct pass *p);
/* Sets the recomputation of every Nth block, and allocates the buffers that all of them share; before
 * acts_alloc(). */
void pass_recompute(
	struct pass *p, enum recompute how, int64_t every, struct arena *micro);
/* That of a block; -1: the buffers that are shared. */
static inline enum recompute pass_recomputes(const struct pass *p, int64_t layer)
{
	bool keeps = layer >= 0 && layer % p->recompute_every != 0;
	return keeps ? RECOMPUTE_NONE : p->recompute;
}
void acts_alloc(const struct pass *p, const struct stage *st, struct acts *a,
	struct arena *micro);
void acts_free(struct acts *a); /* frees a->block; the arena is the caller's */
/* The unit that is used first; -1: none, since the stage has no backward. */
int stage_first_unit(const struct pass *p, const struct stage *st, bool backward);
/* From the tokens, or a->x_in if the stage does not embed, to a->x. With micro.train, the backward of
 * the head is part of the forward, so that no logits are kept. */
void model_forward(struct pass *p, const struct stage *st, struct acts *a);
/* a->dx: from the gradient of a->x to that of a->x_in. */
void model_backward(struct pass *p, const struct stage *st, struct acts *a);
/* The same in two parts, with equal bits: the gradient of the input (x), then those of the weights
 * (w), from the gradients in `g`, an array that the caller frees. */
struct block_grads *grads_alloc(
	const struct pass *p, const struct stage *st, struct arena *micro);
void model_backward_x(
	struct pass *p, const struct stage *st, struct acts *a, struct block_grads *g);
void model_backward_w(
	struct pass *p, const struct stage *st, struct acts *a, struct block_grads *g);
