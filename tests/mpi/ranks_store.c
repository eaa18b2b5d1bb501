/* The parameter store alone: leaves that are functions of where they belong, summed on every
 * layout, give the bits that one rank gives.
 * ranks: 8
 */
#include "base/file.h"
#include "tests/support/copies.h"
#include "tests/support/device.h"
#include "tests/support/gradient.h"
#include "tests/support/ranks.h"
#include "tests/support/store_layouts.h"
#include "parallel/store.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Of the parameters and of the optimizer's state, of which the test has two groups; and more. */
static const char *const groups[] = {
	"mean", "square", "anchor", "outer mean", "outer square", "residual", "pending"};
enum { MEAN = 1, SQUARE, OTHERS, N_GROUPS = 1 + ARRAY_LEN(groups) };
enum { ALL_GROUPS = STORE_BIT(N_GROUPS) - 1 };

/* ---- a model --------------------------------------------------------------------- */

/* Of one test: all numbers of one leaf of a tensor; and rows of the first one, if not 0. */
static struct {
	const char *name;
	int64_t micro;
	float value;
	int64_t rows;
} odd;

/* A leaf of a gradient: the contribution of one use of a parameter, in one chunk of one micro-batch, by
 * one of the virtual slices that use its slice. */
struct leaf {
	int64_t micro;
	int use, chunk, user;
};

static bool is_odd(const struct tensor *t, const struct leaf *at)
{
	return odd.name && !strcmp(t->name, odd.name) && at->micro == odd.micro &&
	       !at->use && !at->chunk && !at->user;
}

/* A worker of local SGD: its number, and the ranks with the same place in all workers; NULL: there is one. */
static struct {
	struct comm *peers;
	int number;
} worker;

/* Of very different sizes, the smallest of them rounded, the largest not too large for the grid. */
static float leaf_value(const struct tensor *t, int64_t index, const struct leaf *at)
{
	if (is_odd(t, at))
		return odd.value;
	if (t->experts && store_expert_is_idle(t, index * t->experts / tensor_size(t),
				  at->micro, at->chunk))
		return 0;
	uint64_t key[] = {hash_str(t->name), (uint64_t)index, (uint64_t)at->micro,
		(uint64_t)at->use, (uint64_t)at->chunk, (uint64_t)at->user};
	uint64_t h = hash_bytes(key, sizeof(key), 0);
	return ldexpf((float)(h >> 40) - 8388608.0f, (int)(h % 9) * 4 - 54);
}

/* ---- a step ---------------------------------------------------------------------- */

/* Writes the rows of a leaf from `first` on. */
static void write_leaf(const struct tensor *t, int slice, int64_t first, struct mat x,
	const struct leaf *at)
{
	for (int64_t r = 0; r < x.rows; r++)
		for (int64_t c = 0; c < x.cols; c++)
			((float *)x.p)[r * x.cols + c] =
				leaf_value(t, tensor_index(t, slice, first + r) + c, at);
}

/* Writes a leaf of a stack expert by expert, half of them from memory of their own. */
static void push_experts(
	struct store *s, const struct tensor *t, int slice, const struct leaf *at)
{
	int first = (int)(t->held_first / t->expert_rows);
	int n = (int)(t->held_rows / t->expert_rows);
	for (int k = first; k < first + n; k++) {
		float own[64];
		if (store_expert_is_idle(t, k, at->micro, at->chunk))
			continue;
		struct mat x = k % 2 ? mat(own, t->expert_rows, t->cols)
				     : store_leaf_block(s, t, slice, k);
		BUG_ON(k % 2 && mat_size(x) > (int64_t)ARRAY_LEN(own));
		write_leaf(t, slice, k * t->expert_rows, x, at);
		if (k % 2)
			store_add_leaf_block(s, t, slice, k, x);
		else
			store_leaf_block_done(s, t, slice, k);
	}
	store_leaves_written(s, t, slice, 1);
}

