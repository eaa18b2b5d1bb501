/* Groups of ranks. */
#include "comm/comm_internal.h"
#include "comm/nccl.h"

struct comm_place comm_here;

const struct comm_place *comm_place(void)
{
	return &comm_here;
}

void comm_plan_hosts(int host_ranks, bool shares)
{
	comm_here.host_ranks = host_ranks;
	comm_here.shares = shares;
}

struct comm *comm_self(const char *name)
{
	struct comm *c = xcalloc(1, sizeof(*c));
	c->size = 1;
	snprintf(c->name, sizeof(c->name), "%s", name);
	return c;
}

struct comm *comm_planned(const char *name, int rank, int size, bool shares)
{
	struct comm *c = comm_self(name);
	c->rank = rank;
	c->size = size;
	c->shares = shares;
	c->planned = true;
	return c;
}

/* Names a new group, and gives it NCCL if `c` has it. Returns the group, or NULL without one. */
static struct comm *set_up_group(
	struct comm *c, struct comm *part, int color, const char *name)
{
	if (part) {
		snprintf(part->name, sizeof(part->name), "%s", name);
		part->color = (int)((unsigned)c->color * 65537u + (unsigned)color + 1);
		part->shares = c->shares;
	}
	if (c->nccl)
		nccl_split(c, part, color);
	return part;
}

/* Does not call MPI_Comm_split: there, early ranks and ranks without a group spin until every rank
 * has done each step. Here they poll, and only the ranks of a group wait for each other. */
struct comm *comm_split(struct comm *c, int color, const char *name)
{
	if (c->size == 1)
		return color < 0 ? NULL : comm_self(name);
	scoped_ptr int *colors = xcalloc((size_t)c->size, sizeof(*colors));
	int *ranks = xcalloc((size_t)c->size, sizeof(*ranks)), n = 0;
	comm_allgather(c, &color, colors, sizeof(color));
	for (int r = 0; r < c->size; r++)
		if (colors[r] == color)
			ranks[n++] = r;
	struct comm *part = color < 0 ? NULL : c->ops->create_group(c, ranks, n);
	free(ranks);
	return set_up_group(c, part, color, name);
}

struct comm *comm_dup(struct comm *c, const char *name)
{
	return c->size == 1 ? comm_self(name) : set_up_group(c, c->ops->dup(c), 0, name);
}

void comm_free(struct comm *c)
{
	if (c)
		nccl_close(c);
	if (c && c->ops)
		c->ops->free(c);
	else
		free(c);
}

void comm_close(struct comm *world)
{
	if (!world->ops) {
		free(world);
		return;
	}
	/* The watchdog covers this barrier, not MPI_Finalize; nothing is sent between the two. */
	comm_barrier(world);
	watchdog_end();
	world->ops->close(world);
}
