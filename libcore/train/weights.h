/* weights: tensors of a checkpoint, into the store of a model. */
#ifndef TRAIN_WEIGHTS_H
#define TRAIN_WEIGHTS_H

#include "ckpt/ckpt.h"
#include "comm/comm.h"
#include "model/model.h"
#include "parallel/store.h"

/* Has the checkpoint the tensors of the model, and no others? The padding of the vocabulary may differ.
 * To be asked before memory is
 * allocated: the options in a file may ask for any amount. */
int weights_check(const struct ckpt *c, const struct model *m, struct err *e);
/* Reads a group of tensors of the checkpoint into one of the store: the rows that this rank
 * needs; or, with `send`, collective over it, rank 0 reads for all, and c is NULL on the others. */
int weights_load(struct store *s, const struct ckpt *c, struct comm *send, int from,
	int to, struct err *e);

#endif
