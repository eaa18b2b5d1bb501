/* Reads config.json into our options. Rejects settings that pt does not compute. */
#include "foreign/huggingface.h"

#include "base/file.h"

#include <math.h>

struct hf_reader {
	const char *path;
	json_t *root;
	struct err *e;
};

static json_t *get_key(const struct hf_reader *r, const char *key)
{
	json_t *x = json_object_get(r->root, key);
	return json_is_null(x) ? NULL : x;
}

static int reject(const struct hf_reader *r, const char *key, const char *why)
{
	return err_set(r->e, EX_DATAERR, "%s: %s %s", r->path, key, why);
}

/* Reports a valid setting that pt-train does not compute. */
static int not_supported(const struct hf_reader *r, const char *key, const char *why)
{
	return err_set(r->e, EX_UNAVAILABLE, "%s: %s %s", r->path, key, why);
}

/* Reads an integer from 1 to `max`. `fallback`: value if the key is missing; -1: it is required. */
static int get_int(const struct hf_reader *r, const char *key, int64_t fallback,
	int64_t max, int64_t *out)
{
	json_t *x = get_key(r, key);
	if (!x && fallback >= 0) {
		*out = fallback;
		return 0;
	}
	*out = json_is_integer(x) ? json_integer_value(x) : 0;
	if (!x)
		return reject(r, key, "is missing");
	return *out >= 1 && *out <= max ? 0 : reject(r, key, "is out of range");
}

/* Sets *out to an integer from 0 to max, or to `fallback` if the key is missing (-1: fails). */
static int get_count(const struct hf_reader *r, const char *key, int64_t fallback,
	int64_t max, int64_t *out)
{
	json_t *x = get_key(r, key);
	*out = 0;
	if (json_is_integer(x) && !json_integer_value(x))
		return 0;
	return get_int(r, key, fallback, max, out);
}

/* Sets *out to a positive number of a JSON object; `fallback` if the key is missing or null. */
static int get_real(const struct hf_reader *r, json_t *from, const char *key,
	double fallback, double *out)
{
	json_t *x = json_object_get(from, key);
	x = json_is_null(x) ? NULL : x;
	*out = x ? json_number_value(x) : fallback;
	if ((x && !json_is_number(x)) || !isfinite(*out) || *out <= 0)
		return reject(r, key, "is not a positive number");
	return 0;
}

static int get_bool(const struct hf_reader *r, const char *key, bool fallback, bool *out)
{
	json_t *x = get_key(r, key);
	*out = x ? json_is_true(x) : fallback;
	return x && !json_is_boolean(x) ? reject(r, key, "is neither true nor false") : 0;
}

/* Rejects a switch that differs from the value that pt computes, its default. */
static int require_bool(const struct hf_reader *r, const char *key, bool value)
{
	bool x;
	if (get_bool(r, key, value, &x))
		return -1;
	return x == value ? 0 : not_supported(r, key, value ? "is false" : "is true");
}

/* Reads the name of an activation function, gated (such as SwiGLU) or not. */
static int get_activation(const struct hf_reader *r, const char *key, bool gated,
	const char *fallback, int *out)
{
	static const struct {
		const char *names[2];
		enum act_kind kind;
		int act;
	} known[] = {
#define ACT(id, fn, kind, word, hf, hf_too, ...) {{hf, hf_too}, ACT_##id, ACTC_##id},
#include "kernels/acts.h"
	};
	json_t *x = get_key(r, key);
	const char *name = x ? json_string_value(x) : fallback;
	for (size_t i = 0; name && i < ARRAY_LEN(known); i++)
		for (int k = 0; k < 2 && act_is_gated(known[i].kind) == gated; k++)
			if (known[i].names[k] && !strcmp(name, known[i].names[k])) {
				*out = known[i].act;
				return 0;
			}
	return not_supported(r, key, "is an unsupported activation function");
}

enum { MAX_HEADS = 4095, MAX_HEAD_DIM = 1 << 16, MAX_LAYERS = 100000 };
enum { MAX_DIM = 1 << 22, MAX_FFN = 1 << 24 };

/* Fails if layer_types gives any layer a window. */
static int require_full_attention(const struct hf_reader *r)
{
	json_t *kinds = get_key(r, "layer_types");
	for (size_t i = 0; i < json_array_size(kinds); i++) {
		const char *kind = json_string_value(json_array_get(kinds, i));
		if (!kind || strcmp(kind, "full_attention"))
			return not_supported(
				r, "layer_types", "must be full_attention in all layers");
	}
	return 0;
}

