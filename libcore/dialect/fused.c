/* Models with one tensor for queries, keys and values, and one for gate and up. */
#include "dialect/dialect.h"

/* A tensor of the checkpoint that contains one of ours. */
struct fused_tensor {
	const struct torch_item *item; /* NULL: missing */
	int64_t layer; /* index in the first dimension; -1: the item has one layer */
	int part;
	bool is_second_half;
	const char *
		of_expert; /* name of the tensor of one expert in a layer; NULL: of all */
	int64_t number;	   /* number of the layer, if of_expert */
	char name[96];
};

static const struct fused_row *find_row(const struct fused_row *rows, const char *ours)
{
	while (rows->ours && strcmp(rows->ours, ours) != 0)
		rows++;
	return rows->ours ? rows : NULL;
}

/* Returns the tensor of a layer, or the one that stacks all layers; sets out->name and ->layer. */
static const struct torch_item *find_in_layer(const struct torch_names *x,
	const char *group, const char *stem, int64_t layer, struct fused_tensor *out)
{
	const struct fused_names *f = x->dialect->fused;
	snprintf(out->name, sizeof(out->name), "%s%lld.%s", f->layers, (long long)layer,
		stem);
	out->layer = -1;
	const struct torch_item *t = f->find(x, group, out->name);
	if (t || !f->stacked)
		return t;
	snprintf(out->name, sizeof(out->name), "%s%s", f->layers, stem);
	out->layer = layer;
	t = f->find(x, group, out->name);
	return t && t->ndim > 1 && layer < t->dims[0] ? t : NULL;
}

/* Returns the tensor of one expert. Sets out->name. */
static const struct torch_item *find_expert(const struct torch_names *x,
	const char *group, const char *stem, int64_t layer, int64_t expert,
	struct fused_tensor *out)
{
	const struct fused_names *f = x->dialect->fused;
	const char *star = strchr(stem, '*');
	snprintf(out->name, sizeof(out->name), "%s%lld.%.*s%lld%s", f->layers,
		(long long)layer, (int)(star - stem), stem, (long long)expert, star + 1);
	return f->find(x, group, out->name);
}

/* Sets *out to the tensor that contains ours, in a group of the file ("": the parameters). */
static void find_tensor(const struct torch_names *x, const char *ours, const char *group,
	struct fused_tensor *out)
{
	static const char layers[] = "layers.";
	const struct fused_names *f = x->dialect->fused;
	*out = (struct fused_tensor){.layer = -1};
	const struct fused_row *r = find_row(f->others, ours);
	if (r) {
		snprintf(out->name, sizeof(out->name), "%s", r->theirs[0]);
		out->item = f->find(x, group, out->name);
		return;
	}
	if (strncmp(ours, layers, strlen(layers)) != 0)
		return;
	char *end;
	int64_t layer = strtoll(ours + strlen(layers), &end, 10);
	r = *end ? find_row(f->rows, end + 1) : NULL;
	if (!r)
		return;
	out->part = r->part;
	out->is_second_half = r->is_second_half;
	for (int k = 1; k >= 0 && !out->item; k--)
		if (r->theirs[k])
			out->item = find_in_layer(x, group, r->theirs[k], layer, out);
	for (int k = 0; k < 2 && r->experts[k] && !out->item; k++) {
		struct fused_tensor one = {
			.layer = -1, .of_expert = r->experts[k], .number = layer};
		one.item = find_expert(x, group, r->experts[k], layer, 0, &one);
		if (one.item)
			*out = one;
	}
}

/* Returns the rows of the tensor that contains ours; 0 if it is missing. */
static int64_t count_rows(const struct torch_names *x, const char *ours)
{
	struct fused_tensor t;
	find_tensor(x, ours, "", &t);
	if (!t.item || t.item->ndim < 1 + (t.layer >= 0))
		return 0;
	return t.item->dims[t.layer >= 0];
}

/* Returns the rows (`last`: the width) of a tensor in the first layer that has it; 0: none has. */
static int64_t count_in_any_layer(const struct torch_names *x,
	const struct model_config *c, const char *name, bool last)
{
	char text[96];
	struct fused_tensor t = {.item = NULL};
	for (int64_t i = 0; i < c->layers && !t.item; i++) {
		snprintf(text, sizeof(text), "layers.%lld.%s", (long long)i, name);
		find_tensor(x, text, "", &t);
	}
	if (!t.item || t.item->ndim < 1 + (t.layer >= 0))
		return 0;
	return t.item->dims[last ? t.item->ndim - 1 : t.layer >= 0];
}

