/*
 * token: byte-pair encoding: vocabulary files, the patterns that split text into words, and the
 * encoder. tokenizer.h: tokenizers of all kinds, in files and on their way to other ranks.
 *
 * Files are not trusted. Functions that return int return 0, or -1 with *e set. No call is
 * collective. What is const may be used by many threads at once.
 */
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

/* The class of each code point, [0x110000]. */
const uint8_t *char_classes(void);

/* ---- normalize.c: equal texts in one form ------------------------------------------ */

/*
 * The forms of UAX #15, with the characters of Unicode 9.0, which Hugging Face's tokenizers knows: later ones, and bytes
 * that are not UTF-8, stay as they are. So the result does not depend on the version of utf8proc.
 */
enum normal_form {
	NORMAL_NONE,
	NORMAL_NFC,
	NORMAL_NFD,
	NORMAL_NFKC,
	NORMAL_NFKD,
	N_NORMAL_FORMS
};
extern const char *const normal_forms[]; /* their names; closed by NULL */
/* A text becomes so many times longer, in bytes, at most. */
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

/*
 * A pattern is the name of one of split_patterns[], or a regular expression of PCRE2 (in UTF mode).
 * A word is a match of the pattern, or the text between two matches, so that the words are always
 * the whole text. A byte that is not UTF-8 is a character that is neither letter, number nor space
 * for the patterns with a name, and belongs to no match of a regular expression.
 */
struct split_pattern {
	const char *name;
	const char
		*regex; /* what it does, in the words of tiktoken and of tokenizer.json */
	/* Other regular expressions that mean the same; NULL-terminated. */
	const char *same[4];
};
extern const struct split_pattern split_patterns[]; /* ends with a NULL name */
/* The row of a name, or of a regular expression that means the same; NULL: none. */
const struct split_pattern *split_find(const char *name_or_regex);

/* One thread uses a splitter at a time. */
struct splitter;
struct splitter *splitter_open(const char *pattern, struct err *e); /* NULL: an error */
void splitter_close(struct splitter *s);
/*
 * Finds words from the beginning of text[0..n) on, n < 2^31: sets at most `max` of ends[], the
 * offsets behind each word, and returns their number. Unless `final`, more text follows, and words
 * that it could change are left out: 0 means that none is certain without more text. Returns -1 on an
 * error (a limit of PCRE2).
 */
int split_words(struct splitter *s, const char *text, int64_t n, bool final,
	uint32_t *ends, int max, struct err *e);
/*
 * Where text[0..n), the beginning of a longer text, may be cut: as late as possible between a letter of ASCII and
 * a space, or between the only line feed behind something visible and a letter, where no pattern with a name
 * has a word across. 0: nowhere.
 */
int64_t split_cut(const char *text, int64_t n);

/* ---- vocab.c: vocabularies; read_*.c: their files --------------------------------- */

/* The bytes of all tokens: token i is bytes [offset[i], offset[i + 1]). */
struct vocab {
	int64_t n;
	uint8_t *bytes;
	int64_t *offset; /* [n + 1] */
};

/* What a vocabulary needs to encode; all allocated. */
struct bpe_rules {
	/* How text is split into words: a name or a regular expression, or several lines of them, of
	 * which each splits the words of the one before. */
	char *pattern;
	enum normal_form normalizer; /* of text between the tokens that are found in it */
	/*
	 * Merges in order: pairs of tokens, of which the earlier is merged first. Without them
	 * (n_merges = 0), the order is that of tiktoken: any two tokens merge whose bytes together
	 * are one of the tokens [0, n_ranked), the lowest first.
	 */
	uint32_t *merges; /* [n_merges][2] */
	int64_t n_merges, n_ranked;
	bool whole_words; /* a word that is a token is that token, whatever the merges */
	/* Tokens beside the words, that no merge makes. */
	struct bpe_added *added; /* [n_added] */
	int64_t n_added;
	uint32_t end_of_text; /* its id; BPE_NONE */
	/* Each token is a character, and nothing else is set: the tokenizer is of kind char. */
	bool characters;
};

#define BPE_NONE UINT32_MAX

