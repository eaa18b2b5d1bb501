/*
 * tokenizer.json of Hugging Face's tokenizers: byte-level BPE. What changes the tokens of a text and is
 * not supported is refused by its name. Padding, truncation and the post-processor, which may add
 * tokens at the beginning of a text, are left out.
 */
#include "token/vocab_internal.h"

#include <stdlib.h>
#include <string.h>

static const char *type_of(const json_t *o)
{
	const char *type = json_string_value(json_object_get(o, "type"));
	return type ? type : "?";
}

static int unsupported(const char *what, const char *which, struct err *e)
{
	return err_set(e, EX_DATAERR, "%s '%.60s' is not supported", what, which);
}

/* ---- the model ------------------------------------------------------------------- */

static bool is_empty(const json_t *x)
{
	return !x || json_is_null(x) || json_is_false(x) ||
	       (json_is_string(x) && !*json_string_value(x)) ||
	       (json_is_number(x) && json_number_value(x) == 0);
}

static int check_model(const json_t *model, struct err *e)
{
	static const char *const no[] = {"dropout", "continuing_subword_prefix",
		"end_of_word_suffix", "byte_fallback", NULL};
	if (!json_is_object(model))
		return err_set(e, EX_DATAERR, "has no model: is not a tokenizer.json");
	if (json_object_get(model, "type") && strcmp(type_of(model), "BPE") != 0)
		return unsupported("the model", type_of(model), e);
	for (int i = 0; no[i]; i++)
		if (!is_empty(json_object_get(model, no[i])))
			return unsupported("the model's", no[i], e);
	if (!json_is_object(json_object_get(model, "vocab")) ||
		!json_is_array(json_object_get(model, "merges")))
		return err_set(e, EX_DATAERR, "the model has no vocab or no merges");
	return 0;
}

/* "a b" or ["a", "b"] */
static int read_merge(
	const json_t *vocab, const json_t *merge, struct bpe_rules *r, struct err *e)
{
	const char *left = json_string_value(json_array_get(merge, 0));
	const char *right = json_string_value(json_array_get(merge, 1));
	char *text = NULL;
	if (json_is_string(merge)) {
		text = xstrdup(json_string_value(merge));
		char *space = strchr(text, ' ');
		if (space && !strchr(space + 1, ' ')) {
			*space = '\0';
			left = text, right = space + 1;
		}
	}
	int rc = left && right && *left && *right && json_array_size(merge) % 2 == 0
			 ? byte_level_merge(vocab, left, right, r, e)
			 : err_set(e, EX_DATAERR, "is not two tokens");
	free(text);
	return rc;
}

static int read_model(const json_t *model, const json_t *skip, struct vocab_builder *b,
	struct bpe_rules *r, struct err *e)
{
	const json_t *vocab = json_object_get(model, "vocab");
	const json_t *merges = json_object_get(model, "merges");
	if (byte_level_vocab(vocab, skip, b, e))
		return -1;
	r->whole_words = json_is_true(json_object_get(model, "ignore_merges"));
	for (size_t i = 0; i < json_array_size(merges); i++)
		if (read_merge(vocab, json_array_get(merges, i), r, e))
			return err_prefix(e, "merge %zu: ", i + 1);
	return r->n_merges ? 0 : err_set(e, EX_DATAERR, "has no merges");
}

/* ---- added tokens ---------------------------------------------------------------- */

static int read_added(const json_t *token, struct vocab_builder *b, struct bpe_rules *r,
	json_t *skip, struct err *e)
{
	static const char *const no[] = {"single_word", "lstrip", "rstrip", NULL};
	const char *text = json_string_value(json_object_get(token, "content"));
	const json_t *number = json_object_get(token, "id");
	json_int_t id = json_is_integer(number) ? json_integer_value(number) : -1;
	if (!text || !*text || id < 0 || id >= MAX_VOCAB_IDS)
		return err_set(e, EX_DATAERR, "an added token has no content or no id");
	for (int i = 0; no[i]; i++)
		if (!is_empty(json_object_get(token, no[i]))) {
			unsupported("the added token's", no[i], e);
			return err_prefix(e, "%.60s: ", text);
		}
	char key[16];
	snprintf(key, sizeof(key), "%u", (unsigned)id);
	json_object_set_new(skip, key, json_true());
	builder_add(b, (uint32_t)id, text, strlen(text));
	rules_add_token(r, (uint32_t)id, json_is_true(json_object_get(token, "special")));
	return 0;
}

