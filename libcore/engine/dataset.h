/* dataset: the shards of a run, described to all ranks. */
#pragma once

#include "comm/comm.h"
#include "data/data.h"
#include "engine/options.h"
#include "model/model.h"

/* Advice for shards with different vocabularies. */
#define ONE_VOCABULARY                                                             \
	"the default vocabulary is the characters of the text; prepare all "       \
	"texts with one vocabulary: in one call of pt-prepare with --shard-size, " \
	"or each with -t byte or the same --vocab-files"

struct dataset {
	struct corpus *corpus; /* NULL on ranks that do not read */
	struct tokenizer tokenizer;
	int64_t tokens[N_SPLITS];
	uint64_t hash;
	int64_t window; /* tokens per window that documents are packed in; 0: no windows */
	bool counted; /* some targets may have no weight, so they are counted; same on all ranks */
	int readers;
	const char *file; /* the first file that this rank reads */
};

/* Collective. Opens the shards of a run, and describes them to all ranks. Errors are agreed on. */
int dataset_open(
	struct dataset *d, const struct train_opts *o, struct comm *world, struct err *e);
/* Returns the number of targets with a weight in n windows, [n][context + 1]. */
int64_t dataset_count_targets(
	const struct dataset *d, const int32_t *windows, int64_t n, int64_t context);
void dataset_close(struct dataset *d);
/* Initializes an order, aligned to the data's windows if these have the context's length. */
int dataset_window_order(struct order *out, const struct dataset *d, enum sampling s,
	uint64_t seed, int64_t tokens, int64_t context, int64_t n_windows);
/* Sets the order of the training samples; an error if there are too few tokens for one. */
int dataset_order(const struct dataset *d, const struct train_opts *o,
	const struct model *m, struct order *out, struct err *e);
