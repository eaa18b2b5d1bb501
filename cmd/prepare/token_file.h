/*
 * Files of tokens that other programs read and write: one table of formats. A file is one sequence of
 * tokens, without a vocabulary; that of Megatron-LM has an index of its documents beside it.
 */
#pragma once

#include "prepare/prepare.h"

/* ---- token_format.c: the formats ------------------------------------------------- */

struct token_type {
	int bytes; /* 0: none */
	bool has_sign;
};

struct token_file {
	const struct token_format *format;
	char *path; /* its name in messages, too */
	int fd;
	int64_t begin; /* of the tokens, in bytes */
	int64_t n;
	struct token_type type;
	int64_t *
		documents; /* the tokens at which they begin, ascending; NULL: not known */
	int64_t n_documents;
};

/* Lengths of documents, which an index has. */
struct token_lengths {
	int32_t *v;
	int64_t n;
};

struct token_format {
	const char *name;
	bool (*detect)(const char *path, const char *first, size_t n);
	/* Changes the name of a file to that of its tokens; NULL: they are the same. */
	void (*name_of)(struct str *path);
	/* Sets type, begin, n and documents of a file of n_bytes. */
	int (*open)(struct token_file *f, int64_t n_bytes, struct err *e);
	/* The type of tokens in a vocabulary of this size; of 0 bytes if it is too large. */
	struct token_type (*type)(int64_t vocab);
	int64_t most; /* tokens in a file; 0: any number */
	int64_t header_bytes;
	void (*header)(char *header, struct token_type type, int64_t n);
	/* Appends the index; NULL: there is none. With one, a file has whole documents. */
	void (*index)(
		struct str *out, struct token_type type, const struct token_lengths *l);
};

#define TOKEN_FORMATS(X) X(llmc) X(megatron) X(nanogpt)
#define TOKEN_FORMAT_WORD(name) #name,
/* The words of options; of --format behind FORMAT_WORDS. */
#define TOKENS_FROM_WORDS "shard", TOKEN_FORMATS(TOKEN_FORMAT_WORD)
#define TOKENS_TO_WORDS "shard", TOKEN_FORMATS(TOKEN_FORMAT_WORD)

/* NULL: there is none of this name. */
const struct token_format *token_format_named(const char *name);
/* By its name and its first bytes; NULL: it is text, or a shard. */
const struct token_format *token_format_detect(const char *path);
/* The name of the index of tokens in `path`. */
void token_index_name(struct str *out, const char *path);

/* ---- token_file.c: reading ------------------------------------------------------- */

/* A stream is copied to a temporary file. */
int token_file_open(struct token_file *f, const char *path,
	const struct token_format *format, struct err *e);
/* Reads tokens [at, at + n), each of which must be less than `vocab`. */
int token_file_read(const struct token_file *f, int64_t at, int64_t n, int64_t vocab,
	uint32_t *out, struct err *e);
void token_file_close(struct token_file *f);
/* The mask of a file of n tokens: a token counts if its number is not 0. It is a file of Megatron-LM or llm.c, or
 * has one byte a token. */
int token_mask_open(struct token_file *f, const char *path, int64_t n, struct err *e);

/* ---- token_writer.c: writing ----------------------------------------------------- */

/* Writes PREFIX_train.bin and PREFIX_val.bin, or of several, PREFIX_train_00000.bin and so on; p->out is
 * PREFIX or PREFIX.bin, and without '_' if it ends with '/'. `masks`: also PREFIX_train.mask and so on, with a byte
 * for each token, 1 if it counts. */
struct token_writer;
struct token_writer *token_writer_open(const struct token_format *format,
	const struct prepare *p, int64_t vocab, bool masks,
	struct err *e); /* NULL on error */
/* `begins`: a document begins with these tokens. */
int token_writer_put(struct token_writer *w, enum split s, bool begins, bool counts,
	const uint32_t *ids, int64_t n, struct err *e);
/* After the last token: renames the files. */
int token_writer_finish(struct token_writer *w, struct prepared *out, struct err *e);
void token_writer_close(struct token_writer *w); /* removes unfinished files */

/* ---- token_convert.c: tokens to tokens ---------------------------------------------- */

/* Token files of other programs and shards, to either. */
struct token_convert {
	const struct prepare *p;  /* of which tokenizer and separator are not used */
	const char *from, *to;	  /* words of the options */
	const struct strs *val;	  /* token files for validation; none: p splits */
	const struct strs *masks; /* of each file: which tokens count; none: all do */
	const char *vocab_from;	  /* a shard with the tokenizer; NULL: there is none */
	int64_t vocab; /* size of the vocabulary without a tokenizer; 0: by the largest id */
	int64_t end_of_text; /* the token that ends a document; -1: that of the tokenizer, or none */
};

/* Is it a shard, or a token file of another program? By its name and its first bytes. */
bool is_token_file(const char *path);
/* Are the inputs tokens, not text? -1 with *e set if some are and others are not. */
int token_convert_takes(
	const struct token_convert *c, const struct strs *inputs, struct err *e);
/* Also of text, which becomes a shard in a temporary file first. */
int token_convert_run(const struct token_convert *c, const struct strs *inputs,
	struct prepared *out, struct err *e);

/* ---- outputs.c ----------------------------------------------------------------------- */

/* Fails if an output exists, and is also an input. `tokens`: the operands have tokens. */
int outputs_check(const struct token_convert *c, bool tokens, const struct strs *operands,
	struct err *e);
