/*
 * model: the tensor table of GPT-2 and Llama, the layers (forward beside backward), the
 * whole passes, and generation with a key/value cache.
 *
 * A layer knows shapes and seams (parallel.h) and no strategy. Activations are
 * [slice][chunk][row][width]: slices and chunks that this rank plays, rows of a
 * micro-batch's chunk [sequence][position].
 */
#ifndef MODEL_H
#define MODEL_H

#include "base/base.h"
#include "kernels/kernels.h"
#include "parallel/parallel.h"

/* ---- config.c: what a model is --------------------------------------------------- */

enum arch_id { ARCH_GPT2, ARCH_LLAMA };
enum yes_no { BY_ARCH, YES, NO };
enum act_choice { ACTC_BY_ARCH, ACTC_GELU_TANH, ACTC_GELU, ACTC_SWIGLU };
enum init_choice { INITC_BY_ARCH, INITC_GPT2, INITC_LLAMA, INITC_DEPTH };
enum rope_scaling { ROPE_PLAIN, ROPE_LINEAR, ROPE_LLAMA3 };

/* As the options say it; model_resolve() turns "by architecture" and 0 into values. */
struct model_config {
	int arch; /* enum arch_id */
	int64_t layers, heads, kv_heads, dim, ffn_dim, context;
	int64_t vocab, vocab_multiple;
	int act, bias, tie, init;
	double dropout, norm_eps;
	double rope_theta, rope_factor, rope_low, rope_high;
	int rope_scaling;
	int64_t rope_original;
	const char *virtual_degrees; /* "tp=2,cp=2"; what is not named is 1 */
};

/* What an architecture brings: one row each, in gpt2.c and llama.c. */
struct arch {
	const char *name, *help;
	enum norm_kind norm;
	double norm_eps;
	bool learned_positions, rope;
	enum act_choice act;
	enum init_choice init;
	bool bias, tie;
	int64_t (*ffn_dim)(int64_t dim);
};

extern const struct arch *const arch_table[];
extern const struct arch arch_gpt2, arch_llama;
/* Names for the options, closed by NULL. */
extern const char *const arch_names[],
	*const by_arch_names[], *const act_names[], *const init_names[],
							    *const rope_scaling_names[];

/* The tensors of one block; NULL where the model has none. */
struct block_tensors {
	struct tensor *norm1, *norm1_bias, *wq, *bq, *wk, *bk, *wv, *bv, *wo, *bo;
	struct tensor *norm2, *norm2_bias, *w1, *b1, *w3, *b3, *w2, *b2;
};

/* What can be gathered and dropped a slice at a time: of a block; the embedding, the output. */
enum block_tile { TILE_NONE, TILE_QKV, TILE_OUT, TILE_FFN, TILE_TABLE };

struct model {
	struct model_config c; /* resolved */
	const struct arch *arch;
	enum act_kind act;
	bool bias, tie;
	int tp, cp; /* virtual degrees */
	int64_t head_dim, padded_vocab;
	struct tensor *tensors;
	int n_tensors, n_units;
	struct tensor *tokens, *positions, *norm, *norm_bias,
		*output; /* tied: output = tokens */
	struct block_tensors *blocks;
};

/* "tp=2,cp=4": sets the degrees that are named. */
int model_virtual(const char *text, int64_t *tp, int64_t *cp, struct err *e);
/* `vocab`: of the data, used where the config says 0. Says why a shape is impossible. */
int model_init(
	struct model *m, const struct model_config *c, int64_t vocab, struct err *e);
/* Places the tensors for a rank that has this part; model_init has placed them for one that
 * has all. */
void model_place(struct model *m, const struct tensor_part *part);
void model_free(struct model *m);

/* Parameters: all, decayed, and those that count for FLOPs (without position embeddings). */
struct model_counts {
	int64_t all, decayed, for_flops;
};
struct model_counts model_counts(const struct model *m);
/* FLOPs of training on one token: 6 N + 12 L C T, the PaLM and nanoGPT convention, in
 * which attention is not halved for causality; `causal` halves it. */
