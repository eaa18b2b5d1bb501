/* Gemma 3 (Gemma team 2025): Gemma 2 with RMSNorm of each head of queries and keys. The separate
 * theta of layers with a window is an option. */
#include "model/model.h"

static int64_t ffn_dim(int64_t dim)
{
	return 4 * dim;
}

const struct arch arch_gemma3 = {
	.norm = NORM_RMS,
	.norm_eps = 1e-6,
	.norm_place = NORM_OF_BOTH,
	.norm_adds_one = true,
	.qk_norm = true,
	.root_embedding = true,
	.check_only = true,
	.rope = true,
	.act = ACTC_GEGLU_TANH,
	.init = INITC_LLAMA,
	.tie = true,
	.ffn_dim = ffn_dim,
	.sublayer = {&attention_heads, &ffn_dense},
};
