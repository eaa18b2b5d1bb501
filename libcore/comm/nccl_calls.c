/* NCCL calls for requests. Requests that are started together are one NCCL group. */
#include "base/trace.h"
#include "comm/nccl_internal.h"

static int nccl_type_of(enum comm_type t)
{
	static const int types[N_COMM_TYPES] = {
		[COMM_I8] = NCCL_I8,
		[COMM_U8] = NCCL_U8,
		[COMM_I32] = NCCL_I32,
		[COMM_U32] = NCCL_U32,
		[COMM_I64] = NCCL_I64,
		[COMM_U64] = NCCL_U64,
		[COMM_F32] = NCCL_F32,
		[COMM_F64] = NCCL_F64,
		[COMM_F16] = NCCL_F16,
		[COMM_BF16] = NCCL_BF16,
		[COMM_E4M3] = NCCL_E4M3,
		[COMM_E5M2] = NCCL_E5M2,
	};
	return types[t];
}

bool comm_has_type(const struct comm *c, enum comm_type t, struct err *e)
{
	bool fp8 = t == COMM_E4M3 || t == COMM_E5M2;
	if (!c->nccl || !fp8 || nccl.version >= NCCL_FP8_VERSION)
		return true;
	err_set(e, EX_USAGE, "%s does not support fp8; NCCL 2.24 or later does",
		nccl_version());
	return false;
}

static int nccl_op_of(enum comm_op op)
{
	static const int ops[N_COMM_OPS] = {
		[COMM_SUM] = NCCL_SUM,
		[COMM_PROD] = NCCL_PROD,
		[COMM_MIN] = NCCL_MIN,
		[COMM_MAX] = NCCL_MAX,
	};
	return ops[op];
}

/* An NCCL call; its blocks may be sent and received one by one. */
struct call {
	struct nccl_group *g;
	const char *send;
	char *recv;
	int64_t block; /* bytes */
	void *stream;
	int rc; /* the first error */
};

static void send_block(struct call *x, const char *from, int peer)
{
	if (x->rc == NCCL_SUCCESS)
		x->rc = nccl.Send(
			from, (size_t)x->block, NCCL_U8, peer, x->g->c, x->stream);
}

static void recv_block(struct call *x, char *to, int peer)
{
	if (x->rc == NCCL_SUCCESS)
		x->rc = nccl.Recv(
			to, (size_t)x->block, NCCL_U8, peer, x->g->c, x->stream);
}

static void copy_bytes(struct device *d, char *to, const char *from, int64_t n_bytes)
{
	if (to != from && n_bytes)
		d->k->copy(d, mat_typed(to, 1, n_bytes, DT_E4M3),
			mat_typed((void *)(uintptr_t)from, 1, n_bytes, DT_E4M3));
}

/* Copies the data of an in-place all-to-all to g->temp, which it grows, since receives replace the
 * data. Ends the program if memory is short. */
static void save_input(struct nccl_group *g, const struct comm_request *r)
{
	const struct coll_args *a = &r->a;
	int64_t n_bytes = a->count * (int64_t)comm_type_bytes(a->type) * g->group->size;
	if (r->kind != COMM_COLLECTIVE || r->coll != COLL_ALLTOALL || a->send)
		return;
	if (g->temp_bytes < (size_t)n_bytes) {
		device_free(g->d, g->temp, g->temp_bytes);
		g->temp = device_alloc(g->d, (size_t)n_bytes);
		g->temp_bytes = (size_t)n_bytes;
	}
	if (!g->temp)
		die(EX_FAILED, "out of device memory: an alltoall needs %lld bytes",
			(long long)n_bytes);
	copy_bytes(g->d, g->temp, a->recv, n_bytes);
}

/* Enqueues an exchange of blocks between all pairs of ranks. Returns an NCCL error. */
static int call_all_to_all(struct call *x, const struct comm *c)
{
	if (!x->send)
		x->send = x->g->temp;
	copy_bytes(x->g->d, x->recv + c->rank * x->block, x->send + c->rank * x->block,
		x->block);
	for (int i = 1; i < c->size; i++) {
		int to = (c->rank + i) % c->size,
		    from = (c->rank - i + c->size) % c->size;
		send_block(x, x->send + to * x->block, to);
		recv_block(x, x->recv + from * x->block, from);
	}
	return x->rc;
}

/* Sends a block from the root to each rank. In place, the block of rank r is number r of `recv`. */
static int call_scatter(struct call *x, const struct comm *c, int root)
{
	const char *all = x->send ? x->send : x->recv;
	char *own = x->send ? x->recv : x->recv + c->rank * x->block;
	if (c->rank != root)
		recv_block(x, own, root);
	else
		copy_bytes(x->g->d, own, all + root * x->block, x->block);
	for (int r = 0; r < c->size && c->rank == root; r++)
		if (r != root)
			send_block(x, all + r * x->block, r);
	return x->rc;
}

