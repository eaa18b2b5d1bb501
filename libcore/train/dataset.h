/* dataset: the shards of a run, as all ranks know them. */
#ifndef TRAIN_DATASET_H
#define TRAIN_DATASET_H

#include "comm/comm.h"
#include "data/data.h"
#include "model/model.h"
#include "train/options.h"

struct dataset {
	struct corpus *corpus; /* NULL on ranks that do not read */
	struct tokenizer tokenizer;
	int64_t tokens[N_SPLITS];
	uint64_t hash;
	int readers;
};

/* Collective. Errors are agreed on. */
int dataset_open(
	struct dataset *d, const struct train_opts *o, struct comm *world, struct err *e);
void dataset_close(struct dataset *d);
/* The order of the training samples; an error if there are too few tokens for one. */
int dataset_order(const struct dataset *d, const struct train_opts *o,
	const struct model *m, struct order *out, struct err *e);

#endif
