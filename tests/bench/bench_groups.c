/*
 * The kernels of experts, as tests/bench/gpu_lab measures them on a GPU.
 *   bench_groups DEVICE [tiny]    lines "NAME SHAPE VALUE UNIT SECONDS RATIO", tab-separated
 * Matmuls of 64 to 2,048 rows of each expert beside one of cuBLASLt with as many rows; all of a layer with 8,192
 * tokens, and the share of what is no matmul; the same where one expert has half of all slots.
 *
 * Predicted for one H200 on 30 November 2026, before any run. W1 and W3 of Qwen3-30B-A3B, 128 experts of 1536 x 2048 in
 * bf16, are 805 MB, which take 0.20 ms at 4.1 TB/s:
 *
 *	rows of an expert	64	256	512	1024	2048
 *	GFLOP			52	206	412	825	1649
 *	GB of x, y and w	0.86	1.04	1.27	1.75	2.68
 *	ms, forward		0.30	1.0	2.1	4.1	8.2
 *	of cuBLASLt		0.27	0.30	0.30	0.30	0.30	(660 TFLOP/s)
 *
 * A block of 64 x 128 reads its operands from shared memory by ldmatrix, 8 KiB for 64 x 128 x 16 terms, and stores 6 KiB:
 * at most 344 TFLOP/s at 128 bytes a clock, and about 200 with two barriers for each 32 terms and no copies that
 * run ahead. Gradients of weights at 64 rows: 0.25, since a block has only two steps.
 *
 * With PT_LAB_ON=groups, gradients of weights by warpgroups: a tile of 128 x 256 at 512 rows is 8 stages of 1,024 clocks,
 * 4.9 us at 1.67 GHz, and stores 64 KiB, 2.1 us at the 31 GB/s a multiprocessor has of 4.1 TB/s. Half of the store is
 * hidden behind the other warpgroup's matmuls: 94 tiles of 6.4 us each are 0.60 ms, 680 TFLOP/s, if the clock holds and
 * no copy is late; 0.65 of cuBLASLt is expected. At 64 rows the stores alone take 0.20 ms of cuBLASLt's 0.08: 0.3.
 *
 * A layer of 8,192 tokens, in us: route_fwd 150, route_bwd 150 and route_bwd_x 110 (4.3 GFLOP in fp32 each), route_bwd_w
 * 450 (only 32 blocks), sort_slots 60, slots_drop 10 (with a capacity only; each slot is compared with the 512 of its
 * expert), rows_take 135 (0.54 GB) four times, slots_combine 75 (0.30 GB) twice: 1.6 ms.
 * Activations 0.3 ms, nine matmuls (1.86 TFLOP) 9.3 ms. So 14 % of a layer are no matmuls; wanted were 6.
 * One expert with half of all slots: the tiles are equal, so 1.0 of the balanced time; gradients of weights 1.2.
 */
#include "tests/support/timing.h"

#include <stdio.h>
#include <stdlib.h>

/* A model: the width of the stream and of an expert, experts, and experts of a token. */
static const struct moe {
	const char *name;
	int64_t dim, f, experts, k;
} qwen3 = {"qwen3-30b", 2048, 768, 128, 8}, mixtral = {"mixtral", 4096, 14336, 8, 2},
  toy = {"toy", 64, 32, 4, 2};

/* The operands of the grouped and of the dense matmuls. */
struct work {
	struct mat x, dy, w, y, dx, dw, dense_w, dense_dw;
	struct row_groups groups;
	struct group_leaf *leaves;
	int n_leaves;
};

static void forward(struct device *d, void *arg)
{
	const struct work *t = arg;
	d->k->groups_fwd(d, t->y, t->x, t->w, &t->groups);
}

static void backward_x(struct device *d, void *arg)
{
	const struct work *t = arg;
	d->k->groups_bwd_x(d, t->dx, t->dy, t->w, &t->groups);
}

static void backward_w(struct device *d, void *arg)
{
	const struct work *t = arg;
	d->k->groups_bwd_w(d, t->leaves, t->n_leaves, t->dy, t->x, &t->groups);
}

