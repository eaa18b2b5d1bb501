/* Support of test programs that run on several ranks. */
#include "tests/support/ranks.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct comm *world;

int ranks_needed(const int degree[N_AXES])
{
	int n = 1;
	for (int a = 0; a < N_AXES; a++)
		n *= degree[a];
	return n;
}

/* ---- tests ----------------------------------------------------------------------- */

static char crash_text[256]; /* message for a crash in the current test */

static void on_crash(int sig)
{
	ssize_t n = write(STDERR_FILENO, crash_text, strlen(crash_text));
	(void)n;
	signal(sig, SIG_DFL);
	raise(sig);
}

static const char *running; /* name of the test that has begun and not ended */

/* Ends all ranks if the last test failed on this rank, and perhaps on no other: a rank that
 * continued alone would wait forever. cmocka has written file and line to stdout. */
static void end_if_failed(void)
{
	char line[1024];
	if (!running)
		return;
	fflush(stdout);
	if (world->rank)
		rewind(stdout);
	while (world->rank && fgets(line, sizeof(line), stdout))
		if (strstr(line, "not ok") || strchr(line, '#'))
			fprintf(stderr, "rank %d: %s", world->rank, line);
	die(EX_FAILED, "%s failed on this rank", running);
}

/* cmocka catches signals of crashes and continues with the next test on this rank alone, while
 * the other ranks wait until the watchdog ends them. So within a test another handler ends the
 * program, and with it all ranks. */
static void guarded(void **state)
{
	static const int crashes[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGSYS, SIGABRT};
	const struct CMUnitTest *test = *state;
	void *none = NULL;
	end_if_failed();
	running = test->name;
	snprintf(crash_text, sizeof(crash_text), "not ok %s: rank %d crashed\n",
		test->name, world->rank);
	for (size_t i = 0; i < ARRAY_LEN(crashes); i++)
		signal(crashes[i], on_crash);
	test->test_func(&none);
	signal(SIGABRT, SIG_DFL); /* cmocka resets the other signals */
	running = NULL;
}

void ranks_skip(void)
{
	running = NULL;
	skip();
}

int ranks_run_some(const struct CMUnitTest *tests, size_t n)
{
	struct CMUnitTest *all = xcalloc(n, sizeof(*all));
	for (size_t i = 0; i < n; i++)
		all[i] = (struct CMUnitTest){.name = tests[i].name,
			.test_func = guarded,
			.initial_state = (void *)(uintptr_t)&tests[i]};
	int rc = _cmocka_run_group_tests("tests", all, n, NULL, NULL);
	end_if_failed();
	free(all);
	return rc;
}

int ranks_run(void)
{
	size_t n;
	const struct CMUnitTest *tests = tests_all(&n);
	return ranks_run_some(tests, n);
}

/* Only rank 0 writes to stdout; the other ranks keep their output for end_if_failed(). */
static void keep_output(void)
{
	const char *path = test_path("stdout");
	if (!freopen(path, "w+", stdout))
		die(EX_IOERR, "%s cannot be opened", path);
	unlink(path);
}

void ranks_open(void)
{
	world = comm_open();
	log_set_rank(world->rank, world->size, false);
	if (world->rank)
		keep_output();
}

int ranks_close(int rc)
{
	comm_barrier(world);
	comm_close(world);
	return rc;
}

void assert_on_all_at(bool good, const char *what, const char *file, int line)
{
	if (comm_min_i64(world, good ? world->size : world->rank) == world->size)
		return;
	if (!good)
		fprintf(stderr, "# rank %d: not %s\n", world->rank, what);
	running = NULL; /* all ranks fail, and all continue */
	_fail(file, line);
}

/* ---- data ------------------------------------------------------------------------ */

const char *ranks_shard(int64_t n_chars)
{
	struct str path = {0};
	if (world->rank == 0)
		str_puts(&path, test_shard(n_chars));
	comm_bcast_str(world, &path, 0);
	return path.s;
}
