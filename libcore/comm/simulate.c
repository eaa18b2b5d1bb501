/* The simulation of planned groups: streams of transfers that share links. */
#include "comm/simulate.h"
#include "base/trace.h"
#include "comm/tree.h"

#include <ctype.h>
#include <math.h>

enum { MAX_GROUPS = 64, MAX_ROWS = 64 };

/* The transfer of a set of requests in one direction. Transfers are numbered from 1; 0: none. */
struct transfer {
	int row, direction;
	bool done;
	bool blocks;			/* without overlap, computation waits for it */
	double begun;			/* time; < 0: not begun */
	double latency, bytes[N_LINKS]; /* remaining seconds and bytes */
	int64_t after[N_TRANSFER_DIRECTIONS]; /* transfers that must be complete first */
	int64_t next;			      /* next transfer of its stream */
	int64_t n_bytes;
};

/* A group: two streams, each in the order of the starts. */
struct group {
	const struct comm *c;
	int *host;	      /* [size]: each rank's host */
	int n_local, n_hosts; /* ranks on this rank's host; hosts of the group */
	int64_t head[N_TRANSFER_DIRECTIONS], tail[N_TRANSFER_DIRECTIONS];
	double launched
		[N_TRANSFER_DIRECTIONS]; /* time of the last launch; < 0: a new one */
};

static struct {
	bool on, chained;
	struct simulated_links links;
	const double *computed;
	double seen, now; /* last value of *computed; simulated time */
	struct group group[MAX_GROUPS];
	int n_groups;
	struct transfer *transfer; /* [n + 1]: by number */
	int64_t n;
	int64_t blocked; /* last transfer that was waited for without overlap */
	int64_t after[N_TRANSFER_DIRECTIONS]; /* transfers waited for while chained */
	struct simulated_row row[MAX_ROWS];
	int n_rows;
} sim;

void simulate_begin(const struct simulated_links *links, const double *computed)
{
	BUG_ON(sim.on);
	memset(&sim, 0, sizeof(sim));
	sim.on = true;
	sim.links = *links;
	sim.computed = computed;
	sim.seen = *computed;
}

void simulate_end(void)
{
	for (int i = 0; i < sim.n_groups; i++)
		free(sim.group[i].host);
	free(sim.transfer);
	memset(&sim, 0, sizeof(sim));
}

/* ---- groups ---------------------------------------------------------------------- */

/* Returns a new group with these ranks of the world; NULL: all. */
static struct group *add_group(const struct comm *c, const int *ranks)
{
	BUG_ON(sim.n_groups == MAX_GROUPS);
	struct group *g = &sim.group[sim.n_groups++];
	*g = (struct group){.c = c, .launched = {-1, -1}};
	g->host = xcalloc((size_t)c->size, sizeof(*g->host));
	for (int r = 0; r < c->size; r++)
		g->host[r] = (ranks ? ranks[r] : r) / sim.links.host_ranks;
	for (int r = 0; r < c->size; r++) {
		g->n_local += g->host[r] == g->host[c->rank];
		g->n_hosts += r == 0 || g->host[r] != g->host[r - 1];
	}
	return g;
}

bool simulate_has_nccl(void)
{
	return sim.on && sim.links.nccl;
}

void simulate_group(const struct comm *c, const int *ranks)
{
	if (sim.on)
		add_group(c, ranks);
}

/* Returns a planned group, which may be new. */
static struct group *group_of_comm(const struct comm *c)
{
	for (int i = 0; i < sim.n_groups; i++)
		if (sim.group[i].c == c)
			return &sim.group[i];
	return add_group(c, NULL);
}

void simulate_launch(const struct comm *c)
{
	if (!sim.on || !c->planned)
		return;
	struct group *g = group_of_comm(c);
	g->launched[TRANSFER_OUT] = g->launched[TRANSFER_IN] = -1;
}

