#include "tests/support/reduction_fakes.h"
#include "tests/support/support.h"

#include <stdlib.h>
#include <string.h>

enum { STEPS = 2, STACK = 1 << 18 };

static int n_peers;
static uint64_t *expected[STEPS],
	*n_expected;	       /* [worker][tensor][element]; leaves of an element */
static uint64_t *words[STEPS]; /* [worker]: checksums of contributions minus results */

/* ---- a step ---------------------------------------------------------------------- */

static uint32_t leaf_bits(
	int tensor, int64_t index, int64_t micro, int use, int chunk, int user)
{
	uint64_t key = (uint64_t)tensor;
	key = key << 16 | (uint64_t)index;
	key = key << 16 | (uint64_t)micro;
	key = key << 1 | (uint64_t)use;
	key = key << 8 | (uint64_t)chunk;
	return (uint32_t)hash_mix(key << 4 | (uint64_t)user);
}

static int n_stages(void)
{
	return checked->l.degree[AXIS_PP] * (checked->has_both_ends ? 2 : 1);
}

/* The last stage of a rank, and the first one. With ends that meet, stages are dealt as in a V. */
static int last_stage(const struct fake_rank *p)
{
	return checked->has_both_ends ? n_stages() - 1 - p->mesh.coord[AXIS_PP]
				      : p->mesh.coord[AXIS_PP];
}

static bool has_unit(int stage, int unit)
{
	return unit >= store_first_unit(n_stages(), stage) &&
	       unit < store_first_unit(n_stages(), stage + 1);
}

static bool has_use(const struct fake_rank *p, const struct tensor *t, int use)
{
	if (use == 1)
		return t->uses > 1 && last_stage(p) == n_stages() - 1;
	return has_unit(p->mesh.coord[AXIS_PP], t->unit) ||
	       has_unit(last_stage(p), t->unit);
}

/* Writes a leaf of a stack, expert by expert. */
static void push_experts(
	struct fake_rank *p, const struct tensor *t, int slice, int chunk, int64_t micro)
{
	int tensor = (int)(t - p->table);
	int first = (int)(t->held_first / t->expert_rows);
	int end = first + (int)(t->held_rows / t->expert_rows);
	for (int k = first; k < end; k++) {
		if (store_expert_is_idle(t, k, micro, chunk))
			continue;
		struct mat x = store_leaf_block(p->s, t, slice, k);
		for (int64_t i = 0; i < x.rows * x.cols; i++)
			((uint32_t *)x.p)[i] = leaf_bits(tensor,
				tensor_index(t, slice, k * t->expert_rows + i / x.cols) +
					i % x.cols,
				micro, 0, chunk, 0);
		store_leaf_block_done(p->s, t, slice, k);
	}
	store_leaves_written(p->s, t, slice, 1);
}

/* Writes the leaves of a stack, from the chunks of all ranks with which this one divides the experts. */
static void push_stack(
	struct fake_rank *p, const struct tensor *t, int slice, int64_t turn)
{
	const struct microbatches *m = &p->s->c.microbatches;
	int cp = checked->l.degree[AXIS_CP], chunks = checked->chunks / cp;
	int ep = checked->l.ep ? checked->l.ep : 1;
	int first = mesh_data_index(p->mesh.degree, p->mesh.coord) / ep * ep;
	for (int i = first; i < first + ep; i++) {
		int64_t micro = microbatches_index(m, i / cp, turn);
		for (int c = 0; c < chunks && micro < m->n_micro; c++)
			push_experts(p, t, slice, i % cp * chunks + c,
				p->worker * checked->l.micros + micro);
	}
}

/* Writes a leaf, or with `done` says that it is written. */
static void push(struct fake_rank *p, const struct tensor *t, int virtual_slice,
	int chunk, int use, int64_t micro, bool done)
{
	int slice = tensor_slice(t, virtual_slice), tensor = (int)(t - p->table);
	int64_t first = p->worker * checked->l.micros;
	if (done && micro < checked->l.micros)
		store_leaf_done(p->s, t, slice);
	if (done)
		return;
	struct mat x = store_leaf(p->s, t, slice);
	for (int64_t i = 0; i < x.rows * x.cols; i++)
		((uint32_t *)x.p)[i] = leaf_bits(tensor,
			tensor_index(t, slice, i / x.cols) + i % x.cols, first + micro,
			use, chunk, tensor_slice_user(t, virtual_slice));
}

/* Round-robin, a rank without a micro-batch writes leaves that do not count. */
static bool writes_leaves(const struct microbatches *m, int64_t micro)
{
	return micro < m->n_micro || m->round_robin;
}

