/* Token offsets of a shard: where documents begin, and which tokens count. */
#pragma once

#include "data/data.h"

/* Set in tokens that begin a document, and in those without weight as targets of the loss. */
#define DOCUMENT_BEGINS INT32_MIN
#define TOKEN_CONTEXT ((int32_t)1 << 30)
#define TOKEN_FLAGS (DOCUMENT_BEGINS | TOKEN_CONTEXT)

/* Those of one split of a file. Documents: the first token of each; the first tokens of the file may
 * belong to a document that began in another one. Counted: begin and end of each span. */
struct offsets {
	int64_t *at; /* [n], ascending */
	int64_t n;
};

/* `tokens`: those that the split has in this file. documents_read() needs the dataset, counted_read()
 * sets *counted to whether it exists. */
int documents_read(struct offsets *o, struct h5 *h, const char *name, enum split s,
	int64_t tokens, struct err *e);
int counted_read(struct offsets *o, bool *counted, struct h5 *h, const char *name,
	enum split s, int64_t tokens, struct err *e);
void offsets_free(struct offsets *o);
/* Adds DOCUMENT_BEGINS to those of tokens [at, at + n) that begin a document. */
void documents_mark(const struct offsets *o, int64_t at, int64_t n, int32_t *tokens);
/* Adds TOKEN_CONTEXT to those of tokens [at, at + n) that are in no span. */
void counted_mark(const struct offsets *o, int64_t at, int64_t n, int32_t *tokens);
uint64_t offsets_hash(const struct offsets *o);
