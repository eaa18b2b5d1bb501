/* Workers of local SGD with a small model. */
#include "tests/support/edit_workers.h"
#include "base/file.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- where they compute ---------------------------------------------------------- */

struct device worker_device; /* of this rank; $PT_TEST_DEVICE says which */
static struct arena scratch;

void worker_device_open(void)
{
	const char *asked = getenv("PT_TEST_DEVICE");
	const struct device_options o = {.threads = 1, .exact = true};
	bool cuda = asked && !strcmp(asked, "cuda");
	struct err e = {0};
	if (device_open(&worker_device, cuda ? DEVICE_CUDA : DEVICE_CPU, &o, &e))
		die_err(&e);
	if (comm_device_open(world, &worker_device, COMM_AUTO, &e))
		die_err(&e);
	device_arena(&worker_device, &scratch, "scratch", 1 << 20);
	worker_device.scratch = &scratch;
}

void worker_device_close(void)
{
	comm_device_close();
	device_arena_release(&worker_device, &scratch);
	device_close(&worker_device);
}

/* What the device has there; to be freed. */
float *worker_fetch(const float *p, int64_t n)
{
	float *v = xcalloc((size_t)n + 1, sizeof(*v));
	device_get(&worker_device, v, p, (size_t)n * sizeof(*v));
	return v;
}

/* ---- a model --------------------------------------------------------------------- */

static void add(struct tensor *list, int *n, const char *name, int unit, int64_t rows,
	int64_t cols, enum tp_split tp_split)
{
	struct tensor *t = &list[(*n)++];
	*t = (struct tensor){.unit = unit,
		.ndim = cols ? 2 : 1,
		.dims = {rows, cols},
		.tp_split = tp_split,
		.uses = 1};
	snprintf(t->name, sizeof(t->name), "%d.%s", unit, name);
}

static void make_table(struct tensor *list)
{
	int n = 0;
	add(list, &n, "tokens", 0, 24, 8, TP_SPLIT_ROWS);
	for (int u = 1; u < UNITS - 1; u++) {
		add(list, &n, "norm", u, 8, 0, TP_SPLIT_NONE);
		add(list, &n, "wq", u, 20, 8, TP_SPLIT_ROWS);
		add(list, &n, "wo", u, 9, 20, TP_SPLIT_COLS);
	}
	add(list, &n, "norm", UNITS - 1, 8, 0, TP_SPLIT_NONE);
	assert_int_equal(n, N_TENSORS);
	list[0].uses = 2; /* tied: the last stage has it too */
}

/* Neighbouring units are on one pipeline stage. */
static void place_stages(struct worker *w)
{
	int stages = w->mesh.degree[AXIS_PP], stage = w->mesh.coord[AXIS_PP];
	for (int i = 0; i < N_TENSORS; i++) {
		const struct tensor *t = &w->table[i];
		bool tied = t->uses > 1 && stage == stages - 1;
		w->used[i] = tied || t->unit * stages / UNITS == stage;
	}
}

static struct offload_backend *open_backend(const struct worker_layout *l)
{
	enum { ROOM = 1 << 20 };
	struct err e = {0};
	struct offload_backend *x = NULL;
	if ((l->offload || l->offload_outer) && worker_device.discrete)
		x = offload_host_open(&worker_device, ROOM, &e);
	else if (l->offload || l->offload_outer)
		x = offload_file_open(file_temporary_directory(), ROOM, &e);
	assert_int_equal(e.code, 0);
	return x;
}

/* What worker moves an element before a sync; worker -1: what it is at first. */
float worker_difference(const struct tensor *t, int64_t index, int worker, int sync)
{
	uint64_t key[] = {hash_str(t->name), (uint64_t)index, (uint64_t)(worker + 1),
		(uint64_t)sync};
	double u = test_uniform(hash_bytes(key, sizeof(key), 0), 0) - 0.5;
	return (float)(worker < 0 ? 4 * u : u / (1 + sync));
}

/* ---- workers --------------------------------------------------------------------- */

/* Collective over c, the ranks of all workers. */
void worker_open(struct worker *w, struct comm *c, int workers,
	const struct worker_layout *l, const struct edit_config *ec)
{
	int ranks = ranks_needed(l->degree), here = VIRTUAL_TP / l->degree[AXIS_TP];
	assert_int_equal(c->size, ranks * workers);
	*w = (struct worker){.c = *ec};
	w->world = comm_split(c, c->rank / ranks, "worker");
	w->sync = comm_split(c, c->rank % ranks, "workers");
	mesh_open(&w->mesh, w->world, l->degree);
	make_table(w->table);
	place_stages(w);
	struct tensor_part part = {
		VIRTUAL_TP, w->mesh.coord[AXIS_TP] * here, here, w->used};
	tensors_place(w->table, N_TENSORS, &part);
	device_arena(&worker_device, &w->memory, "test", 1 << 20);
	struct store_config sc = {.mesh = &w->mesh,
		.device = &worker_device,
		.tensors = w->table,
		.n_tensors = N_TENSORS,
		.n_units = UNITS,
		.part = part,
		.chunks = 1,
		.microbatches = microbatches_assign(
			4, l->degree, l->zero, offloads_grads(l->offload)),
		.zero = l->zero,
		.bucket_bytes = 700,
		.offload = l->offload,
		.offload_outer = l->offload_outer};
	edit_add_groups(ec, &sc.groups);
	sc.offload_backend = w->offload_backend = open_backend(l);
	w->s = store_open(&sc, &w->memory);
	w->x = edit_open(ec, w->world, w->sync, w->s, &worker_device);
}