/* Enqueues a gather: sends to the root, which copies its own block. Returns an NCCL error. */
static int call_gather(struct call *x, const struct comm *c, int root)
{
	const char *own = x->send ? x->send : x->recv + c->rank * x->block;
	if (c->rank != root)
		send_block(x, own, root);
	else
		copy_bytes(x->g->d, x->recv + root * x->block, own, x->block);
	for (int r = 0; r < c->size && c->rank == root; r++)
		if (r != root)
			recv_block(x, x->recv + r * x->block, r);
	return x->rc;
}

static int call_ring(struct call *x, const struct comm *c)
{
	send_block(x, x->send, (c->rank + 1) % c->size);
	recv_block(x, x->recv, (c->rank - 1 + c->size) % c->size);
	return x->rc;
}

/* Calls ncclReduceScatter. In place, the result is in this rank's block, not in the first. */
static int reduce_scatter(struct call *x, const struct comm *c, const struct coll_args *a)
{
	char *own = x->send ? x->recv : x->recv + c->rank * x->block;
	return nccl.ReduceScatter(x->send ? x->send : x->recv, own, (size_t)a->count,
		nccl_type_of(a->type), nccl_op_of(a->op), x->g->c, x->stream);
}

/* Enqueues a collective on x->stream. Returns an NCCL error code. */
static int call_collective(
	struct call *x, const struct comm *c, enum coll what, const struct coll_args *a)
{
	const void *send = x->send ? x->send : x->recv;
	size_t n = (size_t)a->count;
	int type = nccl_type_of(a->type), op = nccl_op_of(a->op);
	switch (what) {
	case COLL_ALLREDUCE:
		return nccl.AllReduce(send, a->recv, n, type, op, x->g->c, x->stream);
	case COLL_REDUCE:
		return nccl.Reduce(
			send, a->recv, n, type, op, a->root, x->g->c, x->stream);
	case COLL_BROADCAST:
		return nccl.Broadcast(
			a->recv, a->recv, n, type, a->root, x->g->c, x->stream);
	case COLL_ALLGATHER:
		return nccl.AllGather(x->send ? x->send : x->recv + c->rank * x->block,
			a->recv, n, type, x->g->c, x->stream);
	case COLL_REDUCESCATTER:
		return reduce_scatter(x, c, a);
	case COLL_SCATTER:
		return call_scatter(x, c, a->root);
	case COLL_GATHER:
		return call_gather(x, c, a->root);
	case COLL_ALLTOALL:
		return call_all_to_all(x, c);
	case COLL_SENDRECV:
		return call_ring(x, c);
	default: /* a barrier has no device memory */
		return NCCL_INVALID_ARGUMENT;
	}
}

/* Enqueues a message or a collective on the group's stream. Ends the program if NCCL fails. */
static void call_request(struct nccl_group *g, const struct comm_request *r)
{
	const struct coll_args *a = &r->a;
	struct call x = {.g = g,
		.send = a->send,
		.recv = a->recv,
		.block = a->count * (int64_t)comm_type_bytes(a->type),
		.stream = device_stream_handle(g->d, g->stream)};
	if (r->kind == COMM_SEND)
		send_block(&x, a->recv, r->peer);
	else if (r->kind == COMM_RECV)
		recv_block(&x, a->recv, r->peer);
	else
		x.rc = call_collective(&x, g->group, r->coll, a);
	nccl_check(g, r->what.name, x.rc);
}

/* Moves the result of an in-place reduce-scatter to the first block. */
static void move_result(struct nccl_group *g, const struct comm_request *r)
{
	const struct coll_args *a = &r->a;
	int64_t block = a->count * (int64_t)comm_type_bytes(a->type);
	if (r->kind == COMM_COLLECTIVE && r->coll == COLL_REDUCESCATTER && !a->send)
		copy_bytes(
			g->d, a->recv, (char *)a->recv + g->group->rank * block, block);
}

static void for_each_device_request(struct nccl_group *g, const struct comm_request *r,
	int n, void (*fn)(struct nccl_group *, const struct comm_request *))
{
	for (int i = 0; i < n; i++)
		if (r[i].on_device)
			fn(g, &r[i]);
}

uint64_t nccl_start(struct comm *c, const struct comm_request *r, int n,
	const struct comm_operation *operation)
{
	struct nccl_group *g = c->nccl;
	int previous = comm_stream_begin(c), last = n - 1;
	uint64_t begin = device_stream_mark(g->d), stamp = trace_stamp();
	for_each_device_request(g, r, n, save_input);
	nccl_check(g, "ncclGroupStart", nccl.GroupStart());
	for_each_device_request(g, r, n, call_request);
	nccl_check(g, "ncclGroupEnd", nccl.GroupEnd());
	nccl_settle(g, "ncclGroupEnd");
	for_each_device_request(g, r, n, move_result);
	trace_operation_stamps(operation->traced, stamp, trace_stamp());
	uint64_t ticket = comm_stream_end(c, previous);
	while (!r[last].on_device)
		last--;
	nccl_track(g, &(struct in_flight){begin, ticket, r[last].what, *operation});
	return ticket;
}
