/*
 * Attention for sm_90 (FlashAttention-3: Shah et al. 2024): the matmuls of warpgroups, and one
 * thread of a fourth of the block that does nothing but ask for tiles, which come through a
 * ring of places in shared memory. It takes 16-bit numbers, heads of 64 and 128, no dropout,
 * and a chunk's queries with its own keys; the rest is for attn_fwd.cu and attn_bwd.cu.
 *
 * Rows of such a chunk are in the order of their positions, so that a query sees the keys up
 * to its own row. Tiles begin at multiples of their size, whatever the batch or the layout.
 */
#ifndef KERNELS_CUDA_ATTN_HOPPER_H
#define KERNELS_CUDA_ATTN_HOPPER_H

#include "kernels/cuda/attn_bwd.h"
#include "kernels/cuda/attn_fwd.h"
#include "kernels/cuda/hopper.h"

/* Whether the device has these kernels and they take the call: of operands that are not `whole`
 * no tile can be copied. It depends on the device, on types and shapes alone, since the addresses
 * that callers give are multiples of 16. */
bool attn_hopper_takes(struct device *d, const struct attn *a, enum dtype type,
	struct heads q, struct heads k, struct heads v);
void attn_hopper_fwd(struct device *d, const struct attn *a, enum dtype type,
	const struct fwd_args &x);
/* The gradients, when delta is there. */
void attn_hopper_bwd(struct device *d, const struct attn *a, enum dtype type,
	const struct bwd_args &x);

struct attn_work *attn_work(struct device *d);
/* As many blocks as stay on the device, one a multiprocessor; PT_LAB_OFF=attention: one an item. */
dim3 grid_of(struct device *d, const struct order &o);

/* Boxes of `rows` rows and PANEL numbers of a head. */
CUtensorMap tile_map(
	struct device *d, struct heads m, int64_t batch, enum dtype type, int rows);

/* ---- the blocks of a grid ------------------------------------------------------------- */

/*
 * An item is one tile of rows of one head. Those with the most to do are first, over some heads
 * at a time: as many as have the rows that all their blocks read in the second-level cache.
 *
 * There are as many blocks as multiprocessors. Each begins with the item of its own number, and then
 * takes the next one that nobody has, so that the first tiles of an item are on their way while the
 * one before it ends. Which block computes an item changes none of its bits.
 */
struct order {
	int tiles, groups, section; /* heads of keys, of all sequences; and at a time */
	int heads, kv_heads;	    /* that items are of, and those of keys */
	int items;
	struct attn_work *work;
};

static inline struct order order_of(struct device *d, const struct attn *a, int tile_rows,
	int64_t heads, enum dtype type)
{
	enum { CACHE = 16 << 20 };
	int64_t bytes = 2 * a->k_rows * a->dim * dtype_bytes(type);
	int64_t groups = a->batch * a->kv_heads;
	int64_t tiles = (a->q_rows + tile_rows - 1) / tile_rows;
	return {(int)tiles, (int)groups, (int)min64(groups, max64(1, CACHE / bytes)),
		(int)heads, (int)a->kv_heads,
		(int)(tiles * groups * (heads / a->kv_heads)), attn_work(d)};
}

/* The item after those that blocks began with, for one block. */
static __device__ inline int item_take(const struct order &o)
{
	return (int)(gridDim.x + atomicAdd(&o.work->taken, 1u));
}

/* A block takes no more: the last one leaves the counts as it found them. */
static __device__ inline void items_end(const struct order &o)
{
	__threadfence(); /* what this block took comes before that it ended */
	if (atomicAdd(&o.work->ended, 1u) == gridDim.x - 1) {
		__threadfence();
		o.work->taken = 0;
		o.work->ended = 0;
	}
}

struct place {
	int tile, head, batch; /* tile 0: the one to be first */
};

static __device__ inline struct place place_of(const struct order &o, int item)
{
	int group = o.heads / o.kv_heads, each = o.section * group * o.tiles;
	int first = item / each * o.section, here = min(o.section, o.groups - first);
	int i = item % each, head = i % (here * group), kv = first + head / group;
	return {i / (here * group), kv % o.kv_heads * group + head % group,
		kv / o.kv_heads};
}

/* ---- inside a block -------------------------------------------------------------------- */

enum { CONSUMERS = 2, HOPPER_THREADS = (1 + CONSUMERS) * WARPGROUP };

/* Registers of a thread of the first warpgroup, which asks for tiles, and of the two others. They
 * have no more than the block was launched with, a multiple of 8 a thread: who asks for more
 * waits for ever. */
static constexpr bool registers_fit(int few, int many)
{
	return few + CONSUMERS * many <=
	       (1 + CONSUMERS) * (65536 / HOPPER_THREADS / 8 * 8);
}

/* Bytes of tiles, and of what `other` is, with the room to begin at PANEL_ALIGN. */
static constexpr int hopper_bytes(int tiles, int other)
{
	return PANEL_ALIGN + tiles + other;
}

static __device__ inline unsigned char *hopper_room(unsigned char *shared)
{
	return shared +
	       (PANEL_ALIGN - shared_address(shared) % PANEL_ALIGN) % PANEL_ALIGN;
}

/* The number of a warpgroup, which the compiler then knows to be a warp's. */
static __device__ inline int warpgroup_id(void)
{
	return __shfl_sync(ALL_LANES, threadIdx.x / WARPGROUP, 0);
}

/* Where ring's use i is: its place, and the parity of its turn there. */
struct turn {
	int place, parity;
};

template <int STAGES> static __device__ inline struct turn turn_of(int i)
{
	return {i % STAGES, i / STAGES % 2};
}

/* ROWS rows of a head from `row` on, panel by panel. */
template <int D, int ROWS, typename T>
static __device__ inline void panels_load(
	T *to, const CUtensorMap *map, uint64_t *barrier, int row, int head, int batch)
{
#pragma unroll
	for (int i = 0; i < D / PANEL; i++)
		tile_load(
			to + i * ROWS * PANEL, map, barrier, i * PANEL, head, row, batch);
}

/* A warp is done with what barrier is for. */
static __device__ inline void warp_arrive(uint64_t *barrier)
{
	__syncwarp();
	if (lane_id() == 0)
		barrier_arrive(barrier);
}

/* Numbers as the operand of a matmul that has them as its rows. */
template <typename T, int NT>
static __device__ inline void operand_of(
	uint32_t (&to)[NT / 2][4], const float (&p)[NT][4])
{
#pragma unroll
	for (int k = 0; k < NT / 2; k++) {
		to[k][0] = both<T>(p[2 * k][0], p[2 * k][1]);
		to[k][1] = both<T>(p[2 * k][2], p[2 * k][3]);
		to[k][2] = both<T>(p[2 * k + 1][0], p[2 * k + 1][1]);
		to[k][3] = both<T>(p[2 * k + 1][2], p[2 * k + 1][3]);
	}
}

#endif
