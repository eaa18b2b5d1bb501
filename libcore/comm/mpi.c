/* The MPI transport. Communicators have MPI_ERRORS_RETURN, so that messages name the operation. */
#include "base/launch.h"
#include "comm/mpi_internal.h"

#include <signal.h>

_Static_assert(sizeof(MPI_Request) <= sizeof(int64_t), "a request fits in a handle");

/* Ends the program unless an MPI call succeeded. `w`: the operation to which the call belongs. */
static void require_success(const struct comm *c, int rc, const struct comm_what *w)
{
	char text[MPI_MAX_ERROR_STRING];
	int len = 0;
	if (rc == MPI_SUCCESS)
		return;
	mpi.Error_string(rc, text, &len);
	die(EX_FAILED, "%s of %lld bytes on %s (%d ranks), number %llu: %.*s", w->name,
		(long long)w->n_bytes, c->name, c->size, (unsigned long long)w->seq, len,
		text);
}

/* Checks a call that is complete when it returns. */
#define CHECK(c, call, name, bytes) \
	require_success(c, call, &(struct comm_what){(name), (int64_t)(bytes), (c)->seq})

static MPI_Comm mpi_handle(const struct comm *c)
{
	return *(const MPI_Comm *)c->impl;
}

/* ---- operations ------------------------------------------------------------------ */

static void add_handle(struct comm_request *r, MPI_Request m)
{
	memcpy(&r->handle[r->n_handles++], &m, sizeof(m));
}

/* Starts to send to the next rank, then to receive from the previous one. Returns MPI's error. */
static int start_ring(MPI_Comm m, const struct comm *c, struct comm_request *r)
{
	const struct coll_args *a = &r->a;
	MPI_Request q;
	MPI_Datatype t = mpi_type(a->type);
	int previous = (c->rank + c->size - 1) % c->size, next = (c->rank + 1) % c->size;
	int rc = mpi.Isend_c(a->send, a->count, t, next, TAG_SENDRECV, m, &q);
	if (rc == MPI_SUCCESS) {
		add_handle(r, q);
		rc = mpi.Irecv_c(a->recv, a->count, t, previous, TAG_SENDRECV, m, &q);
		add_handle(r, q);
	}
	return rc;
}

/* Returns this rank's block of a gather or scatter in place; MPI_IN_PLACE on the root. */
static void *own_block(const struct comm *c, const struct coll_args *a)
{
	int64_t pos = c->rank * a->count * (int64_t)comm_type_bytes(a->type);
	return c->rank == a->root ? MPI_IN_PLACE : (char *)a->recv + pos;
}

/* Calls the nonblocking form of a collective if there is a request q, else the blocking form. */
#define EITHER(start, call, ...) (q ? start(__VA_ARGS__, q) : call(__VA_ARGS__))

/* Starts a collective and sets *q; runs the whole collective if q is NULL. Returns MPI's error. */
static int run_collective(MPI_Comm m, const struct comm *c, enum coll what,
	const struct coll_args *a, MPI_Request *q)
{
	MPI_Datatype t = mpi_type(a->type);
	MPI_Op op = mpi_op(a->op, a->type);
	const void *send = a->send ? a->send : MPI_IN_PLACE;
	bool at_root = c->rank == a->root;
	MPI_Count n = a->count;
	switch (what) {
	case COLL_ALLREDUCE:
		return EITHER(
			mpi.Iallreduce_c, mpi.Allreduce_c, send, a->recv, n, t, op, m);
	case COLL_REDUCE: /* in place: MPI_IN_PLACE is valid on the root only */
		return EITHER(mpi.Ireduce_c, mpi.Reduce_c,
			a->send || at_root ? send : a->recv, a->recv, n, t, op, a->root,
			m);
	case COLL_BROADCAST:
		return EITHER(mpi.Ibcast_c, mpi.Bcast_c, a->recv, n, t, a->root, m);
	case COLL_ALLGATHER:
		return EITHER(
			mpi.Iallgather_c, mpi.Allgather_c, send, n, t, a->recv, n, t, m);
	case COLL_REDUCESCATTER:
		return EITHER(mpi.Ireduce_scatter_block_c, mpi.Reduce_scatter_block_c,
			send, a->recv, n, t, op, m);
	case COLL_SCATTER:
		return EITHER(mpi.Iscatter_c, mpi.Scatter_c, a->send ? a->send : a->recv,
			n, t, a->send ? a->recv : own_block(c, a), n, t, a->root, m);
	case COLL_GATHER:
		return EITHER(mpi.Igather_c, mpi.Gather_c,
			a->send ? a->send : own_block(c, a), n, t, a->recv, n, t, a->root,
			m);
	case COLL_ALLTOALL:
		return EITHER(
			mpi.Ialltoall_c, mpi.Alltoall_c, send, n, t, a->recv, n, t, m);
	default:
		return EITHER(mpi.Ibarrier, mpi.Barrier, m);
	}
}

