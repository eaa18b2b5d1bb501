/* Llama (Touvron et al. 2023): rotary positions (Su et al. 2021), RMSNorm, SwiGLU, grouped-query
 * attention (Ainslie et al. 2023), no biases, a separate output layer. */
#include "model/model.h"

/* Returns two thirds of 4 dim, rounded up to a multiple of 256. */
static int64_t ffn_dim(int64_t dim)
{
	return round_up(8 * dim / 3, 256);
}

const struct arch arch_llama = {
	.norm = NORM_RMS,
	.norm_eps = 1e-5,
	.rope = true,
	.act = ACTC_SWIGLU,
	.init = INITC_LLAMA,
	.ffn_dim = ffn_dim,
	.sublayer = {&attention_heads, &ffn_dense},
};
