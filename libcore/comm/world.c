/* The group of all ranks, in a file of its own: programs without comm_open() have no MPI in them. */
#include "base/launch.h"
#include "comm/comm_internal.h"
#include "comm/shared.h"
#include "kernels/kernels.h"

#include <sched.h>
#include <unistd.h>

/* Returns true if a launcher started this rank. Without MPI, a single rank starts 3x faster. */
static bool has_launcher(void)
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

/* A hash of the host's name and boot id, since containers on different machines may have the
 * same name; and the processors that the rank may use. */
struct rank_host {
	uint64_t host;
	cpu_set_t processors;
};

/* Returns the identity of this host and the processors that this process may use. */
static struct rank_host own_host(const struct comm_place *place)
{
	struct rank_host own = {.host = hash_mix(hash_str(place->host) ^ boot_id())};
	if (sched_getaffinity(0, sizeof(own.processors), &own.processors))
		for (int i = 0; i < cpu_count() && i < CPU_SETSIZE; i++)
			CPU_SET(i, &own.processors);
	return own;
}

static int compare_u64(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
	return x < y ? -1 : x > y;
}

/* Returns the ranks per host if all hosts have as many, and they are consecutive; else 0. */
static int ranks_per_host(const struct rank_host *all, int size)
{
	int n = 1;
	while (n < size && all[n].host == all[0].host)
		n++;
	for (int i = 0; i < size; i++)
		if (all[i].host != all[i - i % n].host ||
			(i >= n && all[i].host == all[i - n].host))
			return 0;
	return size % n || n == size ? 0 : n;
}

/* Returns the number of hosts that have a rank before the first rank of this host. */
static int find_host_number(const struct rank_host *all, uint64_t host)
{
	int number = 0;
	for (int i = 0; all[i].host != host; i++) {
		int first = 0;
		while (all[first].host != all[i].host)
			first++;
		number += first == i;
	}
	return number;
}

/* Sets *place from the hosts of all ranks, in one all-gather. (MPI_Comm_split_type() waits several
 * times without yielding, a quarter of the start of 4 ranks on 2 processors.) */
static void detect_place(struct comm *world, struct comm_place *place)
{
	name_host(place);
	struct rank_host own = own_host(place);
	scoped_ptr struct rank_host *all = xcalloc((size_t)world->size, sizeof(*all));
	scoped_ptr uint64_t *hosts = xcalloc((size_t)world->size, sizeof(*hosts));
	cpu_set_t processors;
	const char *host_ranks = getenv("PT_HOST_RANKS");
	int64_t n;
	if (host_ranks && !parse_int(host_ranks, &n) && n > 0) {
		size_t end = strnlen(place->host, sizeof(place->host) - NUM_TEXT);
		own.host ^= hash_mix((uint64_t)(world->rank / n) + 1);
		snprintf(place->host + end, NUM_TEXT, "-%lld",
			(long long)(world->rank / n));
	}
	comm_allgather(world, &own, all, sizeof(own));
	CPU_ZERO(&processors);
	for (int i = 0; i < world->size; i++) {
		hosts[i] = all[i].host;
		if (all[i].host != own.host)
			continue;
		place->local_rank += i < world->rank;
		place->local_size++;
		CPU_OR(&processors, &processors, &all[i].processors);
	}
	place->rank = world->rank;
	place->processors = CPU_COUNT(&processors);
	place->host_ranks = ranks_per_host(all, world->size);
	place->host_number = find_host_number(all, own.host);
	qsort(hosts, (size_t)world->size, sizeof(*hosts), compare_u64);
	for (int i = 0; i < world->size; i++)
		place->n_hosts += !i || hosts[i] != hosts[i - 1];
}

/* Collective. Returns true if the ranks of a host share memory, which containers may prevent. */
static bool test_shared_memory(struct comm *world)
{
	struct err e = {0};
	int n = comm_here.host_ranks;
	int64_t shares =
		(n > 1 || comm_here.n_hosts == 1) && env_switch("PT_SHARED") != 0;
	shares = comm_min_i64(world, shares); /* all, or none */
	if (world->size == 1 || !shares)
		return shares;
	struct comm *host = n ? comm_split(world, world->rank / n, "host") : world;
	struct comm_shared *m = comm_shared_open(host, 0, 0, &e);
	comm_shared_close(m);
	shares = comm_min_i64(world, m != NULL);
	if (n)
		comm_free(host);
	return shares;
}

/* Ends the program if the launcher belongs to another MPI: each of the n programs it starts
 * would have a world of one rank and do the work of all. */
static void check_launcher(const struct comm *world)
{
	const char *name = launch_size_variable();
	if (!name || world->size > 1)
		return;
	die_hook = NULL; /* MPI has no other rank to abort */
	launch_leave_report_to_first(EX_USAGE);
	die(EX_USAGE,
		"%s is '%s', but MPI has only 1 rank: the launcher does not belong to %s; "
		"use its mpiexec, or srun --mpi=pmi2; PT_MPI=no runs independent copies",
		name, getenv(name), world->ops ? comm_version() : "MPICH");
}

struct comm *comm_open(void)
{
	struct comm *world;
	if (has_launcher()) {
		world = comm_open_mpi();
		comm_crowded = true; /* until detect_place() */
		detect_place(world, &comm_here);
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
	check_launcher(world);
	comm_here.shares = test_shared_memory(world);
	world->shares = comm_here.shares && comm_here.n_hosts == 1;
	return world;
}
