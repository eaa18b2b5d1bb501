/* Writes config.json: chooses the Hugging Face class of a model, and sets its keys. */
#include "foreign/huggingface.h"

#include "base/file.h"

static const char *const dtype_names[] = {
	[DT_F32] = "float32", [DT_BF16] = "bfloat16", [DT_F16] = "float16"};

/* Returns Hugging Face's name of the model's activation function; NULL: it has none. */
static const char *activation_name(const struct model *m)
{
	static const char *const names[] = {
#define ACT(id, fn, kind, word, hf, ...) hf,
#include "kernels/acts.h"
	};
	return names[m->act];
}

/* Returns the config.json of GPT2LMHeadModel; a new reference. */
static json_t *make_gpt2_config(const struct model *m)
{
	const struct model_config *c = &m->c;
	return json_pack("{s:[s], s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:f, s:f, s:f, s:f}",
		"architectures", "GPT2LMHeadModel", "model_type", "gpt2",
		"activation_function", activation_name(m), "n_layer",
		(json_int_t)c->layers, "n_head", (json_int_t)c->heads, "n_embd",
		(json_int_t)c->dim, "n_inner", (json_int_t)c->ffn_dim, "n_positions",
		(json_int_t)c->context, "layer_norm_epsilon", c->norm_eps, "attn_pdrop",
		c->dropout, "embd_pdrop", c->dropout, "resid_pdrop", c->dropout);
}

/* Returns the rope_scaling object of config.json, or null; a new reference. */
static json_t *make_rope_scaling(const struct model_config *c)
{
	if (c->rope_scaling == ROPE_PLAIN)
		return json_null();
	if (c->rope_scaling == ROPE_LINEAR)
		return json_pack(
			"{s:s, s:f}", "rope_type", "linear", "factor", c->rope_factor);
	if (c->rope_scaling == ROPE_YARN) {
		json_t *o = json_pack("{s:s, s:f, s:f, s:f, s:I}", "rope_type", "yarn",
			"factor", c->rope_factor, "beta_slow", c->rope_slow, "beta_fast",
			c->rope_fast, "original_max_position_embeddings",
			(json_int_t)c->rope_original);
		if (c->rope_attention > 0)
			json_object_set_new(
				o, "attention_factor", json_real(c->rope_attention));
		return o;
	}
	return json_pack("{s:s, s:f, s:f, s:f, s:I}", "rope_type", "llama3", "factor",
		c->rope_factor, "low_freq_factor", c->rope_low, "high_freq_factor",
		c->rope_high, "original_max_position_embeddings",
		(json_int_t)c->rope_original);
}

/* Returns the class to write a Llama-like model as; check_class() checks that it fits. */
static const struct hf_class *choose_class(const struct model *m)
{
	if (m->c.experts)
		return &hf_classes[m->c.router == ROUTER_SIGMOID ? HF_DOTS1
				   : m->c.shared_expert_dim	 ? HF_QWEN2_MOE
				   : m->c.qk_norm_all		 ? HF_OLMOE
				   : m->c.qk_norm		 ? HF_QWEN3_MOE
								 : HF_MIXTRAL];
	return &hf_classes[m->c.qk_norm			 ? HF_QWEN3
			   : m->c.nope_every		 ? HF_SMOLLM3
			   : m->qkv_bias && !m->out_bias ? HF_QWEN2
			   : m->c.window		 ? HF_MISTRAL
							 : HF_LLAMA];
}

/* Adds the keys of sliding windows that the class has, and layer_types if layers differ. */
static void add_windows(json_t *o, const struct model *m, const struct hf_class *class)
{
	const struct model_config *c = &m->c;
	json_object_set_new(o, "sliding_window", json_integer(c->window));
	if (class->window_off)
		json_object_set_new(o, "use_sliding_window", json_true());
	if (class->window_off && !c->nope_every)
		json_object_set_new(o, "max_window_layers", json_integer(c->window_from));
	if (!c->window_skip && !c->nope_every)
		return;
	json_t *kinds = json_array(); /* (no other key can express it) */
	for (int64_t l = 0; l < c->layers; l++)
		json_array_append_new(
			kinds, json_string(layer_has_window(c, l) ? "sliding_attention"
								  : "full_attention"));
	json_object_set_new(o, "layer_types", kinds);
}

static json_t *list_rotated_layers(const struct model *m)
{
	json_t *list = json_array();
	for (int64_t l = 0; l < m->c.layers; l++)
		json_array_append_new(list, json_integer(model_rotates(m, l)));
	return list;
}