/* Writes the leaves of a stack, from the rows of all ranks with which this one divides the experts. */
static void push_stack(struct store *s, const struct tensor *t, int slice, int64_t turn)
{
	const struct mesh *m = s->c.mesh;
	const struct microbatches *micros = &s->c.microbatches;
	int cp = m->degree[AXIS_CP], chunks = s->c.chunks / cp,
	    ep = (int)max64(1, s->c.part.ep);
	int first = mesh_data_index(m->degree, m->coord) / ep * ep;
	for (int i = first; i < first + ep; i++) {
		int64_t micro = microbatches_index(micros, i / cp, turn);
		for (int c = 0; c < chunks && micro < micros->n_micro; c++)
			push_experts(s, t, slice,
				&(struct leaf){micro + worker.number * micros->n_micro, 0,
					i % cp * chunks + c, 0});
	}
}

static void push(struct store *s, const struct tensor *t, int virtual_slice, int chunk,
	int use, int64_t micro)
{
	struct leaf at = {micro + worker.number * s->c.microbatches.n_micro, use, chunk,
		tensor_slice_user(t, virtual_slice)};
	int slice = tensor_slice(t, virtual_slice);
	bool counts = micro < s->c.microbatches.n_micro;
	if (counts || s->c.microbatches.round_robin) /* it may compute anything */
		write_leaf(t, slice, 0, store_leaf(s, t, slice), &at);
	if (counts)
		store_leaf_done(s, t, slice);
}

/* Of what is used with `unit`. */
static void push_use(
	struct store *s, const struct tensor *t, int unit, int use, int64_t turn)
{
	const struct mesh *m = s->c.mesh;
	const struct microbatches *micros = &s->c.microbatches;
	int64_t micro =
		microbatches_index(micros, microbatches_rank(m->degree, m->coord), turn);
	if (!store_has_use(m, t, use))
		return;
	int chunks = s->c.chunks / m->degree[AXIS_CP];
	for (int v = 0; v < s->c.part.local && t->experts; v++)
		if (store_used_with(s, t, s->c.part.first + v) == unit)
			push_stack(s, t, tensor_slice(t, s->c.part.first + v), turn);
	for (int c = 0; c < chunks && !t->experts; c++)
		for (int v = 0; v < s->c.part.local; v++)
			if (store_used_with(s, t, s->c.part.first + v) == unit)
				push(s, t, s->c.part.first + v,
					m->coord[AXIS_CP] * chunks + c, use, micro);
}

/* The hash of parameters that are used together, as layers see them, on the ranks that are to
 * say it. */
static uint64_t hash_seen(struct store *s, int unit)
{
	const struct mesh *m = s->c.mesh;
	struct device *d = s->c.device;
	uint64_t sum = 0;
	int rank = mesh_data_index(m->degree, m->coord);
	for (int i = 0; i < s->c.n_tensors; i++) {
		const struct tensor *t = &s->c.tensors[i];
		if (rank && (!t->experts || rank >= s->c.part.ep))
			continue;
		for (int v = s->c.part.first; v < s->c.part.first + s->c.part.local;
			v++) {
			if (store_used_with(s, t, v) != unit || !store_has_use(m, t, 0) ||
				tensor_slice_user(t, v))
				continue;
			struct mat x = store_param(s, t, tensor_slice(t, v));
			for (int64_t r = 0; r < x.rows; r++)
				sum += kernel_hash(d, (float *)x.p + r * x.cols, x.cols,
					hash_str(t->name),
					tensor_index(t, tensor_slice(t, v),
						t->held_first + r));
		}
	}
	return sum;
}

