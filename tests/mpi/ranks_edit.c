/*
 * Workers that train apart come to agree: on the same bits whatever the layout inside each,
 * and on what a model in double says.
 * ranks: 8
 * device: cpu cuda
 */
#include "base/file.h"
#include "edit/edit.h"
#include "tests/support/device.h"
#include "tests/support/ranks.h"

#include "parallel/store_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { UNITS = 4, N_TENSORS = 8, SYNCS = 5, VIRTUAL_TP = 2, MOST_WORKERS = 8 };
enum { NOWHERE = -2, EVERYWHERE = 99 };

/* ---- where they compute ---------------------------------------------------------- */

static struct device device; /* of this rank; $PT_TEST_DEVICE says which */
static struct arena scratch;

static void open_device(void)
{
	const char *asked = getenv("PT_TEST_DEVICE");
	const struct device_options o = {.threads = 1, .exact = true};
	bool cuda = asked && !strcmp(asked, "cuda");
	struct err e = {0};
	if (device_open(&device, cuda ? DEVICE_CUDA : DEVICE_CPU, &o, &e))
		die_err(&e);
	comm_device(&device);
	device_arena(&device, &scratch, "scratch", 1 << 20);
	device.scratch = &scratch;
}

static void close_device(void)
{
	comm_device(NULL);
	device_arena_release(&device, &scratch);
	device_close(&device);
}

/* What the device has there; to be freed. */
static float *fetched(const float *p, int64_t n)
{
	float *v = xcalloc((size_t)n + 1, sizeof(*v));
	device_get(&device, v, p, (size_t)n * sizeof(*v));
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
}

/* What worker moves an element before a sync; worker -1: what it is at first. */
static float move(const struct tensor *t, int64_t index, int worker, int sync)
{
	uint64_t key[] = {hash_str(t->name), (uint64_t)index, (uint64_t)(worker + 1),
		(uint64_t)sync};
	double u = test_uniform(hash_bytes(key, sizeof(key), 0), 0) - 0.5;
	return (float)(worker < 0 ? 4 * u : u / (1 + sync));
}

/* ---- workers --------------------------------------------------------------------- */

struct layout {
	int degree[N_AXES]; /* of a worker */
	int zero;
	enum offload offload;
};

struct worker {
	struct comm *world, *sync;
	struct mesh mesh;
	struct arena memory;
	struct tensor table[N_TENSORS];
	struct store *s;
	struct offload_backend *offload_backend;
	struct edit *x;
	struct edit_config c;
};

/* Collective over c, the ranks of all workers. */
static void open_worker(struct worker *w, struct comm *c, int workers,
	const struct layout *l, const struct edit_config *ec)
{
	struct err e = {0};
	int ranks = ranks_needed(l->degree), here = VIRTUAL_TP / l->degree[AXIS_TP];
	assert_int_equal(c->size, ranks * workers);
	*w = (struct worker){.c = *ec};
	w->world = comm_split(c, c->rank / ranks, "worker");
	w->sync = comm_split(c, c->rank % ranks, "workers");
	mesh_open(&w->mesh, w->world, l->degree);
	make_table(w->table);
	struct tensor_part part = {VIRTUAL_TP, w->mesh.at[AXIS_TP] * here, here, NULL};
	tensors_place(w->table, N_TENSORS, &part);
	device_arena(&device, &w->memory, "test", 1 << 20);
	struct store_config sc = {.mesh = &w->mesh,
		.device = &device,
		.tensors = w->table,
		.n_tensors = N_TENSORS,
		.n_units = UNITS,
		.part = part,
		.chunks = 1,
		.microbatches = microbatches_assign(4, l->degree, l->zero),
		.zero = l->zero,
		.bucket_bytes = 700,
		.offload = l->offload};
	edit_add_groups(ec, &sc.groups);
	if (l->offload)
		sc.offload_backend = w->offload_backend =
			offload_file_open(file_temporary_directory(), 1 << 20, &e);
	assert_int_equal(e.code, 0);
	w->s = store_open(&sc, &w->memory);
	w->x = edit_open(ec, w->world, w->sync, w->s, &device);
}