/* Fails if the configuration of a class without windows specifies one. */
static int reject_windows(const struct hf_reader *r)
{
	json_t *window = get_key(r, "sliding_window");
	bool uses_window;
	if (get_bool(r, "use_sliding_window", window, &uses_window))
		return -1;
	if (window && uses_window)
		return not_supported(r, "sliding_window", "is not supported");
	return require_full_attention(r);
}

/* Sets the number of rotated channels. If the class rotates all, the fraction must be 1. */
static int read_rotary(const struct hf_reader *r, const struct hf_class *class,
	json_t *scaling, int64_t width, struct model_config *c)
{
	double fraction = class->rotary > 0 ? class->rotary : 1;
	if (get_real(r, r->root, "partial_rotary_factor", fraction, &fraction) ||
		get_real(r, scaling, "partial_rotary_factor", fraction, &fraction))
		return -1;
	if (fraction == 1)
		return 0;
	if (!(class->rotary > 0))
		return not_supported(r, "partial_rotary_factor", "is not 1");
	c->rotary = (int64_t)((double)width * fraction);
	return c->rotary > 0 && c->rotary <= width
		       ? 0
		       : reject(r, "partial_rotary_factor", "is out of range");
}

/* Reads the config.json of GPT-2 into *h. Fails for features that pt does not support. */
static int read_gpt2(const struct hf_reader *r, struct hf_config *h)
{
	struct model_config *c = &h->c;
	bool tie;
	c->arch = ARCH_GPT2;
	if (get_int(r, "n_layer", -1, MAX_LAYERS, &c->layers) ||
		get_int(r, "n_head", -1, MAX_HEADS, &c->heads) ||
		get_int(r, "n_embd", -1, MAX_DIM, &c->dim) ||
		get_int(r, "n_inner", 4 * c->dim, MAX_FFN, &c->ffn_dim) ||
		get_int(r, "n_positions", 1024, MAX_DIM, &c->context) ||
		get_int(r, "vocab_size", -1, 1 << 24, &c->vocab) ||
		get_int(r, HF_MULTIPLE_KEY, 1, MAX_MULTIPLE, &c->vocab_multiple) ||
		get_real(r, r->root, "layer_norm_epsilon", 1e-5, &c->norm_eps) ||
		get_activation(r, "activation_function", false, "gelu_new", &c->act) ||
		get_bool(r, "tie_word_embeddings", true, &tie) ||
		require_bool(r, "scale_attn_weights", true) ||
		require_bool(r, "scale_attn_by_inverse_layer_idx", false) ||
		require_bool(r, "add_cross_attention", false) || reject_windows(r) ||
		read_rotary(r, &(const struct hf_class){0}, get_key(r, "rope_parameters"),
			1, c))
		return -1;
	c->kv_heads = c->heads;
	h->scheme = &scheme_gpt2;
	c->bias = BIAS_ALL;
	c->tie = tie ? YES : NO;
	return 0;
}

/* Reads YaRN's keys. rope_attention is a key, or follows from mscale keys or from the factor. */
static int read_yarn(const struct hf_reader *r, json_t *scaling, struct model_config *c)
{
	const struct hf_reader nested = {r->path, scaling, r->e};
	double m = 0, m_all = 0;
	if (get_int(&nested, "original_max_position_embeddings", c->context, INT64_MAX,
		    &c->rope_original) ||
		get_real(r, scaling, "beta_fast", 32, &c->rope_fast) ||
		get_real(r, scaling, "beta_slow", 1, &c->rope_slow) ||
		require_bool(&nested, "truncate", true))
		return -1;
	c->rope_attention = 0;
	if (get_key(&nested, "attention_factor"))
		return get_real(r, scaling, "attention_factor", NAN, &c->rope_attention);
	if (!get_key(&nested, "mscale") || !get_key(&nested, "mscale_all_dim"))
		return 0;
	if (get_real(r, scaling, "mscale", NAN, &m) ||
		get_real(r, scaling, "mscale_all_dim", NAN, &m_all))
		return -1;
	c->rope_attention = (0.1 * m * log(c->rope_factor) + 1) /
			    (0.1 * m_all * log(c->rope_factor) + 1);
	return 0;
}

