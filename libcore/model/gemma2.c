/* Gemma 2 (Gemma team 2024): RMSNorm of inputs and outputs of sublayers, norm weights that start at
 * zero, gated GELU, scaled embeddings. Soft caps of scores and logits and windows are options. */
#include "model/model.h"

static int64_t ffn_dim(int64_t dim)
{
	return 4 * dim;
}

const struct arch arch_gemma2 = {
	.norm = NORM_RMS,
	.norm_eps = 1e-6,
	.norm_place = NORM_OF_BOTH,
	.norm_adds_one = true,
	.root_embedding = true,
	.check_only = true,
	.rope = true,
	.act = ACTC_GEGLU_TANH,
	.init = INITC_LLAMA,
	.tie = true,
	.ffn_dim = ffn_dim,
	.sublayer = {&attention_heads, &ffn_dense},
};
