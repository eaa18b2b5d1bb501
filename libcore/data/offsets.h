/* Token offsets of a shard: begins of documents, and spans of tokens that count. */
#pragma once

#include "data/data.h"

/* Flags of tokens that begin a document, and of tokens that do not count as targets of the loss. */
#define DOCUMENT_BEGINS INT32_MIN
#define TOKEN_CONTEXT ((int32_t)1 << 30)
#define TOKEN_FLAGS (DOCUMENT_BEGINS | TOKEN_CONTEXT)

/* The offsets in one split of a file. Documents: the first token of each; the first tokens of the
 * file may continue a document of the previous file. Counted: begin and end of each span. */
struct offsets {
	int64_t *at; /* [n], ascending */
	int64_t n;
};

/* Reads the offsets of documents in a split with `tokens` tokens. Fails without the dataset. */
int documents_read(struct offsets *o, struct h5 *h, const char *name, enum split s,
	int64_t tokens, struct err *e);
/* Reads the spans of tokens that count. Sets *counted to true if the dataset exists. */
int counted_read(struct offsets *o, bool *counted, struct h5 *h, const char *name,
	enum split s, int64_t tokens, struct err *e);
void offsets_free(struct offsets *o);
/* Adds DOCUMENT_BEGINS to the tokens in [at, at + n) that begin a document. */
void documents_mark(const struct offsets *o, int64_t at, int64_t n, int32_t *tokens);
/* Adds TOKEN_CONTEXT to the tokens in [at, at + n) that are not in a span. */
void counted_mark(const struct offsets *o, int64_t at, int64_t n, int32_t *tokens);
uint64_t offsets_hash(const struct offsets *o);