/* One slice after the other. */
static uint64_t backward_tile(struct store *s, int unit, int tile, int64_t turn)
{
	int first = s->c.part.first, end = first + s->c.part.local;
	uint64_t seen = 0;
	for (int v = first; v < end; v++) {
		int id = store_tile_unit(s, unit, tile, v);
		store_use(
			s, id, v + 1 < end ? store_tile_unit(s, unit, tile, v + 1) : -1);
		seen += hash_seen(s, id);
		store_done(s, id, true);
		for (int i = 0; i < s->c.n_tensors; i++)
			push_use(s, &s->c.tensors[i], id, 0, turn);
		store_reduce(s, id, 0);
	}
	return seen;
}

static uint64_t backward(struct store *s, int64_t turn)
{
	uint64_t seen = 0;
	const struct mesh *m = s->c.mesh;
	int n = m->degree[AXIS_PP], at = m->coord[AXIS_PP];
	push_use(s, &s->c.tensors[0], 0, 1, turn);
	if (n > 1 && at == n - 1)
		store_reduce(s, 0, 0);
	for (int u = store_first_unit(n, at + 1) - 1; u >= store_first_unit(n, at); u--) {
		store_use(s, u, u > store_first_unit(n, at) ? u - 1 : -1);
		seen += hash_seen(s, u);
		for (int i = 0; i < s->c.n_tensors; i++)
			push_use(s, &s->c.tensors[i], u, 0, turn);
		for (int tile = 1; tile < N_TILES && s->c.tile; tile++)
			seen += backward_tile(s, u, tile, turn);
		store_done(s, u, true);
		store_reduce(s, u, 0);
	}
	return seen;
}

/* Something of everything: the moments remember the steps before. */
static void take_gradient(void *with, const struct part *x)
{
	(void)with;
	for (int64_t i = 0; i < x->rows * x->cols; i++) {
		x->state[MEAN][i] = x->state[MEAN][i] * 0.5f + x->g[i];
		x->state[SQUARE][i] -= x->state[STORE_PARAM][i];
		x->state[STORE_PARAM][i] = x->g[i];
		for (int g = OTHERS; g < N_GROUPS; g++)
			x->state[g][i] -= x->g[i] * (float)g;
	}
}

static uint64_t hash_of_gradient(struct store *s)
{
	store_for_each_part(s, false, ALL_GROUPS | STORE_BIT(STORE_GRAD), ALL_GROUPS,
		take_gradient, NULL);
	store_updated(s, false);
	return store_hash(s);
}

/* Micro-batches [first, end). */
struct micros {
	int64_t first, end;
};

/* The sum in double of the leaves of an element, and their number. */
static double sum_of(const struct store *s, const struct tensor *t, int slice,
	int64_t index, struct micros micros, int64_t *n)
{
	double sum = 0;
	*n = 0;
	for (struct leaf at = {.use = 0}; at.use < t->uses; at.use++)
		for (at.micro = micros.first; at.micro < micros.end; at.micro++)
			for (at.chunk = 0; at.chunk < s->c.chunks; at.chunk++)
				for (int v = 0; v < STORE_VIRTUAL_TP; v++) {
					if (tensor_slice(t, v) != slice)
						continue;
					at.user = tensor_slice_user(t, v);
					sum += (double)leaf_value(t, index, &at);
					++*n;
				}
	return sum;
}

/* Elements of this rank whose error is larger than that of a rounding of each leaf and of the sum. */
static int count_errors(const struct store *s, struct micros micros)
{
	int wrong = 0;
	for (int64_t k = 0; k < s->n_updated; k++) {
		const struct part *x = &s->updated[k];
		for (int64_t i = 0; i < x->rows * x->cols && x->g; i++) {
			int64_t n, index = tensor_index(
					   x->t, x->slice, x->row + i / x->cols);
			double want = sum_of(
				s, x->t, x->slice, index + i % x->cols, micros, &n);
			double bound = ldexp(fabs(want), -24) + ldexp((double)n, -51);
			wrong += fabs((double)x->g[i] - want) > bound;
		}
	}
	return wrong;
}

struct result {
	int errors;
	uint64_t hash[2], collected[N_GROUPS], seen, put;
	double norm[2];
	bool replicas_agree;
	int drifts; /* that were not found, or where there was none */
};

