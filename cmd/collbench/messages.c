/* Operations made of messages: between pairs of ranks, and two exchanges of all ranks that are
 * not a single function of both MPI and NCCL: an all-to-all with unequal blocks, and an
 * all-gather along the edges of a hypercube. */
#include "collbench/bench_internal.h"

#include "kernels/kernels.h"

/* clang-format off */
static const struct coll_info message_table[N_BENCH - N_COLL] = {
	[BENCH_LATENCY - N_COLL] = {"latency", 1, 1, false, false, {true, false}, bus_whole, "1",
		"half a round trip between ranks r and r + n/2"},
	[BENCH_BANDWIDTH - N_COLL] = {"bandwidth", 1, 1, false, false, {true, false}, bus_whole, "1",
		"a window of messages from rank r to rank r + n/2"},
	[BENCH_BIDIRECTIONAL - N_COLL] = {"bidirectional", 1, 1, false, false, {true, false}, bus_whole, "1",
		"a window of messages both ways between ranks r and r + n/2"},
	[BENCH_ALLTOALLV - N_COLL] = {"alltoallv", 0, 0, false, false, {true, false}, bus_share, "(n-1)/n",
		"each rank sends a block to every rank; blocks to even ranks have half the size"},
	[BENCH_HYPERCUBE - N_COLL] = {"hypercube", 1, 0, false, false, {false, true}, bus_share, "(n-1)/n",
		"an allgather by exchanges with ranks at distances 1, 2, 4, ..."},
};
/* clang-format on */

const struct coll_info *bench_info(int what)
{
	return what < N_COLL ? &coll_table[what] : &message_table[what - N_COLL];
}

int64_t bench_bytes(int what, int ranks, int64_t count, enum comm_type t)
{
	return count * coll_blocks(bench_info(what), ranks) * (int64_t)comm_type_bytes(t);
}

int64_t bench_block_elements(const struct coll_case *c, int64_t to)
{
	return c->what == BENCH_ALLTOALLV && to % 2 == 0 ? c->count / 2 : c->count;
}

static bool is_pair(int what)
{
	return what >= BENCH_LATENCY && what <= BENCH_BIDIRECTIONAL;
}

int bench_peer(int rank, int ranks)
{
	int half = ranks / 2;
	return rank < half ? rank + half : rank < 2 * half ? rank - half : -1;
}

int bench_min_ranks(int what)
{
	return what >= N_COLL ? 2 : 1;
}

bool bench_can_run(int what, int64_t ranks)
{
	bool is_power = (ranks & (ranks - 1)) == 0;
	return ranks >= bench_min_ranks(what) && (what != BENCH_HYPERCUBE || is_power);
}

bool bench_takes_part(const struct bench *b, int what)
{
	return b->comm &&
	       (!is_pair(what) || bench_peer(b->comm->rank, b->comm->size) >= 0);
}

void bench_run_requests(struct comm_requests *r)
{
	comm_start(r);
	comm_wait(r);
	comm_requests_release(r);
}

/* Sends or receives n_bytes with `peer`, and waits for the end, as --calls specifies. */
static void send_or_recv(struct bench *b, bool is_sender, int64_t n_bytes, int peer)
{
	struct comm_requests r = {.c = b->comm};
	bool blocking = b->o.calls == CALLS_BLOCKING;
	if (is_sender && blocking)
		comm_call_send(b->comm, b->send, n_bytes, peer, TAG_TEST);
	else if (is_sender)
		comm_send(&r, b->send, n_bytes, peer, TAG_TEST);
	else if (blocking)
		comm_call_recv(b->comm, b->recv, n_bytes, peer, TAG_TEST);
	else
		comm_recv(&r, b->recv, n_bytes, peer, TAG_TEST);
	if (!blocking)
		bench_run_requests(&r);
}

/* Sends a message of n_bytes to the peer and back. The lower rank of the two begins. */
static void ping_pong(struct bench *b, int64_t n_bytes, int peer)
{
	bool is_leader = b->comm->rank < peer;
	send_or_recv(b, is_leader, n_bytes, peer);
	send_or_recv(b, !is_leader, n_bytes, peer);
}

