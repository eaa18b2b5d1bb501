/* config.json: what our options and Hugging Face's configuration have in common, both ways. What it says
 * and we do not compute is refused. */
#include "foreign/huggingface.h"

#include "base/file.h"

#include <math.h>

/* ---- reading -------------------------------------------------------------------------- */

struct reader {
	const char *path;
	json_t *root;
	struct err *e;
};

static json_t *get(const struct reader *r, const char *key)
{
	json_t *x = json_object_get(r->root, key);
	return json_is_null(x) ? NULL : x;
}

static int refuse(const struct reader *r, const char *key, const char *why)
{
	return err_set(r->e, EX_DATAERR, "%s: %s %s", r->path, key, why);
}

/* The file may be intact, but pt-train does not compute such a model. */
static int not_supported(const struct reader *r, const char *key, const char *why)
{
	return err_set(r->e, EX_UNAVAILABLE, "%s: %s %s", r->path, key, why);
}

/* `absent`: the value without the key; -1: it is needed. */
static int get_int(const struct reader *r, const char *key, int64_t absent, int64_t most,
	int64_t *out)
{
	json_t *x = get(r, key);
	if (!x && absent >= 0) {
		*out = absent;
		return 0;
	}
	*out = json_is_integer(x) ? json_integer_value(x) : 0;
	return *out >= 1 && *out <= most ? 0 : refuse(r, key, "is not a possible number");
}

/* The same for a number that may be 0. */
static int get_count(const struct reader *r, const char *key, int64_t absent,
	int64_t most, int64_t *out)
{
	json_t *x = get(r, key);
	*out = 0;
	if (json_is_integer(x) && !json_integer_value(x))
		return 0;
	return get_int(r, key, absent, most, out);
}

static int get_real(
	const struct reader *r, json_t *from, const char *key, double absent, double *out)
{
	json_t *x = json_object_get(from, key);
	x = json_is_null(x) ? NULL : x;
	*out = x ? json_number_value(x) : absent;
	if ((x && !json_is_number(x)) || !isfinite(*out) || *out <= 0)
		return refuse(r, key, "is not a positive number");
	return 0;
}

static int get_bool(const struct reader *r, const char *key, bool absent, bool *out)
{
	json_t *x = get(r, key);
	*out = x ? json_is_true(x) : absent;
	return x && !json_is_boolean(x) ? refuse(r, key, "is neither true nor false") : 0;
}

/* Refuses a switch that is not at the one value that we compute. */
static int need(const struct reader *r, const char *key, bool value)
{
	bool x;
	if (get_bool(r, key, value, &x))
		return -1;
	return x == value ? 0 : not_supported(r, key, value ? "is false" : "is true");
}

static int get_activation(
	const struct reader *r, const char *key, const char *absent, int *out)
{
	static const struct {
		const char *name;
		int act;
	} known[] = {
#define ACT(id, fn, kind, word, hf, hf_too, ...) {hf, ACTC_##id}, {hf_too, ACTC_##id},
#include "kernels/acts.h"
	};
	json_t *x = get(r, key);
	const char *name = x ? json_string_value(x) : absent;
	for (size_t i = 0; name && i < ARRAY_LEN(known); i++)
		if (known[i].name && !strcmp(name, known[i].name)) {
			*out = known[i].act;
			return 0;
		}
	return not_supported(
		r, key, "is an activation function that pt-train does not have");
}

/* Of our own: their tables have no rows that pad the vocabulary, and the model that comes back has them. */
#define OUR_MULTIPLE "pt_vocab_multiple"
enum { MOST_MULTIPLE = 1 << 20 };

enum {
	MAX_HEADS = 4095,
	MAX_HEAD_DIM = 1 << 16,
	MAX_LAYERS = 100000,
	MAX_DIM = 1 << 22,
	MAX_FFN = 1 << 24
};