/* Adds the keys of a mixture of experts. */
static void add_experts(json_t *o, const struct model *m, const struct hf_class *class)
{
	const struct model_config *c = &m->c;
	bool is_dots1 = class == &hf_classes[HF_DOTS1];
	const char *experts = is_dots1				 ? "n_routed_experts"
			      : class == &hf_classes[HF_MIXTRAL] ? "num_local_experts"
								 : "num_experts";
	json_object_set_new(o, experts, json_integer(c->experts));
	json_object_set_new(o, "num_experts_per_tok", json_integer(c->experts_per_token));
	if (class == &hf_classes[HF_MIXTRAL])
		return;
	json_object_set_new(o, "norm_topk_prob", json_boolean(c->router_norm));
	if (class == &hf_classes[HF_OLMOE])
		return;
	json_object_set_new(o, "moe_intermediate_size", json_integer(c->expert_dim));
	if (is_dots1) {
		int64_t groups = max64(1, c->router_groups);
		json_object_set_new(
			o, "routed_scaling_factor", json_real(c->router_scale));
		json_object_set_new(
			o, "first_k_dense_replace", json_integer(c->moe_from));
		json_object_set_new(o, "n_shared_experts",
			json_integer(c->shared_expert_dim / c->expert_dim));
		json_object_set_new(o, "n_group", json_integer(groups));
		json_object_set_new(o, "topk_group",
			json_integer(groups > 1 ? c->router_top_groups : 1));
		if (!c->window)
			json_object_set_new(o, "sliding_window", json_null());
		return;
	}
	json_t *dense = json_array();
	for (int64_t l = 0; l < c->moe_from; l++)
		json_array_append_new(dense, json_integer(l));
	json_object_set_new(o, "mlp_only_layers", dense);
	json_object_set_new(o, "decoder_sparse_step", json_integer(c->moe_every));
	if (c->shared_expert_dim)
		json_object_set_new(o, "shared_expert_intermediate_size",
			json_integer(c->shared_expert_dim));
}

/* Returns the config.json of the class that fits the Llama-like model; a new reference. */
static json_t *make_llama_config(const struct model *m)
{
	const struct model_config *c = &m->c;
	const struct hf_class *class = choose_class(m);
	json_t *o = json_pack("{s:[s], s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I}",
		"architectures", class->name, "model_type", class->type, "hidden_act",
		"silu", "num_hidden_layers", (json_int_t)c->layers, "num_attention_heads",
		(json_int_t)c->heads, "num_key_value_heads", (json_int_t)c->kv_heads,
		"hidden_size", (json_int_t)c->dim, "intermediate_size",
		(json_int_t)c->ffn_dim, "head_dim", (json_int_t)m->head_dim);
	json_object_set_new(o, "rms_norm_eps", json_real(c->norm_eps));
	json_object_set_new(o, "rope_theta", json_real(c->rope_theta));
	json_object_set_new(o, "rope_scaling", make_rope_scaling(c));
	if (c->nope_every) {
		json_object_set_new(
			o, "no_rope_layer_interval", json_integer(c->nope_every));
		json_object_set_new(o, "no_rope_layers", list_rotated_layers(m));
	}
	if (c->experts)
		add_experts(o, m, class);
	if (c->window)
		add_windows(o, m, class);
	if (class->attention_bias)
		json_object_set_new(o, "attention_bias", json_boolean(m->out_bias));
	if (class->mlp_bias)
		json_object_set_new(o, "mlp_bias", json_boolean(m->bias));
	return o;
}

/* Fails if the model has a feature that GPT2LMHeadModel lacks. */
static int check_gpt2(const struct model *m, struct err *e)
{
	const char *why = m->act == ACT_SWIGLU	? "SwiGLU"
			  : !activation_name(m) ? "this activation function"
			  : m->c.window		? "a sliding window"
			  : m->c.qk_norm	? "norms of queries and keys"
			  : m->c.kv_heads != m->c.heads
				  ? "fewer key and value heads than heads"
			  : model_q_width(m) != m->c.dim
				  ? "a head size other than hidden size / heads"
			  : m->qkv_bias && !m->bias ? "biases only in attention"
						    : NULL;
	return why ? err_set(e, EX_DATAERR, "GPT2LMHeadModel does not support %s", why)
		   : 0;
}

/* Returns an option of the model that can be read but not written; NULL if there is none. */
static const char *find_unsupported_option(const struct model *m)
{
	const char *part = model_unsupported_part(m);
	return part				   ? part
	       : m->c.moe_not && *m->c.moe_not	   ? "moe-not"
	       : m->c.rotary			   ? "rotary-channels"
	       : m->c.qk_norm_all && !m->c.experts ? "qk-norm-all"
	       : m->c.attention_scale > 0	   ? "attention-scale"
						   : NULL;
}