double model_flops_per_token(const struct model *m, bool causal);
/* The tensors as a tree, with counts; those of the layers, which are alike, only with `all`. */
void model_print(const struct model *m, bool all, struct str *out);

/* ---- init.c ---------------------------------------------------------------------- */

/* The version of the initial weights, part of the arithmetic that a run records: one more whenever
 * kernels/normal.h gives other bits. */
enum { INIT_VERSION = 2 };
/* Element i of a whole tensor is a function of (seed, name, i). Fills x, in the device's memory,
 * with rows of the tensor, or of a slice of its columns; `first`: the index of its first element. */
void init_rows(struct device *d, const struct tensor *t, uint64_t seed, int64_t first,
	struct mat x);
/* Every part that this rank updates. */
void init_parts(struct store *s, uint64_t seed);

/* ---- pass.c: a forward and a backward -------------------------------------------- */

/* What products are computed in: linear.c. */
enum precision { PRECISION_FP32, PRECISION_BF16, PRECISION_FP16, PRECISION_FLOAT8 };
extern const char *const precision_names[]; /* closed by NULL */

/* The activations that a micro-batch keeps from its forward to its backward. What products
 * take and give is stored in the precision of the run, where the device is narrow; the
 * residual stream is fp32. */
struct block_acts {
	struct mat x, h1, stats1;	 /* [chunk][row][dim]; [chunk][2][row] */
	struct mat q, k, v, o, max, sum; /* [slice][chunk][row][heads or kv heads] */
	struct mat x2, h2, stats2;
	struct mat a, b, y; /* [slice][chunk][row][ffn] */
	/* float8, of h1, o, h2 and y, for each slice and chunk: the largest number, which is 0 before
	 * a forward, and the inverse of the scale that it asks for; made again they are the same.
	 * Where the casts for the backward are kept with them, h1, h2 and y are not. */
	struct mat amax;
};

/* The gradients of what a block's products give: what is left to do of a backward with them
 * is the weights' part. */
struct block_grads {
	struct mat d1;	       /* of what attention adds: [chunk][row][dim] */
	struct mat dq, dk, dv; /* as q, k, v */
	struct mat dh1;	       /* as x */
	struct mat d2;	       /* of what the feed-forward half adds: [chunk][row][dim] */
	struct mat da, db, dh2;	 /* as a, b, x */
	struct mat amax1, amax2; /* float8: the same of d1 to dv, and of d2 to db */
	/* Nothing, or where norms_give_copies(): room that d1 and d2 share, in which the backward of the
	 * norm behind a half leaves the gradient that this half takes, and the sums of its rows,
	 * [chunk][slice here][dim]. No norm makes d2 of the stage's last block, and nothing takes what
	 * norm 1 of its first would make. */
	struct mat copy, sums;
	bool is_first, is_last;
};

/*
 * What of a block is made again in its backward, and not kept: nothing; the results of norms
 * and activations, which cost little; everything but the block's input. No bit depends on it.
 */
enum recompute { RECOMPUTE_NONE, RECOMPUTE_SELECTIVE, RECOMPUTE_FULL, RECOMPUTE_AUTO };
extern const char *const recompute_names[]; /* closed by NULL */

struct acts {
	struct block_acts *block; /* [layers of the stage] */
	struct mat x_in;	  /* what the first block gets: the x of block 0 */
	struct mat x;		  /* what the last block gave */
	struct mat dx;		  /* the gradient that flows back */
};

/* The first bad number that was met, when one is looked for. */
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

/* What the layout says of a pass. */
struct pass_config {
	struct mesh *mesh;
	int64_t batch; /* sequences of a micro-batch */
	uint64_t seed;
	bool sp; /* sequence parallelism between the products of tensor parallelism */
	bool async_tp;	/* sums and gathers of slices go on beside products */
	bool gather_kv; /* context parallelism by all-gather, and not by a ring */
};

