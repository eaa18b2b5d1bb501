/*
 * Names of models with fused tensors: queries, keys and values are one, gate and up are one. In checkpoints of
 * Megatron-LM in its format torch_dist, which is DCP, either all layers are one tensor, with a dimension in front, or
 * they are numbered; the optimizer has fp32 parameters and moments under the name of the parameter; scalars
 * of all ranks are in one value. Those of nanotron (archive/nanotron.c) have the optimizer's as others have them.
 */
#include "foreign/torch.h"

#include <stdlib.h>
#include <string.h>

static const struct row {
	const char *ours,
		*theirs[2], /* two: with the norm in the layer behind it, or as a module */
		*nanotron;
	int fused;
	bool second;
} rows[] = {
	{"attention_norm.weight",
		{"self_attention.linear_qkv.layer_norm_weight", "input_layernorm.weight"},
		"input_layernorm.weight", NOT_FUSED, false},
	{"attention.wq.weight", {"self_attention.linear_qkv.weight"},
		"attn.qkv_proj.weight", FUSED_Q, false},
	{"attention.wk.weight", {"self_attention.linear_qkv.weight"},
		"attn.qkv_proj.weight", FUSED_K, false},
	{"attention.wv.weight", {"self_attention.linear_qkv.weight"},
		"attn.qkv_proj.weight", FUSED_V, false},
	{"attention.q_norm.weight", {"self_attention.q_layernorm.weight"}, NULL,
		NOT_FUSED, false},
	{"attention.k_norm.weight", {"self_attention.k_layernorm.weight"}, NULL,
		NOT_FUSED, false},
	{"attention.wo.weight", {"self_attention.linear_proj.weight"},
		"attn.o_proj.weight", NOT_FUSED, false},
	{"ffn_norm.weight",
		{"mlp.linear_fc1.layer_norm_weight", "pre_mlp_layernorm.weight"},
		"post_attention_layernorm.weight", NOT_FUSED, false},
	{"feed_forward.w1.weight", {"mlp.linear_fc1.weight"}, "mlp.gate_up_proj.weight",
		NOT_FUSED, false},
	{"feed_forward.w3.weight", {"mlp.linear_fc1.weight"}, "mlp.gate_up_proj.weight",
		NOT_FUSED, true},
	{"feed_forward.w2.weight", {"mlp.linear_fc2.weight"}, "mlp.down_proj.weight",
		NOT_FUSED, false},
};

static const struct {
	const char *ours, *theirs, *nanotron;
} others[] = {{"tok_embeddings.weight", "embedding.word_embeddings.weight",
		      "token_position_embeddings.token_embedding.weight"},
	{"norm.weight", "decoder.final_layernorm.weight", "final_layer_norm.weight"},
	{"output.weight", "output_layer.weight", "lm_head.weight"}};

/* The item of a name in a group. The parameters are the optimizer's, which has them in fp32, if it does. */
static const struct torch_item *find(
	const struct torch_names *x, const char *group, const char *name)
{
	char begin[64];
	if (x->naming == NAMES_NANOTRON)
		return *group ? torch_names_state(x, name, NULL, group)
			      : torch_names_find(x, name);
	snprintf(begin, sizeof(begin), "optimizer.state.%s.",
		*group ? group : "fp32_param");
	const struct torch_item *t = torch_names_look_up(x, begin, name, "", true);
	if (!t && !*group)
		t = torch_names_look_up(x, "", name, "", false);
	return t && t->kind == TORCH_TENSOR ? t : NULL;
}

/* A tensor of a layer: numbered, or a part of all layers. */
static const struct torch_item *find_in_layer(const struct torch_names *x,
	const char *group, const char *stem, int64_t layer, struct megatron *out)
{
	snprintf(out->name, sizeof(out->name), "decoder.layers.%lld.%s", (long long)layer,
		stem);
	out->layer = -1;
	const struct torch_item *t = find(x, group, out->name);
	if (t)
		return t;
	snprintf(out->name, sizeof(out->name), "decoder.layers.%s", stem);
	out->layer = layer;
	t = find(x, group, out->name);
	return t && t->ndim > 1 && layer < t->dims[0] ? t : NULL;
}

void megatron_find(const struct torch_names *x, const char *ours, const char *group,
	struct megatron *out)
{
	bool nanotron = x->naming == NAMES_NANOTRON;
	*out = (struct megatron){.layer = -1, .fused = NOT_FUSED};
	for (size_t i = 0; i < ARRAY_LEN(others); i++)
		if (!strcmp(others[i].ours, ours)) {
			snprintf(out->name, sizeof(out->name), "%s",
				nanotron ? others[i].nanotron : others[i].theirs);
			out->item = find(x, group, out->name);
			return;
		}
	if (strncmp(ours, "layers.", 7))
		return;
	char *end;
	int64_t layer = strtoll(ours + 7, &end, 10);
	for (size_t i = 0; i < ARRAY_LEN(rows) && *end; i++) {
		if (strcmp(rows[i].ours, end + 1))
			continue;
		out->fused = rows[i].fused;
		out->second = rows[i].second;
		if (nanotron && rows[i].nanotron) {
			snprintf(out->name, sizeof(out->name), "decoder.%lld.%s",
				(long long)layer, rows[i].nanotron);
			out->item = find(x, group, out->name);
		}
		for (int k = 1; k >= 0 && !out->item && !nanotron; k--)
			if (rows[i].theirs[k])
				out->item = find_in_layer(
					x, group, rows[i].theirs[k], layer, out);
	}
}

static int64_t size_of(const struct torch_names *x, const char *ours)
{
	struct megatron t;
	megatron_find(x, ours, "", &t);
	if (!t.item || t.item->ndim < 1 + (t.layer >= 0))
		return 0;
	return t.item->dims[t.layer >= 0];
}

void megatron_shapes(
	const struct torch_names *x, int64_t *layers, int64_t *ffn, int64_t *qkv)
{
	char name[64];
	struct megatron t;
	*ffn = size_of(x, "layers.0.feed_forward.w1.weight") / 2;
	*qkv = size_of(x, "layers.0.attention.wq.weight");
	for (*layers = 0;; ++*layers) {
		snprintf(name, sizeof(name), "layers.%lld.attention.wo.weight",
			(long long)*layers);
		megatron_find(x, name, "", &t);
		if (!t.item)
			return;
	}
}

int64_t megatron_head_norm(const struct torch_names *x)
{
	return size_of(x, "layers.0.attention.q_norm.weight");
}

int megatron_has_moments(const struct torch_names *x, struct err *e)
{
	for (int64_t i = 0; i < x->n; i++) {
		const char *name = x->v[i].text;
		if (strstr(name, "optimizer.state.exp_avg."))
			return 1;
		if (strstr(name, "optimizer.") &&
			(strstr(name, ".gbuf_idx_") || strstr(name, ".bucket_idx_")))
			return err_set(e, EX_UNAVAILABLE,
				"%s: the distributed optimizer has saved buffers without the names of "
				"parameters; save with --dist-ckpt-optim-fully-reshardable",
				x->file->path);
	}
	return 0;
}

int megatron_numbers(struct torch_file *f, const struct torch_names *x, const char *path,
	int64_t most, double *out, int64_t *n, struct err *e)
{
	static const char common[] = "common_state/";
	char below[128];
	snprintf(below, sizeof(below), "0.%s", path);
	*n = 0;
	for (int64_t i = 0; i < x->n && !*n; i++)
		if (!strncmp(x->v[i].text, common, strlen(common)) &&
			torch_numbers_in(f, x->v[i].item, below, most, out, n, e))
			return -1;
	return 0;
}