static void close_worker(struct worker *w)
{
	edit_free(w->x);
	store_free(w->s);
	offload_backend_close(w->offload_backend);
	device_arena_release(&device, &w->memory);
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
	float *p = fetched(x->state[STORE_PARAM], n);
	for (int64_t r = 0; r < x->rows; r++)
		for (int64_t i = 0; i < x->cols; i++) {
			float by =
				move(x->t, tensor_index(x->t, x->slice, x->row + r) + i,
					m->worker, m->sync);
			p[r * x->cols + i] = m->worker < 0 ? by : p[r * x->cols + i] - by;
			if (m->bad == m->worker || m->bad == EVERYWHERE)
				p[r * x->cols + i] = i % 2 ? (float)NAN : (float)INFINITY;
		}
	device_put(&device, x->state[STORE_PARAM], p, (size_t)n * sizeof(*p));
	free(p);
}

static void move_all(struct worker *w, int worker, int sync, int bad)
{
	struct moving m = {w, worker, sync, bad};
	store_for_each_part(w->s, false, STORE_BIT(STORE_PARAM), STORE_BIT(STORE_PARAM),
		move_part, &m);
	store_updated(w->s, false);
}

/* Collective over the worker. Elements of this rank's parts that are not what products get. */
static int64_t not_in_use(struct worker *w)
{
	int64_t wrong = 0;
	for (int u = 0; u < UNITS; u++) {
		store_use(w->s, u, -1);
		for (int64_t i = 0; i < w->s->n_updated; i++) {
			const struct part *x = &w->s->updated[i];
			int64_t n = x->rows * x->cols;
			if (x->t->unit != u || !x->state[STORE_PARAM])
				continue;
			const float *all = store_param(w->s, x->t, x->slice).p;
			float *p = fetched(x->state[STORE_PARAM], n);
			float *used = fetched(all + x->row * x->cols, n);
			for (int64_t k = 0; k < n; k++)
				wrong += used[k] != p[k];
			free(p);
			free(used);
		}
		store_done(w->s, u, true);
	}
	return wrong;
}

static uint64_t unit_hash(const struct worker *w, int unit)
{
	uint64_t hash = 0;
	for (int64_t i = 0; i < w->s->n_updated; i++) {
		const struct part *x = &w->s->updated[i];
		int64_t n = x->rows * x->cols;
		if (x->t->unit != unit)
			continue;
		float *p = fetched(x->state[STORE_PARAM], n);
		hash = hash_bytes(p, (size_t)n * sizeof(*p), hash);
		free(p);
	}
	return hash;
}

/* A synchronisation whose units are used as soon as they have come. How many of them were not
 * there yet? */
static int64_t sync_by_units(struct worker *w, int64_t steps, struct edit_result *r)
{
	uint64_t used[UNITS];
	int64_t wrong = 0;
	edit_begin(w->x, 0, steps, r);
	for (int u = 0; u < UNITS; u++) {
		edit_complete_unit(w->x, u);
		used[u] = unit_hash(w, u);
	}
	edit_end(w->x, 0, r);
	for (int u = 0; u < UNITS; u++)
		wrong += used[u] != unit_hash(w, u);
	return wrong;
}

/* Collective over c. A hash of the parameters after each sync; 0 where workers differ, or a
 * rank has something else than it should. */
struct history {
	uint64_t hash[SYNCS];
	double norm[SYNCS], weight[SYNCS], clip[SYNCS], reduced[SYNCS];
	int anomalies[SYNCS];
};

static void run(struct comm *c, int workers, const struct layout *l,
	const struct edit_config *ec, int bad, struct history *h)
{
	struct worker w;
	memset(h, 0, sizeof(*h));
	open_worker(&w, c, workers, l, ec);
	move_all(&w, -1, 0, NOWHERE);
	edit_anchor(w.x);
	for (int i = 0; i < SYNCS; i++) {
		struct edit_result r;
		int64_t sent = w.sync->sent;
		move_all(&w, w.sync->rank, i, i == 2 ? bad : NOWHERE);
		int64_t wrong = 0;
		if (i % 2 && edit_completes_by_unit(w.x))
			wrong = sync_by_units(&w, 1 + w.sync->rank, &r);
		else
			edit_sync(w.x, 1 + w.sync->rank, &r);
		wrong += w.sync->sent - sent != edit_sent(w.x);
		uint64_t hash = store_hash(w.s);
		wrong += not_in_use(&w);
		int64_t least = comm_min_i64(c, (int64_t)hash);
		wrong += comm_max_i64(c, (int64_t)hash) != least;
		h->hash[i] = comm_max_i64(c, wrong) ? 0 : hash;
		if (w.sync->rank == 0) { /* the first worker's view */
			h->norm[i] = r.norm;
			h->weight[i] = r.weight;
			h->clip[i] = r.clip;
			h->reduced[i] = r.reduced;
			h->anomalies[i] = r.anomalies;
		}
	}
	close_worker(&w);
}

