/* The thread pool behind `#pragma omp parallel for`, kernels/cpu/threads.c. */
#include "tests/support/support.h"

#include <omp.h>
#include <string.h>

enum { N = 1000 };

static int visits[N];

static void check_visits(void)
{
	for (int i = 0; i < N; i++)
		assert_int_equal(visits[i], 1);
}

TEST(each_once)
{
	for (int threads = 1; threads <= 4; threads++) {
		int64_t n = N, inside = 0;
		memset(visits, 0, sizeof(visits));
		omp_set_num_threads(threads);
#pragma omp parallel for schedule(dynamic) reduction(+ : inside)
		for (int64_t i = 0; i < n; i++) {
			visits[i]++;
			inside += omp_get_thread_num() < omp_get_num_threads() &&
				  omp_get_num_threads() <= threads;
		}
		check_visits();
		assert_int_equal(inside, N);
	}
}

/* The sum of 0 to 2 n - 1, by two regions; wrong if more than one thread is in one of them. */
static int64_t sum_by_regions(int64_t n)
{
	int64_t even = 0, odd = 0;
#pragma omp parallel for reduction(+ : even)
	for (int64_t j = 0; j < n; j++)
		even += omp_get_num_threads() == 1 && !omp_get_thread_num() ? 2 * j : 0;
#pragma omp parallel for schedule(dynamic) reduction(+ : odd)
	for (int64_t j = 0; j < n; j++)
		odd += omp_get_num_threads() == 1 && !omp_get_thread_num() ? 2 * j + 1
									   : 0;
	return even + odd;
}

/* A region within another: all of its work is done by the thread that comes to it, and the loop outside
 * goes on as if it had not been there. */
TEST(within_another)
{
	for (int threads = 1; threads <= 4; threads++) {
		int64_t n = N, right = 0;
		memset(visits, 0, sizeof(visits));
		omp_set_num_threads(threads);
#pragma omp parallel for schedule(dynamic) reduction(+ : right)
		for (int64_t i = 0; i < n; i++) {
			int me = omp_get_thread_num();
			visits[i]++;
			right += sum_by_regions(i) == i * (2 * i - 1) &&
				 omp_get_thread_num() == me;
		}
		check_visits();
		assert_int_equal(right, N);
	}
}