/* No layer has a window. */
static int need_full_layers(const struct reader *r)
{
	json_t *kinds = get(r, "layer_types");
	for (size_t i = 0; i < json_array_size(kinds); i++) {
		const char *kind = json_string_value(json_array_get(kinds, i));
		if (!kind || strcmp(kind, "full_attention"))
			return not_supported(
				r, "layer_types", "has other layers than full_attention");
	}
	return 0;
}

/* Of a class that has no windows. */
static int refuse_windows(const struct reader *r)
{
	json_t *window = get(r, "sliding_window");
	bool uses;
	if (get_bool(r, "use_sliding_window", window, &uses))
		return -1;
	if (window && uses)
		return not_supported(r, "sliding_window", "is there");
	return need_full_layers(r);
}

static int read_gpt2(const struct reader *r, struct hf_config *h)
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
		get_int(r, OUR_MULTIPLE, 1, MOST_MULTIPLE, &c->vocab_multiple) ||
		get_real(r, r->root, "layer_norm_epsilon", 1e-5, &c->norm_eps) ||
		get_activation(r, "activation_function", "gelu_new", &c->act) ||
		get_bool(r, "tie_word_embeddings", true, &tie) ||
		need(r, "scale_attn_weights", true) ||
		need(r, "scale_attn_by_inverse_layer_idx", false) ||
		need(r, "add_cross_attention", false) || refuse_windows(r))
		return -1;
	if (c->act == ACTC_SWIGLU)
		return not_supported(
			r, "activation_function", "is silu, and the model GPT-2");
	c->kv_heads = c->heads;
	c->bias = BIAS_ALL;
	c->tie = tie ? YES : NO;
	return 0;
}

/* From transformers 5 on, rope_parameters has rope_theta, too. */
static int read_rope(const struct reader *r, double theta, struct model_config *c)
{
	json_t *scaling = get(r, "rope_parameters"), *own = get(r, "rope_scaling");
	scaling = scaling ? scaling : own;
	if (scaling && !json_is_object(scaling))
		return refuse(r, "rope_scaling", "is not an object");
	json_t *from = json_object_get(scaling, "rope_theta") ? scaling : r->root;
	json_t *kind = json_object_get(scaling, "rope_type");
	kind = kind ? kind : json_object_get(scaling, "type");
	const char *name = kind ? json_string_value(kind) : "default";
	int64_t original = 0;
	if (get_real(r, from, "rope_theta", theta, &c->rope_theta))
		return -1;
	if (name && !strcmp(name, "default"))
		return 0;
	c->rope_scaling = name && !strcmp(name, "linear")   ? ROPE_LINEAR
			  : name && !strcmp(name, "llama3") ? ROPE_LLAMA3
							    : ROPE_PLAIN;
	if (c->rope_scaling == ROPE_PLAIN)
		return not_supported(
			r, "rope_type", "is none of default, linear, llama3");
	if (get_real(r, scaling, "factor", NAN, &c->rope_factor))
		return -1;
	if (c->rope_scaling == ROPE_LINEAR)
		return 0;
	const struct reader inner = {r->path, scaling, r->e};
	if (get_int(&inner, "original_max_position_embeddings", -1, INT64_MAX,
		    &original) ||
		get_real(r, scaling, "low_freq_factor", NAN, &c->rope_low) ||
		get_real(r, scaling, "high_freq_factor", NAN, &c->rope_high))
		return -1;
	c->rope_original = original;
	return 0;
}

