/*
 * Text to tokens. The same words come again and again, so the encoder keeps those that it met: short
 * ones with few tokens in a table whose entries fit a cache line by twos, longer ones in another. Both
 * forget a word when another takes its place.
 */
#include "token/bpe_internal.h"

#include <stdlib.h>
#include <string.h>

enum {
	SHORT_BITS = 15,
	SHORT_BYTES = 15,
	SHORT_IDS = 3,
	LONG_BITS = 12,
	LONG_BYTES = 64,
	LONG_IDS = 24,
	BATCH = 512,
	LINE = 64,
	MAX_WINDOW = 1 << 30,
};

struct short_word {
	uint64_t low, high; /* its bytes, and its length in the highest byte; 0: none */
	uint32_t ids[SHORT_IDS];
	uint32_t n;
};

struct long_word {
	uint32_t n_bytes, n; /* 0: none */
	uint32_t ids[LONG_IDS];
	char bytes[LONG_BYTES];
};

struct encoder {
	const struct bpe *bpe;
	struct splitter *splitter;
	bool special;		       /* encoder_special() */
	void *memory;		       /* of the next: zero until it is used */
	struct short_word (*known)[2]; /* [1 << SHORT_BITS], at cache lines */
	struct long_word *known_long;
	uint32_t *scratch; /* for a word whose tokens are only counted */
	int64_t n_scratch;
	uint32_t ends[BATCH];
};

struct encoder *encoder_open(const struct bpe *b, struct err *e)
{
	struct splitter *splitter = splitter_open(b->rules->pattern, e);
	if (!splitter)
		return NULL;
	struct encoder *s = xcalloc(1, sizeof(*s));
	s->bpe = b;
	s->splitter = splitter;
	s->memory = xcalloc(1, (sizeof(*s->known) << SHORT_BITS) + LINE);
	s->known = (void *)(((uintptr_t)s->memory + LINE - 1) / LINE * LINE);
	s->known_long = xcalloc((size_t)1 << LONG_BITS, sizeof(*s->known_long));
	s->n_scratch = LONG_BYTES;
	s->scratch = xmalloc((size_t)s->n_scratch * sizeof(*s->scratch));
	return s;
}

void encoder_close(struct encoder *s)
{
	if (!s)
		return;
	splitter_close(s->splitter);
	free(s->memory);
	free(s->known_long);
	free(s->scratch);
	free(s);
}

/* ---- one word -------------------------------------------------------------------- */

static int64_t merge_whole(
	const struct bpe *b, const char *word, int64_t n, uint32_t *out)
{
	if (b->whole_words) {
		uint32_t id = bpe_find(b, word, n);
		if (id != BPE_NONE) {
			*out = id;
			return 1;
		}
	}
	return merge_word(b, (const uint8_t *)word, n, out);
}

int64_t encoder_word(struct encoder *s, const char *word, int64_t n, uint32_t *out)
{
	if (n > LONG_BYTES)
		return merge_whole(s->bpe, word, n, out);
	uint64_t i = hash_bytes(word, (size_t)n, 0) >> (64 - LONG_BITS);
	struct long_word *k = &s->known_long[i];
	if (k->n_bytes == n && !memcmp(k->bytes, word, (size_t)n)) {
		memcpy(out, k->ids, k->n * sizeof(*out));
		return k->n;
	}
	int64_t n_out = merge_whole(s->bpe, word, n, out);
	if (n_out <= LONG_IDS) {
		k->n_bytes = (uint32_t)n;
		k->n = (uint32_t)n_out;
		memcpy(k->bytes, word, (size_t)n);
		memcpy(k->ids, out, (size_t)n_out * sizeof(*out));
	}
	return n_out;
}

/* The bytes of a short word as two numbers. */
struct key {
	uint64_t low, high;
};

/* word[0..16) can be read; n <= SHORT_BYTES. */
static inline struct key key_of(const char *word, uint32_t n)
{
#define ONES(n) (~UINT64_C(0) >> (64 - 8 * (n)))
#define LOW(n)                                  \
	{                                       \
		ONES(n), 0, (uint64_t)(n) << 56 \
	}
#define HIGH(n)                                           \
	{                                                 \
		ONES(8), ONES((n)-8), (uint64_t)(n) << 56 \
	}
	static const struct {
		uint64_t low, high, length;
	} masks[SHORT_BYTES + 1] = {{0}, LOW(1), LOW(2), LOW(3), LOW(4), LOW(5), LOW(6),
		LOW(7), {ONES(8), 0, UINT64_C(8) << 56}, HIGH(9), HIGH(10), HIGH(11),
		HIGH(12), HIGH(13), HIGH(14), HIGH(15)};
	uint64_t low, high;
	memcpy(&low, word, sizeof(low));
	memcpy(&high, word + 8, sizeof(high));
	return (struct key){low & masks[n].low, (high & masks[n].high) | masks[n].length};
}

static inline bool is_word(const struct short_word *w, struct key k)
{
	return ((w->low ^ k.low) | (w->high ^ k.high)) == 0;
}

static inline uint64_t bucket_of(struct key k)
{
	uint64_t h = (k.low + k.high * 0xc2b2ae3d27d4eb4fu) * 0x9e3779b97f4a7c15u;
	return h >> (64 - SHORT_BITS);
}

