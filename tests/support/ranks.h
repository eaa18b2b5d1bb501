/* Shared by test programs that run on several ranks: the world, collective assertions, a
 * shard. A failed assert_on_all() fails the test on all ranks, which continue with the next
 * test; another failed assertion ends all ranks, so that none waits for the others. */
#pragma once

#include "comm/mesh.h"
#include "comm/requests.h"
#include "tests/support/support.h"

extern struct comm *world;

/* main() is: ranks_open(); return ranks_close(ranks_run()); */
void ranks_open(void);
/* A crash or failed assertion of one rank prints the test and the rank, and ends all ranks. */
int ranks_run(void); /* the tests of the program */
int ranks_run_some(const struct CMUnitTest *tests, size_t n);
int ranks_close(int rc);
/* Skips the test, on all ranks. */
void ranks_skip(void);

/* The ranks of a layout with these degrees. */
int ranks_needed(const int degree[N_AXES]);

/* Collective: fails on all ranks, and names the ranks, unless `cond` is true on every rank. */
#define assert_on_all(cond) assert_on_all_at(cond, #cond, __FILE__, __LINE__)
void assert_on_all_at(bool good, const char *what, const char *file, int line);

/* Collective. test_shard() of rank 0. */
const char *ranks_shard(int64_t n_chars);
