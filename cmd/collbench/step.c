/* A training step of a tiny net, for the smoke test. The gradient summed over all ranks must equal
 * the gradient that one rank computes, bit for bit.
 *
 * The net has two linear layers with a GELU between them, and a cross-entropy loss. A leaf of the
 * sum is the gradient of a micro-batch; ranks have two or three leaves. */
#include "collbench/collbench.h"
#include "comm/sum.h"
#include "comm/tree.h"

enum { ROWS = 8, IN = 24, HIDDEN = 40, OUT = 16, FLOATS = HIDDEN * IN + OUT * HIDDEN };

struct net {
	struct device d;
	struct grid grid;
	float leaf[FLOATS];
	int64_t local[FLOATS];		     /* sum of this rank's leaves */
	float result[FLOATS], alone[FLOATS]; /* gradient of all ranks; of one rank */
	/* Work space for a leaf. */
	float weights[FLOATS];
	float input[ROWS * IN], sum[ROWS * HIDDEN], hidden[ROWS * HIDDEN];
	float d_hidden[ROWS * HIDDEN], logits[ROWS * OUT], loss[ROWS];
	int32_t targets[ROWS];
};

/* Fills x with values in [-0.5, 0.5). */
static void fill_values(float *x, int64_t n, uint64_t seed)
{
	for (int64_t i = 0; i < n; i++)
		x[i] = (float)(hash_mix(seed << 32 | (uint64_t)i) >> 40) * 0x1p-24f -
		       0.5f;
}

/* Computes the gradient of micro-batch `leaf`. */
static void compute_gradient(struct net *m, int64_t leaf, float *to)
{
	struct device *d = &m->d;
	const struct mat none = {0};
	const float scale = 1.0f / ROWS;
	struct mat x = mat(m->input, ROWS, IN), a = mat(m->sum, ROWS, HIDDEN);
	struct mat h = mat(m->hidden, ROWS, HIDDEN), dh = mat(m->d_hidden, ROWS, HIDDEN);
	struct mat y = mat(m->logits, ROWS, OUT);
	struct mat first = mat(m->weights, HIDDEN, IN);
	struct mat second = mat(m->weights + HIDDEN * IN, OUT, HIDDEN);
	fill_values(m->input, ROWS * IN, (uint64_t)leaf + 2);
	for (int i = 0; i < ROWS; i++)
		m->targets[i] = (int32_t)((leaf + i) % OUT);
	d->k->linear_fwd(d, a, x, first, none);
	d->k->act_fwd(d, ACT_GELU_TANH, h, a, none);
	d->k->linear_fwd(d, y, h, second, none);
	d->k->xent_fused(d, m->loss, y, m->targets, OUT, (struct xent_terms){0}, &scale);
	d->k->linear_bwd_w(d, mat(to + HIDDEN * IN, OUT, HIDDEN), y, h, false);
	d->k->linear_bwd_x(d, dh, y, second, false);
	d->k->act_bwd(d, ACT_GELU_TANH, dh, none, dh, a, none);
	d->k->linear_bwd_w(d, mat(to, HIDDEN, IN), dh, x, false);
}

/* Returns the first leaf of a rank; of rank `size`: the number of all leaves. */
static int64_t first_leaf(int size, int rank)
{
	return part_begin(2 * (int64_t)size + 1, size, rank);
}

/* Sums leaves [begin, end) in m->local. Sets `rounded`, unless NULL, to the rounded sum. */
static void add_leaves(
	struct net *m, int64_t begin, int64_t end, int levels, float *rounded)
{
	struct device *d = &m->d;
	for (int64_t leaf = begin; leaf < end; leaf++) {
		compute_gradient(m, leaf, m->leaf);
		d->k->grid_sum(d,
			&(struct grid_sum){.sum = m->local,
				.add = leaf > begin,
				.rounded = leaf + 1 == end ? rounded : NULL,
				.parts = &(struct grid_part){.leaf = m->leaf},
				.n_parts = 1,
				.n = FLOATS,
				.levels = levels},
			&m->grid);
	}
}

/* Computes this rank's leaves and sets m->result to the sum over all ranks. Collective. */
static void reduce_over_ranks(struct comm *c, struct net *m)
{
	struct sum_run run = {0, FLOATS};
	struct sum_shard shard = {&run, 1, FLOATS};
	scoped_ptr int *wants = xcalloc((size_t)c->size, sizeof(*wants));
	struct sum_queue queue = {.joined = 0};
	struct sum_plan plan = {.c = c,
		.d = &m->d,
		.shard = &shard,
		.n_shards = 1,
		.wants = wants,
		.levels = tree_levels(first_leaf(c->size, c->size)),
		.queue = &queue};
	sum_plan_init(&plan);
	add_leaves(m, first_leaf(c->size, c->rank), first_leaf(c->size, c->rank + 1),
		plan.levels, NULL);
	for (int i = 0; i < SUM_BUFFERS; i++)
		queue.buffer[i] = xcalloc(
			(size_t)sum_buffer_floats(&plan, NULL) + 1, sizeof(float));
	sum_end(sum_begin(&(struct sum_call){
		.plan = &plan, .grid = &m->grid, .own = m->local, .result = m->result}));
	for (int i = 0; i < SUM_BUFFERS; i++)
		free(queue.buffer[i]);
	sum_plan_release(&plan);
}

int64_t step_count_wrong(struct comm *c, const struct bench_fault *fault)
{
	int64_t leaves = first_leaf(c->size, c->size), wrong = 0;
	scoped_ptr struct net *m = xcalloc(1, sizeof(*m));
	device_open_cpu(&m->d, 1);
	m->grid.exponent = GRID_EXPONENT;
	fill_values(m->weights, FLOATS, 1);
	reduce_over_ranks(c, m);
	if (fault->wanted && fault->what == N_BENCH && fault->rank == c->rank &&
		fault->element >= 0 && fault->element < FLOATS)
		*(char *)&m->result[fault->element] ^= 1;
	add_leaves(m, 0, leaves, tree_levels(leaves), m->alone);
	for (int i = 0; i < FLOATS; i++)
		wrong += memcmp(&m->result[i], &m->alone[i], sizeof(float)) != 0;
	device_close(&m->d);
	comm_sum_i64(c, &wrong, 1);
	return wrong;
}
