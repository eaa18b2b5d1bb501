/* Requests: collectives and messages that are enqueued and completed later.
 *
 * A set of requests belongs to one group. They are added, started together, and completed
 * together:
 *
 * struct comm_requests r = {.c = c}; comm_send(&r, ...); comm_recv(&r, ...); comm_start(&r); ...
 * compute, and poll with comm_test(&r) ... comm_wait(&r); comm_requests_release(&r);
 *
 * When a request is complete, the host may use its buffers in host memory, and work that is
 * enqueued afterwards in the device's current stream may use its buffers in device memory. A
 * started send sends the results of work that was enqueued before it.
 *
 * MPI transfers requests in host memory, and all requests of a group without NCCL; the host
 * polls them. A set is complete when comm_test() or comm_wait() finds that.
 *
 * In a group with NCCL, the requests in device memory that one comm_start() starts are enqueued in
 * the group's stream as one NCCL group. comm_wait() makes the current stream continue after them;
 * the host does not wait. comm_test() is true only if the current stream is the group's. NCCL has
 * no tags: the messages between two ranks of a group match in the order of their starts, and a
 * started request delays all later requests of the group until the other ranks have started
 * theirs. So ranks that exchange messages start both directions together, see comm_post(). */
#pragma once

#include "comm/collective.h"
#include "comm/tags.h"

enum comm_kind { COMM_COLLECTIVE, COMM_SEND, COMM_RECV };

/* An operation as error messages and the watchdog name it. */
struct comm_what {
	const char *name;
	int64_t n_bytes;
	uint64_t seq; /* sequence number of the group when the operation was started */
	/* The watchdog's limit does not apply unless a rank is missing. */
	bool patient;
};

struct comm_request {
	enum comm_kind kind;
	struct comm_what what;
	enum coll coll;
	struct coll_args a; /* for a message: its buffer, and its bytes as `count` */
	int peer, tag;
	int64_t sent;	/* bytes that this rank sends */
	bool on_device; /* transferred by NCCL */
	/* Used by the transport. */
	int64_t handle[2];
	int n_handles;
	/* A device buffer is staged in `host`; the end copies `received` to `to`. */
	char *host, *received;
	void *to;
	int64_t to_bytes;
};

/* An operation of the flight record and of the trace (--trace), while it is in progress. */
struct comm_operation {
	bool begun;
	uint64_t recorded, traced; /* its numbers there; 0: none */
	int64_t simulated[2];	   /* in a plan: its last transfers, see simulate.h */
};

/* A set of requests. An empty set is zero except for its group. */
struct comm_requests {
	struct comm *c;
	struct comm_request *list; /* added and not complete */
	int n, n_started, capacity;
	uint64_t ticket; /* mark after the set's device requests; 0: none */
	struct comm_operation operation;
};

/* Adds a message to or from rank `peer`; 0 bytes are ignored. Do not use the buffer until the
 * request is complete.
 *
 * Ranks that exchange large messages must add the send first: UCX asks before it sends a large
 * message, and the answer queues after other messages on the same TCP connection. If the later of
 * the two ranks started with the receive, the two messages would be sent one after the other. */
void comm_send(
	struct comm_requests *r, const void *p, int64_t n_bytes, int peer, int tag);
void comm_recv(struct comm_requests *r, void *p, int64_t n_bytes, int peer, int tag);
/* Collective. Adds a collective. Do not use its buffers until it is complete. */
void comm_enqueue(struct comm_requests *r, enum coll what, const struct coll_args *a);
struct comm_block {
	void *p;
	int64_t n_bytes;
};
/* Collective. Adds an all-gather of blocks of different lengths: block[rank] of this rank is
 * sent to all other ranks, and the other blocks are received. MPI uses messages with this tag.
 * NCCL uses broadcasts, which cross a network between hosts once, or one all-gather if
 * `contiguous`: then all blocks have one length and are adjacent in memory, on all ranks. */
void comm_gather_blocks(struct comm_requests *r, const struct comm_block *block,
	bool contiguous, int tag);
/* Starts the requests that were added since the last start, in the order of addition. */
void comm_start(struct comm_requests *r);
/* Starts the receives of a set before sends are added, if MPI transfers them. With NCCL, both
 * start together, since a receive would delay sends that other ranks wait for. */
void comm_post(struct comm_requests *r);
/* Returns true if all requests are complete; the set is then empty again. Never waits. */
bool comm_test(struct comm_requests *r);
/* Waits until the set is complete. Yields the processor meanwhile (MPICH's own waiting does not,
 * which is ruinous when ranks outnumber cores), and runs background work. */
void comm_wait(struct comm_requests *r);
/* Waits for the receives only: sends may still be in flight. */
void comm_wait_received(struct comm_requests *r);
/* Waits until done(arg), which other ranks make true by taking part in `what`. */
void comm_wait_for(
	struct comm *c, bool (*done)(void *), void *arg, const struct comm_what *what);
/* The stream of a group with NCCL (nccl.c). comm_stream_begin() makes it the device's current
 * stream, until comm_stream_end(). Work that is enqueued in between follows the group's requests
 * and the earlier work of the previous stream, and overlaps with later work in other streams.
 * _begin returns the number of the previous stream, which _end takes. _end returns the ticket of a
 * mark; comm_stream_wait() makes later work in the current stream begin after that mark. */
bool comm_has_stream(const struct comm *c);
int comm_stream_begin(struct comm *c);
uint64_t comm_stream_end(struct comm *c, int before);
void comm_stream_wait(struct comm *c, uint64_t ticket);
/* Frees the memory of a complete set. */
void comm_requests_release(struct comm_requests *r);

/* Waits for a message with this tag from any rank, of at most n_bytes, into host memory. */
void comm_recv_any(struct comm *c, void *p, int64_t n_bytes, int tag);
/* Receives a message from any rank if one with this tag has arrived; else returns false. */
bool comm_try_recv_any(struct comm *c, void *p, int64_t n_bytes, int tag);