/* Reads rope_type, and the keys of that type. */
static int read_rope_scaling(const struct hf_reader *r, const struct hf_class *class,
	json_t *scaling, struct model_config *c)
{
	static const char *const names[] = {[ROPE_PLAIN] = "default",
		[ROPE_LINEAR] = "linear",
		[ROPE_LLAMA3] = "llama3",
		[ROPE_YARN] = "yarn"};
	json_t *kind = json_object_get(scaling, "rope_type");
	kind = kind ? kind : json_object_get(scaling, "type");
	const char *name = kind ? json_string_value(kind) : "default";
	size_t i = 0;
	while (i < ARRAY_LEN(names) && (!name || strcmp(name, names[i]) != 0))
		i++;
	if (i == ARRAY_LEN(names) || (i && class->plain_rope))
		return not_supported(r, "rope_type",
			class->plain_rope ? "must be default for this model"
					  : "must be default, linear, llama3 or yarn");
	c->rope_scaling = (int)i;
	if (i == ROPE_PLAIN)
		return 0;
	if (get_real(r, scaling, "factor", NAN, &c->rope_factor))
		return -1;
	if (i == ROPE_YARN)
		return read_yarn(r, scaling, c);
	if (i == ROPE_LINEAR)
		return 0;
	const struct hf_reader nested = {r->path, scaling, r->e};
	return get_int(&nested, "original_max_position_embeddings", -1, INT64_MAX,
		       &c->rope_original) ||
			       get_real(r, scaling, "low_freq_factor", NAN,
				       &c->rope_low) ||
			       get_real(
				       r, scaling, "high_freq_factor", NAN, &c->rope_high)
		       ? -1
		       : 0;
}

static const char *const layer_kinds[] = {"full_attention", "sliding_attention"};

/* Returns the part of rope_parameters for a kind of layers; NULL if all layers share them. */
static json_t *get_layer_rope(const struct hf_reader *r, int kind)
{
	return json_object_get(get_key(r, "rope_parameters"), layer_kinds[kind]);
}

/* Reads rope_theta of the layers with a window. */
static int read_local_rope(
	const struct hf_reader *r, const struct hf_class *class, struct model_config *c)
{
	json_t *local = get_layer_rope(r, 1);
	json_t *kind = json_object_get(local, "rope_type");
	const char *name = kind ? json_string_value(kind) : "default";
	if (!name || strcmp(name, "default") != 0)
		return not_supported(r, "rope_parameters.sliding_attention.rope_type",
			"must be default");
	return local ? get_real(r, local, "rope_theta", class->local_theta,
			       &c->rope_local_theta)
		     : get_real(r, r->root, "rope_local_base_freq", class->local_theta,
			       &c->rope_local_theta);
}

/* Reads the rotary embedding. Since transformers 5, rope_theta may be in rope_parameters. */
static int read_rope(const struct hf_reader *r, const struct hf_class *class,
	int64_t width, struct model_config *c)
{
	json_t *scaling = get_key(r, "rope_parameters"),
	       *rope_scaling = get_key(r, "rope_scaling");
	json_t *full = get_layer_rope(r, 0);
	bool per_layer = class->local_theta > 0;
	if ((full || get_layer_rope(r, 1)) && !per_layer)
		return not_supported(
			r, "rope_parameters", "must not differ by kind of layer");
	scaling = per_layer ? full : scaling;
	scaling = scaling && !json_is_null(scaling) ? scaling : rope_scaling;
	if (scaling && !json_is_object(scaling))
		return reject(r, "rope_scaling", "is not an object");
	json_t *from = json_object_get(scaling, "rope_theta") ? scaling : r->root;
	return get_real(r, from, "rope_theta", class->theta, &c->rope_theta) ||
			       read_rope_scaling(r, class, scaling, c) ||
			       read_rotary(r, class, scaling, width, c) ||
			       (per_layer && read_local_rope(r, class, c))
		       ? -1
		       : 0;
}

/* ---- keys of other families than Llama ----------------------------------------------------- */

/* Reads a factor; sets 0 if it is 1. */
static int get_factor(const struct hf_reader *r, const char *key, double *out)
{
	if (get_real(r, r->root, key, 1, out))
		return -1;
	*out = *out == 1 ? 0 : *out;
	return 0;
}

/* Reads Granite's scale factors. pt multiplies logits by the inverse of logits_scaling. */
static int read_granite(const struct hf_reader *r, struct model_config *c)
{
	if (get_factor(r, "embedding_multiplier", &c->embedding_scale) ||
		get_factor(r, "residual_multiplier", &c->residual_scale) ||
		get_factor(r, "logits_scaling", &c->logit_scale) ||
		get_real(r, r->root, "attention_multiplier", 1, &c->attention_scale))
		return -1;
	c->logit_scale = c->logit_scale > 0 ? 1 / c->logit_scale : 0;
	return 0;
}

/* Reads a cap. null means none; a missing key means the class's default `fallback` (0: none). */
static int get_cap(
	const struct hf_reader *r, const char *key, double fallback, double *out)
{
	json_t *x = json_object_get(r->root, key);
	*out = x ? 0 : fallback;
	return x && !json_is_null(x) ? get_real(r, r->root, key, NAN, out) : 0;
}

