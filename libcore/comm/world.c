/* The group of all ranks. In a separate file, so that programs that do not call comm_open() are not
 * linked with MPI. */
#include "comm/comm_internal.h"
#include "comm/shared.h"
#include "kernels/kernels.h"

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
		world = comm_open_mpi(&comm_here);
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
		if (gethostname(comm_here.host, sizeof(comm_here.host) - 1))
			snprintf(comm_here.host, sizeof(comm_here.host), "?");
	}
	comm_here.shares = world->shares = can_share(world);
	return world;
}