/* The classes whose tensors have Llama's names, and what their configurations mean without a key. */
enum { LLAMA, MISTRAL, QWEN2, QWEN3, SMOLLM3 };
static const struct hf_class {
	const char *name, *type;
	int64_t kv_heads; /* 0: as many as heads */
	int64_t context;
	int64_t head_dim; /* 0: hidden_size / heads */
	double theta;
	int64_t window; /* 0: there are none */
	int64_t window_from; /* if use_sliding_window: from layer max_window_layers on, which is that */
	bool window_off; /* unless use_sliding_window, which is the default */
	bool tie;
	bool qkv_bias, qk_norm, no_rope_layers; /* has them always */
	bool attention_bias, mlp_bias;		/* has these switches */
} classes[] = {[LLAMA] = {"LlamaForCausalLM", "llama", 0, 2048, 0, 1e4,
		       .attention_bias = true, .mlp_bias = true},
	[MISTRAL] = {"MistralForCausalLM", "mistral", 8, 131072, 0, 1e4, 4096},
	[QWEN2] = {"Qwen2ForCausalLM", "qwen2", 32, 32768, 0, 1e4, 4096, 28, true,
		.qkv_bias = true},
	[QWEN3] = {"Qwen3ForCausalLM", "qwen3", 32, 32768, 128, 1e4, 4096, 28, true,
		.qk_norm = true, .attention_bias = true},
	/* without a number, it has no window; with one, the layers without positions have it */
	[SMOLLM3] = {"SmolLM3ForCausalLM", "smollm3", 4, 32768, 0, 2e6,
		.window_off = true, .tie = true, .no_rope_layers = true,
		.attention_bias = true, .mlp_bias = true}};

static int read_layer_types(const struct reader *r, struct model_config *c)
{
	json_t *kinds = get(r, "layer_types");
	int rc = 0;
	if (json_array_size(kinds) != (size_t)c->layers)
		return refuse(
			r, "layer_types", "is not a list with a word for each layer");
	scoped_ptr bool *sliding = xcalloc((size_t)c->layers, sizeof(*sliding));
	for (int64_t i = 0; !rc && i < c->layers; i++) {
		const char *kind = json_string_value(json_array_get(kinds, (size_t)i));
		sliding[i] = kind && !strcmp(kind, "sliding_attention");
		if (!sliding[i] && (!kind || strcmp(kind, "full_attention")))
			rc = not_supported(r, "layer_types",
				"has others than full_attention and sliding_attention");
	}
	if (!rc && !config_set_windows(c, sliding))
		rc = not_supported(r, "layer_types",
			"has sliding_attention neither from a layer on nor in all but every Nth");
	return rc;
}

/* SmolLM3's list has 0 for a layer without positions; ours are each Nth layer. */
static int read_no_rope(const struct reader *r, struct model_config *c)
{
	json_t *list = get(r, "no_rope_layers");
	int64_t every = 0, n = (int64_t)json_array_size(list);
	if (get_int(r, "no_rope_layer_interval", 4, MAX_LAYERS, &c->nope_every))
		return -1;
	if (!list)
		return 0;
	if (!json_is_array(list) || n < c->layers)
		return refuse(r, "no_rope_layers", "is no list with all layers");
	for (int64_t i = 0; i < c->layers; i++) {
		json_t *x = json_array_get(list, (size_t)i);
		bool rotates = json_is_integer(x) ? json_integer_value(x) != 0
						  : !json_is_false(x);
		if (!rotates && !every)
			every = i + 1;
		if (rotates == (every && (i + 1) % every == 0))
			return not_supported(r, "no_rope_layers",
				"is not every Nth layer, from layer N on");
	}
	c->nope_every = every;
	return 0;
}

/* Of a class that has windows, as transformers 5 reads them: sliding_window is the number of keys that a query
 * sees, its own included. A null means none, and no key the class's own. */
static int read_windows(
	const struct reader *r, const struct hf_class *class, struct model_config *c)
{
	json_t *window = json_object_get(r->root, "sliding_window");
	bool none = json_is_null(window) || (!window && !class->window), used = true;
	if (class->window_off && get_bool(r, "use_sliding_window", false, &used))
		return -1;
	if (none || !used)
		return need_full_layers(r);
	if (get_int(r, "sliding_window", class->window, MAX_DIM, &c->window))
		return -1;
	if (get(r, "layer_types"))
		return read_layer_types(r, c);
	if (class->window_from && get_count(r, "max_window_layers", class->window_from,
					  MAX_LAYERS, &c->window_from))
		return -1;
	c->window_skip = class->no_rope_layers ? -c->nope_every : 0;
	if (c->window_from >= c->layers || (class->no_rope_layers && !c->nope_every))
		c->window = c->window_from = 0;
	return 0;
}

