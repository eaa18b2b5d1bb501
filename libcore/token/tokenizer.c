/* Tokenizers: the table, and the functions common to all kinds. */
#include "token/tokenizer.h"

#include <ctype.h>

#define TOKENIZER_KIND(name) &tokenizer_##name,
#define TOKENIZER_NAME(name) #name,
static const struct tokenizer_kind *const kinds[] = {TOKENIZERS(TOKENIZER_KIND) NULL};
const char *const tokenizer_names[] = {
	TOKENIZERS(TOKENIZER_NAME) BPE_MODELS(TOKENIZER_NAME) NULL};

enum { MAX_VOCAB_BYTES = 1 << 28 };

static const struct tokenizer_kind *find_kind(const char *name)
{
	for (int i = 0; kinds[i]; i++)
		if (!strcmp(kinds[i]->name, name))
			return kinds[i];
	return NULL;
}

int tokenizer_init(struct tokenizer *t, const char *kind, struct err *e)
{
	*t = (struct tokenizer){.kind = find_kind(kind)};
	if (!t->kind)
		return err_set(e, EX_DATAERR, "unknown tokenizer '%.40s'", kind);
	return 0;
}

int tokenizer_make(struct tokenizer *t, const struct tokenizer_source *s, struct err *e)
{
	const struct bpe_model *model = bpe_model_find(s->name);
	bool bpe = model || !strcmp(s->name, "bpe");
	if (tokenizer_init(t, bpe ? "bpe" : s->name, e))
		return -1;
	if (bpe && !s->vocab_files)
		return err_set(e, EX_USAGE, "tokenizer %s: no vocabulary files%s",
			s->name, advice_on(ADVICE_VOCAB_FILES));
	if (!bpe && (s->vocab_files || s->pattern || s->special))
		return err_set(e, EX_USAGE,
			"tokenizer %s takes no vocabulary files, pattern or special tokens; "
			"bpe does",
			s->name);
	return bpe ? bpe_make(t, s, model, e) : 0;
}

void tokenizer_release(struct tokenizer *t)
{
	if (t->kind && t->kind->release)
		t->kind->release(t);
	free(t->own);
	free(t->chat_template);
	vocab_release(&t->vocab);
	*t = (struct tokenizer){0};
}

/* Shards of other programs may have other kinds, to train and decode with, but not to encode. */
enum { MAX_NAME = 64 };

struct foreign {
	struct tokenizer_kind kind;
	char name[MAX_NAME + 1];
};

static int foreign_ready(struct tokenizer *t, struct err *e)
{
	(void)t, (void)e;
	return 0;
}

/* Sets the error that pt cannot encode with a foreign tokenizer. Returns TEXT_BAD(0). */
static int64_t foreign_encode(const struct tokenizer *t, const char *text, int64_t n,
	bool final, uint32_t *out, int64_t capacity, int64_t *n_out, struct err *e)
{
	(void)text, (void)n, (void) final, (void)out, (void)capacity;
	*n_out = 0;
	err_set(e, EX_DATAERR,
		"pt cannot encode with tokenizer '%s', only train and decode",
		t->kind->name);
	return TEXT_BAD(0);
}

/* Makes *t a tokenizer of an unknown kind, which can decode but not encode. */
static int init_foreign(struct tokenizer *t, const char *kind, struct err *e)
{
	size_t n = strlen(kind);
	*t = (struct tokenizer){0};
	bool is_valid = n && n <= MAX_NAME;
	for (size_t i = 0; i < n && is_valid; i++) /* (messages print the name) */
		is_valid = isalnum((unsigned char)kind[i]) || strchr("-_.+", kind[i]);
	if (!is_valid)
		return err_set(e, EX_DATAERR, "the tokenizer's kind has an invalid name");
	struct foreign *f = xcalloc(1, sizeof(*f));
	memcpy(f->name, kind, n);
	f->kind = (struct tokenizer_kind){
		.name = f->name, .ready = foreign_ready, .encode = foreign_encode};
	t->own = f;
	t->kind = &f->kind;
	return 0;
}

