/* A model without gradients, whole on one rank or divided among several. */
#include "engine/inference.h"

struct store *inference_store(
	struct model *m, struct device *d, struct mesh *mesh, struct arena *memory)
{
	int n = m->tp / mesh->degree[AXIS_TP];
	struct store_config c = {.mesh = mesh,
		.device = d,
		.tensors = m->tensors,
		.n_tensors = m->n_tensors,
		.n_units = m->n_units,
		.part = {.n = m->tp, .first = mesh->coord[AXIS_TP] * n, .local = n},
		.chunks = m->cp,
		.microbatches = {.ranks = mesh->degree[AXIS_FSDP]},
		.zero = mesh->degree[AXIS_FSDP] > 1 ? 3 : 0};
	tensors_place(m->tensors, m->n_tensors, &c.part);
	return store_open(&c, memory);
}

/* Opens the store of a mesh in memory of its size. */
static void allocate_parameters(struct inference *x, struct device *d)
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
	allocate_parameters(x, d);
}

void inference_open_ranks(struct inference *x, struct device *d, struct comm *world,
	const int degree[N_AXES])
{
	mesh_open(&x->mesh, world, degree);
	allocate_parameters(x, d);
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

/* ---- tensors of a checkpoint, into the store of a model ------------------------------ */

/* Returns true if a tensor of a file fits the model. Padding of a vocabulary may differ. */
static bool same_shape(const struct ckpt *c, const struct model *m, int tensor,
	const struct ckpt_tensor *f)
{
	const struct tensor *t = &m->tensors[tensor];
	bool is_padded = c->tokenizer.kind && (t == m->tokens || t == m->output);
	bool fits = is_padded ? f->dims[0] >= m->c.vocab : f->dims[0] == t->dims[0];
	return f->ndim == t->ndim && fits && (t->ndim == 1 || f->dims[1] == t->dims[1]);
}

int weights_check(const struct ckpt *c, const struct model *m, struct err *e)
{
	for (int i = 0; i < m->n_tensors; i++) {
		const struct tensor *t = &m->tensors[i];
		int k = ckpt_find(c, t->name);
		if (k < 0)
			return err_set(e, EX_DATAERR,
				"%s: tensor %s is missing; the file holds another model",
				c->path, t->name);
		const struct ckpt_tensor *f = &c->tensors[k];
		if (!same_shape(c, m, i, f))
			return err_set(e, EX_DATAERR,
				"%s: %s is [%lld, %lld], not [%lld, %lld]; the file holds another model",
				c->path, t->name, (long long)f->dims[0],
				(long long)f->dims[1], (long long)t->dims[0],
				(long long)t->dims[1]);
	}
	if (c->n_tensors != m->n_tensors)
		return err_set(e, EX_DATAERR,
			"%s: has %d tensors, not %d; the file holds another model",
			c->path, c->n_tensors, m->n_tensors);
	return 0;
}

/* Reads rows of a tensor from the file; sets rows that it lacks, which are padding, to zero. */
static int read_rows(const struct ckpt *c, int group, const struct tensor *t, int64_t row,
	int64_t n, float *out, struct err *e)
{
	int k = ckpt_find(c, t->name);
	int64_t width = tensor_width(t), n_in = c->tensors[k].dims[0] - row;
	n_in = max64(0, min64(n, n_in));
	memset(out + n_in * width, 0, (size_t)((n - n_in) * width) * sizeof(*out));
	if (t->frozen) /* a checkpoint has only its parameters */
		group = CKPT_MODEL;
	return n_in ? ckpt_read_rows(c, group, k, row, n_in, out, e) : 0;
}

/* Reads rows of a tensor from the file, or receives them from rank 0, which has read them. */
static int read_piece(const struct ckpt *c, struct comm *send, int group,
	const struct tensor *t, int64_t row, int64_t n, float *out, struct err *e)
{
	int rc = c ? read_rows(c, group, t, row, n, out, e) : 0;
	if (!send)
		return rc;
	if (comm_agree(send, e))
		return -1;
	comm_bcast(send, out, n * tensor_width(t) * (int64_t)sizeof(float), 0);
	return 0;
}

int weights_load(struct store *s, const struct ckpt *c, struct comm *send, int from,
	int to, struct err *e)
{
	enum {
		BLOCK_FLOATS = 1 << 18,
		BLOCKS = 4
	}; /* the sizes that files are written in */
	scoped_ptr float *piece = NULL;
	int rc = 0;
	for (int i = 0; i < s->c.n_tensors && !rc; i++) {
		const struct tensor *t = &s->c.tensors[i];
		if (t->frozen && to != STORE_PARAM)
			continue;
		int64_t width = tensor_width(t);
		int64_t rows = BLOCKS * max64(1, BLOCK_FLOATS / width);
		piece = xrealloc(piece, (size_t)(rows * width) * sizeof(float));
		for (int64_t r = 0; r < t->dims[0] && !rc; r += rows) {
			int64_t n = min64(rows, t->dims[0] - r);
			if (!send && !store_has_rows(s, i, r, n))
				continue;
			rc = read_piece(c, send, from, t, r, n, piece, e);
			if (!rc)
				store_write_rows(s, to, i, r, n, piece);
		}
	}
	return rc;
}