static int read_llama(
	const struct reader *r, const struct hf_class *class, struct hf_config *h)
{
	struct model_config *c = &h->c;
	int64_t width;
	bool tie;
	c->arch = ARCH_LLAMA;
	if (get_int(r, "num_hidden_layers", -1, MAX_LAYERS, &c->layers) ||
		get_int(r, "num_attention_heads", -1, MAX_HEADS, &c->heads) ||
		get_int(r, "num_key_value_heads",
			class->kv_heads ? class->kv_heads : c->heads, MAX_HEADS,
			&c->kv_heads) ||
		get_int(r, "hidden_size", -1, MAX_DIM, &c->dim) ||
		get_int(r, "intermediate_size", -1, MAX_FFN, &c->ffn_dim) ||
		get_int(r, HF_POSITIONS, class->context, HF_MOST_POSITIONS,
			&c->context) ||
		get_int(r, "vocab_size", -1, 1 << 24, &c->vocab) ||
		get_int(r, OUR_MULTIPLE, 1, MOST_MULTIPLE, &c->vocab_multiple) ||
		get_int(r, "head_dim",
			class->head_dim ? class->head_dim : c->dim / c->heads,
			MAX_HEAD_DIM, &width) ||
		get_real(r, r->root, "rms_norm_eps", 1e-6, &c->norm_eps) ||
		get_activation(r, "hidden_act", "silu", &c->act) ||
		get_bool(r, "tie_word_embeddings", class->tie, &tie) ||
		get_bool(r, "attention_bias", false, &h->attention_bias) ||
		get_bool(r, "mlp_bias", false, &h->mlp_bias) ||
		read_rope(r, class->theta, c) ||
		(class->no_rope_layers && read_no_rope(r, c)) ||
		(class->window || class->window_off ? read_windows(r, class, c)
						    : refuse_windows(r)))
		return -1;
	if (c->act != ACTC_SWIGLU)
		return not_supported(r, "hidden_act", "is not silu");
	c->head_dim = width * c->heads == c->dim ? 0 : width;
	c->bias = h->mlp_bias ? BIAS_ALL : h->attention_bias ? BIAS_ATTENTION : BIAS_NONE;
	if (class->qkv_bias) {
		if (c->bias != BIAS_NONE)
			return not_supported(r, "attention_bias",
				"or mlp_bias is true, and the model qwen2");
		c->bias = BIAS_QKV;
		h->attention_bias = true;
	}
	c->qk_norm = class->qk_norm;
	c->tie = tie ? YES : NO;
	return 0;
}

/* Of other models with these names of tensors: what would change the results if it was passed over. */
static int check_absent(const struct reader *r)
{
	json_t *rope = get(r, "rope_parameters");
	const struct reader inner = {r->path, rope, r->e};
	double rotated = 1, rotated_too = 1;
	if (get(r, "quantization_config"))
		return not_supported(r, "quantization_config",
			"is there; quantized numbers cannot be read");
	if (get_real(r, r->root, "partial_rotary_factor", 1, &rotated) ||
		get_real(&inner, rope, "partial_rotary_factor", 1, &rotated_too))
		return -1;
	return rotated == 1 && rotated_too == 1
		       ? 0
		       : not_supported(r, "partial_rotary_factor", "is not 1");
}

/* Nanotron's model_config.json has Llama's keys, and some that change the function. (It does not read rope_scaling.) */
static int read_nanotron(const struct reader *r, struct hf_config *h)
{
	static const char *const others[] = {"moe_config", "no_rope_layer",
		"rope_seq_len_interpolation_factor", "sliding_window_size"};
	bool z_loss;
	for (size_t i = 0; i < ARRAY_LEN(others); i++)
		if (get(r, others[i]))
			return not_supported(r, others[i], "is there");
	json_object_del(r->root, "rope_scaling");
	/* (before it had the key, they were) */
	if (get_bool(r, "rope_interleaved", true, &h->rope_interleaved) ||
		get_bool(r, "z_loss_enabled", false, &z_loss))
		return -1;
	if (z_loss)
		warn("%s: z_loss_enabled: the gradient of its loss has another part, which pt does "
		     "not compute",
			r->path);
	return read_llama(r, &classes[LLAMA], h);
}

