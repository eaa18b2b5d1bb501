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
 * Complete means: the host may use buffers in its own memory; and kernels that are enqueued on
 * the device from now on may use buffers in the device's memory. So who waits is the transport's
 * choice. MPI is polled by the host. A transport that works on streams records an event behind
 * what it started, makes the device's stream wait for that event as soon as somebody asks with
 * comm_test() or comm_wait(), and reports the requests as complete at once. In the same way,
 * what is started sends what the kernels that were enqueued before have computed.
 *
 * Its hosts never block, so they are ahead of their devices; it can therefore hold back what was
 * started until somebody asks for something of the same group and tag, and launch all of it as
 * one group of sends and receives, in which none waits for another.
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

/* All zero but for the group: an empty set. */
struct comm_requests {
	struct comm *c;
	struct comm_request *list; /* that were added and are not complete */
	int n, n_started, room;
	uint64_t flight; /* its number in the flight record, while it is in progress */
};

/*
 * Adds a message to or from rank `peer`; a message without bytes is none. Buffers must not be
 * used until the request is complete.
 *
 * Two ranks that send each other large messages add the send first. UCX asks before it sends
 * a large message, and then sends all of it, with answers queued behind it on the same TCP
 * connection. If a late rank started with the receive, the other's message would be sent before
 * its own request is there; the answer to that comes when all is sent, and messages that could
 * have crossed go one after the other.
 */
void comm_send(
	struct comm_requests *r, const void *p, int64_t n_bytes, int peer, int tag);
void comm_recv(struct comm_requests *r, void *p, int64_t n_bytes, int peer, int tag);
/* Collective. */
void comm_enqueue(struct comm_requests *r, enum coll what, const struct coll_args *a);
/* Starts what was added since the last start, in that order. */
void comm_start(struct comm_requests *r);
/* Is all that was started complete? Never waits. A set that is complete is empty again. */
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
