/*
 * comm/sum.c, as ranks use it: sums over ranks by the canonical tree, and the bytes that they send.
 * ranks: 1 2 3 5
 */
#include "comm/collective.h"
#include "comm/sum.h"
#include "tests/support/ranks.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>

static float leaf(int64_t index, int64_t i)
{
	return (float)(test_normal(hash_mix((uint64_t)index + 1), i) *
		       (double)(1 << i % 12));
}

/* The sum of leaves [first, first + width) of n, as the header defines it. */
static float tree(int64_t n, int64_t first, int64_t width, int64_t i)
{
	if (width == 1)
		return leaf(first, i);
	float left = tree(n, first, width / 2, i);
	if (first + width / 2 >= n)
		return left;
	return left + tree(n, first + width / 2, width / 2, i);
}

static float tree_of(int64_t n, int64_t i)
{
	int64_t width = 1;
	while (width < n)
		width *= 2;
	return n ? tree(n, 0, width, i) : 0;
}

enum { MOST_NODES = 16 };
static const float fence = 12345;

/* A queue whose buffers are fenced. */
struct queue {
	struct sum_queue sums;
	int64_t room;
};

static void queue_open(struct queue *q, int64_t room)
{
	*q = (struct queue){.room = room};
	for (int i = 0; i < SUM_BUFFERS; i++) {
		q->sums.buffer[i] = xcalloc((size_t)room + 1, sizeof(float));
		q->sums.buffer[i][room] = fence;
	}
}

static bool queue_close(struct queue *q)
{
	bool good = true;
	for (int i = 0; i < SUM_BUFFERS; i++) {
		good &= q->sums.buffer[i][q->room] == fence;
		free(q->sums.buffer[i]);
	}
	return good;
}

/* One sum over a group: its leaves, its vectors, and where it is. */
struct sum {
	struct tree_sum *sum;
	struct device d;
	const int64_t *begin;
	int64_t n;
	struct sum_run run;
	struct sum_shard shard;
	struct sum_plan plan;
	struct sum_nodes *nodes; /* [size] */
	int64_t *from;		 /* [size] */
	float *memory, *part[TREE_MAX_NODES];
	struct comm_shared *shared;
	const float *fence; /* behind the memory */
};

/* One shard, which all want: an all-reduce of runs of leaves. */
static void plan_sum(struct sum *x, struct comm *c)
{
	int *wants = xcalloc((size_t)c->size, sizeof(*wants));
	int level = 0;
	while ((int64_t)1 << level < x->begin[c->size])
		level++;
	x->run = (struct sum_run){0, x->n};
	x->shard = (struct sum_shard){&x->run, 1, x->n};
	x->plan = (struct sum_plan){.c = c,
		.d = &x->d,
		.shard = &x->shard,
		.n_shards = 1,
		.wants = wants,
		.levels = level,
		.segment = 64};
	sum_share(&x->plan);
	x->nodes = xcalloc((size_t)c->size, sizeof(*x->nodes));
	x->from = xcalloc((size_t)c->size, sizeof(*x->from));
	for (int r = 0; r < c->size; r++) {
		struct tree_node nodes[TREE_MAX_NODES];
		int n = tree_nodes(x->begin[r], x->begin[r + 1], nodes);
		x->nodes[r].n = n;
		x->nodes[r].node = xcalloc((size_t)n + 1, sizeof(*nodes));
		x->nodes[r].buffer = xcalloc((size_t)n + 1, sizeof(int));
		memcpy(x->nodes[r].node, nodes, (size_t)n * sizeof(*nodes));
		for (int i = 0; i < n; i++)
			x->nodes[r].buffer[i] = i;
	}
}

static void free_plan(struct sum *x)
{
	for (int r = 0; r < x->plan.c->size; r++) {
		free(x->nodes[r].node);
		free(x->nodes[r].buffer);
	}
	sum_unshare(&x->plan);
	free((void *)x->plan.wants);
	free(x->nodes);
	free(x->from);
}

