/*
 * The progress thread. MPICH makes progress only inside its calls: between hosts, a message of many
 * segments stalls until the next call. So while requests are in flight, a thread calls MPI
 * periodically, and communication overlaps with computation.
 *
 * With the thread, each MPI call holds a lock (MPI_THREAD_SERIALIZED). Ranks on one host need
 * no such thread: there the receiver copies, which costs the same at any time.
 */
#include "comm/mpi_internal.h"

#include <pthread.h>
#include <time.h>

/* A 10 Gbit/s link transfers the contents of a socket buffer in this time. More frequent calls (0.2
 * and 0.5 ms were tried) cost the computing processor more than they gain. */
enum { INTERVAL_NS = 1000000 };

static struct {
	struct comm *world; /* NULL: no thread runs */
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t started;
	int64_t under_way; /* request handles in flight */
	bool ends;
} progress = {.lock = PTHREAD_MUTEX_INITIALIZER, .started = PTHREAD_COND_INITIALIZER};

void mpi_lock(void)
{
	if (progress.world)
		pthread_mutex_lock(&progress.lock);
}

void mpi_unlock(void)
{
	if (progress.world)
		pthread_mutex_unlock(&progress.lock);
}

void mpi_count_handles(int more)
{
	if (!progress.under_way && more)
		pthread_cond_signal(&progress.started);
	progress.under_way += more;
}

static void *make_progress(void *unused)
{
	const struct timespec nap = {.tv_nsec = INTERVAL_NS};
	(void)unused;
	mpi_lock();
	while (!progress.ends) {
		if (!progress.under_way) {
			pthread_cond_wait(&progress.started, &progress.lock);
			continue;
		}
		mpi_unlock();
		nanosleep(&nap, NULL);
		mpi_lock();
		if (progress.under_way)
			mpi_progress(progress.world);
	}
	mpi_unlock();
	return NULL;
}

void mpi_progress_end(void)
{
	if (!progress.world)
		return;
	mpi_lock();
	progress.ends = true;
	pthread_cond_signal(&progress.started);
	mpi_unlock();
	pthread_join(progress.thread, NULL);
	progress.world = NULL;
}

void comm_progress_thread(struct comm *world)
{
	progress.world = world;
	if (pthread_create(&progress.thread, NULL, make_progress, NULL))
		progress.world = NULL;
}
