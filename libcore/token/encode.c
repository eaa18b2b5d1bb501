/* Text to tokens. First, the text is divided at added tokens. The text between them is normalized
 * and split into words by one or more patterns, and each word is encoded. */
#include "token/bpe_internal.h"

enum {
	BATCH = 512,
	MAX_WINDOW = 1 << 30,
	MAX_PATTERNS = 8,	 /* (each takes as long as the first) */
	NORMAL_WINDOW = 1 << 16, /* bytes normalized at once; more if they have no cut */
	MAX_NORMAL_WINDOW = 1 << 26,
};

struct pattern {
	struct splitter *splitter;
	uint32_t ends[BATCH]; /* ends of the words found */
};

struct encoder {
	const struct bpe *bpe;
	struct known_words *known;
	struct pattern *patterns; /* each splits the words of the previous one */
	int n_patterns;
	bool special;	      /* set by encoder_allow_special() */
	const uint8_t *table; /* normal_table() of the normalizer; NULL: no normalizer */
	struct normalized normal;
	const char *whole_text; /* the text passed to encoder_find_changes() */
	bool in_normal;		/* normal.text is being encoded */
	/* The last word end in normal.text that has an offset in the original text. */
	struct {
		int64_t origin, n_tokens;
	} safe;
};

struct output {
	uint32_t *ids; /* NULL: tokens are only counted */
	int64_t n;
};

static uint32_t *next_output(const struct output *o)
{
	return o->ids ? o->ids + o->n : NULL;
}

/* Appends a splitter for each line of `lines` to s->patterns. */
static int open_patterns(struct encoder *s, const char *lines, struct err *e)
{
	scoped_str line = {0};
	int rc = 0;
	for (size_t n; !rc; lines += n + 1) {
		n = strcspn(lines, "\n");
		str_clear(&line);
		str_add(&line, lines, n);
		if (s->n_patterns == MAX_PATTERNS) {
			rc = err_set(e, EX_DATAERR,
				"the vocabulary has more than %d patterns", MAX_PATTERNS);
			break;
		}
		s->patterns = xgrow(s->patterns, s->n_patterns, sizeof(*s->patterns));
		struct splitter *x = splitter_open(line.s, e);
		s->patterns[s->n_patterns].splitter = x;
		s->n_patterns += x != NULL;
		rc = x ? 0 : -1;
		if (!lines[n])
			break;
	}
	return rc;
}

struct encoder *encoder_open(const struct bpe *b, struct err *e)
{
	struct encoder *s = xcalloc(1, sizeof(*s));
	s->bpe = b;
	s->table = b->rules->normalizer ? normal_table(b->rules->normalizer) : NULL;
	s->known = known_words_open(b);
	if (!open_patterns(s, b->rules->pattern, e))
		return s;
	encoder_close(s);
	return NULL;
}

void encoder_close(struct encoder *s)
{
	if (!s)
		return;
	for (int i = 0; i < s->n_patterns; i++)
		splitter_close(s->patterns[i].splitter);
	free(s->patterns);
	known_words_close(s->known);
	normalized_release(&s->normal);
	free(s);
}

void encoder_allow_special(struct encoder *s, bool allowed)
{
	s->special = allowed;
}

static int encode_words(struct encoder *s, int depth, const char *text, int64_t n,
	const uint32_t *ends, int n_words, struct output *o, struct err *e);

/* Returns the number of words up to the last one with an end that has an offset in the original
 * text, and sets *origin to that offset. If no end has one, returns n_words, and *origin is -1. */
static int count_words_to_origin(const struct encoder *s, const char *text,
	const uint32_t *ends, int n_words, int64_t *origin)
{
	int64_t from = text - s->normal.text.s;
	for (int k = n_words; k > 0; k--) {
		*origin = normalized_origin(&s->normal.changes, from + ends[k - 1]);
		if (*origin >= 0)
			return k;
	}
	return n_words;
}

