/* inference: a model without gradients, whole on one rank or divided among several. */
#ifndef TRAIN_INFERENCE_H
#define TRAIN_INFERENCE_H

#include "train/weights.h"

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
int inference_load(struct inference *x, const struct ckpt *c, struct err *e);
/* A store for the parameters of such a model on this mesh, in the caller's memory. */
struct store *inference_store(
	struct model *m, struct device *d, struct mesh *mesh, struct arena *memory);

#endif
