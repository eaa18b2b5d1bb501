/*
 * A training step of a tiny net, for the smoke test: the gradient of its ranks, added by the canonical
 * tree, must be that of one rank, bit for bit.
 *
 * The net has two linear layers with GELU in between, and a cross-entropy loss. A leaf of the gradient
 * is that of a micro-batch; ranks have two or three of them.
 */
#include "collbench/collbench.h"
#include "comm/sum.h"

#include <stdlib.h>
#include <string.h>

enum { ROWS = 8, IN = 24, HIDDEN = 40, OUT = 16, FLOATS = HIDDEN * IN + OUT * HIDDEN };

/* A leaf is computed in `input` to `d_hidden`, and its gradient added to buffers of FLOATS. */
struct net {
	struct device d;
	float weights[FLOATS];
	float input[ROWS * IN], sum[ROWS * HIDDEN], hidden[ROWS * HIDDEN];
	float d_hidden[ROWS * HIDDEN], logits[ROWS * OUT], loss[ROWS];
	int32_t targets[ROWS];
};

/* Numbers of [-0.5, 0.5). */
static void fill(float *x, int64_t n, uint64_t seed)
{
	for (int64_t i = 0; i < n; i++)
		x[i] = (float)(hash_mix(seed << 32 | (uint64_t)i) >> 40) * 0x1p-24f -
		       0.5f;
}

/* The gradient of micro-batch `leaf`. */
static void gradient(struct net *m, int64_t leaf, float *to)
{
	struct device *d = &m->d;
	const struct mat none = {0};
	const float scale = 1.0f / ROWS;
	struct mat x = mat(m->input, ROWS, IN), a = mat(m->sum, ROWS, HIDDEN);
	struct mat h = mat(m->hidden, ROWS, HIDDEN), dh = mat(m->d_hidden, ROWS, HIDDEN);
	struct mat y = mat(m->logits, ROWS, OUT);
	struct mat first = mat(m->weights, HIDDEN, IN);
	struct mat second = mat(m->weights + HIDDEN * IN, OUT, HIDDEN);
	fill(m->input, ROWS * IN, (uint64_t)leaf + 2);
	for (int i = 0; i < ROWS; i++)
		m->targets[i] = (int32_t)((leaf + i) % OUT);
	d->k->linear_fwd(d, a, x, first, none);
	d->k->act_fwd(d, ACT_GELU_TANH, h, a, none);
	d->k->linear_fwd(d, y, h, second, none);
	d->k->xent_fused(d, m->loss, y, m->targets, OUT, &scale);
	d->k->linear_bwd_w(d, mat(to + HIDDEN * IN, OUT, HIDDEN), y, h, false);
	d->k->linear_bwd_x(d, dh, y, second, false);
	d->k->act_bwd(d, ACT_GELU_TANH, dh, none, dh, a, none);
	d->k->linear_bwd_w(d, mat(to, HIDDEN, IN), dh, x, false);
}

static int64_t first_leaf(int size, int rank)
{
	return part_begin(2 * (int64_t)size + 1, size, rank);
}

/* The nodes of leaves [begin, end), each in a buffer; returns their number. */
static int add_leaves(struct net *m, int64_t begin, int64_t end, float **buffer)
{
	struct tree_stack stack = {.n = 0};
	struct device *d = &m->d;
	for (int64_t leaf = begin; leaf < end; leaf++) {
		int top = stack.n;
		gradient(m, leaf, buffer[top]);
		for (int n = tree_push(&stack, leaf); n > 0; n--, top--) {
			struct mat sum = mat(buffer[top - 1], 1, FLOATS);
			d->k->add(d, sum, sum, mat(buffer[top], 1, FLOATS));
		}
	}
	return stack.n;
}