/* The leaves of what is used with `unit`, those of all tensors at once. */
static void push_use(struct fake_rank *p, int unit, int use, int64_t turn)
{
	const struct microbatches *m = &p->s->c.microbatches;
	int64_t micro = microbatches_index(
		m, microbatches_rank(p->mesh.degree, p->mesh.coord), turn);
	int cp = checked->l.degree[AXIS_CP], chunks = checked->chunks / cp;
	struct tensor_part part = p->s->c.part;
	for (int k = 0; k < 2 * chunks * part.local; k++) {
		int v = part.first + k / 2 % part.local;
		int chunk = p->mesh.coord[AXIS_CP] * chunks + k / 2 / part.local;
		for (const struct tensor *t = p->table; t < p->table + STORE_TENSORS; t++)
			if (!has_use(p, t, use) || store_used_with(p->s, t, v) != unit)
				continue;
			else if (!t->experts && writes_leaves(m, micro))
				push(p, t, v, chunk, use, micro, k % 2);
			else if (t->experts && k == 2 * (v - part.first))
				push_stack(p, t, tensor_slice(t, v), turn);
	}
}

static void push_tiles(struct fake_rank *p, int unit, int use, int64_t turn)
{
	struct tensor_part part = p->s->c.part;
	for (int tile = 1; tile < N_TILES && checked->l.tile; tile++)
		for (int v = part.first; v < part.first + part.local; v++) {
			int id = store_tile_unit(p->s, unit, tile, v);
			push_use(p, id, use, turn);
			store_reduce(p->s, id, use);
		}
}

/* Activations that are in use while a unit's gradients are written must be as they were. */
static void check_activations(struct fake_rank *p, int unit)
{
	for (int64_t i = 0; p->activations && i < p->live[unit]; i++)
		if (p->activations[i] != 'a') {
			wrong("gradients replace activations that are in use");
			return;
		}
}

static void backward_stage(struct fake_rank *p, int stage, int64_t turn)
{
	int n = n_stages();
	if (stage == n - 1) { /* the output layer */
		push_use(p, 0, 1, turn);
		if (p->table[0].tile && checked->l.tile)
			push_tiles(p, 0, 1, turn);
		if (n > 1)
			store_reduce(p->s, 0, 1);
		check_activations(p, STORE_UNITS);
	}
	for (int u = STORE_UNITS - 1; u >= 0; u--) {
		if (!has_unit(stage, u))
			continue;
		push_use(p, u, 0, turn);
		push_tiles(p, u, 0, turn);
		store_reduce(p->s, u, 0);
		check_activations(p, u);
	}
}

static void backward(struct fake_rank *p)
{
	const struct microbatches *m = &p->s->c.microbatches;
	int rank = microbatches_rank(p->mesh.degree, p->mesh.coord),
	    at = p->mesh.coord[AXIS_PP];
	int64_t n = microbatches_count(m, rank);
	for (int64_t i = 0; i <= n;
		i++) { /* with ends that meet, the stages' micro-batches alternate */
		if (i < n)
			backward_stage(p, last_stage(p), i);
		if (i > 0 && checked->has_both_ends)
			backward_stage(p, at, i - 1);
	}
}

static int64_t tensor_at(int tensor, const struct tensor *table)
{
	int64_t at = 0;
	for (int i = 0; i < tensor; i++)
		at += tensor_size(&table[i]);
	return at;
}

static int64_t model_size(const struct tensor *table)
{
	return tensor_at(STORE_TENSORS, table);
}

static void check_part(
	struct fake_rank *p, const struct part *x, const uint32_t *g, int step)
{
	int tensor = (int)(x->t - p->table);
	int64_t at = tensor_at(tensor, p->table);
	const uint64_t *want = expected[step] + p->worker * model_size(p->table) + at;
	char text[200];
	if (n_expected[at] > UINT64_C(1) << bucket_of(p->s, x->t, x->slice)->levels)
		wrong("a sum has more leaves than its levels allow");
	for (int64_t i = 0; i < x->rows * x->cols; i++) {
		int64_t k =
			tensor_index(x->t, x->slice, x->row + i / x->cols) + i % x->cols;
		uint32_t right =
			n_expected[at + k] > 1 ? rounded(want[k]) : (uint32_t)want[k];
		if (g[i] == right)
			continue;
		snprintf(text, sizeof(text),
			"step %d: the gradient of %s is wrong, element %lld", step + 1,
			x->t->name, (long long)k);
		wrong(text);
		return;
	}
}

static void check_gradients(struct fake_rank *p, int step)
{
	const struct store *s = p->s;
	for (int64_t i = 0; i < s->n_updated; i++) {
		const struct part *x = &s->updated[i];
		const uint32_t *g = (const void *)x->g;
		if (p->file && is_offloaded(s, STORE_GRAD))
			g = (const void *)(p->file->bytes +
					   s->impl->offload.begin[STORE_GRAD] +
					   4 * x->pos);
		check_part(p, x, g, step);
	}
}

