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
 * When a request is complete, the host may use buffers in host memory, and kernels that are enqueued
 * on the device afterwards may use buffers in device memory. Likewise a started send sends the
 * results of kernels that were enqueued before it. MPI is polled by the host. A transport with
 * streams can record an event when it starts requests, make the device's stream wait for that event
 * in comm_test() or comm_wait(), and report the requests as complete at once. Since its hosts do not
 * block, it can also delay started requests until the next test or wait for the same group and tag,
 * and launch them as one group of sends and receives.
 */
#ifndef COMM_REQUESTS_H
#define COMM_REQUESTS_H

#include "comm/collective.h"
#include "comm/tags.h"

enum comm_kind { COMM_COLLECTIVE, COMM_SEND, COMM_RECV };

/* An operation as error messages and the watchdog name it. */
struct comm_what {
	const char *name;
	int64_t n_bytes;
	uint64_t seq; /* of the group, when it was started */
};

struct comm_request {
	enum comm_kind kind;
	struct comm_what what;
	enum coll coll;
	struct coll_args a; /* of a message: its buffer, and its bytes as `count` */
	int peer, tag;
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
/* Starts the requests that were added since the last start, in that order. */
void comm_start(struct comm_requests *r);
/* Whether all started requests are complete; then the set is empty again. Never waits. */
bool comm_test(struct comm_requests *r);
/* Waits until it is complete, giving the processor to others meanwhile (MPICH's own waiting
 * does not, which is ruinous when ranks outnumber cores), and keeps background work going. */
void comm_wait(struct comm_requests *r);
/* The same for receives only: sends may still be in flight. */
void comm_wait_received(struct comm_requests *r);
/* Waits until `done`, which others make true by taking part in `what`. */
void comm_wait_for(
	struct comm *c, bool (*done)(void *), void *with, const struct comm_what *what);
/* Frees the memory of a complete set. */
void comm_requests_free(struct comm_requests *r);

/* Waits for a message of this tag from any rank, of n_bytes at most, in the host's memory. */
void comm_take(struct comm *c, void *p, int64_t n_bytes, int tag);
/* Takes such a message if it has arrived. Never waits. */
bool comm_try_take(struct comm *c, void *p, int64_t n_bytes, int tag);

#endif
