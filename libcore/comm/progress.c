/* The progress thread. MPICH makes progress only inside its calls: between hosts, a message of many
 * segments stalls until the next call. So while requests are in flight, a thread calls MPI
 * periodically, and communication overlaps with computation.
 *
 * With the thread, each MPI call holds a lock (MPI_THREAD_SERIALIZED). Ranks on one host need
 * no such thread: there the receiver copies, which costs the same at any time. */
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
	int64_t n_in_flight; /* request handles in flight */
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

void mpi_count_handles(int change)
{
	if (!progress.n_in_flight && change)
		pthread_cond_signal(&progress.started);
	progress.n_in_flight += change;
}

/* Runs in the progress thread: calls MPI at intervals while requests are in flight, else sleeps. */
static void *make_progress(void *unused)
{
	const struct timespec interval = {.tv_nsec = INTERVAL_NS};
	(void)unused;
	mpi_lock();
	while (!progress.ends) {
		if (!progress.n_in_flight) {
			pthread_cond_wait(&progress.started, &progress.lock);
			continue;
		}
		mpi_unlock();
		nanosleep(&interval, NULL);
		mpi_lock();
		if (progress.n_in_flight)
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
