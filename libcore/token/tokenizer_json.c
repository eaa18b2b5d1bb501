/* tokenizer.json of Hugging Face's tokenizers: byte-level BPE. Unsupported features that change the
 * tokens of a text are rejected by name. Padding, truncation and the post-processor, which may add
 * tokens at the beginning of a text, are ignored. */
#include "token/bpe_internal.h"
#include "token/vocab_internal.h"

#include <ctype.h>

static const char *type_field(const json_t *o)
{
	const char *type = json_string_value(json_object_get(o, "type"));
	return type ? type : "none";
}

static int reject_feature(const char *what, const char *which, struct err *e)
{
	return err_set(e, EX_DATAERR, "%s '%.60s' is not supported", what, which);
}

/* Rejects a kind of tokenizer that pt does not support. */
static int reject_kind(const char *what, const char *which, struct err *e)
{
	return err_set(e, EX_DATAERR, "%s '%.60s' is not supported%s", what, which,
		advice_on(ADVICE_TOKENIZER));
}

/* Returns true if an option is missing, null, false, "" or 0. */
static bool is_unset(const json_t *x)
{
	return !x || json_is_null(x) || json_is_false(x) ||
	       (json_is_string(x) && !*json_string_value(x)) ||
	       (json_is_number(x) && json_number_value(x) == 0);
}

/* Fails unless the model is BPE without features that pt does not support. */
static int check_model(const json_t *model, struct err *e)
{
	static const char *const unsupported_keys[] = {"dropout",
		"continuing_subword_prefix", "end_of_word_suffix", "byte_fallback", NULL};
	if (!json_is_object(model))
		return err_set(e, EX_DATAERR,
			"neither a tokenizer.json nor a tekken.json: it has no model");
	if (json_object_get(model, "type") && strcmp(type_field(model), "BPE") != 0)
		return reject_kind("the model", type_field(model), e);
	for (int i = 0; unsupported_keys[i]; i++)
		if (!is_unset(json_object_get(model, unsupported_keys[i])))
			return reject_kind("the model's", unsupported_keys[i], e);
	if (!json_is_object(json_object_get(model, "vocab")) ||
		!json_is_array(json_object_get(model, "merges")))
		return err_set(e, EX_DATAERR, "the model has no vocab or no merges");
	return 0;
}

/* Reads a merge, "a b" or ["a", "b"]. */
static int read_merge(
	const json_t *vocab, const json_t *merge, struct bpe_rules *r, struct err *e)
{
	const char *left = json_string_value(json_array_get(merge, 0));
	const char *right = json_string_value(json_array_get(merge, 1));
	scoped_ptr char *text = NULL;
	if (json_is_string(merge)) {
		text = xstrdup(json_string_value(merge));
		char *space = strchr(text, ' ');
		if (space && !strchr(space + 1, ' ')) {
			*space = '\0';
			left = text, right = space + 1;
		}
	}
	return left && right && *left && *right && json_array_size(merge) % 2 == 0
		       ? read_byte_level_merge(vocab, left, right, r, e)
		       : err_set(e, EX_DATAERR, "a merge must be two tokens");
}

/* Adds the vocabulary and the merges of a checked model, except the tokens in `skip`. */
static int read_model(const json_t *model, const json_t *skip, struct vocab_builder *b,
	struct bpe_rules *r, struct err *e)
{
	const json_t *vocab = json_object_get(model, "vocab");
	const json_t *merges = json_object_get(model, "merges");
	if (read_byte_level_vocab(vocab, skip, b, e))
		return -1;
	r->whole_words = json_is_true(json_object_get(model, "ignore_merges"));
	for (size_t i = 0; i < json_array_size(merges); i++)
		if (read_merge(vocab, json_array_get(merges, i), r, e))
			return err_prefix(e, "merge %zu: ", i + 1);
	/* (a vocabulary of bytes has no merges) */
	bool bytes = true;
	for (int64_t i = r->n_added; i < b->n; i++)
		bytes &= b->items[i].len == 1;
	return r->n_merges || bytes ? 0
				    : err_set(e, EX_DATAERR, "the model has no merges");
}

/* ---- added tokens ---------------------------------------------------------------- */

