/* The mesh: degrees, groups of ranks along axes, and its diagram. */
#include "comm/mesh.h"
#include "comm/simulate.h"

#define START_MORE_RANKS                                                             \
	"; start more by mpiexec, which `apt install mpich` or `pip install mpich` " \
	"installs"

const char *const axis_names[N_AXES] = {"pp", "dp", "fsdp", "cp", "tp"};

struct mesh_group {
	struct mesh_part part;
	struct comm *c;
};

/* ---- degrees --------------------------------------------------------------------- */

int mesh_resolve(
	const int64_t wanted[N_AXES], int ranks, int degree[N_AXES], struct err *e)
{
	int rest = -1;
	int64_t product = 1;
	for (int a = 0; a < N_AXES; a++) {
		if (wanted[a] == -1 && rest >= 0)
			return err_set(e, EX_USAGE,
				"%s and %s are both -1; only one axis can take the remaining ranks",
				axis_names[rest], axis_names[a]);
		if (wanted[a] == -1) {
			rest = a;
			continue;
		}
		if (wanted[a] < 1 || wanted[a] > ranks)
			return err_set(e, EX_USAGE,
				"%s is %lld, but there %s %d rank%s%s", axis_names[a],
				(long long)wanted[a], ranks == 1 ? "is" : "are", ranks,
				plural(ranks), ranks == 1 ? START_MORE_RANKS : "");
		degree[a] = (int)wanted[a];
		product *= wanted[a];
	}
	scoped_str degrees = {0};
	int rc = 0;
	for (int a = 0; a < N_AXES; a++)
		if (wanted[a] > 1)
			str_printf(&degrees, "%s%s=%d", degrees.len ? " x " : "",
				axis_names[a], degree[a]);
	if (rest >= 0 && ranks % product == 0)
		degree[rest] = (int)(ranks / product);
	else if (rest >= 0)
		rc = err_set(e, EX_USAGE,
			"%d ranks are not a multiple of %s, so %s cannot take the remaining ranks",
			ranks, degrees.s, axis_names[rest]);
	else if (product != ranks)
		rc = err_set(e, EX_USAGE, "%s needs %lld rank%s, but there %s %d",
			degrees.len ? degrees.s : "dp=1", (long long)product,
			plural(product), ranks == 1 ? "is" : "are", ranks);
	return rc;
}

int mesh_ranks(const int degree[N_AXES])
{
	int n = 1;
	for (int a = 0; a < N_AXES; a++)
		n *= degree[a];
	return n;
}

int mesh_rank(const int degree[N_AXES], const int coord[N_AXES])
{
	int rank = 0;
	for (int a = 0; a < N_AXES; a++)
		rank = rank * degree[a] + coord[a];
	return rank;
}

void mesh_coordinates(const int degree[N_AXES], int rank, int coord[N_AXES])
{
	for (int a = N_AXES - 1; a >= 0; a--) {
		coord[a] = rank % degree[a];
		rank /= degree[a];
	}
}

/* ---- groups ---------------------------------------------------------------------- */

int mesh_link(int degree, int first, int way)
{
	int set = degree % 2 && first == degree - 1 ? 2 : first % 2;
	return 1 + MESH_LINK_WAYS * set + way;
}

/* Returns the first position of the pair that contains pos in a set of pairs; -1: no pair does. */
static int find_link_start(int degree, int links, int pos)
{
	int previous = (pos + degree - 1) % degree, way = (links - 1) % MESH_LINK_WAYS;
	if (mesh_link(degree, pos, way) == links)
		return pos;
	return mesh_link(degree, previous, way) == links ? previous : -1;
}

int mesh_data_ranks(const int degree[N_AXES])
{
	return degree[AXIS_DP] * degree[AXIS_FSDP] * degree[AXIS_CP];
}

int mesh_data_index(const int degree[N_AXES], const int coord[N_AXES])
{
	return (coord[AXIS_DP] * degree[AXIS_FSDP] + coord[AXIS_FSDP]) * degree[AXIS_CP] +
	       coord[AXIS_CP];
}

/* Sets key to coordinates that are equal for the ranks of one group: 0 along its axes or, along dp,
 * fsdp and cp, the coordinates of the number of the run, or of the place in the run. */
static void find_keys(const struct mesh *m, struct mesh_part part,
	const int coord[N_AXES], int key[N_AXES])
{
	int index = mesh_data_index(m->degree, coord);
	int n = part.data_run	  ? index / part.data_run
		: part.data_every ? index % part.data_every
				  : 0;
	for (int a = N_AXES - 1; a >= 0; a--) {
		bool in = part.axes & AXIS_BIT(a);
		bool is_data = a == AXIS_DP || a == AXIS_FSDP || a == AXIS_CP;
		key[a] = !in ? coord[a] : is_data ? n % m->degree[a] : 0;
		n = is_data ? n / m->degree[a] : n;
	}
}

