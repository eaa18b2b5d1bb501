/*
 * model: architecture, tensor table, initial weights. Forward and backward are in pass.h, block.h and
 * linear.h, decoding in generate.h. Layers depend on shapes and on the interfaces of parallel/, not
 * on the layout.
 */
#pragma once

#include "base/base.h"
#include "kernels/kernels.h"
#include "parallel/parallel.h"

#include <math.h>

/* ---- config.c: configuration and tensor table ------------------------------------ */

/* Architectures: an id, and the NAME of struct arch arch_NAME, defined in NAME.c. */
#define ARCH_LIST(X)  \
	X(GPT2, gpt2) \
	X(LLAMA, llama) X(OLMO2, olmo2) X(GEMMA2, gemma2) X(GEMMA3, gemma3) X(GLM4, glm4)
#define ARCH_ID(id, row) ARCH_##id,
enum arch_id { ARCH_LIST(ARCH_ID) ARCHS };
#undef ARCH_ID

enum yes_no { BY_ARCH, YES, NO };
enum bias_choice { BIAS_BY_ARCH, BIAS_ALL, BIAS_NONE, BIAS_QKV, BIAS_ATTENTION };
enum act_choice {
	ACTC_BY_ARCH,
#define ACT(id, ...) ACTC_##id, /* ACT_id + 1 */
#include "kernels/acts.h"
};
enum init_choice { INITC_BY_ARCH, INITC_GPT2, INITC_LLAMA, INITC_DEPTH };
enum rope_scaling { ROPE_PLAIN, ROPE_LINEAR, ROPE_LLAMA3, ROPE_YARN };

/* Values of the options; model_init() replaces "by architecture" and 0 by the defaults. */
struct model_config {
	int arch; /* enum arch_id */
	int64_t layers, heads, kv_heads, head_dim, dim, ffn_dim, context;
	int64_t vocab, vocab_multiple;
	int act, bias, tie, init; /* bias: enum bias_choice */
	bool qk_norm;		  /* RMSNorm of each head of queries and keys */
	int64_t nope_every;	  /* every Nth layer has no rotary positions; 0: none */
	double dropout, norm_eps;
	double rope_theta, rope_factor, rope_low, rope_high;
	int rope_scaling;
	int64_t rope_original;
	double rope_slow, rope_fast, rope_attention; /* YaRN */
	double rope_local_theta; /* of layers with a window; 0: rope_theta */
	int64_t rotary;		 /* channels of a head that are rotated; 0: all */
	/* Factors of embeddings, of what a sublayer adds to the residual stream, of attention scores and of logits; 0: those
	 * of the architecture. Limits of scores and logits: x becomes cap tanh(x / cap); 0: no limit. */
	double embedding_scale, residual_scale, attention_scale, logit_scale;
	double score_cap, logit_cap;
	int64_t window, window_from, window_skip; /* see layer_has_window() */
	const char *virtual_degrees; /* "tp=2,cp=2"; an axis that is not named has 1 */
};

/* The two sublayers of a block, in their order. */
enum { ATTENTION, FFN, SUBLAYERS };
struct sublayer; /* layers.h */

/* Where a sublayer has a norm: of its input, of its output before that is added to the stream, or both. */
enum norm_place { NORM_OF_INPUT, NORM_OF_OUTPUT, NORM_OF_BOTH };

struct arch {
	enum norm_kind norm;
	double norm_eps;
	enum norm_place norm_place;
	bool norm_adds_one;  /* a norm multiplies by 1 + its weight */
	bool qk_norm;	     /* always has norms of queries and keys */
	bool wide_qk_norm;   /* they are of all heads at once, not of each head */
	bool root_embedding; /* embeddings are multiplied by the root of the width */
	bool check_only; /* kernels lack a part of it: float64.h computes it, pt-train does not train it */
	bool learned_positions, rope;
	enum act_choice act;
	enum init_choice init;
	bool bias, tie;
	int64_t (*ffn_dim)(int64_t dim);
	const struct sublayer *sublayer[SUBLAYERS];
};

#define ARCH_ROW(id, row) extern const struct arch arch_##row;
ARCH_LIST(ARCH_ROW)
#undef ARCH_ROW
extern const struct sublayer attention_heads, ffn_dense;
/* Names for the options, NULL-terminated. */
extern const char *const arch_names[], *const by_arch_names[], *const act_names[];
extern const char *const bias_names[], *const init_names[], *const rope_scaling_names[];

/* The tensors of a sublayer; NULL: the model does not have this tensor. */
enum { SUBLAYER_INPUTS = 3 };
struct sublayer_tensors {
	struct tensor *norm, *norm_bias; /* of the input */
	struct tensor *post_norm;	 /* of the output */
	struct tensor *in[SUBLAYER_INPUTS],
		*in_bias[SUBLAYER_INPUTS]; /* column-parallel */
	struct tensor *in_norm
		[SUBLAYER_INPUTS]; /* of each head, or of all at once; all slices use it */
	struct tensor *out,
		*bias; /* row-parallel; the bias is added to the sum over slices */
};

/* The tensors of a block, and the matmul operands among them. */
enum { BLOCK_OPERANDS = SUBLAYERS * (SUBLAYER_INPUTS + 1) };
struct block_tensors {
	struct sublayer_tensors sub[SUBLAYERS];
	struct tensor *operand[BLOCK_OPERANDS];
	int n_operands;
};

