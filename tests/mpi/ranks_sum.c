/* comm/sum.c, as ranks use it: exact sums over ranks, and the bytes that they send.
 * ranks: 1 2 3 5
 */
#include "comm/collective.h"
#include "comm/sum.h"
#include "tests/support/ranks.h"

#include <math.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

/* Of sizes that the grid rounds, and others. */
static float leaf(int64_t index, int64_t i)
{
	return (float)(test_normal(hash_mix((uint64_t)index + 1), i) *
		       ldexp(1, (int)(i % 12) * 4 - 44));
}

/* The sum of n leaves, from the last one to the first; a leaf alone stays as it is. */
static float sum_of(int64_t n, int64_t i)
{
	int64_t sum = 0;
	for (int64_t k = n - 1; k >= 0; k--)
		sum += llrint(ldexp((double)leaf(k, i), GRID_EXPONENT));
	return n == 1 ? leaf(0, i) : (float)ldexp((double)sum, -GRID_EXPONENT);
}

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
struct one {
	struct sum *sum;
	struct device d;
	const int64_t *begin;
	int64_t n;
	struct sum_run run;
	struct sum_shard shard;
	struct sum_plan plan;
	enum sum_form *form;
	struct grid grid;
	float *memory, *leaf, *result;
	int64_t *local;
	struct comm_shared *shared;
	const float *fence; /* behind the memory */
};

/* One shard, which all want: an all-reduce of runs of leaves. */
static void plan_sum(struct one *x, struct comm *c)
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
	sum_plan_init(&x->plan);
	x->form = xcalloc((size_t)c->size, sizeof(*x->form));
	for (int r = 0; r < c->size; r++) {
		int64_t n = x->begin[r + 1] - x->begin[r];
		x->form[r] = n > 1 ? SUM_INT64 : n ? SUM_LEAF : SUM_NONE;
	}
}

static void free_plan(struct one *x)
{
	sum_plan_release(&x->plan);
	free(x->form);
	free((void *)x->plan.wants);
}

/* The leaves of this rank, in any order. */
static void add_leaves(struct one *x, int64_t begin, int64_t end)
{
	int64_t n = end - begin;
	for (int64_t k = 0; k < n; k++) {
		int64_t index = begin + (k + x->n) % n;
		for (int64_t i = 0; i < x->n; i++)
			x->leaf[i] = leaf(index, i);
		if (n > 1)
			x->d.k->grid_sum(&x->d,
				&(struct grid_sum){.sum = x->local,
					.add = k > 0,
					.parts = &(struct grid_part){.leaf = x->leaf},
					.n_parts = 1,
					.n = x->n,
					.levels = x->plan.levels},
				&x->grid);
	}
}

/* In shared memory, or by messages. */
static void begin_one(struct one *x, struct comm *c, const int64_t *begin, int64_t n,
	bool shared, struct queue *queue)
{
	struct err e = {0};
	*x = (struct one){.begin = begin, .n = n, .grid = {.exponent = GRID_EXPONENT}};
	device_open_cpu(&x->d, 1);
	plan_sum(x, c);
	/* the leaf or the result, the sum of leaves, and the fence */
	int64_t local = n + n % 2, floats = local + 2 * n;
	int64_t bytes = (floats + 1) * (int64_t)sizeof(float);
	if (shared) {
		x->shared = comm_shared_open(c, bytes, 2, &e);
		x->memory = (float *)(void *)x->shared->data[c->rank];
	} else {
		x->memory = xcalloc((size_t)bytes, 1);
	}
	x->leaf = x->result = x->memory;
	x->local = (int64_t *)(void *)(x->memory + local);
	assert_true(shared || sum_buffer_floats(&x->plan, x->form) <= queue->room);
	for (int64_t i = 0; i < n; i++)
		x->leaf[i] = fence;
	x->fence = &x->memory[floats];
	x->memory[floats] = fence;
	add_leaves(x, begin[c->rank], begin[c->rank + 1]);
	bool several = x->form[c->rank] == SUM_INT64;
	x->plan.queue = &queue->sums;
	x->plan.shared = x->shared;
	x->plan.sum_at = local;
	x->plan.slot = 1;
	x->sum = sum_begin(&(struct sum_call){.plan = &x->plan,
		.grid = &x->grid,
		.own = several ? (void *)x->local : x->leaf,
		.form = x->form,
		.result = x->result});
}

