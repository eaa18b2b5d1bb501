/* GLM-4 (GLM team 2024, the models of April 2025): Llama with RMSNorm of inputs and outputs of
 * sublayers, and biases of queries, keys and values. Its rotary-channels are an option. */
#include "model/model.h"

static int64_t ffn_dim(int64_t dim)
{
	return arch_llama.ffn_dim(dim);
}

const struct arch arch_glm4 = {
	.norm = NORM_RMS,
	.norm_eps = 1.5625e-7,
	.norm_place = NORM_OF_BOTH,
	.check_only = true,
	.rope = true,
	.act = ACTC_SWIGLU,
	.init = INITC_LLAMA,
	.ffn_dim = ffn_dim,
	.sublayer = {&attention_heads, &ffn_dense},
};