/* ---- the same bits on any layout ------------------------------------------------- */

static const struct edit_config plain = {.by_unit = true};
static const struct edit_config configs[] = {
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

static const struct layout layouts[] = {
	/* pp dp fsdp cp tp */
	{{1, 2, 1, 1, 1}, 0, OFFLOAD_NONE},
	{{1, 1, 2, 1, 1}, 3, OFFLOAD_NONE},
	{{1, 1, 3, 1, 1}, 2, OFFLOAD_NONE},
	{{1, 1, 1, 1, 2}, 0, OFFLOAD_NONE},
	{{1, 1, 2, 1, 2}, 1, OFFLOAD_NONE},
	{{1, 1, 1, 1, 1}, 0, OFFLOAD_PARAMS},
	{{1, 1, 2, 1, 1}, 3, OFFLOAD_OPTIMIZER},
	{{1, 1, 2, 1, 1}, 3, OFFLOAD_PARAMS},
};

/* Of all there are, a third; a slow GPU does a few. */
static bool is_due(size_t config, int workers, size_t layout)
{
	const struct layout *l = &layouts[layout];
	if (workers * ranks_needed(l->degree) > world->size ||
		(device.discrete && l->offload))
		return false;
	size_t of = device.discrete && test_device_slow(&device) ? 13 : 3;
	return ((size_t)workers + config + layout) % of == 0;
}

static bool some_are_due(size_t config, int workers)
{
	bool some = false;
	for (size_t l = 0; l < ARRAY_LEN(layouts); l++)
		some |= is_due(config, workers, l);
	return some;
}

/* An average of parameters has none. */
static bool has_anchor(const struct edit_config *c)
{
	struct store_groups g = {.n = 0};
	edit_add_groups(c, &g);
	return store_groups_find(&g, "anchor") > 0;
}

static void bits_of_any_layout(void **state)
{
	static const struct layout alone = {{1, 1, 1, 1, 1}, 0, OFFLOAD_NONE};
	int n = 0;
	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(configs); i++)
		for (int workers = 2; workers <= 4; workers++) {
			if (!some_are_due(i, workers))
				continue;
			struct history want, got;
			struct comm *c =
				comm_split(world, world->rank < workers ? 0 : -1, "some");
			int bad = (int)(i % 3) - 1;
			if (!has_anchor(&configs[i]))
				bad = NOWHERE; /* an average has no way back */
			if (c)
				run(c, workers, &alone, &configs[i], bad, &want);
			comm_free(c);
			comm_bcast(world, &want, sizeof(want), 0);
			for (int k = 0; k < SYNCS; k++)
				assert_on_all(want.hash[k] != 0);
			for (size_t l = 0; l < ARRAY_LEN(layouts); l++) {
				int ranks = workers * ranks_needed(layouts[l].degree);
				bool differs = false;
				if (!is_due(i, workers, l))
					continue;
				c = comm_split(
					world, world->rank < ranks ? 0 : -1, "some");
				if (c) {
					run(c, workers, &layouts[l], &configs[i], bad,
						&got);
					differs = memcmp(
						got.hash, want.hash, sizeof(got.hash));
					if (world->rank == 0)
						differs =
							memcmp(&got, &want, sizeof(got));
				}
				comm_free(c);
				n++;
				if (differs)
					fprintf(stderr,
						"# config %zu, %d workers, layout %zu\n",
						i, workers, l);
				assert_on_all(!differs);
			}
		}
	if (world->rank == 0)
		printf("# figure: %d runs of workers that train apart, with the bits of "
		       "one rank a worker\n",
			n);
}

/* ---- the right ones -------------------------------------------------------------- */

/* All of a worker on one rank, so that element i of everything is at place i. */
struct values {
	float p[1024];
	int64_t n;
};

static void take_group(struct worker *w, int g, struct values *v)
{
	v->n = store_floats(w->s);
	assert_true(v->n <= (int64_t)ARRAY_LEN(v->p));
	device_get(&device, v->p, store_begin(w->s, g, 0, v->n, NULL),
		(size_t)v->n * sizeof(float));
}

