/* tekken.json of Mistral: special tokens, then tokens that merge in the order of their ids, as in
 * tiktoken. The file has more such tokens than the model, which uses only the first of them. */
#include "token/vocab_internal.h"

/* The special tokens of files that do not list them (up to version 7). */
static const char *const usual_special[] = {"<unk>", "<s>", "</s>", "[INST]", "[/INST]",
	"[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]",
	"[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]", "[PREFIX]",
	"[MIDDLE]", "[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]"};

static int64_t integer_field(const json_t *object, const char *key)
{
	const json_t *x = json_object_get(object, key);
	return json_is_integer(x) ? json_integer_value(x) : -1;
}

/* Adds n special tokens: listed ones or, without a list, usual ones, then fillers. */
static int read_special_tokens(const json_t *list, int64_t n, struct vocab_builder *b,
	struct bpe_rules *r, struct err *e)
{
	int64_t n_listed = list ? (int64_t)json_array_size(list)
				: min64(n, ARRAY_LEN(usual_special));
	if (n_listed > n)
		return err_set(e, EX_DATAERR,
			"special_tokens lists %lld tokens, but default_num_special_tokens is %lld",
			(long long)n_listed, (long long)n);
	for (int64_t i = 0; i < n; i++) {
		char filler[32];
		const char *text = filler;
		const json_t *x = json_array_get(list, (size_t)i);
		snprintf(filler, sizeof(filler), "<SPECIAL_%lld>", (long long)i);
		if (i < n_listed)
			text = list ? json_string_value(json_object_get(x, "token_str"))
				    : usual_special[i];
		if (!text || !*text || (x && integer_field(x, "rank") != i))
			return err_set(e, EX_DATAERR,
				"special token %lld has no token_str or a wrong rank",
				(long long)i);
		vocab_builder_add(b, (uint32_t)i, text, strlen(text));
		rules_add_token(r, (uint32_t)i, BPE_SPECIAL);
	}
	return 0;
}

int read_tekken(
	const json_t *j, struct vocab_builder *b, struct bpe_rules *r, struct err *e)
{
	const json_t *config = json_object_get(j, "config"),
		     *list = json_object_get(j, "vocab");
	const char *pattern = json_string_value(json_object_get(config, "pattern"));
	int64_t n = integer_field(config, "default_vocab_size"),
		n_special = integer_field(config, "default_num_special_tokens");
	scoped_str bytes = {0};
	if (!pattern || n_special < 0 || n <= n_special || n > MAX_VOCAB_IDS ||
		(size_t)(n - n_special) > json_array_size(list))
		return err_set(e, EX_DATAERR,
			"not a tekken.json: config lacks pattern, default_vocab_size or "
			"default_num_special_tokens, or vocab is too short");
	int rc = read_special_tokens(
		json_object_get(j, "special_tokens"), n_special, b, r, e);
	for (int64_t i = 0; i < n - n_special && !rc; i++) {
		const json_t *x = json_array_get(list, (size_t)i);
		const char *text = json_string_value(json_object_get(x, "token_bytes"));
		str_clear(&bytes);
		if (!text || integer_field(x, "rank") != i ||
			base64_decode(text, strlen(text), &bytes))
			rc = err_set(e, EX_DATAERR,
				"token %lld of vocab has no token_bytes in base64 or a "
				"wrong rank",
				(long long)i);
		else
			vocab_builder_add(
				b, (uint32_t)(n_special + i), bytes.s, bytes.len);
	}
	const struct split_pattern *known = split_pattern_find(pattern);
	r->pattern = xstrdup(known ? known->name : pattern);
	r->n_ranked = n;
	return rc;
}
