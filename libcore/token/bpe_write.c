/* Writes vocabulary files in the formats of GPT-2, of Hugging Face's tokenizers and of tiktoken. */
#include "token/bpe_internal.h"
#include "token/tokenizer.h"
#include "token/vocab_internal.h"

/* Appends text as a quoted JSON string. Returns -1 if it is not UTF-8. */
static int append_json_string(struct str *out, const char *text, size_t n)
{
	json_t *s = json_stringn(text, n);
	scoped_ptr char *quoted = json_dumps(s, JSON_ENCODE_ANY);
	str_puts(out, quoted ? quoted : "\"\"");
	json_decref(s);
	return s ? 0 : -1;
}

/* Appends a token as a JSON string. Fails if it is not UTF-8. */
static int append_token_json(
	struct str *out, const struct vocab *v, int64_t id, struct err *e)
{
	int64_t n;
	const char *p = token_bytes(v, (uint32_t)id, &n);
	return append_json_string(out, p, (size_t)n)
		       ? err_set(e, EX_DATAERR,
				 "the added token %lld is not UTF-8, which JSON requires",
				 (long long)id)
		       : 0;
}

/* Appends a token with GPT-2's printable character for each byte. */
static void append_byte_level_text(
	struct str *out, const struct vocab *v, int64_t id, const uint32_t code[N_BYTES])
{
	int64_t n;
	const char *p = token_bytes(v, (uint32_t)id, &n);
	for (int64_t i = 0; i < n; i++) {
		uint8_t c[4];
		str_add(out, c, (size_t)utf8_encode(code[(uint8_t)p[i]], c));
	}
}

static bool is_added(const struct bpe_rules *r, int64_t id)
{
	for (int64_t i = 0; i < r->n_added; i++)
		if (r->added[i].id == id)
			return true;
	return false;
}

/* Appends the tokens as members of a JSON object. Ids without bytes are not tokens. */
static int append_vocab(struct str *out, const struct vocab *v, const struct bpe_rules *r,
	const char *separator, struct err *e)
{
	scoped_str text = {0};
	uint32_t code[N_BYTES];
	bool first = true;
	int rc = 0;
	byte_level_codes(code);
	for (int64_t id = 0; id < v->n && !rc; id++) {
		if (v->offset[id] == v->offset[id + 1])
			continue;
		str_puts(out, first ? separator + 1 : separator);
		first = false;
		if (is_added(r, id)) {
			rc = append_token_json(out, v, id, e);
		} else {
			str_clear(&text);
			append_byte_level_text(&text, v, id, code);
			append_json_string(out, text.s, text.len);
		}
		str_printf(out, ": %lld", (long long)id);
	}
	return rc;
}

int bpe_write_vocab(
	struct str *out, const struct vocab *v, const struct bpe_rules *r, struct err *e)
{
	str_putc(out, '{');
	int rc = append_vocab(out, v, r, ", ", e);
	str_puts(out, "}\n");
	return rc;
}

static void append_merge(struct str *out, const struct vocab *v, uint32_t left,
	uint32_t right, const uint32_t code[N_BYTES])
{
	append_byte_level_text(out, v, left, code);
	str_putc(out, ' ');
	append_byte_level_text(out, v, right, code);
}

int bpe_write_merges(
	struct str *out, const struct vocab *v, const struct bpe_rules *r, struct err *e)
{
	uint32_t code[N_BYTES];
	(void)e;
	byte_level_codes(code);
	str_puts(out, "#version: 0.2\n");
	for (int64_t i = 0; i < r->n_merges; i++) {
		append_merge(out, v, r->merges[2 * i], r->merges[2 * i + 1], code);
		str_putc(out, '\n');
	}
	return 0;
}

