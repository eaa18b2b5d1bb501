/*
 * vocab: training of byte-pair encoding: count the words of texts, merge the most frequent pair of tokens again
 * and again, write the files that others read.
 */
#pragma once

#include "base/progress.h"
#include "token/token.h"

/* ---- words.c: the words of texts, counted ------------------------------------------ */

/* A longer word is cut into words of this size, so that memory is in proportion to what can be learnt. */
enum { TRAIN_MAX_WORD = BPE_MAX_RANKED };

struct train_word {
	int64_t count; /* 0: no word */
	size_t at;     /* in the bytes of all words */
	uint64_t head; /* its first 8 bytes; a shorter word has zeros behind it */
	uint32_t n_bytes, hash;
};

/* The different words, of two bytes or more. One thread uses it at a time. */
struct train_words {
	struct splitter *splitter;
	struct train_word *slots; /* a hash table */
	int64_t n_slots, n;
	char *bytes;
	size_t n_bytes, room;
};

int train_words_open(struct train_words *w, const char *pattern, struct err *e);
void train_words_close(struct train_words *w);
/* Counts the words of a whole text, n < 2^31. */
int train_words_add(struct train_words *w, const char *text, int64_t n, struct err *e);
void train_words_merge(struct train_words *to, const struct train_words *from);

/* ---- train.c: merges --------------------------------------------------------------- */

struct train_config {
	int64_t vocab;		 /* tokens, with the 256 bytes and special ones */
	int64_t min_count;	 /* a pair that occurs less often is not merged */
	const char *pattern;	 /* of the words */
	const char *end_of_text; /* the token behind the merges; NULL: none */
	struct strs special;	 /* special tokens behind that one */
	struct progress *bar;	 /* of merges; NULL: none */
};

/*
 * The textbook algorithm: the most frequent pair of adjacent tokens becomes a token, from the left to the
 * right of each word; of equally frequent pairs, the one with the smaller left token, then the smaller right
 * token. The bytes are tokens 0 to 255 in GPT-2's order. There may be fewer tokens than asked for.
 */
int train_bpe(const struct train_words *words, const struct train_config *c,
	struct vocab *v, struct bpe_rules *r, struct err *e);

/* ---- train_files.c: vocabulary files ------------------------------------------------ */

/* Writes vocab.json, merges.txt, tokenizer.json and vocab.tiktoken into a folder. */
int train_write(const char *folder, bool overwrite, const struct vocab *v,
	const struct bpe_rules *r, struct strs *files, struct err *e);