/* Sends a window of messages, all received into one buffer as in OSU's benchmarks, one way or both
 * ways. One way, a byte is sent back at the end. */
static void run_window(struct bench *b, int64_t n_bytes, int peer, bool is_bidirectional)
{
	struct comm_requests r = {.c = b->comm};
	bool is_leader = b->comm->rank < peer;
	for (int64_t i = 0; i < b->o.window; i++) {
		if (is_leader || is_bidirectional)
			comm_send(&r, b->send, n_bytes, peer, TAG_TEST);
		if (!is_leader || is_bidirectional)
			comm_recv(&r, b->recv, n_bytes, peer, TAG_TEST);
	}
	bench_run_requests(&r);
	if (!is_bidirectional)
		send_or_recv(b, !is_leader, 1, peer);
}

/* Copies n_bytes between buffers of the benchmark, on the device if it has one. */
static void copy_block(struct bench *b, char *to, const char *from, int64_t n_bytes)
{
	if (b->d && n_bytes)
		b->d->k->copy(b->d, mat_typed(to, 1, n_bytes, DT_E4M3),
			mat_typed((void *)(uintptr_t)from, 1, n_bytes, DT_E4M3));
	else
		memcpy(to, from, (size_t)n_bytes);
}

/* Runs an all-to-all with unequal blocks. Each rank sends to its successor first. */
static void run_alltoallv(struct bench *b, const struct coll_case *c)
{
	struct comm_requests r = {.c = b->comm};
	int64_t size = (int64_t)comm_type_bytes(c->type), offset = 0;
	int ranks = b->comm->size, rank = b->comm->rank;
	scoped_ptr int64_t *from = xcalloc((size_t)ranks, sizeof(*from));
	int64_t own = bench_block_elements(c, rank) * size;
	for (int to = 0; to < ranks; to++) {
		from[to] = offset;
		offset += bench_block_elements(c, to) * size;
	}
	copy_block(b, b->recv + rank * own, b->send + from[rank], own);
	for (int i = 1; i < ranks; i++) {
		int to = (rank + i) % ranks, source = (rank - i + ranks) % ranks;
		comm_send(&r, b->send + from[to], bench_block_elements(c, to) * size, to,
			TAG_TEST);
		comm_recv(&r, b->recv + source * own, own, source, TAG_TEST);
	}
	bench_run_requests(&r);
}

/* Runs an all-gather in place. After k exchanges, each rank has the blocks of 2^k ranks. */
static void run_hypercube(struct bench *b, const struct coll_case *c)
{
	int64_t block = c->count * (int64_t)comm_type_bytes(c->type);
	for (int n = 1; n < b->comm->size; n *= 2) {
		struct comm_requests r = {.c = b->comm};
		int peer = b->comm->rank ^ n, own = b->comm->rank & -n;
		comm_send(&r, b->recv + own * block, n * block, peer, TAG_TEST);
		comm_recv(&r, b->recv + (own ^ n) * block, n * block, peer, TAG_TEST);
		bench_run_requests(&r);
	}
}

void bench_run_messages(struct bench *b, const struct coll_case *c)
{
	int64_t n_bytes = c->count * (int64_t)comm_type_bytes(c->type);
	int peer = bench_peer(b->comm->rank, b->comm->size);
	switch (c->what) {
	case BENCH_LATENCY:
		ping_pong(b, n_bytes, peer);
		return;
	case BENCH_BANDWIDTH:
	case BENCH_BIDIRECTIONAL:
		run_window(b, n_bytes, peer, c->what == BENCH_BIDIRECTIONAL);
		return;
	case BENCH_ALLTOALLV:
		run_alltoallv(b, c);
		return;
	default:
		run_hypercube(b, c);
	}
}

int64_t bench_count_messages(const struct bench *b, int what)
{
	switch (what) {
	case BENCH_LATENCY:
		return 2;
	case BENCH_BANDWIDTH:
		return b->o.window;
	case BENCH_BIDIRECTIONAL:
		return 2 * b->o.window;
	default:
		return 1;
	}
}
