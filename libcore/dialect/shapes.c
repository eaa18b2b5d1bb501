/* What the shapes of tensors determine of a model. */
#include "dialect/dialect.h"

enum { MAX_HEAD_NORM = 1 << 22 };

/* The item of one of our tensors, by its name without the layer. */
static const struct torch_item *of_layer(
	const struct torch_names *x, int64_t layer, const char *name)
{
	char text[96];
	snprintf(text, sizeof(text), "layers.%lld.%s", (long long)layer, name);
	return stems_item(x, text);
}

static int64_t rows(const struct torch_item *t, int64_t none)
{
	return t && t->ndim ? t->dims[0] : none;
}

void set_head_norm(struct model_config *c, int64_t size)
{
	c->qk_norm = size > 0;
	c->head_dim = size <= MAX_HEAD_NORM ? size : 0;
}

int64_t width_of_heads(const struct model_config *c)
{
	return c->head_dim ? c->head_dim : c->heads ? c->dim / c->heads : 0;
}

static void read_layers(const struct torch_names *x, struct model_config *c)
{
	const struct torch_item *up = of_layer(x, 0, "feed_forward.w1.weight");
	const struct torch_item *output = stems_item(x, "output.weight");
	for (c->layers = 0; of_layer(x, c->layers, "attention.wo.weight");)
		c->layers++;
	/* (Hugging Face's GPT-2 has [in, out], nanoGPT [out, in]) */
	c->ffn_dim =
		up && rows(up, 0) == c->dim && up->ndim == 2 ? up->dims[1] : rows(up, 0);
	if (up &&
		up == of_layer(x, 0, "feed_forward.w3.weight")) /* gate and up are one */
		c->ffn_dim = rows(up, 0) / 2;
	c->bias = !of_layer(x, 0, "attention.wq.bias")	    ? BIAS_NONE
		  : !of_layer(x, 0, "attention.wo.bias")    ? BIAS_QKV
		  : !of_layer(x, 0, "feed_forward.w1.bias") ? BIAS_ATTENTION
							    : BIAS_ALL;
	c->tie = output && !torch_same(x->file, output, x->table) ? NO : YES;
	set_head_norm(c, rows(of_layer(x, 0, "attention.q_norm.weight"), 0));
	if (c->arch == ARCH_OLMO2) /* (its norm is of all heads) */
		c->head_dim = 0;
	c->context = rows(stems_item(x, "pos_embeddings.weight"), 0);
}

void names_shapes(const struct torch_names *x, struct model_config *c)
{
	c->arch = x->dialect->arch;
	c->vocab = x->table->dims[0];
	c->dim = x->table->dims[1];
	if (x->dialect->fused)
		fused_shapes(x, c);
	else
		read_layers(x, c);
}

int64_t names_key_rows(const struct torch_names *x, const struct model_config *c)
{
	if (x->dialect->fused)
		return fused_key_rows(x, c);
	const struct torch_item *keys = of_layer(x, 0, "attention.wk.weight");
	if (c->arch == ARCH_GPT2)
		return c->dim;
	bool fused = keys && keys == of_layer(x, 0, "attention.wq.weight");
	return fused ? (rows(keys, 0) - c->heads * width_of_heads(c)) / 2 : rows(keys, 0);
}