/* Rows of a tensor, as a checkpoint gets them. */
static uint64_t collect(struct store *s, int g, int to)
{
	uint64_t h = 0;
	for (int i = 0; i < s->c.n_tensors; i++) {
		const struct tensor *t = &s->c.tensors[i];
		int64_t rows = t->dims[0], width = tensor_width(t);
		float *out = xcalloc((size_t)tensor_size(t), sizeof(*out));
		for (int64_t r = 0; r < rows; r += 5)
			store_collect(
				s, g, i, r, min64(5, rows - r), to, out + r * width);
		h = hash_bytes(out, (size_t)tensor_size(t) * sizeof(float), h);
		free(out);
	}
	return h;
}

/* As a checkpoint puts them. */
static uint64_t put(struct store *s)
{
	for (int i = 0; i < s->c.n_tensors; i++) {
		const struct tensor *t = &s->c.tensors[i];
		int64_t rows = t->dims[0], width = tensor_width(t);
		float *in = xcalloc((size_t)tensor_size(t), sizeof(*in));
		for (int64_t k = 0; k < tensor_size(t); k++)
			in[k] = leaf_value(t, k, &(struct leaf){0});
		for (int64_t r = 0; r < rows; r += 7)
			store_write_rows(
				s, STORE_PARAM, i, r, min64(7, rows - r), in + r * width);
		free(in);
	}
	store_updated(s, false);
	return store_hash(s);
}

static uint64_t sum_over(struct comm *c, uint64_t x)
{
	comm_run(c, COLL_ALLREDUCE,
		&(struct coll_args){
			.recv = &x, .count = 1, .type = COMM_U64, .op = COMM_SUM});
	return x;
}

/* A number of the last rank changes: is that found where another rank has it too? Counts the
 * tensors where it is not, or where it is and nobody has it. */
static int count_drifts(struct store *s)
{
	const int *degree = s->c.mesh->degree;
	struct comm *w = s->c.mesh->world;
	int wrong = 0;
	for (int i = 0; i < s->c.n_tensors; i++) {
		const struct tensor *t = &s->c.tensors[i];
		float *p = NULL, was = 0;
		for (int64_t k = 0; k < s->n_updated && w->rank == w->size - 1; k++)
			if (s->updated[k].t == t && s->updated[k].rows)
				p = s->updated[k].state[STORE_PARAM];
		int ep = t->experts ? (int)max64(1, s->c.part.ep) : 1;
		int sharders = s->c.zero ? degree[AXIS_FSDP] * degree[AXIS_CP] : 1;
		bool gathered = s->c.zero && s->c.zero < 3 && sharders > ep;
		bool shared =
			gathered || mesh_data_ranks(degree) > max64(ep, sharders) ||
			(degree[AXIS_TP] > 1 && t->users_per_slice > s->c.part.local) ||
			(degree[AXIS_PP] > 1 && t->uses > 1);
		if (p) {
			was = *p;
			*p = was == 77 ? 78 : 77;
		}
		bool found = !test_copies_agree(s);
		if (p)
			*p = was;
		wrong += found != (comm_max_i64(w, p && shared) > 0);
	}
	return wrong;
}

static void add_workers(void *with, int64_t *sum, int64_t n)
{
	comm_sum_i64(with, sum, n);
}

/* One step, or two. Of several workers, the first step is a warm-up: it has the gradient of all. */
static void steps(struct store *s, int n, struct result *out)
{
	const struct microbatches *micros = &s->c.microbatches;
	const struct mesh *m = s->c.mesh;
	int rank = microbatches_rank(m->degree, m->coord);
	for (int step = 0; step < n; step++) {
		uint64_t seen = 0;
		int64_t own = microbatches_count(micros, rank), n_micro = micros->n_micro;
		bool warm = worker.peers && !step;
		struct micros of = {
			worker.number * n_micro, (worker.number + 1) * n_micro};
		if (warm)
			of = (struct micros){0, s->c.workers * n_micro};
		s->add_workers = warm ? add_workers : NULL;
		s->add_workers_with = worker.peers;
		for (int64_t i = 0; i < own; i++)
			seen = backward(s, i);
		store_step_end(s);
		out->errors += count_errors(s, of);
		out->norm[step] = gradient_norm(s);
		out->hash[step] = hash_of_gradient(s);
		out->seen = sum_over(m->world, seen);
	}
}

