/* Files of tokens that other programs read and write: one table of formats. A file is one sequence
 * of tokens, without a vocabulary. A file of Megatron-LM has an index of its documents next to it.
 */
#pragma once

#include "base/file.h"

/* ---- format.c: the formats ------------------------------------------------- */

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

/* ---- file.c: reading ------------------------------------------------------- */

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
