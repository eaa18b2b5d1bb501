/* Vocabularies: building them, known models, and the detection of a file's format. */
#include "base/file.h"
#include "token/vocab_internal.h"

#include <sys/stat.h>

/* clang-format off */
const struct bpe_model bpe_models[] = {
	{"gpt2", "GPT-2, 50,257 tokens", "gpt2", 50256, {{"<|endoftext|>", 50256}}, 0},
	{"cl100k", "GPT-4, 100,277 tokens", "cl100k", 100256,
		{{"<|endoftext|>", 100257}, {"<|fim_prefix|>", 100258}, {"<|fim_middle|>", 100259},
		 {"<|fim_suffix|>", 100260}, {"<|endofprompt|>", 100276}}, 0},
	{"o200k", "GPT-4o, 200,019 tokens", "o200k", 199998,
		{{"<|endoftext|>", 199999}, {"<|endofprompt|>", 200018}}, 0},
	{"llama3", "Llama 3, 128,256 tokens", "llama3", 128000,
		{{"<|begin_of_text|>", 128000}, {"<|end_of_text|>", 128001},
		 {"<|start_header_id|>", 128006}, {"<|end_header_id|>", 128007},
		 {"<|eot_id|>", 128009}}, 128256},
	{"qwen2", "Qwen 2, 151,646 tokens", "qwen2", 151643,
		{{"<|endoftext|>", 151643}, {"<|im_start|>", 151644}, {"<|im_end|>", 151645}}, 0,
		NORMAL_NFC},
	{0},
};
/* clang-format on */
#define ONE(name) +1
_Static_assert(ARRAY_LEN(bpe_models) == 1 BPE_MODELS(ONE), "one row per name");

const struct bpe_model *bpe_model_find(const char *name)
{
	for (const struct bpe_model *m = bpe_models; m->name; m++)
		if (!strcmp(m->name, name))
			return m;
	return NULL;
}

void vocab_release(struct vocab *v)
{
	free(v->bytes);
	free(v->offset);
	*v = (struct vocab){0};
}

void bpe_rules_release(struct bpe_rules *r)
{
	free(r->pattern);
	free(r->merges);
	free(r->added);
	*r = (struct bpe_rules){.end_of_text = BPE_NONE};
}

void vocab_builder_add(struct vocab_builder *b, uint32_t id, const char *bytes, size_t n)
{
	b->items = xgrow(b->items, b->n, sizeof(*b->items));
	b->items[b->n++] = (struct vocab_item){id, b->bytes.len, n};
	str_add(&b->bytes, bytes, n);
}

void vocab_builder_add_model(
	struct vocab_builder *b, const struct bpe_model *m, const json_t *vocab)
{
	for (int i = 0; m->special[i].text; i++)
		if (!json_object_get(vocab, m->special[i].text))
			vocab_builder_add(b, m->special[i].id, m->special[i].text,
				strlen(m->special[i].text));
	if (m->n_reserved > b->items[b->n - 1].id + 1)
		vocab_builder_add(b, (uint32_t)m->n_reserved - 1, "", 0);
}

void vocab_builder_release(struct vocab_builder *b)
{
	str_free(&b->bytes);
	free(b->items);
	*b = (struct vocab_builder){0};
}

static int compare_ids(const void *a, const void *b)
{
	const struct vocab_item *x = a, *y = b;
	return (x->id > y->id) - (x->id < y->id);
}

/* Sorts the tokens by id. Rejects two equal ids, and missing ids below first_optional. */
static int sort_and_check_ids(
	struct vocab_builder *b, int64_t first_optional, struct err *e)
{
	if (!b->n)
		return err_set(e, EX_DATAERR, "the vocabulary is empty");
	qsort(b->items, (size_t)b->n, sizeof(*b->items), compare_ids);
	for (int64_t i = 0; i < b->n; i++) {
		uint32_t id = b->items[i].id, expected = i ? b->items[i - 1].id + 1 : 0;
		if (id < expected)
			return err_set(e, EX_DATAERR, "two tokens have the id %u", id);
		if (id > expected && expected < first_optional)
			return err_set(e, EX_DATAERR, "no token has the id %u", expected);
	}
	return 0;
}

