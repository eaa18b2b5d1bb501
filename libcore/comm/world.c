/* The group of all ranks. In a separate file, so that programs that do not call comm_open() are not
 * linked with MPI. */
#include "comm/comm_internal.h"
#include "comm/shared.h"
#include "kernels/kernels.h"

#include <sched.h>
#include <stdlib.h>
#include <unistd.h>

/* Was this rank started by a launcher? A single rank needs no MPI, and starts in a third of the
 * time without. */
static bool launched(void)
{
	static const char *const vars[] = {"PMI_RANK", "PMIX_RANK", "PMI_FD", "PMI_ID"};
	int forced = env_switch("PT_MPI");
	if (forced >= 0)
		return forced;
	for (size_t i = 0; i < ARRAY_LEN(vars); i++)
		if (getenv(vars[i]))
			return true;
	const char *tasks = getenv("SLURM_STEP_NUM_TASKS");
	return tasks && atoi(tasks) > 1;
}

static void name_host(struct comm_place *place)
{
	if (gethostname(place->host, sizeof(place->host) - 1))
		snprintf(place->host, sizeof(place->host), "?");
}

/* The host of a rank, by its name and its boot id, as containers on different machines may have one
 * name; and the processors that the rank may use. */
struct rank_host {
	uint64_t host;
	cpu_set_t processors;
};

static struct rank_host own_host(const struct comm_place *place)
{
	struct rank_host mine = {.host = hash_mix(hash_str(place->host) ^ boot_id())};
	if (sched_getaffinity(0, sizeof(mine.processors), &mine.processors))
		for (int i = 0; i < cpu_count() && i < CPU_SETSIZE; i++)
			CPU_SET(i, &mine.processors);
	return mine;
}

static int by_number(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
	return x < y ? -1 : x > y;
}

/* By one message from each rank to each. (MPI_Comm_split_type() would wait for all ranks several times,
 * each time without giving its processor away: that took a quarter of the start of 4 ranks on 2
 * processors.) */
static void find_place(struct comm *world, struct comm_place *place)
{
	name_host(place);
	struct rank_host mine = own_host(place);
	struct rank_host *all = xcalloc((size_t)world->size, sizeof(*all));
	uint64_t *hosts = xcalloc((size_t)world->size, sizeof(*hosts));
	cpu_set_t processors;
	comm_allgather(world, &mine, all, sizeof(mine));
	CPU_ZERO(&processors);
	for (int i = 0; i < world->size; i++) {
		hosts[i] = all[i].host;
		if (all[i].host != mine.host)
			continue;
		place->local_rank += i < world->rank;
		place->local_size++;
		CPU_OR(&processors, &processors, &all[i].processors);
	}
	place->processors = CPU_COUNT(&processors);
	qsort(hosts, (size_t)world->size, sizeof(*hosts), by_number);
	for (int i = 0; i < world->size; i++)
		place->n_hosts += !i || hosts[i] != hosts[i - 1];
	free(hosts);
	free(all);
}

/* Containers, other users or limits can prevent sharing on one host. This tries it once, so that
 * plans are right. */
static bool can_share(struct comm *world)
{
	struct err e = {0};
	int64_t wanted = comm_here.n_hosts == 1 && env_switch("PT_SHARED") != 0;
	wanted = comm_min_i64(world, wanted); /* all, or none */
	if (world->size == 1 || !wanted)
		return wanted;
	struct comm_shared *m = comm_shared_open(world, 0, 0, &e);
	comm_shared_close(m);
	return m != NULL;
}

struct comm *comm_open(void)
{
	struct comm *world;
	if (launched()) {
		world = comm_open_mpi();
		comm_crowded = true; /* until it is known */
		find_place(world, &comm_here);
		comm_read_overlap(world);
		comm_crowded = comm_here.local_size > comm_here.processors ||
			       env_switch("PT_CROWDED") == 1;
		if (comm_here.n_hosts > 1 && comm_overlaps())
			comm_progress_thread(world);
		comm_watchdog(world, COMM_WATCHDOG);
	} else {
		world = comm_self("world");
		comm_here = (struct comm_place){
			.local_size = 1, .n_hosts = 1, .processors = cpu_count()};
		name_host(&comm_here);
	}
	comm_here.shares = world->shares = can_share(world);
	return world;
}
