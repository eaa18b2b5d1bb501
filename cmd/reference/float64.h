/* float64: loss and gradients of a model in double precision, in plain loops written from the
 * papers. Shares no code with kernels/, so that it can judge them as well as other programs.
 *
 * Matrices are row-major, weights [out, in]. Not collective. Cannot fail, except that running out
 * of memory ends the program. Has no dropout. */
#pragma once

#include "model/model.h"

/* One sequence of n positions. */
struct sequence {
	int64_t n;
	const int32_t *tokens, *targets; /* [n]; target < 0: does not count */
	const int32_t *pos;   /* [n], for position embeddings and rotary positions */
	const int32_t *start; /* [n]: first position that each position attends to */
	const int32_t *last;  /* [n]: last one; NULL: itself */
	int64_t chunk; /* > 0: length of chunks, each masked like a position's own; 0: none */
	const double *weights; /* [n], of targets; NULL: all 1 */
	double *size;	       /* sum of |weight * loss|, added to; NULL: not needed */
	/* Where to store rows; NULL: nowhere. */
	const struct target_rows *rows;
	struct choices
		*choices;      /* choices of experts; NULL: neither recorded nor given */
	int64_t first;	       /* its first position in choices */
	const double *balance; /* balance_slopes(); NULL: no balance loss */
	double router_z; /* factor of the square of log(sum of exp(router's logits)) */
};

/* The experts of each position in each layer, [layer][position][experts_per_token], ascending. A pass
 * records them, or with `replay` uses those that are there. */
enum { ALTERNATIVES = 4 };
struct choices {
	int64_t positions; /* positions of the batch */
	int *ids;
	int *other; /* [layer][position][ALTERNATIVES][experts_per_token]: the next best choices */
	/* [layer][position][ALTERNATIVES]: the relative error of the router's input and logits that
	 * may turn the choice into `other`, ascending; INFINITY: none */
	double *margin;
	double *mass; /* [sequence][layer][expert]: sums of scores, which add up to 1 */
	int *first;   /* [layer][position]: the chosen expert with the highest score */
	/* Choices by the scores alone, without bias and groups, and the next best choices, both
	 * [layer][position][experts_per_token]; margins [layer][position]. NULL: as in ids. */
	int *plain, *plain_other;
	double *plain_margin;
	/* [layer][position]: use the experts that are in ids, and choose all others; NULL: none */
	bool *forced;
	bool replay;
};

/* Rows that a pass stores; NULL: not stored. They show each position's part of the
 * gradient of the last block's w2, the sum over positions of dy x^T. dy depends on the
 * position's own target alone, because no attention follows. */
struct target_rows {
	double *dy, *x; /* [n][dim], [n][ffn_dim] */
	double *loss;	/* [n]; 0 without a target */
	double *dx;	/* [n][dim], gradient of the embedding's rows */
};

/* The part of each gradient to compute, such as another program's rank has before an
 * all-reduce. Gradients of activations are complete, except with PART_RANKS. */
enum part_kind {
	PART_WHOLE,
	PART_CHUNK, /* positions of chunk i of n (context and sequence parallelism) */
	PART_ZIGZAG, /* positions of balanced context parallelism: chunks i and 2n - 1 - i of 2n */
	PART_SLICE, /* norms: from slice i of n of the layers after them (tensor parallelism) */
	PART_USE, /* a tied table: use as embedding (0), or as output layer (1) */
	PART_RANKS /* all that each of n tensor-parallel ranks has if one all-reduce is missing */
};
/* The missing all-reduce of tensor-parallel ranks: of gradients before column-parallel layers, or
 * after the row-parallel layers of attention, FFN or both; each rank continues with its part. */
enum missing {
	MISSING_NONE,
	MISSING_ENTER,
	MISSING_ATTENTION,
	MISSING_FFN,
	MISSING_BOTH
};
enum { EACH_PART = -1 };
struct grad_part {
	enum part_kind kind;
	int n, i; /* EACH_PART: all n, from one forward pass (PART_RANKS ignores i) */
	enum missing missing;
};

/* Channels of a head that are rotated together: j and j + half, as here and in Hugging Face; 2j
 * and 2j + 1, as by Meta; or halves although the rows of the weights are in Meta's order. */
enum rope_kind { ROPE_HALVES, ROPE_PAIRS, ROPE_HALVES_OF_PAIRS };

/* A layer that is skipped or computed twice; or a missing residual around attention or the FFN of
 * a layer (-1: all), in both passes, or only in the backward pass (detached). */
enum path_kind {
	PATH,
	PATH_NO_RESIDUAL,
	PATH_DETACHED,
	PATH_PARALLEL, /* the layer's FFN reads attention's input */
	PATH_SKIPPED,
	PATH_TWICE,
	PATH_SWAPPED
};
struct path {
	enum path_kind kind;
	int layer;    /* -1: all layers */
	int sublayer; /* ATTENTION, FFN; SUBLAYERS, detached: around both */
	int other;    /* PATH_SWAPPED: layer computed in its place */
};

