/* Forward and backward of a pipeline stage, for one micro-batch. Activations are [slice][chunk]
 * [row][width] with this rank's virtual slices and chunks. Rows are [sequence][position]. */
#pragma once

#include "model/model.h"
#include "parallel/dispatch.h"

/* The precision of matmuls, see linear.c. */
enum precision { PRECISION_FP32, PRECISION_BF16, PRECISION_FP16, PRECISION_FLOAT8 };
extern const char *const precision_names[]; /* NULL-terminated */

/* The activations of a sublayer that a micro-batch keeps from its forward to its backward. On a
 * device that stores 16 bits, operands and results of matmuls are stored in the precision of the
 * run. The residual stream is fp32, except the inputs of blocks (pass_config.residual). */
enum { SUBLAYER_MATS = 17 };
struct sublayer_acts {
	struct mat x;		     /* [chunk][row][dim], input: the residual stream */
	struct mat h;		     /* [chunk][row][dim], output of the norm */
	struct mat stats;	     /* [chunk][2][row], statistics of the norm */
	struct mat m[SUBLAYER_MATS]; /* [slice][chunk][row][...], see struct sublayer */
};

struct block_acts {
	struct sublayer_acts sub[SUBLAYERS];
	/* With a 16-bit residual stream: the block's input, which is widened to sub[0].x (then one
	 * buffer for all blocks) for the forward and for the backward; else NULL. */
	uint16_t *x;
	/* float8: amax (0 before a forward) and inverse scale of each slice and chunk of the
	 * operands h and m[INNER_RESULT] of both sublayers. */
	struct mat amax;
};

/* Gradients of activations, from which a sublayer computes its weight gradients now or later. */
struct sublayer_grads {
	struct mat d;  /* [chunk][row][dim], gradient of the sublayer's output */
	struct mat dh; /* [chunk][row][dim], gradient of the norm's output */
	struct mat m[SUBLAYER_MATS]; /* see struct sublayer */
	struct mat
		sums; /* [chunk][cols of m[0]], fp32: sums of m[0] over rows; or empty */
	struct mat amax; /* float8: amax and scales of d and m, as in block_acts */
};

struct block_grads {
	struct sublayer_grads sub[SUBLAYERS];
};

/* Activation recomputation in the backward of a block. Selective: results of norms and activation
 * functions, which cost little (Korthikanti et al. 2022); matmuls: also every second matmul, as
 * with torchtitan's selective option `op`; full: everything except the block's input. */
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
	int64_t *
		begin; /* [layers + 1]: arena offset of each block in bytes, and the end */
	/* The input of the first block, and the output of the last one as it is sent to the next
	 * stage: fp32, or the type of the residual stream. */
	struct mat x_in, x_out;
	struct mat x; /* output of the last block; a backward overwrites a 16-bit one */
	struct mat
		dx; /* gradient of the residual stream: of x, after a backward of x_in */
	/* [expert], integers of 64 bits, for --balance-over model: slots of the layers so far, in
	 * a backward of all layers; p NULL: not counted. */
	struct mat slots;
};

/* A location in a pass: layer, slice and chunk. */
struct loc {
	int64_t layer;	  /* block; -1: embedding or head */
	int slice, chunk; /* local indices of a virtual slice and a chunk */
};

/* The extent of a result: this rank's rows of the residual stream; rows of a chunk, equal on all tp
 * ranks; rows of a chunk, columns of a virtual slice; or a leaf of a parameter's gradient. */
enum extent { EXTENT_STREAM, EXTENT_CHUNK, EXTENT_SLICE, EXTENT_LEAF };

/* A tensor computed by a forward or a backward, for the observer. */
struct result {
	const char *name; /* without the prefix "layers.N." */
	bool gradient;	  /* x is a gradient, else an activation */
	enum extent extent;
	struct loc at;
	/* index of x's first row in the chunk; EXTENT_LEAF: in the slice (x may be some of its rows) */
	int64_t first_row;
	struct mat x;  /* device memory */
	bool integers; /* x.p is int32_t * */
	/* EXTENT_LEAF: the parameter, its slice, and its use (1: output layer of a tied weight); the
	 * micro-batch in the step and the virtual chunk, which with --ep may be another rank's. */
	const struct tensor *tensor;
	int slice, use;
	int64_t micro;
	int chunk;
};

