/* model: architecture, tensor table, initial weights. Forward and backward are in pass.h, block.h
 * and linear.h, decoding in generate.h. Layers depend on shapes and on the interfaces of
 * parallel/, not on the layout. */
#pragma once

#include "base/base.h"
#include "kernels/experts.h"
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
/* What the fractions of slots in the balance loss are counted over (router.c). */
enum balance_over { BALANCE_MICRO_BATCH, BALANCE_SEQUENCE, BALANCE_MODEL, BALANCE_BATCH };
#define BALANCE_OVER_WORDS "micro-batch", "sequence", "model", "batch"
enum rope_scaling { ROPE_PLAIN, ROPE_LINEAR, ROPE_LLAMA3, ROPE_YARN };

/* The model's options; model_init() replaces "by architecture" and 0 by the defaults. */
struct model_config {
	int arch; /* enum arch_id */
	int64_t layers, heads, kv_heads, head_dim, dim, ffn_dim, context;
	int64_t vocab, vocab_multiple;
	int act, bias, tie, init; /* bias: enum bias_choice */
	bool qk_norm;		  /* RMSNorm of each head of queries and keys */
	bool qk_norm_all;	  /* one norm for all heads together */
	int64_t nope_every;	  /* every Nth layer has no rotary positions; 0: none */
	double dropout, norm_eps;
	double rope_theta, rope_factor, rope_low, rope_high;
	int rope_scaling;
	int64_t rope_original;
	double rope_slow, rope_fast, rope_attention; /* YaRN */
	double rope_local_theta; /* theta of layers with a window; 0: rope_theta */
	int64_t rotary;		 /* channels of a head that are rotated; 0: all */
	/* factors of embeddings, sublayer outputs, scores, logits; 0: the architecture's factor */
	double embedding_scale, residual_scale, attention_scale, logit_scale;
	double score_cap, logit_cap; /* soft caps: x becomes cap tanh(x / cap); 0: none */
	int64_t window, window_from, window_skip; /* see layer_has_window() */
	/* Mixture of experts (experts.c); experts 0: none. expert_dim 0: ffn_dim */
	int64_t experts, experts_per_token, expert_dim;
	int64_t shared_expert_dim;   /* width of the expert of all tokens; 0: none */
	bool shared_expert_gate;     /* multiplies it by the sigmoid of a score */
	int64_t moe_from, moe_every; /* see layer_has_experts() */
	const char *moe_not;	     /* layers without experts, such as "0,3"; or NULL */
	int router;		     /* enum router_kind */
	bool router_norm;	     /* divides the gates of a token by their sum */
	double router_scale;
	int64_t router_groups, router_top_groups; /* 0: no groups */
	double balance_loss, router_z_loss;	  /* coefficients; 0: off */
	int balance_over;			  /* enum balance_over */
	double router_bias_rate; /* change of the bias per step; 0: off */
	bool router_bias_center;
	double expert_capacity; /* see model_capacity(); 0: no slot is dropped */
	const char
		*virtual_degrees; /* such as "tp=2,cp=2"; a missing axis has degree 1 */
};

/* The two sublayers of a block, in their order. */
enum { ATTENTION, FFN, SUBLAYERS };
struct sublayer; /* layers.h */

/* The norms of a sublayer: of its input, of its output before the residual addition, or of both. */
enum norm_place { NORM_OF_INPUT, NORM_OF_OUTPUT, NORM_OF_BOTH };