/* After the steps. */
static void look(struct store *s, struct result *out)
{
	struct comm *c = s->c.mesh->world;
	out->replicas_agree = test_copies_agree(s);
	out->drifts = count_drifts(s);
	for (int g = 0; g < N_GROUPS; g++) {
		uint64_t h = collect(s, g, c->size - 1);
		out->collected[g] = sum_over(c, c->rank == c->size - 1 ? h : 0);
	}
	out->put = put(s);
}

/* Collective over c, which has as many ranks as the layout. */
static void run(struct comm *c, const struct store_layout *l, struct result *out)
{
	struct tensor table[STORE_TENSORS];
	bool used[STORE_TENSORS];
	struct device d;
	struct mesh m;
	struct arena memory, scratch;
	struct err e = {0};
	int here = STORE_VIRTUAL_TP / l->degree[AXIS_TP];
	mesh_open(&m, c, l->degree);
	m.host_ranks = l->host_ranks;
	store_table(table, odd.rows);
	for (int i = 0; i < STORE_TENSORS; i++)
		used[i] = store_has_use(&m, &table[i], 0) ||
			  store_has_use(&m, &table[i], 1);
	struct tensor_part part = {STORE_VIRTUAL_TP, m.coord[AXIS_TP] * here, here, used,
		l->ep, l->ep ? mesh_data_index(m.degree, m.coord) % l->ep : 0};
	tensors_place(table, STORE_TENSORS, &part);
	device_open_cpu(&d, 1);
	arena_init(&memory, "test", odd.rows ? 1 << 25 : 1 << 20);
	arena_init(&scratch, "scratch", 1 << 20);
	d.scratch = &scratch;
	struct store_config sc = {.mesh = &m,
		.device = &d,
		.tensors = table,
		.n_tensors = STORE_TENSORS,
		.n_units = STORE_UNITS,
		.part = part,
		.chunks = STORE_CHUNKS,
		.microbatches = microbatches_assign(
			l->micros, l->degree, l->zero, offloads_grads(l->offload)),
		.zero = l->zero,
		.sum_segment = 32,
		.flat = l->flat,
		.bucket_bytes = 1000,
		.offload = l->offload,
		.workers = worker.peers ? worker.peers->size : 0,
		.tile = l->tile};
	sc.microbatches.lockstep = l->ep > 1;
	for (size_t i = 0; i < ARRAY_LEN(groups); i++)
		store_groups_add(
			&sc.groups, groups[i], i < 2 ? STORE_OPTIMIZER : STORE_OUTER);
	if (l->offload)
		sc.offload_backend =
			offload_file_open(file_temporary_directory(), 1 << 20, &e);
	assert_int_equal(e.code, 0);
	struct store *s = store_new(&sc, &memory);
	bool several = !odd.name && !odd.rows;
	steps(s, several ? 2 : 1, out);
	if (several)
		look(s, out);
	assert_true(!l->offload ||
		    (s->bytes.offloaded <= 1 << 20 && s->read > 0 && s->written > 0));
	store_free(s);
	offload_backend_close(sc.offload_backend);
	arena_release(&memory);
	arena_release(&scratch);
	mesh_close(&m);
}