/* Returns the row of an operation, which may be new; "RING_KEYS" is named "ring keys". */
static int row_number(const struct group *g, const char *name)
{
	struct simulated_row row = {.exposed = 0};
	snprintf(row.group, sizeof(row.group), "%s", g->c->name);
	snprintf(row.name, sizeof(row.name), "%s", name);
	for (char *s = row.name; *s; s++)
		*s = *s == '_' ? ' ' : (char)tolower(*s);
	for (int i = 0; i < sim.n_rows; i++)
		if (!strcmp(sim.row[i].group, row.group) &&
			!strcmp(sim.row[i].name, row.name))
			return i;
	BUG_ON(sim.n_rows == MAX_ROWS);
	sim.row[sim.n_rows] = row;
	return sim.n_rows++;
}

const struct simulated_row *simulate_rows(int *n)
{
	*n = sim.n_rows;
	return sim.row;
}

/* ---- transfers in progress ------------------------------------------------------- */

static bool is_done(int64_t number)
{
	return !number || sim.transfer[number].done;
}

/* Returns true if the first transfer of a stream may begin. */
static bool may_begin(const struct transfer *x)
{
	return is_done(x->after[TRANSFER_OUT]) && is_done(x->after[TRANSFER_IN]);
}

/* Returns the first transfer of a stream, or NULL. Streams are numbered over all groups. */
static struct transfer *stream_head(int stream)
{
	int64_t head = sim.group[stream / N_TRANSFER_DIRECTIONS]
			       .head[stream % N_TRANSFER_DIRECTIONS];
	return head ? &sim.transfer[head] : NULL;
}

static int n_streams(void)
{
	return sim.n_groups * N_TRANSFER_DIRECTIONS;
}

/* The number of transfers that share each link. */
struct link_users {
	int n[N_LINKS][N_TRANSFER_DIRECTIONS];
};

/* Counts the transfers that share each link now: those that may begin and have no latency left. */
static struct link_users count_users(void)
{
	struct link_users u = {{{0}}};
	for (int i = 0; i < n_streams(); i++) {
		const struct transfer *x = stream_head(i);
		for (int k = 0; k < N_LINKS && x && may_begin(x); k++)
			u.n[k][x->direction] += x->latency <= 0 && x->bytes[k] > 0;
	}
	return u;
}

static double seconds_left(const struct transfer *x, int link, const struct link_users *u)
{
	return x->bytes[link] * u->n[link][x->direction] /
	       sim.links.link[link].bytes_per_second;
}

/* Returns the seconds until a transfer changes its state, if no other transfer does so before. */
static double next_change(const struct transfer *x, const struct link_users *u)
{
	double earliest = INFINITY;
	if (!may_begin(x))
		return INFINITY;
	if (x->latency > 0)
		return x->latency;
	for (int k = 0; k < N_LINKS; k++)
		if (x->bytes[k] > 0)
			earliest = fmin(earliest, seconds_left(x, k, u));
	return isinf(earliest) ? 0 : earliest;
}

/* Marks a transfer as done, removes it from its queue and, if tracing is on, records it. */
static void complete_transfer(int stream, struct transfer *x)
{
	struct group *g = &sim.group[stream / N_TRANSFER_DIRECTIONS];
	x->done = true;
	g->head[x->direction] = x->next;
	if (!x->next)
		g->tail[x->direction] = 0;
	if (trace_on && x->direction == TRANSFER_OUT)
		trace_operation_record(sim.row[x->row].group, sim.row[x->row].name,
			x->n_bytes, x->begun, sim.now);
}

/* Advances a transfer by dt seconds; returns true if it is complete. */
static bool advance_transfer(struct transfer *x, double dt, const struct link_users *u)
{
	bool done = true;
	if (x->latency > 0) {
		x->latency = x->latency > dt ? x->latency - dt : 0;
		dt = 0;
	}
	for (int k = 0; k < N_LINKS; k++) {
		double seconds = x->bytes[k] > 0 && dt > 0 ? seconds_left(x, k, u) : 0;
		if (seconds > dt)
			x->bytes[k] *= 1 - dt / seconds;
		else if (dt > 0)
			x->bytes[k] = 0;
		done &= x->bytes[k] <= 0;
	}
	return done && x->latency <= 0;
}

