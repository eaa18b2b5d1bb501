/* pt-check: gradients of functions other than the model's. Each must be reported by name. */
#include "tests/support/check_step.h"
#include "tests/support/support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void rotate_nothing(struct model *m)
{
	m->c.nope_every = 1;
}

static void rotate_all(struct model *m)
{
	m->c.nope_every = 0;
}

static void no_head_norms(struct model *m)
{
	m->c.qk_norm = false;
}

static void no_final_norm(struct model *m)
{
	m->norm = m->norm_bias = NULL;
}

#define QWEN LLAMA "bias = qkv\n"
#define DEEP LLAMA "layers = 3\n"
#define IN_LAYER(name) {name}, .scale = 2
static const struct {
	const char *config;
	struct variant v;
	const char *text;
	int tp;
} functions[] = {
	{LLAMA, {.change = rotate_nothing}, "as if queries and keys were not rotated"},
	{LLAMA "nope-every = 2\n", {.change = rotate_all},
		"as if the layers without rope had"},
	{LLAMA, {.function = {.rotated = 4}}, "as if only the first half of each head's"},
	{LLAMA, {.rope_linear = 2}, "as if positions were divided by 2 (linear"},
	{LLAMA, {.rope_linear = 8}, "as if positions were divided by 8 (linear"},
	{GPT2_OF("32"), {.shift = 1}, "as if positions began at 1"},
	{GPT2_OF("32"), {.shift = 2}, "as if positions began at 2"},
	{GPT2, {.zeroed = {"pos_embeddings"}},
		"as if the embedding of positions were not added"},
	{LLAMA, {.function = {.alibi = true}},
		"as if scores fell with the distance, too"},
	{LLAMA, {.change = rotate_nothing, .function = {.alibi = true}},
		"as if scores fell with the distance (ALiBi), and there were no rope"},
	{QWEN, {.zeroed = {"wq.bias"}}, "as if the biases of queries were not added"},
	{QWEN, {.zeroed = {"wv.bias"}}, "as if the biases of values were not added"},
	{GPT2, {.zeroed = {"wq.bias", "wk.bias", "wv.bias"}},
		"as if the biases of queries, keys and values were not added"},
	{GPT2, {.zeroed = {"wo.bias"}}, "as if the bias of attention's output were not"},
	{GPT2, {.zeroed = {"w1.bias"}}, "as if the bias of the FFN's input were not"},
	{GPT2, {.zeroed = {"w2.bias"}}, "as if the bias of the FFN's output were not"},
	{GPT2, {.zeroed = {"norm.bias"}}, "as if the biases of the norms were not"},
	{LLAMA, {.norm_offset = 1}, "as if norms multiplied by 1 + w"},
	{LLAMA, {.other_norm = true}, "as if the norms were LayerNorm, not RMSNorm"},
	{GPT2, {.other_norm = true}, "as if the norms were RMSNorm, not LayerNorm"},
	{LLAMA "qk-norm = yes\n", {.change = no_head_norms},
		"as if queries and keys had no norms"},
	{LLAMA, {.change = no_final_norm},
		"as if there were no norm after the last layer"},
	{GPT2, {.change = no_final_norm},
		"as if there were no norm after the last layer"},
	{LLAMA, {.act = ACT_PLAIN_GELU}, "as if the activation were GELU, not SiLU"},
	{LLAMA, {.act = ACT_TANH_GELU},
		"as if the activation were GELU (by tanh), not SiLU"},
	{LLAMA, {.act = ACT_RELU}, "as if the activation were ReLU"},
	{GPT2, {.act = ACT_RELU}, "as if the activation were ReLU"},
	{GPT2, {.act = ACT_SILU}, "as if the activation were SiLU, not GELU"},
	{LLAMA, {.function = {.softmax_plus_one = true}},
		"as if attention's softmax added 1 to its"},
	{LLAMA, {.function = {.values_exchanged = true}},
		"as if query heads were assigned to value heads in turn"},
	{LLAMA, {.function = {.heads_in_turn = true, .values_exchanged = true}},
		"as if query heads were assigned to key heads in turn"},
	{LLAMA, {.function = {.heads_in_turn = true}},
		"as if query heads were assigned to key heads in turn, not in groups"},
	{LLAMA, {.function = {.softmax_scale = 0.17677669529663687}},
		"as if scores were divided by the root of the model's width"},
	{LLAMA, {.function = {.path = {PATH_PARALLEL, -1, 0, 0}}}, "(parallel residual)"},
	{GPT2, {.function = {.path = {PATH_PARALLEL, -1, 0, 0}}}, "(parallel residual)"},
	{LLAMA, {.mask = MASK_NOT_SELF}, "as if attention did not see the token itself"},
	{GPT2, {.mask = MASK_NOT_SELF_BUT_FIRST},
		"as if attention did not see the token itself"},
	{LLAMA, {.mask = MASK_LAST_CHUNK, .mask_chunks = 2},
		"as if the last chunk saw all of"},
	{LLAMA, {.mask = MASK_ALL_CHUNKS, .mask_chunks = 2},
		"as if each chunk saw all of"},
	{DEEP, {.function = {.path = {PATH_SWAPPED, 0, 0, 2}}},
		"as if layers 0 and 2 were exchanged"},
	{DEEP, {.function = {.window_layer = 1, .layer_window = 5}},
		"as if layer 1 had a sliding window of 5 tokens"},
	{DEEP "sliding-window = 6\n",
		{.function = {.window_layer = 1, .layer_window = LENGTH}},
		"as if layer 1 had no sliding window"},
	{LLAMA, {.norm_eps = 1e-3}, "as if the norms had eps 0.001\n"},
	{GPT2, {.norm_eps = 1e-4}, "as if the norms had eps 0.0001\n"},
	{LLAMA, {.norm_eps = 2e-6}, "as if the norms had eps 2e-06\n"},
	{LLAMA, {.scaled = {".w2."}, .scale = 0.70710678},
		"the output of the FFN were multiplied by 0.707\n"},
	{GPT2, {.scaled = {".wo."}, .scale = 1.5},
		"the output of attention were multiplied by 1.5\n"},
	{LLAMA, {.function = {.kept_angles = 2}},
		"as if heads were rotated only by the first half of"},
	{LLAMA, {.function = {.rotation = ROTATE_QUERIES}},
		"as if queries were rotated, and keys were not"},
	{LLAMA, {.function = {.rotation = ROTATE_KEYS}},
		"as if keys were rotated, and queries were not"},
	{LLAMA, {.function = {.rotation = ROTATE_ALL}}, "as if values were rotated, too"},
	{LLAMA, {.reversed = true},
		"as if rotations had the opposite sign, or positions"},
	{GPT2, {.reversed = true}, "as if positions ran backwards"},
	{GPT2, {.still = true}, "as if all positions were 0"},
	{GPT2, {.shift = 1}, "as if positions began at 1"},
	{LLAMA, {.rope_theta = 3e5}, "as if rope theta were 3e+05\n"},
	{LLAMA, {.rope_theta = 12000}, "as if rope theta were 1.2e+04\n"},
	{LLAMA, {.mask = MASK_NOT_FIRST}, "as if attention did not see the first token"},
	{LLAMA, {.function = {.masked_score_zero = true}},
		"as if the scores of tokens that attention must not see were 0"},
	{GPT2, {.scaled = {"wo.bias", "w2.bias"}, .scale = 2},
		"as if the biases of attention's and the FFN's outputs were added twice"},
	{LLAMA, {.function = {.other_norm = "attention_norm"}},
		"as if the norms before attention were LayerNorm, not RMSNorm"},
	{GPT2, {.function = {.other_norm = "attention_norm"}},
		"as if the norms before attention were RMSNorm, not LayerNorm"},
	{LLAMA, {.act = ACT_QUICK_GELU}, "(quick GELU)"},
	{GPT2, {.act = ACT_QUICK_GELU}, "(quick GELU)"},
	{DEEP, {.function = {.unrotated_layer = 2}},
		"as if queries and keys of layer 1 were not rotated"},
	/* (the biases of keys then have no gradient) */
	{QWEN, {.function = {.unrotated_layer = 1}},
		"as if queries and keys of layer 0 were not rotated"},
	{DEEP, {.function = {.path = {PATH_PARALLEL, 1, 0, 0}}},
		"as if attention and FFN of layer 1 had the same input"},
	{DEEP, {.scaled = IN_LAYER("layers.1.attention.wo.")},
		"as if in layer 1 the output of attention were multiplied by 2\n"},
	{GPT2, {.scaled = IN_LAYER("layers.0.feed_forward.w2.")},
		"as if in layer 0 the output of the FFN were multiplied by 2\n"},
	{LLAMA, {.function = {.embedding_scale = 2}},
		"as if the embedding were multiplied by 2\n"},
	{DEEP, {.exchanged = {0, 2}}, "as if layers 0 and 2 were exchanged"},
	{DEEP, {.function = {.path = {PATH_DETACHED, 1, SUBLAYERS, 0}}},
		"as if the residual connection around the whole of layer 1 were detached"},
	{LLAMA, {.function = {.zero_logits = 13}},
		"as if the vocabulary had 13 more tokens, whose logits are 0"},
	{LLAMA, {.function = {.logit_cap = 0.5}},
		"as if logits were softly capped: x becomes 0.5 tanh(x / 0.5)"},
	{LLAMA, {.function = {.times = {2, 1}}}, "attention were summed twice over", 2},
	{LLAMA, {.function = {.times = {1, 2}}}, "the FFN were summed twice over", 2},
	{LLAMA, {.scaled = {"w2.weight"}, .scale = 2},
		"the FFN, and its gradient, were summed twice", 2},
	{GPT2, {.function = {.bias_times = {2, 1}}},
		"rank added the bias of attention's output", 2},
	{GPT2, {.function = {.bias_times = {1, 2}}},
		"rank added the bias of the FFN's output", 2},
	{GPT2, {.function = {.bias_times = {2, 2}}},
		"rank added the biases of attention's and", 2},
};

TEST(other_functions)
{
	for (size_t k = 0; k < ARRAY_LEN(functions); k++) {
		struct check_opts o = plain_check;
		struct step s;
		step_begin(&s, functions[k].config);
		struct variant v = functions[k].v;
		v.sequence = -1;
		gradients_free(&s.g);
		reference_float64(&s.w, &s.batch, &v, &s.g);
		if (functions[k].tp)
			o.tp = functions[k].tp;
		step_train(&s);
		step_expect(&s, &o, functions[k].text);
		step_end(&s);
	}
}