/* Receives every result of a micro-batch, in the order of computation. A step begins again if a
 * gradient was too large for exact sums; the results before that must be ignored. */
struct observer {
	void (*begin)(void *with); /* or NULL */
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
	int64_t batch; /* sequences per micro-batch */
	/* Decoding: the maximum number of rows, of one sequence and chunk; 0: no decoding. */
	int64_t decode_rows;
	uint64_t seed;
	enum precision precision;
	enum dtype residual; /* type of the kept inputs of blocks: DT_F32 or DT_BF16 */
	bool sp;	     /* sequence parallelism */
	bool async_tp;	     /* communication of slices overlaps with matmuls */
	bool gather_kv;	     /* context parallelism by all-gather instead of a ring */
	bool plain_kernels;  /* no fused kernels */
	bool cp_rounds;	     /* rounds sums of attention to bf16 between chunks */
	struct xent_terms loss_terms; /* in training */
	/* The rows of experts that a rank has memory for, as a multiple of the balanced number, if
	 * ranks divide the experts; 0: for any number. */
	double expert_room;
	bool documents; /* attention stays within documents, and positions begin at 0 in each */
};

/* The values of a step that kernels read. */
struct pass_step {
	uint32_t number; /* step number, for the random numbers of dropout */
	float loss_scale; /* scale of the gradient: fp16's loss scale / targets of the batch */
	/* Factors of a row's balance loss and z-loss: coefficient x loss scale / tokens. */
	float router_loss[2];
};

/* The current micro-batch, set by the caller. */
struct micro_batch {
	int64_t number;	      /* index in the step */
	int64_t turn;	      /* turn of this rank, with or without a micro-batch */
	int64_t first_sample; /* index of its first sample in the step */
	int64_t counted;      /* sequences that count in the loss; the rest is padding */
	bool train;	      /* computes gradients and applies dropout */
	bool empty; /* no micro-batch: only the store's collectives are called */
};

/* The input of a micro-batch: [chunk][row], device memory. */
struct pass_rows {
	int32_t *pos, *tokens, *targets; /* pos: positions in the sequence */
	int32_t *
		start; /* position in the sequence at which the row's document starts; or NULL */
	int32_t *doc_pos; /* positions in the document; pos without documents */
	int32_t *host_pos,
		*host_ids; /* host memory: positions; buffers for other inputs */
};

/* Casts of float8 weights, in device memory. */
struct float8_weights {
	struct mat_scale *
		scale; /* [n_tensors]: amax, and the cast's remaining factor (mat.scale) */
	char *transposed; /* transposed casts of local slices, in tensor order; NULL: not kept */
};

struct pass;
/* Functions that decoding replaces; pass_init() sets the functions for training. */
struct pass_ops {
	kern_linear_fwd *linear; /* matmul kernel of the forward */
	/* computes a->m[ATT_O] of all local slices and chunks from ATT_Q, ATT_K and ATT_V */
	void (*attend)(struct pass *, int64_t layer, struct sublayer_acts *);
	void (*head)(struct pass *, struct mat x, struct mat dx);
	void *context; /* argument of attend() and head() */
};