static bool differ(const struct result *test, const struct result *control, size_t layout,
	int64_t micros)
{
	bool collected =
		!memcmp(test->collected, control->collected, sizeof(test->collected));
	if (test->replicas_agree && !test->drifts && !test->errors &&
		test->hash[0] == control->hash[0] && test->hash[1] == control->hash[1] &&
		test->norm[0] == control->norm[0] && test->seen == control->hash[0] &&
		test->put == control->put && collected)
		return false;
	print_error(
		"layout %zu, %lld micro-batches: errors %d replicas %d drifts %d hash %d %d "
		"norm %d "
		"seen %d put %d collected %d\n",
		layout, (long long)micros, test->errors, test->replicas_agree,
		test->drifts, test->hash[0] == control->hash[0],
		test->hash[1] == control->hash[1], test->norm[0] == control->norm[0],
		test->seen == control->hash[0], test->put == control->put, collected);
	return true;
}

TEST(same_bits)
{
	static const int64_t micros[] = {1, 3, 11, 8};
	size_t n_micros =
		ARRAY_LEN(micros) - !getenv("LONG"); /* eight: all ranks have as many */
	int different = 0;
	for (size_t k = 0; k < n_micros; k++) {
		const struct store_layout one = {{1, 1, 1, 1, 1}, 0, false, micros[k]};
		struct result control = {.errors = 0}, test;
		struct comm *alone = comm_self("alone");
		run(alone, &one, &control);
		comm_free(alone);
		assert_int_equal(control.errors, 0);
		assert_true(isfinite(control.norm[0]) && control.norm[0] > 0 &&
			    control.norm[0] == control.norm[1]);
		for (size_t i = 0; i < (size_t)n_store_layouts; i++) {
			struct store_layout l = store_layouts[i];
			l.micros = micros[k];
			int n = ranks_needed(l.degree);
			if (l.degree[AXIS_DP] * l.degree[AXIS_FSDP] > micros[k] ||
				(l.offload && micros[k] < 9)) /* in a hurry */
				continue;
			struct comm *c =
				comm_split(world, world->rank < n ? 0 : -1, "layout");
			if (c) {
				memset(&test, 0, sizeof(test));
				run(c, &l, &test);
				different += differ(&test, &control, i, micros[k]);
				comm_free(c);
			}
			comm_barrier(world);
		}
	}
	assert_on_all(!different);
}

/* The first ranks of the world are two workers with this layout. */
static void run_workers(const struct store_layout *l, struct result *out)
{
	int n = ranks_needed(l->degree), rank = world->rank;
	bool used = rank < 2 * n;
	struct comm *c = comm_split(world, used ? rank / n : -1, "layout");
	struct comm *peers = comm_split(world, used ? rank % n : -1, "workers");
	*out = (struct result){.errors = 0};
	if (used) {
		worker.peers = peers;
		worker.number = rank / n;
		run(c, l, out);
	}
	comm_free(c);
	comm_free(peers);
	worker.peers = NULL;
	worker.number = 0;
	comm_barrier(world);
}

/* A warm-up of two workers has the bits of one run with the micro-batches of both. */
TEST(workers)
{
	static const int64_t micros[] = {4, 11};
	int different = 0;
	struct result *all = xcalloc((size_t)world->size, sizeof(*all)), test, both;
	for (size_t k = 0; k < ARRAY_LEN(micros); k++) {
		struct store_layout one = {{1, 1, 1, 1, 1}, 0, false, 2 * micros[k]};
		struct comm *alone = comm_self("alone");
		both = (struct result){.errors = 0};
		run(alone, &one, &both);
		comm_free(alone);
		one.micros = micros[k];
		run_workers(&one, &test);
		comm_allgather(world, &test, all, sizeof(*all));
		different += all[0].errors || all[1].errors ||
			     all[0].hash[0] != both.hash[0] ||
			     all[1].norm[0] != both.norm[0];
		for (size_t i = 0; i < (size_t)n_store_workers; i++) {
			struct store_layout l = store_workers[i];
			int n = ranks_needed(l.degree);
			l.micros = micros[k];
			run_workers(&l, &test);
			if (world->rank < 2 * n)
				different += differ(
					&test, &all[world->rank / n], i, micros[k]);
		}
	}
	free(all);
	assert_on_all(!different);
}