/* Encodes a word that is not the first of its bucket. */
static __attribute__((noinline)) int64_t put_other(struct encoder *s,
	struct short_word bucket[2], struct key key, const char *word, int64_t n,
	uint32_t *out)
{
	struct short_word first = bucket[0];
	if (is_word(&bucket[1], key)) { /* the word that was met last is the first */
		bucket[0] = bucket[1];
		bucket[1] = first;
		memcpy(out, bucket[0].ids, sizeof(bucket[0].ids));
		return bucket[0].n;
	}
	int64_t n_out = encoder_word(s, word, n, out);
	if (n_out > SHORT_IDS)
		return n_out;
	bucket[1] = first;
	bucket[0] = (struct short_word){.low = key.low, .high = key.high};
	bucket[0].n = (uint32_t)n_out;
	memcpy(bucket[0].ids, out, (size_t)n_out * sizeof(*out));
	return n_out;
}

/* A word at the end of the text, or a long one. out: NULL, or room for n tokens. */
static int64_t put_slowly(struct encoder *s, const char *word, int64_t n, uint32_t *out)
{
	if (!out && n > s->n_scratch) {
		s->n_scratch = n;
		s->scratch = xrealloc(s->scratch, (size_t)n * sizeof(*s->scratch));
	}
	return encoder_word(s, word, n, out ? out : s->scratch);
}

/* ---- many words ------------------------------------------------------------------ */

/* The words text[0, ends[0]), text[ends[0], ends[1]), ...: behind each beginning 16 bytes can be read,
 * and 16 tokens written. */
static inline __attribute__((always_inline)) int64_t put_inner(
	struct encoder *s, const char *text, int n_words, uint32_t *out, bool keeps)
{
	int64_t n_out = 0;
	uint32_t begin = 0;
	for (int i = 0; i < n_words; i++) {
		const char *word = text + begin;
		uint32_t len = s->ends[i] - begin;
		/* (long words may move s->scratch) */
		uint32_t *to = keeps ? out + n_out : s->scratch;
		begin = s->ends[i];
		if (__builtin_expect(len > SHORT_BYTES, 0)) {
			n_out += put_slowly(s, word, len, keeps ? to : NULL);
			continue;
		}
		struct key key = key_of(word, len);
		struct short_word *bucket = s->known[bucket_of(key)];
		if (__builtin_expect(is_word(bucket, key), 1)) {
			memcpy(to, bucket->ids, sizeof(bucket->ids));
			n_out += bucket->n;
		} else
			n_out += put_other(s, bucket, key, word, len, to);
	}
	return n_out;
}

/* The same; text[0..n) can be read, and n tokens written. */
static int64_t put_words(
	struct encoder *s, const char *text, int64_t n, int n_words, uint32_t *out)
{
	int inner = n_words;
	while (inner > 0 && (inner > 1 ? s->ends[inner - 2] : 0) + 16 > n)
		inner--;
	int64_t n_out = out ? put_inner(s, text, inner, out, true)
			    : put_inner(s, text, inner, s->scratch, false);
	for (int i = inner; i < n_words; i++) {
		uint32_t begin = i ? s->ends[i - 1] : 0;
		n_out += put_slowly(
			s, text + begin, s->ends[i] - begin, out ? out + n_out : NULL);
	}
	return n_out;
}

/* Text without tokens that are found in text. Returns the bytes used, or -1. */
static int64_t put_text(struct encoder *s, const char *text, int64_t n, bool final,
	uint32_t *out, int64_t *n_out, struct err *e)
{
	int64_t at = 0;
	while (at < n) {
		int64_t window = min64(n - at, MAX_WINDOW);
		int k = split_words(s->splitter, text + at, window,
			final && window == n - at, s->ends, BATCH, e);
		if (k < 0)
			return -1;
		if (!k && window == MAX_WINDOW)
			return err_set(e, EX_DATAERR, "a word of more than %d bytes",
				MAX_WINDOW);
		if (!k)
			break;
		*n_out += put_words(s, text + at, window, k, out ? out + *n_out : NULL);
		at += s->ends[k - 1];
	}
	return at;
}

void encoder_special(struct encoder *s, bool allowed)
{
	s->special = allowed;
}

int64_t encoder_put(struct encoder *s, const char *text, int64_t n, bool final,
	uint32_t *out, int64_t room, int64_t *n_out, struct err *e)
{
	const struct added_set *added = &s->bpe->added[s->special];
	int64_t at = 0;
	*n_out = 0;
	if (n > room) /* a token has a byte at least */
		n = room, final = false;
	while (at < n) {
		uint32_t id;
		int64_t len = added_find(s->bpe, added, text + at, n - at, final, &id);
		/* Words before such a token end there; an open end may be the beginning of one. */
		bool ends = id != BPE_NONE || (final && at + len == n);
		int64_t used = put_text(s, text + at, len, ends, out, n_out, e);
		if (used < 0)
			return -1;
		at += used;
		if (id == BPE_NONE)
			break;
		if (out)
			out[*n_out] = id;
		++*n_out;
		token_bytes(s->bpe->vocab, id, &len);
		at += len;
	}
	return at;
}
