/* Shared by all tests: the includes of cmocka, random numbers, a temporary directory. */
#pragma once

#include "base/base.h"

#include <setjmp.h>
#include <cmocka.h>

/* TEST(name) { ... } defines a test, and TEST_AFTER(setup, name) { ... } one before which int setup(void **)
 * runs. Tests run in the order of the file; a file without main() has the main() of test_main.c. */
#define TEST(name) TEST_AFTER(NULL, name)
#define TEST_AFTER(setup, name)                                        \
	static void name(void **state);                                \
	__attribute__((constructor)) static void test_add_##name(void) \
	{                                                              \
		test_add(#name, name, setup);                          \
	}                                                              \
	static void name(__attribute__((unused)) void **state)
void test_add(const char *name, CMUnitTestFunction run, CMFixtureFunction setup);
/* The tests of the program; runs them, and returns how many failed. */
const struct CMUnitTest *tests_all(size_t *n);
int tests_run(void);

/* A directory of this process, removed when it ends. */
const char *test_folder(void);
/* DIRECTORY/name; the text lasts until the program ends. */
const char *test_path(const char *name);
/* Writes a text file in that directory; returns its path. */
const char *test_file(const char *name, const char *text);

/* Writes a shard of the characters of a text file in that directory, or of a text of n_chars
 * characters; returns its path. */
const char *test_shard_of(const char *text);
const char *test_shard(int64_t n_chars);

/* Random numbers, a function of (seed, i). */
double test_uniform(uint64_t seed, int64_t i); /* in [0, 1) */
double test_normal(uint64_t seed, int64_t i);
void test_fill(float *x, int64_t n, uint64_t seed, double scale); /* normal */

/* Sorts x. */
double test_median(double *x, int n);

/* norm(x - y) / norm(y) */
double test_distance(const float *x, const double *y, int64_t n);

#define assert_near(x, y, tolerance) \
	assert_near_at(x, y, tolerance, #x, __FILE__, __LINE__)
void assert_near_at(double x, double y, double tolerance, const char *what,
	const char *file, int line);