/* Pushes the leaves of this rank as they come; false: not the nodes they should become. */
static bool push_leaves(struct sum *x, int64_t begin, int64_t end)
{
	struct tree_stack stack = {.n = 0};
	struct tree_node want[TREE_MAX_NODES];
	for (int64_t index = begin; index < end; index++) {
		float *top = x->part[stack.n];
		for (int64_t i = 0; i < x->n; i++)
			top[i] = leaf(index, i);
		int merges = tree_push(&stack, index);
		for (int t = stack.n + merges - 1; merges > 0; merges--, t--)
			for (int64_t i = 0; i < x->n; i++)
				x->part[t - 1][i] += x->part[t][i];
	}
	bool good = tree_nodes(begin, end, want) == stack.n;
	for (int i = 0; i < stack.n && good; i++)
		good = stack.node[i].level == want[i].level &&
		       stack.node[i].index == want[i].index;
	return good;
}

/* In shared memory, or by messages. */
static bool sum_begin(struct sum *x, struct comm *c, const int64_t *begin, int64_t n,
	bool shared, struct queue *queue)
{
	struct err e = {0};
	*x = (struct sum){.begin = begin, .n = n};
	device_cpu(&x->d, 1);
	plan_sum(x, c);
	int depth = tree_depth(begin[c->rank], begin[c->rank + 1]) + 1;
	int64_t bytes = (depth * n + 1) * (int64_t)sizeof(float);
	if (shared) {
		x->shared = comm_shared_open(c, bytes, 2, &e);
		x->memory = (float *)(void *)x->shared->data[c->rank];
	} else {
		x->memory = xcalloc((size_t)bytes, 1);
	}
	for (int i = 0; i < depth; i++)
		x->part[i] = x->memory + i * n;
	assert_true(shared || sum_buffer_floats(&x->plan, x->nodes) <= queue->room);
	for (int64_t i = 0; i < n; i++)
		x->part[0][i] = fence;
	x->memory[depth * n] = fence;
	x->fence = &x->memory[depth * n];
	bool good = push_leaves(x, begin[c->rank], begin[c->rank + 1]);
	const struct sum_call call = {.plan = &x->plan,
		.nodes = x->nodes,
		.buffer = x->part,
		.result = x->memory,
		.queue = &queue->sums,
		.shared = x->shared,
		.from = x->from,
		.slot = 1};
	x->sum = tree_sum_begin(&call);
	return good;
}

static bool sum_end(struct sum *x, const struct comm *c)
{
	int64_t leaves = x->begin[c->size];
	tree_sum_end(x->sum);
	bool good = *x->fence == fence;
	for (int64_t i = 0; i < x->n && good; i++) {
		float want = tree_of(leaves, i);
		good = !memcmp(&want, &x->memory[i], sizeof(want));
	}
	if (x->shared)
		comm_shared_close(x->shared);
	else
		free(x->memory);
	free_plan(x);
	return good;
}

/* Deals leaves to ranks: evenly, all to one, or anyhow, which leaves some without any. */
static void deal(int64_t *begin, int size, int64_t leaves, int how)
{
	for (int r = 0; r <= size; r++) {
		if (how == 0)
			begin[r] = part_begin(leaves, size, r);
		else if (how <= size)
			begin[r] = r >= how ? leaves : 0;
		else
			begin[r] =
				(int64_t)(test_uniform((uint64_t)how, r + 10 * leaves) *
					  (double)(leaves + 1));
		for (int k = r; k > 0 && begin[k] < begin[k - 1]; k--) {
			int64_t keep = begin[k];
			begin[k] = begin[k - 1];
			begin[k - 1] = keep;
		}
	}
	begin[0] = 0;
	begin[size] = leaves;
}

static void sums_are_the_canonical_tree(void **state)
{
	enum { MAX_LEAVES = 19 };
	static const int64_t lengths[] = {1, 16, 17, 100, 0};
	int64_t *begin = xcalloc((size_t)world->size + 1, sizeof(*begin));
	(void)state;
	for (int64_t leaves = 0; leaves <= MAX_LEAVES; leaves++) {
		for (int how = 0; how < world->size + 5; how++) {
			struct sum x;
			struct queue queue;
			int64_t n = lengths[(leaves + how) % (int64_t)ARRAY_LEN(lengths)];
			deal(begin, world->size, leaves, how);
			for (int shared = 0; shared <= world->shares; shared++) {
				queue_open(&queue, 64 * world->size * MOST_NODES);
				bool pushed =
					sum_begin(&x, world, begin, n, shared, &queue);
				bool right_sum = sum_end(&x, world);
				right_sum &= queue_close(&queue);
				assert_on_all(pushed);
				assert_on_all(right_sum);
			}
		}
	}
	free(begin);
}

