/* What workers of local SGD agree on is what a model in double computes; and what fewer bytes lose.
 * ranks: 8
 * device: cpu cuda
 */
#include "tests/support/edit_workers.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const struct edit_config plain = {.by_unit = true};

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
	device_get(&worker_device, v->p, store_begin(w->s, g, 0, v->n, NULL),
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
	static const struct worker_layout alone = {
		{1, 1, 1, 1, 1}, 0, OFFLOAD_NONE, false};
	struct worker w;
	struct values mine;
	worker_open(&w, c, c->size, &alone, ec);
	worker_move(&w, -1, 0, NOWHERE);
	take_values(&w, &a->anchor);
	edit_anchor(w.x);
	worker_move(&w, c->rank, 0, bad);
	take_values(&w, &mine);
	comm_allgather(c, &mine, a->brought, sizeof(mine));
	edit_sync(w.x, 1 + c->rank, &a->r);
	take_values(&w, &a->after);
	str_clear(&a->excluded);
	str_clear(&a->clipped);
	edit_describe_excluded(w.x, -1, &a->excluded);
	edit_describe_clipped(w.x, -1, &a->clipped);
	worker_close(&w);
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

TEST(averages)
{
	static struct around a;
	const struct edit_config sgd = {
		.outer = EDIT_OUTER_SGD, .lr = 1, .by_unit = true};
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

TEST(no_numbers)
{
	static struct around a;
	const struct edit_config sgd = {
		.outer = EDIT_OUTER_SGD, .lr = 1, .by_unit = true};
	struct comm *c = comm_split(world, world->rank < 4 ? 0 : -1, "some");
	for (size_t k = 2; k < N_EDIT_CONFIGS; k++) {
		bool back = true, out = true, finite = true;
		if (c) {
			one_sync(c, &edit_configs[k], EVERYWHERE, &a);
			back = !memcmp(
				a.after.p, a.anchor.p, (size_t)a.after.n * sizeof(float));
			out = a.r.weight == 0 && a.r.anomalies > 0;
			one_sync(c, &edit_configs[k], 1, &a);
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
TEST(names)
{
	static struct around a;
	struct edit_config ec = {.outer = EDIT_OUTER_SGD, .lr = 1, .by_unit = true};
	struct comm *c = comm_split(world, world->rank < 4 ? 0 : -1, "some");
	bool right = true;
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
TEST(clips)
{
	static struct around a;
	const struct edit_config ec = {.outer = EDIT_OUTER_SGD, .lr = 1, .clip = 0.25};
	struct comm *c = comm_split(world, world->rank < 2 ? 0 : -1, "some");
	double length = 0;
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
	double p = (double)worker_difference(t, index, -1, 0), v = 0;
	for (int i = 0; i < syncs; i++) {
		double g = (double)worker_difference(t, index, worker, i) + ec->decay * p;
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
	float *p = worker_fetch(x->state[STORE_PARAM], n);
	for (int64_t i = 0; i < n; i++) {
		int64_t index =
			tensor_index(x->t, x->slice, x->row + i / x->cols) + i % x->cols;
		double want = sgd_in_double(a->ec, x->t, index, 0, a->syncs);
		a->furthest = fmax(a->furthest, fabs((double)p[i] - want));
	}
	free(p);
}

TEST(dampens)
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
	static const struct worker_layout sharded = {
		{1, 1, 2, 1, 1}, 3, OFFLOAD_NONE, false};
	struct comm *c = comm_split(world, world->rank < 4 ? 0 : -1, "some");
	for (size_t k = 0; k < ARRAY_LEN(some); k++) {
		struct apart a = {&some[k], 4, 0};
		struct worker w;
		if (c) {
			worker_open(&w, c, 2, &sharded, &some[k]);
			worker_move(&w, -1, 0, NOWHERE);
			edit_anchor(w.x);
			for (int i = 0; i < a.syncs; i++) {
				struct edit_result r;
				worker_move(&w, 0, i, NOWHERE);
				edit_sync(w.x, 1, &r);
			}
			store_for_each_part(
				w.s, false, STORE_BIT(STORE_PARAM), 0, measure_part, &a);
			worker_close(&w);
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
	float *p = worker_fetch(x->state[STORE_PARAM], n);
	for (int64_t i = 0; i < n; i++) {
		int64_t index =
			tensor_index(x->t, x->slice, x->row + i / x->cols) + i % x->cols;
		bool moved = p[i] != worker_difference(x->t, index, -1, 0);
		int64_t by =
			(int64_t)(1e6f * fabsf(worker_difference(x->t, index, 0, 0)));
		a->kept[t] += moved;
		if (moved)
			a->least[t] = min64(a->least[t], by);
		else
			a->other[t] = max64(a->other[t], by);
	}
	free(p);
}

TEST(largest_of_tensor)
{
	static const struct worker_layout sharded = {
		{1, 1, 2, 1, 2}, 3, OFFLOAD_NONE, false};
	const struct edit_config ec = {.reducer = EDIT_GTA,
		.sparsify = EDIT_MAGNITUDE_TENSOR,
		.density = 0.3,
		.by_unit = true};
	struct comm *c = comm_split(world, world->rank < 4 ? 0 : -1, "some");
	struct largest a = {.table = NULL};
	struct edit_result r;
	struct worker w;
	bool right = true;
	if (c) {
		worker_open(&w, c, 1, &sharded, &ec);
		a.table = w.table;
		worker_move(&w, -1, 0, NOWHERE);
		edit_anchor(w.x);
		worker_move(&w, 0, 0, NOWHERE);
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
		worker_close(&w);
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
	static const struct worker_layout alone = {
		{1, 1, 1, 1, 1}, 0, OFFLOAD_NONE, false};
	static struct values begin, brought[MOST_WORKERS], mine;
	struct edit_result r;
	struct worker w;
	double lost = 0, way = 0;
	worker_open(&w, c, c->size, &alone, ec);
	worker_move(&w, -1, 0, NOWHERE);
	take_values(&w, &begin);
	edit_anchor(w.x);
	for (int i = 0; i < syncs; i++) {
		worker_move(&w, c->rank, 0, NOWHERE);
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
	worker_close(&w);
	return sqrt(lost / way);
}

/* What a wire cannot carry is not lost: however often, no more is missing than once. */
TEST(feeds_back)
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
	if (worker_device.discrete &&
		test_device_slow(&worker_device)) /* whose wires have the CPU's bits */
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
TEST(keeps_residual)
{
	static const struct worker_layout alone = {
		{1, 1, 1, 1, 1}, 0, OFFLOAD_NONE, false};
	static struct values before, after;
	struct comm *c = comm_split(world, world->rank < 3 ? 0 : -1, "some");
	for (int wire = EDIT_WIRE_BF16; wire <= EDIT_WIRE_SPARSE; wire++) {
		const struct edit_config ec = wire_config((enum edit_wire)wire);
		int64_t something = 0, wrong = 0;
		struct edit_result r;
		struct worker w;
		if (c) {
			worker_open(&w, c, c->size, &alone, &ec);
			worker_move(&w, -1, 0, NOWHERE);
			edit_anchor(w.x);
			worker_move(&w, c->rank, 0, NOWHERE);
			edit_sync(w.x, 1, &r);
			int residual = store_groups_find(&w.s->c.groups, "residual");
			take_group(&w, residual, &before);
			worker_move(&w, c->rank, 1, 1);
			edit_sync(w.x, 1, &r);
			take_group(&w, residual, &after);
			for (int64_t i = 0; i < before.n; i++)
				something += before.p[i] != 0;
			wrong = (memcmp(before.p, after.p,
					 (size_t)after.n * sizeof(float)) == 0) !=
				(c->rank == 1);
			worker_close(&w);
		}
		assert_on_all(wrong == 0 && (!c || something > 100));
	}
	comm_free(c);
}

int main(void)
{
	ranks_open();
	worker_device_open();
	int rc = ranks_run();
	worker_device_close();
	return ranks_close(rc);
}