enum { ROUTER_BALANCE_LOSS, ROUTER_Z_LOSS, N_ROUTER_LOSSES };
/* What the routers of a step count, in device memory; NULL: not counted. */
struct router_state {
	struct exact *
		losses; /* [N_ROUTER_LOSSES]: sums over rows and layers, without factors */
	int64_t *slots; /* [layer][expert]: slots in this rank's chunks in a step */
	struct mat model_slots; /* acts.slots of the micro-batch that is computed */
	float *model_fractions; /* [expert]: of all layers in it */
	float *load; /* [layer][expert]: fractions of the slots of the step before */
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
	struct dispatch experts; /* c NULL: the model has no experts */
	/* The largest number of rows of a rank's experts in training, of all layers and micro-
	 * batches since the caller set it to 0; only if ranks divide the experts. */
	int64_t fullest_rows;
	int64_t rows; /* rows of a chunk */
	int64_t first_row,
		stream_rows; /* this rank's rows of a chunk in the residual stream */
	struct pass_rows in;
	float *rope; /* [context][head_dim]: cosines, then sines; NULL without rotary positions */
	struct float8_weights float8;
	enum recompute recompute;
	int64_t recompute_every; /* recomputes every Nth block of the model */
	int lowest; /* first unit with a trained tensor, where the backward ends */
	/* activations that are not kept: one buffer for all blocks of a kind */
	struct block_acts shared[LAYER_KINDS];
	struct micro_batch micro;
	struct pass_step *step; /* device memory */
	struct exact *loss;	/* sum of the losses of local tokens, device memory */
	struct router_state router;
	const struct observer *observer; /* or NULL */
};

/* Initializes a pass in memory from `run`; the caller keeps ownership of all arguments. Forwards
 * and backwards are collective over the ranks of a pipeline stage, other calls are not. */
void pass_init(struct pass *p, struct model *m, struct device *d, struct store *store,
	const struct pass_config *c, struct arena *run);
void pass_release(struct pass *p);
/* Copies the local chunks of windows [batch][context + 1] to the device, as tokens and targets. The
 * target is -1 for tokens with TOKEN_CONTEXT. Tokens with DOCUMENT_BEGINS begin a document. */
void pass_load(struct pass *p, const int32_t *windows);
/* Copies the values of the next step to the device. */
void pass_step_begin(struct pass *p, const struct pass_step *step);
void pass_loss_begin(struct pass *p); /* sets the sum of losses to 0 */
/* Waits for the device and returns the sum of losses. */
struct exact pass_loss(struct pass *p);
/* Sets the recomputation of every Nth block, and allocates the buffers that blocks share. Call it
 * before acts_alloc(). */
void pass_recompute(
	struct pass *p, enum recompute how, int64_t every, struct arena *micro);
/* Returns the recomputation of a block; layer -1: of the shared buffers. */
static inline enum recompute pass_recomputes(const struct pass *p, int64_t layer)
{
	bool keeps = layer >= 0 && layer % p->recompute_every != 0;
	return keeps ? RECOMPUTE_NONE : p->recompute;
}
/* Allocates the activations of one micro-batch for a stage from `micro`. */
void acts_alloc(const struct pass *p, const struct stage *st, struct acts *a,
	struct arena *micro);
/* Frees the arrays of a, not the activations, which are in the arena. */
void acts_release(struct acts *a);
/* Returns the unit that a forward (or backward) uses first; -1: the stage has no backward. */
int stage_first_unit(const struct pass *p, const struct stage *st, bool backward);
/* Computes a->x from the tokens, or from a->x_in if the stage has no embedding. With micro.train,
 * the backward of the head is part of the forward, so that no logits are kept. */
void model_forward(struct pass *p, const struct stage *st, struct acts *a);
/* Replaces the gradient of a->x in a->dx by the gradient of a->x_in. */
void model_backward(struct pass *p, const struct stage *st, struct acts *a);
/* Compute a backward in two parts, with equal bits: the gradient of the input (x), then the
 * gradients of the weights (w) from `g`, an array that the caller frees. */
struct block_grads *grads_alloc(
	const struct pass *p, const struct stage *st, struct arena *micro);
/* Replaces the gradient of a->x in a->dx by that for a->x_in; fills g for model_backward_w(). */
void model_backward_x(
	struct pass *p, const struct stage *st, struct acts *a, struct block_grads *g);
/* Computes the gradients of the weights, after model_backward_x(). */
void model_backward_w(
	struct pass *p, const struct stage *st, struct acts *a, struct block_grads *g);
