/* OLMo 2 (OLMo team 2024): Llama with RMSNorm of sublayers' outputs instead of their inputs, and
 * RMSNorm of all queries, and of all keys, of a token together. */
#include "model/model.h"

static int64_t ffn_dim(int64_t dim)
{
	return arch_llama.ffn_dim(dim);
}

const struct arch arch_olmo2 = {
	.norm = NORM_RMS,
	.norm_eps = 1e-5,
	.norm_place = NORM_OF_OUTPUT,
	.qk_norm = true,
	.wide_qk_norm = true,
	.check_only = true,
	.rope = true,
	.act = ACTC_SWIGLU,
	.init = INITC_LLAMA,
	.ffn_dim = ffn_dim,
	.sublayer = {&attention_heads, &ffn_dense},
};