/* Fails if an added token has another id in the vocabulary, or flags that pt does not support. */
static int check_added(
	const json_t *vocab, const char *text, json_int_t id, bool strips, struct err *e)
{
	const json_t *known = json_object_get(vocab, text);
	if (known && (!json_is_integer(known) || json_integer_value(known) != id))
		return err_set(e, EX_DATAERR,
			"the added token '%.60s' has another id in the model's vocabulary",
			text);
	if (strips)
		return err_set(e, EX_DATAERR,
			"'%.60s': lstrip, rstrip or single_word of an added token that is "
			"not special is not supported",
			text);
	return 0;
}

static int reject_same_text(const char *text, struct err *e)
{
	return err_set(e, EX_DATAERR,
		"the added token '%.60s' has the normalized text of another token, which is not "
		"supported",
		text);
}

/* Normalizes the text of a token to be found in normalized text, as Hugging Face's library does. */
static int normalize_added(enum normal_form form, const json_t *vocab, json_t *skip,
	const char *text, struct str *bytes, struct err *e)
{
	struct normalized x = {0};
	int rc = normalize(form, bytes->s, (int64_t)bytes->len, &x, e);
	if (!rc && x.changes.n) {
		str_clear(bytes);
		str_add(bytes, x.text.s, x.text.len);
		if (json_object_get(vocab, text) || json_object_get(vocab, bytes->s) ||
			json_object_get(skip, bytes->s))
			rc = reject_same_text(text, e);
		json_object_set_new(skip, bytes->s, json_false());
	}
	normalized_release(&x);
	return rc;
}

/* Adds an added token to the vocabulary and the rules, and its text to `skip`. */
static int read_added(const json_t *token, const json_t *vocab, struct vocab_builder *b,
	struct bpe_rules *r, json_t *skip, struct err *e)
{
	static const struct {
		const char *name;
		unsigned flag;
	} properties[] = {{"special", BPE_SPECIAL}, {"normalized", BPE_NORMALIZED},
		{"single_word", BPE_STRIPS}, {"lstrip", BPE_STRIPS},
		{"rstrip", BPE_STRIPS}};
	const char *text = json_string_value(json_object_get(token, "content"));
	const json_t *number = json_object_get(token, "id");
	json_int_t id = json_is_integer(number) ? json_integer_value(number) : -1;
	if (!text || !*text || id < 0 || id >= MAX_VOCAB_IDS)
		return err_set(e, EX_DATAERR, "an added token has no content or no id");
	unsigned flags = 0;
	for (size_t i = 0; i < ARRAY_LEN(properties); i++)
		if (json_is_true(json_object_get(token, properties[i].name)))
			flags |= properties[i].flag;
	bool strips = flags & BPE_STRIPS && !(flags & BPE_SPECIAL);
	if (check_added(vocab, text, id, strips, e))
		return -1;
	if (json_is_false(json_object_get(skip, text)))
		return reject_same_text(text, e);
	scoped_str bytes = {0};
	const char *rest = text;
	for (const char *nul; (nul = strstr(rest, VOCAB_NUL)); rest = nul + 3) {
		str_add(&bytes, rest, (size_t)(nul - rest));
		str_putc(&bytes, '\0');
	}
	str_puts(&bytes, rest);
	if (flags & BPE_NORMALIZED && r->normalizer &&
		normalize_added(r->normalizer, vocab, skip, text, &bytes, e))
		return -1;
	json_object_set_new(skip, text, json_true());
	vocab_builder_add(b, (uint32_t)id, bytes.s, bytes.len);
	rules_add_token(r, (uint32_t)id, flags);
	return 0;
}

/* ---- how text is split ----------------------------------------------------------- */

/* Reads the normalizer. In a Sequence, the last form applies, compatible if any form is. */
static int read_normalizer(const json_t *n, struct bpe_rules *r, struct err *e)
{
	const json_t *list = json_object_get(n, "normalizers");
	int form = 0;
	if (!n || json_is_null(n))
		return 0;
	if (!strcmp(type_field(n), "Sequence")) {
		for (size_t i = 0; i < json_array_size(list); i++)
			if (read_normalizer(json_array_get(list, i), r, e))
				return -1;
		return 0;
	}
	while (normal_forms[form] && strcmp(normal_forms[form], type_field(n)) != 0)
		form++;
	if (form == NORMAL_NONE || !normal_forms[form])
		return reject_feature("the normalizer", type_field(n), e);
	bool compatible = r->normalizer >= NORMAL_NFKC && form < NORMAL_NFKC;
	r->normalizer = (enum normal_form)(compatible ? form + 2 : form);
	return 0;
}