/* Returns an option of a mixture of experts that its class lacks; NULL if there is none. */
static const char *find_unsupported_router(const struct model *m)
{
	const struct model_config *c = &m->c;
	const struct hf_class *class = choose_class(m);
	bool is_dots1 = class == &hf_classes[HF_DOTS1];
	bool is_olmoe = class == &hf_classes[HF_OLMOE];
	bool is_mixtral = class == &hf_classes[HF_MIXTRAL];
	bool is_uniform = is_mixtral || is_olmoe; /* all layers have equal experts */
	bool is_qwen2 = class == &hf_classes[HF_QWEN2_MOE];
	return !is_dots1 && c->router		   ? "router"
	       : !is_dots1 && c->router_scale != 1 ? "router-scale"
	       : !is_dots1 && c->router_groups > 1 ? "router-groups"
	       : is_dots1 && c->moe_every > 1	   ? "moe-every"
	       : is_dots1 && c->shared_expert_dim % c->expert_dim
		       ? "a shared-expert-dim that is not a multiple of expert-dim"
	       : c->shared_expert_gate != is_qwen2
		       ? is_qwen2 ? "--no-shared-expert-gate" : "shared-expert-gate"
	       : is_mixtral && !c->router_norm			 ? "--no-router-norm"
	       : is_uniform && (c->moe_from || c->moe_every > 1) ? "dense layers"
	       : is_uniform && c->expert_dim != c->ffn_dim
		       ? "an expert-dim other than ffn-dim"
	       : is_olmoe && model_q_width(m) != c->dim
		       ? "a head size other than hidden size / heads"
	       : is_dots1 && c->qk_norm_all ? "qk-norm-all"
	       : is_dots1 && !c->qk_norm    ? "no qk-norm"
	       : is_qwen2 && c->qk_norm	    ? "qk-norm"
	       : is_qwen2 && !m->qkv_bias   ? "no biases of queries, keys and values"
	       : c->nope_every		    ? "nope-every"
					    : NULL;
}

/* Fails if no class supports the model. */
static int check_class(const struct model *m, struct err *e)
{
	const struct model_config *c = &m->c;
	const struct hf_class *class = choose_class(m);
	if (c->arch == ARCH_GPT2)
		return check_gpt2(m, e);
	const char *option = find_unsupported_option(m);
	if (option)
		return err_set(e, EX_UNAVAILABLE,
			"a model with %s cannot be written in this format", option);
	option = m->c.experts ? find_unsupported_router(m) : NULL;
	if (m->c.experts && m->c.router == ROUTER_SOFTMAX && m->c.router_bias_rate > 0)
		option = "router-bias";
	if (option)
		return err_set(
			e, EX_UNAVAILABLE, "%s does not support %s", class->name, option);
	if (m->act != ACT_SWIGLU)
		return err_set(e, EX_DATAERR,
			"LlamaForCausalLM does not support activation functions other than "
			"SwiGLU");
	if (c->window && class == &hf_classes[HF_OLMOE])
		return err_set(
			e, EX_DATAERR, "%s does not support a window", class->name);
	if (c->window && !class->window_off && (c->window_from || c->window_skip))
		return err_set(e, EX_DATAERR,
			"%s does not support a window in only some layers", class->name);
	if (c->qk_norm && c->nope_every && !c->experts)
		return err_set(e, EX_DATAERR,
			"Qwen3ForCausalLM, which has norms of queries and keys, does not "
			"support layers without rotary positions");
	bool is_bias_supported =
		class->attention_bias ? m->qkv_bias == m->out_bias : !m->out_bias;
	if (!is_bias_supported || (m->bias && !class->mlp_bias) ||
		(m->qkv_bias && (class == &hf_classes[HF_MISTRAL] ||
					class == &hf_classes[HF_MIXTRAL])))
		return err_set(e, EX_DATAERR, "%s does not support --bias %s",
			class->name, bias_names[model_bias(m)]);
	return 0;
}

int64_t hf_vocab_multiple(const struct model *m)
{
	int64_t step = max64(1, m->c.vocab_multiple), multiple = step;
	while (multiple % m->tp)
		multiple += step;
	return multiple;
}

int hf_json_write(const char *path, json_t *object, size_t flags, struct err *e)
{
	scoped_str text = {0};
	scoped_ptr char *dumped = json_dumps(object, JSON_INDENT(2) | flags);
	str_puts(&text, dumped);
	str_putc(&text, '\n');
	int rc = file_replace(path, &text, e);
	json_decref(object);
	return rc;
}

int hf_config_write(const struct model *m, int64_t vocab, enum dtype dtype,
	const char *path, json_t *keys, struct err *e)
{
	int64_t multiple = vocab < m->padded_vocab ? hf_vocab_multiple(m) : 1;
	if (check_class(m, e))
		return -1;
	if (multiple > MAX_MULTIPLE) /* it could not be read again */
		return err_set(e, EX_DATAERR,
			"the vocabulary is padded to a multiple of %lld, but " HF_MULTIPLE_KEY
			" must be at most %d; give --padding to write the padding, too",
			(long long)multiple, MAX_MULTIPLE);
	if (!path)
		return 0;
	json_t *o = m->c.arch == ARCH_GPT2 ? make_gpt2_config(m) : make_llama_config(m);
	json_object_set_new(o, "vocab_size", json_integer(vocab));
	if (vocab < m->padded_vocab)
		json_object_set_new(o, HF_MULTIPLE_KEY, json_integer(multiple));
	json_object_set_new(o, "tie_word_embeddings", json_boolean(m->tie));
	json_object_set_new(o, "torch_dtype", json_string(dtype_names[dtype]));
	json_object_update(o, keys);
	return hf_json_write(path, o, 0, e);
}

void hf_hash_options(const struct model *m, char out[static ST_DIGITS + 1])
{
	struct ckpt_view v;
	convert_init_view(&v, m, "");
	snprintf(out, ST_DIGITS + 1, "%016llx",
		(unsigned long long)hash_bytes(v.config.s, v.config.len, 0));
	ckpt_view_close(&v);
}
