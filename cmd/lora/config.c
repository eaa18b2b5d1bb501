/* Reads adapter_config.json of PEFT's adapters, and their base model. */
#include "lora/lora.h"

#include "base/file.h"
#include "base/json.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char config_name[] = "adapter_config.json";

/* Returns the path, allocated, of adapter_config.json in a directory, or else next to the file or
 * directory; or NULL. */
static char *find_config(const char *path)
{
	size_t n = strlen(path);
	char *found = text_printf("%s/%s", path, config_name);
	if (file_exists(found))
		return found;
	free(found);
	while (n > 1 && path[n - 1] == '/')
		n--;
	while (n && path[n - 1] != '/')
		n--;
	found = text_printf("%.*s%s", (int)n, path, config_name);
	if (file_exists(found))
		return found;
	free(found);
	return NULL;
}

/* Returns true if the path is a file or directory of PEFT's adapter. */
static bool has_adapter(const char *path)
{
	const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
	if (file_is_directory(path))
		return directory_has_file(path, "adapter_model.safetensors") ||
		       directory_has_file(path, "adapter_model.bin");
	return !strncmp(name, "adapter_model.", 14);
}

/* Returns true for a JSON value that leaves an option off. */
static bool is_empty(const json_t *j)
{
	return !j || json_is_null(j) || json_is_false(j) ||
	       (json_is_array(j) && !json_array_size(j)) ||
	       (json_is_object(j) && !json_object_size(j));
}

/* Checks that adapter_config.json has no option that changes the computation in other ways. */
static int check_supported(const struct lora *l, struct err *e)
{
	static const char *const keys[] = {"use_dora", "modules_to_save", "lora_bias",
		"layer_replication", "trainable_token_indices", "target_parameters",
		"use_qalora", "use_bdlora", "alora_invocation_tokens", "arrow_config",
		"kasa_config", "monteclora_config", "velora_config"};
	static const char *const inits[] = {"gaussian", "orthogonal", "eva"};
	const char *type = json_string_value(json_object_get(l->json, "peft_type"));
	const char *bias = json_string_value(json_object_get(l->json, "bias"));
	const char *init =
		json_string_value(json_object_get(l->json, "init_lora_weights"));
	double dropout = json_number_value(json_object_get(l->json, "lora_dropout"));
	bool is_known_init = !init;
	for (size_t i = 0; i < ARRAY_LEN(keys); i++)
		if (!is_empty(json_object_get(l->json, keys[i])))
			return err_set(e, EX_UNAVAILABLE,
				"%s: adapters with %s are not supported", l->config,
				keys[i]);
	for (size_t i = 0; i < ARRAY_LEN(inits) && init; i++)
		is_known_init |= !strcmp(init, inits[i]);
	if (!type || strcmp(type, "LORA") != 0)
		return err_set(e, EX_UNAVAILABLE,
			"%s: peft_type \"%.40s\" is not supported; use LORA", l->config,
			type ? type : "");
	if (bias && strcmp(bias, "none") != 0)
		return err_set(e, EX_UNAVAILABLE,
			"%s: bias \"%.40s\" is not supported: it trains "
			"biases; set bias to \"none\"",
			l->config, bias);
	if (!is_known_init)
		return err_set(e, EX_UNAVAILABLE,
			"%s: init_lora_weights \"%.40s\" is not supported: it changes the "
			"base model",
			l->config, init);
	if (dropout != 0)
		return err_set(e, EX_UNAVAILABLE,
			"%s: lora_dropout is %g: the random numbers of the step are unknown; "
			"train the step with lora_dropout 0",
			l->config, dropout);
	return 0;
}

/* Reads adapter_config.json into l->json, and alpha, rank and rslora from it. Returns -1
 * with *e set if it is invalid or not supported. */
static int read_config(struct lora *l, struct err *e)
{
	enum { MAX_CONFIG = 1 << 20 };
	scoped_str text = {0};
	if (file_check_regular(l->config, e) ||
		file_read(l->config, MAX_CONFIG, &text, e))
		return -1;
	l->json = load_json(text.s ? text.s : "", text.len, 0, NULL);
	if (!json_is_object(l->json))
		return err_set(e, EX_DATAERR, "%s: not a JSON object", l->config);
	if (check_supported(l, e))
		return -1;
	const json_t *alpha = json_object_get(l->json, "lora_alpha"),
		     *rank = json_object_get(l->json, "r");
	l->alpha = json_number_value(alpha);
	l->rank = json_integer_value(rank);
	l->is_rslora = json_is_true(json_object_get(l->json, "use_rslora"));
	if (!json_is_number(alpha) || !(fabs(l->alpha) <= 1e6) ||
		!json_is_integer(rank) || l->rank < 1 || l->rank > 1 << 20)
		return err_set(e, EX_DATAERR,
			"%s: lora_alpha and r must be numbers, r above 0", l->config);
	if (!is_empty(json_object_get(l->json, "rank_pattern")))
		l->rank = 0; /* modules have different ranks */
	return 0;
}

