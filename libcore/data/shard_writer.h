/* Shared by prepare.c and shard_writer.c only: where tokens go. */
#ifndef DATA_SHARD_WRITER_H
#define DATA_SHARD_WRITER_H

#include "data/data.h"

struct shard_writer;
/* `info` has the totals; the tokens of each split then come in order, and no more. NULL on
 * error. */
struct shard_writer *shard_writer_open(const struct prepare *p, const struct tokenizer *t,
	const struct shard_info *info, struct err *e);
int shard_writer_put(struct shard_writer *w, enum split s, const uint32_t *ids, int64_t n,
	struct err *e);
/* All tokens came: the files get their names, or the image goes to stdout. */
int shard_writer_finish(struct shard_writer *w, struct prepared *out, struct err *e);
void shard_writer_close(struct shard_writer *w); /* what is not finished is removed */

#endif
