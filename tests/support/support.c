/* Support of all tests. */
#include "tests/support/support.h"

#include "prepare/prepare.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static struct CMUnitTest *tests;
static size_t n_tests;

void test_add(const char *name, CMUnitTestFunction run, CMFixtureFunction setup)
{
	tests = xrealloc(tests, (n_tests + 1) * sizeof(*tests));
	tests[n_tests++] = (struct CMUnitTest){name, run, setup, NULL, NULL};
}

const struct CMUnitTest *tests_all(size_t *n)
{
	*n = n_tests;
	return tests;
}

int tests_run(void)
{
	int failed = _cmocka_run_group_tests("tests", tests, n_tests, NULL, NULL);
	free(tests);
	return failed;
}

static char folder[4096];

static void remove_folder(void)
{
	pid_t pid = fork();
	if (pid == 0) {
		execlp("rm", "rm", "-rf", folder, (char *)NULL);
		_exit(127);
	}
	waitpid(pid, NULL, 0);
}

const char *test_folder(void)
{
	const char *tmp = getenv("TMPDIR");
	if (!*folder) {
		snprintf(folder, sizeof(folder), "%s/pt-test-XXXXXX",
			tmp && *tmp ? tmp : "/tmp");
		if (!mkdtemp(folder))
			die(EX_IOERR, "%s cannot be made", folder);
		atexit(remove_folder);
	}
	return folder;
}

const char *test_path(const char *name)
{
	struct str path = {0};
	str_printf(&path, "%s/%s", test_folder(), name);
	return path.s;
}

const char *test_file(const char *name, const char *text)
{
	const char *path = test_path(name);
	FILE *f = fopen(path, "w");
	if (!f || fputs(text, f) < 0 || fclose(f))
		die(EX_IOERR, "%s cannot be written", path);
	return path;
}

const char *test_shard_of(const char *text)
{
	struct strs inputs = {0};
	struct prepared made;
	struct err e = {0};
	const char *path = test_path("shard.h5");
	struct prepare p = {.tokenizer = {.name = "char"},
		.separator = "\n",
		.val_fraction = 0.1,
		.out = path};
	strs_add(&inputs, text);
	if (prepare_run(&p, &inputs, &made, &e))
		die_err(&e);
	strs_free(&inputs);
	return path;
}

const char *test_shard(int64_t n_chars)
{
	struct str text = {0};
	for (int64_t i = 0; i < n_chars; i++)
		str_putc(&text, "etaoin shrdlu\n"[(int)(14 * test_uniform(1, i / 3))]);
	const char *path = test_shard_of(test_file("text", text.s));
	str_free(&text);
	return path;
}

double test_uniform(uint64_t seed, int64_t i)
{
	return (double)(hash_mix(hash_mix(seed) + (uint64_t)i * 0x9e3779b97f4a7c15u) >>
			11) *
	       0x1p-53;
}

double test_normal(uint64_t seed, int64_t i)
{
	const double two_pi = 6.283185307179586;
	double u = 1 - test_uniform(seed, 2 * i), v = test_uniform(seed, 2 * i + 1);
	return sqrt(-2 * log(u)) * cos(two_pi * v);
}

void test_fill(float *x, int64_t n, uint64_t seed, double scale)
{
	for (int64_t i = 0; i < n; i++)
		x[i] = (float)(scale * test_normal(seed, i));
}

static int ascending(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

double test_median(double *x, int n)
{
	qsort(x, (size_t)n, sizeof(*x), ascending);
	return x[n / 2];
}

double test_distance(const float *x, const double *y, int64_t n)
{
	double diff = 0, size = 0;
	for (int64_t i = 0; i < n; i++) {
		diff += ((double)x[i] - y[i]) * ((double)x[i] - y[i]);
		size += y[i] * y[i];
	}
	return size > 0 ? sqrt(diff / size) : sqrt(diff);
}

void assert_near_at(double x, double y, double tolerance, const char *what,
	const char *file, int line)
{
	if (fabs(x - y) <= tolerance)
		return;
	print_error("%s is %.17g, not %.17g (within %g)\n", what, x, y, tolerance);
	_fail(file, line);
}