static void take_values(struct worker *w, struct values *v)
{
	take_group(w, STORE_PARAM, v);
}

struct around {
	struct values anchor, after, brought[MOST_WORKERS];
	struct edit_result r;
	struct str excluded, clipped; /* their names */
};

/* Collective over c: one sync. */
static void one_sync(
	struct comm *c, const struct edit_config *ec, int bad, struct around *a)
{
	static const struct layout alone = {{1, 1, 1, 1, 1}, 0, OFFLOAD_NONE};
	struct worker w;
	struct values mine;
	open_worker(&w, c, c->size, &alone, ec);
	move_all(&w, -1, 0, NOWHERE);
	take_values(&w, &a->anchor);
	edit_anchor(w.x);
	move_all(&w, c->rank, 0, bad);
	take_values(&w, &mine);
	comm_allgather(c, &mine, a->brought, sizeof(mine));
	edit_sync(w.x, 1 + c->rank, &a->r);
	take_values(&w, &a->after);
	str_clear(&a->excluded);
	str_clear(&a->clipped);
	edit_describe_excluded(w.x, -1, &a->excluded);
	edit_describe_clipped(w.x, -1, &a->clipped);
	close_worker(&w);
}

static double ulp(float x)
{
	return (double)(nextafterf(fabsf(x), INFINITY) - fabsf(x));
}

/* An outer SGD of rate 1 is the mean of the parameters, and without an outer optimizer to the
 * last bit. */
static bool is_mean(const struct around *a, int64_t i, int workers, bool outer)
{
	float t[MOST_WORKERS], largest = fabsf(a->anchor.p[i]);
	double mean = 0;
	for (int w = 0; w < workers; w++) {
		t[w] = a->brought[w].p[i];
		largest = fmaxf(largest, fabsf(t[w]));
		mean += (double)t[w] / workers;
	}
	for (int step = 1; step < workers; step *= 2)
		for (int w = 0; w + step < workers; w += 2 * step)
			t[w] += t[w + step];
	if (outer)
		return fabs((double)a->after.p[i] - mean) <= 2 * ulp(largest);
	return a->after.p[i] == t[0] / (float)workers;
}

static void averages(void **state)
{
	static struct around a;
	const struct edit_config sgd = {
		.outer = EDIT_OUTER_SGD, .lr = 1, .by_unit = true};
	(void)state;
	for (int workers = 1; workers <= 8; workers++) {
		struct comm *c =
			comm_split(world, world->rank < workers ? 0 : -1, "some");
		for (int outer = 0; outer < 2; outer++) {
			int64_t wrong = 0;
			if (c)
				one_sync(c, outer ? &sgd : &plain, NOWHERE, &a);
			for (int64_t i = 0; i < a.after.n && c; i++)
				wrong += !is_mean(&a, i, workers, outer);
			assert_on_all(wrong == 0);
		}
		comm_free(c);
	}
}

/* Who brings no numbers is left out; when all do, all are where they were. */
static int64_t not_without_one(const struct around *a)
{
	int64_t wrong = 0;
	for (int64_t i = 0; i < a->after.n; i++) {
		float largest = fabsf(a->anchor.p[i]);
		double mean = 0;
		for (int w = 0; w < 4; w++) {
			if (w == 1)
				continue;
			mean += (double)a->brought[w].p[i] / 3;
			largest = fmaxf(largest, fabsf(a->brought[w].p[i]));
		}
		wrong += !(fabs((double)a->after.p[i] - mean) <= 3 * ulp(largest));
	}
	return wrong;
}

static void no_numbers(void **state)
{
	static struct around a;
	const struct edit_config sgd = {
		.outer = EDIT_OUTER_SGD, .lr = 1, .by_unit = true};
	struct comm *c = comm_split(world, world->rank < 4 ? 0 : -1, "some");
	(void)state;
	for (size_t k = 2; k < ARRAY_LEN(configs); k++) {
		bool back = true, out = true, finite = true;
		if (c) {
			one_sync(c, &configs[k], EVERYWHERE, &a);
			back = !memcmp(
				a.after.p, a.anchor.p, (size_t)a.after.n * sizeof(float));
			out = a.r.weight == 0 && a.r.anomalies > 0;
			one_sync(c, &configs[k], 1, &a);
			out &= (a.r.weight == 0) == (c->rank == 1);
			for (int64_t i = 0; i < a.after.n; i++)
				finite &= isfinite(a.after.p[i]);
		}
		assert_on_all(back && out && finite);
	}
	if (c)
		one_sync(c, &sgd, 1, &a);
	assert_on_all(!c || not_without_one(&a) == 0);
	comm_free(c);
}