static void dense_forward(struct device *d, void *arg)
{
	const struct work *t = arg;
	d->k->linear_fwd(d, t->y, t->x, t->dense_w, (struct mat){0});
}

static void dense_backward_x(struct device *d, void *arg)
{
	const struct work *t = arg;
	d->k->linear_bwd_x(d, t->dx, t->dy, t->dense_w, false);
}

static void dense_backward_w(struct device *d, void *arg)
{
	const struct work *t = arg;
	d->k->linear_bwd_w(d, t->dense_dw, t->dy, t->x, false);
}

static const struct product {
	const char *name;
	void (*grouped)(struct device *, void *), (*dense)(struct device *, void *);
} products[] = {{"groups_fwd", forward, dense_forward},
	{"groups_bwd_x", backward_x, dense_backward_x},
	{"groups_bwd_w", backward_w, dense_backward_w}};
enum { PRODUCTS = ARRAY_LEN(products) };

static void say(const char *name, const char *shape, double value, const char *unit,
	double seconds, double ratio)
{
	printf("%s\t%s\t%.4g\t%s\t%.6g\t%.3f\n", name, shape, value, unit, seconds,
		ratio);
	(void)fflush(stdout);
}

/* Makes matmuls of `out` x `in` weights for `rows` rows; with `skewed`, the first expert has half of them. */
static struct work make_work(struct timing *t, int64_t experts, int64_t rows, int64_t in,
	int64_t out, bool skewed)
{
	enum dtype type = timing_type(t);
	struct work x = {.x = timing_mat(t, rows, in, type),
		.dy = timing_mat(t, rows, out, type),
		.w = timing_mat(t, experts * out, in, type),
		.y = timing_mat(t, rows, out, type),
		.dx = timing_mat(t, rows, in, type),
		.dw = timing_mat(t, experts * out, in, type),
		.leaves = xcalloc((size_t)experts, sizeof(*x.leaves)),
		.n_leaves = (int)experts};
	int32_t *offsets = xcalloc((size_t)experts + 1, sizeof(*offsets));
	int32_t *there =
		arena_alloc(&t->memory, (size_t)(experts + 1) * sizeof(*offsets));
	for (int64_t e = 0; e < experts; e++) {
		int64_t of_rest = rows / 2 * e / max64(1, experts - 1);
		offsets[e + 1] = (int32_t)(skewed ? rows - rows / 2 + of_rest
						  : rows * (e + 1) / experts);
		x.leaves[e] = (struct group_leaf){
			.dw = mat_rows(x.dw, e * out, out), .group = e};
	}
	device_put(&t->d, there, offsets, (size_t)(experts + 1) * sizeof(*offsets));
	free(offsets);
	x.groups = (struct row_groups){there, experts, 1};
	x.dense_w = mat_rows(x.w, 0, out);
	x.dense_dw = mat_rows(x.dw, 0, out);
	return x;
}

/* Prints the rates of one shape, grouped and dense. */
static void bench_rows(struct timing *t, const struct moe *m, int64_t n)
{
	size_t mark = arena_mark(&t->memory);
	char shape[96], name[64];
	int64_t rows = n * m->experts, out = 2 * m->f;
	struct work x = make_work(t, m->experts, rows, m->dim, out, false);
	double flops = 2 * (double)rows * (double)out * (double)m->dim;
	(void)snprintf(shape, sizeof(shape), "%lldx%lldx%lld", (long long)m->experts,
		(long long)out, (long long)m->dim);
	for (int i = 0; i < PRODUCTS; i++) {
		double s = timing_of(t, products[i].grouped, &x);
		double dense = timing_of(t, products[i].dense, &x);
		(void)snprintf(name, sizeof(name), "%s, %lld rows", products[i].name,
			(long long)n);
		say(name, shape, flops / s * 1e-12, "TFLOP/s", s, dense / s);
		say(name, shape, dense / s, "of cuBLASLt", dense, 1);
	}
	free(x.leaves);
	arena_reset(&t->memory, mark);
}

/* ---- a layer --------------------------------------------------------------------- */