/* Bytes of a token of a rank file: longer ones would make too many pairs. */
enum { BPE_MAX_RANKED = 4096 };

enum {
	BPE_SPECIAL = 1, /* it is only found in text if that is asked for; else always */
	BPE_NORMALIZED = 2, /* it is found in what the others leave of the text */
	BPE_STRIPS =
		4, /* (special) it takes white space beside it, or is no part of a word: it
			     * cannot be found in text */
};

struct bpe_added {
	uint32_t id;
	uint32_t flags;
};

void vocab_free(struct vocab *v);
void bpe_rules_free(struct bpe_rules *r);

/* Known models: the pattern of each and the special tokens beside its rank file. */
struct bpe_model {
	const char *name, *help, *pattern;
	int64_t n_ranked; /* tokens in its files; 0: any */
	struct {
		const char *text;
		uint32_t id;
	} special[8];	    /* closed by NULL */
	int64_t n_reserved; /* ids in all, of which some have no text; 0: as many as have */
	enum normal_form normalizer; /* unless its file says one */
};
/* (a name here is a row of the table) */
#define BPE_MODELS(X) X(gpt2) X(cl100k) X(o200k) X(llama3) X(qwen2)
extern const struct bpe_model bpe_models[]; /* ends with a NULL name */
const struct bpe_model *bpe_model_find(const char *name);

enum { N_BYTES = 256 };
/* byte_level.c: the code of the character that GPT-2's files have for a byte: itself, or from N_BYTES on if it is not
 * printable in Latin-1. */
void byte_level_codes(uint32_t code[N_BYTES]);

/*
 * Reads a vocabulary from a folder, or from a file: GPT-2's vocab.bpe with encoder.json beside it
 * or merges.txt with vocab.json, a rank file of tiktoken, tokenizer.json, tekken.json. model: NULL for any.
 * pattern: NULL for that of the model or the file.
 */
int bpe_read(struct vocab *v, struct bpe_rules *r, const char *path,
	const struct bpe_model *model, const char *pattern, struct err *e);

/* ---- bpe_write.c: their files ------------------------------------------------------ */

/* They append vocab.json, merges.txt, a rank file of tiktoken, and tokenizer.json, which says all. An error: it
 * cannot say that. */
typedef int bpe_write_fn(
	struct str *out, const struct vocab *v, const struct bpe_rules *r, struct err *e);
bpe_write_fn bpe_write_vocab, bpe_write_merges, bpe_write_ranks, bpe_write_json;

/* ---- bpe.c: tables; merge.c: a word; encode.c: text ------------------------------- */

/* The tables to encode with. It borrows the vocabulary and the rules. */
struct bpe;
struct bpe *bpe_open(const struct vocab *v, const struct bpe_rules *r,
	struct err *e); /* NULL: error */
void bpe_close(struct bpe *b);

/* The state of one thread: known words, and memory. */
struct encoder;
struct encoder *encoder_open(const struct bpe *b, struct err *e); /* NULL: an error */
void encoder_close(struct encoder *s);
/*
 * Encodes text[0..n) to at most `room` tokens, and sets their number. Returns the number of bytes that
 * it used: the rest, which more text could change, is to be passed again with the text that follows;
 * 0 means that more text is needed. All is used if it is `final` and room >= n * normal_growth() of the
 * rules. Returns -1 on an error.
 */
int64_t encoder_put(struct encoder *s, const char *text, int64_t n, bool final,
	uint32_t *out, int64_t room, int64_t *n_out, struct err *e);
/* The text of a special token becomes this token from now on; if not, as at first, tokens of its bytes. */
void encoder_special(struct encoder *s, bool allowed);
/* Appends what the encoder changes in a whole text before it splits it: the bytes of its tokens are those of the changed
 * text. `at`: where the text is in a longer one, of which *out has the changes before it. */
int encoder_changes(struct encoder *s, const char *text, int64_t n, int64_t at,
	struct text_changes *out, struct err *e);
/* Can the special tokens of these rules be found in text? */
int bpe_check_special(const struct vocab *v, const struct bpe_rules *r, struct err *e);
