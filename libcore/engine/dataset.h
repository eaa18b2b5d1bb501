/* dataset: the shards of a run, as all ranks know them. */
#pragma once

#include "comm/comm.h"
#include "data/data.h"
#include "engine/options.h"
#include "model/model.h"

/* What to do about shards with vocabularies of their own. */
#define ONE_VOCABULARY                                                       \
	"prepare all texts with one, since the characters of each text are " \
	"one: in one call of pt-prepare with --shard-size, or each with -t " \
	"byte or the same --vocab-files"

struct dataset {
	struct corpus *corpus; /* NULL on ranks that do not read */
	struct tokenizer tokenizer;
	int64_t tokens[N_SPLITS];
	uint64_t hash;
	int64_t window; /* the documents lie in windows of so many tokens; 0: in none */
	bool counted; /* some tokens may have no weight as targets; the same on all ranks */
	int readers;
	const char *file; /* the first that this rank reads */
};

/* Collective. Errors are agreed on. */
int dataset_open(
	struct dataset *d, const struct train_opts *o, struct comm *world, struct err *e);
/* How many targets of n windows [n][context + 1] count. */
int64_t dataset_targets(
	const struct dataset *d, const int32_t *windows, int64_t n, int64_t context);
void dataset_close(struct dataset *d);
/* As order_init(), of `tokens`; on the grid of the data, if their windows are as long as the context. */
int dataset_windows(struct order *out, const struct dataset *d, enum sampling s,
	uint64_t seed, int64_t tokens, int64_t context, int64_t n_windows);
/* The order of the training samples; an error if there are too few tokens for one. */
int dataset_order(const struct dataset *d, const struct train_opts *o,
	const struct model *m, struct order *out, struct err *e);
