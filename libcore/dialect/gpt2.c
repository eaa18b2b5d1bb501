/* Hugging Face's GPT2LMHeadModel, which stores matrices as [in, out] (Conv1D) and queries, keys and
 * values in one; and nanoGPT, which stores matrices as [out, in]. */
#include "dialect/dialect.h"

static const char *const modules[] = {"transformer.wte", "transformer.wpe", ".ln_1",
	".attn.c_attn", ".attn.c_proj", ".ln_2", ".mlp.c_fc", ".mlp.c_proj",
	"transformer.ln_f", "lm_head", NULL};

const struct scheme scheme_gpt2 = {"transformer.h.", true,
	{
		{"tok_embeddings", "transformer.wte", false, true},
		{"pos_embeddings", "transformer.wpe", false, true},
		{"attention_norm", "ln_1", false, false},
		{"attention.wq", "attn.c_attn", true, false},
		{"attention.wk", "attn.c_attn", true, false},
		{"attention.wv", "attn.c_attn", true, false},
		{"attention.wo", "attn.c_proj", true, false},
		{"ffn_norm", "ln_2", false, false},
		{"feed_forward.w1", "mlp.c_fc", true, false},
		{"feed_forward.w2", "mlp.c_proj", true, false},
		{"norm", "transformer.ln_f", false, false},
		{"output", "lm_head", false, true},
	},
	modules};

/* Returns true if matrices are [out, in], by the QKV matrix, which is not square. */
static bool is_linear(const struct placement *x)
{
	const struct torch_item *t =
		torch_names_find(x->names, "transformer.h.0.attn.c_attn.weight");
	return t && t->ndim == 2 && t->dims[0] == 3 * x->m->c.dim;
}

static int set_sources(struct placement *x, int group, struct err *e)
{
	return is_linear(x) ? stems_set_linear_sources(x, group, e)
			    : stems_set_sources(x, group, e);
}

static const char *const parts[] = {"h.", "transformer.h.", "ln_f.", "transformer.ln_f.",
	"wpe.", "transformer.wpe.", "lm_head.", NULL};

const struct dialect dialect_gpt2 = {
	.name = "GPT-2",
	.table = "wte.weight",
	.arch = ARCH_GPT2,
	.parts = parts,
	.heads = "model_args.n_head",
	.scheme = &scheme_gpt2,
	.set_sources = set_sources,
};
