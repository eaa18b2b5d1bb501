/*
 * Requests: collectives and messages that are enqueued and completed later.
 *
 * A set of requests belongs to one group. Operations are added to it, started together, and
 * completed together:
 *
 *	struct comm_requests r = {.c = c};
 *	comm_send(&r, ...);
 *	comm_recv(&r, ...);
 *	comm_start(&r);
 *	... compute, and poll with comm_test(&r) ...
 *	comm_wait(&r);
 *	comm_requests_free(&r);
 *
 * When a request is complete, the host may use buffers in host memory, and work that is enqueued
 * afterwards in the device's current stream may use buffers in device memory. Likewise a started send
 * sends the results of work that was enqueued before it.
 *
 * Requests in host memory, and all of a group without NCCL, go by MPI, which the host polls. A set is
 * complete when comm_test() or comm_wait() finds that.
 *
 * In a group with NCCL, those in device memory are enqueued in the group's stream, all that one
 * comm_start() starts as one NCCL group; comm_wait() lets the current stream begin after them, and the
 * host does not wait. comm_test() is true only if the current stream is the group's. NCCL has no tags: the
 * messages between two ranks of a group match in the order of their starts, and a started request delays
 * all later ones of the group until the other ranks have started theirs. So ranks that exchange messages
 * start both directions together, see comm_post().
 */
#pragma once

#include "comm/collective.h"
#include "comm/tags.h"

enum comm_kind { COMM_COLLECTIVE, COMM_SEND, COMM_RECV };

/* An operation as error messages and the watchdog name it. */
struct comm_what {
	const char *name;
	int64_t n_bytes;
	uint64_t seq; /* of the group, when it was started */
	/* It may take longer than the watchdog's limit, unless a rank is missing. */
	bool patient;
};

struct comm_request {
	enum comm_kind kind;
	struct comm_what what;
	enum coll coll;
	struct coll_args a; /* of a message: its buffer, and its bytes as `count` */
	int peer, tag;
	int64_t sent;	/* bytes that this rank sends */
	bool on_device; /* by NCCL */
	/* The transport's. */
	int64_t handle[2];
	int n_handles;
	/* A buffer in a device's memory is staged through `host`: what is received there is
	 * copied from `received` to `to` on completion. */
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

/* An empty set has its group, and is zero otherwise. */
struct comm_requests {
	struct comm *c;
	struct comm_request *list; /* added and not complete */
	int n, n_started, room;
	uint64_t
		ticket; /* of the mark after those on the device; 0: none is in progress */
	struct comm_operation operation;
};

/*
 * Adds a message to or from rank `peer`; a message without bytes is none. Buffers must not be
 * used until the request is complete.
 *
 * Two ranks that exchange large messages add the send first: UCX asks before it sends a large
 * message, and answers are queued behind messages on the same TCP connection. If the late one of
 * the ranks started with the receive, the two messages would be sent one after the other.
 */
void comm_send(
	struct comm_requests *r, const void *p, int64_t n_bytes, int peer, int tag);
void comm_recv(struct comm_requests *r, void *p, int64_t n_bytes, int peer, int tag);
/* Collective. */
void comm_enqueue(struct comm_requests *r, enum coll what, const struct coll_args *a);
/*
 * Collective. An all-gather of blocks of different lengths: block[rank], which this rank has, is sent to
 * all others, and the other blocks are received. With MPI as messages with this tag; with NCCL as
 * broadcasts, which cross a network between hosts once, or if `contiguous` as an all-gather: then blocks
 * have one length and follow each other in memory, on all ranks.
 */
struct comm_block {
	void *p;
	int64_t n_bytes;
};
void comm_gather_blocks(struct comm_requests *r, const struct comm_block *block,
	bool contiguous, int tag);
/* Starts the requests that were added since the last start, in that order. */
void comm_start(struct comm_requests *r);
/*
 * Starts receives whose set will send, too, before it is waited for: MPI receives earlier then.
 * NCCL starts them together with those sends, since a receive would otherwise delay the sends that the
 * others wait for.
 */
void comm_post(struct comm_requests *r);
/* Whether all requests are complete; then the set is empty again. Never waits. */
bool comm_test(struct comm_requests *r);
/* Waits until it is complete, giving the processor to others meanwhile (MPICH's own waiting
 * does not, which is ruinous when ranks outnumber cores), and keeps background work going. */
void comm_wait(struct comm_requests *r);
/* Waits for the receives only: sends may still be in flight. */
void comm_wait_received(struct comm_requests *r);
/* Waits until `done`, which others make true by taking part in `what`. */
void comm_wait_for(
	struct comm *c, bool (*done)(void *), void *with, const struct comm_what *what);
/*
 * The stream of a group with NCCL (nccl.c). Between begin and end it is the device's current stream: what
 * is enqueued there follows the group's requests, and overlaps with work in other streams. It begins after
 * what was enqueued before in the stream that was current, whose number begin returns and end takes. end
 * returns the ticket of a mark; comm_stream_wait() lets what is enqueued later in the current stream begin
 * after that.
 */
bool comm_has_stream(const struct comm *c);
int comm_stream_begin(struct comm *c);
uint64_t comm_stream_end(struct comm *c, int before);
void comm_stream_wait(struct comm *c, uint64_t ticket);
/* Frees the memory of a complete set. */
void comm_requests_free(struct comm_requests *r);

/* Waits for a message of this tag from any rank, of n_bytes at most, in the host's memory. */
void comm_take(struct comm *c, void *p, int64_t n_bytes, int tag);
/* Takes such a message if it has arrived. Never waits. */
bool comm_try_take(struct comm *c, void *p, int64_t n_bytes, int tag);
