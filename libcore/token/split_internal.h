/* Shared by split*.c. */
#pragma once

#include "token/token.h"

/* How a named pattern splits text. */
struct split_rule {
	enum {
		LETTERS_SPACE, /* ` ?\p{L}+` */
		LETTERS_ANY,   /* `[^\r\n\p{L}\p{N}]?\p{L}+` */
		LETTERS_CASED, /* as LETTERS_ANY, but a word ends before a capital letter */
	} letters;
	enum {
		SUFFIX_NONE,   /* suffixes such as 's are not words */
		SUFFIX_SMALL,  /* suffixes in lower case are words */
		SUFFIX_FOLDED, /* suffixes in any case are words */
		SUFFIX_JOINED, /* suffixes belong to the word before */
	} suffix;
	int digits; /* maximum number in a word; 0: any number, after an optional space */
	const char
		*trailing; /* characters allowed after punctuation: "", "\r\n", "\r\n/" */
	bool newlines;	   /* white space is a word up to its last line break */
	bool rest;	   /* white space at the end of the text is one word */
};

/* A text to be split. */
struct split_text {
	const char *p;
	int64_t n;
	const uint8_t *classes;
	bool at_end; /* the end was examined, so more text could change the result */
};

/* ---- split_word.c ---------------------------------------------------------------- */

/* Returns the end of the word that begins at `at` < t->n. */
int64_t split_word(const struct split_rule *r, struct split_text *t, int64_t at);

/* ---- split_ascii.c --------------------------------------------------------------- */

enum { SPLIT_BLOCK = 64 }; /* bytes; minimum of `max` */
/* Finds ASCII words from text[at] on, as split_words() does, up to the first word that needs
 * split_word(). Returns their number. */
int split_ascii(const struct split_rule *r, const char *text, int64_t at, int64_t n,
	uint32_t *ends, int max);

/* ---- split_regex.c --------------------------------------------------------------- */

struct split_regex;
struct split_regex *split_regex_open(const char *regex, struct err *e);
void split_regex_close(struct split_regex *x);
/* Splits text as split_words() does. */
int split_regex_words(struct split_regex *x, const char *text, int64_t n, bool final,
	uint32_t *ends, int max, struct err *e);