/* Splits text by pattern `depth`, and encodes its words. Returns the bytes used, or -1. */
static int64_t encode_split(struct encoder *s, int depth, const char *text, int64_t n,
	bool final, struct output *o, struct err *e)
{
	struct pattern *p = &s->patterns[depth];
	bool tracks_origin = s->in_normal && !depth;
	int64_t at = 0, origin = -1;
	while (at < n) {
		int64_t window = min64(n - at, MAX_WINDOW);
		int k = split_words(p->splitter, text + at, window,
			final && window == n - at, p->ends, BATCH, e);
		if (k < 0)
			return -1;
		if (!k && window == MAX_WINDOW)
			return err_set(e, EX_DATAERR,
				"the text has a word of more than %d bytes", MAX_WINDOW);
		if (!k)
			break;
		if (tracks_origin)
			k = count_words_to_origin(s, text + at, p->ends, k, &origin);
		if (encode_words(s, depth, text + at, window, p->ends, k, o, e))
			return -1;
		if (origin >= 0)
			s->safe.origin = origin, s->safe.n_tokens = o->n;
		at += p->ends[k - 1];
	}
	return at;
}

/* Encodes the words of text[0..n), which are first split by the patterns after `depth`. */
static int encode_words(struct encoder *s, int depth, const char *text, int64_t n,
	const uint32_t *ends, int n_words, struct output *o, struct err *e)
{
	if (depth + 1 == s->n_patterns) {
		o->n += known_words_encode(
			s->known, text, n, ends, n_words, next_output(o));
		return 0;
	}
	for (uint32_t i = 0, at = 0; i < (uint32_t)n_words; at = ends[i++])
		if (encode_split(s, depth + 1, text + at, ends[i] - at, true, o, e) < 0)
			return -1;
	return 0;
}

/* Fails if the text has a byte for which the vocabulary has no token. */
static int check_byte_tokens(
	const struct bpe *b, const char *text, int64_t n, struct err *e)
{
	for (int64_t i = 0; i < n && b->lacks_bytes; i++)
		if (b->byte_id[(uint8_t)text[i]] == BPE_NONE)
			return err_set(e, EX_DATAERR,
				"the vocabulary has no token for the byte 0x%02x",
				(uint8_t)text[i]);
	return 0;
}

/* Encodes text without added tokens. Returns the bytes used, or -1. */
static int64_t encode_text_between(struct encoder *s, const char *text, int64_t n,
	bool final, struct output *o, struct err *e)
{
	if (check_byte_tokens(s->bpe, text, n, e))
		return -1;
	return encode_split(s, 0, text, n, final, o, e);
}

typedef int64_t encode_fn(struct encoder *s, const char *text, int64_t n, bool final,
	struct output *o, struct err *e);

/* Adds the set's tokens in text; encode_between() adds others. Returns bytes used, or -1. */
static int64_t encode_around_added(struct encoder *s, const struct added_set *set,
	encode_fn *encode_between, const char *text, int64_t n, bool final,
	struct output *o, struct err *e)
{
	int64_t at = 0;
	while (at < n) {
		uint32_t id;
		int64_t len = bpe_find_added(s->bpe, set, text + at, n - at, final, &id);
		/* Words end before an added token; an open end of the text may begin one. */
		bool ends = id != BPE_NONE || (final && at + len == n);
		int64_t used = encode_between(s, text + at, len, ends, o, e);
		if (used < 0)
			return -1;
		at += used;
		if (id == BPE_NONE)
			break;
		if (o->ids)
			o->ids[o->n] = id;
		o->n++;
		token_bytes(s->bpe->vocab, id, &len);
		at += len;
	}
	return at;
}

/* Encodes text that is already normalized. Returns the bytes used, or -1. */
static int64_t encode_normalized(struct encoder *s, const char *text, int64_t n,
	bool final, struct output *o, struct err *e)
{
	const struct added_set *set = &s->bpe->added[s->special][1];
	return encode_around_added(s, set, encode_text_between, text, n, final, o, e);
}

