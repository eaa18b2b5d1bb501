/* A whole model on one process, without gradients. */
#include "train/inference.h"

struct store *inference_store(
	struct model *m, struct device *d, struct mesh *mesh, struct arena *memory)
{
	struct store_config c = {.mesh = mesh,
		.device = d,
		.tensors = m->tensors,
		.n_tensors = m->n_tensors,
		.n_units = m->n_units,
		.part = {.n = m->tp, .local = m->tp},
		.chunks = m->cp,
		.microbatches = {.ranks = 1}};
	return store_open(&c, memory);
}

void inference_open(struct inference *x, struct device *d)
{
	struct arena size;
	x->device = d;
	mesh_alone(&x->mesh);
	arena_measure(&size, "parameters");
	store_free(inference_store(&x->model, d, &x->mesh, &size));
	device_arena(d, &x->memory, "parameters", size.peak_bytes);
	x->store = inference_store(&x->model, d, &x->mesh, &x->memory);
}

void inference_close(struct inference *x)
{
	if (x->store) {
		struct comm *self = x->mesh.world;
		store_free(x->store);
		mesh_close(&x->mesh);
		comm_free(self);
		device_arena_release(x->device, &x->memory);
	}
	model_free(&x->model);
}

int inference_load(struct inference *x, const struct ckpt *c, struct err *e)
{
	return weights_load(x->store, c, NULL, CKPT_MODEL, STORE_PARAM, e);
}
