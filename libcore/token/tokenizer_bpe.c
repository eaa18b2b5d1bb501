/* The tokenizer of byte-pair encoding: its encoders, and its rules in files. */
#include "token/bpe_internal.h"
#include "token/tokenizer.h"

#include <pthread.h>

enum { MAX_MERGES = 1 << 24, MAX_ADDED = 1 << 20 };

struct bpe_state {
	struct bpe_rules rules;
	struct bpe *bpe;
	bool special; /* text of special tokens becomes these tokens */
	pthread_mutex_t lock;
	struct encoder **idle; /* encoders that no thread uses */
	int n_idle;
};

/* Returns the state of t, which the first call allocates. */
static struct bpe_state *get_state(struct tokenizer *t)
{
	if (!t->own) {
		struct bpe_state *o = t->own = xcalloc(1, sizeof(*o));
		o->rules.end_of_text = BPE_NONE;
		pthread_mutex_init(&o->lock, NULL);
	}
	return t->own;
}

const struct bpe_rules *bpe_rules_of(const struct tokenizer *t)
{
	return t->kind == &tokenizer_bpe && t->own ? &((struct bpe_state *)t->own)->rules
						   : NULL;
}

/* Frees the encoders, tables and rules, but not the state itself, which the caller frees. */
static void release_bpe(struct tokenizer *t)
{
	struct bpe_state *o = t->own;
	if (!o)
		return;
	for (int i = 0; i < o->n_idle; i++)
		encoder_close(o->idle[i]);
	free(o->idle);
	bpe_close(o->bpe);
	bpe_rules_release(&o->rules);
	pthread_mutex_destroy(&o->lock);
}

static int ready_bpe(struct tokenizer *t, struct err *e)
{
	struct bpe_state *o = get_state(t);
	o->bpe = bpe_open(&t->vocab, &o->rules, e);
	return o->bpe ? 0 : -1;
}

int bpe_make(struct tokenizer *t, const struct tokenizer_source *s,
	const struct bpe_model *model, struct err *e)
{
	struct bpe_state *o = get_state(t);
	if (bpe_read(&t->vocab, &o->rules, s->vocab_files, model, s->pattern, e))
		return -1;
	if (o->rules.characters) {
		release_bpe(t);
		free(t->own);
		t->own = NULL;
		t->kind = &tokenizer_char;
	}
	if (t->kind->ready(t, e) || (s->special && tokenizer_allow_special(t, e)))
		return err_prefix(e, "%s: ", s->vocab_files);
	return 0;
}

int tokenizer_allow_special(struct tokenizer *t, struct err *e)
{
	const struct bpe_rules *r = bpe_rules_of(t);
	if (!r)
		return err_set(
			e, EX_USAGE, "tokenizer %s has no special tokens", t->kind->name);
	((struct bpe_state *)t->own)->special = true;
	return bpe_check_special(&t->vocab, r, e);
}

/* Returns an idle encoder, or a new one; return_encoder() makes it idle again. */
static struct encoder *borrow_encoder(struct bpe_state *o, struct err *e)
{
	struct encoder *s = NULL;
	pthread_mutex_lock(&o->lock);
	if (o->n_idle)
		s = o->idle[--o->n_idle];
	pthread_mutex_unlock(&o->lock);
	if (!s)
		s = encoder_open(o->bpe, e);
	if (s)
		encoder_allow_special(s, o->special);
	return s;
}

static void return_encoder(struct bpe_state *o, struct encoder *s)
{
	pthread_mutex_lock(&o->lock);
	o->idle = xrealloc(o->idle, (size_t)(o->n_idle + 1) * sizeof(struct encoder *));
	o->idle[o->n_idle++] = s;
	pthread_mutex_unlock(&o->lock);
}

