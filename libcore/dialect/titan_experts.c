/* torchtitan's mixtures of experts: one item with the same matrix of all experts. */
#include "dialect/titan.h"

struct titan_row {
	const char *ours; /* name after the number of a layer */
	/* Their names since torchtitan 0.3, and before. `second`: of the odd blocks of a stack. */
	const char *theirs[2], *second[2];
};

#define INNER "moe.routed_experts.inner_experts."
static const struct titan_row rows[] = {
	{"router.weight", {"moe.router.gate.weight"}, {NULL}},
	{"router.bias", {"moe.expert_bias_E", "moe.expert_bias"}, {NULL}},
	{"experts.w13.weight", {INNER "w1_EFD", "moe.experts.w1"},
		{INNER "w3_EFD", "moe.experts.w3"}},
	{"experts.w2.weight", {INNER "w2_EDF", "moe.experts.w2"}, {NULL}},
	{"shared.w1.weight", {"moe.shared_experts.w1.weight"}, {NULL}},
	{"shared.w3.weight", {"moe.shared_experts.w3.weight"}, {NULL}},
	{"shared.w2.weight", {"moe.shared_experts.w2.weight"}, {NULL}},
};

/* Returns the row of one of our tensors, and the length of the name up to the layer's last dot. */
static const struct titan_row *find_row(const char *ours, int *prefix)
{
	static const char layers[] = "layers.";
	const char *rest = ours;
	if (!strncmp(ours, layers, strlen(layers)))
		rest = strchr(ours + strlen(layers), '.');
	if (rest == ours || !rest)
		return NULL;
	*prefix = (int)(++rest - ours);
	for (size_t i = 0; i < ARRAY_LEN(rows); i++)
		if (!strcmp(rows[i].ours, rest))
			return &rows[i];
	return NULL;
}

bool titan_has_expert(const char *ours)
{
	int prefix;
	return find_row(ours, &prefix) != NULL;
}

/* Returns the item of a group under one of two names; NULL: it is missing. */
static const struct torch_item *find_item(const struct placement *x, int group,
	const char *ours, const char *const names[2], const struct torch_item *parameter)
{
	const struct torch_item *found = NULL;
	int prefix = 0;
	find_row(ours, &prefix);
	for (int k = 0; k < 2 && !found; k++) {
		scoped_ptr char *name =
			text_printf("%.*s%s", prefix, ours, names[k] ? names[k] : "");
		if (names[k])
			found = find_group_item(x, group, name, parameter);
	}
	return found;
}

const struct torch_item *titan_find_expert(const struct torch_names *x, const char *ours)
{
	int prefix;
	const struct titan_row *r = find_row(ours, &prefix);
	return r ? find_item(&(struct placement){.names = x}, 0, ours, r->theirs, NULL)
		 : NULL;
}

/* Sets the source of every `step`-th block of a stack from block `first` on. */
static int set_blocks(struct placement *x, int group, int i, const char *const names[2],
	int first, int step, struct err *e)
{
	const struct tensor *t = &x->m->tensors[i];
	const struct block_source *own = get_source(x, SOURCE_MODEL, i)->blocks;
	const int64_t n = t->dims[0] / t->blocks;
	const struct torch_item *item = find_item(
		x, group, t->name, names, group && own ? own[first].item : NULL);
	if (!item)
		return report_missing(x, group, t->name, e);
	if (item->ndim != 3 || item->dims[0] != t->experts || item->dims[1] != n ||
		item->dims[2] != t->dims[1])
		return report_wrong_shape(x, item, e);
	for (int b = first; b < t->blocks; b += step)
		set_block(x, group, i, b, (struct block_source){item, b / step * n});
	return 0;
}

/* Fails if a softmax router has a bias, which no other model has and pt does not compute. */
static int reject_bias(const struct placement *x, const struct tensor *t, struct err *e)
{
	int prefix;
	const bool is_router = text_ends(t->name, ".router.weight");
	find_row(t->name, &prefix);
	scoped_ptr char *bias = text_printf("%.*srouter.bias", prefix, t->name);
	const struct torch_item *item = is_router && x->m->c.router != ROUTER_SIGMOID
						? titan_find_expert(x->names, bias)
						: NULL;
	return item ? err_set(e, EX_UNAVAILABLE,
			      "%s: %s: a softmax router with a bias is not supported; train "
			      "with load_balance_coeff None",
			      x->names->file->path, item->name)
		    : 0;
}

int titan_set_expert(struct placement *x, int group, int i, struct err *e)
{
	const struct tensor *t = &x->m->tensors[i];
	int prefix;
	const struct titan_row *r = find_row(t->name, &prefix);
	if (t->blocks && r->second[0])
		return set_blocks(x, group, i, r->theirs, 0, 2, e) ||
				       set_blocks(x, group, i, r->second, 1, 2, e)
			       ? -1
			       : 0;
	if (t->blocks)
		return set_blocks(x, group, i, r->theirs, 0, 1, e);
	const struct torch_item *parameter =
		group ? get_source(x, SOURCE_MODEL, i)->item : NULL;
	const struct torch_item *item =
		find_item(x, group, t->name, r->theirs, parameter);
	if (!item)
		return report_missing(x, group, t->name, e);
	if (!has_shape(item, t->ndim, t->dims[0], t->ndim == 1 ? 1 : t->dims[1]))
		return report_wrong_shape(x, item, e);
	*get_source(x, group, i) = (struct tensor_source){.item = item, .layer = -1};
	return reject_bias(x, t, e);
}
