/* Megatron-LM's GPTModel, in checkpoints of its format torch_dist, which is DCP. Layers are either
 * stacked in one tensor, as its first dimension, or numbered. Files of torch.save have a tensor per
 * expert (SequentialMLP, TEGroupedMLP). QKV rows are grouped by key heads.
 * The optimizer has fp32 parameters and moments under the name of the parameter. Scalars common to
 * all ranks are in one value. */
#include "dialect/dialect.h"

static const struct fused_row rows[] = {
	{"attention_norm.weight", {"self_attention.linear_qkv.layer_norm_weight",
					  "input_layernorm.weight"}},
	{"attention.wq.weight", {"self_attention.linear_qkv.weight"}, FUSED_Q},
	{"attention.wk.weight", {"self_attention.linear_qkv.weight"}, FUSED_K},
	{"attention.wv.weight", {"self_attention.linear_qkv.weight"}, FUSED_V},
	{"attention.q_norm.weight", {"self_attention.q_layernorm.weight"}},
	{"attention.k_norm.weight", {"self_attention.k_layernorm.weight"}},
	{"attention.wo.weight", {"self_attention.linear_proj.weight"}},
	{"ffn_norm.weight",
		{"mlp.linear_fc1.layer_norm_weight", "pre_mlp_layernorm.weight"}},
	{"feed_forward.w1.weight", {"mlp.linear_fc1.weight"}},
	{"feed_forward.w3.weight", {"mlp.linear_fc1.weight"}, .is_second_half = true},
	{"feed_forward.w2.weight", {"mlp.linear_fc2.weight"}},
	{"router.weight", {"mlp.router.weight"}},
	{"router.bias", {"mlp.router.expert_bias"}},
	{"experts.w13.weight", {"mlp.experts.experts.linear_fc1.weight"},
		.experts = {"mlp.experts.local_experts.*.linear_fc1.weight",
			"mlp.experts.linear_fc1.weight*"}},
	{"experts.w2.weight", {"mlp.experts.experts.linear_fc2.weight"},
		.experts = {"mlp.experts.local_experts.*.linear_fc2.weight",
			"mlp.experts.linear_fc2.weight*"}},
	{"shared.w1.weight", {"mlp.shared_experts.linear_fc1.weight"}},
	{"shared.w3.weight", {"mlp.shared_experts.linear_fc1.weight"},
		.is_second_half = true},
	{"shared.w2.weight", {"mlp.shared_experts.linear_fc2.weight"}},
	{"shared_gate.weight", {"mlp.shared_experts.gate_weight"}}, {0}};

static const struct fused_row others[] = {
	{"tok_embeddings.weight", {"embedding.word_embeddings.weight"}},
	{"norm.weight", {"decoder.final_layernorm.weight"}},
	{"output.weight", {"output_layer.weight"}}, {0}};

/* Returns a tensor of a group ("": the parameters, in fp32 from the optimizer if it has them). */
static const struct torch_item *find_item(
	const struct torch_names *x, const char *group, const char *name)
{
	char begin[64];
	snprintf(begin, sizeof(begin), "optimizer.state.%s.",
		*group ? group : "fp32_param");
	const struct torch_item *t = torch_names_find_prefixed(x, begin, name, "", true);
	if (!t && !*group)
		t = torch_names_find_prefixed(x, "", name, "", false);
	return t && t->kind == TORCH_TENSOR ? t : NULL;
}

static const struct fused_names fused = {
	"decoder.layers.", true, rows, others, find_item};

/* Returns 1 if the file has AdamW's moments by name, 0 if not; -1 with *e set: no names. */
static int has_moments(const struct torch_names *x, struct err *e)
{
	for (int64_t i = 0; i < x->n; i++) {
		const char *name = x->v[i].text;
		if (strstr(name, "optimizer.state.exp_avg."))
			return 1;
		if (strstr(name, "optimizer.") &&
			(strstr(name, ".gbuf_idx_") || strstr(name, ".bucket_idx_")))
			return err_set(e, EX_UNAVAILABLE,
				"%s: the distributed optimizer saved buffers without parameter "
				"names; save with --dist-ckpt-optim-fully-reshardable",
				x->file->path);
	}
	return 0;
}

/* Reads a value of the state common to all ranks, such as iteration or args.seq_length. */
static int read_numbers(struct torch_file *f, const struct torch_names *x,
	const char *path, int64_t max, double *out, int64_t *n, struct err *e)
{
	static const char common[] = "common_state/";
	char in_list[128]; /* (a list with one dictionary, except in common.pt) */
	snprintf(in_list, sizeof(in_list), "0.%s", path);
	*n = 0;
	for (int64_t i = 0; i < x->n && !*n; i++) {
		const struct torch_item *item = x->v[i].item;
		if (strncmp(x->v[i].text, common, strlen(common)) != 0)
			continue;
		if (torch_read_numbers_at(f, item, in_list, max, out, n, e) ||
			(!*n && torch_read_numbers_at(f, item, path, max, out, n, e)))
			return -1;
	}
	return 0;
}

/* Reads AdamW's step, or else the number of iterations. */
static int read_step(
	struct torch_file *f, const struct torch_names *x, int64_t *step, struct err *e)
{
	double v = 0;
	int64_t n;
	if (read_numbers(f, x, "optimizer.param_groups.0.step", 1, &v, &n, e) ||
		(!n && read_numbers(f, x, "iteration", 1, &v, &n, e)))
		return -1;
	bool is_valid = n && v >= 0 && v < 0x1p53;
	*step = is_valid ? (int64_t)v : 0;
	return is_valid
		       ? 0
		       : err_set(e, EX_DATAERR,
				 "%s: common_state has no valid optimizer step", f->path);
}

/* Returns true for a 16-bit parameter that the optimizer has in fp32. */
static bool is_copy(const struct torch_names *x, const char *name)
{
	char master[256];
	snprintf(master, sizeof(master), "optimizer.state.fp32_param.%s", name);
	return torch_names_find_exact(x, master);
}

static const char *const parts[] = {"decoder.", "output_layer.", "embedding.", NULL};

const struct dialect dialect_megatron = {
	.name = "Megatron-LM",
	.table = "embedding.word_embeddings.weight",
	.arch = ARCH_LLAMA,
	.parts = parts,
	.heads = "args.num_attention_heads",
	.context = "args.seq_length",
	.fused = &fused,
	.set_sources = fused_set_sources,
	.has_moments = has_moments,
	.read_numbers = read_numbers,
	.read_step = read_step,
	.is_copy = is_copy,
};