int bpe_write_ranks(
	struct str *out, const struct vocab *v, const struct bpe_rules *r, struct err *e)
{
	static const char digits[] =
		"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
	(void)e;
	for (int64_t id = 0; id < v->n; id++) {
		const uint8_t *p = v->bytes + v->offset[id];
		int64_t n = v->offset[id + 1] - v->offset[id];
		if (is_added(r, id))
			continue;
		for (int64_t i = 0; i < n; i += 3) {
			uint32_t x = (uint32_t)p[i] << 16;
			x |= i + 1 < n ? (uint32_t)p[i + 1] << 8 : 0;
			x |= i + 2 < n ? p[i + 2] : 0;
			for (int k = 0; k < 4; k++)
				str_putc(out,
					i + k > n ? '=' : digits[x >> (18 - 6 * k) & 63]);
		}
		str_printf(out, " %lld\n", (long long)id);
	}
	return 0;
}

/* ---- tokenizer.json: how text is split ---------------------------------------------- */

/* Appends the regex with classes such as \s written out, because they differ between PCRE2 and
 * Oniguruma (U+180E). `scripts`: also removes sc:, which only PCRE2 needs to name a script. */
static void respell_regex(const char *regex, bool scripts, struct str *out)
{
	static const struct {
		const char *from, *alone, *in_class;
	} spellings[] = {{"\\s", "[\\t-\\r\\x{85}\\p{Z}]", "\\t-\\r\\x{85}\\p{Z}"},
		{"\\S", "[^\\t-\\r\\x{85}\\p{Z}]", NULL}, {"\\d", "\\p{Nd}", "\\p{Nd}"},
		{"\\D", "\\P{Nd}", "\\P{Nd}"}, {"{sc:", "{", "{"}, {"{^sc:", "{^", "{^"}};
	bool in_class = false;
	str_puts(out, "");
	while (*regex) {
		const char *text = NULL;
		size_t n = *regex == '\\' && regex[1] ? 2 : 1;
		for (size_t i = 0; i < ARRAY_LEN(spellings) && !text; i++) {
			size_t len = strlen(spellings[i].from);
			if (!strncmp(regex, spellings[i].from, len) &&
				(scripts || *spellings[i].from != '{')) {
				text = in_class ? spellings[i].in_class
						: spellings[i].alone;
				n = text ? len : n;
			}
		}
		if (text)
			str_puts(out, text);
		else
			str_add(out, regex, n);
		in_class = n == 1 && (*regex == '[' || *regex == ']') ? *regex == '['
								      : in_class;
		regex += n;
	}
}

/* Appends a pattern as Hugging Face's library needs it. Fails if pt would read back another. */
static int append_regex(const char *pattern, struct str *out, struct err *e)
{
	const struct split_pattern *p = split_pattern_find(pattern);
	scoped_str expected = {0}, reread = {0};
	if (p) {
		str_puts(out, p->same[0] ? p->same[0] : p->regex);
		return 0;
	}
	respell_regex(pattern, true, out);
	respell_regex(pattern, false, &expected);
	int rc = regex_of_oniguruma(out->s, &reread, e);
	if (!rc && strcmp(expected.s, reread.s) != 0)
		rc = err_set(e, EX_DATAERR,
			"the pattern '%.200s' has a different meaning in Hugging Face's library",
			pattern);
	return rc;
}

/* Appends a Split pre-tokenizer for each line of `patterns`. Fails for a rule without a regex. */
static int append_splits(struct str *out, const char *patterns, struct err *e)
{
	int rc = 0;
	for (const char *p = patterns; *p && !rc;) {
		size_t n = strcspn(p, "\n");
		scoped_str line = {0}, regex = {0};
		str_add(&line, p, n);
		rc = append_regex(line.s, &regex, e);
		if (!rc) {
			str_puts(out,
				"      {\"type\": \"Split\", \"pattern\": {\"Regex\": ");
			append_json_string(out, regex.s, regex.len);
			str_puts(out,
				"}, \"behavior\": \"Isolated\", \"invert\": false},\n");
		}
		p += n + (p[n] == '\n');
	}
	return rc;
}

/* ---- tokenizer.json: tokens and merges ---------------------------------------------- */

