/* Groups of ranks: the world, and the groups along the axes of meshes. */
#include "collbench/suite.h"

/* Returns the index of the axis with this name; N_AXES: none. */
static int find_axis(const char *name)
{
	int a = 0;
	while (a < N_AXES && strcmp(axis_names[a], name))
		a++;
	return a;
}

/* Parses "tp=2,fsdp=4" to degrees of the axes. Sets *named to a bit per axis in the text. */
static int parse_split(
	const char *text, int64_t degree[N_AXES], unsigned *named, struct err *e)
{
	char *copy = xstrdup(text), *rest = copy, *word;
	int rc = 0;
	*named = 0;
	for (int a = 0; a < N_AXES; a++)
		degree[a] = 1;
	while (!rc && (word = strsep(&rest, ","))) {
		const char *name = strsep(&word, "=");
		int a = find_axis(name);
		if (a == N_AXES || !word || parse_int(word, &degree[a]))
			rc = err_set(e, EX_USAGE,
				"--split '%s': expected a list such as tp=2,fsdp=4 with the axes "
				"pp, dp, fsdp, cp, tp",
				text);
		else if (*named & AXIS_BIT(a))
			rc = err_set(e, EX_USAGE, "--split %s: axis %s is given twice",
				text, name);
		else
			*named |= AXIS_BIT(a);
	}
	if (!(*named & AXIS_BIT(AXIS_DP)))
		degree[AXIS_DP] = -1;
	for (int a = 0; a < N_AXES; a++)
		if (a != AXIS_DP && degree[a] == -1 && !(*named & AXIS_BIT(AXIS_DP)))
			degree[AXIS_DP] = 1;
	free(copy);
	return rc;
}

/* Returns the number of distinct hosts of n ranks. */
static int64_t count_hosts(const struct peer *peers, const int *ranks, int n)
{
	int64_t hosts = 0;
	for (int i = 0; i < n; i++) {
		bool is_counted = false;
		for (int k = 0; k < i && !is_counted; k++)
			is_counted = !strcmp(peers[ranks[k]].host, peers[ranks[i]].host);
		hosts += !is_counted;
	}
	return hosts;
}

/* Appends a group. Returns it, to be moved by the next call. */
static struct bench_group *add_group(struct bench_groups *g, struct bench_group new)
{
	g->list = xgrow(g->list, g->n, sizeof(*g->list));
	g->list[g->n++] = new;
	return &g->list[g->n - 1];
}

/* Adds the group of all ranks, which borrows the communicators of both libraries. */
static void add_world(struct bench_groups *g, struct comm *const comm[N_LIBRARIES],
	const struct peer *peers)
{
	const struct comm *any =
		comm[LIBRARY_MPI] ? comm[LIBRARY_MPI] : comm[LIBRARY_NCCL];
	scoped_ptr int *ranks = xcalloc((size_t)any->size, sizeof(*ranks));
	for (int r = 0; r < any->size; r++)
		ranks[r] = r;
	struct bench_group *new =
		add_group(g, (struct bench_group){.takes_part = true,
				     .ranks = any->size,
				     .hosts = count_hosts(peers, ranks, any->size),
				     .groups = 1});
	memcpy(new->comm, comm, sizeof(new->comm));
}

/* Adds the groups along an axis, one mesh per library: all_at_once, or only the group of rank 0. */
static void add_axis_groups(struct bench_groups *g, struct mesh *const mesh[N_LIBRARIES],
	int axis, const struct peer *peers, bool all_at_once)
{
	int *ranks;
	const struct mesh *any =
		mesh[LIBRARY_MPI] ? mesh[LIBRARY_MPI] : mesh[LIBRARY_NCCL];
	int n = mesh_members(any, (struct mesh_part){.axes = AXIS_BIT(axis)}, &ranks);
	struct bench_group new = {.name = axis + 1,
		.takes_part = all_at_once || ranks[0] == 0,
		.ranks = n,
		.hosts = comm_max_i64(any->world, count_hosts(peers, ranks, n)),
		.groups = all_at_once ? any->world->size / n : 1};
	for (int l = 0; l < N_LIBRARIES; l++)
		new.comm[l] = mesh[l] ? mesh[l]->axis[axis] : NULL;
	free(ranks);
	if (n > 1)
		add_group(g, new);
}

/* Opens the meshes of a split, one per library, and adds the groups along its axes. */
static int add_split_groups(struct bench_groups *g, const char *text,
	enum group_choice which, struct comm *const comm[N_LIBRARIES],
	const struct peer *peers, struct err *e)
{
	const struct comm *any =
		comm[LIBRARY_MPI] ? comm[LIBRARY_MPI] : comm[LIBRARY_NCCL];
	int64_t wanted[N_AXES];
	int degree[N_AXES];
	unsigned named;
	if (parse_split(text, wanted, &named, e))
		return -1;
	if (mesh_resolve(wanted, any->size, degree, e))
		return err_prefix(e, "--split %s: ", text);
	struct mesh *mesh[N_LIBRARIES] = {NULL};
	for (int l = 0; l < N_LIBRARIES; l++)
		if (comm[l]) {
			mesh[l] = &g->meshes[g->n_meshes++];
			mesh_open(mesh[l], comm[l], degree);
		}
	int before = g->n;
	for (int a = 0; a < N_AXES; a++) {
		if (!(named & AXIS_BIT(a)))
			continue;
		if (which != GROUPS_ONE)
			add_axis_groups(g, mesh, a, peers, true);
		if (which != GROUPS_ALL)
			add_axis_groups(g, mesh, a, peers, false);
	}
	return g->n > before
		       ? 0
		       : err_set(e, EX_USAGE,
				 "--split %s: each group has one rank, which has nothing to send",
				 text);
}

int groups_open(struct bench_groups *g, const struct strs *splits,
	enum group_choice which, struct comm *const comm[N_LIBRARIES],
	const struct peer *peers, struct err *e)
{
	*g = (struct bench_groups){.n = 0};
	g->meshes = xcalloc((size_t)(splits->n * N_LIBRARIES) + 1, sizeof(*g->meshes));
	if (!splits->n)
		add_world(g, comm, peers);
	for (int64_t i = 0; i < splits->n; i++) {
		if (!strcmp(splits->v[i], "world"))
			add_world(g, comm, peers);
		else if (add_split_groups(g, splits->v[i], which, comm, peers, e))
			return -1;
	}
	return 0;
}

void groups_close(struct bench_groups *g)
{
	for (int i = g->n_meshes - 1; i >= 0; i--)
		mesh_close(&g->meshes[i]);
	free(g->meshes);
	free(g->list);
	*g = (struct bench_groups){.n = 0};
}
