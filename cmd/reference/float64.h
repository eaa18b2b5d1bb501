/*
 * float64: loss and gradients of a model in double precision, in plain loops written from the papers. It shares no kernel with kernels/, so that it can judge them as well as other programs: the same
 * function, computed independently.
 *
 * Matrices are row-major, weights [out, in]. Not collective; nothing fails but for want of memory, which ends
 * the program. It has no dropout.
 */
#pragma once

#include "model/model.h"

/* One sequence of n positions. */
struct sequence {
	int64_t n;
	const int32_t *tokens, *targets; /* [n]; a target below 0 does not count */
	const int32_t *pos;		 /* [n], for position embeddings and rotations */
	const int32_t *start; /* [n], the first position that each one attends to, */
	const int32_t *last;  /* and the last one; NULL: itself */
	int64_t chunk; /* of a chunk of this length each one sees no more positions than of its own; 0: all */
	const double *weights; /* [n], of the targets; NULL: 1 */
	double *size; /* the sum of |weight| times loss is added to it; NULL: it is not */
	/* Where a pass stores rows; NULL: nowhere. */
	const struct target_rows *rows;
};

/*
 * NULL: not stored. What each position has to do with the gradient of the last block's w2, which is the sum over the
 * positions of dy x^T: the position's own target alone, as no attention follows.
 */
struct target_rows {
	double *dy, *x; /* [n][dim], [n][ffn_dim] */
	double *loss;	/* [n]; 0 without a target */
	double *dx;	/* [n][dim]: of the embedding's rows */
};

/*
 * The part of each gradient that is computed; the gradients of activations are whole, but for PART_RANKS. What a
 * rank of another program has before a sum over ranks is such a part.
 */
enum part_kind {
	PART_WHOLE,
	PART_CHUNK, /* of the positions, the i-th of n (context and sequence parallelism) */
	PART_ZIGZAG, /* positions as with balanced context parallelism: pieces i and 2n - 1 - i of 2n */
	PART_SLICE, /* of norms: through the i-th of n slices of the layers behind (tensor parallelism) */
	PART_USE, /* of a tied table: as embedding (0), as output layer (1) */
	PART_RANKS /* all that each of n tensor-parallel ranks has, one of whose sums is missing */
};
/* Sums over tensor-parallel ranks: of the gradients at the begin of column-parallel layers; and behind the
 * row-parallel ones of attention, of the FFN, of both, without which a rank goes on with its own part. */
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
	int n, i; /* EACH_PART: each of the n, by one forward pass (no i with PART_RANKS) */
	enum missing missing;
};

/* Which channels of a head are rotated together: j and j + half, as here and by Hugging Face; 2j and 2j + 1, as by
 * Meta; or halves of weights whose rows are in Meta's order. */
enum rope_kind { ROPE_HALVES, ROPE_PAIRS, ROPE_HALVES_OF_PAIRS };

/* A layer that is left out, or computed twice; or a residual that is, beside attention or the FFN of a layer (-1: of
 * all), in both passes or, detached, in the backward only. */
enum path_kind {
	PATH,
	PATH_NO_RESIDUAL,
	PATH_DETACHED,
	PATH_PARALLEL, /* the FFN of the layer (-1: of all) has the input of attention */
	PATH_SKIPPED,
	PATH_TWICE,
	PATH_SWAPPED
};
struct path {
	enum path_kind kind;
	int layer,
		sublayer; /* ATTENTION, FFN; SUBLAYERS, detached: around both of them */
	int other;	  /* PATH_SWAPPED: the layer that is computed in its place */
};

/* Another function than the model's options say, such as a bug makes; zeros: none. */
struct function {
	enum rope_kind rope;
	double softmax_scale;	/* of scores; 0: 1 / sqrt(width of a head) */
	double embedding_scale; /* of the embedding's rows; 0: 1 */
	bool heads_in_turn; /* query head h has key head h mod their number, not h by group */
	bool values_exchanged; /* values have the other of these two orders than keys */
	int64_t rotated; /* so many first channels of a head are rotated, in halves; 0: all */
	int64_t kept_angles; /* only so many first angles are not 0; 0: all */
	enum turned {
		TURN_QUERIES_AND_KEYS,
		TURN_QUERIES,
		TURN_KEYS,
		TURN_ALL	 /* values, too */
	} turned;		 /* what is rotated */
	int64_t unrotated_layer; /* 1 + the layer that has no rotation; 0: none */
	bool masked_score_zero; /* the score of a key that is not seen is 0, not minus infinity */
	const char *
		other_norm; /* norms whose names contain this are LayerNorm without biases
				  * instead of RMSNorm, or the reverse; NULL: none */
	bool alibi;	    /* scores fall with the distance (Press et al. 2022) */
	bool softmax_plus_one; /* the sum that softmax divides by has 1 more */
	int64_t window_layer,
		layer_window; /* tokens that this layer alone sees; 0: no window */
	/* With tensor-parallel ranks: how often the output of a sublayer, and its bias, are added in the
	 * forward pass; the backward pass adds them once; 0: once. */
	double times[SUBLAYERS], bias_times[SUBLAYERS];
	bool gate_exchanged; /* SwiGLU's activation is of the other product */
	struct path path;
	double logit_scale; /* of logits; 0: 1 */
	double zero_logits; /* number of additional tokens whose logit is 0 */
	double score_cap,
		logit_cap; /* x becomes cap tanh(x / cap), of scaled scores and of logits; 0: x */
	enum loss {
		LOSS,
		LOSS_UNIFORM, /* cross entropy with all tokens alike as the target */
		LOSS_Z,	      /* the square of the logarithm of the sum of exp(logits) */
		LOSS_ENTROPY  /* the sum of p log p over all tokens */
	} loss;
};

/* Activation functions that models do not have but bugs: values of model.act. */
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
	double **w; /* [m->n_tensors]: of whole tensors, [dims[0]][dims[1]] */
	struct function function;
	int64_t padding; /* 1 + the token whose embedding has no gradient as an input; 0: none */
};

/* Adds scale times the gradient of the sum of losses to grad[t] of each tensor whose pointer is not NULL, and
 * returns the sum of losses. `part`: NULL for the whole. With EACH_PART grad is [part->n][n_tensors]; so it is with
 * PART_RANKS: a rank's rows
 * or columns of a split tensor are right, the others undefined. */
double float64_sequence(const struct float64 *f, const struct sequence *s, double scale,
	const struct grad_part *part, double **grad);
/* Multiplications of such a call for n positions, roughly. */
double float64_work(const struct model *m, int64_t n);