/* ---- how text is split ----------------------------------------------------------- */

static int check_normalizer(const json_t *n, struct err *e)
{
	if (!n || json_is_null(n))
		return 0;
	if (!strcmp(type_of(n), "Sequence") &&
		!json_array_size(json_object_get(n, "normalizers")))
		return 0;
	return unsupported("the normalizer", type_of(n), e);
}

/* A pattern whose words are the whole text. */
static int read_split(const json_t *s, struct bpe_rules *r, struct err *e)
{
	const json_t *pattern = json_object_get(s, "pattern");
	const char *regex = json_string_value(json_object_get(pattern, "Regex"));
	const char *behavior = json_string_value(json_object_get(s, "behavior"));
	bool invert = json_is_true(json_object_get(s, "invert"));
	if (r->pattern)
		return unsupported("a second pre-tokenizer", "Split", e);
	if (!regex || !behavior)
		return unsupported("the pre-tokenizer", "Split without Regex", e);
	if (strstr(regex, "{1,3}+")) /* (Oniguruma repeats it, PCRE2 does not) */
		return unsupported("the pattern", regex, e);
	/* (the words of a known pattern are all of the text: there is nothing to remove) */
	bool all = split_find(regex) && invert && !strcmp(behavior, "Removed");
	if (!all && (strcmp(behavior, "Isolated") != 0 || invert))
		return unsupported("the behavior of Split", behavior, e);
	r->pattern = xstrdup(regex);
	return 0;
}

static int read_byte_level(
	const json_t *b, struct bpe_rules *r, bool *found, struct err *e)
{
	if (*found)
		return unsupported("a second pre-tokenizer", "ByteLevel", e);
	if (json_is_true(json_object_get(b, "add_prefix_space")))
		return unsupported("the pre-tokenizer's", "add_prefix_space", e);
	*found = true;
	if (json_is_false(json_object_get(b, "use_regex")))
		return r->pattern ? 0
				  : unsupported("the pre-tokenizer",
					    "ByteLevel without a pattern", e);
	if (r->pattern)
		return unsupported("a second pattern of", "ByteLevel", e);
	r->pattern = xstrdup("gpt2");
	return 0;
}

static int read_pre_tokenizer(const json_t *p, struct bpe_rules *r, struct err *e)
{
	bool is_list = !strcmp(type_of(p), "Sequence"), bytes = false;
	const json_t *list = json_object_get(p, "pretokenizers");
	size_t n = is_list ? json_array_size(list) : 1;
	for (size_t i = 0; i < n; i++) {
		const json_t *x = is_list ? json_array_get(list, i) : p;
		const char *type = type_of(x);
		int rc =
			bytes ? unsupported("after ByteLevel, the pre-tokenizer", type, e)
			: !strcmp(type, "ByteLevel") ? read_byte_level(x, r, &bytes, e)
			: !strcmp(type, "Split")
				? read_split(x, r, e)
				: unsupported("the pre-tokenizer", type, e);
		if (rc)
			return -1;
	}
	return bytes ? 0
		     : err_set(e, EX_DATAERR,
			       "the pre-tokenizer is not ByteLevel: not supported");
}

/* ---- the file -------------------------------------------------------------------- */

int read_tokenizer_json(const struct str *text, const char *path, struct vocab *v,
	struct bpe_rules *r, struct err *e)
{
	struct vocab_builder b = {0};
	json_t *j = vocab_json(text, path, e), *skip = json_object();
	const json_t *model = json_object_get(j, "model");
	const json_t *added = json_object_get(j, "added_tokens");
	int rc = !j;
	if (!rc) {
		rc = check_model(model, e) ||
		     check_normalizer(json_object_get(j, "normalizer"), e) ||
		     read_pre_tokenizer(json_object_get(j, "pre_tokenizer"), r, e);
		for (size_t i = 0; !rc && i < json_array_size(added); i++)
			rc = read_added(json_array_get(added, i), &b, r, skip, e);
		rc = rc || read_model(model, skip, &b, r, e) ||
		     builder_end(&b, false, v, e);
		if (rc)
			err_prefix(e, "%s: ", path);
	}
	builder_free(&b);
	json_decref(skip);
	json_decref(j);
	return rc ? -1 : 0;
}
