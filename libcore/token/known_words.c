/* A cache of the tokens of words, because words recur. Short words with few tokens are in a table
 * of buckets with two entries each, which fill a cache line. Longer words are in a second table. In
 * both tables, a new word replaces an old one. */
#include "token/bpe_internal.h"

enum {
	SHORT_BITS = 15,
	SHORT_BYTES = 15,
	SHORT_IDS = 3,
	LONG_BITS = 12,
	LONG_BYTES = 64,
	LONG_IDS = 24,
	LINE = 64,
};

struct short_word {
	uint64_t low,
		high; /* bytes of the word, and its length in the highest byte; 0: empty entry */
	uint32_t ids[SHORT_IDS];
	uint32_t n;
};

struct long_word {
	uint32_t n_bytes, n; /* bytes and tokens; 0: empty entry */
	uint32_t ids[LONG_IDS];
	char bytes[LONG_BYTES];
};

struct known_words {
	const struct bpe *bpe;
	void *memory;		       /* allocation that contains `known` */
	struct short_word (*known)[2]; /* [1 << SHORT_BITS], aligned to cache lines */
	struct long_word *known_long;  /* [1 << LONG_BITS] */
	uint32_t *scratch;	       /* for a word whose tokens are only counted */
	int64_t n_scratch;
};

struct known_words *known_words_open(const struct bpe *b)
{
	struct known_words *k = xcalloc(1, sizeof(*k));
	k->bpe = b;
	k->memory = xcalloc(1, (sizeof(*k->known) << SHORT_BITS) + LINE);
	k->known = (void *)(((uintptr_t)k->memory + LINE - 1) / LINE * LINE);
	k->known_long = xcalloc((size_t)1 << LONG_BITS, sizeof(*k->known_long));
	k->n_scratch = LONG_BYTES;
	k->scratch = xmalloc((size_t)k->n_scratch * sizeof(*k->scratch));
	return k;
}

void known_words_close(struct known_words *k)
{
	if (!k)
		return;
	free(k->memory);
	free(k->known_long);
	free(k->scratch);
	free(k);
}

/* Encodes a word without the cache to `out`. Returns the number of tokens. */
static int64_t encode_uncached(
	const struct bpe *b, const char *word, int64_t n, uint32_t *out)
{
	if (b->whole_words) {
		uint32_t id = bpe_find_token(b, word, n);
		if (id != BPE_NONE) {
			*out = id;
			return 1;
		}
	}
	return merge_word(b, (const uint8_t *)word, n, out);
}

int64_t known_word(struct known_words *k, const char *word, int64_t n, uint32_t *out)
{
	if (n > LONG_BYTES)
		return encode_uncached(k->bpe, word, n, out);
	uint64_t i = hash_bytes(word, (size_t)n, 0) >> (64 - LONG_BITS);
	struct long_word *w = &k->known_long[i];
	if (w->n_bytes == n && !memcmp(w->bytes, word, (size_t)n)) {
		memcpy(out, w->ids, w->n * sizeof(*out));
		return w->n;
	}
	int64_t n_out = encode_uncached(k->bpe, word, n, out);
	if (n_out <= LONG_IDS) {
		w->n_bytes = (uint32_t)n;
		w->n = (uint32_t)n_out;
		memcpy(w->bytes, word, (size_t)n);
		memcpy(w->ids, out, (size_t)n_out * sizeof(*out));
	}
	return n_out;
}

/* The bytes of a short word as two numbers. */
struct key {
	uint64_t low, high;
};

/* Returns the key of word[0..n), n <= SHORT_BYTES. word[0..16) must be readable. */
static inline struct key word_key(const char *word, uint32_t n)
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

static inline bool has_key(const struct short_word *w, struct key k)
{
	return ((w->low ^ k.low) | (w->high ^ k.high)) == 0;
}

static inline uint64_t bucket_of(struct key k)
{
	uint64_t h = (k.low + k.high * 0xc2b2ae3d27d4eb4fu) * 0x9e3779b97f4a7c15u;
	return h >> (64 - SHORT_BITS);
}

/* Encodes a short word that is not the first entry of its bucket, and moves it there. */
static __attribute__((noinline)) int64_t encode_not_first(struct known_words *k,
	struct short_word bucket[2], struct key key, const char *word, int64_t n,
	uint32_t *out)
{
	struct short_word first = bucket[0];
	if (has_key(&bucket[1], key)) { /* the most recent word moves to the front */
		bucket[0] = bucket[1];
		bucket[1] = first;
		memcpy(out, bucket[0].ids, sizeof(bucket[0].ids));
		return bucket[0].n;
	}
	int64_t n_out = known_word(k, word, n, out);
	if (n_out > SHORT_IDS)
		return n_out;
	bucket[1] = first;
	bucket[0] = (struct short_word){.low = key.low, .high = key.high};
	bucket[0].n = (uint32_t)n_out;
	memcpy(bucket[0].ids, out, (size_t)n_out * sizeof(*out));
	return n_out;
}

/* Encodes a long word, or a word at the end of the text. out[n] is NULL to count tokens only. */
static int64_t encode_slowly(
	struct known_words *k, const char *word, int64_t n, uint32_t *out)
{
	if (!out && n > k->n_scratch) {
		k->n_scratch = n;
		k->scratch = xrealloc(k->scratch, (size_t)n * sizeof(*k->scratch));
	}
	return known_word(k, word, n, out ? out : k->scratch);
}

/* Encodes words. At the beginning of each, 16 bytes must be readable and 16 tokens writable. */
static inline __attribute__((always_inline)) int64_t encode_inner(struct known_words *k,
	const char *text, const uint32_t *ends, int n_words, uint32_t *out,
	bool keeps_tokens)
{
	int64_t n_out = 0;
	uint32_t begin = 0;
	for (int i = 0; i < n_words; i++) {
		const char *word = text + begin;
		uint32_t len = ends[i] - begin;
		/* (long words may move k->scratch) */
		uint32_t *to = keeps_tokens ? out + n_out : k->scratch;
		begin = ends[i];
		if (__builtin_expect(len > SHORT_BYTES, 0)) {
			n_out += encode_slowly(k, word, len, keeps_tokens ? to : NULL);
			continue;
		}
		struct key key = word_key(word, len);
		struct short_word *bucket = k->known[bucket_of(key)];
		if (__builtin_expect(has_key(bucket, key), 1)) {
			memcpy(to, bucket->ids, sizeof(bucket->ids));
			n_out += bucket->n;
		} else
			n_out += encode_not_first(k, bucket, key, word, len, to);
	}
	return n_out;
}

int64_t known_words_encode(struct known_words *k, const char *text, int64_t n,
	const uint32_t *ends, int n_words, uint32_t *out)
{
	int inner = n_words;
	while (inner > 0 && (inner > 1 ? ends[inner - 2] : 0) + 16 > n)
		inner--;
	int64_t n_out = out ? encode_inner(k, text, ends, inner, out, true)
			    : encode_inner(k, text, ends, inner, k->scratch, false);
	for (int i = inner; i < n_words; i++) {
		uint32_t begin = i ? ends[i - 1] : 0;
		n_out += encode_slowly(
			k, text + begin, ends[i] - begin, out ? out + n_out : NULL);
	}
	return n_out;
}
