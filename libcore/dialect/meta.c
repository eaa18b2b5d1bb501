/* torchtitan and Meta: our names, but in wq and wk channels that rotate together are adjacent. The
 * experts of a layer are stacks: w1 and w3 [experts][width][dim], w2 [experts][dim][width]. */
#include "dialect/dialect.h"

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

/* Ends of names in a layer with experts: torchtitan's since July 2026, and older ones. `second`: names
 * of the odd blocks of a stack. */
static const struct expert_names {
	const char *ours, *theirs[2], *second[2];
} expert_names[] = {
	{"router.weight", {"moe.router.gate.weight"}},
	{"router.bias", {"moe.expert_bias_E", "moe.expert_bias"}},
	{"experts.w13.weight",
		{"moe.routed_experts.inner_experts.w1_EFD", "moe.experts.w1"},
		{"moe.routed_experts.inner_experts.w3_EFD", "moe.experts.w3"}},
	{"experts.w2.weight",
		{"moe.routed_experts.inner_experts.w2_EDF", "moe.experts.w2"}},
	{"shared.w1.weight", {"moe.shared_experts.w1.weight"}},
	{"shared.w3.weight", {"moe.shared_experts.w3.weight"}},
	{"shared.w2.weight", {"moe.shared_experts.w2.weight"}},
};

/* Returns the names of one of our tensors in a layer with experts; NULL: it has our name. */
static const struct expert_names *find_expert_names(const char *ours)
{
	char *end = NULL;
	if (strncmp(ours, "layers.", 7) != 0)
		return NULL;
	strtoll(ours + 7, &end, 10);
	for (size_t i = 0; i < ARRAY_LEN(expert_names) && *end; i++)
		if (!strcmp(end + 1, expert_names[i].ours))
			return &expert_names[i];
	return NULL;
}

/* Returns the item of a group with name k of these in the layer of one of our tensors; else NULL. */
static const struct torch_item *find_in_layer(const struct torch_names *x,
	const char *ours, const char *theirs, int group,
	const struct torch_item *parameter)
{
	const char *end = strchr(ours + 7, '.');
	if (!theirs)
		return NULL;
	scoped_ptr char *name = text_printf("%.*s.%s", (int)(end - ours), ours, theirs);
	return group ? torch_names_find_state(x, name, parameter, source_groups[group])
		     : torch_names_find(x, name);
}

static const struct torch_item *find_item(const struct torch_names *x, const char *ours)
{
	const struct expert_names *n = find_expert_names(ours);
	const struct torch_item *item = NULL;
	for (size_t k = 0; n && k < ARRAY_LEN(n->theirs) && !item; k++)
		item = find_in_layer(x, ours, n->theirs[k], 0, NULL);
	return item ? item : torch_names_find(x, ours);
}

/* Sets the sources of the matrices of a stack of experts. */
static int set_stack(struct placement *x, int group, int i, const struct expert_names *n,
	struct err *e)
{
	const struct tensor *t = &x->m->tensors[i];
	const int halves = *n->second ? 2 : 1;
	const int64_t rows = t->dims[0] / t->blocks;
	struct tensor_source *s = get_source(x, group, i);
	const struct block_source *own = get_source(x, SOURCE_MODEL, i)->blocks;
	*s = (struct tensor_source){.layer = -1};
	for (int half = 0; half < halves; half++) {
		const char *const *theirs = half ? n->second : n->theirs;
		const struct torch_item *item = NULL,
					*parameter = group && own ? own[half].item : NULL;
		for (size_t k = 0; k < ARRAY_LEN(n->theirs) && !item; k++)
			item = find_in_layer(
				x->names, t->name, theirs[k], group, parameter);
		if (!item) {
			if (report_missing(x, group, t->name, e))
				return -1;
			continue;
		}
		if (item->ndim != 3 || item->dims[0] != t->experts ||
			item->dims[1] != rows || item->dims[2] != t->dims[1])
			return report_wrong_shape(x, item, e);
		if (!s->blocks)
			s->blocks = xcalloc((size_t)t->blocks, sizeof(*s->blocks));
		s->item = s->item ? s->item : item;
		for (int64_t k = 0; k < t->experts; k++)
			s->blocks[halves * k + half] =
				(struct block_source){item, k * rows};
	}
	return 0;
}

/* Sets the source of tensor i. Fails if the tensor is missing or has the wrong shape. */
static int set_source(struct placement *x, int group, int i, struct err *e)
{
	const struct tensor *t = &x->m->tensors[i];
	struct tensor_source *s = get_source(x, group, i);
	scoped_str fused = {0};
	int part = NOT_FUSED;
	const struct expert_names *experts = find_expert_names(t->name);
	const struct torch_item *parameter = get_source(x, SOURCE_MODEL, i)->item;
	if (t->blocks > 1)
		return set_stack(x, group, i, experts, e);
	*s = (struct tensor_source){
		.item = find_group_item(x, group, t->name, group ? parameter : NULL),
		.layer = -1};
	for (size_t k = 0; experts && k < ARRAY_LEN(experts->theirs) && !s->item; k++)
		s->item = find_in_layer(x->names, t->name, experts->theirs[k], group,
			group ? parameter : NULL);
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
	.find_item = find_item,
	.set_sources = set_sources,
};