/* Returns a color that is equal for the ranks of one group, ignoring part.hosts. */
static int color_ignoring_hosts(const struct mesh *m, struct mesh_part part, int rank)
{
	int coord[N_AXES], keys[N_AXES], color = 0;
	mesh_coordinates(m->degree, rank, coord);
	find_keys(m, part, coord, keys);
	for (int a = 0; a < N_AXES; a++) {
		bool in = part.axes & AXIS_BIT(a);
		int key = keys[a];
		if (in && a == AXIS_TP && part.tp_run)
			key = coord[a] / part.tp_run;
		if (in && a == AXIS_PP && part.pp_ends && coord[a] != m->degree[a] - 1)
			key = coord[a];
		if (in && a == AXIS_PP && part.pp_links) {
			key = find_link_start(m->degree[a], part.pp_links, coord[a]);
			key = key < 0 ? m->degree[a] + coord[a] : key;
		}
		color = color * (a == AXIS_PP ? 2 : 1) * m->degree[a] + key;
	}
	return color;
}

/* Returns the position of a rank among its group's *n ranks on its host. */
static int position_on_host(const struct mesh *m, struct mesh_part part, int rank, int *n)
{
	int first = rank - rank % m->host_ranks, place = 0;
	int color = color_ignoring_hosts(m, part, rank);
	*n = 0;
	for (int r = first; r < first + m->host_ranks; r++) {
		if (color_ignoring_hosts(m, part, r) != color)
			continue;
		place += r < rank;
		++*n;
	}
	return place;
}

int mesh_ranks_per_host(const struct mesh *m, struct mesh_part part)
{
	int per_host = 0, group_size = 0, ranks = mesh_ranks(m->degree);
	if (!m->host_ranks)
		return 0;
	scoped_ptr int *color = xcalloc((size_t)ranks, sizeof(*color));
	for (int r = 0; r < ranks; r++) {
		color[r] = color_ignoring_hosts(m, part, r);
		group_size += color[r] == color[0];
	}
	for (int r = 0; r < ranks && per_host >= 0; r++) {
		int n = 0, first = r - r % m->host_ranks;
		for (int k = first; k < first + m->host_ranks; k++)
			n += color[k] == color[r];
		per_host = r && n != per_host ? -1 : n;
	}
	return per_host < group_size && per_host > 1 ? per_host : 0;
}

/* Returns a color that is equal for the ranks of one group. */
static int color_of(const struct mesh *m, struct mesh_part part, int rank)
{
	int color = color_ignoring_hosts(m, part, rank), n;
	if (part.hosts == HOSTS_THIS)
		return color * (mesh_ranks(m->degree) / m->host_ranks) +
		       rank / m->host_ranks;
	if (part.hosts == HOSTS_ACROSS)
		return color * m->host_ranks + position_on_host(m, part, rank, &n);
	return color;
}

int mesh_members(const struct mesh *m, struct mesh_part part, int **ranks)
{
	int color = color_of(m, part, mesh_rank(m->degree, m->coord)), n = 0;
	*ranks = xcalloc((size_t)mesh_ranks(m->degree), sizeof(**ranks));
	for (int r = 0; r < mesh_ranks(m->degree); r++)
		if (color_of(m, part, r) == color)
			(*ranks)[n++] = r;
	return n;
}

int mesh_size(const struct mesh *m, struct mesh_part part)
{
	int *ranks, n = mesh_members(m, part, &ranks);
	free(ranks);
	return n;
}

/* Returns true if all ranks are in one group. */
static bool contains_all_ranks(const struct mesh *m, struct mesh_part part)
{
	for (int a = 0; a < N_AXES; a++)
		if (m->degree[a] > 1 && !(part.axes & AXIS_BIT(a)))
			return false;
	return !part.tp_run && !part.data_run && !part.data_every && !part.pp_ends &&
	       !part.pp_links && !part.hosts;
}

/* Returns true if all ranks of a group share memory. */
static bool shares_memory(const struct mesh *m, struct mesh_part part)
{
	int *ranks, n = mesh_members(m, part, &ranks);
	bool one_host = !m->host_ranks ||
			ranks[0] / m->host_ranks == ranks[n - 1] / m->host_ranks;
	free(ranks);
	return m->shares && one_host;
}

