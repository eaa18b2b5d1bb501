/* vocab: training of byte-pair encoding: count the words of texts, merge the most frequent pair of
 * tokens repeatedly, write the vocabulary in the formats of other programs. */
#pragma once

#include "base/progress.h"
#include "token/token.h"

/* ---- words.c: the words of texts, counted ------------------------------------------ */

/* Bytes of a word. A longer word is cut into words of this size, which bounds the memory. */
enum { TRAIN_MAX_WORD = BPE_MAX_RANKED };

struct train_word {
	int64_t count; /* 0: an empty slot */
	size_t at;     /* offset in the bytes of all words */
	uint64_t head; /* its first 8 bytes, padded with zeros */
	uint32_t n_bytes, hash;
};

/* The distinct words of two bytes or more, with their counts. One thread uses it at a time. */
struct train_words {
	struct splitter *splitter;
	struct train_word *slots; /* a hash table */
	int64_t n_slots, n;
	char *bytes;
	size_t n_bytes, capacity;
};

int train_words_open(struct train_words *w, const char *pattern, struct err *e);
void train_words_close(struct train_words *w);
/* Counts the words of a whole text, n < 2^31. */
int train_words_add(struct train_words *w, const char *text, int64_t n, struct err *e);
void train_words_merge(struct train_words *to, const struct train_words *from);

/* ---- train.c: merges --------------------------------------------------------------- */

struct train_config {
	int64_t vocab;	     /* number of tokens, with the 256 bytes and special tokens */
	int64_t min_count;   /* a pair that occurs less often is not merged */
	const char *pattern; /* splits text into words */
	const char *end_of_text; /* special token after the merged tokens; NULL: none */
	struct strs special;	 /* more special tokens after it */
	struct progress *bar;	 /* counts merges; NULL: none */
};

/* Trains by the textbook algorithm: the most frequent pair of adjacent tokens becomes a token, from
 * left to right in each word. In a tie, the smaller left token wins, then the smaller right token.
 * The bytes are tokens 0 to 255 in GPT-2's order. There may be fewer than c->vocab tokens. */
int train_bpe(const struct train_words *words, const struct train_config *c,
	struct vocab *v, struct bpe_rules *r, struct err *e);

/* ---- train_files.c: vocabulary files ------------------------------------------------ */

/* Writes vocab.json, merges.txt, tokenizer.json, vocab.tiktoken. Appends their names to `files`. */
int train_write(const char *directory, bool overwrite, const struct vocab *v,
	const struct bpe_rules *r, struct strs *files, struct err *e);