/* Workers and units have names, in a short list. */
static void names(void **state)
{
	static struct around a;
	struct edit_config ec = {.outer = EDIT_OUTER_SGD, .lr = 1, .by_unit = true};
	struct comm *c = comm_split(world, world->rank < 4 ? 0 : -1, "some");
	bool right = true;
	(void)state;
	if (c) {
		one_sync(c, &ec, NOWHERE, &a);
		right = !a.excluded.len && !a.clipped.len;
		one_sync(c, &ec, 1, &a);
		right &= !strcmp(a.excluded.s,
			"worker 1: tok_embeddings, layers.0, layers.1, output");
		ec.clip = 0.4; /* the units of 8 elements are below it */
		one_sync(c, &ec, NOWHERE, &a);
		right &= a.clipped.len && strstr(a.clipped.s, "layers.0 by 0.") &&
			 !strstr(a.clipped.s, "output");
		ec.by_unit = false;
		one_sync(c, &ec, 2, &a);
		right &= !strcmp(a.excluded.s, "worker 2: the model") &&
			 !strncmp(a.clipped.s, "the model by 0.", 15);
	}
	assert_on_all(right);
	str_free(&a.excluded);
	str_free(&a.clipped);
	comm_free(c);
}

/* Clipping makes the step as long as it may be, and no longer. */
static void clips(void **state)
{
	static struct around a;
	const struct edit_config ec = {.outer = EDIT_OUTER_SGD, .lr = 1, .clip = 0.25};
	struct comm *c = comm_split(world, world->rank < 2 ? 0 : -1, "some");
	double length = 0;
	(void)state;
	if (c)
		one_sync(c, &ec, NOWHERE, &a);
	for (int64_t i = 0; i < a.after.n; i++)
		length += pow((double)(a.after.p[i] - a.anchor.p[i]), 2);
	assert_on_all(!c || (a.r.reduced > 1 && fabs(sqrt(length) - 0.25) < 1e-5));
	assert_on_all(!c || fabs(a.r.clip - 0.25 / (a.r.reduced + 1e-6)) < 1e-9);
	comm_free(c);
}

/* torch.optim.SGD in double: the anchor after some synchronisations of equal workers. */
static double sgd_in_double(const struct edit_config *ec, const struct tensor *t,
	int64_t index, int worker, int syncs)
{
	double p = (double)move(t, index, -1, 0), v = 0;
	for (int i = 0; i < syncs; i++) {
		double g = (double)move(t, index, worker, i) + ec->decay * p;
		v = i ? ec->momentum * v + (1 - ec->dampening) * g : g;
		p -= ec->lr * v;
	}
	return p;
}

struct apart {
	const struct edit_config *ec;
	int syncs;
	double furthest;
};

static void measure_part(void *with, const struct part *x)
{
	struct apart *a = with;
	int64_t n = x->rows * x->cols;
	float *p = fetched(x->state[STORE_PARAM], n);
	for (int64_t i = 0; i < n; i++) {
		int64_t index =
			tensor_index(x->t, x->slice, x->row + i / x->cols) + i % x->cols;
		double want = sgd_in_double(a->ec, x->t, index, 0, a->syncs);
		a->furthest = fmax(a->furthest, fabs((double)p[i] - want));
	}
	free(p);
}

