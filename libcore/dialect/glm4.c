/* Hugging Face's Glm4ForCausalLM: norms before and after each sublayer; gate and up are fused. */
#include "dialect/dialect.h"

const struct scheme scheme_glm4 = {"model.layers.", false,
	{
		{"tok_embeddings", "model.embed_tokens", false, true},
		{"attention_norm", "input_layernorm", false, true},
		{"attention.wq", "self_attn.q_proj", false, false},
		{"attention.wk", "self_attn.k_proj", false, false},
		{"attention.wv", "self_attn.v_proj", false, false},
		{"attention.wo", "self_attn.o_proj", false, false},
		{"attention_post_norm", "post_self_attn_layernorm", false, true},
		{"ffn_norm", "post_attention_layernorm", false, true},
		{"feed_forward.w1", "mlp.gate_up_proj", false, false},
		{"feed_forward.w3", "mlp.gate_up_proj", false, false},
		{"feed_forward.w2", "mlp.down_proj", false, false},
		{"ffn_post_norm", "post_mlp_layernorm", false, true},
		{"norm", "model.norm", false, true},
		{"output", "lm_head", false, true},
	},
	llama_modules};

static const char *const parts[] = {"model.layers.", "model.norm.", "lm_head.", NULL};

const struct dialect dialect_glm4 = {
	.name = "Hugging Face",
	.table = "embed_tokens.weight",
	.marks = {"post_mlp_layernorm.weight"},
	.arch = ARCH_GLM4,
	.parts = parts,
	.heads = "model_args.n_head",
	.scheme = &scheme_glm4,
	.set_sources = stems_set_sources,
};
