/* The origin of a Hugging Face model: its files except weights, options and vocabulary, such as
 * special tokens and the chat template. Runs and checkpoints keep it with the model. */
#include "foreign/huggingface.h"

#include "base/file.h"

/* Files of the model, then files of the tokenizer. */
static const char *const files[] = {"config.json", "generation_config.json",
	"tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
	"chat_template.jinja"};
enum { CONFIG, N_MODEL_FILES = 2 };

static const char *const token_keys[] = {"bos_token_id", "eos_token_id", "pad_token_id"};

static json_t *parse_json(const json_t *text)
{
	return text ? json_loadb(
			      json_string_value(text), json_string_length(text), 0, NULL)
		    : NULL;
}

/* Returns config.json with only the keys to keep. Frees `text`. */
static json_t *reduce_config(json_t *text)
{
	json_t *config = parse_json(text), *kept = json_object();
	for (size_t i = 0; i < ARRAY_LEN(token_keys); i++)
		json_object_set(
			kept, token_keys[i], json_object_get(config, token_keys[i]));
	json_object_set(kept, HF_POSITIONS, json_object_get(config, HF_POSITIONS));
	scoped_ptr char *dumped = json_dumps(kept, JSON_COMPACT | JSON_SORT_KEYS);
	json_t *out = json_string(dumped);
	json_decref(kept);
	json_decref(config);
	json_decref(text);
	return out;
}

/* Returns true unless the text has control characters, which JSON inflates or (NUL) loses. */
static bool is_text(const struct str *s)
{
	int64_t i = 0, n = (int64_t)s->len;
	while (i < n && ((unsigned char)s->s[i] >= ' ' || memchr("\t\n\f\r", s->s[i], 4)))
		i++;
	return i == n;
}

/* Adds the text of a file to an object; warns if it cannot be kept. */
static void add_file(json_t *to, const char *directory, const char *name)
{
	enum { MAX_BYTES = 1 << 22 };
	scoped_str text = {0};
	struct err why = {0};
	json_t *kept = NULL;
	scoped_ptr char *path = text_printf("%s/%s", directory, name);
	if (file_exists(path) && !file_check_regular(path, &why) &&
		!file_read(path, MAX_BYTES, &text, &why) && is_text(&text))
		kept = json_stringn(text.s ? text.s : "", text.len);
	die_io(&why);
	if (kept && name == files[CONFIG])
		kept = reduce_config(kept);
	if (kept)
		json_object_set_new(to, name, kept);
	else if (why.code || text.len)
		warn("%s: the file is not kept with the model: %s", path,
			why.code ? why.msg : "it is not UTF-8 text");
}

static json_t *read_directory(const char *directory)
{
	json_t *o = json_object();
	for (size_t i = 0; i < ARRAY_LEN(files); i++)
		add_file(o, directory, files[i]);
	return o;
}

void hf_origin_read(const char *directory, struct str *out)
{
	json_auto_t *o = read_directory(directory);
	scoped_ptr char *text = json_dumps(o, JSON_COMPACT | JSON_SORT_KEYS);
	str_puts(out, text);
}

void hf_origin_set_positions(int64_t positions, struct str *out)
{
	str_printf(out, "{\"config.json\":\"{\\\"" HF_POSITIONS "\\\": %lld}\"}",
		(long long)positions);
}

json_t *hf_origin_collect(const struct ckpt_view *v, const char *directory)
{
	json_t *o = directory ? read_directory(directory) : json_object();
	json_auto_t *own_files =
		v->origin.len ? json_loadb(v->origin.s, v->origin.len, 0, NULL) : NULL;
	bool has_tokenizer = json_object_get(o, "tokenizer_config.json");
	for (size_t i = 0; i < ARRAY_LEN(files); i++) {
		json_t *text = json_object_get(own_files, files[i]);
		if (json_is_string(text) && !json_object_get(o, files[i]) &&
			(i < N_MODEL_FILES || !has_tokenizer))
			json_object_set(o, files[i], text);
	}
	return o;
}

/* Returns a JSON file of an origin, parsed; NULL if it is missing. */
static json_t *load_file(const struct str *origin, const char *name)
{
	json_auto_t *all =
		origin->len ? json_loadb(origin->s, origin->len, 0, NULL) : NULL;
	return parse_json(json_object_get(all, name));
}

