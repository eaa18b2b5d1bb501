/* inference: a whole model on one process, without gradients. */
#ifndef TRAIN_INFERENCE_H
#define TRAIN_INFERENCE_H

#include "train/weights.h"

struct inference {
	struct model model;
	struct device *device;
	struct mesh mesh; /* of one rank */
	struct arena memory;
	struct store *store;
};

/* Allocates the parameters of x->model, which the caller has initialised. */
void inference_open(struct inference *x, struct device *d);
/* Also frees the model. */
void inference_close(struct inference *x);
int inference_load(struct inference *x, const struct ckpt *c, struct err *e);
/* A store for the parameters of such a model, in the caller's memory. */
struct store *inference_store(
	struct model *m, struct device *d, struct mesh *mesh, struct arena *memory);

#endif