/* Starts a request, and appends its MPI handles to it. Returns an MPI error code. */
static int start_request(const struct comm *c, struct comm_request *r)
{
	MPI_Request q;
	MPI_Comm m = mpi_handle(c);
	const struct coll_args *a = &r->a;
	int rc;
	if (r->kind == COMM_COLLECTIVE && r->coll == COLL_SENDRECV)
		return start_ring(m, c, r);
	if (r->kind == COMM_SEND)
		rc = mpi.Isend_c(a->recv, a->count, MPI_BYTE, r->peer, r->tag, m, &q);
	else if (r->kind == COMM_RECV)
		rc = mpi.Irecv_c(a->recv, a->count, MPI_BYTE, r->peer, r->tag, m, &q);
	else
		rc = run_collective(m, c, r->coll, a, &q);
	if (rc == MPI_SUCCESS)
		add_handle(r, q);
	return rc;
}

/* Sends to the next rank and receives from the previous one. */
static int call_ring(MPI_Comm m, const struct comm *c, const struct coll_args *a)
{
	MPI_Datatype t = mpi_type(a->type);
	int previous = (c->rank + c->size - 1) % c->size, next = (c->rank + 1) % c->size;
	return mpi.Sendrecv_c(a->send, a->count, t, next, TAG_SENDRECV, a->recv, a->count,
		t, previous, TAG_SENDRECV, m, MPI_STATUS_IGNORE);
}

/* Runs a collective until it is complete. Ends the program if MPI fails. */
static void mpi_call(struct comm *c, enum coll what, const struct coll_args *a)
{
	MPI_Comm m = mpi_handle(c);
	bool ring = what == COLL_SENDRECV;
	mpi_lock();
	CHECK(c, ring ? call_ring(m, c, a) : run_collective(m, c, what, a, NULL),
		coll_table[what].name, a->count * (int64_t)comm_type_bytes(a->type));
	mpi_unlock();
}

/* Sends bytes to a rank. Blocks until the buffer may be reused; ends the program if MPI fails. */
static void mpi_call_send(
	struct comm *c, const void *p, int64_t n_bytes, int peer, int tag)
{
	mpi_lock();
	CHECK(c, mpi.Send_c(p, n_bytes, MPI_BYTE, peer, tag, mpi_handle(c)), "send",
		n_bytes);
	mpi_unlock();
}

/* Receives bytes from a rank. Blocks; ends the program if MPI fails. */
static void mpi_call_recv(struct comm *c, void *p, int64_t n_bytes, int peer, int tag)
{
	mpi_lock();
	CHECK(c,
		mpi.Recv_c(p, n_bytes, MPI_BYTE, peer, tag, mpi_handle(c),
			MPI_STATUS_IGNORE),
		"receive", n_bytes);
	mpi_unlock();
}

/* Starts n requests. Wakes the progress thread; ends the program if MPI fails. */
static void mpi_start(struct comm *c, struct comm_request *r, int n)
{
	int handles = 0;
	mpi_lock();
	for (int i = 0; i < n; i++) {
		require_success(c, start_request(c, &r[i]), &r[i].what);
		handles += r[i].n_handles;
	}
	mpi_count_handles(handles);
	mpi_unlock();
}

