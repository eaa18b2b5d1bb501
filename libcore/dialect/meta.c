/* torchtitan and Meta: our names, but in wq and wk channels that rotate together are adjacent. */
#include "dialect/titan.h"

/* Sets *out to the name of the fused tensor of wq, wk or wv, and *part. Returns NULL for others. */
static const char *set_fused_name(const char *name, int *part, struct str *out)
{
	static const char *const parts[] = {
		".attention.wq.weight", ".attention.wk.weight", ".attention.wv.weight"};
	for (int i = 0; i < (int)ARRAY_LEN(parts); i++) {
		if (!text_ends(name, parts[i]))
			continue;
		*part = FUSED_Q + i;
		str_printf(out, "%.*s.attention.wqkv.weight",
			(int)(strlen(name) - strlen(parts[i])), name);
		return out->s;
	}
	return NULL;
}

/* Sets the source of tensor i. Fails if the tensor is missing or has the wrong shape. */
static int set_source(struct placement *x, int group, int i, struct err *e)
{
	const struct tensor *t = &x->m->tensors[i];
	if (titan_has_expert(t->name))
		return titan_set_expert(x, group, i, e);
	struct tensor_source *s = get_source(x, group, i);
	scoped_str fused = {0};
	int part = NOT_FUSED;
	const struct torch_item *parameter = get_source(x, SOURCE_MODEL, i)->item;
	*s = (struct tensor_source){
		.item = find_group_item(x, group, t->name, group ? parameter : NULL),
		.layer = -1};
	const char *name = set_fused_name(t->name, &part, &fused);
	s->pairs = part == FUSED_Q || part == FUSED_K ||
		   text_ends(t->name, ".attention.wq.bias") ||
		   text_ends(t->name, ".attention.wk.bias");
	s->pairs &= !x->m->c.qk_norm; /* torchtitan's Qwen3 rotates halves */
	int64_t rows = t->dims[0];
	if (!s->item && name) {
		s->item = find_group_item(x, group, name, NULL);
		s->fused = part;
		rows = (x->m->c.heads + 2 * x->m->c.kv_heads) * x->m->head_dim;
	}
	if (!s->item)
		return report_missing(x, group, t->name, e);
	return has_shape(s->item, t->ndim, rows, t->ndim == 1 ? 1 : t->dims[1])
		       ? 0
		       : report_wrong_shape(x, s->item, e);
}

static const struct torch_item *find(const struct torch_names *x, const char *ours)
{
	return titan_has_expert(ours) ? titan_find_expert(x, ours)
				      : torch_names_find(x, ours);
}

static int set_sources(struct placement *x, int group, struct err *e)
{
	for (int i = 0; i < x->m->n_tensors; i++)
		if (set_source(x, group, i, e))
			return -1;
	return 0;
}

static const char *const parts[] = {"layers.", "norm.", "output.", "lm_head.", NULL};
static const char *const wrappers[] = {
	"qkv_linear", NULL}; /* the module of queries, keys and values */

const struct dialect dialect_meta = {
	.name = "torchtitan",
	.table = "tok_embeddings.weight",
	.arch = ARCH_LLAMA,
	.parts = parts,
	.wrappers = wrappers,
	.heads = "model_args.n_head",
	.find = find,
	.set_sources = set_sources,
};
