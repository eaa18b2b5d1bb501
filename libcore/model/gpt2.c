/* GPT-2 (Radford et al. 2019): learned positions, LayerNorm before each sublayer, GELU, biases,
 * an output layer tied to the token embedding. */
#include "model/model.h"

static int64_t ffn_dim(int64_t dim)
{
	return 4 * dim;
}

const struct arch arch_gpt2 = {
	.norm = NORM_LAYER,
	.norm_eps = 1e-5,
	.learned_positions = true,
	.act = ACTC_GELU_TANH,
	.init = INITC_GPT2,
	.bias = true,
	.tie = true,
	.ffn_dim = ffn_dim,
	.sublayer = {&attention_heads, &ffn_dense},
};