/* Removes completed handles of a request. Returns true if none is left. */
static bool mpi_test(struct comm *c, struct comm_request *r)
{
	int n_before = r->n_handles, is_done = true;
	mpi_lock();
	while (r->n_handles && is_done) {
		MPI_Request q;
		int64_t *handle = &r->handle[r->n_handles - 1];
		memcpy(&q, handle, sizeof(q));
		require_success(c, mpi.Test(&q, &is_done, MPI_STATUS_IGNORE), &r->what);
		memcpy(handle, &q, sizeof(q));
		r->n_handles -= is_done != 0;
	}
	mpi_count_handles(r->n_handles - n_before);
	mpi_unlock();
	return !r->n_handles;
}

/* Receives a message with this tag from any rank, and sets *peer. False: none has arrived. */
static bool mpi_try_recv(struct comm *c, void *p, int64_t n_bytes, int tag, int *peer)
{
	int arrived;
	MPI_Status s;
	mpi_lock();
	CHECK(c, mpi.Iprobe(MPI_ANY_SOURCE, tag, mpi_handle(c), &arrived, &s), "probe",
		0);
	if (arrived) {
		*peer = s.MPI_SOURCE;
		CHECK(c, mpi.Recv_c(p, n_bytes, MPI_BYTE, *peer, tag, mpi_handle(c), &s),
			"receive", n_bytes);
	}
	mpi_unlock();
	return arrived;
}

static const struct comm_ops mpi_ops;

/* Returns a group for an MPI communicator, which the group then owns. */
static struct comm *wrap_comm(MPI_Comm m)
{
	struct comm *c = xcalloc(1, sizeof(*c));
	c->impl = xmalloc(sizeof(m));
	memcpy(c->impl, &m, sizeof(m));
	mpi.Comm_rank(m, &c->rank);
	mpi.Comm_size(m, &c->size);
	mpi.Comm_set_errhandler(m, MPI_ERRORS_RETURN);
	c->ops = &mpi_ops;
	return c;
}

/* Returns a new communicator of n ranks of c. Collective over these ranks. */
static struct comm *mpi_create_group(struct comm *c, const int *ranks, int n)
{
	MPI_Comm m;
	MPI_Group all, part;
	mpi_lock();
	CHECK(c, mpi.Comm_group(mpi_handle(c), &all), "split", 0);
	CHECK(c, mpi.Group_incl(all, n, ranks, &part), "split", 0);
	CHECK(c, mpi.Comm_create_group(mpi_handle(c), part, TAG_SPLIT, &m), "split", 0);
	mpi.Group_free(&part);
	mpi.Group_free(&all);
	struct comm *group = wrap_comm(m);
	mpi_unlock();
	return group;
}

/* Returns a duplicate of a communicator. Collective. Polls, so that a progress function can run. */
static struct comm *mpi_dup(struct comm *c)
{
	MPI_Comm m;
	MPI_Request q;
	int done = 0;
	mpi_lock();
	CHECK(c, mpi.Comm_idup(mpi_handle(c), &m, &q), "dup", 0);
	for (int turns = 0; !done; turns++) {
		CHECK(c, mpi.Test(&q, &done, MPI_STATUS_IGNORE), "dup", 0);
		comm_yield(turns);
	}
	struct comm *copy = wrap_comm(m);
	mpi_unlock();
	return copy;
}

static void mpi_free(struct comm *c)
{
	mpi_lock();
	mpi.Comm_free(c->impl);
	mpi_unlock();
	free(c->impl);
	free(c);
}

/* Pauses before the abort, since MPICH's launcher drops output that it has not read yet. */
static void mpi_abort(int code)
{
	clock_sleep(0.2);
	mpi.Abort(MPI_COMM_WORLD, code);
	_Exit(code);
}

void mpi_progress(struct comm *world)
{
	int arrived;
	CHECK(world,
		mpi.Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, mpi_handle(world), &arrived,
			MPI_STATUS_IGNORE),
		"probe", 0);
}