/* Leaves that one rank has alone: the sum of all nodes. */
static void add_alone(struct net *m, int64_t leaves, float **buffer)
{
	struct device *d = &m->d;
	for (int n = add_leaves(m, 0, leaves, buffer); n > 1; n--) {
		struct mat sum = mat(buffer[n - 2], 1, FLOATS);
		d->k->add(d, sum, sum, mat(buffer[n - 1], 1, FLOATS));
	}
}

/* The nodes of all ranks. */
static struct sum_nodes *all_nodes(int size)
{
	struct sum_nodes *nodes = xcalloc((size_t)size, sizeof(*nodes));
	for (int r = 0; r < size; r++) {
		struct tree_node node[TREE_MAX_NODES];
		nodes[r].n =
			tree_nodes(first_leaf(size, r), first_leaf(size, r + 1), node);
		nodes[r].node = xcalloc((size_t)nodes[r].n, sizeof(*node));
		nodes[r].buffer = xcalloc((size_t)nodes[r].n, sizeof(int));
		memcpy(nodes[r].node, node, (size_t)nodes[r].n * sizeof(*node));
		for (int i = 0; i < nodes[r].n; i++)
			nodes[r].buffer[i] = i;
	}
	return nodes;
}

static void free_nodes(struct sum_nodes *nodes, int size)
{
	for (int r = 0; r < size; r++) {
		free(nodes[r].node);
		free(nodes[r].buffer);
	}
	free(nodes);
}

/* Collective. All-reduces the gradients of the ranks' leaves to `result`. */
static void add_with_ranks(struct comm *c, struct net *m, float **buffer, float *result)
{
	struct sum_run run = {0, FLOATS};
	struct sum_shard shard = {&run, 1, FLOATS};
	int *wants = xcalloc((size_t)c->size, sizeof(*wants));
	struct sum_nodes *nodes = all_nodes(c->size);
	struct sum_plan plan = {
		.c = c, .d = &m->d, .shard = &shard, .n_shards = 1, .wants = wants};
	while ((int64_t)1 << plan.levels < first_leaf(c->size, c->size))
		plan.levels++;
	sum_share(&plan);
	add_leaves(m, first_leaf(c->size, c->rank), first_leaf(c->size, c->rank + 1),
		buffer);
	struct sum_queue queue = {.joined = 0};
	for (int i = 0; i < SUM_BUFFERS; i++)
		queue.buffer[i] = xcalloc(
			(size_t)sum_buffer_floats(&plan, nodes) + 1, sizeof(float));
	tree_sum_end(tree_sum_begin(&(struct sum_call){.plan = &plan,
		.nodes = nodes,
		.buffer = buffer,
		.result = result,
		.queue = &queue}));
	for (int i = 0; i < SUM_BUFFERS; i++)
		free(queue.buffer[i]);
	free_nodes(nodes, c->size);
	sum_unshare(&plan);
	free(wants);
}

int64_t step_wrong(struct comm *c, const struct bench_fault *fault)
{
	int64_t leaves = first_leaf(c->size, c->size), wrong = 0;
	int depth = tree_depth(0, leaves) + 1;
	struct net *m = xcalloc(1, sizeof(*m));
	float *memory = xcalloc((size_t)(depth + 1) * FLOATS, sizeof(*memory));
	float *result = memory + depth * FLOATS, *buffer[TREE_MAX_NODES];
	for (int i = 0; i < depth; i++)
		buffer[i] = memory + i * FLOATS;
	device_cpu(&m->d, 1);
	fill(m->weights, FLOATS, 1);
	add_with_ranks(c, m, buffer, result);
	if (fault->wanted && fault->what == N_BENCH && fault->rank == c->rank &&
		fault->element >= 0 && fault->element < FLOATS)
		*(char *)&result[fault->element] ^= 1;
	add_alone(m, leaves, buffer);
	for (int i = 0; i < FLOATS; i++)
		wrong += memcmp(&result[i], &buffer[0][i], sizeof(float)) != 0;
	device_close(&m->d);
	free(memory);
	free(m);
	comm_sum_i64(c, &wrong, 1);
	return wrong;
}