/* Appends a line with a pattern, or the name of an equal known pattern, to r->pattern. */
static void add_pattern(struct bpe_rules *r, const char *pattern)
{
	struct str patterns = {0};
	const struct split_pattern *known = split_pattern_find(pattern);
	if (r->pattern)
		str_printf(&patterns, "%s\n", r->pattern);
	str_puts(&patterns, known ? known->name : pattern);
	free(r->pattern);
	r->pattern = patterns.s;
}

/* Appends the regular expression of a Split, for PCRE2. */
static int append_split_regex(const json_t *pattern, struct str *out, struct err *e)
{
	const char *regex = json_string_value(json_object_get(pattern, "Regex"));
	const char *text = json_string_value(json_object_get(pattern, "String"));
	if (!regex && (!text || !*text))
		return reject_feature("the pre-tokenizer", "Split without a pattern", e);
	if (!regex)
		for (; *text; text++) {
			if (*text == '\n' || *text == '\r')
				str_puts(out, *text == '\n' ? "\\n" : "\\r");
			else if (isalpha((unsigned char)*text) || (uint8_t)*text >= 0x80)
				str_putc(out, *text);
			else
				str_printf(out, "\\x%02x", (uint8_t)*text);
		}
	else if (split_pattern_find(regex) && !strstr(regex, "{1,3}+"))
		str_puts(out, regex);
	else
		return regex_of_oniguruma(regex, out, e);
	return 0;
}

/* Reads a Split whose words are the matches and the text between them. */
static int read_split(const json_t *s, struct bpe_rules *r, struct err *e)
{
	const char *behavior = json_string_value(json_object_get(s, "behavior"));
	scoped_str regex = {0};
	int rc = 0;
	if (!behavior || append_split_regex(json_object_get(s, "pattern"), &regex, e))
		return e->code ? -1 : reject_feature("the pre-tokenizer", "Split", e);
	/* (the words of a known pattern cover the text: Removed and invert remove nothing) */
	bool covers_text = split_pattern_find(regex.s) &&
			   json_is_true(json_object_get(s, "invert")) &&
			   !strcmp(behavior, "Removed");
	if (covers_text || !strcmp(behavior, "Isolated"))
		add_pattern(r, regex.s);
	else
		rc = reject_feature("the behavior of Split", behavior, e);
	return rc;
}

static int read_digits(const json_t *d, struct bpe_rules *r, struct err *e)
{
	(void)e;
	bool alone = json_is_true(json_object_get(d, "individual_digits"));
	add_pattern(r, alone ? "\\p{N}" : "\\p{N}+");
	return 0;
}

/* Adds the pattern of a Punctuation pre-tokenizer. Fails for behaviors that pt does not support. */
static int read_punctuation(const json_t *p, struct bpe_rules *r, struct err *e)
{
	const char *behavior = json_string_value(json_object_get(p, "behavior"));
	bool run = behavior && !strcmp(behavior, "Contiguous");
	if (behavior && !run && strcmp(behavior, "Isolated") != 0)
		return reject_feature("the behavior of Punctuation", behavior, e);
	/* (including the ASCII characters that are symbols in Unicode) */
	add_pattern(r, run ? "[\\p{P}$+<=>^`|~]+" : "[\\p{P}$+<=>^`|~]");
	return 0;
}

/* Adds the pattern of a ByteLevel pre-tokenizer, if it has one. Fails if none splits the text. */
static int read_byte_level(const json_t *b, struct bpe_rules *r, struct err *e)
{
	if (json_is_true(json_object_get(b, "add_prefix_space")))
		return reject_feature("the pre-tokenizer's", "add_prefix_space", e);
	if (!json_is_false(json_object_get(b, "use_regex")))
		add_pattern(r, "gpt2");
	return r->pattern ? 0
			  : reject_feature("the pre-tokenizer",
				    "ByteLevel without a pattern", e);
}

static const struct {
	const char *type;
	int (*read)(const json_t *x, struct bpe_rules *r, struct err *e);
} pre_tokenizers[] = {
	{"Split", read_split},
	{"Digits", read_digits},
	{"Punctuation", read_punctuation},
	{"ByteLevel", read_byte_level},
};

