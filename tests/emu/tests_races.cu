/* Tests of the emulator: blocks that run at once, and the races between them that it finds. */
#include "kernels/cuda/hopper.h"
#include "tests/emu/tests.h"

#include <stdio.h>

enum take { TAKE, TAKE_PLAIN, RESET_EARLY, NO_FENCE, NO_SECOND_FENCE, SAME_RESULT };

/* Blocks that take items from a counter; the last block resets it, as attn_hopper.h does. */
static __global__ void __launch_bounds__(64, 1)
	items_kernel(int *out, int *by, struct attn_work *work, int n, enum take what)
{
	SHARED(shared);
	int *item = (int *)shared;
	for (;;) {
		if (threadIdx.x == 0 && what == TAKE_PLAIN)
			*item = (int)work->taken++;
		else if (threadIdx.x == 0)
			*item = (int)atomicAdd(&work->taken, 1u);
		__syncthreads();
		int mine = *item;
		if (mine >= n)
			break;
		if (threadIdx.x == 1) {
			out[what == SAME_RESULT ? 0 : mine] = mine;
			by[mine] = (int)blockIdx.x;
		}
		turn_wait(1, 64);
	}
	if (threadIdx.x)
		return;
	if (what != NO_FENCE)
		__threadfence();
	unsigned last = gridDim.x - (what == RESET_EARLY ? 2 : 1);
	if (atomicAdd(&work->ended, 1u) == last) {
		if (what != NO_SECOND_FENCE)
			__threadfence();
		work->taken = work->ended = 0;
	}
}

/* The second launch runs blocks at once, since the first used features of sm_90. */
template <enum take WHAT> static bool items(void)
{
	enum { N = 40, BLOCKS = 4 };
	struct attn_work work = {0, 0};
	int seen = 0, taken = 0, changes = 0;
	for (int launch = 0; launch < 2; launch++) {
		int out[N], by[N];
		memset(out, 0xff, sizeof(out));
		emu_launch(
			dim3(BLOCKS), dim3(64), 4,
			[&] { items_kernel(out, by, &work, N, WHAT); }, NULL,
			(const void *)items_kernel);
		for (int i = 0; i < N; i++) {
			EMU_EXPECT(WHAT == SAME_RESULT || out[i] == i);
			seen |= launch ? 1 << by[i] : 0;
			changes += launch && i && by[i] != by[i - 1];
		}
		EMU_EXPECT(work.taken == 0 && work.ended == 0);
		taken += launch;
	}
	EMU_EXPECT(seen == (1 << BLOCKS) - 1); /* each block took some */
	EMU_EXPECT(changes > BLOCKS);	       /* in turns */
	return taken == 1;
}

/* Neighboring bytes of a word, and sums by atomics, are no races. */
static __global__ void neighbors_kernel(uint8_t *out, int *sum)
{
	out[blockIdx.x] = (uint8_t)blockIdx.x;
	atomicAdd(sum, (int)blockIdx.x);
}

static bool neighbors(void)
{
	uint8_t out[50];
	int sum = 0;
	emu_launch(dim3(50), dim3(1), 0, [&] { neighbors_kernel(out, &sum); });
	for (int i = 0; i < 50; i++)
		EMU_EXPECT(out[i] == i);
	EMU_EXPECT(sum == 50 * 49 / 2);
	return true;
}

const struct emu_test emu_tests_races[] = {
	{"items_of_blocks_at_once", items<TAKE>, NULL},
	{"neighbors_in_a_word", neighbors, NULL},
	{"take_not_atomic", items<TAKE_PLAIN>, "a race with block"},
	{"reset_too_early", items<RESET_EARLY>, "a race with block"},
	{"no_fence_before_the_end", items<NO_FENCE>, "a race with block"},
	{"no_fence_before_the_reset", items<NO_SECOND_FENCE>, "a race with block"},
	{"same_result_of_two_blocks", items<SAME_RESULT>, "a race with block"},
	{NULL, NULL, NULL},
};