static void run_steps(void)
{
	struct fake_rank *p = now;
	for (int step = 0; step < STEPS; step++) {
		p->s->add_workers = checked->workers > 1 && !step ? add_workers : NULL;
		p->s->add_workers_with = p;
		if (p->activations)
			memset(p->activations, 'a', (size_t)p->live[STORE_UNITS]);
		backward(p);
		store_step_end(p->s);
		check_gradients(p, step);
		words[step][p->worker] += p->s->impl->grid->check;
		p->s->impl->grid->check = 0;
	}
	p->ended = true;
	progress++;
	for (;;)
		yield();
}

/* ---- all ranks ------------------------------------------------------------------- */

/* The sums of all leaves, of the micro-batches of a worker, or in a warm-up of all. */
static void add_leaves(const struct tensor *table, int step, int worker)
{
	int64_t n = model_size(table), first = worker * checked->l.micros,
		end = first + checked->l.micros;
	uint64_t *sum = expected[step] + worker * n;
	if (checked->workers > 1 && !step) {
		first = 0;
		end = checked->workers * checked->l.micros;
	}
	for (int i = 0; i < STORE_TENSORS; i++)
		for (int64_t k = 0; k < tensor_size(&table[i]); k++, sum++) {
			const struct tensor *t = &table[i];
			int64_t leaves = max64(1, checked->workers) * checked->l.micros *
					 t->uses * checked->chunks * t->users_per_slice;
			n_expected[tensor_at(i, table) + k] = (uint64_t)leaves;
			for (int64_t m = first; m < end; m++)
				for (int a = 0; a < t->uses * checked->chunks *
							    t->users_per_slice;
					a++) {
					int user = a % t->users_per_slice,
					    rest = a / t->users_per_slice;
					uint32_t x = leaf_bits(i, k, m, rest % t->uses,
						rest / t->uses, user);
					if (t->experts &&
						store_expert_is_idle(t,
							k * t->experts / tensor_size(t),
							m, rest / t->uses))
						continue;
					*sum += leaves > 1 ? widen(x) : x;
				}
		}
}

static void open_file(struct fake_rank *p, struct store_config *c)
{
	if (!checked->l.offload)
		return;
	p->file = xcalloc(1, sizeof(*p->file));
	p->file->bytes = xcalloc(1 << 20, 1);
	p->file->x.enqueue = file_enqueue;
	p->file->x.wait = file_wait;
	c->offload_backend = &p->file->x;
}

/* Gradients of one micro-batch replace activations. A unit's activations are in use until the unit
 * before it has its gradients. */
static void share_activations(struct fake_rank *p, struct store_config *c)
{
	struct arena measure;
	arena_measure(&measure, "plan");
	struct store *plan = store_new(c, &measure);
	int64_t all = 64 * (1 + (int64_t)(test_uniform(3, p->rank) * 300)), n;
	for (int u = 0; u < STORE_UNITS; u++)
		p->live[u] = round_up(all * (u + 1) / (STORE_UNITS + 1), 64);
	p->live[STORE_UNITS] = all;
	int64_t at = round_up(store_gradients_offset(plan, p->live, all), 64);
	n = at + store_gradients_bytes(plan);
	store_free(plan);
	p->activations = xcalloc((size_t)(n + 64), 1);
	c->gradient_memory = p->activations + at;
}

static struct device device;
static struct kernels kernels;

static void open_peer(struct fake_rank *p)
{
	const struct store_layout *l = &checked->l;
	bool used[STORE_TENSORS];
	int here = STORE_VIRTUAL_TP / l->degree[AXIS_TP];
	mesh_plan(&p->mesh, l->degree, p->rank);
	store_table(p->table, 0);
	p->table[0].tile = checked->tiled_uses ? 3 : 0;
	for (int i = 0; i < STORE_TENSORS; i++)
		used[i] = has_use(p, &p->table[i], 0) || has_use(p, &p->table[i], 1);
	struct tensor_part part = {STORE_VIRTUAL_TP, p->mesh.coord[AXIS_TP] * here, here,
		used, l->ep,
		l->ep ? mesh_data_index(p->mesh.degree, p->mesh.coord) % l->ep : 0};
	tensors_place(p->table, STORE_TENSORS, &part);
	arena_init(&p->memory, "test", 1 << 18);
	struct store_config sc = {.mesh = &p->mesh,
		.device = &device,
		.tensors = p->table,
		.n_tensors = STORE_TENSORS,
		.n_units = STORE_UNITS,
		.part = part,
		.has_both_ends = checked->has_both_ends,
		.chunks = checked->chunks,
		.microbatches = microbatches_assign(
			l->micros, l->degree, l->zero, offloads_grads(l->offload)),
		.zero = l->zero,
		.sum_segment = 32,
		.flat = l->flat,
		.bucket_bytes = 1000,
		.offload = l->offload,
		.workers = checked->workers,
		.check_sums = true,
		.tile = l->tile};
	sc.microbatches.lockstep = l->ep > 1;
	open_file(p, &sc);
	if (!sc.microbatches.round_robin && !l->tile && l->degree[AXIS_PP] == 1 &&
		l->micros == sc.microbatches.ranks)
		share_activations(p, &sc);
	p->s = store_new(&sc, &p->memory);
	for (struct bucket *b = p->s->impl->bucket;
		b < p->s->impl->bucket + p->s->impl->n_trained; b++) {
		b->all.c->planned = false; /* so that leaves are counted */
		if (checked->see)
			checked->see(b);
	}
	if (checked->plant)
		checked->plant(p->s, p->rank);
}