/* All that differs from step to step but samples. */
struct pass_step {
	uint32_t number; /* on which it depends what is dropped */
	float loss_scale; /* of the gradient: 1 / tokens of the whole batch, in fp16 times more */
};

/* Everything that a pass needs. */
struct pass {
	struct model *m;
	struct device *d; /* its scratch arena is used */
	struct store *store;
	struct slices tp;
	struct chunks cp;
	int64_t batch, rows;	      /* sequences of a micro-batch; rows of a chunk */
	int64_t first_row, rows_here; /* of a chunk, in this rank's residual stream */
	/* [chunk][row], of the device; and in the program's memory, where they are made */
	int32_t *pos, *tokens, *targets;
	int32_t *host_pos, *host_ids;
	float *rope; /* [context][head_dim], NULL without rotary positions */
	uint64_t seed;
	bool plain_kernels; /* none that is fused of others */
	bool cp_rounds;	    /* sums of attention are bf16 between two chunks */
	enum precision precision;
	bool float8_skip_ends; /* the first and the last block are bf16 */
	/* float8, of the last forward, the device's: [layer][BLOCK_WEIGHTS] largest numbers, and the
	 * inverses of the scales; and the transposed casts of all slices here, one behind the other,
	 * or NULL: they are not kept */
	float *weight_amax, *weight_inverse;
	char *weight_transposed;
	enum recompute recompute;
	struct block_acts again; /* what all blocks share, because it is not kept */
	/* of the micro-batch: */
	bool train; /* gradients and dropout */
	bool empty; /* there is none: only the store hears of the pass */
	bool last; /* of this rank's in this step: sums may begin when leaves are there */
	int64_t micro; /* its number in the step: where its leaves are in the tree */
	int then;      /* the unit that will be used after the pass, or -1 */
	int64_t first_sample; /* of the step */
	int64_t counted; /* sequences of which the loss is taken; others only fill up */
	struct pass_step *step; /* the device's */
	struct exact *loss;	/* likewise; over tokens, of the chunks here: added to */
	struct probe *probe;	/* NULL: do not look */
	void (*tick)(void *);	/* called between operations: keeps communication going */
	void *tick_with;
};

/* Collective. Memory that lasts comes from `run`. */
void pass_init(struct pass *p, struct model *m, struct device *d, struct store *store,
	const struct pass_config *c, struct arena *run);
void pass_close(struct pass *p);
/* fp32, when not called. */
void pass_precision(
	struct pass *p, enum precision precision, bool skip_ends, struct arena *run);
/* Puts windows [batch][context + 1] in the order of chunks. */
void pass_load(struct pass *p, const int32_t *windows);
/* What the step is, until another is said. */
void pass_step_begin(struct pass *p, const struct pass_step *step);
/* Sets the sum of losses to 0; waits for the device and tells it. */
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

/* ---- generate.c: decoding -------------------------------------------------------- */

struct sampler {
	double temperature; /* 0: the likeliest token */
	int64_t top_k;	    /* 0: all */
	double top_p;	    /* 1: all */
	uint64_t seed;
};

struct decoder;
/* `cache`: keep keys and values; without, every token is computed from the whole window
 * again, with equal bits. */
struct decoder *decoder_open(
	struct model *m, struct device *d, struct store *store, bool cache);
void decoder_close(struct decoder *g);
int64_t decoder_bytes(struct model *m, struct device *d); /* of the device's memory */
/* Appends tokens to the text. When the context is full, the older half is forgotten. */
void decoder_feed(struct decoder *g, const uint32_t *ids, int64_t n);
/* Draws the next token, number `index` of stream `stream`. Does not feed it. */
int64_t decoder_draw(
	struct decoder *g, const struct sampler *s, uint64_t stream, int64_t index);
const float *decoder_logits(const struct decoder *g); /* of the next token; [vocab] */

#endif