int tokenizer_init_ids(struct tokenizer *t, int64_t n, struct err *e)
{
	if (n < 1 || n > MAX_VOCAB)
		return err_set(e, EX_USAGE,
			"the vocabulary has %lld tokens; 1 to %d are supported",
			(long long)n, MAX_VOCAB);
	if (init_foreign(t, "ids", e))
		return -1;
	t->vocab.n = n;
	t->vocab.bytes = xcalloc(1, 1);
	t->vocab.offset = xcalloc((size_t)n + 1, sizeof(int64_t));
	return 0;
}

/* Initializes a tokenizer of any kind, known or not, before its vocabulary is read. */
static int init_any(struct tokenizer *t, const char *kind, struct err *e)
{
	return find_kind(kind) ? tokenizer_init(t, kind, e) : init_foreign(t, kind, e);
}

struct tokenizer_attrs {
	char *kind;
	int64_t n;
};

const struct h5_field tokenizer_fields[] = {
	{"kind", H5_TEXT, offsetof(struct tokenizer_attrs, kind), false,
		"the kind of tokenizer: byte, char, or the name of another"},
	{"size", H5_I64, offsetof(struct tokenizer_attrs, n), false,
		"number of tokens in the vocabulary"},
	{0},
};

static const char chat_template_path[] = "/tokenizer/chat_template";

int tokenizer_write(const struct tokenizer *t, struct h5 *f, struct err *e)
{
	struct tokenizer_attrs a = {(char *)t->kind->name, t->vocab.n};
	const struct vocab *v = &t->vocab;
	int64_t n_offsets = v->n + 1, n_bytes = v->offset[v->n];
	if (h5_fields_write(f, "/tokenizer", tokenizer_fields, &a, e) ||
		h5_put(f, "/tokenizer/offsets", H5_I64, 1, &n_offsets, v->offset, e) ||
		h5_put(f, "/tokenizer/bytes", H5_U8, 1, &n_bytes, v->bytes, e) ||
		(t->chat_template &&
			h5_put_text(f, chat_template_path, t->chat_template, e)))
		return -1;
	return t->kind->write ? t->kind->write(t, f, e) : 0;
}

/* Returns -1 unless the offsets ascend from 0 to n_bytes. */
static int check_offsets(const struct vocab *v, int64_t n_bytes)
{
	if (v->offset[0] != 0 || v->offset[v->n] != n_bytes)
		return -1;
	for (int64_t i = 0; i < v->n; i++)
		if (v->offset[i + 1] < v->offset[i])
			return -1;
	return 0;
}

static int read_chat_template(struct tokenizer *t, struct h5 *f, struct err *e)
{
	struct str text = {0};
	if (!h5_has(f, chat_template_path))
		return 0;
	int rc = h5_get_text(f, chat_template_path, &text, e);
	t->chat_template = text.s;
	return rc;
}

int tokenizer_read(struct tokenizer *t, struct h5 *f, struct err *e)
{
	struct tokenizer_attrs a = {0};
	int64_t n_bytes;
	int rc = h5_fields_read(f, "/tokenizer", tokenizer_fields, &a, e) ||
		 init_any(t, a.kind, e);
	free(a.kind);
	if (rc)
		return -1;
	if (a.n < 1 || a.n > MAX_VOCAB) {
		tokenizer_release(t);
		return err_set(e, EX_DATAERR,
			"the vocabulary has %lld tokens; 1 to %d are supported",
			(long long)a.n, MAX_VOCAB);
	}
	t->vocab.n = a.n;
	if (h5_get(f, "/tokenizer/offsets", H5_I64, a.n + 1, MAX_VOCAB + 1,
		    (void **)&t->vocab.offset, NULL, e) ||
		h5_get(f, "/tokenizer/bytes", H5_U8, -1, MAX_VOCAB_BYTES,
			(void **)&t->vocab.bytes, &n_bytes, e) ||
		check_offsets(&t->vocab, n_bytes) || read_chat_template(t, f, e) ||
		(t->kind->read && t->kind->read(t, f, e)) || t->kind->ready(t, e)) {
		tokenizer_release(t);
		return e->code ? -1 : err_set(e, EX_DATAERR, "the vocabulary is damaged");
	}
	return 0;
}