static int read_one_pre_tokenizer(const json_t *x, struct bpe_rules *r, struct err *e)
{
	for (size_t i = 0; i < ARRAY_LEN(pre_tokenizers); i++)
		if (!strcmp(type_field(x), pre_tokenizers[i].type))
			return pre_tokenizers[i].read(x, r, e);
	return reject_feature("the pre-tokenizer", type_field(x), e);
}

/* Reads the pre-tokenizers. ByteLevel must be the last: it replaces bytes by other characters. */
static int read_pre_tokenizer(const json_t *p, struct bpe_rules *r, struct err *e)
{
	bool is_list = !strcmp(type_field(p), "Sequence"), bytes = false;
	const json_t *list = json_object_get(p, "pretokenizers");
	size_t n = is_list ? json_array_size(list) : 1;
	for (size_t i = 0; i < n; i++) {
		const json_t *x = is_list ? json_array_get(list, i) : p;
		if (bytes)
			return reject_feature(
				"after ByteLevel, the pre-tokenizer", type_field(x), e);
		if (read_one_pre_tokenizer(x, r, e))
			return -1;
		bytes = !strcmp(type_field(x), "ByteLevel");
	}
	return bytes ? 0
		     : err_set(e, EX_DATAERR,
			       "a pre-tokenizer without ByteLevel is not supported");
}

/* Returns true for a vocabulary of characters, as bpe_write.c writes it: no splits, no merges. */
static bool is_char_vocab(const json_t *j)
{
	const json_t *model = json_object_get(j, "model");
	const json_t *merges = json_object_get(model, "merges");
	return is_unset(json_object_get(j, "pre_tokenizer")) &&
	       is_unset(json_object_get(j, "normalizer")) &&
	       !json_array_size(json_object_get(j, "added_tokens")) &&
	       !strcmp(type_field(json_object_get(j, "decoder")), "Fuse") &&
	       json_is_array(merges) && !json_array_size(merges);
}

/* Adds the vocabulary of a model whose tokens are characters, without merges. */
static int read_char_vocab(
	const json_t *model, struct vocab_builder *b, struct bpe_rules *r, struct err *e)
{
	const char *text;
	json_t *id;
	if (check_model(model, e))
		return -1;
	r->characters = true;
	json_object_foreach(json_object_get(model, "vocab"), text, id)
	{
		json_int_t i = json_is_integer(id) ? json_integer_value(id) : -1;
		if (i < 0 || i >= MAX_VOCAB_IDS)
			return err_set(
				e, EX_DATAERR, "token '%.60s' has no valid id", text);
		vocab_builder_add(b, (uint32_t)i, text, strlen(text));
	}
	return 0;
}

int read_tokenizer_json(const struct str *text, const char *path, struct vocab *v,
	struct bpe_rules *r, struct err *e)
{
	struct vocab_builder b = {0};
	json_t *j = parse_vocab_json(text, path, e), *skip = json_object();
	const json_t *model = json_object_get(j, "model");
	const json_t *added = json_object_get(j, "added_tokens");
	const json_t *vocab = json_object_get(model, "vocab");
	int rc = !j;
	if (json_is_array(json_object_get(j, "vocab")) || is_char_vocab(j)) {
		rc = (is_char_vocab(j) ? read_char_vocab(model, &b, r, e)
				       : read_tekken(j, &b, r, e)) ||
		     vocab_builder_finish(&b, INT64_MAX, v, e);
		if (rc)
			err_prefix(e, "%s: ", path);
	} else if (!rc) {
		rc = check_model(model, e) ||
		     read_normalizer(json_object_get(j, "normalizer"), r, e) ||
		     read_pre_tokenizer(json_object_get(j, "pre_tokenizer"), r, e);
		for (size_t i = 0; !rc && i < json_array_size(added); i++)
			rc = read_added(json_array_get(added, i), vocab, &b, r, skip, e);
		rc = rc || read_model(model, skip, &b, r, e) ||
		     vocab_builder_finish(&b, b.n - r->n_added, v, e);
		if (rc)
			err_prefix(e, "%s: ", path);
	}
	vocab_builder_release(&b);
	json_decref(skip);
	json_decref(j);
	return rc ? -1 : 0;
}
