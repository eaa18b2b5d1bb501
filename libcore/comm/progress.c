/*
 * Communication that goes on while this rank computes. MPICH moves bytes within its own calls
 * only: between hosts, a message of many segments stands still until the next one. So a
 * thread makes such calls, every now and then, while something is under way.
 *
 * It stands between the groups and their backend, and lets one thread at a time in
 * (MPI_THREAD_SERIALIZED). Ranks of one host do without: there the receiver copies, which
 * costs the same whenever it is done.
 */
#include "comm/comm.h"

#include <pthread.h>
#include <stdlib.h>
#include <time.h>

/* A socket's buffer has some MB, which 10 Gbit/s move in this time. On the processor that
 * computes, calls that come oftener (0.2 and 0.5 ms were tried) cost more than they gain. */
enum { EVERY_NS = 1000000 };

static struct {
	const struct comm_ops *ops; /* of the backend */
	struct comm *world;
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t begun;
	int64_t under_way; /* requests */
	bool ends;
} own = {.lock = PTHREAD_MUTEX_INITIALIZER, .begun = PTHREAD_COND_INITIALIZER};

static void enter(void)
{
	pthread_mutex_lock(&own.lock);
}

static void leave(void)
{
	pthread_mutex_unlock(&own.lock);
}

/* `n` more of them, or fewer. */
static void count(int n)
{
	if (!own.under_way && n)
		pthread_cond_signal(&own.begun);
	own.under_way += n;
}

static void *keep_going(void *unused)
{
	const struct timespec nap = {.tv_nsec = EVERY_NS};
	(void)unused;
	enter();
	while (!own.ends) {
		if (!own.under_way) {
			pthread_cond_wait(&own.begun, &own.lock);
			continue;
		}
		leave();
		nanosleep(&nap, NULL);
		enter();
		if (own.under_way)
			own.ops->progress(own.world);
	}
	leave();
	return NULL;
}

/* ---- the operations, one thread at a time ------------------------------------------ */

static void locked_begin(
	struct comm *c, enum coll what, const struct coll_args *a, struct comm_req *r)
{
	enter();
	own.ops->begin(c, what, a, r);
	count(r->n);
	leave();
}

static void locked_send(struct comm *c, const void *p, int64_t n_bytes, int peer, int tag,
	struct comm_req *r)
{
	enter();
	own.ops->send(c, p, n_bytes, peer, tag, r);
	count(r->n);
	leave();
}

static void locked_recv(
	struct comm *c, void *p, int64_t n_bytes, int peer, int tag, struct comm_req *r)
{
	enter();
	own.ops->recv(c, p, n_bytes, peer, tag, r);
	count(r->n);
	leave();
}

static bool locked_test(struct comm *c, struct comm_req *r)
{
	enter();
	int before = r->n;
	bool done = own.ops->test(c, r);
	count(r->n - before);
	leave();
	return done;
}

static bool locked_take(struct comm *c, void *p, int64_t n_bytes, int tag, int *peer)
{
	enter();
	bool there = own.ops->take(c, p, n_bytes, tag, peer);
	leave();
	return there;
}

static struct comm *locked_split(struct comm *c, int color)
{
	enter();
	struct comm *part = own.ops->split(c, color);
	if (part)
		part->ops = c->ops;
	leave();
	return part;
}

static void locked_free(struct comm *c)
{
	enter();
	own.ops->free(c);
	leave();
}

static void locked_close(struct comm *world)
{
	enter();
	own.ends = true;
	pthread_cond_signal(&own.begun);
	leave();
	pthread_join(own.thread, NULL);
	own.ops->close(world);
}

void comm_progress(struct comm *world)
{
	static const struct comm_ops locked = {
		.begin = locked_begin,
		.send = locked_send,
		.recv = locked_recv,
		.test = locked_test,
		.take = locked_take,
		.split = locked_split,
		.free = locked_free,
		.close = locked_close,
	};
	own.ops = world->ops;
	own.world = world;
	if (!pthread_create(&own.thread, NULL, keep_going, NULL))
		world->ops = &locked;
}