int vocab_builder_finish(
	struct vocab_builder *b, int64_t first_optional, struct vocab *v, struct err *e)
{
	if (sort_and_check_ids(b, first_optional, e)) {
		vocab_builder_release(b);
		return -1;
	}
	v->n = (int64_t)b->items[b->n - 1].id + 1;
	v->bytes = xmalloc(b->bytes.len + 1);
	v->offset = xcalloc((size_t)v->n + 1, sizeof(*v->offset));
	int64_t at = 0, i = 0;
	for (int64_t id = 0; id < v->n; id++) {
		v->offset[id] = at;
		if (b->items[i].id == id) {
			memcpy(v->bytes + at, b->bytes.s + b->items[i].at,
				b->items[i].len);
			at += (int64_t)b->items[i++].len;
		}
	}
	v->offset[v->n] = at;
	vocab_builder_release(b);
	return 0;
}

void rules_add_token(struct bpe_rules *r, uint32_t id, unsigned flags)
{
	r->added = xgrow(r->added, r->n_added, sizeof(*r->added));
	r->added[r->n_added++] = (struct bpe_added){id, flags};
}

void rules_add_merge(struct bpe_rules *r, uint32_t left, uint32_t right)
{
	r->merges = xgrow(r->merges, r->n_merges, 2 * sizeof(*r->merges));
	r->merges[2 * r->n_merges] = left;
	r->merges[2 * r->n_merges++ + 1] = right;
}

/* Sets r->end_of_text to the added token with a usual name, if there is one. */
static void find_end_of_text(struct bpe_rules *r, const struct vocab *v)
{
	static const char *const names[] = {
		"<|endoftext|>", "<|end_of_text|>", "</s>", NULL};
	r->end_of_text = BPE_NONE;
	for (int k = 0; names[k] && r->end_of_text == BPE_NONE; k++)
		for (int64_t i = 0; i < r->n_added; i++) {
			uint32_t id = r->added[i].id;
			int64_t len = v->offset[id + 1] - v->offset[id];
			if (len == (int64_t)strlen(names[k]) &&
				!memcmp(v->bytes + v->offset[id], names[k], (size_t)len))
				r->end_of_text = id;
		}
}

/* Returns the path of a file in the directory of `path`, to be freed; NULL: it does not exist. */
static char *file_beside(const char *path, const char *name)
{
	struct str s = {0};
	const char *slash = strrchr(path, '/');
	str_add(&s, path, slash ? (size_t)(slash + 1 - path) : 0);
	str_puts(&s, name);
	if (file_exists(s.s))
		return s.s;
	str_free(&s);
	return NULL;
}

/* Returns the name of the only file in a directory that ends with `end`; NULL: none or several. */
static char *only_file(const char *directory, const char *end)
{
	char *found = NULL;
	int n = 0;
	scoped_dir *d = opendir(directory);
	for (struct dirent *f; d && (f = readdir(d));)
		if (text_ends(f->d_name, end)) {
			free(found);
			found = xstrdup(f->d_name);
			n++;
		}
	if (n == 1)
		return found;
	free(found);
	return NULL;
}

/* Returns the vocabulary file in a directory, or `path` itself if it is a file. */
static char *find_vocab_file(const char *path, struct err *e)
{
	/* (tokenizer.model of Llama 3 is a rank file) */
	static const char *const names[] = {"tokenizer.json", "vocab.bpe", "merges.txt",
		"tekken.json", "tokenizer.model", NULL};
	struct stat st;
	if (stat(path, &st)) {
		err_errno(e, path);
		return NULL;
	}
	if (!S_ISDIR(st.st_mode))
		return xstrdup(path);
	scoped_ptr char *directory = text_printf("%s/", path);
	char *found = NULL;
	for (int i = 0; names[i] && !found; i++)
		found = file_beside(directory, names[i]);
	scoped_ptr char *ranks = found ? NULL : only_file(path, ".tiktoken");
	if (ranks)
		found = file_beside(directory, ranks);
	if (!found)
		err_set(e, EX_DATAERR,
			"%s: the directory has no tokenizer.json, vocab.bpe, merges.txt, "
			"tekken.json, "
			"tokenizer.model or one FILE.tiktoken",
			path);
	return found;
}

/* Returns true if the first line ends with a space and a number, as lines of a rank file do. */
static bool is_rank_file(const struct str *text)
{
	size_t n = strcspn(text->s, "\r\n");
	size_t digits = n;
	while (digits > 0 && text->s[digits - 1] >= '0' && text->s[digits - 1] <= '9')
		digits--;
	return digits < n && digits > 1 && text->s[digits - 1] == ' ' &&
	       strncmp(text->s, "#version", 8) != 0;
}