/* Normalizes and encodes text up to the last cut (`final`: all). Returns the bytes used, or -1. */
static int64_t encode_window(struct encoder *s, const char *text, int64_t n, bool final,
	struct output *o, struct err *e)
{
	struct normalized *x = &s->normal;
	n = final ? n : find_normal_cut(s->table, text, n, e);
	if (n <= 0 || is_normalized(s->table, text, n))
		return n <= 0 ? n : encode_normalized(s, text, n, final, o, e);
	normalized_clear(x);
	if (normalize(s->bpe->rules->normalizer, text, n, x, e))
		return -1;
	s->safe.origin = 0, s->safe.n_tokens = o->n;
	s->in_normal = true;
	int64_t used = encode_normalized(s, x->text.s, (int64_t)x->text.len, final, o, e);
	s->in_normal = false;
	int64_t origin = used < 0 ? -1 : normalized_origin(&x->changes, used);
	if (used < 0 || origin >= 0)
		return origin;
	o->n = s->safe.n_tokens;
	return s->safe.origin;
}

/* Normalizes and encodes text in windows, larger if they have no cut. Returns bytes used, or -1. */
static int64_t normalize_and_encode(struct encoder *s, const char *text, int64_t n,
	bool final, struct output *o, struct err *e)
{
	if (!s->table)
		return encode_normalized(s, text, n, final, o, e);
	int64_t at = 0;
	for (int64_t window = NORMAL_WINDOW; at < n;) {
		int64_t n_bytes = min64(window, n - at);
		int64_t used = encode_window(
			s, text + at, n_bytes, final && n_bytes == n - at, o, e);
		if (used < 0)
			return -1;
		if (!used && n_bytes >= MAX_NORMAL_WINDOW &&
			!is_normalized(s->table, text, n_bytes))
			return err_set(e, EX_DATAERR,
				"the text has a word of more than %lld bytes, which cannot be "
				"normalized in pieces",
				(long long)n_bytes);
		if (!used && n_bytes == n - at)
			break;
		at += used;
		window = used ? NORMAL_WINDOW : 2 * window;
	}
	return at;
}

/* Adds the changes that normalization makes to s->normal. An encode_fn that makes no tokens. */
static int64_t record_changes(struct encoder *s, const char *text, int64_t n, bool final,
	struct output *o, struct err *e)
{
	struct normalized *x = &s->normal;
	int64_t i = x->changes.n, at = text - s->whole_text;
	(void) final, (void)o;
	str_clear(&x->text);
	if (normalize(s->bpe->rules->normalizer, text, n, x, e))
		return -1;
	for (; i < x->changes.n; i++)
		x->changes.v[i].begin += at, x->changes.v[i].end += at;
	return n;
}

int encoder_find_changes(struct encoder *s, const char *text, int64_t n, int64_t at,
	struct text_changes *out, struct err *e)
{
	const struct text_changes *found = &s->normal.changes;
	struct output none = {0};
	if (!s->table || is_normalized(s->table, text, n))
		return 0;
	normalized_clear(&s->normal);
	s->whole_text = text;
	if (encode_around_added(s, &s->bpe->added[s->special][0], record_changes, text, n,
		    true, &none, e) < 0)
		return -1;
	for (int64_t i = 0; i < found->n; i++) {
		struct text_change x = found->v[i];
		int64_t len = x.to_end - x.to;
		x.begin += at, x.end += at;
		x.to = x.begin +
		       (out->n ? out->v[out->n - 1].to_end - out->v[out->n - 1].end : 0);
		x.to_end = x.to + len;
		changes_add(out, x);
	}
	return 0;
}

int64_t encoder_encode(struct encoder *s, const char *text, int64_t n, bool final,
	uint32_t *out, int64_t capacity, int64_t *n_out, struct err *e)
{
	struct output o = {.ids = out};
	capacity = out ? capacity / normal_growth(s->bpe->rules->normalizer) : capacity;
	if (n > capacity) /* each token has at least one byte */
		n = capacity, final = false;
	const struct added_set *set = &s->bpe->added[s->special][0];
	int64_t used =
		encode_around_added(s, set, normalize_and_encode, text, n, final, &o, e);
	*n_out = o.n;
	return used;
}