static void dampens(void **state)
{
	static const struct edit_config some[] = {
		{.outer = EDIT_OUTER_SGD, .lr = 0.7, .momentum = 0.8, .by_unit = true},
		{.outer = EDIT_OUTER_SGD, .lr = 0.7, .momentum = 0.8, .dampening = 0.5},
		{.outer = EDIT_OUTER_SGD,
			.lr = 0.5,
			.momentum = 0.9,
			.dampening = 1,
			.decay = 0.2,
			.by_unit = true},
	};
	static const struct layout sharded = {{1, 1, 2, 1, 1}, 3, OFFLOAD_NONE};
	struct comm *c = comm_split(world, world->rank < 4 ? 0 : -1, "some");
	(void)state;
	for (size_t k = 0; k < ARRAY_LEN(some); k++) {
		struct apart a = {&some[k], 4, 0};
		struct worker w;
		if (c) {
			open_worker(&w, c, 2, &sharded, &some[k]);
			move_all(&w, -1, 0, NOWHERE);
			edit_anchor(w.x);
			for (int i = 0; i < a.syncs; i++) {
				struct edit_result r;
				move_all(&w, 0, i, NOWHERE);
				edit_sync(w.x, 1, &r);
			}
			store_for_each_part(
				w.s, false, STORE_BIT(STORE_PARAM), 0, measure_part, &a);
			close_worker(&w);
		}
		assert_on_all(a.furthest < 3e-6);
	}
	comm_free(c);
}

/* ---- the largest of a whole tensor ----------------------------------------------- */

/* Of each tensor: elements that moved, the least of their moves, and the largest of the others; in
 * millionths. */
struct largest {
	int64_t kept[N_TENSORS], least[N_TENSORS], other[N_TENSORS];
	const struct tensor *table;
};

static void note_moves(void *with, const struct part *x)
{
	struct largest *a = with;
	int64_t n = x->rows * x->cols, t = x->t - a->table;
	float *p = fetched(x->state[STORE_PARAM], n);
	for (int64_t i = 0; i < n; i++) {
		int64_t index =
			tensor_index(x->t, x->slice, x->row + i / x->cols) + i % x->cols;
		bool moved = p[i] != move(x->t, index, -1, 0);
		int64_t by = (int64_t)(1e6f * fabsf(move(x->t, index, 0, 0)));
		a->kept[t] += moved;
		if (moved)
			a->least[t] = min64(a->least[t], by);
		else
			a->other[t] = max64(a->other[t], by);
	}
	free(p);
}

static void largest_of_tensor(void **state)
{
	static const struct layout sharded = {{1, 1, 2, 1, 2}, 3, OFFLOAD_NONE};
	const struct edit_config ec = {.reducer = EDIT_GTA,
		.sparsify = EDIT_MAGNITUDE_TENSOR,
		.density = 0.3,
		.by_unit = true};
	struct comm *c = comm_split(world, world->rank < 4 ? 0 : -1, "some");
	struct largest a = {.table = NULL};
	struct edit_result r;
	struct worker w;
	bool right = true;
	(void)state;
	if (c) {
		open_worker(&w, c, 1, &sharded, &ec);
		a.table = w.table;
		move_all(&w, -1, 0, NOWHERE);
		edit_anchor(w.x);
		move_all(&w, 0, 0, NOWHERE);
		edit_sync(w.x, 1, &r);
		for (int t = 0; t < N_TENSORS; t++)
			a.least[t] = INT64_MAX;
		store_for_each_part(w.s, true, STORE_BIT(STORE_PARAM), 0, note_moves, &a);
		comm_sum_i64(c, a.kept, N_TENSORS);
		for (int t = 0; t < N_TENSORS; t++) {
			int64_t size = tensor_size(&w.table[t]);
			bool all = w.table[t].ndim == 1;
			right &=
				a.kept[t] == (all ? size : (int64_t)(0.3 * (double)size));
			right &= comm_min_i64(c, a.least[t]) + 1 >=
				 comm_max_i64(c, a.other[t]);
		}
		close_worker(&w);
	}
	assert_on_all(right);
	comm_free(c);
}

/* ---- fewer bytes ----------------------------------------------------------------- */

static struct edit_config wire_config(enum edit_wire wire)
{
	return (struct edit_config){.outer = EDIT_OUTER_SGD,
		.lr = 1,
		.by_unit = true,
		.wire = wire,
		.wire_density = 0.2,
		.seed = 5};
}

/* Collective over c, a rank a worker, which all bring the same again and again. How far all of
 * it is from where that leads, relative to how far that is. */