struct arch {
	enum norm_kind norm;
	double norm_eps;
	enum norm_place norm_place;
	bool norm_adds_one;  /* norms multiply by 1 + weight */
	bool qk_norm;	     /* always normalizes queries and keys */
	bool wide_qk_norm;   /* normalizes all heads together, not each head */
	bool root_embedding; /* multiplies embeddings by the square root of dim */
	bool check_only; /* supported by pt-check (float64.h) only: there are no kernels */
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
extern const struct sublayer attention_heads, ffn_dense, ffn_experts;
/* Names for the options, NULL-terminated. */
extern const char *const arch_names[], *const by_arch_names[], *const act_names[];
extern const char *const bias_names[], *const init_names[], *const rope_scaling_names[];
extern const char *const router_names[];

/* The tensors of a sublayer; NULL: the model does not have this tensor. */
enum { SUBLAYER_INPUTS = 3 };
struct sublayer_tensors {
	struct tensor *norm, *norm_bias; /* norm of the input */
	struct tensor *post_norm;	 /* norm of the output */
	struct tensor *in[SUBLAYER_INPUTS],
		*in_bias[SUBLAYER_INPUTS]; /* column-parallel */
	/* Norm of each head of queries or keys, or of all heads together; all slices use it. */
	struct tensor *in_norm[SUBLAYER_INPUTS];
	struct tensor *out;  /* row-parallel */
	struct tensor *bias; /* added to the sum over slices */
	/* Mixture of experts; `in` and `out` are the weights of the shared expert. */
	struct tensor *router, *router_bias, *shared_gate;
	struct tensor *w13; /* [expert][W1, W3][row], column-parallel */
	struct tensor *w2;  /* [expert][row], row-parallel */
};

/* The tensors of a block, and the matmul operands among them. */
enum { BLOCK_OPERANDS = SUBLAYERS * (SUBLAYER_INPUTS + 1) + 2 };
struct block_tensors {
	struct sublayer_tensors sub[SUBLAYERS];
	struct tensor *operand[BLOCK_OPERANDS];
	int n_operands;
};

struct model {
	struct model_config c; /* resolved */
	const struct arch *arch;
	enum act_kind act;
	bool bias, qkv_bias,
		out_bias; /* biases in all linear layers; in wq, wk, wv; in wo */
	bool tie;
	int tp, cp; /* virtual degrees */
	int64_t head_dim, padded_vocab;
	struct tensor *tensors;
	int n_tensors, n_units;
	struct tensor *tokens, *positions, *norm, *norm_bias;
	struct tensor *output; /* equal to `tokens` if tied */
	struct block_tensors *blocks;
};

/* Parses "tp=2,cp=4"; a missing degree keeps its value. Returns -1 if the text is invalid. */
int model_parse_virtual(const char *text, int64_t *tp, int64_t *cp, struct err *e);
/* Resolves the options and makes the tensor table. `vocab`: number of tokens in the data; 0: use
 * the option. All slices are local; a rank with a part of the model then calls tensors_place().
 * Returns -1 if the shapes are invalid. The caller releases m with model_release(). */
int model_init(
	struct model *m, const struct model_config *c, int64_t vocab, struct err *e);
void model_release(struct model *m);
static inline enum bias_choice model_bias(const struct model *m)
{
	return m->bias	     ? BIAS_ALL
	       : m->out_bias ? BIAS_ATTENTION
	       : m->qkv_bias ? BIAS_QKV
			     : BIAS_NONE;
}
/* Returns the width of all queries: dim, unless head_dim is set. */
static inline int64_t model_q_width(const struct model *m)
{
	return m->c.heads * m->head_dim;
}
/* Returns true if a layer has a window. Every window_skip'th layer has none; if it is < 0, only
 * every -window_skip'th has one. Layers before window_from have none. */
bool layer_has_window(const struct model_config *c, int64_t layer);
/* Returns true if the layer's feed-forward network is a mixture of experts: every moe_every'th layer
 * from moe_from on, except the layers of moe_not. */
bool layer_has_experts(const struct model_config *c, int64_t layer);
/* Layers of a kind have tensors and activations of equal shapes. Kind 1 has experts. */
enum { LAYER_KINDS = 2 };
int model_layer_kind(const struct model *m, int64_t layer);
int64_t model_layers_of_kind(const struct model *m, int kind); /* their number */
/* Returns the first layer of a kind, or -1. */
int64_t model_layer_of_kind(const struct model *m, int kind);
/* Returns sublayer ATTENTION or FFN of a layer. */
const struct sublayer *model_sublayer(const struct model *m, int64_t layer, int i);
/* Sets the window options so that the layers with has[layer] have a window. Returns false if no
 * options can express that. */
bool config_set_windows(struct model_config *c, const bool *has);
/* Returns the sliding window of a layer in tokens, including the query's own; 0: no window. */
int64_t model_window(const struct model *m, int64_t layer);
/* Returns true if a norm of queries or keys normalizes all heads together, not each head. */
static inline bool model_has_wide_qk_norm(const struct model *m)
{
	return m->arch->wide_qk_norm || m->c.qk_norm_all;
}
/* Returns true if attention of this layer rotates queries and keys by their positions. */
static inline bool model_rotates(const struct model *m, int64_t layer)
{
	return m->arch->rope && (!m->c.nope_every || (layer + 1) % m->c.nope_every != 0);
}
/* Marks the operands of all blocks as float8; `skip_ends`: except the first and the last block. */
void model_set_float8(struct model *m, bool skip_ends);

/* Numbers of parameters: all, with weight decay, and multiplied with one token: of a layer's experts,
 * only the chosen ones. */
struct model_counts {
	int64_t all, decayed, active;
};
/* Returns the number of parameters, and the number with weight decay. */
struct model_counts model_counts(const struct model *m);
/* Returns T in the FLOPs of attention, averaged over layers: the context, or 2 W - W^2/T in a layer
 * with a smaller window W. A query attends to half as many keys. */
double model_attended(const struct model *m);
/* Returns the first unit with a trained tensor, where the backward ends; n_units: none. */
int model_first_trained_unit(const struct model *m);
/* Returns the FLOPs of training per token: 6 N + 12 L C T, as in PaLM (Chowdhery et al. 2022,
 * appendix B), which counts attention without the causal mask; `causal` halves that term. T is
 * model_attended(). With frozen tensors 2 (N + N' + N'') + (4 L + 8 L') C T: the gradient passes N'
 * parameters (from the lowest trained unit on, and the output layer) and L' layers; N'' train. */
double model_flops_per_token(const struct model *m, bool causal);
/* Returns the multiply-adds per token in a layer's forward: weights' matmuls, causal attention. */
double model_layer_work(const struct model *m, int64_t layer);
/* Appends the name of unit `unit` of n: "tok_embeddings", "layers.0", ..., "output". */
void model_unit_name(int unit, int n, struct str *out);
/* Appends a list of tensors, with one line for all layers; `with_layer`: also a layer's tensors. */
void model_print(const struct model *m, bool with_layer, struct str *out);

/* Returns the frequency of pair j of a head's channels in a layer (pass.c): theta^(-2j / rotated
 * channels), scaled as the options specify; 0 for a pair that is not rotated. At position t the
 * pair is rotated by t times this angle. */
double rope_frequency(const struct model *m, int64_t layer, int64_t j);
/* Returns the factor by which YaRN scales the cosines and sines; else 1. */
double rope_amplitude(const struct model *m);
/* Returns the factor of attention scores. */
static inline float model_attention_scale(const struct model *m)
{
	return m->c.attention_scale > 0 ? (float)m->c.attention_scale
					: 1.0f / sqrtf((float)m->head_dim);
}

/* Returns the name of an option (or "arch NAME") that the kernels do not support; NULL: none. */
const char *model_unsupported_part(const struct model *m);
/* Rejects a model that the kernels do not support. */
int model_check_kernels(const struct model *m, struct err *e);
static inline bool model_has_norm(const struct model *m, enum norm_place place)
{
	return m->arch->norm_place == NORM_OF_BOTH || m->arch->norm_place == place;
}

/* ---- init.c ---------------------------------------------------------------------- */

/* Increase when forward or backward add in another order: a resumed run would have other bits. Runs
 * and checkpoints record it. 2: the backward of wq, wk, wv is one matmul. */
enum { PASS_VERSION = 2 };

/* Increase when kernels/normal.h computes other bits. Runs record it. */
enum { INIT_VERSION = 2 };
/* Fills x, in device memory, with initial values of rows of a tensor, or of a slice of its columns.
 * Element i of a tensor is a function of (seed, name, i). `first`: index of x's first element. */
void init_rows(struct device *d, const struct tensor *t, uint64_t seed, int64_t first,
	struct mat x);
/* Initializes all parameters that this rank updates. Not collective. */
void init_parts(struct store *s, uint64_t seed);