/* Encodes text with an encoder of the pool, so threads do not wait. Returns the bytes used. */
static int64_t encode_bpe(const struct tokenizer *t, const char *text, int64_t n,
	bool final, uint32_t *out, int64_t capacity, int64_t *n_out, struct err *e)
{
	struct bpe_state *o = t->own;
	struct encoder *s = borrow_encoder(o, e);
	*n_out = 0;
	if (!s)
		return TEXT_BAD(0);
	int64_t used = encoder_encode(s, text, n, final, out, capacity, n_out, e);
	return_encoder(o, s);
	return used < 0 ? TEXT_BAD(0) : used;
}

int64_t tokenizer_max_tokens(const struct tokenizer *t, int64_t n)
{
	const struct bpe_rules *r = bpe_rules_of(t);
	return r ? n * normal_growth(r->normalizer) : n;
}

const char *tokenizer_normalizer(const struct tokenizer *t)
{
	const struct bpe_rules *r = bpe_rules_of(t);
	return normal_forms[r ? r->normalizer : NORMAL_NONE];
}

int tokenizer_find_changes(const struct tokenizer *t, const char *text, int64_t n,
	int64_t at, struct text_changes *out, struct err *e)
{
	const struct bpe_rules *r = bpe_rules_of(t);
	if (!r || !r->normalizer)
		return 0;
	struct encoder *s = borrow_encoder(t->own, e);
	int rc = s ? encoder_find_changes(s, text, n, at, out, e) : -1;
	if (s)
		return_encoder(t->own, s);
	return rc;
}

/* Returns split_cut(), or 0 if tokens are found in text, since those may contain word ends. */
static int64_t cut_bpe(const struct tokenizer *t, const char *text, int64_t n)
{
	const struct bpe_state *o = t->own;
	for (int64_t i = 0; i < o->rules.n_added; i++)
		if (o->special || !(o->rules.added[i].flags & BPE_SPECIAL))
			return 0;
	struct err e = {0};
	if (o->rules.normalizer) /* (the encoder also stops at this cut) */
		n = find_normal_cut(normal_table(o->rules.normalizer), text, n, &e);
	return split_pattern_find(o->rules.pattern) ? split_cut(text, n) : 0;
}

static const char path_merges[] = "/tokenizer/merges", path_added[] = "/tokenizer/added";

struct attrs {
	char *pattern, *normalizer;
	int64_t ranked, whole_words, end_of_text;
};

const struct h5_field bpe_fields[] = {
	{"pattern", H5_TEXT, offsetof(struct attrs, pattern), false,
		"pattern that splits text into words: gpt2, cl100k, o200k, llama3, qwen2, tekken "
		"or a regular expression; each further line splits the words of the line before"},
	{"normalizer", H5_TEXT, offsetof(struct attrs, normalizer), true,
		"the Unicode normalization form of text before it is split: NFC, NFD, NFKC or NFKD"},
	{"ranked", H5_I64, offsetof(struct attrs, ranked), false,
		"number of tokens that merge in the order of their ids; 0: merges determines the order"},
	{"whole_words", H5_I64, offsetof(struct attrs, whole_words), false,
		"1: a word that is a token becomes that token, whatever the merges"},
	{"end_of_text", H5_I64, offsetof(struct attrs, end_of_text), false,
		"the token at the end of a document; -1: none"},
	{0},
};

/* Writes the rules as attributes and datasets of /tokenizer. */
static int write_rules(const struct tokenizer *t, struct h5 *f, struct err *e)
{
	const struct bpe_rules *r = bpe_rules_of(t);
	char *form = r->normalizer ? (char *)normal_forms[r->normalizer] : NULL;
	struct attrs a = {r->pattern, form, r->n_ranked, r->whole_words,
		r->end_of_text == BPE_NONE ? -1 : (int64_t)r->end_of_text};
	const int64_t merges[] = {r->n_merges, 2}, added[] = {r->n_added, 2};
	int rc = h5_fields_write(f, "/tokenizer", bpe_fields, &a, e);
	if (r->n_merges)
		rc = rc || h5_put(f, path_merges, H5_U32, 2, merges, r->merges, e);
	if (r->n_added)
		rc = rc || h5_put(f, path_added, H5_U32, 2, added, r->added, e);
	return rc ? -1 : 0;
}

