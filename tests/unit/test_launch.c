/* base/launch: a rank ends with its launcher, in order if it can, and what MPI has left in shared memory is removed.
 * comm/start: ranks give way to each other where MPI itself would not. */
#include "base/launch.h"
#include "base/file.h"
#include "comm/comm_internal.h"
#include "kernels/device.h"
#include "tests/support/support.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* In a child process: the signal that it gets when its parent ends, or its exit code as -code. */
static int bound(void)
{
	int status, sig = 0;
	pid_t pid = fork();
	if (!pid) {
		freopen("/dev/null", "w", stderr);
		launch_watch();
		prctl(PR_GET_PDEATHSIG, &sig);
		_exit(100 + sig);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	return WEXITSTATUS(status) >= 100 ? WEXITSTATUS(status) - 100
					  : -WEXITSTATUS(status);
}

/* What becomes of a rank whose launcher ends, or only a thread of it: its exit code, or -1 if a signal
 * ended it. The launcher is a child process, so that it can end. */
enum end { PROCESS_ENDS, THREAD_ENDS };

static void on_stop(int sig)
{
	_exit(200 + sig);
}

static _Noreturn void rank(enum end what, bool stops, int hear, int tell)
{
	char byte;
	int sig = 0;
	launch_watch();
	signal(SIGTERM, on_stop);
	launch_end_by_sigterm(stops);
	prctl(PR_GET_PDEATHSIG, &sig);
	if (what == THREAD_ENDS)
		raise(sig);
	close(tell); /* the launcher ends now, if it does */
	while (what == PROCESS_ENDS && read(hear, &byte, 1) != 2)
		pause();
	_exit(100);
}

/* As the first process of what it starts: children whose parent has ended become its own. */
static int end_of(enum end what, bool stops)
{
	int status, ready[2], never[2];
	char byte;
	assert_int_equal(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
	assert_int_equal(pipe(ready) | pipe(never), 0);
	pid_t launcher = fork();
	if (!launcher) {
		pid_t pid = fork();
		if (!pid) {
			close(ready[0]), close(never[1]);
			rank(what, stops, never[0], ready[1]);
		}
		close(ready[1]);
		_exit(read(ready[0], &byte, 1) ||
			(what == THREAD_ENDS && waitpid(pid, &status, 0) == pid &&
				WEXITSTATUS(status) != 100));
	}
	close(ready[0]), close(ready[1]);
	assert_int_equal(waitpid(launcher, &status, 0), launcher);
	assert_int_equal(status, 0);
	pid_t left = waitpid(-1, &status, 0);
	close(never[0]), close(never[1]);
	return left < 0 ? 100 : WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(a_rank_at_work_stops_in_order)
{
	setenv("PMIX_RANK", "0", 1);
	assert_int_equal(end_of(PROCESS_ENDS, false), EX_FAILED);
	assert_int_equal(end_of(PROCESS_ENDS, true), 200 + SIGTERM);
	/* the same process is still its parent */
	assert_int_equal(end_of(THREAD_ENDS, false), 100);
	assert_int_equal(end_of(THREAD_ENDS, true), 100);
	unsetenv("PMIX_RANK");
}

TEST(a_rank_ends_with_its_launcher)
{
	int ends[2];
	char number[16];
	unsetenv("PMI_FD");
	unsetenv("PMI_PORT");
	unsetenv("PMIX_RANK");
	assert_int_equal(bound(), 0); /* nobody has launched it */
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
	snprintf(number, sizeof(number), "%d", ends[0]);
	setenv("PMI_FD", number, 1);
	assert_true(bound() > SIGRTMIN);
	close(ends[1]); /* the launcher was gone before */
	assert_int_equal(bound(), -EX_FAILED);
	close(ends[0]);
	unsetenv("PMI_FD");
	setenv("PMIX_RANK", "0", 1);
	assert_true(bound() > SIGRTMIN);
	unsetenv("PMIX_RANK");
}

/* A file of one user that was written so many seconds ago. */
static char *leftover(const char *name, int64_t age)
{
	const struct timespec then[2] = {{.tv_sec = (time_t)clock_wall() - age},
		{.tv_sec = (time_t)clock_wall() - age}};
	char *path = xstrdup(test_file(name, "some"));
	assert_int_equal(utimensat(AT_FDCWD, path, then, 0), 0);
	assert_int_equal(chmod(path, 0600), 0);
	return path;
}

/* Of the files whose names begin so. */
static void check_leftovers(const char *folder, const char *begin)
{
	static const char *const ends[] = {"old", "new", "mapped", "open", "public"};
	enum { OLD, NEW, MAPPED, OPEN, PUBLIC, N };
	char *path[N], name[64];
	for (int i = 0; i < N; i++) {
		snprintf(name, sizeof(name), "%s%s", begin, ends[i]);
		path[i] = leftover(name, i == NEW ? 10 : 100);
	}
	assert_int_equal(chmod(path[PUBLIC], 0644), 0);
	int fd = open(path[MAPPED], O_RDONLY);
	void *p = mmap(NULL, 4, PROT_READ, MAP_SHARED, fd, 0);
	assert_true(p != MAP_FAILED);
	close(fd);
	fd = open(path[OPEN], O_RDONLY);
	launch_remove_leftovers(folder);
	for (int i = 0; i < N; i++)
		assert_int_equal(file_exists(path[i]), i != OLD);
	munmap(p, 4);
	close(fd);
	launch_remove_leftovers(folder);
	for (int i = 0; i < N; i++) {
		assert_int_equal(file_exists(path[i]), i == NEW || i == PUBLIC);
		free(path[i]);
	}
}

/* (In a container that shares the host's memory, and does not see its processes, nothing is.) */
TEST(what_mpi_left_is_removed)
{
	char pid[32] = "", ipc[32] = "";
	if (readlink("/proc/self/ns/pid", pid, 31) < 0 ||
		readlink("/proc/self/ns/ipc", ipc, 31) < 0 ||
		(strcmp(pid, "pid:[4026531836]") && !strcmp(ipc, "ipc:[4026531839]")))
		skip();
	char *other = leftover("another_tmpabcdef", 100);
	char *foreign = leftover("ucx_shm_posix_stuv", 100);
	bool made = !chown(foreign, 12345, 12345); /* as root only */
	char *folder = xstrdup(test_path(""));
	folder[strlen(folder) - 1] = '\0';
	check_leftovers(folder, "mpich_shar_tmp");
	check_leftovers(folder, "ucx_shm_posix_");
	assert_true(file_exists(other));
	assert_true(!made || file_exists(foreign));
	launch_remove_leftovers(test_path("no-such-folder"));
	free(other), free(foreign), free(folder);
}

static void launched(int here, int all)
{
	char number[16];
	snprintf(number, sizeof(number), "%d", here);
	setenv("MPI_LOCALNRANKS", number, true);
	snprintf(number, sizeof(number), "%d", all);
	setenv("PMI_SIZE", number, true);
}

static void launched_no_more(void)
{
	unsetenv("MPI_LOCALNRANKS");
	unsetenv("PMI_SIZE");
}

static bool is_asked_to_pause(void)
{
	struct sigaction now;
	sigaction(SIGVTALRM, NULL, &now);
	return now.sa_handler != SIG_DFL;
}

/* Does a loop that never gives its processor away lose it of its own accord? It ends as soon as it does, or
 * after this long on a processor. */
static bool pauses(double seconds)
{
	struct rusage before, now;
	getrusage(RUSAGE_THREAD, &before);
	do {
		getrusage(RUSAGE_THREAD, &now);
	} while (now.ru_nvcsw == before.ru_nvcsw &&
		 now.ru_utime.tv_sec + now.ru_stime.tv_sec - before.ru_utime.tv_sec -
				 before.ru_stime.tv_sec <
			 seconds);
	return now.ru_nvcsw > before.ru_nvcsw;
}

TEST(more_ranks_than_processors_give_way)
{
	int n = cpu_count();
	unsetenv("PT_CROWDED");
	launched(n + 1, n + 1);
	for (int i = 0; i < 2; i++) {
		mpi_yield_begin();
		assert_true(pauses(20));
		mpi_yield_end();
		assert_false(is_asked_to_pause());
	}
	/* each has a processor */
	launched(n, n);
	mpi_yield_begin();
	assert_false(is_asked_to_pause());
	mpi_yield_end();
	/* which is told to be used by others */
	setenv("PT_CROWDED", "yes", true);
	mpi_yield_begin();
	assert_true(pauses(20));
	mpi_yield_end();
	/* on several hosts MPI may wait in calls that a signal would end */
	launched(n + 1, n + 2);
	mpi_yield_begin();
	assert_false(is_asked_to_pause());
	mpi_yield_end();
	unsetenv("PT_CROWDED");
	launched_no_more();
}

TEST(mpi_looks_for_no_devices_on_one_host)
{
	unsetenv("HWLOC_COMPONENTS");
	mpi_skip_device_search(); /* of one process nobody asks */
	assert_null(getenv("HWLOC_COMPONENTS"));
	launched(2, 4);
	mpi_skip_device_search();
	assert_null(getenv("HWLOC_COMPONENTS"));
	launched(4, 4);
	mpi_skip_device_search();
	assert_non_null(strstr(getenv("HWLOC_COMPONENTS"), "-linux:pci"));
	setenv("HWLOC_COMPONENTS", "x86", true);
	mpi_skip_device_search();
	assert_string_equal(getenv("HWLOC_COMPONENTS"), "x86");
	unsetenv("HWLOC_COMPONENTS");
	launched_no_more();
}