/* Rejects an added token if its text, read as GPT-2's characters for bytes, is another token. */
static int check_added_text(const struct bpe *b, const struct vocab *v, uint32_t id,
	const uint32_t code[N_BYTES], struct err *e)
{
	int64_t n, used = 0;
	const char *p = token_bytes(v, id, &n);
	scoped_str bytes = {0};
	for (int len = 1; used < n && len > 0; used += len) {
		uint32_t c;
		int byte = 0;
		len = utf8_decode(p + used, n - used, &c);
		while (byte < N_BYTES && code[byte] != c)
			byte++;
		if (len <= 0 || byte == N_BYTES)
			break;
		str_putc(&bytes, (char)byte);
	}
	uint32_t other = used == n && n ? bpe_find_token(b, bytes.s, (int64_t)bytes.len)
					: BPE_NONE;
	if (memchr(p, '\0', (size_t)n))
		return err_set(e, EX_DATAERR,
			"the added token %u contains the character U+0000", id);
	return other == BPE_NONE || other == id
		       ? 0
		       : err_set(e, EX_DATAERR,
				 "the added token %u has the text of token %u", id,
				 other);
}

/* Appends the added tokens as JSON objects. Fails if Hugging Face would read one differently. */
static int append_added(struct str *out, const struct bpe *b, const struct vocab *v,
	const struct bpe_rules *r, struct err *e)
{
	uint32_t code[N_BYTES];
	bool first = true;
	byte_level_codes(code);
	for (int64_t i = 0; i < r->n_added; i++) {
		uint32_t id = r->added[i].id;
		unsigned flags = r->added[i].flags;
		if (v->offset[id] == v->offset[id + 1])
			continue;
		str_printf(
			out, "%s\n    {\"id\": %u, \"content\": ", first ? "" : ",", id);
		first = false;
		if (check_added_text(b, v, id, code, e) ||
			append_token_json(out, v, id, e))
			return -1;
		str_printf(out,
			", \"single_word\": false, \"lstrip\": false, \"rstrip\": "
			"false, \"normalized\": %s, \"special\": %s}",
			flags & BPE_NORMALIZED ? "true" : "false",
			flags & BPE_SPECIAL ? "true" : "false");
	}
	return 0;
}

static int compare_pairs(const void *a, const void *b)
{
	const uint32_t *x = a, *y = b;
	return x[0] != y[0] ? (x[0] > y[0]) - (x[0] < y[0])
			    : (x[1] > y[1]) - (x[1] < y[1]);
}

/* Adds to *out the merges that tiktoken's ranks imply: for each token, all pairs that make it. */
static void list_ranked_merges(const struct bpe *b, const struct vocab *v,
	const struct bpe_rules *r, struct bpe_rules *out)
{
	for (uint32_t id = 0; id < r->n_ranked; id++) {
		int64_t n, from = out->n_merges;
		const char *p = token_bytes(v, id, &n);
		if (!n || bpe_find_token(b, p, n) != id)
			continue;
		for (int64_t k = 1; k < n; k++) {
			uint32_t left = bpe_find_token(b, p, k);
			uint32_t right = bpe_find_token(b, p + k, n - k);
			if (left < r->n_ranked && right < r->n_ranked)
				rules_add_merge(out, left, right);
		}
		if (out->n_merges > from)
			qsort(out->merges + 2 * from, (size_t)(out->n_merges - from),
				2 * sizeof(*out->merges), compare_pairs);
	}
}

/* Appends the merges as JSON strings, derived from the ranks if the vocabulary has none. */
static void append_merges(struct str *out, const struct bpe *b, const struct vocab *v,
	const struct bpe_rules *r)
{
	struct bpe_rules ranked = {0};
	scoped_str merge = {0};
	uint32_t code[N_BYTES];
	byte_level_codes(code);
	if (!r->n_merges)
		list_ranked_merges(b, v, r, &ranked);
	const struct bpe_rules *m = r->n_merges ? r : &ranked;
	for (int64_t i = 0; i < m->n_merges; i++) {
		str_clear(&merge);
		append_merge(&merge, v, m->merges[2 * i], m->merges[2 * i + 1], code);
		str_puts(out, i ? ",\n      " : "\n      ");
		append_json_string(out, merge.s, merge.len);
	}
	free(ranked.merges);
}