static void start(struct fake_rank *p)
{
	getcontext(&p->context);
	p->context.uc_stack.ss_sp = xmalloc(STACK);
	p->context.uc_stack.ss_size = STACK;
	p->context.uc_link = &scheduler;
	makecontext(&p->context, run_steps, 0);
}

/* Each rank in turn, until all have ended, or none gets any further. */
static void run_all(void)
{
	for (int left = n_peers; left && !fault->code;) {
		int64_t before = progress;
		left = 0;
		for (int i = 0; i < n_peers && !fault->code; i++) {
			now = &peers[i];
			if (!now->ended)
				swapcontext(&scheduler, &now->context);
			left += !now->ended;
		}
		for (int i = 0; left && progress == before && i < n_peers; i++) {
			now = &peers[i];
			if (!now->ended)
				wrong("it waits for ever: deadlock");
		}
	}
}

static void check_words(void)
{
	for (int step = 0; step < STEPS; step++)
		for (int w = 0; w < max64(1, checked->workers); w++)
			if (words[step][w] && !fault->code)
				err_set(fault, EX_FAILED,
					"step %d: the checksums do not add up", step + 1);
}

/* Elements of all buckets are rounded by one rank of those that share the bucket, in each step. */
static void check_rounded(void)
{
	int64_t done = 0, want = 0;
	for (int i = 0; i < n_peers; i++) {
		const struct store_impl *o = peers[i].s->impl;
		done += peers[i].rounded;
		for (struct bucket *b = o->bucket; b < o->bucket + o->n_trained; b++)
			for (int k = 0; k < b->sharding->n && b->levels &&
					b->all.ranks[0] == peers[i].rank;
				k++)
				want += STEPS * b->shard[k].n;
	}
	if (done != want && !fault->code)
		err_set(fault, EX_FAILED, "%lld elements are rounded, not %lld",
			(long long)done, (long long)want);
}

static void free_mail(struct fake_mailbox *b)
{
	for (int i = 0; i < b->n; i++)
		free(b->mail[i].v);
	free(b->mail);
}

static void close_all(void)
{
	free_sums();
	for (int i = 0; i < n_peers; i++) {
		struct fake_rank *p = &peers[i];
		store_free(p->s);
		arena_release(&p->memory);
		comm_free(p->mesh.world);
		mesh_close(&p->mesh);
		free_mail(&p->swap);
		free_mail(&p->sums);
		free(p->context.uc_stack.ss_sp);
		free(p->activations);
		if (p->file)
			free(p->file->bytes);
		free(p->file);
	}
	free(peers);
}

int reduction_check(const struct reduction_case *c, struct err *e)
{
	struct arena scratch;
	checked = c;
	fault = e;
	int ranks = mesh_ranks(c->l.degree), workers = (int)max64(1, c->workers);
	n_peers = ranks * workers;
	peers = xcalloc((size_t)n_peers, sizeof(*peers));
	device_open_cpu(&device, 1);
	arena_init(&scratch, "scratch", 1 << 20);
	kernels = *device.k;
	kernels.grid_sum = fake_grid_sum;
	device.k = &kernels;
	device.scratch = &scratch;
	comm_plan_hosts(c->l.host_ranks, c->shares);
	for (int i = 0; i < n_peers; i++) {
		now = &peers[i];
		now->rank = i % ranks;
		now->worker = i / ranks;
		open_peer(now);
		start(now);
	}
	int64_t n = model_size(peers->table);
	n_expected = xcalloc((size_t)n, sizeof(*n_expected));
	for (int step = 0; step < STEPS; step++) {
		expected[step] = xcalloc((size_t)(n * workers), sizeof(**expected));
		words[step] = xcalloc((size_t)workers, sizeof(**words));
		for (int w = 0; w < workers; w++)
			add_leaves(peers->table, step, w);
	}
	run_all();
	check_rounded();
	check_words();
	close_all();
	for (int step = 0; step < STEPS; step++) {
		free(expected[step]);
		free(words[step]);
	}
	free(n_expected);
	arena_release(&scratch);
	device_close(&device);
	return e->code ? -1 : 0;
}