/* Reads Gemma's attention scale and caps, with the class's defaults of the caps. */
static int read_gemma(const struct hf_reader *r, struct model_config *c, double score_cap,
	double logit_cap)
{
	double width;
	if (get_real(r, r->root, "query_pre_attn_scalar", 256, &width) ||
		get_cap(r, "attn_logit_softcapping", score_cap, &c->score_cap) ||
		get_cap(r, "final_logit_softcapping", logit_cap, &c->logit_cap) ||
		require_bool(r, "use_bidirectional_attention", false))
		return -1;
	c->attention_scale = 1 / sqrt(width);
	return 0;
}

static int read_gemma2(const struct hf_reader *r, struct model_config *c)
{
	return read_gemma(r, c, 50, 30);
}

/* Reads Gemma 3's keys. (transformers writes attn_logit_softcapping but ignores it.) */
static int read_gemma3(const struct hf_reader *r, struct model_config *c)
{
	if (read_gemma(r, c, 0, 0))
		return -1;
	return c->score_cap > 0 ? not_supported(r, "attn_logit_softcapping",
					  "is not supported for Gemma 3")
				: 0;
}

/* ---- mixtures of experts ------------------------------------------------------------------- */

/* Reads the number of experts, under the key `own` or the key that all classes of transformers 5
 * have, and the experts of a token. */
static int read_experts(const struct hf_reader *r, const char *own, int64_t experts,
	int64_t per_token, struct model_config *c)
{
	static const char any[] = "num_local_experts";
	c->router_scale = 1;
	c->moe_every = 1;
	if (get_key(r, own) && get_key(r, any) &&
		!json_equal(get_key(r, own), get_key(r, any)))
		return reject(r, any, "differs from the same key under another name");
	return get_int(r, get_key(r, own) ? own : any, experts, MAX_ROUTER_EXPERTS,
		       &c->experts) ||
			       get_int(r, "num_experts_per_tok", per_token,
				       MAX_EXPERTS_PER_ROW, &c->experts_per_token)
		       ? -1
		       : 0;
}

static int read_mixtral(const struct hf_reader *r, struct model_config *c)
{
	json_t *jitter = get_key(r, "router_jitter_noise");
	if (json_number_value(jitter) != 0)
		return not_supported(r, "router_jitter_noise", "is not 0");
	c->router_norm = true;
	return read_experts(r, "num_experts", 8, 2, c);
}

/* Reads OLMoE's keys: all layers have experts of intermediate_size, and norms cover all heads. */
static int read_olmoe(const struct hf_reader *r, struct model_config *c)
{
	if (get_key(r, "clip_qkv"))
		return not_supported(r, "clip_qkv", "is not null");
	c->qk_norm_all = true;
	return read_experts(r, "num_experts", 64, 8, c) ||
			       get_bool(r, "norm_topk_prob", false, &c->router_norm)
		       ? -1
		       : 0;
}

/* Reads which layers are dense. Besides decoder_sparse_step, only the first layers can be. */
static int read_dense_layers(const struct hf_reader *r, struct model_config *c)
{
	json_t *list = get_key(r, "mlp_only_layers");
	if (get_int(r, "decoder_sparse_step", 1, MAX_LAYERS, &c->moe_every))
		return -1;
	if (list && !json_is_array(list))
		return reject(r, "mlp_only_layers", "is not a list");
	for (size_t i = 0; i < json_array_size(list); i++) {
		json_t *x = json_array_get(list, i);
		if (!json_is_integer(x) || json_integer_value(x) != (json_int_t)i)
			return not_supported(
				r, "mlp_only_layers", "must be empty or 0, 1, 2, ...");
	}
	c->moe_from = (int64_t)json_array_size(list);
	return 0;
}

/* Reads the keys that Qwen2-MoE and Qwen3-MoE share. */
static int read_qwen_moe(const struct hf_reader *r, int64_t experts, int64_t per_token,
	int64_t dim, struct model_config *c)
{
	return read_experts(r, "num_experts", experts, per_token, c) ||
			       get_int(r, "moe_intermediate_size", dim, MAX_FFN,
				       &c->expert_dim) ||
			       get_bool(r, "norm_topk_prob", false, &c->router_norm) ||
			       read_dense_layers(r, c)
		       ? -1
		       : 0;
}

static int read_qwen2_moe(const struct hf_reader *r, struct model_config *c)
{
	c->shared_expert_gate = true;
	return read_qwen_moe(r, 60, 4, 1408, c) ||
			       get_int(r, "shared_expert_intermediate_size", 5632,
				       MAX_FFN, &c->shared_expert_dim) ||
			       require_bool(r, "qkv_bias", true)
		       ? -1
		       : 0;
}

static int read_qwen3_moe(const struct hf_reader *r, struct model_config *c)
{
	return read_qwen_moe(r, 128, 8, 768, c);
}

