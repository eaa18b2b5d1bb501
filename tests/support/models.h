/* Small models, of a GPT-2 and of a Llama, which tests vary. */
#pragma once

#include "model/model.h"

static const struct model_config small_gpt2 = {.arch = ARCH_GPT2,
	.layers = 2,
	.heads = 4,
	.dim = 32,
	.context = 16,
	.vocab = 61};

static const struct model_config small_llama = {.arch = ARCH_LLAMA,
	.layers = 2,
	.heads = 4,
	.kv_heads = 2,
	.dim = 32,
	.ffn_dim = 48,
	.context = 16,
	.vocab = 61,
	.rope_theta = 10000};
