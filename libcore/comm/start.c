/* The start and the end of MPI when all ranks are on one host. MPICH waits nine times there and
 * never yields the processor: with more ranks than processors, each wait takes a time slice
 * from a rank that is waited for. It also makes hwloc read the registers of all PCI devices to
 * choose a network card, which takes milliseconds per device in a virtual machine. Both
 * together tripled the time of eight ranks on two processors. */
#include "comm/comm_internal.h"
#include "kernels/device.h"

#include <errno.h>
#include <signal.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#ifndef sigev_notify_thread_id
#define sigev_notify_thread_id _sigev_un._tid
#endif

/* Returns the number of ranks if all are on this host; 0: not all, or unknown. */
static int ranks_on_host(void)
{
	const char *local = getenv("MPI_LOCALNRANKS"), *total = getenv("PMI_SIZE");
	return local && total && atoi(local) == atoi(total) ? atoi(local) : 0;
}

/* Warns if shared memory is too small for MPI, whose own errors name neither cause nor remedy. */
void mpi_check_shared_memory(const char *dir)
{
	enum { BYTES_PER_RANK = 5 << 20 }; /* measured with 2 to 12 ranks */
	const char *count = getenv("MPI_LOCALNRANKS"), *rank = getenv("MPI_LOCALRANKID");
	struct statvfs s = {0};
	int64_t ranks = count ? atoi(count) : 1;
	if (ranks < 2 || (rank && atoi(rank)))
		return;
	bool missing = statvfs(dir, &s) != 0;
	double bytes = (double)s.f_bavail * (double)s.f_frsize;
	double needed = (double)(ranks * BYTES_PER_RANK);
	char have[NUM_TEXT], need[NUM_TEXT];
	if (missing || bytes < needed)
		warn("%s: %s free, but MPI needs about %s to start %lld ranks on this host; give "
		     "the container more with --shm-size",
			dir, missing ? "nothing" : text_bytes(have, bytes),
			text_bytes(need, needed), (long long)ranks);
}

void mpi_skip_device_search(void)
{
	if (ranks_on_host())
		setenv("HWLOC_COMPONENTS", "-linux:pci,-linux:io", false);
}

/* ---- yielding the processor ------------------------------------------------------ */

/* A rank runs for at least TURN_NS between two pauses, so that it makes progress. */
enum { TURN_NS = 200000, PAUSE_NS = 200000, TICK_NS = 250000 };

static volatile int64_t turn_began;
static struct sigaction old_action;
static timer_t ticks;
static bool yields;

/* Returns the processor time of this thread. Uses the system call: a library that overrides
 * clock_gettime(), such as one that shifts time for a test, may not be safe in a signal handler. */
static int64_t processor_ns(void)
{
	struct timespec t;
	syscall(SYS_clock_gettime, CLOCK_THREAD_CPUTIME_ID, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

/* Handles the signal of the timer: pauses a rank that has run for TURN_NS. */
static void pause_if_due(int sig)
{
	const struct timespec pause = {.tv_nsec = PAUSE_NS};
	int saved = errno;
	(void)sig;
	if (processor_ns() - turn_began >= TURN_NS) {
		nanosleep(&pause, NULL);
		turn_began = processor_ns();
	}
	errno = saved;
}

static bool is_crowded(void)
{
	int n = ranks_on_host();
	return n > cpu_count() || (n && env_switch("PT_CROWDED") == 1);
}

void mpi_yield_begin(void)
{
	const struct sigaction act = {.sa_handler = pause_if_due, .sa_flags = SA_RESTART};
	const struct itimerspec period = {{0, TICK_NS}, {0, TICK_NS}};
	struct sigevent this_thread = {
		.sigev_notify = SIGEV_THREAD_ID, .sigev_signo = SIGVTALRM};
	this_thread.sigev_notify_thread_id = (pid_t)syscall(SYS_gettid);
	if (!is_crowded() || timer_create(CLOCK_MONOTONIC, &this_thread, &ticks))
		return;
	yields = true;
	turn_began = processor_ns();
	sigaction(SIGVTALRM, &act, &old_action);
	timer_settime(ticks, 0, &period, NULL);
}

void mpi_yield_end(void)
{
	if (!yields)
		return;
	yields = false;
	timer_delete(ticks);
	sigaction(SIGVTALRM, &old_action, NULL);
}