static int read_dots1(const struct hf_reader *r, struct model_config *c)
{
	int64_t n_shared, groups;
	if (read_experts(r, "n_routed_experts", -1, -1, c) ||
		get_int(r, "moe_intermediate_size", 1408, MAX_FFN, &c->expert_dim) ||
		get_bool(r, "norm_topk_prob", false, &c->router_norm) ||
		get_real(r, r->root, "routed_scaling_factor", 1, &c->router_scale) ||
		get_count(r, "first_k_dense_replace", 0, MAX_LAYERS, &c->moe_from) ||
		get_count(r, "n_shared_experts", 0, MAX_ROUTER_EXPERTS, &n_shared) ||
		get_int(r, "n_group", 1, MAX_ROUTER_EXPERTS, &groups) ||
		get_int(r, "topk_group", 1, MAX_ROUTER_EXPERTS, &c->router_top_groups))
		return -1;
	c->router = ROUTER_SIGMOID;
	c->router_groups = groups > 1 ? groups : 0;
	c->router_top_groups = groups > 1 ? c->router_top_groups : 0;
	c->shared_expert_dim = n_shared * c->expert_dim;
	return c->shared_expert_dim <= MAX_FFN
		       ? 0
		       : reject(r, "n_shared_experts", "is out of range");
}

/* The classes with Llama's keys, and the defaults of the keys. */
const struct hf_class hf_classes[] = {
	[HF_LLAMA] = {"LlamaForCausalLM", "llama", .context = 2048, .theta = 1e4,
		.attention_bias = true, .mlp_bias = true},
	[HF_MISTRAL] = {"MistralForCausalLM", "mistral", .kv_heads = 8, .context = 131072,
		.theta = 1e4, .windows = true, .window = 4096},
	[HF_QWEN2] = {"Qwen2ForCausalLM", "qwen2", .kv_heads = 32, .context = 32768,
		.theta = 1e4, .windows = true, .window = 4096, .window_from = 28,
		.window_off = true, .qkv_bias = true},
	[HF_QWEN3] = {"Qwen3ForCausalLM", "qwen3", .kv_heads = 32, .context = 32768,
		.head_dim = 128, .theta = 1e4, .windows = true, .window = 4096,
		.window_from = 28, .window_off = true, .qk_norm = true,
		.attention_bias = true},
	/* layers without positions have a window, if there is one */
	[HF_SMOLLM3] = {"SmolLM3ForCausalLM", "smollm3", .kv_heads = 4, .context = 32768,
		.theta = 2e6, .windows = true, .window_off = true, .tie = true,
		.no_rope_layers = true, .attention_bias = true, .mlp_bias = true},
	[HF_PHI3] = {"Phi3ForCausalLM", "phi3", .scheme = &scheme_phi3, .context = 4096,
		.theta = 1e4, .eps = 1e-5, .windows = true, .rotary = 1,
		.plain_rope = true},
	[HF_OLMO2] = {"Olmo2ForCausalLM", "olmo2", ARCH_OLMO2, &scheme_olmo2,
		.context = 2048, .theta = 1e4, .eps = 1e-5, .qk_norm = true,
		.attention_bias = true},
	[HF_GRANITE] = {"GraniteForCausalLM", "granite", .context = 2048, .theta = 1e4,
		.attention_bias = true, .mlp_bias = true, .read = read_granite},
	[HF_GEMMA2] = {"Gemma2ForCausalLM", "gemma2", ARCH_GEMMA2, &scheme_gemma,
		.kv_heads = 4, .context = 8192, .head_dim = 256, .theta = 1e4,
		.windows = true, .window = 4096, .window_skip = 2, .tie = true,
		.attention_bias = true, .act_key = "hidden_activation",
		.act = "gelu_pytorch_tanh", .read = read_gemma2},
	[HF_GEMMA3] = {"Gemma3ForCausalLM", "gemma3_text", ARCH_GEMMA3, &scheme_gemma,
		.kv_heads = 4, .context = 131072, .head_dim = 256, .theta = 1e6,
		.local_theta = 1e4, .windows = true, .window = 4096, .window_skip = 6,
		.tie = true, .qk_norm = true, .attention_bias = true,
		.act_key = "hidden_activation", .act = "gelu_pytorch_tanh",
		.read = read_gemma3},
	[HF_GLM4] = {"Glm4ForCausalLM", "glm4", ARCH_GLM4, &scheme_glm4, .kv_heads = 2,
		.context = 131072, .head_dim = 128, .theta = 1e4, .eps = 1.5625e-7,
		.qkv_switch = true, .rotary = 0.5, .rope_pairs = true},
	[HF_MIXTRAL] = {"MixtralForCausalLM", "mixtral", .scheme = &scheme_mixtral,
		.kv_heads = 8, .context = 131072, .theta = 1e6, .eps = 1e-5,
		.windows = true, .read = read_mixtral},
	[HF_OLMOE] = {"OlmoeForCausalLM", "olmoe", .scheme = &scheme_qwen_moe,
		.context = 4096, .theta = 1e4, .eps = 1e-5, .qk_norm = true,
		.attention_bias = true, .read = read_olmoe},
	[HF_QWEN2_MOE] = {"Qwen2MoeForCausalLM", "qwen2_moe", .scheme = &scheme_qwen_moe,
		.kv_heads = 16, .context = 32768, .theta = 1e4, .windows = true,
		.window = 4096, .window_from = 28, .window_off = true, .qkv_bias = true,
		.read = read_qwen2_moe},
	[HF_QWEN3_MOE] = {"Qwen3MoeForCausalLM", "qwen3_moe", .scheme = &scheme_qwen_moe,
		.kv_heads = 4, .context = 32768, .theta = 1e4, .windows = true,
		.window = 4096, .window_off = true, .qk_norm = true,
		.attention_bias = true, .read = read_qwen3_moe},
	[HF_DOTS1] = {"Dots1ForCausalLM", "dots1", .scheme = &scheme_dots1,
		.context = 2048, .theta = 1e4, .windows = true, .window = 4096,
		.window_from = 62, .qk_norm = true, .attention_bias = true,
		.read = read_dots1}};

