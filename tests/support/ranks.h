/*
 * Shared by the programs that run on several ranks: the world, tests that end together, a
 * shard. A test fails on all ranks or on none, so that none waits.
 */
#ifndef TESTS_RANKS_H
#define TESTS_RANKS_H

#include "comm/mesh.h"
#include "comm/requests.h"
#include "tests/support/support.h"

extern struct comm *world;

/* A main is these three: return ranks_close(ranks_run(tests)); */
void ranks_open(void);
/* A rank that crashes in a test ends all, with the test's name. */
#define ranks_run(tests) ranks_run_some(tests, ARRAY_LEN(tests))
int ranks_run_some(const struct CMUnitTest *tests, size_t n);
int ranks_close(int rc);

/* By a layout of these degrees. */
int ranks_needed(const int degree[N_AXES]);

/* Collective: true on every rank, or else where it was not is said, and all fail. */
#define assert_on_all(cond) assert_on_all_at(cond, #cond, __FILE__, __LINE__)
void assert_on_all_at(bool good, const char *what, const char *file, int line);

/* Collective. The path of a shard of so many characters, in a folder of rank 0; the text
 * lasts until the program ends. */
const char *ranks_shard(int64_t n_chars);

#endif
