/* What the shapes of tensors determine, where each layer has tensors with names of their own. */
#include "dialect/dialect.h"

enum { MAX_HEAD_NORM = 1 << 22 };

static const struct torch_item *of_layer(
	const struct torch_names *x, const char *stem, int64_t layer, const char *name)
{
	char text[160];
	snprintf(text, sizeof(text), "%s%lld.%s", stem, (long long)layer, name);
	return torch_names_find(x, text);
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
	const struct layer_names *s = x->dialect->layers;
	const struct torch_item *up = of_layer(x, s->layers, 0, s->up);
	const struct torch_item *output = torch_names_find(x, s->output);
	for (c->layers = 0; of_layer(x, s->layers, c->layers, s->norm);)
		c->layers++;
	/* (Hugging Face's GPT-2 has [in, out], nanoGPT [out, in]) */
	c->ffn_dim = rows(up, 0) == c->dim && up->ndim == 2 ? up->dims[1] : rows(up, 0);
	c->bias = !of_layer(x, s->layers, 0, s->bias)			   ? BIAS_NONE
		  : s->out_bias && !of_layer(x, s->layers, 0, s->out_bias) ? BIAS_QKV
									   : BIAS_ALL;
	c->tie = output && !torch_same(x->file, output, x->table) ? NO : YES;
	if (s->head_norm)
		set_head_norm(c, rows(of_layer(x, s->layers, 0, s->head_norm), 0));
	if (s->positions)
		c->context = rows(torch_names_find(x, s->positions), 0);
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
	const struct layer_names *s = x->dialect->layers;
	if (x->dialect->fused)
		return fused_key_rows(x, c);
	return s->keys ? rows(of_layer(x, s->layers, 0, s->keys), 0) : c->dim;
}
