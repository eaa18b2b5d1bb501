/* The tables of bpe.c, which merge.c and encode.c use. */
#pragma once

#include "token/token.h"

/* A merge: its rank (low ranks merge first) and the token that it makes; BPE_NONE: no merge. */
struct bpe_merge {
	uint32_t rank, token;
};

/* Two tokens that merge. */
struct bpe_pair {
	uint64_t key; /* left << 32 | right; UINT64_MAX: none */
	struct bpe_merge merge;
};

/* A set of tokens to be found in text. */
struct added_set {
	uint32_t *ids; /* [n], in order of their bytes */
	int64_t n;
	int64_t *lengths; /* [n_lengths], distinct, the longest first */
	int64_t n_lengths;
	bool first[256]; /* bytes with which a token begins */
	int only_first;	 /* the byte with which all tokens begin; -1: several bytes */
};

struct bpe {
	const struct vocab *vocab;
	const struct bpe_rules *rules;
	uint32_t byte_id[256];	      /* BPE_NONE: the byte has no token */
	bool lacks_bytes;	      /* some byte has no token */
	struct bpe_merge *byte_pairs; /* [256][256]: merges of two bytes */
	struct bpe_pair *pairs;	      /* a hash table */
	uint64_t pair_mask;
	uint32_t *by_bytes; /* a hash table of the tokens that words consist of */
	uint64_t bytes_mask;
	bool whole_words;
	/* [include special tokens][tokens with BPE_NORMALIZED] */
	struct added_set added[2][2];
};

static inline const char *token_bytes(const struct vocab *v, uint32_t id, int64_t *len)
{
	*len = v->offset[id + 1] - v->offset[id];
	return (const char *)v->bytes + v->offset[id];
}

/* Returns the entry of a pair, or the empty entry for it. */
static inline struct bpe_pair *bpe_find_pair(
	const struct bpe *b, uint32_t left, uint32_t right)
{
	uint64_t key = (uint64_t)left << 32 | right;
	uint64_t i = (key ^ key >> 29) * 0x9e3779b97f4a7c15u >> 24;
	for (;; i++) {
		struct bpe_pair *p = &b->pairs[i & b->pair_mask];
		if (p->key == key || p->key == UINT64_MAX)
			return p;
	}
}

static inline struct bpe_merge bpe_find_merge(
	const struct bpe *b, uint32_t left, uint32_t right)
{
	return bpe_find_pair(b, left, right)->merge;
}

static inline struct bpe_merge bpe_find_byte_merge(
	const struct bpe *b, uint8_t left, uint8_t right)
{
	return b->byte_pairs[left << 8 | right];
}

/* ---- normalize.c ----------------------------------------------------------------- */

/* Returns how each character behaves in a normalization form, [CODE_POINTS]; see normalize.c. */
const uint8_t *normal_table(enum normal_form form);
/* Returns the last offset at which text[0..n), the beginning of a longer text, may be cut so that
 * both parts can be normalized separately; 0: none; -1: a segment is too long. */
int64_t find_normal_cut(const uint8_t *table, const char *text, int64_t n, struct err *e);
/* Returns true if the text is certainly normalized; a normalized text may also give false. */
bool is_normalized(const uint8_t *table, const char *text, int64_t n);

struct normalized {
	struct str text;
	struct text_changes changes;
	struct str codes; /* scratch: the code points of a segment */
};
/* Appends the normal form of a text, and its changes, to *out. The text has whole segments. */
int normalize(enum normal_form form, const char *text, int64_t n, struct normalized *out,
	struct err *e);
void changes_add(struct text_changes *c, struct text_change x);
void normalized_clear(struct normalized *x);
void normalized_free(struct normalized *x);
/* Returns the offset in the original text of byte `at` of the changed text; -1: within a change. */
int64_t normalized_origin(const struct text_changes *c, int64_t at);

/* ---- bpe.c ----------------------------------------------------------------------- */

/* Returns the token with these bytes that merges can make; BPE_NONE: none. */
uint32_t bpe_find_token(const struct bpe *b, const char *bytes, int64_t n);
/* Finds the first token of a set in text[0..n): sets *id and returns its offset. If there is none,
 * *id is BPE_NONE, and the result is n or, unless `final`, the offset at which one may begin. */
int64_t bpe_find_added(const struct bpe *b, const struct added_set *a, const char *text,
	int64_t n, bool final, uint32_t *id);

/* ---- merge.c --------------------------------------------------------------------- */

/* Merges the bytes of a word, which must all have tokens. Returns the number of tokens. */
int64_t merge_word(const struct bpe *b, const uint8_t *word, int64_t n, uint32_t *out);

/* ---- known_words.c --------------------------------------------------------------- */

/* A cache of the tokens of words. */
struct known_words;
struct known_words *known_words_open(const struct bpe *b);
void known_words_close(struct known_words *k);
/* Encodes one word: sets out[n] to its tokens, and returns their number. */
int64_t known_word(struct known_words *k, const char *word, int64_t n, uint32_t *out);
/* Encodes the words text[0, ends[0]), text[ends[0], ends[1]), ... of text[0..n): sets out[n],
 * unless NULL, to their tokens, and returns the number of tokens. */
int64_t known_words_encode(struct known_words *k, const char *text, int64_t n,
	const uint32_t *ends, int n_words, uint32_t *out);