/* Sets the windows of the layers from layer_types. */
static int read_layer_types(const struct hf_reader *r, struct model_config *c)
{
	json_t *kinds = get_key(r, "layer_types");
	int rc = 0;
	if (json_array_size(kinds) != (size_t)c->layers)
		return reject(r, "layer_types", "must have a value for each layer");
	scoped_ptr bool *sliding = xcalloc((size_t)c->layers, sizeof(*sliding));
	for (int64_t i = 0; !rc && i < c->layers; i++) {
		const char *kind = json_string_value(json_array_get(kinds, (size_t)i));
		sliding[i] = kind && !strcmp(kind, "sliding_attention");
		if (!sliding[i] && (!kind || strcmp(kind, "full_attention")))
			rc = not_supported(r, "layer_types",
				"must be full_attention or sliding_attention");
	}
	if (!rc && !config_set_windows(c, sliding))
		rc = not_supported(r, "layer_types",
			"must be sliding_attention from a layer on, or except in every Nth layer");
	return rc;
}

/* Reads SmolLM3's list, which has 0 for a layer without positions. We support every Nth layer. */
static int read_no_rope(const struct hf_reader *r, struct model_config *c)
{
	json_t *list = get_key(r, "no_rope_layers");
	int64_t every = 0, n = (int64_t)json_array_size(list);
	if (get_int(r, "no_rope_layer_interval", 4, MAX_LAYERS, &c->nope_every))
		return -1;
	if (!list)
		return 0;
	if (!json_is_array(list) || n < c->layers)
		return reject(r, "no_rope_layers", "must list all layers");
	for (int64_t i = 0; i < c->layers; i++) {
		json_t *x = json_array_get(list, (size_t)i);
		bool rotates = json_is_integer(x) ? json_integer_value(x) != 0
						  : !json_is_false(x);
		if (!rotates && !every)
			every = i + 1;
		if (rotates == (every && (i + 1) % every == 0))
			return not_supported(
				r, "no_rope_layers", "must be 0 in every Nth layer");
	}
	c->nope_every = every;
	return 0;
}

/* Reads windows as transformers 5 does. sliding_window is the number of keys that a query attends
 * to, its own included. null means no window, a missing key the class's default. */
static int read_windows(
	const struct hf_reader *r, const struct hf_class *class, struct model_config *c)
{
	json_t *window = json_object_get(r->root, "sliding_window");
	bool is_off = json_is_null(window) || (!window && !class->window), is_used = true;
	if (class->window_off && get_bool(r, "use_sliding_window", false, &is_used))
		return -1;
	if (is_off || !is_used)
		return require_full_attention(r);
	if (get_int(r, "sliding_window", class->window, MAX_DIM, &c->window))
		return -1;
	if (get_key(r, "layer_types"))
		return read_layer_types(r, c);
	if (class->window_from && get_count(r, "max_window_layers", class->window_from,
					  MAX_LAYERS, &c->window_from))
		return -1;
	c->window_skip = class->no_rope_layers ? -c->nope_every : class->window_skip;
	if (class->window_skip && get_int(r, "sliding_window_pattern", class->window_skip,
					  MAX_LAYERS, &c->window_skip))
		return -1;
	if (c->window_from >= c->layers || (class->no_rope_layers && !c->nope_every))
		c->window = c->window_from = 0;
	return 0;
}

