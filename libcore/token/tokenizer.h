/*
 * Tokenizers: by bytes, by characters, by byte-pair encoding. One is part of each shard and checkpoint.
 *
 * Files are not trusted. Functions that return int return 0, or -1 with *e set. No call is collective.
 */
#pragma once

#include "h5/h5.h"
#include "token/token.h"

/* ---- tokenizer.c: one table; tokenizer_*.c: the kinds ------------------------------- */

struct tokenizer;

/*
 * A kind of tokenizer. Text is passed in pieces; `final` marks the last piece of a document.
 * Functions return the number of bytes that they used, and the rest (half a character, for example)
 * is passed again with the next piece; or TEXT_BAD(i) with *e set, if byte i is invalid.
 */
#define TEXT_BAD(i) (-1 - (int64_t)(i))

struct tokenizer_kind {
	const char *name;
	/* Called for all of the text, on which the vocabulary depends (NULL: it does not); then learn_end() builds
	 * t->vocab, unless it is there. */
	int64_t (*learn)(struct tokenizer *t, const char *text, int64_t n, bool final,
		struct err *e);
	int (*learn_end)(struct tokenizer *t, struct err *e);
	/* Prepares encode() after t->vocab has been read from a file. */
	int (*ready)(struct tokenizer *t, struct err *e);
	/* Writes at most `room` tokens to out (NULL: counts only), and their number to *n_out; see
	 * tokenizer_room(). */
	int64_t (*encode)(const struct tokenizer *t, const char *text, int64_t n,
		bool final, uint32_t *out, int64_t room, int64_t *n_out, struct err *e);
	/* The beginning of the last word of text[0..n), or of an earlier one, that is sure whatever
	 * follows; 0: not known. NULL: never known. */
	int64_t (*cut)(const struct tokenizer *t, const char *text, int64_t n);
	/* What the kind has beside the vocabulary; each NULL if there is nothing. read() and
	 * unpack() come before ready(). */
	int (*write)(const struct tokenizer *t, struct h5 *f, struct err *e);
	int (*read)(struct tokenizer *t, struct h5 *f, struct err *e);
	void (*pack)(const struct tokenizer *t, struct str *out);
	void (*unpack)(struct tokenizer *t, const char *packed);
	void (*release)(struct tokenizer *t); /* but for t->own itself */
};

struct tokenizer {
	const struct tokenizer_kind *kind;
	struct vocab vocab;
	void *own; /* state of the kind, one allocation */
	/* The template of its conversations, of which a floor knows no more than the text: a
	 * name or JSON. It goes with the vocabulary through files, but is no part of it: two
	 * of a vocabulary may differ. NULL: none. */
	char *chat_template;
};

/* A tokenizer is a file and an entry here. */
#define TOKENIZERS(X) X(byte) X(char) X(bpe)
#define TOKENIZER_ROW(name) extern const struct tokenizer_kind tokenizer_##name;
TOKENIZERS(TOKENIZER_ROW)
#undef TOKENIZER_ROW
/* Their names and those of bpe_models[], for an option; closed by NULL. */
extern const char *const tokenizer_names[];

/* What to make a tokenizer of. */
struct tokenizer_source {
	const char *name;	 /* of tokenizer_names[] */
	const char *vocab_files; /* of byte-pair encoding: a folder or a file */
	const char *pattern;	 /* of its words; NULL: that of the model or the files */
	bool special;		 /* special tokens in the text become these tokens */
};

int tokenizer_init(struct tokenizer *t, const char *kind, struct err *e);
int tokenizer_make(struct tokenizer *t, const struct tokenizer_source *s, struct err *e);
/* One of n tokens whose bytes are not known: it cannot encode, and decodes to nothing. */
enum { MAX_VOCAB = 1 << 24 };
int tokenizer_of_ids(struct tokenizer *t, int64_t n, struct err *e);
void tokenizer_free(struct tokenizer *t);
int tokenizer_write(const struct tokenizer *t, struct h5 *f, struct err *e);
int tokenizer_read(struct tokenizer *t, struct h5 *f, struct err *e);
/* Serialises a tokenizer without its chat template to send it to another rank, and back. */
void tokenizer_pack(const struct tokenizer *t, struct str *out);
int tokenizer_unpack(struct tokenizer *t, const struct str *packed, struct err *e);
/* How many tokens n bytes of text can be at most. */
int64_t tokenizer_room(const struct tokenizer *t, int64_t n);
/* Encodes a whole text. *ids is allocated; returns the number of tokens, or -1. */
int64_t tokenizer_encode_all(const struct tokenizer *t, const char *text, int64_t n,
	uint32_t **ids, struct err *e);
/* How many of text[0..n), the beginning of a longer text, can be encoded apart from the rest; 0: more
 * text is needed. t NULL: up to the end of a UTF-8 character. -1 on an error. */
int64_t tokenizer_cut(
	const struct tokenizer *t, const char *text, int64_t n, struct err *e);
/* Appends the bytes of a token; nothing for an id outside the vocabulary. */
void tokenizer_decode(const struct tokenizer *t, int64_t id, struct str *out);
/* Do they make the same tokens of every text? Bytes may be of kind byte or bpe. */
bool tokenizer_same(const struct tokenizer *a, const struct tokenizer *b);
/* The token at the end of a document; -1: the tokenizer has none. */
int64_t tokenizer_end_of_text(const struct tokenizer *t);
extern const struct h5_field tokenizer_fields[], bpe_fields[]; /* for the manual */

/* ---- bpe_write.c ----------------------------------------------------------------------- */

/* tokenizer.json, with which Hugging Face's library makes the same tokens of a text. */
int tokenizer_write_json(const struct tokenizer *t, struct str *out, struct err *e);

/* ---- tokenizer_bpe.c ----------------------------------------------------------------------- */

/* The state of a tokenizer of kind bpe: t->own. NULL: of another kind, or not ready. */
const struct bpe_rules *bpe_rules_of(const struct tokenizer *t);
/* Reads the vocabulary and the rules of t. */
int bpe_make(struct tokenizer *t, const struct tokenizer_source *s,
	const struct bpe_model *model, struct err *e);
/* The name of its form of Unicode; "none". */
const char *tokenizer_normalizer(const struct tokenizer *t);
/* As encoder_changes(); other tokenizers change nothing. */
int tokenizer_changes(const struct tokenizer *t, const char *text, int64_t n, int64_t at,
	struct text_changes *out, struct err *e);
/* The text of a special token becomes this token from now on. */
int tokenizer_allow_special(struct tokenizer *t, struct err *e);
