/* Micro-batches by speed: the rule that deals them, and the indexes that follow from its table. */
#include "engine/shares.h"
#include "tests/support/support.h"

#include <math.h>

enum { MAX_UNITS = 200 };

/* Returns the assignment of n micro-batches to dp replicas of fsdp ranks. */
static struct microbatches assignment(int64_t n, int dp, int fsdp, int zero)
{
	const int degree[N_AXES] = {[AXIS_DP] = dp,
		[AXIS_FSDP] = fsdp,
		[AXIS_CP] = 1,
		[AXIS_TP] = 1,
		[AXIS_PP] = 1};
	return microbatches_assign(n, degree, zero, false);
}

/* Checks that units have at least one turn, at most the maximum, and all turns together. */
static void check_table(const struct microbatches *mb, const int64_t *begin)
{
	int64_t units = shares_units(mb);
	assert_int_equal(begin[0], 0);
	assert_int_equal(begin[units], shares_turns(mb));
	for (int64_t u = 0; u < units; u++)
		assert_in_range(begin[u + 1] - begin[u], 1, shares_max_turns(mb));
}

/* Times of a step, over the time without a slow unit, if one of R units is slower. N: micro-batches
 * per unit. Worked out by hand for the first row: 4 units with 4 micro-batches, one of which takes
 * twice as long, have 5, 5, 4 and 2. */
TEST(one_slow_unit)
{
	static const struct {
		int units;
		double slower;
		double span[4]; /* N 4, 8, 16, 32 */
	} rows[] = {{4, 2, {1.25, 1.25, 1.19, 1.16}}, {8, 2, {1.25, 1.13, 1.13, 1.09}},
		{125, 1.25, {1.25, 1.13, 1.06, 1.03}},
		{125, 1.1, {1.10, 1.10, 1.06, 1.03}}};
	for (size_t i = 0; i < ARRAY_LEN(rows); i++)
		for (int k = 0; k < 4; k++)
			for (int slow = 0; slow < rows[i].units; slow += 3) {
				int64_t n = 4 << k, time[MAX_UNITS], begin[MAX_UNITS + 1];
				struct microbatches mb = assignment(
					n * rows[i].units, rows[i].units, 1, 0);
				for (int u = 0; u < rows[i].units; u++)
					time[u] =
						u == slow
							? (int64_t)(1e6 * rows[i].slower)
							: 1000000;
				shares_by_speed(&mb, time, begin);
				check_table(&mb, begin);
				double span = (double)shares_span(&mb, time, begin) /
					      (1e6 * (double)n);
				assert_true(fabs(span - rows[i].span[k]) < 0.0051);
			}
}

/* No unit gets more than twice its even share, however slow all others are. */
TEST(bound)
{
	const int64_t time[] = {1, 1000000, 1000000};
	int64_t begin[4];
	struct microbatches mb = assignment(30, 3, 1, 0);
	assert_int_equal(shares_max_turns(&mb), 20);
	shares_by_speed(&mb, time, begin);
	check_table(&mb, begin);
	assert_int_equal(begin[1], 20);
	assert_int_equal(begin[2] - begin[1], 5);
	mb = assignment(4, 3, 1, 0); /* each other unit keeps one */
	assert_int_equal(shares_max_turns(&mb), 2);
}

/* With equal times nothing is better than even shares. */
TEST(equal_times)
{
	int64_t time[8], begin[9], even[9];
	for (int u = 0; u < 8; u++)
		time[u] = 12345;
	for (int64_t n = 8; n < 50; n++) {
		struct microbatches mb = assignment(n, 8, 1, 0);
		shares_by_speed(&mb, time, begin);
		shares_evenly(&mb, even);
		check_table(&mb, begin);
		check_table(&mb, even);
		assert_int_equal(
			shares_span(&mb, time, begin), shares_span(&mb, time, even));
	}
}

/* Each micro-batch is computed by one rank, and all ranks of a unit have the same turns. */
static void check_indexes(int64_t n, int dp, int fsdp, int zero, const int64_t *time)
{
	struct microbatches mb = assignment(n, dp, fsdp, zero);
	int64_t begin[MAX_UNITS + 1], all = 0;
	bool seen[100] = {false};
	shares_by_speed(&mb, time, begin);
	mb.begin = begin;
	for (int r = 0; r < mb.ranks; r++) {
		int64_t own = microbatches_own(&mb, r);
		int unit = r / mb.unit_ranks;
		assert_int_equal(own, begin[unit + 1] - begin[unit]);
		assert_int_equal(own, microbatches_count(&mb, r));
		for (int64_t i = 0; i < own; i++, all++) {
			int64_t micro = microbatches_index(&mb, r, i);
			assert_in_range(micro, 0, n - 1);
			assert_false(seen[micro]);
			assert_true(!i || micro - microbatches_index(&mb, r, i - 1) ==
						  mb.unit_ranks);
			seen[micro] = true;
		}
		assert_int_equal(microbatches_index(&mb, r, own), n);
	}
	assert_int_equal(all, n);
}

TEST(indexes)
{
	static const int64_t time[] = {3, 7, 4, 20, 5, 3};
	check_indexes(17, 4, 1, 0, time);
	check_indexes(40, 2, 3, 1, time); /* all of fsdp: six units */
	check_indexes(60, 4, 3, 3, time); /* four replicas of three ranks */
	check_indexes(60, 2, 5, 2, time);
	assert_int_equal(assignment(60, 4, 3, 3).unit_ranks, 3);
	assert_int_equal(assignment(60, 4, 3, 1).unit_ranks, 1);
}
