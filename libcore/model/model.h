/*
 * model: what a model is: its architecture, its tensor table, its initial weights. How it is
 * computed is in pass.h, block.h and linear.h; decoding in generate.h. A layer knows shapes and the
 * interfaces of libcore/parallel, and no strategy.
 */
#ifndef MODEL_H
#define MODEL_H

#include "base/base.h"
#include "kernels/kernels.h"
#include "parallel/store.h"

/* ---- config.c: what a model is --------------------------------------------------- */

/* Architectures: an id, and a row arch_... in a file of its own. */
#define ARCH_LIST(X) X(GPT2, gpt2) X(LLAMA, llama)
#define ARCH_ID(id, row) ARCH_##id,
enum arch_id { ARCH_LIST(ARCH_ID) ARCHS };
#undef ARCH_ID

enum yes_no { BY_ARCH, YES, NO };
enum act_choice { ACTC_BY_ARCH, ACTC_GELU_TANH, ACTC_GELU, ACTC_SWIGLU };
enum init_choice { INITC_BY_ARCH, INITC_GPT2, INITC_LLAMA, INITC_DEPTH };
enum rope_scaling { ROPE_PLAIN, ROPE_LINEAR, ROPE_LLAMA3 };

/* As the options say it; model_init() turns "by architecture" and 0 into values. */
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

/* The two sublayers of a block, in their order. */
enum { ATTENTION, FFN, SUBLAYERS };
struct sublayer; /* layers.h */

/* What an architecture consists of. */
struct arch {
	enum norm_kind norm;
	double norm_eps;
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
/* Names for the options, closed by NULL. */
extern const char *const arch_names[],
	*const by_arch_names[], *const act_names[], *const init_names[],
							    *const rope_scaling_names[];

/* The tensors of a sublayer; NULL where the model has none. Those in w are numbered by the
 * file of the sublayer. */
enum { SUBLAYER_TENSORS = 8 };
struct sublayer_tensors {
	struct tensor *norm, *norm_bias;
	struct tensor *bias; /* added to the sum over slices */
	struct tensor *w[SUBLAYER_TENSORS];
};

/* The tensors of a block, and those of them that are operands of matrix products. */
enum { BLOCK_OPERANDS = 2 * SUBLAYER_TENSORS };
struct block_tensors {
	struct sublayer_tensors sub[SUBLAYERS];
	struct tensor *operand[BLOCK_OPERANDS];
	int n_operands;
};

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
/* Multiplications of one token in the forward of a block: with weights, and in causal attention. */
double model_block_work(const struct model *m);
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

#endif
