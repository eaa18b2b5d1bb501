/* Files of a trained vocabulary: those of GPT-2's form, of Hugging Face's tokenizers and of tiktoken. */
#include "base/file.h"
#include "prepare/train.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

static void add_json(struct str *out, const char *text, size_t n)
{
	json_t *s = json_stringn(text, n);
	char *quoted = json_dumps(s, JSON_ENCODE_ANY);
	str_puts(out, quoted ? quoted
			     : "\"\""); /* (it is UTF-8, or an end of text that is not) */
	free(quoted);
	json_decref(s);
}

static void token_bytes(const struct vocab *v, int64_t id, const uint8_t **p, int64_t *n)
{
	*p = v->bytes + v->offset[id];
	*n = v->offset[id + 1] - v->offset[id];
}

/* A token as GPT-2 writes it. */
static void add_text(struct str *out, const struct vocab *v, int64_t id)
{
	uint32_t code[N_BYTES];
	const uint8_t *p;
	int64_t n;
	byte_level_codes(code);
	token_bytes(v, id, &p, &n);
	for (int64_t i = 0; i < n; i++) {
		uint8_t c[4];
		str_add(out, c, (size_t)utf8_encode(code[p[i]], c));
	}
}

static bool is_added(const struct bpe_rules *r, int64_t id)
{
	for (int64_t i = 0; i < r->n_added; i++)
		if (r->added[i].id == id)
			return true;
	return false;
}

static void add_vocab(struct str *out, const struct vocab *v, const struct bpe_rules *r,
	const char *separator)
{
	struct str text = {0};
	for (int64_t id = 0; id < v->n; id++) {
		str_clear(&text);
		if (is_added(r, id))
			str_add(&text, v->bytes + v->offset[id],
				(size_t)(v->offset[id + 1] - v->offset[id]));
		else
			add_text(&text, v, id);
		str_puts(out, id ? separator : separator + 1);
		add_json(out, text.s, text.len);
		str_printf(out, ": %lld", (long long)id);
	}
	str_free(&text);
}

static void make_vocab(struct str *out, const struct vocab *v, const struct bpe_rules *r)
{
	str_putc(out, '{');
	add_vocab(out, v, r, ", ");
	str_puts(out, "}\n");
}

static void add_merge(
	struct str *out, const struct vocab *v, const struct bpe_rules *r, int64_t i)
{
	add_text(out, v, r->merges[2 * i]);
	str_putc(out, ' ');
	add_text(out, v, r->merges[2 * i + 1]);
}

static void make_merges(struct str *out, const struct vocab *v, const struct bpe_rules *r)
{
	str_puts(out, "#version: 0.2\n");
	for (int64_t i = 0; i < r->n_merges; i++) {
		add_merge(out, v, r, i);
		str_putc(out, '\n');
	}
}

static void make_ranks(struct str *out, const struct vocab *v, const struct bpe_rules *r)
{
	static const char digits[] =
		"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
	for (int64_t id = 0; id < v->n; id++) {
		const uint8_t *p;
		int64_t n;
		if (is_added(r, id))
			continue;
		token_bytes(v, id, &p, &n);
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
}

/* The regular expression of a pattern, in the words of Hugging Face's library (Oniguruma). */
static const char *regex_of(const char *pattern)
{
	const struct split_pattern *p = split_find(pattern);
	if (!p)
		return pattern;
	return p->same[0] ? p->same[0] : p->regex;
}

static void make_json(struct str *out, const struct vocab *v, const struct bpe_rules *r)
{
	const char *regex = regex_of(r->pattern);
	str_puts(out, "{\n  \"version\": \"1.0\",\n  \"truncation\": null,\n"
		      "  \"padding\": null,\n  \"added_tokens\": [");
	for (int64_t i = 0; i < r->n_added; i++) {
		int64_t id = r->added[i].id;
		str_printf(out, "%s\n    {\"id\": %lld, \"content\": ", i ? "," : "",
			(long long)id);
		add_json(out, (const char *)v->bytes + v->offset[id],
			(size_t)(v->offset[id + 1] - v->offset[id]));
		str_puts(out, ", \"single_word\": false, \"lstrip\": false, \"rstrip\": "
			      "false, \"normalized\": false, \"special\": true}");
	}
	str_puts(out, "\n  ],\n  \"normalizer\": null,\n  \"pre_tokenizer\": {\n"
		      "    \"type\": \"Sequence\",\n    \"pretokenizers\": [\n"
		      "      {\"type\": \"Split\", \"pattern\": {\"Regex\": ");
	add_json(out, regex, strlen(regex));
	str_puts(out,
		"}, \"behavior\": \"Isolated\", \"invert\": false},\n"
		"      {\"type\": \"ByteLevel\", \"add_prefix_space\": false, "
		"\"trim_offsets\": true, \"use_regex\": false}\n    ]\n  },\n"
		"  \"post_processor\": null,\n"
		"  \"decoder\": {\"type\": \"ByteLevel\", \"add_prefix_space\": true, "
		"\"trim_offsets\": true, \"use_regex\": true},\n"
		"  \"model\": {\n    \"type\": \"BPE\",\n    \"dropout\": null,\n"
		"    \"unk_token\": null,\n    \"continuing_subword_prefix\": null,\n"
		"    \"end_of_word_suffix\": null,\n    \"fuse_unk\": false,\n"
		"    \"byte_fallback\": false,\n    \"ignore_merges\": false,\n"
		"    \"vocab\": {");
	add_vocab(out, v, r, ",\n      ");
	str_puts(out, "\n    },\n    \"merges\": [");
	struct str merge = {0};
	for (int64_t i = 0; i < r->n_merges; i++) {
		str_clear(&merge);
		add_merge(&merge, v, r, i);
		str_puts(out, i ? ",\n      " : "\n      ");
		add_json(out, merge.s, merge.len);
	}
	str_free(&merge);
	str_puts(out, "\n    ]\n  }\n}\n");
}

static const struct {
	const char *name;
	void (*make)(struct str *out, const struct vocab *v, const struct bpe_rules *r);
} kinds[] = {
	{"vocab.json", make_vocab},
	{"merges.txt", make_merges},
	{"tokenizer.json", make_json},
	{"vocab.tiktoken", make_ranks},
};
enum { N_KINDS = ARRAY_LEN(kinds) };

int train_write(const char *folder, bool overwrite, const struct vocab *v,
	const struct bpe_rules *r, struct strs *files, struct err *e)
{
	struct durable d[N_KINDS] = {0}, *all[N_KINDS];
	struct str name = {0}, text = {0};
	int rc = file_make_directory(folder, e);
	for (int i = 0; i < N_KINDS && !rc; i++) {
		str_clear(&name);
		str_clear(&text);
		str_printf(&name, "%s/%s", folder, kinds[i].name);
		all[i] = &d[i];
		if (!overwrite && file_exists(name.s))
			rc = err_set(e, EX_IOERR, "%s exists%s", name.s,
				advice_on(ADVICE_FILE_EXISTS));
		rc = rc || durable_begin_own(&d[i], name.s, e);
		if (rc)
			break;
		d[i].keeps = !overwrite;
		kinds[i].make(&text, v, r);
		rc = durable_put(&d[i], &text, e);
		strs_add(files, name.s);
	}
	rc = rc || durable_commit_all(all, N_KINDS, e);
	for (int i = 0; i < N_KINDS && rc; i++)
		durable_abort(&d[i]);
	str_free(&text);
	str_free(&name);
	return rc ? -1 : 0;
}
