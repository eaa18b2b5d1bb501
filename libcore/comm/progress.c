/*
 * The progress thread. MPICH makes progress only inside its calls: between hosts, a message of many
 * segments stops until the next call. So while requests are in flight, a thread calls MPI
 * periodically, and communication overlaps with computation.
 *
 * This file wraps the transport's functions in a lock (MPI_THREAD_SERIALIZED). Ranks of one host need
 * no such thread: there the receiver copies, which costs the same at any time.
 */
#include "comm/comm_internal.h"

#include <pthread.h>
#include <stdlib.h>
#include <time.h>

/* A link of 10 Gbit/s transfers the contents of a socket's buffer in this time. More frequent calls
 * (0.2 and 0.5 ms were tried) cost the computing processor more than they gain. */
enum { INTERVAL_NS = 1000000 };

static struct {
	const struct comm_ops *ops; /* the transport's */
	struct comm *world;
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t started;
	int64_t under_way; /* handles of requests */
	bool ends;
} progress = {.lock = PTHREAD_MUTEX_INITIALIZER, .started = PTHREAD_COND_INITIALIZER};

static void lock(void)
{
	pthread_mutex_lock(&progress.lock);
}

static void unlock(void)
{
	pthread_mutex_unlock(&progress.lock);
}

static void count(int more)
{
	if (!progress.under_way && more)
		pthread_cond_signal(&progress.started);
	progress.under_way += more;
}

static void *make_progress(void *unused)
{
	const struct timespec nap = {.tv_nsec = INTERVAL_NS};
	(void)unused;
	lock();
	while (!progress.ends) {
		if (!progress.under_way) {
			pthread_cond_wait(&progress.started, &progress.lock);
			continue;
		}
		unlock();
		nanosleep(&nap, NULL);
		lock();
		if (progress.under_way)
			progress.ops->progress(progress.world);
	}
	unlock();
	return NULL;
}

/* ---- the operations, one thread at a time ------------------------------------------ */

static int handles(const struct comm_request *r, int n)
{
	int all = 0;
	for (int i = 0; i < n; i++)
		all += r[i].n_handles;
	return all;
}

static void locked_start(struct comm *c, struct comm_request *r, int n)
{
	lock();
	progress.ops->start(c, r, n);
	count(handles(r, n));
	unlock();
}

/* The lock is held until the call is complete: it makes progress itself, for other requests too. */
static void locked_call(struct comm *c, enum coll what, const struct coll_args *a)
{
	lock();
	progress.ops->call(c, what, a);
	unlock();
}

static void locked_call_send(
	struct comm *c, const void *p, int64_t n_bytes, int peer, int tag)
{
	lock();
	progress.ops->call_send(c, p, n_bytes, peer, tag);
	unlock();
}

static void locked_call_recv(struct comm *c, void *p, int64_t n_bytes, int peer, int tag)
{
	lock();
	progress.ops->call_recv(c, p, n_bytes, peer, tag);
	unlock();
}

static bool locked_test(struct comm *c, struct comm_request *r)
{
	lock();
	int before = r->n_handles;
	bool done = progress.ops->test(c, r);
	count(r->n_handles - before);
	unlock();
	return done;
}

static bool locked_take(struct comm *c, void *p, int64_t n_bytes, int tag, int *peer)
{
	lock();
	bool there = progress.ops->take(c, p, n_bytes, tag, peer);
	unlock();
	return there;
}

static struct comm *locked_create_group(struct comm *c, const int *ranks, int n)
{
	lock();
	struct comm *part = progress.ops->create_group(c, ranks, n);
	part->ops = c->ops;
	unlock();
	return part;
}

static struct comm *locked_dup(struct comm *c)
{
	lock();
	struct comm *same = progress.ops->dup(c);
	same->ops = c->ops;
	unlock();
	return same;
}

static void locked_free(struct comm *c)
{
	lock();
	progress.ops->free(c);
	unlock();
}

static void locked_close(struct comm *world)
{
	lock();
	progress.ends = true;
	pthread_cond_signal(&progress.started);
	unlock();
	pthread_join(progress.thread, NULL);
	progress.ops->close(world);
}

void comm_progress_thread(struct comm *world)
{
	static const struct comm_ops locked = {
		.start = locked_start,
		.call = locked_call,
		.call_send = locked_call_send,
		.call_recv = locked_call_recv,
		.test = locked_test,
		.take = locked_take,
		.create_group = locked_create_group,
		.dup = locked_dup,
		.free = locked_free,
		.close = locked_close,
	};
	progress.ops = world->ops;
	progress.world = world;
	if (!pthread_create(&progress.thread, NULL, make_progress, NULL))
		world->ops = &locked;
}