void tokenizer_pack(const struct tokenizer *t, struct str *out)
{
	int64_t n = t->vocab.n;
	str_add(out, t->kind->name, strlen(t->kind->name) + 1);
	str_add(out, &n, sizeof(n));
	str_add(out, t->vocab.offset, (size_t)(n + 1) * sizeof(int64_t));
	str_add(out, t->vocab.bytes, (size_t)t->vocab.offset[n]);
	if (t->kind->pack)
		t->kind->pack(t, out);
}

int tokenizer_unpack(struct tokenizer *t, const struct str *packed, struct err *e)
{
	const char *p = packed->s;
	if (init_any(t, p, e))
		return -1;
	p += strlen(p) + 1;
	memcpy(&t->vocab.n, p, sizeof(int64_t));
	p += sizeof(int64_t);
	size_t n_offset_bytes = (size_t)(t->vocab.n + 1) * sizeof(int64_t);
	t->vocab.offset = xmalloc(n_offset_bytes);
	memcpy(t->vocab.offset, p, n_offset_bytes);
	p += n_offset_bytes;
	size_t n_bytes = (size_t)t->vocab.offset[t->vocab.n];
	t->vocab.bytes = xmalloc(n_bytes);
	memcpy(t->vocab.bytes, p, n_bytes);
	if (t->kind->unpack)
		t->kind->unpack(t, p + n_bytes);
	return t->kind->ready(t, e);
}

int64_t tokenizer_encode_all(const struct tokenizer *t, const char *text, int64_t n,
	uint32_t **ids, struct err *e)
{
	int64_t n_ids, capacity = tokenizer_max_tokens(t, n);
	*ids = xcalloc((size_t)capacity + 1, sizeof(**ids));
	if (t->kind->encode(t, text, n, true, *ids, capacity, &n_ids, e) < 0) {
		free(*ids);
		*ids = NULL;
		return -1;
	}
	return n_ids;
}

int64_t tokenizer_cut(
	const struct tokenizer *t, const char *text, int64_t n, struct err *e)
{
	enum { MAX_UTF8 = 4 };
	int64_t n_tokens, first = n;
	if (t) { /* words end at the same offsets wherever the encoding begins */
		int64_t from = t->kind->cut ? t->kind->cut(t, text, n) : 0,
			rest = n - from;
		int64_t used = t->kind->encode(
			t, text + from, rest, false, NULL, rest, &n_tokens, e);
		return used < 0 ? TEXT_BAD(from + TEXT_BAD(used)) : from + used;
	}
	while (first > 0 && n - first < MAX_UTF8) {
		uint8_t c = (uint8_t)text[--first];
		int64_t len = c < 0xc0 ? 1 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;
		if (c < 0x80 || c >= 0xc0)
			return n - first < len ? first : n;
	}
	return n;
}

void tokenizer_decode(const struct tokenizer *t, int64_t id, struct str *out)
{
	const struct vocab *v = &t->vocab;
	if (id >= 0 && id < v->n)
		str_add(out, v->bytes + v->offset[id],
			(size_t)(v->offset[id + 1] - v->offset[id]));
}

/* Returns true if token i is byte i: kind byte, or the kind bpe that its tokenizer.json becomes. */
static bool is_byte_tokenizer(const struct tokenizer *t)
{
	const struct bpe_rules *r = bpe_rules_of(t);
	if (r && (r->n_merges || r->n_added || r->normalizer))
		return false;
	return t->kind == &tokenizer_byte ||
	       (r && t->vocab.n == N_BYTES &&
		       !tokenizer_byte.ready((struct tokenizer *)t, &(struct err){0}));
}

bool tokenizer_equal(const struct tokenizer *a, const struct tokenizer *b)
{
	scoped_str x = {0}, y = {0};
	if (is_byte_tokenizer(a) && is_byte_tokenizer(b))
		return true;
	tokenizer_pack(a, &x);
	tokenizer_pack(b, &y);
	return x.len == y.len && !memcmp(x.s, y.s, x.len);
}

int64_t tokenizer_end_of_text(const struct tokenizer *t)
{
	const struct bpe_rules *r = bpe_rules_of(t);
	return r && r->end_of_text != BPE_NONE ? (int64_t)r->end_of_text : -1;
}
