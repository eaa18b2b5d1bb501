/* token: byte-pair encoding: vocabulary files, the patterns that split text into words, and the
 * encoder. tokenizer.h: tokenizers of all kinds, stored in files and sent to other ranks.
 *
 * Files are not trusted. Functions that return int return 0, or -1 with *e set. No call is
 * collective. Threads may share const objects. */
#pragma once

#include "base/base.h"
#include "base/utf8.h"

/* ---- unicode.c: classes of characters --------------------------------------------- */

/* General categories of Unicode 16.0, and the property White_Space. */
enum char_class {
	CHAR_OTHER,  /* also a byte that is not UTF-8 */
	CHAR_SPACE,  /* \s */
	CHAR_NUMBER, /* \p{N} */
	CHAR_MARK,   /* \p{M} */
	CHAR_LOWER,  /* \p{Ll} */
	CHAR_UPPER,  /* \p{Lu}, \p{Lt} */
	CHAR_LETTER, /* \p{Lm}, \p{Lo} */
	N_CHAR_CLASSES
};

/* Returns the class of each code point, [0x110000]. */
const uint8_t *char_classes(void);

/* ---- normalize.c: equal texts in one form ------------------------------------------ */

/* The normalization forms of UAX #15, with the characters of Unicode 9.0, as in Hugging Face's
 * tokenizers. Later characters, and bytes that are not UTF-8, stay unchanged. So the result does
 * not depend on the version of utf8proc. */
enum normal_form {
	NORMAL_NONE,
	NORMAL_NFC,
	NORMAL_NFD,
	NORMAL_NFKC,
	NORMAL_NFKD,
	N_NORMAL_FORMS
};
extern const char *const normal_forms[]; /* names of the forms; NULL-terminated */
/* Returns the maximum factor by which a text grows, in bytes. */
int64_t normal_growth(enum normal_form form);

/* Bytes [begin, end) of a text became bytes [to, to_end). */
struct text_change {
	int64_t begin, end, to, to_end;
};

struct text_changes {
	struct text_change *v; /* ascending */
	int64_t n;
};

/* ---- split.c: text to words; split_ascii.c, split_regex.c ------------------------- */

/* A pattern is the name of one of split_patterns[], or a regular expression of PCRE2 (in UTF mode).
 * A word is a match of the pattern, or the text between two matches, so that the words always cover
 * the whole text. For named patterns, a byte that is not UTF-8 is a character that is neither
 * letter, number nor space. No match of a regular expression contains such a byte. */
struct split_pattern {
	const char *name;
	const char *regex; /* as tiktoken and tokenizer.json write it */
	/* Other regular expressions that mean the same; terminated by NULL. */
	const char *same[4];
};
extern const struct split_pattern split_patterns[]; /* ends with a NULL name */
/* Finds a pattern by its name, or by a regular expression that means the same; NULL: none. */
const struct split_pattern *split_pattern_find(const char *name_or_regex);

/* One thread uses a splitter at a time. */
struct splitter;
struct splitter *splitter_open(const char *pattern, struct err *e); /* NULL on error */
void splitter_close(struct splitter *s);
/*
 * Finds the first words of text[0..n), n < 2^31. Sets at most `max` elements of ends[], the offsets
 * of the words' ends, and returns their number. Unless `final`, more text follows, and words that
 * it could change are omitted; 0: more text is needed. Returns -1 on an error (a limit of PCRE2).
 */
int split_words(struct splitter *s, const char *text, int64_t n, bool final,
	uint32_t *ends, int max, struct err *e);
/* Returns the last offset at which text[0..n), the beginning of a longer text, may be cut: between
 * an ASCII letter and a space, or between a single line feed after a visible character and a
 * letter. No word of a named pattern crosses such an offset. 0: none. */
int64_t split_cut(const char *text, int64_t n);

/* ---- vocab.c: vocabularies and their files ---------------------------------------- */

/* The bytes of all tokens: token i is bytes [offset[i], offset[i + 1]). */
struct vocab {
	int64_t n;
	uint8_t *bytes;
	int64_t *offset; /* [n + 1] */
};

/* The rules to encode with a vocabulary; all pointers are owned. */
struct bpe_rules {
	/* Splits text into words: a name or a regular expression, or several of them, one per line.
	 * Each splits the words of the previous one. */
	char *pattern;
	enum normal_form normalizer; /* for the text between added tokens */
	/* Pairs of tokens in merge order: the earliest is merged first. Without them (n_merges =
	 * 0), the order is tiktoken's: two tokens merge if their bytes together are one of the
	 * tokens [0, n_ranked); the lowest such token is made first. */
	uint32_t *merges; /* [n_merges][2] */
	int64_t n_merges, n_ranked;
	bool whole_words; /* a word that is a token becomes that token, whatever the merges */
	/* Tokens that are found as literal text, not made by merges. */
	struct bpe_added *added; /* [n_added] */
	int64_t n_added;
	uint32_t end_of_text; /* id of the token that ends a text; BPE_NONE: none */
	/* Each token is a character, and nothing else is set: the tokenizer is of kind char. */
	bool characters;
};