void worker_close(struct worker *w)
{
	edit_free(w->x);
	store_free(w->s);
	offload_backend_close(w->offload_backend);
	device_arena_release(&worker_device, &w->memory);
	mesh_close(&w->mesh);
	comm_free(w->world);
	comm_free(w->sync);
}

struct moving {
	struct worker *w;
	int worker, sync; /* worker -1: everybody begins there */
	int bad;	  /* the worker that brings no numbers */
};

static void move_part(void *with, const struct part *x)
{
	const struct moving *m = with;
	int64_t n = x->rows * x->cols;
	float *p = worker_fetch(x->state[STORE_PARAM], n);
	for (int64_t r = 0; r < x->rows; r++)
		for (int64_t i = 0; i < x->cols; i++) {
			float by = worker_difference(x->t,
				tensor_index(x->t, x->slice, x->row + r) + i, m->worker,
				m->sync);
			p[r * x->cols + i] = m->worker < 0 ? by : p[r * x->cols + i] - by;
			if (m->bad == m->worker || m->bad == EVERYWHERE)
				p[r * x->cols + i] = i % 2 ? (float)NAN : (float)INFINITY;
		}
	device_put(&worker_device, x->state[STORE_PARAM], p, (size_t)n * sizeof(*p));
	free(p);
}

void worker_move(struct worker *w, int worker, int sync, int bad)
{
	struct moving m = {w, worker, sync, bad};
	store_for_each_part(w->s, false, STORE_BIT(STORE_PARAM), STORE_BIT(STORE_PARAM),
		move_part, &m);
	store_updated(w->s, false);
}

const struct edit_config edit_configs[N_EDIT_CONFIGS] = {
	{.by_unit = true},
	{.by_unit = true, .weights = {.by_steps = true}},
	{.outer = EDIT_OUTER_SGD,
		.lr = 0.7,
		.momentum = 0.8,
		.nesterov = true,
		.by_unit = true},
	{.outer = EDIT_OUTER_SGD,
		.lr = 0.5,
		.reducer = EDIT_LINEAR,
		.normalize = true,
		.weights = {.by_norm = true},
		.skip_anomaly = true,
		.detect = {0.1, 1, 2},
		.clip = 0.5,
		.by_unit = true},
	{.outer = EDIT_OUTER_ADAMW,
		.lr = 0.1,
		.beta1 = 0.9,
		.beta2 = 0.99,
		.eps = 1e-8,
		.decay = 0.01,
		.reducer = EDIT_LINEAR,
		.weights = {.by_norm = true,
			.temperature = 3,
			.by_steps = true,
			.steps_ratio = 0.5},
		.clip = 1},
	{.reducer = EDIT_GTA,
		.normalize = true,
		.consensus = SIGN_VOTE_SUM,
		.by_unit = true},
	{.reducer = EDIT_GTA,
		.consensus = SIGN_VOTE_COUNT,
		.sparsify = EDIT_MAGNITUDE,
		.density = 0.3,
		.by_unit = true},
	{.reducer = EDIT_GTA,
		.normalize = true,
		.sparsify = EDIT_RANDOM,
		.density = 0.5,
		.outer = EDIT_OUTER_SGD,
		.lr = 1,
		.seed = 3,
		.by_unit = true},
	{.reducer = EDIT_GTA,
		.normalize = true,
		.sparsify = EDIT_RESCALED_RANDOM,
		.density = 0.5,
		.consensus = SIGN_VOTE_SUM,
		.seed = 3},
	{.outer = EDIT_OUTER_SGD,
		.lr = 0.7,
		.momentum = 0.8,
		.wire = EDIT_WIRE_BF16,
		.seed = 4,
		.by_unit = true},
	{.outer = EDIT_OUTER_SGD,
		.lr = 0.5,
		.reducer = EDIT_LINEAR,
		.normalize = true,
		.skip_anomaly = true,
		.detect = {0.1, 1, 2},
		.wire = EDIT_WIRE_INT8,
		.seed = 4,
		.by_unit = true},
	{.reducer = EDIT_GTA,
		.normalize = true,
		.sparsify = EDIT_RANDOM,
		.density = 0.5,
		.wire = EDIT_WIRE_INT8,
		.seed = 4},
	{.outer = EDIT_OUTER_ADAMW,
		.lr = 0.1,
		.beta1 = 0.9,
		.beta2 = 0.99,
		.eps = 1e-8,
		.wire = EDIT_WIRE_SPARSE,
		.wire_density = 0.3,
		.by_unit = true},
	{.reducer = EDIT_GTA,
		.normalize = true,
		.consensus = SIGN_VOTE_SUM,
		.sparsify = EDIT_MAGNITUDE_TENSOR,
		.density = 0.2,
		.by_unit = true},
	{.outer = EDIT_OUTER_SGD,
		.lr = 0.5,
		.momentum = 0.9,
		.dampening = 0.6,
		.decay = 0.1,
		.clip = 0.5,
		.by_unit = true},
};
