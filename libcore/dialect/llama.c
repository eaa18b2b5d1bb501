/* Hugging Face's LlamaForCausalLM, and classes with the same names. The rotary embedding rotates
 * channel j of a head with channel j + width / 2, as ours does, so the rows of wq and wk keep their
 * order. */
#include "dialect/dialect.h"

/* The order of modules in all classes with these names. (Phi-3 registers o_proj first.) */
const char *const llama_modules[] = {"model.embed_tokens", ".self_attn.q_proj",
	".self_attn.k_proj", ".self_attn.v_proj", ".self_attn.o_proj",
	".self_attn.qkv_proj", ".self_attn.q_norm", ".self_attn.k_norm", ".mlp.gate_proj",
	".mlp.up_proj", ".mlp.gate_up_proj", ".mlp.down_proj", ".input_layernorm",
	".post_attention_layernorm", ".pre_feedforward_layernorm",
	".post_feedforward_layernorm", ".post_self_attn_layernorm", ".post_mlp_layernorm",
	"model.norm", "lm_head", NULL};

const struct scheme scheme_llama = {"model.layers.", false,
	{
		{"tok_embeddings", "model.embed_tokens", false, true},
		{"attention_norm", "input_layernorm", false, true},
		{"attention.wq", "self_attn.q_proj", false, false},
		{"attention.wk", "self_attn.k_proj", false, false},
		{"attention.wv", "self_attn.v_proj", false, false},
		{"attention.q_norm", "self_attn.q_norm", false, true},
		{"attention.k_norm", "self_attn.k_norm", false, true},
		{"attention.wo", "self_attn.o_proj", false, false},
		{"ffn_norm", "post_attention_layernorm", false, true},
		{"feed_forward.w1", "mlp.gate_proj", false, false},
		{"feed_forward.w3", "mlp.up_proj", false, false},
		{"feed_forward.w2", "mlp.down_proj", false, false},
		{"norm", "model.norm", false, true},
		{"output", "lm_head", false, true},
	},
	llama_modules};

static const char *const parts[] = {"model.layers.", "model.norm.", "lm_head.", NULL};

const struct dialect dialect_llama = {
	.name = "Hugging Face",
	.table = "embed_tokens.weight",
	.arch = ARCH_LLAMA,
	.parts = parts,
	.heads = "model_args.n_head",
	.scheme = &scheme_llama,
	.set_sources = stems_set_sources,
};
