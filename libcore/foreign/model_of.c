/* Converts the options of a view to its model, and back. */
#include "foreign/foreign.h"

#include "engine/options.h"
#include "options/options.h"

#include <math.h>

static struct ckpt_tensor describe_tensor(const struct tensor *t)
{
	struct ckpt_tensor out = {.ndim = t->ndim};
	snprintf(out.name, sizeof(out.name), "%s", t->name);
	memcpy(out.dims, t->dims, sizeof(out.dims));
	return out;
}

/* Fails if a tensor of the model is missing from the view or differs in shape. */
static int check_tensor(const struct ckpt_view *v, const struct tensor *t, struct err *e)
{
	int k = ckpt_view_find(v, t->name);
	if (k < 0)
		return err_set(
			e, EX_DATAERR, "%s: tensor %s is missing", v->name, t->name);
	const struct ckpt_tensor wanted = describe_tensor(t);
	if (ckpt_same_shape(&v->tensors[k], &wanted))
		return 0;
	return err_set(e, EX_DATAERR, "%s: the shape of %s does not fit the model",
		v->name, t->name);
}

/* Bounds the layers before their memory is allocated. */
static int check_layers(
	const struct model_config *c, const struct ckpt_view *v, struct err *e)
{
	return c->layers <= v->n_tensors
		       ? 0
		       : err_set(e, EX_DATAERR,
				 "the options of the model specify %lld layers, but the file has only %d tensors",
				 (long long)c->layers, v->n_tensors);
}

int convert_model(const struct ckpt_view *v, struct model *m, struct err *e)
{
	struct model_config c;
	int64_t vocab = v->tokenizer ? v->tokenizer->vocab.n : 0;
	if (options_parse_model(&c, v->config.s, e) || check_layers(&c, v, e) ||
		model_init(m, &c, vocab, e)) {
		e->code = EX_DATAERR; /* (not a usage error) */
		return err_prefix(e, "%s: ", v->name);
	}
	int rc = 0;
	for (int i = 0; i < m->n_tensors && !rc; i++)
		rc = check_tensor(v, &m->tensors[i], e);
	if (!rc && v->n_tensors != m->n_tensors)
		rc = err_set(e, EX_DATAERR,
			"%s has %d tensors, but its options specify %d", v->name,
			v->n_tensors, m->n_tensors);
	if (rc)
		model_release(m);
	return rc;
}

static void append_int(struct str *out, const char *key, int64_t x)
{
	str_printf(out, "%s = %lld\n", key, (long long)x);
}

static void append_real(struct str *out, const char *key, double x)
{
	char text[NUM_TEXT];
	str_printf(out, "%s = %s\n", key, text_double(text, x));
}

/* Appends the scale options that are set as lines of a configuration. */
static void append_scales(const struct model_config *c, struct str *out)
{
	const struct {
		const char *key;
		double x;
	} all[] = {{"embedding-scale", c->embedding_scale},
		{"residual-scale", c->residual_scale},
		{"attention-scale", c->attention_scale}, {"logit-scale", c->logit_scale},
		{"score-cap", c->score_cap}, {"logit-cap", c->logit_cap}};
	for (size_t i = 0; i < ARRAY_LEN(all); i++)
		if (all[i].x > 0)
			append_real(out, all[i].key, all[i].x);
}

/* Appends the options of a mixture of experts that differ from their defaults. */
static void append_experts(const struct model_config *c, struct str *out)
{
	append_int(out, "experts", c->experts);
	append_int(out, "experts-per-token", c->experts_per_token);
	append_int(out, "expert-dim", c->expert_dim);
	if (c->shared_expert_dim)
		append_int(out, "shared-expert-dim", c->shared_expert_dim);
	if (c->shared_expert_gate)
		str_puts(out, "shared-expert-gate = yes\n");
	if (c->moe_from)
		append_int(out, "moe-from", c->moe_from);
	if (c->moe_every > 1)
		append_int(out, "moe-every", c->moe_every);
	if (c->moe_not && *c->moe_not)
		str_printf(out, "moe-not = %s\n", c->moe_not);
	str_printf(out, "router = %s\n", router_names[c->router]);
	str_printf(out, "router-norm = %s\n", c->router_norm ? "yes" : "no");
	if (c->router == ROUTER_SOFTMAX && c->router_bias_rate > 0)
		append_real(out, "router-bias", c->router_bias_rate);
	if (c->router_scale > 0 && c->router_scale != 1)
		append_real(out, "router-scale", c->router_scale);
	if (c->router_groups > 1) {
		append_int(out, "router-groups", c->router_groups);
		append_int(out, "router-top-groups", c->router_top_groups);
	}
}