/* Advances the time by dt; no transfer may change its state before the end of dt. */
static void pass_time(double dt, const struct link_users *u)
{
	bool is_active[MAX_GROUPS * N_TRANSFER_DIRECTIONS];
	double begin = sim.now;
	for (int i = 0; i < n_streams(); i++)
		is_active[i] = stream_head(i) && may_begin(stream_head(i));
	sim.now += dt;
	for (int i = 0; i < n_streams(); i++) {
		struct transfer *x = stream_head(i);
		if (is_active[i] && x->begun < 0)
			x->begun = begin;
		if (is_active[i] && advance_transfer(x, dt, u))
			complete_transfer(i, x);
	}
}

/* Advances the time to t, or until transfer `number` is complete (0: to t). */
static void run_until(double t, int64_t number)
{
	while (!number || !is_done(number)) {
		const struct link_users u = count_users();
		double earliest = INFINITY;
		for (int i = 0; i < n_streams(); i++)
			if (stream_head(i))
				earliest =
					fmin(earliest, next_change(stream_head(i), &u));
		BUG_ON(isinf(earliest) && isinf(t)); /* never complete */
		if (sim.now + earliest > t) {
			pass_time(t - sim.now, &u);
			sim.now = t;
			return;
		}
		pass_time(earliest, &u);
	}
}

/* ---- waits ----------------------------------------------------------------------- */

/* Advances the time until a transfer is complete, which counts as exposed. */
static void wait_for_transfer(int64_t number)
{
	double begin = sim.now;
	if (is_done(number))
		return;
	trace_begin("waiting", -1);
	run_until(INFINITY, number);
	trace_end();
	sim.row[sim.transfer[number].row].exposed += sim.now - begin;
}

/* Advances the time by the computation since the last call. */
static void advance_by_computation(void)
{
	double seconds = *sim.computed - sim.seen;
	sim.seen = *sim.computed;
	if (seconds <= 0)
		return;
	for (; sim.blocked < sim.n && !comm_overlaps(); sim.blocked++)
		if (sim.transfer[sim.blocked + 1].blocks)
			wait_for_transfer(sim.blocked + 1);
	run_until(sim.now + seconds, 0);
}

double simulate_now(void)
{
	if (sim.on)
		advance_by_computation();
	return sim.now;
}

void simulate_wait(struct comm_requests *r, bool only_received)
{
	const int64_t *last =
		r->operation.simulated; /* 0: none, or the group is not planned */
	if (!sim.on || (!last[TRANSFER_OUT] && !last[TRANSFER_IN]))
		return;
	advance_by_computation();
	for (int d = only_received ? TRANSFER_IN : 0; d < N_TRANSFER_DIRECTIONS; d++) {
		int64_t *number = &r->operation.simulated[d];
		if (sim.chained)
			sim.after[d] = max64(sim.after[d], *number);
		else
			wait_for_transfer(*number);
		*number = 0;
	}
}

void simulate_chain(bool on)
{
	sim.chained = on;
	memset(sim.after, 0, sizeof(sim.after));
}

/* ---- starts ---------------------------------------------------------------------- */

/* The amount of data that a set moves, before it is split into transfers. */
struct amount {
	bool used[N_TRANSFER_DIRECTIONS];
	double n_bytes[N_TRANSFER_DIRECTIONS];
	double bytes[N_TRANSFER_DIRECTIONS][N_LINKS]; /* bytes over each link */
	double latency;
};

/* Adds the bytes and latency of a message to *a. */
static void add_message_amount(
	const struct group *g, const struct comm_request *q, struct amount *a)
{
	int link = g->host[q->peer] == g->host[g->c->rank] ? LINK_HOST : LINK_NETWORK;
	int d = q->kind == COMM_SEND ? TRANSFER_OUT : TRANSFER_IN;
	a->used[d] = true;
	a->n_bytes[d] += (double)q->what.n_bytes;
	a->latency = fmax(a->latency, sim.links.link[link].latency);
	a->bytes[d][link] += (double)q->what.n_bytes;
}

