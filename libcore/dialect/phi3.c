/* Hugging Face's Phi3ForCausalLM: one tensor for queries, keys and values, one for gate and up. */
#include "dialect/dialect.h"

static const char *const modules[] = {"model.embed_tokens", ".self_attn.o_proj",
	".self_attn.qkv_proj", ".mlp.gate_up_proj", ".mlp.down_proj", ".input_layernorm",
	".post_attention_layernorm", "model.norm", "lm_head", NULL};

const struct scheme scheme_phi3 = {"model.layers.", false,
	{
		{"tok_embeddings", "model.embed_tokens", false, true},
		{"attention_norm", "input_layernorm", false, true},
		{"attention.wq", "self_attn.qkv_proj", false, false},
		{"attention.wk", "self_attn.qkv_proj", false, false},
		{"attention.wv", "self_attn.qkv_proj", false, false},
		{"attention.wo", "self_attn.o_proj", false, false},
		{"ffn_norm", "post_attention_layernorm", false, true},
		{"feed_forward.w1", "mlp.gate_up_proj", false, false},
		{"feed_forward.w3", "mlp.gate_up_proj", false, false},
		{"feed_forward.w2", "mlp.down_proj", false, false},
		{"norm", "model.norm", false, true},
		{"output", "lm_head", false, true},
	},
	modules};

static const char *const parts[] = {"model.layers.", "model.norm.", "lm_head.", NULL};

const struct dialect dialect_phi3 = {
	.name = "Hugging Face",
	.table = "embed_tokens.weight",
	.marks = {"self_attn.qkv_proj.weight"},
	.arch = ARCH_LLAMA,
	.parts = parts,
	.heads = "model_args.n_head",
	.scheme = &scheme_phi3,
	.set_sources = stems_set_sources,
};
