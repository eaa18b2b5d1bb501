/* NCCL: collectives and messages between GPU memories. MPI remains the launcher and the control
 * plane: ranks find each other, agree, and send host memory by MPI.
 *
 * Each group of ranks has its own communicator and stream. The requests of a set that are in
 * device memory are one NCCL group in that stream. It begins after the work that was enqueued
 * earlier in the current stream; a wait makes the current stream continue after it. The host waits
 * only until NCCL has enqueued transfers, which takes until the other rank connects at the first
 * use. NCCL matches calls by their order, the same on all ranks.
 *
 * See NVIDIA's guide: "Communicator Fault Tolerance", "Group Calls", "In-place Operations". */
#include "base/file.h"
#include "comm/nccl_internal.h"

#include <dlfcn.h>

struct nccl nccl;

/* ---- the library ------------------------------------------------------------------- */

#define LOAD(type, name, params)                                  \
	if (!rc && !(symbol = dlsym(nccl.library, "nccl" #name))) \
		rc = err_set(e, EX_FAILED,                        \
			"%s has no function nccl" #name "; "      \
			"NCCL 2.19 or later is needed",           \
			path);                                    \
	memcpy(&nccl.name, &symbol, sizeof(symbol));
#define LOAD_NEW(type, name, params)                \
	symbol = dlsym(nccl.library, "nccl" #name); \
	memcpy(&nccl.name, &symbol, sizeof(symbol));

int nccl_library(struct err *e)
{
	scoped_str near = {0};
	const char *given = getenv("PT_NCCL"), *path = "libnccl.so.2";
	void *symbol = NULL;
	int rc = 0;
	if (nccl.version)
		return 0;
	if (given && *given)
		path = given;
	else if (file_find_near_program(&near, /* where pip installs it */
			 "../lib*/python3*/*-packages/nvidia/nccl/lib/libnccl.so.2"))
		path = near.s;
	nccl.library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (!nccl.library)
		return err_set(e, EX_FAILED, "NCCL: %s", dlerror());
	NCCL_FUNCTIONS(LOAD)
	NCCL_NEW_FUNCTIONS(LOAD_NEW)
	if (!rc && nccl.GetVersion(&nccl.version) != NCCL_SUCCESS)
		rc = err_set(e, EX_FAILED, "%s: ncclGetVersion fails", path);
	if (rc)
		nccl.version = 0;
	return rc;
}
#undef LOAD
#undef LOAD_NEW

const char *nccl_version(void)
{
	static char text[32];
	int v = nccl.version; /* 22809: 2.28.9 */
	if (!nccl.groups)
		return "";
	snprintf(text, sizeof(text), "NCCL %d.%d.%d", v / 10000, v / 100 % 100, v % 100);
	return text;
}

/* Ends the program with NCCL's error text and advice. */
static NORETURN void die_with_error(const struct nccl_group *g, const char *what, int rc)
{
	const char *detail = g->c ? nccl.GetLastError(g->c) : "";
	die(EX_FAILED,
		"NCCL: %s on %s (%d ranks): %s%s%s; NCCL_DEBUG=INFO shows details, --comm mpi "
		"runs without NCCL",
		what, g->group->name, g->group->size, nccl.GetErrorString(rc),
		detail && *detail ? ": " : "", detail ? detail : "");
}

void nccl_check(const struct nccl_group *g, const char *what, int rc)
{
	if (rc != NCCL_SUCCESS && rc != NCCL_IN_PROGRESS)
		die_with_error(g, what, rc);
}

/* ---- communicators ------------------------------------------------------------------ */

/* Returns the error of a communicator; NCCL_IN_PROGRESS: a call is not complete on the host. */
static int communicator_state(const struct nccl_group *g)
{
	int error = NCCL_SUCCESS, rc = nccl.CommGetAsyncError(g->c, &error);
	return rc == NCCL_SUCCESS ? error : rc;
}

/* Waits until the calls on a communicator have taken effect. Returns the communicator's error. Runs
 * no background work meanwhile, since the current stream is not the stream of that work's owner. */
static int try_settle(struct nccl_group *g, const char *name)
{
	const struct comm_what what = {.name = name, .seq = g->group->seq};
	int state = communicator_state(g);
	if (state != NCCL_IN_PROGRESS)
		return state;
	watchdog_wait(g->group, &what);
	while ((state = communicator_state(g)) == NCCL_IN_PROGRESS) {
		watchdog_poll();
		clock_sleep(2e-5);
	}
	watchdog_wait(NULL, NULL);
	return state;
}

void nccl_settle(struct nccl_group *g, const char *name)
{
	nccl_check(g, name, try_settle(g, name));
}

/* Returns the configuration. blocking=0: a call that waits for other ranks, e.g. to connect to
 * them, returns, so that the watchdog detects a missing rank. NCCL then uses a thread per group of
 * calls. PT_NCCL_BLOCKING=yes: calls return when they have taken effect. */
static struct nccl_config default_config(void)
{
	return (struct nccl_config){.size = sizeof(struct nccl_config),
		.magic = (unsigned)NCCL_MAGIC,
		.version = NCCL_CONFIG_VERSION,
		.blocking = env_switch("PT_NCCL_BLOCKING") == 1,
		.cga_cluster_size = NCCL_UNDEFINED,
		.min_ctas = NCCL_UNDEFINED,
		.max_ctas = NCCL_UNDEFINED,
		.split_share = 0};
}

/* Returns a new group with a stream of its own, in nccl.groups. It has no communicator yet. */
static struct nccl_group *add_group(struct comm *c, struct device *d)
{
	struct nccl_group *g = xcalloc(1, sizeof(*g));
	g->group = c;
	g->d = d;
	g->stream = device_stream_open(d, true);
	g->next = nccl.groups;
	nccl.groups = g;
	return g;
}

/* Removes a group from nccl.groups and frees it. */
static void remove_group(struct nccl_group *g)
{
	struct nccl_group **link = &nccl.groups;
	while (*link != g)
		link = &(*link)->next;
	*link = g->next;
	device_free(g->d, g->temp, g->temp_bytes);
	free(g->in_flight);
	free(g);
}

/* Turns an NCCL error into *e; returns -1 on all ranks if any rank failed. */
static int agree_error(struct comm *c, const struct nccl_group *g, int rc, struct err *e)
{
	if (rc != NCCL_SUCCESS && rc != NCCL_IN_PROGRESS) {
		const char *detail = nccl.GetLastError(g ? g->c : NULL);
		err_set(e, EX_FAILED, "NCCL: %s%s%s", nccl.GetErrorString(rc),
			detail && *detail ? ": " : "", detail ? detail : "");
	}
	return comm_agree(c, e);
}

int nccl_open(struct comm *c, struct device *d, struct err *e)
{
	struct nccl_id id = {{0}};
	struct nccl_config config = default_config();
	if (agree_error(c, NULL, c->rank ? NCCL_SUCCESS : nccl.GetUniqueId(&id), e))
		return -1;
	comm_bcast(c, &id, sizeof(id), 0);
	struct nccl_group *g = add_group(c, d);
	int rc = nccl.CommInitRankConfig(&g->c, c->size, id, c->rank, &config);
	bool failed = agree_error(c, g, rc, e);
	if (!failed)
		failed = agree_error(c, g, try_settle(g, "ncclCommInit"), e);
	if (failed) {
		if (g->c)
			nccl.CommAbort(g->c);
		remove_group(g);
		return -1;
	}
	c->nccl = g;
	return 0;
}

void nccl_split(struct comm *from, struct comm *part, int color)
{
	struct nccl_config config = default_config();
	struct nccl_comm *c = NULL;
	struct nccl_group *parent = from->nccl;
	bool is_member = part && part->size > 1;
	/* c is set once the parent is no longer in progress */
	nccl_check(parent, "ncclCommSplit",
		nccl.CommSplit(parent->c, is_member ? color : NCCL_NO_COLOR, from->rank,
			&c, &config));
	nccl_settle(parent, "ncclCommSplit");
	if (!is_member)
		return;
	part->nccl = add_group(part, parent->d);
	part->nccl->c = c;
	nccl_settle(part->nccl, "ncclCommSplit");
}

/* ---- memory -------------------------------------------------------------------------- */

/* Registers memory for transfers without copies. n_bytes must be equal on all ranks. */
static void register_memory(struct nccl_group *g, void *p, size_t n_bytes)
{
	struct registered r = {.g = g, .p = p};
	if (nccl.CommWindowRegister) {
		nccl_check(g, "ncclCommWindowRegister",
			nccl.CommWindowRegister(
				g->c, p, n_bytes, &r.window, NCCL_WIN_SYMMETRIC));
		nccl_settle(g, "ncclCommWindowRegister");
	}
	if (!r.window)
		nccl_check(g, "ncclCommRegister",
			nccl.CommRegister(g->c, p, n_bytes, &r.handle));
	nccl.registered =
		xgrow(nccl.registered, nccl.n_registered, sizeof(*nccl.registered));
	nccl.registered[nccl.n_registered++] = r;
}

static void deregister_memory(void *p)
{
	int i = 0;
	while (i < nccl.n_registered && nccl.registered[i].p != p)
		i++;
	BUG_ON(i == nccl.n_registered);
	struct registered *r = &nccl.registered[i];
	if (r->window)
		nccl_check(r->g, "ncclCommWindowDeregister",
			nccl.CommWindowDeregister(r->g->c, r->window));
	else
		nccl_check(r->g, "ncclCommDeregister",
			nccl.CommDeregister(r->g->c, r->handle));
	*r = nccl.registered[--nccl.n_registered];
}

void comm_device_arena(struct comm *c, struct device *d, struct arena *a,
	const char *name, size_t n_bytes)
{
	void *p = NULL;
	size_t max_bytes =
		c->nccl ? (size_t)comm_max_i64(c, round_up((int64_t)n_bytes, 4096)) : 0;
	if (!max_bytes) {
		device_arena_init(d, a, name, n_bytes);
		return;
	}
	nccl_check(c->nccl, "ncclMemAlloc", nccl.MemAlloc(&p, max_bytes));
	register_memory(c->nccl, p, max_bytes);
	device_arena_over(d, a, name, p, max_bytes);
	d->k->zero(d, mat(p, 1, (int64_t)(max_bytes / sizeof(float))));
}

void comm_device_arena_release(struct comm *c, struct device *d, struct arena *a)
{
	void *p = a->base;
	if (!c->nccl || !p) {
		device_arena_release(d, a);
		return;
	}
	device_wait(d);
	deregister_memory(p);
	device_arena_forget(d, a);
	nccl_check(c->nccl, "ncclMemFree", nccl.MemFree(p));
}

void nccl_close(struct comm *c)
{
	struct nccl_group *g = c->nccl;
	if (!g)
		return;
	nccl_poll();
	device_graph_drop(g->d); /* else NCCL waits for its end forever */
	nccl_check(g, "ncclCommFinalize", nccl.CommFinalize(g->c));
	nccl_settle(g, "ncclCommFinalize");
	nccl_check(g, "ncclCommDestroy", nccl.CommDestroy(g->c));
	remove_group(g);
	c->nccl = NULL;
}

void comm_connect(struct comm *c)
{
	struct nccl_group *g = c->nccl;
	if (!g)
		return;
	int next = (c->rank + 1) % c->size, prev = (c->rank + c->size - 1) % c->size;
	void *stream = device_stream_handle(g->d, g->stream);
	char *buf = device_alloc(g->d, 2);
	if (!buf)
		die(EX_FAILED, "out of device memory: cannot connect %s", c->name);
	device_wait(g->d);
	nccl_check(g, "ncclGroupStart", nccl.GroupStart());
	nccl_check(g, "ncclSend", nccl.Send(buf, 1, NCCL_U8, next, g->c, stream));
	nccl_check(g, "ncclRecv", nccl.Recv(buf + 1, 1, NCCL_U8, prev, g->c, stream));
	nccl_check(g, "ncclGroupEnd", nccl.GroupEnd());
	nccl_settle(g, "connection");
	device_wait(g->d);
	device_free(g->d, buf, 2);
}

void nccl_close_all(void)
{
	while (nccl.groups) /* the newest first, on all ranks */
		nccl_close(nccl.groups->group);
}

/* ---- in flight ---------------------------------------------------------------------- */

static bool is_idle(const struct nccl_group *g)
{
	return g->n_ended == g->n_begun;
}

static void end_oldest(struct nccl_group *g)
{
	operation_end(&g->in_flight[g->n_ended++ % g->capacity].operation);
}

/* Ends the operations that the device has completed. */
static void end_completed(struct nccl_group *g)
{
	while (!is_idle(g) &&
		device_stream_reached(g->d, g->in_flight[g->n_ended % g->capacity].after))
		end_oldest(g);
}

/* Enlarges the ring buffer: the host may be many operations ahead of the device. */
static void grow_ring(struct nccl_group *g)
{
	uint64_t n = g->n_begun - g->n_ended, capacity = 2 * g->capacity + 64;
	struct in_flight *grown = xcalloc(capacity, sizeof(*grown));
	for (uint64_t i = 0; i < n; i++)
		grown[i] = g->in_flight[(g->n_ended + i) % g->capacity];
	free(g->in_flight);
	g->in_flight = grown;
	g->capacity = capacity;
	g->n_ended = 0;
	g->n_begun = n;
}

void nccl_track(struct nccl_group *g, const struct in_flight *f)
{
	if (g->d->capturing) { /* it begins when the graph is launched, which is not tracked */
		struct comm_operation o = f->operation;
		operation_end(&o);
		return;
	}
	if (g->n_begun - g->n_ended == g->capacity)
		grow_ring(g);
	g->in_flight[g->n_begun++ % g->capacity] = *f;
}

int comm_stream_begin(struct comm *c)
{
	struct device *d = c->nccl->d;
	uint64_t mark = device_stream_mark(d);
	int previous = device_stream_use(d, c->nccl->stream);
	device_stream_wait(d, mark);
	return previous;
}

uint64_t comm_stream_end(struct comm *c, int previous)
{
	uint64_t ticket = device_stream_mark(c->nccl->d);
	device_stream_use(c->nccl->d, previous);
	return ticket;
}

bool comm_has_stream(const struct comm *c)
{
	return c->nccl != NULL;
}

void comm_stream_wait(struct comm *c, uint64_t ticket)
{
	device_stream_wait(c->nccl->d, ticket);
}

bool nccl_is_current(struct comm *c)
{
	return device_stream(c->nccl->d) == c->nccl->stream;
}

void nccl_poll(void)
{
	const double interval = 0.02;
	double now = clock_seconds();
	if (!nccl.groups || now - nccl.last_check < interval)
		return;
	nccl.last_check = now;
	for (struct nccl_group *g = nccl.groups; g; g = g->next) {
		int error = NCCL_SUCCESS;
		end_completed(g);
		nccl_check(g, "asynchronous error", nccl.CommGetAsyncError(g->c, &error));
		if (error == NCCL_SUCCESS || error == NCCL_IN_PROGRESS)
			continue;
		die_with_error(g,
			is_idle(g) ? "no operation"
				   : g->in_flight[g->n_ended % g->capacity].what.name,
			error);
	}
}

const struct comm *nccl_waits_for(struct comm_what *what)
{
	const struct comm *any = NULL;
	for (struct nccl_group *g = nccl.groups; g; g = g->next) {
		any = g->group;
		if (is_idle(g))
			continue;
		const struct in_flight *f = &g->in_flight[g->n_ended % g->capacity];
		if (!device_stream_reached(g->d, f->before))
			continue;
		*what = f->what;
		return g->group;
	}
	*what = (struct comm_what){.name = "work of the GPU", .patient = true};
	return any;
}