static const char json_head[] = "{\n  \"version\": \"1.0\",\n  \"truncation\": null,\n"
				"  \"padding\": null,\n  \"added_tokens\": [";
static const char json_model[] =
	"  \"model\": {\n    \"type\": \"BPE\",\n    \"dropout\": null,\n"
	"    \"unk_token\": null,\n    \"continuing_subword_prefix\": null,\n"
	"    \"end_of_word_suffix\": null,\n    \"fuse_unk\": false,\n"
	"    \"byte_fallback\": false,\n";

int bpe_write_json(
	struct str *out, const struct vocab *v, const struct bpe_rules *r, struct err *e)
{
	struct bpe *b = bpe_open(v, r, e);
	if (!b)
		return -1;
	bool whole = r->whole_words || (!r->n_merges && r->n_ranked);
	str_puts(out, json_head);
	int rc = append_added(out, b, v, r, e);
	str_puts(out, "\n  ],\n  \"normalizer\": ");
	if (r->normalizer)
		str_printf(out, "{\"type\": \"%s\"}", normal_forms[r->normalizer]);
	else
		str_puts(out, "null");
	str_puts(out,
		",\n  \"pre_tokenizer\": {\n    \"type\": \"Sequence\",\n    \"pretokenizers\": "
		"[\n");
	rc = rc || append_splits(out, r->pattern, e);
	str_puts(out,
		"      {\"type\": \"ByteLevel\", \"add_prefix_space\": false, "
		"\"trim_offsets\": true, \"use_regex\": false}\n    ]\n  },\n"
		"  \"post_processor\": null,\n"
		"  \"decoder\": {\"type\": \"ByteLevel\", \"add_prefix_space\": true, "
		"\"trim_offsets\": true, \"use_regex\": true},\n");
	str_printf(out, "%s    \"ignore_merges\": %s,\n    \"vocab\": {", json_model,
		whole ? "true" : "false");
	rc = rc || append_vocab(out, v, r, ",\n      ", e);
	str_puts(out, "\n    },\n    \"merges\": [");
	if (!rc)
		append_merges(out, b, v, r);
	str_puts(out, "\n    ]\n  }\n}\n");
	bpe_close(b);
	return rc ? -1 : 0;
}

/* Appends a vocabulary of characters: a model without merges, in which each text is one word. */
static int write_char_vocab_json(struct str *out, const struct vocab *v, struct err *e)
{
	str_printf(out,
		"%s],\n  \"normalizer\": null,\n  \"pre_tokenizer\": null,\n"
		"  \"post_processor\": null,\n  \"decoder\": {\"type\": \"Fuse\"},\n"
		"%s    \"ignore_merges\": false,\n    \"vocab\": {",
		json_head, json_model);
	int rc = 0;
	for (int64_t id = 0; id < v->n && !rc; id++) {
		str_puts(out, id ? ",\n      " : "\n      ");
		rc = v->bytes[v->offset[id]]
			     ? append_token_json(out, v, id, e)
			     : err_set(e, EX_DATAERR, "a token is the character U+0000");
		str_printf(out, ": %lld", (long long)id);
	}
	str_puts(out, "\n    },\n    \"merges\": []\n  }\n}\n");
	return rc;
}

int tokenizer_write_json(const struct tokenizer *t, struct str *out, struct err *e)
{
	const struct bpe_rules *r = bpe_rules_of(t);
	if (r)
		return bpe_write_json(out, &t->vocab, r, e);
	if (t->kind == &tokenizer_char)
		return write_char_vocab_json(out, &t->vocab, e);
	char pattern[] = "gpt2"; /* (without merges, the pattern has no effect) */
	const struct bpe_rules bytes = {.pattern = pattern, .end_of_text = BPE_NONE};
	return t->kind == &tokenizer_byte
		       ? bpe_write_json(out, &t->vocab, &bytes, e)
		       : err_set(e, EX_DATAERR,
				 "the tokenizer does not store the bytes of its tokens");
}
