/* Groups of ranks. */
#include "comm/comm.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct comm *comm_self(const char *name)
{
	struct comm *c = xcalloc(1, sizeof(*c));
	c->size = 1;
	snprintf(c->name, sizeof(c->name), "%s", name);
	return c;
}

/* Started by a launcher? Alone, a rank needs no MPI, and starts in a third of the time. */
static bool launched(void)
{
	static const char *const signs[] = {"PMI_RANK", "PMIX_RANK", "PMI_FD", "PMI_ID"};
	const char *say = getenv("PT_MPI");
	if (say && (!strcmp(say, "yes") || !strcmp(say, "no")))
		return !strcmp(say, "yes");
	for (size_t i = 0; i < ARRAY_LEN(signs); i++)
		if (getenv(signs[i]))
			return true;
	const char *tasks = getenv("SLURM_STEP_NUM_TASKS");
	return tasks && atoi(tasks) > 1;
}

int comm_rank_hint(void)
{
	static const char *const vars[] = {"PMI_RANK", "PMIX_RANK", "SLURM_PROCID"};
	for (size_t i = 0; i < ARRAY_LEN(vars); i++)
		if (getenv(vars[i]))
			return atoi(getenv(vars[i]));
	return 0;
}

struct comm *comm_open(void)
{
	return launched() ? comm_open_mpi() : comm_self("world");
}

struct comm *comm_split(struct comm *c, int color, const char *name)
{
	if (c->size == 1)
		return color < 0 ? NULL : comm_self(name);
	struct comm *part = c->ops->split(c, color);
	if (part)
		snprintf(part->name, sizeof(part->name), "%s", name);
	return part;
}

void comm_free(struct comm *c)
{
	if (c && c->ops)
		c->ops->free(c);
	else
		free(c);
}

void comm_close(struct comm *world)
{
	if (world->ops)
		world->ops->close(world);
	else
		free(world);
}

void comm_place(struct comm *world, struct comm_place *place)
{
	*place = (struct comm_place){.local_size = 1, .n_hosts = 1};
	if (world->ops)
		world->ops->place(world, place);
	else if (gethostname(place->host, sizeof(place->host) - 1))
		snprintf(place->host, sizeof(place->host), "?");
}