/* ---- a step alone ---------------------------------------------------------------- */

enum { MICROS = 3 };

static void run_alone(struct result *out)
{
	const struct store_layout one = {{1, 1, 1, 1, 1}, 0, false, MICROS};
	struct comm *alone = comm_self("alone");
	run(alone, &one, out);
	comm_free(alone);
}

/* Does a layout give this hash, or if it is 0 this norm, or both NaN? On ranks without it, too. */
static bool gives(const struct store_layout *layout, double norm, uint64_t hash)
{
	struct store_layout l = *layout;
	l.micros = MICROS;
	struct result r = {.norm = {norm}, .hash = {hash}};
	struct comm *c = comm_split(
		world, world->rank < ranks_needed(l.degree) ? 0 : -1, "layout");
	if (c)
		run(c, &l, &r);
	comm_free(c);
	comm_barrier(world);
	bool same = r.norm[0] == norm || (isnan(r.norm[0]) && isnan(norm));
	return same && (!hash || r.hash[0] == hash);
}

static const struct store_layout few[] = {
	{{1, 3, 1, 1, 1}, 0, false, 0},
	{{1, 1, 3, 1, 1}, 3, true, 0},
	{{1, 3, 2, 1, 1}, 2, false, 0},
	{{1, 2, 1, 1, 2}, 0, false, 0},
	{{1, 1, 1, 4, 1}, 3, false, 0},
	{{2, 2, 1, 1, 2}, 0, false, 0},
	{{1, 2, 2, 1, 1}, 3, true, 0, OFFLOAD_ALL},
	{{1, 1, 8, 1, 1}, 3, .host_ranks = 4},
	{{1, 2, 1, 2, 1}, 0, .host_ranks = 2},
};

/* A leaf that the leaves of all ranks leave room for is one on every layout, and one that is larger or
 * not a number makes the norm of every layout infinite, or not a number. */
TEST(limits)
{
	static const struct {
		const char *name;
		float most;
	} cases[] = {
		{"0.tokens", 0x1p7f},	 /* 3 micro-batches x 2 uses x 4 chunks */
		{"0.positions", 0x1p6f}, /* 3 x 4 x 4 users */
		{"2.wk", 0x1p7f},	 /* 3 x 4 x 2 */
	};
	int different = 0;
	for (size_t k = 0; k < 3 * ARRAY_LEN(cases); k++) {
		float most = cases[k / 3].most;
		struct result control = {.errors = 0};
		odd.name = cases[k / 3].name;
		odd.micro = MICROS - 1;
		odd.value = k % 3 == 0	 ? most
			    : k % 3 == 1 ? nextafterf(-most, -INFINITY)
					 : NAN;
		run_alone(&control);
		double norm = control.norm[0];
		bool right = k % 3 == 0	  ? isfinite(norm)
			     : k % 3 == 1 ? norm == INFINITY
					  : isnan(norm);
		if (!right)
			print_error(
				"%s: %g: norm %g\n", odd.name, (double)odd.value, norm);
		different += !right;
		for (size_t i = 0; i < ARRAY_LEN(few); i++) {
			bool same = gives(&few[i], norm, 0);
			different += !same;
			if (!same)
				print_error("%s: %g, layout %zu\n", odd.name,
					(double)odd.value, i);
		}
	}
	odd.name = NULL;
	assert_on_all(!different);
}

/* A rank alone rounds the sums in their place, some after the others if they are many. */
TEST(large)
{
	struct result control = {.errors = 0};
	odd.rows = 24 << 10;
	run_alone(&control);
	bool same = gives(&few[0], control.norm[0], control.hash[0]);
	odd.rows = 0;
	assert_on_all(same);
}

int main(void)
{
	ranks_open();
	return ranks_close(ranks_run());
}
