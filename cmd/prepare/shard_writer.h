/* Writing of shards. */
#pragma once

#include "prepare/block_writer.h"
#include "prepare/prepare.h"

struct shard_writer;
/* `info` has the totals of all files, and window_tokens; exactly as many tokens of each split must follow, in order.
 * Returns NULL on error. */
struct shard_writer *shard_writer_open(const struct prepare *p, const struct tokenizer *t,
	const struct shard_info *info, struct err *e);
int shard_writer_put(struct shard_writer *w, enum split s, const uint32_t *ids, int64_t n,
	struct err *e);
/* Puts tokens that are as wide as in the shard. Those in a file are read later, but before
 * shard_writer_finish() returns. */
int shard_writer_put_raw(struct shard_writer *w, enum split s, struct extent from,
	int64_t n, struct err *e);
/* Divides all tokens by tail: the last ones are for validation. */
void shard_split(struct shard_info *info, int64_t all, double val_fraction);
/* Bytes of a token of this vocabulary in a file: 2 or 4; and tokens of so many. Returns all of their bytes. */
int32_t shard_token_bytes(const struct tokenizer *t);
size_t shard_tokens(void *to, const uint32_t *ids, int64_t n, int64_t token_bytes);
/* The next token of this split begins a document. */
void shard_writer_document(struct shard_writer *w, enum split s);
/* Whether the next tokens of this split count as targets, which they do at first. Once this has been
 * called, the files say what counts. */
void shard_writer_counted(struct shard_writer *w, enum split s, bool counted);
void shard_writer_documents(
	struct shard_writer *w, int64_t n); /* how many, if not as in info */
/* After the last token: renames the files, or copies the image to the stream. */
int shard_writer_finish(struct shard_writer *w, struct prepared *out, struct err *e);
void shard_writer_close(struct shard_writer *w); /* removes unfinished files */
