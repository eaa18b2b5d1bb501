/* A thread pool that replaces libgomp: the few functions that GCC calls for
 * `#pragma omp parallel for` (libgomp's manual, "The libgomp ABI").
 *
 * libgomp's threads spin for milliseconds when they wait, which only environment variables
 * at program start can change. On a machine with other load, a step then waits for threads that
 * are not scheduled: 12 times slower with one busy process on two cores. The threads of this
 * pool spin for some microseconds and then sleep.
 *
 * One thread at a time starts parallel regions. A region within another has one thread. */
#include "kernels/cpu/cpu.h"

#include <linux/futex.h>
#include <omp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { MAX_THREADS = 1024, MIN_SPINS = 200, MAX_SPINS = 4000 };
enum { LOOP_NEW, LOOP_INIT, LOOP_READY };

struct worker {
	_Alignas(64) atomic_uint region; /* index of the last region to run */
	atomic_uint asleep;
	int id;
	pthread_t thread;
};

static struct {
	struct worker *workers; /* [0] is not used: the caller is thread 0 */
	int n_started;		/* workers 1 .. n_started run */
	int threads;		/* per region without a num_threads clause */
	void (*fn)(void *);
	void *data;
	int team;			  /* threads in the region */
	_Alignas(64) atomic_uint running; /* workers that have not finished the region */
	_Alignas(64) atomic_uint loop;	  /* state of the region's loop: LOOP_... */
	atomic_long next;
	long end, chunk;
} pool = {.threads = 1};

static _Thread_local int thread_id, team_size = 1, depth; /* depth: of nested regions */

static inline void pause_briefly(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#endif
}

static void futex(atomic_uint *word, int op, unsigned value)
{
	syscall(SYS_futex, word, op | FUTEX_PRIVATE_FLAG, value, NULL, NULL, 0);
}

/* Iterations to spin before sleeping: more after spins that succeeded, fewer after spins that
 * timed out (the awaited thread's processor has other work). */
static _Thread_local int spins = MAX_SPINS;

/* Raises this thread's number of spins after a success, and lowers it after a timeout. */
static void adapt_spins(bool success)
{
	spins += success ? spins / 8 : -spins / 4;
	spins = spins < MIN_SPINS ? MIN_SPINS : spins > MAX_SPINS ? MAX_SPINS : spins;
}

/* Blocks until *word differs from `old`; returns it. *asleep: the writer must wake this thread. */
static unsigned wait_change(atomic_uint *word, unsigned old, atomic_uint *asleep)
{
	for (int i = 0; i < spins; i++) {
		unsigned now = atomic_load_explicit(word, memory_order_acquire);
		if (now != old) {
			adapt_spins(true);
			return now;
		}
		pause_briefly();
	}
	adapt_spins(false);
	atomic_store(asleep, 1);
	unsigned now;
	while ((now = atomic_load(word)) == old)
		futex(word, FUTEX_WAIT, old);
	atomic_store(asleep, 0);
	return now;
}

/* Runs regions forever: waits for the next one, runs it, and wakes the caller if it ends last. */
static void *run_worker(void *worker)
{
	struct worker *w = worker;
	thread_id = w->id;
	depth = 1;
	unsigned last_region = 0;
	for (;;) {
		last_region = wait_change(&w->region, last_region, &w->asleep);
		team_size = pool.team;
		pool.fn(pool.data);
		if (atomic_fetch_sub_explicit(&pool.running, 1, memory_order_acq_rel) ==
			1)
			futex(&pool.running, FUTEX_WAKE, 1);
	}
	return NULL;
}

/* Creates the threads of workers 1 .. n that do not run yet. Returns how many of the n run: fewer
 * if a thread cannot be created. */
static int start_workers(int n)
{
	if (!pool.workers)
		pool.workers = aligned_alloc(64, MAX_THREADS * sizeof(*pool.workers));
	if (!pool.workers)
		return 0;
	while (pool.n_started < n) {
		struct worker *w = &pool.workers[pool.n_started + 1];
		*w = (struct worker){.id = pool.n_started + 1};
		if (pthread_create(&w->thread, NULL, run_worker, w))
			break;
		pthread_detach(w->thread);
		pool.n_started++;
	}
	return pool.n_started < n ? pool.n_started : n;
}

