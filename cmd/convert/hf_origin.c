/* What a model of Hugging Face has beside weights, options and vocabulary: which tokens begin and end a text, how
 * to generate, the template of a chat. It goes with the model through runs and checkpoints. */
#include "convert/huggingface.h"

#include "base/file.h"

#include <stdlib.h>

/* Of the model first, then of its tokenizer. */
static const char *const files[] = {"config.json", "generation_config.json",
	"tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
	"chat_template.jinja"};
enum { OF_MODEL = 2 };

static void read_file(json_t *to, const char *folder, const char *name)
{
	enum { MOST = 1 << 22 };
	struct str path = {0}, text = {0};
	struct err why = {0};
	str_printf(&path, "%s/%s", folder, name);
	if (!file_exists(path.s))
		;
	else if (file_read(path.s, MOST, &text, &why))
		warn("%s: it does not go with the model: %s", path.s, why.msg);
	else if (json_object_set_new(
			 to, name, json_stringn(text.s ? text.s : "", text.len)))
		warn("%s: it does not go with the model: not UTF-8", path.s);
	str_free(&path);
	str_free(&text);
}

static json_t *read_folder(const char *folder)
{
	json_t *o = json_object();
	for (size_t i = 0; i < ARRAY_LEN(files); i++)
		read_file(o, folder, files[i]);
	return o;
}

void hf_origin_put(const char *folder, struct str *out)
{
	json_t *o = read_folder(folder);
	char *text = json_dumps(o, JSON_COMPACT | JSON_SORT_KEYS);
	str_puts(out, text);
	free(text);
	json_decref(o);
}

void hf_origin_make(int64_t positions, struct str *out)
{
	str_printf(out, "{\"config.json\":\"{\\\"" HF_POSITIONS "\\\": %lld}\"}",
		(long long)positions);
}

json_t *hf_origin_of(const struct ckpt_view *v, const char *folder)
{
	json_t *o = folder ? read_folder(folder) : json_object();
	json_t *own =
		v->origin.len ? json_loadb(v->origin.s, v->origin.len, 0, NULL) : NULL;
	bool tokenizer = json_object_get(o, "tokenizer_config.json");
	for (size_t i = 0; i < ARRAY_LEN(files); i++) {
		json_t *text = json_object_get(own, files[i]);
		if (json_is_string(text) && !json_object_get(o, files[i]) &&
			(i < OF_MODEL || !tokenizer))
			json_object_set(o, files[i], text);
	}
	json_decref(own);
	return o;
}

int hf_origin_save(
	const json_t *origin, const char *folder, struct strs *made, struct err *e)
{
	int rc = 0;
	for (size_t i = 1; i < ARRAY_LEN(files) && !rc;
		i++) { /* config.json is made anew */
		const json_t *text = json_object_get(origin, files[i]);
		struct str path = {0}, copy = {0};
		if (!text)
			continue;
		str_printf(&path, "%s/%s", folder, files[i]);
		str_add(&copy, json_string_value(text), json_string_length(text));
		rc = file_replace(path.s, &copy, e);
		if (!rc)
			strs_add(made, path.s);
		str_free(&path);
		str_free(&copy);
	}
	return rc;
}

/* Without an original, all of which have a vocab_size, the tokens are the vocabulary's: null says that those of the
 * class are not meant. */
json_t *hf_origin_keys(
	const json_t *origin, const struct model *m, const struct tokenizer *t)
{
	static const char *const tokens[] = {
		"bos_token_id", "eos_token_id", "pad_token_id"};
	const json_t *text = json_object_get(origin, files[0]);
	json_t *o = json_object();
	json_t *was = text ? json_loadb(json_string_value(text), json_string_length(text),
				     0, NULL)
			   : NULL;
	int64_t end = t ? tokenizer_end_of_text(t) : -1;
	int64_t positions = json_integer_value(json_object_get(was, HF_POSITIONS));
	for (size_t i = 0; i < ARRAY_LEN(tokens); i++) {
		if (json_object_get(was, tokens[i]))
			json_object_set(o, tokens[i], json_object_get(was, tokens[i]));
		else if (!json_object_get(was, "vocab_size"))
			json_object_set_new(o, tokens[i],
				i == 1 && end >= 0 ? json_integer(end) : json_null());
	}
	if (m->arch->rope) /* a run with shorter sequences does not shorten the model */
		json_object_set_new(o, HF_POSITIONS,
			json_integer(positions <= HF_MOST_POSITIONS
					     ? max64(positions, m->c.context)
					     : m->c.context));
	json_decref(was);
	return o;
}