/* Finalizes MPI. MPICH's MPI_Finalize closes all connections, then waits in a barrier of the
 * launcher. Before 4.2 it makes no progress there, so a rank that closes its connections later
 * waits forever (pmodels/mpich#6596; with UCX over TCP in one of twenty runs, and in three of
 * seven on a busy machine). So on several hosts a rank only notifies its launcher. If that is not
 * hydra, a pause makes all ranks begin at about the same time, so that each still answers. */
static void finalize_mpi(void)
{
	if (comm_here.n_hosts > 1) {
		if (launch_finalize())
			return;
		clock_sleep(0.05);
	}
	mpi_yield_begin();
	mpi.Finalize();
	mpi_yield_end();
}

/* Stops the progress thread, frees the world and finalizes MPI, unless ranks were killed. */
static void mpi_close(struct comm *world)
{
	mpi_progress_end();
	free(world->impl);
	free(world);
	die_hook = NULL;
	mpi_ops_free();
	launch_end_by_sigterm(false);
	if (!launch_has_ended()) /* else MPI would wait for ranks that were killed */
		finalize_mpi();
}

static const struct comm_ops mpi_ops = {
	.start = mpi_start,
	.call = mpi_call,
	.call_send = mpi_call_send,
	.call_recv = mpi_call_recv,
	.test = mpi_test,
	.try_recv = mpi_try_recv,
	.create_group = mpi_create_group,
	.dup = mpi_dup,
	.free = mpi_free,
	.close = mpi_close,
};

/* The actions of all signals. */
struct signal_actions {
	struct sigaction of[NSIG];
};

static void read_signals(struct signal_actions *a)
{
	for (int s = 1; s < NSIG; s++)
		sigaction(s, NULL, &a->of[s]);
}

/* Restores the actions of signals, which UCX replaces when it is loaded: its handler of SIGHUP does
 * nothing, even under nohup, and others keep unfinished files from being removed. */
static void restore_signals(const struct signal_actions *a)
{
	for (int s = 1; s < NSIG; s++)
		sigaction(s, &a->of[s], NULL);
}

struct comm *comm_open_mpi(void)
{
	int level, rc;
	struct err e = {0};
	struct signal_actions signals;
	launch_watch();
	read_signals(&signals);
	if (mpi_library_open(&e)) {
		launch_leave_report_to_first(e.code);
		die(e.code, "%s", e.msg);
	}
	launch_remove_leftovers("/dev/shm");
	mpi_check_shared_memory("/dev/shm");
	mpi_skip_device_search();
	mpi_yield_begin();
	rc = mpi.Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &level);
	mpi_yield_end();
	restore_signals(&signals);
	if (rc != MPI_SUCCESS)
		die(EX_FAILED, "MPI does not start: MPI_Init_thread fails");
	struct comm *c = wrap_comm(MPI_COMM_WORLD);
	snprintf(c->name, sizeof(c->name), "world");
	die_hook = mpi_abort;
	if (level < MPI_THREAD_SERIALIZED)
		die(EX_FAILED,
			"MPI supports thread level %d, but %d is needed: other threads "
			"read and write files",
			level, MPI_THREAD_SERIALIZED);
	CHECK(c, mpi_ops_create(), "creation of types and operations", 0);
	return c;
}

const char *comm_version(void)
{
	static char text[MPI_MAX_LIBRARY_VERSION_STRING];
	int len, major = 0, minor = 0;
	if (!mpi_library_is_open())
		return "no MPI";
	mpi.Get_library_version(text, &len);
	char *v = strstr(text, "MPICH Version:");
	if (v) { /* "MPICH Version:\t4.0.2\n..." */
		v += strlen("MPICH Version:");
		v += strspn(v, " \t");
		v[strcspn(v, "\n")] = '\0';
		memmove(text + 6, v, strlen(v) + 1);
		memcpy(text, "MPICH ", 6);
	} else {
		text[strcspn(text, "\n,")] = '\0';
	}
	mpi.Get_version(&major, &minor);
	size_t n = strlen(text);
	snprintf(text + n, sizeof(text) - n, " (MPI %d.%d)", major, minor);
	return text;
}

const char *comm_find_version(void)
{
	return mpi_library_open(&(struct err){0}) ? "no MPI library" : comm_version();
}