static bool has_flag(const struct reader *r, const char *key)
{
	return json_is_true(json_object_get(r->root, key));
}

static const char *const of_gpt2[] = {"activation_function", "attn_pdrop", "embd_pdrop",
	"layer_norm_epsilon", "n_ctx", "n_embd", "n_head", "n_inner", "n_layer",
	"n_positions", "reorder_and_upcast_attn", "resid_pdrop", "add_cross_attention",
	"scale_attn_by_inverse_layer_idx", "scale_attn_weights", NULL};
static const char *const of_llama[] = {"attention_bias", "attention_dropout", "head_dim",
	"hidden_act", "hidden_size", "intermediate_size", "max_position_embeddings",
	"mlp_bias", "num_attention_heads", "num_hidden_layers", "num_key_value_heads",
	"pretraining_tp", "rms_norm_eps", "rope_parameters", "rope_scaling", "rope_theta",
	NULL};
static const char *const of_all[] = {"bos_token_id", "dtype", "eos_token_id",
	"initializer_range", "pad_token_id", "tie_word_embeddings", "torch_dtype",
	"transformers_version", "use_cache", "vocab_size", OUR_MULTIPLE, NULL};

static bool is_one_of(const char *const *list, const char *key)
{
	while (*list && strcmp(*list, key) != 0)
		list++;
	return *list;
}

/* Are all keys those of a class, and this one there? Other classes have some of the same. */
static bool are_keys_of(
	const struct reader *r, const char *const *list, const char *needed)
{
	const char *key;
	json_t *value;
	json_object_foreach(r->root, key,
		value) if (!is_one_of(list, key) && !is_one_of(of_all, key)) return false;
	return get(r, needed) != NULL;
}

/* The class of a configuration without model_type, if that is certain. */
static const char *type_of_keys(const struct reader *r)
{
	const char *first = json_string_value(json_array_get(get(r, "architectures"), 0));
	if (first && !strcmp(first, "GPT2LMHeadModel"))
		return "gpt2";
	for (size_t i = 0; first && i < ARRAY_LEN(classes); i++)
		if (!strcmp(first, classes[i].name))
			return classes[i].type;
	return are_keys_of(r, of_gpt2, "n_embd")	 ? "gpt2"
	       : are_keys_of(r, of_llama, "hidden_size") ? "llama"
							 : NULL;
}

static int read_class(const struct reader *r, struct hf_config *h)
{
	if (check_absent(r))
		return -1;
	const char *type = json_string_value(json_object_get(r->root, "model_type"));
	if (has_flag(r, "is_llama_config") || has_flag(r, "is_qwen2_config"))
		return read_nanotron(r, h);
	if (!get(r, "model_type") && !(type = type_of_keys(r)))
		return not_supported(r, "model_type",
			"is missing, and other keys do not tell it: add \"model_type\": "
			"\"llama\" if it is LlamaForCausalLM, \"gpt2\" if it is GPT2LMHeadModel, "
			"\"mistral\", \"qwen2\", \"qwen3\" or \"smollm3\"");
	if (type && !strcmp(type, "gpt2"))
		return read_gpt2(r, h);
	for (size_t i = 0; type && i < ARRAY_LEN(classes); i++)
		if (!strcmp(type, classes[i].type))
			return read_llama(r, &classes[i], h);
	return err_set(r->e, EX_UNAVAILABLE,
		"%s: model_type is %s, which is none of gpt2, llama, mistral, qwen2, qwen3 and "
		"smollm3, the models that pt has",
		r->path, type ? type : "not a string");
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
	const struct reader r = {path, root, e};
	return json_is_object(root)
		       ? read_class(&r, h)
		       : err_set(e, EX_DATAERR, "%s: not a JSON object", path);
}

