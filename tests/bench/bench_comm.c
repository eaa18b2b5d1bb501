/*
 * The exact sum of training, of one leaf a rank, against MPI_Allreduce in place, alternating: medians, in seconds.
 *   mpiexec -n 2 bench_comm BYTES    prints "exact SECONDS mpi SECONDS"
 */
#include "tests/support/support.h"
#include "comm/collective.h"
#include "comm/sum.h"

#include <stdlib.h>
#include <string.h>

enum { ROUNDS = 15 };

int main(int argc, char **argv)
{
	log_name("bench_comm");
	struct comm *world = comm_open();
	int64_t n = argc > 1 ? atoll(argv[1]) / (int64_t)sizeof(float) : 1 << 24;
	int *wants = xcalloc((size_t)world->size, sizeof(*wants));
	int levels = 0;
	double exact[ROUNDS], mpi[ROUNDS];
	struct grid grid = {.exponent = GRID_EXPONENT};
	struct device d;
	device_open_cpu(&d, 1);
	while (1 << levels < world->size)
		levels++;
	struct sum_run run = {0, n};
	struct sum_shard shard = {&run, 1, n};
	struct sum_queue queue = {0};
	struct sum_plan plan = {.c = world,
		.d = &d,
		.shard = &shard,
		.n_shards = 1,
		.wants = wants,
		.levels = levels,
		.queue = &queue};
	sum_plan_init(&plan);
	enum sum_form *form = xcalloc((size_t)world->size, sizeof(*form));
	for (int r = 0; r < world->size; r++)
		form[r] = SUM_LEAF; /* one micro-batch each */
	struct err e = {0};
	struct comm_shared *shared = NULL;
	if (world->shares && !(shared = comm_shared_open(world, n * 4, 1, &e)))
		die_err(&e);
	float *mine = xcalloc((size_t)n, sizeof(*mine));
	for (int i = 0; i < SUM_BUFFERS; i++)
		queue.buffer[i] = xcalloc(
			(size_t)sum_buffer_floats(&plan, form) + 1, sizeof(float));
	plan.shared = shared;
	float *x = shared ? (float *)(void *)shared->data[world->rank] : mine;
	const struct sum_call call = {
		.plan = &plan, .grid = &grid, .own = x, .form = form, .result = x};
	for (int i = 0; i < ROUNDS; i++) {
		comm_barrier(world);
		double at = clock_seconds();
		sum_end(sum_begin(&call));
		exact[i] = clock_seconds() - at;
		comm_barrier(world);
		at = clock_seconds();
		comm_run(world, COLL_ALLREDUCE,
			&(struct coll_args){.recv = mine,
				.count = n,
				.type = COMM_F32,
				.op = COMM_SUM});
		mpi[i] = clock_seconds() - at;
	}
	if (world->rank == 0)
		printf("exact %.9f mpi %.9f\n", test_median(exact, ROUNDS),
			test_median(mpi, ROUNDS));
	free(wants);
	free(form);
	free(mine);
	comm_shared_close(shared);
	for (int i = 0; i < SUM_BUFFERS; i++)
		free(queue.buffer[i]);
	comm_close(world);
	return 0;
}
