/* Law 1, for the assignment of micro-batches: 1 to 8 of one size, on every smaller or equal number
 * of ranks, and one or two threads, give equal bits of loss, gradient norm and parameters, step
 * by step. Other layouts are in ranks_layouts.c.
 * ranks: 8
 */
#include "tests/support/ranks.h"
#include "tests/support/traces.h"

#include <string.h>

enum { STEPS = 4, MAX_MICRO = 8 };

static const char *shard;

/* Collective over dp. Rank 0 of it gets the trace. */
static void train(struct comm *dp, const char *arch, int64_t n_micro, int threads,
	struct trace *out)
{
	struct str lines = {0};
	str_printf(&lines,
		"arch = %s\nlayers = 2\nheads = 4\ndim = 32\nbatch = %lld\nsteps = %d\n"
		"threads = %d\n%s",
		arch, (long long)n_micro * 2, STEPS, threads,
		strcmp(arch, "gpt2") ? "kv-heads = 2\nvirtual = tp=2,cp=2\nffn-dim = 48\n"
				     : "dropout = 0.1\n");
	struct train_opts o = trace_options(shard, lines.s);
	trace_run(dp, &o, out);
	str_free(&lines);
}

/* Collective. Trains with n_micro micro-batches on 1 to n_micro ranks, with one or two threads;
 * returns, on rank 0, how many runs differ from one rank with one thread. */
static int count_different(const char *arch, int n_micro)
{
	static struct trace control, test;
	int different = 0;
	for (int ranks = 1; ranks <= n_micro; ranks++) {
		struct comm *dp = comm_split(world, world->rank < ranks ? 0 : -1, "dp");
		int threads = 1 + (ranks + n_micro) % 2;
		if (dp && ranks == 1)
			train(dp, arch, n_micro, 1, &control);
		if (dp && (ranks > 1 || threads > 1)) {
			train(dp, arch, n_micro, threads, &test);
			if (world->rank == 0 && memcmp(&control, &test, sizeof(test))) {
				print_error("%s: %d micro-batches on %d ranks of %d "
					    "threads differ\n",
					arch, n_micro, ranks, threads);
				different++;
			}
		}
		if (dp)
			comm_free(dp);
		comm_barrier(world); /* where who waits takes no time; a split does */
	}
	return different;
}

static void equal_bits(const char *arch)
{
	for (int n = 1; n <= MAX_MICRO; n++)
		assert_on_all(count_different(arch, n) == 0);
}

TEST(gpt2_on_any_ranks)
{
	equal_bits("gpt2");
}

TEST(llama_on_any_ranks)
{
	equal_bits("llama");
}

/* The control must not be equal to everything: other arithmetic gives other bits. */
TEST(other_arithmetic_differs)
{
	struct trace a, b;
	struct comm *alone = comm_self("dp");
	train(alone, "gpt2", 2, 1, &a);
	train(alone, "gpt2", 4, 1, &b);
	assert_memory_not_equal(a.loss, b.loss, STEPS * sizeof(a.loss[0]));
	assert_true(a.hash[0] != a.hash[1]);
	assert_true(a.loss[STEPS - 1] < a.loss[0]);
}

int main(void)
{
	ranks_open();
	shard = ranks_shard(6000);
	return ranks_close(ranks_run());
}
