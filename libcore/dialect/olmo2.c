/* Hugging Face's Olmo2ForCausalLM: norms after each sublayer. */
#include "dialect/dialect.h"

const struct scheme scheme_olmo2 = {"model.layers.", false,
	{
		{"tok_embeddings", "model.embed_tokens", false, true},
		{"attention.wq", "self_attn.q_proj", false, false},
		{"attention.wk", "self_attn.k_proj", false, false},
		{"attention.wv", "self_attn.v_proj", false, false},
		{"attention.q_norm", "self_attn.q_norm", false, true},
		{"attention.k_norm", "self_attn.k_norm", false, true},
		{"attention.wo", "self_attn.o_proj", false, false},
		{"attention_post_norm", "post_attention_layernorm", false, true},
		{"feed_forward.w1", "mlp.gate_proj", false, false},
		{"feed_forward.w3", "mlp.up_proj", false, false},
		{"feed_forward.w2", "mlp.down_proj", false, false},
		{"ffn_post_norm", "post_feedforward_layernorm", false, true},
		{"norm", "model.norm", false, true},
		{"output", "lm_head", false, true},
	},
	llama_modules};

static const char *const parts[] = {"model.layers.", "model.norm.", "lm_head.", NULL};

const struct dialect dialect_olmo2 = {
	.name = "Hugging Face",
	.table = "embed_tokens.weight",
	.marks = {"post_feedforward_layernorm.weight"},
	.arch = ARCH_OLMO2,
	.parts = parts,
	.heads = "model_args.n_head",
	.scheme = &scheme_olmo2,
	.set_sources = stems_set_sources,
};
