/* inference: a model without gradients, whole on one rank or divided among several. */
#pragma once

#include "ckpt/ckpt.h"
#include "comm/comm.h"
#include "model/model.h"
#include "parallel/parallel.h"

struct inference {
	struct model model;
	struct device *device;
	struct mesh mesh;
	struct comm *self; /* the world of a whole model; NULL: of the caller */
	struct arena memory;
	struct store *store;
};

/* Allocates the parameters of x->model, which the caller has initialised: all of them on this rank. */
void inference_open(struct inference *x, struct device *d);
/* Collective over the world: each rank has its slices along tp, and along fsdp a shard of them
 * (ZeRO 3). The other axes have one rank. */
void inference_open_ranks(struct inference *x, struct device *d, struct comm *world,
	const int degree[N_AXES]);
/* Also frees the model. */
void inference_close(struct inference *x);
/* A store for the parameters of such a model on this mesh, in the caller's memory. */
struct store *inference_store(
	struct model *m, struct device *d, struct mesh *mesh, struct arena *memory);

/* ---- tensors of a checkpoint, into the store of a model ------------------------------ */

/* Has the checkpoint the tensors of the model, and no others? The padding of the vocabulary may
 * differ. To be asked before memory is allocated: the options in a file may ask for any amount. */
int weights_check(const struct ckpt *c, const struct model *m, struct err *e);
/* Reads a group of tensors of the checkpoint into one of the store: the rows that this rank
 * needs; or, with `send`, collective over it, rank 0 reads for all, and c is NULL on the others. */
int weights_load(struct store *s, const struct ckpt *c, struct comm *send, int from,
	int to, struct err *e);