/* Starts the region of the pool in workers 1 .. n, and wakes the workers that sleep. */
static void start_region(int n)
{
	atomic_store_explicit(&pool.running, (unsigned)n, memory_order_relaxed);
	for (int i = 1; i <= n; i++) {
		struct worker *w = &pool.workers[i];
		atomic_fetch_add(&w->region, 1);
		if (atomic_load(&w->asleep))
			futex(&w->region, FUTEX_WAKE, 1);
	}
}

/* Blocks until all workers have finished the region. */
static void wait_for_workers(void)
{
	unsigned left;
	for (int i = 0; i < spins; i++) {
		if (!atomic_load_explicit(&pool.running, memory_order_acquire)) {
			adapt_spins(true);
			return;
		}
		pause_briefly();
	}
	adapt_spins(false);
	while ((left = atomic_load(&pool.running)))
		futex(&pool.running, FUTEX_WAIT, left);
}

/* ---- the libgomp ABI ------------------------------------------------------------- */

void GOMP_parallel(void (*fn)(void *), void *data, unsigned num_threads, unsigned flags);
_Bool GOMP_loop_nonmonotonic_dynamic_start(
	long start, long end, long step, long chunk, long *from, long *to);
_Bool GOMP_loop_nonmonotonic_dynamic_next(long *start, long *end);
void GOMP_loop_end_nowait(void);

/* Runs a region in this thread alone, as thread 0 of a team of one. */
static void run_serially(void (*fn)(void *), void *data)
{
	int outer = team_size, id = thread_id;
	team_size = 1;
	thread_id = 0;
	fn(data);
	team_size = outer;
	thread_id = id;
}

/* Runs fn(data) in all threads of a team (0: pool.threads), and waits; nested: in one thread. */
void GOMP_parallel(void (*fn)(void *), void *data, unsigned num_threads, unsigned flags)
{
	int team = num_threads ? (int)num_threads : pool.threads;
	if (depth++) {
		run_serially(fn, data);
		depth--;
		return;
	}
	int workers = team > 1 ? start_workers(team - 1) : 0;
	atomic_store(&pool.loop, LOOP_NEW);
	if (!workers) {
		run_serially(fn, data);
	} else {
		pool.fn = fn;
		pool.data = data;
		pool.team = team_size = workers + 1;
		start_region(workers);
		fn(data);
		wait_for_workers();
		team_size = 1;
	}
	depth--;
}

/* Starts the loop of a region, which the first thread to arrive initializes. A nested region has
 * one thread, which gets the whole loop. */
_Bool GOMP_loop_nonmonotonic_dynamic_start(
	long start, long end, long step, long chunk, long *from, long *to)
{
	unsigned state = LOOP_NEW;
	if (depth > 1) {
		*from = start;
		*to = end;
		return start < end;
	}
	if (atomic_compare_exchange_strong(&pool.loop, &state, LOOP_INIT)) {
		atomic_store_explicit(&pool.next, start, memory_order_relaxed);
		pool.end = end;
		pool.chunk = chunk * step;
		atomic_store_explicit(&pool.loop, LOOP_READY, memory_order_release);
	}
	while (atomic_load_explicit(&pool.loop, memory_order_acquire) != LOOP_READY)
		pause_briefly();
	return GOMP_loop_nonmonotonic_dynamic_next(from, to);
}

/* Gets the next chunk [*start, *end) of the region's loop; false: no iterations are left. */
_Bool GOMP_loop_nonmonotonic_dynamic_next(long *start, long *end)
{
	if (depth > 1)
		return false;
	long at = atomic_fetch_add_explicit(&pool.next, pool.chunk, memory_order_relaxed);
	if (at >= pool.end)
		return false;
	*start = at;
	*end = at + pool.chunk < pool.end ? at + pool.chunk : pool.end;
	return true;
}

void GOMP_loop_end_nowait(void)
{
}

int omp_get_thread_num(void)
{
	return thread_id;
}

int omp_get_num_threads(void)
{
	return team_size;
}

int omp_get_max_threads(void)
{
	return pool.threads;
}

void omp_set_num_threads(int n)
{
	pool.threads = n < 1 ? 1 : n > MAX_THREADS - 1 ? MAX_THREADS - 1 : n;
}
