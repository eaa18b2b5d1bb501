/* base/launch: a rank ends with its launcher, and what MPI has left in shared memory is removed. */
#include "base/file.h"
#include "tests/support/support.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
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
		launch_bind();
		prctl(PR_GET_PDEATHSIG, &sig);
		_exit(100 + sig);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	return WEXITSTATUS(status) >= 100 ? WEXITSTATUS(status) - 100
					  : -WEXITSTATUS(status);
}

static void a_rank_ends_with_its_launcher(void **state)
{
	int ends[2];
	char number[16];
	(void)state;
	unsetenv("PMI_FD");
	unsetenv("PMI_PORT");
	unsetenv("PMIX_RANK");
	assert_int_equal(bound(), 0); /* nobody has launched it */
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
	snprintf(number, sizeof(number), "%d", ends[0]);
	setenv("PMI_FD", number, 1);
	assert_int_equal(bound(), SIGKILL);
	close(ends[1]); /* the launcher was gone before */
	assert_int_equal(bound(), -EX_FAILED);
	close(ends[0]);
	unsetenv("PMI_FD");
	setenv("PMIX_RANK", "0", 1);
	assert_int_equal(bound(), SIGKILL);
	unsetenv("PMIX_RANK");
}

static char *leftover(const char *name, int64_t age)
{
	const struct timespec then[2] = {{.tv_sec = (time_t)clock_wall() - age},
		{.tv_sec = (time_t)clock_wall() - age}};
	char *path = xstrdup(test_file(name, "some"));
	assert_int_equal(utimensat(AT_FDCWD, path, then, 0), 0);
	return path;
}

static void what_mpi_left_is_removed(void **state)
{
	(void)state;
	char *old = leftover("mpich_shar_tmpabcdef", 100);
	char *new = leftover("mpich_shar_tmpghijkl", 10);
	char *other = leftover("another_tmpabcdef", 100);
	char *used = leftover("mpich_shar_tmpmnopqr", 100);
	char *foreign = leftover("mpich_shar_tmpstuvwx", 100);
	int fd = open(used, O_RDONLY);
	void *p = mmap(NULL, 4, PROT_READ, MAP_SHARED, fd, 0);
	assert_true(p != MAP_FAILED);
	bool made = !chown(foreign, 12345, 12345); /* as root only */
	char *folder = xstrdup(test_path(""));
	folder[strlen(folder) - 1] = '\0';
	launch_clear(folder);
	assert_false(file_exists(old));
	assert_true(file_exists(new));
	assert_true(file_exists(other));
	assert_true(file_exists(used));
	assert_true(!made || file_exists(foreign));
	munmap(p, 4);
	close(fd);
	launch_clear(folder);
	assert_false(file_exists(used));
	launch_clear(test_path("no-such-folder"));
	free(old), free(new), free(other), free(used), free(foreign), free(folder);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_rank_ends_with_its_launcher),
		cmocka_unit_test(what_mpi_left_is_removed),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