static double lost_on_the_way(struct comm *c, const struct edit_config *ec, int syncs)
{
	static const struct layout alone = {{1, 1, 1, 1, 1}, 0, OFFLOAD_NONE};
	static struct values begin, brought[MOST_WORKERS], mine;
	struct edit_result r;
	struct worker w;
	double lost = 0, way = 0;
	open_worker(&w, c, c->size, &alone, ec);
	move_all(&w, -1, 0, NOWHERE);
	take_values(&w, &begin);
	edit_anchor(w.x);
	for (int i = 0; i < syncs; i++) {
		move_all(&w, c->rank, 0, NOWHERE);
		take_values(&w, &mine);
		if (i == 0)
			comm_allgather(c, &mine, brought, sizeof(mine));
		edit_sync(w.x, 1, &r);
	}
	take_values(&w, &mine);
	for (int64_t i = 0; i < mine.n; i++) {
		double mean = 0, went = (double)mine.p[i] - (double)begin.p[i];
		for (int k = 0; k < c->size; k++)
			mean += (double)brought[k].p[i] / c->size;
		double goal = syncs * (mean - (double)begin.p[i]);
		lost += (went - goal) * (went - goal);
		way += goal * goal;
	}
	close_worker(&w);
	return sqrt(lost / way);
}

/* What a wire cannot carry is not lost: however often, no more is missing than once. */
static void feeds_back(void **state)
{
	static const struct {
		enum edit_wire wire;
		double once, often;
	} some[] = {
		{EDIT_WIRE_FP32, 1e-6, 1e-6},
		{EDIT_WIRE_BF16, 0.004, 0.001},
		{EDIT_WIRE_INT8, 0.01, 0.002},
		{EDIT_WIRE_SPARSE, 0.9, 0.1},
	};
	(void)state;
	if (device.discrete &&
		test_device_slow(&device)) /* whose wires have the CPU's bits */
		ranks_skip();
	struct comm *c = comm_split(world, world->rank < 3 ? 0 : -1, "some");
	for (size_t i = 0; i < ARRAY_LEN(some); i++) {
		const struct edit_config ec = wire_config(some[i].wire);
		double once = c ? lost_on_the_way(c, &ec, 1) : 0;
		double often = c ? lost_on_the_way(c, &ec, 64) : 0;
		if (world->rank == 0)
			printf("# figure: wire %zu: %.2g of the way is lost at once, "
			       "%.2g of 64 times\n",
				i, once, often);
		assert_on_all(once <= some[i].once && often <= some[i].often);
		/* and something was, or it is no such wire */
		assert_on_all(
			!c || some[i].wire == EDIT_WIRE_FP32 || once > some[i].once / 10);
	}
	comm_free(c);
}

/* Who is left out has what it had to bring; the others have something else. */
static void keeps_residual(void **state)
{
	static const struct layout alone = {{1, 1, 1, 1, 1}, 0, OFFLOAD_NONE};
	static struct values before, after;
	struct comm *c = comm_split(world, world->rank < 3 ? 0 : -1, "some");
	(void)state;
	for (int wire = EDIT_WIRE_BF16; wire <= EDIT_WIRE_SPARSE; wire++) {
		const struct edit_config ec = wire_config((enum edit_wire)wire);
		int64_t something = 0, wrong = 0;
		struct edit_result r;
		struct worker w;
		if (c) {
			open_worker(&w, c, c->size, &alone, &ec);
			move_all(&w, -1, 0, NOWHERE);
			edit_anchor(w.x);
			move_all(&w, c->rank, 0, NOWHERE);
			edit_sync(w.x, 1, &r);
			int residual = store_groups_find(&w.s->c.groups, "residual");
			take_group(&w, residual, &before);
			move_all(&w, c->rank, 1, 1);
			edit_sync(w.x, 1, &r);
			take_group(&w, residual, &after);
			for (int64_t i = 0; i < before.n; i++)
				something += before.p[i] != 0;
			wrong = (memcmp(before.p, after.p,
					 (size_t)after.n * sizeof(float)) == 0) !=
				(c->rank == 1);
			close_worker(&w);
		}
		assert_on_all(wrong == 0 && (!c || something > 100));
	}
	comm_free(c);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(bits_of_any_layout),
		cmocka_unit_test(averages),
		cmocka_unit_test(no_numbers),
		cmocka_unit_test(names),
		cmocka_unit_test(clips),
		cmocka_unit_test(dampens),
		cmocka_unit_test(largest_of_tensor),
		cmocka_unit_test(feeds_back),
		cmocka_unit_test(keeps_residual),
	};
	ranks_open();
	open_device();
	int rc = ranks_run(tests);
	close_device();
	return ranks_close(rc);
}