/* Returns a communicator for a plan: no messages are sent, but its transfers are simulated. */
static struct comm *plan_group(struct mesh *m, struct mesh_part part, const char *name)
{
	int *ranks, rank = mesh_rank(m->degree, m->coord), position = 0;
	int n = mesh_members(m, part, &ranks);
	while (ranks[position] != rank)
		position++;
	struct comm *c = comm_planned(name, position, n, shares_memory(m, part));
	simulate_group(c, ranks);
	free(ranks);
	return c;
}

/* Returns the communicator of the ranks along the axes of `part`. Collective, except in plans. */
static struct comm *make_group(struct mesh *m, struct mesh_part part, const char *name)
{
	if (m->world->planned)
		return plan_group(m, part, name);
	if (!part.axes)
		return comm_self(name);
	struct comm *c =
		contains_all_ranks(m, part)
			? comm_dup(m->world, name)
			: comm_split(m->world,
				  color_of(m, part, mesh_rank(m->degree, m->coord)),
				  name);
	c->shares = shares_memory(m, part);
	return c;
}

/* Writes the name of a group: "dp*fsdp host". */
static void format_group_name(struct mesh_part part, char *name, size_t size)
{
	size_t len = 0;
	name[0] = '\0';
	for (int a = 0; a < N_AXES; a++)
		if (part.axes & AXIS_BIT(a) && len < size)
			len += (size_t)snprintf(name + len, size - len, "%s%s",
				len ? "*" : "", axis_names[a]);
	if (!len)
		snprintf(name, size, "alone");
	else if (part.apart)
		snprintf(name, size, "ep");
	else if (len < size)
		snprintf(name + len, size - len, "%s%s", part.data_every ? " places" : "",
			part.hosts == HOSTS_THIS     ? " host"
			: part.hosts == HOSTS_ACROSS ? " hosts"
						     : "");
}

/* Simplifies runs of all ranks or of one rank along dp, fsdp and cp. */
static void simplify_data_part(const struct mesh *m, struct mesh_part *part)
{
	const unsigned data_axes =
		AXIS_BIT(AXIS_DP) | AXIS_BIT(AXIS_FSDP) | AXIS_BIT(AXIS_CP);
	int n = mesh_data_ranks(m->degree);
	if (part->data_run == 1 || part->data_every >= n)
		part->axes &= ~data_axes;
	if (part->data_run == 1 || part->data_run >= n)
		part->data_run = 0;
	if (part->data_every == 1 || part->data_every >= n)
		part->data_every = 0;
}

struct comm *mesh_group(struct mesh *m, struct mesh_part part)
{
	char name[sizeof(m->world->name)];
	for (int a = 0; a < N_AXES; a++) /* axes of one rank change nothing */
		if (m->degree[a] == 1)
			part.axes &= ~AXIS_BIT(a);
	if (part.tp_run >= m->degree[AXIS_TP])
		part.tp_run = 0;
	simplify_data_part(m, &part);
	part.apart = part.apart && part.axes;
	for (int i = 0; i < m->n_groups; i++) {
		const struct mesh_part *o = &m->groups[i].part;
		if (o->axes == part.axes && o->tp_run == part.tp_run &&
			o->data_run == part.data_run &&
			o->data_every == part.data_every && o->pp_ends == part.pp_ends &&
			o->pp_links == part.pp_links && o->hosts == part.hosts &&
			o->apart == part.apart)
			return m->groups[i].c;
	}
	format_group_name(part, name, sizeof(name));
	m->groups = xrealloc(m->groups, (size_t)(m->n_groups + 1) * sizeof(*m->groups));
	m->groups[m->n_groups++] = (struct mesh_group){part, make_group(m, part, name)};
	return m->groups[m->n_groups - 1].c;
}

/* Sets the host layout of the world, which is the whole job or one of equal parts of it (a worker
 * of local SGD). All parts get the same layout, since they must sum the same pieces. Collective. */
static void set_host_layout(struct mesh *m)
{
	const struct comm_place *place = comm_place();
	int n = place->host_ranks, size = m->world->size;
	scoped_ptr int *rank = xcalloc((size_t)size, sizeof(*rank));
	m->shares = m->world->shares;
	if (n && !m->world->planned)
		comm_allgather(m->world, &place->rank, rank, sizeof(*rank));
	bool regular = n && rank[0] % size == 0;
	for (int r = 0; r < size && !m->world->planned; r++)
		regular &= rank[r] == rank[0] + r;
	if (regular && size > n && size % n == 0)
		m->host_ranks = n;
	if (m->host_ranks || (regular && n % size == 0))
		m->shares = place->shares;
}

