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
	struct comm
		*self; /* the world of a whole model; NULL: the caller owns the world */
	struct arena memory;
	struct store *store;
};

/* Allocates all parameters of x->model, which the caller has initialized, on this rank. */
void inference_open(struct inference *x, struct device *d);
/* Collective over the world: ranks hold their slices along tp, sharded along fsdp (ZeRO 3). */
void inference_open_ranks(struct inference *x, struct device *d, struct comm *world,
	const int degree[N_AXES]);
/* Frees everything, including the model. */
void inference_close(struct inference *x);
/* Opens a store for a model without gradients on this mesh, in the caller's memory. */
struct store *inference_store(
	struct model *m, struct device *d, struct mesh *mesh, struct arena *memory);

/* ---- tensors of a checkpoint, into the store of a model ------------------------------ */

/* Checks that the checkpoint has exactly the tensors of the model; the padding of the vocabulary
 * may differ. Call it before memory is allocated: the options in a file may request any amount. */
int weights_check(const struct ckpt *c, const struct model *m, struct err *e);
/* Reads the rows that this rank needs, from group `from` of the checkpoint to group `to` of the
 * store. With `send`, collective over it: rank 0 reads for all; c is NULL on others. */
int weights_load(struct store *s, const struct ckpt *c, struct comm *send, int from,
	int to, struct err *e);