/* Opens the base model, `base` or the one that adapter_config.json names, and lists its
 * tensors in *l. Returns -1 with *e set. */
static int open_base(struct lora *l, const char *path, const char *base,
	const struct open_options *how, struct err *e)
{
	const char *named =
		json_string_value(json_object_get(l->json, "base_model_name_or_path"));
	if (!base && (!named || !file_exists(named)))
		return err_set(e, EX_USAGE,
			"%s: the base model \"%.200s\" is not a directory here; give --base DIR",
			l->config, named ? named : "");
	if (convert_open(&l->base, base ? base : named, how, e))
		return -1;
	l->has_base = true;
	if (convert_model(&l->base, &l->m, e))
		return -1;
	if (l->m.c.experts)
		return err_set(e, EX_UNAVAILABLE,
			"%s: adapters of models with experts are not supported", path);
	l->n_list = foreign_list(hf_scheme(&l->m), &l->m, l->m.c.vocab, &l->list, e);
	return l->n_list < 0 ? -1 : 0;
}

int lora_open(struct lora *l, const char *path, const char *base,
	const struct open_options *how, struct err *e)
{
	*l = (struct lora){.used = base || has_adapter(path)};
	if (!l->used)
		return 0;
	l->config = find_config(path);
	if (!l->config)
		return err_set(e, EX_DATAERR,
			"%s: the file %s with lora_alpha and r is missing next to the "
			"adapter; save_pretrained() writes it",
			path, config_name);
	return read_config(l, e) || open_base(l, path, base, how, e) ? -1 : 0;
}

void lora_close(struct lora *l)
{
	if (l->has_base)
		ckpt_view_close(&l->base);
	if (l->list)
		free(l->list);
	model_release(&l->m);
	json_decref(l->json);
	free(l->config);
	*l = (struct lora){0};
}

/* Returns a pattern's value for a module; NULL: none. Keys of alpha_pattern are ends of names. */
static const json_t *match_pattern(
	const struct lora *l, const char *key, const char *module)
{
	const char *end;
	json_t *value;
	json_object_foreach(json_object_get(l->json, key), end, value)
	{
		size_t n = strlen(module), k = strlen(end);
		if (k <= n && !strcmp(module + n - k, end) &&
			(k == n || module[n - k - 1] == '.'))
			return value;
	}
	return NULL;
}

static bool is_literal(const char *s)
{
	return !s[strcspn(s, "^$*+?()[]{}|\\")];
}

int lora_scale(const struct lora *l, const char *module, int64_t rank, double *scale,
	struct err *e)
{
	const char *end;
	json_t *value;
	json_object_foreach(json_object_get(l->json, "alpha_pattern"), end,
		value) if (!is_literal(end) || !json_is_number(value)) return err_set(e,
		EX_UNAVAILABLE,
		"%s: alpha_pattern \"%.60s\" is a regular expression, which is "
		"not supported",
		l->config, end);
	const json_t *own = match_pattern(l, "alpha_pattern", module);
	double alpha = own ? json_number_value(own) : l->alpha;
	if (l->rank && rank != l->rank)
		return err_set(e, EX_DATAERR,
			"%s: r is %lld, but the adapter of %s has rank %lld", l->config,
			(long long)l->rank, module, (long long)rank);
	*scale = alpha / (l->is_rslora ? sqrt((double)rank) : (double)rank);
	return 0;
}

const char *lora_wrong_scale(const struct lora *l, double factor)
{
	const double rank = (double)l->rank, root = sqrt(rank);
	const struct {
		double factor;
		const char *text;
	} known[] = {{l->is_rslora ? root : rank, "alpha"},
		{l->is_rslora ? 1 / root : root,
			l->is_rslora ? "alpha / r, not alpha / sqrt(r)"
				     : "alpha / sqrt(r), not alpha / r"},
		{l->is_rslora ? root / l->alpha : rank / l->alpha, "1"},
		{l->is_rslora ? 1 / root : 1 / rank, "divided by r once more"}};
	for (size_t i = 0; i < ARRAY_LEN(known) && l->used && l->rank; i++)
		if (fabs(factor / known[i].factor - 1) <= 1e-3)
			return known[i].text;
	return NULL;
}
