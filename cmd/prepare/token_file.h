/* Files of tokens that other programs read and write: one table of formats. A file is one sequence
 * of tokens, without a vocabulary. A file of Megatron-LM has an index of its documents next to it.
 */
#pragma once

#include "prepare/prepare.h"

/* ---- token_format.c: the formats ------------------------------------------------- */

struct token_type {
	int bytes; /* per token; 0: none */
	bool has_sign;
};

struct token_file {
	const struct token_format *format;
	char *path; /* file with the tokens, and its name in messages */
	int fd;
	int64_t begin; /* offset of the first token, in bytes */
	int64_t n;     /* tokens */
	struct token_type type;
	int64_t *documents; /* [n_documents], first tokens, ascending; NULL: unknown */
	int64_t n_documents;
};

/* Lengths of documents in tokens, for an index. */
struct token_lengths {
	int32_t *v;
	int64_t n;
};

struct token_format {
	const char *name;
	/* Returns true if a file has this format, by its path and its first n bytes. */
	bool (*detect)(const char *path, const char *first, size_t n);
	/* Changes an operand to the path of the file with the tokens; NULL: not necessary. */
	void (*to_tokens_path)(struct str *path);
	/* Sets type, begin, n and documents of a file of n_bytes. */
	int (*open)(struct token_file *f, int64_t n_bytes, struct err *e);
	/* Returns the type of tokens in a vocabulary of this size; 0 bytes: it is too large. */
	struct token_type (*type)(int64_t vocab);
	int64_t max_tokens; /* maximum number of tokens in a file; 0: none */
	int64_t header_bytes;
	/* Writes the header of a file of n tokens; NULL: none. */
	void (*header)(char *header, struct token_type type, int64_t n);
	/* Appends the index; NULL: none. Files with an index have whole documents. */
	void (*index)(
		struct str *out, struct token_type type, const struct token_lengths *l);
};

#define TOKEN_FORMATS(X) X(llmc) X(megatron) X(nanogpt)
#define TOKEN_FORMAT_WORD(name) #name,
/* The words of options; --format has them after FORMAT_WORDS. */
#define TOKENS_FROM_WORDS "shard", TOKEN_FORMATS(TOKEN_FORMAT_WORD)
#define TOKENS_TO_WORDS "shard", TOKEN_FORMATS(TOKEN_FORMAT_WORD)

/* Returns the format with this name, or NULL. */
const struct token_format *token_format_named(const char *name);
/* Returns the format by the file's name and first bytes; NULL: text or a shard. */
const struct token_format *token_format_detect(const char *path);
/* Appends the name of the index file of the tokens in `path`. */
void token_index_name(struct str *out, const char *path);

/* ---- token_file.c: reading ------------------------------------------------------- */

/* Opens a token file. A stream is copied to a temporary file. */
int token_file_open(struct token_file *f, const char *path,
	const struct token_format *format, struct err *e);
/* Reads tokens [at, at + n), which must all be less than `vocab`. */
int token_file_read(const struct token_file *f, int64_t at, int64_t n, int64_t vocab,
	uint32_t *out, struct err *e);
void token_file_close(struct token_file *f);
/* Opens the mask of a file of n tokens: a token counts if its mask value is not 0. A mask is a
 * file of Megatron-LM or llm.c, or has one byte per token. */
int token_mask_open(struct token_file *f, const char *path, int64_t n, struct err *e);

/* ---- token_writer.c: writing ----------------------------------------------------- */

/* Writes PREFIX_train.bin and PREFIX_val.bin, or with p->shard_bytes PREFIX_train_00000.bin and so
 * on; p->out is PREFIX or PREFIX.bin, and '_' is omitted after a '/'. With `masks`, also writes
 * PREFIX_train.mask and so on, with one byte per token, 1 if it counts. */
struct token_writer;
struct token_writer *token_writer_open(const struct token_format *format,
	const struct prepare *p, int64_t vocab, bool masks,
	struct err *e); /* NULL on error */
/* Appends n tokens to a split; all of them count, or none. begins_document: with the first. */
int token_writer_append(struct token_writer *w, enum split s, bool begins_document,
	bool counts, const uint32_t *ids, int64_t n, struct err *e);
/* Completes and renames the files, after the last token. */
int token_writer_finish(struct token_writer *w, struct prepared *out, struct err *e);
/* Removes unfinished files, and frees w (may be NULL). */
void token_writer_close(struct token_writer *w);

/* ---- token_convert.c: tokens to tokens ---------------------------------------------- */

/* Converts between token files of other programs and shards. */
struct token_convert {
	const struct prepare *p;  /* options */
	const char *from, *to;	  /* formats: words of the options */
	const struct strs *val;	  /* token files for validation; none: p->val_fraction */
	const struct strs *masks; /* one per token file; none: all tokens count */
	const char *vocab_from;	  /* a shard with the tokenizer; NULL: none */
	int64_t vocab; /* vocabulary size without a tokenizer; 0: largest id + 1 */
	int64_t end_of_text; /* token that ends a document; -1: the tokenizer's, if it has one */
};

/* Returns true for a shard or a token file of another program, by its name and first bytes. */
bool is_token_file(const char *path);
/* Returns 1 if all inputs contain tokens, 0 if all are text, and -1 with *e set otherwise. */
int token_convert_accepts(
	const struct token_convert *c, const struct strs *inputs, struct err *e);
/* Converts the inputs. Text is first converted to a shard in a temporary file. */
int token_convert_run(const struct token_convert *c, const struct strs *inputs,
	struct prepared *out, struct err *e);

/* ---- outputs.c ----------------------------------------------------------------------- */

/* Fails if an output is also an input. has_tokens: the operands contain tokens, not text. */
int outputs_check(const struct token_convert *c, bool has_tokens,
	const struct strs *operands, struct err *e);