/* Rejects a file with fewer merges than its model, which would give other tokens. Each token that
 * is not a byte has at least one merge; converters may have written several. */
static int check_merges(const struct bpe_rules *r, const struct bpe_model *m,
	const char *path, struct err *e)
{
	if (!m || r->n_merges >= m->n_ranked - 256)
		return 0;
	return err_set(e, EX_DATAERR, "%s: the file has %lld merges, but %s has %lld",
		path, (long long)r->n_merges, m->name, (long long)m->n_ranked - 256);
}

/* Reads a merges.txt (vocab.bpe) and the vocabulary in JSON next to it. */
static int read_merges_file(const struct str *text, const char *path,
	const struct bpe_model *model, struct vocab *v, struct bpe_rules *r,
	struct err *e)
{
	scoped_ptr char *vocab = file_beside(path, "encoder.json");
	if (!vocab)
		vocab = file_beside(path, "vocab.json");
	return vocab ? read_merges(text, path, vocab, model, v, r, e) ||
			       check_merges(r, model, path, e)
		     : err_set(e, EX_DATAERR,
			       "%s: encoder.json or vocab.json is missing from the directory of "
			       "this file",
			       path);
}

/* Rejects a file that looks like a SentencePiece model, a protocol buffer. */
static int reject_sentence_piece(const char *path, struct err *e)
{
	return err_set(e, EX_DATAERR, "%s: SentencePiece models are not supported%s",
		path, advice_on(ADVICE_TOKENIZER));
}

/* Reads a vocabulary of any supported format, detected by its content. */
static int read_vocab_file(const char *path, const struct bpe_model *model,
	struct vocab *v, struct bpe_rules *r, struct err *e)
{
	scoped_str text = {0};
	int rc = file_read(path, MAX_VOCAB_FILE, &text, e);
	if (!rc && text.len > 3 && text.s[0] == '\n' && text.s[2] == '\n')
		rc = reject_sentence_piece(path, e);
	if (!rc && (!text.len || memchr(text.s, 0, text.len)))
		rc = err_set(e, EX_DATAERR, "%s: not a vocabulary", path);
	bool is_json = !rc && text.s[0] == '{';
	if (!rc)
		rc = is_json ? read_tokenizer_json(&text, path, v, r, e)
		     : is_rank_file(&text)
			     ? read_ranks(&text, path, model, v, r, e)
			     : read_merges_file(&text, path, model, v, r, e);
	if (!rc && model && !is_json)
		r->normalizer = model->normalizer;
	return rc;
}

/* Sets the pattern: the given one, or else the model's or the file's. */
static int choose_pattern(struct bpe_rules *r, const struct bpe_model *model,
	const char *pattern, const char *path, struct err *e)
{
	if (r->characters)
		return model || pattern
			       ? err_set(e, EX_DATAERR,
					 "%s: a vocabulary of characters takes no "
					 "pattern or model",
					 path)
			       : 0;
	if (!pattern && model)
		pattern = model->pattern;
	if (!pattern && !r->pattern)
		return err_set(e, EX_USAGE,
			"%s: the file does not specify how text is split into words%s",
			path, advice_on(ADVICE_PATTERN));
	if (model && r->pattern && strcmp(model->pattern, r->pattern) != 0)
		return err_set(e, EX_DATAERR,
			"%s: not a vocabulary of %s: its pattern is '%.200s'", path,
			model->name, r->pattern);
	if (pattern) {
		const struct split_pattern *known = split_pattern_find(pattern);
		free(r->pattern);
		r->pattern = xstrdup(known ? known->name : pattern);
	}
	return 0;
}

int bpe_read(struct vocab *v, struct bpe_rules *r, const char *path,
	const struct bpe_model *model, const char *pattern, struct err *e)
{
	*v = (struct vocab){0};
	*r = (struct bpe_rules){.end_of_text = BPE_NONE};
	scoped_ptr char *file = find_vocab_file(path, e);
	int rc = !file || read_vocab_file(file, model, v, r, e) ||
		 choose_pattern(r, model, pattern, file, e);
	if (!rc) {
		find_end_of_text(r, v);
		return 0;
	}
	vocab_release(v);
	bpe_rules_release(r);
	return -1;
}