/* ---- writing -------------------------------------------------------------------------- */

static const char *const dtype_names[] = {
	[DT_F32] = "float32", [DT_BF16] = "bfloat16", [DT_F16] = "float16"};

static const char *activation_of(const struct model *m)
{
	static const char *const names[] = {
#define ACT(id, fn, kind, word, hf, ...) hf,
#include "kernels/acts.h"
	};
	return names[m->act];
}

static json_t *make_gpt2(const struct model *m)
{
	const struct model_config *c = &m->c;
	return json_pack("{s:[s], s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:f, s:f, s:f, s:f}",
		"architectures", "GPT2LMHeadModel", "model_type", "gpt2",
		"activation_function", activation_of(m), "n_layer", (json_int_t)c->layers,
		"n_head", (json_int_t)c->heads, "n_embd", (json_int_t)c->dim, "n_inner",
		(json_int_t)c->ffn_dim, "n_positions", (json_int_t)c->context,
		"layer_norm_epsilon", c->norm_eps, "attn_pdrop", c->dropout, "embd_pdrop",
		c->dropout, "resid_pdrop", c->dropout);
}

static json_t *make_rope(const struct model_config *c)
{
	if (c->rope_scaling == ROPE_PLAIN)
		return json_null();
	if (c->rope_scaling == ROPE_LINEAR)
		return json_pack(
			"{s:s, s:f}", "rope_type", "linear", "factor", c->rope_factor);
	return json_pack("{s:s, s:f, s:f, s:f, s:I}", "rope_type", "llama3", "factor",
		c->rope_factor, "low_freq_factor", c->rope_low, "high_freq_factor",
		c->rope_high, "original_max_position_embeddings",
		(json_int_t)c->rope_original);
}

static const struct hf_class *class_of(const struct model *m)
{
	return &classes[m->c.qk_norm		      ? QWEN3
			: m->c.nope_every	      ? SMOLLM3
			: m->qkv_bias && !m->out_bias ? QWEN2
			: m->c.window		      ? MISTRAL
						      : LLAMA];
}

static void put_windows(json_t *o, const struct model *m, const struct hf_class *class)
{
	const struct model_config *c = &m->c;
	json_object_set_new(o, "sliding_window", json_integer(c->window));
	if (class->window_off)
		json_object_set_new(o, "use_sliding_window", json_true());
	if (class->window_off && !c->nope_every)
		json_object_set_new(o, "max_window_layers", json_integer(c->window_from));
	if (!c->window_skip && !c->nope_every)
		return;
	json_t *kinds = json_array(); /* the class has no other word for it */
	for (int64_t l = 0; l < c->layers; l++)
		json_array_append_new(
			kinds, json_string(layer_has_window(c, l) ? "sliding_attention"
								  : "full_attention"));
	json_object_set_new(o, "layer_types", kinds);
}

static json_t *make_no_rope(const struct model *m)
{
	json_t *list = json_array();
	for (int64_t l = 0; l < m->c.layers; l++)
		json_array_append_new(list, json_integer(model_rotates(m, l)));
	return list;
}

static json_t *make_llama(const struct model *m)
{
	const struct model_config *c = &m->c;
	const struct hf_class *class = class_of(m);
	json_t *o = json_pack("{s:[s], s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I}",
		"architectures", class->name, "model_type", class->type, "hidden_act",
		"silu", "num_hidden_layers", (json_int_t)c->layers, "num_attention_heads",
		(json_int_t)c->heads, "num_key_value_heads", (json_int_t)c->kv_heads,
		"hidden_size", (json_int_t)c->dim, "intermediate_size",
		(json_int_t)c->ffn_dim, "head_dim", (json_int_t)m->head_dim);
	json_object_set_new(o, "rms_norm_eps", json_real(c->norm_eps));
	json_object_set_new(o, "rope_theta", json_real(c->rope_theta));
	json_object_set_new(o, "rope_scaling", make_rope(c));
	if (c->nope_every) {
		json_object_set_new(
			o, "no_rope_layer_interval", json_integer(c->nope_every));
		json_object_set_new(o, "no_rope_layers", make_no_rope(m));
	}
	if (c->window)
		put_windows(o, m, class);
	if (class->attention_bias)
		json_object_set_new(o, "attention_bias", json_boolean(m->out_bias));
	if (class->mlp_bias)
		json_object_set_new(o, "mlp_bias", json_boolean(m->bias));
	return o;
}