/* Ranks of expert parallelism that do not exchange all gradients: a token's gates, or the input of
 * the experts, have a gradient only from the experts of one rank. */
struct local_experts {
	enum local_kind { LOCAL_NONE, LOCAL_GATES, LOCAL_INPUTS } kind;
	int n; /* number of ranks; rank i has the experts [i E / n, (i + 1) E / n) */
	const int *rank; /* [sequences of the batch]; NULL: rank 0 */
};

/* The scores in the balance loss: as they are; a softmax of them; only of the chosen experts. */
enum balance_scores { BALANCE_SCORES, BALANCE_SOFTMAX, BALANCE_CHOSEN };

/* Differences from the model's function, such as bugs make; all zeros: none. */
struct function {
	enum rope_kind rope;
	double softmax_scale;	/* softmax scale of scores; 0: 1 / sqrt(head dim) */
	double embedding_scale; /* factor of the embedding's rows; 0: 1 */
	bool heads_in_turn; /* query head h uses key head h mod kv_heads, instead of its group's */
	bool values_exchanged; /* values use the other of these two orders */
	int64_t rotated; /* only the first channels of a head are rotated, in halves; 0: all */
	int64_t kept_angles; /* only the first angles are not 0; 0: all */
	enum rotation {
		ROTATE_QUERIES_AND_KEYS,
		ROTATE_QUERIES,
		ROTATE_KEYS,
		ROTATE_ALL /* values, too */
	} rotation;
	int64_t unrotated_layer; /* 1 + the layer without rotation; 0: none */
	bool masked_score_zero;	 /* a masked key's score is 0 instead of minus infinity */
	const char *
		other_norm; /* part of names of norms: LayerNorm without biases instead of
				 * RMSNorm, or the reverse; NULL: none */
	bool alibi;	    /* scores decrease with distance (Press et al. 2022) */
	bool softmax_plus_one; /* softmax divides by its sum plus 1 */
	int64_t window_layer,
		layer_window; /* window of this layer only, in tokens; 0: none */
	/* With tensor-parallel ranks: how often the forward pass adds a sublayer's output
	 * and its bias (0: once). The backward pass adds them once. */
	double times[SUBLAYERS], bias_times[SUBLAYERS];
	bool gates_detached;  /* the router has no gradient of the experts' gates */
	bool router_detached; /* the router's input has no gradient */
	bool biased_gates; /* gates are made of the scores with the bias of the choice */
	bool no_shared_gate; /* the shared expert is not multiplied by its gate */
	bool groups_by_best; /* a group of experts counts by its best one, not by two */
	bool masked_zero; /* experts of other groups have score 0, not minus infinity */
	struct local_experts local;
	/* With n > 0, the experts' input has the gradient of slice i of n of their hidden layer. */
	struct input_slice {
		int n, i;
	} input_slice;
	enum balance_scores balance_scores;
	int64_t balance_layer; /* 1 + the only layer with a balance loss; 0: all */
	bool gate_exchanged;   /* SwiGLU applies the activation to the other matmul */
	struct path path;
	double logit_scale; /* factor of logits; 0: 1 */
	double zero_logits; /* number of additional tokens with logit 0 */
	double score_cap,
		logit_cap; /* x becomes cap * tanh(x / cap); of scaled scores and of logits; 0: x */
	enum loss {
		LOSS,
		LOSS_UNIFORM, /* cross entropy with all tokens as equal targets */
		LOSS_Z,	      /* square of log(sum of exp(logits)) */
		LOSS_ENTROPY  /* sum of p log p over all tokens */
	} loss;
};

/* Activation functions of bugs, not of models: further values of model.act. */
enum {
	ACT_OF_BUG = 1000,
	ACT_RELU = ACT_OF_BUG,
	ACT_PLAIN_GELU,
	ACT_TANH_GELU,
	ACT_QUICK_GELU,
	ACT_SILU
};

struct float64 {
	const struct model *m;
	double **w; /* [m->n_tensors], whole tensors [dims[0]][dims[1]] */
	struct function function;
	int64_t padding; /* 1 + token without a gradient of its embedding as an input; 0: none */
};

/* Adds scale times the gradient of the sum of losses to grad[t], where not NULL. Returns the sum
 * of losses. part: NULL for the whole. EACH_PART and PART_RANKS need grad[part->n][n_tensors].
 * With PART_RANKS, a split tensor is defined only in the rank's rows or columns. */
double float64_sequence(const struct float64 *f, const struct sequence *s, double scale,
	const struct grad_part *part, double **grad);
/* Returns roughly how many multiplications float64_sequence() needs for n positions. */
double float64_work(const struct model *m, int64_t n);
