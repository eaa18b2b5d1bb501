/*
 * Tokenizers: by bytes, by characters, by byte-pair encoding. Shards and checkpoints contain one.
 *
 * Files are not trusted. Functions that return int return 0, or -1 with *e set. None is collective.
 */
#pragma once

#include "h5/h5.h"
#include "token/token.h"

/* ---- tokenizer.c: one table; tokenizer_*.c: the kinds ------------------------------- */

struct tokenizer;

/* A kind of tokenizer. Text is passed in pieces; `final` marks the last piece of a document.
 * Functions return the number of bytes used; the caller passes the rest (half a character, for
 * example) again with the next piece. They return TEXT_BAD(i) with *e set if byte i is invalid. */
#define TEXT_BAD(i) (-1 - (int64_t)(i))

struct tokenizer_kind {
	const char *name;
	/* Called for all text before learn_end(), if the vocabulary depends on it; else NULL. */
	int64_t (*learn)(struct tokenizer *t, const char *text, int64_t n, bool final,
		struct err *e);
	int (*learn_end)(struct tokenizer *t, struct err *e);
	/* Prepares encode() after t->vocab has been read from a file. */
	int (*ready)(struct tokenizer *t, struct err *e);
	/* Writes at most `capacity` tokens to out (NULL: only counts). Sets *n_out to their number. */
	int64_t (*encode)(const struct tokenizer *t, const char *text, int64_t n,
		bool final, uint32_t *out, int64_t capacity, int64_t *n_out,
		struct err *e);
	/* Returns a late offset at which a word surely begins; 0, or no function: unknown. */
	int64_t (*cut)(const struct tokenizer *t, const char *text, int64_t n);
	/* Write and read the kind's own state besides the vocabulary; NULL: no state. read() and
	 * unpack() are called before ready(). */
	int (*write)(const struct tokenizer *t, struct h5 *f, struct err *e);
	int (*read)(struct tokenizer *t, struct h5 *f, struct err *e);
	void (*pack)(const struct tokenizer *t, struct str *out);
	void (*unpack)(struct tokenizer *t, const char *packed);
	void (*release)(struct tokenizer *t); /* does not free t->own itself */
};

struct tokenizer {
	const struct tokenizer_kind *kind;
	struct vocab vocab;
	void *own; /* state of the kind, one allocation */
	/* The template for conversations: a name or JSON, see chat_template_text(). Stored with the
	 * vocabulary in files, but ignored by tokenizer_equal(). NULL: none. */
	char *chat_template;
};

/* To add a tokenizer, write a file and add an entry here. */
#define TOKENIZERS(X) X(byte) X(char) X(bpe)
#define TOKENIZER_ROW(name) extern const struct tokenizer_kind tokenizer_##name;
TOKENIZERS(TOKENIZER_ROW)
#undef TOKENIZER_ROW
/* The names of all kinds and of bpe_models[], for an option; terminated by NULL. */
extern const char *const tokenizer_names[];

/* The description of a tokenizer to be made. */
struct tokenizer_source {
	const char *name;	 /* one of tokenizer_names[] */
	const char *vocab_files; /* for byte-pair encoding: a directory or a file */
	const char *pattern; /* splits text into words; NULL: the model's or the files' */
	bool special;	     /* texts of special tokens become these tokens */
};

/* Sets the kind only: there is no vocabulary yet. Returns -1 for an unknown kind. */
int tokenizer_init(struct tokenizer *t, const char *kind, struct err *e);
/* Makes the tokenizer that s describes; a kind that learns still has no vocabulary. */
int tokenizer_make(struct tokenizer *t, const struct tokenizer_source *s, struct err *e);
enum { MAX_VOCAB = 1 << 24 };
/* Makes a tokenizer of n tokens with unknown bytes, which cannot encode and decodes to nothing. */
int tokenizer_init_ids(struct tokenizer *t, int64_t n, struct err *e);
void tokenizer_release(struct tokenizer *t);
/* Writes a tokenizer to the group /tokenizer of an HDF5 file. */
int tokenizer_write(const struct tokenizer *t, struct h5 *f, struct err *e);
/* Reads the tokenizer of an HDF5 file, for tokenizer_release(); an unknown kind can only decode. */
int tokenizer_read(struct tokenizer *t, struct h5 *f, struct err *e);
/* Serializes a tokenizer, without its chat template, to send it to another rank, and back. */
void tokenizer_pack(const struct tokenizer *t, struct str *out);
/* Makes a tokenizer from the bytes that tokenizer_pack() wrote, without a chat template. */
int tokenizer_unpack(struct tokenizer *t, const struct str *packed, struct err *e);
/* Returns the maximum number of tokens of n bytes of text. */
int64_t tokenizer_max_tokens(const struct tokenizer *t, int64_t n);
/* Encodes a whole text. The caller frees *ids. Returns the number of tokens, or -1. */
int64_t tokenizer_encode_all(const struct tokenizer *t, const char *text, int64_t n,
	uint32_t **ids, struct err *e);
/* Returns how many bytes of text[0..n), the beginning of a longer text, can be encoded without the
 * rest; 0: more text is needed; -1 on an error. t NULL: up to the end of a UTF-8 character. */
int64_t tokenizer_cut(
	const struct tokenizer *t, const char *text, int64_t n, struct err *e);
/* Appends the bytes of a token; nothing for an id outside the vocabulary. */
void tokenizer_decode(const struct tokenizer *t, int64_t id, struct str *out);
/* Returns true if both make the same tokens of every text, even if their kinds differ. */
bool tokenizer_equal(const struct tokenizer *a, const struct tokenizer *b);
/* Returns the token at the end of a document; -1: none. */
int64_t tokenizer_end_of_text(const struct tokenizer *t);
extern const struct h5_field tokenizer_fields[], bpe_fields[]; /* for the manual */

/* ---- bpe_write.c ----------------------------------------------------------------------- */

/* Appends a tokenizer.json with which Hugging Face's library makes the same tokens of a text. */
int tokenizer_write_json(const struct tokenizer *t, struct str *out, struct err *e);

/* ---- tokenizer_bpe.c ----------------------------------------------------------------------- */

/* Returns the rules of a tokenizer; NULL: it is not of kind bpe, or not ready. */
const struct bpe_rules *bpe_rules_of(const struct tokenizer *t);
/* Makes t of kind bpe (or char) from the vocabulary files of s. */
int bpe_make(struct tokenizer *t, const struct tokenizer_source *s,
	const struct bpe_model *model, struct err *e);
/* Returns the name of the normalization form, "none" if there is none. */
const char *tokenizer_normalizer(const struct tokenizer *t);
/* Appends the changes of normalization to a whole text; only kind bpe makes any. */
int tokenizer_find_changes(const struct tokenizer *t, const char *text, int64_t n,
	int64_t at, struct text_changes *out, struct err *e);
/* Makes encoding replace the text of a special token by that token. */
int tokenizer_allow_special(struct tokenizer *t, struct err *e);
