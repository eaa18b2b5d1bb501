/* Derives a model's configuration from the shapes of its tensors. */
#include "dialect/dialect.h"

enum { MAX_HEAD_NORM = 1 << 22 };

/* Returns the item of one of our tensors of a layer, by its name without the layer. */
static const struct torch_item *find_in_layer(
	const struct torch_names *x, int64_t layer, const char *name)
{
	char text[96];
	snprintf(text, sizeof(text), "layers.%lld.%s", (long long)layer, name);
	return stems_find_item(x, text);
}

static int64_t count_rows(const struct torch_item *t, int64_t fallback)
{
	return t && t->ndim ? t->dims[0] : fallback;
}

void set_head_norm(struct model_config *c, int64_t size)
{
	c->qk_norm = size > 0;
	c->head_dim = size <= MAX_HEAD_NORM ? size : 0;
}

int64_t head_width(const struct model_config *c)
{
	return c->head_dim ? c->head_dim : c->heads ? c->dim / c->heads : 0;
}

/* Returns the item of one of our tensors in the first layer that has it, or NULL. */
static const struct torch_item *find_in_any_layer(
	const struct torch_names *x, const struct model_config *c, const char *name)
{
	const struct torch_item *found = NULL;
	for (int64_t i = 0; i < c->layers && !found; i++)
		found = find_in_layer(x, i, name);
	return found;
}

/* Sets the number and the widths of experts. */
static void set_experts(const struct torch_names *x, struct model_config *c)
{
	const struct torch_item *router = find_in_any_layer(x, c, "router.weight");
	const struct torch_item *down = find_in_any_layer(x, c, "experts.w2.weight");
	c->experts = count_rows(router, 0);
	if (!c->experts || !down || down->ndim < 2)
		return;
	c->expert_dim = down->dims[down->ndim - 1];
	c->shared_expert_dim = count_rows(find_in_any_layer(x, c, "shared.w1.weight"), 0);
	c->shared_expert_gate = find_in_any_layer(x, c, "shared_gate.weight") != NULL;
}

/* Sets the layers, the widths, and the options that tensor names imply. */
static void set_config_from_layers(const struct torch_names *x, struct model_config *c)
{
	const struct torch_item *output = stems_find_item(x, "output.weight");
	for (c->layers = 0; find_in_layer(x, c->layers, "attention.wo.weight");)
		c->layers++;
	set_experts(x, c);
	const struct torch_item *up =
		c->experts ? find_in_any_layer(x, c, "feed_forward.w1.weight")
			   : find_in_layer(x, 0, "feed_forward.w1.weight");
	/* (Hugging Face's GPT-2 has [in, out], nanoGPT [out, in]) */
	c->ffn_dim = up && count_rows(up, 0) == c->dim && up->ndim == 2
			     ? up->dims[1]
			     : count_rows(up, 0);
	if (up && up == find_in_layer(x, 0, "feed_forward.w3.weight")) /* fused */
		c->ffn_dim = count_rows(up, 0) / 2;
	c->bias = !find_in_layer(x, 0, "attention.wq.bias")	 ? BIAS_NONE
		  : !find_in_layer(x, 0, "attention.wo.bias")	 ? BIAS_QKV
		  : !find_in_layer(x, 0, "feed_forward.w1.bias") ? BIAS_ATTENTION
								 : BIAS_ALL;
	c->tie = output && !torch_share_elements(x->file, output, x->table) ? NO : YES;
	set_head_norm(c, count_rows(find_in_layer(x, 0, "attention.q_norm.weight"), 0));
	if (c->arch == ARCH_OLMO2) /* (the norm covers all heads) */
		c->head_dim = 0;
	c->context = count_rows(stems_find_item(x, "pos_embeddings.weight"), 0);
}

void set_config_from_shapes(const struct torch_names *x, struct model_config *c)
{
	c->arch = x->dialect->arch;
	c->vocab = x->table->dims[0];
	c->dim = x->table->dims[1];
	if (x->dialect->fused)
		fused_set_config(x, c);
	else
		set_config_from_layers(x, c);
}

int64_t count_key_rows(const struct torch_names *x, const struct model_config *c)
{
	if (x->dialect->fused)
		return fused_count_key_rows(x, c);
	const struct torch_item *keys = find_in_layer(x, 0, "attention.wk.weight");
	if (c->arch == ARCH_GPT2)
		return c->dim;
	bool fused = keys && keys == find_in_layer(x, 0, "attention.wq.weight");
	return fused ? (count_rows(keys, 0) - c->heads * head_width(c)) / 2
		     : count_rows(keys, 0);
}
