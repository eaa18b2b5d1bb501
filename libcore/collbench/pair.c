/* Messages between pairs of ranks: latency, bandwidth one way and both ways. */
#include "collbench/bench_internal.h"

#include <string.h>

static double bus_one(int n)
{
	(void)n;
	return 1;
}

/* clang-format off */
static const struct coll_info pair_table[N_BENCH - N_COLL] = {
	[PAIR_LATENCY - N_COLL] = {"latency", 1, 1, false, false, {true, false}, bus_one, "1",
		"half a round trip between ranks r and r + n/2"},
	[PAIR_BANDWIDTH - N_COLL] = {"bandwidth", 1, 1, false, false, {true, false}, bus_one, "1",
		"a window of messages from rank r to rank r + n/2"},
	[PAIR_BIDIRECTIONAL - N_COLL] = {"bidirectional", 1, 1, false, false, {true, false}, bus_one, "1",
		"a window of messages from each of ranks r and r + n/2 to the other"},
};
/* clang-format on */

const struct coll_info *bench_info(int what)
{
	return what < N_COLL ? &coll_table[what] : &pair_table[what - N_COLL];
}

int pair_peer(int rank, int ranks)
{
	int half = ranks / 2;
	return rank < half ? rank + half : rank < 2 * half ? rank - half : -1;
}

int64_t pair_messages(const struct bench *b, int what)
{
	return what == PAIR_LATENCY	    ? 2
	       : what == PAIR_BIDIRECTIONAL ? 2 * b->o.window
					    : b->o.window;
}

static void send_one(struct bench *b, int64_t n_bytes, int peer)
{
	struct comm_requests r = {.c = b->comm};
	if (b->o.calls == CALLS_BLOCKING) {
		comm_call_send(b->comm, b->send, n_bytes, peer, TAG_TEST);
		return;
	}
	comm_send(&r, b->send, n_bytes, peer, TAG_TEST);
	comm_start(&r);
	comm_wait(&r);
	comm_requests_free(&r);
}

static void recv_one(struct bench *b, int64_t n_bytes, int peer)
{
	struct comm_requests r = {.c = b->comm};
	if (b->o.calls == CALLS_BLOCKING) {
		comm_call_recv(b->comm, b->recv, n_bytes, peer, TAG_TEST);
		return;
	}
	comm_recv(&r, b->recv, n_bytes, peer, TAG_TEST);
	comm_start(&r);
	comm_wait(&r);
	comm_requests_free(&r);
}

static void ping_pong(struct bench *b, int64_t n_bytes, int peer)
{
	if (b->comm->rank < peer) {
		send_one(b, n_bytes, peer);
		recv_one(b, n_bytes, peer);
	} else {
		recv_one(b, n_bytes, peer);
		send_one(b, n_bytes, peer);
	}
}

/* All messages of a window are received into one buffer, as in OSU's. One way, a byte goes back at the end. */
static void window(struct bench *b, int64_t n_bytes, int peer, bool both)
{
	struct comm_requests r = {.c = b->comm};
	bool leads = b->comm->rank < peer;
	for (int64_t i = 0; i < b->o.window; i++) {
		if (leads || both)
			comm_send(&r, b->send, n_bytes, peer, TAG_TEST);
		if (!leads || both)
			comm_recv(&r, b->recv, n_bytes, peer, TAG_TEST);
	}
	comm_start(&r);
	comm_wait(&r);
	comm_requests_free(&r);
	if (!both && leads)
		recv_one(b, 1, peer);
	else if (!both)
		send_one(b, 1, peer);
}

void pair_run(struct bench *b, const struct coll_case *c)
{
	int64_t n_bytes = c->count * (int64_t)comm_type_bytes(c->type);
	int peer = pair_peer(b->comm->rank, b->comm->size);
	if (c->what == PAIR_LATENCY)
		ping_pong(b, n_bytes, peer);
	else
		window(b, n_bytes, peer, c->what == PAIR_BIDIRECTIONAL);
}