/* Appends the options of the model, except those that its architecture implies. */
static void append_options(const struct model *m, struct str *out)
{
	const struct model_config *c = &m->c;
	str_printf(out, "arch = %s\n", arch_names[c->arch]);
	append_int(out, "layers", c->layers);
	append_int(out, "heads", c->heads);
	if (c->kv_heads != c->heads)
		append_int(out, "kv-heads", c->kv_heads);
	if (m->head_dim * c->heads != c->dim)
		append_int(out, "head-dim", m->head_dim);
	append_int(out, "dim", c->dim);
	append_int(out, "ffn-dim", c->ffn_dim);
	append_int(out, "context", c->context);
	append_int(out, "vocab", c->vocab);
	if (c->vocab_multiple > 1)
		append_int(out, "vocab-multiple", c->vocab_multiple);
	str_printf(out, "act = %s\n", act_names[c->act]);
	str_printf(out, "bias = %s\n", bias_names[model_bias(m)]);
	str_printf(out, "tie = %s\n", m->tie ? "yes" : "no");
	append_real(out, "norm-eps", c->norm_eps);
	if (c->window)
		append_int(out, "sliding-window", c->window);
	if (c->window_from)
		append_int(out, "sliding-window-from", c->window_from);
	if (c->window_skip)
		append_int(out, "sliding-window-skip", c->window_skip);
	if (c->qk_norm)
		str_puts(out, "qk-norm = yes\n");
	if (c->qk_norm_all)
		str_puts(out, "qk-norm-all = yes\n");
	if (c->experts)
		append_experts(c, out);
	append_scales(c, out);
	if (!m->arch->rope)
		return;
	if (c->nope_every)
		append_int(out, "nope-every", c->nope_every);
	append_real(out, "rope-theta", c->rope_theta);
	if (c->rope_local_theta > 0)
		append_real(out, "rope-local-theta", c->rope_local_theta);
	if (c->rotary)
		append_int(out, "rotary-channels", c->rotary);
	if (c->rope_scaling == ROPE_PLAIN)
		return;
	str_printf(out, "rope-scaling = %s\n", rope_scaling_names[c->rope_scaling]);
	append_real(out, "rope-factor", c->rope_factor);
	if (c->rope_scaling == ROPE_LLAMA3) {
		append_real(out, "rope-low", c->rope_low);
		append_real(out, "rope-high", c->rope_high);
		append_int(out, "rope-original", c->rope_original);
	} else if (c->rope_scaling == ROPE_YARN) {
		append_real(out, "rope-slow", c->rope_slow);
		append_real(out, "rope-fast", c->rope_fast);
		if (c->rope_attention > 0)
			append_real(out, "rope-attention", c->rope_attention);
		append_int(out, "rope-original", c->rope_original);
	}
}

int convert_hash(
	const struct ckpt_view *v, enum dtype dtype, uint64_t *hash, struct err *e)
{
	struct ckpt_view rounded;
	if (ckpt_select(&rounded, v, &(struct ckpt_selection){.round_to = dtype}, e))
		return -1;
	int rc = ckpt_view_hash(&rounded, hash, e);
	ckpt_view_close(&rounded);
	return rc;
}

int convert_options(const char *config, int64_t vocab, struct str *out, struct err *e)
{
	struct model_config c;
	struct model m;
	if (options_parse_model(&c, config, e))
		return -1;
	/* (other formats describe the padding differently; shapes are compared instead) */
	c.vocab_multiple = 1;
	if (!c.vocab && !vocab)
		c.vocab = 1;
	int64_t layers = c.layers;
	c.layers = 1; /* a hostile file may state millions */
	if (model_init(&m, &c, vocab, e))
		return -1;
	m.c.layers = layers;
	append_options(&m, out);
	model_release(&m);
	return 0;
}

static int append_model_options(const struct ckpt_view *v, struct str *out, struct err *e)
{
	return convert_options(
		v->config.s, v->tokenizer ? v->tokenizer->vocab.n : 0, out, e);
}

int convert_check_same_model(
	const struct ckpt_view *a, const struct ckpt_view *b, struct err *e)
{
	scoped_str x = {0}, y = {0}, differ = {0};
	const struct conf_text first = {&x, a->name}, second = {&y, b->name};
	int rc = append_model_options(a, &x, e) || append_model_options(b, &y, e) ||
		 conf_diff(&first, &second, "", "", " and ", &differ, e);
	if (rc)
		e->code = EX_DATAERR;
	else if (differ.len)
		rc = err_set(e, EX_DATAERR, "%s and %s are different models: %.*s",
			a->name, b->name, (int)strcspn(differ.s, "\n"), differ.s);
	else if (a->tokenizer && b->tokenizer &&
		 !tokenizer_equal(a->tokenizer, b->tokenizer))
		rc = err_set(e, EX_DATAERR, "%s and %s have different vocabularies",
			a->name, b->name);
	return rc ? -1 : 0;
}

void convert_init_view(struct ckpt_view *v, const struct model *m, const char *path)
{
	const double none = (double)NAN;
	*v = (struct ckpt_view){.name = path,
		.info = {.created_by = "pt-ckpt " PT_VERSION,
			.loss = none,
			.val_loss = none,
			.best_val_loss = none}};
	append_options(m, &v->config);
	strs_add(&v->groups, "model");
	v->n_tensors = m->n_tensors;
	v->tensors = xcalloc((size_t)m->n_tensors, sizeof(*v->tensors));
	for (int i = 0; i < m->n_tensors; i++)
		v->tensors[i] = describe_tensor(&m->tensors[i]);
}
