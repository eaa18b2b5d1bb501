/*
 * Matmuls for sm_90a (see matmul.h). One block per multiprocessor computes tiles of 128 x 256
 * results, one after the other. One thread enqueues TMA copies of both operands into a ring of
 * stages in shared memory. Two warpgroups multiply 64 rows of the tile each, with both operands
 * from the ring. Each warp computes the epilogue of its own rows and stores them through shared
 * memory, while copies for the next tile continue.
 *
 * With LAG, the second warpgroup starts two stages after the first. So only one of them stores at
 * a time, and meanwhile the other one uses the tensor cores alone.
 */
#pragma once

#include "kernels/cuda/matmul_epilogue.h"

/* ---- the producer thread ---------------------------------------------------------------- */

/* Enqueues the copies of a stage: columns [k, k + PANEL) of x, and of w or rows of w. */
template <typename S, typename E>
static __device__ inline void load_stage(const struct matmul_args &x,
	const struct matmul_buffers<S> &s, int stage, int k, struct matmul_place at)
{
	constexpr int PART = TILE_N / S::BLOCKS;
	int half = (int)blockIdx.x % S::BLOCKS * PART;
	/* the first row of w that the tile's group uses */
	int w_row = E::GROUPS ? at.block * x.block_rows : 0;
	uint64_t *full = &s.rest->full[stage];
	__nv_bfloat16 *a = s.x + stage * TILE_M * PANEL;
	__nv_bfloat16 *b = s.w + (stage * TILE_N + half) * PANEL;
	barrier_expect(full, S::STAGE * 2);
	tile_load(a, &x.x, full, k, 0, at.row, 0);
	if constexpr (E::SUMS)
		tile_load(a + GROUP_ROWS * PANEL, &x.x, full, k, 0,
			at.row + x.order.apart, 0);
	if constexpr (E::TRANSPOSED) {
#pragma unroll
		for (int i = 0; i < TILE_N / PANEL; i++)
			tile_load(b + i * PANEL * PANEL, &x.w, full, at.col + i * PANEL,
				0, w_row + k, 0);
	} else if constexpr (S::PAIR) {
		tile_load_both(b, &x.w, full, k, 0, at.col + half, 0);
	} else {
		tile_load(b, &x.w, full, k, 0, w_row + at.col, 0);
	}
}

/* Runs the producer thread: enqueues copies of all stages of all of the block's tiles. */
template <typename S, typename E>
static __device__ inline void matmul_produce(
	const struct matmul_args &x, const struct matmul_buffers<S> &s)
{
	int use = 0;
	for_each_tile<S, E>(x, [&](struct matmul_place at) {
		for (int k = 0; k < x.steps; k++, use++) {
			struct ring_use t = ring_use_at<S::STAGES>(use);
			barrier_wait(&s.rest->free[t.place], t.parity ^ 1);
			load_stage<S, E>(x, s, t.place, k * PANEL, at);
		}
	});
}

/* ---- the consumer warpgroups ------------------------------------------------------------- */

/* Frees a stage that this warp has read; for a pair, in both blocks. */
template <typename S> static __device__ inline void stage_done(uint64_t *free)
{
	if constexpr (S::PAIR) {
		__syncwarp();
		if (lane_id() < S::BLOCKS)
			barrier_arrive_at(free, lane_id());
	} else {
		warp_arrive(free);
	}
}

/* Enqueues c += the matmul of a stage, or c = the matmul unless `add`. */
template <typename S, typename E>
static __device__ inline void add_stage(float (&c)[TILE_N / 8][4],
	const struct matmul_buffers<S> &s, int place, int w, bool add)
{
	constexpr int GROUP = 16 * PANEL * 2; /* bytes of 16 rows of a panel */
	const __nv_bfloat16 *stage = s.w + place * TILE_N * PANEL;
	const __nv_bfloat16 *mine = s.x + (place * TILE_M + w * GROUP_ROWS) * PANEL;
	uint64_t a = E::LEAVES ? rows_of(mine, 0) : columns_of(mine);
	uint64_t b =
		E::TRANSPOSED ? rows_of(stage, PANEL * PANEL * 2) : columns_of(stage);
	wgmma_fence();
#pragma unroll
	for (int k = 0; k < PANEL / 16; k++)
		if constexpr (E::LEAVES)
			wgmma_of_rows(c, further(a, k * GROUP), further(b, k * GROUP),
				add || k > 0);
		else
			wgmma<E::TRANSPOSED>(c, columns_further(a, 0, k),
				E::TRANSPOSED ? further(b, k * GROUP)
					      : columns_further(b, 0, k),
				add || k > 0, __nv_bfloat16());
	wgmma_commit();
}