/* Sets *ids, for free(), to a token or a list of tokens. Returns their number. */
static int64_t append_tokens(const json_t *end, uint32_t **ids)
{
	int64_t n = 0;
	json_auto_t *entry = json_is_array(end) ? NULL : json_pack("[O?]", end);
	const json_t *list = entry ? entry : end;
	for (size_t i = 0; i < json_array_size(list); i++) {
		const json_t *id = json_array_get(list, i);
		json_int_t x = json_is_integer(id) ? json_integer_value(id) : -1;
		if (x < 0 || x >= UINT32_MAX)
			continue;
		*ids = xgrow(*ids, n, sizeof(**ids));
		(*ids)[n++] = (uint32_t)x;
	}
	return n;
}

int64_t hf_origin_end_tokens(const struct str *origin, uint32_t **ids)
{
	static const char *const names[] = {"generation_config.json", "config.json"};
	int64_t n = 0;
	*ids = NULL;
	for (size_t i = 0; i < ARRAY_LEN(names) && !n; i++) {
		json_auto_t *file = load_file(origin, names[i]);
		n = append_tokens(json_object_get(file, token_keys[1]), ids);
	}
	return n;
}

/* Returns the template named default. A model may have more, such as one for tools. */
static const json_t *get_default_template(const json_t *x)
{
	for (size_t i = 0; i < json_array_size(x); i++) {
		const json_t *entry = json_array_get(x, i);
		const char *name = json_string_value(json_object_get(entry, "name"));
		if (name && !strcmp(name, "default"))
			return json_object_get(entry, "template");
	}
	return x;
}

void hf_origin_template(const struct str *origin, struct str *out)
{
	json_auto_t *all =
		origin->len ? json_loadb(origin->s, origin->len, 0, NULL) : NULL;
	json_auto_t *config = parse_json(json_object_get(all, "tokenizer_config.json"));
	const json_t *x = json_object_get(all, "chat_template.jinja");
	x = x ? x : get_default_template(json_object_get(config, "chat_template"));
	if (json_is_string(x))
		str_add(out, json_string_value(x), json_string_length(x));
}

int hf_origin_save(
	const json_t *origin, const char *directory, struct strs *written, struct err *e)
{
	int rc = 0;
	for (size_t i = CONFIG + 1; i < ARRAY_LEN(files) && !rc; i++) {
		const json_t *text = json_object_get(origin, files[i]);
		scoped_str copy = {0};
		if (!text)
			continue;
		scoped_ptr char *path = text_printf("%s/%s", directory, files[i]);
		str_add(&copy, json_string_value(text), json_string_length(text));
		rc = file_replace(path, &copy, e);
		if (!rc)
			strs_add(written, path);
	}
	return rc;
}

static bool has_token_keys(const json_t *config)
{
	return json_object_get(config, token_keys[0]) ||
	       json_object_get(config, token_keys[1]) ||
	       json_object_get(config, token_keys[2]);
}

/* Sets eos_token_id to the vocabulary's end of text if the origin has no special tokens, and the
 * other keys to null, so that readers do not use the class's defaults. */
json_t *hf_origin_keys(
	const json_t *origin, const struct model *m, const struct tokenizer *t)
{
	json_t *o = json_object(),
	       *old_config = parse_json(json_object_get(origin, files[CONFIG]));
	int64_t end = t ? tokenizer_end_of_text(t) : -1;
	int64_t positions = json_integer_value(json_object_get(old_config, HF_POSITIONS));
	for (size_t i = 0; i < ARRAY_LEN(token_keys); i++) {
		if (has_token_keys(old_config))
			json_object_set(o, token_keys[i],
				json_object_get(old_config, token_keys[i]));
		else
			json_object_set_new(o, token_keys[i],
				i == 1 && end >= 0 ? json_integer(end) : json_null());
	}
	if (positions > HF_MAX_POSITIONS)
		positions = 0;
	if (m->arch->rope) /* (a run may have used shorter sequences) */
		json_object_set_new(
			o, HF_POSITIONS, json_integer(max64(positions, m->c.context)));
	json_decref(old_config);
	return o;
}
