/* Shared by split*.c. */
#pragma once

#include "token/token.h"

/* What the patterns with a name differ in. */
struct split_rule {
	enum {
		LETTERS_SPACE, /* ` ?\p{L}+` */
		LETTERS_ANY,   /* `[^\r\n\p{L}\p{N}]?\p{L}+` */
		LETTERS_CASED, /* the same, but a word ends before a capital letter */
	} letters;
	enum {
		SUFFIX_NONE,   /* 's and the like are no words */
		SUFFIX_SMALL,  /* they are, in small letters */
		SUFFIX_FOLDED, /* in letters of any case */
		SUFFIX_JOINED, /* they belong to the word before */
	} suffix;
	int digits; /* at most, in a word; 0: any number, and a space before them */
	const char *
		behind; /* characters that follow others in a word: "", "\r\n", "\r\n/" */
	bool newlines;	/* white space is a word up to its last line break */
	bool rest;	/* white space at the end of the text is one word */
};

/* A text, and whether its end was looked at: then more text could change the result. */
struct split_text {
	const char *p;
	int64_t n;
	const uint8_t *classes;
	bool at_end;
};

/* ---- split_word.c ---------------------------------------------------------------- */

/* The end of the word that begins at `at` < t->n. */
int64_t split_word(const struct split_rule *r, struct split_text *t, int64_t at);

/* ---- split_ascii.c --------------------------------------------------------------- */

enum { SPLIT_BLOCK = 64 }; /* needs room for so many words */
/* Finds words that are ASCII, as split_words() does, beginning at text[at]; stops before the first
 * that it leaves to split_word(). Returns their number. */
int split_ascii(const struct split_rule *r, const char *text, int64_t at, int64_t n,
	uint32_t *ends, int max);

/* ---- split_regex.c --------------------------------------------------------------- */

struct split_regex;
struct split_regex *split_regex_open(const char *regex, struct err *e);
void split_regex_close(struct split_regex *x);
int split_regex_words(struct split_regex *x, const char *text, int64_t n, bool final,
	uint32_t *ends, int max, struct err *e);