/* Sets the number and the widths of experts. */
static void set_experts(const struct torch_names *x, struct model_config *c)
{
	c->experts = count_in_any_layer(x, c, "router.weight", false);
	if (!c->experts)
		return;
	c->expert_dim = count_in_any_layer(x, c, "experts.w2.weight", true);
	c->shared_expert_dim = count_in_any_layer(x, c, "shared.w2.weight", true);
	c->shared_expert_gate = count_in_any_layer(x, c, "shared_gate.weight", false) > 0;
}

void fused_set_config(const struct torch_names *x, struct model_config *c)
{
	char name[64];
	struct fused_tensor t;
	for (c->layers = 0;; c->layers++) {
		snprintf(name, sizeof(name), "layers.%lld.attention.wo.weight",
			(long long)c->layers);
		find_tensor(x, name, "", &t);
		if (!t.item)
			break;
	}
	set_experts(x, c);
	c->ffn_dim = count_in_any_layer(x, c, "feed_forward.w1.weight", false) / 2;
	const struct fused_row *output =
		find_row(x->dialect->fused->others, "output.weight");
	c->tie = torch_names_find(x, output->theirs[0]) ? NO : YES;
	c->bias = BIAS_NONE;
	set_head_norm(c, count_rows(x, "layers.0.attention.q_norm.weight"));
}

int64_t fused_count_key_rows(const struct torch_names *x, const struct model_config *c)
{
	int64_t qkv = count_rows(x, "layers.0.attention.wq.weight");
	return (qkv - c->heads * head_width(c)) / 2;
}

/* Sets the source of tensor i, a stack of experts, to a tensor per expert. */
static int set_experts_sources(struct placement *x, int group, int i,
	const struct fused_tensor *f, struct err *e)
{
	const struct tensor *t = &x->m->tensors[i];
	const int parts = t->blocks / (int)t->experts;
	const int64_t rows = t->dims[0] / t->blocks;
	for (int b = 0; b < t->blocks; b++) {
		struct fused_tensor one = *f;
		const struct torch_item *item =
			find_expert(x->names, group ? source_groups[group] : "",
				f->of_expert, f->number, b / parts, &one);
		if (!item)
			return report_missing(x, group, one.name, e) ? -1 : 0;
		if (!has_shape(item, 2, parts * rows, t->dims[1]))
			return report_wrong_shape(x, item, e);
		set_block(x, group, i, b, (struct block_source){item, b % parts * rows});
	}
	return 0;
}

/* Sets the source of tensor i, a stack of experts. */
static int set_stack(struct placement *x, int group, int i, const struct fused_tensor *f,
	struct err *e)
{
	const struct tensor *t = &x->m->tensors[i];
	const int64_t *dims = f->item->dims + (f->layer >= 0);
	const int64_t first = f->layer >= 0 ? f->layer * t->dims[0] : 0;
	if (f->item->ndim != 3 + (f->layer >= 0) || dims[0] != t->experts ||
		dims[1] != t->dims[0] / t->experts || dims[2] != t->dims[1])
		return report_wrong_shape(x, f->item, e);
	for (int b = 0; b < t->blocks; b++)
		set_block(x, group, i, b,
			(struct block_source){
				f->item, first + b * (t->dims[0] / t->blocks)});
	return 0;
}

/* Sets the source of tensor i. Fails if the tensor is missing or has the wrong shape. */
static int set_source(struct placement *x, int group, int i, struct err *e)
{
	const struct tensor *t = &x->m->tensors[i];
	struct fused_tensor f;
	find_tensor(x->names, t->name, group ? source_groups[group] : "", &f);
	if (!f.item)
		return report_missing(x, group, f.name, e);
	if (t->blocks)
		return f.of_expert ? set_experts_sources(x, group, i, &f, e)
				   : set_stack(x, group, i, &f, e);
	bool is_half = f.is_second_half || text_ends(t->name, ".w1.weight");
	int64_t rows = f.part != NOT_FUSED
			       ? (x->m->c.heads + 2 * x->m->c.kv_heads) * x->m->head_dim
			       : t->dims[0] * (is_half ? 2 : 1);
	int first = f.layer >= 0;
	if (f.item->ndim != t->ndim + first || f.item->dims[first] != rows ||
		(t->ndim == 2 && f.item->dims[first + 1] != t->dims[1]))
		return report_wrong_shape(x, f.item, e);
	*get_source(x, group, i) = (struct tensor_source){.item = f.item,
		.first = f.is_second_half ? t->dims[0] : 0,
		.layer = f.layer,
		.fused = f.part};
	return 0;
}

int fused_set_sources(struct placement *x, int group, struct err *e)
{
	for (int i = 0; i < x->m->n_tensors; i++)
		if (set_source(x, group, i, e))
			return -1;
	return 0;
}