static int check_gpt2(const struct model *m, struct err *e)
{
	const char *why =
		m->act == ACT_SWIGLU	       ? "GELU; this model has SwiGLU"
		: !activation_of(m)	       ? "no such activation function"
		: m->c.window		       ? "no sliding window; this model has one"
		: m->c.qk_norm		       ? "no norms of queries and keys"
		: m->c.kv_heads != m->c.heads  ? "as many key and value heads as heads"
		: model_q_width(m) != m->c.dim ? "heads of hidden size / heads channels"
		: m->qkv_bias && !m->bias
			? "biases in all layers; this model has those of attention"
			: NULL;
	return why ? err_set(e, EX_DATAERR, "GPT2LMHeadModel has %s", why) : 0;
}

/* A class has windows, positions and biases in some layers only. */
static int check_class(const struct model *m, struct err *e)
{
	const struct model_config *c = &m->c;
	const struct hf_class *class = class_of(m);
	if (c->arch == ARCH_GPT2)
		return check_gpt2(m, e);
	if (m->act != ACT_SWIGLU)
		return err_set(e, EX_DATAERR,
			"LlamaForCausalLM has SwiGLU; this model has another activation "
			"function");
	if (c->window && !class->window_off && (c->window_from || c->window_skip))
		return err_set(e, EX_DATAERR,
			"%s has a window in all layers; this model has it in some",
			class->name);
	if (c->qk_norm && c->nope_every)
		return err_set(e, EX_DATAERR,
			"norms of queries and keys are those of Qwen3ForCausalLM, which is a "
			"Llama with rotary positions in all layers");
	bool known = class->attention_bias ? m->qkv_bias == m->out_bias : !m->out_bias;
	if (!known || (m->bias && !class->mlp_bias) ||
		(m->qkv_bias && !strcmp(class->type, "mistral")))
		return err_set(e, EX_DATAERR,
			"%s has no biases of these layers; this model has --bias %s",
			class->name, bias_names[model_bias(m)]);
	return 0;
}

int64_t hf_vocab_multiple(const struct model *m)
{
	int64_t own = max64(1, m->c.vocab_multiple), multiple = own;
	while (multiple % m->tp)
		multiple += own;
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
	if (multiple > MOST_MULTIPLE) /* it could not be read again */
		return err_set(e, EX_DATAERR,
			"the vocabulary is padded to a multiple of %lld, and " OUR_MULTIPLE
			" may be %d: --padding writes all rows",
			(long long)multiple, MOST_MULTIPLE);
	if (!path)
		return 0;
	json_t *o = m->c.arch == ARCH_GPT2 ? make_gpt2(m) : make_llama(m);
	json_object_set_new(o, "vocab_size", json_integer(vocab));
	if (vocab < m->padded_vocab)
		json_object_set_new(o, OUR_MULTIPLE, json_integer(multiple));
	json_object_set_new(o, "tie_word_embeddings", json_boolean(m->tie));
	json_object_set_new(o, "torch_dtype", json_string(dtype_names[dtype]));
	json_object_update(o, keys);
	return hf_json_write(path, o, 0, e);
}

void hf_hash_options(const struct model *m, char out[static ST_DIGITS + 1])
{
	struct ckpt_view v;
	convert_view(&v, m, "");
	snprintf(out, ST_DIGITS + 1, "%016llx",
		(unsigned long long)hash_bytes(v.config.s, v.config.len, 0));
	ckpt_view_close(&v);
}