struct model {
	struct model_config c; /* resolved */
	const struct arch *arch;
	enum act_kind act;
	/* of all linear layers; of queries, keys and values; of the output of attention */
	bool bias, qkv_bias, out_bias;
	bool tie;
	int tp, cp; /* virtual degrees */
	int64_t head_dim, padded_vocab;
	struct tensor *tensors;
	int n_tensors, n_units;
	struct tensor *tokens, *positions, *norm, *norm_bias;
	struct tensor *output; /* tied: the same as tokens */
	struct block_tensors *blocks;
};

/* Parses "tp=2,cp=4"; a degree that is not named keeps its value. -1: invalid text. */
int model_virtual(const char *text, int64_t *tp, int64_t *cp, struct err *e);
/* `vocab`: the vocabulary of the data; 0: that of the config. All slices are placed; a rank that has
 * a part of the model calls tensors_place(). -1: the shapes are not possible. To be freed by
 * model_free(). */
int model_init(
	struct model *m, const struct model_config *c, int64_t vocab, struct err *e);
void model_free(struct model *m);
static inline enum bias_choice model_bias(const struct model *m)
{
	return m->bias	     ? BIAS_ALL
	       : m->out_bias ? BIAS_ATTENTION
	       : m->qkv_bias ? BIAS_QKV
			     : BIAS_NONE;
}
/* The width of all queries: that of the residual stream, unless heads have a size of their own. */
static inline int64_t model_q_width(const struct model *m)
{
	return m->c.heads * m->head_dim;
}
bool layer_has_window(const struct model_config *c, int64_t layer);
/* Sets the options of windows so that these layers have one, always the same ones for the same layers; false: none
 * say that. */
bool config_set_windows(struct model_config *c, const bool *has);
/* A query of the layer attends to so many tokens, its own included (sliding window); 0: to all before it. */
int64_t model_window(const struct model *m, int64_t layer);
/* Does attention of this layer rotate queries and keys by their positions? */
static inline bool model_rotates(const struct model *m, int64_t layer)
{
	return m->arch->rope && (!m->c.nope_every || (layer + 1) % m->c.nope_every != 0);
}
/* The operands of the blocks become float8 operands; with `skip_ends` but for the first and the last
 * block. */
void model_set_float8(struct model *m, bool skip_ends);

/* Numbers of parameters: all, and with weight decay. */
struct model_counts {
	int64_t all, decayed;
};
struct model_counts model_counts(const struct model *m);
/* The T of the FLOPs of attention, as a mean over layers: the context, or in a layer with a window W of
 * less 2 W - W^2/T; half of it are the keys that a query attends to. */
double model_attended(const struct model *m);
/* The first unit with a tensor that is trained: the backward ends with it. n_units: none. */
int model_lowest_trained(const struct model *m);
/* FLOPs of training per token: 6 N + 12 L C T, as in PaLM (Chowdhery et al. 2022, appendix B), which
 * counts attention without the causal mask; `causal` halves that term. T is model_attended(). With frozen tensors
 * 2 (N + N' + N'') + (4 L + 8 L') C T: N' parameters through which the gradient passes, those from the lowest unit that
 * is trained on and the output layer, N'' that are trained, L' layers from that unit on. */
double model_flops_per_token(const struct model *m, bool causal);
/* Multiply-adds per token in the forward of a block: matmuls with weights, and causal attention. */
double model_block_work(const struct model *m);
/* Appends the name of one of n units: "tok_embeddings", "layers.0", ..., "output". */
void model_unit_name(int unit, int n, struct str *out);
/* Appends the list of tensors with their sizes; `all`: with the tensors of a layer. */
void model_print(const struct model *m, bool all, struct str *out);

/* Returns the frequency of pair j of a head's channels in a layer: theta^(-2j / rotated channels), scaled as the options
 * specify; 0 for a pair that is not rotated. At position t the pair is rotated by t times this angle. (pass.c) */
double rope_frequency(const struct model *m, int64_t layer, int64_t j);
/* Returns the factor of cosines and sines of the pairs that are rotated. */
double rope_amplitude(const struct model *m);
/* Returns the factor of attention scores. */
static inline float model_attention_scale(const struct model *m)
{
	return m->c.attention_scale > 0 ? (float)m->c.attention_scale
					: 1.0f / sqrtf((float)m->head_dim);
}

/* Returns an option, or a part of the architecture, that the kernels do not compute; NULL: they compute the model. */
const char *model_lacks_kernels(const struct model *m);
/* Rejects a model that the kernels do not compute. */
int model_check_kernels(const struct model *m, struct err *e);
static inline bool model_has_norm(const struct model *m, enum norm_place place)
{
	return m->arch->norm_place == NORM_OF_BOTH || m->arch->norm_place == place;
}

/* ---- init.c ---------------------------------------------------------------------- */

/* To be increased when forward or backward add in another order, so that a run that goes on no longer has the
 * bits that it had: runs and checkpoints record it. 2: queries, keys and values are one matmul in the backward. */
enum { PASS_VERSION = 2 };

/* To be increased when kernels/normal.h computes other bits; a run records it. */
enum { INIT_VERSION = 2 };
/* Element i of a whole tensor is a function of (seed, name, i). Fills x, in device memory, with
 * rows of the tensor or of a slice of its columns; `first`: the index of the first element of x. */
void init_rows(struct device *d, const struct tensor *t, uint64_t seed, int64_t first,
	struct mat x);
/* Initialises all parameters that this rank updates. Not collective. */
void init_parts(struct store *s, uint64_t seed);
