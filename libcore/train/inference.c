/* A model without gradients, whole on one rank or divided among several. */
#include "train/inference.h"

struct store *inference_store(
	struct model *m, struct device *d, struct mesh *mesh, struct arena *memory)
{
	int here = m->tp / mesh->degree[AXIS_TP];
	struct store_config c = {.mesh = mesh,
		.device = d,
		.tensors = m->tensors,
		.n_tensors = m->n_tensors,
		.n_units = m->n_units,
		.part = {.n = m->tp, .first = mesh->at[AXIS_TP] * here, .local = here},
		.chunks = m->cp,
		.microbatches = {.ranks = mesh->degree[AXIS_FSDP]},
		.zero = mesh->degree[AXIS_FSDP] > 1 ? 3 : 0};
	tensors_place(m->tensors, m->n_tensors, &c.part);
	return store_open(&c, memory);
}

static void allocate(struct inference *x, struct device *d)
{
	struct arena size;
	x->device = d;
	arena_measure(&size, "parameters");
	store_free(inference_store(&x->model, d, &x->mesh, &size));
	device_arena(d, &x->memory, "parameters", size.peak_bytes);
	x->store = inference_store(&x->model, d, &x->mesh, &x->memory);
}

void inference_open(struct inference *x, struct device *d)
{
	mesh_alone(&x->mesh);
	x->self = x->mesh.world;
	allocate(x, d);
}

void inference_open_ranks(struct inference *x, struct device *d, struct comm *world,
	const int degree[N_AXES])
{
	mesh_open(&x->mesh, world, degree);
	allocate(x, d);
}

void inference_close(struct inference *x)
{
	if (x->store) {
		store_free(x->store);
		mesh_close(&x->mesh);
		comm_free(x->self);
		device_arena_release(x->device, &x->memory);
	}
	model_free(&x->model);
}

int inference_load(struct inference *x, const struct ckpt *c, struct err *e)
{
	return weights_load(x->store, c, NULL, CKPT_MODEL, STORE_PARAM, e);
}