static int parse_normalizer(const char *name, enum normal_form *form, struct err *e)
{
	int i = NORMAL_NFC;
	while (normal_forms[i] && strcmp(normal_forms[i], name) != 0)
		i++;
	*form = (enum normal_form)i;
	return normal_forms[i]
		       ? 0
		       : err_set(e, EX_DATAERR, "unknown normalizer '%.40s'", name);
}

/* Reads the rules from /tokenizer, and checks their ranges. */
static int read_rules(struct tokenizer *t, struct h5 *f, struct err *e)
{
	struct bpe_rules *r = &get_state(t)->rules;
	struct attrs a = {0};
	int64_t n_merges = 0, n_added = 0;
	int rc = h5_fields_read(f, "/tokenizer", bpe_fields, &a, e);
	rc = rc || (a.normalizer && parse_normalizer(a.normalizer, &r->normalizer, e));
	free(a.normalizer);
	r->pattern = a.pattern;
	r->n_ranked = a.ranked;
	r->whole_words = a.whole_words != 0;
	r->end_of_text = a.end_of_text < 0 ? BPE_NONE : (uint32_t)a.end_of_text;
	if (!rc && h5_has(f, path_merges))
		rc = h5_get(f, path_merges, H5_U32, -1, 2 * MAX_MERGES,
			(void **)&r->merges, &n_merges, e);
	if (!rc && h5_has(f, path_added))
		rc = h5_get(f, path_added, H5_U32, -1, 2 * MAX_ADDED, (void **)&r->added,
			&n_added, e);
	if (rc)
		return -1;
	r->n_merges = n_merges / 2;
	r->n_added = n_added / 2;
	if (a.ranked < 0 || a.ranked > t->vocab.n || a.end_of_text >= t->vocab.n ||
		n_merges % 2 || n_added % 2)
		return err_set(e, EX_DATAERR, "the rules of the tokenizer are damaged");
	return 0;
}

/* Appends the rules as bytes, which unpack_rules() reads on another rank. */
static void pack_rules(const struct tokenizer *t, struct str *out)
{
	const struct bpe_rules *r = bpe_rules_of(t);
	const int64_t numbers[] = {r->n_merges, r->n_ranked,
		r->whole_words | r->normalizer << 1, r->n_added, r->end_of_text};
	str_add(out, r->pattern, strlen(r->pattern) + 1);
	str_add(out, numbers, sizeof(numbers));
	str_add(out, r->merges, (size_t)r->n_merges * 2 * sizeof(*r->merges));
	str_add(out, r->added, (size_t)r->n_added * sizeof(*r->added));
}

static void *copy_bytes(const char *p, size_t n_bytes)
{
	void *copy = xmalloc(n_bytes + 1);
	memcpy(copy, p, n_bytes);
	return copy;
}

/* Sets the rules from bytes that pack_rules() wrote. */
static void unpack_rules(struct tokenizer *t, const char *p)
{
	struct bpe_rules *r = &get_state(t)->rules;
	int64_t numbers[5];
	r->pattern = xstrdup(p);
	p += strlen(p) + 1;
	memcpy(numbers, p, sizeof(numbers));
	p += sizeof(numbers);
	r->n_merges = numbers[0], r->n_ranked = numbers[1];
	r->whole_words = numbers[2] & 1;
	r->normalizer = (enum normal_form)(numbers[2] >> 1);
	r->n_added = numbers[3], r->end_of_text = (uint32_t)numbers[4];
	size_t merges_bytes = (size_t)r->n_merges * 2 * sizeof(*r->merges);
	r->merges = copy_bytes(p, merges_bytes);
	r->added = copy_bytes(p + merges_bytes, (size_t)r->n_added * sizeof(*r->added));
}

const struct tokenizer_kind tokenizer_bpe = {
	.name = "bpe",
	.ready = ready_bpe,
	.encode = encode_bpe,
	.cut = cut_bpe,
	.write = write_rules,
	.read = read_rules,
	.pack = pack_rules,
	.unpack = unpack_rules,
	.release = release_bpe,
};
