/* Writing of shards. */
#pragma once

#include "prepare/block_writer.h"
#include "prepare/prepare.h"

struct shard_writer;
/* Creates the files. `info` has window_tokens and the totals of all files: the caller must append
 * exactly that many tokens of each split. Returns NULL on error. */
struct shard_writer *shard_writer_open(const struct prepare *p, const struct tokenizer *t,
	const struct shard_info *info, struct err *e);
/* Appends n token ids to split s, narrowed to the shard's width. Returns -1 with *e set. */
int shard_writer_append(struct shard_writer *w, enum split s, const uint32_t *ids,
	int64_t n, struct err *e);
/* Appends n tokens of shard_token_bytes() each. Files are read until shard_writer_finish(). */
int shard_writer_append_raw(struct shard_writer *w, enum split s, struct extent from,
	int64_t n, struct err *e);
/* Divides `all` tokens in info->total: the last ones are for validation. */
void shard_split(struct shard_info *info, int64_t all, double val_fraction);
/* Returns the bytes per token in a shard with this vocabulary: 2 or 4. */
int32_t shard_token_bytes(const struct tokenizer *t);
/* Converts n ids to tokens of token_bytes each. Returns the number of bytes written. */
size_t shard_tokens(void *to, const uint32_t *ids, int64_t n, int64_t token_bytes);
/* Marks the next token of this split as the beginning of a document. */
void shard_writer_begin_document(struct shard_writer *w, enum split s);
/* Sets whether the next tokens of this split count as targets; initially they do. The files record
 * what counts only if this was called. */
void shard_writer_set_counted(struct shard_writer *w, enum split s, bool counted);
/* Sets the number of documents in the attributes of all files. */
void shard_writer_set_documents(struct shard_writer *w, int64_t n);
/* Completes the files after the last token: renames them, or copies the one file to the stream. */
int shard_writer_finish(struct shard_writer *w, struct prepared *out, struct err *e);
/* Removes unfinished files, and frees w (may be NULL). */
void shard_writer_close(struct shard_writer *w);