static void make_axis_groups(struct mesh *m)
{
	set_host_layout(m);
	mesh_coordinates(m->degree, m->world->rank, m->coord);
	for (int a = 0; a < N_AXES; a++)
		m->axis[a] = mesh_group(m, (struct mesh_part){.axes = AXIS_BIT(a)});
}

void mesh_open(struct mesh *m, struct comm *world, const int degree[N_AXES])
{
	*m = (struct mesh){.world = world};
	memcpy(m->degree, degree, sizeof(m->degree));
	BUG_ON(mesh_ranks(m->degree) != world->size);
	make_axis_groups(m);
}

void mesh_plan(struct mesh *m, const int degree[N_AXES], int rank)
{
	const struct comm_place *place = comm_place();
	*m = (struct mesh){.n_groups = 0};
	memcpy(m->degree, degree, sizeof(m->degree));
	m->world = comm_planned("world", rank, mesh_ranks(m->degree),
		place->shares && !place->host_ranks);
	make_axis_groups(m);
}

void mesh_alone(struct mesh *m)
{
	static const int one[N_AXES] = {1, 1, 1, 1, 1};
	mesh_open(m, comm_self("alone"), one);
}

void mesh_close(struct mesh *m)
{
	for (int i = 0; i < m->n_groups; i++)
		comm_free(m->groups[i].c);
	free(m->groups);
	*m = (struct mesh){.n_groups = 0};
}

int64_t mesh_bytes_sent(const struct mesh *m)
{
	int64_t sent = m->world->sent + m->repeated;
	for (int i = 0; i < m->n_groups; i++)
		sent += m->groups[i].c->sent;
	return sent;
}

const struct comm *mesh_group_at(const struct mesh *m, int i)
{
	return i < m->n_groups ? m->groups[i].c : i == m->n_groups ? m->world : NULL;
}

/* ---- text ------------------------------------------------------------------------ */

void mesh_name(const int degree[N_AXES], struct str *out)
{
	size_t begin = out->len;
	for (int a = 0; a < N_AXES; a++)
		if (degree[a] > 1)
			str_printf(out, "%s%s=%d", out->len > begin ? " " : "",
				axis_names[a], degree[a]);
	if (out->len == begin)
		str_puts(out, "dp=1");
}

static const char *format_range(char text[32], int first, int last)
{
	if (first == last)
		snprintf(text, 32, "%d", first);
	else
		snprintf(text, 32, "%d-%d", first, last);
	return text;
}

/* Draws the ranks [r, r + n): all along cp and tp, or if both are 1, along one other axis. */
static void draw_line(const int degree[N_AXES], int r, int n, struct str *out)
{
	int first[N_AXES], last[N_AXES];
	char text[32];
	mesh_coordinates(degree, r, first);
	mesh_coordinates(degree, r + n - 1, last);
	for (int a = AXIS_PP; a <= AXIS_FSDP; a++)
		str_printf(out, "%s %-3s%s", axis_names[a],
			format_range(text, first[a], last[a]), a < AXIS_FSDP ? " " : "");
	if (degree[AXIS_CP] * degree[AXIS_TP] == 1) {
		str_printf(out, "  cp 0: rank%s %s\n", plural(n),
			format_range(text, r, r + n - 1));
		return;
	}
	for (int i = r; i < r + n; i++) {
		int tp = degree[AXIS_TP], cp = i / tp % degree[AXIS_CP];
		if (i % tp == 0)
			str_printf(out, "  cp %d: rank%s", cp, plural(tp));
		str_printf(out, " %d", i);
		if (tp > 1 && i % tp == tp - 1)
			str_printf(out, " (tp 0-%d)", tp - 1);
	}
	str_putc(out, '\n');
}

/* Draws one line per run of consecutive ranks along cp and tp, or along the last axis with several
 * ranks. If there are many runs, draws only the first lines and the last. */
void mesh_draw(const int degree[N_AXES], struct str *out)
{
	enum { MAX_LINES = 16, BEGIN = 8 };
	int run = degree[AXIS_CP] * degree[AXIS_TP];
	for (int a = AXIS_FSDP; a >= 0 && run == 1; a--)
		run = degree[a];
	int n = mesh_ranks(degree) / run;
	for (int i = 0; i < n; i++) {
		if (n > MAX_LINES && i == BEGIN) {
			str_printf(out, "... %d lines like these\n", n - 1 - BEGIN);
			i = n - 1;
		}
		draw_line(degree, i * run, run, out);
	}
}
