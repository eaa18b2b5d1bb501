/*
 * The progress thread. MPICH moves bytes within its own calls only: between hosts, a message of
 * many segments stands still until the next call. So while requests are under way, a thread
 * calls MPI periodically, and communication continues while this rank computes.
 *
 * This file stands between the groups and their transport, and lets one thread at a time in
 * (MPI_THREAD_SERIALIZED). Ranks of one host need no such thread: there the receiver copies,
 * which costs the same whenever it is done.
 */
#include "comm/comm_internal.h"

#include <pthread.h>
#include <stdlib.h>
#include <time.h>

/* A socket's buffer has some MB, which a link of 10 Gbit/s moves in this time. More frequent
 * calls (0.2 and 0.5 ms were tried) cost the computing processor more than they gain. */
enum { INTERVAL_NS = 1000000 };

static struct {
	const struct comm_ops *ops; /* the transport's */
	struct comm *world;
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t started;
	int64_t under_way; /* handles of requests */
	bool ends;
} own = {.lock = PTHREAD_MUTEX_INITIALIZER, .started = PTHREAD_COND_INITIALIZER};

static void enter(void)
{
	pthread_mutex_lock(&own.lock);
}

static void leave(void)
{
	pthread_mutex_unlock(&own.lock);
}

static void count(int more)
{
	if (!own.under_way && more)
		pthread_cond_signal(&own.started);
	own.under_way += more;
}

static void *make_progress(void *unused)
{
	const struct timespec nap = {.tv_nsec = INTERVAL_NS};
	(void)unused;
	enter();
	while (!own.ends) {
		if (!own.under_way) {
			pthread_cond_wait(&own.started, &own.lock);
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

static int handles(const struct comm_request *r, int n)
{
	int all = 0;
	for (int i = 0; i < n; i++)
		all += r[i].n_handles;
	return all;
}

static void locked_start(struct comm *c, struct comm_request *r, int n)
{
	enter();
	own.ops->start(c, r, n);
	count(handles(r, n));
	leave();
}

static bool locked_test(struct comm *c, struct comm_request *r)
{
	enter();
	int before = r->n_handles;
	bool done = own.ops->test(c, r);
	count(r->n_handles - before);
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
	pthread_cond_signal(&own.started);
	leave();
	pthread_join(own.thread, NULL);
	own.ops->close(world);
}

void comm_progress_thread(struct comm *world)
{
	static const struct comm_ops locked = {
		.start = locked_start,
		.test = locked_test,
		.take = locked_take,
		.split = locked_split,
		.free = locked_free,
		.close = locked_close,
	};
	own.ops = world->ops;
	own.world = world;
	if (!pthread_create(&own.thread, NULL, make_progress, NULL))
		world->ops = &locked;
}
