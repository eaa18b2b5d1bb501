/* nanotron's Llama. Queries, keys and values are one tensor: all queries, then all keys, then all
 * values. The optimizer state has the names of the parameters. */
#include "dialect/dialect.h"

static const struct fused_row rows[] = {
	{"attention_norm.weight", {"input_layernorm.weight"}},
	{"attention.wq.weight", {"attn.qkv_proj.weight"}, FUSED_Q},
	{"attention.wk.weight", {"attn.qkv_proj.weight"}, FUSED_K},
	{"attention.wv.weight", {"attn.qkv_proj.weight"}, FUSED_V},
	{"attention.wo.weight", {"attn.o_proj.weight"}},
	{"ffn_norm.weight", {"post_attention_layernorm.weight"}},
	{"feed_forward.w1.weight", {"mlp.gate_up_proj.weight"}},
	{"feed_forward.w3.weight", {"mlp.gate_up_proj.weight"}, .is_second_half = true},
	{"feed_forward.w2.weight", {"mlp.down_proj.weight"}}, {0}};

static const struct fused_row others[] = {
	{"tok_embeddings.weight", {"token_position_embeddings.token_embedding.weight"}},
	{"norm.weight", {"final_layer_norm.weight"}},
	{"output.weight", {"lm_head.weight"}}, {0}};

static const struct torch_item *find_item(
	const struct torch_names *x, const char *group, const char *name)
{
	return *group ? torch_names_find_state(x, name, NULL, group)
		      : torch_names_find(x, name);
}

static const struct fused_names fused = {"decoder.", false, rows, others, find_item};

/* Changes a part of a fused tensor to its range of rows. */
static void cut_rows(const struct placement *x, struct tensor_source *s)
{
	const struct model_config *c = &x->m->c;
	if (!s->item || s->fused == NOT_FUSED)
		return;
	s->pairs = x->pairs && s->fused != FUSED_V;
	s->first = s->fused == FUSED_Q ? 0 : c->heads * x->m->head_dim;
	s->first += s->fused == FUSED_V ? c->kv_heads * x->m->head_dim : 0;
	s->fused = NOT_FUSED;
}

/* Sets the sources of all our tensors, and limits each to its rows of the fused tensor. */
static int set_sources(struct placement *x, int group, struct err *e)
{
	if (fused_set_sources(x, group, e))
		return -1;
	for (int i = 0; i < x->m->n_tensors; i++)
		cut_rows(x, get_source(x, group, i));
	return 0;
}

static const char *const parts[] = {"decoder.", "final_layer_norm.", "lm_head.", NULL};
static const char *const wrappers[] = {"pp_block", NULL}; /* a stage of a pipeline */

const struct dialect dialect_nanotron = {
	.name = "nanotron",
	.table = "token_position_embeddings.token_embedding.weight",
	.arch = ARCH_LLAMA,
	.parts = parts,
	.wrappers = wrappers,
	.heads = "model_args.n_head",
	.fused = &fused,
	.set_sources = set_sources,
};