#define BPE_NONE UINT32_MAX

/* Maximum bytes of a token of a rank file: longer tokens would make too many pairs. */
enum { BPE_MAX_RANKED = 4096 };

enum {
	BPE_SPECIAL = 1,    /* found in text only on request; without this flag, always */
	BPE_NORMALIZED = 2, /* found in normalized text, after all others */
	BPE_STRIPS = 4,	    /* (special) has lstrip, rstrip or single_word: not found */
};

struct bpe_added {
	uint32_t id;
	uint32_t flags;
};

void vocab_release(struct vocab *v);
void bpe_rules_release(struct bpe_rules *r);

/* A known model: its pattern, and the special tokens that its rank file lacks. */
struct bpe_model {
	const char *name, *help, *pattern;
	int64_t n_ranked; /* tokens in its files; 0: any */
	struct {
		const char *text;
		uint32_t id;
	} special[8];	    /* terminated by NULL */
	int64_t n_reserved; /* number of ids, including ids without text; 0: no such ids */
	enum normal_form normalizer; /* unless its file specifies one */
};
/* (each name is a row of bpe_models[]) */
#define BPE_MODELS(X) X(gpt2) X(cl100k) X(o200k) X(llama3) X(qwen2)
extern const struct bpe_model bpe_models[]; /* ends with a NULL name */
const struct bpe_model *bpe_model_find(const char *name);

enum { N_BYTES = 256 };
/* Sets the code of the character that GPT-2's files have for each byte: the byte itself, or a code
 * from N_BYTES on if the byte is not printable in Latin-1 (byte_level.c). */
void byte_level_codes(uint32_t code[N_BYTES]);

/*
 * Reads a vocabulary from a directory or a file: GPT-2's vocab.bpe with encoder.json or merges.txt
 * with vocab.json, tiktoken's rank file, tokenizer.json, tekken.json. model, pattern: may be NULL.
 */
int bpe_read(struct vocab *v, struct bpe_rules *r, const char *path,
	const struct bpe_model *model, const char *pattern, struct err *e);

/* ---- bpe_write.c: vocabulary files ------------------------------------------------- */

/* Append vocab.json, merges.txt, a rank file of tiktoken, and tokenizer.json, which holds all
 * rules. Fail if the format cannot represent the vocabulary. */
typedef int bpe_write_fn(
	struct str *out, const struct vocab *v, const struct bpe_rules *r, struct err *e);
bpe_write_fn bpe_write_vocab, bpe_write_merges, bpe_write_ranks, bpe_write_json;

/* ---- bpe.c: tables; merge.c: a word; encode.c: text ------------------------------- */

struct bpe;
/* Builds the tables for encoding, which borrow v and r. NULL with *e set: invalid rules. */
struct bpe *bpe_open(const struct vocab *v, const struct bpe_rules *r, struct err *e);
void bpe_close(struct bpe *b);

/* The state of one thread: a cache of words, and scratch memory. */
struct encoder;
/* Opens an encoder for one thread. Returns NULL with *e set if a pattern is invalid. */
struct encoder *encoder_open(const struct bpe *b, struct err *e);
void encoder_close(struct encoder *s);
/* Encodes text[0..n) to at most `capacity` tokens, and sets *n_out to their number. Returns the
 * number of bytes used. The caller passes the rest, which more text could change, again with the
 * text that follows; 0 means that more text is needed. All bytes are used if the text is `final`
 * and capacity >= n * normal_growth() of the normalizer. Returns -1 on an error. */
int64_t encoder_encode(struct encoder *s, const char *text, int64_t n, bool final,
	uint32_t *out, int64_t capacity, int64_t *n_out, struct err *e);
/* Sets whether the text of a special token becomes that token; initially it does not. */
void encoder_allow_special(struct encoder *s, bool allowed);
/* Appends the changes of normalization to a whole text; the tokens have the bytes of the changed
 * text. `at`: offset of the text in a longer text, whose earlier changes are in *out. */
int encoder_find_changes(struct encoder *s, const char *text, int64_t n, int64_t at,
	struct text_changes *out, struct err *e);
/* Fails if a special token of these rules has BPE_STRIPS, and so cannot be found in text. */
int bpe_check_special(const struct vocab *v, const struct bpe_rules *r, struct err *e);