static bool end_one(struct one *x, const struct comm *c)
{
	int64_t leaves = x->begin[c->size];
	sum_end(x->sum);
	bool good = *x->fence == fence && !x->grid.beyond && !x->grid.not_finite;
	for (int64_t i = 0; i < x->n && good; i++) {
		float want = sum_of(leaves, i);
		good = !memcmp(&want, &x->result[i], sizeof(want));
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

TEST(sums_are_exact)
{
	enum { MAX_LEAVES = 19 };
	static const int64_t lengths[] = {1, 16, 17, 100, 0};
	int64_t *begin = xcalloc((size_t)world->size + 1, sizeof(*begin));
	for (int64_t leaves = 0; leaves <= MAX_LEAVES; leaves++) {
		for (int how = 0; how < world->size + 5; how++) {
			struct one x;
			struct queue queue;
			int64_t n = lengths[(leaves + how) % (int64_t)ARRAY_LEN(lengths)];
			deal(begin, world->size, leaves, how);
			for (int shared = 0; shared <= world->shares; shared++) {
				queue_open(&queue, 64 * 2 * 2 * world->size);
				begin_one(&x, world, begin, n, shared, &queue);
				bool right_sum = end_one(&x, world);
				right_sum &= queue_close(&queue);
				assert_on_all(right_sum);
			}
		}
	}
	free(begin);
}

/* As a backward does it: several under way, others at once in another group. */
TEST(sums_at_once)
{
	enum { N = 5 };
	int64_t begin[3][8];
	struct one x[N], y;
	struct queue of_world, of_half;
	bool good = true;
	struct comm *half = comm_split(world, world->rank % 2, "half");
	deal(begin[0], world->size, 8, 0);
	deal(begin[1], world->size, 13, world->size + 1);
	deal(begin[2], half->size, 6, 0);
	queue_open(&of_world, 64 * 2 * 2 * world->size);
	queue_open(&of_half, 64 * 2 * 2 * half->size);
	for (int i = 0; i < N; i++)
		begin_one(&x[i], world, begin[i % 2], 1000 + 300 * i,
			i % 2 && world->shares, &of_world);
	begin_one(&y, half, begin[2], 777, half->shares, &of_half);
	comm_barrier(world); /* a collective between begin and end */
	good &= end_one(&y, half);
	for (int i = 0; i < N; i++) /* not in the same order everywhere */
		good &= end_one(&x[world->rank % 2 ? i : N - 1 - i], world);
	good &= queue_close(&of_world);
	good &= queue_close(&of_half);
	comm_free(half);
	assert_on_all(good);
}

/* Memory of all ranks is seen by all, zero at first, and numbers are said in order. */
TEST(shared_memory)
{
	enum { N = 1000 };
	struct err e = {0};
	bool good = true;
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

/* An all-reduce as a ring sends it: n - 1 of n of the contributions, of 4 or 8 bytes an element, and as much of
 * the results, of 4 bytes. */
TEST(bytes_sent)
{
	enum { EACH = 160 };
	int64_t begin[8];
	for (int leaves = 1; leaves <= 4; leaves *= 4) {
		struct one x;
		struct queue queue;
		deal(begin, world->size, leaves * world->size, 0);
		int64_t before = world->sent;
		queue_open(&queue, 64 * 2 * 2 * world->size);
		begin_one(&x, world, begin, EACH * world->size, false, &queue);
		bool good = end_one(&x, world) && queue_close(&queue);
		int64_t sent = world->sent - before;
		assert_on_all(good);
		assert_on_all(sent == (world->size - 1) * EACH * (leaves > 1 ? 12 : 8));
	}
}

/* A piece is kept over two sums of other ranks' leaves, and rounded then. */
TEST(kept)
{
	enum { N = 100 };
	int64_t begin[8];
	struct one x;
	struct queue queue;
	deal(begin, world->size, 2 * world->size, 0);
	x = (struct one){.begin = begin, .n = N, .grid = {.exponent = GRID_EXPONENT}};
	device_open_cpu(&x.d, 1);
	plan_sum(&x, world);
	queue_open(&queue, 64 * 2 * 2 * world->size);
	x.plan.queue = &queue.sums;
	int64_t first, piece = sum_piece(&x.plan, world->rank, &first);
	int64_t *sum = xcalloc((size_t)piece + 1, sizeof(*sum));
	float own[N], result[N];
	struct sum_call call = {.plan = &x.plan,
		.grid = &x.grid,
		.own = own,
		.form = x.form,
		.kept = sum};
	for (int r = 0; r < world->size; r++)
		x.form[r] = SUM_LEAF;
	for (int round = 0; round < 2; round++) {
		for (int i = 0; i < N; i++)
			own[i] = leaf(2 * world->rank + round, i);
		call.add = round;
		sum_end(sum_begin(&call));
	}
	call.own = NULL;
	call.result = result;
	sum_end(sum_begin(&call));
	bool good = queue_close(&queue);
	for (int i = 0; i < N; i++)
		good &= result[i] == sum_of(2 * world->size, i);
	free(sum);
	free_plan(&x);
	assert_on_all(good);
}

int main(void)
{
	ranks_open();
	return ranks_close(ranks_run());
}