/* Adds a collective: a tree within the host, and a tree over the hosts. The ranks of this host
 * divide the bytes to other hosts among them. An all-reduce goes up and down the trees. */
static void add_collective_amount(
	const struct group *g, const struct comm_request *q, struct amount *a)
{
	const struct link *link = sim.links.link;
	double bytes = (double)q->sent;
	double latency = tree_levels(g->n_local) * link[LINK_HOST].latency +
			 tree_levels(g->n_hosts) * link[LINK_NETWORK].latency;
	a->latency = fmax(a->latency, (q->coll == COLL_ALLREDUCE ? 2 : 1) * latency);
	for (int d = 0; d < N_TRANSFER_DIRECTIONS; d++) {
		a->used[d] = true;
		a->n_bytes[d] += bytes;
		a->bytes[d][LINK_HOST] += g->n_local > 1 ? bytes : 0;
		a->bytes[d][LINK_NETWORK] += g->n_hosts > 1 ? bytes / g->n_local : 0;
	}
}

/* Returns the bytes and latency of n requests that start together. */
static struct amount total_amount(
	const struct group *g, const struct comm_request *first, int n)
{
	struct amount a = {.latency = 0};
	for (int i = 0; i < n; i++)
		if (first[i].kind == COMM_COLLECTIVE)
			add_collective_amount(g, &first[i], &a);
		else
			add_message_amount(g, &first[i], &a);
	return a;
}

/* Adds a transfer to the totals of its row. */
static void count_transfer(
	struct simulated_row *row, const struct amount *a, double latency, int d)
{
	double longest = 0;
	for (int k = 0; k < N_LINKS; k++)
		longest = fmax(
			longest, a->bytes[d][k] / sim.links.link[k].bytes_per_second);
	row->n[d]++;
	row->bytes[d] += a->n_bytes[d];
	row->seconds[d] += latency + longest;
}

/* Appends a transfer to the stream of a group in direction d. Returns its number. */
static int64_t add_transfer(struct group *g, int row, const struct amount *a, int d)
{
	sim.transfer = xgrow(sim.transfer, ++sim.n, sizeof(*sim.transfer));
	struct transfer *x = &sim.transfer[sim.n];
	*x = (struct transfer){.row = row,
		.direction = d,
		.blocks = a->used[TRANSFER_OUT],
		.begun = -1,
		.n_bytes = (int64_t)a->n_bytes[d],
		.latency = g->launched[d] < sim.now ? a->latency : 0};
	g->launched[d] = sim.now;
	memcpy(x->bytes, a->bytes[d], sizeof(x->bytes));
	memcpy(x->after, sim.after, sizeof(x->after));
	count_transfer(&sim.row[row], a, x->latency, d);
	if (g->tail[d])
		sim.transfer[g->tail[d]].next = sim.n;
	else
		g->head[d] = sim.n;
	return g->tail[d] = sim.n;
}

void simulate_start(struct comm_requests *r, const struct comm_request *first, int n)
{
	if (!sim.on || !n || !r->c->planned || r->c->size == 1)
		return;
	advance_by_computation();
	struct group *g = group_of_comm(r->c);
	struct amount a = total_amount(g, first, n);
	bool message = first->kind != COMM_COLLECTIVE;
	bool stages =
		message && first->tag >= TAG_PIPELINE && first->tag <= TAG_PIPELINE_LAST;
	int row = row_number(g, message ? comm_tag_name(first->tag) : first->what.name);
	for (int d = 0; d < N_TRANSFER_DIRECTIONS; d++)
		if (a.used[d] && stages)
			count_transfer(&sim.row[row], &a, a.latency, d);
		else if (a.used[d])
			r->operation.simulated[d] = add_transfer(g, row, &a, d);
}