/* The path of rows of a layer. */
struct path {
	struct router how;
	struct mat h, wr, gates, dz, dh, dwr, x, y, ab, a;
	float *lse, *dg;
	int32_t *ids, *pos, *slots, *offsets;
	struct mat kept;
	int64_t *dropped;
};

static void route_fwd(struct device *d, void *arg)
{
	const struct path *p = arg;
	d->k->route_fwd(d, p->ids, p->gates, p->lse, NULL, p->h, p->wr, NULL,
		(struct mat){0}, &p->how);
}

static void route_bwd(struct device *d, void *arg)
{
	const struct path *p = arg;
	d->k->route_bwd(d, p->dz, NULL, p->gates, p->ids, p->gates, p->lse, p->h, p->wr,
		&p->how, NULL);
}

static void route_bwd_x(struct device *d, void *arg)
{
	const struct path *p = arg;
	d->k->route_bwd_x(d, p->dh, p->dz, p->wr);
}

static void route_bwd_w(struct device *d, void *arg)
{
	const struct path *p = arg;
	d->k->route_bwd_w(d, p->dwr, p->dz, p->h);
}

static void sort_slots(struct device *d, void *arg)
{
	const struct path *p = arg;
	d->k->sort_slots(d, p->pos, p->slots, p->offsets, p->ids, p->h.rows, p->h.rows,
		p->how.per_row, &p->how);
}

static void slots_drop(struct device *d, void *arg)
{
	const struct path *p = arg;
	d->k->slots_drop(d, p->kept, p->dropped, p->gates, p->slots, p->offsets,
		p->how.experts, p->h.rows, p->h.rows * p->how.per_row / p->how.experts);
}

static void rows_take(struct device *d, void *arg)
{
	const struct path *p = arg;
	d->k->rows_take(d, p->x, p->h, p->slots, p->how.per_row);
}

static void slots_combine(struct device *d, void *arg)
{
	const struct path *p = arg;
	d->k->slots_combine(
		d, p->y, p->x, p->pos, p->how.per_row, p->gates, (struct mat){0});
}

static void act_fwd(struct device *d, void *arg)
{
	const struct path *p = arg;
	d->k->expert_act_fwd(d, ACT_SWIGLU, p->a, p->ab);
}

static void act_bwd(struct device *d, void *arg)
{
	const struct path *p = arg;
	d->k->expert_act_bwd(
		d, ACT_SWIGLU, p->ab, p->a, p->dg, p->a, p->ab, p->gates.p, p->slots, 1);
}

/* What a layer calls, and how often without a capacity. The path is what is no matmul of experts and no activation. */
static const struct step {
	const char *name;
	void (*call)(struct device *, void *);
	int calls;
	bool of_path;
} steps[] = {{"route_fwd", route_fwd, 1, true}, {"sort_slots", sort_slots, 1, true},
	{"slots_drop", slots_drop, 0, true}, {"rows_take", rows_take, 4, true},
	{"slots_combine", slots_combine, 2, true}, {"route_bwd", route_bwd, 1, true},
	{"route_bwd_x", route_bwd_x, 1, true}, {"route_bwd_w", route_bwd_w, 1, true},
	{"expert_act_fwd", act_fwd, 1, false}, {"expert_act_bwd", act_bwd, 1, false}};

static int32_t *ints(struct timing *t, int64_t n)
{
	return arena_alloc(&t->memory, (size_t)n * sizeof(int32_t));
}