/* Sets c to warpgroup w's rows of a tile, whose stages are `steps` uses of the ring from `first` on;
 * frees the stages. */
template <typename S, typename E>
static __device__ inline void multiply_tile(float (&c)[TILE_N / 8][4],
	const struct matmul_buffers<S> &s, int first, int steps, int w)
{
	bool lag = S::LAG && steps >= S::STAGES;
	if (lag && w == 1)
		turn_wait(LAG_TURN, CONSUMERS * WARPGROUP);
	wgmma_hold(c);
	for (int k = 0; k < steps; k++) {
		struct ring_use t = ring_use_at<S::STAGES>(first + k);
		if (S::OVER) {
			barrier_wait_meanwhile(&s.rest->full[t.place], t.parity);
			add_stage<S, E>(c, s, t.place, w, k > 0);
			wgmma_wait<1>();
			if (k > 0)
				stage_done<S>(&s.rest->free[ring_use_at<S::STAGES>(
					first + k - 1)
								    .place]);
		} else {
			barrier_wait(&s.rest->full[t.place], t.parity);
			add_stage<S, E>(c, s, t.place, w, k > 0);
			wgmma_wait<0>();
			wgmma_hold(c);
			stage_done<S>(&s.rest->free[t.place]);
		}
		if (lag && w == 0 && k == LAG_STAGES - 1)
			turn_give(LAG_TURN, CONSUMERS * WARPGROUP);
	}
	if (S::OVER) {
		wgmma_wait<0>();
		wgmma_hold(c);
		stage_done<S>(
			&s.rest->free[ring_use_at<S::STAGES>(first + steps - 1).place]);
	}
}

/* Runs consumer warpgroup w: computes its rows of all of the block's tiles, and stores them. */
template <typename S, typename E>
static __device__ inline void matmul_consume(
	const struct matmul_args &x, const struct matmul_buffers<S> &s, int w)
{
	int warp = __shfl_sync(ALL_LANES, (int)threadIdx.x / WARP - WARPGROUP / WARP, 0);
	int first = 0;
	float c[TILE_N / 8][4];
	struct matmul_epilogue<S, E> out(x, s, w, warp);
	for_each_tile<S, E>(x, [&](struct matmul_place at) {
		out.begin(at);
		multiply_tile<S, E>(c, s, first, x.steps, w);
		first += x.steps;
		out.finish(c, at);
	});
	if (S::BY_TMA && lane_id() == 0)
		stores_wait<0>();
}

/* Computes a matmul and its epilogue, by a producer and two consumer warpgroups per block. */
template <typename S, typename E>
static __global__ void __launch_bounds__(HOPPER_THREADS, 1)
	hopper_matmul(const __grid_constant__ struct matmul_args x)
{
	static_assert(!S::PAIR || !(E::TRANSPOSED || E::SUMS), "pairs are not for these");
	if constexpr (HOPPER) {
		SHARED(shared);
		const struct matmul_buffers<S> s(shared);
		int w = warpgroup_id();
		if (threadIdx.x == 0) {
			for (int i = 0; i < S::STAGES; i++) {
				barrier_make(&s.rest->full[i], 1);
				barrier_make(&s.rest->free[i], TILE_WARPS * S::BLOCKS);
			}
			publish_barriers();
		}
		if constexpr (S::PAIR)
			cluster_sync();
		else
			__syncthreads();
		if (w == 0) {
			registers_fewer<S::FEW_REGISTERS>();
			if (threadIdx.x == 0)
				matmul_produce<S, E>(x, s);
		} else {
			registers_more<S::MANY_REGISTERS>();
			matmul_consume<S, E>(x, s, w - 1);
		}
		/* The other block still copies to this block's shared memory, or arrives there. */
		if constexpr (S::PAIR)
			cluster_sync();
	} else {
		__trap(); /* PTX of another architecture, compiled by the driver */
	}
}
