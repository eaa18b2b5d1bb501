/* Shards in which some tokens do not count, written by the writer of pt-prepare. */
#include "tests/support/counted.h"

#include "data/offsets.h"
#include "prepare/shard_writer.h"
#include "tests/support/support.h"

#include <stdlib.h>

bool test_counts(enum counted_kind kind, enum split s, int64_t token)
{
	static const double parts[] = {1, 0, 0.5, 0.02};
	double part = kind == COUNTED_FEW ? 0.01 : parts[token / 100 % 4];
	return kind == COUNTED_ALL || test_uniform(71 + s, token) < part;
}

static void copy_split(struct corpus *c, struct shard_writer *w, enum counted_kind kind,
	enum split s, struct err *e)
{
	int64_t n = corpus_tokens(c, s);
	int32_t *ids = xcalloc((size_t)n + 1, sizeof(*ids));
	if (corpus_read(c, s, 0, n, ids, e))
		die_err(e);
	corpus_mark(c, s, 0, n, ids);
	for (int64_t i = 0; i < n; i++) {
		const uint32_t id = (uint32_t)(ids[i] & ~TOKEN_FLAGS);
		if (ids[i] & DOCUMENT_BEGINS)
			shard_writer_begin_document(w, s);
		if (kind != COUNTED_ALL)
			shard_writer_set_counted(w, s, test_counts(kind, s, i));
		if (shard_writer_append(w, s, &id, 1, e))
			die_err(e);
	}
	free(ids);
}

char *test_counted_shard(const char *shard, enum counted_kind kind)
{
	struct corpus *c;
	struct prepared made = {0};
	struct strs files = {0};
	struct err e = {0};
	char name[32];
	snprintf(name, sizeof(name), "counted-%d.h5", (int)kind);
	strs_add(&files, shard);
	if (corpus_open(&c, &files, CORPUS_DOCUMENTS, &e))
		die_err(&e);
	strs_free(&files);
	struct prepare p = {.out = test_path(name), .overwrite = true};
	struct shard_info info = *corpus_info(c, 0);
	struct shard_writer *w = shard_writer_open(&p, corpus_tokenizer(c), &info, &e);
	if (!w)
		die_err(&e);
	for (int s = 0; s < N_SPLITS; s++)
		copy_split(c, w, kind, (enum split)s, &e);
	if (shard_writer_finish(w, &made, &e))
		die_err(&e);
	shard_writer_close(w);
	corpus_close(c);
	char *path = xstrdup(made.files.v[0]);
	strs_free(&made.files);
	return path;
}