/* Reads biases, which some classes switch by keys and others always have. */
static int read_biases(
	const struct hf_reader *r, const struct hf_class *class, struct hf_config *h)
{
	struct model_config *c = &h->c;
	bool always_biased = class->qkv_bias, mlp = false;
	if (get_bool(r, "attention_bias", class->qkv_switch, &h->attention_bias) ||
		get_bool(r, "mlp_bias", false, &mlp))
		return -1;
	h->mlp_bias = mlp;
	c->bias = h->mlp_bias ? BIAS_ALL : h->attention_bias ? BIAS_ATTENTION : BIAS_NONE;
	if (always_biased && c->bias != BIAS_NONE)
		return not_supported(
			r, "attention_bias", "or mlp_bias is not supported for qwen2");
	if (always_biased || (class->qkv_switch && c->bias == BIAS_ATTENTION)) {
		c->bias = BIAS_QKV;
		h->attention_bias = true;
	}
	return 0;
}

/* Reads Llama's keys, and the other keys of a class with Llama's keys. */
static int read_llama(
	const struct hf_reader *r, const struct hf_class *class, struct hf_config *h)
{
	const char *key = class->act_key ? class->act_key : "hidden_act";
	const char *act = class->act ? class->act : "silu";
	struct model_config *c = &h->c;
	int64_t width;
	int default_act;
	bool tie;
	c->arch = class->arch ? (int)class->arch : ARCH_LLAMA;
	h->scheme = class->scheme ? class->scheme : &scheme_llama;
	h->rope_interleaved = h->rope_interleaved || class->rope_pairs;
	if (get_int(r, "num_hidden_layers", -1, MAX_LAYERS, &c->layers) ||
		get_int(r, "num_attention_heads", -1, MAX_HEADS, &c->heads) ||
		get_int(r, "num_key_value_heads",
			class->kv_heads ? class->kv_heads : c->heads, MAX_HEADS,
			&c->kv_heads) ||
		get_int(r, "hidden_size", -1, MAX_DIM, &c->dim) ||
		get_int(r, "intermediate_size", -1, MAX_FFN, &c->ffn_dim) ||
		get_int(r, HF_POSITIONS, class->context, HF_MAX_POSITIONS, &c->context) ||
		get_int(r, "vocab_size", -1, 1 << 24, &c->vocab) ||
		get_int(r, HF_MULTIPLE_KEY, 1, MAX_MULTIPLE, &c->vocab_multiple) ||
		get_int(r, "head_dim",
			class->head_dim ? class->head_dim : c->dim / c->heads,
			MAX_HEAD_DIM, &width) ||
		get_real(r, r->root, "rms_norm_eps", class->eps > 0 ? class->eps : 1e-6,
			&c->norm_eps) ||
		get_activation(r, key, true, act, &c->act) ||
		get_bool(r, "tie_word_embeddings", class->tie, &tie) ||
		read_biases(r, class, h) || read_rope(r, class, width, c) ||
		(class->no_rope_layers && read_no_rope(r, c)) ||
		(class->windows ? read_windows(r, class, c) : reject_windows(r)) ||
		(class->read && class->read(r, c)))
		return -1;
	get_activation(
		&(const struct hf_reader){.root = NULL}, key, true, act, &default_act);
	if (c->act != default_act)
		return not_supported(r, key,
			class->act ? "must be gelu_pytorch_tanh" : "must be silu");
	c->head_dim = width * c->heads == c->dim ? 0 : width;
	c->qk_norm = class->qk_norm;
	c->tie = tie ? YES : NO;
	return 0;
}

/* Reads nanotron's model_config.json: Llama's keys and some more. nanotron ignores rope_scaling.
 * Warns if the model was trained with a z-loss. */
static int read_nanotron(const struct hf_reader *r, struct hf_config *h)
{
	static const char *const unsupported[] = {"moe_config", "no_rope_layer",
		"rope_seq_len_interpolation_factor", "sliding_window_size"};
	bool z_loss;
	for (size_t i = 0; i < ARRAY_LEN(unsupported); i++)
		if (get_key(r, unsupported[i]))
			return not_supported(r, unsupported[i], "is not supported");
	json_object_del(r->root, "rope_scaling");
	/* (older versions interleave, and lack the key) */
	if (get_bool(r, "rope_interleaved", true, &h->rope_interleaved) ||
		get_bool(r, "z_loss_enabled", false, &z_loss))
		return -1;
	if (z_loss)
		warn("%s: z_loss_enabled: pt does not compute the gradient of the z-loss",
			r->path);
	return read_llama(r, &hf_classes[HF_LLAMA], h);
}

