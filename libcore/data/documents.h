/* Where the documents of shards begin. */
#ifndef DATA_DOCUMENTS_H
#define DATA_DOCUMENTS_H

#include "data/data.h"

/* Set in tokens that begin a document. */
#define DOCUMENT_BEGINS INT32_MIN

/* Those of one split of a file, whose first tokens may belong to a document that began in another file. */
struct documents {
	int64_t *at; /* [n], the first token of each; ascending */
	int64_t n;
};

/* `tokens`: those that the split has in this file. */
int documents_read(struct documents *d, struct h5 *h, const char *name, enum split s,
	int64_t tokens, struct err *e);
void documents_free(struct documents *d);
/* Adds DOCUMENT_BEGINS to those of tokens [at, at + n) that begin a document. */
void documents_mark(const struct documents *d, int64_t at, int64_t n, int32_t *tokens);
uint64_t documents_hash(const struct documents *d);

#endif