/* As a backward does it: several under way, others at once in another group. */
static void sums_at_once(void **state)
{
	enum { N = 5 };
	int64_t begin[3][8];
	struct sum x[N], y;
	struct queue of_world, of_half;
	bool good = true;
	(void)state;
	struct comm *half = comm_split(world, world->rank % 2, "half");
	deal(begin[0], world->size, 8, 0);
	deal(begin[1], world->size, 13, world->size + 1);
	deal(begin[2], half->size, 6, 0);
	queue_open(&of_world, 64 * world->size * MOST_NODES);
	queue_open(&of_half, 64 * half->size * MOST_NODES);
	for (int i = 0; i < N; i++)
		good &= sum_begin(&x[i], world, begin[i % 2], 1000 + 300 * i,
			i % 2 && world->shares, &of_world);
	good &= sum_begin(&y, half, begin[2], 777, half->shares, &of_half);
	comm_barrier(world); /* a collective between begin and end */
	good &= sum_end(&y, half);
	for (int i = 0; i < N; i++) /* not in the same order everywhere */
		good &= sum_end(&x[world->rank % 2 ? i : N - 1 - i], world);
	good &= queue_close(&of_world);
	good &= queue_close(&of_half);
	comm_free(half);
	assert_on_all(good);
}

/* Memory of all ranks is seen by all, zero at first, and numbers are said in order. */
static void shared_memory(void **state)
{
	enum { N = 1000 };
	struct err e = {0};
	bool good = true;
	(void)state;
	if (!world->shares)
		ranks_skip();
	int64_t bytes = N * (world->rank + 1); /* each has its own size */
	struct comm_shared *m = comm_shared_open(world, bytes, 2, &e);
	assert_on_all(m != NULL);
	for (int r = 0; r < world->size; r++)
		for (int64_t i = 0; i < m->n_bytes[r]; i++)
			good &= m->n_bytes[r] == N * (r + 1) && m->data[r][i] == 0;
	comm_barrier(world);
	memset(m->data[world->rank], world->rank + 1, (size_t)bytes);
	comm_shared_post(m, 1, 5);
	while (!comm_shared_all_posted(m, 1, 5))
		sched_yield();
	good &= !comm_shared_all_posted(m, 1, 6) && !comm_shared_all_posted(m, 0, 1);
	for (int r = 0; r < world->size; r++)
		for (int64_t i = 0; i < m->n_bytes[r]; i++)
			good &= m->data[r][i] == r + 1;
	comm_barrier(world);
	m->data[(world->rank + 1) % world->size][7] = 99; /* of another rank */
	comm_barrier(world);
	good &= m->data[world->rank][7] == 99;
	comm_shared_close(m);
	assert_on_all(good);
}

/* Equal shares of a power of two: what a ring all-reduce sends, 2 (n - 1) / n of it. */
static void bytes_sent(void **state)
{
	enum { EACH = 160 };
	int64_t begin[8];
	struct sum x;
	struct queue queue;
	(void)state;
	deal(begin, world->size, 4 * world->size, 0);
	int64_t before = world->sent;
	queue_open(&queue, 64 * world->size * MOST_NODES);
	bool good = sum_begin(&x, world, begin, EACH * world->size, false, &queue) &&
		    sum_end(&x, world) && queue_close(&queue);
	int64_t sent = world->sent - before;
	assert_on_all(good);
	assert_on_all(sent == 2 * (world->size - 1) * EACH * (int64_t)sizeof(float));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(sums_are_the_canonical_tree),
		cmocka_unit_test(sums_at_once),
		cmocka_unit_test(shared_memory),
		cmocka_unit_test(bytes_sent),
	};
	ranks_open();
	return ranks_close(ranks_run(tests));
}