static struct path make_path(struct timing *t, const struct moe *m, int64_t rows)
{
	enum dtype type = timing_type(t);
	int64_t slots = rows * m->k;
	return (struct path){.how = {.kind = ROUTER_SOFTMAX,
				     .normalize = true,
				     .scale = 1,
				     .experts = m->experts,
				     .per_row = m->k,
				     .seq_rows = rows},
		.h = timing_mat(t, rows, m->dim, type),
		.wr = timing_mat(t, m->experts, m->dim, DT_F32),
		.gates = timing_mat(t, rows, m->k, DT_F32),
		.kept = timing_mat(t, rows, m->k, DT_F32),
		.dropped = arena_alloc(&t->memory, sizeof(int64_t)),
		.dz = timing_mat(t, rows, m->experts, DT_F32),
		.dh = timing_mat(t, rows, m->dim, DT_F32),
		.dwr = timing_mat(t, m->experts, m->dim, DT_F32),
		.x = timing_mat(t, slots, m->dim, type),
		.y = timing_mat(t, rows, m->dim, type),
		.ab = timing_mat(t, slots, 2 * m->f, type),
		.a = timing_mat(t, slots, m->f, type),
		.lse = timing_mat(t, 1, rows, DT_F32).p,
		.dg = timing_mat(t, 1, slots, DT_F32).p,
		.ids = ints(t, slots),
		.pos = ints(t, slots),
		.slots = ints(t, slots),
		.offsets = ints(t, m->experts + 1)};
}

/* Prints each kernel of a path. Returns the seconds of the path in a layer; *other: of activations. */
static double bench_path(
	struct timing *t, const struct moe *m, int64_t rows, double *other)
{
	size_t mark = arena_mark(&t->memory);
	char shape[64];
	double path = 0;
	struct path p = make_path(t, m, rows);
	*other = 0;
	(void)snprintf(shape, sizeof(shape), "%lld rows, %s", (long long)rows, m->name);
	for (size_t i = 0; i < ARRAY_LEN(steps); i++) {
		double s = timing_of(t, steps[i].call, &p);
		say(steps[i].name, shape, s * 1e6, "us", s, steps[i].calls);
		*(steps[i].of_path ? &path : other) += s * steps[i].calls;
	}
	arena_reset(&t->memory, mark);
	return path;
}

/* Returns the seconds of the matmuls of a layer: products[i] of W1 and W3, and of W2. */
static double bench_layer_products(struct timing *t, const struct moe *m, int64_t rows,
	bool skewed, double s[PRODUCTS])
{
	double sum = 0;
	for (int i = 0; i < PRODUCTS; i++)
		s[i] = 0;
	for (int second = 0; second < 2; second++) {
		size_t mark = arena_mark(&t->memory);
		struct work x = make_work(t, m->experts, rows * m->k,
			second ? m->f : m->dim, second ? m->dim : 2 * m->f, skewed);
		for (int i = 0; i < PRODUCTS; i++) {
			double of = timing_of(t, products[i].grouped, &x);
			s[i] += of;
			sum += of;
		}
		free(x.leaves);
		arena_reset(&t->memory, mark);
	}
	return sum;
}

static void bench_layer(struct timing *t, const struct moe *m, int64_t rows)
{
	double other, even[PRODUCTS], skewed[PRODUCTS];
	double path = bench_path(t, m, rows, &other);
	double products_even = bench_layer_products(t, m, rows, false, even);
	bench_layer_products(t, m, rows, true, skewed);
	say("matmuls of a layer", m->name, products_even * 1e3, "ms", products_even, 1);
	say("no matmuls", m->name, path / (path + other + products_even), "of a layer",
		path, 1);
	for (int i = 0; i < PRODUCTS; i++) {
		char name[64];
		(void)snprintf(name, sizeof(name), "%s, one expert has half of the slots",
			products[i].name);
		say(name, m->name, skewed[i] / even[i], "of balanced", skewed[i], 1);
	}
}

int main(int argc, char **argv)
{
	static const int64_t rows[] = {64, 256, 512, 1024, 2048};
	struct timing t;
	log_name("bench_groups");
	timing_open(&t, argc, argv, (size_t)16 << 30, (size_t)16 << 20);
	for (size_t i = 0; i < ARRAY_LEN(rows); i++)
		bench_rows(&t, t.tiny ? &toy : &qwen3, t.tiny ? rows[i] / 32 : rows[i]);
	bench_layer(&t, t.tiny ? &toy : &qwen3, t.tiny ? 64 : 8192);
	if (!t.tiny)
		bench_layer(&t, &mixtral, 8192);
	timing_close(&t);
	stdout_close();
	return 0;
}