static bool has_flag(const struct hf_reader *r, const char *key)
{
	return json_is_true(json_object_get(r->root, key));
}

static const char *const gpt2_keys[] = {"activation_function", "attn_pdrop", "embd_pdrop",
	"layer_norm_epsilon", "n_ctx", "n_embd", "n_head", "n_inner", "n_layer",
	"n_positions", "reorder_and_upcast_attn", "resid_pdrop", "add_cross_attention",
	"scale_attn_by_inverse_layer_idx", "scale_attn_weights", NULL};
static const char *const llama_keys[] = {"attention_bias", "attention_dropout",
	"head_dim", "hidden_act", "hidden_size", "intermediate_size",
	"max_position_embeddings", "mlp_bias", "num_attention_heads", "num_hidden_layers",
	"num_key_value_heads", "pretraining_tp", "rms_norm_eps", "rope_parameters",
	"rope_scaling", "rope_theta", NULL};
static const char *const common_keys[] = {"bos_token_id", "dtype", "eos_token_id",
	"initializer_range", "pad_token_id", "tie_word_embeddings", "torch_dtype",
	"transformers_version", "use_cache", "vocab_size", HF_MULTIPLE_KEY, NULL};

static bool is_one_of(const char *const *list, const char *key)
{
	while (*list && strcmp(*list, key) != 0)
		list++;
	return *list;
}

/* Returns true if the configuration has `needed`, and otherwise only listed and common keys. */
static bool has_only_keys(
	const struct hf_reader *r, const char *const *list, const char *needed)
{
	const char *key;
	json_t *value;
	json_object_foreach(
		r->root, key, value) if (!is_one_of(list, key) &&
					 !is_one_of(common_keys, key)) return false;
	return get_key(r, needed) != NULL;
}

/* Returns the model_type of a configuration without that key, if it is certain; else NULL. */
static const char *guess_type(const struct hf_reader *r)
{
	const char *first =
		json_string_value(json_array_get(get_key(r, "architectures"), 0));
	if (first && !strcmp(first, "GPT2LMHeadModel"))
		return "gpt2";
	for (size_t i = 0; first && i < ARRAY_LEN(hf_classes); i++)
		if (!strcmp(first, hf_classes[i].name))
			return hf_classes[i].type;
	return has_only_keys(r, gpt2_keys, "n_embd")	     ? "gpt2"
	       : has_only_keys(r, llama_keys, "hidden_size") ? "llama"
							     : NULL;
}

/* Reads the keys of the class that model_type names. */
static int read_class(const struct hf_reader *r, struct hf_config *h)
{
	if (get_key(r, "quantization_config"))
		return not_supported(r, "quantization_config",
			"is not supported: the weights are quantized");
	const char *type = json_string_value(json_object_get(r->root, "model_type"));
	if (has_flag(r, "is_llama_config") || has_flag(r, "is_qwen2_config"))
		return read_nanotron(r, h);
	if (!get_key(r, "model_type") && !(type = guess_type(r)))
		return not_supported(r, "model_type",
			"is missing, and other keys do not determine it; add \"model_type\": "
			"\"llama\" for LlamaForCausalLM, \"gpt2\" for GPT2LMHeadModel, or "
			"\"mistral\", \"qwen2\", \"qwen3\" or \"smollm3\"");
	if (type && !strcmp(type, "gpt2"))
		return read_gpt2(r, h);
	for (size_t i = 0; type && i < ARRAY_LEN(hf_classes); i++)
		if (!strcmp(type, hf_classes[i].type))
			return read_llama(r, &hf_classes[i], h);
	scoped_str known = {0};
	for (size_t i = 0; i < ARRAY_LEN(hf_classes); i++)
		str_printf(&known, ", %s", hf_classes[i].type);
	return err_set(r->e, EX_UNAVAILABLE,
		"%s: model_type %s%s%s is not supported, only gpt2%s", r->path,
		type ? "\"" : "", type ? type : "(not a string)", type ? "\"" : "",
		known.s);
}

int hf_config_read(struct hf_config *h, const char *path, struct err *e)
{
	enum { MAX_TEXT = 1 << 20 };
	scoped_str text = {0};
	json_error_t where;
	*h = (struct hf_config){.c = {0}};
	if (file_read(path, MAX_TEXT, &text, e))
		return -1;
	json_auto_t *root = json_loadb(
		text.s ? text.s : "", text.len, JSON_REJECT_DUPLICATES, &where);
	const struct hf_reader r = {path, root, e};
	return json_is_object(root)
		       ? read_class(&r, h)
		       : err_set(e, EX_DATAERR, "%s: not a JSON object", path);
}
