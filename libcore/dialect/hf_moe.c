/* Hugging Face's mixtures of experts with Llama's attention: one tensor per matrix of an expert, or
 * stacks of them, as in the memory of transformers 5 (which saves them separately). */
#include "dialect/dialect.h"

/* clang-format off */
#define ATTENTION_AND_NORMS                                                       \
	{"tok_embeddings", "model.embed_tokens", .no_bias = true},                \
	{"attention_norm", "input_layernorm", .no_bias = true},                   \
	{"attention.wq", "self_attn.q_proj"},                                     \
	{"attention.wk", "self_attn.k_proj"},                                     \
	{"attention.wv", "self_attn.v_proj"},                                     \
	{"attention.q_norm", "self_attn.q_norm", .no_bias = true},                \
	{"attention.k_norm", "self_attn.k_norm", .no_bias = true},                \
	{"attention.wo", "self_attn.o_proj"},                                     \
	{"ffn_norm", "post_attention_layernorm", .no_bias = true},                \
	{"norm", "model.norm", .no_bias = true},                                  \
	{"output", "lm_head", .no_bias = true}
#define DENSE_FFN                                                                 \
	{"feed_forward.w1", "mlp.gate_proj"},                                     \
	{"feed_forward.w3", "mlp.up_proj"},                                       \
	{"feed_forward.w2", "mlp.down_proj"}
#define EXPERTS                                                                   \
	{"experts.w13", "mlp.experts.*.gate_proj", .second = "mlp.experts.*.up_proj",   \
		.stack = "mlp.experts.gate_up_proj"},                             \
	{"experts.w2", "mlp.experts.*.down_proj", .stack = "mlp.experts.down_proj"}
/* clang-format on */

/* The order of modules in the classes. (struct class_order: a router may be after the experts.) */
#define BEFORE_ROUTER                                                          \
	"model.embed_tokens", ".self_attn.q_proj", ".self_attn.k_proj",        \
		".self_attn.v_proj", ".self_attn.o_proj", ".self_attn.q_norm", \
		".self_attn.k_norm", ".mlp.gate_proj", ".mlp.up_proj", ".mlp.down_proj"
#define STACKS ".mlp.experts.gate_up_proj", ".mlp.experts.down_proj"
#define LAST \
	".input_layernorm", ".post_attention_layernorm", "model.norm", "lm_head", NULL
static const char *const mixtral_modules[] = {BEFORE_ROUTER, ".block_sparse_moe.gate",
	".block_sparse_moe.experts.*.w1", ".block_sparse_moe.experts.*.w2",
	".block_sparse_moe.experts.*.w3", STACKS, LAST};
static const char *const qwen_moe_modules[] = {BEFORE_ROUTER, ".mlp.gate",
	".mlp.experts.*.gate_proj", ".mlp.experts.*.up_proj", ".mlp.experts.*.down_proj",
	STACKS, ".mlp.shared_expert.gate_proj", ".mlp.shared_expert.up_proj",
	".mlp.shared_expert.down_proj", ".mlp.shared_expert_gate", LAST};
static const char *const dots1_modules[] = {BEFORE_ROUTER, ".mlp.gate",
	".mlp.experts.*.gate_proj", ".mlp.experts.*.up_proj", ".mlp.experts.*.down_proj",
	STACKS, ".mlp.shared_experts.gate_proj", ".mlp.shared_experts.up_proj",
	".mlp.shared_experts.down_proj", LAST};

const struct scheme scheme_mixtral = {"model.layers.", false,
	{ATTENTION_AND_NORMS, {"router", "block_sparse_moe.gate"},
		{"experts.w13", "block_sparse_moe.experts.*.w1",
			.second = "block_sparse_moe.experts.*.w3",
			.stack = "mlp.experts.gate_up_proj"},
		{"experts.w2", "block_sparse_moe.experts.*.w2",
			.stack = "mlp.experts.down_proj"}},
	mixtral_modules};

/* Names of Qwen2-MoE and Qwen3-MoE. */
const struct scheme scheme_qwen_moe = {"model.layers.", false,
	{ATTENTION_AND_NORMS, DENSE_FFN, {"router", "mlp.gate"}, EXPERTS,
		{"shared.w1", "mlp.shared_expert.gate_proj"},
		{"shared.w3", "mlp.shared_expert.up_proj"},
		{"shared.w2", "mlp.shared_expert.down_proj"},
		{"shared_gate", "mlp.shared_expert_gate"}},
	qwen_moe_modules};

const struct scheme scheme_dots1 = {"model.layers.", false,
	{ATTENTION_AND_NORMS, DENSE_FFN,
		{"router", "mlp.gate", .bias = ".e_score_correction_bias"}, EXPERTS,
		{"shared.w1", "mlp.shared_experts.gate_proj"},
		{"shared.w3", "mlp.shared_experts.up_proj"},
		{"shared.w2", "mlp.shared_experts.down_proj"}},
	dots1_modules};

const struct scheme *scheme_in_memory(const struct scheme *s)
{
	return s == &scheme_mixtral ? &scheme_qwen_moe : s;
}

static const char *const parts[] = {"model.layers.", "model.norm.", "lm_head.", NULL};

#define MOE_DIALECT(id, mark)                                        \
	const struct dialect dialect_##id = {.name = "Hugging Face", \
		.table = "embed_tokens.weight",                      \
		.marks = {mark},                                     \
		.arch = ARCH_LLAMA,                                  \
		.parts = parts,                                      \
		.scheme = &scheme_##id,                              \
		.set_sources = stems_set_sources}

MOE_DIALECT(mixtral, "*.block_sparse_moe.gate.weight");
MOE_DIALECT(dots1, "*.mlp.gate.e_score_correction_bias");
/* (Mixtral, too, has these names in the memory of transformers 5.) */
MOE_DIALECT(qwen_moe, "*.mlp.gate.weight");
